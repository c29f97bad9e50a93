"""Several processes in one operator: each with inputs, states, timers and outputs of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Self

import msgspec

from millrace.defined_process import DefinedProcess, class_for
from millrace.process import (
    BroadcastContext,
    Context,
    KeyedProcess,
    Late,
    LateInput,
    ProcessDefinitionError,
    Timer,
    Timers,
    check_process,
    order_of,
)
from millrace.side_outputs import OutputTag
from millrace.state.conversion import Conversion

_TIMER = ":"


def multiplex(
    members: Mapping[str, KeyedProcess[Any, Any]],
    *,
    name: str,
    stored_as: str = "",
    members_stored_as: Mapping[str, str] | None = None,
    converts: Mapping[int, Conversion] | None = None,
) -> Multiplex:
    """Return one process that is several: an operator, a shuffle and a batch's overhead for all of them.

    An event goes to the member whose input it comes by; what a member keeps, which timers it sets and what it
    emits is as if it were alone. Members do not see each other, whatever their keys.

    - **Inputs**: a member's name, where it has one input; ``member_input`` where it has several.
    - **Outputs**: a member's name for its ``main``; side outputs have their own names, which must differ.
      ``late`` and ``dead_letters`` are common.
    - **Timers** by a key's own time (``on_key_time``) are refused. At the end of the input timers that timers
      set fire up to the latest that any member has for the key.
    - **States** are kept as ``member_state``. A control event goes to every member that takes any.

    Args:
        members: Name → process. All of them have one order, and no clocks of keys.
        name: Name of the whole in contracts and identities.
        stored_as: The name by which checkpoints and identities go on, where the whole was renamed.
        members_stored_as: The same of members that were renamed: name → the name it is stored as.
        converts: What ``millrace convert`` does with the state of a version before (:class:`KeyedProcess`
            has it, too); the whole's version is the sum of the members'.

    Raises:
        ProcessDefinitionError: Members do not fit together.

    Example:
        >>> from millrace import KeyedProcess, arrival, value_state
        >>> from millrace.testing import TestDriver
        >>> class Sum(KeyedProcess[int, int]):
        ...     order = arrival(commutes=True)
        ...     total = value_state(int, default=0)
        ...     def process(self, event, ctx):
        ...         self.total.value += event
        ...         ctx.emit(self.total.value)
        >>> class Words(KeyedProcess[str, str]):
        ...     order = arrival(commutes=True)
        ...     total = value_state(str, default="")
        ...     def process(self, event, ctx):
        ...         self.total.value += event
        ...         ctx.emit(self.total.value)
        >>> driver = TestDriver(multiplex({"sum": Sum(), "words": Words()}, name="Both"))
        >>> driver.send_batch([("a", 1, 5, "sum"), ("a", 2, "x", "words"), ("a", 3, 7, "sum")])
        >>> driver.values("sum"), driver.values("words"), driver.state("a")
        ([5, 12], ['x'], {'sum_total': 12, 'words_total': 'x'})
    """
    if not members:
        raise ProcessDefinitionError(f"{name} has no members")
    for process in members.values():
        check_process(process)
    orders = {member: order_of(process) for member, process in members.items()}
    first = next(iter(orders.values()))
    if odd := [member for member, order in orders.items() if order != first]:
        raise ProcessDefinitionError(f"{name}: {', '.join(odd)} has another order than the others")
    if first.by_key:
        raise ProcessDefinitionError(f'{name}: members have no clock="key"')
    controls = {process.control_type for process in members.values() if process.control_type is not None}
    if len(controls) > 1:
        raise ProcessDefinitionError(f"{name}: the members take different control events")
    stored = {member: member for member in members} | dict(members_stored_as or {})
    if odd := sorted(stored.keys() - members.keys()):
        raise ProcessDefinitionError(
            f"{name} has no member {odd[0]} that could be stored as {stored[odd[0]]}"
        )
    if len(set(stored.values())) < len(stored):
        raise ProcessDefinitionError(f"{name}: two members are stored under one name")
    cls = class_for(
        Multiplex,
        name=name,
        stored_as=stored_as or name,
        converts=dict(converts or {}),
        version=sum(process.version for process in members.values()),
        output_type=type(None),
        order=first,
        inputs=_inputs(name, members),
        control_type=next(iter(controls), None),
        stream_timers=any(process.stream_timers for process in members.values()),
        processing_time=any(process.processing_time for process in members.values()),
        **_states(name, members, stored),
        **_outputs(name, members, stored),
    )
    made: Multiplex = cls(dict(members), stored)
    return made


class Multiplex(DefinedProcess):
    """Several processes at work; :func:`multiplex` makes them.

    Args:
        members: Name → process.
        stored: Name → the name that the member is stored as.
    """

    def __init__(self, members: dict[str, KeyedProcess[Any, Any]], stored: dict[str, str]) -> None:
        self._members = members
        self._stored = stored
        self._by_stored = {kept: member for member, kept in stored.items()}
        #: Input → the member that takes it, and its name there.
        self._taken = {
            full: (member, own)
            for member, process in members.items()
            for full, own in _names(member, list(process.inputs)).items()
        }
        self._running: dict[str, KeyedProcess[Any, Any]] | None = None
        self._contexts: dict[str, _MemberContext] = {}

    def __copy__(self) -> Self:
        new = super().__copy__()
        new.__dict__.update(_running=None, _contexts={})
        return new

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _made, (self._members, self.name, self.stored_as, self._stored, self.converts)

    def describe(self) -> dict[str, Any]:
        """Return the members as a checkpoint's contract has them."""
        return {
            "members": {
                self._stored[member]: {"process": p.stored_as, **p.describe()}
                for member, p in self._members.items()
            }
        }

    def stored_inputs(self) -> list[str]:
        """Return the names of the inputs as a checkpoint's contract has them."""
        return [
            full
            for member, process in self._members.items()
            for full in _names(self._stored[member], process.stored_inputs())
        ]

    def process(self, event: Any, ctx: Context) -> None:
        """Handle an event: its input's member does."""
        member, running, own = self._called(ctx)
        running.process(event, self._within(member, own, ctx))

    def on_late(self, event: Any, ctx: Context) -> None:
        """Handle an event behind the watermark."""
        member, running, own = self._called(ctx)
        running.on_late(event, self._within(member, own, ctx))

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Handle a timer: the member's that set it."""
        stored, _, name = timer.name.partition(_TIMER)
        member = self._by_stored[stored]
        running = self._all()[member]
        running.on_timer(msgspec.structs.replace(timer, name=name), self._within(member, "", ctx))

    def last_due(self, latest: int) -> int:
        """Return up to when timers that timers set still fire; the latest that a member says."""
        return max(running.last_due(latest) for running in self._all().values())

    def process_broadcast(self, control: Any, ctx: BroadcastContext) -> None:
        """Bring a control event to the members that take any."""
        for running in self._all().values():
            if running.control_type is not None:
                running.process_broadcast(control, ctx)

    def _called(self, ctx: Context) -> tuple[str, KeyedProcess[Any, Any], str]:
        member, own = self._taken[ctx.input]
        return member, self._all()[member], own

    def _all(self) -> dict[str, KeyedProcess[Any, Any]]:
        """Return the members with the handles of their states, which the host has given to the whole."""
        if self._running is None:
            self._running = {}
            for member, process in self._members.items():
                running = self._running[member] = copy.copy(process)
                for state in process.states:
                    running.__dict__[state.name] = self.__dict__[f"{member}_{state.name}"]
        return self._running

    def _within(self, member: str, own: str, ctx: Context) -> Any:
        """Return what a member sees: made once, since a host has one context for all its callbacks."""
        found = self._contexts.get(member)
        if found is None or found.of is not ctx:
            found = self._contexts[member] = _MemberContext(ctx, member, self._stored[member])
        found.input = own
        return found


