"""An app with topics and a folder of its own, fed by its generator: what its benchmarks stand on."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from millrace.checkpoints.checkpoint import Checkpoint
from millrace.dashboard.progress import offsets_of
from millrace.errors import MillraceError
from millrace.kafka.broker import broker_or_embedded
from millrace.runtime.apps import load_app, with_sent_times
from millrace.runtime.commands import app_rows
from millrace.runtime.job import Job
from millrace.runtime.settings import AppSettings, load_settings
from millrace_apps.benchmarks.app_bench import AppBench, Record
from millrace_apps.benchmarks.kafka_io import read_values

_PARTITIONS: Final = 2
#: For a stopped generator to deliver what it has sent, s.
_FLUSH_LIMIT_S: Final = 60.0
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True)
class BenchRun:
    """A job that is not started yet, and where it runs.

    Attributes:
        bench: What is known of the app.
        job: The job.
        broker: The broker.
        folder: An empty folder beside the app's own.
        suffix: What the names of all topics of the run end in.
    """

    bench: AppBench
    job: Job
    broker: str
    folder: Path
    suffix: str

    @property
    def settings(self) -> AppSettings:
        """The app's settings."""
        return self.job.settings

    def topic(self, name: str) -> str:
        """Return the topic that the settings know by a name."""
        return str(getattr(self.settings.topics, name))  # type: ignore[attr-defined]

    @property
    def root(self) -> Path:
        """The app's folder."""
        return self.job.root

    def messages(self, name: str) -> Iterator[tuple[Record, int]]:
        """Yield each message of a topic with its time, ms."""
        for value, at in read_values(self.broker, self.topic(name)):
            yield _decode(value), at

    def sent(self, stream: str) -> Iterator[Record]:
        """Yield what was sent to a stream."""
        return (message for message, _ in self.messages(stream))

    def rows(self, table: str, columns: Sequence[str]) -> list[Record]:
        """Return the rows of a table of the app."""
        return app_rows(self.root, table, columns)

    def generate(self, *parts: Mapping[str, object]) -> None:
        """Run the app's generator to its end; of several values of an option the last one holds.

        Args:
            parts: Options.

        Raises:
            MillraceError: It failed; the message is what it said.
        """
        done = subprocess.run(self._generator(*parts), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise MillraceError(f"the generator failed: {done.stderr.strip()}")

    @contextmanager
    def generating(self, *parts: Mapping[str, object]) -> Iterator[Callable[[], None]]:
        """Run the app's generator beside what is done; at the end it is stopped, and all is delivered.

        Args:
            parts: Options; without an end.

        Yields:
            What raises if the generator has ended.

        Raises:
            MillraceError: It failed; the message is what it said.
        """
        with (self.folder / "generator.log").open("w+") as said:
            child = subprocess.Popen(self._generator(*parts), stdout=said, stderr=subprocess.STDOUT)

            def check() -> None:
                if child.poll() is not None:
                    said.seek(0)
                    raise MillraceError(f"the generator ended: {said.read().strip() or child.returncode}")

            try:
                yield check
                check()
                child.terminate()
                if child.wait(_FLUSH_LIMIT_S) != 0:
                    check()
            except subprocess.TimeoutExpired as error:
                raise MillraceError(f"the generator does not end within {_FLUSH_LIMIT_S:.0f} s") from error
            finally:
                child.kill()
                child.wait()

    def _generator(self, *parts: Mapping[str, object]) -> list[str]:
        """Return the command of the app's generator."""
        streams = self.bench.streams
        own = {"bootstrap": self.broker, "partitions": _PARTITIONS, "disorder-ms": 0}
        options = _arguments({**own, **{k: v for part in parts for k, v in part.items()}}, self.suffix)
        topics = [part for s in streams for part in ("--topic", f"{s}={self.topic(s)}")]
        command = [sys.executable, "-m", "millrace", "generate", self.bench.name, "--quiet"]
        return [*command, *options, *topics]


def _arguments(options: Mapping[str, object], suffix: str) -> list[str]:
    """Return options as they stand on a command line; a loop is closed with this run's topics.

    >>> _arguments({"rate": "max", "loop": True}, ".x")
    ['--rate', 'max', '--loop', '--loop-suffix', '.x']
    """
    found: list[str] = []
    for name, value in options.items():
        if value is True:
            found += [f"--{name}", f"--{name}-suffix", suffix]
        else:
            found += [f"--{name}", str(value)]
    return found


@contextmanager
def bench_run(
    bench: AppBench,
    bootstrap: str | None,
    overrides: Sequence[str],
    *,
    prepare: Callable[[Path], Sequence[str]] = lambda _: (),
    **more: Any,
) -> Iterator[BenchRun]:
    """Give an app's job on topics and in a folder of its own; all of it is removed at the end.

    Args:
        bench: What is known of the app.
        bootstrap: A broker, or ``None`` for an embedded one.
        overrides: Settings of the app; they win.
        prepare: Folder → further settings; it may write files that they name.
        more: Further arguments of the job.
    """
    from millrace.kafka.admin import (
        APPEND_TIME,
        SENT_TIME,
        TopicSpec,
        create_topics,
        delete_topics,
        topic_partitions,
    )

    app = with_sent_times(load_app(bench.name))
    # A mistake is told before a broker starts.
    load_settings(app.settings, app=bench.name, overrides=overrides)
    with (
        tempfile.TemporaryDirectory(prefix="millrace-bench-") as name,
        broker_or_embedded(bootstrap, log_dir=Path(name)) as broker,
    ):
        folder, suffix = Path(name), f".bench-{name[-8:]}"
        sets = [f"kafka.bootstrap={broker}", f"storage.root={folder}/{bench.name}"]
        sets += [*topic_settings(app.settings, suffix), *prepare(folder), *overrides]
        settings = load_settings(app.settings, app=bench.name, overrides=sets)
        run = BenchRun(bench, Job(app, settings, **more), broker, folder, suffix)
        # What is sent keeps the time that the generator gives it; the broker's time of an answer is when a
        # reader can have it.
        made = {run.topic(stream): TopicSpec(_PARTITIONS, SENT_TIME) for stream in bench.streams}
        made[run.topic(bench.answers.topic)] = TopicSpec(_PARTITIONS, APPEND_TIME)
        create_topics(broker, made)
        try:
            yield run
        finally:
            delete_topics(broker, [t for t in topic_partitions(broker) if t.endswith(suffix)])


def run_beside(run: BenchRun, act: Callable[[threading.Event], None]) -> None:
    """Run the job while something else goes on in a thread; when that is done the job is stopped.

    Args:
        run: The run.
        act: What goes on; it is given an event that is set when the job has ended by itself. What it
            raises is raised here.
    """
    failures: list[BaseException] = []
    ended = threading.Event()

    def go_on() -> None:
        try:
            act(ended)
        except BaseException as error:
            failures.append(error)
        finally:
            run.job.stop()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        run.job.run()
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]


