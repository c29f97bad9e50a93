"""Hints to drivers while the app runs: which free cars would be wanted where, by what is foreseen.

Every minute the dispatcher says which cars stand free. Who has stood for a minute and would be wanted more in
a cell nearby is told so, and counted on there for as long as the way takes; a car that does not come nearer
is counted where it stands. Nobody has to go.
"""

from __future__ import annotations

from typing import ClassVar, Final

import h3
import msgspec

from millrace import Context, hours, map_state, side_output
from millrace_apps.ridesharing.contracts.records import Journey
from millrace_apps.ridesharing.demand.config import HintConfig
from millrace_apps.ridesharing.demand.hints import hints
from millrace_apps.ridesharing.demand.process import QUARTER_MS, Counting, Foreseen
from millrace_apps.ridesharing.demand.records import DriverHint, Standing, StandingCar
from millrace_apps.ridesharing.processes.geo import distance_m, travel_ms

#: A driver who was told something may take so long to set off, ms.
_SETS_OFF_MS: Final = 90_000
#: A car that has come nearer by so much follows its hint, metres.
_NEARER_M: Final = 100.0


class Sent(msgspec.Struct, array_like=True, gc=False):
    """Where a driver was told to go.

    Attributes:
        cell: Where to.
        at_ms: When, UTC ms.
        there_ms: When the car should be there, UTC ms.
        away_m: How far it was, metres.
    """

    cell: str
    at_ms: int
    there_ms: int
    away_m: float


class Hinting(Counting[Journey | Standing]):
    """Foresees demand by cell as :class:`Counting` does, and tells drivers of free cars where they lack.

    Its key is the region. Forecasts are the main output.

    Args:
        config: When and how far.
    """

    inputs: ClassVar = {"asks": Journey, "standing": Standing}
    expected = map_state(str, float, ttl=hours(1), paged=True)
    sent = map_state(str, Sent, ttl=hours(2), paged=True)

    hints = side_output(DriverHint)

    def __init__(self, config: HintConfig | None = None) -> None:
        self.config = config or HintConfig()
        super().__init__(self.config.zone, self.config.resolution)

    def process(self, event: Journey | Standing, ctx: Context) -> None:
        """Count a request, or look which cars would be wanted elsewhere."""
        if isinstance(event, Standing):
            self._look(event, ctx)
        elif event.pickup_at_ms - event.at_ms <= self.config.ahead_ms:
            self.count(event.region, event.at_ms, event.pickup_lat, event.pickup_lon, ctx)

    def on_late(self, event: Journey | Standing, ctx: Context) -> None:
        """Take what comes behind the watermark as of now: it counts in the quarter that runs."""
        self.process(event, ctx)

    def foresee(self, one: Foreseen, ctx: Context) -> None:
        """Keep what is expected of a cell, and say it."""
        self.expected.put(one.cell, one.expected)
        super().foresee(one, ctx)

    def _look(self, event: Standing, ctx: Context) -> None:
        config, now = self.config, event.at_ms
        share = config.horizon_ms / QUARTER_MS
        expected = {cell: requests * share for cell, requests in self.expected.items() if requests}
        if not expected:
            return
        cars = {car.driver_id: car for car in event.cars}
        free, movable = {}, set()
        for name, car in cars.items():
            sent = self.sent.get(name)
            free[name] = self._goes_to(car, sent, now)
            rests = sent is not None and now < sent.at_ms + config.rest_ms
            if now - car.since_ms >= config.stood_ms and not rests:
                movable.add(name)
        for hint in hints(expected, free, movable=movable, rings=config.rings):
            car, (lat, lon) = cars[hint.driver_id], h3.cell_to_latlng(hint.cell)
            away = distance_m(car.lat, car.lon, lat, lon)
            there = now + _SETS_OFF_MS + travel_ms(away)
            self.sent.put(hint.driver_id, Sent(hint.cell, now, there, away))
            place = round(lat, 5), round(lon, 5)
            ctx.output(
                self.hints,
                DriverHint(hint.driver_id, event.region, hint.cell, *place, round(hint.short, 2), there, now),
            )

    def _goes_to(self, car: StandingCar, sent: Sent | None, now: int) -> str:
        """Return the cell where a car is counted on: where it was told to go while it may be on the way."""
        if sent is not None and sent.at_ms >= car.since_ms and now <= sent.there_ms:
            away = distance_m(car.lat, car.lon, *h3.cell_to_latlng(sent.cell))
            if now <= sent.at_ms + _SETS_OFF_MS or away <= sent.away_m - _NEARER_M:
                return sent.cell
        return str(h3.latlng_to_cell(car.lat, car.lon, self.config.resolution))
