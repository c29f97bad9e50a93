"""Kafka through Spark: a source whose rows know where they came from, and a sink with identities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

#: Consumer settings of the source. After each read Spark asks for a partition's ends, and the broker answers
#: only when it is done with the read ahead that the consumer has begun meanwhile: half a second by default
#: where nothing more comes.
CONSUMER_DEFAULTS = {"kafka.fetch.max.wait.ms": "5"}
#: Producer settings of the sink: Spark's defaults send every record on its own.
PRODUCER_DEFAULTS = {
    "kafka.linger.ms": "20",
    "kafka.batch.size": "262144",
    "kafka.compression.type": "lz4",
    "kafka.enable.idempotence": "true",
    "kafka.acks": "all",
}


def kafka_stream(
    spark: SparkSession,
    options: Mapping[str, str],
    topics: Sequence[str],
    *,
    starting_offsets: str = "earliest",
    max_offsets_per_trigger: int | None = None,
) -> DataFrame:
    """Return a stream of Kafka records.

    Args:
        spark: The session.
        options: Kafka options with Spark's prefix (``kafka.bootstrap.servers`` and the like).
        topics: Topics to subscribe; their number is part of a checkpoint, so a control topic is
            subscribed from the first day.
        starting_offsets: ``earliest`` or ``latest``, for partitions the checkpoint does not know.
        max_offsets_per_trigger: Most records of one batch.

    Returns:
        Columns key, value (binary), topic, partition, offset, timestamp, headers (as Kafka has
        them: an array of key and value) and source_id (``topic:partition:offset``).
    """
    reader = (
        spark.readStream.format("kafka")
        .options(**CONSUMER_DEFAULTS)
        .options(**options)
        .option("subscribe", ",".join(topics))
        .option("startingOffsets", starting_offsets)
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
    )
    if max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", max_offsets_per_trigger)
    return with_source_id(reader.load())


def with_source_id(records: DataFrame) -> DataFrame:
    """Add ``source_id`` (``topic:partition:offset``) to Kafka records."""
    position = F.concat_ws(":", "topic", F.col("partition").cast("string"), F.col("offset").cast("string"))
    return records.withColumn("source_id", position)


def write_records(records: DataFrame, options: Mapping[str, str]) -> None:
    """Write a batch with the columns topic, key, value and headers to Kafka, at least once.

    Args:
        records: The batch.
        options: Kafka options with Spark's prefix.
    """
    (records.write.format("kafka").options(**PRODUCER_DEFAULTS).options(**options)
     .option("includeHeaders", "true").save())  # fmt: skip


def header(name: str, value: Column) -> Column:
    """Return one Kafka header as Spark's sink takes it."""
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))
