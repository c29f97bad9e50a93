"""Drivers of a replay who do not take every ride: each likes some number of them, and near ones better."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np

#: Who says no does so after so long, ms.
NO_AFTER_MS: Final = 5_000


@dataclass(frozen=True)
class Willing:
    """How likely each driver is to say yes, and what is said to each offer.

    A driver's own share of yeses is drawn once, from a Beta distribution; beyond half a kilometre it falls by
    the distance. Who does not say yes says no, or nothing: what is said hangs on the names alone.

    Attributes:
        seed: Where the draws come from.
        mean: Mean of the drivers' own shares.
        spread: How alike drivers are: the sum of the two parameters of the distribution; small: they differ.
        per_km: By so much the share falls with each kilometre, as a part.
        silent: Share of those who do not say yes who say nothing.

    >>> willing = Willing(seed=1)
    >>> 0.7 < sum(willing.own(f"d{n}") for n in range(1_000)) / 1_000 < 0.9
    True
    """

    seed: int
    mean: float = 0.8
    spread: float = 3.0
    per_km: float = 0.15
    silent: float = 0.5

    @cached_property
    def _known(self) -> dict[str, float]:
        return {}

    def own(self, driver_id: str) -> float:
        """Return the share of near rides that a driver takes."""
        if driver_id not in self._known:
            draws = np.random.default_rng([self.seed, zlib.crc32(driver_id.encode())])
            a, b = self.mean * self.spread, (1.0 - self.mean) * self.spread
            self._known[driver_id] = float(draws.beta(a, b))
        return self._known[driver_id]

    def chance(self, driver_id: str, metres: float) -> float:
        """Return how likely a driver takes a ride whose pick-up is so far away, straight line."""
        return self.own(driver_id) * math.exp(-self.per_km * max(0.0, metres - 500.0) / 1_000)

    def says(self, driver_id: str, offer_id: str, metres: float) -> Literal["accept", "reject", "ignore"]:
        """Return what a driver makes of an offer."""
        drawn = np.random.default_rng([self.seed, zlib.crc32(f"{offer_id} {driver_id}".encode()), 1])
        said, how = drawn.random(2).tolist()
        if said < self.chance(driver_id, metres):
            return "accept"
        return "ignore" if how < self.silent else "reject"
