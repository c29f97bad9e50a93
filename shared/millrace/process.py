"""The process API: a :class:`KeyedProcess`, its declarations and its context.

Nothing here knows an engine. A host (``millrace.host``) binds a process to state, time and outputs
and calls it; the in-memory host and Spark call the very same object.
"""

from __future__ import annotations

import operator
import typing
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

import msgspec

from millrace.batch import Batch
from millrace.dead_letters import Reason
from millrace.errors import UserError
from millrace.inputs import MOST_INPUTS
from millrace.side_outputs import OutputTag
from millrace.state.conversion import Conversion
from millrace.state.layout import OWN_CLOCK, STREAM_TIMERS, TimerRecord
from millrace.state.paged import extent_of
from millrace.state.specs import StateSpec
from millrace.time import NEVER, NO_WATERMARK, ms

E = TypeVar("E")
O = TypeVar("O")  # noqa: E741
T = TypeVar("T")

Key = str | tuple[str, ...]
#: Clocks of timers on event time: the one that the process itself goes by, or the stream's.
TimerClock = Literal["own", "stream"]
_MOST_PATIENCE_MS: Final = 100 * 366 * 86_400_000


class ProcessDefinitionError(UserError):
    """A process class is not complete or contradicts itself."""


@dataclass(frozen=True)
class Order:
    """In which order a process sees its events, and why that is right for it.

    Attributes:
        mode: ``arrival``: in the batch that brings them, the rows of a key sorted by event time;
            ``event_time``: once the watermark has passed them, in exact order with the timers.
        commutes: Results do not depend on the order (counts, window aggregation).
        corrects: Results that a later event changes are emitted again as corrections.
        in_order_per_key: The input brings each key's events in event-time order.
        clock: ``stream``: the watermark is that of the stream; ``key``: each key has one of its own.
        patience_ms: With ``key``: how far the clock of a key may stay behind the stream's, ms.
    """

    mode: str
    commutes: bool = False
    corrects: bool = False
    in_order_per_key: bool = False
    clock: Literal["stream", "key"] = "stream"
    patience_ms: int = 0

    @property
    def by_key(self) -> bool:
        """Whether each key has a clock of its own."""
        return self.clock == "key"


def arrival(*, commutes: bool = False, corrects: bool = False, in_order_per_key: bool = False) -> Order:
    """Handle an event in the batch that brings it; say why that is right.

    Args:
        commutes: The results do not depend on the order of events.
        corrects: Results that a later event changes are emitted again as corrections.
        in_order_per_key: The input brings each key's events in event-time order; only then may a
            timer be ``on_key_time``.

    Raises:
        ProcessDefinitionError: None of the reasons is given.

    Example:
        >>> arrival(commutes=True).mode
        'arrival'
    """
    if not (commutes or corrects or in_order_per_key):
        raise ProcessDefinitionError(
            "arrival() needs a reason why arrival order is right for this process: "
            "commutes=True, corrects=True or in_order_per_key=True"
        )
    return Order("arrival", commutes, corrects, in_order_per_key)


#: What ``order = "event_time"`` stands for: nothing to justify, and a later event is a later time.
EVENT_TIME_ORDER = Order("event_time", in_order_per_key=True)
#: How long a key's own clock is waited for, unless it is said.
PATIENCE: Final = timedelta(hours=1)


