"""Trades of shares: clustered volatility, with jumps, V shapes and bursts of volume among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from millrace_apps.generators.engine.profile import Profile, check
from millrace_apps.generators.engine.randomness import digest, normal, substream
from millrace_apps.generators.engine.simulated import Domain, Simulated, StreamSpec, Truth
from millrace_apps.generators.small.slots import Chance, Zipf

JUMP: Final = "jump"
V_SHAPE: Final = "v_shape"
VOLUME_BURST: Final = "volume_burst"
SCENARIOS: Final = {
    JUMP: "one trade moves the price by at least eight times its usual step",
    V_SHAPE: "four to eight trades of a share fall one after the other, then as many rise",
    VOLUME_BURST: "six to twelve trades of a share one after the other at twenty times the usual size",
}
#: GARCH(1,1) of Bollerslev, J. Econometrics 31 (1986): persistence 0.98, unconditional variance 1.
_OMEGA, _ALPHA, _BETA = 0.02, 0.08, 0.90
#: A step of one deviation moves the price by this share.
STEP: Final = 0.0008
_LOT: Final = 100
#: A price is drawn back to its first one by this share of the distance: it neither vanishes nor explodes.
_PULL: Final = 1e-5


class Trade(msgspec.Struct, frozen=True, gc=False):
    """One trade of one share."""

    trade_id: Annotated[str, Meta(min_length=1, description="Unique.")]
    symbol: Annotated[str, Meta(min_length=1, description="The share.")]
    price: Annotated[float, Meta(gt=0, description="Price in euro, to the cent.")]
    size: Annotated[int, Meta(gt=0, description="Number of shares.")]
    event_time_ms: Annotated[int, Meta(ge=0, description="Event time, milliseconds since the epoch, UTC.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class StocksProfile(Profile):
    """What a stream of trades is made from.

    Attributes:
        symbols: Number of shares.
        symbol_skew: Zipf exponent of how often they trade; 0: all alike.
        scenario_rate: Scenarios begun per 1,000 events.
    """

    symbols: int = 50
    symbol_skew: float = 0.8
    scenario_rate: float = 1.0

    def __post_init__(self) -> None:
        # The two-argument form: a slotted dataclass is a second class, which super() alone does not find.
        super(StocksProfile, self).__post_init__()
        check(1 <= self.symbols <= 1_000_000, "symbols is a count between 1 and 1,000,000", self.symbols)
        check(0 <= self.symbol_skew <= 5, "symbol skew is an exponent between 0 and 5", self.symbol_skew)
        rate = self.scenario_rate
        check(0 <= rate <= 100, "scenario rate is 0 to 100 per 1,000 events", rate)


class _Script:
    """A scenario that goes on: a share's steps still to come, in deviations, and its factor of size."""

    __slots__ = ("factor", "steps", "truth")

    def __init__(self, truth: Truth, steps: list[float], factor: int) -> None:
        self.truth = truth
        self.steps = steps
        self.factor = factor


class _Share:
    __slots__ = ("cents", "first", "script", "symbol", "variance")

    def __init__(self, symbol: str, cents: float) -> None:
        self.symbol = symbol
        self.cents = self.first = cents
        self.variance = 1.0
        self.script: _Script | None = None


class _Market:
    def __init__(self, profile: StocksProfile) -> None:
        self._profile = profile
        self._run = digest("stocks", profile.seed, profile.start_ms)[:10]
        prices = substream(profile.seed, "stocks", "first price").random
        self._shares = [
            _Share(f"S{number:04d}", 1_000 + 29_000 * prices()) for number in range(profile.symbols)
        ]
        self._zipf = Zipf(profile.symbols, profile.symbol_skew)
        self._symbol = substream(profile.seed, "stocks", "symbol").random
        self._step = substream(profile.seed, "stocks", "step").random
        self._size = substream(profile.seed, "stocks", "size").random
        self._what = substream(profile.seed, "stocks", "scenario", "what").random
        self._chance = Chance(profile, profile.scenario_rate, "stocks", "scenario")
        self._scripts = 0

    def trade(self, sequence: int) -> Simulated:
        share = self._shares[self._zipf.draw(self._symbol())]
        deviate, lots = normal(self._step()), 1 + int(20 * self._size() ** 3)
        if self._chance.strikes() and share.script is None:
            share.script = self._script(share)
        truths: tuple[Truth, ...] = ()
        step = deviate * share.variance**0.5
        script = share.script
        if script is not None:
            truths = (script.truth,)
            lots *= script.factor
            # At least a cent, so that a fall is a fall at any price.
            moved = script.steps.pop(0)
            if moved:
                step = moved
            if not script.steps:
                share.script = None
        else:
            share.cents += _PULL * (share.first - share.cents)
            share.variance = _OMEGA + _ALPHA * step * step + _BETA * share.variance
        before = round(share.cents)
        share.cents *= 1 + step * STEP
        cents = round(share.cents)
        if script is not None and step and cents == before:
            cents = before + (1 if step > 0 else -1)
            share.cents = float(cents)
        at_ms = self._profile.slot_ms(sequence)
        trade = Trade(f"{self._run}-{sequence:010d}", share.symbol, cents / 100, lots * _LOT, at_ms)
        return Simulated("trades", share.symbol, trade, at_ms, truths)

    def _script(self, share: _Share) -> _Script:
        """Return what the share's next trades will do."""
        kind = list(SCENARIOS)[int(len(SCENARIOS) * self._what())]
        how, sign = self._what(), 1 if self._what() < 0.5 else -1
        factor = 1
        if kind == JUMP:
            # Times the volatility of the hour: a jump stands out in a wild market too.
            steps = [sign * (8 + 8 * how) * max(1.0, share.variance**0.5)]
        elif kind == V_SHAPE:
            size = 4 + int(5 * how)
            steps = [-(2 + 2 * self._what()) for _ in range(size)]
            steps += [2 + 2 * self._what() for _ in range(size)]
        else:
            steps, factor = [0.0] * (6 + int(7 * how)), 20
        self._scripts += 1
        detail = {"symbol": share.symbol, "size": len(steps)}
        truth_id = f"{self._run}-e{self._scripts:06d}"
        truth = Truth(truth_id=truth_id, kind=kind, entity=share.symbol, expected="match", detail=detail)
        return _Script(truth, steps, factor)


def simulate(profile: StocksProfile) -> Iterator[Simulated]:
    """Yield trades in event time, one per slot of the event rate.

    Args:
        profile: What the market is; equal profiles give equal trades.

    >>> next(simulate(StocksProfile(seed=1))).stream
    'trades'
    """
    market = _Market(profile)
    for sequence in count() if profile.events is None else range(profile.events):
        yield market.trade(sequence)


STOCKS: Final = Domain(
    name="stocks",
    description="trades of shares: jumps, V shapes and bursts of volume in clustered volatility",
    streams={
        "trades": StreamSpec(
            topic="stocks.trades", event_type=Trade, id_field="trade_id", time_field="event_time_ms"
        )
    },
    profile=StocksProfile,
    simulate=simulate,
    scenarios=SCENARIOS,
)
