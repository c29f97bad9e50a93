"""`millrace bench latency --job w1`: small batches, with timers, payload event time and a late check."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from millrace_apps.benchmarks.inputs import Events
from millrace_apps.benchmarks.kafka_io import Pace, preload
from millrace_apps.benchmarks.running import Producer, Rate, Stage, is_correct, latencies, stage
from millrace_apps.benchmarks.warmth import WarmUp, told

#: Longest warm-up for which there are events, s.
_WARM_LIMIT_S: Final = 900


def latency(rate: Rate, warm_up: WarmUp, bootstrap: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Measure from when an event is due until its score can be read.

    Args:
        rate: The rate; its seconds of warm-up are not looked at.
        warm_up: What comes before the seconds that are measured.
        bootstrap: A broker, or ``None`` for an embedded one.
        overrides: Settings of the app.
    """
    with stage(bootstrap, "w1_timed", *overrides) as on:
        on.app.start()
        # One event, so that the first batch, which loads everything, is done before the clock runs.
        first = Events(np.array([0]), np.array([1]), np.array([int(time.time() * 1_000)]))
        preload(on.bootstrap, on.settings.topics.events, first)
        on.await_results(1)
        sent = on.pace(rate, first_id=1, rows=rate.rate * (_WARM_LIMIT_S + rate.duration_s))
        with on.producing(sent) as producer:
            warm = _await_warm(on, warm_up, producer)
            counted = due_from(sent, int(time.time() * 1_000), rate.duration_s)
            on.await_until(
                lambda: on.produced() >= 1 + counted.stop, f"{counted.stop:,} results", producer.check
            )
            many = producer.stop()
        on.await_results(1 + many)
        found = on.results()
    return {
        **latencies(found, sent, counted),
        "warm_batches": warm,
        "correct": is_correct(found, 0, first, sent.events().part(0, many)),
    }


def _await_warm(on: Stage, warm_up: WarmUp, producer: Producer) -> int:
    """Wait until the warm-up is over; return how many batches had been committed then."""
    begin = time.monotonic()
    tell = told(lambda: f"warming up: {on.committed()} of {warm_up.batches} batches committed")

    def meanwhile() -> None:
        producer.check()
        tell()

    def over() -> bool:
        return warm_up.is_over(on.committed(), time.monotonic() - begin)

    on.await_until(over, f"{warm_up.batches} batches of the warm-up", meanwhile)
    return on.committed()


def due_from(sent: Pace, begin_ms: int, duration_s: int) -> range:
    """Return which events of a steady rate are due in some seconds, by their place.

    Args:
        sent: The events.
        begin_ms: When these seconds begin, wall clock.
        duration_s: How many they are.

    Example:
        >>> due_from(Pace("b:1", "t", rate=10, rows=999, keys=5, start_ms=1_000), 3_050, 2)
        range(21, 41)
    """
    first = max(0, -(-(begin_ms - sent.start_ms) * sent.rate // 1_000))
    return range(first, first + duration_s * sent.rate)


def configuration(rate: Rate, warm_up: WarmUp, overrides: Sequence[str]) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {
        **asdict(rate),
        "warm_up_s": warm_up.seconds,
        "warm_batches": warm_up.batches,
        "job": "w1",
        "timers": True,
        "late_check": True,
        "settings": list(overrides),
    }
