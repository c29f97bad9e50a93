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
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.connectors.bounds import statistics_of

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction
    from pyarrow.parquet import ParquetFile

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
    return written_in(_footer(path))


def written_in(footer: Mapping[bytes, bytes]) -> list[Written]:
    """Return the same of a footer that was read.

    Args:
        footer: Its keys and values.
    """
    return [Written(*one) for one in json.loads(footer.get(_WRITTEN, b"[]"))]


def sources_of(path: str | Path) -> list[Source]:
    """Return the files that a file was made of, in the order of their rows.

    Args:
        path: Where it is.

    Raises:
        FileNotFoundError: It is gone.
    """
    return [Source(*one) for one in json.loads(_footer(path).get(_SOURCES, b"[]"))]


def _footer(path: str | Path) -> Mapping[bytes, bytes]:
    import pyarrow.parquet as pq

    found: Mapping[bytes, bytes] = pq.read_metadata(path).metadata or {}
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

    name = new_name()
    # Readers and vacuum leave names with a line in front alone; one that is cut off is found by it.
    made = folder / f"_{name}"
    is_done = False
    for torn in torn_files(folder):
        torn.unlink(missing_ok=True)
    try:
        if _write(made, folder, files, pa.schema(table.schema().to_arrow())):
            settle(made, folder / name)
            is_done = _commit(table, folder, name, files)
    finally:
        made.unlink(missing_ok=True)
        if not is_done and not is_used(table, name):
            (folder / name).unlink(missing_ok=True)
    return is_done


def new_name() -> str:
    """Return the name of a file that is made of others."""
    return f"{_PREFIX}{uuid.uuid4()}.parquet"


def settle(made: Path, to: Path) -> None:
    """Give a file that was written its name, once it is on the disk: rows that are there for long are in it.

    Args:
        made: The file.
        to: Where it is to be.
    """
    with made.open("rb") as file:
        os.fsync(file.fileno())
    made.replace(to)


def torn_files(folder: Path) -> list[Path]:
    """Return what a gathering that was cut off has left half written.

    Args:
        folder: Where the table is.
    """
    return [*folder.glob(f"_{_PREFIX}*")]


def is_used(table: DeltaTable, name: str) -> bool:
    """Return whether a file is the table's, or may be: what failed may have been behind its commit.

    Args:
        table: The table; it is brought to its newest version.
        name: The file's name, as the log has it.
    """
    from deltalake.exceptions import DeltaError

    try:
        table.update_incremental()
        return name in names_of(table)
    except (DeltaError, OSError):
        return True


def names_of(table: DeltaTable) -> set[str]:
    """Return the names of a table's files, as its log has them.

    Args:
        table: The table.
    """
    import pyarrow as pa

    return {*pa.table(table.get_add_actions())["path"].to_pylist()}


def _write(into: Path, folder: Path, files: Sequence[TableFile], schema: pa.Schema) -> bool:
    """Write the rows of files behind each other; return whether all of these are there."""
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
                for part in parts_of(folder / file.name):
                    rows += part.num_rows
                    waits.append(as_columns(part, schema))
                    count, held = count + part.num_rows, held + part.nbytes
                    if count >= _GROUP_ROWS or held >= _GROUP_BYTES:
                        writer.write_table(pa.concat_tables(waits))
                        waits.clear()
                        count = held = 0
                times = written_of(folder / file.name) if is_gathered(file.name) else []
            except FileNotFoundError:
                return False
            written += times or [Written(file.at_ms, rows)]
            sources.append(Source(file.name, rows))
        if waits:
            writer.write_table(pa.concat_tables(waits))
        writer.add_key_value_metadata({**told(written), _SOURCES: json.dumps(sources)})
    return True


def parts_of(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the rows of a file, a row group after the other.

    Args:
        path: Where it is.
        columns: Which columns; those that it does not have are left out. Default all.
    """
    with open_file(path) as file:
        names = names_in(file, columns)
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=names)


def names_in(file: ParquetFile, columns: Sequence[str] | None) -> list[str] | None:
    """Return which of some columns a file has; ``None``: all are wanted.

    Args:
        file: The file.
        columns: The columns, in order; ``None``: all.
    """
    return None if columns is None else [name for name in columns if name in file.schema_arrow.names]


def open_file(path: str | Path) -> ParquetFile:
    """Return a file of a table, opened; Spark writes times in a way in which few years have nanoseconds.

    Args:
        path: Where it is.

    Raises:
        FileNotFoundError: It is gone.
    """
    import pyarrow.parquet as pq

    return pq.ParquetFile(path, coerce_int96_timestamp_unit="us")


def told(written: list[Written]) -> dict[bytes, str]:
    """Return what a footer says of when its rows were written.

    Args:
        written: When they were; of more than a footer holds each two become the later one.
    """
    while len(written) > _MOST_TIMES:
        written = [
            Written(pair[-1].at_ms, sum(one.rows for one in pair))
            for pair in (written[place : place + 2] for place in range(0, len(written), 2))
        ]
    return {_WRITTEN: json.dumps(written)}


def _commit(table: DeltaTable, folder: Path, name: str, files: Sequence[TableFile]) -> bool:
    """Have one file stand for others; not where one of these is not the table's any more."""
    from deltalake.transaction import AddAction, RemoveAction

    added = AddAction(
        path=name,
        size=(folder / name).stat().st_size,
        partition_values={},
        modification_time=files[-1].at_ms,
        data_change=False,
        stats=statistics_of(folder / name, [file.statistics for file in files]),
    )
    now = time.time_ns() // 1_000_000
    removed = [RemoveAction(file.name, False, now, file.size) for file in files]
    return replace(table, files, [*removed, added], what="gathered")


def replace(
    table: DeltaTable, files: Sequence[TableFile], actions: Sequence[AddAction | RemoveAction], *, what: str
) -> bool:
    """Commit what takes files out of a table; return whether they all were still its files.

    Args:
        table: The table, :func:`is_plain`; it is brought to the version that is left.
        files: The files.
        actions: What is committed.
        what: What is done, in a word, for who reads the log.
    """
    from deltalake import CommitProperties
    from deltalake.exceptions import CommitFailedError

    # Whoever has been there since is looked at: the library does not see that two have compacted one file.
    alone = CommitProperties(max_commit_retries=0, custom_metadata={"millrace": what})
    schema = table.schema()
    for _ in range(_ATTEMPTS):
        if not is_plain(table) or table.schema() != schema:
            return False
        if not {file.name for file in files} <= names_of(table):
            return False
        try:
            table.create_write_transaction([*actions], "append", schema, commit_properties=alone)
        except CommitFailedError:
            table.update_incremental()
        else:
            table.update_incremental()
            return True
    return False


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
