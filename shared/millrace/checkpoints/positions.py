"""Positions of a query's sinks: which batch each table has, and bringing it back to an earlier one.

A Delta table remembers the last batch of each writer in its log; a Parquet table of ``write_to`` has a
folder for each batch. Both names have the incarnation of the checkpoint in them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from millrace.connectors.gathering import is_gathered
from millrace.errors import UserError

#: Beside a checkpoint: the tables that its query writes, as ``write_to`` was given them.
TABLES_FILE = "tables.json"
#: Beside a restored checkpoint: records that tables have already, by their identities.
WRITTEN = "written"
_BATCH_FOLDER = re.compile(r"batch=([0-9a-f]+)-(\d+)")


class TablePositionError(UserError):
    """A table is not where a savepoint needs it to be."""


#: Folder beside a table's files with rows that wait to be merged; names that begin so are none of the table's
#: for whoever reads Delta tables.
WAITING = "_waiting"
#: Ends the name under which a commit that merges several batches has the number of the first one.
FIRST = "first"


@dataclass(frozen=True)
class TablePosition:
    """Where a table stood when a batch had been written.

    Attributes:
        format: ``delta`` or ``parquet``.
        version: Version of the Delta table; of a Parquet table the last batch.
        incarnation: Of the checkpoint that wrote it.
    """

    format: str
    version: int
    incarnation: str


def record_tables(root: Path, tables: Mapping[str, str]) -> None:
    """Note beside a checkpoint which tables its query writes.

    Args:
        root: The folder that holds the contract.
        tables: Path → format.
    """
    path = root / TABLES_FILE
    text = json.dumps({str(Path(p).absolute()): f for p, f in sorted(tables.items())}, indent=2) + "\n"
    if not path.exists() or path.read_text() != text:
        part = path.with_suffix(".part")
        part.write_text(text)
        part.replace(path)


def tables_of(root: Path) -> dict[Path, str]:
    """Return the tables that the query of a checkpoint writes: those that were noted, and an app's own."""
    found = {p.parent: "delta" for p in sorted((root / "tables").glob("*/_delta_log"))}
    path = root / TABLES_FILE
    if path.exists():
        found |= {Path(p): str(f) for p, f in json.loads(path.read_text()).items()}
    return found


def position_of(table: Path, table_format: str, incarnation: str, batch: int) -> TablePosition | None:
    """Return where a table stood after a batch, ``None`` for one that did not exist.

    Args:
        table: Its folder.
        table_format: ``delta`` or ``parquet``.
        incarnation: Of the checkpoint that writes it.
        batch: The batch.
    """
    if table_format != "delta":
        return TablePosition(table_format, batch, incarnation) if table.is_dir() else None
    version = None
    for number, actions in _log_backwards(table):
        version = number if version is None else version
        own = [txn for txn in actions if _is_of(txn, incarnation)]
        if any(int(txn["version"]) > batch for txn in own):
            if any(_is_first(txn) and int(txn["version"]) <= batch for txn in own):
                break  # several batches merged at once, this one among them: what is merged again stays so
            version = number - 1
        elif own:
            break
    return None if version is None or version < 0 else TablePosition("delta", version, incarnation)


def last_written(
    table: Path, table_format: str, incarnation: str, left: Iterable[tuple[str, int]] = ()
) -> int | None:
    """Return the last batch that a query has written to a table, or left for it; ``None`` for none.

    Args:
        table: Its folder.
        table_format: ``delta`` or ``parquet``.
        incarnation: Of the checkpoint that writes it.
        left: Which queries have left rows that wait for it, and with which batches.
    """
    if table_format != "delta":
        named = [_BATCH_FOLDER.fullmatch(folder.name) for folder in table.glob("batch=*")]
        return max((int(n[2]) for n in named if n and n[1] == incarnation), default=None)
    waits = [batch for app_id, batch in left if incarnation in app_id.split(":")]
    for _, actions in _log_backwards(table):
        written = [int(txn["version"]) for txn in actions if _is_of(txn, incarnation)]
        if written:
            return max([*written, *waits])
    return max(waits, default=None)


