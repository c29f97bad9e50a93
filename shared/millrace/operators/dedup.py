"""Deduplicate: of events with one id, the first within a horizon passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import msgspec

from millrace.batch import Batch
from millrace.operators.base import (
    OperatorDefinition,
    OperatorDefinitionError,
    OperatorProcess,
    make_process,
    name_for,
    record_type,
)
from millrace.process import Context, arrival
from millrace.side_outputs import OutputTag
from millrace.state import MapState, ValueState, map_state, value_state
from millrace.windows.assigners import Duration, duration_ms
from millrace.windows.fields import select

#: A field's name, several of them, or a function of the event that gives text or a whole number.
Id = str | tuple[str, ...] | Callable[[Any], str | int]


class Seen(msgspec.Struct, array_like=True, gc=False):
    """What is kept of an id.

    Attributes:
        first_ms: Event time of the event that passed.
        mark_ms: Where the horizon is counted from, ms.
        repeats: How many repeats there were.
    """

    first_ms: int
    mark_ms: int
    repeats: int = 0


@dataclass(frozen=True, kw_only=True)
class Deduplication(OperatorDefinition):
    """See :func:`deduplicate`.

    Attributes:
        id: What makes two events the same, within a key; ``None``: the key.
        within_ms: The horizon, ms.
        refresh: Whether a repeat makes the horizon begin anew.
        order: The order that says which is the first.
    """

    id: Id | None
    within_ms: int
    refresh: bool
    order: Literal["event_time", "arrival"]

    def describe(self) -> dict[str, Any]:
        """Return what the state hangs on."""
        named = list(self.id) if isinstance(self.id, tuple) else self.id
        return {"kind": "deduplicate", "id": "function" if callable(named) else named}

    def build(self) -> OperatorProcess:
        """Return the process.

        Raises:
            OperatorDefinitionError: The id is nothing that can be kept.
            WindowDefinitionError: The event has no such field.
        """
        if self.order not in ("event_time", "arrival"):
            raise OperatorDefinitionError(f"order is 'event_time' or 'arrival', not {self.order!r}")
        repeat = record_type(
            self.event_type, "Repeat", [("event", self.event_type), ("first_ms", int), ("repeats", int)]
        )
        kept: dict[str, Any]
        if self.id is None:
            kept = {"seen": value_state(Seen, ttl=self.within_ms)}
        else:
            kept = {"seen_ids": map_state(self._id_type(), Seen, ttl=self.within_ms)}
        waits = self.order == "event_time"
        by_key = DeduplicateByKey if waits else DeduplicateArriving
        return make_process(
            by_key if self.id is None else DeduplicateById,
            self,
            self.event_type,
            "event_time" if waits else arrival(commutes=True),
            repeat_type=repeat,
            repeats=OutputTag(repeat),
            **kept,
        )

    def _id_type(self) -> Any:
        if not isinstance(self.id, str):
            if isinstance(self.id, tuple):
                for name in self.id:
                    select(name, self.event_type)
            return str
        tp = select(self.id, self.event_type).type
        if tp not in (str, int):
            raise OperatorDefinitionError(
                f"deduplicate: an id is str or int, and '{self.id}' is {getattr(tp, '__name__', tp)}: "
                "give a function of the event that makes it text"
            )
        return tp

    def getter(self) -> Callable[[Any], str | int]:
        """Return what takes the id from an event."""
        if callable(self.id):
            return _as_text(self.id)
        if isinstance(self.id, tuple):
            gets = [select(name, self.event_type).get for name in self.id]
            return lambda event: msgspec.json.encode([get(event) for get in gets]).decode()
        return select(self.id, self.event_type).get


def _as_text(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function's ids as text; a missing one stays missing."""

    def get(event: Any) -> str | None:
        value = of(event)
        return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()

    return get


class _Deduplicate(OperatorProcess):
    """Lets first events pass and puts repeats aside."""

    repeat_type: ClassVar[Any]
    repeats: OutputTag[Any]

    def __init__(self, definition: Deduplication) -> None:
        super().__init__(definition)
        self._within = definition.within_ms
        self._refresh = definition.refresh

    def _is_first(self, seen: Seen | None, at: int) -> bool:
        # In arrival order an event may be older than the one that passed: the horizon goes both ways.
        return seen is None or abs(at - seen.mark_ms) >= self._within

    def _repeat(self, seen: Seen, event: Any, at: int) -> tuple[Any, bool]:
        """Count a repeat; return what is said of it, and whether the horizon begins anew."""
        seen.repeats += 1
        anew = self._refresh and at > seen.mark_ms
        if anew:
            seen.mark_ms = at
        return self.repeat_type(event, seen.first_ms, seen.repeats), anew

    def _put_aside(self, seen: Seen, event: Any, ctx: Context) -> bool:
        """Send a repeat to its output; return whether the horizon begins anew."""
        repeat, anew = self._repeat(seen, event, ctx.event_time)
        ctx.output(self.repeats, repeat)
        return anew


