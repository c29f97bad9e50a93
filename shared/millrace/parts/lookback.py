"""Look-back: what happened to somebody of late, for questions that reach back from any time.

Events are kept as columns of bytes, eight for a time, four for an amount (eight once one is larger), four
for each link, which take half of what numbers by themselves would. A window is two binary searches and a
subtraction, exact to the millisecond; its length need not be known when an event is added.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from operator import sub
from typing import Final

import msgspec

from millrace.parts.tail import Tail

#: The gaps that somebody's usual gap is the median of.
GAPS: Final = 64

_pack_long: Final = struct.Struct("<q").pack
_pack_wide: Final = struct.Struct("<Q").pack
_pack_short: Final = struct.Struct("<I").pack
_NARROW: Final = 2**32 - 1


@lru_cache(maxsize=65_536)
def link_of(identity: str | None) -> int:
    """Return the 32 bits by which somebody is known in another's look-back; 0: nobody.

    Two of a thousand are taken for one with a chance of one in ten thousand.

    >>> link_of(None), link_of("device-1") == link_of("device-1"), link_of("device-1") == link_of("device-2")
    (0, True, False)
    """
    if identity is None:
        return 0
    return int.from_bytes(blake2b(identity.encode(), digest_size=4).digest(), "little") or 1


class Columns:
    """The events of a look-back as lists, in order of time.

    Args:
        kept: The look-back; ``None``: nothing.

    Attributes:
        times: Their times, ms.
        amounts: Their amounts.
        totals: Running totals, one more: from ``totals[i]`` to ``totals[j]`` is what the events from the
            i-th to before the j-th come to.
        links: Whom they had to do with, ``width`` for every event.
        width: How many links an event has.
    """

    __slots__ = ("_gaps", "_largest", "_seen", "amounts", "links", "times", "totals", "width")

    def __init__(self, kept: LookBack | None) -> None:
        self.times: list[int] = []
        self.amounts: list[int] = []
        self.totals: list[int] = [0]
        self.links: list[int] = []
        self.width = 0
        #: The last :data:`GAPS` gaps between the events, ms, by size; made when they are first asked for.
        self._gaps: list[int] | None = None
        #: Place of a link → who → when they were last seen, ms, and those times sorted; made as the gaps are.
        self._seen: dict[int, tuple[dict[int, int], list[int]]] = {}
        self._largest: int | None = None
        if kept is None or not kept.times:
            return
        self.times = memoryview(kept.times).cast("q").tolist()
        self.amounts = memoryview(kept.amounts).cast("Q" if kept.wide else "I").tolist()
        self.totals = list(accumulate(self.amounts, initial=0))
        self.links = memoryview(kept.links).cast("I").tolist()
        self.width = len(self.links) // len(self.times)

    def end(self, at: int) -> int:
        """Return the index after the last event that is not later than ``at`` (ms)."""
        times = self.times
        return len(times) if not times or times[-1] <= at else bisect_right(times, at)

    def usual_gap(self, end: int) -> int | None:
        """Return the (lower) median of the last :data:`GAPS` gaps before an index, ms; None without."""
        if end < 2:
            return None
        times = self.times
        if end < len(times):  # of an event that is out of order
            gaps = _gaps(times[max(0, end - GAPS - 1) : end])
        elif self._gaps is None:
            gaps = self._gaps = _gaps(times[-GAPS - 1 :])
        else:
            gaps = self._gaps
        return gaps[(len(gaps) - 1) >> 1]

    def largest(self, end: int) -> int:
        """Return the largest amount before an index; 0 if there is none."""
        if end < len(self.amounts):
            return max(self.amounts[:end], default=0)
        if self._largest is None:
            self._largest = max(self.amounts, default=0)
        return self._largest

    def seen(self, place: int) -> tuple[dict[int, int], list[int]]:
        """Return when those who are linked to at a place were last seen: by who, and sorted, ms."""
        found = self._seen.get(place)
        if found is None:
            known = dict(zip(self.links[place :: self.width or 1], self.times, strict=True))
            known.pop(0, None)
            found = self._seen[place] = (known, sorted(known.values()))
        return found

    def last_links(self, place: int, rest: int) -> list[int]:
        """Return the links of an event; 0 for those that the events from index ``rest`` on have, too."""
        width, found, times = self.width, [], self.times
        last_gone = times[rest - 1]
        of_one_time = rest < len(times) and times[rest] == last_gone
        for n, who in enumerate(self.links[place * width : (place + 1) * width]):
            again = who and self.seen(n)[0][who] > last_gone
            if of_one_time and not again:
                again = who in self.links[rest * width + n :: width]
            found.append(0 if again else who)
        return found

    def append(self, at: int, amount: int, links: tuple[int, ...]) -> None:
        """Add an event that is not before the others."""
        for place, (known, lasts) in self._seen.items():
            if who := links[place]:
                before = known.get(who)
                if before is not None:
                    del lasts[bisect_left(lasts, before)]
                known[who] = at
                lasts.append(at)
        times, totals, gaps = self.times, self.totals, self._gaps
        if gaps is not None and times:
            insort(gaps, at - times[-1])
            if len(gaps) > GAPS:
                del gaps[bisect_left(gaps, times[-GAPS] - times[-GAPS - 1])]
        if self._largest is not None and amount > self._largest:
            self._largest = amount
        times.append(at)
        self.amounts.append(amount)
        totals.append(totals[-1] + amount)
        self.links += links

    def insert(self, place: int, at: int, amount: int, links: tuple[int, ...]) -> None:
        """Insert an event at index ``place``."""
        self._gaps = self._largest = None
        self._seen.clear()
        totals = self.totals
        self.times.insert(place, at)
        self.amounts.insert(place, amount)
        totals[place + 1 :] = [totals[place] + amount, *(total + amount for total in totals[place + 1 :])]
        first = place * len(links)
        self.links[first:first] = links

    def remove(self, first: int) -> None:
        """Remove the first so many."""
        times, gaps = self.times, self._gaps
        if self._seen:
            self._unsee(first)
        if self._largest in self.amounts[:first]:
            self._largest = None
        if gaps:
            for at in range(len(times) - 1 - len(gaps), min(first, len(times) - 1)):
                del gaps[bisect_left(gaps, times[at + 1] - times[at])]
        del self.links[: first * self.width]
        for column in (self.times, self.amounts, self.totals):
            del column[:first]

    def _unsee(self, first: int) -> None:
        """Forget who is linked to by the first so many events only."""
        last_gone, width = self.times[first - 1], self.width
        if first < len(self.times) and self.times[first] == last_gone:
            self._seen.clear()  # whom events of that time had to do with may be seen in one that stays
        for place, (known, lasts) in self._seen.items():
            for who in self.links[place : first * width : width]:
                if who and known.get(who, last_gone + 1) <= last_gone:
                    del lasts[bisect_left(lasts, known.pop(who))]


def _gaps(times: list[int]) -> list[int]:
    return sorted(map(sub, times[1:], times))


class _Columns:
    """The attribute ``columns`` of a look-back, made when it is first asked for.

    It is no field, so it is not kept: an entry that several events of a batch come to is unpacked for the
    first of them.
    """

    def __get__(self, kept: LookBack, of: type[LookBack]) -> Columns:
        made = Columns(kept)
        kept.__dict__["columns"] = made
        return made


class LookBack(msgspec.Struct, array_like=True, dict=True):
    """Events of the past, in order of time: when, how much, and with whom.

    A subclass may have more fields behind these (with ``array_like=True, dict=True`` as well).

    Attributes:
        since: Time of the first one ever seen, ms.
        times: Their times, ms, 64 bits each.
        amounts: Their amounts, 32 bits each, or 64 if it is ``wide``.
        links: Whom each had to do with (:func:`link_of`), 32 bits each, as many for every event.
        wide: Whether there has been an amount of more than 32 bits.
        dropped: How many were left out before their time, since there were too many.
        columns: The events as lists, which follow what is added and removed; no part of the state.

    Example:
        >>> kept = LookBack(since=0)
        >>> for at, cents in [(0, 500), (90_000, 900), (60_000, 700)]:    # the last one is out of order
        ...     kept.add(at, cents, (link_of("shop-1"),))
        >>> look = kept.value(90_000)
        >>> look.count(60_000), look.total(60_000), look.largest(60_000), look.total(90_001)
        (2, 1600, 900, 2100)
        >>> kept.prune(60_000)
        >>> len(kept), kept.value(90_000).total(90_001)
        (1, 900)
    """

    since: int
    times: bytes = b""
    amounts: bytes = b""
    links: bytes = b""
    wide: bool = False
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.times) >> 3

    columns = _Columns()

    def add(self, at: int, amount: int = 0, links: tuple[int, ...] = ()) -> None:
        """Insert an event after those of its time.

        Args:
            at: Its time, ms.
            amount: How much, in the smallest unit there is: a whole number, 0 or more.
            links: Whom it had to do with, 32 bits each; equally many each time.

        Raises:
            ValueError: A number does not fit, or there are more or fewer links than the others have.
        """
        columns = self.columns
        times = columns.times
        if not times:
            columns.width = len(links)
        elif len(links) != columns.width:
            raise ValueError(f"look-back: every event has {columns.width} links, not {len(links)}")
        try:
            wide = self.wide or amount > _NARROW
            packed_at, packed = _pack_long(at), (_pack_wide if wide else _pack_short)(amount)
            packed_links = _packer(len(links))(*links)
        except struct.error as error:
            raise ValueError(f"look-back: {at}, {amount}, {links}: {error}") from error
        if wide is not self.wide:
            self.amounts = array("Q", columns.amounts).tobytes()
            self.wide = True
        if at < self.since:
            self.since = at
        if not times or times[-1] <= at:
            self.times += packed_at
            self.amounts += packed
            self.links += packed_links
            columns.append(at, amount, links)
            return
        place = bisect_right(times, at)
        self.times = _with(self.times, place, packed_at)
        self.amounts = _with(self.amounts, place, packed)
        self.links = _with(self.links, place, packed_links)
        columns.insert(place, at, amount, links)

    def merge(self, other: LookBack) -> None:
        """Add all events of another, which stays as it is; of one time after those that are here.

        Raises:
            ValueError: Its events have more or fewer links.
        """
        theirs = other.columns
        if len(self) and len(other) and self.columns.width != theirs.width:
            raise ValueError(f"look-back: events have {self.columns.width} and {theirs.width} links")
        width = theirs.width
        for place, (at, amount) in enumerate(zip(theirs.times, theirs.amounts, strict=True)):
            self.add(at, amount, tuple(theirs.links[place * width : (place + 1) * width]))
        self.since = min(self.since, other.since)
        self.dropped += other.dropped

    def prune(self, until: int, most: int | None = None, tail: Tail | None = None) -> None:
        """Remove the events up to a time, and of what is left the oldest, if that is too many.

        Args:
            until: Nobody looks back to this time (ms) any more: the watermark less the longest window.
            most: How many are kept one by one. ``None``: all.
            tail: Takes what goes because of that; without one it is counted in ``dropped``.
        """
        columns = self.columns
        times = columns.times
        size = len(times)
        if not size or (times[0] > until and (most is None or size <= most)):
            return
        gone = bisect_right(times, until)
        if most is not None and size - gone > most:
            first, gone = gone, size - most
            if tail is None:
                self.dropped += gone - first
            else:
                for place in range(first, gone):
                    tail.add(times[place], columns.amounts[place], columns.last_links(place, gone), times[-1])
        self.links = self.links[gone * columns.width * 4 :]
        self.amounts = self.amounts[gone * (8 if self.wide else 4) :]
        self.times = self.times[gone * 8 :]
        columns.remove(gone)

    def value(self, at: int) -> Look:
        """Return what is seen of it at a time (ms)."""
        return Look(self, at)


def _with(column: bytes, place: int, item: bytes) -> bytes:
    first = place * len(item)
    return column[:first] + item + column[first:]


@lru_cache(maxsize=8)
def _packer(links: int) -> Callable[..., bytes]:
    return struct.Struct(f"<{links}I").pack


_NOTHING: Final = Columns(None)


class Look:
    """What is seen of a look-back at one time: the events that are not later than it.

    It stays right when an event of that time is added, and ends when the look-back is pruned.

    Args:
        kept: The look-back; ``None``: nothing yet.
        at: The time, ms.
        tail: What went out of the look-back since there was too much, which windows count; ``None``: nothing.

    Attributes:
        times: The events' times, ms, also of later ones, of those that are kept one by one.
        amounts: Their amounts.
        totals: Running totals: one more.
        end: Index after the last event that is not later.

    Example:
        >>> look = Look(None, 90_000)
        >>> look.count(60_000), look.total(60_000), look.smallest(60_000), look.usual_gap()
        (0, 0, None, None)
    """

    __slots__ = ("_columns", "_links", "amounts", "at", "end", "kept", "tail", "times", "totals")

    def __init__(self, kept: LookBack | None, at: int, tail: Tail | None = None) -> None:
        self.kept = kept
        self.at = at
        self.tail = tail
        self._columns = columns = _NOTHING if kept is None else kept.columns
        self.times = columns.times
        self.amounts, self.totals, self._links = columns.amounts, columns.totals, columns.links
        self.end = columns.end(at)

    def start(self, window_ms: int) -> int:
        """Return the index of the first event in (at - window, at]; ``end`` if there is none."""
        end = self.end
        if not end or self.times[end - 1] <= self.at - window_ms:
            return end
        return bisect_right(self.times, self.at - window_ms, 0, end)

    def numbers(self, window_ms: int) -> tuple[int, int]:
        """Return the number of events in the window, and the sum of their amounts."""
        start, end = self.start(window_ms), self.end
        count, total = end - start, self.totals[end] - self.totals[start]
        if start or self.tail is None:
            return count, total
        older = self.tail.older(self.at, window_ms)
        return count + older[0], total + older[1]

    def count(self, window_ms: int) -> int:
        """Return the number of events in the window."""
        return self.numbers(window_ms)[0]

    def total(self, window_ms: int) -> int:
        """Return the sum of their amounts."""
        return self.numbers(window_ms)[1]

    def total_from(self, start: int) -> int:
        """Return the sum of the amounts from an index on."""
        return self.totals[self.end] - self.totals[start]

    def amounts_from(self, start: int) -> list[int]:
        """Return the amounts from an index on."""
        return self.amounts[start : self.end]

    def largest(self, window_ms: int) -> int:
        """Return the largest amount in the window; 0 if there is none."""
        start = self.start(window_ms)
        if start or self.tail is None:
            return max(self.amounts_from(start), default=0)
        largest = self._columns.largest(self.end)
        return max(largest, self.tail.largest_in(self.at, window_ms))

    def smallest(self, window_ms: int) -> int | None:
        """Return the smallest amount above 0 in the window."""
        start = self.start(window_ms)
        least = min(filter(None, self.amounts_from(start)), default=None)
        if start or self.tail is None:
            return least
        older = self.tail.smallest_in(self.at, window_ms)
        return least if older is None or (least is not None and least < older) else older

    def different(self, window_ms: int, place: int, this: int = 0) -> int:
        """Return how many the events of the window are linked to at this place, ``this`` one counted, too."""
        start, columns = self.start(window_ms), self._columns
        if self.tail is not None and columns.times and self.end == len(columns.times):
            known, lasts = columns.seen(place)
            edge = self.at - window_ms
            number = len(lasts) - bisect_right(lasts, edge) + (this != 0 and known.get(this, edge) <= edge)
        else:
            found = {*self.link(start, place), this}
            number = len(found) - (0 in found)
        if start or self.tail is None:
            return number
        return number + self.tail.different(self.at, window_ms, place, this)

    def usual_gap(self) -> int | None:
        """Return the (lower) median of the last :data:`GAPS` gaps between the events, ms; None without."""
        return self._columns.usual_gap(self.end)

    def link(self, start: int, place: int) -> list[int]:
        """Return one link of each of the events from an index on: the one at this place."""
        width = self._columns.width
        return self._links[start * width + place : self.end * width : width or 1]

    def links(self, start: int) -> list[int]:
        """Return all links of the events from an index on."""
        width = self._columns.width
        return self._links[start * width : self.end * width]
