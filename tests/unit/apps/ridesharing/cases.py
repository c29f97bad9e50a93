"""Short ways to say what drivers, riders and operators do, and to run the app's processes over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import h3
import msgspec

from millrace.host.runner import Emission
from millrace.testing import TestDriver
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import (
    GATE_INPUTS,
    Answer,
    Cancellation,
    Command,
    DriverStatus,
    Event,
    Position,
    Progress,
    RideRequest,
    key_of,
    stream_of,
)
from millrace_apps.ridesharing.evaluation.replay import Chain, memory_chain
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.processes.matching import Rules
from millrace_apps.ridesharing.surge.config import SurgeConfig

START = 1_767_369_600_000
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
LAT, LON = 37.77, -122.42
#: So many degrees north are a kilometre.
KM = 1 / 111.195
REGION = "all"
ZONE = str(h3.latlng_to_cell(LAT, LON, 7))

CONFIG = DispatchConfig(window_ms=10_000, rules=Rules(radius_m=3_000, car_value_ms=0))


def position(driver: str, s: float, km: float = 0.0, **more: Any) -> Position:
    """A driver's position so many km north of the middle."""
    at = START + int(s * SECOND)
    fields = {"vehicle_class": "standard", "lat": LAT + km * KM, "lon": LON, "state": "idle"} | more
    return Position(event_time_ms=at, event_id=f"{driver}-{at}", driver_id=driver, **fields)


def status(driver: str, s: float, what: Any, km: float = 0.0, **more: Any) -> DriverStatus:
    at = START + int(s * SECOND)
    fields = {"vehicle_class": "standard", "lat": LAT + km * KM, "lon": LON} | more
    identity = f"{driver}-{what}-{at}"
    return DriverStatus(event_time_ms=at, event_id=identity, driver_id=driver, status=what, **fields)


def request(name: str, s: float, km: float = 0.0, *, ahead: float = 0.0, **more: Any) -> RideRequest:
    at = START + int(s * SECOND)
    lat = LAT + km * KM
    fields = {
        "vehicle_class": "standard",
        "zone": str(h3.latlng_to_cell(lat, LON, 7)),
        "pickup_lat": lat,
        "pickup_lon": LON,
        "dropoff_lat": lat + 2 * KM,
        "dropoff_lon": LON,
        "pickup_at_ms": at + int(ahead * SECOND),
    } | more
    return RideRequest(event_time_ms=at, request_id=name, rider_id=f"rider-{name}", **fields)


def answer(name: str, driver: str, s: float, what: str = "accept", attempt: int = 1, **more: Any) -> Answer:
    at = START + int(s * SECOND)
    offer = f"{name}-o{attempt}"
    fields = {"zone": ZONE, "offer_id": offer, "attempt": attempt, "answer": what} | more
    identity = f"{offer}-{driver}-{at}"
    return Answer(event_time_ms=at, event_id=identity, request_id=name, driver_id=driver, **fields)


def progress(name: str, driver: str, s: float, stage: str, km: float = 0.0, **more: Any) -> Progress:
    at = START + int(s * SECOND)
    fields = {"zone": ZONE, "stage": stage, "lat": LAT + km * KM, "lon": LON} | more
    identity = f"{name}-{driver}-{stage}-{at}"
    return Progress(event_time_ms=at, event_id=identity, request_id=name, driver_id=driver, **fields)


def cancel(
    name: str, s: float, by: Any = "rider", driver: str = "", reason: str = "too_long"
) -> Cancellation:
    at = START + int(s * SECOND)
    about = {"event_id": f"{name}-{by}-{at}", "request_id": name, "driver_id": driver, "zone": ZONE}
    return Cancellation(event_time_ms=at, by=by, reason=reason, **about)


def command(action: Any, s: float, **more: Any) -> Command:
    at = START + int(s * SECOND)
    fields = {"operator": "ann", "reason": "test", "command_id": f"c-{action}-{at}"} | more
    return Command(event_time_ms=at, action=action, **fields)


def as_read(stream: str, said: Any) -> Event:
    """What the app makes of something that is said by a stream."""
    event: Event = msgspec.json.decode(msgspec.json.encode(said), type=GATE_INPUTS[stream])
    return event


def ms(s: float) -> int:
    """Return a time of the scenario, ms."""
    return START + int(s * SECOND)


def dispatcher(config: DispatchConfig = CONFIG, bound_ms: int = 0) -> TestDriver:
    return TestDriver(Dispatcher(config), out_of_orderness_ms=bound_ms)


def bring(driver: TestDriver, *events: Event, until: float | None = None) -> None:
    """Bring events of one region, each a batch, then let time pass."""
    for event in sorted(events, key=lambda e: e.event_time_ms):
        driver.advance_watermark(event.event_time_ms - 1)
        driver.send(REGION, event, at=event.event_time_ms)
    if until is not None:
        driver.advance_watermark(ms(until))


def states(driver: TestDriver, name: str) -> list[str]:
    """Return the states that a request went through."""
    return [trip.state for trip in driver.values("trips") if trip.request_id == name]


class Whole:
    """Gate, dispatcher and auditor, with handovers fed back."""

    def __init__(self, config: DispatchConfig = CONFIG, prices: SurgeConfig | None = None) -> None:
        self._config = config
        self.chain = Chain(lambda: memory_chain(Dispatcher(config), prices=prices))
        self.emissions: list[Emission] = []

    def run(self, events: Sequence[Event], until: float) -> list[Emission]:
        found = self.chain.run([(key_of(e), e.event_time_ms, e, stream_of(e)) for e in events], ms(until))
        self.emissions += found
        return found

    def of(self, output: str) -> list[Any]:
        return [msgspec.json.decode(e.payload) for e in self.emissions if e.output == output]
