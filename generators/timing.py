"""What rate, speed, duration and start on the command line mean for a stream."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from generators.engine.profile import check
from millrace.errors import UserError
from millrace.time.durations import to_ms

#: Events per second of event time where no rate says it.
DEFAULT_EVENT_RATE: Final = 1000.0


@dataclass(frozen=True)
class Timing:
    """When a stream happens, and when it is sent.

    Attributes:
        event_rate: Events per second of event time.
        speed: Seconds of event time per second of the clock; None: as fast as possible.
        events: How many events; None: until stopped.
        start_ms: First event time, ms since the epoch, UTC.
        live: Event time is the wall clock's.
    """

    event_rate: float
    speed: float | None
    events: int | None
    start_ms: int
    live: bool


def resolve_timing(
    *,
    rate: str,
    speed: float | None,
    event_rate: float | None,
    duration: str | None,
    events: int | None,
    start: str | None,
    now_ms: int,
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
        start: First event time: ISO 8601 with a time zone, or ms since the epoch. By default now, or for a
            bounded run faster than real time so long before that it ends now: no event is in the future.
        now_ms: The wall clock, ms since the epoch.

    Raises:
        UserError: If a flag cannot be read or two contradict each other.
    """
    per_second = _parse_rate(rate)
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
        event_rate = (per_second or DEFAULT_EVENT_RATE) / pace
    elif per_second is not None:
        pace = per_second / event_rate
    if duration is not None:
        seconds = to_ms(duration) / 1000
        check(seconds > 0, "--duration is above 0", duration)
        by_time = max(1, round(seconds * event_rate * pace))
        events = by_time if events is None else min(events, by_time)
    fast = per_second is None or pace > 1
    return Timing(
        event_rate=event_rate,
        speed=None if per_second is None else pace,
        events=events,
        start_ms=_default_start(now_ms, events, event_rate, fast) if start is None else parse_start(start),
        live=start is None and per_second is not None and pace == 1,
    )


def _default_start(now_ms: int, events: int | None, event_rate: float, fast: bool) -> int:
    length_ms = math.ceil(events * 1000 / event_rate) if fast and events is not None else 0
    return (now_ms - length_ms) // 1000 * 1000


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


def parse_start(text: str) -> int:
    """Return the ms since the epoch that a text names.

    >>> parse_start("2026-01-01T00:00:00Z"), parse_start("1767225600000")
    (1767225600000, 1767225600000)
    """
    text = text.strip()
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