def topic_settings(settings: type[AppSettings], suffix: str) -> list[str]:
    """Return settings by which the names of all topics of an app end in a suffix.

    Args:
        settings: The app's settings.
        suffix: The suffix.

    Example:
        >>> from millrace_apps.benchmarks.core_app import CoreSettings
        >>> topic_settings(CoreSettings, ".x")[0]
        'topics.events=bench.events.x'
    """
    names: Any = settings().topics  # type: ignore[attr-defined]
    known = {field: getattr(names, field) for field in type(names).model_fields}
    return [f"topics.{f}={name}{suffix}" for f, name in known.items() if isinstance(name, str) and name]


def read_ends(checkpoint: Path, batch: int) -> dict[str, int]:
    """Return how many records of each topic a batch and those before it have read.

    Args:
        checkpoint: The query's checkpoint.
        batch: The batch.

    Returns:
        Topic → records, where the topics were empty when they were made.
    """
    sources = Checkpoint(checkpoint.parent, checkpoint).position(batch).sources
    return {topic: sum(partitions.values()) for topic, partitions in offsets_of(sources).items()}


def steps(totals: Sequence[float]) -> list[float]:
    """Return the differences of neighbours.

    >>> steps([1, 3, 6])
    [2, 3]
    """
    return [b - a for a, b in itertools.pairwise(totals)]
