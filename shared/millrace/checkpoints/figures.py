"""State metrics: entries, bytes, timers, the largest keys and pages; and how two versions differ."""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from millrace.checkpoints.checkpoint import Checkpoint
from millrace.checkpoints.entries import EntryReader, key_name, reader_of
from millrace.checkpoints.groups import StoredGroup
from millrace.checkpoints.lookup import ReadValues
from millrace.host.station import HEADER
from millrace.runtime.clock_files import read_status, shown_watermark
from millrace.state.cells import INDEX, INDEX_PAGES, SCHEMA_PAGE, Cell, earliest
from millrace.state.change_log import LOG_PAGES, MOST_SEGMENTS
from millrace.state.layout import TimerRecord
from millrace.state.page_index import listed_by
from millrace.state.paged import owner_of

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.checkpoints.reading import StateView

#: A row per key group, as Spark's workers make it.
FIGURES_SCHEMA = "figures string"


@dataclass
class Figures:
    """What the state of a process comes to.

    Attributes:
        entries: Keys that have state.
        entry_bytes: What their entries take, packed.
        stored_bytes: What all values take as they are stored, headers and broadcast state included.
        groups: Key groups that hold something.
        pages: Pages of all of them.
        timers: Pending timers on event time.
        processing_timers: Pending timers on processing time.
        waiting: Events that wait for the watermark.
        next_timer_ms: When the first timer or waiting event is due (event time).
        next_expiry_ms: No expiry is before this (event time).
        schemas: Largest number of schemas in one group: more than one after an upgrade, until all
            pages were touched.
        states: State → keys that hold something in it.
        largest_keys: (bytes, key), the largest first.
        largest_pages: (bytes, key group, page, entries), the largest first.
    """

    entries: int = 0
    entry_bytes: int = 0
    stored_bytes: int = 0
    groups: int = 0
    pages: int = 0
    timers: int = 0
    processing_timers: int = 0
    waiting: int = 0
    next_timer_ms: int | None = None
    next_expiry_ms: int | None = None
    schemas: int = 0
    states: dict[str, int] = field(default_factory=dict)
    largest_keys: list[tuple[int, str]] = field(default_factory=list)
    largest_pages: list[tuple[int, int, int, int]] = field(default_factory=list)


def figures_of_group(number: int, group: StoredGroup, top: int) -> Figures:
    """Return what one key group comes to.

    Args:
        number: The group.
        group: What it holds.
        top: How many of its largest keys and pages are named.
    """
    found = Figures(groups=1)
    found.stored_bytes = len(group.header) + sum(map(len, group.pages.values())) + len(group.broadcast or b"")
    schemas = group.schemas()
    found.schemas = len(schemas)
    sizes: dict[str, int] = {}
    for info, cells, size in group.cells():
        _add_page(found, sizes, reader_of(schemas[info.schema]), cells)
        found.largest_pages.append((size, number, info.number, len(cells)))
    _name_largest(found, sizes, top)
    return found


def _add_page(found: Figures, sizes: dict[str, int], reader: EntryReader, cells: Mapping[str, Cell]) -> None:
    """Add what the cells of a page come to, and how much each key takes in it."""
    found.pages += 1
    for key, cell in cells.items():
        body = bytes(cell.body)
        entry = reader.read(body)
        owner, part = owner_of(key)
        found.entries += part is None
        found.entry_bytes += len(body)
        found.timers += len(entry.timers)
        found.processing_timers += len(entry.processing_timers)
        found.waiting += len(entry.waiting)
        found.next_timer_ms = earliest((found.next_timer_ms, cell.timer))
        found.next_expiry_ms = earliest((found.next_expiry_ms, cell.expiry))
        sizes[owner] = sizes.get(owner, 0) + len(body)
        for name in entry.states:
            if part is None or part[1] == 0 or name not in found.states:
                found.states[name] = found.states.get(name, 0) + 1


def _name_largest(found: Figures, sizes: Mapping[str, int], top: int) -> None:
    largest = heapq.nlargest(top, ((size, key) for key, size in sizes.items()))
    found.largest_keys = [(size, key_name(key)) for size, key in largest]
    found.largest_pages = heapq.nlargest(top, found.largest_pages)


