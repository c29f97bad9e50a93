"""A job in a process of its own, fed at a steady rate, watched, and killed if need be."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from millrace_apps.benchmarks import core_app
from millrace_apps.benchmarks.inputs import Events
from millrace_apps.benchmarks.kafka_io import Pace, Results, paced_command, read_results
from millrace_apps.benchmarks.report import percentiles
from millrace_apps.benchmarks.streams import BenchmarkFailed

_POLL_S = 0.2
_LIMIT_S = 900.0
#: Until the producer has started.
_LEAD_MS = 3_000


@dataclass(frozen=True)
class Rate:
    """A steady rate of events.

    Attributes:
        rate: Events per second.
        duration_s: Seconds measured.
        warm_up_s: Seconds before that, not counted.
        keys: Cards.
        exponent: Of Zipf's law over them; 0: all alike.
    """

    rate: int = 1_000
    duration_s: int = 60
    warm_up_s: int = 60
    keys: int = 50_000
    exponent: float = 1.1

    @property
    def rows(self) -> int:
        """Events, the warm-up's included."""
        return self.rate * (self.duration_s + self.warm_up_s)

    @property
    def counted(self) -> range:
        """Which of the events are measured, by their place."""
        return range(self.rate * self.warm_up_s, self.rows)


class RunningApp:
    """The benchmark's app in a process of its own, which can be killed as a crash would.

    Args:
        settings: Its settings, ``key=value``.
        output: File for what it prints.
        scratch: Folder for its temporary files, which stay when it is killed.
    """

    def __init__(self, settings: list[str], output: Path, scratch: Path) -> None:
        self._command = [sys.executable, "-m", "millrace_apps.benchmarks.core_app", *settings]
        self._output = output
        self._environment = {**os.environ, "TMPDIR": str(scratch)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, also after it was killed."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=output, env=self._environment
            )

    def check(self) -> None:
        """Raise if it has ended.

        Raises:
            BenchmarkFailed: It has.
        """
        if self._process is not None and self._process.poll() is not None:
            lines = self._output.read_text(errors="replace").splitlines() or ["it said nothing"]
            raise BenchmarkFailed(f"the job ended: {lines[-1]}")

    def kill(self) -> None:
        """End it and all that it has started at once (SIGKILL)."""
        if self._process is None:
            return
        try:
            root = psutil.Process(self._process.pid)
            family = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            family = []
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(family[1:], timeout=10)
        self._process = None

    def stop(self) -> None:
        """Let it finish its batch and end; what does not end within a minute is killed."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=60)
        self.kill()


class Written:
    """Watches how much a folder's files take, also those that are deleted meanwhile.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Written:
        self.sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def sample(self) -> int:
        """Look now; return the bytes of all files ever seen."""
        with self._lock:
            self._look()
            return sum(self._sizes.values())

    def _look(self) -> None:
        for folder, _, names in os.walk(self._folder):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    size = os.stat(path).st_size
                except FileNotFoundError:
                    continue
                # Written under a name that begins with a dot, then renamed.
                if not name.startswith("."):
                    self._sizes[path] = max(size, self._sizes.get(path, 0))

    def _watch(self) -> None:
        while not self._end.wait(1.0):
            self.sample()


class Producer:
    """Sends events at a steady rate, from a process of its own.

    Args:
        pace: The events.
    """

    def __init__(self, pace: Pace) -> None:
        self._child = subprocess.Popen(paced_command(pace), stdout=subprocess.PIPE, text=True)

    def wait(self) -> int:
        """Return how many events were sent, once the last one is delivered.

        Raises:
            BenchmarkFailed: It failed.
        """
        said, _ = self._child.communicate()
        if self._child.returncode != 0 or not said.strip():
            raise BenchmarkFailed("the producer of the events failed; what it said stands above")
        return int(said)

    def stop(self) -> int:
        """Send no more; return how many events were sent, once they are delivered."""
        self._child.terminate()
        return self.wait()

    def check(self) -> None:
        """Raise if it has ended.

        Raises:
            BenchmarkFailed: It has.
        """
        if self._child.poll() is not None:
            raise BenchmarkFailed("the producer of the events ended; what it said stands above")

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        with self._child:  # waits for it, and closes what it would have said
            pass