class _MemberContext:
    """What a member sees: the context of the whole, with names of its own."""

    __slots__ = ("_main", "_member", "input", "of", "processing_timers", "timers")

    def __init__(self, of: Context, member: str, stored: str) -> None:
        self.of, self._member, self.input = of, member, ""
        self._main: OutputTag[Any] = OutputTag(None, member)
        lead = f"{stored}{_TIMER}"
        self.timers = _MemberTimers(of.timers, lead)
        self.processing_timers = _MemberTimers(of.processing_timers, lead)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)

    def emit(self, record: Any, **more: Any) -> None:
        self.of.output(self._main, record, **more)

    def put_aside(self, record: Late | LateInput) -> None:
        if isinstance(record, Late):
            text = msgspec.json.encode(record.event).decode()
            record = LateInput(self._member, text, record.lateness_ms, record.watermark_ms)
        else:
            record = msgspec.structs.replace(record, input=f"{self._member}_{record.input}")
        self.of.put_aside(record)


class _MemberTimers:
    """The timers of a member: named after it."""

    __slots__ = ("_lead", "_timers")

    def __init__(self, timers: Timers, lead: str) -> None:
        self._timers, self._lead = timers, lead

    def at(self, when: int, name: str = "", **more: Any) -> None:
        self._timers.at(when, self._named(name, more), **more)

    def bring_forward(self, when: int, name: str = "", **more: Any) -> None:
        self._timers.bring_forward(when, self._named(name, more), **more)

    def after(self, delay: Any, name: str = "", **more: Any) -> None:
        self._timers.after(delay, self._named(name, more), **more)

    def delete(self, name: str = "", **more: Any) -> None:
        self._timers.delete(self._lead + name, **more)

    def pending(self, name: str = "", **more: Any) -> int | None:
        return self._timers.pending(self._lead + name, **more)

    def _named(self, name: str, more: Mapping[str, Any]) -> str:
        if more.get("on_key_time"):
            raise ProcessDefinitionError(
                "a member of several has no on_key_time timers: others share its key"
            )
        return self._lead + name


