"""A look-back says what a plain list of its events says, whatever comes, goes, is merged and packed."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest

from millrace.parts.lookback import GAPS, Look, LookBack
from tests.cases import case_count

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
AMOUNTS = (0, 1, 99, 2**32 - 1, 2**32, 2**63)
WINDOWS = (1, 500, MINUTE, HOUR, DAY, 30 * DAY)


class Event(NamedTuple):
    at: int
    amount: int
    links: tuple[int, ...]


def packed(kept: LookBack) -> bytes:
    return msgspec.msgpack.encode(kept)


def restored(kept: LookBack) -> LookBack:
    return msgspec.msgpack.decode(packed(kept), type=type(kept))


def answers(look: Look, width: int) -> list[Any]:
    found: list[Any] = [look.usual_gap(), look.total_from(0)]
    for window in WINDOWS:
        start = look.start(window)
        found += [look.count(window), look.total(window), look.largest(window), look.smallest(window)]
        found += [look.amounts_from(start), look.links(start)]
        found += [look.link(start, place) for place in range(width)]
    return found


def asked_of(events: list[Event], at: int, width: int) -> list[Any]:
    """The same from all events, which nobody has put in order of time but by a stable sort."""
    seen = [e for e in events if e.at <= at]
    gaps = sorted(b.at - a.at for a, b in pairwise(seen[-GAPS - 1 :]))
    found: list[Any] = [gaps[(len(gaps) - 1) // 2] if gaps else None, sum(e.amount for e in seen)]
    for window in WINDOWS:
        inside = [e for e in seen if at - window < e.at]
        amounts = [e.amount for e in inside]
        found += [len(inside), sum(amounts), max(amounts, default=0)]
        found += [min((amount for amount in amounts if amount), default=None), amounts]
        found.append([link for e in inside for link in e.links])
        found += [[e.links[place] for e in inside] for place in range(width)]
    return found


def random_event(random: Random, now: int, width: int) -> Event:
    at = max(0, now - random.choice([0, 0, 0, 0, 1, MINUTE, 2 * DAY]))
    return Event(at, random.choice(AMOUNTS), tuple(random.randrange(2**32) for _ in range(width)))


def run(seed: int) -> None:
    """One random life of a look-back beside a plain list."""
    random = Random(seed)
    width, now = random.randrange(4), random.choice([0, 10 * DAY])
    kept, events, gone = LookBack(since=now), [], 0
    first = now
    for _ in range(random.choice([3, 12, 90])):
        now += random.choice([0, 0, 1, 400, MINUTE, HOUR, DAY])
        step = random.random()
        if step < 0.7:
            new = [random_event(random, now, width)]
            kept.add(*new[0])
        elif step < 0.8:
            other, new = LookBack(since=now), []
            for _ in range(random.randrange(4)):
                new.append(random_event(random, now, width))
                other.add(*new[-1])
            before = packed(other)
            kept.merge(other)
            assert packed(other) == before
            new.sort(key=lambda e: e.at)
        elif step < 0.9:
            until, most, new = now - random.choice(WINDOWS), random.choice([None, None, 1, 5, GAPS]), []
            kept.prune(until, most)
            left = [e for e in events if e.at > until]
            cut = 0 if most is None else max(0, len(left) - most)
            events, gone = left[cut:], gone + cut
        else:
            kept, new = restored(kept), []
        events = sorted([*events, *new], key=lambda e: e.at)
        first = min([first, *(e.at for e in new)])
        assert (len(kept), kept.dropped, kept.since) == (len(events), gone, first)
        at = random.choice([now, now - 1, now - DAY, now + DAY])
        wanted = asked_of(events, at, width)
        assert answers(kept.value(at), width) == wanted
        assert answers(restored(kept).value(at), width) == wanted


@pytest.mark.parametrize("seed", range(case_count(120)))
def test_every_window_is_that_of_a_plain_list(seed: int) -> None:
    run(seed)


def test_of_nothing_there_is_nothing_to_see() -> None:
    for look in (Look(None, 5), LookBack(since=0).value(5)):
        assert answers(look, 0) == asked_of([], 5, 0)


@pytest.mark.parametrize(
    ("at", "amount", "links"),
    [(2**63, 1, (1,)), (0, -1, (1,)), (0, 2**64, (1,)), (0, 1, (2**32,)), (0, 1, (-1,)), (0, 1, ()),
     (0, 1, (1, 2))],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_changes_nothing(
    at: int, amount: int, links: tuple[int, ...]
) -> None:
    kept = LookBack(since=0)
    kept.add(7, 5, (3,))
    before = packed(kept), kept.columns.times.copy()
    with pytest.raises(ValueError, match="look-back: "):
        kept.add(at, amount, links)
    assert (packed(kept), kept.columns.times) == before


def test_what_has_other_links_is_not_merged() -> None:
    one, two = LookBack(since=0), LookBack(since=0)
    one.add(1, 1, (1,))
    two.add(1, 1, (1, 2))
    before = packed(one)
    with pytest.raises(ValueError, match="1 and 2 links"):
        one.merge(two)
    assert packed(one) == before


def test_an_event_takes_twelve_bytes_and_four_for_each_link() -> None:
    kept = LookBack(since=0)
    empty = len(packed(kept))
    for n in range(1_000):
        kept.add(n, n, (n,))
    assert len(packed(kept)) - empty == 16_000 + 3  # and longer lengths
