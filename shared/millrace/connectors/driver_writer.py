"""Small batches: collected once and written by the driver in milliseconds.

Spark's own Delta write costs about a second for a batch of a few rows, whatever their number: a plan,
a job, a snapshot and a commit for each table. Here the batch is one job; tables are appended with the
native Delta library, topics with a plain producer. The tables remember batches by the same
transaction entries as Spark's writer does, so the two can take turns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from millrace.checkpoints.positions import read_ids
from millrace.connectors.merging import (
    AppendedTable,
    MergedTable,
    Merger,
    PutAside,
    WaitingTable,
    bring_in_left,
)
from millrace.connectors.misfits import OfOtherType, as_rows, letters_of
from millrace.connectors.producing import Delivery, Record, event_records, topic_key
from millrace.connectors.records import dead_letter_record, is_dead_letters, reasons_of
from millrace.connectors.router import DeadLetterLimit, OnClock, OnReasons, Outputs
from millrace.errors import UserError
from millrace.host.chunks import WATERMARK, OutputChunk, decode_output, join_output, status_of
from millrace.host.json_columns import MISFIT, Misfit
from millrace.host.spark_records import TypedColumns
from millrace.local.belonging import adopted
from millrace.topology import Upsert
from millrace.topology.sinks import Table, table_name

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

#: Table property: the columns of which each file's least and greatest values stand in the log; default the
#: first 32.
STATISTICS = "delta.dataSkippingStatsColumns"
#: Table properties: without deletion vectors every reader can read the tables, and a checkpoint of the
#: log every 50 commits keeps opening them quick.
TABLE_PROPERTIES = {"delta.enableDeletionVectors": "false", "delta.checkpointInterval": "50"}
#: What the types of columns have: values of one kind go into all of them, or into none.
_KINDS: Final = {
    **dict.fromkeys(("byte", "short", "integer", "long"), "whole number"),
    **dict.fromkeys(("float", "double"), "number"),
    **dict.fromkeys(("timestamp", "timestamp_ntz", "timestampNtz"), "time"),
}
#: So many tables are written beside the first one: what they wait for most of the time is the disk.
_AT_ONCE = 3


class ColumnChanged(UserError):
    """A table has a column of another type than an app's records have now."""


