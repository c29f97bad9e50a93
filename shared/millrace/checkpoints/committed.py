"""Committed state of a checkpoint, read without an engine: of any process and key, while its query runs.

A batch's state is in files that are written once (see :mod:`millrace.checkpoints.checkpoint`): for each
partition a snapshot, tables of RocksDB, and the changelogs of the batches since. Both are read here as they
are. Only what the checkpoint has committed counts: the names of a batch's files stand in its commit.

A reader that lives on goes from batch to batch by the changelogs that have come, and begins with a newer
snapshot when these have become long. What it reads of a snapshot is mapped into memory and stays readable
when the query removes the files.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

import numpy as np

from millrace.checkpoints.checkpoint import Checkpoint, CheckpointError
from millrace.checkpoints.entries import KeptEntry
from millrace.checkpoints.groups import StoredGroup
from millrace.checkpoints.lookup import entry_in
from millrace.checkpoints.partition import Partition, Version
from millrace.checkpoints.stages import Stage, keys_for, named_stage, stages_of
from millrace.host.groups import encode_key, group_labels, spark_hash
from millrace.host.station import BROADCAST, HEADER, SHARED, VARIABLE, place_of
from millrace.state.cells import CLOCK_PAGE, StateCorrupted
from millrace.state.envelope import unwrap

#: How often reading is begun again when the running query removed files under it.
_TRIES: Final = 5
#: Bytes of values that are remembered.
KEPT_BYTES: Final = 64 << 20
_STRUCT: Final = struct.pack("<ii", 16, 16)
#: Variables of an operator with key groups, and of one with stations, in the order in which they are opened.
_OF_GROUPS: Final = ("header", "pages", "broadcast")
_OF_STATIONS: Final = (VARIABLE,)


class Where(NamedTuple):
    """Where a value of a process is.

    Attributes:
        station: Number of the station.
        label: Label of the key group; ``SHARED`` in a station for what all share.
        number: Number of the page; ``HEADER``, ``BROADCAST``.
    """

    station: int
    label: int
    number: int


class CommittedState:
    """The state of a checkpoint as of a committed batch. Threads may share it.

    Args:
        checkpoint: The checkpoint.
        batch: The batch; unless given the last one.
        key_file: The file of keys, if state is encrypted.
        kept_bytes: So many bytes of values are remembered.
        only: A process and the parts of a key: nothing else will be asked for, and less is read.
        partitions: Partitions of the state; of others nothing is read, nor may be asked for. ``None``: all.

    Attributes:
        batch: The batch.
        stages: The processes, in the order of the query.
        reloads: How many partitions were read from their snapshots.

    Raises:
        CheckpointError: There is no such batch, or it cannot be opened.
        StateFormatUnknown: Its files are of a form that Spark alone reads.

    Example:
        >>> state = CommittedState(locate("fraud"))  # doctest: +SKIP
        >>> entry, size = state.entry("CardMonitor", ("card-7",))  # doctest: +SKIP
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        batch: int | None = None,
        key_file: str | None = None,
        kept_bytes: int = KEPT_BYTES,
        only: tuple[str | None, tuple[str, ...]] | None = None,
        partitions: Collection[int] | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self._key_file, self._only, self._of = key_file, only, partitions
        self._lock = threading.RLock()
        self._moving = threading.Lock()
        self._partitions: dict[int, dict[int, Partition]] = {}
        self._values: OrderedDict[tuple[int, int, bytes], bytes] = OrderedDict()
        self._kept, self._most = 0, kept_bytes
        self.batch, self._count = -1, 0
        self.reloads = 0
        self.stages: list[Stage] = []
        self.move_to(batch)

    # -- which batch ---------------------------------------------------------------------------

    def move_to(self, batch: int | None = None) -> int:
        """Go on to a committed batch, unless given the last one, and return it; also back to one.

        Raises:
            CheckpointError: There is no such batch.
        """
        with self._moving:
            for _ in range(_TRIES):
                chosen = self.checkpoint.last() if batch is None else batch
                if chosen == self.batch and batch is None:
                    return chosen
                try:
                    self._move(chosen)
                except FileNotFoundError:
                    if batch is not None:
                        self.checkpoint.commit(batch)  # says that it is not kept any more
                    continue
                return chosen
        raise CheckpointError(
            f"{self.checkpoint.folder}: files of batch {chosen} went while they were read, {_TRIES} times: "
            "raise spark.sql.streaming.minBatchesToRetain"
        )

    def _move(self, batch: int) -> None:
        contract = self.checkpoint.contract()
        stages = stages_of(self.checkpoint, batch)
        keys = keys_for(contract, self._key_file)
        ids = self.checkpoint.commit(batch).get("stateUniqueIds")
        count = self.checkpoint.position(batch).partitions
        numbers = range(count) if self._of is None else [n for n in range(count) if n in self._of]
        wanted = {(stage.operator, number) for stage in stages for number in numbers}
        if self._only is not None:
            stage = named_stage(stages, self._only[0])
            wanted = {
                (stage.operator, _partition(_hashed(stage, *stage.place(encode_key(self._only[1]))), count))
            }
        new: dict[int, dict[int, Partition]] = {}
        moves = []
        for operator, number in sorted(wanted):
            variables = _OF_STATIONS if stages[0].link is not None else _OF_GROUPS
            names = (ids or {}).get(str(operator))
            if ids is not None and (names is None or len(names) < count or any(len(n) != 1 for n in names)):
                raise CheckpointError(f"batch {batch} does not name the files of operator {operator}")
            before = self._partitions.get(operator, {}) if count == self._count else {}
            version = Version(batch + 1, None if names is None else names[number][0])
            at = before.get(number)
            coming = None if at is None else at.coming(version)
            if at is not None and coming is not None:
                moves.append((operator, number, at, version, coming))
            else:
                folder = self.checkpoint.folder / "state" / str(operator) / str(number)
                at = Partition(folder, variables, version)
                self.reloads += 1
            new.setdefault(operator, {})[number] = at
        with self._lock:
            if len(moves) < len(wanted):
                self._values.clear()
                self._kept = 0
            for operator, number, at, version, coming in moves:
                at.move(version, coming)
                for key in coming:
                    self._kept -= len(self._values.pop((operator, number, key), b""))
            self._partitions, self._count = new, count
            self.stages, self.batch, self._keys = stages, batch, keys

    @property
    def watermark(self) -> int | None:
        """The event-time watermark at which the next batch runs, ms."""
        return self.checkpoint.watermark(self.batch)

    def partition_of(self, stage: Stage, station: int, label: int) -> int:
        """Return the partition in which a key group is.

        Args:
            stage: The process.
            station: The station.
            label: Label of the key group.
        """
        return _partition(_hashed(stage, station, label), self._count)

    def held(self) -> AbstractContextManager[object]:
        """Return a block in which it stays at its batch, for several reads that belong together."""
        return self._lock

    # -- what is kept --------------------------------------------------------------------------

    def stage(self, process: str | None = None) -> Stage:
        """Return the process of that name; of a query with one, it need not be named.

        Raises:
            CheckpointError: There is none of that name, or several and none is named.
        """
        return named_stage(self.stages, process)

    def values(self, stage: Stage, station: int, label: int, numbers: Sequence[int]) -> dict[int, bytes]:
        """Return values of a key group, their seals opened: those that are there, by number.

        Args:
            stage: The process.
            station: The station.
            label: Label of the key group.
            numbers: Of pages, or ``HEADER`` or ``BROADCAST``.
        """
        with self._lock:
            ring = None if self._keys is None else self._keys.ring()
            found = {}
            for number in numbers:
                stored = self._stored(stage, Where(station, label, number))
                if stored is not None:
                    found[number] = unwrap(stored, place_of(stage.process, label, number, station), ring)
            return found

    def entry(
        self,
        process: str | None,
        key: tuple[str, ...],
        items: Mapping[str, Sequence[object]] | None = None,
    ) -> tuple[KeptEntry, int] | None:
        """Return what is kept for a key, and its size in bytes; ``None``: nothing.

        Args:
            process: The process; of a query with one, it need not be named.
            key: The parts of the key, as text.
            items: Paged map → items of it: what stands in parts of its own is read only as far as these do,
                and some that stand beside them come along; ``None``: all.
        """
        text = encode_key(key)
        with self._lock:
            stage = self.stage(process)
            station, label = stage.place(text)
            return entry_in(text, lambda numbers: self.values(stage, station, label, numbers), items)

    def broadcast(self, process: str | None, key: tuple[str, ...]) -> bytes | None:
        """Return the broadcast state of a process, packed, as a key sees it; ``None``: nothing has been said.

        Args:
            process: The process; of a query with one, it need not be named.
            key: The parts of the key, as text.
        """
        with self._lock:
            stage = self.stage(process)
            if not stage.has_broadcast:
                return None
            station, label = stage.place(encode_key(key))
            place = label if stage.link is None else SHARED
            return self.values(stage, station, place, [BROADCAST]).get(BROADCAST)

    def groups(self, process: str | None = None) -> Iterator[tuple[int, int, StoredGroup]]:
        """Yield station, label and content of every key group, in no particular order.

        All of a process is read, and a key group at a time is not: for small states, and for tests.
        """
        with self._lock:
            stage = self.stage(process)
            ring = None if self._keys is None else self._keys.ring()
            found: dict[tuple[int, int], StoredGroup] = {}
            for where, stored in self._all(stage):
                if where.label == SHARED or where.number == CLOCK_PAGE:
                    continue
                group = found.setdefault(where[:2], StoredGroup(b""))
                place = place_of(stage.process, where.label, where.number, where.station)
                data = unwrap(stored, place, ring)
                if where.number == HEADER:
                    group.header = data
                elif where.number == BROADCAST:
                    group.broadcast = data
                else:
                    group.pages[where.number] = data
        for (station, label), group in found.items():
            yield station, label, group

    # -- Spark's rows --------------------------------------------------------------------------

    def _stored(self, stage: Stage, where: Where) -> bytes | None:
        """Return a value as it is stored."""
        of_key = _hashed(stage, where.station, where.label)
        number = _partition(of_key, self._count)
        at = self._partitions[stage.operator][number]
        key = _key(at, stage, of_key, where)
        if key is None:
            return None
        place = stage.operator, number, key
        if (known := self._values.get(place)) is not None:
            self._values.move_to_end(place)
            return known
        row = at.get(key)
        if row is None:
            return None
        value = self._values[place] = _binary(row)
        self._kept += len(value)
        while self._kept > self._most and len(self._values) > 1:
            self._kept -= len(self._values.popitem(last=False)[1])
        return value

    def _all(self, stage: Stage) -> Iterator[tuple[Where, bytes]]:
        stations = {label: n for n, label in enumerate(group_labels(stage.stations))}
        for partition in self._partitions[stage.operator].values():
            names = {led: name for name, led in partition.variables.items()}
            for key, row in partition.items():
                name = names.get(key[:2])
                if name in ("header", "broadcast") and stage.link is None:
                    yield Where(0, _int(key, 11), HEADER if name == "header" else BROADCAST), _binary(row)
                elif name == "pages" and stage.link is None:
                    yield Where(0, _int(key, 31), _long(key, -8)), _binary(row)
                elif name == VARIABLE and stage.link == _int(key, -24):
                    yield Where(stations[_int(key, 31)], _int(key, -16), _long(key, -8)), _binary(row)


