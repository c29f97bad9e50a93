"""What the tests of operators share: an event, short ways to run a process, hypothesis strategies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st

from millrace import KeyedProcess
from millrace.testing import TestDriver

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


class Ev(msgspec.Struct, frozen=True):
    """An event with an id, a kind, an item, a number and a measure that may be missing."""

    id: int = 0
    kind: str = ""
    item: str = ""
    v: int = 0
    x: float | None = None


#: Key, event time (ms), event.
Event = tuple[str, int, Ev]

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["k1", "k2"]),
        st.integers(-20, 120),
        st.builds(
            Ev,
            id=st.integers(0, 4),
            kind=st.sampled_from(["start", "end", "other"]),
            item=st.sampled_from(["a", "b", "c", "d"]),
            v=st.integers(-5, 9),
            x=st.floats(-100, 100) | st.none(),
        ),
    ),
    max_size=25,
)


def examples(n: int) -> settings:
    """How many cases a property is tried on; a loaded machine is no failure."""
    return settings(max_examples=n, deadline=None, print_blob=True)


def run(
    process: KeyedProcess[Any, Any],
    events: Iterable[tuple[str, int, Any]],
    *,
    bound: int = 0,
    restart_after: int | None = None,
    drain: bool = True,
) -> TestDriver:
    """Send events one by one; go on from a snapshot after so many of them."""
    driver = TestDriver(process, out_of_orderness_ms=bound)
    for number, (key, at, event) in enumerate(events):
        if number == restart_after:
            driver.restart()
        driver.send(key, event, at=at)
    if drain:
        driver.drain()
    assert driver.values("dead_letters") == []
    return driver


def in_order(events: Iterable[Event]) -> list[Event]:
    """Return events as a process takes them: by time, ties by their bytes."""
    return sorted(events, key=lambda e: (e[1], msgspec.json.encode(e[2])))


def of_key(events: Iterable[Event], key: str) -> list[Event]:
    """Return the events of one key, as a process takes them."""
    return [e for e in in_order(events) if e[0] == key]
