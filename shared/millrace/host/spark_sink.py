"""All outputs of a processed stream by one query: the state is computed once, each target written once.

For jobs that have no runtime of ours: the targets are tables on any storage that the session can write,
or functions. A batch that runs again after a crash changes nothing: Delta tables remember it by its
transaction, Parquet tables have a folder for each batch, which is written anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.checkpoints.positions import kept_ids, record_tables
from millrace.errors import UserError
from millrace.host.chunks import WATERMARK, status_of
from millrace.host.spark_clock import clock_settings_for
from millrace.host.spark_types import struct_type
from millrace.host.spark_uploads import AwaitingUploads
from millrace.process import KeyedProcess
from millrace.runtime.clock_files import keep_settings, write_status
from millrace.runtime.contract import check_contract
from millrace.time.clock import ClockSettings, ClockStatus

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

#: Where an output goes: the path of a table, or what is called with its rows and the batch's id.
Target = str | Path | Callable[[DataFrame, int], None]
TableFormat = Literal["delta", "parquet"]

_log = logging.getLogger("millrace.write_to")


class Written(Protocol):
    """A processed stream, as far as it is written (:class:`millrace.host.spark.ProcessedStream`)."""

    @property
    def raw(self) -> DataFrame:
        """All outputs as chunks."""

    @property
    def clock(self) -> ClockSettings:
        """What its clock goes by."""

    @property
    def process(self) -> KeyedProcess[Any, Any]:
        """The last process."""

    @property
    def sources(self) -> Mapping[str, Any]:
        """The outputs."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""

    @property
    def types(self) -> Mapping[str, Any]:
        """Output → type of its records."""

    def select(self, raw: DataFrame, output: str) -> DataFrame:
        """Return the rows of one output with typed columns."""

    def contract(self) -> dict[str, Any]:
        """Return what a checkpoint depends on."""


class SinkError(UserError):
    """What ``write_to`` was given does not fit the stream, or each other."""


def write_to(
    stream: Written,
    outputs: Mapping[str, Target],
    checkpoint: str | Path,
    *,
    trigger: str | Mapping[str, Any] | None = None,
    name: str | None = None,
    table_format: TableFormat | None = None,
) -> StreamingQuery:
    """Start one query that writes outputs of a stream, each record once.

    Tables are created by the first batch and appended to. Outputs that go to one path become one table
    and must have the same columns. An output that stands nowhere is not written; a warning in the log
    counts what was left out.

    Args:
        stream: The processed stream.
        outputs: Output → path of a table, or a function of a DataFrame and the batch's id. A Delta table
            gets a column for every field that a new version's records have more. A function is
            called in the first batch and in every one that has records for it, and again with
            the same records and id when a batch is repeated after a crash.
        checkpoint: A folder for the checkpoint and the contract beside it; one per query. It must be on a
            file system that is mounted here.
        trigger: An interval as text (``"5 seconds"``), or the arguments of Spark's ``trigger``
            (``{"availableNow": True}``); ``None``: a batch follows the one before.
        name: Name of the query.
        table_format: Format of tables that do not exist yet. Unless given: Delta where the session is
            configured for it, else Parquet, with a folder ``batch=…`` for each batch.

    Returns:
        The running query.

    Raises:
        SinkError: The stream is bounded, an output does not exist, or targets contradict each other.
        ContractMismatch: The checkpoint was written by something that the process cannot go on from.

    Example:
        >>> query = write_to(balances, {"main": "out/balances", "late": "out/late",
        ...                             "dead_letters": print_letters}, "out/state")  # doctest: +SKIP
        >>> query.awaitTermination()  # doctest: +SKIP
    """
    if not stream.raw.isStreaming:
        raise SinkError("the input is bounded, there is no query: write the DataFrames stream['main'], …")
    folder = Path(checkpoint)
    if "://" in str(checkpoint):
        raise SinkError(
            f"the checkpoint {checkpoint} is not on a mounted file system: its contract cannot be kept there"
        )
    _check_outputs(stream, outputs)
    session = stream.raw.sparkSession
    tables: dict[str, list[str]] = {}
    for output, target in outputs.items():
        if not callable(target):
            tables.setdefault(str(target), []).append(output)
    formats = {path: _format_of(path, table_format, session) for path in tables}
    _check_tables(stream, tables)
    incarnation = check_contract(folder, stream.contract())
    record_tables(folder, formats)
    written = {str(table): str(file) for table, file in kept_ids(folder).items()}
    functions = {output: target for output, target in outputs.items() if callable(target)}
    writer = stream.raw.writeStream.option("checkpointLocation", str(folder / "checkpoint")).foreachBatch(
        AwaitingUploads(
            _Sink(stream, tables, formats, functions, incarnation, folder, written),
            folder / "checkpoint" / "state",
        )
    )
    if name is not None:
        writer = writer.queryName(name)
    if trigger is not None:
        writer = writer.trigger(**({"processingTime": trigger} if isinstance(trigger, str) else trigger))
    settings = msgspec.structs.replace(stream.clock, incarnation=incarnation)
    with clock_settings_for(session, keep_settings(folder, settings)):
        return writer.start()


