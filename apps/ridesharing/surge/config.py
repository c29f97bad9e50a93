"""How prices follow scarcity, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from millrace_apps.ridesharing.processes.regions import Regions

#: A quote is known for so long; then it is as unknown as one that never was.
REMEMBER_MS: Final = 3_600_000
_HOUR_MS: Final = 3_600_000
_MOST_RESERVE: Final = 3.0


class SurgeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How prices follow scarcity. All times are ms of event time.

    Attributes:
        resolution: H3 resolution of the cells, 7 or finer.
        epoch_ms: How often multipliers are decided.
        epochs: Over so many of these what is counted slides: ten of half a minute are five minutes.
        rings: Neighbours within so many rings count.
        neighbours: Share with which a cell counts for those beside it; for those a ring farther its square.
        stock: Share with which a car counts that stands free. It is there once, and not anew in each time
            that is counted, as those are that are taken.
        queue: Share with which a rider counts who waits, beside having asked.
        reserve: So many times the square root of demand counts beside it: where cars are few they are far
            from each other, and more of them have to stand free than where they are many.
        balance: Demand over supply up to which the price is the usual one.
        power: How steeply the multiplier follows the ratio over ``balance``.
        prior_cars: So many cars in balance count in every cell, so that few requests are no scarcity.
        slack: The multiplier rises only where the ratio asks for more by this share, and only so far.
        rise_epochs: What it rises by is the least that the ratio asked for at the ends of the last so many.
        fall_epochs: It falls to the most that the ratio has asked for at the ends of the last so many.
        gone: It falls only where no more ask than this share of the most who asked when it rose: while the
            crowd is there, cars that stand free are what the price has brought.
        band: It does not move by less than this.
        step: By how much it moves in an epoch at most.
        cap: Its largest value, until an operator sets another.
        hold_ms: So long after it began to rise it does not fall.
        valid_ms: So long a quote holds.
        regions: How the world is cut: a cell is priced by its own region, and of its neighbours those of that
            region count.
        ahead_ms: What is booked from so long before its pick-up is no demand of now, and has the usual price.
    """

    resolution: int = 8
    epoch_ms: int = 30_000
    epochs: int = 10
    rings: int = 2
    neighbours: float = 0.8
    stock: float = 0.33
    queue: float = 0.5
    reserve: float = 8.0
    balance: float = 2.0
    power: float = 3.0
    prior_cars: float = 10.0
    slack: float = 0.9
    rise_epochs: int = 1
    fall_epochs: int = 6
    gone: float = 0.6
    band: float = 0.05
    step: float = 0.2
    cap: float = 5.0
    hold_ms: int = 2_700_000
    valid_ms: int = 300_000
    ahead_ms: int = 600_000
    regions: Regions = Regions()

    @property
    def rise_again_ms(self) -> int:
        """So long after it began to fall a multiplier does not rise: it turns twice in an hour at most."""
        return max(0, _HOUR_MS - self.hold_ms)

    def with_neighbours(self, near: Sequence[Sequence[str]], counts: Mapping[str, int]) -> float:
        """Return what a cell counts with the share of its neighbours.

        Args:
            near: The cell and its neighbours, ring by ring.
            counts: Cell → its own.

        >>> SurgeConfig(neighbours=0.5).with_neighbours([["a"], ["b", "c"], ["d"]], {"a": 1, "b": 4, "d": 8})
        5.0
        """
        rings = [sum([counts.get(name, 0) for name in names]) for names in near]
        return float(sum([self.neighbours**ring * number for ring, number in enumerate(rings)]))

    def target(self, demand: float, supply: float) -> float:
        """Return the multiplier that demand and supply of a cell and its neighbours ask for, without a cap.

        Args:
            demand: Who asked in the time that is counted, and who waits for a car.
            supply: Cars that were taken in it, and a share of those that stand free.

        >>> SurgeConfig().target(0.0, 10.0)
        1.0
        >>> SurgeConfig(power=2.0, reserve=1.0, balance=1.0, prior_cars=10.0).target(25.0, 10.0)
        4.0
        """
        reserve = min(self.reserve * math.sqrt(demand), _MOST_RESERVE * demand)
        needed = (demand + reserve) / self.balance
        ratio = (needed + self.prior_cars) / (supply + self.prior_cars)
        return float(max(ratio**self.power, 1.0))
