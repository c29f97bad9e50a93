"""The last 30 days of an entity: a card, an account, a terminal, a device, an IP address.

It is kept as bytes, eight for a time, four for an amount, which take half of what numbers by themselves
would; a window is two binary searches and a subtraction, exact to the millisecond.
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

DAY_MS: Final = 86_400_000
#: The longest window.
HORIZON_MS: Final = 30 * DAY_MS
#: Most purchases kept of one entity, and of one card; older ones are left out and counted in ``dropped``.
MAX_KEPT: Final = 4_000
MAX_KEPT_OF_CARD: Final = 1_000

#: The gaps that an entity's usual gap is the median of.
GAPS: Final = 64

_pack_number: Final = struct.Struct("<q").pack
_pack_short: Final = struct.Struct("<I").pack
_NARROW: Final = 2**32 - 1


@lru_cache(maxsize=65_536)
def link_of(identity: str | None) -> int:
    """Return the 32 bits by which an entity is known in another's history; 0: none.

    Two of a thousand entities are taken for one with a chance of one in ten thousand.

    >>> link_of(None), link_of("device-1") == link_of("device-1"), link_of("device-1") == link_of("device-2")
    (0, True, False)
    """
    if identity is None:
        return 0
    return int.from_bytes(blake2b(identity.encode(), digest_size=4).digest(), "little") or 1


class Columns:
    """The purchases of a history as lists, in order of time.

    Args:
        history: The history; ``None``: nothing.

    Attributes:
        times: Their times, ms.
        cents: Their amounts, cents.
        totals: Running totals, cents, one more: from ``totals[i]`` to ``totals[j]`` is what the purchases
            from the i-th to before the j-th come to.
        links: Whom they had to do with, as many for every purchase.
    """

    __slots__ = ("_gaps", "cents", "links", "times", "totals")

    def __init__(self, history: History | None) -> None:
        self.times: list[int] = []
        self.cents: list[int] = []
        self.totals: list[int] = [0]
        self.links: list[int] = []
        #: The last :data:`GAPS` gaps between the purchases, ms, by size; made when they are first asked for.
        self._gaps: list[int] | None = None
        if history is None or not history.times:
            return
        self.times = memoryview(history.times).cast("q").tolist()
        self.cents = memoryview(history.amounts).cast("Q" if history.wide else "I").tolist()
        self.totals = list(accumulate(self.cents, initial=0))
        self.links = memoryview(history.links).cast("I").tolist()

    def end(self, time: int) -> int:
        """Return the index after the last purchase that is not later than ``time`` (ms)."""
        times = self.times
        return len(times) if not times or times[-1] <= time else bisect_right(times, time)

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

    def append(self, time: int, cents: int, links: tuple[int, ...]) -> None:
        """Add a purchase that is not before the others."""
        times, totals, gaps = self.times, self.totals, self._gaps
        if gaps is not None and times:
            insort(gaps, time - times[-1])
            if len(gaps) > GAPS:
                del gaps[bisect_left(gaps, times[-GAPS] - times[-GAPS - 1])]
        times.append(time)
        self.cents.append(cents)
        totals.append(totals[-1] + cents)
        self.links += links

    def insert(self, at: int, time: int, cents: int, links: tuple[int, ...]) -> None:
        """Insert a purchase at index ``at``."""
        self._gaps = None
        totals = self.totals
        self.times.insert(at, time)
        self.cents.insert(at, cents)
        totals[at + 1 :] = [totals[at] + cents, *(total + cents for total in totals[at + 1 :])]
        place = at * len(links)
        self.links[place:place] = links

    def remove(self, first: int) -> None:
        """Remove the first so many."""
        times, gaps = self.times, self._gaps
        if gaps:
            for at in range(len(times) - 1 - len(gaps), min(first, len(times) - 1)):
                del gaps[bisect_left(gaps, times[at + 1] - times[at])]
        del self.links[: first * (len(self.links) // len(self.times))]
        for column in (self.times, self.cents, self.totals):
            del column[:first]


def _gaps(times: list[int]) -> list[int]:
    return sorted(map(sub, times[1:], times))


class _Columns:
    """The attribute ``columns`` of a history, made when it is first asked for.

    It is no field, so it is not kept: an entry that several events of a batch come to is unpacked for the
    first of them.
    """

    def __get__(self, history: History, of: type[History]) -> Columns:
        made = Columns(history)
        history.__dict__["columns"] = made
        return made


class History(msgspec.Struct, array_like=True, dict=True):
    """Purchases of the last 30 days, in order of time.

    Attributes:
        since: Time of the first one ever seen, ms.
        times: Their times, ms, 64 bits each.
        amounts: Their amounts, cents, 32 bits each, or 64 if it is ``wide``.
        links: Whom each had to do with (:func:`link_of`), 32 bits each, as many for every purchase.
        wide: Whether there has been an amount of more than 32 bits (42,949,672.95).
        dropped: How many were left out before their time, since there were too many.
        balance: What has come in, less what has gone out, cents.
        columns: The purchases as lists, which follow what is added and removed.
    """

    since: int
    times: bytes = b""
    amounts: bytes = b""
    links: bytes = b""
    wide: bool = False
    dropped: int = 0
    balance: int = 0

    def __len__(self) -> int:
        return len(self.times) >> 3

    columns = _Columns()

    def add(self, time: int, cents: int, links: tuple[int, ...]) -> None:
        """Insert a purchase after those of its time.

        Args:
            time: Event time, ms.
            cents: Amount, cents.
            links: Whom it had to do with; equally many each time.
        """
        columns = self.columns
        if cents > _NARROW and not self.wide:
            self.amounts = array("Q", columns.cents).tobytes()
            self.wide = True
        amount = (_pack_number if self.wide else _pack_short)(cents)
        packed = _packer(len(links))(*links)
        times = columns.times
        if not times or times[-1] <= time:
            self.times += _pack_number(time)
            self.amounts += amount
            self.links += packed
            columns.append(time, cents, links)
            return
        at = bisect_right(times, time)
        self.times = _with(self.times, at, _pack_number(time))
        self.amounts = _with(self.amounts, at, amount)
        self.links = _with(self.links, at, packed)
        columns.insert(at, time, cents, links)

    def prune(self, watermark: int, most: int = MAX_KEPT) -> None:
        """Remove what no event after the watermark (ms) can see, and what is more than ``most``."""
        columns = self.columns
        times = columns.times
        size = len(times)
        if size <= most and (not size or times[0] > watermark - HORIZON_MS):
            return
        gone = bisect_right(times, watermark - HORIZON_MS)
        if size - gone > most:
            self.dropped += size - gone - most
            gone = size - most
        self.links = self.links[gone * (len(self.links) // size) :]
        self.amounts = self.amounts[gone * (8 if self.wide else 4) :]
        self.times = self.times[gone * 8 :]
        columns.remove(gone)


def _with(column: bytes, at: int, item: bytes) -> bytes:
    place = at * len(item)
    return column[:place] + item + column[place:]


@lru_cache(maxsize=8)
def _packer(links: int) -> Callable[..., bytes]:
    return struct.Struct(f"<{links}I").pack


_NOTHING: Final = Columns(None)


class Look:
    """What an event sees of a history: purchases that are not later than it.

    It stays right when a purchase of that time is added to the history, and ends when the history is pruned.

    Args:
        history: The history; ``None``: nothing yet.
        time: The event's time, ms.

    Attributes:
        times: The purchases' times, ms, also of later ones.
        cents: Their amounts, cents.
        totals: Running totals, cents: one more.
        end: Index after the last purchase that is not later.

    Example:
        >>> history = History(since=0)
        >>> for at, cents in [(0, 500), (60_000, 700), (90_000, 900)]:
        ...     history.add(at, cents, (link_of("t-1"),))
        >>> look = Look(history, 90_000)
        >>> look.count(60_000), look.total(60_000), look.largest(60_000), look.total(90_001)
        (2, 1600, 900, 2100)
    """

    __slots__ = ("_columns", "_links", "cents", "end", "history", "time", "times", "totals")

    def __init__(self, history: History | None, time: int) -> None:
        self.history = history
        self.time = time
        self._columns = columns = _NOTHING if history is None else history.columns
        self.times = columns.times
        self.cents, self.totals, self._links = columns.cents, columns.totals, columns.links
        self.end = columns.end(time)

    def start(self, window_ms: int) -> int:
        """Return the index of the first purchase in (time - window, time]; ``end`` if there is none."""
        end = self.end
        if not end or self.times[end - 1] <= self.time - window_ms:
            return end
        return bisect_right(self.times, self.time - window_ms, 0, end)

    def count(self, window_ms: int) -> int:
        """Return the number of purchases in the window."""
        return self.end - self.start(window_ms)

    def total(self, window_ms: int) -> int:
        """Return their sum, cents."""
        return self.total_from(self.start(window_ms))

    def total_from(self, start: int) -> int:
        """Return the sum of the purchases from an index on, cents."""
        return self.totals[self.end] - self.totals[start]

    def amounts(self, start: int) -> list[int]:
        """Return the purchases from an index on, cents each."""
        return self.cents[start : self.end]

    def largest(self, window_ms: int) -> int:
        """Return the largest purchase in the window, cents; 0 if there is none."""
        return max(self.amounts(self.start(window_ms)), default=0)

    def smallest(self, window_ms: int) -> int | None:
        """Return the smallest purchase in the window, cents."""
        return min(self.amounts(self.start(window_ms)), default=None)

    def usual_gap(self) -> int | None:
        """Return the (lower) median of the last :data:`GAPS` gaps between the purchases, ms; None without."""
        return self._columns.usual_gap(self.end)

    def column(self, start: int, column: int, width: int) -> list[int]:
        """Return one link of each of the purchases from an index on, the one at this place of ``width``."""
        return self._links[start * width + column : self.end * width : width]

    def links(self, start: int, width: int) -> list[int]:
        """Return the links of the purchases from an index on, ``width`` for each."""
        return self._links[start * width : self.end * width]
