"""Plays a plan on Spark: a streaming query over a folder of files, one file a batch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.host.spark import ProcessedStream, keyed
from millrace.host.spark_clock import clock_settings_for
from millrace.host.spark_uploads import AwaitingUploads
from millrace.host.system import Drain, Tick, encode_system
from millrace.playback.files import write_batches
from millrace.playback.steps import END, Batch, Control, Emitted, Plan, Restart, events_of
from millrace.runtime.clock_files import Epoch
from millrace.runtime.session import local_session

_SCHEMA: Final = "value string, input string, position string, control boolean, arrived long"
#: Few, because every control event goes to each of them.
_KEY_GROUPS: Final = 4


def play_on_spark(plan: Plan) -> list[Batch]:
    """Return every batch of a plan with what comes out of it.

    A restart ends the query, and another one goes on from the checkpoint.

    Args:
        plan: What to play.
    """
    spark = local_session()
    played: list[Batch] = []
    with tempfile.TemporaryDirectory(prefix="millrace-") as name:
        folder = Path(name)
        if plan.bounded:
            (batch,) = plan.batches()
            _write(plan, batch, folder / "input", 0)
            stream = build(plan, spark.read.schema(_SCHEMA).json(f"{folder}/input"))
            return [batch._replace(emitted=_emitted(stream, stream.raw))]
        coming: list[Batch] = []
        for number, batch in enumerate(plan.batches()):
            if isinstance(batch.step, Restart):
                played += [*_query(plan, coming, spark, folder), batch]
                coming = []
            else:
                coming.append(batch)
                _write(plan, batch, folder / "input", number)
        return played + _query(plan, coming, spark, folder)


def _query(plan: Plan, coming: list[Batch], spark: SparkSession, folder: Path) -> list[Batch]:
    """Run one query over all files that are new, a file a batch, to their end."""
    played: list[Batch] = []
    if not coming:
        return played
    files = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1)
    stream = build(plan, files.json(f"{folder}/input"))

    def take(frame: DataFrame, batch: int) -> None:
        emitted = _emitted(stream, frame)
        if len(played) < len(coming):
            played.append(coming[len(played)]._replace(emitted=emitted))
        elif emitted:
            raise RuntimeError(f"batch {batch} was not to come, and has {emitted}")

    writer = (
        stream.raw.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
        .foreachBatch(AwaitingUploads(take, folder / "checkpoint" / "state"))
        .trigger(availableNow=True)
    )
    # The end of the input is for this checkpoint, as its identity in the clock's settings says.
    clock = msgspec.structs.replace(stream.clock, incarnation=END.incarnation)
    with clock_settings_for(spark, [Epoch(0, clock)]):
        query = writer.start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return played


def _emitted(stream: ProcessedStream, frame: DataFrame) -> list[Emitted]:
    rows = stream.rows(frame).collect()
    return [Emitted(r.output, r.key, r.event_time_ms, r.on_time, bytes(r.payload)) for r in rows]


def build(plan: Plan, records: DataFrame) -> ProcessedStream:
    """Return a plan's topology over its records: what one would write in a job."""
    inputs = plan.topology.inputs
    by = {name: [str(part) for part in one.parts] for name, one in inputs.items()}
    times = {name: one.event_time for name, one in inputs.items()}
    clocks = {name: one.clock for name, one in inputs.items()}
    alone = "" in inputs
    stream = keyed(
        records,
        tag=None if alone else "input",
        by=by[""] if alone else by,
        event_time=times[""] if alone else times,
        clock=clocks[""] if alone else clocks,
        out_of_orderness=plan.bound_ms,
        value="value",
        source_id="position",
        control=F.col("control"),
        key_groups=_KEY_GROUPS,
        arrived_at=F.timestamp_millis("arrived") if plan.arrived_at else None,
    )
    return stream.run(plan.topology)


def _write(plan: Plan, batch: Batch, folder: Path, number: int) -> None:
    """Write the file of a batch."""
    rows = [{"position": f"{number}:{line}", **row} for line, row in enumerate(_rows(plan, batch.step))]
    write_batches(folder, [rows], start=number)


def _rows(plan: Plan, step: Any) -> Iterator[dict[str, Any]]:
    if isinstance(step, Control):
        yield {"value": msgspec.json.encode(step.event).decode(), "control": True}
    elif isinstance(step, Tick | Drain):
        yield {"value": encode_system(step).decode(), "control": True}
    for event in events_of(step):
        yield {
            "value": msgspec.json.encode(event).decode(),
            "input": plan.topology.input_of(event),
            "control": False,
            "arrived": plan.arrived(event),
        }
