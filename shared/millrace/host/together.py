"""The rows that ``process_batch`` handles together: of keys without timers in the way, and on time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from millrace.batch import Batch
from millrace.host.groups import context_key
from millrace.host.rows import Row, in_order
from millrace.state.handles import Cursor
from millrace.state.page import OpenEntry

if TYPE_CHECKING:
    from millrace.host.runner import EntryStore
    from millrace.inputs import Inputs
    from millrace.process import KeyedProcess


class Together:
    """Rows of several keys, one key's after the other's.

    Attributes:
        keys: Key texts.
        rows: The rows of all keys.
        key_of: For each row the place of its key.
        starts: Where each key's rows begin, and where the last one's end.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.rows: list[Row] = []
        self.key_of: list[int] = []
        self.starts: list[int] = [0]
        self._opened: list[OpenEntry] = []

    def add(self, key: str, rows: list[Row], opened: OpenEntry) -> None:
        """Add the rows of a key, in order."""
        self.key_of += [len(self.keys)] * len(rows)
        self.keys.append(key)
        self.rows += rows
        self.starts.append(len(self.rows))
        self._opened.append(opened)

    def by_key(self) -> Iterator[tuple[str, list[Row]]]:
        """Iterate over keys and their rows."""
        for place, key in enumerate(self.keys):
            yield key, self.rows[self.starts[place] : self.starts[place + 1]]

    def run(
        self, process: KeyedProcess[Any, Any], cursor: Cursor, watermark: int, inputs: Inputs | None
    ) -> Batch[Any]:
        """Let the process handle the rows; nothing is kept yet."""

        def read(state: Any) -> list[Any]:
            found = []
            for place, opened in enumerate(self._opened):
                cursor.entry = opened.entry
                cursor.now = self.rows[self.starts[place]].event_time
                found.append(state.value)
            cursor.entry = None
            return found

        batch: Batch[Any] = Batch(
            [context_key(key) for key in self.keys],
            [row.event for row in self.rows],
            [row.event_time for row in self.rows],
            self.starts,
            watermark,
            read,
            [] if inputs is None else [inputs.name_of(row.raw) for row in self.rows],
        )
        process.process_batch(batch)
        return batch

    def restore(self, store: EntryStore) -> None:
        """Undo what the process may have changed in place in values that it read."""
        for opened in self._opened:
            before = opened.before
            opened.entry = type(opened.entry)() if before is None else store.decode(before.body)

    def keep(self, batch: Batch[Any], cursor: Cursor, process: KeyedProcess[Any, Any]) -> None:
        """Keep what the process wrote."""
        for name, values in batch.written:
            state = process.__dict__[name]
            for place, (opened, value) in enumerate(zip(self._opened, values, strict=True)):
                cursor.entry = opened.entry
                cursor.now = self.rows[self.starts[place + 1] - 1].event_time
                cursor.min_expiry = opened.expiry
                cursor.min_processing_expiry = opened.processing_expiry
                state.value = value
                opened.expiry = cursor.min_expiry
                opened.processing_expiry = cursor.min_processing_expiry
        cursor.entry = None


def split_batch(
    store: EntryStore, rows: dict[str, list[Row]], watermark: int
) -> tuple[Together, dict[str, list[Row]]]:
    """Return the rows that can be handled together, and those that are handled one by one, by key.

    One by one go those of a key with a late row, of one with a timer, which its own events may have
    to fire, and of one whose timers have been at it in this batch: what fails is undone to where it began.
    """
    together, left = Together(), {}
    for key, of_key in rows.items():
        opened = store.open(key)
        alone = opened.touched or opened.entry.timers_
        if alone or any(r.is_ahead or (r.event_time <= watermark and not r.on_time) for r in of_key):
            left[key] = of_key
        else:
            together.add(key, in_order(of_key), opened)
    return together, left
