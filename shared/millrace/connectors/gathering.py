"""Few files of many, in the order in which they were written, and with when that was.

A stream appends a file per batch, and whoever writes or reads the table looks at all of them. The library's
own compaction puts rows in an order of its own and dates them anew; here files that stand one behind the
other become one that is dated as the last of them, and whose footer says how many rows came when. So who asks
for the newest rows, for rates, or for what was written since some time is told the same as before.

It is committed only where nothing else has been since the files were read, or appends alone: what somebody
else has compacted or deleted meanwhile is left as that somebody left it.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

#: What the names of files begin with that were made of others.
_PREFIX: Final = "gathered-"
#: Keys of a file's footer: when its rows were written, and of which files it was made.
_WRITTEN: Final = b"millrace.written"
_SOURCES: Final = b"millrace.sources"
#: A footer tells so many times apart at most; of more, two that stand beside each other become the later one.
_MOST_TIMES: Final = 8_192
#: Rows of a row group, and their bytes in memory: more are not held at once.
_GROUP_ROWS: Final = 65_536
_GROUP_BYTES: Final = 64 << 20
#: How often a commit is tried that appends get in the way of.
_ATTEMPTS: Final = 20
#: What may be asked of readers of a table whose files are all there is to its rows.
_PLAIN_FEATURES: Final = frozenset({"timestampNtz"})


class Written(NamedTuple):
    """Rows of a file that were written at once.

    Attributes:
        at_ms: When, UTC milliseconds.
        rows: How many.
    """

    at_ms: int
    rows: int


class Source(NamedTuple):
    """A file that another one was made of.

    Attributes:
        name: Its name, in the table's folder.
        rows: Its rows, which stand behind those of the sources before it.
    """

    name: str
    rows: int


@dataclass(frozen=True)
class TableFile:
    """A file of a table, as its log has it.

    Attributes:
        name: Its path in the table's folder.
        size: Bytes.
        at_ms: When it was written, UTC milliseconds.
        statistics: What the log says of its columns: ``num_records``, ``min.a``, ``null_count.a`` ….
    """

    name: str
    size: int
    at_ms: int
    statistics: dict[str, Any]


def is_gathered(path: str | Path) -> bool:
    """Return whether a file was made of others by :func:`gather_files`.

    Args:
        path: Where it is.
    """
    return Path(path).name.startswith(_PREFIX)


def written_of(path: str | Path) -> list[Written]:
    """Return when the rows of a file that was made of others were written, in their order.

    Args:
        path: Where it is.

    Raises:
        FileNotFoundError: It is gone.
    """
    return [Written(*one) for one in _footer(path, _WRITTEN)]


def sources_of(path: str | Path) -> list[Source]:
    """Return the files that a file was made of, in the order of their rows.

    Args:
        path: Where it is.

    Raises:
        FileNotFoundError: It is gone.
    """
    return [Source(*one) for one in _footer(path, _SOURCES)]


def _footer(path: str | Path, key: bytes) -> list[list[Any]]:
    import pyarrow.parquet as pq

    found: list[list[Any]] = json.loads((pq.read_metadata(path).metadata or {}).get(key, b"[]"))
    return found


def is_plain(table: DeltaTable) -> bool:
    """Return whether a table's files are all there is to its rows.

    Not so where rows are deleted by a vector beside their file, columns have other names in the files, or
    some of them stand in the names of folders.

    Args:
        table: The table.
    """
    protocol, about = table.protocol(), table.metadata()
    return (
        set(protocol.reader_features or ()) <= _PLAIN_FEATURES
        and about.configuration.get("delta.columnMapping.mode", "none") == "none"
        and not about.partition_columns
    )


def files_of(table: DeltaTable) -> list[TableFile]:
    """Return a table's files in the order in which they were written.

    Args:
        table: The table.
    """
    import pyarrow as pa

    rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    found = [TableFile(r.pop("path"), r.pop("size_bytes"), r.pop("modification_time"), r) for r in rows]
    return sorted(found, key=lambda file: (file.at_ms, file.name))


def runs_below(
    files: Sequence[TableFile], size: int, target: int, *, in_order: bool = True
) -> list[list[TableFile]]:
    """Return which files should become one: small ones, each run as many as make a file of about some size.

    Args:
        files: A table's files in the order of writing.
        size: Files below it are small, bytes.
        target: Size of the files that are made, bytes.
        in_order: Whether nothing may stand between the files of a run; else whatever is small.
    """
    runs: list[list[TableFile]] = [[]]
    full = 0
    for file in files:
        if full >= target or (in_order and file.size >= size):
            runs.append([])
            full = 0
        if file.size < size:
            runs[-1].append(file)
            full += file.size
    return [run for run in runs if len(run) > 1]


def gather_files(table: DeltaTable, folder: Path, files: Sequence[TableFile]) -> bool:
    """Make one file of several, for who is alone at the table; return whether that was done.

    Args:
        table: The table, :func:`is_plain`; it is brought to the version that is left.
        folder: Where it is.
        files: Files of it in the order of writing.

    Raises:
        OSError: The file cannot be written.
        pyarrow.ArrowInvalid: One of the files has rows that are not of the table's columns.
    """
    import pyarrow as pa

    name = f"{_PREFIX}{uuid.uuid4()}.parquet"
    # Readers and vacuum leave names with a line in front alone; one that is cut off is found by it.
    made = folder / f"_{name}"
    is_done = False
    for torn in folder.glob(f"_{_PREFIX}*"):
        torn.unlink(missing_ok=True)
    try:
        rows = _write(made, folder, files, pa.schema(table.schema().to_arrow()))
        if rows is not None:
            made.replace(folder / name)
            is_done = _commit(table, folder, name, rows, files)
    finally:
        made.unlink(missing_ok=True)
        if not is_done and not _is_used(table, name):
            (folder / name).unlink(missing_ok=True)
    return is_done


def _is_used(table: DeltaTable, name: str) -> bool:
    """Return whether a file is the table's, or may be: what failed may have been behind its commit."""
    from deltalake.exceptions import DeltaError

    try:
        table.update_incremental()
        return name in _names(table)
    except (DeltaError, OSError):
        return True