def event_time(
    *, clock: Literal["stream", "key"] = "stream", patience: timedelta | int | None = None
) -> Order:
    """Handle events in exact order of event time, by the clock of the stream or by that of their key.

    With ``clock="key"`` each key has a watermark of its own, which follows its own events: a device that was
    cut off for hours delivers them late by the stream's clock, and none of them is late. What a key has
    sent last waits until it sends more, or until the stream's clock is ``patience`` further: so
    long, too, everything that comes after such a process in event-time order waits. Timers that must not
    wait for the key are set with ``clock="stream"`` (see :meth:`Timers.at`).

    Args:
        clock: ``"stream"``, as ``order = "event_time"`` says shorter, or ``"key"``.
        patience: With ``"key"``: how far a key's clock may stay behind the stream's; a
            ``timedelta`` or ms, an hour unless given. An event that is later than that is late.

    Raises:
        ProcessDefinitionError: The clock is none of the two, or the patience is not one.

    Example:
        >>> from millrace import KeyedProcess, event_time
        >>> from millrace.testing import TestDriver
        >>> class Readings(KeyedProcess[int, int]):
        ...     order = event_time(clock="key", patience=10_000)
        ...     def process(self, event, ctx):
        ...         ctx.emit(event)
        >>> driver = TestDriver(Readings())
        >>> driver.send("pump-1", 1, at=9_000)
        >>> driver.send("pump-2", 2, at=2_000)  # seven seconds behind the other, and on time
        >>> driver.send("pump-2", 3, at=1_000)  # behind what pump-2 itself has sent
        >>> driver.drain()
        >>> driver.values(), len(driver.values("late"))
        ([1, 2], 1)
    """
    if clock not in ("stream", "key"):
        raise ProcessDefinitionError(f'event_time(clock=...) is "stream" or "key", not {clock!r}')
    if clock == "stream":
        if patience is not None:
            raise ProcessDefinitionError('event_time(patience=...) is for clock="key"')
        return EVENT_TIME_ORDER
    if isinstance(patience, bool) or not isinstance(patience, timedelta | int | None):
        raise ProcessDefinitionError(f"a patience is a timedelta or milliseconds, not {patience!r}")
    patience_ms = ms(PATIENCE if patience is None else patience)
    if not 0 <= patience_ms <= _MOST_PATIENCE_MS:
        raise ProcessDefinitionError(f"a patience is between 0 and 100 years, not {patience!r}")
    return Order("event_time", in_order_per_key=True, clock="key", patience_ms=patience_ms)


class Timer(msgspec.Struct, frozen=True):
    """A timer that fires.

    Attributes:
        at: Time it was set for, ms.
        name: The name it was set under.
        domain: The clock it was set on; ``stream_time``: one that was set with ``clock="stream"``.
    """

    at: int
    name: str
    domain: Literal["event_time", "processing_time", "stream_time"] = "event_time"


class Late(msgspec.Struct, frozen=True):
    """An event that came behind the watermark, as it stands in the side output ``late``.

    Attributes:
        event: The event.
        lateness_ms: How far its time was behind the watermark, ms (0: exactly at it).
        watermark_ms: The watermark it missed.
    """

    event: Any
    lateness_ms: int
    watermark_ms: int


class LateInput(msgspec.Struct, frozen=True):
    """As :class:`Late`, of a process with several inputs, whose events have no one type.

    Attributes:
        input: The input that the event came by.
        event: The event as JSON text.
        lateness_ms: How far its time was behind the watermark, ms.
        watermark_ms: The watermark it missed.
    """

    input: str
    event: str
    lateness_ms: int
    watermark_ms: int


