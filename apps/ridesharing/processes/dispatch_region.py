"""A region of dispatch at one moment: every change of its requests, offers and drivers goes through it."""

from __future__ import annotations

from typing import Any, Final, Literal, Protocol

import msgspec

from millrace.places import distance_m
from millrace_apps.ridesharing.config import HOLD_MS, DispatchConfig
from millrace_apps.ridesharing.contracts.events import Handover
from millrace_apps.ridesharing.contracts.records import (
    Assignment,
    Attempt,
    AttemptState,
    DriverChange,
    Ignored,
    Journal,
    Offer,
    Release,
    ReleaseReason,
    RideState,
    Ticket,
    Trip,
)
from millrace_apps.ridesharing.processes.acceptance import Acceptance, Chance
from millrace_apps.ridesharing.processes.arrivals import Arrivals
from millrace_apps.ridesharing.processes.geo import travel_ms
from millrace_apps.ridesharing.processes.income import Income
from millrace_apps.ridesharing.processes.line import LINE, stand, ticket_for
from millrace_apps.ridesharing.state.book import Book
from millrace_apps.ridesharing.state.entries import Car, Closed, Due, Ride, Score
from millrace_apps.ridesharing.state.lifecycle import TERMINAL, may_follow
from millrace_apps.ridesharing.state.pairs import Named, PairsByRider, named
from millrace_apps.ridesharing.state.venues import Venues

#: Why an offer is refused by who is not free: that says nothing of what a driver likes.
BUSY: Final = "driver busy"
#: A driver this near counts as arrived on the approach, metres.
_THERE_M = 200.0
#: A driver must have come nearer by this share of the way since the last look.
_NEARER = 0.9
_NO_VENUES: Final = Venues(())
#: A booked ride whose rider has another is looked at again after so long, ms.
_LOOK_AGAIN_MS = 15_000


class ForbiddenTransition(RuntimeError):
    """A state was to follow that must not: a bug, and the event that shows it goes to the dead letters."""


class Sink(Protocol):
    """Where records go: output name and record."""

    def __call__(self, output: str, record: Any) -> None:
        """Emit one record."""