def has_moved(table: Path, kept: TablePosition) -> bool:
    """Return whether anything was written to a table since.

    Files that became fewer, and old ones that were removed, are nothing written.
    """
    if kept.format == "delta":
        later = [path for path in _commits_backwards(table) if int(path.stem) > kept.version]
        is_whole = not later or int(later[-1].stem) == kept.version + 1  # else the log was cleaned up since
        return not (is_whole and all(map(_rearranges, later)))
    return bool(_later_folders(table, kept))


def _rearranges(commit: Path) -> bool:
    """Return whether a commit of a Delta table leaves its rows as they are, and says nothing else of it."""
    actions = [json.loads(line) for line in commit.read_text().splitlines() if line]
    files = [a.get("add") or a.get("remove") for a in actions if "commitInfo" not in a]
    return all(file is not None and not file["dataChange"] for file in files)


def has_waiting(table: Path) -> bool:
    """Return whether batches have left rows for a table that are to be brought into it."""
    return any((table / WAITING).glob("*.arrow"))


def roll_back(table: Path, kept: TablePosition) -> str:
    """Bring a table back to where it stood; return what was done in a line.

    Raises:
        TablePositionError: The version is not kept any more, or the Delta library is missing.
    """
    if kept.format == "delta":
        try:
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError
        except ImportError as error:
            raise TablePositionError(
                "rolling Delta tables back needs the apps extra: pip install 'millrace[apps]'"
            ) from error
        try:
            done = DeltaTable(str(table)).restore(kept.version)
        except (DeltaError, OSError) as error:
            raise TablePositionError(
                f"{table} cannot be brought back to version {kept.version}: {error}"
            ) from error
        return f"{table}: back at version {kept.version} ({done.get('numRemovedFile', 0)} files taken out)"
    later = _later_folders(table, kept)
    for folder in later:
        shutil.rmtree(folder)
    return f"{table}: {len(later)} batches after {kept.version} removed"


def forget_waiting(table: Path) -> str:
    """Remove what batches have left for a table, after where it is brought to; return what was done."""
    files = len(list((table / WAITING).glob("*.arrow")))
    shutil.rmtree(table / WAITING, ignore_errors=True)
    return f"{table}: {files} files of rows that waited for it removed"


def ids_written_after(table: Path, kept: TablePosition, waits: Iterable[Any] = ()) -> set[str]:
    """Return the identities of the records that were written to a table since, or left for it.

    Args:
        table: Its folder.
        kept: Where it stood.
        waits: Rows that wait for it, Arrow tables; they are looked at first, since they may come into the
            table meanwhile.

    Raises:
        TablePositionError: Some have none, or the table's log does not reach back so far: whether they would
            come again cannot be told.
    """
    import pyarrow.parquet as pq

    columns = [rows.column("_event_id") for rows in waits]
    for file in _files_after(table, kept):
        columns.append(pq.read_table(file, columns=["_event_id"], partitioning=None).column("_event_id"))
    found: set[str] = set()
    for ids in columns:
        if ids.null_count:
            raise TablePositionError(
                f"{table} has records without an _event_id (their source has no source_id), so what is "
                "missing cannot be told: use --rollback"
            )
        found.update(ids.to_pylist())
    return found


