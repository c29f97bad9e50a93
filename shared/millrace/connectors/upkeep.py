"""Upkeep of Delta tables: what they consist of, making few files of many, removing what is not needed.

A stream appends a file per batch and table. Readers open each of them, so a table is made of larger files now
and then; what was replaced stays for readers of earlier versions until it is removed. Both are safe
beside a running query.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

from millrace.connectors.deleting import Chosen, delete_chosen
from millrace.connectors.gathering import (
    TableFile,
    files_of,
    gather_files,
    is_gathered,
    is_plain,
    names_of,
    runs_below,
    torn_files,
)
from millrace.errors import UserError
from millrace.time.durations import format_duration

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: Files smaller than this are made into larger ones, of about that size, bytes.
TARGET_BYTES = 128 * 1024 * 1024
#: A table that a job writes is made of fewer files where it has more than so many between two of these sizes,
#: bytes.
LEVELS_BYTES = (1 << 20, 16 << 20, TARGET_BYTES)
_LEVELS = tuple(pairwise((0, *LEVELS_BYTES)))
MANY_FILES = 16
#: Of many files a run of one in so many, or of less, is too short to be gathered for itself.
_SHORT = 16
#: A file that the log knows nothing of may be of a write that is not committed yet, for so long, ms.
_UNCOMMITTED_MS = 24 * 3_600_000
#: How often something is tried that the job's merges get in the way of.
_ATTEMPTS = 5
_HOUR_MS = 3_600_000
Done = TypeVar("Done")
#: Event time of a row, in all tables that a stream writes.
TIME = "_event_time"


class TableUnreadable(UserError):
    """A table that cannot be opened."""


@dataclass(frozen=True)
class TableState:
    """What a table consists of.

    Attributes:
        name: Its name.
        version: Its version.
        rows: Rows; 0 where its files do not say how many they have.
        files: Files of this version.
        size: Their bytes.
    """

    name: str
    version: int
    rows: int
    files: int
    size: int


@dataclass(frozen=True)
class Compacted:
    """What a compaction did.

    Attributes:
        name: The table.
        before: Files that were replaced.
        after: Files that replace them.
    """

    name: str
    before: int
    after: int


@dataclass(frozen=True)
class Vacuumed:
    """What was removed, or would be.

    Attributes:
        name: The table.
        files: Files.
        size: Their bytes.
    """

    name: str
    files: int
    size: int


@dataclass(frozen=True)
class Expired:
    """What was older than a table's rows are kept.

    Attributes:
        name: The table.
        before_ms: Rows of before this event time, UTC milliseconds.
        rows: How many.
        waiting: How many more a batch has left for the table that are not in it yet.
    """

    name: str
    before_ms: int
    rows: int
    waiting: int = 0


def find_tables(folder: Path, names: Iterable[str] = ()) -> list[Path]:
    """Return the folders of an app's tables.

    Args:
        folder: Where the tables are.
        names: Which; default all.

    Raises:
        UserError: One of the names is none of a table.
    """
    found = {log.parent.name: log.parent for log in sorted(folder.glob("*/_delta_log"))}
    missing = [name for name in names if name not in found]
    if missing:
        raise UserError(f"no table {', '.join(missing)} in {folder}; there is {', '.join(found) or 'none'}")
    return [found[name] for name in (names or found)]


def state_of(table: Path) -> TableState:
    """Return what a table consists of.

    Example:
        >>> state_of(Path("runs/fraud/tables/alerts"))  # doctest: +SKIP
        TableState(name='alerts', version=61, rows=512, files=61, size=801234)
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    opened = open_table(table)
    added = pa.table(opened.get_add_actions(flatten=True))
    rows = pc.sum(added["num_records"]).as_py() if "num_records" in added.column_names else 0
    size = pc.sum(added["size_bytes"]).as_py()
    return TableState(table.name, opened.version(), rows or 0, added.num_rows, size or 0)


def compact(table: Path, *, target_bytes: int = TARGET_BYTES) -> Compacted:
    """Make few files of many; rows, their order, when they were written and versions before stay.

    Args:
        table: The table.
        target_bytes: Size of the files that are made.
    """
    with alone(table):
        return beside_others(lambda: compacted(open_table(table), table, target_bytes))


