"""A look-back with panes behind it says what a list of events says: exactly, or to where a pane begins."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from millrace.parts.lookback import Look, LookBack
from millrace.parts.tail import Tail
from tests.cases import case_count

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
HORIZON = 30 * DAY
WINDOWS = (1_000, MINUTE, 10 * MINUTE, HOUR, 2 * HOUR, 5 * HOUR, DAY, 3 * DAY, 8 * DAY, 30 * DAY)
#: Up to these lengths of windows, the pane that they begin in is at most so long.
BOUND = ((2 * HOUR, MINUTE), (DAY, 15 * MINUTE), (8 * DAY, 3 * HOUR), (30 * DAY, 12 * HOUR))
MOST = 5


class Few(Tail, array_like=True, dict=True):
    most_links = 8


def restored(what: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(what), type=type(what))


class Kept:
    """A look-back of few events, its tail, and beside it all events in the order in which they came."""

    def __init__(self, tail: Tail) -> None:
        self.back, self.tail, self.events = LookBack(since=0), tail, list[tuple[int, int, int]]()

    def take(self, at: int, amount: int, who: int) -> None:
        self.back.add(at, amount, (who,))
        self.tail.seen_again(at, (who,))
        self.events.append((at, amount, who))
        self.back.prune(-1, MOST, self.tail)

    def look(self, at: int) -> Look:
        return Look(self.back, at, self.tail)

    def restart(self) -> None:
        self.back, self.tail = restored(self.back), restored(self.tail)

    def inside(self, at: int, window: int) -> list[tuple[int, int, int]]:
        return [e for e in self.events if at - window < e[0] <= at]

    def first_of_all(self) -> int:
        """Time of the oldest event that is kept one by one: of that time some may be in panes."""
        return sorted(e[0] for e in self.events)[-MOST:][0]


def bound_of(window: int) -> int:
    return next(size for upto, size in BOUND if window <= upto)


def life(random: Random, kept: Kept, number: int, most_whos: int) -> Iterator[int]:
    """Events with gaps from none to days, some out of order, restarts between; yields the newest's time."""
    now = random.choice([0, 100 * DAY + 7])
    for _ in range(number):
        now += random.choice([0, 1, 700, 20_000, MINUTE, 7 * MINUTE, HOUR, 9 * HOUR, 2 * DAY])
        late = random.choice([0, 0, 0, 0, random.choice([1, 5_000, 3 * MINUTE])])
        amount = random.randrange(1, 1_000)
        kept.take(max(0, now - late), amount if amount % 4 else 0, random.randrange(1, most_whos))
        if random.random() < 0.1:
            kept.restart()
        yield max(e[0] for e in kept.events)


def check(kept: Kept, now: int) -> None:
    look = kept.look(now)
    for window in WINDOWS:
        exact = kept.inside(now, window)
        if now - window >= kept.first_of_all():
            reached = exact
        else:
            # Back to where a pane begins, and no further.
            reached = kept.inside(now, window + bound_of(window) - 1)
        count, total = look.numbers(window)
        assert len(exact) <= count <= len(reached)
        assert sum(e[1] for e in exact) <= total <= sum(e[1] for e in reached)
        largest, smallest = look.largest(window), look.smallest(window)
        assert max((e[1] for e in exact), default=0) <= largest <= max((e[1] for e in reached), default=0)
        known = [e[1] for e in reached if e[1]]
        if any(e[1] for e in exact):
            assert smallest is not None
            assert min(known) <= smallest <= min(e[1] for e in exact if e[1])
        elif smallest is not None:
            assert smallest in known
        if not kept.tail.sampled:
            assert look.different(window, 0) == len({e[2] for e in exact}), (
                "those seen last are known exactly"
            )
            assert look.different(window, 0, 99_999) == len({e[2] for e in exact} | {99_999})


@pytest.mark.parametrize("seed", [*range(case_count(100)), 222, 459, 686])
def test_windows_are_exact_or_reach_back_to_where_a_pane_begins(seed: int) -> None:
    """A hundred lives with a hundred looks each, over ten windows of all kinds."""
    random = Random(seed)
    kept = Kept(Tail())
    for now in life(random, kept, 100, 40):
        check(kept, now)


@pytest.mark.parametrize("seed", range(case_count(20)))
def test_what_is_kept_does_not_hang_on_restarts_or_on_when_it_was_looked_at(seed: int) -> None:
    kept, other = Kept(Few()), Kept(Few())
    *_, now = life(Random(seed), kept, 300, 60)
    other.restart = lambda: check(other, now)  # type: ignore[method-assign]
    assert list(life(Random(seed), other, 300, 60))[-1] == now
    assert (other.back, other.tail) == (restored(kept.back), restored(kept.tail))
    assert msgspec.msgpack.encode(other.tail) == msgspec.msgpack.encode(kept.tail)


def test_many_who_were_seen_are_told_by_a_sample_that_says_so() -> None:
    random, kept = Random(5), Kept(Tail())
    for n in range(30_000):
        kept.take(n * MINUTE, 1, random.randrange(1, 2**32))
        assert len(kept.tail.links[0] if kept.tail.links else ()) <= Tail.most_links
    look, now = kept.look(29_999 * MINUTE), 29_999 * MINUTE
    assert kept.tail.sampled
    for window in (8 * DAY, 20 * DAY):
        true = len({e[2] for e in kept.inside(now, window)})
        assert look.different(window, 0) == pytest.approx(true, rel=0.15)
    assert look.different(5 * MINUTE, 0) == 5, "what is kept one by one is exact"


def test_a_tail_is_bounded_and_ends() -> None:
    kept = Kept(Tail())
    for n in range(20_000):
        kept.take(n * 4 * MINUTE, 1, 1 + n % 3)
    most = 120 + 96 + 64 + 60
    assert len(kept.tail.starts) <= most
    assert not kept.tail.is_over(80_000 * MINUTE)
    assert kept.tail.is_over(80_000 * MINUTE + 31 * DAY)
    assert kept.look(80_000 * MINUTE).count(30 * DAY) >= 10_800
