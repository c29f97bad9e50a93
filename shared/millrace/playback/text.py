"""Times and records as text: times as a clock on the wall shows them, and one record to a line."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from millrace.dead_letters import DeadLetter
from millrace.process import LateInput

#: Midnight before the first day: Monday, 5 January 2026, UTC, ms.
FIRST_DAY_MS: Final = 1_767_571_200_000
_DAY_MS: Final = 86_400_000
#: No time of an example, but an end of the global window.
_ENDLESS_MS: Final = 100_000 * _DAY_MS
_UNITS: Final = (3_600_000, 60_000, 1_000)


def at(clock: str) -> int:
    """Return a time of the first day of an example, or with a number before it of a later one, in UTC ms.

    The first day is Monday, 5 January 2026.

    Args:
        clock: ``"10:00"``, ``"10:00:05"``, ``"10:00:05.250"``; ``"day 2 10:00"`` on the second day.

    >>> at("10:00:05") - at("10:00"), at("day 2 00:00") - at("00:00")
    (5000, 86400000)
    """
    day, _, time = clock.removeprefix("day ").rpartition(" ")
    parts = zip(_UNITS, time.split(":"), strict=False)
    return FIRST_DAY_MS + (int(day or 1) - 1) * _DAY_MS + round(sum(unit * float(n) for unit, n in parts))


def clock_text(when: int) -> str:
    """Return a time as :func:`at` takes it; of the ends of time, only that they are.

    >>> clock_text(at("10:00:05")), clock_text(at("day 2 09:30:00.250"))
    ('10:00:05', 'day 2 09:30:00.250')
    """
    if abs(when - FIRST_DAY_MS) > _ENDLESS_MS:
        return "-∞" if when < FIRST_DAY_MS else "∞"
    day, rest = divmod(when - FIRST_DAY_MS, _DAY_MS)
    shown = []
    for unit in _UNITS:
        number, rest = divmod(rest, unit)
        shown.append(f"{number:02}")
    return ("" if day == 0 else f"day {day + 1} ") + ":".join(shown) + (f".{rest:03}" if rest else "")


def record_line(record: Any, *, without: str = "") -> str:
    """Return a record in one line: its type and its fields, times as a clock shows them.

    Args:
        record: A struct; anything else is told as it is.
        without: A field to leave out.

    >>> class Sale(msgspec.Struct):
    ...     shop: str
    ...     at: int
    ...     amount: float = 2.5
    >>> record_line(Sale("x", at("10:00"))), record_line(Sale("x", at("10:00")), without="at")
    ('Sale shop=x at=10:00:00 amount=2.5', 'Sale shop=x amount=2.5')
    """
    if isinstance(record, DeadLetter):
        return f"{record.reason}: {record.error}"
    behind = getattr(record, "lateness_ms", None)
    if behind is not None:
        event = record.event if isinstance(record.event, str) else record_line(record.event, without=without)
        led = f"{record.input} " if isinstance(record, LateInput) else ""
        return f"{led}{event}, {behind / 1_000:g} s behind"
    if not isinstance(record, msgspec.Struct):
        return str(record)
    fields = {name: getattr(record, name) for name in record.__struct_fields__ if name != without}
    start, end = fields.pop("window_start_ms", None), fields.pop("window_end_ms", None)
    shown = [f"{name}={_value(value)}" for name, value in fields.items()]
    if start is not None and end is not None:
        shown.insert(1, f"[{clock_text(start)}, {clock_text(end)})")  # after the key
    return " ".join([type(record).__name__, *shown])


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool) and value > FIRST_DAY_MS - 100 * _DAY_MS:
        return clock_text(value)
    if isinstance(value, msgspec.Struct):
        return f"({record_line(value)})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(item)}" for key, item in value.items()) + "}"
    return str(value)
