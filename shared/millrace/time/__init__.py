"""Time in the core: UTC milliseconds since the epoch, durations as ``timedelta`` or milliseconds."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

#: Larger than every timestamp: "no timer", "never expires".
NEVER: Final = 2**63 - 1
#: The watermark before the first event: every event is on time.
NO_WATERMARK: Final = -(2**63)


def seconds(n: float) -> timedelta:
    """Return ``n`` seconds, e.g. ``ttl=seconds(30)``."""
    return timedelta(seconds=n)


def minutes(n: float) -> timedelta:
    """Return ``n`` minutes, e.g. ``ttl=minutes(10)``."""
    return timedelta(minutes=n)


def hours(n: float) -> timedelta:
    """Return ``n`` hours, e.g. ``ttl=hours(24)``."""
    return timedelta(hours=n)


def days(n: float) -> timedelta:
    """Return ``n`` days, e.g. ``ttl=days(90)``."""
    return timedelta(days=n)


def ms(duration: timedelta | int) -> int:
    """Return a duration as whole milliseconds; an ``int`` is milliseconds already.

    >>> ms(minutes(1)), ms(250)
    (60000, 250)
    """
    if isinstance(duration, timedelta):
        return duration // timedelta(milliseconds=1)
    return duration
