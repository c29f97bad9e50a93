"""Vectorised calls: the rows that ``process_batch`` gets together, on time and with nothing due between."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from millrace.batch import Batch
from millrace.host.groups import context_key
from millrace.host.rows import Row, in_order
from millrace.state.cells import absent
from millrace.state.entry_store import EntryStore
from millrace.state.handles import Cursor, ValueState
from millrace.state.page import OpenEntry
from millrace.state.specs import StateSpec
from millrace.time import NEVER

if TYPE_CHECKING:
    from millrace.inputs import Inputs
    from millrace.process import KeyedProcess


class BatchCall:
    """Rows of several keys, one key's after the other's.

    Attributes:
        keys: Key texts.
        rows: The rows of all keys.
        key_of: For each row the place of its key.
        starts: Where each key's rows begin, and where the last one's end.
        opened: The keys' entries.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.rows: list[Row] = []
        self.key_of: list[int] = []
        self.starts: list[int] = [0]
        self.opened: list[OpenEntry] = []
        #: The states that the process read.
        self._was_read: dict[str, Any] = {}

    def by_key(self) -> Iterator[tuple[str, list[Row]]]:
        """Iterate over keys and their rows."""
        for place, key in enumerate(self.keys):
            yield key, self.rows[self.starts[place] : self.starts[place + 1]]

    def run(
        self, process: KeyedProcess[Any, Any], cursor: Cursor, watermark: int, inputs: Inputs | None
    ) -> Batch[Any]:
        """Let the process handle the rows; nothing is kept yet."""

        def read(state: Any) -> list[Any]:
            if not isinstance(state, ValueState):
                raise TypeError(f"process_batch reads value states, not {type(state).__name__}")
            self._was_read[state.name] = state
            return self._read(state, cursor, self.starts)

        batch: Batch[Any] = Batch(
            lambda: [context_key(key) for key in self.keys],
            [row.event for row in self.rows],
            [row.event_time for row in self.rows],
            self.starts,
            watermark,
            read,
            [] if inputs is None else [inputs.name_of(row.raw) for row in self.rows],
        )
        process.process_batch(batch)
        return batch

    def _read(self, state: Any, cursor: Cursor, at: Sequence[int]) -> list[Any]:
        """Read a state of every key, at the times of the rows ``at``."""
        found, rows = [], self.rows
        for opened, row in zip(self.opened, at, strict=False):  # starts have one more
            # As _point(…) and what goes after it, for every key.
            cursor.entry, cursor.now = opened.entry, rows[row].event_time
            cursor.min_expiry, cursor.min_processing_expiry = opened.expiry, opened.processing_expiry
            found.append(state.value)
            opened.expiry, opened.processing_expiry = cursor.min_expiry, cursor.min_processing_expiry
        cursor.entry = None
        return found

    def _point(self, cursor: Cursor, opened: OpenEntry, row: int) -> None:
        cursor.entry = opened.entry
        cursor.now = self.rows[row].event_time
        cursor.min_expiry = opened.expiry
        cursor.min_processing_expiry = opened.processing_expiry

    def opened_at(self, cursor: Cursor, row: int) -> OpenEntry:
        """Point at the entry of a row's key, at the row's time; return the entry."""
        opened = self.opened[self.key_of[row]]
        self._point(cursor, opened, row)
        return opened

    def restore(self, store: EntryStore) -> None:
        """Undo what the process may have changed in place in values that it read."""
        for opened in self.opened:
            before = opened.before
            opened.entry = type(opened.entry)() if before is None else store.decode(before.body)
            opened.touched, opened.packed = False, None
            opened.expiry = NEVER if before is None else absent(before.expiry)
            opened.processing_expiry = NEVER if before is None else absent(before.processing_expiry)

    def keep(
        self, store: EntryStore, batch: Batch[Any], cursor: Cursor, process: KeyedProcess[Any, Any]
    ) -> None:
        """Keep what the process wrote.

        Raises:
            StateTypeError: Some of it could not be kept.
            EntryTooLarge: The state of a key is beyond the limit.
        """
        newest = [end - 1 for end in self.starts[1:]]
        for spec in process.states:
            if spec.refresh == "read_write" and spec.name in self._was_read:
                self._read(self._was_read[spec.name], cursor, newest)
        of_all, key_of, rows = self.opened, self.key_of, self.rows
        for name, values, written_at in batch.written:
            state = process.__dict__[name]
            for row, value in zip(newest if written_at is None else written_at, values, strict=True):
                opened = of_all[key_of[row]]
                cursor.entry, cursor.now = opened.entry, rows[row].event_time
                cursor.min_expiry, cursor.min_processing_expiry = opened.expiry, opened.processing_expiry
                state.value = value
                opened.expiry, opened.processing_expiry = cursor.min_expiry, cursor.min_processing_expiry
        cursor.entry = None
        store.pack_entries(self.keys, self.opened)


