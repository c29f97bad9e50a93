"""`millrace bench drain`: an app catches up with topics that were filled before it started."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.kafka.admin import TopicSpec, create_topics
from millrace.runtime.job import Job
from millrace_apps.benchmarks.app_bench import AppBench
from millrace_apps.benchmarks.app_run import BenchRun, bench_run, read_ends, steps
from millrace_apps.benchmarks.cpu import cpu_by_part
from millrace_apps.benchmarks.streams import BenchmarkFailed

#: What an operator sets to catch up: large batches. Given settings win.
CATCH_UP: Final = (
    "stream.max_offsets_per_trigger=100000",
    # A batch of decisions passes the driver as a whole, in several copies of half a kilobyte each.
    "spark.driver_memory=2g",
    "stream.plan=chain",
)


@dataclass(frozen=True)
class Mark:
    """The end of a batch.

    Attributes:
        at: When, s, monotonic.
        cpu: CPU time until then by kind of process, s.
        taken: Stream → events that were read until then.
    """

    at: float
    cpu: dict[str, float]
    taken: dict[str, int] = field(default_factory=dict)

    @property
    def events(self) -> int:
        """Events that were read until then."""
        return sum(self.taken.values())


def configuration(bench: AppBench, entities: int | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {
        "app": bench.name,
        bench.entities: bench.usual if entities is None else entities,
        "generator": dict(bench.preload),
        "settings": settings_of(bench, overrides),
    }


def settings_of(bench: AppBench, overrides: Sequence[str]) -> list[str]:
    """Return the settings of a drain: those for catching up, the app's, and what is given, which wins."""
    return [*CATCH_UP, *bench.catch_up, *overrides]


def drain(
    bench: AppBench,
    events: int,
    entities: int | None,
    bootstrap: str | None,
    overrides: Sequence[str],
    *,
    first: Callable[[BenchRun], None] | None = None,
) -> dict[str, Any]:
    """Measure events per second from preloaded topics to the Delta tables.

    Args:
        bench: What is known of the app.
        events: Events in the topics before the app starts.
        entities: How many cards, machines, people or drivers; ``None``: the app's usual.
        bootstrap: A broker, or ``None`` for an embedded one.
        overrides: Settings of the app.
        first: Sends control events, which the app takes in a run of their own before the events are there.
    """
    marks: list[Mark] = []

    def note(batch: int, _counts: dict[str, int]) -> None:
        ends = read_ends(run.root / "checkpoint", batch)
        marks.append(
            Mark(time.monotonic(), cpu_by_part(), {s: ends.get(run.topic(s), 0) for s in bench.streams})
        )

    sets = settings_of(bench, overrides)
    with bench_run(bench, bootstrap, sets, until_end=True, drain=bench.drain, on_batch=note) as run:
        many = {bench.entities: bench.usual if entities is None else entities}
        if first is not None:
            create_topics(run.broker, {run.topic("control"): TopicSpec(1)})
            first(run)
            Job(run.job.app, run.settings, until_end=True, drain=False).run()
        run.generate({"rate": "max", "events": events, "timestamps": "arrival"}, many, bench.preload)
        begin: list[Mark] = []
        watch = threading.Thread(target=_note_start, args=(run, begin), daemon=True)
        watch.start()
        run.job.run()
        watch.join()
        checked = bench.check(run.rows, run.sent)
    return {**figures(begin[0], marks), **checked}


def _note_start(run: BenchRun, begin: list[Mark]) -> None:
    run.job.started.wait()
    begin.append(Mark(time.monotonic(), cpu_by_part()))


def figures(start: Mark, marks: Sequence[Mark]) -> dict[str, Any]:
    """Return speed and cost; what the first batch took is given apart, since it loads everything.

    Args:
        start: When the query ran.
        marks: The end of each batch; those that read nothing come last and do not count.

    Raises:
        BenchmarkFailed: Nothing was read.
    """
    read = steps([0, *(m.events for m in marks)])
    taken = [m for m, events in zip(marks, read, strict=True) if events]
    if not taken:
        raise BenchmarkFailed("the app has read nothing")
    first, last = taken[0], taken[-1]
    warm_s = last.at - first.at
    used = _used(start, last)
    return {
        "events": last.events,
        "batches": len(taken),
        "warm_batches": 1,
        "seconds": last.at - start.at,
        "rows_per_s": last.events / (last.at - start.at),
        "events_after_first_batch": last.events - first.events,
        "rows_per_s_after_first_batch": (last.events - first.events) / warm_s if warm_s else None,
        "streams": {s: _of_stream(s, first, last) for s in last.taken} if len(last.taken) > 1 else {},
        "cpu_s_per_million": sum(used.values()) / last.events * 1e6,
        "cpu_s_of_first_batch": _used(start, first),
        "cpu_s_after_first_batch": _used(first, last),
        "batch_seconds": [round(s, 2) for s in steps([start.at, *(m.at for m in taken)])],
    }


def _of_stream(stream: str, first: Mark, last: Mark) -> dict[str, Any]:
    """Return how much of the events a stream is, and how fast it was read after the first batch."""
    seconds, events = last.at - first.at, last.taken[stream]
    warm = events - first.taken[stream]
    return {
        "events": events,
        "share": events / last.events,
        "per_s_after_first_batch": warm / seconds if seconds else None,
    }


def _used(before: Mark, after: Mark) -> dict[str, float]:
    return {part: round(after.cpu[part] - before.cpu[part], 1) for part in after.cpu}
