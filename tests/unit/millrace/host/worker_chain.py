"""A chain as Spark's workers run it, less Spark: packers, and key groups in their operators.

Every task of a batch may run in a worker of its own or in one of before, and may be cut off and run again.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from millrace.chaos.memory import FixedClock
from millrace.host.chunks import FORWARDED, WATERMARK, decode_output, status_of
from millrace.host.groups import group_labels
from millrace.host.intake import JsonEvents
from millrace.host.key_times import KeyFields
from millrace.host.packing import Packer, Repacker
from millrace.host.rows import Emission
from millrace.host.spark_worker import KeyGroupProcessor
from millrace.process import KeyedProcess
from millrace.time.clock import ClockSettings
from millrace.topology import Topology


class Kept:
    """What the state store of one operator keeps of each key group; a batch counts when it is committed."""

    def __init__(self) -> None:
        self.committed: dict[Any, bytes] = {}
        self.batch: dict[Any, bytes | None] = {}
        self.label = 0
        #: After so many writes the task is cut off.
        self.breaks_after = 1 << 60

    def get(self, name: str, key: Any) -> tuple[bytes] | None:
        place = self.label, name, key
        found = self.batch[place] if place in self.batch else self.committed.get(place)
        return None if found is None else (found,)

    def put(self, name: str, key: Any, data: bytes | None) -> None:
        self.breaks_after -= 1
        if self.breaks_after < 0:
            raise ConnectionError
        self.batch[self.label, name, key] = data

    def commit(self) -> None:
        self.committed |= {place: data for place, data in self.batch.items() if data is not None}
        for place in [place for place, data in self.batch.items() if data is None]:
            self.committed.pop(place, None)
        self.fail()

    def fail(self) -> None:
        self.batch, self.breaks_after = {}, 1 << 60


class Handle:
    """What Spark opens states by; they have the names of its own methods."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def getValueState(self, name: str, _schema: Any) -> Any:
        kept = self._kept

        class Value:
            def get(self) -> tuple[bytes] | None:
                return kept.get(name, ())

            def update(self, value: tuple[bytes]) -> None:
                kept.put(name, (), bytes(value[0]))

            def clear(self) -> None:
                kept.put(name, (), None)

        return Value()

    def getMapState(self, name: str, _keys: Any, _values: Any) -> Any:
        kept = self._kept

        class Map:
            def getValue(self, key: tuple[Any, ...]) -> tuple[bytes] | None:
                return kept.get(name, tuple(key))

            def updateValue(self, key: tuple[Any, ...], value: tuple[bytes]) -> None:
                kept.put(name, tuple(key), bytes(value[0]))

            def removeKey(self, key: tuple[Any, ...]) -> None:
                kept.put(name, tuple(key), None)

        return Map()