class DriverWriter:
    """Writes a batch from the driver.

    Args:
        outputs: What goes where.
        table_path: Name of a table → its folder.
        client_options: Options of the Kafka client, ``bootstrap.servers`` included.
        app_id: Identity of the query for the tables.
        limit: When a batch has too many dead letters.
        written: After a savepoint was restored: table → file of the records that it has already.
        stamp: Header → text that all dead letters get: who wrote them.
        on_clock: Called with each batch and how far its clock is.
        merge_interval_s: How long rows of tables with one row per key wait, so that several batches are
            merged at once, s; those of other tables are appended while the next batch runs. 0: all rows of a
            batch are in their tables before it is done.
        on_reasons: Called with each batch that has dead letters and how many there are of each reason.
    """

    def __init__(
        self,
        outputs: Outputs,
        table_path: Callable[[str], str],
        client_options: Mapping[str, Any],
        app_id: str,
        limit: DeadLetterLimit,
        written: Mapping[str, Path] | None = None,
        stamp: Mapping[str, str] | None = None,
        on_clock: OnClock | None = None,
        merge_interval_s: float = 0.0,
        on_reasons: OnReasons | None = None,
    ) -> None:
        self._outputs = outputs
        self._on_clock, self._on_reasons = on_clock, on_reasons
        self._table_path = table_path
        self._client_options = dict(client_options)
        self._app_id = app_id
        self._limit = limit
        self._stamp = dict(stamp or {})
        types = outputs.stream.types
        self._typed = {o: TypedColumns(types[o]) for o in {*outputs.tables, *outputs.topics}}
        #: Outputs of which a batch's records are wanted all at once: for tables, and to be counted by reason.
        self._whole = {o for o in self._typed if o in outputs.tables or is_dead_letters(o)}
        self._written = {table: read_ids(file) for table, file in (written or {}).items()}
        #: Outputs of dead letters → the tables that these are appended to.
        self._letters = {
            o: table_name(to)
            for o, to in outputs.written
            if is_dead_letters(o) and not isinstance(to, Upsert)
        }
        self._tables = {
            table_name(to): self._table(output, to, is_kept=merge_interval_s > 0)
            for output, to in outputs.written
        }
        self._merger = Merger([*self._tables.values()], merge_interval_s)
        self._delivery: Delivery | None = None
        self._pool = ThreadPoolExecutor(_AT_ONCE, "millrace-tables", initializer=adopted())

    def write(self, batch: DataFrame, batch_id: int) -> dict[str, int]:
        """Write one batch and return the number of records per output."""
        found = batch.toArrow()
        chunks: dict[str, list[bytes]] = {}
        counts: dict[str, int] = {}
        status = None
        for output, records, chunk in zip(*(column.to_pylist() for column in found.columns), strict=True):
            if output == WATERMARK:
                status = status_of(chunk)
                continue
            chunks.setdefault(output, []).append(chunk)
            counts[output] = counts.get(output, 0) + records
        self._limit.check(batch_id, counts)
        rows = {output: join_output(of) for output, of in chunks.items() if output in self._whole}
        for output in self._outputs.topics:
            if output in rows:
                self._produce(output, rows[output])
                continue
            # A chunk after the other: what one took in memory is there, and near the processor, for the next.
            for chunk in chunks.pop(output, ()):
                self._produce(output, decode_output(chunk))
        # Tables are written beside each other, and while the broker is waited for.
        written = [(o, table, rows[o]) for o, table in self._outputs.written if o in rows]
        at_work = [self._pool.submit(self._write_table, *one, batch_id) for one in written[1:]]
        try:
            if written:
                self._write_table(*written[0], batch_id)
            self._flush()
        finally:
            # Nothing of this batch goes on behind whoever looks at what it left, or tries it again.
            wait(at_work)
        for done in at_work:
            done.result()
        self._merger.told()
        if self._on_reasons is not None and any(map(is_dead_letters, rows)):
            self._on_reasons(
                batch_id, reasons_of(p for o, c in rows.items() if is_dead_letters(o) for p in c.payloads)
            )
        if status is not None and self._on_clock is not None:
            self._on_clock(batch_id, status)
        return counts

    def prepare(self) -> None:
        """Create the tables that do not exist, so that readers find them empty rather than missing.

        What a run that was cut off has left is brought in, also for tables that nothing is written to now.
        """
        for table in self._tables.values():
            table.prepare()
        places = [self._table_path(name) for name in self._tables]
        for folder in {Path(place).parent for place in places if "://" not in place}:
            for name in bring_in_left(folder, self._tables, partial(self._aside, "")):
                log.warning("%s: rows of an earlier version wait for it, and it is not written now", name)

    def flush(self) -> None:
        """Bring all tables to the last batch that was written."""
        self._merger.flush()

    def close(self) -> None:
        """Bring all tables to the last batch, and end what works behind the batches."""
        self._merger.close()
        self._pool.shutdown()

    # -- tables --------------------------------------------------------------------------------

    def _write_table(self, output: str, to: Table, rows: OutputChunk, batch_id: int) -> None:
        name = table_name(to)
        table = self._tables[name]
        typed = self._typed[output]
        try:
            # Who brings them in behind the batch has time to read them.
            columns = typed.unread(rows) if table.keeps else typed.table(rows)
        except MISFIT as error:
            if (aside := self._aside(output, name)) is None:
                raise OfOtherType(
                    f"table {name}: a record of {output} in batch {batch_id} has a value that is not of its "
                    f"column's type ({error}), and there is no table of dead letters to put it aside in"
                ) from error
            columns, misfits = typed.fitting(rows)
            table.merge()  # of batches before, those that it cannot take are put aside before these
            aside(f"{self._app_id}:{name}", batch_id, misfits)
        if not isinstance(to, Upsert) and (already := self._written.get(name)):
            columns = columns.filter(
                pa.array([one not in already for one in columns["_event_id"].to_pylist()])
            )
        table.add(columns, batch_id)

    def columns(self, output: str, rows: OutputChunk) -> pa.Table:
        """Return the rows of one output with typed columns, as Spark's writer leaves them.

        Args:
            output: Name of the output.
            rows: Its rows as the process emitted them.
        """
        return self._typed[output].table(rows)

    def _table(self, output: str, to: Table, *, is_kept: bool) -> WaitingTable:
        name = table_name(to)
        folder, app_id = self._table_path(name), f"{self._app_id}:{name}"
        properties = TABLE_PROPERTIES
        if not isinstance(to, Upsert):
            properties = properties | {STATISTICS: ",".join(timed_columns(self._typed[output].schema))}
        make, keeps = partial(self._open, output, folder, properties), is_kept and "://" not in folder
        aside = self._aside(output, name)
        if isinstance(to, Upsert):
            return MergedTable(to, folder, make, app_id, keeps=keeps, put_aside=aside)
        return AppendedTable(name, folder, make, app_id, keeps=keeps, put_aside=aside)

    def _aside(self, output: str, name: str) -> PutAside | None:
        """Return what puts records aside that a table cannot take; ``None``: there is no place for them."""
        link = output.rpartition(".")[0]
        of = next(
            (o for o in (f"{link}.dead_letters", "dead_letters", *self._letters) if o in self._letters), None
        )
        if of is None or is_dead_letters(output):
            return None
        place = self._letters[of]

        def put_aside(app_id: str, batch_id: int, misfits: Sequence[Misfit]) -> None:
            table = self._tables[place]
            assert isinstance(table, AppendedTable)  # noqa: S101
            topology = getattr(self._outputs.stream, "topology", None)
            emits = None if topology is None else topology.outputs.get(output)
            letters = letters_of(output if emits is None else emits[0].name, output, name, misfits)
            log.warning(
                "table %s: %d records of batch %d have values that are not of their columns' types; they are "
                "in %s", name, len(misfits), batch_id, place,
            )  # fmt: skip
            # By a name that no savepoint takes for the query's own: later batches' letters may come before.
            table.append(batch_id, as_rows(letters, self._written.get(place, ())), app_id.replace(":", "/"))

        return put_aside

    def _open(self, output: str, folder: str, properties: dict[str, str]) -> DeltaTable:
        from deltalake import DeltaTable

        schema = self._typed[output].schema
        found = DeltaTable.create(folder, schema=schema, mode="ignore", configuration=properties)
        _add_columns(found, schema)
        return found

    # -- topics --------------------------------------------------------------------------------

    def _produce(self, output: str, rows: OutputChunk) -> None:
        if self._delivery is None:
            self._delivery = Delivery(self._client_options)
        self._delivery.send(self._outputs.topics[output], self.records(output, rows))

    def records(self, output: str, rows: OutputChunk) -> Iterable[Record]:
        """Return an output as Kafka records: key, value and headers, as Spark's writer leaves them.

        Args:
            output: Name of the output.
            rows: Its rows as the process emitted them.
        """
        if not is_dead_letters(output):
            return event_records(rows)
        letters = self._typed[output].records(rows.payloads)
        keys = map(topic_key, rows.keys)
        return [
            dead_letter_record(letter, key, identity, self._stamp)
            for key, letter, identity in zip(keys, letters, rows.event_ids, strict=True)
        ]

    def _flush(self) -> None:
        if self._delivery is not None:
            self._delivery.flush()


