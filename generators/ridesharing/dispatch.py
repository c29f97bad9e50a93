"""A plain dispatcher that closes the loop in memory: the nearest idle driver, one offer at a time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

from millrace_apps.generators.ridesharing.city import CENTRE, DEGREES_EAST, DEGREES_NORTH, distance_m
from millrace_apps.generators.ridesharing.messages import Assignment, Message, Offer, Quote
from millrace_apps.ridesharing.contracts.events import (
    Answer,
    Cancellation,
    DriverStatus,
    Position,
    Progress,
    QuoteRequest,
    RideRequest,
    VehicleClass,
)
from millrace_apps.ridesharing.contracts.records import Release, ReleaseReason

#: A driver has this long to answer, ms.
OFFER_MS: Final = 15_000
#: A rider has this long to come to the car, ms.
NO_SHOW_MS: Final = 300_000
#: A driver without a position for this long gets no offer, ms.
STALE_MS: Final = 60_000
#: A ride that is booked ahead is offered from this long before the pick-up, ms.
AHEAD_MS: Final = 600_000
#: Drivers farther away are not asked, metres.
RADIUS_M: Final = 5_000.0
#: An assigned driver may take this long, ms, and so much for each metre; then another one is sent.
_APPROACH_MS: Final = 240_000
_APPROACH_MS_PER_M: Final = 500
_CELL_M: Final = 1_000.0
#: A quote, always of the usual price, holds so long, ms.
QUOTE_MS: Final = 300_000
#: So often the requests without a driver are looked at, ms.
WINDOW_MS: Final = 1_000


class _Car:
    __slots__ = ("cell", "driver_id", "request_id", "seen_ms", "vehicle_class", "x", "y")

    def __init__(self, driver_id: str, vehicle_class: VehicleClass) -> None:
        self.driver_id = driver_id
        self.vehicle_class = vehicle_class
        self.x = self.y = 0.0
        self.seen_ms = 0
        self.request_id = ""
        self.cell: tuple[str, int, int] | None = None


class _Order:
    __slots__ = ("asked", "attempt", "driver_id", "offer_id", "request", "stage", "x", "y")

    def __init__(self, request: RideRequest) -> None:
        self.request = request
        self.x, self.y = _metres(request.pickup_lat, request.pickup_lon)
        self.attempt = 0
        self.asked: set[str] = set()
        self.driver_id = self.offer_id = ""
        self.stage = "open"


class NearestDispatcher:
    """Offers every request, oldest first, to the nearest idle driver of its class that has not refused it.

    It knows what the events say and nothing else, as an app does.

    >>> from millrace_apps.generators.ridesharing.agents import World
    >>> from millrace_apps.generators.ridesharing.profile import RidesProfile
    >>> profile = RidesProfile(seed=3, drivers=100, requests_per_hour=200, rings=2)
    >>> world, dispatcher = World(profile), NearestDispatcher()
    >>> for window in range(1_200):
    ...     now = world.now_ms + WINDOW_MS
    ...     for event in world.advance(now):
    ...         dispatcher.observe(event.event)
    ...     for message in dispatcher.decide(now):
    ...         world.receive(message)
    >>> world.fates["served"] > 0, world.conflicts
    (True, 0)
    """

    def __init__(self) -> None:
        self._cars: dict[str, _Car] = {}
        self._grid: dict[tuple[str, int, int], dict[str, _Car]] = {}
        self._orders: dict[str, _Order] = {}
        self._open: dict[str, _Order] = {}
        # (time, request, attempt, stage): acts only if the order is still there.
        self._deadlines: list[tuple[int, str, int, str]] = []
        self._out: list[Message] = []
        self._observers: dict[type, Callable[[Any], None]] = {
            Position: self._on_location,
            DriverStatus: self._on_status,
            RideRequest: self._on_request,
            QuoteRequest: self._on_quote_request,
            Answer: self._on_answer,
            Cancellation: self._on_cancellation,
            Progress: self._on_progress,
        }

    @property
    def size(self) -> int:
        """Entries of state: cars, orders and deadlines."""
        return len(self._cars) + len(self._orders) + len(self._deadlines)

    def observe(self, event: object) -> None:
        """Take note of an agent's event."""
        self._observers[type(event)](event)

    def decide(self, now_ms: int) -> list[Message]:
        """Return what is to be said at this time: answers to events, what has run out, new offers."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, request_id, attempt, stage = heappop(self._deadlines)
            order = self._orders.get(request_id)
            if order is not None and (order.attempt, order.stage) == (attempt, stage):
                self._run_out(order, now_ms)
        for order in list(self._open.values()):
            self._offer(order, now_ms)
        messages, self._out = self._out, []
        return messages

    # What agents say.

    def _on_location(self, event: Position) -> None:
        car = self._cars.get(event.driver_id)
        if car is None:
            car = self._cars[event.driver_id] = _Car(event.driver_id, event.vehicle_class)
        car.x, car.y = x, y = _metres(event.lat, event.lon)
        car.seen_ms = event.event_time_ms
        cell = None if car.request_id else (car.vehicle_class, int(x // _CELL_M), int(y // _CELL_M))
        if cell != car.cell:
            self._move(car, cell)

    def _on_status(self, event: DriverStatus) -> None:
        if event.status == "online" and event.lat is not None and event.lon is not None:
            self._on_location(
                Position(
                    event_time_ms=event.event_time_ms,
                    event_id=event.event_id,
                    driver_id=event.driver_id,
                    vehicle_class=event.vehicle_class,
                    lat=event.lat,
                    lon=event.lon,
                    state="idle",
                )
            )
        elif event.status == "offline" and (car := self._cars.get(event.driver_id)) is not None:
            self._move(car, None)
            if not car.request_id:
                del self._cars[event.driver_id]

    def _on_request(self, event: RideRequest) -> None:
        order = self._orders[event.request_id] = _Order(event)
        if event.pickup_at_ms > event.event_time_ms:
            order.stage = "booked"
            self._remind(order, event.pickup_at_ms - AHEAD_MS)
        else:
            self._open[event.request_id] = order

    def _on_quote_request(self, event: QuoteRequest) -> None:
        at = event.event_time_ms
        self._out.append(Quote(event.quote_id, 1.0, at + QUOTE_MS, at))

    def _on_answer(self, event: Answer) -> None:
        order, at = self._orders.get(event.request_id), event.event_time_ms
        current = order is not None and order.stage == "offered" and order.offer_id == event.offer_id
        if order is None or not current:
            if event.answer == "accept":
                self._say_release(event.request_id, event.driver_id, "expired", at)
        elif event.answer == "reject":
            self._reopen(order)
        else:
            order.stage = "assigned"
            self._out.append(Assignment(event.request_id, event.driver_id, event.attempt, at))
            car = self._cars[event.driver_id]
            away = distance_m(car.x, car.y, order.x, order.y)
            ready = max(at, order.request.pickup_at_ms - AHEAD_MS)
            self._remind(order, ready + _APPROACH_MS + int(_APPROACH_MS_PER_M * away))

    def _on_cancellation(self, event: Cancellation) -> None:
        order, at = self._orders.get(event.request_id), event.event_time_ms
        if order is None:
            return
        if event.by == "driver" and event.reason == "breakdown":
            if order.driver_id == event.driver_id:
                self._say_release(event.request_id, event.driver_id, "replaced", at)
                self._reopen(order)
            return
        if order.driver_id:
            self._say_release(event.request_id, order.driver_id, "rider_cancelled", at)
        self._forget(order)

    def _on_progress(self, event: Progress) -> None:
        order = self._orders.get(event.request_id)
        if order is None:
            return
        order.stage = event.stage
        if event.stage == "arrived":
            ready = max(event.event_time_ms, order.request.pickup_at_ms)
            self._remind(order, ready + NO_SHOW_MS)
        elif event.stage == "finished":
            self._forget(order)

    # What follows.

    def _run_out(self, order: _Order, now_ms: int) -> None:
        request_id = order.request.request_id
        if order.stage == "booked":
            order.stage = "open"
            self._open[request_id] = order
        elif order.stage == "offered":
            self._say_release(request_id, order.driver_id, "expired", now_ms)
            self._reopen(order)
        elif order.stage == "assigned":
            self._say_release(request_id, order.driver_id, "replaced", now_ms)
            self._reopen(order)
        else:
            self._say_release(request_id, order.driver_id, "no_show", now_ms)
            self._forget(order)

    def _offer(self, order: _Order, now_ms: int) -> None:
        car = self._nearest(order, now_ms)
        if car is None:
            return
        request_id = order.request.request_id
        order.attempt += 1
        order.stage, order.driver_id = "offered", car.driver_id
        order.offer_id = f"{request_id}-o{order.attempt}"
        order.asked.add(car.driver_id)
        car.request_id = request_id
        self._move(car, None)
        del self._open[request_id]
        self._remind(order, now_ms + OFFER_MS)
        self._out.append(
            Offer(order.offer_id, request_id, car.driver_id, order.attempt, now_ms + OFFER_MS, now_ms)
        )

    def _nearest(self, order: _Order, now_ms: int) -> _Car | None:
        """Search ring by ring; a car of the next ring may be nearer, so one ring more than the first hit."""
        kind, column, row = order.request.vehicle_class, int(order.x // _CELL_M), int(order.y // _CELL_M)
        best, best_m = None, RADIUS_M
        ring = 0
        # No point of a ring is nearer than the rings inside it are wide.
        while (ring - 1) * _CELL_M < best_m:
            for cell in _ring(kind, column, row, ring):
                for car in self._grid.get(cell, {}).values():
                    away = distance_m(car.x, car.y, order.x, order.y)
                    fresh = car.seen_ms > now_ms - STALE_MS and car.driver_id not in order.asked
                    if fresh and (away, car.driver_id) < (best_m, best.driver_id if best else ""):
                        best, best_m = car, away
            ring += 1
        return best

    def _reopen(self, order: _Order) -> None:
        self._let_go(order)
        order.stage = "open"
        self._open[order.request.request_id] = order

    def _forget(self, order: _Order) -> None:
        self._let_go(order)
        self._open.pop(order.request.request_id, None)
        del self._orders[order.request.request_id]

    def _let_go(self, order: _Order) -> None:
        car = self._cars.get(order.driver_id)
        order.driver_id = order.offer_id = ""
        if car is not None:
            # The car's next position puts it back on the map; a car that went off line sends none.
            car.request_id = ""

    def _say_release(self, request_id: str, driver_id: str, reason: ReleaseReason, at_ms: int) -> None:
        self._out.append(Release(request_id, driver_id, reason, at_ms))

    def _remind(self, order: _Order, at_ms: int) -> None:
        heappush(self._deadlines, (at_ms, order.request.request_id, order.attempt, order.stage))

    def _move(self, car: _Car, cell: tuple[str, int, int] | None) -> None:
        if car.cell is not None:
            del self._grid[car.cell][car.driver_id]
        if cell is not None:
            self._grid.setdefault(cell, {})[car.driver_id] = car
        car.cell = cell


def _ring(kind: str, column: int, row: int, ring: int) -> list[tuple[str, int, int]]:
    if ring == 0:
        return [(kind, column, row)]
    span = range(-ring, ring + 1)
    edges = [(kind, column + i, row + side) for i in span for side in (-ring, ring)]
    sides = range(-ring + 1, ring)
    return edges + [(kind, column + side, row + i) for i in sides for side in (-ring, ring)]


def _metres(lat: float, lon: float) -> tuple[float, float]:
    return (lon - CENTRE[1]) / DEGREES_EAST, (lat - CENTRE[0]) / DEGREES_NORTH
