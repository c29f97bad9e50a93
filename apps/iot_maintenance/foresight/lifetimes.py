"""From forecasts to intervals that hold, and to the date by which a machine should be maintained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from millrace import Context, KeyedProcess, side_output, value_state
from millrace_apps.iot_maintenance.foresight.distribution import LEVELS, Adaptive, level_of, value_at
from millrace_apps.iot_maintenance.foresight.records import (
    LifeForecast,
    LifeTruth,
    MaintenancePlan,
    RemainingLife,
)

_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True)
class Promises:
    """What intervals and plans go by.

    Attributes:
        coverage: How often the truth is to be in the interval.
        rate: How fast intervals follow what comes true.
        early: Cost of an hour of life that is given away.
        late: Cost of an hour that a machine runs on after it would have failed.
        by_interval: Whether plans go by the begin of the interval, and not by what costs the least.
    """

    coverage: float = 0.9
    rate: float = 0.05
    early: float = 1.0
    late: float = 9.0
    by_interval: bool = False

    @property
    def share(self) -> float:
        """The share of the distribution at which too early and too late cost the least (newsvendor)."""
        return self.early / (self.early + self.late)

    def cost(self, hours: float, values: Sequence[float], ceiling: float) -> float:
        """Return what maintaining after some hours costs on average.

        Args:
            hours: After how long, h.
            values: Lives at each of :data:`LEVELS`, h.
            ceiling: Longest life that is forecast, h.
        """
        ends = (0.0, *values, ceiling)
        shares = (0.0, *LEVELS, 1.0)
        total = 0.0
        for place in range(1, len(ends)):
            life, share = (ends[place - 1] + ends[place]) / 2, shares[place] - shares[place - 1]
            away = life - hours
            total += share * (self.early * away if away > 0 else -self.late * away)
        return total

    def cost_of_risk(self, hours: float, probability: float, horizon: float) -> float:
        """Return what it costs where a failure is as likely at any time of a horizon.

        Args:
            hours: After how long, h; within the horizon.
            probability: How likely it fails within the horizon.
            horizon: The horizon, h.
        """
        rest = horizon - hours
        fails = (self.early * rest * rest + self.late * hours * hours) / (2 * horizon)
        return probability * fails + (1.0 - probability) * self.early * rest


class Lifetimes(KeyedProcess[LifeTruth | LifeForecast, RemainingLife]):
    """Makes intervals of forecasts, wider or narrower by what came true of machines of the kind.

    Args:
        promises: What intervals and plans go by.
    """

    order = "event_time"
    inputs: ClassVar[Mapping[str, Any]] = {"truths": LifeTruth, "forecasts": LifeForecast}
    plans = side_output(MaintenancePlan)
    adaptive = value_state(Adaptive)

    def __init__(self, promises: Promises) -> None:
        self._p = promises

    def process(self, event: LifeTruth | LifeForecast, ctx: Context) -> None:
        """Learn of a life that has ended, or tell of one that goes on."""
        promises = self._p
        miss = 1.0 - promises.coverage
        kept = self.adaptive.value
        if isinstance(event, LifeTruth):
            if event.levels:
                kept = Adaptive(miss / 2, miss / 2) if kept is None else kept
                kept.learn(event.levels, miss=miss, rate=promises.rate)
                self.adaptive.value = kept
            return
        kept = Adaptive(miss / 2, miss / 2) if kept is None else kept
        at, machine = event.event_time_ms, event.machine_id
        begin: float | None = None
        if event.forecast_h is not None:
            begin, high = kept.interval(event.spread_h, event.ceiling_h)
            ctx.emit(
                RemainingLife(
                    machine, at, event.forecast_h, begin, high, event.ceiling_h, promises.coverage,
                    kept.lives, event.model,
                )
            )  # fmt: skip
        if (plan := _plan(event, promises, begin if promises.by_interval else None)) is not None:
            ctx.output(self.plans, plan)

    def on_late(self, event: LifeTruth | LifeForecast, ctx: Context) -> None:
        """Take what a late failure says: now is its time."""
        self.process(event, ctx)


def _plan(event: LifeForecast, promises: Promises, begin: float | None) -> MaintenancePlan | None:
    """Return by when a machine should be maintained; ``None`` where no model says anything of it.

    Args:
        event: What the models say.
        promises: What too early and too late cost.
        begin: The begin of the interval, h, where plans go by it.
    """
    share, at = promises.share, event.event_time_ms
    dates = []
    if event.forecast_h is not None:
        hours = value_at(event.spread_h, share, event.ceiling_h) if begin is None else begin
        cost = promises.cost(hours, event.spread_h, event.ceiling_h)
        failed = level_of(event.spread_h, hours, event.ceiling_h)
        dates.append((hours, "remaining life" if begin is None else "interval", cost, failed))
    if event.probability is not None and event.probability > share:
        # Within the horizon a failure is as likely at one time as at another.
        hours = event.horizon_h * share / event.probability
        cost = promises.cost_of_risk(hours, event.probability, event.horizon_h)
        dates.append((hours, "risk", cost, share))
    if not dates:
        return None
    hours, reason, cost, failed = min(dates)
    return MaintenancePlan(
        event.machine_id, event.component, at, at + round(hours * _HOUR_MS), cost, reason, failed
    )
