"""Absence: an event that was expected did not come in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from millrace.operators.base import (
    Names,
    OperatorDefinition,
    OperatorDefinitionError,
    OperatorProcess,
    keeper,
    kept_fields,
    kept_type,
    key_fields,
    make_process,
    name_for,
    names_of,
    order_for,
    record_type,
)
from millrace.process import Context, Timer
from millrace.side_outputs import OutputTag
from millrace.state import ValueState, value_state
from millrace.windows.assigners import Duration, duration_ms, whole_ms
from millrace.windows.process import array_struct

Condition = Callable[[Any], bool]

_DEADLINE: Final = "deadline"
_FORGET: Final = "forget"


@dataclass(frozen=True, kw_only=True)
class AbsenceDefinition(OperatorDefinition):
    """See :func:`absence` and :func:`heartbeat`.

    Attributes:
        start: Which events begin the wait; ``None``: all.
        end: Which events end it; ``None``: all.
        within_ms: How long the wait is, ms.
        restart: Whether an event that begins a wait begins it anew while one is on.
        keep: Fields of the event that began the wait, for the alert.
        remember_ms: How long after an alert an event that comes after all is told, ms.
        in_order: Whether the input has each key's events in order of event time.
    """

    start: Condition | None
    end: Condition | None
    within_ms: int
    restart: bool
    keep: tuple[str, ...]
    remember_ms: int
    in_order: bool

    def describe(self) -> dict[str, Any]:
        """Return what the state hangs on."""
        return {"kind": "absence", "keep": list(self.keep)}

    def build(self) -> OperatorProcess:
        """Return the process.

        Raises:
            OperatorDefinitionError: The event does not have what is to be kept.
        """
        kept = kept_fields(self.event_type, self.keep)
        since: list[tuple[str, Any]] = [("since_ms", int), ("deadline_ms", int)]
        back = record_type(
            self.event_type,
            "Back",
            key_fields(self.key),
            since,
            [("back_ms", int), ("overdue_ms", int)],
            kept,
        )
        wait = array_struct(
            "Wait",
            [("since", int), ("kept", kept_type(self.event_type, self.keep)), ("alerted", bool, False)],
        )
        return make_process(
            Absence,
            self,
            record_type(self.event_type, "Absent", key_fields(self.key), since, kept),
            order_for(self.in_order),
            wait_type=wait,
            back_type=back,
            wait=value_state(wait),
            back=OutputTag(back),
        )


class Absence(OperatorProcess):
    """One wait per key, and one timer: when it is over, or when nothing more is told about it."""

    wait_type: ClassVar[Any]
    back_type: ClassVar[Any]
    wait: ValueState[Any]
    back: OutputTag[Any]

    def __init__(self, definition: AbsenceDefinition) -> None:
        super().__init__(definition)
        self._starts, self._ends = definition.start, definition.end
        self._within, self._remember = definition.within_ms, definition.remember_ms
        self._restart = definition.restart
        # Where the key's events come in order, a later one shows that the time has passed.
        self._on_key_time = definition.in_order
        self._keep = keeper(definition.keep)

    def process(self, event: Any, ctx: Context) -> None:
        """End the wait that is on, and begin one; an event may do both."""
        on = wait = self.wait.value
        if wait is not None and (self._ends is None or self._ends(event)):
            if wait.alerted:
                self._tell_back(wait, ctx)
            wait = None
        if (self._starts is None or self._starts(event)) and (wait is None or wait.alerted or self._restart):
            self.wait.value = self.wait_type(ctx.event_time, self._keep(event))
            ctx.timers.at(ctx.event_time + self._within, _DEADLINE, on_key_time=self._on_key_time)
            if on is not None and on.alerted:
                ctx.timers.delete(_FORGET)
        elif wait is None and on is not None:
            self.wait.clear()
            ctx.timers.delete(_FORGET if on.alerted else _DEADLINE)

    def _tell_back(self, wait: Any, ctx: Context) -> None:
        deadline = wait.since + self._within
        at = ctx.event_time
        record = self.back_type(*self.key_parts(ctx), wait.since, deadline, at, at - deadline, *wait.kept)
        ctx.output(self.back, record)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Alert, or forget what was alerted long ago."""
        wait = self.wait.value
        if wait is None:
            return
        if timer.name == _FORGET:
            self.wait.clear()
            return
        record = self._record(*self.key_parts(ctx), wait.since, timer.at, *wait.kept)
        ctx.emit(record, identity=f"{wait.since}")
        if self._remember:
            wait.alerted = True
            ctx.timers.at(timer.at + self._remember, _FORGET, on_key_time=self._on_key_time)
        else:
            self.wait.clear()

    def last_due(self, latest: int) -> int:
        """Return when (ms) a wait is forgotten that is over at ``latest``."""
        return latest + self._remember


