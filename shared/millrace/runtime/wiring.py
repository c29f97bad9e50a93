"""What the pipelines of apps begin with: the records of their topics, keyed as the settings say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from millrace.host.spark import Key, KeyedStream, keyed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from millrace.runtime.settings import AppSettings


def keyed_records(
    records: DataFrame,
    settings: AppSettings,
    *,
    by: Key | Mapping[str, Key],
    control: Column,
    topics: Mapping[str, str] | None = None,
    event_time: str | Mapping[str, str] = "event_time_ms",
    clock: bool | Mapping[str, bool] = True,
) -> KeyedStream:
    """Return the JSON events of an app's topics by their key.

    Their contract has version 1, and what cannot be read keeps its bytes, place, key and headers.

    Args:
        records: Kafka records, as :func:`millrace.connectors.kafka.kafka_stream` gives them.
        settings: The app's settings: disorder, headers, clock and key groups.
        by: What is their key: a field of the events, an expression, or several of these. With ``topics``:
            input of the process → its key.
        control: Whether a record is a control event.
        topics: Of a process with several inputs: input → the topic that its events come by. All are read at
            once.
        event_time: Field of their time, or input → field.
        clock: Whether they move the watermark, or input → whether its events do.
    """
    stream = settings.stream
    return keyed(
        records,
        value="value",
        by=by,
        tag=None if topics is None else _input_of(topics),
        event_time=event_time,
        out_of_orderness=stream.out_of_orderness,
        source_id="source_id",
        headers="headers",
        keep_headers=stream.keep_headers,
        control=control,
        arrived_at="timestamp",
        max_future_skew=stream.max_future_skew,
        record_key="key",
        versions=("1",),
        key_groups=settings.spark.key_groups,
        clock=clock,
        clock_skew="off" if stream.clock_skew is None else stream.clock_skew,
        max_offsets=stream.max_offsets_per_trigger,
        full_batches=stream.full_batches,
        follow=stream.follow,
        idle_after=stream.source_idle_after,
    )


def _input_of(topics: Mapping[str, str]) -> Column:
    """Return the input that a record is of, by its topic."""
    return F.coalesce(*[F.when(F.col("topic") == topic, name) for name, topic in topics.items()])
