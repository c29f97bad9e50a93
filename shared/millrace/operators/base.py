"""The base of operators: a definition that is plain data, and the process that is built from it."""

from __future__ import annotations

import keyword
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from millrace.defined_process import DefinedProcess, class_for
from millrace.errors import UserError
from millrace.process import Context, Order, arrival
from millrace.state.declare import value_state
from millrace.windows.assigners import Duration, duration_ms
from millrace.windows.fields import Of, fields_of, select, tuple_of

P = TypeVar("P", bound="OperatorProcess")
Names = str | tuple[str, ...]


class OperatorDefinitionError(UserError):
    """An operator's definition is not complete or contradicts itself."""


@dataclass(frozen=True, kw_only=True)
class OperatorDefinition:
    """What an operator does, apart from how: plain data, picklable if its functions are.

    Attributes:
        event_type: Type of the events.
        key: Names of the key's columns in results.
        name: Name of the process.
    """

    event_type: Any
    key: tuple[str, ...]
    name: str

    def build(self) -> OperatorProcess:
        """Return the process that does it."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return what the state hangs on, as plain data, for a checkpoint's contract."""
        return {}


class OperatorProcess(DefinedProcess):
    """An operator at work. It is picklable wherever its definition is.

    The class and its record types are made for the definition, and made anew where it is unpickled.

    Args:
        definition: What to do.
    """

    def __init__(self, definition: OperatorDefinition) -> None:
        self.definition = definition
        self._record: Callable[..., Any] = type(self).output_type

    def describe(self) -> dict[str, Any]:
        """Return the operator as a checkpoint's contract has it."""
        return {"operator": self.definition.describe()}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return rebuild, (self.definition,)


def rebuild(definition: OperatorDefinition) -> OperatorProcess:
    """Return the process of a definition; what unpickling calls."""
    return definition.build()


def make_process(
    operator_class: type[P],
    definition: OperatorDefinition,
    output_type: Any,
    order: Order | Literal["event_time"],
    **members: Any,
) -> P:
    """Return a process of a class made for the definition.

    Args:
        operator_class: What it does.
        definition: What for.
        output_type: Type of its results.
        order: The order in which it takes events.
        members: Its states and side outputs by name.
    """
    cls = class_for(
        operator_class,
        name=definition.name,
        event_type=definition.event_type,
        output_type=output_type,
        order=order,
        **members,
    )
    process: P = cls(definition)
    return process


def order_for(in_order: bool) -> Order | Literal["event_time"]:
    """Return how events are taken: as they come where each key's are in order, else in event-time order."""
    return arrival(in_order_per_key=True) if in_order else "event_time"


@dataclass(frozen=True, kw_only=True)
class PerEventDefinition(OperatorDefinition):
    """An operator whose results each belong to an event.

    Attributes:
        idle_ms: How long a key without events is kept, ms.
        keep: Fields of the event that its result carries.
        in_order: Whether the input has each key's events in order of event time.
    """

    idle_ms: int | None
    keep: tuple[str, ...]
    in_order: bool

    def per_event(
        self, operator_class: type[PerEventProcess], what: str, *columns: list[tuple[str, Any]], **kept: Any
    ) -> OperatorProcess:
        """Return the process whose results have the key, the event's time and kept fields, and more.

        Args:
            operator_class: What it does.
            what: What a result is, e.g. ``"Repeat"``.
            columns: Fields (name, type) of a result beside those.
            kept: Name and type of each value state.

        Raises:
            OperatorDefinitionError: Columns have one name.
        """
        output = record_type(
            self.event_type,
            what,
            key_fields(self.key),
            [("event_time_ms", int)],
            kept_fields(self.event_type, self.keep),
            *columns,
        )
        states = {name: value_state(tp, ttl=self.idle_ms) for name, tp in kept.items()}
        return make_process(operator_class, self, output, order_for(self.in_order), **states)


class PerEventProcess(OperatorProcess):
    """An operator at work whose results each belong to an event."""

    def __init__(self, definition: PerEventDefinition) -> None:
        super().__init__(definition)
        self._keep = keeper(definition.keep)

    def emit_row(self, event: Any, ctx: Context, *values: Any) -> None:
        """Emit a result of an event."""
        ctx.emit(self._record(*self.key_parts(ctx), ctx.event_time, *self._keep(event), *values))


@dataclass(frozen=True, kw_only=True)
class SeriesDefinition(PerEventDefinition):
    """An operator on a number of each event.

    Attributes:
        of: The value: a field or a function of the event.
    """

    #: What errors and the contract call it.
    kind: ClassVar[str]
    of: Of

    def number(self) -> Callable[[Any], Any]:
        """Return what takes the value from an event.

        Raises:
            OperatorDefinitionError: The value is no number.
            WindowDefinitionError: The event has no such field.
        """
        return number_of(self.of, self.event_type, self.kind)


