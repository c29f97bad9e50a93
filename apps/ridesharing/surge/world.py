"""A city in a closed loop with dispatch and prices: riders who decline, drivers who come for what is paid."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import cos, radians
from typing import Any, Final

import h3
import msgspec
import numpy as np

from millrace.host.memory_chain import MemoryChain
from millrace.topology import Link, Topology
from millrace_apps.ridesharing.contracts.events import DriverStatus, Event, Position, RideRequest
from millrace_apps.ridesharing.evaluation.fleet import Fleet, Leg, Request
from millrace_apps.ridesharing.processes.geo import CIRCUITY, SPEED_M_PER_MS, distance_m
from millrace_apps.ridesharing.processes.regions import EVERYWHERE
from millrace_apps.ridesharing.surge.config import SurgeConfig
from millrace_apps.ridesharing.surge.process import Surge
from millrace_apps.ridesharing.surge.records import Asked, FreeCars, Multiplier, Quote

_HOUR_MS: Final = 3_600_000
_START_MS: Final = 1_767_225_600_000  # 2026-01-01T00:00Z
_KM: Final = 111.32
_CENTRE: Final = (37.76, -122.43)
_STOP_MS: Final = 120_000
#: Drivers look at prices so often, ms.
_LOOK_MS: Final = 60_000


class World(msgspec.Struct, frozen=True, kw_only=True):
    """A city of an evening: requests around some centres, for a time many more.

    Attributes:
        seed: Where the draws come from.
        per_hour: Requests in an hour, as usual.
        cars: Drivers who are on line, as usual.
        hours: How long it goes.
        shock: So many times as many requests in the shock.
        shock_from_h: Its beginning, hours.
        shock_hours: How long it lasts.
    """

    seed: int
    per_hour: int = 1_500
    cars: int = 340
    hours: float = 2.75
    shock: float = 2.0
    shock_from_h: float = 0.75
    shock_hours: float = 1.25

    @property
    def start_ms(self) -> int:
        """Beginning, UTC ms."""
        return _START_MS

    @property
    def until_ms(self) -> int:
        """When the last request may come, UTC ms."""
        return _START_MS + int(self.hours * _HOUR_MS)

    @property
    def shock_ms(self) -> tuple[int, int]:
        """Beginning and end of the shock, UTC ms."""
        begins = _START_MS + int(self.shock_from_h * _HOUR_MS)
        return begins, begins + int(self.shock_hours * _HOUR_MS)

    def requests(self) -> list[Request]:
        """Return what is asked for, in order."""
        rng = np.random.default_rng([self.seed, 1])
        centres = rng.normal(0.0, 1.5, (5, 2))  # km
        begins, ends = self.shock_ms
        most = self.per_hour * max(self.shock, 1.0)
        found: list[Request] = []
        at = float(self.start_ms)
        while (at := at + rng.exponential(_HOUR_MS / most)) < self.until_ms:
            rate = self.shock if begins <= at < ends else 1.0
            (x, y), (to_x, to_y) = centres[rng.integers(5, size=2)] + rng.normal(0.0, 0.8, (2, 2))
            if rng.random() * most >= rate * self.per_hour:
                continue
            place, to = _place(x, y), _place(to_x, to_y)
            drive = distance_m(*place, *to) * CIRCUITY / SPEED_M_PER_MS
            took = _STOP_MS + int(drive * rng.lognormal(0.0, 0.2))
            found.append(Request(f"r{len(found):06d}", int(at), *place, *to, took))
        return found


def _place(x: float, y: float) -> tuple[float, float]:
    return float(_CENTRE[0] + y / _KM), float(_CENTRE[1] + x / _KM / cos(radians(_CENTRE[0])))


@dataclass
class City(Fleet):
    """The fleet of a replay, with prices: who asks is quoted, and takes it or not; drivers come and go.

    Of those who ask the share ``multiplier ** riders_e`` takes the quote. On line are as many cars as usual
    times ``mean multiplier ** drivers_e``, the mean over those who asked since drivers looked last; of those
    who stand free ``1 - (own / dearest) ** drivers_e`` a minute drive to the dearest cell beside theirs.

    Attributes:
        usual: Cars that are on line, as usual; the others come for a price.
        prices: How prices follow scarcity; ``None``: they do not.
        riders_e: Elasticity of those who ask, below zero.
        drivers_e: Elasticity of those who drive.
        quotes: What each request was quoted.
        taken: The requests whose quote was taken.
        priced: Each change of a multiplier.
    """

    usual: int = 0
    prices: SurgeConfig | None = None
    riders_e: float = -0.5
    drivers_e: float = 0.3
    quotes: dict[str, Quote] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    priced: list[Multiplier] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Place the drivers, and let those who come for a price be off line."""
        super().__post_init__()
        self._rng = np.random.default_rng([self.seed, 2])
        # The same rider has the same mind whatever the prices are.
        self._minds = dict(zip(self._by_id, self._rng.random(len(self._by_id)).tolist(), strict=True))
        self._off = sorted(self.drivers)[self.usual :]
        self._free: set[str] = set()
        self._looked_ms = self._asked_ms = self.start_ms
        self._held: list[RideRequest] = []
        self._cars: list[FreeCars] = []
        self._since: list[Quote] = []
        self._levels: dict[str, float] = {}
        self._config = self.prices or SurgeConfig(cap=1.0)
        self._chain = MemoryChain(Topology({}, (Link(Surge(self._config)),)), records=True)

    @property
    def pending(self) -> bool:
        """Whether anything but positions is still to come."""
        return super().pending or bool(self._held)

    def tell(self, message: object, now: int) -> None:
        """Take what the dispatcher says; which cars it has is for prices."""
        if isinstance(message, FreeCars):
            self._cars.append(message)
        else:
            super().tell(message, now)

    def until(self, ms: int) -> list[Event]:
        """Return what happens up to a time, without those who decline, and let it happen."""
        off = set(self._off)
        happened = [
            event
            for event in super().until(ms)
            if not (isinstance(event, Position) and event.driver_id in off)
        ]
        # Which cars there are now the dispatcher says next: who asks now is told a price after that.
        asks = [*self._held, *(event for event in happened if isinstance(event, RideRequest))]
        happened = [event for event in happened if not isinstance(event, RideRequest)]
        if ms < self._asked_ms + 2:
            self._held = asks
            return happened
        self._held = [event for event in asks if event.event_time_ms >= ms]
        self._asked_ms = ms
        asks = asks[: len(asks) - len(self._held)]
        self._ask(asks, ms)
        happened += [event for event in asks if self._takes(event.request_id)]
        if ms >= self._looked_ms + _LOOK_MS:
            self._looked_ms = ms
            happened += self._come_and_go(ms)
            self._drift(ms)
        return happened

    def _ask(self, asks: list[RideRequest], ms: int) -> None:
        """Tell the process what it may know, and keep what it says."""
        rows: list[tuple[str, int, Asked | FreeCars]] = [(one.region, one.at_ms, one) for one in self._cars]
        self._cars = []
        for event in asks:
            cell = self._cell(event.pickup_lat, event.pickup_lon)
            asked = Asked("quote", event.request_id, event.rider_id, EVERYWHERE, cell)
            rows.append((EVERYWHERE, event.event_time_ms, asked))
        self._free = {name for name, driver in self.drivers.items() if not driver.request_id}.difference(
            self._off
        )
        found = self._chain.run_batch(rows) if rows else []
        for one in [*found, *self._chain.advance_watermark(ms - 1)]:
            if one.output == "main":
                self.quotes[one.payload.quote_id] = one.payload
                self._since.append(one.payload)
            elif one.output.endswith("multipliers"):
                self.priced.append(one.payload)
                self._levels[one.payload.cell] = one.payload.multiplier
            elif not one.output.endswith("counts"):
                raise AssertionError(f"{one.output}: {one.payload}")

    def _cell(self, lat: float, lon: float) -> str:
        return str(h3.latlng_to_cell(lat, lon, self._config.resolution))

    def _takes(self, request_id: str) -> bool:
        if self._minds[request_id] >= self.quotes[request_id].multiplier ** self.riders_e:
            return False
        self.taken.add(request_id)
        return True

    def _come_and_go(self, ms: int) -> list[Event]:
        """Let drivers come for what was quoted, to where it was most; or go, if they are free."""
        quotes, self._since = self._since, []
        mean = sum(q.multiplier for q in quotes) / len(quotes) if quotes else 1.0
        wanted = min(round(self.usual * mean**self.drivers_e), len(self.drivers))
        on = len(self.drivers) - len(self._off)
        told: list[Event] = []
        while on < wanted and quotes:
            name = self._off.pop(0)
            shares = np.array([q.multiplier - 0.99 for q in quotes])
            quote = quotes[int(self._rng.choice(len(quotes), p=shares / shares.sum()))]
            lat, lon = h3.cell_to_latlng(quote.cell)
            driver = self.drivers[name]
            driver.leg, driver.free_since_ms = Leg(lat, lon, lat, lon, ms, ms), ms
            told.append(_status(name, ms, "online", lat, lon))
            on += 1
        free = sorted(name for name in self._free if not self.drivers[name].request_id)
        while on > wanted and free:
            name = free.pop()
            self._off.append(name)
            told.append(_status(name, ms, "offline", *self.drivers[name].leg.at(ms)))
            on -= 1
        return told

    def _drift(self, ms: int) -> None:
        """Let drivers who stand free drive to the dearest cell beside theirs; few if it is little dearer."""
        if self.prices is None:
            return
        for name in sorted(self._free):
            driver = self.drivers[name]
            if driver.request_id or driver.leg.ends_ms > ms or driver.free_since_ms + _LOOK_MS > ms:
                continue
            own = h3.latlng_to_cell(*driver.leg.at(ms), self.prices.resolution)
            best = max(sorted(h3.grid_disk(own, 1)), key=lambda cell: self._levels.get(cell, 1.0))
            dearer = self._levels.get(best, 1.0) / self._levels.get(own, 1.0)
            if self._rng.random() < 1.0 - dearer**-self.drivers_e:
                (lat, lon), (to_lat, to_lon) = driver.leg.at(ms), h3.cell_to_latlng(best)
                drive = distance_m(lat, lon, to_lat, to_lon) * CIRCUITY / SPEED_M_PER_MS
                driver.leg = Leg(lat, lon, to_lat, to_lon, ms, ms + drive)


def _status(name: str, ms: int, status: Any, lat: float, lon: float) -> DriverStatus:
    return DriverStatus(
        event_time_ms=ms,
        event_id=f"{name}-{status}-{ms}",
        driver_id=name,
        vehicle_class="standard",
        lat=lat,
        lon=lon,
        status=status,
    )
