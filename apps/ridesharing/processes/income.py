"""Idle time of drivers, so that those who have waited longest get a ride sooner.

What a driver earns is the time with riders, so that who is without one earns nothing. A car whose driver has
been idle for longer than others of late costs less in a window, one whose driver has been idle for less costs
more: by at most what the setting says, and by no more than some share of what riders wait of late: where they
wait a minute, two minutes more are much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from millrace_apps.ridesharing.processes.matching import FreeCar, Problem, optimal

if TYPE_CHECKING:
    from millrace_apps.ridesharing.state.book import Shelf
    from millrace_apps.ridesharing.state.entries import Car

Ints = npt.NDArray[np.int64]
#: Of less idle time than this in the mean nobody is behind or ahead, ms.
_LEAST_MS: Final = 300_000.0
#: What riders wait of late is the mean of about so many.
_RIDERS: Final = 50


class IncomeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How much it counts who has been idle.

    Attributes:
        worth_ms: So much less a car costs whose driver has been idle twice as long as others, or longer, and
            so much more one whose driver has not been idle at all, as a drive, ms.
        half_life_ms: Idle time of so long ago counts half, ms.
        of_wait: It counts no more than so many times what riders wait of late; 0: whatever that is.
    """

    worth_ms: int
    half_life_ms: int = 4 * 3_600_000
    of_wait: float = 0.0


class Idle(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How long a driver was idle before what they had last.

    Attributes:
        total_ms: So long, what is longer ago for less, ms.
        at_ms: When that was reckoned, UTC ms.
    """

    total_ms: float = 0.0
    at_ms: int = 0

    def until(self, now_ms: int, half_life_ms: int) -> float:
        """Return what of it counts at a time, ms."""
        passed = max(0, now_ms - self.at_ms)
        return float(self.total_ms * 0.5 ** (passed / half_life_ms))

    def joined(self, other: Idle, half_life_ms: int) -> Idle:
        """Return both together, as of the later one.

        >>> Idle(8.0, 10).joined(Idle(4.0, 0), 10)
        Idle(total_ms=10.0, at_ms=10)
        """
        at_ms = max(self.at_ms, other.at_ms)
        return Idle(self.until(at_ms, half_life_ms) + other.until(at_ms, half_life_ms), at_ms)


class Idles(Protocol):
    """Idle times by driver: a map state."""

    def get(self, key: str, /) -> Idle | None:
        """Return what is kept of a driver."""

    def put(self, key: str, value: Idle, /) -> None:
        """Keep it."""


class Income:
    """Idle times of the drivers of one region at one moment.

    Args:
        kept: Driver → idle time before.
        config: How much it counts.
        now: The moment, UTC ms.

    >>> class Kept(dict):
    ...     put = dict.__setitem__
    >>> income = Income(Kept(), IncomeConfig(worth_ms=60_000), 0)
    >>> income.costs_of([3_600_000.0, 0.0]).tolist()
    [-60000, 60000]
    """

    __slots__ = ("_config", "_kept", "_now")

    def __init__(self, kept: Idles, config: IncomeConfig, now: int) -> None:
        self._kept, self._config, self._now = kept, config, now

    def took(self, driver_id: str, idle_ms: int) -> None:
        """Take down that a driver is offered something after so long without, ms."""
        before = self._kept.get(driver_id) or Idle()
        total = before.until(self._now, self._config.half_life_ms) + idle_ms
        self._kept.put(driver_id, Idle(total, self._now))

    def bear(self, given: Problem, turns: Ints, waited: Ints, wait_ms: int) -> tuple[Problem, int]:
        """Return a window's problem with as much of whose turn it is as riders bear.

        Args:
            given: The problem without.
            turns: What each car costs more, or less, ms, shape (cars,).
            waited: How long each rider has waited, ms, shape (riders,).
            wait_ms: How long riders wait of late until the car is there, ms; 0: nothing is known.

        Returns:
            The problem, and how long riders wait by now, ms.
        """
        config = self._config
        if not config.of_wait:
            return given.with_turns(turns), 0
        match = optimal(given)
        made = match >= 0
        for wait in (waited[made] + given.takes[match[made]]).tolist():
            wait_ms = wait_ms + round((wait - wait_ms) / _RIDERS) if wait_ms else wait
        share = min(1.0, config.of_wait * wait_ms / max(1, config.worth_ms))
        return given.with_turns(np.round(turns * share).astype(np.int64)), wait_ms

    def costs(self, free: Sequence[FreeCar], cars: Shelf[Car]) -> Ints:
        """Return what each free car costs more, or less, for how long its driver has been idle, ms.

        Args:
            free: The free cars.
            cars: The cars of the book, by driver.
        """
        return self.costs_of([self.idle_of(car.driver_id, cars[car.driver_id].free_since_ms) for car in free])

    def idle_of(self, driver_id: str, free_since_ms: int) -> float:
        """Return how long a driver has been idle of late, ms."""
        before = self._kept.get(driver_id)
        kept = 0.0 if before is None else before.until(self._now, self._config.half_life_ms)
        return kept + max(0, self._now - free_since_ms)

    def costs_of(self, idle_ms: Sequence[float]) -> Ints:
        """Return what cars cost more, or less, by how long each driver has been idle, ms."""
        if not len(idle_ms):
            return np.zeros(0, np.int64)
        idle = np.array(idle_ms)
        mean = max(float(idle.mean()), _LEAST_MS)
        ahead = np.clip(1.0 - idle / mean, -1.0, 1.0)
        whole: Ints = np.round(self._config.worth_ms * ahead).astype(np.int64)
        return whole
