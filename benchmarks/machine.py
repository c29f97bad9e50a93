"""Load and speed of the machine: figures of different hours say nothing without it.

Only the standard library is used, so that a driver can load this file by its path.
"""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple

#: A twentieth of a second each time on a quiet machine, so that all of it takes less than 0.3 s.
_ADDITIONS: Final = 1_000_000
_TIMES: Final = 3


class Condition(NamedTuple):
    """The machine at one moment.

    Attributes:
        load: Processes that ran or wanted to, mean of the last minute.
        speed: Additions in a plain Python loop, millions per second of the wall clock.
    """

    load: float
    speed: float


def condition() -> Condition:
    """Return how busy and how fast the machine is now.

    Example:
        >>> condition().speed > 0
        True
    """
    load = os.getloadavg()[0]  # before the loop adds to it
    return Condition(round(load, 2), speed())


def speed(additions: int = _ADDITIONS, times: int = _TIMES) -> float:
    """Return how fast a plain Python loop adds, in millions per second: the best of a few times.

    Args:
        additions: How often it adds each time.
        times: How often it is timed.
    """
    return round(additions / min(_seconds(additions) for _ in range(times)) / 1e6, 2)


def _seconds(additions: int) -> float:
    begin, total = time.perf_counter(), 0
    for _ in range(additions):
        total = total + 1
    return time.perf_counter() - begin


_before: Condition | None = None


def before() -> Condition:
    """Return the condition in which the measuring began: that of the first call, which takes it."""
    global _before
    if _before is None:
        _before = condition()
    return _before
