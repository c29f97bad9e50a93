"""`millrace bench big-state`: small batches over a gigabyte of state, and what a crash costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from millrace_apps.benchmarks.inputs import Events
from millrace_apps.benchmarks.kafka_io import Pace, Results, preload
from millrace_apps.benchmarks.report import tell
from millrace_apps.benchmarks.running import Rate, Stage, Written, is_correct, latencies, stage
from millrace_apps.benchmarks.streams import BenchmarkFailed


@dataclass(frozen=True)
class Sizes:
    """How much state, and what comes then.

    Attributes:
        keys: Cards, each with a kilobyte of state.
        rate: Events per second then, each card as often as any other.
        duration_s: Seconds measured; the state is uploaded each two and a half minutes, with all of it.
        warm_up_s: Seconds before that, not counted.
        recovery_s: Seconds of events after them, in which the job is killed.
        batch: Most events of a batch, which matters while the state is filled.
    """

    keys: int = 1_000_000
    rate: int = 1_000
    duration_s: int = 300
    warm_up_s: int = 30
    recovery_s: int = 60
    batch: int = 100_000

    @property
    def pace(self) -> Rate:
        """The rate at which events come when the state is there."""
        return Rate(self.rate, self.duration_s, self.warm_up_s, self.keys, exponent=0.0)


QUICK = Sizes(keys=10_000, rate=200, duration_s=10, warm_up_s=5, recovery_s=20, batch=10_000)


def big_state(sizes: Sizes, bootstrap: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Measure latency, bytes written and recovery after SIGKILL.

    Args:
        sizes: How much state and what comes then.
        bootstrap: A broker, or ``None`` for an embedded one.
        overrides: Settings of the app.
    """
    rate = sizes.pace
    cap = f"stream.max_offsets_per_trigger={sizes.batch}"
    # Small batches on one machine, whatever waits when the state is filled.
    with stage(bootstrap, "w1_big", cap, "stream.plan=station", *overrides) as on:
        begin = time.monotonic()
        tell(f"filling the state of {sizes.keys:,} cards")
        filled = _fill(on, sizes.keys)
        fill_s = time.monotonic() - begin
        tell(f"filled in {fill_s:.0f} s; {rate.rate:,} events/s for {rate.warm_up_s + rate.duration_s} s")
        sent = on.pace(rate, first_id=sizes.keys)
        with Written(Path(on.settings.storage.path("checkpoint")) / "state") as written:
            with on.producing(sent) as producer:
                on.await_results(sizes.keys + rate.warm_up_s * rate.rate)
                bytes_before, results_before = written.sample(), on.produced()
                warm = on.committed()
                on.await_results(sizes.keys + rate.rows)
                producer.wait()
            state_bytes, results = written.sample() - bytes_before, on.produced() - results_before
        tell(f"killed among {sizes.recovery_s} s of events, and started again")
        more, killed_ms, dead_ms = _kill(on, sizes, first_id=sizes.keys + rate.rows)
        found = on.results()
    return {
        **latencies(found, sent, rate.counted),
        "warm_batches": warm,
        "state_bytes_per_event": state_bytes / results,
        "recovery_s": recovery_s(found, killed_ms, dead_ms),
        "repeats_after_kill": found.repeats,
        "fill_s": fill_s,
        "correct": is_correct(found, 0, filled, sent.events(), more.events()),
    }


def _fill(on: Stage, keys: int) -> Events:
    """Give every card its first event, and wait until its state is there."""
    number = np.arange(keys, dtype=np.int64)
    # Of the last second: what is older would be late, or its timers due, when the clock's own events come.
    at = int(time.time() * 1_000) - 1_000 + number * 1_000 // keys
    events = Events(number, number % 997 + 1, at)
    preload(on.bootstrap, on.settings.topics.events, events)
    on.app.start()
    on.await_results(keys)
    return events


def _kill(on: Stage, sizes: Sizes, first_id: int) -> tuple[Pace, int, int]:
    """Kill the job among its events, and start it again.

    Returns:
        The events, when it was killed, and when nothing came of the killed one any more (ms).
    """
    rows = sizes.recovery_s * sizes.rate
    more = on.pace(sizes.pace, first_id=first_id, seed=6, rows=rows)
    with on.producing(more) as producer:
        on.await_results(first_id + rows // 4)
        killed_ms = int(time.time() * 1_000)
        on.app.kill()
        on.await_until(_stands_still(on), "an end of the results")
        dead_ms = int(time.time() * 1_000)
        on.app.start()
        producer.wait()
        # With repeats, how many there are does not say whether all are there.
        on.await_until(lambda: on.produced() >= first_id + rows and _all(on, first_id + rows), "all results")
    return more, killed_ms, dead_ms


def _stands_still(on: Stage) -> Callable[[], bool]:
    seen = [-1]

    def stands() -> bool:
        before, seen[0] = seen[0], on.produced()
        return before == seen[0]

    return stands


def _all(on: Stage, ids: int) -> bool:
    return len(on.results().id) >= ids


def recovery_s(found: Results, killed_ms: int, dead_ms: int) -> float:
    """Return the seconds from the kill until the first result that had not been there before.

    Args:
        found: The results, each with the time at which it was first there.
        killed_ms: When the job was killed.
        dead_ms: When nothing of the killed job's came any more.

    Raises:
        BenchmarkFailed: There is none.
    """
    after = found.at[found.at > dead_ms]
    if not len(after):
        raise BenchmarkFailed("no new result came after the kill")
    return float(after.min() - killed_ms) / 1_000


def configuration(sizes: Sizes, overrides: Sequence[str]) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {**asdict(sizes), "bytes_per_key": 1_000, "timers": True, "settings": list(overrides)}
