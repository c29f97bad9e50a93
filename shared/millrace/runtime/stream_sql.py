"""SQL over topics and tables as they grow: Spark SQL runs a query's text over views of them."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import (
    ParseException,
    PySparkException,
    StreamingQueryException,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.connectors.kafka import PRODUCER_DEFAULTS, kafka_stream
from millrace.errors import UserError
from millrace.query.catalog import AppTable, unknown_table
from millrace.query.shown import rows_of
from millrace.query.topics import AppTopic, Tell, named

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from millrace.host.packing import Masking

_POLL_S: Final = 0.2
#: How long the running batch may take when the query is to end.
_LAST_S: Final = 60.0
#: An aggregation of a stream in a plan as Spark writes it, which marks what is one by ``~``: what is
#: aggregated of a table beside it changes no row that was told.
_AGGREGATE: Final = re.compile(r"^[\s:+|'!-]*~(?:Aggregate|Distinct|Deduplicate)\b", re.MULTILINE)
#: Times that Spark can have, ms: up to the end of the year 9999.
_LEAST_MS, _MOST_MS = -62_135_596_800_000, 253_402_300_799_999
_CONDITION: Final = re.compile(
    r"^(?:\[[A-Z_0-9.]+\]\s*|Query \[id = \S+, runId = \S+\] terminated with exception: )+"
)


class NotStreamable(UserError):
    """Spark cannot run a query as a stream."""


@dataclass(frozen=True)
class Streamed:
    """What a query may be of.

    Attributes:
        topics: The topics.
        tables: The tables.
        merged: Full names of the tables with one row per key: they are as they are when a batch begins.
        kafka: Options of Spark's Kafka source and sink.
        masking: App → what is done to its events before anything sees them.
        delay: How long late events are waited for by windows, as Spark writes it.
        skews: App → how far an event's time may be ahead of its arrival, ms: one that is further has none,
            for it would make all others late.
    """

    topics: Sequence[AppTopic] = ()
    tables: Sequence[AppTable] = ()
    merged: frozenset[str] = frozenset()
    kafka: Mapping[str, str] = field(default_factory=dict)
    masking: Mapping[str, Masking] = field(default_factory=dict)
    delay: str = "10000 milliseconds"
    skews: Mapping[str, int] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Return all full names."""
        return [*(topic.full_name for topic in self.topics), *(table.full_name for table in self.tables)]


@dataclass(frozen=True)
class Into:
    """Where results go.

    Attributes:
        tell: Called with a batch's rows; where neither of the others is given.
        folder: A Parquet folder (``….parquet``) or else a Delta table.
        topic: A Kafka topic, as JSON.
        most: No more rows of a batch are told; ``None``: all are.
    """

    tell: Tell | None = None
    folder: Path | None = None
    topic: str | None = None
    most: int | None = None