@dataclass(frozen=True)
class _Sink:
    """Writes the batches of a query; it is what ``foreachBatch`` calls.

    Args:
        stream: The processed stream.
        tables: Path → the outputs that go there.
        formats: Path → format of the table.
        functions: Output → what is called with its rows.
        incarnation: Identity of the checkpoint: another one may have written the same batch numbers.
        root: The folder that holds the checkpoint.
        written: After a savepoint was restored: table → file of the records that it has already.
    """

    stream: Written
    tables: Mapping[str, list[str]]
    formats: Mapping[str, TableFormat]
    functions: Mapping[str, Callable[[DataFrame, int], None]]
    incarnation: str
    root: Path
    written: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one batch."""
        batch.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts, status = counted(batch)
            for path, outputs in self.tables.items():
                if batch_id == 0 or any(counts.get(o) for o in outputs):
                    self._write(path, [self.stream.select(batch, o) for o in outputs], batch_id)
            for output, function in self.functions.items():
                if batch_id == 0 or counts.get(output):
                    function(self.stream.select(batch, output), batch_id)
            self._tell_of_the_rest(counts, batch_id)
            if status is not None:
                write_status(self.root, batch_id, status)
        finally:
            batch.unpersist()

    def _write(self, path: str, frames: list[DataFrame], batch_id: int) -> None:
        rows = reduce(DataFrame.unionByName, frames)
        already = self.written.get(str(Path(path).absolute()))
        if already is not None:
            rows = not_written(rows, already)
        if self.formats[path] == "delta":
            # A second write of this application and version, to this table, is ignored by Delta. Fields that
            # a record has not had before become columns, as with the apps' writers.
            (rows.write.format("delta").mode("append").option("txnAppId", f"millrace:{self.incarnation}")
             .option("txnVersion", batch_id).option("mergeSchema", True).save(path))  # fmt: skip
        else:
            rows.write.mode("overwrite").parquet(f"{path}/batch={self.incarnation}-{batch_id:08}")

    def _tell_of_the_rest(self, counts: Mapping[str, int], batch_id: int) -> None:
        written = {*self.functions, *(o for outputs in self.tables.values() for o in outputs)}
        rest = {o: n for o, n in counts.items() if o in self.stream.sources and o not in written and n}
        if rest:
            told = ", ".join(f"{n:,} of {o}" for o, n in sorted(rest.items()))
            _log.warning("batch %s: records without a target are not written: %s", batch_id, told)


def counted(batch: DataFrame) -> tuple[dict[str, int], ClockStatus | None]:
    """Return the number of records of each output of a batch, and how far its clock is."""
    said = F.max(F.when(F.col("output") == WATERMARK, F.col("chunk"))).alias("said")
    rows = batch.groupBy("output").agg(F.sum("records").alias("n"), said).collect()
    status = next((status_of(bytes(row["said"])) for row in rows if row["output"] == WATERMARK), None)
    return {row["output"]: row["n"] for row in rows if row["output"] != WATERMARK}, status


def not_written(rows: DataFrame, already: str) -> DataFrame:
    """Return the rows less those whose ``_event_id`` stands in a file."""
    ids = rows.sparkSession.read.parquet(already).withColumnRenamed("_event_id", "_written")
    return rows.join(F.broadcast(ids), F.col("_event_id") == F.col("_written"), "left_anti")


def _check_outputs(stream: Written, outputs: Mapping[str, Target]) -> None:
    if not outputs:
        raise SinkError(f"no output is to be written; the stream has {', '.join(stream.outputs)}")
    unknown = [o for o in outputs if o not in stream.sources]
    if unknown:
        raise SinkError(f"no output {', '.join(unknown)}; the stream has {', '.join(stream.outputs)}")


def _check_tables(stream: Written, tables: Mapping[str, list[str]]) -> None:
    """Refuse outputs that go to one table and have other columns."""
    types = stream.types
    for path, outputs in tables.items():
        columns = {o: struct_type(types[o]).simpleString() for o in outputs}
        other = [o for o in outputs if columns[o] != columns[outputs[0]]]
        if other:
            raise SinkError(
                f"{outputs[0]} and {other[0]} both go to {path} and have different columns: "
                "give each a path of its own"
            )


def _format_of(path: str, wanted: TableFormat | None, session: SparkSession) -> TableFormat:
    """Return the format of a table: what it is already, else what is wanted.

    Raises:
        SinkError: It is another one than that which is wanted, or the session cannot write it.
    """
    has_delta = "DeltaSparkSessionExtension" in (session.conf.get("spark.sql.extensions", "") or "")
    found: TableFormat | None = None
    if (Path(path) / "_delta_log").exists():
        found = "delta"
    elif any(Path(path).glob("batch=*")):
        found = "parquet"
    if found is not None and wanted not in (None, found):
        raise SinkError(f"{path} is a {found} table, not {wanted}: use another path or table_format")
    chosen: TableFormat = found or wanted or ("delta" if has_delta else "parquet")
    if chosen == "delta" and not has_delta:
        raise SinkError(
            f"{path} is to be a Delta table, and the session is not configured for Delta: set "
            "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and add Delta's jar"
        )
    return chosen
