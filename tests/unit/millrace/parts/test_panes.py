"""Windows put together of panes are those of all events, whatever came, was merged, pruned and packed."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import NamedTuple

import msgspec
import pytest

from millrace.parts.panes import Panes, Sums
from tests.cases import case_count


class Tens(Sums, array_like=True):
    size = 10


class Letters(Panes[list[str]], array_like=True):
    size = 10


class Event(NamedTuple):
    at: int
    item: str
    numbers: tuple[int, int]


def sums(events: list[Event], start: int, end: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for event in events:
        if start <= event.at < end:
            found[event.item][0] += event.numbers[0]
            found[event.item][1] += event.numbers[1]
    return dict(found)


def next_end(events: list[Event], length: int, every: int, after: int) -> int | None:
    """The first end of a window with an event in its panes, by trying all."""
    starts = {event.at - event.at % 10 for event in events}
    for end in range(after + 1, max(starts, default=after) + length + every + 1):
        if end % every == 0 and any(end - length <= start < end for start in starts):
            return end
    return None


def random_event(random: Random) -> Event:
    return Event(
        random.randrange(-60, 200), random.choice("abc"), (random.randrange(4), random.randrange(-3, 3))
    )


def run(seed: int) -> None:
    """One random life of sums beside a plain list of events."""
    random = Random(seed)
    kept, events = Tens(), []
    for _ in range(random.choice([3, 30])):
        step = random.random()
        if step < 0.7:
            new = [random_event(random)]
            kept.add(new[0].at, new[0].item, *new[0].numbers)
        elif step < 0.8:
            other, new = Tens(), [random_event(random) for _ in range(random.randrange(4))]
            for event in new:
                other.add(event.at, event.item, *event.numbers)
            before = msgspec.msgpack.encode(other)
            kept.merge(other)
            kept.add(0, "a", 0, 0)  # what was taken over is no longer the other's
            new.append(Event(0, "a", (0, 0)))
            assert msgspec.msgpack.encode(other) == before
        elif step < 0.9:
            until, new = random.randrange(-70, 210), []
            kept.prune(until)
            events = [event for event in events if event.at - event.at % 10 + 10 > until]
        else:
            kept, new = msgspec.msgpack.decode(msgspec.msgpack.encode(kept), type=Tens), []
        events = [*events, *new]
        start = random.randrange(-7, 21) * 10
        for length in (10, 30, 500):
            before = msgspec.msgpack.encode(kept)
            found = kept.value(start, start + length)
            assert found == sums(events, start, start + length)
            for numbers in found.values():
                numbers[0] += 1
            assert msgspec.msgpack.encode(kept) == before  # a window is one's own
        length, every, after = (
            random.choice([10, 20, 50]),
            random.choice([10, 30, 50]),
            random.randrange(-80, 230),
        )
        assert kept.next_end(length, every, after) == next_end(events, length, every, after)
        assert bool(kept) is bool(events)


@pytest.mark.parametrize("seed", range(case_count(100)))
def test_sums_of_any_window_are_those_of_its_events(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("seed", range(case_count(30)))
def test_panes_hold_what_is_put_into_them(seed: int) -> None:
    random = Random(seed)
    kept, other, events = Letters(), Letters(), []
    for number in range(20):
        at, letter = random.randrange(-40, 100), random.choice("xyz")
        events.append((at, letter))
        if number % 2:
            kept.at(at, list).append(letter)
        else:
            other.add(at, [letter], lambda mine, theirs: mine + theirs)
    kept.merge(other, lambda mine, theirs: mine + theirs)
    until = random.randrange(-40, 100)
    kept.prune(until)
    left = [(at, letter) for at, letter in events if at - at % 10 + 10 > until]
    found = [sorted(pane) for pane in kept.value(-100, 200)]
    starts = sorted({at - at % 10 for at, _ in left})
    assert found == [sorted(letter for at, letter in left if at - at % 10 == start) for start in starts]
    assert kept.next_end(10, 10, -1_000) == (min(starts) + 10 if starts else None)
