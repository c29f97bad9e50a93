"""Tables behind the batches: rows are on the disk at once, and come into their table a little later.

A batch would wait a tenth of a second until a thousand rows are appended to a table. A merge copies the
files that have rows of its batch: with keys of which every batch has some anywhere, the whole table. Done
with every batch it costs more than all else that a small batch does, and the more the larger the table is.
So a batch only leaves a file beside the table (some milliseconds); a thread appends what each left, and
another merges what several left, the last version of each row. The files are there before the batch is
committed and are removed when their rows are in the table: who begins again after a crash brings in what is
found, and the table remembers the last batch that it has.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from millrace.checkpoints.positions import FIRST, WAITING
from millrace.connectors.gathering import as_columns
from millrace.connectors.upkeep import MANY_FILES, gather
from millrace.errors import MillraceError
from millrace.host.json_columns import MISFIT, Misfit, read, read_fitting
from millrace.local.belonging import belonging
from millrace.topology import Upsert

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

#: After so many merges into a table, or appends to it, it is looked whether its files have become many.
GATHER_EVERY: Final = 8
#: After so many what its log need not keep any more is removed. Done with each commit, as the library does by
#: itself, it is a third of what an append takes of a table with some thousands of commits.
CLEAN_EVERY: Final = 512
#: A table is looked at anew where its next version is there, which costs nothing to ask, or after so long, s:
#: the library looks through the whole log.
_LOOK_AGAIN_S: Final = 60.0
#: How often a merge is tried that others get in the way of.
_MERGE_ATTEMPTS: Final = 5
#: So many times as long as merges took passes before the next: all tables together take a tenth of a core.
_REST: Final = 9.0
#: Longer than this no row waits for its table, however long a merge takes, s.
MOST_WAIT_S: Final = 30.0
#: Rows that may wait for a table, and their bytes in memory; the batch that brings more waits for the merge.
MOST_ROWS: Final = 200_000
MOST_BYTES: Final = 64 << 20
#: What failed is tried again after so long, though no batch comes, s.
AGAIN_S: Final = 10.0
_APP_ID, _BATCH, _UPSERT = b"millrace.app_id", b"millrace.batch", b"millrace.upsert"

_log = logging.getLogger("millrace.tables")


class MergeFailed(MillraceError):
    """Rows could not be brought into their table; they are kept, and brought in when the job begins again."""


#: What is called with records that a table cannot take: the query and the batch that they are of, and they.
PutAside = Callable[[str, int, Sequence[Misfit]], None]


class WaitingTable:
    """A table that rows are brought into behind the batches.

    Args:
        name: Its name.
        folder: Where it is.
        make: Opens or makes it, with all columns that its rows have.
        app_id: Identity of the query for this table.
        keeps: Whether rows are kept on the disk before they are brought in; else each batch's are at once.
        put_aside: Takes records that do not fit the table, before the others of their batch are brought in,
            and the same ones any number of times; ``None``: with one of them, none is brought in.
    """

    #: Whether rows wait a while, so that those of several batches are brought in together.
    gathers = False
    #: What names a row; ``None``: rows are appended.
    _upsert: Upsert | None = None
    #: So many small files are few.
    _many_files = MANY_FILES

    def __init__(
        self,
        name: str,
        folder: str,
        make: Callable[[], DeltaTable],
        app_id: str,
        *,
        keeps: bool,
        put_aside: PutAside | None = None,
    ) -> None:
        self.name, self._put_aside = name, put_aside
        self._make, self._app_id, self.keeps = make, app_id, keeps
        self._folder, self._waits = Path(folder), Path(folder) / WAITING
        self._delta: DeltaTable | None = None
        self._done = -1
        # What waits is changed by batches and by the thread that merges; of merges there is one at a time.
        self._lock, self._at_work = threading.Lock(), threading.Lock()
        self._waiting: dict[int, pa.Table] = {}
        self._since = 0.0
        self._rests_until = self._again_at = 0.0
        self._writes = 0
        self._looked_at = -math.inf
        #: Whether somebody else calls :meth:`tidy`, so that no rows wait until files are gathered.
        self.is_tidied_beside = False
        self._is_log_long = False
        #: Since when :meth:`tidy` should be called; infinite: it should not.
        self.untidy_since = math.inf
        #: Why what waits could not be brought in.
        self.failed: MergeFailed | None = None
        #: Tables that are merged into by turns.
        self.beside = 1

    def _bring(self, batches: Sequence[tuple[int, pa.Table]], app_id: str) -> None:
        """Bring rows of batches, in order, into the table; those that it has already change nothing."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Make the table if there is none, and bring in what a run that was cut off has left."""
        with self._at_work:
            self._open()

    def add(self, rows: pa.Table, batch_id: int) -> None:
        """Take what a batch says of the table's rows; the same batch again changes nothing.

        Args:
            rows: Its records, as :attr:`keeps` lets them be with columns that are not read yet.
            batch_id: The batch.

        Raises:
            MergeFailed: What came before could not be brought in.
        """
        if self._delta is None:
            self.prepare()
        if self.failed is not None:
            self.merge()  # once more: what was in the way may be gone
        if batch_id <= self._done:
            return
        if not self.keeps:
            with self._at_work:
                self._bring([(batch_id, read(rows))], self._app_id)
            return
        _keep(self._waits / f"{batch_id:012d}.arrow", rows, self._app_id, batch_id, self._upsert)
        with self._lock:
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting[batch_id] = rows
            many = _is_much(self._waiting.values())
        if many:
            self.merge()

    def due_in_s(self, interval_s: float) -> float:
        """Return in how many seconds rows should be brought in; infinite: none wait."""
        with self._lock:
            if not self._waiting:
                return math.inf
            if self.failed is not None:
                due = self._again_at
            elif not self.gathers:
                due = self._since  # those first that have waited longest
            else:
                due = max(self._since + interval_s, min(self._rests_until, self._since + MOST_WAIT_S))
        return due - time.monotonic()

    def merge(self) -> None:
        """Bring in all that waits.

        Raises:
            MergeFailed: It cannot be brought in; it waits on.
        """
        with self._at_work:
            try:
                self._merge()
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic of the native library is no Exception
                self._again_at = time.monotonic() + AGAIN_S
                self.failed = MergeFailed(f"table {self.name}: {error}")
                _log.warning("rows wait for their table, which cannot be written: %s", self.failed)
                raise self.failed from error
            self.failed = None

    def _merge(self) -> None:
        with self._lock:
            taken = dict(self._waiting)
        if not taken:
            return
        began = time.monotonic()
        numbers = sorted(taken)
        self._open()
        self._bring([(n, self._read(taken[n], self._app_id, n)) for n in numbers], self._app_id)
        with self._lock:
            for number in numbers:
                del self._waiting[number]
            self._since = time.monotonic()
        for number in numbers:
            (self._waits / f"{number:012d}.arrow").unlink(missing_ok=True)
        took = time.monotonic() - began
        self._rests_until = time.monotonic() + _REST * took * self.beside

    def tidy(self) -> None:
        """Make few files of many, beside whoever brings in rows; what is in the way is told, and goes on."""
        from deltalake import DeltaTable

        self.untidy_since = math.inf
        try:
            table = DeltaTable(str(self._folder))
            self._make_few(table)
            self._clean_log(table)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the native library is no Exception
            _log.info("files of table %s cannot be looked at: %s", self.name, error)

    def _gather(self, table: DeltaTable) -> None:
        """Make few files of many, now and then: who writes next looks at them all."""
        self._writes += 1
        self._is_log_long = self._is_log_long or not self._writes % CLEAN_EVERY
        if self._writes % GATHER_EVERY:
            return
        if self.is_tidied_beside:
            if self._is_log_long or len(table.file_uris()) > self._many_files:
                self.untidy_since = min(self.untidy_since, time.monotonic())
        else:
            self._make_few(table)
            self._clean_log(table)

    def _clean_log(self, table: DeltaTable) -> None:
        """Remove what the table's log need not keep any more, now and then."""
        if not self._is_log_long:
            return
        self._is_log_long = False
        try:
            table.cleanup_metadata()
        except Exception as error:
            _log.info("the log of table %s stays as it is: %s", self.name, error)

    def _look(self, table: DeltaTable) -> None:
        """Bring a table to its newest version; a commit to an older one would have to be tried again."""
        now = time.monotonic()
        following = self._folder / "_delta_log" / f"{table.version() + 1:020d}.json"
        if not self.keeps or now - self._looked_at >= _LOOK_AGAIN_S or following.exists():
            table.update_incremental()
            self._looked_at = now

    def _make_few(self, table: DeltaTable) -> None:
        try:
            gather(table, self._folder, many=self._many_files, in_order=self._upsert is None)
        except Exception as error:
            # Somebody else was at work on them, or the disk is full: the next time. All rows are there.
            _log.info("files of table %s stay as they are: %s", self.name, error)
            table.update_incremental()

    def _read(self, rows: pa.Table, app_id: str, batch_id: int) -> pa.Table:
        """Return a batch's rows with all of their columns; those that the table cannot take are put aside."""
        try:
            return read(rows)
        except MISFIT as error:
            if self._put_aside is None:
                raise MergeFailed(
                    f"a record of batch {batch_id} has a value that is not of its column's type ({error}), "
                    "and there is no table of dead letters to put it aside in"
                ) from error
        found, misfits = read_fitting(rows)
        self._put_aside(app_id, batch_id, misfits)
        return found

    def _open(self) -> DeltaTable:
        if self._delta is None:
            self._delta = self._make()
            self._done = self._version(self._app_id)
            try:
                self._recover()
            except BaseException:
                self._delta = None
                raise
        return self._delta

    def _version(self, app_id: str) -> int:
        assert self._delta is not None  # noqa: S101
        found = self._delta.transaction_version(app_id)
        return -1 if found is None else found

    def _recover(self) -> None:
        """Bring in the files that are there, in the order in which they were written."""
        for torn in self._waits.glob("*.tmp"):
            torn.unlink()  # its batch was not committed, and comes again
        assert self._delta is not None  # noqa: S101
        wanted = pa.schema(self._delta.schema().to_arrow())
        batches: dict[int, pa.Table] = {}
        done: list[Path] = []
        by = ""
        for file in sorted(self._waits.glob("*.arrow")):
            kept, app_id, batch_id = _kept(file)
            if batches and (app_id != by or _is_much(batches.values())):
                self._bring_found(batches, by, done)
                batches, done = {}, []
            done.append(file)
            if batch_id > self._version(app_id):
                with _reading(file):
                    rows = self._read(kept, app_id, batch_id)
                batches[batch_id], by = as_columns(rows, wanted), app_id
        self._bring_found(batches, by, done)

    def _bring_found(self, batches: dict[int, pa.Table], app_id: str, files: Sequence[Path]) -> None:
        """Bring in what files have, together; one after the other, a hundred merges could be to be done."""
        if batches:
            self._bring(sorted(batches.items(), key=lambda batch: batch[0]), app_id)
        for file in files:
            file.unlink()


