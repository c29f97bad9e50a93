"""Values of tables as cells: short, plain, and nothing that was not meant to be read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from millrace.dashboard.views import Cell, Column, Kind, Offer, Table, Tone

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


def bounded(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    tones: Sequence[Tone] = (),
    *,
    most: int = 25,
    actions: Sequence[Sequence[Offer]] = (),
    page: int = 0,
    choose: str = "",
) -> Table | None:
    """Return the first rows as a table that says how many there are besides; ``None`` of none.

    Args:
        columns: The columns.
        rows: A value per column.
        tones: How each row is meant; empty: all plain.
        most: So many rows are kept.
        actions: Per row, what can be done with it; empty: nothing with any.
        page: How many are shown at a time; 0: all.
        choose: Name of a column by whose values rows can be chosen.

    >>> bounded([Column("n", "count")], [[1], [2], [3]], most=2).more
    1
    """
    if not rows:
        return None
    return Table(
        columns=tuple(columns),
        rows=rows[:most],
        tones=tones[:most],
        actions=actions[:most],
        more=max(0, len(rows) - most),
        page=page,
        choose=choose,
    )


def as_dict(value: Any) -> dict[str, Any]:
    """Return a map of a table, which is read as a list of pairs, as a dictionary.

    >>> as_dict([("E101", 2)]), as_dict(None)
    ({'E101': 2}, {})
    """
    return {} if value is None else dict(value)


def _kind(name: str) -> Kind:
    return "time" if name.endswith("_ms") and ("time" in name or name in ("at_ms", "day_ms")) else "text"


def median(values: Sequence[float]) -> float | None:
    """Return the (lower) median; ``None`` of nothing.

    >>> median([5.0, 1.0, 3.0]), median([])
    (3.0, None)
    """
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """Return the value below which about a share of ordered values lie; ``None`` of nothing.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.95), quantile([], 0.5)
    (4.0, None)
    """
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; ``None`` of nothing.

    >>> mean([1.0, 2.0]), mean([])
    (1.5, None)
    """
    return sum(values) / len(values) if values else None


def ratio(part: float, whole: float) -> float | None:
    """Return a share; ``None`` of nothing.

    >>> ratio(1, 4), ratio(0, 0)
    (0.25, None)
    """
    return part / whole if whole else None