def sample_of_group(
    number: int, values: ReadValues, top: int, chance: random.Random, most_pages: int
) -> tuple[Figures, int] | None:
    """Return what some pages of a key group come to, and how many it has; ``None``: it holds nothing.

    Args:
        number: The group.
        values: Reads values of it.
        top: How many of the largest keys and pages are named, of those that are looked at.
        chance: Chooses the pages.
        most_pages: How many are looked at.

    Returns:
        Figures whose ``stored_bytes`` are those of the pages that were looked at.
    """
    stored = values([HEADER]).get(HEADER)
    if stored is None:
        return None
    found, sizes = Figures(groups=1), dict[str, int]()
    group = StoredGroup(stored)
    header = group.read_header
    indexes = [INDEX_PAGES | item.number for item in header.pages if item.schema == INDEX]
    log = range(LOG_PAGES, LOG_PAGES + MOST_SEGMENTS) if header.logged else ()
    group.pages.update(values([SCHEMA_PAGE, *indexes, *log]))
    logged = group.logged(header)
    schemas = group.schemas()
    found.schemas = len(schemas)
    infos = header.pages if header.inline is not None else listed_by(header, group.bytes_of)
    for info in chance.sample(infos, min(most_pages, len(infos))):
        if header.inline is not None:
            cells, size = header.inline, len(stored)
        else:
            group.pages.update(values([info.number]))
            cells, size = group.cells_of(info, logged), len(group.pages[info.number])
        _add_page(found, sizes, reader_of(schemas[info.schema]), cells)
        found.stored_bytes += size
        found.largest_pages.append((size, number, info.number, len(cells)))
    _name_largest(found, sizes, top)
    return found, len(infos)


def added(parts: Iterable[Figures], top: int) -> Figures:
    """Return what several key groups come to together."""
    total = Figures()
    keys: list[tuple[int, str]] = []
    pages: list[tuple[int, int, int, int]] = []
    for part in parts:
        for name in ("entries", "entry_bytes", "stored_bytes", "groups", "pages", "timers", "waiting",
                     "processing_timers"):  # fmt: skip
            setattr(total, name, getattr(total, name) + getattr(part, name))
        total.next_timer_ms = earliest((total.next_timer_ms, part.next_timer_ms))
        total.next_expiry_ms = earliest((total.next_expiry_ms, part.next_expiry_ms))
        total.schemas = max(total.schemas, part.schemas)
        for state, n in part.states.items():
            total.states[state] = total.states.get(state, 0) + n
        keys += [(size, key) for size, key in part.largest_keys]
        pages += [(a, b, c, d) for a, b, c, d in part.largest_pages]
    total.largest_keys, total.largest_pages = heapq.nlargest(top, keys), heapq.nlargest(top, pages)
    return total


class _GroupFigures:
    """Counts a key group in a worker."""

    def __init__(self, top: int, numbers: dict[int, int]) -> None:
        self._top = top
        self._numbers = numbers

    def __call__(self, label: int, group: StoredGroup) -> pa.Table:
        import pyarrow as pa

        found = figures_of_group(self._numbers[label], group, self._top)
        return pa.table({"figures": [json.dumps(asdict(found))]})


def figures_of(view: StateView, *, top: int = 10) -> Figures:
    """Return what the state of a process comes to.

    Args:
        view: The state.
        top: How many of the largest keys and pages are named.
    """
    count = _GroupFigures(top, view.numbers())
    rows = view.by_group(count, FIGURES_SCHEMA).collect()
    return added((Figures(**json.loads(row.figures)) for row in rows), top)


@dataclass(frozen=True)
class BatchSize:
    """What a batch wrote.

    Attributes:
        batch: The batch.
        changelog_bytes: Bytes of state that it changed.
        watermark_ms: The watermark after it.
        held_by: The source that held it back; empty: none did.
    """

    batch: int
    changelog_bytes: int
    watermark_ms: int | None
    held_by: str = ""


def batch_sizes(checkpoint: Checkpoint) -> list[BatchSize]:
    """Return what the batches that are kept wrote into the state store."""
    found = []
    for batch in checkpoint.batches():
        names = (checkpoint.folder / "state").glob(f"*/*/{batch + 1}[._]*changelog")
        try:
            size = sum(path.stat().st_size for path in names)
            status = read_status(checkpoint.root, batch)
            held_by = "" if status is None else status.held_by
            found.append(BatchSize(batch, size, shown_watermark(status), held_by))
        except FileNotFoundError:  # the running query has removed it meanwhile
            continue
    return found


def timers_text(timers: list[TimerRecord]) -> str:
    """Return pending timers in a line, the first one first.

    >>> timers_text([TimerRecord(20, "b"), TimerRecord(10, "a")])
    'a@10, b@20'
    """
    return ", ".join(f"{t.name}@{t.at}" for t in sorted(timers, key=lambda t: (t.at, t.name)))
