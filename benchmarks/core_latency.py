"""`millrace bench latency --job w1`: small batches, with timers, payload event time and a late check."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.inputs import Events
from benchmarks.kafka_io import preload
from benchmarks.running import Rate, is_correct, latencies, stage


def latency(rate: Rate, bootstrap: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Measure from when an event is due until its score can be read.

    Args:
        rate: The rate.
        bootstrap: A broker, or ``None`` for an embedded one.
        overrides: Settings of the app.
    """
    with stage(bootstrap, "w1_timed", *overrides) as on:
        on.app.start()
        # One event, so that the first batch, which loads everything, is done before the clock runs.
        first = Events(np.array([0]), np.array([1]), np.array([int(time.time() * 1_000)]))
        preload(on.bootstrap, on.settings.topics.events, first)
        on.await_results(1)
        sent = on.pace(rate, first_id=1)
        with on.producing(sent) as producer:
            on.await_results(rate.rows + 1)
            producer.wait()
        found = on.results()
    return {**latencies(found, sent, rate), "correct": is_correct(found, 0, first, sent.events())}


def configuration(rate: Rate, overrides: Sequence[str]) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {**asdict(rate), "job": "w1", "timers": True, "late_check": True, "settings": list(overrides)}
