"""The output of a domain's simulation: typed events in event time, with the truth beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from millrace_apps.generators.engine.profile import Profile


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """Something that really happened in the simulated world; part of the ledger, never of an event.

    Attributes:
        truth_id: Unique in its run; events of one happening share it.
        kind: Its kind, e.g. ``card_testing`` or ``bearing_failure``.
        entity: The entity that it happens to.
        expected: What an app should make of it, in one word, e.g. ``alert``.
        detail: More about it: plain values by name.
    """

    truth_id: str
    kind: str
    entity: str
    expected: str = ""
    detail: dict[str, Any] = {}


class Simulated(msgspec.Struct, frozen=True, gc=False):
    """One valid event as it happens.

    Attributes:
        stream: Which of the domain's streams it belongs to, e.g. ``readings``.
        key: Kafka key.
        event: The event, an object of the stream's event type.
        event_time_ms: When it happens, ms since the epoch, UTC; never before that of the event before it.
        truths: What it is a part of.
    """

    stream: str
    key: str
    event: Any
    event_time_ms: int
    truths: tuple[Truth, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamSpec:
    """One stream of a domain.

    Attributes:
        topic: Its default topic, e.g. ``iot.readings``.
        event_type: Type of its events; the contract is made from it.
        id_field: Field that identifies an event; a repeat has the same.
        time_field: Field of the event time, UTC milliseconds.
        schema_version: Version of the contract.
        sums: What the ledger adds up of its valid events: event → (name, whole number); None: nothing.
    """

    topic: str
    event_type: type
    id_field: str
    time_field: str
    schema_version: str = "1"
    sums: Callable[[Any], tuple[str, int]] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Domain:
    """A world that can be simulated.

    Attributes:
        name: Its name on the command line.
        description: One line about it.
        streams: Its streams by short name.
        profile: Its parameters: a frozen dataclass that extends :class:`Profile`.
        simulate: Yields its events in event time; equal profiles give equal events, on any machine.
        scenarios: Kind of truth → what it is, for ``millrace generate describe``.
        usual: Options of its command that have another default here, e.g. ``start``.
        paced: Its events have a pace of their own: its command sends them as fast as possible, at a
            ``--speed`` of that pace, or evenly at a ``--rate``.
        table: Writes the domain to a Parquet file as it was published, in place of its events: profile and
            file → what was written, for people. None: its events are what there is.
    """

    name: str
    description: str
    streams: Mapping[str, StreamSpec]
    profile: type[Profile]
    simulate: Callable[[Any], Iterator[Simulated]]
    scenarios: Mapping[str, str] = field(default_factory=dict)
    usual: Mapping[str, Any] = field(default_factory=dict)
    paced: bool = False
    table: Callable[[Any, Path], str] | None = None
