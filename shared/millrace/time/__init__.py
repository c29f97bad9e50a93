"""Time in the core: UTC milliseconds since the epoch, durations as milliseconds or ``timedelta``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

#: Larger than every timestamp: "no timer", "never expires".
NEVER: Final = 2**63 - 1
#: The watermark at the end of a bounded input: every timer is due.
END_OF_TIME: Final = NEVER - 1
#: The watermark before the first event: every event is on time.
NO_WATERMARK: Final = -(2**63)


def seconds(n: float) -> int:
    """Return ``n`` seconds in milliseconds, e.g. ``ttl=seconds(30)``."""
    return round(n * 1_000)


def minutes(n: float) -> int:
    """Return ``n`` minutes in milliseconds, e.g. ``ttl=minutes(10)``."""
    return round(n * 60_000)


def hours(n: float) -> int:
    """Return ``n`` hours in milliseconds, e.g. ``ttl=hours(24)``."""
    return round(n * 3_600_000)


def days(n: float) -> int:
    """Return ``n`` days in milliseconds, e.g. ``ttl=days(90)``."""
    return round(n * 86_400_000)


def ms_of(time: datetime) -> int:
    """Return a time as ms since the epoch; one without a zone is UTC.

    >>> ms_of(datetime(1970, 1, 1, 0, 0, 5))
    5000
    """
    return int((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)


def ms(duration: timedelta | int) -> int:
    """Return a duration as whole milliseconds; an ``int`` is milliseconds already.

    >>> ms(minutes(1)), ms(250)
    (60000, 250)
    """
    if isinstance(duration, timedelta):
        return duration // timedelta(milliseconds=1)
    return duration


def less(time: int, by: int) -> int:
    """Return a time less a duration (both ms); before the first event, and at the end, it stays what it is.

    >>> less(5_000, 1_001), less(NO_WATERMARK, 1) == NO_WATERMARK, less(END_OF_TIME, 1) == END_OF_TIME
    (3999, True, True)
    """
    if time == NO_WATERMARK or time >= END_OF_TIME:
        return time
    return max(time - by, NO_WATERMARK + 1)
