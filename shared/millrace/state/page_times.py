"""The times of a key group's pages in order: what is due is found without a look at every page.

A store that lives on from batch to batch, as a station's does, would look through all its pages several times
a batch. Each time of a page stands in a heap; an entry counts as long as it says what the page's information
said when it was last noted, and others are left where they are until they come to the top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Final

from millrace.state.cells import PageInfo
from millrace.time import NEVER

#: The times of a page: of its first timer and its first expiry, and of both on processing time, ms.
Times = tuple[int | None, int | None, int | None, int | None]
#: Places of these.
TIMER: Final = 0
EXPIRY: Final = 1
PROCESSING_TIMER: Final = 2
PROCESSING_EXPIRY: Final = 3
_KINDS: Final = (TIMER, EXPIRY, PROCESSING_TIMER, PROCESSING_EXPIRY)
_NAMES: Final = ("timer", "expiry", "processing_timer", "processing_expiry")
#: Gives the time of a kind of a page; ``None`` where it has none.
TIME_OF: Final = tuple(map(attrgetter, _NAMES))
#: Gives all of a page.
_times_of: Final[Callable[[PageInfo], Times]] = attrgetter(*_NAMES)
#: A heap is made anew when it has so many entries for each page, and some more.
_MOST_OF_PAGE: Final = 3
_SOME: Final = 64


class PageTimes:
    """The times of pages.

    Args:
        pages: All pages of a group.
    """

    def __init__(self, pages: Iterable[PageInfo]) -> None:
        self._noted: dict[int, tuple[PageInfo, Times]] = {p.number: (p, _times_of(p)) for p in pages}
        self._heaps = [self._heap(kind) for kind in _KINDS]

    def _heap(self, kind: int) -> list[tuple[int, int]]:
        noted = self._noted.items()
        heap = [(at, number) for number, (_, times) in noted if (at := times[kind]) is not None]
        heapify(heap)
        return heap

    def note(self, info: PageInfo) -> None:
        """Take note of the times of a page, a new one or one that has changed."""
        number, times = info.number, _times_of(info)
        known = self._noted.get(number)
        if known is not None and known[1] == times and known[0] is info:
            return
        self._noted[number] = info, times
        before = (None, None, None, None) if known is None else known[1]
        for kind in _KINDS:
            at = times[kind]
            if at is None or at == before[kind]:
                continue
            heap = self._heaps[kind]
            if len(heap) > _MOST_OF_PAGE * len(self._noted) + _SOME:
                self._heaps[kind] = self._heap(kind)
            else:
                heappush(heap, (at, number))

    def forget(self, number: int) -> None:
        """Forget a page that is not there any more."""
        del self._noted[number]

    def firsts(self) -> tuple[int, int, int, int]:
        """Return the earliest time of each kind, ms; ``NEVER`` where there is none."""
        first = self._first
        return first(TIMER), first(EXPIRY), first(PROCESSING_TIMER), first(PROCESSING_EXPIRY)

    def _first(self, kind: int) -> int:
        heap = self._heaps[kind]
        while heap:
            at, number = heap[0]
            if self._counts(kind, at, number):
                return at
            heappop(heap)
        return NEVER

    def until(self, *lines: tuple[int, int]) -> list[PageInfo]:
        """Return the pages that have a time of a kind up to its line (ms), of any of these, by prefix."""
        found: dict[int, PageInfo] = {}
        for kind, line in lines:
            heap = self._heaps[kind]
            places = [0]
            while places:
                place = places.pop()
                if place < len(heap) and heap[place][0] <= line:
                    at, number = heap[place]
                    if self._counts(kind, at, number):
                        found[number] = self._noted[number][0]
                    places += (2 * place + 1, 2 * place + 2)
        return sorted(found.values(), key=lambda p: p.prefix / (1 << p.depth))

    def _counts(self, kind: int, at: int, number: int) -> bool:
        known = self._noted.get(number)
        return known is not None and known[1][kind] == at