def compacted(table: DeltaTable, folder: Path, target_bytes: int) -> Compacted:
    """Make few files of many, for who is :func:`alone` at the table, and say what was done.

    Args:
        table: The table; it is brought to the version that is left.
        folder: Where it is.
        target_bytes: Size of the files that are made.

    Raises:
        CommitFailedError: Somebody is in the way.
    """
    if not is_plain(table):  # the library knows what its rows are
        done = table.optimize.compact(target_size=target_bytes)
        return Compacted(folder.name, int(done["numFilesRemoved"]), int(done["numFilesAdded"]))
    runs = runs_below(files_of(table), target_bytes, target_bytes)
    gathered = [len(run) for run in runs if gather_files(table, folder, run)]
    return Compacted(folder.name, sum(gathered), len(gathered))


def gather(table: DeltaTable, folder: Path, *, many: int = MANY_FILES, in_order: bool = False) -> int:
    """Make few files of many small ones where there are too many, and say how many are gone.

    A merge opens every file of its table that may have a row of its batch, and leaves one more behind: with
    some hundreds of a few rows each, one row takes a third of a second. An append looks at what the log says
    of all of them. Files are gathered by size, those up to 1 MiB first, so that large ones are not written
    anew with every few small ones.

    Args:
        table: The table; it is brought to the version that it leaves.
        folder: Where it is. Nothing is done while somebody else compacts it.
        many: So many files of about one size are few.
        in_order: Whether rows stay in the order of writing, as they do in a table that is appended to.
    """
    if len(table.file_uris()) <= many:
        return 0
    with contextlib.suppress(BlockingIOError, FileNotFoundError), alone(folder, wait=False):
        table.update_incremental()
        if not is_plain(table):
            return 0
        sizes = sizes_of(table)
        if all(sum(least <= size < target for size in sizes) <= many for least, target in _LEVELS):
            return 0
        # One at a time, since who brings rows into the table waits for it.
        run = next_run(files_of(table), many=many, in_order=in_order)
        return len(run) - 1 if run and gather_files(table, folder, run) else 0
    return 0


def next_run(files: Sequence[TableFile], *, many: int, in_order: bool) -> list[TableFile]:
    """Return which files should become one next; none where there are few of each size.

    Where larger files stand between most of the small ones, so that more come than go, those become one with
    them.

    Args:
        files: A table's files in the order of writing.
        many: So many files of about one size are few.
        in_order: Whether rows stay in that order.
    """
    least = 0
    for target in LEVELS_BYTES:
        if sum(least <= file.size < target for file in files) <= many:
            least = target
            continue
        for run in runs_below(files, target, TARGET_BYTES, in_order=in_order):
            if len(run) > many // _SHORT:
                return run
    return []


