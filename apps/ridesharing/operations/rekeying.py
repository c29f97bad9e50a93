"""Other regions for a stopped app: what the old regions keep goes to the new ones, each thing to one owner.

A ride goes where its zone belongs now, with the driver who has it; any other driver where the car stands.
What hangs on a driver or a ride goes with them. What is remembered of people and requests that are no more,
so that nothing comes twice, goes to every region that has got something of the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from millrace.checkpoints.gathering import Entries
from millrace.dead_letters import NOT_JSON
from millrace.errors import UserError
from millrace.inputs import event_decoder, event_encoder
from millrace.process import kept_states
from millrace.state.layout import EntryLayout, PendingRow, TimerRecord
from millrace.time import NEVER
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import (
    Command,
    DriverStatus,
    Event,
    Handover,
    Position,
    RideRequest,
)
from millrace_apps.ridesharing.processes.acceptance import AcceptanceConfig, Tally
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.processes.geo import DEMAND_RESOLUTION
from millrace_apps.ridesharing.processes.income import Idle, IncomeConfig
from millrace_apps.ridesharing.processes.regions import zone_name
from millrace_apps.ridesharing.processes.riders import Riders
from millrace_apps.ridesharing.settings import RidesharingSettings
from millrace_apps.ridesharing.state.book import Book, InMemory
from millrace_apps.ridesharing.state.earlier import adopt
from millrace_apps.ridesharing.state.entries import Car, Closed, Deadline, Due, ShortTripTicket, Spot

#: Tables of arrival times: of regions that become one, that of the one that has learned most stays.
_LEARNED: Final = ("took", "took_late", "paces", "widths")
#: Deadlines that hang on a ride.
_OF_RIDES: Final = frozenset({Due.BOOKED, Due.OFFER, Due.APPROACH, Due.NO_SHOW, Due.TRIP, Due.GIVE_UP})


class CannotBeRekeyed(UserError):
    """Something cannot be given to one of the new regions."""


class Rekeying:
    """Gives what regions keep to other regions.

    Args:
        config: How rides are dispatched from now on, with the new regions.

    Attributes:
        processes: Names of the processes whose entries it changes.
    """

    processes: Final = ("Gate", "Riders", "Dispatcher")

    def __init__(self, config: DispatchConfig) -> None:
        self._config, self._regions = config, config.regions
        self._answers = config.acceptance or AcceptanceConfig()
        self._income = config.income or IncomeConfig(worth_ms=0)
        process = Dispatcher(config)
        self._layout = EntryLayout(kept_states(process))
        self._decode, self._encode = event_decoder(process), event_encoder(process)
        riders = Riders(config)
        self._decode_of_riders, self._encode_of_riders = event_decoder(riders), event_encoder(riders)

    def __call__(self, entries: dict[str, Entries]) -> None:
        """Give entries other keys, in place.

        Args:
            entries: Process → its entries by key.

        Raises:
            CannotBeRekeyed: The zone of a ride, or of what waits, is no cell.
        """
        before = {key[0]: entry for key, entry in entries["Dispatcher"].items()}
        books = {region: _book_of(entry, self._config.ttl_ms) for region, entry in before.items()}
        #: Request, and driver, → new region.
        self._rides: dict[str, str] = {}
        self._drivers: dict[str, str] = {}
        #: Driver → the car: of two books the one that has a ride, or was heard of last, is the driver's.
        self._cars: dict[str, Car] = {}
        spots: dict[str, Spot] = {}
        for book in books.values():
            for name, ride in book.rides.items():
                self._rides[name] = self._of_zone(ride.zone, f"request {name}")
            for driver_id, car in book.cars.items():
                known = self._cars.get(driver_id, car)
                self._cars[driver_id] = max(known, car, key=lambda c: (bool(c.request_id), c.seen_ms))
            if book.spots:
                spots.update(book.spots.items())
        for driver_id, car in self._cars.items():
            self._drivers[driver_id] = self._of_car(car, spots.get(driver_id))
        self._owners = self._rename_owners(entries.get("Gate", {}))
        self._rename_requests(entries.get("Riders", {}))
        made: dict[str, Book] = {}
        heirs = {region: self._heirs(book, before[region]) for region, book in books.items()}
        horizon = max((book.head.horizon_ms for book in books.values()), default=0)
        for region, book in sorted(books.items()):
            for heir in heirs[region]:
                if heir not in made:
                    made[heir] = Book()
                    made[heir].head.horizon_ms = horizon
            self._divide(book, {heir: made[heir] for heir in heirs[region]})
        after: dict[str, Any] = {name: self._entry_of(book) for name, book in made.items()}
        self._beside(before, heirs, after)
        for region in sorted(before):
            for row in before[region].pending_:
                self._let_wait(row, after, heirs[region][0])
        for entry in after.values():
            entry.pending_.sort(key=lambda row: (row.event_time, row.raw))
        entries["Dispatcher"] = {(name,): entry for name, entry in after.items()}

    # -- who goes where --------------------------------------------------------------------------

    def _of_zone(self, zone: str, what: str) -> str:
        try:
            return self._regions.of_zone(zone)
        except ValueError as error:
            raise CannotBeRekeyed(f"{what} belongs to no region: {error}") from error

    def _of_car(self, car: Car, spot: Spot | None) -> str:
        if spot is not None:  # a line is in the region of its venue, with all who wait in it
            here = self._of_zone(spot.zone, f"the line of {spot.venue}")
        else:
            here = self._regions.of_place(car.lat, car.lon)
        return self._rides.get(car.request_id) or here

    def _heirs(self, book: Book, entry: Any) -> list[str]:
        """Return the new regions that get something of an old one: one at least."""
        found = {self._rides[name] for name, _ in book.rides.items()}
        found |= {self._drivers[driver_id] for driver_id, _ in book.cars.items()}
        found |= {self._of_cell(cell) for cell in book.demand}
        found |= {self._of_zone(zone, f"the blackout of {zone}") for zone in book.blackouts}
        found |= {self._of_ticket(ticket) for ticket in book.tickets.values()}
        known = [who for shelf in (book.off_line, book.said, book.departed) for who, _ in shelf.items()]
        known += [*book.blocked, *(about[2:] for about, _ in book.ordered.items() if about.startswith("d:"))]
        found |= {self._owners[who] for who in known if who in self._owners}
        if not found:  # what it has learned goes where its drivers are now
            names = {_driver_of(about) for about in entry.answered} | set(entry.idled)
            owners = self._owners | self._drivers
            found = {owners[name] for name in names if name in owners}
        return sorted(found) or [self._regions.of_place(0.0, 0.0)]  # it remembers what has been, and no place

    def _of_ticket(self, ticket: ShortTripTicket) -> str:
        """Return the region of a line that a driver may come back to, wherever the car is."""
        return self._of_zone(ticket.zone, f"a ticket of {ticket.venue}")

    def _of_cell(self, cell: int) -> str:
        assert DEMAND_RESOLUTION >= 7  # noqa: S101  (zones are of resolution 7)
        return self._regions.of_zone(zone_name(cell))

    def _rename_owners(self, gate: Entries) -> dict[str, str]:
        """Tell the gate who owns each driver from now on, and return it."""
        owners: dict[str, str] = {}
        for key, entry in gate.items():
            if entry.track is None:
                continue
            track = entry.track[1]
            lat, lon = track.here or (track.lat, track.lon)
            track.owner = owners[key[0]] = self._drivers.get(key[0]) or self._regions.of_place(lat, lon)
        return owners

    def _rename_requests(self, riders: Entries) -> None:
        for entry in riders.values():
            entry.pending_ = [self._asked_of(row) for row in entry.pending_]
            if entry.requests is None:
                continue
            for name, known in entry.requests[1].items():
                region = self._rides.get(name)
                if known.asked:  # it is said again when its mark changes, where its ride is
                    asked = msgspec.json.decode(known.asked, type=RideRequest)
                    asked.region = region = region or self._of_zone(asked.zone, f"request {name}")
                    known.asked = msgspec.json.encode(asked)
                # What no region has is over: word of it is on its way, for what waits for that.
                known.region = region or known.region

    def _asked_of(self, row: PendingRow) -> PendingRow:
        """Return what waits of a rider, a request for the region that it is for now."""
        try:
            event = self._decode_of_riders(row.raw)
        except NOT_JSON:
            return row  # a dead letter in its time
        if not isinstance(event, RideRequest):
            return row
        region = self._rides.get(event.request_id) or self._of_zone(event.zone, f"request {event.request_id}")
        raw = self._encode_of_riders(msgspec.structs.replace(event, region=region))
        return msgspec.structs.replace(row, raw=raw)

    # -- what goes where -------------------------------------------------------------------------

    def _divide(self, old: Book, to: dict[str, Book]) -> None:
        for name, ride in old.rides.items():
            book = to[self._rides[name]]
            book.rides[name] = ride
            book.moved(ride, "")
        for rider_id, name in old.riders.items():
            if name in self._rides:
                to[self._rides[name]].riders.setdefault(rider_id, name)
        for driver_id, car in old.cars.items():
            if self._cars[driver_id] is car:
                to[self._drivers[driver_id]].bring_over(driver_id, car, self._config.ttl_ms)
                if spot := old.spots.get(driver_id):
                    to[self._drivers[driver_id]].spots[driver_id] = spot
        for book in to.values():
            book.head.seq = max(book.head.seq, old.head.seq)
            for name, closed in old.closed.items():
                known = book.closed.get(name)
                book.closed[name] = Closed(closed.state, closed.answered | (known.answered if known else 0))
        self._demand(old, to)
        for shelf in ("departed", "off_line", "said", "ordered"):
            for about, at in getattr(old, shelf).items():
                if shelf in ("departed", "off_line") and self._is_back(about, at, shelf, old):
                    continue
                for book in self._of_order(about, to) if shelf == "ordered" else self._of_driver(about, to):
                    kept = getattr(book, shelf)
                    kept[about] = max(kept.get(about, at), at, key=abs)
        for driver_id, until in old.blocked.items():
            for book in self._of_driver(driver_id, to):
                book.blocked[driver_id] = max(book.blocked.get(driver_id, 0), until)
        for zone, until in old.blackouts.items():
            book = to[self._of_zone(zone, f"the blackout of {zone}")]
            book.blackouts[zone] = max(book.blackouts.get(zone, 0), until)
        for driver_id, ticket in old.tickets.items():
            tickets = to[self._of_ticket(ticket)].tickets
            tickets[driver_id] = max(tickets.get(driver_id, ticket), ticket, key=lambda t: t.earned_ms)
        for at, due, about, mark in _deadlines(old):
            for book in self._of_deadline(due, about, to):
                book.remind(at, Due(due), about, mark)

    def _is_back(self, driver_id: str, at: int, shelf: str, old: Book) -> bool:
        """Return whether a driver who went from an old region has come to another one since.

        Where the two are one now, that the driver once went would count as soon as the car is silent.
        """
        car = None if driver_id in old.cars else self._cars.get(driver_id)
        return car is not None and (shelf == "departed" or abs(at) < car.seen_ms)

    def _demand(self, old: Book, to: dict[str, Book]) -> None:
        half_life_ms = self._config.rules.half_life_ms
        for book in to.values():
            now = max(book.head.demand_ms, old.head.demand_ms)
            old.fade(now, half_life_ms)
            book.fade(now, half_life_ms)
        for cell, weight in old.demand.items():
            demand = to[self._of_cell(cell)].demand
            demand[cell] = demand.get(cell, 0.0) + weight

    def _of_driver(self, driver_id: str, to: dict[str, Book]) -> Iterable[Book]:
        """Return who is to remember something of a driver: who has the car, else all."""
        there = self._drivers.get(driver_id)
        return [to[there]] if there in to else to.values()

    def _of_order(self, about: str, to: dict[str, Book]) -> Iterable[Book]:
        """Return who is to remember an order about ``d:`` and a driver, or ``z:`` and a zone."""
        if about.startswith("d:"):
            return self._of_driver(about[2:], to)
        region = self._of_zone(about[2:], f"the order about {about[2:]}")
        return [to[region]] if region in to else to.values()

    def _of_deadline(self, due: int, about: str, to: dict[str, Book]) -> Iterable[Book]:
        if due in _OF_RIDES:
            return [to[self._rides[about]]] if about in self._rides else ()
        if due == Due.LIFT:
            return self._of_order(about, to)
        if about.startswith("c:"):
            return self._of_order(about[2:], to)
        if about.startswith("t:"):
            return [book for book in to.values() if about[2:] in book.tickets]
        return to.values() if about.startswith("r:") else self._of_driver(about[2:], to)

    def _entry_of(self, book: Book) -> Any:
        entry = self._layout.new()
        if book.is_over:
            book.clear()
        entry.head, entry.cars, entry.rides, entry.closed, entry.riders, *others = book.maps()
        entry.notes, entry.far, entry.spots = others
        return entry

    def _beside(self, before: dict[str, Any], heirs: dict[str, list[str]], after: dict[str, Any]) -> None:
        """Bring over what stands beside the books: what has been learned, ways, timers."""
        for region, old in sorted(before.items(), key=lambda item: len(item[1].took)):
            for heir in heirs[region]:
                new = after[heir]
                for name in _LEARNED:
                    if getattr(old, name):
                        setattr(new, name, dict(getattr(old, name)))
                new.told = max(new.told or (0, ""), old.told or (0, ""), key=lambda kept: kept[1])
                if new.told == (0, ""):
                    new.told = None
                there = {timer.name: timer.at for timer in new.timers_}
                for timer in old.timers_:
                    there[timer.name] = min(there.get(timer.name, NEVER), timer.at)
                new.timers_ = [TimerRecord(at, name) for name, at in sorted(there.items()) if name != "due"]
            for name, way in old.ways.items():
                if name in self._rides:
                    after[self._rides[name]].ways[name] = way
        for region, old in sorted(before.items()):
            self._add_up(old, {heir: after[heir] for heir in heirs[region]})
        for entry in after.values():
            book = Book(head=entry.head)
            if book.next_ms < NEVER:
                entry.timers_.append(TimerRecord(book.next_ms, "due"))

    def _add_up(self, old: Any, to: dict[str, Any]) -> None:
        """Add what drivers have answered, and how long they were idle, to what their new regions know of it.

        A driver's goes with the driver, what is known of the fleet goes to all.
        """
        for about, (expires, tally) in old.answered.items():
            for new in self._of_known(_driver_of(about), to):
                known = new.answered.get(about, (0, Tally()))
                added = tally.joined(known[1], self._answers.half_life_ms)
                new.answered[about] = (max(expires, known[0]), added)
        for driver_id, (expires, idle) in old.idled.items():
            for new in self._of_known(driver_id, to):
                known = new.idled.get(driver_id, (0, Idle()))
                added = idle.joined(known[1], self._income.half_life_ms)
                new.idled[driver_id] = (max(expires, known[0]), added)

    def _of_known(self, driver_id: str, to: dict[str, Any]) -> Iterable[Any]:
        owner = self._drivers.get(driver_id) or self._owners.get(driver_id, "")
        return [to[owner]] if owner in to else to.values()

    def _let_wait(self, row: PendingRow, after: dict[str, Any], heir: str) -> None:
        """Let a row wait in the region that it is for now; a neighbour's wish is asked for again."""
        try:
            event: Event = self._decode(row.raw)
        except NOT_JSON:  # a dead letter in its time, wherever
            region, raw = heir, row.raw
        else:
            if isinstance(event, Handover) and not event.driver_id:
                return
            region = self._of_event(event) or heir
            raw = self._encode(msgspec.structs.replace(event, region=region))
        if region not in after:
            after[region] = self._layout.new()
        after[region].pending_.append(msgspec.structs.replace(row, raw=raw))

    def _of_event(self, event: Event) -> str | None:
        if isinstance(event, Handover):  # the gate has told its driver's positions where it goes
            known = self._drivers.get(event.driver_id) or self._owners.get(event.driver_id)
            return known or self._regions.of_place(event.lat, event.lon)
        if isinstance(event, Position | DriverStatus):
            known = self._drivers.get(event.driver_id) or self._owners.get(event.driver_id)
            return known or self._regions.of_place(event.lat or 0.0, event.lon or 0.0)
        if isinstance(event, Command) and event.driver_id and not event.zone:
            return self._drivers.get(event.driver_id) or self._owners.get(event.driver_id)
        named = self._rides.get(event.request_id)
        return named or self._of_zone(event.zone, f"what waits of request {event.request_id}")