class DispatchRegion:
    """One region at one moment: it alone changes the book, and says what has changed.

    It is the aggregate root of what the book holds: a ride, an offer or a driver is changed by a method of
    it, which keeps the others in step, sets what is due and tells driver, rider and journal.

    Args:
        book: What is kept of the region.
        config: The rules.
        name: Its name.
        now: The moment, ms.
        emit: Where records go.
        arrivals: What ways take; ``None``: that is not learned.
        pairs: Riders and drivers who are something to each other.
        acceptance: What drivers are likely to take; ``None``: that is not learned.
        income: How long drivers have been idle; ``None``: that does not count.
        venues: The venues; ``None``: there are none.
    """

    __slots__ = (
        "acceptance", "arrivals", "book", "config", "emit", "income", "name", "now", "pairs", "venues",
    )  # fmt: skip

    def __init__(
        self,
        book: Book,
        config: DispatchConfig,
        name: str,
        now: int,
        emit: Sink,
        arrivals: Arrivals | None = None,
        pairs: PairsByRider | None = None,
        acceptance: Acceptance | None = None,
        income: Income | None = None,
        venues: Venues | None = None,
    ) -> None:
        self.acceptance = acceptance
        self.income = income
        self.arrivals = arrivals
        self.pairs: PairsByRider = pairs or {}
        self.venues = _NO_VENUES if venues is None else venues
        self.book = book
        self.config = config
        self.name = name
        self.now = now
        self.emit = emit

    def named(self, rider_id: str) -> Named:
        """Return the drivers who are something to a rider now."""
        return named(self.pairs, rider_id, self.now) if self.pairs else Named()

    # -- requests --------------------------------------------------------------------------------

    def open_ride(self, ride: Ride) -> None:
        """Take in a request; what is booked ahead waits for its time."""
        self.book.rides[ride.request_id] = ride
        if ride.pickup_at_ms - self.config.ahead_ms > self.now:
            self.move(ride, "booked", "requested")
            self.book.remind(
                ride.pickup_at_ms - self.config.ahead_ms, Due.BOOKED, ride.request_id, ride.revision
            )
        elif ride.other:
            ride.held_ms = self.now
            self.move(ride, "booked", f"the rider has request {ride.other}")
            self.begin_search(ride)
        elif other := self.other_request(ride):
            self.refuse(ride, other)
        else:
            self.search(ride, "requested", anew=True)

    def other_request(self, ride: Ride) -> str:
        """Return another request that the rider has open, where one is all a rider may have; else nothing."""
        if not self.config.one_open:
            return ""
        other = self.book.open_request_of(ride.rider_id)
        return ride.other if other in ("", ride.request_id) else other

    def mark(self, ride: Ride, other: str, marks: int) -> None:
        """Take down which request of a rider is open in another region; without any, search."""
        if marks <= ride.marks or ride.state != "booked":
            return
        ride.other, ride.marks = other, marks
        if not other and ride.pickup_at_ms - self.config.ahead_ms <= self.now:
            self.begin_search(ride)

    def refuse(self, ride: Ride, other: str) -> None:
        """Refuse a request of a rider who has another one open, and tell the rider."""
        self.move(ride, "refused", f"the rider has request {other}")
        self.release(ride.request_id, "", "cancelled")

    def begin_search(self, ride: Ride) -> None:
        """Look for a driver for a ride that was booked; while the rider has another, it waits for that."""
        other = self.other_request(ride)
        if not other:
            self.search(ride, "booked time is near", anew=True)
            return
        # Word of the end of a request elsewhere takes a moment.
        until = max(ride.pickup_at_ms, ride.held_ms) + (HOLD_MS if ride.other else 0)
        if self.now < until:
            at = min(self.now + _LOOK_AGAIN_MS, until)
            self.book.remind(at, Due.BOOKED, ride.request_id, ride.revision)
        else:
            self.refuse(ride, other)

    def search(self, ride: Ride, cause: str, *, anew: bool) -> None:
        """Look for a driver.

        Args:
            ride: For whom.
            cause: Why.
            anew: Whether the rider's patience begins anew.
        """
        if anew:
            ride.searching_ms = self.now
        self.move(ride, "processing", cause)
        give_up = ride.searching_ms + self.config.patience_ms
        self.book.remind(max(give_up, self.now), Due.GIVE_UP, ride.request_id, ride.revision)

    def move(self, ride: Ride, state: RideState, cause: str) -> None:
        """Bring a ride into a state and say so.

        Raises:
            ForbiddenTransition: The table of states does not have it.
        """
        before = ride.state
        if not may_follow(before, state):
            raise ForbiddenTransition(
                f"request {ride.request_id}: {state} cannot follow {before or 'nothing'}"
            )
        ride.state = state
        self.book.moved(ride, before)
        ride.revision += 1
        ride.odd, ride.odd_ms = "", 0
        self.book.mark_rider(ride, before, is_over=state in TERMINAL)
        if self.config.asks_everywhere and (state in TERMINAL or before == "booked"):
            self._tell_riders(ride, is_over=state in TERMINAL)
        self.emit(
            "trips",
            Trip(
                request_id=ride.request_id,
                revision=ride.revision,
                rider_id=ride.rider_id,
                region=self.name,
                zone=ride.zone,
                vehicle_class=ride.vehicle_class,
                before=before,
                state=state,
                cause=cause,
                driver_id=ride.driver_id,
                attempt=ride.attempt,
                requested_ms=ride.requested_ms,
                pickup_at_ms=ride.pickup_at_ms,
                at_ms=self.now,
                wait_ms=ride.wait_ms,
            ),
        )
        if self.arrivals is not None:
            self.arrivals.moved(self, ride, ride.driver_id, before, cause)
        self._note(f"r:{ride.request_id}", "state", ride, state=state, before=before)
        if state in TERMINAL:
            del self.book.rides[ride.request_id]
            self.book.closed[ride.request_id] = Closed(state, ride.answered)
            self.book.remind(self.now + self.config.remember_ms, Due.FORGET, f"r:{ride.request_id}")

    def _tell_riders(self, ride: Ride, *, is_over: bool) -> None:
        """Say what has become of a request, for what its rider asks for in other regions."""
        self.emit(
            "handovers",
            Handover(
                event_id=f"{self.name}-{ride.request_id}-{ride.revision}",
                driver_id="",
                from_region=self.name,
                region=self.name,
                vehicle_class=ride.vehicle_class,  # type: ignore[arg-type]  # as it came
                lat=ride.lat,
                lon=ride.lon,
                until_ms=0,
                # It is read after this moment: at the same time it would be behind what it is to be after.
                event_time_ms=self.now + 1,
                free_since_ms=0,
                seen_ms=0,
                blocked_ms=0,
                request_id=ride.request_id,
                rider_id=ride.rider_id,
                is_over=is_over,
            ),
        )

    def end(
        self, ride: Ride, state: RideState, cause: str, reason: ReleaseReason, attempt: AttemptState
    ) -> None:
        """End a request for good: free its driver, tell both."""
        driver_id = ride.driver_id
        if driver_id:
            self.free(ride, attempt)
        self.move(ride, state, cause)
        if driver_id or reason != "rider_cancelled":  # who cancels needs not be told
            self.release(ride.request_id, driver_id, reason)

    def again(
        self, ride: Ride, cause: str, reason: ReleaseReason | None, attempt: AttemptState, *, anew: bool
    ) -> None:
        """Take a ride from its driver and look for another, unless there have been enough attempts."""
        driver_id = ride.driver_id
        if attempt == "expired":
            self._learn(ride, "ignore")
        elif attempt == "rejected" and cause != BUSY:
            self._learn(ride, "reject")
        self.free(ride, attempt)
        if reason is not None:
            self.release(ride.request_id, driver_id, reason)
        ride.excluded = {d: until for d, until in ride.excluded.items() if until > self.now}
        ride.excluded[driver_id] = self.now + self.config.cool_down_ms
        if ride.attempt >= self.config.attempts:
            self.move(ride, "no_drivers_available", cause)
            self.release(ride.request_id, "", "no_driver")
        else:
            self.search(ride, cause, anew=anew)

    # -- commitments -----------------------------------------------------------------------------

    def offer(
        self, ride: Ride, driver_id: str, metres: float, policy: str, score: Score | None = None
    ) -> None:
        """Offer a ride to a driver.

        Args:
            ride: The ride.
            driver_id: To whom.
            metres: Straight line to the pick-up, metres.
            policy: By which policy.
            score: What the pair cost in its window; ``None``: there was none.
        """
        self._commit(ride, driver_id, metres, policy, score)
        ride.expires_ms = self.now + self.config.offer_ms
        self.move(ride, "offered", "matched")
        self.book.remind(ride.expires_ms, Due.OFFER, ride.request_id, ride.revision)
        self._attempt(ride, "offered", 0)
        self._note(
            f"d:{driver_id}",
            "open",
            ride,
            deadline_ms=ride.expires_ms,
            age_ms=ride.age_ms,
            ttl_ms=self.config.ttl_ms,
            distance_m=metres,
            radius_m=self.config.rules.radius_m,
            fits=self.config.rules.fits(self.book.cars[driver_id].vehicle_class, ride.vehicle_class),
            apart=driver_id in self.named(ride.rider_id).blocked,
        )
        times: tuple[float | None, float | None, float | None] = None, None, None
        if self.arrivals is not None:
            expected = self.arrivals.expect(ride, driver_id, self.book.cars[driver_id], self.now)
            times = expected.seconds, expected.low_s, expected.high_s
        self.emit(
            "offers",
            Offer(
                offer_id=f"{ride.request_id}-o{ride.attempt}",
                request_id=ride.request_id,
                driver_id=driver_id,
                attempt=ride.attempt,
                expires_ms=ride.expires_ms,
                event_time_ms=self.now,
                region=self.name,
                pickup_lat=ride.lat,
                pickup_lon=ride.lon,
                distance_m=round(metres, 1),
                expected_s=times[0],
                low_s=times[1],
                high_s=times[2],
                pickup_point=ride.point,
                pickup_why=ride.point_why,
            ),
        )

    def assign(self, ride: Ride, driver_id: str, metres: float) -> None:
        """Give a ride to a driver by hand, with no offer before."""
        self._commit(ride, driver_id, metres, "manual")
        apart = driver_id in self.named(ride.rider_id).blocked
        self._note(f"d:{driver_id}", "open", ride, apart=apart)
        self._accepted(ride, "assigned by hand")

    def accept(self, ride: Ride) -> None:
        """Take a driver's yes to the open offer."""
        ride.answered |= 1 << ride.attempt
        self._learn(ride, "accept")
        self._accepted(ride, "accepted")

    def _learn(self, ride: Ride, answer: Literal["accept", "reject", "ignore"]) -> None:
        """Learn from what a driver made of an offer, and say what was expected."""
        if self.acceptance is None:
            return
        expected = self.acceptance.hear(ride.driver_id, ride.distance_m, yes=answer == "accept")
        about = (ride.request_id, ride.driver_id, ride.attempt, self.name, round(ride.distance_m, 1))
        self.emit("chances", Chance(*about, round(expected, 4), answer, self.now))

    def _accepted(self, ride: Ride, cause: str) -> None:
        car = self.book.cars[ride.driver_id]
        spot = self.book.spots.get(ride.driver_id) if ride.policy == LINE else None
        ride.from_line = "" if spot is None else spot.venue
        self.book.lose_spot(ride.driver_id)
        metres = distance_m(car.lat, car.lon, ride.lat, ride.lon)
        straight = takes = travel_ms(metres)
        if self.arrivals is not None:
            takes = round(self.arrivals.set_off(self, ride, car).seconds * 1_000)
        ride.accepted_ms = self.now
        ride.approach_m, ride.approach_ms = metres, self.now
        ride.limit_ms = self.now + 3 * max(takes, straight) + 8 * self.config.approach_ms
        self._note(f"d:{ride.driver_id}", "accepted", ride)
        self.move(ride, "accepted", cause)
        self.book.remind(self.now + self.config.approach_ms, Due.APPROACH, ride.request_id, ride.revision)
        self._attempt(ride, "accepted", 0)
        eta_ms = max(self.now + takes, ride.pickup_at_ms)
        self.emit("assignments", Assignment(ride.request_id, ride.driver_id, ride.attempt, self.now, eta_ms))

    def _commit(
        self, ride: Ride, driver_id: str, metres: float, policy: str, score: Score | None = None
    ) -> None:
        car = self.book.cars[driver_id]
        car.request_id = ride.request_id
        ride.driver_id = driver_id
        ride.attempt += 1
        ride.attempt_revision = -1
        ride.policy, ride.score = policy, score
        ride.offered_ms, ride.accepted_ms = self.now, 0
        ride.distance_m, ride.age_ms = metres, max(0, self.now - car.seen_ms)
        ride.idle_ms = max(0, self.now - car.free_since_ms)
        if self.income is not None:
            self.income.took(driver_id, ride.idle_ms)

    def free(self, ride: Ride, attempt: AttemptState) -> None:
        """End the commitment of a ride's driver, exactly once."""
        self._attempt(ride, attempt, self.now)
        driver_id = ride.driver_id
        self._note(f"d:{driver_id}", "close", ride)
        ride.answered |= 1 << ride.attempt if attempt != "expired" and attempt != "withdrawn" else 0
        ride.driver_id = ""
        car = self.book.cars.get(driver_id)
        if car is None or car.request_id != ride.request_id:
            return
        if attempt == "completed":
            self._give_ticket(ride, driver_id, car)
        car.request_id, car.free_since_ms = "", self.now
        if not car.online:
            self.forget(driver_id, "offline")
            return
        if attempt in ("rejected", "expired") and self.config.decline_costs_place:
            self.book.lose_spot(driver_id)
        stand(self.book, self.venues, driver_id, self.now, self.config.pen_grace_ms)

    def _give_ticket(self, ride: Ride, driver_id: str, car: Car) -> None:
        """Let a driver come back in front whose trip from the line of a venue was short, and say so."""
        ticket = ticket_for(self.venues, ride, car, self.now)
        if ticket is None:
            return
        self.book.tickets[driver_id] = ticket
        self.book.remind(ticket.until_ms + 1, Due.FORGET, f"t:{driver_id}", ticket.until_ms)
        about = (driver_id, ticket.venue, self.name, ride.request_id)
        self.emit("tickets", Ticket(*about, ticket.until_ms, self.now))

    def _attempt(self, ride: Ride, state: AttemptState, closed_ms: int) -> None:
        ride.attempt_revision += 1
        car = self.book.cars.get(ride.driver_id)
        self.emit(
            "attempts",
            Attempt(
                request_id=ride.request_id,
                attempt=ride.attempt,
                revision=ride.attempt_revision,
                driver_id=ride.driver_id,
                region=self.name,
                state=state,
                policy=ride.policy,
                offered_ms=ride.offered_ms,
                accepted_ms=ride.accepted_ms,
                closed_ms=closed_ms,
                distance_m=round(ride.distance_m, 1),
                radius_m=self.config.rules.radius_m,
                location_age_ms=ride.age_ms,
                ttl_ms=self.config.ttl_ms,
                vehicle_class=car.vehicle_class if car is not None else "",
                wanted_class=ride.vehicle_class,
                idle_ms=ride.idle_ms,
                **({} if ride.score is None else msgspec.structs.asdict(ride.score)),
            ),
        )

    # -- drivers ---------------------------------------------------------------------------------

    def forget(self, driver_id: str, change: str) -> None:
        """Strike a free driver off the book."""
        car = self.book.leave(driver_id)
        self.change(driver_id, change, max(0, self.now - car.free_since_ms))

    def take_in(self, driver_id: str, car: Car) -> None:
        """Write a driver into the book."""
        self.book.enter(driver_id, car, self.config.ttl_ms, self.now)
        stand(self.book, self.venues, driver_id, car.seen_ms, self.config.pen_grace_ms)
        self.change(driver_id, "entered")

    def change(self, driver_id: str, change: Any, idle_ms: int = 0) -> None:
        """Say what has become of a driver."""
        self.emit("drivers", DriverChange(driver_id, self.name, change, self.now, idle_ms))

    def check_approach(self, ride: Ride) -> None:
        """Look whether the driver comes nearer; replace one who does not."""
        car = self.book.cars.get(ride.driver_id)
        if car is None or self.now >= ride.limit_ms:
            self.again(ride, "driver does not arrive", "replaced", "replaced", anew=True)
            return
        metres = distance_m(car.lat, car.lon, ride.lat, ride.lon)
        # A position from right after the last look says little about how the driver gets on.
        heard = car.seen_ms - ride.approach_ms >= self.config.approach_ms // 2
        silent = self.now - car.seen_ms > 3 * self.config.ttl_ms
        if silent or (heard and metres > _THERE_M and metres > _NEARER * ride.approach_m):
            cause = "driver is not heard of" if silent else "driver does not approach"
            self.again(ride, cause, "replaced", "replaced", anew=True)
            return
        if heard:
            ride.approach_m, ride.approach_ms = min(metres, ride.approach_m), car.seen_ms
        self.book.remind(self.now + self.config.approach_ms, Due.APPROACH, ride.request_id, ride.revision)

    # -- messages --------------------------------------------------------------------------------

    def release(self, request_id: str, driver_id: str, reason: ReleaseReason) -> None:
        """Tell a driver that they are free, or a rider that the search is over."""
        self.emit("releases", Release(request_id, driver_id, reason, self.now))

    def ignore(
        self, stream: str, event_id: str, request_id: str, driver_id: str, why: str, *, told: bool = False
    ) -> None:
        """Say that an event changed nothing."""
        self.emit("ignored", Ignored(stream, event_id, request_id, driver_id, why, told, self.now))

    def _note(
        self, subject: str, step: str, ride: Ride, *, state: str = "", before: str = "", **of_offer: Any
    ) -> None:
        self.emit(
            "main",
            Journal(
                subject=subject,
                seq=1_000_000_000 + self.book.next_seq(),
                step=step,
                request_id=ride.request_id,
                driver_id=ride.driver_id,
                attempt=ride.attempt,
                region=self.name,
                state=state,
                before=before,
                at_ms=self.now,
                **{"deadline_ms": 0, **of_offer},
            ),
        )
