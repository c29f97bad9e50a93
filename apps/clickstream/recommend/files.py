"""Sessions of other people's data: clicks with times, or lists of items in order.

Clicks are rows of Parquet, or lines of JSON as OTTO has published its sessions, with times in ms
(https://github.com/otto-de/recsys-dataset)::

    {"session": 0, "events": [{"aid": 5, "ts": 1659304800025, "type": "clicks"}]}
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from millrace.dead_letters import NOT_JSON
from millrace_apps.clickstream.evaluation.snowplow_files import BadFile

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns of a file of clicks."""

    session: str = "session_id"
    item: str = "item_id"
    time: str = "event_time"


@dataclass(frozen=True, slots=True)
class Session:
    """A session: its clicks, oldest first.

    Args:
        name: What the file calls it.
        items: What was looked at, repeats included.
        times: When, UTC ms; empty where the file knows none.
    """

    name: Hashable
    items: list[Hashable]
    times: list[int]


def read_sessions(paths: Sequence[Path], columns: Columns) -> list[Session]:
    """Read the sessions of files of clicks, by the time of their last click.

    A session that stands in several files is one session; clicks of one instant stay in the file's order.

    Args:
        paths: Parquet files, a row per click; or, by their names ``….jsonl``, OTTO's, of which clicks count.
        columns: What the columns of Parquet are called. Times are timestamps, or whole UTC ms.

    Returns:
        The sessions; of two that end at once the one that comes first in the files comes first.

    Raises:
        BadFile: A file is no Parquet, has other columns or rows without a value; or a line is no session.
    """
    import pandas as pd

    read = [_lines(path) if path.suffix == _LINES else _clicks(path, columns) for path in paths]
    clicks = pd.concat(read, ignore_index=True)
    clicks = clicks.sort_values("at", kind="stable")
    grouped = clicks.groupby("session", sort=False)
    sessions = [
        Session(name, items, times)
        for name, items, times in zip(
            grouped.groups, grouped["item"].agg(list), grouped["at"].agg(list), strict=True
        )
    ]
    return sorted(sessions, key=lambda s: s.times[-1])


#: How names of files with a session a line end.
_LINES: Final = ".jsonl"


class _Event(msgspec.Struct):
    aid: int
    ts: int
    type: Literal["clicks", "carts", "orders"]


class _Line(msgspec.Struct):
    session: int
    events: list[_Event]


def _lines(path: Path) -> pd.DataFrame:
    import pandas as pd

    found, read = list[tuple[int, int, int]](), msgspec.json.Decoder(_Line).decode
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            told = read(line) if line.strip() else _Line(0, [])
        except NOT_JSON as error:
            raise BadFile(f"{path}, line {number}: {error}") from error
        found += [(told.session, one.aid, one.ts) for one in told.events if one.type == "clicks"]
    if not found:
        raise BadFile(f"{path} has no click")
    return pd.DataFrame(found, columns=["session", "item", "at"])


def _clicks(path: Path, columns: Columns) -> pd.DataFrame:
    import pandas as pd

    read = _table(path, (columns.session, columns.item, columns.time))
    times = read[columns.time]
    if pd.api.types.is_integer_dtype(times):
        at = times.astype("int64")
    elif pd.api.types.is_datetime64_any_dtype(times):
        at = pd.to_datetime(times, utc=True).astype("datetime64[ms, UTC]").astype("int64")
    else:
        raise BadFile(f"{path}: {columns.time} is {times.dtype}, neither a time nor whole ms")
    return pd.DataFrame({"session": read[columns.session], "item": read[columns.item], "at": at})


def _table(path: Path, names: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    try:
        read = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise BadFile(f"{path} cannot be read as Parquet: {error}") from error
    if missing := [name for name in names if name not in read.columns]:
        raise BadFile(
            f"{path} has no column {', '.join(missing)}; it has {', '.join(map(str, read.columns))}"
        )
    if read[list(names)].isna().any().any():
        raise BadFile(f"{path} has rows without a value in {', '.join(names)}")
    return read


def read_lists(path: Path, items: str) -> list[list[Hashable]]:
    """Read sessions that are lists of items, one a row, in the file's order: the oldest session first.

    Raises:
        BadFile: The file is no Parquet, or its column holds no lists.
    """
    return [_list(path, items, value) for value in _table(path, (items,))[items]]


def read_prefixes(path: Path, prefix: str, target: str) -> list[tuple[list[Hashable], Hashable]]:
    """Read queries: the items of a visit up to now, oldest first, and the one that came next.

    Raises:
        BadFile: The file is no Parquet, or has other columns.
    """
    read = _table(path, (prefix, target))
    return [
        (_list(path, prefix, items), next_)
        for items, next_ in zip(read[prefix], read[target].tolist(), strict=True)
    ]


def _list(path: Path, name: str, value: Any) -> list[Hashable]:
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise BadFile(f"{path}: {name} holds {value!r}, which is no list of items")
    return value.tolist() if hasattr(value, "tolist") else list(value)
