"""The book of a region: its drivers, its requests, and what is due when.

It stands in parts: where a driver has moved, the part is read and written that this driver is in, and of all
other drivers nothing. What nearly everything reads or changes (how much there is, what is due within seconds,
who is searched for) is the head, one small entry.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from heapq import heappush
from typing import Any, Final, Generic, Protocol, TypeVar

from millrace.parts.deadlines import take_due
from millrace.state.handles import hash_of
from millrace.time import NEVER
from millrace_apps.ridesharing.processes.geo import DEMAND_RESOLUTION, cell_of
from millrace_apps.ridesharing.state.entries import (
    Car,
    Closed,
    Deadline,
    Due,
    Head,
    Ride,
    ShortTripTicket,
    Spot,
    Wish,
    whole_second,
)

T = TypeVar("T")

#: Demand below this weight is forgotten.
_LEAST_DEMAND: Final = 0.02
#: So long a driver who went off line stays so, whatever the phone sends, ms.
OFF_LINE_MS: Final = 43_200_000
#: Deadlines beyond the stretch of time that now is in stand in parts, by stretches of this length, ms.
_SPAN_MS: Final = 20_000
#: So many deadlines of a stretch are kept together.
_TOGETHER: Final = 32
#: Drivers are looked through for those who have fallen silent by so many places of the map of cars.
_PLACES: Final = 64
#: As a plain number: compared with for every deadline.
_STALE: Final = int(Due.STALE)


def faded(demand: Mapping[int, float], passed_ms: int, half_life_ms: int) -> dict[int, float]:
    """Return demand by cell after so long, ms; what is next to nothing is forgotten.

    >>> faded({1: 4.0, 2: 0.03}, 600_000, 600_000)
    {1: 2.0}
    """
    factor = 0.5 ** (passed_ms / half_life_ms)
    return {cell: weight * factor for cell, weight in demand.items() if weight * factor >= _LEAST_DEMAND}


def per_minute(demand: Mapping[int, float], half_life_ms: int) -> dict[int, float]:
    """Return the requests a minute by cell: a steady rate r has the weight r · half-life / ln 2.

    Args:
        demand: Cell → weight, as it fades.
        half_life_ms: Demand of so long ago counts half, ms.
    """
    minutes = half_life_ms / 60_000 / math.log(2)
    return {cell: weight / minutes for cell, weight in demand.items()}


class Kept(Protocol[T]):
    """A map of the state, or a dict in its place."""

    def get(self, key: Any, /) -> T | None:
        """Return an entry."""

    def put(self, key: Any, value: T, /) -> None:
        """Write an entry."""

    def remove(self, key: Any, /) -> None:
        """Forget an entry."""

    def items(self) -> Any:
        """Iterate over all entries."""

    def some(self, place: int, of: int, /) -> list[tuple[Any, T]]:
        """Return the entries at one of so many places."""

    def clear(self) -> None:
        """Forget all entries."""


class InMemory(dict[Any, Any]):
    """A map of no process's state, for who wants a book alone."""

    def put(self, key: Any, value: Any) -> None:
        """Write an entry."""
        self[key] = value

    def remove(self, key: Any) -> None:
        """Forget an entry."""
        self.pop(key, None)

    def some(self, place: int, of: int) -> list[tuple[Any, Any]]:
        """Return the entries at one of so many places."""
        return [item for item in self.items() if hash_of(item[0]) & (of - 1) == place]