class SeriesProcess(PerEventProcess):
    """An operator at work on a number of each event; events without one are passed over."""

    def __init__(self, definition: SeriesDefinition) -> None:
        super().__init__(definition)
        self._kind = definition.kind
        self._get = definition.number()

    def process(self, event: Any, ctx: Context) -> None:
        """Add the event's value, and emit what there is to tell."""
        value = measured(self._get(event), self._kind)
        if value is not None:
            self.add(value, event, ctx)

    def add(self, value: float, event: Any, ctx: Context) -> None:
        """Add a value.

        Args:
            value: The event's number.
            event: The event.
            ctx: Its context.
        """
        raise NotImplementedError


def record_type(event_type: Any, what: str, *parts: list[tuple[str, Any]]) -> type[msgspec.Struct]:
    """Return the type of result records, named after the events.

    Args:
        event_type: Type of the events.
        what: What a record is, e.g. ``"Repeat"``.
        parts: Fields (name, type) in order.

    Raises:
        OperatorDefinitionError: Two fields have one name, or a name is none.
    """
    fields = [field for part in parts for field in part]
    seen = set()
    for name, _ in fields:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise OperatorDefinitionError(f"'{name}' cannot be the name of a column")
        if name in seen:
            raise OperatorDefinitionError(f"two columns of the result are named '{name}'")
        seen.add(name)
    return msgspec.defstruct(f"{getattr(event_type, '__name__', 'Event')}{what}", fields, frozen=True)


def key_fields(key: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Return the key's fields of a result."""
    return [(name, str) for name in key]


def kept_fields(event_type: Any, keep: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Return the fields of the event that results carry.

    Raises:
        OperatorDefinitionError: The event has no such field.
    """
    there = fields_of(event_type)
    for name in keep:
        if name not in there:
            has = f"it has {', '.join(there)}" if there else "it has no fields"
            raise OperatorDefinitionError(f"keep: the event has no field '{name}': {has}")
    return [(name, there[name]) for name in keep]


def kept_type(event_type: Any, keep: tuple[str, ...]) -> Any:
    """Return the type of the fields that are kept of an event."""
    return tuple_of(*(tp for _, tp in kept_fields(event_type, keep)))


def keeper(keep: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what takes the fields that results carry from an event."""
    if not keep:
        return lambda event: ()
    if len(keep) == 1:
        get = operator.attrgetter(keep[0])
        return lambda event: (get(event),)
    return operator.attrgetter(*keep)


def number_of(of: Of, event_type: Any, what: str) -> Callable[[Any], Any]:
    """Return what takes a number from an event; it gives ``None`` where there is none.

    Raises:
        OperatorDefinitionError: What is chosen is no number.
        WindowDefinitionError: The event has no such field.
    """
    selected = select(of, event_type)
    if selected.type not in (None, int, float, bool):
        raise OperatorDefinitionError(
            f"{what} needs a number (int or float), not {getattr(selected.type, '__name__', selected.type)}"
        )
    return selected.get


def names_of(names: Names) -> tuple[str, ...]:
    """Return one name or several as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names)


def name_for(event_type: Any, what: str, given: str = "") -> str:
    """Return the name of a process: the one given, or one made of the event and what is done with it."""
    return given or re.sub(r"\W+", "_", f"{getattr(event_type, '__name__', 'event')}_{what}").lower()


def life_ms(idle: Duration | None) -> int | None:
    """Return how long (ms) a key without events is kept, ``None`` for ever."""
    return None if idle is None else duration_ms(idle, "idle")


def fraction(value: float, what: str, *, closed: bool = True) -> float:
    """Return a number between 0 and 1.

    Args:
        value: The number.
        what: What it is, for the error.
        closed: Whether 1 itself is allowed.

    Raises:
        OperatorDefinitionError: It is not in (0, 1], or (0, 1).
    """
    number = finite(value, what)
    if number <= 0 or number > 1 or (number == 1 and not closed):
        raise OperatorDefinitionError(f"{what} is in (0, 1{']' if closed else ')'}, not {value!r}")
    return number


def finite(value: float, what: str, *, positive: bool = False) -> float:
    """Return a number that is neither infinite nor NaN.

    Raises:
        OperatorDefinitionError: It is, or it is not a number, or not positive.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
        raise OperatorDefinitionError(f"{what} is a finite number, not {value!r}")
    if positive and value <= 0:
        raise OperatorDefinitionError(f"{what} must be positive, not {value!r}")
    return float(value)


def whole(value: int, what: str, least: int = 1) -> int:
    """Return a whole number that is at least ``least``.

    Raises:
        OperatorDefinitionError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OperatorDefinitionError(f"{what} is a whole number of at least {least}, not {value!r}")
    return value


def measured(value: Any, what: str) -> float | None:
    """Return a value of an event as a float, ``None`` where it is missing.

    Raises:
        ValueError: It is not finite: one such value would spoil all that come after it.
    """
    if value is None:
        return None
    number = float(value)
    if number - number != 0:
        raise ValueError(f"{what}: a value is a finite number, not {number}")
    return number