def timed_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of a table that is appended to whose statistics are kept with each of its files.

    An append looks at the statistics of all files: with those of sixty columns it took four times as long
    after 500 batches as at first. Of most columns every batch has all values; times are what files differ by.

    Args:
        schema: The table's columns.

    Example:
        >>> timed_columns(pa.schema({"id": pa.string(), "end_ms": pa.int64(), "at": pa.timestamp("us")}))
        ['end_ms', 'at']
    """
    return [
        field.name
        for field in schema
        if field.name.isidentifier()
        and (
            pa.types.is_timestamp(field.type)
            or (pa.types.is_int64(field.type) and field.name.endswith("_ms"))
        )
    ]


def _add_columns(table: DeltaTable, schema: pa.Schema) -> None:
    """Give a table of an earlier version of its app the columns that have been added since, also within."""
    from deltalake import Schema, write_deltalake

    known = {field.name: field for field in table.schema().fields}
    fields = Schema.from_arrow(schema).fields
    unlike = [
        place for f in fields if f.name in known for place in _unlike(known[f.name].type, f.type, f.name)
    ]
    if unlike:
        raise ColumnChanged(
            f"the table in {table.table_uri} has columns of another type than is written to it now: "
            f"{'; '.join(unlike)}. Give the field another name, or the output another table"
        )
    missing = [field for field in fields if field.name not in known]
    if missing:
        table.alter.add_columns(missing)
    if any(_fields_in(f.type) - _fields_in(known[f.name].type) for f in fields if f.name in known):
        # No row: only what is within columns grows.
        write_deltalake(table, schema.empty_table(), mode="append", schema_mode="merge")
        table.update_incremental()


def _unlike(was: Any, now: Any, at: str) -> Iterator[str]:
    """Yield the places of a column where what is written now does not go into what the table has."""
    kinds = _kind(was), _kind(now)
    if kinds[0] != kinds[1] and kinds != ("number", "whole number"):
        yield f"{at} was {kinds[0]}, is now {kinds[1]}"
        return
    for name in ("element_type", "key_type", "value_type"):
        if hasattr(was, name):
            yield from _unlike(getattr(was, name), getattr(now, name), f"{at}[]")
    fields = {f.name: f.type for f in getattr(was, "fields", ())}
    for f in getattr(now, "fields", ()):
        if f.name in fields:
            yield from _unlike(fields[f.name], f.type, f"{at}.{f.name}")


def _kind(tp: Any) -> str:
    """Return what kind of values a column's type has."""
    name = str(getattr(tp, "type", tp))
    return _KINDS.get(name, name)


def _fields_in(kind: Any, at: str = "") -> set[str]:
    """Return the places of all fields within a column's type."""
    inner = getattr(kind, "fields", None)
    if inner is None:
        parts = [getattr(kind, name, None) for name in ("element_type", "value_type")]
        return {place for part in parts if part is not None for place in _fields_in(part, f"{at}[]")}
    return {place for f in inner for place in ({f"{at}.{f.name}"} | _fields_in(f.type, f"{at}.{f.name}"))}
