"""The dispatcher of a region: the one owner of its drivers and requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import numpy.typing as npt

from millrace import (
    BroadcastContext,
    Context,
    KeyedProcess,
    Timer,
    broadcast_state,
    days,
    hours,
    map_state,
    side_output,
    value_state,
)
from millrace.time import NEVER
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import (
    INPUTS,
    LAST_ATTEMPT,
    Answer,
    Cancellation,
    Command,
    Control,
    DriverStatus,
    DropVenue,
    Event,
    Handover,
    Position,
    Progress,
    RideRequest,
    SetPair,
    SetPolicy,
    SetShadows,
    SetVenue,
    VehicleClass,
)
from millrace_apps.ridesharing.contracts.records import (
    Arrival,
    Assignment,
    Attempt,
    Drive,
    DriverChange,
    Ignored,
    Journal,
    Journey,
    LinePlace,
    Mismatch,
    Offer,
    Operation,
    PickUp,
    Place,
    Release,
    Supply,
    Ticket,
    Trip,
    VenueShape,
    WindowReport,
)
from millrace_apps.ridesharing.demand.records import Standing
from millrace_apps.ridesharing.eta.features import Driver, Sum
from millrace_apps.ridesharing.eta.interval import Width
from millrace_apps.ridesharing.operations.by_hand import carry_out, lift
from millrace_apps.ridesharing.processes.acceptance import Acceptance, Chance, Tally
from millrace_apps.ridesharing.processes.arrivals import Arrivals, Way
from millrace_apps.ridesharing.processes.dispatch_region import BUSY, DispatchRegion
from millrace_apps.ridesharing.processes.income import Idle, Income
from millrace_apps.ridesharing.processes.line import stand
from millrace_apps.ridesharing.processes.matching import SOLVERS, Policy, Problem
from millrace_apps.ridesharing.processes.neighbours import cross_border, take_handover
from millrace_apps.ridesharing.processes.reconcile import (
    check_trip,
    finish_trip,
    hear_phone,
    is_odd,
    refuse_no_show,
    refuse_progress,
    sign_off,
    start_trip,
    waits_for_phone,
)
from millrace_apps.ridesharing.processes.riders import Asked
from millrace_apps.ridesharing.processes.switches import TELL_MS, Switch, by_time, switch_of, tell_switches
from millrace_apps.ridesharing.processes.venues import meet_at_point, tell_venues
from millrace_apps.ridesharing.processes.window import (
    close_window,
    free_by_cell,
    places_of_cars,
    standing_cars,
    supply_of_zones,
)
from millrace_apps.ridesharing.state.book import Book
from millrace_apps.ridesharing.state.earlier import DISPATCHER, EarlierBook, adopt
from millrace_apps.ridesharing.state.entries import Car, Closed, Deadline, Due, Head, Ride, Spot, kind_of
from millrace_apps.ridesharing.state.lifecycle import COMMITTED
from millrace_apps.ridesharing.state.pairs import Pair, by_rider, keep_pair
from millrace_apps.ridesharing.state.venues import Venue, Venues, keep_venue
from millrace_apps.ridesharing.surge.records import FreeCars

#: Timers, in the order in which they fire at one time.
_ARRIVALS, _DUE, _FREE, _MINUTE, _PLACES, _STANDING, _WINDOW = (
    "arrivals", "due", "free", "minute", "places", "standing", "window",
)  # fmt: skip
_MINUTE_MS = 60_000
#: So long it is remembered when a driver came on line or went off, ms: longer than anything is on its way.
_SAID_MS = 3_600_000
#: The numbers that attempts may have, as text.
_NUMBERS = frozenset(map(str, range(1, LAST_ATTEMPT + 1)))
#: Longer than anything goes on without events, booked rides included, ms.
_END_MS = 366 * 86_400_000


class Dispatcher(KeyedProcess[Event, Journal]):
    """Keyed by region: a driver table that forgets, dispatch windows, offers and the life of every trip.

    The main output is the journal that the auditor reads; messages and tables are side outputs.

    What happens in one millisecond is handled in the order of the inputs, which is that of their names: an
    answer before the cancellation that it races with, both before what operators want, all before positions
    and the steps of trips. So it was when all came by one input and the name of the stream stood first in
    their bytes; results of then and now are the same.
    """

    version = 2
    order = "event_time"
    inputs: ClassVar = {name: INPUTS[name] for name in sorted(INPUTS)}
    converts: ClassVar = {1: DISPATCHER}
    control_type: ClassVar[object] = Control

    #: The book: how much there is and what is near; drivers and requests, each in parts.
    head = value_state(Head)
    cars = map_state(str, Car, paged=True)
    rides = map_state(str, Ride, paged=True)
    closed = map_state(str, Closed, paged=True)
    riders = map_state(str, str, paged=True)
    notes = map_state(str, int, paged=True)
    far = map_state(int, list[Deadline], paged=True)
    #: All of it in one entry, as it was kept before.
    book = value_state(EarlierBook)
    policies = broadcast_state(str, str)
    #: What operators have switched in all regions, and the newest of it that this one has told.
    switches = broadcast_state(str, Switch)
    told = value_state(str, default="", ttl=TELL_MS * 2)
    #: Riders and drivers who are favourites, or never to meet, in whatever region.
    pairs = broadcast_state(str, Pair)
    #: Places with a line of drivers, and who stands where in it.
    venues = broadcast_state(str, Venue)
    spots = map_state(str, Spot, paged=True)
    #: Arrival times: what ways took, for good and of late, by drivers; how wide intervals are; ways now.
    took = map_state(str, Sum, ttl=days(60), paged=True)
    took_late = map_state(str, Sum, ttl=hours(12), paged=True)
    paces = map_state(str, Driver, ttl=days(60), paged=True)
    widths = map_state(str, Width, ttl=days(60))
    ways = map_state(str, Way, ttl=hours(12), paged=True)
    #: What drivers, and the fleet by distance, have answered; how long drivers have been idle of late.
    answered = map_state(str, Tally, ttl=days(30), paged=True)
    idled = map_state(str, Idle, ttl=days(1), paged=True)

    offers = side_output(Offer)
    assignments = side_output(Assignment)
    releases = side_output(Release)
    attempts = side_output(Attempt)
    trips = side_output(Trip)
    handovers = side_output(Handover)
    windows = side_output(WindowReport)
    operations = side_output(Operation)
    ignored = side_output(Ignored)
    mismatches = side_output(Mismatch)
    drivers = side_output(DriverChange)
    supply = side_output(Supply)
    places = side_output(Place)
    journeys = side_output(Journey)
    pickups = side_output(PickUp)
    lines = side_output(LinePlace)
    tickets = side_output(Ticket)
    shapes = side_output(VenueShape)
    free = side_output(FreeCars)
    standing = side_output(Standing)
    arrivals = side_output(Arrival)
    drives = side_output(Drive)
    chances = side_output(Chance)

    def __init__(self, config: DispatchConfig | None = None) -> None:
        self.config = config or DispatchConfig()
        self._book: Book | None = None
        self._one_region = self.config.regions.is_one
        if self.config.arrivals is not None:
            self._zone, self._models = ZoneInfo(self.config.arrivals.zone), self.config.arrivals.models()
        if self.config.asks_everywhere:  # requests come by way of their riders
            self.inputs = type(self).inputs | {"requests": Asked}  # type: ignore[misc]
        self._handlers: dict[type[Any], Callable[[DispatchRegion, Any], None]] = {
            Position: _on_position,
            DriverStatus: _on_status,
            RideRequest: _on_request,
            Asked: _on_request,
            Answer: _on_answer,
            Cancellation: _on_cancellation,
            Progress: _on_progress,
            Command: carry_out,
            Handover: take_handover,
        }

    def describe(self) -> dict[str, object]:
        """Return what owners of drivers depend on."""
        return {"regions": msgspec.to_builtins(self.config.regions)}

    def decide(self, given: Problem, policy: Policy) -> npt.NDArray[np.int64]:
        """Return the match of a window: of each rider the number of the pair, or -1."""
        return SOLVERS[policy](given)

    def look_ahead(self, events: Sequence[Event]) -> None:
        """Have the drivers at hand of whom there is a position: mostly all that comes."""
        drivers = [event.driver_id for event in events if isinstance(event, Position)]
        self.cars.fetch(drivers)
        if self.venues.view(Venues):
            self.spots.fetch(drivers)

    def process(self, event: Event, ctx: Context) -> None:
        """Handle one event."""
        if not isinstance(event, Position) or not self._is_only_a_place(event):
            self._handle(event, ctx, ctx.event_time)

    def on_late(self, event: Event, ctx: Context) -> None:
        """Handle an event that the watermark has passed, as of now: its effects begin with its arrival."""
        if not isinstance(event, Position) or not self._is_only_a_place(event):
            self._handle(event, ctx, max(ctx.event_time, ctx.watermark))

    def _is_only_a_place(self, event: Position) -> bool:
        """Take the position of a car on the book where there is no border to cross: nearly all events."""
        car = self.cars.get(event.driver_id) if self._one_region else None
        if car is None:
            return False
        if car.request_id:
            ride = self.rides.get(car.request_id)
            if ride is not None and is_odd(ride, event.state):
                return False
        at = event.event_time_ms
        venues = self.venues.view(Venues)
        if venues and (event.driver_id in self.spots or venues.pen_of(event.lat, event.lon, at)):
            return False
        if at > car.seen_ms:
            car.lat, car.lon, car.seen_ms, car.idle = event.lat, event.lon, at, event.state == "idle"
        return True

    def _handle(self, event: Event, ctx: Context, now: int) -> None:
        book = self._kept(now) or self._begun(now)
        self._handlers[type(event)](self._region_at(book, ctx, now), event)
        # A window has everything in (end − length, end]; for what comes late, the one that ends now is over.
        self._settle(book, ctx, now - 1 if now == ctx.event_time else now)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Do what is due; close a dispatch window."""
        now = timer.at
        book = self._kept(now)
        if book is None:
            return
        after = now - 1
        region = self._region_at(book, ctx, now)
        if timer.name == _DUE:
            for found in book.all_due(now, self.config.ttl_ms):
                _run_out(region, *found)
        elif timer.name == _MINUTE:
            supply_of_zones(region)
            after = now
        elif timer.name == _PLACES:
            places_of_cars(region)
            after = now
        elif timer.name == _ARRIVALS:
            if region.arrivals is not None:
                region.arrivals.tell_riders(region)
            after = now
        elif timer.name == _FREE:
            free_by_cell(region)
            after = now
        elif timer.name == _STANDING:
            standing_cars(region)
            after = now
        else:
            shadows = self.policies.get("shadows")
            named = self.config.shadows if shadows is None else tuple(filter(None, shadows.split(",")))
            close_window(region, self.policies.view(_latest_first), self.decide, named)
            after = now
        if timer.name not in (_ARRIVALS, _DUE):
            if newest := tell_switches(region, self.switches.view(by_time), self.told.value):
                self.told.value = newest
            tell_venues(region)
        self._settle(book, ctx, after)

    def last_due(self, latest: int) -> int:
        """Return what is later than all that follows: every search, offer and trip ends by itself."""
        return latest + _END_MS

    def process_broadcast(self, control: Control, ctx: BroadcastContext) -> None:
        """Switch the policy, or what is computed beside it, for all regions, or keep a pair or a venue."""
        refused = keep_pair(control, ctx.watermark, self.pairs) if isinstance(control, SetPair) else ""
        if isinstance(control, SetVenue | DropVenue):
            refused = keep_venue(control, ctx.watermark, self.venues, self.config.regions)
        switch_of(control, ctx.watermark, self.switches, refused)
        if isinstance(control, SetShadows):
            self.policies.put("shadows", ",".join(control.policies))
        elif isinstance(control, SetPolicy):
            self.policies.put(f"{max(control.from_ms, ctx.watermark, 0):020d}", control.policy)
            starts = sorted(name for name, _ in self.policies.items() if name != "shadows")
            over = [start for start in starts if int(start) <= ctx.watermark]
            for start in over[:-1]:  # no window that is to come ends before the last of them
                self.policies.remove(start)

    def _kept(self, now: int) -> Book | None:
        """Return the book of the region that is at hand; ``None``: there is none."""
        head = self.head.value
        if head is None:
            if self.book.value is None:
                return None
            book = self._begun(now)
            adopt(self.book.value, book, self.config.ttl_ms)
            self.book.clear()
            return book
        book = self._of(head)
        book.draw_near(now)
        return book

    def _begun(self, now: int) -> Book:
        """Begin a book."""
        self.head.value = Head()
        book = self._of(self.head.value)
        book.draw_near(now)
        return book

    def _of(self, head: Head) -> Book:
        book = self._book
        if book is None or not book.stands_in(self.cars):
            maps = (self.cars, self.rides, self.closed, self.riders, self.notes, self.far)
            book = self._book = Book(*maps, spots=self.spots)
        book.head = head
        return book

    def _region_at(self, book: Book, ctx: Context, now: int) -> DispatchRegion:
        def emit(output: str, record: Any) -> None:
            if output == "main":
                ctx.emit(record)
            else:
                ctx.output(getattr(self, output), record)

        arrivals = None
        if self.config.arrivals is not None:
            kept = (self.took, self.took_late, self.paces, self.widths, self.ways)
            arrivals = Arrivals(*kept, self._zone, self._models)
        accepts, fair = self.config.acceptance, self.config.income
        return DispatchRegion(
            book=book,
            config=self.config,
            name=ctx.key,
            now=now,
            emit=emit,
            arrivals=arrivals,
            pairs=self.pairs.view(by_rider),
            acceptance=None if accepts is None else Acceptance(self.answered, accepts, now),
            income=None if fair is None else Income(self.idled, fair, now),
            venues=self.venues.view(Venues),
        )

    def _settle(self, book: Book, ctx: Context, after: int) -> None:
        """Set the timers for what comes next, windows after a time; close the book when all is over."""
        if book.is_over:
            book.clear()
            head = self.head.value
            self.head.clear()
            if head is not None and head.shown:  # how a venue was told is not told anew
                self.head.value = Head(shown=head.shown)
            ctx.timers.delete(_ARRIVALS)
            ctx.timers.delete(_DUE)
            ctx.timers.delete(_FREE)
            ctx.timers.delete(_MINUTE)
            ctx.timers.delete(_PLACES)
            ctx.timers.delete(_STANDING)
            ctx.timers.delete(_WINDOW)
            return
        if (due := book.next_ms) < NEVER and ctx.timers.pending(_DUE) != due:
            ctx.timers.at(due, _DUE)
        if ctx.timers.pending(_WINDOW) is None and (book.wishes or book.searching):
            length = self.config.window_ms
            ctx.timers.at((after // length + 1) * length, _WINDOW)
        if book.cars and ctx.timers.pending(_MINUTE) is None:
            ctx.timers.at((after // _MINUTE_MS + 1) * _MINUTE_MS, _MINUTE)
        told = self.config.arrivals
        if told is not None and book.rides and ctx.timers.pending(_ARRIVALS) is None:
            ctx.timers.at((after // told.every_ms + 1) * told.every_ms, _ARRIVALS)
        config = self.config
        for name, length in (
            (_FREE, config.free_ms), (_PLACES, config.places_ms), (_STANDING, config.standing_ms),
        ):  # fmt: skip
            counts = book.cars or (name == _FREE and book.searching)  # who waits counts without a car, too
            if length and counts and ctx.timers.pending(name) is None:
                ctx.timers.at((after // length + 1) * length, name)


def _latest_first(entries: list[tuple[str, str]]) -> list[tuple[int, Policy]]:
    found = [(int(start), policy) for start, policy in entries if start != "shadows"]
    return sorted(found, reverse=True)  # type: ignore[arg-type]


def _on_position(region: DispatchRegion, event: Position) -> None:
    idle = event.state == "idle"
    if event.driver_id in region.book.off_line and event.driver_id not in region.book.cars:
        _hear_of_nobody(region, event)
        return
    _hear_of(region, event.driver_id, event.vehicle_class, event.lat, event.lon, event.event_time_ms, idle)
    car = region.book.cars.get(event.driver_id)
    if car is not None and car.seen_ms == event.event_time_ms:  # nothing newer is known
        hear_phone(region, event.driver_id, event.state, event.event_time_ms)
        stand(region.book, region.venues, event.driver_id, event.event_time_ms, region.config.pen_grace_ms)
        cross_border(region, event.driver_id)


def _hear_of_nobody(region: DispatchRegion, event: Position) -> None:
    """A position of who went off line brings nobody back: who works says so; the first one is told of."""
    since = region.book.off_line[event.driver_id]
    if since > 0 and event.event_time_ms > since:
        region.book.off_line[event.driver_id] = -since
        region.ignore("locations", event.event_id, "", event.driver_id, "the driver is off line")


def _hear_of(
    region: DispatchRegion, driver_id: str, kind: VehicleClass, lat: float, lon: float, at: int, idle: bool
) -> None:
    """Take down where a driver is, who may be new here, or beyond the border."""
    book = region.book
    car = book.cars.get(driver_id)
    if car is None:
        if driver_id in book.departed:
            return  # sent here before the gate knew of the handover; the new owner will hear the next one
        region.take_in(driver_id, Car(lat, lon, at, kind_of(kind), idle, region.now))
    elif at > car.seen_ms:
        car.lat, car.lon, car.seen_ms, car.idle = lat, lon, at, idle
    cross_border(region, driver_id)


def _on_status(region: DispatchRegion, event: DriverStatus) -> None:
    book = region.book
    car = book.cars.get(event.driver_id)
    if event.event_time_ms < book.said.get(event.driver_id, 0):
        return  # what is late undoes nothing that was said after it
    book.said[event.driver_id] = event.event_time_ms
    book.remind(region.now + _SAID_MS, Due.FORGET, f"s:{event.driver_id}", event.event_time_ms)
    if event.status == "online":
        book.off_line.pop(event.driver_id, None)
        if car is not None:
            car.online = True
        lat, lon = event.lat or 0.0, event.lon or 0.0  # the gate has filled them in
        _hear_of(region, event.driver_id, event.vehicle_class, lat, lon, event.event_time_ms, idle=True)
        return
    sign_off(region, event.driver_id)


def _on_request(region: DispatchRegion, event: RideRequest) -> None:
    book = region.book
    marks, other = (event.marks, event.other) if isinstance(event, Asked) else (0, "")
    if marks and event.request_id in book.rides:
        region.mark(book.rides[event.request_id], other, marks)
        return
    if event.request_id in book.rides or event.request_id in book.closed:
        region.ignore("requests", "", event.request_id, "", "is known already")
        return
    lat, lon, kind = event.pickup_lat, event.pickup_lon, event.vehicle_class
    pickup_at = max(event.pickup_at_ms, event.event_time_ms)
    book.ask(lat, lon, region.now, region.config.rules.half_life_ms)
    ride = Ride(event.request_id, event.rider_id, kind, event.zone, lat, lon, event.event_time_ms, pickup_at)
    ride.to_lat, ride.to_lon = event.dropoff_lat, event.dropoff_lon
    ride.other, ride.marks = other, marks
    about = (event.request_id, region.name, event.zone, kind, region.now, pickup_at)
    region.emit("journeys", Journey(*about, lat, lon, event.dropoff_lat, event.dropoff_lon))
    meet_at_point(region, ride, event.pickup_point)
    region.open_ride(ride)


def _on_answer(region: DispatchRegion, event: Answer) -> None:
    ride = region.book.rides.get(event.request_id)
    car = region.book.cars.get(event.driver_id)
    current = (
        ride is not None
        and ride.state == "offered"
        and ride.driver_id == event.driver_id
        and event.offer_id == f"{event.request_id}-o{ride.attempt}"
    )
    if ride is None or not current:
        _answer_to_nothing(region, event)
    elif event.answer == "accept":
        region.accept(ride)
    else:
        if event.reason == "busy" and car is not None:
            car.idle = False  # until the phone says otherwise
        region.again(
            ride,
            BUSY if event.reason == "busy" else f"driver {event.reason or 'declined'}",
            None,
            "rejected",
            anew=False,
        )


def _answer_to_nothing(region: DispatchRegion, event: Answer) -> None:
    """An answer to an offer that is over: whoever said yes is told that it came to nothing, once."""
    book = region.book
    known: Any = book.rides.get(event.request_id) or book.closed.get(event.request_id)
    number = event.offer_id.rpartition("-o")[2]
    # What no offer was called by is no offer's bit.
    bit = 1 << int(number) if number in _NUMBERS else 0
    repeated = known is not None and bool(known.answered & bit)
    # An operator may have given the ride to the driver who was asked: that goes on.
    has_it = isinstance(known, Ride) and known.driver_id == event.driver_id
    tell = event.answer == "accept" and not repeated and not has_it
    if known is not None:
        known.answered |= bit
    if tell:
        cancelled = known is not None and known.state == "rider_cancelled"
        region.release(event.request_id, event.driver_id, "rider_cancelled" if cancelled else "expired")
    why = "has been answered already" if repeated else "the offer is over"
    region.ignore("answers", event.event_id, event.request_id, event.driver_id, why, told=tell)


def _on_cancellation(region: DispatchRegion, event: Cancellation) -> None:
    ride = region.book.rides.get(event.request_id)
    if ride is None or ride.state == "in_progress":
        why = "the request is over or unknown" if ride is None else "the trip has begun"
        region.ignore("cancellations", event.event_id, event.request_id, event.driver_id, why)
    elif event.by == "rider":
        ending = "withdrawn" if ride.state == "offered" else "rider_cancelled"
        region.end(ride, "rider_cancelled", f"rider: {event.reason}", "rider_cancelled", ending)  # type: ignore[arg-type]
    elif event.driver_id != ride.driver_id or ride.state not in ("accepted", "arrived"):
        region.ignore(
            "cancellations", event.event_id, event.request_id, event.driver_id, "not this driver's ride"
        )
    elif event.reason == "no_show" and not refuse_no_show(
        region, ride, region.book.cars.get(event.driver_id), event
    ):
        region.end(ride, "no_show", "driver: no_show", "no_show", "no_show")
    else:
        region.again(ride, f"driver: {event.reason}", "replaced", "driver_cancelled", anew=True)


def _on_progress(region: DispatchRegion, event: Progress) -> None:
    ride = region.book.rides.get(event.request_id)
    if ride is None or ride.driver_id != event.driver_id or ride.state == "offered":
        region.ignore("progress", event.event_id, event.request_id, event.driver_id, "not this driver's ride")
        return
    car = region.book.cars.get(event.driver_id)
    if refuse_progress(region, ride, car, event):
        region.ignore("progress", event.event_id, event.request_id, event.driver_id, "cannot be")
        return
    if car is not None and event.event_time_ms >= car.seen_ms:
        car.lat, car.lon, car.seen_ms = event.lat, event.lon, event.event_time_ms
    if event.stage == "arrived" and ride.state == "accepted":
        ride.arrived_ms = event.event_time_ms
        region.move(ride, "arrived", "driver arrived")
        waits = max(region.now, ride.pickup_at_ms) + region.config.no_show_ms
        region.book.remind(waits, Due.NO_SHOW, ride.request_id, ride.revision)
    elif event.stage == "started" and ride.state in ("accepted", "arrived"):
        start_trip(region, ride, event.event_time_ms, "rider aboard")
    elif event.stage == "finished":
        cross_border(region, finish_trip(region, ride, "trip finished"))
    else:
        region.ignore(
            "progress", event.event_id, event.request_id, event.driver_id, f"is {ride.state} already"
        )


def _run_out(region: DispatchRegion, due: int, about: str, mark: int) -> None:
    book = region.book
    if due == Due.STALE:
        _check_stale(region, about)
    elif due == Due.FORGET:
        if about.startswith("d:"):
            if book.departed.get(about[2:]) == mark:
                del book.departed[about[2:]]
        elif about.startswith("o:"):
            if abs(book.off_line.get(about[2:], 0)) == mark:
                del book.off_line[about[2:]]
        elif about.startswith("s:"):
            if book.said.get(about[2:]) == mark:
                del book.said[about[2:]]
        elif about.startswith("c:"):
            if book.ordered.get(about[2:]) == mark:
                del book.ordered[about[2:]]
        elif about.startswith("t:"):
            ticket = book.tickets.get(about[2:])
            if ticket is not None and ticket.until_ms == mark:
                del book.tickets[about[2:]]
        else:
            book.closed.pop(about[2:], None)
    elif due == Due.LIFT:
        lift(region, about)
    else:
        ride = book.rides.get(about)
        if ride is None or ride.revision != mark:
            return
        if due == Due.BOOKED:
            region.begin_search(ride)
        elif due == Due.OFFER:
            region.again(ride, "offer expired", "expired", "expired", anew=False)
        elif due == Due.APPROACH:
            again = region.now + region.config.approach_ms
            if not waits_for_phone(region, ride, Due.APPROACH, again, ride.limit_ms):
                region.check_approach(ride)
        elif due == Due.NO_SHOW:
            heard = ride.odd_ms + region.config.reconcile_ms
            waited = max(ride.arrived_ms, ride.pickup_at_ms) + region.config.no_show_ms
            latest = waited + region.config.reconcile_ms
            if not waits_for_phone(region, ride, Due.NO_SHOW, heard, latest):
                region.end(ride, "no_show", "rider did not come", "no_show", "no_show")
        elif due == Due.TRIP:
            check_trip(region, ride)
        elif due == Due.GIVE_UP:
            region.move(ride, "no_drivers_available", "nobody found in time")
            region.release(ride.request_id, "", "no_driver")


def _check_stale(region: DispatchRegion, driver_id: str) -> None:
    book = region.book
    car = book.cars.get(driver_id)
    if car is None:
        return
    ride = book.rides.get(car.request_id) if car.request_id else None
    if ride is not None and ride.state in COMMITTED:
        book.watch_again(driver_id, region.now + region.config.ttl_ms)
    else:
        region.forget(driver_id, "stale")
