"""One run of a generator from the command line: sink, pace, ledger, progress, and a clean end on a signal."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal, get_args

from millrace.errors import UserError
from millrace_apps.generators.engine.message import Generated
from millrace_apps.generators.engine.pace import WallClock, pace
from millrace_apps.generators.engine.shape import Shape, parse_shape
from millrace_apps.generators.file_sinks import FolderSink, ParquetSink
from millrace_apps.generators.options import Timestamps, kafka_options
from millrace_apps.generators.preview import dry_run, show_sample
from millrace_apps.generators.progress import Progress, describe
from millrace_apps.generators.resume import Bookmark, Keeper, bookmark_path, check_same, load, replay
from millrace_apps.generators.run import run
from millrace_apps.generators.sinks import KafkaSink, LineSink, Sink, SinkClosed
from millrace_apps.generators.timing import Timing
from millrace_apps.generators.world_ledger import WorldLedger

Kind = Literal["kafka", "jsonl", "parquet", "stdout"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a run sends.

    Attributes:
        domain: Name of the domain.
        stream: Its messages in their order of sending.
        parameters: Every parameter that decides the bytes.
        events: How many events will come, if known.
        open_ledger: Opens the ledger: ``(path or None, whether to go on with it)``.
    """

    domain: str
    stream: Iterator[Generated]
    parameters: dict[str, Any]
    events: int | None
    open_ledger: Callable[[Path | None, bool], WorldLedger]


@dataclass(frozen=True)
class Destination:
    """Where a run sends its messages.

    Attributes:
        kind: ``kafka``, ``jsonl``, ``parquet`` or ``stdout``.
        bootstrap: Kafka broker.
        topics: Stream → topic.
        partitions: Partitions of a topic that does not exist yet.
        out: File for ``jsonl`` and ``parquet``; for ``jsonl`` of several streams a folder.
        options: Further options of the Kafka client.
        arrivals: Whether Kafka records carry their simulated arrival; else the broker's time.
        insist: Whether a topic that does not take such times is an error, and not worth a warning only.
    """

    kind: str
    bootstrap: str
    topics: Mapping[str, str]
    partitions: int
    out: Path | None
    options: Mapping[str, str] = field(default_factory=dict)
    arrivals: bool = False
    insist: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UserError(f"--to is one of {', '.join(get_args(Kind))}, got {self.kind}")
        if self.kind in ("jsonl", "parquet") and self.out is None:
            raise UserError(f"--to {self.kind} needs a file: add --out FILE, or use --to stdout")
        if self.insist and self.kind != "kafka":
            raise UserError(f"--timestamps is of Kafka's records; with --to {self.kind} leave it out")
        if self.kind not in ("jsonl", "parquet") and self.out is not None:
            raise UserError(f"--out is the file of --to jsonl or parquet; with --to {self.kind} leave it out")

    @property
    def name(self) -> str:
        """The target, for people."""
        if self.kind == "kafka":
            return f"{', '.join(self.topics.values())} at {self.bootstrap}"
        return "stdout" if self.out is None else str(self.out)

    def open(self, stop: threading.Event, after: Mapping[str, int] | None = None) -> Sink:
        """Return the sink.

        Args:
            stop: Set when the run is to end early.
            after: Where a killed run had got to, from :meth:`Sink.position`.
        """
        first, *_ = self.topics.values()
        if self.kind == "kafka":
            return KafkaSink(
                self.bootstrap,
                first,
                topics=list(self.topics.values()),
                partitions=self.partitions,
                options=self.options,
                stop=stop,
                after=after,
                arrivals=self.arrivals,
                insist=self.insist,
            )
        if self.out is None:
            return LineSink.to_stdout()
        if self.kind == "parquet":
            return ParquetSink(self.out, first)
        if len(self.topics) > 1:
            return FolderSink(self.out, list(self.topics), after)
        return LineSink.to_file(self.out, None if after is None else after["bytes"])


def found_bookmark(ledger: Path | None, to: str, *, resume: bool) -> Bookmark | None:
    """Return where a killed run had got to, if this one is to go on with it.

    Raises:
        UserError: If it cannot be gone on with: no ledger, another kind of target, or it has ended.
    """
    if not resume:
        return None
    if ledger is None:
        raise UserError("--resume goes on with the run of a ledger: add --ledger FILE")
    if to not in ("kafka", "jsonl") or ledger.suffix == ".parquet":
        raise UserError("--resume goes with --to kafka or jsonl and a ledger of JSON lines")
    return load(ledger)


