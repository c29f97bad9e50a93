"""One key's entry out of a key group, of which only the pages are read that it stands in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from millrace.checkpoints.entries import KeptEntry, reader_of, whole_entries
from millrace.checkpoints.groups import StoredGroup
from millrace.host.station import HEADER
from millrace.state.backend import CommitMetrics
from millrace.state.cells import SCHEMA_PAGE, read_header
from millrace.state.change_log import Changes, changes_of, segments_of
from millrace.state.page_index import PageIndex
from millrace.state.paged import part_of, part_text

#: Numbers of values of a key group (of pages, ``HEADER``) → those that are there, their seals opened.
ReadValues = Callable[[Sequence[int]], Mapping[int, bytes]]


def entry_in(
    text: str, values: ReadValues, items: Mapping[str, Sequence[object]] | None = None
) -> tuple[KeptEntry, int] | None:
    """Return what is kept for a key, and its size in bytes; ``None``: nothing.

    Args:
        text: The key's text.
        values: Reads values of its key group.
        items: Paged map → items: only the parts that these are in are read, and of other paged states none;
            ``None``: all.

    Raises:
        StateCorrupted: It cannot be read.
    """
    stored = values([HEADER]).get(HEADER)
    if stored is None:
        return None
    header = read_header(stored, older=True)
    group = StoredGroup(stored)

    def read(wanted: Sequence[int]) -> list[bytes]:
        """Return pages, reading those that are not at hand yet."""
        if missing := [number for number in wanted if number not in group.pages]:
            group.pages.update(values(missing))
        return [group.bytes_of(number) for number in wanted]

    def find(numbers: Sequence[int]) -> list[bytes | None]:
        """Return values, those that there are."""
        there = values(numbers)
        return [there.get(number) for number in numbers]

    def read_pages_of(texts: Sequence[str]) -> None:
        texts = [text for text in texts if text not in changes]
        numbers = {info.number for info in index.of_keys(texts)} if header.inline is None else set()
        read([SCHEMA_PAGE, *numbers])

    def found(wanted: str) -> tuple[KeptEntry, int] | None:
        info = index.of_key(wanted)
        if wanted in changes:
            cell = changes[wanted]
        else:
            cell = (group.page(info.number) if header.inline is None else header.inline).get(wanted)
        if cell is None:
            return None
        schema = group.schemas()[info.schema]
        extents.extend(reader_of(schema).extents(cell.body))
        return reader_of(schema).read(cell.body), len(bytes(cell.body))

    extents: list[tuple[int, int, str]] = []
    index = PageIndex(header, read, CommitMetrics())
    changes: Changes = {}
    if header.logged:
        for of_segment in changes_of(segments_of(find)):
            changes |= of_segment
    read_pages_of([text])
    own = found(text)
    if own is None:
        return None
    parts = []
    for first, end, name in extents:
        numbers: Iterable[int] = range(first, end)
        if items is not None:
            numbers = sorted({part_of(item, end) for item in items.get(name, ())}) if end else ()
        parts += [part_text(text, name, number) for number in numbers]
    read_pages_of(parts)
    kept = [(text, *own), *((part, *one) for part in parts if (one := found(part)) is not None)]
    ((_, entry, size),) = whole_entries(kept)
    return entry, size
