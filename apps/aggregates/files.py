"""Aggregations in files, YAML or JSON, as people write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from millrace.local.documents import read_yaml
from millrace.time.durations import format_duration, to_ms
from millrace_apps.aggregates.definition import Aggregation, AggregationError

MAX_FILE: Final = 1_000_000
_KINDS: Final = ("tumbling", "hopping", "session")
#: What a window may say beside its kind.
_FURTHER: Final = ("every", "cut_every")


def read(path: Path) -> list[Aggregation]:
    """Return the aggregations of a file: one, or a list of them.

    Args:
        path: The file, YAML or JSON.

    Raises:
        AggregationError: It cannot be read, or something in it is none.
    """
    found = read_yaml(path, AggregationError)
    items = found if isinstance(found, list) else [found]
    if not items or not all(isinstance(item, dict) for item in items):
        raise AggregationError(
            f"{path}: an aggregation has name, source, window, aggregates; or a list of such"
        )
    made = [_written(path, item) for item in items]
    names = [one.name for one in made]
    if len(set(names)) < len(names):
        raise AggregationError(f"{path}: two aggregations of one name")
    return made


def _written(path: Path, item: dict[str, Any]) -> Aggregation:
    told = dict(item)
    where = f"{path}: aggregation '{told.get('name', '?')}'"
    try:
        told["windows"] = _windows(told.pop("window", None))
        if "allowed_lateness" in told:
            told["allowed_lateness_ms"] = to_ms(told.pop("allowed_lateness"))
        if isinstance(told.get("key"), str):
            told["key"] = [told["key"]]
        return msgspec.convert(told, Aggregation)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise AggregationError(f"{where}: {error}") from None


def _windows(told: Any) -> dict[str, Any]:
    """Return windows as they travel.

    >>> _windows({"hopping": "10m", "every": "1m"})
    {'kind': 'hopping', 'size_ms': 600000, 'every_ms': 60000}
    >>> _windows({"session": "5m", "cut_every": "1d"})
    {'kind': 'session', 'size_ms': 300000, 'cut_every_ms': 86400000}
    """
    if (
        not isinstance(told, dict)
        or sum(kind in told for kind in _KINDS) != 1
        or set(told) - {*_KINDS, *_FURTHER}
    ):
        raise ValueError(
            "window is {tumbling: 1m}, {hopping: 10m, every: 1m}, {session: 5m} "
            "or {session: 5m, cut_every: 1d}"
        )
    kind = next(kind for kind in _KINDS if kind in told)
    made: dict[str, Any] = {"kind": kind, "size_ms": to_ms(told[kind])}
    return made | {f"{name}_ms": to_ms(told[name]) for name in _FURTHER if name in told}


def shown(aggregation: Aggregation) -> str:
    """Return an aggregation in a line.

    >>> from millrace_apps.aggregates.definition import Windows
    >>> shown(Aggregation("spend", "fraud.transactions", Windows("tumbling", 60_000), {"n": "count"}))
    'n=count of fraud.transactions, tumbling 1m'
    """
    windows = aggregation.windows
    columns = ", ".join(f"{column}={text}" for column, text in aggregation.aggregates.items())
    every = "" if windows.every_ms is None else f" every {format_duration(windows.every_ms)}"
    if windows.cut_every_ms is not None:
        every = f" cut every {format_duration(windows.cut_every_ms)}"
    by = f" by {', '.join(aggregation.key)}" if aggregation.key else ""
    where = f" where {aggregation.where}" if aggregation.where else ""
    size = format_duration(windows.size_ms)
    return f"{columns} of {aggregation.source}{by}{where}, {windows.kind} {size}{every}"
