"""Parts of the detail of a key: the rows of a table that are about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millrace.dashboard.data import AppData
from millrace.dashboard.values import bounded, cell
from millrace.dashboard.views import Cell, Column, Kind, Titled

#: Rows that are read of a table, and those that are shown.
_MOST_READ = 1_000
_MOST_SHOWN = 50


def rows_of(
    data: AppData,
    table: str,
    where: Sequence[tuple[str, str]],
    title: str,
    names: Sequence[str],
    *,
    order: Sequence[str],
    kinds: Mapping[str, Kind] | None = None,
) -> list[Titled]:
    """Return the newest rows of a table that are about a key; nothing where there are none.

    Args:
        data: The app's data.
        table: The table.
        where: Columns and values: a row is about the key if one of them fits.
        title: The heading.
        names: The columns that are shown. Those that end in ``_ms`` are times, 0 none, unless ``kinds`` says
            otherwise.
        order: The columns by which rows are in order; the last comes first.
        kinds: Column → how its values are written.
    """
    reader = data.table(table)
    if reader is None:
        return []
    wanted = list(dict.fromkeys((*names, *order, *(column for column, _ in where), "_event_id")))
    found: dict[Any, dict[str, Any]] = {}
    for column, value in where:
        for row in reader.recent(column, value, limit=_MOST_READ, columns=wanted).to_pylist():
            found[row.get("_event_id") or len(found)] = row  # one that fits twice is one row
    rows = sorted(found.values(), key=lambda r: [r[name] for name in order], reverse=True)
    shown = {name: (kinds or {}).get(name) or ("time" if name.endswith("_ms") else "text") for name in names}
    columns = [Column(name.removesuffix("_ms").replace("_", " "), kind) for name, kind in shown.items()]
    cells = [[_value(row[name], kind) for name, kind in shown.items()] for row in rows]
    view = bounded(columns, cells, most=_MOST_SHOWN)
    return [] if view is None else [Titled(title, view)]


def _value(value: Any, kind: str) -> Cell:
    return None if kind == "time" and not value else cell(value)
