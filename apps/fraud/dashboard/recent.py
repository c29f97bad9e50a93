"""The newest decisions as columns, kept while the page is looked at: what is read once is not read again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.dashboard.data import AppData

#: So many are kept, and those that were written with the oldest of them.
MOST: Final = 100_000
_TEXTS: Final = (
    "transaction_id",
    "card_id",
    "terminal_id",
    "merchant_id",
    "device_id",
    "ip",
    "kind",
    "action",
)
_FLOATS: Final = ("score", "model_score")
COLUMNS: Final = (*_TEXTS, "event_time_ms", *_FLOATS)


class Recent:
    """The newest decisions, in the order of writing; may be read while another thread adds to it.

    Args:
        most: How many at least, where there are as many.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._parts: tuple[pa.Table, ...] = ()
        self._count = 0
        self._joined: tuple[tuple[pa.Table, ...], pa.Table] | None = None

    def add(self, rows: pa.Table) -> Recent:
        """Add the rows of a file; columns that it does not have are null."""
        import pyarrow as pa

        part = pa.table([_column(rows, field) for field in _schema()], schema=_schema())
        parts = (*self._parts, part)
        self._count += len(part)
        first = 0
        while self._count - len(parts[first]) >= self._most:
            self._count -= len(parts[first])
            first += 1
        self._parts = parts[first:]
        return self

    def rows(self) -> pa.Table:
        """Return the decisions, with :data:`COLUMNS`."""
        import pyarrow as pa

        parts, joined = self._parts, self._joined
        if joined is None or joined[0] is not parts:
            made = pa.concat_tables(parts).combine_chunks() if parts else _schema().empty_table()
            self._joined = joined = (parts, made)
        return joined[1]


def _schema() -> pa.Schema:
    import pyarrow as pa

    texts = [(name, pa.string()) for name in _TEXTS]
    return pa.schema([*texts, ("event_time_ms", pa.int64()), *((name, pa.float64()) for name in _FLOATS)])


def _column(rows: pa.Table, field: pa.Field) -> Any:
    import pyarrow as pa

    if field.name not in rows.column_names:
        return pa.nulls(len(rows), field.type)
    return rows[field.name].cast(field.type)


def recent(data: AppData) -> pa.Table | None:
    """Return the newest decisions; ``None`` before there is a table."""
    table = data.table("transactions")
    return None if table is None else table.fold("recent", COLUMNS, Recent, Recent.add).rows()


def is_one_of(values: pa.ChunkedArray, names: Iterable[str]) -> npt.NDArray[np.bool_]:
    """Return which values are among some names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.is_in(values, value_set=pa.array(list(names), pa.string()))
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)