class AppendedTable(WaitingTable):
    """A table that rows are appended to: each batch's by a commit of their own."""

    #: A merge opens its files; an append only looks at what the log says of each.
    _many_files = 128

    def append(self, number: int, rows: pa.Table, app_id: str) -> None:
        """Append rows that are none of its own batches'; the same ones again change nothing.

        Args:
            number: Their number; it grows from call to call.
            rows: The rows.
            app_id: By whom they are numbered.
        """
        with self._at_work:
            self._open()
            self._append(number, rows, app_id)

    def _bring(self, batches: Sequence[tuple[int, pa.Table]], app_id: str) -> None:
        for number, rows in batches:
            self._append(number, rows, app_id)
            if app_id == self._app_id:
                self._done = max(self._done, number)

    def _append(self, number: int, rows: pa.Table, app_id: str) -> None:
        """Append a batch's rows; again where somebody else has changed the table's properties meanwhile."""
        from deltalake import CommitProperties, PostCommitHookProperties, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError, SchemaMismatchError

        assert self._delta is not None  # noqa: S101
        commit = CommitProperties(app_transactions=[Transaction(app_id, number)])
        after = PostCommitHookProperties(cleanup_expired_logs=False)
        for left in reversed(range(_MERGE_ATTEMPTS)):
            self._look(self._delta)
            if number <= self._version(app_id):  # Spark's writer has written some
                return
            try:
                write_deltalake(
                    self._delta,
                    rows,
                    mode="append",
                    commit_properties=commit,
                    post_commithook_properties=after,
                )
                self._gather(self._delta)
                return
            except CommitFailedError:
                if not left:
                    raise
                self._looked_at = -math.inf
            except SchemaMismatchError:
                wanted = pa.schema(self._delta.schema().to_arrow())
                if not left or not {*rows.column_names} <= {*wanted.names}:
                    raise
                rows = as_columns(rows, wanted)  # a later version has been here, and has added columns


