"""One run of a generator from the command line: sink, pace, ledger, progress, and a clean end on a signal."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal, get_args

from generators.engine.message import Generated
from generators.engine.pace import WallClock, pace
from generators.engine.profile import Profile
from generators.ledger import LedgerWriter
from generators.progress import Progress, describe
from generators.run import run
from generators.sinks import KafkaSink, LineSink, Sink, SinkClosed
from generators.timing import Timing
from millrace.errors import UserError

Kind = Literal["kafka", "jsonl", "stdout"]


@dataclass(frozen=True)
class Destination:
    """Where a run sends its messages.

    Attributes:
        kind: ``kafka``, ``jsonl`` or ``stdout``.
        bootstrap: Kafka broker.
        topic: Kafka topic.
        partitions: Partitions of a topic that does not exist yet.
        out: File for ``jsonl``.
    """

    kind: str
    bootstrap: str
    topic: str
    partitions: int
    out: Path | None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UserError(f"--to is one of {', '.join(get_args(Kind))}, got {self.kind}")
        if self.kind == "jsonl" and self.out is None:
            raise UserError("--to jsonl needs a file: add --out FILE, or use --to stdout")
        if self.kind != "jsonl" and self.out is not None:
            raise UserError(f"--out is the file of --to jsonl; with --to {self.kind} leave it out")

    @property
    def name(self) -> str:
        """The target, for people."""
        return {"kafka": f"{self.topic} at {self.bootstrap}", "jsonl": str(self.out)}.get(self.kind, "stdout")

    def open(self, stop: threading.Event) -> Sink:
        """Return the sink; ``stop`` is set when the run is to end early."""
        if self.kind == "kafka":
            return KafkaSink(self.bootstrap, self.topic, partitions=self.partitions, stop=stop)
        return LineSink.to_file(self.out) if self.out is not None else LineSink.to_stdout()


def execute(
    stream: Iterator[Generated],
    profile: Profile,
    timing: Timing,
    destination: Destination,
    *,
    domain: str,
    schema_version: str,
    ledger_path: Path | None,
    quiet: bool,
) -> None:
    """Send a stream to its end, or until SIGINT or SIGTERM, and say what was sent.

    Args:
        stream: Messages in their order of sending.
        profile: What they are made from.
        timing: When they are sent.
        destination: Where they go.
        domain: Name of the generator.
        schema_version: Version of its event contract.
        ledger_path: Where the ledger goes, if anywhere.
        quiet: Show nothing but errors.
    """
    with _until_signalled() as stop, destination.open(stop) as sink:
        if timing.speed is not None:
            stream = pace(
                stream,
                speed=timing.speed,
                start_ms=timing.start_ms,
                clock=WallClock(stop),
                behind_s=max(time.time() - timing.start_ms / 1000, 0.0) if timing.live else 0.0,
                on_idle=sink.idle,
            )
        ledger = LedgerWriter(
            ledger_path,
            domain=domain,
            seed=profile.seed,
            schema_version=schema_version,
            parameters=profile.parameters(),
        )
        with ledger, Progress(ledger.totals, destination.name, profile.events, quiet=quiet) as progress:
            try:
                summary = run(stream, sink, ledger, stop)
            except SinkClosed:
                _forget_stdout()
                if ledger_path is not None:
                    raise
                return
        if not quiet:
            print(describe(summary, destination.name, progress.seconds), file=sys.stderr)


def show_sample(stream: Iterator[Generated], size: int) -> None:
    """Print the first messages of a stream as JSON, with key, headers and what is true about them."""
    for message in itertools.islice(stream, size):
        labels = message.labels
        shown = {
            "key": message.key.decode(),
            "headers": {name: text.decode() for name, text in message.headers},
            "value": message.value.decode(errors="backslashreplace"),
            "truth": {"scenario": labels.scenario, "episode_id": labels.episode_id, "fault": labels.fault},
        }
        print(json.dumps(shown, indent=2))


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