@contextlib.contextmanager
def alone(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Be the only one of this machine who compacts a table: of two at once both would leave its rows.

    Args:
        folder: Where the table is.
        wait: Whether to wait for whoever is at it.

    Raises:
        OSError: Somebody is at it, or there is no such folder here.
    """
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def sizes_of(table: DeltaTable) -> list[int]:
    """Return the sizes of a table's files, bytes."""
    import pyarrow as pa

    return list(pa.table(table.get_add_actions(flatten=True))["size_bytes"].to_pylist())


def vacuum(table: Path, *, keep_ms: int, dry_run: bool = False) -> Vacuumed:
    """Remove files that no version of the last ``keep_ms`` milliseconds has.

    Args:
        table: The table.
        keep_ms: How long replaced files are kept; readers and savepoints of earlier versions need them.
        dry_run: Only say what would be removed.

    Raises:
        UserError: The time is no whole hours.
    """
    if keep_ms % _HOUR_MS:
        raise UserError(f"files are kept for whole hours, not for {format_duration(keep_ms)}")

    def gone(*, dry: bool) -> list[str]:
        keep_h = keep_ms // _HOUR_MS
        return beside_others(
            lambda: open_table(table).vacuum(keep_h, dry_run=dry, enforce_retention_duration=False)
        )

    with contextlib.ExitStack() as held:
        is_alone = False
        with contextlib.suppress(BlockingIOError):
            held.enter_context(alone(table, wait=False))
            is_alone = True
        unlisted = _unlisted(table, keep_ms, is_alone=is_alone)
        replaced = [table / file for file in gone(dry=True)]
        sizes = [file.stat().st_size for file in {*replaced, *unlisted} if file.exists()]
        if not dry_run:
            gone(dry=False)
            for file in unlisted:
                file.unlink(missing_ok=True)
    return Vacuumed(table.name, len(sizes), sum(sizes))


def _unlisted(table: Path, keep_ms: int, *, is_alone: bool) -> list[Path]:
    """Return files that no version of the last while has, and of which the state of the log says nothing.

    Its checkpoints leave out what was replaced longer ago than a week, and a write that was cut off has never
    been in it.
    """
    opened = open_table(table)
    if not is_plain(opened):
        return []
    names = names_of(opened)
    replaced = opened.vacuum(0, dry_run=True, enforce_retention_duration=False)
    listed = {*names, *map(unquote, names), *replaced}
    unknown = [file for file in table.glob("*.parquet") if file.name not in listed]
    now_ms = time.time_ns() // 1_000_000
    needed = _removed_since(table, now_ms - keep_ms) if unknown else set()
    begun_ms = now_ms - max(keep_ms, _UNCOMMITTED_MS)
    # Who is alone at the table gathers nothing.
    torn = torn_files(table) if is_alone else []
    return torn + [
        file
        for file in unknown
        if file.name not in needed and ((is_alone and is_gathered(file)) or _written_ms(file) < begun_ms)
    ]


def _removed_since(table: Path, since_ms: int) -> set[str]:
    """Return the files that commits since a time have taken out of a table."""
    found: set[str] = set()
    with contextlib.suppress(FileNotFoundError):  # the log is cleaned up behind us: those before are older
        for commit in sorted((table / "_delta_log").glob("*.json"), reverse=True):
            if _written_ms(commit) < since_ms:
                break
            lines = [line for line in commit.read_text().splitlines() if line.startswith('{"remove"')]
            found |= {unquote(json.loads(line)["remove"]["path"]) for line in lines}
    return found


def _written_ms(file: Path) -> float:
    """Return when a file was written, UTC milliseconds; of one that is gone meanwhile: never."""
    try:
        return file.stat().st_mtime_ns / 1_000_000
    except FileNotFoundError:
        return math.inf


def expire(table: Path, *, before_ms: int, dry_run: bool = False) -> Expired:
    """Delete the rows whose event time is before a time; files of earlier versions have them until `vacuum`.

    Args:
        table: The table.
        before_ms: The time, UTC milliseconds.
        dry_run: Only say how many there are.

    Raises:
        UserError: The table's rows have no event time.
    """
    import pyarrow.compute as pc

    opened = open_table(table)
    if TIME not in {field.name for field in opened.schema().fields}:
        raise UserError(f"{table.name} has no column {TIME}: its rows cannot expire")
    before = datetime.fromtimestamp(before_ms / 1000, UTC)
    if dry_run:
        rows = opened.to_pyarrow_dataset().count_rows(filter=pc.field(TIME) < before)
        return Expired(table.name, before_ms, int(rows))

    def may_have(file: TableFile) -> bool:
        least = file.statistics.get(f"min.{TIME}")
        return least is None or least < before

    return Expired(
        table.name,
        before_ms,
        delete(
            table,
            lambda rows: pc.less(rows[TIME], before),
            [TIME],
            condition=f"{TIME} < '{before.isoformat()}'",
            may_have=may_have,
        ),
    )


def delete(
    table: Path,
    chosen: Chosen,
    columns: Sequence[str],
    *,
    condition: str,
    may_have: Callable[[TableFile], bool] = lambda _: True,
) -> int:
    """Delete rows; those that stay are as old as before. Return how many; again where a merge got in the way.

    Args:
        table: The table.
        chosen: Says which.
        columns: Columns that it looks at.
        condition: The same in SQL, for tables that are more than their files.
        may_have: Whether a file may have such rows, by what the log says of it.

    Raises:
        CommitFailedError: Merges have got in its way each time.
    """

    def once() -> int:
        opened = open_table(table)
        if not is_plain(opened):
            return int(opened.delete(condition)["num_deleted_rows"])
        return delete_chosen(opened, table, chosen, columns, may_have)

    with alone(table):
        return beside_others(once)


def beside_others(do: Callable[[], Done]) -> Done:
    """Do what a merge may get in the way of, again where one did.

    Args:
        do: Opens the table anew each time, and does it.

    Raises:
        CommitFailedError: Merges have got in its way each time.
    """
    from deltalake.exceptions import CommitFailedError

    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(CommitFailedError):
            return do()
    return do()


def open_table(table: Path) -> DeltaTable:
    """Return a table as it is now.

    Args:
        table: Its folder.

    Raises:
        TableUnreadable: Its first commit is not there yet, or its log is damaged.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return DeltaTable(str(table))
    except DeltaError as error:
        why = str(error).partition("\n")[0].partition(", errors:")[0]
        raise TableUnreadable(f"table {table.name} cannot be read: {why}") from None