class MergedTable(WaitingTable):
    """A table with one row per key.

    Args:
        upsert: What names a row, and which version is newer.
        folder: Where it is.
        make: Opens or makes it, with all columns that its rows have.
        app_id: Identity of the query for this table.
        keeps: Whether rows are kept on the disk before they are merged; else each batch is merged at once.
        put_aside: Takes records that do not fit the table.
    """

    gathers = True

    def __init__(
        self,
        upsert: Upsert,
        folder: str,
        make: Callable[[], DeltaTable],
        app_id: str,
        *,
        keeps: bool,
        put_aside: PutAside | None = None,
    ) -> None:
        super().__init__(upsert.table, folder, make, app_id, keeps=keeps, put_aside=put_aside)
        self._upsert = upsert

    def _bring(self, batches: Sequence[tuple[int, pa.Table]], app_id: str) -> None:
        from deltalake import CommitProperties, Transaction

        assert self._delta is not None and self._upsert is not None  # noqa: S101, PT018
        first, batch_id = batches[0][0], batches[-1][0]
        self._look(self._delta)
        entries = [Transaction(app_id, batch_id)]
        if first < batch_id:  # where the table stood after a batch is looked up by both
            entries.append(Transaction(f"{app_id}:{FIRST}", first))
        commit = CommitProperties(app_transactions=entries)
        _merge(self._delta, pa.concat_tables([rows for _, rows in batches]), self._upsert, commit)
        if app_id == self._app_id:
            self._done = max(self._done, batch_id)
        self._gather(self._delta)


