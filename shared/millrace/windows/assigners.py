"""Window assigners: tumbling, hopping, sliding, look-back, session, count, global.

Each is a definition, plain data. Windows are half-open, ``[start, end)``, in UTC milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final, Literal

from millrace.time import ms
from millrace.windows.calendars import DAY_MS, day_ranges, zone
from millrace.windows.fields import WindowDefinitionError

Duration = timedelta | int
#: Which ends belong to a range that looks back: ``right`` is (t-w, t], ``both`` [t-w, t], ``left`` [t-w, t).
Closed = Literal["right", "both", "left"]
ExactGap = Literal["merge", "split"]

#: Start and end of the global window: the years 1 to 9999, which every calendar here can write.
BEGIN_OF_TIME: Final = -62_135_596_800_000
END_OF_TIME: Final = 253_402_300_800_000


class Assigner:
    """A kind of windows, as plain data: a new kind is a frozen dataclass of this, with a process.

    The process is registered by :func:`millrace.windows.process.register`.
    """

    #: Whether a window has an end: where it has none, its result comes at the end of the input.
    ends: ClassVar[bool] = True
    #: Whether a window has one final result: no allowed lateness, no trigger, no updates.
    has_one_result: ClassVar[bool] = False
    #: Whether a result belongs to an event, and has its time in place of a window's start and end.
    is_per_event: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """How windows of this kind are called in names."""
        raise NotImplementedError

    @property
    def in_order(self) -> bool:
        """Whether events must come in order of event time."""
        return False

    @property
    def kept_fields(self) -> tuple[str, ...]:
        """Fields of the event that results carry."""
        return ()

    @property
    def refuses_lateness(self) -> str:
        """Why there is no allowed lateness, empty where there is."""
        return ""


class Ranges(Assigner):
    """Windows that begin and end where it is known beforehand."""

    def ranges(self, at: int) -> list[tuple[int, int]]:
        """Return the windows, start and end (ms), that a time (ms) is in, by start."""
        raise NotImplementedError


@dataclass(frozen=True)
class Hopping(Ranges):
    """Windows of one length, a new one at every step; with step = size they tumble.

    Attributes:
        size_ms: Length, ms.
        step_ms: Distance of two starts, ms.
        offset_ms: Starts are at ``offset_ms + n * step_ms``.
    """

    size_ms: int
    step_ms: int
    offset_ms: int = 0

    def ranges(self, at: int) -> list[tuple[int, int]]:
        """Return the windows that ``at`` (ms) is in, by start.

        >>> Hopping(30, 10).ranges(100)
        [(80, 110), (90, 120), (100, 130)]
        """
        size, step = self.size_ms, self.step_ms
        last = at - (at - self.offset_ms) % step
        if size == step:
            return [(last, last + size)]
        first = last - (size - 1 - (at - last)) // step * step
        return [(start, start + size) for start in range(first, last + 1, step)]

    @property
    def label(self) -> str:
        """How windows of this kind are called in names."""
        kind = "tumbling" if self.size_ms == self.step_ms else "hopping"
        return f"{kind}_{self.size_ms}ms" + (f"_{self.step_ms}ms" if kind == "hopping" else "")


@dataclass(frozen=True)
class CalendarDays(Ranges):
    """Windows of whole days in a time zone: 23 or 25 hours where the clock is changed.

    Attributes:
        days: Length in days.
        every: Distance of two starts in days, counted from 1970-01-01.
        offset_ms: How long after midnight a day begins, by the clock on the wall.
        tz: Name of the time zone.
    """

    days: int
    every: int
    offset_ms: int
    tz: str

    def ranges(self, at: int) -> list[tuple[int, int]]:
        """Return the windows that ``at`` (ms) is in, by start."""
        return list(day_ranges(at, self.days, self.every, self.tz, self.offset_ms))

    @property
    def label(self) -> str:
        """How windows of this kind are called in names."""
        hop = f"_{self.every}d" if self.every != self.days else ""
        return f"days_{self.days}d{hop}_{self.tz}"


@dataclass(frozen=True)
class Global(Ranges):
    """One window for all time; it ends with the input."""

    ends: ClassVar[bool] = False

    def ranges(self, at: int) -> list[tuple[int, int]]:
        """Return the one window."""
        return [(BEGIN_OF_TIME, END_OF_TIME)]

    @property
    def refuses_lateness(self) -> str:
        """Why there is no allowed lateness."""
        return "nothing is late for the global window: leave out allowed_lateness"

    @property
    def label(self) -> str:
        """How windows of this kind are called in names."""
        return "global"


@dataclass(frozen=True)
class Session(Assigner):
    """Windows of activity: from the first event to the last plus the gap.

    Attributes:
        gap: How long (ms) after an event its session stays open, or a function of the event.
        max_length_ms: No session is longer than this (ms); ``None`` for no limit.
        cut_every_ms: No session goes on beyond a multiple of this since 1970 (ms); ``None``: any does.
        exact_gap: Whether an event exactly ``gap`` after the last joins its session.
    """

    gap: int | Callable[[Any], Duration]
    max_length_ms: int | None = None
    exact_gap: ExactGap = "merge"
    cut_every_ms: int | None = None

    @property
    def in_order(self) -> bool:
        """Whether events must come in order of event time: a session that is cut hangs on it."""
        return self.max_length_ms is not None

    @property
    def refuses_lateness(self) -> str:
        """Why there is no allowed lateness, empty where there is."""
        if self.max_length_ms is None:
            return ""
        return "sessions with max_length take no allowed_lateness: a late event could move every cut"

    @property
    def label(self) -> str:
        """How windows of this kind are called in names."""
        cut = "" if self.cut_every_ms is None else f"_cut_{self.cut_every_ms}ms"
        return f"session{cut}" if callable(self.gap) else f"session_{self.gap}ms{cut}"


@dataclass(frozen=True)
class Sliding(Assigner):
    """Windows that slide from event to event; see :func:`sliding`.

    Attributes:
        width_ms: Distance of the first and the last event that can be in one window, ms.
    """

    has_one_result: ClassVar[bool] = True

    width_ms: int

    @property
    def in_order(self) -> bool:
        """Whether events must come in order of event time."""
        return True

    @property
    def label(self) -> str:
        """How windows of this kind are called in names."""
        return f"sliding_{self.width_ms}ms"


@dataclass(frozen=True)
class Lookback(Assigner):
    """A range before every event; see :func:`lookback`.

    Attributes:
        width_ms: How far it looks back, ms.
        closed: Which ends belong to it.
        keep: Fields of the event that its result carries.
    """

    has_one_result: ClassVar[bool] = True
    is_per_event: ClassVar[bool] = True

    width_ms: int
    closed: Closed = "right"
    keep: tuple[str, ...] = ()

    @property
    def in_order(self) -> bool:
        """Whether events must come in order of event time."""
        return True

    @property
    def kept_fields(self) -> tuple[str, ...]:
        """Fields of the event that results carry."""
        return self.keep

    @property
    def label(self) -> str:
        """How windows of this kind are called in names."""
        return f"lookback_{self.width_ms}ms_{self.closed}"


@dataclass(frozen=True)
class CountBased(Assigner):
    """Windows of a number of events.

    Attributes:
        size: Events in a window.
        step: Events from the start of one window to the start of the next.
        idle_ms: What is kept of a key without events for this long (ms) is forgotten.
    """

    has_one_result: ClassVar[bool] = True

    size: int
    step: int
    idle_ms: int | None = None

    @property
    def in_order(self) -> bool:
        """Whether events must come in order of event time."""
        return True

    @property
    def label(self) -> str:
        """How windows of this kind are called in names."""
        return f"count_{self.size}" + (f"_{self.step}" if self.step != self.size else "")


def tumbling(size: Duration, *, offset: Duration = 0, tz: str | None = None) -> Hopping | CalendarDays:
    """Windows side by side: every instant is in exactly one.

    Args:
        size: Length (``timedelta`` or ms).
        offset: Windows start at ``offset + n * size`` since the epoch.
        tz: Name of a time zone: then ``size`` is a number of days, which begin at midnight there
            (or ``offset`` later by the clock on the wall) and last 23 to 25 hours. Days are counted
            from Thursday, 1970-01-01: ``tumbling(days(7), offset=days(4), tz=...)`` begins on Mondays.

    Example:
        >>> tumbling(60_000).ranges(100_000)
        [(60000, 120000)]
    """
    return hopping(size, every=size, offset=offset, tz=tz)


def hopping(
    size: Duration, *, every: Duration, offset: Duration = 0, tz: str | None = None
) -> Hopping | CalendarDays:
    """Windows that overlap: a new one begins ``every`` so often (Flink and Spark call this sliding).

    Args:
        size: Length (``timedelta`` or ms).
        every: Distance of two starts, at most ``size``.
        offset: Windows start at ``offset + n * every`` since the epoch.
        tz: Name of a time zone, for windows of whole days; see :func:`tumbling`.
    """
    length, step, shift = (
        duration_ms(size, "a window's size"),
        duration_ms(every, "every"),
        whole_ms(offset, "offset"),
    )
    if step > length:
        raise WindowDefinitionError(
            f"hopping windows of {length} ms every {step} ms leave out the events between them: "
            "every must not be longer than size"
        )
    if tz is None:
        return Hopping(length, step, shift)
    zone(tz)
    if length % DAY_MS or step % DAY_MS:
        raise WindowDefinitionError(
            f"windows in a time zone are whole days: {length} ms every {step} ms are not; "
            "shorter windows need no time zone"
        )
    return CalendarDays(length // DAY_MS, step // DAY_MS, shift, tz)


def session(
    gap: Duration | Callable[[Any], Duration],
    *,
    max_length: Duration | None = None,
    cut_every: Duration | None = None,
    exact_gap: ExactGap = "merge",
) -> Session:
    """Windows of activity: events less than ``gap`` apart are in one, and windows that meet merge.

    Args:
        gap: How long after its last event a session ends (``timedelta`` or ms), or a function of the
            event that says how long it keeps its session open.
        max_length: A session is cut when it is this long: the next event begins another. Events are
            then handled in order of event time, since where the cut is hangs on it.
        cut_every: Sessions are cut at the multiples of this, counted from 1970-01-01 UTC, as visits at
            midnight: so none is longer, and events may come in any order.
        exact_gap: ``"merge"``: an event exactly ``gap`` after the last one joins it, as in Spark, Flink
            and Kafka Streams; ``"split"``: it begins another session, as in Beam.
    """
    if exact_gap not in ("merge", "split"):
        raise WindowDefinitionError(f"exact_gap is 'merge' or 'split', not {exact_gap!r}")
    if max_length is not None and cut_every is not None:
        raise WindowDefinitionError("a session is cut by max_length or by cut_every, not by both")
    limit = None if max_length is None else duration_ms(max_length, "max_length")
    cut = None if cut_every is None else duration_ms(cut_every, "cut_every")
    return Session(gap if callable(gap) else duration_ms(gap, "a session's gap"), limit, exact_gap, cut)


def sliding(width: Duration) -> Sliding:
    """Windows that slide from event to event, as in Kafka Streams and Quix Streams.

    There is a window ``[t - width, t]`` that ends with each event, and one ``[t + 1, t + 1 + width]``
    that begins just after it, if anything is in it: every set of events that lie within ``width`` of
    each other. Both ends belong to a window; in results ``window_end_ms`` is one more than the last
    instant, as everywhere. For a value at every event, :func:`lookback` is what you want.
    """
    return Sliding(duration_ms(width, "a sliding window's width"))


def lookback(width: Duration, *, closed: Closed = "right", keep: str | tuple[str, ...] = ()) -> Lookback:
    """A range before every event: one result per event, over what was there in the last ``width``.

    Args:
        width: How far to look back from the event (``timedelta`` or ms).
        closed: ``"right"`` is (t - width, t], the event itself and others of its time included;
            ``"both"`` is [t - width, t]; ``"left"`` is [t - width, t): only what was before.
        keep: Fields of the event that its result carries.
    """
    if closed not in ("right", "both", "left"):
        raise WindowDefinitionError(f"closed is 'right', 'both' or 'left', not {closed!r}")
    return Lookback(
        duration_ms(width, "a look-back's width"), closed, (keep,) if isinstance(keep, str) else keep
    )


def count_tumbling(size: int, *, idle: Duration | None = None) -> CountBased:
    """Windows of ``size`` events each, in order of event time; see :func:`count_hopping`."""
    return count_hopping(size, every=size, idle=idle)


def count_sliding(size: int, *, idle: Duration | None = None) -> CountBased:
    """The last ``size`` events, at every event once there are so many; see :func:`count_hopping`."""
    return count_hopping(size, every=1, idle=idle)


def count_hopping(size: int, *, every: int, idle: Duration | None = None) -> CountBased:
    """Windows of ``size`` events, a new one begins ``every`` so many events.

    Only full windows have results. A window's times are those of its first event and (plus 1 ms) its
    last one.

    Args:
        size: Events in a window.
        every: Events from one start to the next, at most ``size``.
        idle: Forget what is kept of a key that has had no event for so long; without it, a key that
            never comes again is kept for good.
    """
    if not 1 <= every <= size:
        raise WindowDefinitionError(f"count windows need 1 <= every <= size, not every={every}, size={size}")
    return CountBased(size, every, None if idle is None else duration_ms(idle, "idle"))


def global_window() -> Global:
    """One window for all time; an early trigger says when it has results before the end of the input."""
    return Global()


def duration_ms(duration: Duration, what: str) -> int:
    """Return a positive duration in ms."""
    value = whole_ms(duration, what)
    if value <= 0:
        raise WindowDefinitionError(f"{what} must be positive, not {duration!r}")
    return value


def whole_ms(duration: Duration, what: str) -> int:
    """Return a duration in ms."""
    if isinstance(duration, bool) or not isinstance(duration, timedelta | int):
        raise WindowDefinitionError(f"{what} is a timedelta or whole milliseconds, not {duration!r}")
    return ms(duration)