class Timers:
    """Timers of the current key, by name: on event time, or on processing time.

    Args:
        cursor: Where the entry is.
        order: The process's order.
        domain: Which clock.
        streams: Whether timers may be set with ``clock="stream"``.
    """

    __slots__ = ("_attribute", "_cursor", "_order", "_processing", "_streams", "again")

    def __init__(
        self, cursor: Any, order: Order, domain: str = "event_time", *, streams: bool = False
    ) -> None:
        self._cursor = cursor
        self._order = order
        self._processing = domain == "processing_time"
        self._attribute = "processing_timers_" if self._processing else "timers_"
        self._streams = streams
        #: Tells a timer that is set for a time that may be over apart from others of its name and time.
        self.again: Callable[[int, str], int] = lambda when, domain: 0

    def at(self, when: int, name: str = "", *, on_key_time: bool = False, clock: TimerClock = "own") -> None:
        """Set the timer ``name`` to fire when its clock reaches ``when``.

        At the end of the input it may come to nothing; see :meth:`KeyedProcess.last_due`.

        Args:
            when: Event time (processing time), ms. One in the past fires in this batch (at the next
                tick); its callback is at the time of the one that set it, as its state was then.
            name: At most one timer of a name is pending per key and clock: this replaces it.
            on_key_time: Let a later event of the key fire it before the watermark does.
            clock: ``"stream"``: it fires when the stream's clock reaches ``when``, be the key's own clock
                (and the clock of what is behind a process with ``patience``) there or not: for what must be
                said though a key is silent. Older events of the key may come after it, so what it finds
                hangs on when they come. The process says ``stream_timers = True``.

        Raises:
            ProcessDefinitionError: ``on_key_time`` in a process whose input is not in order per key, or a
                ``clock`` that the process does not have.
            TypeError: ``when`` is no whole number, or ``name`` no text.
            ValueError: ``when`` does not fit 64 bits, or ``name`` is no text in Unicode.
        """
        when = operator.index(when)  # what is kept must be readable: a float here would not be
        if not isinstance(name, str):
            raise TypeError(f"a timer's name is text, not {name!r}")
        if not name.isascii():
            name.encode()  # refuses what could not be kept
        if not NO_WATERMARK <= when <= NEVER:  # could not be kept, and would stop the query
            raise ValueError(f"a timer's time is ms since the epoch in 64 bits, not {when}")
        if on_key_time and (self._processing or clock != "own" or not self._order.in_order_per_key):
            raise ProcessDefinitionError(
                "on_key_time timers are on event time and need arrival(in_order_per_key=True)"
            )
        cursor = self._cursor
        timers, domain = self._pending(clock)
        behind = 0
        if self._processing:
            cursor.soonest_processing = min(cursor.soonest_processing, when)
        else:
            if when < cursor.soonest:
                cursor.soonest = when
            if when < cursor.now:
                behind = cursor.now - when
        for index, timer in enumerate(timers):
            if timer.name == name:
                again = self.again(when, domain)
                if timer.at == when:
                    # It stays the timer that it is, whoever was first to set it: the first of its name and
                    # time if one of them says so, and behind none of them.
                    again, behind = min(timer.again, again, key=abs), min(behind, timer.behind)
                timers[index] = TimerRecord(when, name, on_key_time, again, behind)
                return
        timers.append(TimerRecord(when, name, on_key_time, self.again(when, domain), behind))

    def _pending(self, clock: TimerClock) -> tuple[list[TimerRecord], str]:
        """Return the timers of one clock, and what the clock is called."""
        entry = self._cursor.entry
        if clock == "own":
            return getattr(entry, self._attribute), "processing_time" if self._processing else "event_time"
        if clock != "stream" or self._processing:
            raise ProcessDefinitionError(
                f'timers on event time have clock="own" or clock="stream", others have none; not {clock!r}'
            )
        if not self._streams:
            raise ProcessDefinitionError(
                'timers with clock="stream" need `stream_timers = True` in the process\'s class'
            )
        return entry.stream_timers_, "stream_time"

    def bring_forward(
        self, when: int, name: str = "", *, on_key_time: bool = False, clock: TimerClock = "own"
    ) -> None:
        """Set the timer ``name`` as :meth:`at` does, unless it is pending for ``when`` or earlier.

        For a timer that stands for several things: it is never later than the first of them, and costs
        nothing where it stands well already. When it fires, see what is due, and set it to what is next.

        Args:
            when: Event time (processing time), ms.
            name: Its name.
            on_key_time: Let a later event of the key fire it before the watermark does.
            clock: As :meth:`at` has it.

        Raises:
            ProcessDefinitionError: As :meth:`at`; so are the others.
            TypeError: ``when`` is no whole number, or ``name`` no text.
            ValueError: ``when`` does not fit 64 bits.

        Example:
            >>> from millrace import KeyedProcess, arrival
            >>> from millrace.testing import TestDriver
            >>> class Reminds(KeyedProcess[int, int]):
            ...     order = arrival(commutes=True)
            ...     def process(self, event, ctx):
            ...         ctx.timers.bring_forward(event, "first")
            >>> driver = TestDriver(Reminds())
            >>> for due in (50, 70, 40):
            ...     driver.send("a", due, at=1)
            ...     print(driver.timers("a"))
            {'first': 50}
            {'first': 50}
            {'first': 40}
        """
        pending = self.pending(name, clock=clock)
        if pending is None or when < pending:
            self.at(when, name, on_key_time=on_key_time, clock=clock)

    def after(
        self,
        delay: timedelta | int,
        name: str = "",
        *,
        on_key_time: bool = False,
        clock: TimerClock = "own",
    ) -> None:
        """Set a timer ``delay`` (a ``timedelta`` or ms) after the present of its clock.

        That is the time of the current event or timer; on processing time the last tick, and before
        the first one the tick that comes.
        """
        now = self._cursor.processing_now if self._processing else self._cursor.now
        self.at(max(now + ms(delay), NO_WATERMARK), name, on_key_time=on_key_time, clock=clock)

    def delete(self, name: str = "", *, clock: TimerClock = "own") -> None:
        """Remove the pending timer ``name``; nothing happens where there is none."""
        timers, _ = self._pending(clock)
        timers[:] = [t for t in timers if t.name != name]

    def pending(self, name: str = "", *, clock: TimerClock = "own") -> int | None:
        """Return the time (ms) of the pending timer ``name``, or ``None``."""
        for timer in self._pending(clock)[0]:
            if timer.name == name:
                return int(timer.at)
        return None


