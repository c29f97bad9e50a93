"""The other side of a replay: riders who really asked, and drivers who accept at once and drive straight."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

import h3
import numpy as np

from millrace.places import distance_m
from millrace_apps.ridesharing.contracts.events import (
    Answer,
    DriverState,
    Event,
    Position,
    Progress,
    RideRequest,
    Stage,
)
from millrace_apps.ridesharing.contracts.records import Assignment, Offer, Release
from millrace_apps.ridesharing.demand.records import DriverHint
from millrace_apps.ridesharing.eta.features import unknown_s
from millrace_apps.ridesharing.evaluation.willing import NO_AFTER_MS, Willing
from millrace_apps.ridesharing.processes.geo import CIRCUITY, SPEED_M_PER_MS
from millrace_apps.ridesharing.processes.regions import ZONE_RESOLUTION

#: A driver sends a position so often, ms. The gate may keep one back that comes within `refresh_ms` (30 s) of
#: the last, and nobody is to be silent for `ttl_ms` (120 s) by that.
HEARTBEAT_MS: Final = 80_000
_AT_PICK_UP: Final[tuple[Stage, ...]] = ("arrived", "started")


@dataclass(frozen=True, slots=True)
class Request:
    """A recorded request.

    Attributes:
        request_id: Its identity.
        at_ms: When it was made, UTC ms.
        lat: Pick-up, degrees.
        lon: Pick-up, degrees.
        to_lat: Drop-off, degrees.
        to_lon: Drop-off, degrees.
        duration_ms: How long the trip took, ms.
    """

    request_id: str
    at_ms: int
    lat: float
    lon: float
    to_lat: float
    to_lon: float
    duration_ms: int


@dataclass(slots=True)
class Leg:
    """A drive along a straight line."""

    lat: float
    lon: float
    to_lat: float
    to_lon: float
    begins_ms: float
    ends_ms: float

    def at(self, ms: float) -> tuple[float, float]:
        """Return where the car is."""
        span = self.ends_ms - self.begins_ms
        share = 1.0 if span <= 0 else min(1.0, max(0.0, (ms - self.begins_ms) / span))
        return self.lat + share * (self.to_lat - self.lat), self.lon + share * (self.to_lon - self.lon)


@dataclass(slots=True)
class Driver:
    """A driver of the replay."""

    driver_id: str
    leg: Leg
    request_id: str = ""
    state: DriverState = "idle"
    free_since_ms: int = 0
    idle_ms: int = 0


@dataclass(slots=True)
class Served:
    """What became of a request that was served.

    Attributes:
        driver_id: By whom.
        attempt: At which attempt.
        offered_ms: When that was offered, UTC ms.
        accepted_ms: When the driver set off, UTC ms.
        pickup_ms: When the rider got in, UTC ms.
        pickup_km: The way to the pick-up, km on the road.
        dropoff_ms: End of the trip, UTC ms.
    """

    driver_id: str
    attempt: int
    offered_ms: int
    accepted_ms: int
    pickup_ms: int
    pickup_km: float
    dropoff_ms: int


class Traffic:
    """How much slower, or faster, streets are than usual: as recorded trips were there, at that hour.

    A place and an hour of the day have a factor each: the mean logarithm of what trips that began or ended
    there, or began then, took over what trips of their length usually take. A way has those of its two ends
    and of its hour, and one of its own, drawn by its request.

    Args:
        requests: Recorded trips.
        spread: Standard deviation of the logarithm of a way's own factor.
    """

    def __init__(self, requests: Sequence[Request], spread: float = 0.2) -> None:
        self._spread = spread
        rows = [
            (r, math.log(r.duration_ms / 1_000 / unknown_s(_km(r)))) for r in requests if r.duration_ms > 0
        ]
        self._all = sum(value for _, value in rows) / max(1, len(rows))
        places: dict[str, list[float]] = {}
        hours: dict[int, list[float]] = {}
        for r, value in rows:
            hours.setdefault(r.at_ms // 3_600_000 % 24, []).append(value - self._all)
            for lat, lon in ((r.lat, r.lon), (r.to_lat, r.to_lon)):
                places.setdefault(_street(lat, lon), []).append(value - self._all)
        self._places = {name: sum(values) / (len(values) + 10.0) for name, values in places.items()}
        self._hours = {hour: sum(values) / (len(values) + 10.0) for hour, values in hours.items()}

    def factor(self, lat: float, lon: float, request: Request, at_ms: int) -> float:
        """Return by how much longer a way to a pick-up takes.

        Args:
            lat: Where it begins, degrees.
            lon: Where it begins, degrees.
            request: Where it goes.
            at_ms: When, UTC ms.
        """
        begins, ends = (
            self._places.get(_street(*at), 0.0) for at in ((lat, lon), (request.lat, request.lon))
        )
        seed = [zlib.crc32(request.request_id.encode()), at_ms & 0xFFFFFFFF]
        own = float(np.random.default_rng(seed).normal(0.0, self._spread)) if self._spread else 0.0
        return math.exp(begins + ends + self._hours.get(at_ms // 3_600_000 % 24, 0.0) + own)


def _km(request: Request) -> float:
    return distance_m(request.lat, request.lon, request.to_lat, request.to_lon) / 1_000


def _street(lat: float, lon: float) -> str:
    return str(h3.latlng_to_cell(lat, lon, 8))


@dataclass
class Fleet:
    """Drivers who accept at once, drive at 25 km/h over 1.4 times the straight line, and wait where they end.

    Args:
        requests: What is asked for, in order.
        size: Number of drivers.
        seed: Where they start: at pick-ups, drawn at random.
        start_ms: When they come on line, UTC ms.
        until_ms: Until when idle time counts, UTC ms.
        traffic: How much longer a way to a pick-up takes than at that speed; ``None``: as long.
        willing: Which rides they take; ``None``: all.
        follow: Share of them who go where they are told that a free car would be wanted.
    """

    requests: list[Request]
    size: int
    seed: int
    start_ms: int
    until_ms: int
    traffic: Traffic | None = None
    willing: Willing | None = None
    follow: float = 0.0
    drivers: dict[str, Driver] = field(default_factory=dict)
    served: dict[str, Served] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_id = {r.request_id: r for r in self.requests}
        self._offers: dict[str, Offer] = {}
        self._due: list[tuple[int, int, Event]] = []
        self._count = self.followed = 0
        followers = np.random.default_rng([self.seed, 3]).random(self.size) < self.follow
        self._followers = {f"driver-{number:05d}" for number in np.flatnonzero(followers).tolist()}
        draws = np.random.default_rng(self.seed).integers(0, len(self.requests), self.size)
        for number, place in enumerate(draws.tolist()):
            at = self.requests[place]
            name = f"driver-{number:05d}"
            leg = Leg(at.lat, at.lon, at.lat, at.lon, self.start_ms, self.start_ms)
            self.drivers[name] = Driver(name, leg, free_since_ms=self.start_ms)
            self._beat(name, self.start_ms)
        for request in self.requests:
            self._send(request.at_ms, _asked(request))

    @property
    def pending(self) -> bool:
        """Whether anything but positions is still to come."""
        return not all(isinstance(event, Position) for _, _, event in self._due)

    def until(self, ms: int) -> list[Event]:
        """Return what happens up to a time, and let it happen."""
        happened = []
        while self._due and self._due[0][0] <= ms:
            at, _, event = heappop(self._due)
            if isinstance(event, Position):
                driver = self.drivers[event.driver_id]
                event.lat, event.lon = driver.leg.at(at)
                event.state = driver.state
                phase = HEARTBEAT_MS * int(driver.driver_id[7:]) // self.size if at == self.start_ms else 0
                self._beat(driver.driver_id, at + HEARTBEAT_MS - phase)
                if driver.state == "on_trip":
                    continue  # nobody asks where a car is until the rider has got out
            elif isinstance(event, Progress) and not self._progress(event, at):
                continue
            happened.append(event)
        return happened

    def tell(self, message: object, now: int) -> None:
        """Take what the dispatcher says at a time; answers come a millisecond later."""
        if isinstance(message, Offer):
            self._offered(message, now)
        elif isinstance(message, Assignment):
            self._assigned(message, now)
        elif isinstance(message, DriverHint):
            self._hinted(message, now)
        elif isinstance(message, Release):
            driver = self.drivers.get(message.driver_id)
            if driver is not None and driver.request_id == message.request_id and driver.state != "on_trip":
                lat, lon = driver.leg.at(now)
                driver.request_id, driver.state = "", "idle"
                driver.leg = Leg(lat, lon, lat, lon, now, now)
                driver.free_since_ms = now

    def _hinted(self, hint: DriverHint, now: int) -> None:
        driver = self.drivers[hint.driver_id]
        if driver.request_id or hint.driver_id not in self._followers:
            return
        lat, lon = driver.leg.at(now)
        takes = distance_m(lat, lon, hint.lat, hint.lon) * CIRCUITY / SPEED_M_PER_MS
        driver.leg = Leg(lat, lon, hint.lat, hint.lon, now, now + takes)
        self.followed += 1

    def idle_seconds(self) -> list[float]:
        """Return how long each driver was without a ride, seconds."""
        found = []
        for driver in self.drivers.values():
            rest = 0 if driver.request_id else max(0, self.until_ms - driver.free_since_ms)
            found.append((driver.idle_ms + rest) / 1_000)
        return found

    def _offered(self, offer: Offer, now: int) -> None:
        driver = self.drivers[offer.driver_id]
        self._offers[offer.request_id] = offer
        free = not driver.request_id
        said = "accept" if free else "reject"
        if free and self.willing is not None:
            said = self.willing.says(driver.driver_id, offer.offer_id, offer.distance_m)
            if said == "ignore":
                return
        if said == "accept":
            driver.request_id = offer.request_id
            driver.idle_ms += max(0, min(now, self.until_ms) - driver.free_since_ms)
        at = now + NO_AFTER_MS if free and said == "reject" else now + 1
        answer = Answer(
            event_time_ms=at,
            event_id=f"{offer.offer_id}-{offer.driver_id}-{now}",
            request_id=offer.request_id,
            driver_id=offer.driver_id,
            zone=_zone(self._by_id[offer.request_id]),
            offer_id=offer.offer_id,
            attempt=offer.attempt,
            answer="accept" if said == "accept" else "reject",
            reason="" if free else "busy",
        )
        self._send(at, answer)

    def _assigned(self, message: Assignment, now: int) -> None:
        driver, request = self.drivers[message.driver_id], self._by_id[message.request_id]
        if driver.request_id != message.request_id or driver.state != "idle":
            return
        lat, lon = driver.leg.at(now)
        metres = distance_m(lat, lon, request.lat, request.lon)
        takes = metres * CIRCUITY / SPEED_M_PER_MS
        if self.traffic is not None:
            takes *= self.traffic.factor(lat, lon, request, now)
        arrives = now + max(1, math.ceil(takes))
        driver.state, driver.leg = "approaching", Leg(lat, lon, request.lat, request.lon, now, arrives)
        offer = self._offers[message.request_id]
        self.served[request.request_id] = Served(
            driver.driver_id,
            message.attempt,
            offer.event_time_ms,
            message.event_time_ms,
            arrives,
            metres * CIRCUITY / 1_000,
            arrives + request.duration_ms,
        )
        for stage in _AT_PICK_UP:
            self._send(arrives, self._step(request, driver, stage, arrives))

    def _progress(self, event: Progress, at: int) -> bool:
        """Let a step of a trip happen, unless the driver has been released meanwhile."""
        driver, request = self.drivers[event.driver_id], self._by_id[event.request_id]
        served = self.served.get(event.request_id)
        if driver.request_id != event.request_id or served is None or served.driver_id != driver.driver_id:
            return False
        if event.stage == "started":
            driver.state = "on_trip"
            ends = at + request.duration_ms
            driver.leg = Leg(request.lat, request.lon, request.to_lat, request.to_lon, at, ends)
            self._send(ends, self._step(request, driver, "finished", ends))
        elif event.stage == "finished":
            driver.request_id, driver.state, driver.free_since_ms = "", "idle", at
            event.lat, event.lon = request.to_lat, request.to_lon
        return True

    def _step(self, request: Request, driver: Driver, stage: Stage, at: int) -> Progress:
        lat, lon = (request.lat, request.lon) if stage != "finished" else (request.to_lat, request.to_lon)
        return Progress(
            event_time_ms=at,
            event_id=f"{request.request_id}-{driver.driver_id}-{stage}-{at}",
            request_id=request.request_id,
            driver_id=driver.driver_id,
            zone=_zone(request),
            lat=lat,
            lon=lon,
            stage=stage,
        )

    def _beat(self, driver_id: str, at: int) -> None:
        # Where the driver is, and what doing, is known when it is due.
        beat = Position(
            event_time_ms=at,
            event_id=f"{driver_id}-{at}",
            driver_id=driver_id,
            vehicle_class="standard",
            lat=0.0,
            lon=0.0,
            state="idle",
        )
        self._send(at, beat)

    def _send(self, at: int, event: Event) -> None:
        self._count += 1
        heappush(self._due, (at, self._count, event))


def _asked(request: Request) -> RideRequest:
    return RideRequest(
        event_time_ms=request.at_ms,
        request_id=request.request_id,
        rider_id=f"rider-{request.request_id}",
        vehicle_class="standard",
        zone=_zone(request),
        pickup_lat=request.lat,
        pickup_lon=request.lon,
        dropoff_lat=request.to_lat,
        dropoff_lon=request.to_lon,
        pickup_at_ms=request.at_ms,
    )


def _zone(request: Request) -> str:
    return str(h3.latlng_to_cell(request.lat, request.lon, ZONE_RESOLUTION))
