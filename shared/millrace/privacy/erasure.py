"""Forgetting somebody in the tables of an app: rows are found by exact names, deleted, and looked for again.

Deletion goes by the columns that an app says name somebody. The look afterwards goes another way: through
every text of every row, so that it finds what the app forgot to say. A name counts where a whole text is that
name, or where it stands by itself in one: no letter, digit, ``_`` or ``-`` beside it. So 42 is not in 1423.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

#: Identity of a row, in all tables that a stream writes.
_ID: Final = "_event_id"
_AT_ONCE: Final = 1_000


@dataclass(frozen=True)
class Names:
    """What somebody is called, exactly.

    Attributes:
        values: The names.

    Example:
        >>> names = Names(("42",))
        >>> names.stands_in(b'{"user":"42"}'), names.stands_in(b"4-42")
        (True, False)
    """

    values: tuple[str, ...]

    def keys(self) -> list[str]:
        """Return the names as columns of keys have them: as they are, and led by their length."""
        return [key for value in self.values for key in (value, f"{len(value.encode())}:{value}")]

    def stands_in(self, message: bytes) -> bool:
        """Return whether a message has one of the names, by itself."""
        return bool(self.values) and _whole(self.values).search(message) is not None


def _whole(values: tuple[str, ...]) -> re.Pattern[bytes]:
    named = b"|".join(re.escape(value.encode()) for value in values)
    return re.compile(rb"(?<![\w-])(?:" + named + rb")(?![\w-])")


def delete_rows(table: Path, columns: Sequence[str], names: Names) -> int:
    """Delete the rows of a Delta table in which one of some columns is a name; return how many.

    Args:
        table: The table.
        columns: Columns; of a struct's field ``event.card_id``. What the table does not have is left out.
        names: The names.
    """
    opened = _open(table)
    if opened is None or not names.values:
        return 0
    there = opened.to_pyarrow_dataset().schema
    conditions = [
        f"{_sql(column)} IN ({quoted(names.keys())})" for column in columns if _has(there, column.split("."))
    ]
    if not conditions:
        return 0
    return int(opened.delete(" OR ".join(conditions))["num_deleted_rows"])


def delete_letters(table: Path, names: Names) -> int:
    """Delete the rows of a table of dead letters, or of events as text, that name somebody; return how many.

    Args:
        table: The table; its columns of bytes and texts are looked through as messages.
        names: The names.
    """
    opened = _open(table)
    if opened is None:
        return 0
    found = list(dict.fromkeys(_ids(opened, names)))
    for start in range(0, len(found), _AT_ONCE):
        opened.delete(f"{_ID} IN ({quoted(found[start : start + _AT_ONCE])})")
    return len(found)


def _ids(opened: DeltaTable, names: Names) -> Iterator[str]:
    for batch in opened.to_pyarrow_dataset().to_batches():
        if _ID in batch.schema.names:
            ids = batch[_ID].to_pylist()
            yield from (ids[row] for row in _rows(batch, names))


def count_left(table: Path, names: Names) -> int:
    """Return in how many rows of a Delta table somebody is named, in whatever column, however deep."""
    opened = _open(table)
    if opened is None or not names.values:
        return 0
    return sum(len(_rows(batch, names)) for batch in opened.to_pyarrow_dataset().to_batches())


def _rows(batch: pa.RecordBatch, names: Names) -> list[int]:
    """Return the rows of a batch that name somebody: candidates by Arrow's search, then each exactly."""
    found: set[int] = set()
    for column in batch.columns:
        values = column.to_pylist() if _may_have(column, names) else []
        found |= {row for row, value in enumerate(values) if _names(value, names)}
    return sorted(found)


def _may_have(column: pa.Array, names: Names) -> bool:
    """Return whether a name may stand in a column; a cheap look at all of its bytes."""
    return any(
        buffer is not None and any(value.encode() in memoryview(buffer).tobytes() for value in names.values)
        for buffer in column.buffers()
    )


def _names(value: Any, names: Names) -> bool:
    if isinstance(value, str):
        return names.stands_in(value.encode(errors="replace"))
    if isinstance(value, bytes):
        return names.stands_in(value)
    if isinstance(value, Mapping):
        return any(_names(one, names) for one in (*value.keys(), *value.values()))
    if isinstance(value, Iterable):
        return any(_names(one, names) for one in value)
    return False


def wait_for_rows(
    table: Path, column: str, values: Iterable[str], *, patience_s: float, poll_s: float = 0.5
) -> list[str]:
    """Wait until a Delta table has each of some values in a column; return those that did not come.

    Args:
        table: The table, which may still have to be made.
        column: The column.
        values: The values.
        patience_s: How long, seconds.
        poll_s: How often it is looked at, seconds.
    """
    wanted, deadline = set(values), time.monotonic() + patience_s
    while True:
        opened = _open(table)
        if opened is not None:
            rows = opened.to_pyarrow_table(columns=[column], filters=[(column, "in", sorted(wanted))])
            wanted -= set(rows[column].to_pylist())
        if not wanted or time.monotonic() > deadline:
            return sorted(wanted)
        time.sleep(poll_s)


def quoted(values: Iterable[str]) -> str:
    """Return texts as SQL writes them.

    >>> quoted(["a", "o'b"])
    "'a', 'o''b'"
    """
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values)


def _sql(column: str) -> str:
    first, *rest = column.split(".")
    return first + "".join(f"['{part}']" for part in rest)


def _has(schema: Any, parts: Sequence[str]) -> bool:
    import pyarrow as pa

    fields: Any = pa.schema(schema)
    for part in parts:
        names = [field.name for field in fields]
        if part not in names:
            return False
        kind = fields.field(part).type
        fields = kind if pa.types.is_struct(kind) else ()
    return True


def _open(table: Path) -> DeltaTable | None:
    from deltalake import DeltaTable

    return DeltaTable(str(table)) if DeltaTable.is_deltatable(str(table)) else None