def stream(
    spark: SparkSession,
    text: str,
    of: Streamed,
    into: Into,
    *,
    checkpoint: Path,
    earliest: bool = True,
    for_s: float | None = None,
    until_end: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Run a query until it is to end, and return how many batches there were.

    Args:
        spark: The session.
        text: One SELECT over names as they are in ``of``.
        of: What may be asked.
        into: Where results go.
        checkpoint: A folder for Spark's own notes; a query goes on from one that it has left.
        earliest: Whether to begin with what is there, or with what comes.
        for_s: For how long, s; ``None``: until ``stop`` says so.
        until_end: End with what is there now.
        stop: Asked again and again whether to end.

    Raises:
        UserError: The text is no query, names what is not there, or cannot be streamed.
    """
    # What is wrong is said by us, in one line.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    known = of.names()
    written, found = named(text.strip().removesuffix(";"), known)
    try:
        _views(spark, of, found, earliest=earliest)
    except PySparkException as error:  # of a table that is damaged, say
        raise NotStreamable(f"{' or '.join(found)} cannot be read: {_said(error)}") from None
    asked = _asked(spark, written, known)
    if not asked.isStreaming:
        raise NotStreamable(
            "nothing in it is a stream: name a topic (`millrace query --stream --tables`) or a table that is "
            "appended to, or leave out --stream"
        )
    names = Counter(name.lower() for name in asked.columns)
    if twice := [name for name, many in names.items() if many > 1]:
        raise NotStreamable(
            f"more than one column is called {', '.join(twice)}: give each a name of its own by AS"
        )
    enough = threading.Event()
    failed: list[Exception] = []
    refused: list[PySparkException] = []
    for mode in _modes(asked, into):
        writer = _writer(asked, of, into, mode, enough, failed).option("checkpointLocation", str(checkpoint))
        writer = writer.trigger(availableNow=True) if until_end else writer.trigger(processingTime="1 second")
        try:
            query = writer.start()
        except PySparkException as error:
            refused.append(error)
        else:
            return _wait(query, for_s, lambda: stop() or enough.is_set(), failed)
    raise NotStreamable(f"Spark cannot stream this: {_said(refused[0])}") from None


def _modes(asked: DataFrame, into: Into) -> list[str]:
    """Return how rows may be given, what is wanted first.

    Those that a later batch may change are told anew where that can be: of sessions Spark tells none before
    it is complete, and so it does of the first rows of an aggregation (LIMIT).
    """
    if into.folder is not None or not _AGGREGATE.search(asked._jdf.queryExecution().analyzed().toString()):
        return ["append"]
    return ["update", "append"]


def _writer(
    asked: DataFrame, of: Streamed, into: Into, mode: str, enough: threading.Event, failed: list[Exception]
) -> DataStreamWriter:
    """Return what writes rows."""
    if into.topic is not None:
        rows = asked.select(F.to_json(F.struct("*")).alias("value")).writeStream.format("kafka")
        options = {**PRODUCER_DEFAULTS, **of.kafka, "topic": into.topic}
        return rows.options(**options).outputMode(mode)
    if into.folder is not None:
        kind = "parquet" if into.folder.suffix == ".parquet" else "delta"
        return asked.writeStream.format(kind).option("path", str(into.folder)).outputMode(mode)
    tell = into.tell
    assert tell is not None  # noqa: S101 - said by what calls

    def told(rows: DataFrame, _: int) -> None:
        try:
            batch = (rows if into.most is None else rows.limit(into.most)).toArrow()
            if (
                batch.num_rows
                and not enough.is_set()
                and tell(batch.column_names, list(rows_of(batch.to_batches())))
            ):
                enough.set()
        except Exception as error:  # Spark would tell it with all that stands around it
            failed.append(error)
            raise

    return asked.writeStream.outputMode(mode).foreachBatch(told)


def _views(spark: SparkSession, of: Streamed, found: Sequence[str], *, earliest: bool) -> None:
    by_name: dict[str, AppTopic | AppTable] = {topic.full_name: topic for topic in of.topics}
    by_name |= {table.full_name: table for table in of.tables}
    wanted = [by_name[name] for name in found]
    beside = any(isinstance(one, AppTopic) for one in wanted)
    for one in wanted:
        if isinstance(one, AppTopic):
            made = _topic(spark, one, of, earliest=earliest)
        elif beside or one.full_name in of.merged:
            made = spark.read.format("delta").load(str(one.folder))
        else:
            # Rows that are erased or expire end no query; those that are left with them are not told again.
            reader = spark.readStream.format("delta").option("skipChangeCommits", "true")
            if not earliest:
                reader = reader.option("startingVersion", "latest")
            made = reader.load(str(one.folder))
            if "_event_time" in made.columns:
                made = made.withWatermark("_event_time", of.delay)
        made.createOrReplaceTempView(f"`{one.full_name}`")


def _topic(spark: SparkSession, one: AppTopic, of: Streamed, *, earliest: bool) -> DataFrame:
    records = kafka_stream(
        spark, of.kafka, [one.topic], starting_offsets="earliest" if earliest else "latest"
    ).select("key", "value", "partition", "offset", "timestamp")
    masking = of.masking.get(one.app)
    if masking is not None:
        records = records.mapInArrow(_Masked(masking), records.schema)
    event = F.from_json(F.col("value").cast("string"), one.columns)
    made = records.where("value IS NOT NULL").select(
        event.alias("event"),
        F.col("key").cast("string").alias("_key"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_arrived"),
    )
    made = made.select("event.*", "_key", "_partition", "_offset", "_arrived")
    if not one.event_time:
        return made
    at = F.col(f"`{one.event_time}`")
    if one.is_ms:
        at = F.when(at.between(_LEAST_MS, _MOST_MS), F.timestamp_millis(at))
    if one.app in of.skews:
        latest = F.timestamp_millis(F.unix_millis("_arrived") + of.skews[one.app])
        at = F.when(at <= latest, at)
    return made.withColumn("_event_time", at).withWatermark("_event_time", of.delay)


@dataclass(frozen=True)
class _Masked:
    """Does to records what their app does where it reads them; headers are not read at all."""

    masking: Masking

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        masks = self.masking.open()
        for batch in batches:
            values = batch.column("value").to_pylist()
            there = [place for place, value in enumerate(values) if value is not None]
            for place, value in zip(there, masks.messages([values[p] for p in there]), strict=True):
                values[place] = value
            keys = [masks.value(key) for key in batch.column("key").to_pylist()]
            columns = [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), *batch.columns[2:]]
            yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _asked(spark: SparkSession, text: str, known: Sequence[str]) -> DataFrame:
    try:
        # Statements that are no query would be done when they are read.
        spark._jsparkSession.sessionState().sqlParser().parseQuery(text)  # noqa: SLF001
        return spark.sql(text)
    except ParseException as error:
        raise NotStreamable(_said(error)) from None
    except PySparkException as error:
        missing = re.search(r"TABLE_OR_VIEW_NOT_FOUND.*?view (\S+) cannot", str(error), re.DOTALL)
        if missing is not None:
            raise unknown_table(missing[1].replace("`", ""), known) from None
        raise NotStreamable(_said(error)) from None


def _wait(
    query: StreamingQuery, for_s: float | None, stop: Callable[[], bool], failed: Sequence[Exception]
) -> int:
    """Wait for a query's end; one that is to end may finish the batch that runs."""
    deadline = None if for_s is None else time.monotonic() + for_s
    try:
        while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type] # also parts of a second
            if stop() or (deadline is not None and time.monotonic() >= deadline):
                _end(query)
                break
    except StreamingQueryException as error:
        if failed and not isinstance(failed[0], PySparkException | Py4JError):
            raise failed[0] from None
        raise NotStreamable(_said(failed[0] if failed else error)) from None
    progress = query.lastProgress
    return 0 if progress is None else int(progress["batchId"]) + 1


def _end(query: StreamingQuery) -> None:
    last = time.monotonic() + _LAST_S
    while query.isActive and time.monotonic() < last:
        status = query.status
        if not status["isTriggerActive"] or "Waiting for" in status["message"]:
            break
        time.sleep(0.02)
    with contextlib.suppress(StreamingQueryException):
        query.stop()


def _said(error: Exception) -> str:
    """Return what Spark says is wrong, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = next(
        (line for line in lines if not line.startswith(("==", "^", "---", "JVM stacktrace"))), "unknown"
    )
    return _CONDITION.sub("", text).partition(" SQLSTATE:")[0].rstrip(";.")
