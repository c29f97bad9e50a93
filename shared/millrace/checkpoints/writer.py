"""Writes key groups into a state store of Spark's, as the operator of a query would have left them.

Spark has no writer for state. What it has is the operator itself: a query of one batch, whose processor
puts the bytes of each group where :class:`~millrace.host.spark_worker.KeyGroupProcessor` keeps them,
leaves a state store that a query of the process goes on from.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from millrace.checkpoints.checkpoint import Checkpoint, Position, rewrite
from millrace.host.groups import group_labels
from millrace.host.spark_station import BYTES_SCHEMA, PLACE_SCHEMA
from millrace.host.spark_worker import OUTPUT_SCHEMA
from millrace.host.station import BROADCAST, HEADER, TOKEN, VARIABLE, Head
from millrace.state.cells import encode

#: Rows of key groups: station, label, number (of a page, ``HEADER``, ``BROADCAST``), bytes.
GROUPS_SCHEMA = t.StructType(
    [
        t.StructField("station", t.IntegerType()),
        t.StructField("label", t.IntegerType()),
        t.StructField("number", t.LongType()),
        t.StructField("data", t.BinaryType()),
    ]
)
_BYTES = t.StructType([t.StructField("data", t.BinaryType())])
_PAGE = t.StructType([t.StructField("page", t.LongType())])
_PARTITIONS = "spark.sql.shuffle.partitions"
#: A query of one batch; a second one without data may follow it.
_WAIT_S = 3_600


class GroupWriter(StatefulProcessor):
    """Puts the bytes of key groups into state; its variables are those of a process.

    Args:
        has_broadcast: Whether the process keeps broadcast state.
    """

    def __init__(self, *, has_broadcast: bool) -> None:
        self._has_broadcast = has_broadcast

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the group's state."""
        self._header = handle.getValueState("header", _BYTES)
        self._pages = handle.getMapState("pages", _PAGE, _BYTES)
        self._broadcast = handle.getValueState("broadcast", _BYTES) if self._has_broadcast else None

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Write one group."""
        for row in rows:
            if row.number == HEADER:
                self._header.update((bytes(row.data),))
            elif row.number == BROADCAST and self._broadcast is not None:
                self._broadcast.update((bytes(row.data),))
            else:
                self._pages.updateValue((row.number,), (bytes(row.data),))
        return iter(())

    def close(self) -> None:
        """Nothing to release."""


class StationWriter(StatefulProcessor):
    """Puts the bytes of all key groups of stations into state, of each under a key of its own."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        self._pages = handle.getMapState(VARIABLE, PLACE_SCHEMA, BYTES_SCHEMA)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Write them."""
        for row in rows:
            self._pages.updateValue((row.link, row.label, row.number), (bytes(row.data),))
        return iter(())

    def close(self) -> None:
        """Nothing to release."""


@dataclass(frozen=True)
class Written:
    """A state store that was written.

    Attributes:
        checkpoint: The checkpoint of the query that wrote it.
        batch: Its last batch.
    """

    checkpoint: Checkpoint
    batch: int


def write_groups(groups: DataFrame, folder: Path, *, partitions: int, has_broadcast: bool) -> Written:
    """Write key groups into a new state store.

    Args:
        groups: Rows as in :data:`GROUPS_SCHEMA`.
        folder: An empty folder to work in.
        partitions: Into how many the state is divided.
        has_broadcast: Whether the process keeps broadcast state.
    """
    groups.write.parquet(str(folder / "groups"))
    # The state's key must be what it is in a query of the process: an int that is never null.
    by = F.coalesce("label", F.lit(0))
    return _written(groups.sparkSession, folder, by, GroupWriter(has_broadcast=has_broadcast), partitions)


def keep_link(groups: DataFrame, shared: pa.Table, folder: Path, link: int) -> None:
    """Add the key groups of a link, and what they share, to what :func:`write_station` is to write.

    Args:
        groups: Rows as in :data:`GROUPS_SCHEMA`.
        shared: Rows like them, of the label ``SHARED``.
        folder: The folder that is worked in.
        link: Number of the link.
    """
    place = F.lit(link).alias("link")
    groups.select(place, *GROUPS_SCHEMA.names).write.mode("append").parquet(str(folder / "groups"))
    if shared.num_rows:
        rows = [(link, *row.values()) for row in shared.to_pylist()]
        schema = t.StructType([t.StructField("link", t.IntegerType()), *GROUPS_SCHEMA.fields])
        made = groups.sparkSession.createDataFrame(rows, schema)
        made.coalesce(1).write.mode("append").parquet(str(folder / "groups"))


