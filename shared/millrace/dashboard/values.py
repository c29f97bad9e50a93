"""Values of tables as cells: short, plain, and nothing that was not meant to be read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from millrace.dashboard.views import Cell, Column, Kind, Table

if TYPE_CHECKING:
    import pyarrow as pa

#: Longer texts are cut.
LONGEST_TEXT = 200


def cell(value: Any) -> Cell:
    """Return a value of a table as a cell.

    Bytes are what came over the wire and did not fit, card numbers among it: they are counted, not shown.

    >>> cell([{"code": "SPREE", "value": 4.0}])
    '[{"code": "SPREE", "value": 4.0}]'
    >>> cell(b"4111111111111111")
    '16 bytes'
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    text = value if isinstance(value, str) else json.dumps(value, default=_plain, ensure_ascii=False)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def _plain(value: Any) -> Any:
    return cell(value)


def table_of(rows: pa.Table, *, newest_first: bool = True, more: int = 0) -> Table:
    """Return rows as a table with a column per field.

    Args:
        rows: The rows.
        newest_first: Whether to turn their order round.
        more: How many there are besides.
    """
    columns = tuple(Column(name, _kind(name)) for name in rows.column_names)
    records = [[cell(value) for value in record.values()] for record in rows.to_pylist()]
    return Table(columns=columns, rows=records[::-1] if newest_first else records, more=more)


def _kind(name: str) -> Kind:
    return "time" if name.endswith("_ms") and ("time" in name or name in ("at_ms", "day_ms")) else "text"


def median(values: Sequence[float]) -> float | None:
    """Return the (lower) median; ``None`` of nothing.

    >>> median([5.0, 1.0, 3.0]), median([])
    (3.0, None)
    """
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else None
