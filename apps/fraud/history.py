"""The last 30 days of an entity: a card, an account, a terminal, a device, an IP address.

It is kept as bytes, eight for a time, four for an amount, which take half of what numbers by themselves
would; a window is two binary searches and a subtraction, exact to the millisecond.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
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

_NUMBER: Final = struct.Struct("<q")
_SHORT: Final = struct.Struct("<I")
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


class History(msgspec.Struct, array_like=True, gc=False):
    """Purchases of the last 30 days, in order of time.

    Attributes:
        since: Time of the first one ever seen, ms.
        times: Their times, ms, 64 bits each.
        amounts: Their amounts, cents, 32 bits each, or 64 if it is ``wide``.
        links: Whom each had to do with (:func:`link_of`), 32 bits each, as many for every purchase.
        wide: Whether there has been an amount of more than 32 bits (42,949,672.95).
        dropped: How many were left out before their time, since there were too many.
        balance: What has come in, less what has gone out, cents.
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

    def add(self, time: int, cents: int, links: tuple[int, ...]) -> None:
        """Insert a purchase after those of its time.

        Args:
            time: Event time, ms.
            cents: Amount, cents.
            links: Whom it had to do with; equally many each time.
        """
        if cents > _NARROW and not self.wide:
            self.amounts = array("Q", memoryview(self.amounts).cast("I").tolist()).tobytes()
            self.wide = True
        amount = (_NUMBER if self.wide else _SHORT).pack(cents)
        packed = _links(len(links)).pack(*links)
        times = self.times
        if not times or _NUMBER.unpack_from(times, len(times) - 8)[0] <= time:
            self.times = times + _NUMBER.pack(time)
            self.amounts += amount
            self.links += packed
            return
        at = bisect_right(memoryview(times).cast("q"), time)
        self.times = _with(times, at, _NUMBER.pack(time))
        self.amounts = _with(self.amounts, at, amount)
        self.links = _with(self.links, at, packed)

    def prune(self, watermark: int, most: int = MAX_KEPT) -> None:
        """Remove what no event after the watermark (ms) can see, and what is more than ``most``."""
        size = len(self.times) >> 3
        if size <= most and (not size or _NUMBER.unpack_from(self.times)[0] > watermark - HORIZON_MS):
            return
        gone = bisect_right(memoryview(self.times).cast("q"), watermark - HORIZON_MS)
        if size - gone > most:
            self.dropped += size - gone - most
            gone = size - most
        self.links = self.links[gone * (len(self.links) // size) :]
        self.amounts = self.amounts[gone * (8 if self.wide else 4) :]
        self.times = self.times[gone * 8 :]


def _with(column: bytes, at: int, item: bytes) -> bytes:
    place = at * len(item)
    return column[:place] + item + column[place:]


@lru_cache(maxsize=8)
def _links(number: int) -> struct.Struct:
    return struct.Struct(f"<{number}I")


_NOTHING: Final = [0]


class Look:
    """What an event sees of a history: purchases that are not later than it.

    Args:
        history: The history; ``None``: nothing yet.
        time: The event's time, ms.

    Attributes:
        times: The purchases' times, ms, also of later ones.
        cents: Their amounts, cents.
        totals: 0, and the running totals, cents: one more.
        end: Index after the last purchase that is not later.

    Example:
        >>> history = History(since=0)
        >>> for at, cents in [(0, 500), (60_000, 700), (90_000, 900)]:
        ...     history.add(at, cents, (link_of("t-1"),))
        >>> look = Look(history, 90_000)
        >>> look.count(60_000), look.total(60_000), look.largest(60_000), look.total(90_001)
        (2, 1600, 900, 2100)
    """

    __slots__ = ("cents", "end", "history", "time", "times", "totals")

    def __init__(self, history: History | None, time: int) -> None:
        self.history = history
        self.time = time
        self.times: list[int] = []
        self.cents: list[int] = []
        self.totals, self.end = _NOTHING, 0
        if history is None or not history.times:
            return
        # As lists: they are short, and a search in them takes a third of that in a memory view.
        self.times = times = memoryview(history.times).cast("q").tolist()
        self.cents = memoryview(history.amounts).cast("Q" if history.wide else "I").tolist()
        self.totals = list(accumulate(self.cents, initial=0))
        self.end = len(times) if times[-1] <= time else bisect_right(times, time)

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

    def links(self, start: int, width: int) -> list[int]:
        """Return the links of the purchases from an index on, ``width`` for each."""
        if start == self.end or self.history is None:
            return []
        return memoryview(self.history.links).cast("I")[start * width : self.end * width].tolist()

    def gaps(self, most: int) -> list[int]:
        """Return the last gaps between purchases, at most so many, ms."""
        times = self.times[max(0, self.end - most - 1) : self.end]
        return list(map(sub, times[1:], times))
