"""Timers of the agents, in one order on every run."""

from __future__ import annotations

from enum import IntEnum
from heapq import heappop, heappush


class Due(IntEnum):
    """What a timer is for; of equal times, the smaller number comes first."""

    LOG_IN = 0
    LOG_OUT = 1
    ANSWER = 2
    UNCONFIRMED = 3
    ARRIVE = 4
    START = 5
    FINISH = 6
    OFFLINE = 7
    BREAKDOWN = 8
    GIVE_UP = 9
    REQUEST = 10
    PATIENCE = 11
    MIND = 12
    RACE = 13
    UNQUOTED = 14
    TAKE = 15


class Timers:
    """Timers of drivers and rides.

    A timer is never taken back: it carries a token, and whoever it was set for knows by it whether it still
    counts. It is plain integers, so that no two runs order equal times in different ways.

    >>> timers = Timers()
    >>> timers.set(2_000, Due.FINISH, 7, 1)
    >>> timers.set(1_000, Due.ARRIVE, 7, 1)
    >>> timers.next_ms, timers.pop()[1] is Due.ARRIVE
    (1000, True)
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, Due, int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, at_ms: int, due: Due, number: int, token: int) -> None:
        """Let something be due at a time, ms, for the driver or ride of this number."""
        heappush(self._heap, (at_ms, due, number, token))

    @property
    def next_ms(self) -> int:
        """When the next one is due, ms."""
        return self._heap[0][0] if self._heap else 1 << 62

    def pop(self) -> tuple[int, Due, int, int]:
        """Take the next one: time, what for, number, token."""
        return heappop(self._heap)