def _names(table: DeltaTable) -> set[str]:
    import pyarrow as pa

    return {*pa.table(table.get_add_actions())["path"].to_pylist()}


def _write(into: Path, folder: Path, files: Sequence[TableFile], schema: pa.Schema) -> int | None:
    """Write the rows of files behind each other; return how many, ``None`` where a file is gone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    written: list[Written] = []
    sources: list[Source] = []
    waits: list[pa.Table] = []
    count = held = 0
    with pq.ParquetWriter(into, schema, compression="zstd") as writer:
        for file in files:
            rows = 0
            try:
                for part in _parts(folder / file.name):
                    rows += part.num_rows
                    waits.append(as_columns(part, schema))
                    count, held = count + part.num_rows, held + part.nbytes
                    if count >= _GROUP_ROWS or held >= _GROUP_BYTES:
                        writer.write_table(pa.concat_tables(waits))
                        waits.clear()
                        count = held = 0
                times = written_of(folder / file.name) if is_gathered(file.name) else []
            except FileNotFoundError:
                return None
            written += times or [Written(file.at_ms, rows)]
            sources.append(Source(file.name, rows))
        if waits:
            writer.write_table(pa.concat_tables(waits))
        said = {_WRITTEN: json.dumps(_coarser(written)), _SOURCES: json.dumps(sources)}
        writer.add_key_value_metadata(said)
    return sum(source.rows for source in sources)


def _parts(path: Path) -> Iterator[pa.Table]:
    """Yield the rows of a file, a row group after the other."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group)


def _coarser(written: list[Written]) -> list[Written]:
    """Return times, each two as the later one until a footer can hold them."""
    while len(written) > _MOST_TIMES:
        written = [
            Written(pair[-1].at_ms, sum(one.rows for one in pair))
            for pair in (written[place : place + 2] for place in range(0, len(written), 2))
        ]
    return written


def _commit(table: DeltaTable, folder: Path, name: str, rows: int, files: Sequence[TableFile]) -> bool:
    """Have one file stand for others; not where one of these is not the table's any more."""
    from deltalake import CommitProperties
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction, RemoveAction

    # Whoever has been there since is looked at: the library does not see that two have compacted one file.
    alone = CommitProperties(max_commit_retries=0, custom_metadata={"millrace": "gathered"})
    added = AddAction(
        path=name,
        size=(folder / name).stat().st_size,
        partition_values={},
        modification_time=files[-1].at_ms,
        data_change=False,
        stats=_statistics(rows, [file.statistics for file in files]),
    )
    now = time.time_ns() // 1_000_000
    removed = [RemoveAction(file.name, False, now, file.size) for file in files]
    schema = table.schema()
    for _ in range(_ATTEMPTS):
        if table.schema() != schema or not {file.name for file in files} <= _names(table):
            return False
        try:
            table.create_write_transaction([*removed, added], "append", schema, commit_properties=alone)
        except CommitFailedError:
            table.update_incremental()
        else:
            table.update_incremental()
            return True
    return False


def _statistics(rows: int, of_files: Sequence[dict[str, Any]]) -> str:
    """Return what the log says of a file that has the rows of others: what is known of all of them."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    known = set.intersection(*({k for k, v in one.items() if v is not None} for one in of_files))
    for key in known:
        kind, _, column = key.partition(".")
        values = [one[key] for one in of_files]
        if kind == "null_count":
            nulls[column] = sum(values)
        elif kind in ("min", "max") and all(map(_is_told, values)):
            into, of = (least, min) if kind == "min" else (greatest, max)
            into[column] = _as_json(of(values))
    nulls = {column: count for column, count in nulls.items() if "." not in column}
    bounds = {column for column in least if column in greatest and "." not in column}
    return json.dumps(
        {
            "numRecords": rows,
            "minValues": {column: least[column] for column in bounds},
            "maxValues": {column: greatest[column] for column in bounds},
            "nullCount": nulls,
        }
    )


def _is_told(value: Any) -> bool:
    """Return whether a bound can be said in the log."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int | str | datetime | date) and not isinstance(value, bool)


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value


def as_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows, an earlier version of the app's too, with the columns that their table has now.

    Args:
        rows: The rows.
        schema: The table's columns.

    Raises:
        pyarrow.ArrowInvalid: A value is not of its column's type.
    """
    import pyarrow as pa

    return pa.table(
        [
            rows[column.name].cast(column.type)
            if column.name in rows.column_names
            else pa.nulls(rows.num_rows, column.type)
            for column in schema
        ],
        schema=schema,
    )


def times_of(written: Sequence[Written]) -> pa.Array:
    """Return when each row of a file was written, UTC milliseconds.

    Args:
        written: What its footer says.

    Example:
        >>> times_of([Written(1_000, 2), Written(2_000, 1)]).to_pylist()
        [1000, 1000, 2000]
    """
    import numpy as np
    import pyarrow as pa

    return pa.array(np.repeat([one.at_ms for one in written], [one.rows for one in written]), pa.int64())