class WorkerChain:
    """A topology as a chain, batch by batch.

    Args:
        topology: The topology.
        keys: What the events' keys and times are.
        settings: What the clock goes by.
        rng: Decides which attempts are cut off, and which worker runs what.
        key_groups: Number of key groups of each link.
        repacker: Makes what packs for a link, by its place.
        by_place: Whether events are known by where they stand in their source.
    """

    def __init__(
        self,
        topology: Topology,
        keys: KeyFields,
        settings: ClockSettings,
        repacker: Callable[[int], Repacker],
        *,
        rng: random.Random,
        key_groups: int = 3,
        by_place: bool = False,
    ) -> None:
        self.topology, self.rng = topology, rng
        self._settings, self._repacker, self._by_place = settings, repacker, by_place
        self.labels = group_labels(key_groups)
        self._packer = Packer((keys,), self.labels, clock=FixedClock(settings), by_place=by_place)
        self.kept = [Kept() for _ in topology.links]
        self._workers: list[dict[int, KeyGroupProcessor]] = [{}, {}]
        self.emissions: list[Emission] = []
        self.watermark = 0

    def restart(self) -> None:
        """Begin with new workers."""
        self._workers = [{}, {}]

    def batch(self, rows: Iterable[dict[str, Any]], *, controls: bool = False) -> None:
        """Run a batch: attempts that are cut off, then one that is committed."""
        packed = self._packed(list(rows), controls=controls)
        while self.rng.random() < 0.2:
            cut = self.rng.choice(self.kept)
            if self.rng.random() < 0.7:
                cut.breaks_after = self.rng.randrange(20)
            with contextlib.suppress(ConnectionError):
                self._run(packed)
            for kept in self.kept:
                kept.fail()
            if self.rng.random() < 0.5:
                self.restart()
        out = self._run(packed)
        for kept in self.kept:
            kept.commit()
        for output, chunk in out:
            if output == WATERMARK:
                self.watermark = status_of(chunk).watermark
                continue
            if output == FORWARDED:
                continue
            for identity, key, time, on_time, payload in zip(*decode_output(chunk), strict=True):
                self.emissions.append(Emission(output, identity, key, time, bool(on_time & 1), payload))

    def _packed(self, rows: list[dict[str, Any]], *, controls: bool) -> list[tuple[int, bytes, Any, int]]:
        columns = {"_value": pa.array([r["value"].encode() for r in rows], pa.binary())}
        if self._by_place:
            places = [r["source"].split(":") for r in rows]
            columns["_source"] = pa.array([of[0] for of in places], pa.string())
            columns["_partition"] = pa.array([int(of[1]) for of in places], pa.int32())
            columns["_offset"] = pa.array([int(of[2]) for of in places], pa.int64())
        else:
            columns["_source_id"] = pa.array([r["source"] for r in rows], pa.string())
        if controls:
            columns["_control"] = pa.array([r["control"] for r in rows], pa.bool_())
            columns["_control_time"] = pa.array([r["time"] for r in rows], pa.string())
        batch = pa.record_batch(columns)
        cut = self.rng.randrange(len(rows) + 1) if self.rng.random() < 0.4 else len(rows)
        tasks = [[batch.slice(0, cut), batch.slice(cut)]]
        if self.rng.random() < 0.4:
            tasks = [[part] for part in tasks[0]]
        return [
            (label, chunk, None, 0)
            for task in tasks
            for found in self._packer(iter(task))
            for label, chunk in zip(*(column.to_pylist() for column in found.columns), strict=True)
        ]

    def _run(self, packed: list[tuple[int, bytes, Any, int]]) -> list[tuple[str, bytes]]:
        out: list[tuple[str, int, bytes]] = []
        for place in range(len(self.topology.links)):
            if place:
                packed = self._repacked(place, out)
            out = self._run_link(place, packed)
        return [(output, chunk) for output, _, chunk in out]

    def _repacked(self, place: int, out: list[tuple[str, int, bytes]]) -> list[tuple[int, bytes, Any, int]]:
        columns = zip(*out, strict=True) if out else ((), (), ())
        types = (pa.string(), pa.int64(), pa.binary())
        batch = pa.record_batch(
            [pa.array(column, tp) for column, tp in zip(columns, types, strict=True)],
            names=["output", "records", "chunk"],
        )
        cut = self.rng.randrange(batch.num_rows + 1)
        parts = [batch] if self.rng.random() < 0.5 else [batch.slice(0, cut), batch.slice(cut)]
        return [
            row
            for found in self._repacker(place)(iter(parts))
            for row in zip(*(column.to_pylist() for column in found.columns), strict=True)
        ]

    def _run_link(
        self, place: int, packed: list[tuple[int, bytes, Any, int]]
    ) -> list[tuple[str, int, bytes]]:
        by_label: dict[int, list[Any]] = {}
        for row in packed:
            by_label.setdefault(row[0], []).append(row if place else row[:2])
        worker, kept, out = self.rng.choice(self._workers), self.kept[place], []
        processor = worker.get(place)
        # Spark opens a processor for each task; what it has packed is the same.
        if processor is None or self.rng.random() < 0.5:
            processor = worker[place] = self._processor(place)
            processor.init(Handle(kept))  # type: ignore[arg-type]
        labels = list(by_label)
        self.rng.shuffle(labels)
        try:
            for label in labels:
                kept.label = label
                for row in processor.handleInputRows((label,), iter(by_label[label]), None):
                    out.append(tuple(row))
        except ConnectionError:
            worker.clear()  # a task that fails takes its worker's processors along
            raise
        return out

    def _processor(self, place: int) -> KeyGroupProcessor:
        process = self.topology.links[place].process
        return KeyGroupProcessor(
            process,
            events_of(process),
            speaker=self.labels[0],
            forwards=place < len(self.topology.links) - 1,
            refuses=all(link.process.control_type is None for link in self.topology.links),
            clock=None if place else FixedClock(self._settings),  # type: ignore[arg-type]
        )


def events_of(process: KeyedProcess[Any, Any]) -> JsonEvents:
    return JsonEvents(process.event_type, process.control_type, inputs=process.inputs)