def by_settings(settings: RidesharingSettings) -> Rekeying:
    """Return what gives the state of the app the regions of its settings.

    Raises:
        CannotBeRekeyed: Prices follow scarcity: what a quote promises stands in the region that made it; or
            hints are given, by what was counted in each region.
    """
    if settings.surge.on:
        raise CannotBeRekeyed(
            "with surge.on what was promised stands in the region that promised it: regions cannot change"
        )
    if settings.hints.on:
        raise CannotBeRekeyed(
            "with hints.on demand is counted by the regions that there are: regions cannot change"
        )
    return Rekeying(settings.dispatch_config())


def _book_of(entry: Any, ttl_ms: int) -> Book:
    """Return the book that an entry of the dispatcher holds."""
    if entry.head is None and entry.book is not None:
        book = Book()
        adopt(entry.book, book, ttl_ms)
        return book
    kept = (entry.cars, entry.rides, entry.closed, entry.riders, entry.notes, entry.far)
    cars, rides, closed, riders, notes, far = map(InMemory, kept)
    return Book(cars, rides, closed, riders, notes, far, entry.head, InMemory(entry.spots))


def _driver_of(about: str) -> str:
    """Return whose tally it is; nothing: it is the fleet's."""
    kind, colon, name = about.partition(":")
    return name if colon and kind == "d" else ""


def _deadlines(book: Book) -> Iterator[Deadline]:
    yield from book.head.near
    for _, together in book.maps()[-2].items():
        yield from together