class Lives:
    """Tells whether what a process reads of a key may expire between its rows.

    Args:
        states: The states that the process declares.
        all_kinds: Whether it may read others than value states.
    """

    def __init__(self, states: Sequence[StateSpec], *, all_kinds: bool = False) -> None:
        lived = [s for s in states if s.expires and not s.on_processing_time]
        others = [s for s in lived if s.kind != "value"]
        lived = [s for s in lived if s.kind == "value"] + (others if all_kinds else [])
        self._names = [s.name for s in lived if s.kind == "value"]
        self._others = all_kinds and bool(others)
        #: A row this much after another may find no more what that one wrote, ms.
        self._shortest = min([s.ttl_ms or NEVER for s in lived], default=NEVER)

    def end_between(self, entry: Any, expiry: int, first: int, last: int) -> bool:
        """Return whether a value of an entry is visible at ``first`` (ms) and may not be at ``last``.

        Args:
            entry: The entry.
            expiry: Nothing in it expires before this, ms.
            first: Time of a key's first row.
            last: Time of its last one.
        """
        if last - first >= self._shortest:
            return True
        if expiry > last:
            return False
        if self._others:
            return True
        slots = [getattr(entry, name) for name in self._names]
        return any(slot is not None and first < slot[0] <= last for slot in slots)


def split_batch(
    store: EntryStore, rows: dict[str, list[Row]], due: Container[str], watermark: int, lives: Lives
) -> tuple[BatchCall, dict[str, list[Row]]]:
    """Return the rows that can be handled together, and those that are handled one by one, by key.

    One by one go those of a key with a row that is late or a correction, with a timer that is due or that
    its own events fire, and with a value whose life may end between them.

    Args:
        store: Where the entries are.
        rows: Rows by key.
        due: Keys with timers that this batch fires.
        watermark: The batch's watermark, ms.
        lives: What may expire.
    """
    together, left = BatchCall(), {}
    keys, taken, key_of, starts, entries = (
        together.keys, together.rows, together.key_of, together.starts, together.opened,
    )  # fmt: skip
    for key, of_key in rows.items():
        alone = len(of_key) == 1
        ordered = of_key if alone else in_order(of_key)
        if key in due or not _on_time(ordered, watermark):
            left[key] = ordered
            continue
        opened = store.open(key)
        timers, newest = opened.entry.timers_, ordered[-1].event_time
        fires = bool(timers) and any(t.on_key_time and t.at < newest for t in timers)
        ends = False
        if not alone and (oldest := ordered[0].event_time) < newest:
            ends = lives.end_between(opened.entry, opened.expiry, oldest, newest)
        if fires or ends:
            left[key] = ordered
            continue
        key_of.extend(itertools.repeat(len(keys), len(ordered)))
        keys.append(key)
        taken.extend(ordered)
        starts.append(len(taken))
        entries.append(opened)
    return together, left


def _on_time(rows: list[Row], watermark: int) -> bool:
    """Return whether all rows of a key, in order, are on time and ran no further ahead than the batch."""
    if rows[0].on_time is None:
        return rows[0].event_time > watermark
    return all(row.on_time and not row.is_ahead for row in rows)
