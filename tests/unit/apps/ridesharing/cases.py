"""Short ways to say what drivers, riders and operators do, and to run the app's processes over it."""

from __future__ import annotations

from typing import Any

import h3

from apps.ridesharing.config import DispatchConfig
from apps.ridesharing.dispatcher import Dispatcher
from apps.ridesharing.events import Signal
from apps.ridesharing.matching import Rules
from apps.ridesharing.replay import Chain, memory_chain
from millrace.host.runner import Emission
from millrace.testing import TestDriver

START = 1_767_369_600_000
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
LAT, LON = 37.77, -122.42
#: So many degrees north are a kilometre.
KM = 1 / 111.195
REGION = "all"
ZONE = str(h3.latlng_to_cell(LAT, LON, 7))

CONFIG = DispatchConfig(window_ms=10_000, rules=Rules(radius_m=3_000, car_value_ms=0))


def position(driver: str, s: float, km: float = 0.0, **more: Any) -> Signal:
    """A driver's position so many km north of the middle."""
    at = START + int(s * SECOND)
    fields = {"vehicle_class": "standard", "lat": LAT + km * KM, "lon": LON, "state": "idle"} | more
    return Signal(at, "locations", driver, f"{driver}-{at}", driver_id=driver, **fields)


def status(driver: str, s: float, what: str, km: float = 0.0, **more: Any) -> Signal:
    at = START + int(s * SECOND)
    fields = {"vehicle_class": "standard", "lat": LAT + km * KM, "lon": LON} | more
    return Signal(at, "status", driver, f"{driver}-{what}-{at}", driver_id=driver, status=what, **fields)


def request(name: str, s: float, km: float = 0.0, *, ahead: float = 0.0, **more: Any) -> Signal:
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
    return Signal(at, "requests", name, request_id=name, rider_id=f"rider-{name}", **fields)


def answer(name: str, driver: str, s: float, what: str = "accept", attempt: int = 1, **more: Any) -> Signal:
    at = START + int(s * SECOND)
    offer = f"{name}-o{attempt}"
    fields = {"zone": ZONE, "offer_id": offer, "attempt": attempt, "answer": what} | more
    return Signal(at, "answers", name, f"{offer}-{driver}-{at}", name, driver, **fields)


def progress(name: str, driver: str, s: float, stage: str, km: float = 0.0, **more: Any) -> Signal:
    at = START + int(s * SECOND)
    fields = {"zone": ZONE, "stage": stage, "lat": LAT + km * KM, "lon": LON} | more
    return Signal(at, "progress", name, f"{name}-{driver}-{stage}-{at}", name, driver, **fields)


def cancel(name: str, s: float, by: str = "rider", driver: str = "", reason: str = "too_long") -> Signal:
    at = START + int(s * SECOND)
    identity = f"{name}-{by}-{at}"
    return Signal(at, "cancellations", name, identity, name, driver, zone=ZONE, by=by, reason=reason)  # type: ignore[arg-type]


def command(action: str, s: float, **more: Any) -> Signal:
    at = START + int(s * SECOND)
    fields = {"operator": "ann", "reason": "test", "command_id": f"c-{action}-{at}"} | more
    entity = fields.get("request_id") or fields.get("driver_id") or fields.get("zone") or "x"
    return Signal(at, "commands", str(entity), action=action, **fields)  # type: ignore[arg-type]


def ms(s: float) -> int:
    """Return a time of the scenario, ms."""
    return START + int(s * SECOND)


def dispatcher(config: DispatchConfig = CONFIG, bound_ms: int = 0) -> TestDriver:
    return TestDriver(Dispatcher(config), out_of_orderness_ms=bound_ms)


def bring(driver: TestDriver, *signals: Signal, until: float | None = None) -> None:
    """Bring signals of one region, each a batch, then let time pass."""
    for signal in sorted(signals, key=lambda s: s.event_time_ms):
        driver.advance_watermark(signal.event_time_ms - 1)
        driver.send(REGION, signal, at=signal.event_time_ms)
    if until is not None:
        driver.advance_watermark(ms(until))


def states(driver: TestDriver, name: str) -> list[str]:
    """Return the states that a request went through."""
    return [trip.state for trip in driver.values("trips") if trip.request_id == name]


class Whole:
    """Gate, dispatcher and auditor, with handovers fed back."""

    def __init__(self, config: DispatchConfig = CONFIG) -> None:
        self._config = config
        self.chain = Chain(lambda: memory_chain(Dispatcher(config)))
        self.emissions: list[Emission] = []

    def run(self, signals: list[Signal], until: float) -> list[Emission]:
        events = [(s.entity, s.event_time_ms, s, s.stream) for s in signals]
        found = self.chain.run(events, ms(until))
        self.emissions += found
        return found

    def of(self, output: str) -> list[Any]:
        import msgspec

        return [msgspec.json.decode(e.payload) for e in self.emissions if e.output == output]
