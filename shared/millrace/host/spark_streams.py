"""Streams with a key and an event time: what a process reads of them, one alone or several together."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame

from millrace.host.intake import JsonEvents
from millrace.host.spark_clock import BatchClock
from millrace.host.spark_input import EventsOf, Keying, ProcessInput, Source
from millrace.host.spark_processed import ProcessedStream, StreamFront, refuse_local_types
from millrace.host.spark_readers import Readers, numbered, readers_of
from millrace.inputs import mark_of
from millrace.process import KeyedProcess, check_process, order_of
from millrace.state.keyring import KEY_FILE_CONF, KeyReference, configured_keys
from millrace.time.clock import ClockSettings
from millrace.topology import Input, Link, Topology
from millrace.topology.contract import joined_names
from millrace.topology.definition import check_inputs, check_locality
from millrace.topology.keys import Computed, KeyingError


@dataclass(frozen=True)
class KeyedStream(Source):
    """A DataFrame with a key and an event time; made by :func:`keyed`."""

    def process(self, process: KeyedProcess[Any, Any]) -> ProcessedStream:
        """Run ``process`` over the stream; nothing starts before a query does.

        Raises:
            ProcessDefinitionError: The process class is not complete.
            KeyingError: The stream does not have what the process reads.
        """
        _check(process, [self])
        tagged = self.tag is not None
        if tagged:
            check_inputs(process, list(self.by))
        elif process.inputs:
            raise KeyingError(
                f"{process.name} has the inputs {', '.join(process.inputs)}: "
                "give it all of them by connect(...).process(...), or by one stream with a `tag`"
            )
        _check_locality(process, self)
        arriving = ProcessInput(self, _events_of(process, self.by))
        arriving.check()
        names = tuple(process.inputs) if tagged else ("",)
        readers = _readers([self])
        clocks = self.clocks(names)
        clock = _settings(process, [self], [clocks], readers)
        events = JsonEvents(
            process.event_type,
            process.control_type if self.value is not None else None,
            strict=self.value is not None and self.registry is None,
            inputs=process.inputs,
            formatted=_formatted([arriving]),
        )
        inputs = {
            name: _input(self.by[name], is_clock=is_clock)
            for name, is_clock in zip(names, clocks, strict=True)
        }
        rows = _rows(process, [arriving], clock, readers)
        return ProcessedStream(
            Topology(inputs, (Link(process),), locality=self.locality),
            StreamFront(rows, events, clock, self.key_groups, _keys(rows), self.plan, self.stations),
        )

    def run(self, topology: Topology) -> ProcessedStream:
        """Run a whole topology over the stream, whose inputs it brings; nothing starts before a query does.

        Raises:
            ProcessDefinitionError: A process class is not complete.
            KeyingError: The stream does not have what the first process reads, or has another locality.
        """
        for link in topology.links[1:]:
            refuse_local_types(link.process)
        if self.locality not in (None, topology.locality):
            raise KeyingError(
                f"the stream's locality is {self.locality}, the topology's {topology.locality or 'none'}: "
                "let the topology alone say it"
            )
        local = replace(self, locality=topology.locality)
        return ProcessedStream(topology, local.process(topology.links[0].process).front)


def connect(**streams: KeyedStream) -> ConnectedStreams:
    """Bring several streams to one process, each by the name of an input of it.

    They are keyed alike, so that what belongs together meets, and have one watermark: it stays behind
    the newest event of all of them that are clocks by the largest of their bounds, and no idle one holds it
    back.

    Args:
        streams: Input → stream.

    Raises:
        KeyingError: The streams do not fit together.

    Example:
        >>> joined = connect(
        ...     readings=keyed(readings, by="machine", event_time="at", out_of_orderness="10 seconds"),
        ...     status=keyed(status, by="machine", event_time="since"),
        ... ).process(LatestStatus())  # doctest: +SKIP
    """
    if len(streams) < 2:
        raise KeyingError("connect() takes two streams or more; a single one has .process() itself")
    if tagged := [name for name, s in streams.items() if s.tag is not None]:
        raise KeyingError(f"{', '.join(tagged)} has a `tag`: it brings all inputs of a process by itself")
    if len({s.key_groups for s in streams.values()}) > 1:
        found = ", ".join(f"{name}: {s.key_groups}" for name, s in streams.items())
        raise KeyingError(f"connected streams need the same number of key groups ({found})")
    keys = {name: joined_names([stream.by[""].keys]) for name, stream in streams.items()}
    if len({len(names) for names in keys.values()}) > 1:
        found = ", ".join(f"{name}: {', '.join(names)}" for name, names in keys.items())
        raise KeyingError(f"connected streams need keys of as many fields ({found})")
    if len({(s.plan, s.stations, s.locality) for s in streams.values()}) > 1:
        raise KeyingError("connected streams have one plan, one number of stations and one locality")
    if len({s.df.isStreaming for s in streams.values()}) > 1:
        raise KeyingError("connected streams are all streaming, or all of them are bounded")
    return ConnectedStreams(streams)


@dataclass(frozen=True)
class ConnectedStreams:
    """Several streams for one process; made by :func:`connect`."""

    streams: dict[str, KeyedStream]

    def process(self, process: KeyedProcess[Any, Any]) -> ProcessedStream:
        """Run ``process`` over the streams; nothing starts before a query does.

        Raises:
            ProcessDefinitionError: The process class is not complete.
            KeyingError: The streams are not the inputs of the process, or do not have what it reads.
        """
        streams = [self.streams[name] for name in process.inputs if name in self.streams]
        _check(process, streams)
        check_inputs(process, list(self.streams))
        events = _events_of(process, {name: stream.by[""] for name, stream in self.streams.items()})
        for stream in streams:
            _check_locality(process, stream)
        inputs = [ProcessInput(self.streams[of.name], (of,)) for of in events]
        for arriving in inputs:
            arriving.check()
        readers = _readers(streams)
        clock = _settings(process, streams, [s.clocks() for s in streams], readers)
        decoded = JsonEvents(
            process.event_type,
            process.control_type,
            strict=all(s.value is not None and s.registry is None for s in streams),
            inputs=process.inputs,
            formatted=_formatted(inputs),
        )
        rows = _rows(process, inputs, clock, readers)
        # The order of the streams is that of the inputs, so the names stand in a contract.
        taken = {
            name: _input(stream.by[""], is_clock=stream.clocks()[0], stream=place)
            for place, (name, stream) in enumerate(zip(process.inputs, streams, strict=True))
        }
        first = streams[0]
        return ProcessedStream(
            Topology(taken, (Link(process),), locality=first.locality),
            StreamFront(rows, decoded, clock, first.key_groups, _keys(rows), first.plan, first.stations),
        )


def _check(process: KeyedProcess[Any, Any], streams: Sequence[KeyedStream]) -> None:
    """Refuse a process that is not complete, or that these streams cannot serve."""
    check_process(process)
    refuse_local_types(process)
    controlled = any(s.control is not None for s in streams)
    if not controlled and any(s.df.isStreaming for s in streams) and process.needs_ticks():
        raise KeyingError(
            f"{process.name} uses processing time, which ticks among the control rows bring: "
            "give keyed() a `control`"
        )


def _check_locality(process: KeyedProcess[Any, Any], stream: KeyedStream) -> None:
    """Refuse a stream whose keys do not begin with its locality, or whose stations need one."""
    if stream.locality is None:
        if stream.stations > 1:
            raise KeyingError(
                f"{stream.stations} stations need a `locality`, the field that all keys begin with: "
                f"{process.name} has none"
            )
        return
    for name, keying in stream.by.items():
        check_locality(stream.locality, f"{process.name}.{name}" if name else process.name, keying.keys)


def _events_of(process: KeyedProcess[Any, Any], by: Mapping[str, Keying]) -> tuple[EventsOf, ...]:
    """Return the events that a process reads, by input in its order."""
    if not process.inputs:
        return (EventsOf(process.name, process.event_type, by[""]),)
    return tuple(
        EventsOf(f"{process.name}.{name}", tp, by[name], name, mark_of(rank))
        for rank, (name, tp) in enumerate(process.inputs.items())
    )


def _formatted(inputs: Sequence[ProcessInput]) -> list[str]:
    """Return the inputs whose events are not JSON alone."""
    return [
        of.name
        for arriving in inputs
        for of, format in zip(arriving.events, arriving.formats, strict=True)
        if format is not None
    ]


def _input(keying: Keying, *, is_clock: bool, stream: int = 0) -> Input:
    """Return what a topology says of the events of a stream."""
    parts = tuple(part if isinstance(part, str) else Computed() for part in keying.keys)
    return Input("", parts, keying.event_time, is_clock, stream)


def _keys(rows: DataFrame) -> KeyReference | None:
    """Return where the keys are that state is encrypted with, of what streams."""
    if not rows.isStreaming:
        return None
    return configured_keys(rows.sparkSession.conf.get(KEY_FILE_CONF, None))


def _readers(streams: Sequence[Source]) -> Readers:
    try:
        return numbered([readers_of(s.df, s.limit, str(place)) for place, s in enumerate(streams)])
    except ValueError as error:
        raise KeyingError(str(error)) from None


def _rows(
    process: KeyedProcess[Any, Any], inputs: list[ProcessInput], settings: ClockSettings, readers: Readers
) -> DataFrame:
    """Return the rows of all inputs on their way to the key groups."""
    streaming = inputs[0].source.df.isStreaming
    clock = BatchClock(settings) if streaming else None
    by_key = order_of(process).by_key
    frames = [
        arriving.packed(clock, place, own, by_key=by_key)
        for place, (arriving, own) in enumerate(zip(inputs, readers.of, strict=True))
    ]
    rows = functools.reduce(DataFrame.unionByName, frames)
    first = inputs[0].source
    return rows.coalesce(first.stations) if len(frames) > 1 and first.is_station else rows


def _settings(
    process: KeyedProcess[Any, Any],
    streams: Sequence[KeyedStream],
    clocks: Sequence[tuple[bool, ...]],
    readers: Readers,
) -> ClockSettings:
    """Return what the clock of some streams together goes by."""
    if not any(is_clock for of in clocks for is_clock in of):
        raise KeyingError("no input is a clock: time would never go on; leave one of them `clock=True`")
    follows = {stream.follow for stream in streams}
    idle = [stream.idle_after_ms for stream in streams]
    return ClockSettings(
        bound_ms=max(stream.bound_ms for stream in streams),
        limits=readers.limits,
        skews=tuple(stream.clock_skew_ms for stream in streams),
        clocks=tuple(clocks),
        full_batches=max(stream.full_batches for stream in streams),
        follow="slowest" if "slowest" in follows else "furthest",
        idle_after_ms=None if None in idle else max(i for i in idle if i is not None),
        patience_ms=order_of(process).patience_ms,
    )
