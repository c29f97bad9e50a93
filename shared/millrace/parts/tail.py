"""Panes that get longer with age, for a look-back over too many events to keep one by one.

::

    |   12 h   |   12 h   | 3 h | 3 h | 15 min … | 1 min … |  events, one by one  |
    30 d                  8 d         1 d        2 h                            newest

A window that begins among the events is exact. One that begins among the panes reaches back to where a pane
begins: by less than the length of the panes of its own age, so it never says too little.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import ClassVar, Final

import msgspec

from millrace.time import NEVER

_MINUTE: Final = 60_000
_HOUR: Final = 3_600_000
_DAY: Final = 24 * _HOUR


class _Sums:
    """Running numbers over the panes, one more than panes; made when they are first asked for."""

    __slots__ = ("counts", "due", "lasts", "totals")

    def __init__(self, tail: Tail) -> None:
        self.counts = list(accumulate(tail.counts, initial=0))
        self.totals = list(accumulate(tail.totals, initial=0))
        self.lasts = [sorted(links.values()) for links in tail.links]
        self.due = min(map(tail.due, tail.starts, tail.sizes), default=NEVER)


class _Cached:
    """The attribute ``sums`` of a tail, no part of the state."""

    def __get__(self, tail: Tail, of: type[Tail]) -> _Sums:
        made = _Sums(tail)
        tail.__dict__["sums"] = made
        return made


class Tail(msgspec.Struct, array_like=True, dict=True):
    """Events that a look-back keeps no longer one by one.

    What it is hangs on the events and their order, never on when it was packed. Whom events had to do with is
    kept of those who are not among the events one by one: when they were last seen. Of more than
    ``most_links`` a sample stands for all: a half, a quarter … of them by their hash. What :meth:`different`
    says is then an estimate, with a standard error of one by the root of how many of the sample are in the
    window: with 512 of them 4 %.

    Attributes:
        levels: Length of panes and up to which age there are such, ms; each length divides the next.
        most_links: Most who are remembered at each place.
        starts: Where the panes begin, ms, ascending.
        sizes: How long they are, ms.
        counts: How many events each has.
        totals: The sum of their amounts.
        largest: The largest amount.
        smallest: The smallest above 0; 0: there is none.
        links: At each place of an event's links: who → when they were last seen, ms.
        halvings: At each place, how often the sample was halved.

    Example:
        >>> tail = Tail()
        >>> for at in range(0, 600_000, 20_000):
        ...     tail.add(at, 500, (at + 1,), newest=700_000)
        >>> tail.older(700_000, 150_000)     # from 550,000 on: the pane from 540,000 on counts as a whole
        (3, 1500)
        >>> tail.older(700_000, 100_000), tail.different(700_000, 190_000, 0)
        ((0, 0), 4)
    """

    levels: ClassVar[tuple[tuple[int, int], ...]] = (
        (_MINUTE, 2 * _HOUR),
        (15 * _MINUTE, _DAY),
        (3 * _HOUR, 8 * _DAY),
        (12 * _HOUR, 30 * _DAY),
    )
    most_links: ClassVar[int] = 1_024

    starts: list[int] = []
    sizes: list[int] = []
    counts: list[int] = []
    totals: list[int] = []
    largest: list[int] = []
    smallest: list[int] = []
    links: list[dict[int, int]] = []
    halvings: list[int] = []

    sums = _Cached()

    @property
    def sampled(self) -> bool:
        """Whether :meth:`different` is an estimate at some place."""
        return any(self.halvings)

    def add(self, at: int, amount: int, links: Sequence[int], newest: int) -> None:
        """Take an event.

        Args:
            at: Its time, ms.
            amount: Its amount.
            links: Whom it had to do with that are not among the events one by one; 0: nobody.
            newest: Time of the newest event of all, ms.
        """
        if at <= newest - self.levels[-1][1]:
            return
        self._lengthen(newest)
        start, size = self._pane(at, newest)
        place = bisect_right(self.starts, start) - 1
        if place >= 0 and self.starts[place] + self.sizes[place] > at:
            self.counts[place] += 1
            self.totals[place] += amount
            self.largest[place] = max(self.largest[place], amount)
            self.smallest[place] = _least(self.smallest[place], amount)
            if "sums" in self.__dict__:
                self._counted(place, 1, amount)
        else:
            self._insert(place + 1, (start, size, 1, amount, amount, amount))
        if links:
            self._see(at, links)

    def is_over(self, at: int) -> bool:
        """Return whether all of it is older than what windows that end at ``at`` (ms) or later can see."""
        return not self.starts or self.starts[-1] + self.sizes[-1] <= at - self.levels[-1][1]

    def seen_again(self, at: int, links: Sequence[int]) -> None:
        """Forget of these when they were last seen: they are among the events one by one.

        Args:
            at: Time of their event, ms; who was seen after it stays, since it is the first to be put here.
            links: Who; 0: nobody.
        """
        lasts = self.sums.lasts
        for place, known in enumerate(self.links):
            last = known.get(links[place])
            if last is not None and last <= at:
                del known[links[place]]
                del lasts[place][bisect_left(lasts[place], last)]

    def older(self, at: int, window_ms: int) -> tuple[int, int]:
        """Return number and sum of the events in the panes of the window (at - window, at]."""
        first, end = self._between(at, window_ms)
        if first >= end:
            return 0, 0
        counts, totals = self.sums.counts, self.sums.totals
        return counts[end] - counts[first], totals[end] - totals[first]

    def largest_in(self, at: int, window_ms: int) -> int:
        """Return the largest amount in the panes of a window; 0 if there is none."""
        first, end = self._between(at, window_ms)
        return max(self.largest[first:end], default=0)

    def smallest_in(self, at: int, window_ms: int) -> int | None:
        """Return the smallest amount above 0 in the panes of a window."""
        first, end = self._between(at, window_ms)
        return min(filter(None, self.smallest[first:end]), default=None)

    def different(self, at: int, window_ms: int, place: int, besides: int = 0) -> int:
        """Return how many have been seen last in the window (at - window, at], by the sample.

        Args:
            at: The end of the window, ms.
            window_ms: Its length.
            place: Which of the links.
            besides: Somebody who is not counted.
        """
        if place >= len(self.links):
            return 0
        lasts, edge = self.sums.lasts[place], at - window_ms
        found = bisect_right(lasts, at) if lasts and lasts[-1] > at else len(lasts)
        found -= bisect_right(lasts, edge)
        if besides and edge < self.links[place].get(besides, edge) <= at:
            found -= 1
        return max(0, found) << self.halvings[place]

    def _between(self, at: int, window_ms: int) -> tuple[int, int]:
        """Return the index of the first pane with a part in a window, and that after the last."""
        starts, edge = self.starts, at - window_ms + 1
        end = len(starts) if not starts or starts[-1] <= at else bisect_right(starts, at)
        first = bisect_right(starts, edge)
        if first and starts[first - 1] + self.sizes[first - 1] > edge:
            first -= 1
        return first, end

    def _pane(self, at: int, newest: int) -> tuple[int, int]:
        """Return where the pane of a time begins, and its length."""
        found = self.levels[0][0]
        for (_, upto), (size, _) in pairwise(self.levels):
            start = at - at % size
            if start + size > newest - upto:
                break
            found = size
        return at - at % found, found

    def _lengthen(self, newest: int) -> None:
        """Put panes together that have come of age, and forget the oldest and who was seen in them only."""
        if newest < self.sums.due:
            return
        rows = list(zip(*self._columns(), strict=True))
        for column in self._columns():
            column.clear()
        oldest = newest - self.levels[-1][1]
        for start, size, *numbers in rows:
            if start + size > oldest:
                self._append(*max(self._pane(start, newest), (start, size), key=_length), *numbers)
        for place, known in enumerate(self.links):
            self.links[place] = {who: last for who, last in known.items() if last > oldest}
        del self.__dict__["sums"]

    def due(self, start: int, size: int) -> int:
        """Return the time of the newest event from which on a pane is part of a longer one, or forgotten."""
        for (this, upto), (longer, _) in pairwise(self.levels):
            if this == size:
                return start - start % longer + longer + upto
        return start + size + self.levels[-1][1]

    def _append(self, start: int, size: int, count: int, total: int, most: int, least: int) -> None:
        if self.starts and self.starts[-1] == start:
            self.counts[-1] += count
            self.totals[-1] += total
            self.largest[-1] = max(self.largest[-1], most)
            self.smallest[-1] = _least(self.smallest[-1], least)
            return
        for column, value in zip(self._columns(), (start, size, count, total, most, least), strict=True):
            column.append(value)

    def _columns(self) -> tuple[list[int], ...]:
        return self.starts, self.sizes, self.counts, self.totals, self.largest, self.smallest

    def _insert(self, place: int, pane: tuple[int, ...]) -> None:
        for column, value in zip(self._columns(), pane, strict=True):
            column.insert(place, value)
        sums: _Sums | None = self.__dict__.get("sums")
        if sums is not None:
            start, size, count, total, *_ = pane
            sums.due = min(sums.due, self.due(start, size))
            sums.counts.insert(place, sums.counts[place])
            sums.totals.insert(place, sums.totals[place])
            self._counted(place, count, total)

    def _counted(self, place: int, count: int, total: int) -> None:
        sums = self.sums
        for after in range(place + 1, len(sums.counts)):
            sums.counts[after] += count
            sums.totals[after] += total

    def _see(self, at: int, links: Sequence[int]) -> None:
        """Remember whom an event had to do with."""
        for _ in range(len(links) - len(self.links)):
            self.links.append({})
            self.halvings.append(0)
            self.__dict__.pop("sums", None)
        lasts = self.sums.lasts
        for place, who in enumerate(links):
            known = self.links[place]
            if not who or who & ((1 << self.halvings[place]) - 1):
                continue
            before = known.get(who)
            if before is not None:
                if before >= at:
                    continue
                del lasts[place][bisect_left(lasts[place], before)]
            known[who] = at
            insort(lasts[place], at)
            while len(known) > self.most_links:
                self.halvings[place] += 1
                rest = (1 << self.halvings[place]) - 1
                known = self.links[place] = {one: last for one, last in known.items() if not one & rest}
                lasts[place] = sorted(known.values())


def _least(one: int, other: int) -> int:
    return min(one, other) or max(one, other)


def _length(pane: tuple[int, int]) -> int:
    return pane[1]
