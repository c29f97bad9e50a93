"""The world of riders and drivers: state machines that live in event time and answer a dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from millrace_apps.generators.engine.randomness import digest
from millrace_apps.generators.engine.simulated import Simulated
from millrace_apps.generators.ridesharing.city import City, distance_m, metres
from millrace_apps.generators.ridesharing.draws import chance
from millrace_apps.generators.ridesharing.drivers import (
    DAY_MS,
    Driver,
    answer_delay_ms,
    decide,
    shift_of,
)
from millrace_apps.generators.ridesharing.emitter import Emitter, Truths
from millrace_apps.generators.ridesharing.fleet import Fleet
from millrace_apps.generators.ridesharing.messages import (
    FINAL_RELEASES,
    Assignment,
    Hint,
    Message,
    Offer,
    Quote,
)
from millrace_apps.generators.ridesharing.profile import NAME, RidesProfile
from millrace_apps.generators.ridesharing.riders import Demand, Ride
from millrace_apps.generators.ridesharing.rides import Rides
from millrace_apps.generators.ridesharing.timers import Due, Timers
from millrace_apps.ridesharing.contracts.records import Release

#: An accept that nobody confirms holds a driver this long, ms.
UNCONFIRMED_MS: Final = 60_000
#: A driver waits so long at the pick-up, and so long for a release when not going there, ms.
GIVE_UP_MS: Final = 900_000
#: A rider's cancellation races the driver's accept within this time, ms.
RACE_MS: Final = 200


class World:
    """Riders and drivers; it moves on when told to, and takes a dispatcher's messages in between.

    What happens depends on the profile and on the messages with their event times alone: decisions are
    drawn for the things that they are about, in no sequence. A message of the past takes effect at once.

    Args:
        profile: What the world is made from.

    Attributes:
        now_ms: Everything before this has happened, ms.
        fates: How many requests ended how.
        conflicts: Assignments that no correct dispatcher makes: of a driver or a request that is taken.
        ignored: Messages about nobody, or about what is over.

    >>> world = World(RidesProfile(seed=7, drivers=40, rings=2))
    >>> events = world.advance(world.now_ms + 60_000)
    >>> events[0].stream, events == World(RidesProfile(seed=7, drivers=40, rings=2)).advance(world.now_ms)
    ('status', True)
    """

    def __init__(self, profile: RidesProfile) -> None:
        self._profile = profile
        self._seed = profile.seed
        self.now_ms = profile.start_ms
        self.conflicts = self.ignored = 0
        self.city = City(profile.city_rings)
        run = digest(NAME, profile.seed, profile.start_ms)[:10]
        self._emit = Emitter(run)
        self._fleet = Fleet(profile, self.city, self._emit)
        self._timers = Timers()
        self._set = self._timers.set
        demand = Demand(profile, self.city, f"{run}-r")
        self._rides = rides = Rides(profile, demand, f"{run}-r", self._emit, self._timers)
        self.fates = rides.fates
        self._inbox: list[tuple[int, int, str, str, int, Message]] = []
        self._received = 0
        self._handlers: dict[Due, Callable[[int, int, int], None]] = {
            Due.LOG_IN: self._log_in,
            Due.LOG_OUT: self._log_out,
            Due.ANSWER: self._answer,
            Due.UNCONFIRMED: self._unconfirmed,
            Due.ARRIVE: self._arrive,
            Due.START: self._start,
            Due.FINISH: self._finish,
            Due.OFFLINE: self._offline_in_trip,
            Due.BREAKDOWN: self._break_down,
            Due.GIVE_UP: self._give_up,
            Due.REQUEST: rides.ask,
            Due.PATIENCE: rides.lose_patience,
            Due.MIND: rides.change_mind,
            Due.RACE: rides.race,
            Due.UNQUOTED: rides.go_unquoted,
            Due.TAKE: rides.take,
        }
        for driver in self._fleet.drivers:
            self._plan_shift(driver, profile.start_ms // DAY_MS - 1)

    @property
    def open_rides(self) -> int:
        """Number of requests that have not ended."""
        return len(self._rides)

    @property
    def pending(self) -> int:
        """Number of timers, out-of-date ones included."""
        return len(self._timers)

    def receive(self, message: Message) -> None:
        """Take a dispatcher's message; it takes effect at its event time, or now if that has passed."""
        self._received += 1
        if isinstance(message, Quote):
            at, key = message.at_ms, (3, message.quote_id, "")
        elif isinstance(message, Hint):
            at, key = message.at_ms, (4, message.driver_id, "")
        else:
            rank = 0 if isinstance(message, Release) else 1 if isinstance(message, Assignment) else 2
            at, key = message.event_time_ms, (rank, message.request_id, message.driver_id)
        heappush(self._inbox, (max(at, self.now_ms), *key, self._received, message))

    def advance(self, to_ms: int) -> list[Simulated]:
        """Let everything before a time happen, and return it in event time.

        Args:
            to_ms: End of the step, exclusive, ms; before ``now_ms`` nothing happens.
        """
        inbox, timers, beat_until = self._inbox, self._timers, self._fleet.beat_until
        while True:
            timer_ms = timers.next_ms
            message_ms = inbox[0][0] if inbox else to_ms
            due = min(timer_ms, message_ms, to_ms)
            beat_until(due)
            if due >= to_ms:
                break
            if message_ms <= timer_ms:
                self._take(heappop(inbox)[-1], due)
            else:
                at, due_for, number, token = timers.pop()
                self._handlers[due_for](number, token, at)
        self.now_ms = max(self.now_ms, to_ms)
        return self._emit.take()

    # What a dispatcher says.

    def _take(self, message: Message, at: int) -> None:
        if isinstance(message, Quote):
            self.ignored += not self._rides.hear_quote(message, at)
            return
        driver = self._fleet.by_id.get(message.driver_id)
        if isinstance(message, Hint):
            self.ignored += driver is None or not self._fleet.hear_hint(driver, message, at)
        elif isinstance(message, Release):
            self._on_release(message, driver, at)
        elif driver is None or driver.duty == "off" or driver.gone:
            self.ignored += 1
        elif isinstance(message, Offer):
            self._on_offer(message, driver, at)
        else:
            self._on_assignment(message, driver, at)

    def _on_offer(self, offer: Offer, driver: Driver, at: int) -> None:
        ride = self._rides.get(offer.request_id)
        if (
            ride is None
            or driver.heard == offer.offer_id
            or driver.is_stale(offer.request_id, offer.event_time_ms)
        ):
            self.ignored += 1
            return
        self._be_told_where(ride, offer)
        if driver.duty != "idle":
            self._emit.answer(driver, offer, ride.zone, "busy", at)
            return
        driver.offer, driver.heard, driver.zone = offer, offer.offer_id, ride.zone
        drawn = self._draw("delay", driver, ride, offer.attempt)
        answer_ms = at + answer_delay_ms(drawn)
        km = distance_m(*driver.position(answer_ms), *ride.pickup) / 1000
        # Only a rider who would still be waiting can race.
        can_race = ride.stage == "open" and ride.leaves_ms > answer_ms + RACE_MS
        about = (driver.number, ride.number, offer.attempt)
        driver.intent = decide(self._profile, about, km, driver.fatigue(answer_ms), can_race=can_race)
        token = driver.be("offered")
        if driver.intent == "ignore":
            self._set(max(offer.expires_ms, at), Due.UNCONFIRMED, driver.number, token)
            return
        if driver.intent == "late":
            answer_ms = max(offer.expires_ms, at) + 200 + int(2_800 * drawn)
        elif driver.intent == "race":
            offset = int((2 * RACE_MS + 1) * self._draw("race_offset", driver, ride, offer.attempt)) - RACE_MS
            self._set(max(answer_ms + offset, at), Due.RACE, ride.number, driver.number)
        self._set(answer_ms, Due.ANSWER, driver.number, token)

    def _be_told_where(self, ride: Ride, offer: Offer) -> None:
        """Rider and driver meet where they are told to, which at a venue is not where the rider has asked."""
        if offer.pickup_lat is None or offer.pickup_lon is None or not ride.from_airport:
            return
        ride.pickup = metres(offer.pickup_lat, offer.pickup_lon)

    def _on_assignment(self, message: Assignment, driver: Driver, at: int) -> None:
        ride = self._rides.get(message.request_id)
        promised = driver.offer.request_id if driver.offer and driver.duty != "idle" else message.request_id
        stale = driver.is_stale(message.request_id, message.event_time_ms)
        if driver.ride == message.request_id or ride is None or stale:
            self.ignored += 1
            return
        if driver.ride or promised != message.request_id or ride.stage != "open":
            self.conflicts += 1
            return
        driver.ride = ride.request_id
        self._rides.be_assigned(ride, driver.number, at)
        stays = driver.intent == "no_approach" and driver.duty == "accepted"
        token = driver.be("approaching")
        if stays:
            driver.stop(at)
            self._set(at + GIVE_UP_MS, Due.GIVE_UP, driver.number, token)
            return
        takes = self._travel_ms(driver, ride, ride.pickup, at)
        self._set(at + takes, Due.ARRIVE, driver.number, token)
        drawn = self._draw("breakdown", driver, ride, message.attempt)
        if drawn < (share := self._profile.breakdowns):
            self._set(at + int(takes * drawn / share), Due.BREAKDOWN, driver.number, token)

    def _on_release(self, message: Release, driver: Driver | None, at: int) -> None:
        if driver is not None:
            driver.released = (message.request_id, message.event_time_ms)
        if driver is not None and driver.duty in ("offered", "accepted", "approaching", "waiting"):
            offered = driver.offer.request_id if driver.offer else ""
            # An answer that comes late or in a race has left the driver's hands already.
            in_flight = driver.duty == "offered" and driver.intent in ("late", "race")
            if message.request_id in (driver.ride, offered) and not in_flight:
                self._free(driver, at)
        ride = self._rides.get(message.request_id)
        if ride is None or ride.stage == "aboard":
            return
        if message.reason in FINAL_RELEASES:
            self._rides.close(ride, message.reason.removeprefix("rider_"))
        elif driver is not None and ride.driver == driver.number:
            self._rides.reopen(ride, at)

    # What drivers do.

    def _log_in(self, number: int, day: int, at: int) -> None:
        driver = self._fleet.drivers[number]
        shift = shift_of(self._seed, number, day)
        if shift is not None and driver.duty == "off":
            self._fleet.come_online(driver, shift, at)
            self._set(shift[1], Due.LOG_OUT, number, driver.session)
        self._plan_shift(driver, day + 1)

    def _log_out(self, number: int, session: int, at: int) -> None:
        driver = self._fleet.drivers[number]
        if driver.session != session:
            return
        driver.ends = True
        if driver.duty == "idle":
            self._fleet.go_offline(driver, at)

    def _plan_shift(self, driver: Driver, day: int) -> None:
        now = self.now_ms
        while True:
            shift = shift_of(self._seed, driver.number, day)
            if shift is not None and shift[1] > now:
                first, last = shift
                if first < now:
                    # On line already when the stream begins: the positions of all spread over one interval.
                    spread = chance(self._seed, "phase", driver.number)
                    first = now + int(spread * self._profile.location_interval_ms)
                if first < last:
                    break
            day += 1
        self._set(first, Due.LOG_IN, driver.number, day)

    def _answer(self, number: int, token: int, at: int) -> None:
        driver = self._fleet.drivers[number]
        offer = driver.offer
        if driver.token != token or offer is None:
            return
        ride = self._rides.get(offer.request_id)
        if ride is None and driver.intent not in ("late", "race"):
            self._free(driver, at)
            return
        if driver.intent == "reject":
            self._emit.answer(driver, offer, driver.zone, "declined", at)
            self._free(driver, at)
            return
        self._emit.answer(driver, offer, driver.zone, "", at, self._answer_truths(driver, offer))
        self._set(at + UNCONFIRMED_MS, Due.UNCONFIRMED, number, driver.be("accepted"))

    def _answer_truths(self, driver: Driver, offer: Offer) -> Truths:
        mark = f"{driver.number:06d}-{offer.attempt}"
        match driver.intent:
            case "late":
                return (self._emit.truth("late_accept", offer.request_id, mark, "compensate"),)
            case "race":
                return (self._emit.truth("cancel_race", offer.request_id, "", "one_outcome"),)
            case "no_approach":
                return (self._emit.truth("no_approach", offer.request_id, mark, "replace"),)
        return ()

    def _unconfirmed(self, number: int, token: int, at: int) -> None:
        driver = self._fleet.drivers[number]
        if driver.token == token:
            self._free(driver, at)

    def _arrive(self, number: int, token: int, at: int) -> None:
        driver = self._fleet.drivers[number]
        if driver.token != token:
            return
        ride = self._rides.get(driver.ride)
        if ride is None or ride.driver != number:
            self._free(driver, at)
            return
        truths: Truths = ()
        if ride.no_show:
            truths = (self._emit.truth("no_show", ride.request_id, "", "no_show"),)
        token = driver.be("waiting")
        ride.stage = "arrived"
        ride.token += 1
        self._emit.progress(ride, driver, "arrived", at, truths)
        if ride.no_show:
            self._set(at + GIVE_UP_MS, Due.GIVE_UP, number, token)
        else:
            self._set(max(at + ride.boarding_ms, ride.pickup_at_ms), Due.START, number, token)

    def _start(self, number: int, token: int, at: int) -> None:
        driver = self._fleet.drivers[number]
        ride = self._rides.get(driver.ride)
        if driver.token != token or ride is None:
            return
        token = driver.be("on_trip")
        ride.stage = "aboard"
        self._emit.progress(ride, driver, "started", at)
        takes = self._travel_ms(driver, ride, ride.dropoff, at)
        self._set(at + takes, Due.FINISH, number, token)
        drawn = self._draw("offline", driver, ride)
        if drawn < (share := self._profile.offline_in_trip):
            self._set(at + int(takes * drawn / share), Due.OFFLINE, number, token)
        drawn = self._draw("lost", driver, ride)
        if drawn < (share := self._profile.lost_heartbeats):
            self._fleet.silence(driver, at + int(takes * drawn / share))

    def _finish(self, number: int, token: int, at: int) -> None:
        driver = self._fleet.drivers[number]
        ride = self._rides.get(driver.ride)
        if driver.token != token or ride is None:
            return
        truths: Truths = (self._rides.fate(ride, "served"),)
        if driver.gone:
            truths = (*truths, self._emit.truth("offline_in_trip", ride.request_id, "", "trip_goes_on"))
        self._emit.progress(ride, driver, "finished", at, truths)
        self._rides.close(ride, "served")
        self._free(driver, at)
        if ride.to_hotel and driver.duty == "idle":
            self._fleet.go_to_pen(driver, at)

    def _offline_in_trip(self, number: int, token: int, at: int) -> None:
        driver = self._fleet.drivers[number]
        if driver.token == token:
            truth = self._emit.truth("offline_in_trip", driver.ride, "", "trip_goes_on")
            self._fleet.go_offline(driver, at, (truth,))

    def _break_down(self, number: int, token: int, at: int) -> None:
        driver = self._fleet.drivers[number]
        ride = self._rides.get(driver.ride)
        if driver.token != token or ride is None or ride.driver != number:
            return
        truth = self._emit.truth("breakdown", ride.request_id, f"{number:06d}-{token}", "redispatch")
        self._emit.cancel(ride, driver, "breakdown", at, (truth,))
        self._rides.reopen(ride, at)
        driver.ends = True
        self._free(driver, at)

    def _give_up(self, number: int, token: int, at: int) -> None:
        driver = self._fleet.drivers[number]
        if driver.token != token:
            return
        ride = self._rides.get(driver.ride)
        if driver.duty == "waiting" and ride is not None:
            self._emit.cancel(ride, driver, "no_show", at, ())
            self._rides.close(ride, "no_show")
        self._free(driver, at)

    def _free(self, driver: Driver, at: int) -> None:
        driver.ride, driver.offer = "", None
        driver.stop(at)
        driver.rest_ms = at + 60_000
        driver.be("idle")
        if driver.ends:
            self._fleet.go_offline(driver, at)

    def _travel_ms(self, driver: Driver, ride: Ride, to: tuple[float, float], at: int) -> int:
        luck = 0.85 + 0.4 * self._draw("traffic", driver, ride, at)
        takes = max(int(luck * self.city.travel_ms(driver.position(at), to, at)), 1_000)
        driver.drive(to, at, takes)
        return takes

    def _draw(self, purpose: str, driver: Driver, ride: Ride, mark: int = 0) -> float:
        return chance(self._seed, purpose, driver.number, ride.number, mark)