def write_stations(session: SparkSession, folder: Path, ticks: list[int | None], stations: int) -> Written:
    """Write what :func:`keep_link` has kept into the state stores of stations.

    Args:
        session: A session.
        folder: The folder that is worked in.
        ticks: The last tick of processing time of each link, ms.
        stations: How many there are.
    """
    head = encode(Head(b"", ticks))  # of no worker: the first one reads all it needs
    schema = t.StructType([t.StructField("link", t.IntegerType()), *GROUPS_SCHEMA.fields])
    link, *place = TOKEN
    made = session.createDataFrame([(link, number, *place, head) for number in range(stations)], schema)
    made.coalesce(1).write.mode("append").parquet(str(folder / "groups"))
    labels = F.array(*map(F.lit, group_labels(stations)))
    by = F.coalesce(F.get(labels, F.col("station")), F.lit(0))  # never null, as in a query
    return _written(session, folder, by, StationWriter(), stations)


def _written(
    session: SparkSession, folder: Path, by: Column, processor: StatefulProcessor, partitions: int
) -> Written:
    """Run a query of one batch over the rows in a folder, whose operator puts them into its state."""
    schema = session.read.parquet(str(folder / "groups")).schema
    rows = session.readStream.schema(schema).parquet(str(folder / "groups"))
    before = session.conf.get(_PARTITIONS, None)
    session.conf.set(_PARTITIONS, str(partitions))
    try:
        written = (
            rows.withColumn("_group", by)
            .groupBy("_group")
            .transformWithState(
                statefulProcessor=processor,
                outputStructType=OUTPUT_SCHEMA,
                outputMode="Append",
                timeMode="None",
            )
        )
        query = (
            written.writeStream.format("noop")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(_WAIT_S)
        finally:
            query.stop()
    finally:
        if before is not None:
            session.conf.set(_PARTITIONS, before)
    shutil.rmtree(folder / "groups")
    checkpoint = Checkpoint(folder, folder / "checkpoint")
    return Written(checkpoint, checkpoint.last())


def assemble(
    folder: Path,
    written: dict[int, Written],
    *,
    position: Position,
    sources: Path | None,
) -> None:
    """Make a checkpoint of state stores that were written, to go on from a position.

    Args:
        folder: An empty folder: it becomes the checkpoint.
        written: Number of the operator → its state.
        position: Where the sources stand.
        sources: Spark's notes on the sources, if there are any.
    """
    (folder / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    if sources is not None and sources.is_dir():
        shutil.copytree(sources, folder / "sources")
    batches = {w.batch for w in written.values()}
    if len(batches) != 1:
        raise RuntimeError(f"state stores of different versions were written: {sorted(batches)}")
    batch = batches.pop()
    ids: dict[str, Any] = {}
    conf: dict[str, str] = {}
    for operator, one in written.items():
        _adopt(one.checkpoint.folder / "state" / "0", folder / "state" / str(operator), operator)
        ids[str(operator)] = one.checkpoint.commit(batch).get("stateUniqueIds", {}).get("0")
        conf = one.checkpoint.position(batch).metadata["conf"]
    metadata = {
        **position.metadata,
        "batchWatermarkMs": 0,
        "conf": {**position.metadata.get("conf", {}), **conf},
    }
    known = all(ids.values())
    commit = {"nextBatchWatermarkMs": 0, **({"stateUniqueIds": ids} if known else {})}
    for log, lines in (
        ("offsets", ["v1", _json(metadata), *("-" if s is None else s for s in position.sources)]),
        ("commits", ["v2" if known else "v1", _json(commit)]),
    ):
        (folder / log).mkdir()
        for number in range(batch + 1):
            (folder / log / str(number)).write_text("\n".join(lines))


def _adopt(source: Path, target: Path, operator: int) -> None:
    """Move the state of the only operator of a query to that of another number."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(source, target)
    for path in (target / "_metadata" / "v2").iterdir():
        if path.name.isdigit():
            version, text = path.read_text().split("\n", 1)
            about = json.loads(text)
            about["operatorInfo"]["operatorId"] = operator
            rewrite(path, f"{version}\n{_json(about)}")


def _json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"))
