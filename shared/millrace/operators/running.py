"""Running aggregates: after every event, what there has been of its key so far; also of the last n events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from millrace.operators.base import (
    Names,
    OperatorDefinitionError,
    OperatorProcess,
    PerEventDefinition,
    PerEventProcess,
    life_ms,
    name_for,
    names_of,
)
from millrace.parts.accumulators import BoundAggregate, together
from millrace.process import Context
from millrace.state import ValueState
from millrace.windows.aggregates import Aggregate
from millrace.windows.assigners import Duration, count_sliding
from millrace.windows.building import Window, window
from millrace.windows.process import accumulators


@dataclass(frozen=True, kw_only=True)
class RunningDefinition(PerEventDefinition):
    """See :func:`running`.

    Attributes:
        aggregates: Name → aggregate of each result column.
        before: Whether an event's result is of those before it.
    """

    aggregates: tuple[tuple[str, Aggregate], ...]
    before: bool

    def describe(self) -> dict[str, Any]:
        """Return what the state hangs on."""
        return {"kind": "running"}

    def bind(self) -> tuple[BoundAggregate, ...]:
        """Return the aggregates, bound to the type of events."""
        return tuple(aggregate.bind(self.event_type) for _, aggregate in self.aggregates)

    def build(self) -> OperatorProcess:
        """Return the process.

        Raises:
            OperatorDefinitionError: Something is missing or contradicts itself.
            WindowDefinitionError: An aggregate does not fit the type of events.
        """
        if not self.aggregates:
            raise OperatorDefinitionError("aggregate() needs at least one, e.g. .aggregate(n=count())")
        for name, aggregate in self.aggregates:
            if not isinstance(aggregate, Aggregate):
                raise OperatorDefinitionError(f"{name}= is an aggregate such as count(), not {aggregate!r}")
        bound = self.bind()
        results = [(name, b.result_type) for (name, _), b in zip(self.aggregates, bound, strict=True)]
        return self.per_event(RunningAggregates, "Running", results, sofar=accumulators(bound))


class RunningAggregates(PerEventProcess):
    """Keeps an accumulator per aggregate."""

    sofar: ValueState[Any]

    def __init__(self, definition: RunningDefinition) -> None:
        super().__init__(definition)
        bound = definition.bind()
        self._creates = [b.create for b in bound]
        self._results = [b.result for b in bound]
        self._update = together([b.add for b in bound])
        self._before = definition.before

    def process(self, event: Any, ctx: Context) -> None:
        """Add the event, and emit what there is."""
        accs = self.sofar.value
        if accs is None:
            accs = [create() for create in self._creates]
        if self._before:
            self._emit(accs, event, ctx)
        # Written anew, so that its time to live begins anew.
        accs = self.sofar.value = self._update(accs, event, ctx.event_time)
        if not self._before:
            self._emit(accs, event, ctx)

    def process_key(self, events: Iterator[Any], ctx: Context) -> None:
        """Add events, and emit what there is at each; what is kept is read and written once."""
        accs, before, update = self.sofar.value, self._before, self._update
        if accs is None:
            accs = [create() for create in self._creates]
        for event in events:
            if before:
                self._emit(accs, event, ctx)
            accs = update(accs, event, ctx.event_time)
            if not before:
                self._emit(accs, event, ctx)
        self.sofar.value = accs

    def _emit(self, accs: Any, event: Any, ctx: Context) -> None:
        values = [result(acc) for result, acc in zip(self._results, accs, strict=True)]
        self.emit_row(event, ctx, *values)


@dataclass(frozen=True)
class Running:
    """Running aggregates that wait for what they are; made by :func:`running`."""

    definition: RunningDefinition

    def aggregate(self, **aggregates: Aggregate) -> OperatorProcess:
        """Return the process that computes ``aggregates``, a result column of each name.

        Raises:
            OperatorDefinitionError: Something is missing or contradicts itself.
            WindowDefinitionError: An aggregate does not fit the type of events.
        """
        return replace(self.definition, aggregates=tuple(aggregates.items())).build()


def running(
    event_type: Any,
    *,
    idle: Duration | None,
    keep: Names = (),
    before: bool = False,
    in_order: bool = False,
    key: Names = "key",
    name: str = "",
) -> Running:
    """Begin running aggregates: a result per event over all events of its key so far.

    ``.aggregate(...)`` makes a process of it; the aggregates are those of windows. Over the last so many
    minutes it is ``window(..., lookback(width))``, over the last n events :func:`moving`.

    State: an accumulator of each aggregate per key, for ``idle`` after the key's last event.

    Args:
        event_type: Type of the events.
        idle: How long after its last event a key is forgotten and begins anew; ``None``: never, and the
            state grows with every key there ever was.
        keep: Fields of the event that its result carries.
        before: Leave the event itself out: its result is of those before it.
        in_order: The input has each key's events in order of event time: they are handled as they come.
            Otherwise they wait for the watermark.
        key: Name of the key's column, or of each of its parts.
        name: Name of the process in contracts and identities.

    Raises:
        WindowDefinitionError: ``idle`` is no positive duration.

    Example:
        >>> import msgspec
        >>> from millrace.testing import TestDriver
        >>> from millrace.windows import count, mean
        >>> class Payment(msgspec.Struct):
        ...     amount: float
        >>> driver = TestDriver(running(Payment, idle=86_400_000).aggregate(n=count(), usual=mean("amount")))
        >>> for at, amount in enumerate([10.0, 20.0]):
        ...     driver.send("ann", Payment(amount), at=at)
        >>> driver.drain()
        >>> driver.values()[-1]
        PaymentRunning(key='ann', event_time_ms=1, n=2, usual=15.0)
    """
    return Running(
        RunningDefinition(
            event_type=event_type,
            key=names_of(key),
            name=name_for(event_type, "running", name),
            aggregates=(),
            idle_ms=life_ms(idle),
            keep=names_of(keep),
            before=before,
            in_order=in_order,
        )
    )


def moving(
    event_type: Any, size: int, *, idle: Duration | None, key: Names = "key", name: str = ""
) -> Window:
    """Begin moving aggregates: a result per event over the key's last ``size`` events.

    It is the window ``count_sliding(size)``: nothing comes out before there are ``size`` events.

    State: the key's last ``size`` events as the aggregates need them, for ``idle`` after the last one.

    Args:
        event_type: Type of the events.
        size: How many events.
        idle: How long after its last event a key is forgotten and begins anew; ``None``: never.
        key: Name of the key's column, or of each of its parts.
        name: Name of the process in contracts and identities.

    Raises:
        WindowDefinitionError: ``size`` is no number of events, or ``idle`` no positive duration.

    Example:
        >>> import msgspec
        >>> from millrace.testing import TestDriver
        >>> from millrace.windows import mean
        >>> class Trade(msgspec.Struct):
        ...     price: float
        >>> driver = TestDriver(moving(Trade, 3, idle=86_400_000).aggregate(average=mean("price")))
        >>> for at, price in enumerate([1.0, 2.0, 3.0, 7.0]):
        ...     driver.send("ACME", Trade(price), at=at)
        >>> driver.drain()
        >>> [r.average for r in driver.values()]
        [2.0, 4.0]
    """
    return window(
        event_type,
        count_sliding(size, idle=idle),
        key=key,
        name=name_for(event_type, f"moving_{size}", name),
    )
