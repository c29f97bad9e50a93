"""What `bench pattern-matching` runs gives what its oracle says, and that is what a plain loop says."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from millrace.host.memory import MemoryHost
from millrace_apps.benchmarks.digest import digest
from millrace_apps.benchmarks.inputs import Events, card_name, make_events
from millrace_apps.benchmarks.pattern_matching import (
    LARGE,
    SMALL,
    WITHIN_MS,
    expected,
    on_memory_host,
    process_of,
)
from millrace_apps.benchmarks.w1_job import Purchase


@pytest.fixture(params=[1, 2])
def events(request: pytest.FixtureRequest) -> Events:
    """Few cards and times with gaps, so that some runs take too long."""
    made = make_events(3_000, 9, seed=request.param)
    gaps = np.random.default_rng(request.param).integers(1, 400, len(made))
    return Events(made.card, made.cents, made.at[0] + np.cumsum(gaps))


def test_the_oracle_says_what_a_loop_over_each_cards_purchases_says(events: Events) -> None:
    wanted, open_runs, late = [], {}, 0
    for number, (card, cents, at) in enumerate(
        zip(events.card.tolist(), events.cents.tolist(), events.at.tolist(), strict=True)
    ):
        first, start, between = open_runs.pop(card, (None, 0, 0))
        if cents < SMALL:
            open_runs[card] = (number, at, 0)
        elif first is not None and cents < LARGE:
            open_runs[card] = (first, start, between + 1)
        elif first is not None and at - start < WITHIN_MS:
            wanted.append((first, number, between))
        elif first is not None:
            late += 1
    assert late, "no run takes too long: within is not tested"
    assert sorted(zip(*(c.tolist() for c in expected(events)), strict=True)) == sorted(wanted)


def test_the_process_gives_what_the_oracle_says(events: Events) -> None:
    host = MemoryHost(process_of())
    rows = [
        (card_name(card), at, Purchase(number, card_name(card), cents, at))
        for number, (card, cents, at) in enumerate(
            zip(events.card.tolist(), events.cents.tolist(), events.at.tolist(), strict=True)
        )
    ]
    emitted = []
    for start in range(0, len(rows), 300):
        emitted += host.run_batch(rows[start : start + 300])
    emitted += host.drain()
    found = [msgspec.json.decode(e.payload) for e in emitted if e.output == "main"]
    names = ("first", "last", "between")
    assert digest(*([row[name] for row in found] for name in names)) == digest(*expected(events))
    assert not host.store.cells


def test_the_run_without_spark_is_checked_too(events: Events) -> None:
    found = on_memory_host(events)
    assert found["correct"]
    assert found["us_per_event"] > 0 < found["us_per_event_of_nothing"]
