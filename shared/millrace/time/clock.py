"""The watermark of a stream: how far event time has come, judged by what its batches contain.

A stream is read from *sources* (partitions of topics) by *readers* (each with a limit of its own on what one
batch takes). Every batch brings a :class:`SourceReport` of each source that had rows in it; :func:`advance`
makes of them what the clock says at the batch's end:

    W' = max(W, min(F, H) - bound - 1)

F, the *furthest*, is the largest plausible time of a clock source so far. H *holds time back* while a backlog
is worked off. A batch is *full* when some reader took at least half of its limit; then a source may have more
to give, and what it gives will be no older, within the bound, than the newest it has given in this batch. So
each full batch has a minimum: the smallest, over clock sources with rows in it, of the source's newest
plausible time. H is the smallest minimum of the batch and of the full batches directly before it, so many
together as ``full_batches`` says; while they are fewer, time stands still, since a source whose first
offsets are no rows (markers of transactions) has not been heard yet. A batch that is not full took all
there was: nothing is held back.

The *plausible time* of a row (:func:`plausible`) is its event time, but no more than ``clock_skew`` after its
arrival: a device whose clock is fast cannot take the others' time with it.

Nothing here knows an engine. The same reports give the same watermark, whenever they are brought again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final, Literal

import msgspec

from millrace.time import END_OF_TIME, NEVER, NO_WATERMARK, less, ms
from millrace.time.durations import to_ms

#: A source whose rows of a full batch have no valid time holds all time back: nothing is known of it.
UNKNOWN: Final = NO_WATERMARK

#: Version of the rule that a stream's time follows; part of a checkpoint's contract.
CLOCK_VERSION: Final = 1

Follow = Literal["furthest", "slowest"]


class SourceReport(msgspec.Struct, array_like=True, frozen=True):
    """What one task read of one source in a batch.

    Attributes:
        reader: Number of what reads the source.
        source: Name of the source: ``topic:partition``, or what the caller calls it.
        first: Offset of the first row; ``None`` where the source has no offsets.
        last: Offset of the last row.
        rows: Number of rows, of every kind.
        is_clock: Whether a row is of an input that is a clock, readable or not.
        newest: Largest plausible time of rows of such inputs, ms; ``None`` without one.
        arrival: Latest arrival of such rows, ms; ``None`` where it is not known.
        control: Latest time of control events that hold from a time on, ms; ``None`` without one.
    """

    reader: int
    source: str
    first: int | None
    last: int | None
    rows: int
    is_clock: bool
    newest: int | None
    arrival: int | None
    control: int | None = None


class ClockSettings(msgspec.Struct, frozen=True):
    """What the clock of a stream goes by.

    Attributes:
        bound_ms: How far events may come out of order, ms.
        limits: For each reader the most that one batch takes (offsets, or rows of a source without them);
            ``None``: no limit, so that no batch of it is full.
        skews: For each stream (of those that are connected) how much later than its arrival an event may
            claim to have happened, ms; ``None``: as much as it likes.
        clocks: For each stream, for each of its inputs: whether it moves (and holds back) time.
        topics: Topics of the inputs that do; empty where the readers are no topics.
        full_batches: So many full batches in a row hold time back together; more than 2 for topics
            in which transactions are aborted often.
        follow: ``furthest``: time is that of the source which is ahead; ``slowest``: of the one that is
            behind, of those heard within ``idle_after_ms``.
        idle_after_ms: With ``slowest``: a source whose newest arrival is this much before the newest of
            all, ms, is waited for no longer; ``None``: every source is, for ever.
        incarnation: Identity of the checkpoint: the one whose drain this stream obeys.
        patience_ms: How far behind this clock a process is whose keys have clocks of their own, and all that
            comes after it, ms.
    """

    bound_ms: int
    limits: tuple[int | None, ...] = (None,)
    skews: tuple[int | None, ...] = (0,)
    clocks: tuple[tuple[bool, ...], ...] = ((True,),)
    topics: tuple[str, ...] = ()
    full_batches: int = 2
    follow: Follow = "furthest"
    idle_after_ms: int | None = None
    incarnation: str = ""
    patience_ms: int = 0


class Minimum(msgspec.Struct, array_like=True, frozen=True):
    """What holds time back in a full batch: the newest plausible time (ms) of a source, and its name."""

    time: int
    source: str


_NOBODY: Final = Minimum(UNKNOWN, "")


class ClockState(msgspec.Struct, array_like=True, frozen=True):
    """What is kept from batch to batch.

    Attributes:
        watermark: W, ms; ``NO_WATERMARK`` before the first event.
        furthest: F, ms; ``NO_WATERMARK`` before the first event.
        arrival: Newest arrival of clock sources, ms; ``None`` while none is known.
        minima: Of the last full batches, if no other came since, the oldest first.
        sources: With ``follow="slowest"``: source → its newest plausible time and newest arrival.
        lag_ms: How far behind W the process is, ms.
        passed: How far it had come while it was less behind; ``NO_WATERMARK``: no further than it is.
    """

    watermark: int = NO_WATERMARK
    furthest: int = NO_WATERMARK
    arrival: int | None = None
    minima: tuple[Minimum, ...] = ()
    sources: dict[str, tuple[int, int | None]] = {}
    lag_ms: int = 0
    passed: int = NO_WATERMARK

    def own(self) -> int:
        """Return how far the process itself is, ms.

        >>> ClockState(watermark=9_000, lag_ms=2_000).own()
        7000
        """
        return max(self.passed, less(self.watermark, self.lag_ms))

    def behind(self, lag_ms: int, before: ClockState) -> ClockState:
        """Return the clock of a process that is behind this one, and does not go back.

        Args:
            lag_ms: How far, ms.
            before: Its clock as the batch before left it.
        """
        behind = msgspec.structs.replace(self, lag_ms=lag_ms, passed=NO_WATERMARK)
        own = before.own()
        return behind if own <= behind.own() else msgspec.structs.replace(behind, passed=own)


class Idle(msgspec.Struct, frozen=True, tag_field="$millrace", tag="idle"):
    """Nothing has come for a while, and nothing is waiting: event time has come to ``at``.

    Attributes:
        at: What event time has come to, ms.
        topics: The topics that were silent.
        arrival: Newest arrival that the sender had read by then, ms; ``None`` where it is not known.
    """

    at: int
    topics: tuple[str, ...] = ()
    arrival: int | None = None


class ClockStatus(msgspec.Struct, array_like=True, frozen=True):
    """What the clock says of a batch, for whoever watches.

    Attributes:
        before: The watermark by which the batch's rows were judged, ms; ``NO_WATERMARK``: none.
        watermark: The watermark at its end, ms.
        furthest: Largest plausible time of a clock source so far, ms.
        arrival: Newest arrival of clock sources, ms; ``None`` where it is not known.
        is_full: Whether the batch was full: there may be a backlog.
        held_by: The source that holds time back; empty where none does.
        reach: H, what holds all clocks back in this batch, ms; ``NEVER``: nothing does.
        lag_ms: How far behind this clock a process is that comes next in a chain, ms.
        control_late: Control events that came when time had passed theirs.
        sources: Source → its newest plausible time in this batch, ms; of those that are clocks.
    """

    before: int
    watermark: int
    furthest: int = NO_WATERMARK
    arrival: int | None = None
    is_full: bool = False
    held_by: str = ""
    reach: int = NEVER
    lag_ms: int = 0
    control_late: int = 0
    sources: dict[str, int] = {}


def plausible(event_time: int, arrival: int | None, skew_ms: int | None) -> int:
    """Return what an event's time is taken for by the clock.

    Args:
        event_time: When it says that it happened, ms.
        arrival: When it arrived, ms; ``None``, zero and less: that is not known.
        skew_ms: How much after its arrival it may claim to have happened; ``None``: any time.

    >>> plausible(90_000, 60_000, 0), plausible(50_000, 60_000, 0), plausible(90_000, None, 0)
    (60000, 50000, 90000)
    """
    if skew_ms is None or arrival is None or arrival <= 0:
        return event_time
    return min(event_time, arrival + skew_ms)


def skew_ms(value: str | int | timedelta) -> int | None:
    """Return a clock's skew in milliseconds; ``None`` for ``"off"``.

    Args:
        value: A duration (see :func:`millrace.time.durations.parse_duration`), which may be negative, or
            ``"off"``.

    Raises:
        DurationError: It is neither.

    >>> skew_ms("5 s"), skew_ms("-200ms"), skew_ms("off")
    (5000, -200, None)
    """
    if isinstance(value, timedelta):
        return ms(value)
    if isinstance(value, int) and value < 0:
        return -to_ms(-value)
    text = value.strip() if isinstance(value, str) else ""
    if text == "off":
        return None
    return -to_ms(text[1:]) if text.startswith("-") else to_ms(value)


def advance(
    state: ClockState,
    reports: Iterable[SourceReport],
    settings: ClockSettings,
    idles: Iterable[Idle] = (),
) -> tuple[ClockState, ClockStatus]:
    """Return the clock at the end of a batch, and what there is to say about it.

    Args:
        state: The clock as the batch before left it.
        reports: What was read, by source; of a source that several tasks read, in any order.
        settings: What the clock goes by.
        idles: Idle ticks that the batch brought.

    >>> tasks = [SourceReport(0, "in:0", 0, 4, 5, True, 9_000, None)]  # five rows of one partition
    >>> advance(ClockState(), tasks, ClockSettings(bound_ms=1_000))[0].watermark
    7999
    """
    sources = _by_source(reports)
    clocks = {source: report for source, report in sources.items() if report.is_clock}
    furthest = max((r.newest for r in clocks.values() if r.newest is not None), default=NO_WATERMARK)
    furthest = max(furthest, state.furthest)
    arrival = _latest(state.arrival, *(r.arrival for r in clocks.values()))
    is_full = _is_full(sources.values(), settings.limits)
    minima: tuple[Minimum, ...] = ()
    if is_full:
        minima = (*state.minima, *_minimum(sources.values()))[-settings.full_batches :]
    known, reach, behind = state.sources, furthest, ""
    if settings.follow == "slowest":
        known = _known(state.sources, clocks)
        reach, behind = _slowest(known, arrival, settings.idle_after_ms)
    elif known:
        known = {}
    held, holds, held_by = min(minima, key=lambda m: m.time, default=_NOBODY), NEVER, behind
    if is_full:
        holds = held.time if len(minima) == settings.full_batches else UNKNOWN
    if holds < reach:
        reach, held_by = holds, held.source
    watermark = max(state.watermark, less(reach, settings.bound_ms + 1))
    for idle in idles:
        if not is_full and furthest != NO_WATERMARK and _concerns(idle, arrival, settings.topics):
            watermark = max(watermark, less(idle.at, settings.bound_ms + 1))
    after = ClockState(watermark, furthest, arrival, minima, known)
    after = after.behind(settings.patience_ms, state)
    told = (state.watermark, watermark, furthest, arrival, is_full, held_by, holds, settings.patience_ms)
    return after, ClockStatus(*told)


def from_watermark(watermark: int, bound_ms: int) -> ClockState:
    """Return a clock that begins with a watermark (ms), as if an event had brought it there."""
    return ClockState(watermark, watermark + bound_ms + 1)


def ended(state: ClockState, settings: ClockSettings) -> tuple[ClockState, ClockStatus]:
    """Return the clock at the end of all input."""
    lag_ms = settings.patience_ms
    after = ClockState(END_OF_TIME, state.furthest, state.arrival, lag_ms=lag_ms)
    told = (state.watermark, END_OF_TIME, state.furthest, state.arrival)
    return after, ClockStatus(*told, lag_ms=lag_ms)


def _by_source(reports: Iterable[SourceReport]) -> dict[tuple[int, str], SourceReport]:
    """Return one report per source."""
    found: dict[tuple[int, str], SourceReport] = {}
    for report in reports:
        place = (report.reader, report.source)
        before = found.get(place)
        found[place] = report if before is None else merged(before, report)
    return found


def merged(one: SourceReport, other: SourceReport) -> SourceReport:
    """Return what two tasks read of one source."""
    return SourceReport(
        one.reader,
        one.source,
        _earliest(one.first, other.first),
        _latest(one.last, other.last),
        one.rows + other.rows,
        one.is_clock or other.is_clock,
        _latest(one.newest, other.newest),
        _latest(one.arrival, other.arrival),
        _latest(one.control, other.control),
    )


def _is_full(reports: Iterable[SourceReport], limits: Sequence[int | None]) -> bool:
    taken = [0] * len(limits)
    for report in reports:
        if report.first is None or report.last is None:
            taken[report.reader] += report.rows
        else:
            taken[report.reader] += report.last - report.first + 1
    return any(limit is not None and 2 * of >= limit for of, limit in zip(taken, limits, strict=True))


def _minimum(sources: Iterable[SourceReport]) -> list[Minimum]:
    """Return the minimum of a full batch; none where it has no row of a source that holds time back.

    That is a clock, and a source of control events that hold from a time on, by the latest of these.
    """
    found = []
    for r in sources:
        if r.is_clock:
            found.append(Minimum(UNKNOWN if r.newest is None else r.newest, r.source))
        elif r.control is not None:
            found.append(Minimum(r.control, r.source))
    return [min(found, key=lambda m: (m.time, m.source))] if found else []


def _known(
    before: Mapping[str, tuple[int, int | None]], clocks: Mapping[tuple[int, str], SourceReport]
) -> dict[str, tuple[int, int | None]]:
    known = dict(before)
    for (reader, source), report in clocks.items():
        name = f"{reader}/{source}"
        time, arrival = known.get(name, (NO_WATERMARK, None))
        newest = NO_WATERMARK if report.newest is None else report.newest
        known[name] = (max(time, newest), _latest(arrival, report.arrival))
    return known


def _slowest(
    known: Mapping[str, tuple[int, int | None]], arrival: int | None, idle_after_ms: int | None
) -> tuple[int, str]:
    """Return how far the source is that is behind all others which are heard, and its name."""
    heard = [
        (time, name.partition("/")[2])
        for name, (time, last) in known.items()
        if idle_after_ms is None or arrival is None or last is None or last >= arrival - idle_after_ms
    ]
    return min(heard, default=(NO_WATERMARK, ""))


def _concerns(idle: Idle, arrival: int | None, topics: Sequence[str]) -> bool:
    """Return whether an idle tick is about all topics that are read, and about nothing yet to be read."""
    if not set(topics) <= set(idle.topics):
        return False
    if idle.arrival is None:
        return arrival is None
    return arrival is not None and arrival >= idle.arrival


def _latest(*times: int | None) -> int | None:
    return max((t for t in times if t is not None), default=None)


def _earliest(*times: int | None) -> int | None:
    return min((t for t in times if t is not None), default=None)
