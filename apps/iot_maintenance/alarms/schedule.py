"""Schedules of alarm rules: days of the week and hours of the day, in a time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Literal
from zoneinfo import ZoneInfo

import msgspec

from millrace.errors import UserError

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ScheduleError(UserError, ValueError):
    """A schedule names no time of day, or no time zone that exists."""


class Schedule(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"begin": "from", "end": "to"}
):
    """Hours of the day on some days of the week; a range that ends before it begins goes over midnight.

    Attributes:
        days: Days on which it begins; all of them unless given.
        begin: Time of day, ``HH:MM``.
        end: Time of day, not included; ``24:00`` is the end of the day.
        tz: Time zone.

    Example:
        >>> nights = Schedule(("mon",), "22:00", "06:00")
        >>> nights.holds(1_767_571_200_000)         # 2026-01-05, a Monday, 00:00 UTC
        False
        >>> nights.holds(1_767_571_200_000 + 86_400_000), nights.next_change(1_767_571_200_000 + 86_400_000)
        (True, 1767679200000)
    """

    days: tuple[Day, ...] = _DAYS
    begin: str = "00:00"
    end: str = "24:00"
    tz: str = "UTC"

    def __post_init__(self) -> None:
        zone(self.tz)
        _minute(self.begin)
        _minute(self.end)

    def holds(self, at: int) -> bool:
        """Return whether the rule is in force at ``at`` (ms)."""
        return any(begin <= at < end for begin, end in self._ranges(at))

    def next_change(self, at: int) -> int:
        """Return the first time (ms) after ``at`` at which it may hold or not hold any more."""
        return min(edge for range_ in self._ranges(at, ahead=8) for edge in range_ if edge > at)

    def _ranges(self, at: int, ahead: int = 0) -> list[tuple[int, int]]:
        """Return the ranges (ms) that begin on the local days around ``at``."""
        place = zone(self.tz)
        today = (_EPOCH + timedelta(milliseconds=at)).astimezone(place).date()
        begin, end = _minute(self.begin), _minute(self.end)
        over = end <= begin
        found = []
        for plus in range(-1, 1 + ahead):
            day = today + timedelta(days=plus)
            if _DAYS[day.weekday()] in self.days:
                first = local_ms(day.year, day.month, day.day, begin, place)
                last = day + timedelta(days=1) if over else day
                found.append((first, local_ms(last.year, last.month, last.day, end, place)))
        return found


def zone(name: str) -> ZoneInfo:
    """Return a time zone.

    Raises:
        ScheduleError: There is none of that name.
    """
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise ScheduleError(f"there is no time zone '{name}'; write for example Europe/Berlin") from None


def local_ms(year: int, month: int, day: int, minute: int, place: ZoneInfo) -> int:
    """Return the instant (ms) of a minute of a local day; one that the clock skips is moved on by the skip.

    >>> berlin = ZoneInfo("Europe/Berlin")
    >>> local_ms(2026, 3, 29, 24 * 60, berlin) - local_ms(2026, 3, 29, 0, berlin)
    82800000
    """
    wall = datetime(year, month, day) + timedelta(minutes=minute)  # noqa: DTZ001 - a wall clock's time
    return (wall.replace(tzinfo=place).astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)


def _minute(text: str) -> int:
    hour, colon, minute = text.partition(":")
    if colon and hour.isdigit() and minute.isdigit() and len(minute) == 2:
        total = 60 * int(hour) + int(minute)
        if int(minute) < 60 and total <= 24 * 60:
            return total
    raise ScheduleError(f"'{text}' is no time of day; write HH:MM, up to 24:00")