#: What is to be done next, in how many seconds (none wait: infinite), and how.
Work = tuple[float, Callable[[], None]]


@dataclass
class Merger:
    """Brings rows into tables behind the batches; to be closed.

    A thread appends, and another merges and gathers files: these take seconds, for which rows of other
    tables do not wait.

    Attributes:
        tables: The tables.
        interval_s: How long rows wait at least, where several batches are merged at once, s; 0: not at all.
    """

    tables: Sequence[WaitingTable]
    interval_s: float
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _threads: list[threading.Thread] = field(default_factory=list)
    _is_closed: bool = False
    #: Held while files are gathered.
    _tidying: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        gathering = sum(table.gathers for table in self.tables)
        for table in self.tables:
            table.beside = gathering

    def told(self) -> None:
        """Have what was added brought in when it is time."""
        if not self.interval_s:
            return
        with self._changed:
            if not self._threads and not self._is_closed:
                self._start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Bring in all that waits, now; then nothing is at the tables until more rows are added.

        Raises:
            Exception: Of the first table for which this cannot be done; the others are merged.
        """
        with contextlib.ExitStack() as all_of_them:
            for table in self.tables:
                all_of_them.callback(table.merge)
        with self._tidying:  # Spark, which may write next, takes itself for the only one who commits
            for table in self.tables:
                table.untidy_since = math.inf

    def close(self) -> None:
        """Bring in all that waits, and end the threads."""
        self.end()
        self.flush()

    def end(self) -> None:
        """End the threads; what waits waits on."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        for table in self.tables:
            # Only what is on this machine is gathered at all.
            table.is_tidied_beside = table.keeps and not table.gathers
        for name, find in (("millrace-appends", self._appends), ("millrace-merges", self._merges)):
            thread = threading.Thread(target=belonging(partial(self._run, find)), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _appends(self) -> Iterator[Work]:
        """Yield what tables wait for that are appended to."""
        for table in self.tables:
            if not table.gathers:
                yield table.due_in_s(self.interval_s), table.merge

    def _merges(self) -> Iterator[Work]:
        """Yield what tables wait for that are merged into, and whose files are to be gathered."""
        for table in self.tables:
            if table.gathers:
                yield table.due_in_s(self.interval_s), table.merge
            else:
                yield table.untidy_since - time.monotonic(), partial(self._tidy, table)

    def _tidy(self, table: WaitingTable) -> None:
        with self._tidying:
            if not math.isinf(table.untidy_since):  # else all was flushed meanwhile
                table.tidy()

    def _run(self, find: Callable[[], Iterator[Work]]) -> None:
        while work := self._next(find):
            with contextlib.suppress(MergeFailed):  # the next batch tries it again, and fails if that does
                work()
            with self._changed:
                self._changed.notify_all()  # files may be to be gathered now

    def _next(self, find: Callable[[], Iterator[Work]]) -> Callable[[], None] | None:
        """Wait for something whose time has come; ``None``: it is closed."""
        with self._changed:
            while not self._is_closed:
                wait_s, work = min(find(), key=lambda one: one[0], default=(math.inf, None))
                if work is not None and wait_s <= 0:
                    return work
                self._changed.wait(None if math.isinf(wait_s) else wait_s)
            return None


def _keep(file: Path, rows: pa.Table, app_id: str, batch_id: int, upsert: Upsert | None = None) -> None:
    """Write rows so that they are there whole or not at all."""
    file.parent.mkdir(exist_ok=True)
    written = file.with_suffix(".tmp")
    how = json.dumps(None if upsert is None else asdict(upsert))
    said = {_APP_ID: app_id.encode(), _BATCH: str(batch_id).encode(), _UPSERT: how.encode()}
    schema = rows.schema.with_metadata({**(rows.schema.metadata or {}), **said})
    with pa.ipc.new_file(written, schema) as into:
        into.write_table(rows.replace_schema_metadata(schema.metadata))
    written.replace(file)


def _kept(file: Path) -> tuple[pa.Table, str, int]:
    """Return rows as they were kept, with the query and the batch that left them."""
    with _reading(file), pa.ipc.open_file(file) as found:
        kept = found.read_all()
        app_id, batch_id = _left_by(kept.schema)
    return kept, app_id, batch_id


def _kept_fitting(file: Path) -> tuple[pa.Table, str, int]:
    """Return the same with all columns, without the rows that their table cannot take."""
    kept, app_id, batch_id = _kept(file)
    with _reading(file):
        rows, _ = read_fitting(kept)
    return rows.replace_schema_metadata(None), app_id, batch_id


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Say what is to be done with a file that cannot be read in the block."""
    try:
        yield
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        raise MergeFailed(
            f"{file} has rows that a batch left for its table and cannot be read ({error}): bring it back "
            "from a backup, or remove it, and the table lacks these versions of its rows"
        ) from error


def _left_by(schema: pa.Schema) -> tuple[str, int]:
    said = schema.metadata
    return said[_APP_ID].decode(), int(said[_BATCH])


def _is_much(rows: Iterable[pa.Table]) -> bool:
    """Return whether so many rows wait, or such large ones, that no more are to."""
    tables = list(rows)
    rows_of_all, size = sum(one.num_rows for one in tables), sum(one.nbytes for one in tables)
    return bool(rows_of_all > MOST_ROWS or size > MOST_BYTES)


def last_versions(columns: pa.Table, upsert: Upsert) -> pa.Table:
    """Return the last record per key of a batch, and of equal ones the one that came last.

    Args:
        columns: The batch.
        upsert: What names a row, and which version is newer.
    """
    keys = zip(*(columns[name].to_pylist() for name in upsert.key), strict=True)
    if not upsert.versions:
        places = {key: place for place, key in enumerate(keys)}
    else:
        versions = list(zip(*(columns[name].to_pylist() for name in upsert.versions), strict=True))
        places = {}
        for place, key in enumerate(keys):
            if key not in places or versions[place] >= versions[places[key]]:
                places[key] = place
    return columns.take(pa.array(places.values(), pa.int64()))


def _merge(table: DeltaTable, columns: pa.Table, upsert: Upsert, commit: CommitProperties) -> None:
    """Merge; again where somebody else, a compaction say, replaced files meanwhile."""
    from deltalake import PostCommitHookProperties
    from deltalake.exceptions import CommitFailedError

    last = last_versions(columns, upsert)
    newer = upsert.newer("t", "s")
    for left in reversed(range(_MERGE_ATTEMPTS)):
        merge = table.merge(
            last,
            predicate=upsert.matching("t", "s"),
            source_alias="s",
            target_alias="t",
            # So that files which can have none of the batch's keys are left alone.
            streamed_exec=False,
            commit_properties=commit,
            post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
        )
        if upsert.deleted is None:
            merge = merge.when_matched_update_all(newer).when_not_matched_insert_all()
        else:
            gone = f"s.`{upsert.deleted}` IS TRUE"
            merge = merge.when_matched_delete(gone if newer is None else f"{gone} AND ({newer})")
            merge = merge.when_matched_update_all(newer).when_not_matched_insert_all(f"NOT ({gone})")
        try:
            merge.execute()
            return
        except CommitFailedError:
            if not left:
                raise
            table.update_incremental()


def waiting_files(folder: Path) -> list[Path]:
    """Return the files that batches left for a table and that are not merged yet.

    Args:
        folder: Where the table is.
    """
    return sorted((folder / WAITING).glob("*.arrow"))


def waiting_batches(folder: Path) -> list[tuple[str, int]]:
    """Return of the files that wait for a table which query left each, and with which batch.

    Args:
        folder: Where the table is.

    Raises:
        MergeFailed: A file cannot be read.
    """
    found = []
    for file in waiting_files(folder):
        with contextlib.suppress(FileNotFoundError), _reading(file), pa.ipc.open_file(file) as opened:
            found.append(_left_by(opened.schema))
    return found


def bring_in_left(
    tables: Path, written: Collection[str], put_aside: Callable[[str], PutAside | None] = lambda _: None
) -> list[str]:
    """Bring in what waits for tables that a job does not write any more, as their rows say how.

    Args:
        tables: The folder of an app's tables.
        written: Names of those that the job writes.
        put_aside: Name of a table → what takes records that do not fit it.

    Returns:
        The tables for which files of an earlier version wait on: these do not say how.
    """
    from deltalake import DeltaTable

    unknown = []
    for waits in sorted(tables.glob(f"*/{WAITING}")):
        folder = waits.parent
        files = waiting_files(folder)
        if folder.name in written or not files or not DeltaTable.is_deltatable(str(folder)):
            continue
        with _reading(files[0]), pa.ipc.open_file(files[0]) as found:
            how = (found.schema.metadata or {}).get(_UPSERT)
        if how is None:
            unknown.append(folder.name)
            continue
        given, make = json.loads(how), partial(DeltaTable, str(folder))
        table: WaitingTable
        aside = put_aside(folder.name)
        if given is None:
            table = AppendedTable(folder.name, str(folder), make, "", keeps=True, put_aside=aside)
        else:
            fields: dict[str, Any] = {
                name: tuple(of) if isinstance(of, list) else of for name, of in given.items()
            }
            table = MergedTable(Upsert(**fields), str(folder), make, "", keeps=True, put_aside=aside)
        table.prepare()
    return unknown


def settle(folders: Sequence[Path], *, patience_s: float) -> list[str]:
    """Have what waits for some tables of an app brought into them; return the tables for which some wait on.

    A job that runs does it, and is waited for; where none runs it is done here, as its next start would.

    Args:
        folders: Where the tables are, beside each other under the app's root.
        patience_s: How long the job may take, s.

    Raises:
        MergeFailed: A file that a batch left cannot be read, or brought in.
    """
    from millrace.runtime.contract import CheckpointInUse, owned

    if not folders or not wait_for_merges(folders, patience_s=0.0):
        return []
    tables = folders[0].parent
    others = {path.name for path in tables.iterdir()} - {path.name for path in folders}
    try:
        with owned(tables.parent):
            bring_in_left(tables, others)
    except CheckpointInUse:
        return wait_for_merges(folders, patience_s=patience_s)
    return wait_for_merges(folders, patience_s=0.0)


def rows_before(folder: Path, column: str, before: datetime) -> int:
    """Return how many rows that wait for a table are of before a time, and not in it.

    Args:
        folder: Where the table is.
        column: The column that has their time.
        before: The time.

    Raises:
        MergeFailed: A file that a batch left cannot be read.
    """
    import pyarrow.compute as pc

    if not waiting_files(folder):
        return 0
    waits = open_with_waiting(folder)[1]
    return sum(rows.filter(pc.field(column) < pa.scalar(before)).num_rows for rows in waits)


def waiting_rows(folder: Path) -> Iterator[pa.Table]:
    """Yield the rows that wait for a table.

    Args:
        folder: Where the table is.
    """
    for file in waiting_files(folder):
        with contextlib.suppress(FileNotFoundError):  # it has been merged
            yield _kept_fitting(file)[0]


def open_with_waiting(folder: Path) -> tuple[DeltaTable, list[pa.Table]]:
    """Return a table as it is now, and the rows that wait for it and that it does not have, oldest first.

    What waits is read first: a merge in between brings it into the table, which says which batches it has.

    Args:
        folder: Where the table is.

    Raises:
        MergeFailed: A file that a batch left cannot be read.
    """
    table, waits = open_with_times(folder)
    return table, [rows for _, rows in waits]


def open_with_times(folder: Path) -> tuple[DeltaTable, list[tuple[int, pa.Table]]]:
    """Return the same, of what waits with when its batch left it, UTC ms.

    Args:
        folder: Where the table is.

    Raises:
        MergeFailed: A file that a batch left cannot be read.
    """
    from deltalake import DeltaTable

    found = []
    for file in waiting_files(folder):
        with contextlib.suppress(FileNotFoundError):  # it has been merged
            found.append((file.stat().st_mtime_ns // 1_000_000, *_kept_fitting(file)))
    table = DeltaTable(str(folder))

    def is_new(app_id: str, batch_id: int) -> bool:
        done = table.transaction_version(app_id)
        return done is None or batch_id > done

    return table, [(at_ms, rows) for at_ms, rows, app_id, batch_id in found if is_new(app_id, batch_id)]


def rows_waiting(folder: Path) -> int:
    """Return how many rows wait for a table and are not in it.

    Args:
        folder: Where the table is.

    Raises:
        MergeFailed: A file that a batch left cannot be read.
    """
    return sum(rows.num_rows for rows in open_with_waiting(folder)[1]) if waiting_files(folder) else 0


def wait_for_merges(folders: Iterable[Path], *, patience_s: float, poll_s: float = 0.1) -> list[str]:
    """Wait until all is merged that waits for some tables now; return the tables for which it is not.

    Args:
        folders: Where they are.
        patience_s: How long, s; the job that runs merges every few seconds, and none that does not run.
        poll_s: How often it is looked, s.
    """
    left = {(folder.name, file) for folder in folders for file in waiting_files(folder)}
    deadline = time.monotonic() + patience_s
    while left := {(name, file) for name, file in left if file.exists()}:
        if time.monotonic() >= deadline:
            break
        time.sleep(poll_s)
    return sorted({name for name, _ in left})
