"""Reads key groups out of a checkpoint with Spark, a group at a time in its workers."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from millrace.checkpoints.checkpoint import Checkpoint
from millrace.checkpoints.entries import KeptEntry
from millrace.checkpoints.groups import StoredGroup
from millrace.checkpoints.lookup import entry_in
from millrace.checkpoints.reshape import Shared
from millrace.checkpoints.stages import Stage, keys_for, stage_of
from millrace.host.groups import encode_key, group_labels
from millrace.host.station import BROADCAST, HEADER, SHARED, TOKEN, VARIABLE, place_of, read_head
from millrace.state.cells import CLOCK_PAGE, read_clock
from millrace.state.envelope import Place, unwrap
from millrace.state.keyring import KeyReference
from millrace.time.clock import ClockState

_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


@dataclass(frozen=True)
class StateView:
    """The state of one process as of a batch, copied so that a running query cannot take it away.

    Attributes:
        spark: The session.
        checkpoint: The copy, with the original's contract beside it.
        batch: The batch.
        stage: The process.
        keys: What its state is encrypted with.
    """

    spark: SparkSession
    checkpoint: Checkpoint
    batch: int
    stage: Stage
    keys: KeyReference | None

    def __post_init__(self) -> None:
        # A store that is read from a snapshot reports to a coordinator, which comes with the first look at
        # the session's streams. Without it the reader waits for two minutes, and fails.
        self.spark.streams  # noqa: B018

    def _variable(self, name: str) -> DataFrame:
        reader = self.spark.read.format("statestore").option("path", str(self.checkpoint.folder))
        reader = reader.option("operatorId", self.stage.operator).option("batchId", self.batch)
        return reader.option("stateVarName", name).load()

    def stored(self, labels: Column | None = None, pages: Column | None = None) -> DataFrame:
        """Return the bytes of key groups.

        Args:
            labels: Which groups, as a condition on ``label``.
            pages: Which pages of them, as a condition on ``number``; unless given, all but clocks.

        Returns:
            Columns station, label, number (of a page; ``HEADER`` and ``BROADCAST`` for the others) and data.
        """
        if self.stage.link is not None:
            found_there = self._in_station().filter(F.col("label") != SHARED)
            found_there = found_there if pages is None else found_there.filter((F.col("number") < 0) | pages)
            return found_there if labels is None else found_there.filter(labels)
        kinds = {"header": HEADER, "broadcast": BROADCAST} if self.stage.has_broadcast else {"header": HEADER}
        found: DataFrame | None = None
        for name, number in kinds.items():
            of_name = self._variable(name).select(
                F.col("key._group").alias("label"),
                F.lit(number).cast("bigint").alias("number"),
                F.col("value.data").alias("data"),
            )
            found = of_name if found is None else found.unionByName(of_name)
        in_pages = self._variable("pages").select(
            F.col("key._group").alias("label"),
            F.col("user_map_key.page").alias("number"),
            F.col("user_map_value.data").alias("data"),
        )
        in_pages = in_pages.filter(F.col("number") != CLOCK_PAGE if pages is None else pages)
        assert found is not None  # noqa: S101  (there is always a header)
        found = found.unionByName(in_pages).withColumn("station", F.lit(0))
        return found if labels is None else found.filter(labels)

    def _in_station(self) -> DataFrame:
        """Return all that stations keep of the process, columns station, label, number and data."""
        rows = self._variable(VARIABLE).filter(F.col("user_map_key.link") == F.lit(self.stage.link))
        labels = F.array(*map(F.lit, group_labels(self.stage.stations)))
        return rows.select(
            (F.array_position(labels, F.col("key._group")) - 1).cast("int").alias("station"),
            F.col("user_map_key.label").alias("label"),
            F.col("user_map_key.page").alias("number"),
            F.col("user_map_value.data").alias("data"),
        )

    def shared(self, headers: Mapping[tuple[int, int], StoredGroup]) -> Shared:
        """Return what is the same for all key groups.

        Args:
            headers: The key groups, by station and label, where each has a copy.
        """
        if self.stage.link is None:
            times = [t for g in headers.values() if (t := g.read_header.processing_time) is not None]
            broadcast = next((g.broadcast for g in headers.values() if g.broadcast is not None), None)
            return Shared(broadcast, max(times, default=None))
        ring = None if self.keys is None else self.keys.ring()
        process = self.stage.process
        kept = [
            unwrap(bytes(row.data), place_of(process, SHARED, BROADCAST, row.station), ring)
            for row in self._in_station()
            .filter((F.col("label") == SHARED) & (F.col("number") == BROADCAST))
            .collect()
        ]
        heads = self._variable(VARIABLE).filter(F.col("user_map_key.link") == TOKEN[0]).collect()
        ticks = [read_head(bytes(row["user_map_value"]["data"])).ticks[self.stage.link] for row in heads]
        return Shared(next(iter(kept), None), next(iter(ticks), None))

    def by_group(
        self, function: Callable[[int, StoredGroup], pa.Table], schema: str | StructType
    ) -> DataFrame:
        """Return what a function makes of every key group, in Spark's workers; in each station by itself.

        Args:
            function: Label and group → rows; it must be picklable.
            schema: Columns of the rows.
        """
        at_work = _PerGroup(function, self.stage.process, self.keys)
        grouped = self.stored().groupBy("station", "label")
        # Spark looks at what it is given with `inspect`, which wants a function.
        return grouped.applyInArrow(lambda key, table: at_work(key, table), schema)

    def numbers(self) -> dict[int, int]:
        """Return the number of the key group of each label."""
        return {label: number for number, label in enumerate(group_labels(self.stage.key_groups))}

    def clocks(self) -> dict[int, ClockState]:
        """Return how far the clock of each key group is, by label; all of them say the same.

        Of a station there is one, of several one of each, by numbers below those of labels.
        """
        ring = None if self.keys is None else self.keys.ring()
        if self.stage.link is not None:
            of_link = self._in_station().filter(F.col("number") == CLOCK_PAGE).collect()
            process = self.stage.process
            return {
                SHARED - row.station: read_clock(
                    unwrap(bytes(row.data), place_of(process, SHARED, CLOCK_PAGE, row.station), ring)
                )
                for row in of_link
            }
        rows = self._variable("pages").filter(F.col("user_map_key.page") == CLOCK_PAGE)
        found = rows.select(F.col("key._group").alias("label"), F.col("user_map_value.data").alias("data"))
        return {
            row.label: read_clock(
                unwrap(bytes(row.data), Place(self.stage.process, row.label, "page", CLOCK_PAGE), ring)
            )
            for row in found.collect()
        }

    def entry(self, key: tuple[str, ...]) -> tuple[KeptEntry, int] | None:
        """Return what is kept for a key, and its size in bytes; ``None``: nothing.

        Args:
            key: The parts of the key, as text.

        Raises:
            StateCorrupted: It cannot be read.
        """
        text = encode_key(key)
        station, label = self.stage.place(text)
        of_group = (F.col("station") == station) & (F.col("label") == label)
        ring = None if self.keys is None else self.keys.ring()

        def values(numbers: Sequence[int]) -> dict[int, bytes]:
            return {
                row.number: unwrap(
                    bytes(row.data), place_of(self.stage.process, label, row.number, station), ring
                )
                for row in self.stored(of_group, F.col("number").isin(*numbers)).collect()
                if row.number in numbers
            }

        return entry_in(text, values)


class _PerGroup:
    """Puts a key group together from its rows, opens its seals, and hands it to a function."""

    def __init__(
        self,
        function: Callable[[int, StoredGroup], pa.Table],
        process: str,
        keys: KeyReference | None,
    ) -> None:
        self._function = function
        self._process = process
        self._keys = keys

    def __call__(self, key: Any, table: pa.Table) -> pa.Table:
        station, label = (part.as_py() for part in key)
        numbers, values = table.column("number").to_pylist(), table.column("data").to_pylist()
        rows = dict(zip(numbers, values, strict=True))
        return self._function(label, opened(self._process, label, rows, self._keys, station))


def opened(
    process: str, label: int, rows: Mapping[int, bytes], keys: KeyReference | None, station: int = 0
) -> StoredGroup:
    """Return a key group from its rows (number → bytes), its seals opened.

    Raises:
        StateCorrupted: A value is not what was written in its place.
        StateKeyError: It is encrypted with a key that is not at hand.
    """
    ring = None if keys is None else keys.ring()
    group = StoredGroup(b"")
    for number, data in rows.items():
        if number == HEADER:
            group.header = unwrap(data, place_of(process, label, number, station), ring)
        elif number == BROADCAST:
            group.broadcast = unwrap(data, place_of(process, label, number, station), ring)
        else:
            group.pages[number] = unwrap(data, place_of(process, label, number, station), ring)
    return group


@contextlib.contextmanager
def view_of(
    spark: SparkSession,
    checkpoint: Checkpoint,
    *,
    batch: int | None = None,
    process: str | None = None,
    key_file: str | None = None,
) -> Iterator[StateView]:
    """Look at the state of a checkpoint, also while its query runs; nothing is written into it.

    Args:
        spark: A session.
        checkpoint: The checkpoint.
        batch: A committed batch that is still kept; unless given the last one.
        process: Which process of a chain.
        key_file: The file of keys, if state is encrypted.

    Raises:
        CheckpointError: There is no such batch, process or key.

    Example:
        >>> with view_of(spark, locate("fraud")) as state:  # doctest: +SKIP
        ...     entry, size = state.entry(("card-7",))
    """
    contract = checkpoint.contract()
    keys = keys_for(contract, key_file)
    # On the disk of the checkpoint this makes links and copies nothing; on another one it copies.
    with tempfile.TemporaryDirectory(prefix="millrace-state-") as folder:
        copy = Checkpoint(checkpoint.root, Path(folder) / "checkpoint")
        chosen = checkpoint.copy(copy.folder, batch, link=True)
        stage = stage_of(copy, chosen, process)
        version = "2" if "stateUniqueIds" in copy.commit(chosen) else "1"
        before = spark.conf.get(_FORMAT, None)
        spark.conf.set(_FORMAT, version)
        try:
            yield StateView(spark, copy, chosen, stage, keys)
        finally:
            spark.conf.unset(_FORMAT) if before is None else spark.conf.set(_FORMAT, before)