def absence(
    event_type: Any,
    *,
    start: Condition,
    end: Condition,
    within: Duration,
    again: Literal["keep", "restart"] = "keep",
    keep: Names = (),
    remember: Duration = 0,
    in_order: bool = False,
    key: Names = "key",
    name: str = "",
) -> OperatorProcess:
    """Alert when an event that is expected after another does not come in time.

    The wait is over ``within`` after its start: an ``end`` at that very time is in time, one later is not.
    The alert has that time and comes when the watermark does. An ``end`` without a start does nothing and
    leaves nothing behind.

    State: one wait and one timer per key that waits, and for ``remember`` after its alert.

    Args:
        event_type: Type of the events.
        start: Which events begin a wait; a function of the event.
        end: Which events end it. An event that does both ends the one and begins the next.
        within: How long the wait is (``timedelta`` or ms).
        again: What another start does while a wait is on: ``"keep"`` the deadline, or ``"restart"`` it.
        keep: Fields of the event that began the wait; the alert carries them.
        remember: How long after an alert an ``end`` that comes after all goes to the output ``back``, with
            how long it was overdue.
        in_order: The input has each key's events in order of event time. Then nothing waits, and a later
            event of the key brings its alert at once; otherwise events wait for the watermark, and are
            handled in exact order.
        key: Name of the key's column, or of each of its parts.
        name: Name of the process in contracts and identities.

    Raises:
        OperatorDefinitionError: Something contradicts itself.
        WindowDefinitionError: A time is none.

    Example:
        >>> import msgspec
        >>> from millrace.testing import TestDriver
        >>> class Step(msgspec.Struct):
        ...     what: str
        >>> driver = TestDriver(absence(
        ...     Step, start=lambda s: s.what == "paid", end=lambda s: s.what == "shipped", within=60_000
        ... ))
        >>> driver.send("order-1", Step("paid"), at=0)
        >>> driver.send("order-2", Step("paid"), at=1_000)
        >>> driver.send("order-1", Step("shipped"), at=59_000)
        >>> driver.advance_watermark(61_000)
        >>> driver.values()
        [StepAbsent(key='order-2', since_ms=1000, deadline_ms=61000)]
    """
    if not callable(start) or not callable(end):
        raise OperatorDefinitionError(
            "absence: start= and end= are functions of the event that say yes or no"
        )
    if again not in ("keep", "restart"):
        raise OperatorDefinitionError(f"again is 'keep' or 'restart', not {again!r}")
    return AbsenceDefinition(
        event_type=event_type,
        key=names_of(key),
        name=name_for(event_type, "absence", name),
        start=start,
        end=end,
        within_ms=duration_ms(within, "within"),
        restart=again == "restart",
        keep=names_of(keep),
        remember_ms=_not_negative(remember, "remember"),
        in_order=in_order,
    ).build()


def heartbeat(
    event_type: Any,
    *,
    timeout: Duration,
    keep: Names = (),
    remember: Duration = 0,
    in_order: bool = False,
    key: Names = "key",
    name: str = "",
) -> OperatorProcess:
    """Alert when a key has had no event for ``timeout``: once for each silence.

    State: one wait and one timer per key, until ``timeout`` (and ``remember``) after its last event.

    Args:
        event_type: Type of the events.
        timeout: How long the silence may be; an event exactly so long after the last one is in time.
        keep: Fields of the key's last event; the alert carries them.
        remember: How long after an alert the key's next event goes to the output ``back`` as well, with
            how long it was overdue.
        in_order: See :func:`absence`.
        key: Name of the key's column, or of each of its parts.
        name: Name of the process in contracts and identities.

    Raises:
        OperatorDefinitionError: Something contradicts itself.
        WindowDefinitionError: A time is none.

    Example:
        >>> import msgspec
        >>> from millrace.testing import TestDriver
        >>> class Reading(msgspec.Struct):
        ...     celsius: float
        >>> driver = TestDriver(heartbeat(Reading, timeout=60_000, keep="celsius", remember=3_600_000))
        >>> for minute in (0, 1, 5):
        ...     driver.send("sensor", Reading(20.0 + minute), at=minute * 60_000)
        >>> driver.values()
        [ReadingAbsent(key='sensor', since_ms=60000, deadline_ms=120000, celsius=21.0)]
        >>> driver.drain()
        >>> [(r.back_ms, r.overdue_ms) for r in driver.values("back")]
        [(300000, 180000)]
    """
    return AbsenceDefinition(
        event_type=event_type,
        key=names_of(key),
        name=name_for(event_type, "heartbeat", name),
        start=None,
        end=None,
        within_ms=duration_ms(timeout, "timeout"),
        restart=True,
        keep=names_of(keep),
        remember_ms=_not_negative(remember, "remember"),
        in_order=in_order,
    ).build()


def _not_negative(duration: Duration, what: str) -> int:
    value = whole_ms(duration, what)
    if value < 0:
        raise OperatorDefinitionError(f"{what} must not be negative, not {duration!r}")
    return value
