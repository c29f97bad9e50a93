"""Points in time as people write and read them: ``2026-01-31T12:00``, or milliseconds since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime

from millrace.errors import UserError

__all__ = ["show_time", "to_time_ms"]


def to_time_ms(text: str) -> int:
    """Return the point in time that a text writes, ms since the epoch.

    Args:
        text: ISO 8601, UTC unless it names a zone; or a whole number of milliseconds.

    Raises:
        UserError: It is neither.

    >>> to_time_ms("1970-01-01T00:01"), to_time_ms("1970-01-01T01:00:05+01:00"), to_time_ms("250")
    (60000, 5000, 250)
    """
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            f"'{text}' is no time: write for example 2026-01-31T12:00, or ms since the epoch"
        ) from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def show_time(time_ms: int) -> str:
    """Return a point in time (ms) to the second, in UTC.

    >>> show_time(60_000)
    '1970-01-01T00:01:00Z'
    """
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
