"""Sessions are the events that hang together, however they came, were taken over, ended and packed."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import msgspec
import pytest

from millrace.parts.sessions import Sessions
from millrace.time import NEVER
from tests.cases import case_count


class Event(NamedTuple):
    at: int
    end: int
    name: int


def together(events: list[Event]) -> list[tuple[int, int, list[int]]]:
    """Groups of events that reach each other, by joining any two that do until none are left to join."""
    groups = [{event} for event in events]
    joined = True
    while joined:
        joined = False
        for one in groups:
            for other in groups:
                if one is not other and any(a.at <= b.end and b.at <= a.end for a in one for b in other):
                    one |= other
                    groups = [group for group in groups if group is not other]
                    joined = True
                    break
            if joined:
                break
    found = [
        (min(e.at for e in g), max(e.end for e in g), sorted(e.name for e in g)) for g in groups
    ]  # fmt: skip
    return sorted(found)


def both(mine: list[int], other: list[int]) -> list[int]:
    return [*mine, *other]


def run(seed: int) -> None:
    """One random life of sessions beside a plain list of events, some with gaps of their own."""
    random = Random(seed)
    kept: Sessions[list[int]] = Sessions()
    events: list[Event] = []
    number = 0
    for _ in range(random.choice([3, 14])):
        step = random.random()
        new = []
        for _ in range(random.randrange(1, 4) if 0.7 <= step < 0.8 else 1):
            at, number = random.randrange(100), number + 1
            new.append(Event(at, at + random.choice([5, 5, 5, 1, 12]), number))
        if step < 0.7:
            kept.add(new[0].at, new[0].end, [new[0].name], both)
            events += new
        elif step < 0.8:
            other: Sessions[list[int]] = Sessions()
            for event in new:
                other.add(event.at, event.end, [event.name], both)
            kept.merge(other, both)
            events += new
        elif step < 0.9:
            until = random.randrange(110)
            over = [group for group in together(events) if group[1] <= until]
            assert [(start, end, sorted(names)) for start, end, names in kept.prune(until)] == over
            gone = {name for *_, names in over for name in names}
            events = [event for event in events if event.name not in gone]
        else:
            kept = msgspec.msgpack.decode(msgspec.msgpack.encode(kept), type=Sessions[list[int]])
        wanted = together(events)
        assert sorted((start, s.end, sorted(s.what)) for start, s in kept.kept.items()) == wanted
        assert kept.next_ms == min((end for _, end, _ in wanted), default=NEVER)
        assert bool(kept) is bool(events)
        at = random.randrange(120)
        found, inside = kept.value(at), [group for group in wanted if group[0] <= at <= group[1]]
        assert ([] if found is None else [(found[0], found[1], sorted(found[2]))]) == inside


@pytest.mark.parametrize("seed", range(case_count(100)))
def test_sessions_are_the_events_that_reach_each_other(seed: int) -> None:
    run(seed)


def test_of_sessions_that_become_one_the_older_is_first_and_the_event_last() -> None:
    kept: Sessions[list[int]] = Sessions()
    for name, at in enumerate((20, 0, 10)):
        kept.add(at, at + 10, [name], both)
    assert kept.value(0) == (0, 30, [1, 0, 2])