class Shelf(Generic[T]):
    """One of the book's maps, used as a dict; the head knows how much is in it.

    Args:
        book: The book.
        name: What the head counts it by.
        kept: Where it stands.
        prefix: What its keys begin with there, where several share a map.
    """

    __slots__ = ("_book", "_kept", "_name", "_prefix", "get")

    def __init__(self, book: Book, name: str, kept: Kept[T], prefix: str = "") -> None:
        self._book, self._name, self._kept, self._prefix = book, name, kept, prefix
        #: Returns an entry, or ``None`` (or what is given in its place).
        self.get: Any = self._prefixed if prefix else kept.get

    def _prefixed(self, key: str, default: Any = None) -> Any:
        found = self._kept.get(self._prefix + key)
        return default if found is None else found

    def __getitem__(self, key: str) -> T:
        found: T | None = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None

    def __setitem__(self, key: str, value: T) -> None:
        if self.get(key) is None:
            sizes = self._book.head.sizes
            sizes[self._name] = sizes.get(self._name, 0) + 1
        self._kept.put(self._prefix + key, value)

    def __delitem__(self, key: str) -> None:
        self.pop(key)

    def pop(self, key: str, *default: Any) -> Any:
        """Take an entry out and return it; without one what is given in its place."""
        found = self.get(key)
        if found is None:
            if not default:
                raise KeyError(key)
            return default[0]
        self._kept.remove(self._prefix + key)
        sizes = self._book.head.sizes
        left = sizes[self._name] - 1
        if left:
            sizes[self._name] = left
        else:
            del sizes[self._name]
        return found

    def __len__(self) -> int:
        return self._book.head.sizes.get(self._name, 0)

    def items(self) -> Iterator[tuple[str, T]]:
        """Iterate over all entries, in no order: every part is read."""
        if not len(self):
            return iter(())
        prefix, all_of_them = self._prefix, self._kept.items()
        if not prefix:
            return iter(all_of_them)
        return ((key[len(prefix) :], value) for key, value in all_of_them if key.startswith(prefix))

    def values(self) -> Iterator[T]:
        """Iterate over all values."""
        return (value for _, value in self.items())

    def update(self, entries: Mapping[str, T]) -> None:
        """Write some entries."""
        for key, value in entries.items():
            self[key] = value

    def setdefault(self, key: str, value: T) -> None:
        """Write an entry where there is none."""
        if self.get(key) is None:
            self[key] = value


