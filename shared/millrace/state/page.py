"""Page and entry as a batch works on them."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from millrace.state.cells import Cell, PageInfo, earliest, summarize
from millrace.time import NEVER


class OpenEntry(msgspec.Struct, eq=False, gc=False):
    """An entry while a batch works on it.

    Attributes:
        entry: The entry.
        before: Its cell as it was stored, ``None`` for a new one.
        page: Where it is stored.
        expiry: No event-time expiry in it is before this (ms, ``NEVER`` without one).
        processing_expiry: No processing-time expiry in it is before this.
        touched: Whether ``entry`` may differ from ``before`` already.
        packed: ``entry`` as it is to be kept, where it has been packed since its last change: empty
            bytes for one without anything in it, the body of ``before`` itself for one that has not changed.
        cell: The cell of an entry that was let go of after it was packed; ``None``: ``entry`` is there.
    """

    entry: Any
    before: Cell | None
    page: Any
    expiry: int = NEVER
    processing_expiry: int = NEVER
    touched: bool = False
    packed: bytes | msgspec.Raw | None = None
    cell: Cell | None = None


class Page:
    """A page while a batch works on it."""

    __slots__ = ("cells", "info", "stale")

    def __init__(self, info: PageInfo, cells: dict[str, Cell]) -> None:
        self.info = info
        self.cells = cells
        #: Whether a cell with the page's earliest time has gone, so that the others must be looked at.
        self.stale = False

    def put(self, key: str, cell: Cell) -> None:
        """Keep a cell, and the page's earliest times as they are with it."""
        before = self.cells.get(key)
        self.cells[key] = cell
        timer, expiry = cell.timer, cell.expiry
        info = self.info
        if before is not None:
            if (
                before.timer == timer
                and before.expiry == expiry
                and before.processing_timer == cell.processing_timer
                and before.processing_expiry == cell.processing_expiry
            ):
                return  # as usual: the page's earliest times stay what they are
            if not self.stale:
                self.stale = _held(info, before, cell)
        if timer is not None and (info.timer is None or timer < info.timer):
            info.timer = timer
        if expiry is not None and (info.expiry is None or expiry < info.expiry):
            info.expiry = expiry
        if cell.processing_timer is not None:  # seldom
            info.processing_timer = earliest((info.processing_timer, cell.processing_timer))
        if cell.processing_expiry is not None:
            info.processing_expiry = earliest((info.processing_expiry, cell.processing_expiry))

    def remove(self, key: str) -> None:
        """Forget a cell."""
        gone = self.cells.pop(key)
        self.stale = self.stale or _held(self.info, gone, _NOTHING)

    def settle(self) -> None:
        """Look through the cells for their earliest times, if one may have gone."""
        if self.stale:
            summarize(self.info, self.cells.values())
            self.stale = False

    def split(self) -> list[Page]:
        """Return two pages with the halves of this one, by the next bit of the hash."""
        depth = self.info.depth + 1
        parts: list[dict[str, Cell]] = [{}, {}]
        for key, cell in self.cells.items():
            parts[(zlib.crc32(key.encode()) >> (32 - depth)) & 1][key] = cell
        halves = []
        for bit, cells in enumerate(parts):
            info = PageInfo(self.info.prefix << 1 | bit, depth, schema=self.info.schema)
            half = Page(info, cells)
            half.stale = True
            halves.append(half)
        return halves


#: A cell without any times.
_NOTHING = Cell(None, None, msgspec.Raw(b""))


def _held(info: PageInfo, before: Cell, after: Cell) -> bool:
    """Return whether one of a page's earliest times was that of ``before``, and is not that of ``after``."""
    return (
        (before.timer is not None and before.timer == info.timer != after.timer)
        or (before.expiry is not None and before.expiry == info.expiry != after.expiry)
        or (
            before.processing_timer is not None
            and before.processing_timer == info.processing_timer != after.processing_timer
        )
        or (
            before.processing_expiry is not None
            and before.processing_expiry == info.processing_expiry != after.processing_expiry
        )
    )


def passed(times: PageInfo | Cell, line: int, processing_line: int) -> bool:
    """Return whether a sweep at these lines may find something expired."""
    return (times.expiry is not None and times.expiry <= line) or (
        times.processing_expiry is not None and times.processing_expiry <= processing_line
    )
