"""Durations as people write them: ``"5 seconds"``, ``"1h 30m"``, ``"PT5S"``, ``250`` (milliseconds)."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Final

from millrace.errors import UserError
from millrace.time import ms

__all__ = ["DurationError", "format_duration", "parse_duration", "to_ms"]


class DurationError(UserError, ValueError):
    """A text or number that is no duration; also a ``ValueError``, as validators expect."""


_UNITS_MS: Final = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_NAMES: Final = {
    alias: unit
    for unit, aliases in {
        "w": "w week weeks",
        "d": "d day days",
        "h": "h hr hrs hour hours",
        "m": "m min mins minute minutes",
        "s": "s sec secs second seconds",
        "ms": "ms milli millis millisecond milliseconds",
    }.items()
    for alias in aliases.split()
}
_NUMBER: Final = r"\d+(?:\.\d+)?"
_PART: Final = re.compile(rf"\s*({_NUMBER})\s*([a-z]+)\s*,?", re.ASCII)
_PLAIN: Final = re.compile(_NUMBER, re.ASCII)
# ISO 8601 without years and months: their length depends on the calendar.
_ISO: Final = re.compile(
    rf"P(?:({_NUMBER})W)?(?:({_NUMBER})D)?(?:T(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_NUMBER})S)?)?", re.ASCII
)
_EXAMPLES: Final = 'write for example "5 seconds", "500ms", "1h 30m", "PT5S" or a number of milliseconds'


def parse_duration(value: str | int | float | timedelta) -> timedelta:
    """Return the duration that ``value`` writes.

    Args:
        value: Text with units (``"5 seconds"``, ``"500ms"``, ``"1h 30m"``), ISO 8601 (``"PT5S"``), a number
            (also as text) of milliseconds, or a ``timedelta``, which is returned as it is.

    Returns:
        The duration; never negative, and whole milliseconds unless ``value`` was a finer ``timedelta``.

    Raises:
        DurationError: If ``value`` is no duration, is negative, or is finer than a millisecond.

    >>> parse_duration("1h 30m")
    datetime.timedelta(seconds=5400)
    >>> parse_duration("PT0.5S") == parse_duration("500ms") == parse_duration(500)
    True
    """
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise DurationError(f"a duration is not negative, got {value}")
        return value
    total = _parts_ms(value)
    if total is None:
        raise DurationError(f"{value!r} is not a duration: {_EXAMPLES}")
    if total != total.to_integral_value():
        raise DurationError(f"{value!r} is finer than one millisecond, the clock's unit here")
    try:
        return timedelta(milliseconds=int(total))
    except OverflowError:
        raise DurationError(f"{value!r} is longer than any duration that can be kept") from None


def to_ms(value: str | int | float | timedelta) -> int:
    """Return the duration that ``value`` writes in milliseconds; see :func:`parse_duration`.

    >>> to_ms("1 day"), to_ms("250"), to_ms(timedelta(seconds=2))
    (86400000, 250, 2000)
    """
    return ms(parse_duration(value))


def format_duration(duration_ms: int) -> str:
    """Return ``duration_ms`` milliseconds as short text that :func:`parse_duration` reads back.

    >>> format_duration(5_400_000), format_duration(250), format_duration(0)
    ('1h 30m', '250ms', '0ms')
    """
    if duration_ms < 0:
        raise DurationError(f"a duration is not negative, got {duration_ms} ms")
    parts = []
    for unit, size in _UNITS_MS.items():
        # Weeks are read but not written: "14d" says more to most people than "2w".
        if unit != "w" and duration_ms >= size:
            count, duration_ms = divmod(duration_ms, size)
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0ms"


def _parts_ms(value: str | int | float) -> Decimal | None:
    """Return milliseconds, not yet checked to be whole, or None for what is no duration."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None  # whatever a settings file may hold
    # repr of a float is its shortest exact text, so 0.1 + units does not become 0.1000000000000000055.
    text = (value if isinstance(value, str) else format(Decimal(repr(value)), "f")).strip()
    if _PLAIN.fullmatch(text):
        return Decimal(text)
    iso = _ISO.fullmatch(text.upper())
    if iso and any(iso.groups()) and not text.upper().endswith("T"):
        sizes = [_UNITS_MS[unit] for unit in "wdhms"]
        return sum((Decimal(n) * size for n, size in zip(iso.groups(), sizes, strict=True) if n), Decimal(0))
    return _units_ms(text.lower())


def _units_ms(text: str) -> Decimal | None:
    total, at = Decimal(0), 0
    while match := _PART.match(text, at):
        unit = _NAMES.get(match[2])
        if unit is None:
            return None
        total += Decimal(match[1]) * _UNITS_MS[unit]
        at = match.end()
    return total if at and at == len(text) else None