def _made(
    members: dict[str, KeyedProcess[Any, Any]],
    name: str,
    stored_as: str,
    stored: dict[str, str],
    converts: Mapping[int, Conversion],
) -> Multiplex:
    return multiplex(members, name=name, stored_as=stored_as, members_stored_as=stored, converts=converts)


def _names(member: str, inputs: list[str]) -> dict[str, str]:
    """Return the inputs of a member: their names in the whole, and its own."""
    return {f"{member}_{own}": own for own in inputs} if inputs else {member: ""}


def _inputs(name: str, members: Mapping[str, KeyedProcess[Any, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for member, process in members.items():
        for full, own in _names(member, list(process.inputs)).items():
            if full in found:
                raise ProcessDefinitionError(f"{name}: two members have the input {full}")
            found[full] = process.inputs[own] if own else process.event_type
    if len(found) == 1:
        raise ProcessDefinitionError(f"{name} has one input: it needs no multiplexing")
    return found


def _states(
    name: str, members: Mapping[str, KeyedProcess[Any, Any]], stored: Mapping[str, str]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for member, process in members.items():
        for state in process.states:
            full = f"{member}_{state.name}"
            if full in found or not full.isidentifier():
                raise ProcessDefinitionError(f"{name}: a state cannot be called {full}, rename the member")
            own = found[full] = copy.copy(state)
            own.stored_as = f"{stored[member]}_{state.stored_name}"
            own.aliases = tuple(f"{stored[member]}_{old}" for old in state.aliases)
    return found


def _outputs(
    name: str, members: Mapping[str, KeyedProcess[Any, Any]], stored: Mapping[str, str]
) -> dict[str, Any]:
    tags: dict[str, OutputTag[Any]] = {}
    for member, process in members.items():
        main: OutputTag[Any] = OutputTag(process.output_type, member, stored[member])
        for tag in (main, *process.side_outputs):
            if tag.name in tags or tag.name in ("main", "late", "dead_letters"):
                raise ProcessDefinitionError(
                    f"{name}: two outputs are called {tag.name}: give one another name"
                )
            tags[tag.name] = OutputTag(tag.type, tag.name, tag.stored_name)
    return {f"_out_{number}": tag for number, tag in enumerate(tags.values())}
