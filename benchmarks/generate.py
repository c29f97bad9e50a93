"""Speed and memory of the generators; one process per figure.

``python -m millrace_apps.benchmarks.generate {…}`` is that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from millrace_apps.benchmarks.streams import BenchmarkFailed

if TYPE_CHECKING:
    from millrace_apps.generators.engine.message import Generated
    from millrace_apps.generators.sinks import Sink
    from millrace_apps.generators.world_ledger import WorldLedger

TARGETS: Final = ("jsonl", "kafka", "null")


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        domains: Which generators.
        targets: Where to: ``jsonl`` (a file), ``kafka`` (a broker) or ``null`` (lines to nowhere).
        events: Distinct valid events per run.
        repeats: Runs of each; the one with the least CPU time counts.
    """

    domains: tuple[str, ...] = ("fraud", "clickstream")
    targets: tuple[str, ...] = ("jsonl", "kafka")
    events: int = 300_000
    repeats: int = 3


QUICK: Final = Sizes(events=5_000, repeats=1)


@dataclass(frozen=True)
class Order:
    """One run of the measuring process.

    Attributes:
        domain: Which generator.
        target: Where to.
        events: Distinct valid events.
        folder: Where a file goes.
        bootstrap: The broker.
    """

    domain: str
    target: str
    events: int
    folder: str
    bootstrap: str


def generate(sizes: Sizes, bootstrap: str | None) -> dict[str, Any]:
    """Return figures per domain and target.

    Args:
        sizes: What is measured.
        bootstrap: A broker, or ``None`` for an embedded one where Kafka is a target.

    Returns:
        ``systems``: rows per second of the clock, CPU seconds per million (all threads) and whether every
        message was counted; ``rss_mb``: memory at a tenth of the events and at most.
    """
    from millrace.kafka.broker import broker_or_embedded

    systems: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="millrace-generate-") as folder:
        wants_broker = "kafka" in sizes.targets
        opened = broker_or_embedded(bootstrap, log_dir=Path(folder) / "broker") if wants_broker else None
        with opened or nullcontext("") as broker:
            for domain in sizes.domains:
                for target in sizes.targets:
                    order = Order(domain, target, sizes.events, folder, broker)
                    runs = [_run(order) for _ in range(sizes.repeats)]
                    best = min(runs, key=lambda run: float(run["cpu_s_per_million"]))
                    systems[f"{domain} to {target}"] = best
    memory = {name: found.pop("rss_mb") for name, found in systems.items()}
    return {"systems": systems, "rss_mb": memory}


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what a report says about the sizes."""
    return asdict(sizes)


def _run(order: Order) -> dict[str, Any]:
    command = [sys.executable, "-m", "millrace_apps.benchmarks.generate", json.dumps(asdict(order))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise BenchmarkFailed(f"{order.domain} to {order.target} failed: {lines[-1] if lines else 'no word'}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# -- the measuring process ---------------------------------------------------------------------------


def _measure(order: Order) -> dict[str, Any]:
    from millrace_apps.generators.run import run

    stream, ledger = _stream(order)
    # What is made before the first event (cards, a city) is no part of the rate.
    first = next(stream)
    memory: list[float] = []
    with _sink(order) as sink:
        began, used = time.perf_counter(), time.process_time()
        summary: Any = run(
            _watched(chain((first,), stream), order.events, memory), sink, ledger, threading.Event()
        )
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - used
    return {
        "rows_per_s": round(summary.sent / seconds),
        "cpu_s_per_million": round(cpu_s * 1e6 / summary.sent, 2),
        "correct": summary.valid_unique == order.events and _lines(order) in (None, summary.sent),
        "rss_mb": {"at_a_tenth": memory[0], "most": max(memory)},
    }


def _watched(stream: Iterator[Generated], events: int, memory: list[float]) -> Iterator[Generated]:
    """Pass the messages on, and take down the memory ten times on the way."""
    process, every = psutil.Process(), max(events // 10, 1)
    for number, message in enumerate(stream, 1):
        yield message
        if number % every == 0:
            memory.append(round(process.memory_info().rss / 2**20, 1))


def _stream(order: Order) -> tuple[Iterator[Generated], WorldLedger]:
    """Return a generator's messages with its usual parameters, and a ledger that counts them."""
    from millrace.testing.world_ledger import WorldRun
    from millrace_apps.generators.domains import load
    from millrace_apps.generators.engine.world import deliver_domain
    from millrace_apps.generators.world_ledger import WorldLedger

    domain = load(order.domain)
    topics = {name: spec.topic for name, spec in domain.streams.items()}
    stream = deliver_domain(domain, domain.profile(events=order.events))
    return stream, WorldLedger(None, WorldRun(domain.name, 0, topics, {}, {}))


def _sink(order: Order) -> Sink:
    from millrace_apps.generators.sinks import KafkaSink, LineSink

    if order.target != "kafka":
        return LineSink.to_file(_file(order))
    # Topics of its own: what an earlier run left would have to be read past.
    return _OneTopic(KafkaSink(order.bootstrap, f"generate-{order.domain}-{uuid.uuid4().hex[:8]}"))


class _OneTopic:
    """Sends the messages of all streams to one topic."""

    def __init__(self, sink: Any) -> None:
        self._sink, self._write = sink, sink.write
        self.idle, self.flush, self.position = sink.idle, sink.flush, sink.position

    def write(self, message: Generated) -> None:
        message.topic = ""
        self._write(message)

    def __enter__(self) -> _OneTopic:
        self._sink.__enter__()
        return self

    def __exit__(self, *ended: Any) -> None:
        self._sink.__exit__(*ended)


def _file(order: Order) -> Path:
    return Path(os.devnull) if order.target == "null" else Path(order.folder) / f"{order.domain}.jsonl"


def _lines(order: Order) -> int | None:
    """Return how many lines the run wrote; None where they cannot be counted."""
    if order.target != "jsonl":
        return None
    with _file(order).open("rb") as file:
        return sum(1 for _ in file)


def main(arguments: Sequence[str]) -> None:
    """Measure what the first argument, a JSON object, orders, and print the figures as JSON."""
    print(json.dumps(_measure(Order(**json.loads(arguments[0])))))


if __name__ == "__main__":
    main(sys.argv[1:])