def _hashed(stage: Stage, station: int, label: int) -> int:
    """Return what Spark finds the partition by."""
    return label if stage.link is None else group_labels(stage.stations)[station]


def _partition(label: int, partitions: int) -> int:
    known = _known_partitions.get((label, partitions))
    if known is None:
        known = int(spark_hash(np.array([label]))[0]) % partitions
        if len(_known_partitions) < 1 << 16:
            _known_partitions[label, partitions] = known
    return known


_known_partitions: dict[tuple[int, int], int] = {}


def _key(at: Partition, stage: Stage, of_key: int, where: Where) -> bytes | None:
    """Return the key of a value as Spark writes it: rows of fixed width, led by the variable's number."""
    row = b"\0" + bytes(8)
    label = struct.pack("<i4x", of_key)
    if stage.link is not None:
        name, fields = VARIABLE, struct.pack("<i4xi4xq", stage.link, where.label, where.number)
    elif where.number in (HEADER, BROADCAST):
        name = "header" if where.number == HEADER else "broadcast"
        led = at.variables.get(name)
        return None if led is None else led + row + label
    else:
        name, fields = "pages", struct.pack("<q", where.number)
    led = at.variables.get(name)
    if led is None:
        return None
    first = row + _STRUCT + bytes(8) + label
    inner = struct.pack("<ii", 8 + len(fields), 16)
    return led + struct.pack("<i", len(first)) + first + row + inner + bytes(8) + fields


def _binary(row: bytes) -> bytes:
    """Return the bytes in a row that has nothing else."""
    try:
        size, offset = struct.unpack_from("<ii", row, 9)
    except struct.error as error:
        raise StateCorrupted(f"a row of the state cannot be read: {error}") from error
    if offset != 16 or 1 + offset + size > len(row):
        raise StateCorrupted("a row of the state is not what was written")
    return row[17 : 17 + size]


def _int(key: bytes, at: int) -> int:
    return int(struct.unpack_from("<i", key, at if at >= 0 else len(key) + at)[0])


def _long(key: bytes, at: int) -> int:
    return int(struct.unpack_from("<q", key, at if at >= 0 else len(key) + at)[0])