class Context:
    """What a callback knows and may do; one object, pointed at the current event or timer.

    Attributes:
        key: The key, a string (a tuple of strings for a key of several columns).
        event_time: Time of the current event or timer, ms; for a timer on processing time the first one that
            the watermark of its batch has not passed (without a watermark, the timer's own time).
        input: Name of the input that the current event came by; empty in timers, and in processes with
            one input.
        watermark: The watermark of this batch, ms; where keys have clocks of their own, that of the key.
        stream_watermark: How far the stream was when this batch began, ms. What is before it would be late,
            did keys not have clocks of their own (or did a process before this one not have them).
        processing_time: The last tick of processing time, ms; ``None`` before the first.
        on_time: Whether the current event was on time; True in timers.
        timers: The key's timers on event time.
        processing_timers: The key's timers on processing time; they need ticks.
    """

    __slots__ = (
        "_emit",
        "_reject",
        "event_time",
        "input",
        "key",
        "on_time",
        "processing_time",
        "processing_timers",
        "stream_watermark",
        "timers",
        "watermark",
    )

    def __init__(
        self,
        timers: Timers,
        processing_timers: Timers,
        emit: Callable[[str, Any, bool | None, int, str | None], None],
        reject: Callable[[Reason, str], None],
    ) -> None:
        self.key: Any = ""
        self.event_time: int = 0
        self.input: str = ""
        self.watermark: int = 0
        self.stream_watermark: int = 0
        self.processing_time: int | None = None
        self.on_time: bool = True
        self.timers = timers
        self.processing_timers = processing_timers
        self._emit = emit
        self._reject = reject

    @property
    def cause(self) -> str | None:
        """Identity of the current event in its source: ``topic:partition:offset`` where that is Kafka.

        Of what another process emitted its ``event_id``; of a timer what it is. ``None`` where there is none.
        """
        return None

    def emit(
        self, record: Any, *, on_time: bool | None = None, revision: int = 0, identity: str | None = None
    ) -> None:
        """Emit to the main output.

        A record's ``event_id`` is the same whenever it is made again: a hash of the process, the key, its
        cause (the event that is being handled, or name and time of the timer), the output, its place
        among the records of that cause, and ``revision``.

        Args:
            record: The record.
            on_time: False for what refines or corrects a result that has been emitted; ``None``: as
                the event that is being handled.
            revision: Which correction of its result this is; part of the record's identity.
            identity: What the record is, for a result that is something by itself whatever has it
                emitted, such as a window by its bounds: stands in place of the cause. Of a key's records
                of one output that are emitted by different callbacks, no two may have both this and
                ``revision`` in common: a sink that knows repeats by ``event_id`` would drop the second.

        Example:
            >>> from millrace import KeyedProcess, arrival
            >>> from millrace.testing import TestDriver
            >>> class Days(KeyedProcess[int, str]):
            ...     order = arrival(commutes=True)
            ...     def process(self, event, ctx):
            ...         ctx.timers.bring_forward(event, "next")
            ...     def on_timer(self, timer, ctx):
            ...         day = timer.at // 86_400_000
            ...         ctx.emit(f"day {day}", identity=f"day {day}")
            >>> ids = []
            >>> for due in (5, 7):                 # whatever timer stands for the day
            ...     driver = TestDriver(Days())
            ...     driver.send("a", due, at=1)
            ...     driver.drain()
            ...     ids += [e.event_id for e in driver.emissions]
            >>> len(ids), len(set(ids))
            (2, 1)
        """
        self._emit("main", record, on_time, revision, identity)

    def output(
        self,
        tag: OutputTag[T],
        record: T,
        *,
        on_time: bool | None = None,
        revision: int = 0,
        identity: str | None = None,
    ) -> None:
        """Emit to a side output; the arguments are those of :meth:`emit`."""
        self._emit(tag.name, record, on_time, revision, identity)

    def put_aside(self, record: Late | LateInput) -> None:
        """Emit to the output ``late``; :meth:`KeyedProcess.emit_late` makes the record."""
        self._emit("late", record, None, 0, None)

    def dead_letter(self, reason: Reason, error: str) -> None:
        """Send the current event, as it came, to the dead letters.

        Args:
            reason: Why, in one word, e.g. ``"duplicate"``.
            error: What was wrong, in one line.
        """
        self._reject(reason, error)


