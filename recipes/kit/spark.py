"""Plays a plan on Spark: a streaming query over a folder of files, one file a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace import keyed
from millrace.host.spark import ConnectedStreams, KeyedStream, ProcessedStream, connect
from millrace.host.spark_clock import announced
from millrace.host.system import Drain, Tick, encode_system
from millrace.runtime.clock_files import Epoch
from millrace_apps.recipes.kit.files import write_file
from millrace_apps.recipes.kit.play import END, Control, Out, Plan, Restart, Teller, Turn, turns

_SCHEMA: Final = "value string, source string, control boolean, arrived long"
#: Few, because every control event goes to each of them.
_KEY_GROUPS: Final = 4


def play_on_spark(plan: Plan, teller: Teller, spark: SparkSession, folder: Path) -> None:
    """Play a plan; a restart ends the query, and another one goes on from the checkpoint.

    Args:
        plan: What to play.
        teller: Told of every batch, as it is written.
        spark: The session.
        folder: An empty folder, for input and checkpoint.
    """
    names = tuple(plan.links[0][1].inputs) or ("",)
    inputs = [folder / "input" / name for name in names]
    for place in inputs:
        place.mkdir(parents=True)
    if plan.bounded:
        _write(plan, plan.whole, inputs, 0)
        stream = build(plan, spark, folder / "input")
        teller(Turn(plan.whole, None), _outs(stream, stream.raw))
        return
    coming: list[Turn] = []
    for number, turn in enumerate(turns(plan)):
        if isinstance(turn.step, Restart):
            _query(plan, coming, teller, spark, folder)
            coming = []
            teller(turn, [])
        else:
            coming.append(turn)
            _write(plan, turn.step, inputs, number)
    _query(plan, coming, teller, spark, folder)


def _query(plan: Plan, coming: Sequence[Turn], teller: Teller, spark: SparkSession, folder: Path) -> None:
    """Run one query over all files that are new, a file a batch, and wait for its end."""
    stream = build(plan, spark, folder / "input")
    expected = iter(coming)

    def tell(frame: DataFrame, batch: int) -> None:
        outs = _outs(stream, frame)
        turn = next(expected, None)
        if turn is not None:
            teller(turn, outs)
        elif outs:
            raise RuntimeError(f"batch {batch} was not to come, and has {outs}")

    writer = (
        stream.raw.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        .foreachBatch(tell)
        .trigger(availableNow=True)
    )
    # The end of the input is for this checkpoint, as its identity in the clock's settings says.
    clock = msgspec.structs.replace(stream.clock, incarnation=END.incarnation)
    with announced(spark, [Epoch(0, clock)]):
        query = writer.start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def _outs(stream: ProcessedStream, frame: DataFrame) -> list[Out]:
    rows = stream.rows(frame).collect()
    return [Out(r.output, r.key, r.event_time_ms, r.on_time, bytes(r.payload)) for r in rows]


def build(plan: Plan, spark: SparkSession, folder: Path) -> ProcessedStream:
    """Return the stream of a plan over its folder of files: what one would write in a job."""
    (_, first), *links = plan.links
    stream = _keyed(plan, spark, folder).process(first)
    for by, process in links:
        stream = stream.key_by(by).process(process)
    return stream


def _keyed(plan: Plan, spark: SparkSession, folder: Path) -> KeyedStream | ConnectedStreams:
    inputs = plan.links[0][1].inputs
    if not inputs:
        return keyed(_read(plan, spark, folder), **_how(plan))
    return connect(**{name: keyed(_read(plan, spark, folder / name), **_how(plan)) for name in inputs})


def _how(plan: Plan) -> Mapping[str, Any]:
    return {
        "by": plan.by,
        "event_time": plan.event_time,
        "out_of_orderness": plan.bound_ms,
        "value": "value",
        "source_id": "source",
        "control": F.col("control"),
        "key_groups": _KEY_GROUPS,
        "arrived_at": F.timestamp_millis("arrived") if plan.arrived_at else None,
    }


def _read(plan: Plan, spark: SparkSession, folder: Path) -> DataFrame:
    if plan.bounded:
        return spark.read.schema(_SCHEMA).json(str(folder))
    return spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


def _write(plan: Plan, step: Any, inputs: Sequence[Path], number: int) -> None:
    """Write the file (of a process with several inputs, the files) of a step."""
    types = list(plan.links[0][1].inputs.values()) or [object]
    for place, (folder, tp) in enumerate(zip(inputs, types, strict=True)):
        events = [event for event in plan.events(step) if isinstance(event, tp)]
        rows = [(msgspec.json.encode(event), False, plan.arrived(event)) for event in events]
        if place == 0 and isinstance(step, Control):
            rows = [(msgspec.json.encode(step.event), True, None)]
        elif place == 0 and isinstance(step, Tick | Drain):
            rows = [(encode_system(step), True, None)]
        lines = [
            msgspec.json.encode(
                {
                    "value": value.decode(),
                    "source": f"{place}:{number}:{line}",
                    "control": control,
                    "arrived": arrived,
                }
            )
            for line, (value, control, arrived) in enumerate(rows)
        ]
        write_file(folder, number, lines)
