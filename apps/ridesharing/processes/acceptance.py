"""Acceptance probability of drivers, learned from their answers.

Of the fleet it is known how often it says yes to a pick-up so far away; of a driver by how much more often
than the fleet. Who has answered little counts as the fleet does, and comes to be judged by the own answers
(a Gamma prior of mean 1 on the ratio of yeses to those expected). Older answers count less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
#: Says what it costs that a driver may not take the ride: numbers of cars and metres, (pairs,) → ms.
Doubts = Callable[[Ints, Floats], Ints]

#: Pick-ups are told apart by these distances, metres.
STEPS_M: Final = (500.0, 1_000.0, 1_500.0, 2_000.0, 3_000.0, 5_000.0)
_EDGES: Final = np.array(STEPS_M)
#: Where nothing is known, so many of so many offers are taken.
_YES: Final = 9.0
_OFFERS: Final = 10.0
#: So many offers of a distance count as much as all the others together.
_OF_A_STEP: Final = 30.0
_LEAST: Final = 0.02
_MOST: Final = 0.99


class AcceptanceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How it is learned who takes what, and what it costs.

    Attributes:
        miss_ms: What an offer costs that is not taken, as a drive, ms: the rider waits for the answer, and
            somebody else is farther away.
        half_life_ms: Answers of so long ago count half, ms.
        shrink: So many yeses count as much as what is usual in the fleet.
    """

    miss_ms: int = 30_000
    half_life_ms: int = 7 * 86_400_000
    shrink: float = 3.0


class Tally(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Answers, the older ones for less.

    Attributes:
        yes: How many were a yes.
        of: Of the fleet, how many there were; of a driver, how many yeses the fleet would have said.
        at_ms: When the last was given, UTC ms.
    """

    yes: float = 0.0
    of: float = 0.0
    at_ms: int = 0

    def faded(self, now_ms: int, half_life_ms: int) -> Tally:
        """Return what of it counts at a time."""
        passed = now_ms - self.at_ms
        if passed <= 0 or not self.of:
            return self
        share = 0.5 ** (passed / half_life_ms)
        return Tally(self.yes * share, self.of * share, now_ms)

    def add(self, yes: float, of: float, now_ms: int, half_life_ms: int) -> Tally:
        """Return it with one answer more."""
        kept = self.faded(now_ms, half_life_ms)
        return Tally(kept.yes + yes, kept.of + of, max(now_ms, kept.at_ms))

    def joined(self, other: Tally, half_life_ms: int) -> Tally:
        """Return both together, as of the later one.

        >>> Tally(1.0, 2.0, 10).joined(Tally(1.0, 1.0, 0), 10)
        Tally(yes=1.5, of=2.5, at_ms=10)
        """
        at_ms = max(self.at_ms, other.at_ms)
        one, two = self.faded(at_ms, half_life_ms), other.faded(at_ms, half_life_ms)
        return Tally(one.yes + two.yes, one.of + two.of, at_ms)


class Tallies(Protocol):
    """Tallies by name: a map state."""

    def get(self, key: str, /) -> Tally | None:
        """Return a tally."""

    def put(self, key: str, value: Tally, /) -> None:
        """Keep a tally."""


class Chance(msgspec.Struct, frozen=True, gc=False):
    """A row of the table ``chances``: how likely it was that a driver says yes, and what was said.

    Attributes:
        request_id: The request.
        driver_id: The driver.
        attempt: The attempt.
        region: Who made the offer.
        distance_m: Straight line to the pick-up, metres.
        expected: How likely a yes was held to be, from what had been answered before.
        answer: What came: ``accept``, ``reject`` or ``ignore``.
        at_ms: When, UTC ms.
    """

    request_id: str
    driver_id: str
    attempt: int
    region: str
    distance_m: float
    expected: float
    answer: Literal["accept", "reject", "ignore"]
    at_ms: int


class Acceptance:
    """What drivers of one region are likely to take, at one moment.

    Args:
        kept: The tallies: ``all``, ``m:`` and a step of distance, ``d:`` and a driver.
        config: How it is learned.
        now: The moment, UTC ms.

    >>> class Kept(dict):
    ...     put = dict.__setitem__
    >>> acceptance = Acceptance(Kept(), AcceptanceConfig(), 0)
    >>> for _ in range(20):
    ...     _ = acceptance.hear("d1", 400.0, yes=False)
    >>> acceptance.chance("d1", 400.0) < 0.2 < acceptance.chance("d2", 400.0)
    True
    """

    __slots__ = ("_config", "_kept", "_now")

    def __init__(self, kept: Tallies, config: AcceptanceConfig, now: int) -> None:
        self._kept, self._config, self._now = kept, config, now

    def chance(self, driver_id: str, metres: float) -> float:
        """Return how likely a driver takes a pick-up so far away."""
        return float(self.chances([driver_id], np.zeros(1, np.int64), np.array([metres]))[0])

    def chances(self, drivers: Sequence[str], car: Ints, metres: Floats) -> Floats:
        """Return how likely pairs come to be.

        Args:
            drivers: Names, by number.
            car: Of each pair the driver's number, shape (pairs,).
            metres: Of each pair the straight line to the pick-up, metres.
        """
        fleet = np.array([self._of_step(n) for n in range(len(STEPS_M) + 1)])
        ratio = np.ones(len(drivers))
        for number in np.unique(car).tolist():
            ratio[number] = self._ratio(drivers[number])
        found = fleet[np.searchsorted(_EDGES, metres)] * ratio[car]
        clipped: Floats = np.clip(found, _LEAST, _MOST)
        return clipped

    def doubts(self, drivers: Sequence[str]) -> Doubts:
        """Return what says what it costs that a driver may not take the ride.

        Args:
            drivers: Names of the drivers of the free cars, by number.
        """

        def costs(car: Ints, metres: Floats) -> Ints:
            missed = 1.0 - self.chances(drivers, car, metres)
            whole: Ints = (self._config.miss_ms * missed).astype(np.int64)
            return whole

        return costs

    def hear(self, driver_id: str, metres: float, *, yes: bool) -> float:
        """Learn from an answer, or that there was none; return how likely a yes had been held to be."""
        step = int(np.searchsorted(_EDGES, metres))
        expected, usual, said = self.chance(driver_id, metres), self._of_step(step), float(yes)
        for name, of in (("all", 1.0), (f"m:{step}", 1.0), (f"d:{driver_id}", usual)):
            kept = self._kept.get(name) or Tally()
            self._kept.put(name, kept.add(said, of, self._now, self._config.half_life_ms))
        return expected

    def _faded(self, name: str) -> Tally:
        kept = self._kept.get(name)
        return Tally() if kept is None else kept.faded(self._now, self._config.half_life_ms)

    def _of_step(self, step: int) -> float:
        every, own = self._faded("all"), self._faded(f"m:{step}")
        usual = (every.yes + _YES) / (every.of + _OFFERS)
        return (own.yes + usual * _OF_A_STEP) / (own.of + _OF_A_STEP)

    def _ratio(self, driver_id: str) -> float:
        own, shrink = self._faded(f"d:{driver_id}"), self._config.shrink
        return (own.yes + shrink) / (own.of + shrink)