def carry_out(
    job: Job,
    values: Mapping[str, Any],
    timing: Timing,
    topics: Mapping[str, str],
    bookmark: Bookmark | None,
) -> None:
    """Do what the shared options of a command ask for: show a sample, say what would be sent, or send it.

    Args:
        job: What to send.
        values: Option → value.
        timing: When it is sent.
        topics: Stream → topic.
        bookmark: How far a killed run got that this one goes on with.
    """
    shape = parse_shape(values["shape"], timing.start_ms)
    options = kafka_options(values["kafka_option"])
    if values["sample"] is not None:
        show_sample(job.stream, values["sample"])
        return
    given: Timestamps | None = values["timestamps"]
    destination = Destination(
        values["to"].value,
        values["bootstrap"],
        topics,
        values["partitions"],
        values["out"],
        options,
        # Where event time is not the clock's, the time at which a record is sent says nothing of its delay.
        arrivals=not timing.live if given is None else given is Timestamps.arrival,
        insist=given is not None,
    )
    if values["dry_run"]:
        topic = next(iter(destination.topics.values()))
        dry_run(f"{job.domain} → {destination.name}", job.stream, job.parameters, topic, timing)
        return
    execute(
        job,
        timing,
        destination,
        shape=shape,
        ledger_path=values["ledger"],
        bookmark=bookmark,
        quiet=values["quiet"],
    )


def execute(
    job: Job,
    timing: Timing,
    destination: Destination,
    *,
    ledger_path: Path | None,
    quiet: bool,
    shape: Shape | None = None,
    bookmark: Bookmark | None = None,
) -> None:
    """Send a stream to its end, or until SIGINT or SIGTERM, and say what was sent.

    Args:
        job: What to send.
        timing: When it is sent.
        destination: Where it goes.
        ledger_path: Where the ledger goes, if anywhere.
        quiet: Show nothing but errors.
        shape: How the rate changes over time.
        bookmark: How far a killed run got that this one goes on with.
    """
    marks = _begin_bookmark(job, destination, ledger_path, bookmark)
    first = bookmark or Bookmark(job.domain, destination.name, job.parameters, 0, {})
    with _until_signalled() as stop, destination.open(stop, first.position or None) as sink:
        with job.open_ledger(ledger_path, bookmark is not None) as ledger:
            due_ms = replay(job.stream, ledger, first.messages, stop)
            keeper = Keeper(marks, first, sink, ledger)
            stream = _paced(job.stream, timing, shape, due_ms, sink, keeper, stop)
            with Progress(ledger.totals, destination.name, job.events, quiet=quiet) as progress:
                try:
                    summary = run(stream, sink, ledger, stop, keeper)
                except SinkClosed:
                    _forget_stdout()
                    if ledger_path is not None:
                        raise
                    return
        if not quiet:
            new = summary.sent - first.messages
            print(describe(summary, destination.name, progress.seconds, new), file=sys.stderr)


def _begin_bookmark(
    job: Job, destination: Destination, ledger: Path | None, bookmark: Bookmark | None
) -> Path | None:
    """Return where this run's bookmark goes, if anywhere; one of another run is taken away."""
    if bookmark is not None:
        check_same(bookmark, job.domain, destination.name, job.parameters)
    if ledger is None or ledger.suffix == ".parquet" or destination.kind not in ("kafka", "jsonl"):
        return None
    path = bookmark_path(ledger)
    if bookmark is None:
        path.unlink(missing_ok=True)
    return path if ledger.parent.is_dir() else None


def _paced(
    stream: Iterator[Generated],
    timing: Timing,
    shape: Shape | None,
    due_ms: int,
    sink: Sink,
    keeper: Keeper,
    stop: threading.Event,
) -> Iterator[Generated]:
    """Return the stream at its pace, from the message on that is due after ``due_ms``."""
    if timing.speed is None:
        return stream
    behind_s = 0.0
    if timing.live:
        behind_s = max(time.time() - timing.start_ms / 1000, 0.0)
    elif due_ms:
        passed_s = max(due_ms - timing.start_ms, 0) / 1000
        behind_s = (shape.when(passed_s) if shape is not None else passed_s) / timing.speed

    def on_idle() -> None:
        sink.idle()
        keeper.keep()

    return pace(
        stream,
        speed=timing.speed,
        start_ms=timing.start_ms,
        clock=WallClock(stop),
        behind_s=behind_s,
        on_idle=on_idle,
        shape=shape,
    )


@contextmanager
def _until_signalled() -> Iterator[threading.Event]:
    """Give an event that the first SIGINT or SIGTERM sets; a second signal acts as it does by default."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        restore()


def _forget_stdout() -> None:
    """Keep the interpreter from complaining at its end that nobody reads standard output any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
