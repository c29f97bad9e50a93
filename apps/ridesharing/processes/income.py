"""Idle time of drivers, so that those who have waited longest get a ride sooner.

What a driver earns is the time with riders, so that who is without one earns nothing. A car whose driver has
been idle for longer than others of late costs less in a window, one whose driver has been idle for less costs
more: by at most what the setting says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from millrace_apps.ridesharing.processes.matching import FreeCar
    from millrace_apps.ridesharing.state.book import Shelf
    from millrace_apps.ridesharing.state.entries import Car

Ints = npt.NDArray[np.int64]
#: Of less idle time than this in the mean nobody is behind or ahead, ms.
_LEAST_MS: Final = 300_000.0


class IncomeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How much it counts who has been idle.

    Attributes:
        worth_ms: So much less a car costs whose driver has been idle twice as long as others, or longer, and
            so much more one whose driver has not been idle at all, as a drive, ms.
        half_life_ms: Idle time of so long ago counts half, ms.
    """

    worth_ms: int
    half_life_ms: int = 4 * 3_600_000


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

    def costs(self, free: Sequence[FreeCar], cars: Shelf[Car]) -> Ints:
        """Return what each free car costs more, or less, for how long its driver has been idle, ms.

        Args:
            free: The free cars.
            cars: The cars of the book, by driver.
        """
        half_life, idle = self._config.half_life_ms, []
        for car in free:
            before = self._kept.get(car.driver_id)
            kept = 0.0 if before is None else before.until(self._now, half_life)
            idle.append(kept + max(0, self._now - cars[car.driver_id].free_since_ms))
        return self.costs_of(idle)

    def costs_of(self, idle_ms: Sequence[float]) -> Ints:
        """Return what cars cost more, or less, by how long each driver has been idle, ms."""
        if not len(idle_ms):
            return np.zeros(0, np.int64)
        idle = np.array(idle_ms)
        mean = max(float(idle.mean()), _LEAST_MS)
        ahead = np.clip(1.0 - idle / mean, -1.0, 1.0)
        whole: Ints = np.round(self._config.worth_ms * ahead).astype(np.int64)
        return whole
