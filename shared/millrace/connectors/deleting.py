"""Rows deleted from a table so that those that stay are as old as before.

The library's DELETE writes what stays of a file anew, dated by now and without what its footer said: of a
file that was gathered those are the rows of hours, and who asks for the newest rows, for rates or for what
was written since some time would be told of them. Here each file becomes one without the rows, dated as the
last of those that stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.connectors.bounds import statistics_of
from millrace.connectors.gathering import (
    TableFile,
    Written,
    as_columns,
    files_of,
    is_gathered,
    is_used,
    new_name,
    parts_of,
    replace,
    settle,
    times_of,
    told,
    written_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

#: Rows → of each whether it is to go; null is not.
Chosen = Callable[["pa.Table"], "pa.ChunkedArray"]
#: When a row was written, beside the columns of its file.
_AT: Final = "_millrace_written_ms"


def delete_chosen(
    table: DeltaTable,
    folder: Path,
    chosen: Chosen,
    columns: Sequence[str],
    may_have: Callable[[TableFile], bool] = lambda _: True,
) -> int:
    """Delete rows, for who is alone at the table; return how many.

    Args:
        table: The table, one whose files are all there is to its rows; it is brought to the version that is
            left.
        folder: Where it is.
        chosen: Says which.
        columns: Columns that it looks at.
        may_have: Whether a file may have such rows, by what the log says of it.

    Raises:
        CommitFailedError: Somebody else has been at the same files meanwhile.
    """
    import pyarrow as pa
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import RemoveAction

    schema = pa.schema(table.schema().to_arrow())
    looked_at = pa.schema([schema.field(name) for name in columns])
    files: list[TableFile] = []
    actions: list[AddAction | RemoveAction] = []
    made: list[str] = []
    gone = 0
    is_done = False
    now = time.time_ns() // 1_000_000
    try:
        for file in filter(may_have, files_of(table)):
            are = [
                _are(chosen, as_columns(part, looked_at)) for part in parts_of(folder / file.name, columns)
            ]
            count = sum(one.true_count for one in are)
            if not count:
                continue
            gone += count
            files.append(file)
            actions.append(RemoveAction(file.name, True, now, file.size))
            if count < sum(map(len, are)):
                made.append(new_name())
                actions.append(_without(folder, file, schema, chosen, made[-1]))
        is_done = not files or replace(table, files, actions, what="deleted")
        if not is_done:
            raise CommitFailedError(f"somebody else has changed files of {folder} meanwhile")
    finally:
        for name in made:
            (folder / f"_{name}").unlink(missing_ok=True)
            if not is_done and not is_used(table, name):
                (folder / name).unlink(missing_ok=True)
    return gone


def _are(chosen: Chosen, rows: pa.Table) -> pa.BooleanArray:
    """Return of each row whether it is chosen."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pa.chunked_array([pc.fill_null(part, False) for part in chosen(rows).chunks], pa.bool_())
    return found.combine_chunks()


def _without(folder: Path, file: TableFile, schema: pa.Schema, chosen: Chosen, name: str) -> AddAction:
    """Write a file without its chosen rows, and return what the log is told of it."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from deltalake.transaction import AddAction

    written: list[Written] = []
    made = folder / f"_{name}"
    with pq.ParquetWriter(made, schema, compression="zstd") as writer:
        for rows in _dated(folder, file):
            columns = as_columns(rows, schema)
            stay = pc.invert(_are(chosen, columns))
            kept = columns.filter(stay)
            if kept.num_rows:
                writer.write_table(kept)
            times = rows[_AT].filter(stay).to_pylist()
            written += [Written(at_ms, len([*same])) for at_ms, same in groupby(times)]
        writer.add_key_value_metadata(told(written))
    settle(made, folder / name)
    size = (folder / name).stat().st_size
    return AddAction(name, size, {}, written[-1].at_ms, True, statistics_of(folder / name, [file.statistics]))


def _dated(folder: Path, file: TableFile) -> Iterator[pa.Table]:
    """Yield the rows of a file, a row group after the other, each with when it was written."""
    import pyarrow as pa

    times = times_of(written_of(folder / file.name)) if is_gathered(file.name) else None
    place = 0
    for rows in parts_of(folder / file.name):
        count = rows.num_rows
        at = (
            pa.repeat(pa.scalar(file.at_ms, pa.int64()), count)
            if times is None
            else times.slice(place, count)
        )
        yield rows.append_column(_AT, at)
        place += count
