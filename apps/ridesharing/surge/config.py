"""How prices follow scarcity, as plain values."""

from __future__ import annotations

from typing import Final

import msgspec

from millrace_apps.ridesharing.processes.regions import Regions

#: A quote is known for so long; then it is as unknown as one that never was.
REMEMBER_MS: Final = 3_600_000


class SurgeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How prices follow scarcity. All times are ms of event time.

    Attributes:
        resolution: H3 resolution of the cells, 7 or finer.
        epoch_ms: How often multipliers are decided.
        epochs: Over so many of these what is counted slides: ten of half a minute are five minutes.
        neighbours: Share with which each neighbouring cell counts.
        balance: Requests per free car, in the time that is counted, up to which the price is the usual one.
        power: How steeply the multiplier follows the ratio over ``balance``.
        prior_cars: So many cars in balance count in every cell, so that few requests are no scarcity.
        band: The multiplier stays unless it is off by more than this.
        step: By how much it moves in an epoch at most.
        cap: Its largest value, until an operator sets another.
        turn_band: As ``band``, for a first step the other way.
        hold_ms: So long it stays after a rise before it falls.
        rise_again_ms: So long after it began to fall it does not rise: it turns twice in that time at most.
        valid_ms: So long a quote holds.
        regions: How the world is cut: a cell is priced by its own region, and of its neighbours those of that
            region count.
        ahead_ms: What is booked from so long before its pick-up is no demand of now, and has the usual price.
    """

    resolution: int = 8
    epoch_ms: int = 30_000
    epochs: int = 10
    neighbours: float = 0.3
    balance: float = 2.2
    power: float = 0.6
    prior_cars: float = 1.0
    band: float = 0.15
    step: float = 0.2
    cap: float = 3.0
    turn_band: float = 0.5
    hold_ms: int = 900_000
    rise_again_ms: int = 3_600_000
    valid_ms: int = 300_000
    ahead_ms: int = 600_000
    regions: Regions = Regions()

    def target(self, demand: float, supply: float, cap: float) -> float:
        """Return the multiplier that requests and free cars of a cell and its neighbours ask for.

        Args:
            demand: Requests in the time that is counted.
            supply: Cars free on average in it.
            cap: The largest multiplier.

        >>> SurgeConfig().target(0.0, 10.0, 3.0), SurgeConfig().target(1e9, 0.0, 3.0)
        (1.0, 3.0)
        """
        ratio = (demand + self.prior_cars * self.balance) / (supply + self.prior_cars)
        return float(min(max((ratio / self.balance) ** self.power, 1.0), cap))
