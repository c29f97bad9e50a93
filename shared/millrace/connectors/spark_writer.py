"""Large batches: every output written by Spark's tasks, topics before tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.connectors.kafka import header, write_records
from millrace.connectors.records import (
    DEAD_LETTER_HEADERS,
    LEFT_OUT_HEADER,
    MOST_KEY_BYTES,
    MOST_LETTER_BYTES,
    is_dead_letters,
)
from millrace.connectors.router import DeadLetterLimit, OnClock, OnReasons, Outputs
from millrace.host.spark_sink import counted, not_written
from millrace.local.belonging import adopted
from millrace.topology import Upsert
from millrace.topology.sinks import Table, table_name

#: Column that tells which of two equal versions came last.
_PLACE = "_place"


@dataclass
class SparkWriter:
    """Writes a batch with Spark.

    The batch is kept (memory and disk) while its outputs are written, so that the state is computed
    once; tables are written side by side.

    Args:
        outputs: What goes where.
        table_path: Name of a table → its folder or URI.
        kafka_options: Kafka options with Spark's prefix.
        app_id: Identity of the query for the tables.
        limit: When a batch has too many dead letters.
        written: After a savepoint was restored: table → file of the records that it has already.
        stamp: Header → text that all dead letters get: who wrote them.
        on_clock: Called with each batch and how far its clock is.
        on_reasons: Called with each batch that has dead letters and how many there are of each reason.
    """

    outputs: Outputs
    table_path: Callable[[str], str]
    kafka_options: Mapping[str, str]
    app_id: str
    limit: DeadLetterLimit
    written: Mapping[str, Path] = field(default_factory=dict)
    stamp: Mapping[str, str] = field(default_factory=dict)
    on_clock: OnClock | None = None
    on_reasons: OnReasons | None = None

    def write(self, batch: DataFrame, batch_id: int) -> dict[str, int]:
        """Write one batch and return the number of records per output."""
        batch.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts, status = counted(batch)
            self.limit.check(batch_id, counts)
            self._write_topics(batch, [o for o in self.outputs.topics if counts.get(o)])
            self._write_tables(batch, [w for w in self.outputs.written if counts.get(w[0])], batch_id)
            if self.on_reasons is not None and (
                dead := [o for o in counts if is_dead_letters(o) and counts[o]]
            ):
                self.on_reasons(batch_id, self._reasons(batch, dead))
        finally:
            batch.unpersist()
        if status is not None and self.on_clock is not None:
            self.on_clock(batch_id, status)
        return counts

    def _reasons(self, batch: DataFrame, outputs: list[str]) -> dict[str, int]:
        rows = self.outputs.stream.rows(batch.filter(F.col("output").isin(outputs)))
        reason = F.get_json_object(F.col("payload").cast("string"), "$.reason").alias("reason")
        return {
            row["reason"]: row["count"] for row in rows.select(reason).groupBy("reason").count().collect()
        }

    def _write_topics(self, batch: DataFrame, outputs: list[str]) -> None:
        for output in outputs:
            write_records(self.records(batch, output), self.kafka_options)

    def records(self, batch: DataFrame, output: str) -> DataFrame:
        """Return an output as Kafka records: the record as JSON, its identity as a header."""
        chunks = batch.filter(F.col("output") == output)
        topic = F.lit(self.outputs.topics[output]).alias("topic")
        key = F.regexp_replace("key", r"^\d+:", "").cast("binary").alias("key")
        if not is_dead_letters(output):
            headers = F.array(header("event_id", F.col("event_id"))).alias("headers")
            rows = self.outputs.stream.rows(chunks)
            return rows.select(topic, key, F.col("payload").alias("value"), headers)
        letters = self.outputs.stream.select(chunks, output)
        where = F.concat_ws(":", "topic", F.col("partition").cast("string"), F.col("offset").cast("string"))
        derived = F.regexp_replace(F.coalesce("key", F.lit("")), r"^\d+:", "").cast("binary")
        key = F.coalesce("kafka_key", derived)
        length = F.coalesce(F.octet_length("value"), F.lit(0))
        size = F.octet_length(key) + length + F.coalesce(F.octet_length("headers"), F.lit(0))
        fits = size <= MOST_LETTER_BYTES
        columns = {
            **{n: F.col(f).cast("string") for n, f in DEAD_LETTER_HEADERS.items()},
            "dlq.headers": F.when(fits, F.col("headers")),
            LEFT_OUT_HEADER: F.when(~fits, length.cast("string")),
            "dlq.source": where,
            **{n: F.lit(text) for n, text in self.stamp.items()},
        }
        headers = F.filter(
            F.array(*[header(n, c) for n, c in columns.items()]), lambda h: h["value"].isNotNull()
        )
        short = F.when(fits | (F.octet_length(key) <= MOST_KEY_BYTES), key).otherwise(F.lit(b""))
        value = F.when(fits, F.col("value"))
        return letters.select(topic, short.alias("key"), value.alias("value"), headers.alias("headers"))

    def _write_tables(self, batch: DataFrame, written: list[tuple[str, Table]], batch_id: int) -> None:
        def write(one: tuple[str, Table]) -> None:
            output, to = one
            table, rows = table_name(to), self.outputs.stream.select(batch, output)
            if isinstance(to, Upsert):
                _merge(rows, to, self.table_path(table))
                return
            if table in self.written:
                rows = not_written(rows, str(self.written[table]))
            (rows.write.format("delta").mode("append")
             .option("txnAppId", f"{self.app_id}:{table}").option("txnVersion", batch_id)
             .save(self.table_path(table)))  # fmt: skip

        with ThreadPoolExecutor(max(1, len(written)), "millrace-write", adopted()) as pool:
            list(pool.map(write, written))


def _merge(rows: DataFrame, upsert: Upsert, path: str) -> None:
    """Merge a batch's last record per key; it changes nothing when it is done again."""
    from delta.tables import DeltaTable

    order = [*upsert.versions, _PLACE]
    whole = F.struct(*[F.col(name) for name in rows.columns])
    placed = rows.withColumn(_PLACE, F.monotonically_increasing_id())
    newest = F.max_by(whole, F.struct(*order)).alias("whole")
    last = placed.groupBy(*upsert.key).agg(newest).select("whole.*")
    newer = upsert.newer("t", "s")
    merge = (
        DeltaTable.forPath(rows.sparkSession, path)
        .alias("t")
        .merge(last.alias("s"), upsert.matching("t", "s"))
    )
    if upsert.deleted is None:
        merge.whenMatchedUpdateAll(newer).whenNotMatchedInsertAll().execute()
        return
    gone = f"s.`{upsert.deleted}` IS TRUE"
    merge = merge.whenMatchedDelete(gone if newer is None else f"{gone} AND ({newer})")
    merge.whenMatchedUpdateAll(newer).whenNotMatchedInsertAll(f"NOT ({gone})").execute()
