"""The window operator: from a definition to the process that does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

import msgspec

from millrace.defined_process import DefinedProcess, class_for
from millrace.parts.accumulators import BoundAggregate
from millrace.process import Context, arrival
from millrace.windows.definition import WindowDefinition
from millrace.windows.fields import WindowDefinitionError, tuple_of

#: Name of the one timer that a key's windows share: it stands at the earliest moment that any of them
#: wants, so that its cost does not grow with their number.
TIMER: Final = "window"


class WindowProcess(DefinedProcess):
    """A windowed aggregation at work; :func:`millrace.windows.window` makes them.

    It is picklable wherever its definition is: the class and its record types, which are made for the
    definition, are made anew at the other end.

    Args:
        definition: What to compute.
        bound: Its aggregates, bound to the type of events.
    """

    definition: WindowDefinition
    key_argument: ClassVar[str] = "window(..., key=(...))"
    #: Whether the windows of this kind lose their oldest events one by one.
    slides: ClassVar[bool] = False

    def __init__(self, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> None:
        self.definition = definition
        self._bound = bound
        self._record: Callable[..., Any] = type(self).output_type

    @classmethod
    def declare(cls, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> dict[str, Any]:
        """Return the states of the process: name → declaration."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return the windows as a checkpoint's contract has them: state of others is not theirs."""
        kind = self.definition.assigner
        parts = {name: getattr(kind, name) for name in getattr(kind, "__dataclass_fields__", {})}
        said = {name: "function" if callable(part) else str(part) for name, part in parts.items()}
        return {
            "window": {"kind": kind.label, **said},
            "allowed_lateness_ms": self.definition.allowed_lateness_ms,
            "emit": self.definition.emit,
        }

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return build, (self.definition,)

    def wake(self, at: int, ctx: Context) -> None:
        """Have :meth:`on_timer` called at ``at`` (event time, ms) at the latest."""
        ctx.timers.bring_forward(at, TIMER)


def build(definition: WindowDefinition) -> WindowProcess:
    """Return the process for a definition.

    Raises:
        WindowDefinitionError: The definition contradicts itself or does not fit its type of events.
    """
    definition.check()
    choose = _KINDS.get(type(definition.assigner))
    if choose is None:
        kind = type(definition.assigner).__name__
        raise WindowDefinitionError(f"no process is registered for {kind}: import the module that has it")
    operator = choose(definition.assigner)
    bind = "bind_sliding" if operator.slides else "bind"
    bound = tuple(getattr(aggregate, bind)(definition.event_type) for _, aggregate in definition.aggregates)
    results = [(name, b.result_type) for (name, _), b in zip(definition.aggregates, bound, strict=True)]
    in_order = definition.in_order or not all(b.commutes for b in bound)
    mode = definition.order or ("event_time" if in_order else "arrival")
    cls = class_for(
        operator,
        name=definition.name,
        event_type=definition.event_type,
        output_type=definition.record_type(results),
        order="event_time" if mode == "event_time" else arrival(commutes=True),
        processing_time=definition.trigger.clock == "processing_time",
        **operator.declare(definition, bound),
    )
    process: WindowProcess = cls(definition, bound)
    return process


#: Kind of windows → the process that has them, by what their definition says.
_KINDS: Final[dict[type, Callable[[Any], type[WindowProcess]]]] = {}


def register(assigner: type, choose: Callable[[Any], type[WindowProcess]]) -> None:
    """Say which process has the windows of an assigner; a new kind is a file that does, and its import.

    Args:
        assigner: Type of the assigner.
        choose: The process for an assigner of it.
    """
    _KINDS[assigner] = choose


def accumulators(bound: tuple[BoundAggregate, ...]) -> Any:
    """Return the type of what is kept of one window: an accumulator for each aggregate."""
    return tuple_of(*(b.accumulator for b in bound))


def array_struct(name: str, fields: list[tuple[Any, ...]]) -> Any:
    """Return a struct type that is packed without names."""
    return msgspec.defstruct(name, fields, array_like=True)
