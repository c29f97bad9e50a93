"""Topologies on Spark: the records of an app's topics, keyed and processed as its topology says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from millrace.connectors.router import Outputs
from millrace.host.spark import ProcessedStream, keyed
from millrace.host.spark_input import KAFKA_PLACE, Plan
from millrace.runtime.apps import input_versions
from millrace.topology.keys import FirstOf, KeyingError, KeyPart, RecordKey

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from millrace.host.packing import Masking
    from millrace.runtime.apps import App
    from millrace.runtime.settings import AppSettings
    from millrace.topology import Input, Topology


def outputs_of(
    app: App, records: DataFrame, settings: AppSettings, plan: Plan = "chain", stations: int = 1
) -> Outputs:
    """Return an app's pipeline; nothing starts here.

    Args:
        app: The app.
        records: Kafka records of all its topics (:func:`millrace.connectors.kafka.kafka_stream`).
        settings: The app's settings.
        plan: How the topology runs.
        stations: How many stations there are.

    Raises:
        KeyingError: The topology does not name what is read.
    """
    topology = app.topology(settings)
    _check_clocks(app, topology, settings)
    versions = input_versions(app, topology)
    masking = app.masking(settings) if app.masking else None
    stream = stream_of(topology, records, settings, plan, stations, versions=versions, masking=masking)
    suffix = settings.kafka.output_suffix
    topics = {output: f"{topic}{suffix}" for output, topic in topology.topics.items()}
    return Outputs(stream, topology.tables, topics)


def _check_clocks(app: App, topology: Topology, settings: AppSettings) -> None:
    """Refuse an app whose topics and inputs disagree on what moves the watermark."""
    of_topics = {topic.name: topic.clock for topic in app.topics(settings).reads}
    for name, one in topology.inputs.items():
        if of_topics.get(one.topic, one.clock) != one.clock:
            raise KeyingError(
                f"{app.name}: the topic {one.topic} is {'a' if not one.clock else 'no'} clock, its input "
                f"{name or 'without a name'} is {'a' if one.clock else 'none'}: say the same of both"
            )


def stream_of(
    topology: Topology,
    records: DataFrame,
    settings: AppSettings,
    plan: Plan = "chain",
    stations: int = 1,
    *,
    versions: Sequence[str] = ("1",),
    masking: Masking | None = None,
) -> ProcessedStream:
    """Return a topology at work on the JSON events of Kafka topics.

    What cannot be read keeps its bytes, place, key and headers.

    Args:
        topology: The topology.
        records: Kafka records, as :func:`millrace.connectors.kafka.kafka_stream` gives them.
        settings: The app's settings: disorder, headers, clock and key groups.
        plan: How it runs.
        stations: How many stations there are.
        versions: The versions of contracts that are read; others go to the dead letters.
        masking: What is done to events, headers and keys of records before anything else.

    Raises:
        KeyingError: An input names no topic, or what the records do not have.
    """
    stream, inputs = settings.stream, topology.inputs
    if unknown := [name or "the only one" for name, one in inputs.items() if not one.topic]:
        raise KeyingError(f"the inputs come by topics; {', '.join(unknown)} names none")
    # Alike parts are one column, so that it is worked out once per row.
    parts = {part for one in inputs.values() for part in one.parts if not isinstance(part, str)}
    columns: dict[KeyPart, Column] = {part: _column(part) for part in parts}

    def each(read: Callable[[Input], Any]) -> Any:
        """Return what is said of the only input, or of each by its name."""
        said = {name: read(one) for name, one in inputs.items()}
        return said.get("", said)

    made = keyed(
        records,
        value="value",
        by=each(lambda one: [columns.get(part, part) for part in one.parts]),
        tag=None if "" in inputs else _input_of(inputs),
        event_time=each(lambda one: one.event_time),
        out_of_orderness=stream.out_of_orderness,
        source_id=KAFKA_PLACE,
        headers="headers",
        keep_headers=stream.keep_headers,
        control=None if topology.control is None else F.col("topic") == topology.control,
        arrived_at="timestamp",
        max_future_skew=stream.max_future_skew,
        record_key="key",
        versions=versions,
        key_groups=settings.spark.key_groups,
        clock=each(lambda one: one.clock),
        clock_skew="off" if stream.clock_skew is None else stream.clock_skew,
        max_offsets=stream.max_offsets_per_trigger,
        full_batches=stream.full_batches,
        follow=stream.follow,
        idle_after=stream.source_idle_after,
        plan=plan,
        stations=stations,
        masking=masking,
    )
    return made.run(topology)


def _column(part: KeyPart) -> Column:
    return F.coalesce(*[_text(one) for one in (part.parts if isinstance(part, FirstOf) else (part,))])


def _text(part: KeyPart) -> Column:
    if isinstance(part, RecordKey):
        return F.nullif(F.col("key").cast("string"), F.lit(""))
    if isinstance(part, str):
        return F.nullif(F.get_json_object(F.col("value").cast("string"), f"$['{part}']"), F.lit(""))
    raise KeyingError(f"{part} is no part of a record")


def _input_of(inputs: Mapping[str, Input]) -> Column:
    """Return the input that a record is of, by its topic."""
    return F.coalesce(*[F.when(F.col("topic") == one.topic, name) for name, one in inputs.items()])
