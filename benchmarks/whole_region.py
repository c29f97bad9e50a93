# ruff: noqa: D102 - what its methods do is said where they are those of the book in parts
"""The book of a region as it was before it stood in parts: one entry, and a heap of all that is due.

What a benchmark of the parts is compared with, and what tests hold them against.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappush
from typing import Any

from millrace.parts.deadlines import take_due
from millrace.time import NEVER
from millrace_apps.ridesharing.contracts.events import Position
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.processes.reconcile import is_odd
from millrace_apps.ridesharing.state.book import Book
from millrace_apps.ridesharing.state.earlier import EarlierBook, EarlierCar
from millrace_apps.ridesharing.state.entries import Car, Due, Ride, Wish, whole_second


class WholeRegion(Dispatcher):
    """The dispatcher with a book that is read and written as a whole."""

    name = "Dispatcher"

    def _kept(self, now: int) -> Book | None:
        found = self.book.value
        return None if found is None else WholeBook(found)  # type: ignore[return-value]

    def _begun(self, now: int) -> Book:
        self.book.value = EarlierBook()
        return WholeBook(self.book.value)  # type: ignore[return-value]

    def _settle(self, book: Any, ctx: Any, after: int) -> None:
        if book.is_over:
            self.book.clear()
        super()._settle(book, ctx, after)

    def _is_only_a_place(self, event: Position) -> bool:
        book = self.book.value
        car = book.cars.get(event.driver_id) if book is not None and self._one_region else None
        if car is None or book is None:
            return False
        if car.request_id:
            ride = book.rides.get(car.request_id)
            if ride is not None and is_odd(ride, event.state):
                return False
        at = event.event_time_ms
        if at > car.seen_ms:
            car.lat, car.lon, car.seen_ms, car.idle = event.lat, event.lon, at, event.state == "idle"
        return True


class WholeBook:
    """What handlers ask of a book, of plain dicts and one heap.

    Args:
        kept: The entry.
    """

    def __init__(self, kept: EarlierBook) -> None:
        self.kept = kept
        self.cars, self.rides, self.closed = kept.cars, kept.rides, kept.closed
        self.blocked, self.blackouts, self.wishes = kept.blocked, kept.blackouts, kept.wishes
        self.departed, self.off_line = kept.departed, kept.off_line
        self.said, self.ordered = kept.said, kept.ordered

    @property
    def demand(self) -> dict[int, float]:
        return self.kept.demand

    @property
    def searching(self) -> int:
        return sum(ride.state == "processing" for ride in self.rides.values())

    @property
    def next_ms(self) -> int:
        return self.kept.deadlines[0][0] if self.kept.deadlines else NEVER

    @property
    def is_over(self) -> bool:
        k = self.kept
        people = (k.cars, k.rides, k.closed, k.departed, k.off_line, k.said)
        return not any((*people, k.blocked, k.blackouts, k.ordered, k.wishes))

    def clear(self) -> None:
        pass

    def draw_near(self, now_ms: int) -> None:
        pass

    def next_seq(self) -> int:
        self.kept.seq += 1
        return self.kept.seq

    def enter(self, driver_id: str, car: Car, ttl_ms: int, now_ms: int) -> None:
        of_place = (car.lat, car.lon, car.seen_ms, car.vehicle_class, car.request_id, car.free_since_ms)
        self.cars[driver_id] = EarlierCar(*of_place, car.idle, car.online, car.stay_ms, now_ms)
        self.remind(whole_second(max(car.seen_ms + ttl_ms, now_ms)), Due.STALE, driver_id, now_ms)

    def lose_spot(self, driver_id: str) -> None:
        """There were no lines."""

    def leave(self, driver_id: str) -> EarlierCar:
        return self.cars.pop(driver_id)

    def watch_again(self, driver_id: str, at_ms: int) -> None:
        self.remind(at_ms, Due.STALE, driver_id, self.cars[driver_id].entered_ms)

    def moved(self, ride: Ride, before: str) -> None:
        pass

    def waiting(self) -> list[Ride]:
        return [ride for ride in self.rides.values() if ride.state == "processing"]

    def is_offered(self, request_id: str) -> bool:
        return request_id in self.rides and self.rides[request_id].state == "offered"

    def open_request_of(self, rider_id: str) -> str:
        open_ones = (r for r in self.rides.values() if r.rider_id == rider_id)
        known = {r.request_id for r in open_ones if r.state not in ("", "booked")}
        first = (self.kept.riders or {}).get(rider_id, "")
        return first if first in known else ""

    def mark_rider(self, ride: Ride, before: str, *, is_over: bool) -> None:
        riders = self.kept.riders = self.kept.riders or {}
        if is_over and riders.get(ride.rider_id) == ride.request_id:
            del riders[ride.rider_id]
        elif not is_over and before in ("", "booked") and ride.state != "booked":
            riders.setdefault(ride.rider_id, ride.request_id)

    def ask(self, lat: float, lon: float, now_ms: int, half_life_ms: int) -> None:
        self._with_demand(lambda book: book.ask(lat, lon, now_ms, half_life_ms))

    def fade(self, now_ms: int, half_life_ms: int) -> None:
        self._with_demand(lambda book: book.fade(now_ms, half_life_ms))

    def _with_demand(self, work: Any) -> None:
        book = Book()
        book.head.demand, book.head.demand_ms = self.kept.demand, self.kept.demand_ms
        work(book)
        self.kept.demand, self.kept.demand_ms = book.head.demand, book.head.demand_ms

    def take_wishes(self) -> list[tuple[str, Wish]]:
        wishes = sorted(self.wishes.items())
        self.wishes.clear()
        return wishes

    def remind(self, at_ms: int, due: Due, about: str, mark: int = 0) -> None:
        heappush(self.kept.deadlines, (at_ms, int(due), about, mark))

    def all_due(self, now_ms: int, ttl_ms: int) -> Iterator[tuple[int, str, int]]:
        def later(deadline: tuple[int, int, str, int]) -> int:
            at, due, about, mark = deadline
            car = self.cars.get(about) if due == Due.STALE else None
            if car is not None and car.entered_ms == mark and car.seen_ms + ttl_ms > now_ms:
                return whole_second(car.seen_ms + ttl_ms)
            return at

        while (found := take_due(self.kept.deadlines, now_ms, later)) is not None:
            _, due, about, mark = found
            if due != Due.STALE or (about in self.cars and self.cars[about].entered_ms == mark):
                yield due, about, mark

    def order(self, about: str, said_ms: int, until_ms: int) -> bool:
        if self.ordered.get(about, said_ms) > said_ms:
            return False
        self.ordered[about] = said_ms
        self.remind(until_ms, Due.FORGET, f"c:{about}", said_ms)
        return True