class DeduplicateByKey(_Deduplicate):
    """For streams whose key is the id."""

    seen: ValueState[Seen | None]

    def process(self, event: Any, ctx: Context) -> None:
        """Let the event pass if it is the first within the horizon."""
        at, seen = ctx.event_time, self.seen.value
        if seen is None or self._is_first(seen, at):
            ctx.emit(event)
            if seen is None or at > seen.mark_ms:
                self.seen.value = Seen(at, at)
        elif self._put_aside(seen, event, ctx):  # written anew: its time to live begins anew
            self.seen.value = seen


class DeduplicateArriving(DeduplicateByKey):
    """The same in arrival order: the events of many keys are looked at together."""

    def process_batch(self, batch: Batch[Any]) -> None:
        """Let the events pass that are the first within the horizon."""
        events, times, starts = batch.events, batch.event_times.tolist(), batch.starts.tolist()
        passed: list[int] = []
        repeats: list[Any] = []
        repeated: list[int] = []
        written: list[int] = []
        values: list[Seen] = []
        for seen, start, end in zip(batch.read(self.seen), starts, starts[1:], strict=False):
            for row in range(start, end):
                at = times[row]
                if seen is None or self._is_first(seen, at):
                    passed.append(row)
                    if seen is not None and at <= seen.mark_ms:
                        continue
                    seen = Seen(at, at)
                else:
                    repeat, anew = self._repeat(seen, events[row], at)
                    repeats.append(repeat)
                    repeated.append(row)
                    if not anew:
                        continue
                written.append(row)
                values.append(seen)
        batch.write(self.seen, values, written)
        batch.emit([events[row] for row in passed], passed)
        batch.output(self.repeats, repeats, repeated)


class DeduplicateById(_Deduplicate):
    """For streams with many ids in one key."""

    seen_ids: MapState[Any, Seen]

    def __init__(self, definition: Deduplication) -> None:
        super().__init__(definition)
        self._id = definition.getter()

    def process(self, event: Any, ctx: Context) -> None:
        """Let the event pass if it is the first of its id within the horizon."""
        which = self._id(event)
        if which is None:
            raise ValueError("deduplicate: the event has no id")
        at, seen = ctx.event_time, self.seen_ids.get(which)
        if seen is None or self._is_first(seen, at):
            ctx.emit(event)
            if seen is None or at > seen.mark_ms:
                self.seen_ids.put(which, Seen(at, at))
        elif self._put_aside(seen, event, ctx):  # written anew: its time to live begins anew
            self.seen_ids.put(which, seen)


def deduplicate(
    event_type: Any,
    *,
    within: Duration,
    id: Id | None = None,
    refresh: bool = False,
    order: Literal["event_time", "arrival"] = "event_time",
    name: str = "",
) -> OperatorProcess:
    """Let the first event of an id pass, and put aside its repeats within a horizon.

    An event is a repeat if its time is less than ``within`` from that of the event that passed. Repeats
    go to the output ``repeats``, each with the time of the one that passed (``first_ms``) and its number
    (``repeats``, from 1). An event whose id is ``None`` is a dead letter.

    State: a few bytes per id for ``within`` after it passed (``refresh``: after its last repeat).

    Args:
        event_type: Type of the events.
        within: The horizon (``timedelta`` or ms).
        id: What makes two events the same: a field (``str`` or ``int``), several, or a function of the
            event. Ids are told apart within a key. ``None``: the key of the stream is the id, which
            spreads the work best.
        refresh: Whether a repeat makes the horizon begin anew, so that an id that never stops coming
            passes once.
        order: ``"event_time"``: the first by event time passes, once the watermark is there;
            ``"arrival"``: the first to come passes at once. That gives the same where repeats are copies
            of one event, as from a producer that sends again; where the same id is used anew at another
            time, which one passes hangs on the order in which they come.
        name: Name of the process in contracts and identities.

    Raises:
        OperatorDefinitionError: Something contradicts itself.
        WindowDefinitionError: The event has no such field, or ``within`` is no positive duration.

    Example:
        >>> from millrace.testing import TestDriver
        >>> class Order(msgspec.Struct):
        ...     number: int
        >>> driver = TestDriver(deduplicate(Order, id="number", within=60_000, order="arrival"))
        >>> for at, number in enumerate([1, 2, 1, 1]):
        ...     driver.send("shop", Order(number), at=at)
        >>> [o.number for o in driver.values()]
        [1, 2]
        >>> driver.values("repeats")[-1]
        OrderRepeat(event=Order(number=1), first_ms=0, repeats=2)
    """
    if isinstance(id, tuple) and not id:
        raise OperatorDefinitionError("deduplicate: id=() names no field")
    return Deduplication(
        event_type=event_type,
        key=(),
        name=name_for(event_type, "deduplicate", name),
        id=id,
        within_ms=duration_ms(within, "within"),
        refresh=refresh,
        order=order,
    ).build()