class Book:
    """Everything that a region keeps.

    Args:
        cars: Driver → car.
        rides: Request → ride.
        closed: Request → how it ended.
        riders: Rider → the open request.
        notes: ``departed``, ``off_line``, ``said`` and ``ordered`` in one.
        far: Deadlines by stretches of time.
        head: The rest.
        spots: Driver → place in the line of a venue.

    Attributes:
        departed: Driver who was handed over → when. Positions from before the gate knew are not theirs.
        off_line: Driver who went off line → when, ms; less than 0: a position since then has been told of.
        said: Driver who has lately come on line or gone off → when, by the phone, ms.
        ordered: ``d:`` and a driver, or ``z:`` and a zone → when it was last blocked or let go by hand, ms.
    """

    __slots__ = (
        "_cars", "_closed", "_far", "_notes", "_riders", "_rides", "_spots", "cars", "closed", "departed",
        "head", "off_line", "ordered", "riders", "rides", "said", "spots",
    )  # fmt: skip

    def __init__(
        self,
        cars: Kept[Car] | None = None,
        rides: Kept[Ride] | None = None,
        closed: Kept[Closed] | None = None,
        riders: Kept[str] | None = None,
        notes: Kept[int] | None = None,
        far: Kept[list[Deadline]] | None = None,
        head: Head | None = None,
        spots: Kept[Spot] | None = None,
    ) -> None:
        def kept(given: Kept[T] | None) -> Kept[T]:
            return InMemory() if given is None else given

        self.head = Head() if head is None else head
        self._cars, self._far = kept(cars), kept(far)
        self._rides, self._closed = kept(rides), kept(closed)
        self._riders, self._notes, self._spots = kept(riders), kept(notes), kept(spots)
        noted: Kept[int] = self._notes
        self.cars: Shelf[Car] = Shelf(self, "cars", self._cars)
        self.rides: Shelf[Ride] = Shelf(self, "rides", self._rides)
        self.closed: Shelf[Closed] = Shelf(self, "closed", self._closed)
        self.riders: Shelf[str] = Shelf(self, "riders", self._riders)
        self.spots: Shelf[Spot] = Shelf(self, "spots", self._spots)
        self.departed: Shelf[int] = Shelf(self, "departed", noted, "d:")
        self.off_line: Shelf[int] = Shelf(self, "off_line", noted, "o:")
        self.said: Shelf[int] = Shelf(self, "said", noted, "s:")
        self.ordered: Shelf[int] = Shelf(self, "ordered", noted, "c:")

    def stands_in(self, cars: object) -> bool:
        """Return whether these are the book's cars."""
        return self._cars is cars

    def maps(self) -> tuple[Head | None, Any, Any, Any, Any, Any, Any, Any]:
        """Return what a book in memory keeps: the head (``None``: nothing is kept), and each map."""
        maps = (self._cars, self._rides, self._closed, self._riders, self._notes, self._far, self._spots)
        return (None if self.is_over else self.head), *(dict(kept.items()) for kept in maps)  # type: ignore[return-value]

    # -- what stands in the head -----------------------------------------------------------------

    @property
    def demand(self) -> dict[int, float]:
        """Cell → weight of the requests of late."""
        return self.head.demand

    @property
    def blocked(self) -> dict[str, int]:
        """Driver → until when, ms."""
        return self.head.blocked

    @property
    def blackouts(self) -> dict[str, int]:
        """Zone → until when, ms."""
        return self.head.blackouts

    @property
    def wishes(self) -> dict[str, Wish]:
        """Request of a neighbour → what is wished."""
        return self.head.wishes

    @property
    def searching(self) -> int:
        """How many of the rides look for a driver."""
        return self.head.searching

    @property
    def tickets(self) -> dict[str, ShortTripTicket]:
        """Driver → what a short trip from the line of a venue has earned."""
        return self.head.tickets

    def next_seq(self) -> int:
        """Count a journal entry or handover, and return the number of all so far."""
        self.head.seq += 1
        return self.head.seq

    # -- drivers ---------------------------------------------------------------------------------

    def enter(self, driver_id: str, car: Car, ttl_ms: int, now_ms: int) -> None:
        """Take a driver in, who is stale when nothing is heard for ``ttl_ms``, and now at the earliest."""
        if car.seen_ms + ttl_ms < now_ms:
            car.watch_ms = whole_second(now_ms)
        self.bring_over(driver_id, car, ttl_ms)

    def bring_over(self, driver_id: str, car: Car, ttl_ms: int) -> None:
        """Take a driver in as another book had the car."""
        self.cars[driver_id] = car
        self._watch(driver_id, car.silent_at(ttl_ms))

    def leave(self, driver_id: str) -> Car:
        """Strike a driver off, and return the car; a place in a line is lost."""
        self.lose_spot(driver_id)
        car: Car = self.cars.pop(driver_id)
        return car

    def lose_spot(self, driver_id: str) -> None:
        """Take a driver out of the line of a venue."""
        if self.spots:
            self.spots.pop(driver_id, None)

    def watch_again(self, driver_id: str, at_ms: int) -> None:
        """Look at a time, and not before, whether a driver has fallen silent."""
        self.cars[driver_id].watch_ms = at_ms
        self._watch(driver_id, at_ms)

    def _watch(self, driver_id: str, at_ms: int) -> None:
        """Look at a time at the latest whether a driver has fallen silent."""
        head = self.head
        if not head.silent:
            head.silent = [0] * _PLACES
        place = hash_of(driver_id) & (_PLACES - 1)
        head.silent[place] = min(head.silent[place] or at_ms, at_ms)
        head.silent_ms = min(head.silent_ms, at_ms)

    def _silent(self, now_ms: int, ttl_ms: int) -> list[Deadline]:
        """Return who is stale by a time, the last first; and keep when to look again."""
        head, found = self.head, list[Deadline]()
        if head.silent_ms > now_ms:
            return found
        for place, at in enumerate(head.silent):
            if not 0 < at <= now_ms:
                continue
            first = NEVER
            for driver_id, car in self._cars.some(place, _PLACES):
                silent = car.silent_at(ttl_ms)
                if silent <= now_ms:
                    found.append((silent, _STALE, driver_id, 0))
                elif silent < first:
                    first = silent
            head.silent[place] = first if first < NEVER else 0
        head.silent_ms = min((at for at in head.silent if at), default=NEVER)
        return sorted(found, reverse=True)

    # -- requests --------------------------------------------------------------------------------

    def moved(self, ride: Ride, before: str) -> None:
        """Keep that a ride has another state than before."""
        head = self.head
        head.searching += (ride.state == "processing") - (before == "processing")
        if ride.state in ("processing", "offered"):
            head.looked_for[ride.request_id] = ride.state == "processing"
        else:
            head.looked_for.pop(ride.request_id, None)

    def waiting(self) -> list[Ride]:
        """Return the rides that look for a driver."""
        return [self.rides[name] for name, waits in self.head.looked_for.items() if waits]

    def is_offered(self, request_id: str) -> bool:
        """Return whether a request is offered to a driver."""
        return self.head.looked_for.get(request_id) is False

    def open_request_of(self, rider_id: str) -> str:
        """Return the request of a rider for which a driver is searched or bound; empty: none."""
        found: str | None = self.riders.get(rider_id)
        return found or ""

    def mark_rider(self, ride: Ride, before: str, *, is_over: bool) -> None:
        """Remember, or forget, which request of a rider is open; what is booked for later is not."""
        riders = self.riders
        if is_over:
            if riders.get(ride.rider_id) == ride.request_id:
                del riders[ride.rider_id]
        elif before in ("", "booked") and ride.state != "booked":
            riders.setdefault(ride.rider_id, ride.request_id)

    def ask(self, lat: float, lon: float, now_ms: int, half_life_ms: int) -> None:
        """Count a request as demand."""
        self.fade(now_ms, half_life_ms)
        cell, demand = cell_of(lat, lon, DEMAND_RESOLUTION), self.head.demand
        demand[cell] = demand.get(cell, 0.0) + 1.0

    def fade(self, now_ms: int, half_life_ms: int) -> None:
        """Let demand grow old."""
        head = self.head
        passed = now_ms - head.demand_ms
        if passed <= 0:
            return
        head.demand = faded(head.demand, passed, half_life_ms)
        head.demand_ms = now_ms

    def take_wishes(self) -> list[tuple[str, Wish]]:
        """Return what neighbours wish, by request, and forget it."""
        wishes, self.head.wishes = sorted(self.head.wishes.items()), {}
        return wishes

    # -- what is due -----------------------------------------------------------------------------

    def remind(self, at_ms: int, due: Due, about: str, mark: int = 0) -> None:
        """Set a deadline."""
        head, deadline = self.head, (at_ms, int(due), about, mark)
        if at_ms < head.horizon_ms:
            heappush(head.near, deadline)
            return
        span = at_ms // _SPAN_MS
        before = head.far.get(span, 0)
        key = _far_key(span, before // _TOGETHER)
        self._far.put(key, [*(self._far.get(key) or ()), deadline])
        head.far[span] = before + 1
        head.far_ms = min(head.far_ms, span * _SPAN_MS)

    def draw_near(self, now_ms: int) -> None:
        """Have at hand what is due in the stretch of time that a moment is in."""
        head = self.head
        if now_ms < head.horizon_ms:
            return
        head.horizon_ms = (now_ms // _SPAN_MS + 1) * _SPAN_MS
        if head.far_ms >= head.horizon_ms:
            return
        for span in [span for span in head.far if span * _SPAN_MS < head.horizon_ms]:
            for number in range(-(-head.far.pop(span) // _TOGETHER)):
                key = _far_key(span, number)
                for deadline in self._far.get(key) or ():
                    heappush(head.near, deadline)
                self._far.remove(key)
        head.far_ms = min(head.far) * _SPAN_MS if head.far else NEVER

    @property
    def next_ms(self) -> int:
        """When there is something to look at next, ms; ``NEVER``: nothing is due."""
        head = self.head
        first = head.near[0][0] if head.near else NEVER
        return min(first, head.far_ms, head.silent_ms)

    def all_due(self, now_ms: int, ttl_ms: int) -> Iterator[tuple[int, str, int]]:
        """Yield every deadline up to a time, in order; what is set meanwhile is among them.

        Args:
            now_ms: That time.
            ttl_ms: A driver of whom nothing is heard for so long is stale, ms.

        Yields:
            What for (a :class:`Due`), about what, and the mark.
        """
        self.draw_near(now_ms)
        silent = self._silent(now_ms, ttl_ms)
        near = self.head.near
        while True:
            next_silent = silent and (not near or silent[-1] < near[0])
            found = silent.pop() if next_silent else take_due(near, now_ms)
            if found is None:
                return
            yield found[1:]

    def order(self, about: str, said_ms: int, until_ms: int) -> bool:
        """Remember when a block or its end was ordered, unless a later order has been carried out.

        Args:
            about: ``d:`` and the driver, or ``z:`` and the zone.
            said_ms: When it was ordered, ms.
            until_ms: Until when it is to be remembered, ms.

        Returns:
            Whether it is the newest.
        """
        if self.ordered.get(about, said_ms) > said_ms:
            return False
        self.ordered[about] = said_ms
        self.remind(until_ms, Due.FORGET, f"c:{about}", said_ms)
        return True

    @property
    def is_over(self) -> bool:
        """Whether nothing is kept that anything could come of."""
        head = self.head
        people = (self.cars, self.rides, self.closed, self.departed, self.off_line, self.said)
        return not any((*people, head.blocked, head.blackouts, self.ordered, head.wishes, head.tickets))

    def clear(self) -> None:
        """Forget the deadlines of what is over, and who asked for it."""
        self._far.clear()
        if self.riders:
            for rider_id, _ in list(self.riders.items()):
                del self.riders[rider_id]


def _far_key(span: int, number: int) -> int:
    return span << 20 | number
