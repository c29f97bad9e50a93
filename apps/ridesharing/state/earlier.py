"""Earlier versions of the dispatcher's state, brought into today's.

The first was told everything by one input, as records of one type that named their stream. Both kept the book
of a region as one entry: where one is found, it is taken apart once.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from millrace.inputs import mark_of
from millrace.state.conversion import Conversion, EarlierEntry
from millrace.state.layout import PendingRow
from millrace_apps.ridesharing.contracts.events import INPUTS
from millrace_apps.ridesharing.state.book import Book
from millrace_apps.ridesharing.state.entries import Car, Closed, Due, Ride, Wish, kind_of

_RANKS: Final = {name: rank for rank, name in enumerate(sorted(INPUTS))}
#: What handovers did not say where it was nothing.
_UNSAID: Final = {
    "driver_id": "", "from_region": "", "until_ms": 0, "free_since_ms": 0, "seen_ms": 0, "blocked_ms": 0,
    "request_id": "",
}  # fmt: skip


def _dispatcher(entry: EarlierEntry) -> None:
    """Bring what waits in a region over."""
    for row in entry.waiting:
        row.raw = _typed(row)


def _typed(row: PendingRow) -> bytes:
    fields: dict[str, Any] = msgspec.json.decode(row.raw)
    stream = fields.pop("stream")
    if stream == "handovers":
        fields = _UNSAID | fields
    try:
        text = msgspec.json.encode(msgspec.convert(fields, INPUTS[stream]))
    except msgspec.ValidationError:  # beyond bounds that there were not: it will be a dead letter
        text = row.raw
    return mark_of(_RANKS[stream]) + text


DISPATCHER: Final = Conversion(rewrite=_dispatcher)


class EarlierCar(msgspec.Struct, array_like=True, gc=False):
    """A driver on line, as one record.

    Attributes:
        lat: Where, degrees.
        lon: Where, degrees.
        seen_ms: When that was, ms.
        vehicle_class: What the car is.
        request_id: The request that the driver is offered or has; empty: free.
        free_since_ms: Since when the driver is free, ms.
        idle: Whether the driver's phone says so.
        online: False: is to be forgotten after the trip.
        stay_ms: Until when the driver may stay beyond the border, ms.
        entered_ms: Since when the driver is in this book, ms: the mark of the deadline at which it is looked
            whether the driver has fallen silent.
    """

    lat: float
    lon: float
    seen_ms: int
    vehicle_class: str
    request_id: str
    free_since_ms: int
    idle: bool
    online: bool
    stay_ms: int
    entered_ms: int


class EarlierBook(msgspec.Struct, array_like=True):
    """Everything that a region kept, in one entry; see :mod:`millrace_apps.ridesharing.state.entries`."""

    cars: dict[str, EarlierCar] = {}
    rides: dict[str, Ride] = {}
    closed: dict[str, Closed] = {}
    deadlines: list[tuple[int, int, str, int]] = []
    demand: dict[int, float] = {}
    demand_ms: int = 0
    blocked: dict[str, int] = {}
    blackouts: dict[str, int] = {}
    wishes: dict[str, Wish] = {}
    departed: dict[str, int] = {}
    searching: int = 0
    seq: int = 0
    riders: dict[str, str] | None = None
    off_line: dict[str, int] = {}
    said: dict[str, int] = {}
    ordered: dict[str, int] = {}


def adopt(old: EarlierBook, book: Book, ttl_ms: int) -> None:
    """Take the entry of before apart.

    Args:
        old: The entry.
        book: An empty book, at the time of now.
        ttl_ms: A driver of whom nothing is heard for so long is stale, ms.
    """
    head = book.head
    head.demand, head.demand_ms, head.seq = old.demand, old.demand_ms, old.seq
    head.blocked, head.blackouts, head.wishes = old.blocked, old.blackouts, old.wishes
    watched: dict[str, int] = {}
    for at, due, about, mark in old.deadlines:
        if due != Due.STALE:
            book.remind(at, Due(due), about, mark)
        elif about in old.cars and old.cars[about].entered_ms == mark:
            watched[about] = at
    for driver_id, was in old.cars.items():
        of_place = (was.lat, was.lon, was.seen_ms, kind_of(was.vehicle_class), was.idle)
        car = Car(*of_place, was.free_since_ms, was.stay_ms, was.online, was.request_id)
        # Who has been heard of since is looked at later, as by that deadline.
        if driver_id in watched and watched[driver_id] >= was.seen_ms + ttl_ms:
            car.watch_ms = watched[driver_id]
        book.bring_over(driver_id, car, ttl_ms)
    for name, ride in old.rides.items():
        book.rides[name] = ride
        book.moved(ride, "")
        if old.riders is None and ride.state not in ("", "booked"):
            book.mark_rider(ride, "", is_over=False)
    book.riders.update(old.riders or {})
    book.closed.update(old.closed)
    book.departed.update(old.departed)
    book.off_line.update(old.off_line)
    book.said.update(old.said)
    book.ordered.update(old.ordered)
