"""One Spark session for all tests of this folder, and streams that are driven batch by batch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from millrace.host.groups import group_labels
from millrace.host.spark import ProcessedStream
from millrace.host.spark_clock import clock_settings_for
from millrace.host.spark_partitions import PARTITIONS_CONF
from millrace.host.station import HEADER, VARIABLE, place_of
from millrace.local.jars import ensure_jars
from millrace.runtime.clock_files import Epoch
from millrace.runtime.session import spark_session
from millrace.state.cells import CLOCK_PAGE, Header, read_clock, read_header
from millrace.state.envelope import unwrap
from millrace.time.clock import ClockState
from tests.spark.mirror import DRAIN

#: What the modules of tests import, and so Spark's Python processes that find a process there.
_LOADED = ("pytest", "hypothesis", "pyspark.testing", "chispa", "tests.spark.conftest")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with the settings of a real job and two state partitions."""
    ensure_jars(("spark",))
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    with spark_session(
        "tests", master="local[2]", shuffle_partitions=2, quick_start=True, log_file=log, preload=_LOADED
    ) as session:
        yield session


class Emitted(NamedTuple):
    """One row of a process's outputs, its payload decoded."""

    output: str
    event_id: str | None
    key: str
    event_time: int
    on_time: bool
    payload: Any


class Stream:
    """A stream whose batches are files: each file that was added becomes one micro-batch.

    Args:
        spark: The session.
        folder: An empty folder for the input and the checkpoint.
        schema: Schema of the rows, as Spark writes it.
        build: Makes the processed stream from the input.
        per_batch: Files per micro-batch.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        schema: str,
        build: Callable[[DataFrame], ProcessedStream],
        per_batch: int = 1,
    ) -> None:
        self._spark = spark
        self._input = folder / "input"
        self._input.mkdir(parents=True)
        self.checkpoint = folder / "checkpoint"
        self._schema = schema
        self._build = build
        self._per_batch = per_batch
        self._files = 0
        #: What every micro-batch emitted: batch id → rows.
        self.batches: dict[int, list[Emitted]] = {}
        self.late_drops = 0
        self.output: ProcessedStream | None = None
        #: Frames of the raw output to look at with the typed views: batch id → rows of an output.
        self.typed: dict[str, list[Row]] = {}
        self.views: Sequence[str] = ()

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add a micro-batch of rows; times as ISO text, bytes as base64."""
        path = self._input / f"{self._files:05}.json"
        path.write_bytes(b"\n".join(msgspec.json.encode(row) for row in rows))
        # Spark takes files by the time they were changed; a second apart leaves no doubt.
        os.utime(path, (1_000_000_000 + self._files, 1_000_000_000 + self._files))
        self._files += 1

    def run(self) -> None:
        """Start a query on the checkpoint, let it take all that was added, and end it."""
        source = (
            self._spark.readStream.schema(self._schema)
            .option("maxFilesPerTrigger", self._per_batch)
            .json(str(self._input))
        )
        self.output = self._build(source)
        writer = (
            self.output.raw.writeStream.option("checkpointLocation", str(self.checkpoint))
            .outputMode("append")
            .foreachBatch(self._keep)
            .trigger(availableNow=True)
        )
        # As write_to does it: a drain says which checkpoint it is for.
        clock = msgspec.structs.replace(self.output.clock, incarnation=DRAIN.incarnation)
        with clock_settings_for(self._spark, [Epoch(0, clock)]):
            query = writer.start()
        try:
            assert query.awaitTermination(150), "the query does not end"
        finally:
            query.stop()
        self._count_drops(query)

    def _keep(self, frame: DataFrame, batch: int) -> None:
        assert self.output is not None
        rows = self.output.rows(frame).collect()
        self.batches[batch] = [
            Emitted(r.output, r.event_id, r.key, r.event_time_ms, r.on_time, msgspec.json.decode(r.payload))
            for r in rows
        ]
        for view in self.views:
            if any(r.output == view for r in rows):
                local = self._spark.createDataFrame(frame.collect(), frame.schema)
                self.typed.setdefault(view, []).extend(self.output.select(local, view).collect())

    def _count_drops(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            for operator in progress["stateOperators"]:
                self.late_drops += operator["numRowsDroppedByWatermark"]

    @property
    def emitted(self) -> list[Emitted]:
        """Everything that was emitted."""
        return [e for batch in sorted(self.batches) for e in self.batches[batch]]

    def state(self, variable: str) -> list[Row]:
        """Return the stored rows of a state variable after the last batch."""
        reader = self._spark.read.format("statestore").option("path", str(self.checkpoint))
        return reader.option("stateVarName", variable).load().collect()

    def kept(self) -> list[tuple[str, int, int, bytes]]:
        """Return what is stored, in clear: process, label of the key group, number of the page, bytes."""
        assert self.output is not None
        if self.output.is_station:
            names = [link.name for link in self.output.topology.links]
            labels = group_labels(self.output.front.stations)
            return [
                (name, label, number, unwrap(data, place_of(name, label, number, station), None))
                for row in self.state(VARIABLE)
                if (at := row["user_map_key"])["link"] >= 0
                for name, label, number in [(names[at["link"]], at["label"], at["page"])]
                for data, station in [(bytes(row["user_map_value"]["data"]), labels.index(row["key"][0]))]
            ]
        name = self.output.process.name
        found = [(name, row["key"][0], HEADER, bytes(row["value"]["data"])) for row in self.state("header")]
        found += [
            (name, row["key"][0], row["user_map_key"]["page"], bytes(row["user_map_value"]["data"]))
            for row in self.state("pages")
        ]
        return [
            (name, label, number, unwrap(data, place_of(name, label, number), None))
            for name, label, number, data in found
        ]

    def headers(self) -> list[Header]:
        """Return the headers of the key groups that keep anything after the last batch."""
        return [read_header(data) for _, _, number, data in self.kept() if number == HEADER]

    def clocks(self) -> list[ClockState]:
        """Return what the clocks of the key groups say after the last batch: one thing, if any has begun."""
        found: list[ClockState] = []
        for _, _, number, data in self.kept():
            if number == CLOCK_PAGE:
                clock = read_clock(data)
                found += [] if clock in found else [clock]
        return found


@contextlib.contextmanager
def one_partition(spark: SparkSession, stations: int = 1) -> Iterator[None]:
    """Let queries that are made in the block have one state partition, as a station has, for each station."""
    before = spark.conf.get(PARTITIONS_CONF)
    spark.conf.set(PARTITIONS_CONF, str(stations))
    try:
        yield
    finally:
        spark.conf.set(PARTITIONS_CONF, before)


StreamFactory = Callable[..., Stream]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> StreamFactory:
    """Make a :class:`Stream` in a folder of its own."""
    made: list[Stream] = []

    def make(schema: str, build: Callable[[DataFrame], ProcessedStream], **options: Any) -> Stream:
        made.append(Stream(spark, tmp_path / f"stream-{len(made)}", schema, build, **options))
        return made[-1]

    return make
