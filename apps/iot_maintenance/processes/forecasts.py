"""Forecasts of when a measuring point will cross a limit of its alarm rules, with their certainty."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from millrace import Context, hours, map_state, minutes, side_output
from millrace.operators import limit_forecast
from millrace.operators.crossing import CrossingState, LimitForecast
from millrace_apps.iot_maintenance.processes.anomalies import Gathered, Scored, Scoring
from millrace_apps.iot_maintenance.processes.liveness_monitor import Monitoring

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millrace_apps.iot_maintenance.contracts.events import Reading
    from millrace_apps.iot_maintenance.state.past import MachineAsOf

_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Forecasting:
    """How far ahead is looked.

    Attributes:
        enabled: Whether it is.
        forecast: What looks.
    """

    enabled: bool = True
    forecast: LimitForecast = field(default_factory=lambda: limit_forecast(every=minutes(1), ahead=hours(8)))


class PointForecast(msgspec.Struct, frozen=True, gc=False):
    """When a measuring point is expected to cross a limit; of a point the newest row counts.

    Attributes:
        machine_id: The machine.
        quantity: What is measured.
        subject: The measuring point: the quantity, with a name where the machine has several of it.
        event_time_ms: Of the value by which it is expected.
        side: From which side: ``above``: the series rises to it; ``none``: nothing is expected any more.
        limit: The limit, in the value's unit; ``None`` with ``none``.
        in_h: In how many hours.
        earliest_h: The soonest.
        latest_h: The latest; ``None``: beyond what is looked at, or never.
        level: Where the series is, without noise.
        trend_per_h: How much it moves in an hour.
    """

    machine_id: str
    quantity: str
    subject: str
    event_time_ms: int
    side: Literal["above", "below", "none"]
    limit: float | None
    in_h: float | None
    earliest_h: float | None
    latest_h: float | None
    level: float | None
    trend_per_h: float | None


class Foreseen(Scored):
    """The part of the monitor that looks ahead; for each point with a limit it keeps less than half a KiB."""

    forecasts = side_output(PointForecast)

    ahead = map_state(str, CrossingState)

    def __init__(
        self, monitoring: Monitoring, scoring: Scoring | None = None, forecasting: Forecasting | None = None
    ) -> None:
        super().__init__(monitoring, scoring)
        self._forecasting = forecasting or Forecasting()

    def _look_ahead(
        self, event: Reading, subject: str, value: float, at: int, gathered: Gathered, ctx: Context
    ) -> None:
        how = self._forecasting
        machine = self.machine.value
        if not how.enabled or machine is None:
            return
        known = machine.past.as_of(at)
        limits = self._rules(at).limits_for(known.kind or machine.mark, event.quantity)
        below, above = limits.below, limits.above
        if limits.bounds:
            below, above = limits.of(self._attributes(known, subject))
        if below is None and above is None:
            return
        state = self.ahead.get(subject)
        if state is None:
            state = how.forecast.new()
        found = how.forecast.add(state, value, at, above, below)
        self.ahead.put(subject, state)
        expected, gathered.crosses_at = gathered.crosses_at, -1
        key = event.machine_id, event.quantity, subject, at
        if found is not None:
            gathered.crosses_at = at + found.in_ms
            latest = None if found.latest_ms is None else found.latest_ms / _HOUR_MS
            times = found.in_ms / _HOUR_MS, found.earliest_ms / _HOUR_MS, latest
            row = PointForecast(*key, found.side, found.limit, *times, found.level, found.trend_per_h)
            ctx.output(self.forecasts, row)
        elif expected >= 0:
            ctx.output(self.forecasts, PointForecast(*key, "none", None, None, None, None, None, None))

    def _attributes(self, known: MachineAsOf, subject: str) -> Mapping[str, str]:
        """Return the master data of a measuring point, its own before those of its machine."""
        asset = self.asset.value
        point = None if asset is None else asset.points.get(subject)
        return known.attributes if point is None else {**known.attributes, **point.attributes}

    def _tidy(self, ctx: Context) -> None:
        super()._tidy(ctx)
        if self.machine.value is None:
            self.ahead.clear()


def hours_until(scored: Gathered, at: int) -> float | None:
    """Return in how many hours from a time (ms) on a limit is crossed; ``None``: nothing is foreseen."""
    return max(scored.crosses_at - at, 0) / _HOUR_MS if scored.crosses_at >= 0 else None
