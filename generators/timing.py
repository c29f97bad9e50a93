"""Rate, speed, duration and start of a stream, as the command line names them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from millrace.errors import UserError
from millrace.time.durations import to_ms
from millrace_apps.generators.engine.profile import check

#: Events per second of event time where no rate says it.
DEFAULT_EVENT_RATE: Final = 1000.0
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


@dataclass(frozen=True)
class Timing:
    """When a stream happens, and when it is sent.

    Attributes:
        event_rate: Events per second of event time.
        speed: Seconds of event time per second of the clock; None: as fast as possible.
        events: How many events; None: until stopped.
        start_ms: First event time, ms since the epoch, UTC.
        live: Event time is the wall clock's.
        until_ms: Event time at which the stream ends, ms; None: when its events are sent.
    """

    event_rate: float
    speed: float | None
    events: int | None
    start_ms: int
    live: bool
    until_ms: int | None = None


def resolve_timing(
    *,
    rate: str,
    speed: float | None,
    event_rate: float | None,
    duration: str | None,
    events: int | None,
    start: str | None,
    now_ms: int,
    live: bool = False,
    resumed_start_ms: int | None = None,
    usual_event_rate: float = DEFAULT_EVENT_RATE,
    by_time: bool = False,
) -> Timing:
    """Return the timing that the flags ask for.

    Rate = event rate × speed. The rate decides how fast messages are sent and the event rate what bytes they
    have. Two give the third; ``--rate max`` sends the bytes of ``--rate 1000`` unless an event rate is given.

    Args:
        rate: Events per second of the clock, or ``0`` or ``max`` for as fast as possible.
        speed: Event time per clock time; 1 if not given.
        event_rate: Events per second of event time.
        duration: Length of the run; as fast as possible, of what would have been sent in this time.
        events: Number of events, if less than what the duration gives.
        start: First event time: a date, ISO 8601 with a time zone, or ms since the epoch. By default now, or
            for a bounded run faster than real time so long before that it ends now: no event is in the
            future.
        now_ms: The wall clock, ms since the epoch.
        live: Go with the clock although a start is given: what is in the past is sent at once.
        resumed_start_ms: Where the run started that is gone on with; stands for a start that is not given.
        usual_event_rate: The event rate where neither it nor a rate is given.
        by_time: The duration ends the stream by its event time, and not by the number of events that the
            event rate makes of it: for domains whose rate is a mean.

    Raises:
        UserError: If a flag cannot be read or two contradict each other.
    """
    per_second = _parse_rate(rate)
    event_rate, pace = _rate_and_pace(per_second, speed, event_rate, usual_event_rate)
    length_ms: int | None = None
    if duration is not None:
        seconds = to_ms(duration) / 1000
        check(seconds > 0, "--duration is above 0", duration)
        if by_time:
            length_ms = math.ceil(seconds * pace * 1000)
        else:
            sent = max(1, round(seconds * event_rate * pace))
            events = sent if events is None else min(events, sent)
    fast = per_second is None or pace > 1
    if live and (fast or pace < 1):
        raise UserError("--live goes with the clock: leave --speed out, and give --rate a number")
    if start is not None:
        start_ms = parse_start(start)
    elif resumed_start_ms is not None:
        start_ms = resumed_start_ms
    else:
        start_ms = _default_start(now_ms, _length_ms(events, event_rate, length_ms), fast)
    return Timing(
        event_rate=event_rate,
        speed=None if per_second is None else pace,
        events=events,
        start_ms=start_ms,
        live=live or (start is None and per_second is not None and pace == 1),
        until_ms=None if length_ms is None else start_ms + length_ms,
    )


def _rate_and_pace(
    per_second: float | None, speed: float | None, event_rate: float | None, usual: float
) -> tuple[float, float]:
    """Return the event rate and the speed that two of the three flags give."""
    check(speed is None or (math.isfinite(speed) and speed > 0), "--speed is above 0", speed)
    check(
        event_rate is None or (math.isfinite(event_rate) and event_rate > 0),
        "--event-rate is above 0",
        event_rate,
    )
    if event_rate is not None and speed is not None and per_second is not None:
        raise UserError(
            "--rate, --event-rate and --speed together say one thing twice; leave one of them out"
        )
    pace = speed or 1.0
    if event_rate is None:
        return (per_second or usual) / pace, pace
    return event_rate, pace if per_second is None else per_second / event_rate


def _length_ms(events: int | None, event_rate: float, length_ms: int | None) -> int:
    """Return how much event time a run takes, ms; 0 if it has no end."""
    lengths = [] if length_ms is None else [length_ms]
    if events is not None:
        lengths.append(math.ceil(events * 1000 / event_rate))
    return min(lengths, default=0)


def _default_start(now_ms: int, length_ms: int, fast: bool) -> int:
    return (now_ms - (length_ms if fast else 0)) // 1000 * 1000


def _parse_rate(text: str) -> float | None:
    if text.strip().lower() == "max":
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not (math.isfinite(rate) and rate >= 0):
        raise UserError(
            f"--rate is a number of events per second, or max for as fast as possible, got {text}"
        )
    return rate or None


def parse_pace(rate: str | None, speed: float) -> tuple[float | None, float | None]:
    """Return speed and rate of a replay: a file has a pace of its own, unless a rate is given.

    Args:
        rate: Rows per second, ``0`` or ``max`` for as fast as possible, None for the file's own pace.
        speed: How many times faster than in the file.

    Returns:
        The speed, None for as fast as possible; and the rate, None for the file's own.

    >>> parse_pace(None, 60.0), parse_pace("5", 1.0), parse_pace("max", 1.0)
    ((60.0, None), (1.0, 5.0), (None, None))
    """
    check(math.isfinite(speed) and speed > 0, "--speed is above 0", speed)
    if rate is None:
        return speed, None
    if speed != 1:
        raise UserError("--rate and --speed say one thing twice; leave one of them out")
    per_second = _parse_rate(rate)
    return (None, None) if per_second is None else (1.0, per_second)


def parse_start(text: str) -> int:
    """Return the ms since the epoch that a text names.

    A date alone is its midnight in UTC.

    >>> parse_start("2026-01-01T00:00:00Z"), parse_start("1767225600000"), parse_start("2026-01-01")
    (1767225600000, 1767225600000, 1767225600000)
    """
    text = text.strip()
    if _DATE.fullmatch(text):
        text += "T00:00:00Z"
    if text.isdecimal():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise UserError(
            "--start is a time with its zone, e.g. 2026-01-01T00:00:00Z, or ms since 1970-01-01 UTC, "
            f"got {text}"
        )
    return round(at.timestamp() * 1000)
