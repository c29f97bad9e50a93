"""The fleet on line: positions at an interval, lost ones, wandering of idle drivers, shifts that end."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final

from millrace_apps.generators.engine.randomness import NORMAL
from millrace_apps.generators.engine.simulated import Simulated
from millrace_apps.generators.ridesharing.city import (
    CENTRE,
    DEGREES_EAST,
    DEGREES_NORTH,
    PEN_M,
    City,
    metres,
)
from millrace_apps.generators.ridesharing.draws import chance
from millrace_apps.generators.ridesharing.drivers import NEVER, REPORTED, Driver, vehicle_class
from millrace_apps.generators.ridesharing.emitter import Emitter, Truths
from millrace_apps.generators.ridesharing.messages import Hint
from millrace_apps.generators.ridesharing.profile import RidesProfile
from millrace_apps.generators.ridesharing.riders import point_in
from millrace_apps.ridesharing.contracts.events import Position

#: Standard deviation of a position, metres.
GPS_ERROR_M: Final = 5.0
#: Idle drivers stand 2 to 8 minutes, then drive towards where requests come from, at most so far, metres.
_STAND_MS: Final = (120_000, 480_000)
_WANDER_M: Final = 1_500.0
#: A driver waits so long in the pen of the airport, ms.
_IN_PEN_MS: Final = 2_400_000
#: Who has followed a hint waits there for so long, ms.
_AFTER_HINT_MS: Final = 600_000


class Fleet:
    """All drivers, and the beat of those on line.

    Every driver sends at the same interval, so the order of sending is a queue and needs no sorting.

    Args:
        profile: Size, interval and shares.
        city: Where they drive.
        emitter: Takes their positions.
    """

    def __init__(self, profile: RidesProfile, city: City, emitter: Emitter) -> None:
        self._profile = profile
        self._seed = profile.seed
        self._city = city
        self._emitter = emitter
        self.drivers = [
            Driver(number, vehicle_class(profile.seed, number)) for number in range(profile.fleet)
        ]
        self.by_id = {driver.driver_id: driver for driver in self.drivers}
        self._beats: deque[tuple[int, Driver, int]] = deque()

    def come_online(self, driver: Driver, shift: tuple[int, int], at_ms: int) -> None:
        """Begin a shift: the driver is at home, idle, and sends positions from now on."""
        driver.session += 1
        driver.shift = shift
        driver.ends = driver.gone = False
        driver.origin = driver.target = self._home(driver)
        driver.left_ms = driver.there_ms = driver.rest_ms = at_ms
        if at_ms < self._profile.start_ms + self._profile.location_interval_ms and self._wants_pen(driver):
            # On line when the stream begins: who waits in the pen has come there before.
            driver.origin = driver.target = self._in_pen(driver)
            driver.rest_ms = at_ms + int(_IN_PEN_MS * self._chance("waited", driver))
        driver.vanishes = self._chance("vanishes", driver) < self._profile.vanishing
        driver.silent_from_ms = driver.silent_until_ms = NEVER
        driver.be("idle")
        drawn = self._chance("lost", driver)
        if drawn < (share := self._profile.lost_heartbeats):
            self.silence(driver, at_ms + int((shift[1] - at_ms) * drawn / share))
        self._look_ahead(driver)
        self._emitter.status(driver, "online", at_ms)
        self._beats.append((at_ms + self._profile.location_interval_ms, driver, driver.session))

    def go_offline(self, driver: Driver, at_ms: int, truths: Truths = ()) -> None:
        """End a shift, or only the positions of a driver who is on a trip."""
        if not driver.gone:
            if driver.silent_from_ms <= at_ms:
                truths = (*truths, *self._lost(driver, at_ms))
            self._emitter.status(driver, "offline", at_ms, truths)
        driver.session += 1
        if driver.duty == "on_trip":
            driver.gone = driver.ends = True
        else:
            driver.be("off")

    def silence(self, driver: Driver, from_ms: int) -> None:
        """Lose the driver's positions for 30 to 300 s, unless a silence is planned already."""
        if driver.silent_from_ms == NEVER:
            driver.silent_from_ms = from_ms
            driver.silent_until_ms = (
                from_ms + 30_000 + int(270_000 * self._chance("silence", driver, from_ms))
            )
            self._look_ahead(driver)

    def beat_until(self, until_ms: int) -> None:
        """Send all positions that are due before a time."""
        beats, interval = self._beats, self._profile.location_interval_ms
        prefix, append, noise, names = f"{self._emitter.run}-l", self._emitter.events.append, NORMAL, REPORTED
        north, east = DEGREES_NORTH, DEGREES_EAST
        while beats and beats[0][0] < until_ms:
            at, driver, session = beats.popleft()
            if session != driver.session:
                continue
            beats.append((at + interval, driver, session))
            driver.pings = pings = driver.pings + 1
            if at < driver.there_ms:
                x, y = driver.position(at)
            else:
                x, y = driver.target
                if driver.rest_ms <= at and driver.duty == "idle":
                    self._wander(driver, at)
            truths: Truths = ()
            if at >= driver.odd_ms:
                odd = self._odd(driver, at)
                if odd is None:
                    continue
                truths = odd
            # One table of normal values read in two strides is noise enough, and costs no draw.
            step = driver.number * 613 + pings
            x += GPS_ERROR_M * noise[step * 1597 & 4095]
            y += GPS_ERROR_M * noise[step * 2741 & 4095]
            event = Position(
                event_time_ms=at,
                event_id=f"{prefix}{driver.number:06d}-{pings:08d}",
                driver_id=driver.driver_id,
                vehicle_class=driver.vehicle_class,
                lat=round(CENTRE[0] + y * north, 6),
                lon=round(CENTRE[1] + x * east, 6),
                state=names[driver.duty],
            )
            append(Simulated("locations", driver.driver_id, event, at, truths))
            if truths and truths[-1].kind == "vanished":
                driver.session += 1
                driver.be("off")

    def _odd(self, driver: Driver, at_ms: int) -> Truths | None:
        """Return what is true about this position, or None if it is lost."""
        truths: Truths = ()
        if driver.silent_from_ms <= at_ms:
            if at_ms < driver.silent_until_ms:
                return None
            truths = self._lost(driver, at_ms)
        if self._is_last(driver, at_ms):
            mark = f"{driver.session:05d}"
            truths = (*truths, self._emitter.truth("vanished", driver.driver_id, mark, "stale"))
        self._look_ahead(driver)
        return truths

    def _is_last(self, driver: Driver, at_ms: int) -> bool:
        last = at_ms + self._profile.location_interval_ms >= driver.shift[1]
        return driver.vanishes and last and driver.duty == "idle"

    def _lost(self, driver: Driver, at_ms: int) -> Truths:
        from_ms, driver.silent_from_ms = driver.silent_from_ms, NEVER
        mark = f"{driver.session:05d}-{from_ms}"
        expected = "stale" if driver.ride == "" else "trip_goes_on"
        return (
            self._emitter.truth(
                "lost_heartbeats", driver.driver_id, mark, expected, from_ms=from_ms, until_ms=at_ms
            ),
        )

    def _look_ahead(self, driver: Driver) -> None:
        last = driver.shift[1] - self._profile.location_interval_ms if driver.vanishes else NEVER
        driver.odd_ms = min(driver.silent_from_ms, last)

    def _wander(self, driver: Driver, at_ms: int) -> None:
        shortest, longest = _STAND_MS
        stand = shortest + int((longest - shortest) * self._chance("stand", driver, driver.pings))
        driver.rest_ms = at_ms + stand
        x, y = driver.target
        if self._goes_to_pen(driver, at_ms):
            return
        to_x, to_y = self._spot(driver, at_ms)
        away = max(abs(to_x - x), abs(to_y - y), 1.0)
        part = min(1.0, _WANDER_M / away)
        target = (x + part * (to_x - x), y + part * (to_y - y))
        driver.drive(target, at_ms, self._city.travel_ms((x, y), target, at_ms))
        driver.rest_ms += driver.there_ms - at_ms

    def _goes_to_pen(self, driver: Driver, at_ms: int) -> bool:
        """Send an idle driver to the pen of the airport, or not; return whether so."""
        if not self._wants_pen(driver):
            return False
        self.go_to_pen(driver, at_ms)
        return True

    def go_to_pen(self, driver: Driver, at_ms: int) -> None:
        """Send an idle driver to the pen of the airport, to wait there for a long time."""
        target = self._in_pen(driver)
        driver.drive(target, at_ms, self._city.travel_ms(driver.position(at_ms), target, at_ms))
        driver.rest_ms = driver.there_ms + _IN_PEN_MS

    def hear_hint(self, driver: Driver, hint: Hint, at_ms: int) -> bool:
        """Let a driver go where a car would be wanted, if that is their way; return whether they are free."""
        if driver.duty != "idle":
            return False
        if chance(self._seed, "follows", driver.number) < self._profile.follow_hints:
            target = metres(hint.lat, hint.lon)
            driver.drive(target, at_ms, self._city.travel_ms(driver.position(at_ms), target, at_ms))
            driver.rest_ms = driver.there_ms + _AFTER_HINT_MS
        return True

    def _wants_pen(self, driver: Driver) -> bool:
        share = min(1.0, 2 * self._profile.airport)
        return share > 0 and self._chance("pen", driver, driver.pings) < share

    def _in_pen(self, driver: Driver) -> tuple[float, float]:
        x, y = self._city.airport.pen
        drawn = [self._chance(f"pen_{axis}", driver, driver.pings) - 0.5 for axis in ("x", "y")]
        return x + 2 * PEN_M * drawn[0], y + 2 * PEN_M * drawn[1]

    def _home(self, driver: Driver) -> tuple[float, float]:
        zones = self._city.zones
        zone = zones[int(chance(self._seed, "home", driver.number) * len(zones))]
        drawn = [chance(self._seed, "home", driver.number, axis) for axis in ("spot", "x", "y")]
        return point_in(zone, *drawn)

    def _spot(self, driver: Driver, at_ms: int) -> tuple[float, float]:
        running = self._city.origins(at_ms)
        drawn = self._chance("spot", driver, driver.pings) * running[-1]
        zone = self._city.zones[bisect_right(running, drawn, 0, len(running) - 1)]
        return zone.spots[int(self._chance("corner", driver, driver.pings) * len(zone.spots))]

    def _chance(self, purpose: str, driver: Driver, mark: int = 0) -> float:
        return chance(self._seed, purpose, driver.number, driver.session, mark)