class BroadcastContext:
    """What ``process_broadcast`` knows of time.

    Attributes:
        watermark: For a control event that holds from an event time on, that time less a millisecond, in
            whatever batch it comes and however far the stream is; for all others, how far the process is (ms)
            in the batch that brings it.
        cause: Identity of the control event in its source, as of :attr:`Context.cause`.
    """

    __slots__ = ("cause", "watermark")

    def __init__(self) -> None:
        self.watermark: int = 0
        self.cause: str | None = None


class KeyedProcess(Generic[E, O]):
    """A stateful process over a keyed stream: override :meth:`process`, declare state and order.

    ``E`` and ``O`` are the event's and the main output's types (msgspec structs, or any type that
    msgspec encodes). A callback must depend on nothing but its arguments and the declared state: no
    wall clock, no unseeded randomness, no attributes of its own that change.

    Example:
        >>> from millrace import KeyedProcess, arrival, value_state
        >>> from millrace.testing import TestDriver
        >>> class Count(KeyedProcess[str, int]):
        ...     order = arrival(commutes=True)
        ...     n = value_state(int, default=0)
        ...     def process(self, event, ctx):
        ...         self.n.value += 1
        ...         ctx.emit(self.n.value)
        >>> driver = TestDriver(Count())
        >>> driver.send("a", "x", at=1); driver.send("a", "y", at=2)
        >>> driver.values()
        [1, 2]
    """

    #: ``"event_time"``, :func:`event_time` for one clock per key, or :func:`arrival` with its reason.
    order: ClassVar[Order | Literal["event_time"]]
    #: Whether the process uses processing time; it is refused without ticks then.
    processing_time: ClassVar[bool] = False
    #: Whether the process sets timers with ``clock="stream"``.
    stream_timers: ClassVar[bool] = False
    #: Its name: the class's, unless given.
    name: ClassVar[str] = ""
    #: The name in checkpoints and identities of outputs: its own, unless the process was renamed.
    stored_as: ClassVar[str] = ""
    #: Raised by hand when the meaning of the state changes.
    version: ClassVar[int] = 1
    #: Version of before → how ``millrace convert`` brings what it kept into the form that this one keeps.
    converts: ClassVar[Mapping[int, Conversion]] = {}
    #: Type of control events, for processes that override :meth:`process_broadcast`.
    control_type: ClassVar[Any] = None
    #: Whether what it emits has the values that its JSON would be read as (a float where one is declared). A
    #: station then hands records whose types are frozen through and through on to the next link as they are,
    #: without JSON between (Flink's object reuse).
    object_reuse: ClassVar[bool] = False
    #: Names of the inputs and the types of their events, for a process with several (``E`` is the union
    #: of these types then). Events of one time are handled in this order of inputs; ``ctx.input`` tells.
    inputs: ClassVar[Mapping[str, Any]] = {}

    event_type: ClassVar[Any] = None
    output_type: ClassVar[Any] = None
    states: ClassVar[tuple[StateSpec, ...]] = ()
    side_outputs: ClassVar[tuple[OutputTag[Any], ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.__dict__.get("name") or cls.__name__
        cls.stored_as = cls.__dict__.get("stored_as") or cls.name
        if cls.__dict__.get("order") == "event_time":
            cls.order = EVENT_TIME_ORDER
        states: dict[str, StateSpec] = {s.name: s for s in cls.states}
        tags: dict[str, OutputTag[Any]] = {t.name: t for t in cls.side_outputs}
        for value in vars(cls).values():
            if isinstance(value, StateSpec):
                states[value.name] = value
            elif isinstance(value, OutputTag):
                tags[value.name] = value
        cls.states = tuple(states.values())
        cls.side_outputs = tuple(tags.values())
        for reserved in ("main", "late", "dead_letters"):
            if reserved in tags:
                raise ProcessDefinitionError(f"{cls.__name__}: the output name '{reserved}' is reserved")
        _refuse_shared_names(cls.__name__, "states", [s.stored_name for s in cls.states])
        stored = ["main", "late", "dead_letters", *(tag.stored_name for tag in cls.side_outputs)]
        _refuse_shared_names(cls.__name__, "outputs", stored)
        for base in getattr(cls, "__orig_bases__", ()):
            origin = typing.get_origin(base)
            if origin is KeyedProcess:
                cls.event_type, cls.output_type = typing.get_args(base)
            elif isinstance(origin, type) and issubclass(origin, KeyedProcess):
                given = dict(zip(origin.__parameters__, typing.get_args(base), strict=True))  # type: ignore[attr-defined]
                cls.event_type = given.get(origin.event_type, origin.event_type)
                cls.output_type = given.get(origin.output_type, origin.output_type)
        if cls.inputs:
            if len(cls.inputs) > MOST_INPUTS:
                raise ProcessDefinitionError(f"{cls.__name__} has more than {MOST_INPUTS} inputs")
            cls.event_type = typing.Union[tuple(cls.inputs.values())]  # noqa: UP007 - of a tuple

    @abstractmethod
    def process(self, event: E, ctx: Context) -> None:
        """Handle one event of the current key."""

    def process_key(self, events: Iterator[E], ctx: Context) -> None:
        """Handle some on-time events of one key, in order of event time; optional, for hot processes.

        It must give what :meth:`process` gives for one event after the other. ``ctx`` (its time, what it
        emits, timers) and states are at the event that ``events`` gave last, before that at the first: what
        is read before the loop and written after it costs once, not with every event. Nothing happens between
        the events: no timer of the key is due, and no value's life ends. Where that is not so, where it
        raises, and for what is late, each event goes to :meth:`process`; so does a single one.

        A write, and a read that renews, begins lives at the event that was last given: write after the last
        what every event writes. ``millrace.testing.same_as_batch`` compares the two.

        Args:
            events: Two or more events; take all of them.
            ctx: The context.

        Example:
            >>> from millrace import KeyedProcess, arrival, value_state
            >>> from millrace.testing import TestDriver
            >>> class Sum(KeyedProcess[int, int]):
            ...     order = arrival(in_order_per_key=True)
            ...     total = value_state(int, default=0)
            ...     def process(self, event, ctx):
            ...         self.process_key(iter([event]), ctx)
            ...     def process_key(self, events, ctx):
            ...         total = self.total.value
            ...         for event in events:
            ...             total += event
            ...             ctx.emit(total)
            ...         self.total.value = total
            >>> driver = TestDriver(Sum())
            >>> driver.send_batch([("a", 1, 5), ("a", 2, 7), ("b", 3, 1)])
            >>> driver.values()
            [5, 12, 1]
        """
        for event in events:
            self.process(event, ctx)

    def look_ahead(self, events: Sequence[E]) -> None:
        """Have at hand what some events of one key will ask for; optional, for maps that are paged.

        It is called before the first of them is handled, and changes nothing: it asks for items
        (:meth:`MapState.fetch`), whose parts are then read at once instead of one by one.

        Args:
            events: The on-time events of the current key that are handled next, in their order.

        Example:
            >>> from millrace import KeyedProcess, arrival, map_state
            >>> from millrace.testing import TestDriver
            >>> class Visits(KeyedProcess[str, int]):
            ...     order = arrival(commutes=True)
            ...     visits = map_state(str, int, paged=True)
            ...     def look_ahead(self, events):
            ...         self.visits.fetch(events)
            ...     def process(self, event, ctx):
            ...         self.visits.put(event, self.visits.get(event, 0) + 1)
            ...         ctx.emit(self.visits.get(event))
            >>> driver = TestDriver(Visits())
            >>> driver.send_batch([("north", n, who) for n, who in enumerate(["ann", "bob", "ann"])])
            >>> driver.values()
            [1, 1, 2]
        """

    def process_batch(self, batch: Batch[E]) -> None:
        """Handle the on-time events of many keys together; optional, for hot numeric work.

        It must give what :meth:`process` gives; where it raises, the events go there one by one.
        """
        raise NotImplementedError

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Handle a timer of the current key; processes that set timers override it."""
        raise ProcessDefinitionError(f"{type(self).__name__} sets timers and does not override on_timer")

    def last_due(self, latest: int) -> int:
        """Return up to when timers that timers set still fire at the end of the input, ms.

        At the end of the input every timer that is pending after a key's last event fires, in order. One
        that a timer sets then fires if it is due by the latest of them; a timer that sets itself anew
        would never end. What is set for later does not fire; it is counted (``Runner.unfired``, a line in
        the log).

        A process whose one timer goes from one thing to the next needs more, and overrides this: with
        the time of the last thing in the key's state, which may be read here, or with ``latest`` and any
        time that is more than enough for a chain that ends by itself.

        Args:
            latest: The latest of the key's pending timers on event time, ms.

        Example:
            >>> from millrace import KeyedProcess, arrival, map_state
            >>> from millrace.testing import TestDriver
            >>> class Due(KeyedProcess[int, int]):
            ...     order = arrival(commutes=True)
            ...     dues = map_state(int, bool)
            ...     def process(self, event, ctx):
            ...         self.dues.put(event, True)
            ...         ctx.timers.bring_forward(event)
            ...     def on_timer(self, timer, ctx):
            ...         self.dues.remove(timer.at)
            ...         ctx.emit(timer.at)
            ...         for due in self.dues:
            ...             ctx.timers.bring_forward(due)
            ...     def last_due(self, latest):
            ...         return max(self.dues, default=latest)
            >>> driver = TestDriver(Due())
            >>> driver.send_batch([("a", 1, 50), ("a", 2, 900), ("a", 3, 70)])
            >>> driver.drain()
            >>> driver.values(), driver.is_empty()
            ([50, 70, 900], True)
        """
        return latest

    def on_late(self, event: E, ctx: Context) -> None:
        """Handle an event behind the watermark; the default sends it to the side output ``late``."""
        self.emit_late(event, ctx)

    def process_broadcast(self, control: Any, ctx: BroadcastContext) -> None:
        """Handle a control event: the only place where broadcast state may be written."""
        raise ProcessDefinitionError(f"{type(self).__name__} got a control event and overrides no handler")

    def emit_late(self, event: E, ctx: Context) -> None:
        """Send ``event`` to the side output ``late`` with its lateness."""
        lateness = min(ctx.watermark - ctx.event_time, NEVER)
        if self.inputs:
            text = msgspec.json.encode(event).decode()
            ctx.put_aside(LateInput(ctx.input, text, lateness, ctx.watermark))
            return
        ctx.put_aside(Late(event, lateness, ctx.watermark))

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint depends on besides name, version, order and states, as plain data."""
        return {}

    def stored_inputs(self) -> list[str]:
        """Return the names of the inputs as a checkpoint's contract has them."""
        return list(self.inputs)

    @classmethod
    def stored_outputs(cls) -> dict[str, str]:
        """Return the outputs: name → the name that identities and contracts have."""
        own = {tag.name: tag.stored_name for tag in cls.side_outputs}
        return {**{name: name for name in ("main", "late", "dead_letters")}, **own}

    @classmethod
    def needs_ticks(cls) -> bool:
        """Return whether the process depends on processing time, which only ticks bring."""
        return cls.processing_time or any(s.on_processing_time for s in cls.states)

    @classmethod
    def keeps_broadcast(cls) -> bool:
        """Return whether the process takes control events, or has state that only they change."""
        return cls.control_type is not None or any(s.kind == "broadcast" for s in cls.states)


def _refuse_shared_names(owner: str, what: str, names: list[str]) -> None:
    """Refuse two things that would be stored under one name."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ProcessDefinitionError(f"{owner}: two {what} are stored as '{twice}'")


def check_process(process: KeyedProcess[Any, Any]) -> None:
    """Refuse a process that is not complete, in one line that says what is missing.

    Raises:
        ProcessDefinitionError: No order is declared, or ``process`` is not overridden.
    """
    cls = type(process)
    if not isinstance(getattr(cls, "order", None), Order):
        raise ProcessDefinitionError(
            f'{cls.__name__} declares no order: add `order = "event_time"` or e.g. '
            "`order = arrival(commutes=True)`"
        )
    if cls.process is KeyedProcess.process:
        raise ProcessDefinitionError(f"{cls.__name__} does not override process()")
    if cls.event_type is None or TypeVar in (type(cls.event_type), type(cls.output_type)):
        raise ProcessDefinitionError(
            f"{cls.__name__} must name its types: class {cls.__name__}(KeyedProcess[Event, Output])"
        )


def kept_states(process: KeyedProcess[Any, Any]) -> tuple[StateSpec, ...]:
    """Return what is kept for a key: the declared states, and what the core itself keeps beside them."""
    found = list(process.states)
    found += [extent_of(spec) for spec in process.states if spec.paged]
    if order_of(process).by_key:
        found.append(OWN_CLOCK)
    if process.stream_timers:
        found.append(STREAM_TIMERS)
    return tuple(found)


def order_of(process: KeyedProcess[Any, Any]) -> Order:
    """Return the order that a process declares."""
    order = process.order
    return order if isinstance(order, Order) else EVENT_TIME_ORDER


def next_timer(timers: list[TimerRecord], until: int) -> TimerRecord | None:
    """Return the earliest timer at or before ``until`` (ms), or ``None``; ties by name."""
    best: TimerRecord | None = None
    at = NEVER
    for timer in timers:
        if timer.at <= until and (best is None or (timer.at, timer.name) < (at, best.name)):
            best, at = timer, timer.at
    return best


def soonest(timers: Iterable[TimerRecord]) -> int:
    """Return when the first of these timers is due (ms), ``NEVER`` without any."""
    at = NEVER
    for timer in timers:
        if timer.at < at:
            at = timer.at
    return at
