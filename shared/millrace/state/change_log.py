"""The log of a key group: the entries that a batch has changed, one value for all of them.

A small batch changes an entry or two of each page that it touches. Written at once, that is a request to the
state store for every page. A group with a log writes what has changed as one *segment*; its pages are written
together when the log has become long, each once for all the changes that it has had. Whoever reads a group
reads its pages, and puts the changes of its segments on top of them in their order.

That there is a log stands in the group's header. Segments are numbered from :data:`LOG_PAGES` on, without a
gap; none is written twice, and all are removed when the pages are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from millrace.state.cells import UNREADABLE, Cell, PageInfo, StateCorrupted, summarize
from millrace.state.page_index import PageIndex

#: Numbers of segments are this and those above, beyond the numbers of all pages.
LOG_PAGES: Final = 1 << 42
#: A log has no more segments than this.
MOST_SEGMENTS: Final = 128
#: A log may take so many times what the group's pages may.
MOST_OF_PAGES: Final = 2
#: A group of fewer pages that change, or of so many times as many pages, writes them at once.
LEAST_PAGES: Final = 4
MOST_TIMES: Final = 24
#: So many segments are looked for at once.
_AT_ONCE: Final = 8

#: Key → its entry; ``None``: it has gone.
Changes = dict[str, Cell | None]

_decode: Final = msgspec.msgpack.Decoder(Changes).decode


def segments_of(find: Callable[[Sequence[int]], Sequence[bytes | None]]) -> list[bytes]:
    """Return the segments of a log, in their order.

    Args:
        find: Numbers of values of a group → these; ``None`` where there is none.

    Raises:
        StateCorrupted: One is missing before others, or all are.

    >>> kept = {LOG_PAGES: b"a", LOG_PAGES + 1: b"b"}
    >>> segments_of(lambda numbers: [kept.get(number) for number in numbers])
    [b'a', b'b']
    """
    found: list[bytes] = []
    for low in range(LOG_PAGES, LOG_PAGES + MOST_SEGMENTS, _AT_ONCE):
        part = find(range(low, low + _AT_ONCE))
        there = [data for data in part if data is not None]
        if any(data is None for data in part[: len(there)]):
            raise StateCorrupted("a segment of a key group's log is missing")
        found += there
        if len(there) < _AT_ONCE:
            break
    if not found:
        raise StateCorrupted("a key group has a log, and its segments are missing")
    return found


def changes_of(segments: Iterable[bytes]) -> list[Changes]:
    """Return what segments say of each key, in their order: the last of them that speaks of a key holds.

    Raises:
        StateCorrupted: One cannot be read.
    """
    found: list[Changes] = []
    for number, data in enumerate(segments):
        try:
            found.append(_decode(data))
        except UNREADABLE as error:
            raise StateCorrupted(f"segment {number} of a key group's log cannot be read: {error}") from error
    return found


def by_page(log: Iterable[Changes], index: PageIndex) -> dict[int, tuple[PageInfo, list[Changes]]]:
    """Return the number of each page that changes belong to → the page, and these, in their order.

    Raises:
        StateCorrupted: The pages do not cover all keys.
    """
    found: dict[int, tuple[PageInfo, list[Changes]]] = {}
    for changes in log:
        of_page: dict[int, Changes] = {}
        for (key, cell), info in zip(changes.items(), index.of_keys(changes), strict=True):
            if info.number not in of_page:
                of_page[info.number] = {}
                found.setdefault(info.number, (info, []))[1].append(of_page[info.number])
            of_page[info.number][key] = cell
    return found


def put_on(cells: dict[str, Cell], log: Iterable[Changes], info: PageInfo) -> None:
    """Put changes on top of the cells of their page, and bring the page's earliest times up to date.

    The cells come to stand in the order in which they would if each change had been made when it came.
    """
    for changes in log:
        for key, cell in changes.items():
            if cell is None:
                cells.pop(key, None)
            else:
                cells[key] = cell
    summarize(info, cells.values())


def with_times_of(info: PageInfo, log: Iterable[Changes]) -> None:
    """Let no time of a page be after one of its changes, without a look at what it has else."""
    summarize(info, [info, *(cell for changes in log for cell in changes.values() if cell is not None)])
