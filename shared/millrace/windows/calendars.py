"""Calendar days in a time zone, from midnight to midnight: 23 to 25 hours long."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from millrace.windows.fields import WindowDefinitionError

DAY_MS: Final = 86_400_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_FIRST_DAY: Final = date(1970, 1, 1).toordinal()


@lru_cache(maxsize=64)
def zone(name: str) -> ZoneInfo:
    """Return a time zone by its name.

    Raises:
        WindowDefinitionError: There is none of that name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise WindowDefinitionError(
            f"no time zone '{name}': names are like Europe/Berlin (the package tzdata has them all)"
        ) from error


@lru_cache(maxsize=4096)
def day_start(day: int, tz: str, offset_ms: int = 0) -> int:
    """Return when a day begins, ms.

    Args:
        day: Days since 1970-01-01 by the calendar.
        tz: Name of the time zone.
        offset_ms: How long after midnight the day begins, by the clock on the wall.

    Returns:
        UTC milliseconds. For a time that the clock skips, when it skips it; of one that it shows twice,
        the first.
    """
    wall = datetime.combine(date.fromordinal(_FIRST_DAY + day), time()) + offset_ms * _MS
    start = wall.replace(tzinfo=zone(tz))
    at = (start - _EPOCH) // _MS
    other = (start.replace(fold=1) - _EPOCH) // _MS
    # Of a time that the clock skips, the first reading is the later instant: the jump is between them.
    return at if at <= other else _jump(other, at, tz)


def _jump(low: int, high: int, tz: str) -> int:
    """Return when (ms) the clock changes between two instants."""
    old = (_EPOCH + low * _MS).astimezone(zone(tz)).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if (_EPOCH + middle * _MS).astimezone(zone(tz)).utcoffset() == old:
            low = middle
        else:
            high = middle
    return high


def day_of(at: int, tz: str, offset_ms: int = 0) -> int:
    """Return the day (since 1970-01-01) that the instant ``at`` (ms) is in.

    Days are told apart by their starts as instants, so that an hour that the clock shows twice is in
    one day, and one that it skips in none.
    """
    wall = (_EPOCH + at * _MS).astimezone(zone(tz)).replace(tzinfo=None) - offset_ms * _MS
    day = wall.toordinal() - _FIRST_DAY
    while day_start(day, tz, offset_ms) > at:
        day -= 1
    while day_start(day + 1, tz, offset_ms) <= at:
        day += 1
    return day


def day_ranges(at: int, days: int, every: int, tz: str, offset_ms: int) -> Iterator[tuple[int, int]]:
    """Yield the windows of ``days`` days, a new one each ``every`` days, that ``at`` (ms) is in."""
    shift, offset = divmod(offset_ms, DAY_MS)
    day = day_of(at, tz, offset)
    last = day - (day - shift) % every
    first = last - (days - 1 - (day - last)) // every * every
    for start in range(first, last + 1, every):
        yield day_start(start, tz, offset), day_start(start + days, tz, offset)
