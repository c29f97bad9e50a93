"""What the pipelines of apps begin with: the records of their topics, keyed as the settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.host.spark import KeyedStream, keyed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from millrace.runtime.settings import AppSettings


def keyed_records(records: DataFrame, settings: AppSettings, *, by: str, control: Column) -> KeyedStream:
    """Return the JSON events of an app's topics by a field of theirs.

    Their time is the field ``event_time_ms``, their contract has version 1, and what cannot be read keeps its
    place, key and headers.

    Args:
        records: Kafka records, as :func:`millrace.connectors.kafka.kafka_stream` gives them.
        settings: The app's settings: disorder, headers, key groups and profile.
        by: Field of the events that is their key.
        control: Whether a record is a control event.
    """
    stream = settings.stream
    return keyed(
        records,
        value="value",
        by=by,
        event_time="event_time_ms",
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
        profile=stream.profile,
    )