@dataclass(frozen=True)
class Stage:
    """A broker, a folder and a job with topics of its own."""

    bootstrap: str
    folder: Path
    settings: core_app.CoreSettings
    app: RunningApp

    def pace(self, rate: Rate, *, first_id: int, seed: int = 5, rows: int | None = None) -> Pace:
        """Return events for the job at a steady rate that begins in a moment.

        Args:
            rate: The rate.
            first_id: Id of the first.
            seed: Of everything that is random.
            rows: How many; ``None``: those of the rate.
        """
        return Pace(
            self.bootstrap,
            self.settings.topics.events,
            rate.rate,
            rate.rows if rows is None else rows,
            rate.keys,
            rate.exponent,
            first_id,
            seed,
            int(time.time() * 1_000) + _LEAD_MS,
        )

    def results(self) -> Results:
        """Return all results that there are."""
        return read_results(self.bootstrap, self.settings.topics.results)

    def produced(self) -> int:
        """Return how many results there are."""
        from millrace.kafka.admin import end_offsets

        return sum(end_offsets(self.bootstrap, self.settings.topics.results).values())

    def await_results(self, wanted: int) -> None:
        """Wait until there are so many results.

        Raises:
            BenchmarkFailed: The job has ended, or they do not come.
        """
        self.await_until(lambda: self.produced() >= wanted, f"{wanted:,} results")

    def await_until(
        self, reached: Callable[[], bool], what: str, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Wait for something that the job does.

        Args:
            reached: Whether it is there.
            what: What it is, for the message.
            meanwhile: Called again and again.

        Raises:
            BenchmarkFailed: The job has ended, or it does not come.
        """
        deadline = time.monotonic() + _LIMIT_S
        while not reached():
            self.app.check()
            meanwhile()
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{what} are not there within {_LIMIT_S:.0f} s")
            time.sleep(_POLL_S)

    @contextmanager
    def producing(self, pace: Pace) -> Iterator[Producer]:
        """Produce at a steady rate in another process."""
        with Producer(pace) as producer:
            yield producer

    def committed(self) -> int:
        """Return how many batches the job has committed."""
        commits = Path(self.settings.storage.path("checkpoint")) / "commits"
        try:
            numbers = [int(name) for name in os.listdir(commits) if name.isdecimal()]
        except FileNotFoundError:
            return 0
        return max(numbers, default=-1) + 1


@contextmanager
def stage(bootstrap: str | None, job: core_app.Job, *overrides: str) -> Iterator[Stage]:
    """Give a job that is not started yet; all of it is removed at the end."""
    from millrace.kafka.admin import APPEND_TIME, SENT_TIME, TopicSpec, create_topics, delete_topics
    from millrace.kafka.broker import broker_or_embedded

    core_app.core_settings(overrides)  # a mistake is told before a broker starts
    with (
        tempfile.TemporaryDirectory(prefix="millrace-bench-") as name,
        # The job's sockets are there: a short path.
        tempfile.TemporaryDirectory(prefix="mb-", ignore_cleanup_errors=True) as scratch,
        broker_or_embedded(bootstrap, log_dir=Path(name)) as broker,
    ):
        folder, run = Path(name), name[-8:]
        sets = core_app.core_overrides(broker, folder / "app", run, f"job={job}", *overrides)
        settings = core_app.core_settings(sets)
        topics = settings.topics
        create_topics(broker, {topics.events: TopicSpec(topics.partitions, SENT_TIME)})
        create_topics(broker, {topics.results: TopicSpec(topics.partitions, APPEND_TIME)})
        app = RunningApp(sets, folder / "app.log", Path(scratch))
        try:
            yield Stage(broker, folder, settings, app)
        finally:
            app.stop()
            delete_topics(broker, [topics.events, topics.results, topics.dead_letters])


def latencies(found: Results, sent: Pace, counted: range) -> dict[str, Any]:
    """Return the latencies of the events that count, from when they were due, ms.

    Args:
        found: The results.
        sent: The events.
        counted: Which of them count, by their place among them, from 0.
    """
    place = found.id - sent.first_id
    measured = (place >= counted.start) & (place < counted.stop)
    due = sent.start_ms + place[measured] * 1_000 // sent.rate
    waited = (found.at[measured] - due).astype(float).tolist()
    return {"events": len(waited), "latency_ms": percentiles(waited) if waited else None}


def is_correct(found: Results, first_id: int, *parts: Events) -> bool:
    """Say whether the results are the scores of all events.

    Args:
        found: The results.
        first_id: Id of the first event; the others follow without a gap.
        parts: The events, one part after the other.
    """
    columns = zip(*((part.card, part.cents, part.at) for part in parts), strict=True)
    events = Events(*(np.concatenate(column) for column in columns))
    return found._replace(id=found.id - first_id).is_correct(events)
