"""An app's topology at work in memory, over records as Kafka has them.

It is what runs as a station on Spark, less Spark: rows are packed for the key groups, and the state of every
link into pages, as they would be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.chaos.hostile import Message
from millrace.dead_letters import NOT_JSON, VERSION_HEADER
from millrace.host.chunks import WATERMARK, decode_input, decode_output
from millrace.host.groups import group_labels
from millrace.host.intake import JsonEvents
from millrace.host.key_times import KeyFields
from millrace.host.packing import Packer
from millrace.host.station import At, Station, StationLink, outputs_of_links
from millrace.host.system import Drain, encode_system
from millrace.inputs import mark_of
from millrace.process import order_of
from millrace.time.clock import ClockSettings
from millrace.time.durations import to_ms
from millrace.topology import FirstOf, Input, RecordKey, Topology
from millrace.topology.keys import KeyingError, KeyPart, key_types, structs_of

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.runtime.settings import AppSettings

_INCARNATION: Final = "memory"


@dataclass
class StationBytes:
    """What a station keeps, in memory; a batch counts when it is committed."""

    kept: dict[At, bytes] = field(default_factory=dict)
    batch: dict[At, bytes | None] = field(default_factory=dict)

    def read(self, places: Sequence[At]) -> list[bytes | None]:
        """Return what stands in some places."""
        return [self.kept.get(place) for place in places]

    def write(self, place: At, data: bytes) -> None:
        """Write a place, when the batch is committed."""
        self.batch[place] = data

    def remove(self, place: At) -> None:
        """Remove a place, when the batch is committed."""
        self.batch[place] = None

    def push(self) -> None:
        """Do nothing: all is written at once."""

    def flush(self) -> None:
        """Do nothing: all is written at once."""

    def commit(self) -> None:
        """Let the batch count."""
        for place, data in self.batch.items():
            if data is None:
                self.kept.pop(place, None)
            else:
                self.kept[place] = data
        self.batch.clear()


@dataclass(frozen=True)
class FixedClock:
    """Settings of a clock that do not change."""

    settings: ClockSettings

    def now(self) -> ClockSettings:
        """Return them."""
        return self.settings


class MemoryStation:
    """Runs a topology over batches of records.

    Args:
        topology: The topology.
        settings: The settings of its app: bound, skew, key groups.
        versions: The versions of contracts that it reads.
    """

    def __init__(self, topology: Topology, settings: AppSettings, versions: Sequence[str] = ("1",)) -> None:
        stream, process = settings.stream, topology.links[0].process
        self._inputs = list(topology.inputs.items())
        self._control = topology.control
        self._clock = ClockSettings(
            bound_ms=to_ms(stream.out_of_orderness),
            skews=(stream.clock_skew,),
            clocks=(tuple(one.clock for one in topology.inputs.values()),),
            full_batches=stream.full_batches,
            incarnation=_INCARNATION,
            patience_ms=order_of(process).patience_ms,
        )
        types = process.inputs or {"": process.event_type}
        self._tagged = bool(process.inputs)
        self._packer = Packer(
            tuple(
                _fields(name, types[name], one, mark_of(rank) if self._tagged else b"")
                for rank, (name, one) in enumerate(self._inputs)
            ),
            group_labels(1),
            future_ms=to_ms(stream.max_future_skew),
            keep_all_headers=stream.keep_headers == "all",
            clock=FixedClock(self._clock),
            by_key=order_of(process).by_key,
        )
        names, onward = outputs_of_links(topology)
        links = [
            StationLink(
                link.process,
                JsonEvents(link.process.event_type, link.process.control_type, inputs=link.process.inputs),
                link.key_groups or settings.spark.key_groups,
                onward[place],
                names[place],
            )
            for place, link in enumerate(topology.links)
        ]
        self._station, self._store = Station(links), StationBytes()
        self._offsets: dict[str, int] = {}
        self._versions = {version.encode() for version in versions}

    def next_offset(self, topic: str) -> int:
        """Return where the next record of a topic will stand in its only partition."""
        return self._offsets.get(topic, 0)

    def run(self, messages: Sequence[Message]) -> Iterator[tuple[str, bytes]]:
        """Run one batch, and yield what comes out: the name of the output, and the record as JSON."""
        packed = [
            chunk
            for batch in self._packer(iter([self._rows(messages)]))
            for chunk in batch["_chunk"].to_pylist()
        ]
        for output, _, chunk in self._station.run(map(decode_input, packed), self._store, self._clock):
            if output != WATERMARK:
                yield from ((output, payload) for payload in decode_output(chunk).payloads)
        self._store.commit()

    def drain(self) -> Iterator[tuple[str, bytes]]:
        """End the input: time goes to its end, and all timers fire."""
        if self._control is not None:
            yield from self.run([Message(self._control, None, encode_system(Drain(_INCARNATION)), 0)])

    def _rows(self, messages: Sequence[Message]) -> pa.RecordBatch:
        """Return records as the columns that Spark gives."""
        import pyarrow as pa

        places = {one.topic: place for place, (_, one) in enumerate(self._inputs)}
        offsets = []
        for message in messages:
            offset = self._offsets.get(message.topic, 0)
            self._offsets[message.topic] = offset + 1
            offsets.append(offset)
        arrived = [float(m.timestamp_ms) if m.timestamp_ms > 0 else float("inf") for m in messages]
        columns: dict[str, Any] = {
            "_value": pa.array([m.value for m in messages], pa.binary()),
            "_source_id": pa.array(
                [f"{m.topic}:0:{offset}" for m, offset in zip(messages, offsets, strict=True)], pa.string()
            ),
            "_control": pa.array([m.topic == self._control for m in messages], pa.bool_()),
            "_arrived": pa.array(arrived, pa.float64()),
            "_source": pa.array([m.topic for m in messages], pa.string()),
            "_partition": pa.array([0] * len(messages), pa.int32()),
            "_offset": pa.array(offsets, pa.int64()),
            "_unknown_version": pa.array([self._is_unknown(m) for m in messages], pa.bool_()),
            "_headers": pa.array([_headers(m) for m in messages], pa.string()),
        }
        if self._tagged:
            columns["_input"] = pa.array([places.get(m.topic) for m in messages], pa.int32())
        for at in range(len(self._inputs[0][1].parts)):
            parts = [one.parts[at] for _, one in self._inputs]
            if not all(isinstance(part, str) for part in parts):
                of = [parts[places[m.topic]] if m.topic in places else None for m in messages]
                texts = [_key(m, part) for m, part in zip(messages, of, strict=True)]
                columns[f"_key{at}"] = pa.array(texts, pa.string())
        return pa.record_batch(columns)

    def _is_unknown(self, message: Message) -> bool:
        """Return whether a record's header names a version that is not read."""
        found = next((value for name, value in message.headers if name == VERSION_HEADER), None)
        return found is not None and found not in self._versions


