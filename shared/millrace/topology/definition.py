"""Topology definitions: inputs, links and outputs, without an engine.

:func:`read` begins a topology, ``process`` and ``key_by`` go on with it, and ``write`` says where its outputs
go. Nothing runs: a host does that, in memory (:class:`~millrace.testing.TestDriver`,
:class:`~millrace.host.memory_chain.MemoryChain`), on Spark (:mod:`millrace.runtime.wiring`), or on either
over events at hand (:func:`millrace.play`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec

from millrace.inputs import inputs_of
from millrace.outputs import output_types
from millrace.process import KeyedProcess, check_process, order_of
from millrace.state.specs import type_name
from millrace.time import NO_WATERMARK, ms_of
from millrace.time.held import HeldTime
from millrace.topology.keys import (
    FirstOf,
    KeyingError,
    KeyPart,
    RecordKey,
    field_of,
    key_types,
    parts_of,
    structs_of,
    text_of,
)
from millrace.topology.sinks import Table, Tables, Upsert, each_table, table_name, written


@dataclass(frozen=True)
class Input:
    """Events of one kind that come to a topology.

    Attributes:
        topic: The Kafka topic that they come by; empty where they come otherwise.
        key: Their key: a field, :class:`RecordKey`, :class:`FirstOf`, or several of these.
        event_time: The field with their time; a :class:`~millrace.time.held.HeldTime` where it is held to
            when the event was received.
        clock: Whether they move the watermark; not what is dated in the past, labels and comments say.
        stream: Which stream brings them, where several are connected.
    """

    topic: str = ""
    key: KeyPart | Sequence[KeyPart] = ()
    event_time: str = "event_time_ms"
    clock: bool = True
    stream: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", parts_of(self.key))

    @property
    def parts(self) -> tuple[KeyPart, ...]:
        """The parts of the key."""
        return parts_of(self.key)


@dataclass(frozen=True)
class Taken:
    """What a link takes of one before it.

    Attributes:
        link: The one before; its process's name.
        output: The output of it.
        key: The fields of its records that are their key here.
        input: The input that they come by; empty where the process has but one.
    """

    link: str
    output: str
    key: tuple[str, ...]
    input: str = ""


@dataclass(frozen=True)
class Link:
    """A process and what it takes.

    Attributes:
        process: The process.
        takes: What it takes of others; nothing: it takes the topology's inputs.
        key_groups: Number of its key groups; ``None``: as the one before it.
    """

    process: KeyedProcess[Any, Any]
    takes: tuple[Taken, ...] = ()
    key_groups: int | None = None

    @property
    def name(self) -> str:
        """The name of its process."""
        return self.process.name


@dataclass(frozen=True)
class Topology:
    """An app's inputs, links and outputs; made by :func:`read`.

    Outputs of the last link have their own names (``main``, side outputs, ``late``, ``dead_letters``), those
    of the ones before it are led by their process's: ``Cards.late``. What a later link takes is no output,
    unless a table or a topic gets it too.

    Attributes:
        inputs: Name → input, in the order of the first process's; ``""`` of the only one.
        links: The links, each behind those that it takes from.
        control: The topic of control events, ticks and the end of the input; ``None``: there is none.
        tables: Output → its tables.
        topics: Output → Kafka topic.
        locality: The field that every key begins with; ``None``: there is none such. Several stations share
            the localities.

    Example:
        >>> from millrace import KeyedProcess, arrival, value_state
        >>> class Sale(msgspec.Struct):
        ...     card: str
        ...     shop: str
        ...     at: int
        >>> class Card(KeyedProcess[Sale, Sale]):
        ...     order = arrival(commutes=True)
        ...     def process(self, event, ctx):
        ...         ctx.emit(event)
        >>> class Shop(Card):
        ...     pass
        >>> topology = (
        ...     read(Input("sales", key="card", event_time="at"))
        ...     .process(Card())
        ...     .key_by("shop")
        ...     .process(Shop())
        ...     .write(tables={"main": "sales", "Card.late": "late"})
        ... )
        >>> list(topology.outputs)
        ['main', 'late', 'dead_letters', 'Card.late', 'Card.dead_letters']
    """

    inputs: Mapping[str, Input]
    links: tuple[Link, ...]
    control: str | None = None
    tables: Mapping[str, tuple[Table, ...]] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    locality: str | None = None

    @cached_property
    def outputs(self) -> dict[str, tuple[KeyedProcess[Any, Any], str]]:
        """Output → the process that emits it, and its name there."""
        found = {}
        wanted = {*self.tables, *self.topics}
        for link in reversed(self.links):
            for name in output_types(link.process):
                full = self.full_name(link.name, name)
                if full in wanted or not self._is_taken(link.name, name):
                    found[full] = (link.process, name)
        return found

    @property
    def types(self) -> dict[str, Any]:
        """Output → type of its records."""
        return {full: output_types(process)[name] for full, (process, name) in self.outputs.items()}

    def full_name(self, link: str, output: str) -> str:
        """Return what an output of a link (by its process's name) is called where all outputs are named."""
        return output if link == self.links[-1].name else f"{link}.{output}"

    @property
    def written(self) -> list[tuple[str, Table]]:
        """Each output that goes to a table, with that table."""
        return written(self.tables)

    def link(self, name: str) -> Link:
        """Return the link of a process by its name.

        Raises:
            KeyError: There is none.
        """
        for link in self.links:
            if link.name == name:
                return link
        raise KeyError(f"no link {name}; there are {', '.join(link.name for link in self.links)}")

    def key_by(
        self,
        by: str | Sequence[str] | Mapping[str, str | Sequence[str]],
        *,
        output: str | Mapping[str, str] = "main",
        key_groups: int | None = None,
    ) -> KeyedOutputs:
        """Give what was emitted new keys, for the next process.

        Records have the time of their cause and are not judged for lateness again; what is on time is merged
        with the next process's timers in order of time. Control events go on to it.

        Args:
            by: Field of the records that is the key, or several; of several outputs also input → its own.
            output: The output that goes on, of the last process by its own name, of one before it led by that
                one's (``Cards.alerts``); for a process with several inputs: input → output.
            key_groups: Number of key groups; as before, unless given.

        Raises:
            KeyingError: The output or a field of it does not exist, or cannot be a key.
        """
        takes = []
        named = {"": output} if isinstance(output, str) else output
        if not named:
            raise KeyingError("`output` names no output")
        for input, full in named.items():
            process, name = self._emitter(full)
            key = by[input] if isinstance(by, Mapping) else by
            fields = (key,) if isinstance(key, str) else tuple(key)
            if not fields:
                raise KeyingError("no key: `by` names no field")
            key_types(f"{process.name}.{name}", output_types(process)[name], fields)
            takes.append(Taken(process.name, name, fields, input))
        return KeyedOutputs(self, tuple(takes), key_groups)

    def write(
        self, *, tables: Mapping[str, Tables] | None = None, topics: Mapping[str, str] | None = None
    ) -> Topology:
        """Say where outputs go.

        Args:
            tables: Output → name of a Delta table that is appended to, an :class:`Upsert`, or several
                of both.
            topics: Output → Kafka topic.

        Raises:
            KeyingError: There is no such output, a table has not the fields that it is merged by, or two
                outputs have one table.
        """
        said = {output: each_table(of) for output, of in (tables or {}).items()}
        made = replace(self, tables={**self.tables, **said}, topics={**self.topics, **(topics or {})})
        for full in (*made.tables, *made.topics):
            self._emitter(full)
        names: dict[str, str] = {}
        for full, table in made.written:
            if (name := table_name(table)) in names:
                raise KeyingError(f"the table {name} is named twice, for {names[name]} and for {full}")
            names[name] = full
            if isinstance(table, Upsert):
                _check_upsert(full, made.types[full], table)
        return made

    def input_of(self, event: Any) -> str:
        """Return the input that an event comes by, as its type tells.

        Raises:
            InputError: It does not tell.
        """
        inputs = inputs_of(self.links[0].process)
        return "" if inputs is None else inputs.names[inputs.rank(event)]

    def key_of(self, event: Any, input: str = "") -> str:
        """Return the text of an event's key (:func:`~millrace.host.groups.encode_key`).

        Raises:
            KeyingError: It does not have it, as where the record's own key is wanted.
        """
        return text_of(event, self.inputs[input].parts)

    def time_of(self, event: Any, input: str = "") -> int:
        """Return an event's time, ms; ``NO_WATERMARK`` where it has none."""
        name = self.inputs[input].event_time
        found = field_of(event, name)
        if isinstance(name, HeldTime):
            found = name.held(found, field_of(event, name.received))
        if isinstance(found, datetime):
            return ms_of(found)
        return NO_WATERMARK if found is None else int(found)

    def _is_taken(self, link: str, output: str) -> bool:
        return any((t.link, t.output) == (link, output) for later in self.links for t in later.takes)

    def _emitter(self, full: str) -> tuple[KeyedProcess[Any, Any], str]:
        """Return the process that emits an output, and its name there."""
        lead, _, name = full.rpartition(".")
        for link in self.links:
            if link.name == (lead or self.links[-1].name) and name in output_types(link.process):
                return link.process, name
        raise KeyingError(f"{self.links[-1].name} has no output '{full}'; it has {', '.join(self.outputs)}")


@dataclass(frozen=True)
class KeyedOutputs:
    """What links emitted, by new keys; made by :meth:`Topology.key_by`."""

    topology: Topology
    takes: tuple[Taken, ...]
    key_groups: int | None = None

    def process(self, process: KeyedProcess[Any, Any]) -> Topology:
        """Add a link that takes it.

        Raises:
            ProcessDefinitionError: The process class is not complete.
            KeyingError: It is in the topology already, or does not read what it would be given.
        """
        check_process(process)
        if order_of(process).by_key:
            raise KeyingError(
                f'{process.name} has clock="key", and takes what another process emits: that is on time by '
                "the stream's clock, though a key's own may be further. Only what reads a stream may have it"
            )
        before = self.topology
        if any(process.name == link.name for link in before.links):
            raise KeyingError(f"{process.name} is in the chain already: give one of them another `name`")
        check_inputs(process, [taken.input for taken in self.takes])
        if len({len(taken.key) for taken in self.takes}) > 1:
            raise KeyingError(f"what {process.name} takes needs keys of as many parts")
        for taken in self.takes:
            owner = before.link(taken.link).process
            _check_types(owner, taken, process)
            if before.locality is not None:
                check_locality(before.locality, f"{owner.name}.{taken.output}", taken.key)
        return replace(before, links=(*before.links, Link(process, self.takes, self.key_groups)))


@dataclass(frozen=True)
class Read:
    """What comes to a topology; made by :func:`read`."""

    inputs: Mapping[str, Input]
    control: str | None = None
    locality: str | None = None

    def process(self, process: KeyedProcess[Any, Any]) -> Topology:
        """Begin a topology with a process of these inputs.

        Raises:
            ProcessDefinitionError: The process class is not complete.
            KeyingError: The inputs are not those of the process, or its events do not have what is named.
        """
        check_process(process)
        check_inputs(process, list(self.inputs))
        if self.control is None and process.needs_ticks():
            raise KeyingError(
                f"{process.name} uses processing time, which ticks among the control events bring: "
                "name a `control`"
            )
        types = process.inputs or {"": process.event_type}
        inputs = {name: self.inputs[name] for name in types}
        if len({len(one.parts) for one in inputs.values()}) > 1:
            raise KeyingError("the inputs of one stream need keys of as many parts")
        if not any(one.clock for one in inputs.values()):
            raise KeyingError("no input is a clock: time would never go on; leave one of them `clock=True`")
        for name, one in inputs.items():
            owner = f"{process.name}.{name}" if name else process.name
            if not one.parts:
                raise KeyingError(f"no key: the input {owner} names no field")
            key_types(owner, types[name], [part for part in one.parts if isinstance(part, str)])
            _check_time(owner, types[name], one.event_time)
            if self.locality is not None:
                check_locality(self.locality, owner, one.parts)
        return Topology(inputs, (Link(process),), self.control, locality=self.locality)


def read(
    inputs: Input | Mapping[str, Input], *, control: str | None = None, locality: str | None = None
) -> Read:
    """Begin a topology with what comes to it.

    Args:
        inputs: The input, or those of a process with several by their names there.
        control: The topic of control events; ticks and the end of a bounded input come by it too.
        locality: The field that the keys of all inputs and links begin with (plant, tenant, shop), by which
            several stations may share the work.

    Example:
        >>> list(read({"readings": Input("r", "machine"), "status": Input("s", "machine")}).inputs)
        ['readings', 'status']
    """
    return Read({"": inputs} if isinstance(inputs, Input) else dict(inputs), control, locality)


def check_locality(locality: str, owner: str, key: Sequence[Any]) -> None:
    """Refuse a key that does not begin with the locality.

    Raises:
        KeyingError: It says which key would.

    Example:
        >>> check_locality("plant", "Machines", ("plant", "machine"))
        >>> check_locality("plant", "Machines", ("machine",))
        Traceback (most recent call last):
        millrace.topology.keys.KeyingError: the key of Machines is machine, and the locality plant: all...
    """
    if key and isinstance(key[0], str) and key[0] == locality:
        return
    named = [str(part) if isinstance(part, str | RecordKey | FirstOf) else "an expression" for part in key]
    rest = [part for part in named if part != locality]
    raise KeyingError(
        f"the key of {owner} is {', '.join(named)}, and the locality {locality}: all keys begin with the "
        f"locality, a field of the events, as in key=({', '.join([locality, *rest])})"
    )


def check_inputs(process: KeyedProcess[Any, Any], given: Sequence[str]) -> None:
    """Refuse inputs that are not those of a process.

    Raises:
        KeyingError: It says which it has.
    """
    if set(given) != set(process.inputs or {"": None}):
        wants = ", ".join(process.inputs) or "one, without a name"
        raise KeyingError(
            f"{process.name} has the inputs {wants}; connected are {', '.join(given) or 'none'}"
        )


def _check_time(owner: str, tp: Any, name: str) -> None:
    for struct in structs_of(tp):
        kinds = [f.type for f in struct.fields if f.encode_name == name]
        if not kinds:
            raise KeyingError(f"{owner}'s event type has no field {name}")
        if not isinstance(kinds[0], msgspec.inspect.IntType | msgspec.inspect.DateTimeType):
            raise KeyingError(
                f"the event time {name} of {owner} must be a datetime or UTC milliseconds as an int"
            )
        if isinstance(name, HeldTime):
            if name.received not in {f.encode_name for f in struct.fields}:
                raise KeyingError(f"{owner}'s event type has no field {name.received}")
            if not isinstance(kinds[0], msgspec.inspect.IntType):
                raise KeyingError(f"the event time {name} of {owner} is held to another: both are UTC ms")


def _check_types(before: KeyedProcess[Any, Any], taken: Taken, process: KeyedProcess[Any, Any]) -> None:
    """Refuse records that lack what the events of a process must have."""
    emits = output_types(before)[taken.output]
    takes = process.inputs[taken.input] if taken.input else process.event_type
    if emits is takes or emits == takes:
        return
    there, wants = structs_of(emits), structs_of(takes)
    if not there or not wants:
        raise KeyingError(
            f"{process.name} takes {type_name(takes)}, and {before.name}.{taken.output} is {type_name(emits)}"
        )
    if len(wants) > 1:
        tags = {struct.tag for struct in wants}
        missing = [s.cls.__name__ for s in there if s.tag not in tags]
    else:
        needed = {f.encode_name for f in wants[0].fields if f.required}
        missing = sorted({name for s in there for name in needed - {f.encode_name for f in s.fields}})
    if missing:
        raise KeyingError(
            f"{process.name} takes {type_name(takes)}, and {before.name}.{taken.output} is "
            f"{type_name(emits)}: {'it lacks' if len(wants) == 1 else 'nobody takes'} {', '.join(missing)}"
        )


def _check_upsert(output: str, tp: Any, table: Upsert) -> None:
    fields = {f.encode_name for struct in structs_of(tp) for f in struct.fields}
    wants = [*table.key, *table.versions, *([] if table.deleted is None else [table.deleted])]
    if missing := [name for name in wants if name not in fields]:
        raise KeyingError(
            f"the table {table.table} is merged by {', '.join(missing)}, which {output} has not"
        )
