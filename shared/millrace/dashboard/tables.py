"""Delta tables for a page that is looked at every few seconds: only what is new is read.

A table of a stream grows all the time, and a page must not read it all again at every look. So the
log says how many rows came when (of files that were made of others their footers do), the newest rows come
from the newest files, and sums over everything are folded forward file by file.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from millrace.connectors.gathering import Written, is_gathered, names_in, open_file, sources_of, written_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import RowGroupMetaData

A = TypeVar("A")

#: Most rows that a look may bring into memory at once.
MOST_ROWS = 200_000
#: Most rows of a table's last while that are kept.
MOST_LATELY = 1_000_000
#: A table is looked at again after this long, ms: several panels share one look.
_FRESH_MS = 500
#: The library is asked for new versions after this long in any case, ms: a log may have been cleaned up.
_ASKED_MS = 60_000


@dataclass(frozen=True)
class DataFile:
    """A file of a table.

    Attributes:
        path: Where it is.
        rows: Rows in it.
        at_ms: When it was written, UTC milliseconds.
    """

    path: str
    rows: int
    at_ms: int


@dataclass
class _Fold:
    """A sum over the files that were read so far."""

    value: Any
    files: set[str] = field(default_factory=set)


class DeltaReader:
    """A Delta table in a local folder, read without Spark; safe to use from several threads.

    Args:
        folder: The table's folder.
        clock: Now, UTC milliseconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], int]) -> None:
        from deltalake import DeltaTable

        self.folder = folder
        self._clock = clock
        self._lock = threading.RLock()
        self._table = DeltaTable(str(folder))
        self._folds: dict[str, _Fold] = {}
        self._made: dict[str, tuple[int, Any]] = {}
        self._lately: dict[str, dict[str, tuple[float, pa.Table]]] = {}
        self._written: dict[str, list[Written]] = {}
        self._version = -1
        self._looked_ms = self._asked_ms = 0
        self._files: list[DataFile] = []
        self._actions: pa.Table | None = None
        self._columns: tuple[str, ...] = ()
        self._types: dict[str, pa.DataType] = {}
        self.refresh()

    def refresh(self) -> None:
        """Look for new versions; what was looked at half a second ago is taken as it is."""
        import pyarrow as pa

        with self._lock:
            now = self._clock()
            if self._version >= 0 and 0 <= now - self._looked_ms < _FRESH_MS:
                return
            self._looked_ms = now
            if self._version >= 0:
                # Asking the library takes milliseconds of each of a hundred tables; a file's name none.
                if not self._has_next() and 0 <= now - self._asked_ms < _ASKED_MS:
                    return
                self._table.update_incremental()
            self._asked_ms = now
            if self._table.version() == self._version:
                return
            self._version = self._table.version()
            self._types = {f.name: _plain(f.type) for f in pa.schema(self._table.schema().to_arrow())}
            self._columns = tuple(self._types)
            self._files = self._listed()
            paths = {file.path for file in self._files}
            self._written = {path: kept for path, kept in self._written.items() if path in paths}

    def _has_next(self) -> bool:
        """Return whether the log has a commit behind the version that was read."""
        return (self.folder / "_delta_log" / f"{self._version + 1:020d}.json").exists()

    def _listed(self) -> list[DataFile]:
        import pyarrow as pa

        actions = pa.table(self._table.get_add_actions(flatten=True))
        self._actions = actions
        rows = actions.select(["path", "num_records", "modification_time"]).to_pylist()
        found = [
            DataFile(str(self.folder / unquote(r["path"])), r["num_records"] or 0, r["modification_time"])
            for r in rows
        ]
        return sorted(found, key=lambda f: (f.at_ms, f.path))

    @property
    def version(self) -> int:
        """The table's version."""
        return self._version

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of its columns."""
        return self._columns

    @property
    def rows(self) -> int:
        """How many rows it has, by its log."""
        with self._lock:
            return sum(f.rows for f in self._files)

    @property
    def files(self) -> list[DataFile]:
        """Its files, the oldest first."""
        with self._lock:
            return list(self._files)

    @property
    def newest_ms(self) -> int | None:
        """When rows were last written, UTC milliseconds."""
        with self._lock:
            return self._files[-1].at_ms if self._files else None

    def latest(self, rows: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows that were written last, in the order of writing.

        Args:
            rows: How many, at most.
            columns: Which columns; those that the table does not have are left out. Default all.
        """
        return self._newest(min(rows, MOST_ROWS), columns)

    def recent(
        self, column: str, value: str | int, *, limit: int, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return the newest rows with this value in a column, in the order of writing.

        Files are read from the newest on until there are enough rows, or so many were looked at that older
        ones are not recent any more: for tables that grow all the time and have every value in every file.

        Args:
            column: The column.
            value: The value.
            limit: How many rows, at most.
            columns: Which columns, that one among them; default all.
        """
        if column not in self._columns:
            return self._nothing(columns)
        return self._newest(limit, columns, (column, value))

    def _newest(
        self, limit: int, columns: Sequence[str] | None, only: tuple[str, str | int] | None = None
    ) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        found: list[pa.Table] = []
        count = looked = 0
        for part in (p for file in reversed(self.files) for p in self._from_end(file.path, columns)):
            looked += part.num_rows
            if only is None or only[0] in part.column_names:  # else a file from before the column
                rows = part if only is None else part.filter(pc.field(only[0]) == only[1])
                if rows.num_rows:
                    found.append(rows.slice(max(0, rows.num_rows - (limit - count))))
                    count += found[-1].num_rows
            if count >= limit or looked >= MOST_ROWS:
                break
        if not found:
            return self._nothing(columns)
        return pa.concat_tables(reversed(found), promote_options="permissive")

    def where(
        self, column: str, value: str | int, *, limit: int, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return rows with this value in a column, in the order of writing; files are left out by bounds.

        Args:
            column: The column.
            value: The value.
            limit: How many rows, at most: the newest.
            columns: Which columns; default all.
        """
        import pyarrow as pa

        if column not in self._columns:
            return self._nothing(columns)
        found: list[pa.Table] = []
        count = 0
        for path in self._with(column, value):
            for rows in self._matching(path, column, value, columns):
                found.append(rows.slice(max(0, rows.num_rows - (limit - count))))
                count += found[-1].num_rows
                if count >= limit:
                    break
            if count >= limit:
                break
        if not found:
            return self._nothing(columns)
        return pa.concat_tables(reversed(found), promote_options="permissive")

    def _with(self, column: str, value: str | int) -> list[str]:
        """Return the files that may have a value in a column, the newest first."""
        with self._lock:
            if self._actions is None:
                return []
            known = [
                name for name in (f"min.{column}", f"max.{column}") if name in self._actions.column_names
            ]
            bounds = {
                str(self.folder / unquote(row["path"])): (row.get(f"min.{column}"), row.get(f"max.{column}"))
                for row in self._actions.select(["path", *known]).to_pylist()
            }
            files = [file.path for file in reversed(self._files)]

        def may_have(path: str) -> bool:
            least, greatest = bounds[path]
            return bool((least is None or least <= value) and (greatest is None or value <= greatest))

        return [path for path in files if may_have(path)]

    def _matching(
        self, path: str, column: str, value: str | int, columns: Sequence[str] | None
    ) -> Iterator[pa.Table]:
        """Yield a file's rows with a value in a column, the last row group first; none where it is gone."""
        import pyarrow.compute as pc

        with contextlib.suppress(FileNotFoundError), open_file(path) as file:
            there = file.schema_arrow.names
            if column not in there:  # a file from before the column
                return
            names = [name for name in columns or there if name in there]
            for group in reversed(range(file.num_row_groups)):
                are = pc.equal(self._typed(file.read_row_group(group, columns=[column]))[column], value)
                if pc.any(are).as_py():
                    yield self._typed(file.read_row_group(group, columns=names)).filter(are)

    def all(self, columns: Sequence[str] | None = None, *, most: int = MOST_ROWS) -> pa.Table:
        """Return the whole table, as long as it is small; of a large one the latest rows.

        Args:
            columns: Which columns; default all.
            most: How many rows, at most.
        """
        return self.latest(most, columns)

    def fold(
        self, name: str, columns: Sequence[str], start: Callable[[], A], step: Callable[[A, pa.Table], A]
    ) -> A:
        """Return a sum over all rows, to which each call adds only the files that are new.

        Of a file that was made of others only the rows of those that are new are added. Files that go away
        otherwise (a MERGE, a restore) make it begin again, so over tables that are merged into it costs a
        whole reading for every change.

        Args:
            name: Identity of the sum among those of this table.
            columns: Columns that it needs; those that the table does not have are left out.
            start: Makes the sum of nothing.
            step: Sum and rows of a file, or of a part of one → the sum with them; may change and return the
                same object.
        """
        with self._lock:
            kept = self._folds.get(name)
            now = {f.path for f in self._files}
            if kept is None:
                kept = self._folds[name] = _Fold(start())
            gone = kept.files - now
            new = {path: self._pieces(path, kept.files) for path in now - kept.files} if gone else {}
            if not gone <= {piece for pieces in new.values() for piece, _ in pieces}:
                kept, new = _Fold(start()), {}
                self._folds[name] = kept
            for file in self._files:
                if file.path in kept.files:
                    continue
                try:
                    for rows in self._unread(file.path, columns, new.get(file.path, []), kept.files):
                        kept.value = step(kept.value, rows)
                except FileNotFoundError:  # replaced meanwhile: what was added of its rows is not known then
                    self._folds.pop(name, None)
                    continue
                kept.files.add(file.path)
            kept.files &= now
            value: A = kept.value
            return value

    def _pieces(self, path: str, known: Collection[str]) -> list[tuple[str, int]]:
        """Return the files that a file was made of, with their rows, back to those that are known."""
        if not is_gathered(path):
            return []
        found = []
        try:
            for name, rows in sources_of(path):
                source = str(self.folder / name)
                further = [] if source in known else self._pieces(source, known)
                found += further or [(source, rows)]
        except FileNotFoundError:  # vacuum has been there
            return []
        return found

    def _unread(
        self,
        path: str,
        columns: Sequence[str],
        pieces: Sequence[tuple[str, int]],
        known: Collection[str],
    ) -> Iterator[pa.Table]:
        """Yield the rows of a file without those of the files, among which it was made of, that are known.

        Of one that was made of others a row group is in memory at a time, and none that is known whole.
        """
        if not is_gathered(path):
            if (part := self._read(path, columns)) is None:
                raise FileNotFoundError(path)
            yield part
            return
        with open_file(path) as file:
            names = names_in(file, columns)
            unread, end = _unread_places(pieces, known, file.metadata.num_rows), 0
            for group in range(file.num_row_groups):
                begin, end = end, end + file.metadata.row_group(group).num_rows
                if not any(first < end and last > begin for first, last in unread):
                    continue
                rows = self._typed(file.read_row_group(group, columns=names))
                for first, last in unread:
                    if first < end and last > begin:
                        place = max(first, begin)
                        yield rows.slice(place - begin, min(last, end) - place)

    def lately(
        self, column: str, length: int, columns: Sequence[str] | None = None, *, most: int = MOST_LATELY
    ) -> pa.Table:
        """Return the rows of the last while: more in a column than its greatest value less a length.

        A file is read once, and kept as long as it has such rows (one that was made of others without those
        that were older when it was read); by the statistics in the log those that have none are not even
        opened. Where there are more rows than ``most``, the files with the oldest go.

        Args:
            column: The column, of whole numbers: a time, ms.
            length: The length, ms.
            columns: Which columns, that one among them; default all. Those that the table does not have are
                left out.
            most: About how many rows are kept: files are kept whole, the newest in any case.

        Returns:
            The rows, in no order.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        with self._lock:
            if column not in self._columns:
                return self._nothing(columns)
            name = f"{column} {length} {' '.join(columns or ())}"
            kept, parts, count = self._lately.get(name, {}), [], 0
            now: dict[str, tuple[float, pa.Table]] = {}
            greatest: int | None = None
            files = self._highest(column)
            least = max((highest for _, highest in files if highest is not None), default=-math.inf) - length
            for path, highest in files:
                is_old = highest is not None and greatest is not None and highest <= greatest - length
                if is_old or (count >= most and greatest is not None):
                    continue
                least = max(least, -math.inf if greatest is None else greatest - length)
                above, part = kept.get(path, (math.inf, None))
                if above > least:
                    above, part = self._above(path, columns, column, least)
                if part is None or column not in part.column_names or not part.num_rows:
                    continue
                now[path] = above, part
                parts.append(part)
                count += part.num_rows
                found = pc.max(part[column]).as_py()
                greatest = max((n for n in (greatest, found) if n is not None), default=None)
            self._lately[name] = now
        if greatest is None:
            return self._nothing(columns)
        rows = pa.concat_tables(parts, promote_options="permissive")
        return rows.filter(pc.field(column) > greatest - length)

    def _above(
        self, path: str, columns: Sequence[str] | None, column: str, least: float
    ) -> tuple[float, pa.Table | None]:
        """Return a file's rows with more than so much in a column; of one that was made of no others all.

        Returns:
            What all rows with more in the column than that are among, and they; ``None``: the file is gone.
        """
        import pyarrow.compute as pc

        if not is_gathered(path) or math.isinf(least):
            return -math.inf, self._read(path, columns)
        with contextlib.suppress(FileNotFoundError), open_file(path) as file:
            names = [c for c in columns or file.schema_arrow.names if c in file.schema_arrow.names]
            if column in names:
                groups = range(file.num_row_groups)
                new = [g for g in groups if _may_exceed(file.metadata.row_group(g), column, least)]
                rows = self._typed(file.read_row_groups(new, columns=names))
                return least, rows.filter(pc.field(column) > least)
        return least, None

    def _highest(self, column: str) -> list[tuple[str, int | None]]:
        """Return each file with its greatest value in a column: unknown ones, then the greatest first."""
        if self._actions is None:
            return []
        known = f"max.{column}" in self._actions.column_names
        rows = self._actions.select(["path", *([f"max.{column}"] if known else [])]).to_pylist()
        found = [(str(self.folder / unquote(r["path"])), r.get(f"max.{column}")) for r in rows]
        return sorted(found, key=lambda f: (f[1] is not None, -(f[1] or 0), f[0]))

    def once(self, name: str, make: Callable[[DeltaReader], A]) -> A:
        """Return what is made of the table, made anew only when the table has changed.

        For what several panels need of one table, and for tables that rows are merged into, over which a
        :meth:`fold` would begin again at every change.

        Args:
            name: Identity of what is made among those of this table.
            make: The table → what is made of it; nobody may change that.
        """
        with self._lock:
            kept = self._made.get(name)
            if kept is None or kept[0] != self._version:
                kept = self._made[name] = (self._version, make(self))
            value: A = kept[1]
            return value

    def rates(self, since_ms: int, until_ms: int, step_ms: int) -> list[tuple[int, float]]:
        """Return rows written per second, by wall clock, from the log alone.

        Args:
            since_ms: Begin, UTC milliseconds.
            until_ms: End.
            step_ms: Width of a step, ms.

        Returns:
            Begin of each whole step, and rows per second in it.
        """
        first, last = since_ms // step_ms, until_ms // step_ms
        counts = dict.fromkeys(range(first, last), 0)
        for file in self.files:
            for at_ms, rows in self._written_of(file) if file.at_ms >= since_ms else ():
                place = at_ms // step_ms
                if place in counts:
                    counts[place] += rows
        return [(place * step_ms, n * 1000 / step_ms) for place, n in counts.items()]

    def _written_of(self, file: DataFile) -> list[Written]:
        """Return when a file's rows were written; of one that was made of others its footer says it."""
        if not is_gathered(file.path):
            return [Written(file.at_ms, file.rows)]
        with self._lock:
            if file.path not in self._written:
                try:
                    self._written[file.path] = written_of(file.path)
                except FileNotFoundError:
                    return []
            return self._written[file.path]

    def _from_end(self, path: str, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        """Yield a file's rows, the last row group first; none where it is gone meanwhile."""
        with contextlib.suppress(FileNotFoundError), open_file(path) as file:
            names = names_in(file, columns)
            for group in reversed(range(file.num_row_groups)):
                yield self._typed(file.read_row_group(group, columns=names))

    def _read(self, path: str, columns: Sequence[str] | None) -> pa.Table | None:
        """Return a file's rows, or ``None`` where it is gone meanwhile."""
        try:
            with open_file(path) as file:
                names = names_in(file, columns)
                return self._typed(file.read(columns=names))
        except FileNotFoundError:
            return None

    def _nothing(self, columns: Sequence[str] | None) -> pa.Table:
        import pyarrow as pa

        names = [c for c in (columns or self._columns) if c in self._columns]
        return pa.schema([(name, self._types[name]) for name in names]).empty_table()

    def _typed(self, rows: pa.Table) -> pa.Table:
        """Return rows of a file with the types of the table's columns.

        Spark writes times without their zone, and a MERGE texts as views, which can be neither filtered nor
        grouped.
        """
        import pyarrow as pa

        types = self._types
        return rows.cast(pa.schema([f.with_type(types.get(f.name) or _plain(f.type)) for f in rows.schema]))


def _unread_places(
    pieces: Sequence[tuple[str, int]], known: Collection[str], rows: int
) -> list[tuple[int, int]]:
    """Return from where to where, in a file of so many rows, those of the pieces stand that are not known."""
    if not any(piece in known for piece, _ in pieces):
        return [(0, rows)]
    found, place = [], 0
    for piece, count in pieces:
        if piece not in known:
            found.append((place, place + count))
        place += count
    return found


def _may_exceed(group: RowGroupMetaData, column: str, value: float) -> bool:
    """Return whether a row group may have rows with more in a column of numbers, by its statistics."""
    for place in range(group.num_columns):
        found = group.column(place)
        if found.path_in_schema == column and found.statistics is not None and found.statistics.has_min_max:
            return bool(found.statistics.max > value)
    return True


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type with texts and bytes as they usually are in memory."""
    import pyarrow as pa

    types = pa.types
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return kind


def open_table(folder: Path, clock: Callable[[], int]) -> DeltaReader | None:
    """Return a reader of the table in a folder, or ``None`` where there is none yet."""
    from deltalake.exceptions import DeltaError, TableNotFoundError

    if not (folder / "_delta_log").is_dir():
        return None
    try:
        return DeltaReader(folder, clock)
    except (TableNotFoundError, DeltaError, FileNotFoundError):
        return None