def _fields(name: str, tp: Any, one: Input, mark: bytes) -> KeyFields:
    """Return where the events of an input have their key and their time."""
    kinds = key_types(name, tp, [part for part in one.parts if isinstance(part, str)])
    keys = tuple(
        (part, kinds[part]) if isinstance(part, str) else (f"_key{place}", None)
        for place, part in enumerate(one.parts)
    )
    times = {
        type(f.type) for struct in structs_of(tp) for f in struct.fields if f.encode_name == one.event_time
    }
    is_datetime = msgspec.inspect.DateTimeType in times
    return KeyFields(keys, (one.event_time, datetime if is_datetime else int), mark)


def _key(message: Message, part: KeyPart | None) -> str | None:
    """Return a part of a record's key that is no field alone, as Spark finds it."""
    if isinstance(part, FirstOf):
        return next((text for one in part.parts if (text := _key(message, one))), None)
    if isinstance(part, RecordKey):
        try:
            return (message.key or b"").decode() or None
        except UnicodeDecodeError:
            return None
    if isinstance(part, str):
        try:
            found: Mapping[str, Any] = msgspec.json.decode(message.value, type=dict[str, Any])
        except NOT_JSON:
            return None
        value = found.get(part)
        if value is None or isinstance(value, str):
            return value or None
        return msgspec.json.encode(value).decode()
    if part is None:
        return None
    raise KeyingError(f"{part} is no part of a record")


def _headers(message: Message) -> str:
    headers = [{"key": name, "value": value} for name, value in message.headers]
    told = {"key": message.key, "timestamp": message.timestamp_ms, "headers": headers}
    return msgspec.json.encode(told).decode()