def _files_after(table: Path, kept: TablePosition) -> list[Path]:
    """Return the Parquet files that came into a table since."""
    if kept.format != "delta":
        return [file for folder in _later_folders(table, kept) for file in sorted(folder.glob("*.parquet"))]
    files = []
    later = [path for path in _commits_backwards(table) if int(path.stem) > kept.version]
    if later and int(later[-1].stem) != kept.version + 1:
        raise TablePositionError(
            f"the log of {table} does not reach back to version {kept.version} any more "
            "(delta.logRetentionDuration): what was written since cannot be told, use --rollback"
        )
    for path in later:
        actions = [json.loads(line) for line in path.read_text().splitlines() if line.startswith('{"add"')]
        files += [table / unquote(a["add"]["path"]) for a in actions]
    # What is gone was vacuumed: a compaction, which came after it, has its records in another file.
    return [file for file in files if file.exists()]


def files_appended(table: Path, since: TablePosition | None) -> list[Path]:
    """Return the files that brought new rows into a Delta table, also those that were compacted since.

    Args:
        table: Its folder.
        since: From which version on; ``None``: all.
    """
    files: list[Path] = []
    for path in _commits_backwards(table):
        if since is not None and int(path.stem) <= since.version:
            break
        actions = [json.loads(line) for line in path.read_text().splitlines() if line.startswith('{"add"')]
        added = [a["add"] for a in actions if a["add"]["dataChange"]]
        # What is left of a file of which rows were deleted is nothing new.
        files += [table / unquote(one["path"]) for one in added if not is_gathered(one["path"])]
    return files


def keep_ids(root: Path, written: Mapping[Path, Iterable[str]]) -> None:
    """Keep, beside a restored checkpoint, which records tables have already."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = root / WRITTEN
    shutil.rmtree(folder, ignore_errors=True)
    for number, (table, ids) in enumerate(sorted(written.items())):
        folder.mkdir(parents=True, exist_ok=True)
        column = pa.array(sorted(ids), pa.string())
        about = pa.schema([("_event_id", pa.string())], metadata={"table": str(table)})
        pq.write_table(pa.table([column], schema=about), folder / f"{number}.parquet")


def kept_ids(root: Path) -> dict[Path, Path]:
    """Return, of the checkpoint in a folder, table → file of the records that it has already."""
    import pyarrow.parquet as pq

    found = {}
    for file in sorted((root / WRITTEN).glob("*.parquet")):
        metadata = pq.read_schema(file).metadata or {}
        found[Path(metadata[b"table"].decode())] = file
    return found


def read_ids(file: Path) -> frozenset[str]:
    """Return the identities of records in a file that :func:`keep_ids` wrote."""
    import pyarrow.parquet as pq

    return frozenset(pq.read_table(file).column("_event_id").to_pylist())


def as_data(positions: Mapping[Path, TablePosition]) -> dict[str, Any]:
    """Return positions as plain data, as a manifest keeps them."""
    return {str(path): asdict(at) for path, at in positions.items()}


def from_data(data: Mapping[str, Any]) -> dict[Path, TablePosition]:
    """Return positions from a manifest."""
    return {Path(path): TablePosition(**at) for path, at in data.items()}


def _is_of(txn: Mapping[str, Any], incarnation: str) -> bool:
    return incarnation in str(txn.get("appId", "")).split(":")


def _is_first(txn: Mapping[str, Any]) -> bool:
    return str(txn.get("appId", "")).endswith(f":{FIRST}")


def _commits_backwards(table: Path) -> list[Path]:
    commits = [p for p in (table / "_delta_log").glob("*.json") if p.stem.isdigit()]
    return sorted(commits, reverse=True)


def _log_backwards(table: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the commits of a Delta table from the newest on, with their transaction entries."""
    for path in _commits_backwards(table):
        actions = [json.loads(line) for line in path.read_text().splitlines() if '"txn"' in line]
        yield int(path.stem), [a["txn"] for a in actions if "txn" in a]


def _later_folders(table: Path, kept: TablePosition) -> list[Path]:
    found = []
    for folder in table.glob("batch=*"):
        named = _BATCH_FOLDER.fullmatch(folder.name)
        if named and named[1] == kept.incarnation and int(named[2]) > kept.version:
            found.append(folder)
    return sorted(found)
