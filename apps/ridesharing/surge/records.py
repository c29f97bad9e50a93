"""What surge is told, and what it says: multipliers of cells, quotes, and what requests are charged by."""

from __future__ import annotations

from typing import Literal

import msgspec

#: What became of the quote that a request carries: ``locked``: the request keeps its multiplier; else the
#: request is charged by the multiplier in force, since the quote has ``expired``, is another rider's
#: (``foreign``), is for another place or time (``elsewhere``), was ``used`` by another request, or is
#: ``unknown``. ``none``: it carries none; ``booked``: a ride booked ahead has the usual price.
Outcome = Literal["locked", "expired", "foreign", "elsewhere", "used", "unknown", "none", "booked"]


class Asked(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Somebody asks what a ride costs, or for the ride, as the gate tells it.

    Attributes:
        what: Which of the two.
        subject: The quote, or the request.
        rider_id: The rider.
        region: The region of the cell.
        cell: H3 cell of the pick-up.
        quote_id: Of a request: the quote that it carries.
        ahead_ms: How long after this the rider wants to leave, ms.
    """

    what: Literal["quote", "request"]
    subject: str
    rider_id: str
    region: str
    cell: str
    quote_id: str = ""
    ahead_ms: int = 0


class FreeCars(msgspec.Struct, frozen=True, gc=False):
    """Which cells of a region have cars, and riders who wait, at the end of an epoch; no word of others.

    Attributes:
        region: The region of the cells.
        source: The region that has the cars: near a border it may be another one.
        at_ms: When, UTC ms.
        cells: H3 cell → free cars in it.
        taken: H3 cell → cars in it that have been bound to a ride since the end of the epoch before.
        waiting: H3 cell → riders who wait in it for a car to be found.
    """

    region: str
    source: str
    at_ms: int
    cells: dict[str, int]
    taken: dict[str, int] = {}
    waiting: dict[str, int] = {}


class Quote(msgspec.Struct, frozen=True, gc=False):
    """The multiplier that a rider was told: a row of the table ``quotes``, and a message.

    Attributes:
        quote_id: Its identity, as the rider gave it.
        rider_id: The rider.
        region: The region of the cell.
        cell: H3 cell of the pick-up, resolution 8.
        at_ms: When, UTC ms.
        multiplier: The multiplier.
        until_ms: A request of this rider that comes by then, from this cell or one beside it, keeps it,
            UTC ms.
        why: What it follows from.
    """

    quote_id: str
    rider_id: str
    region: str
    cell: str
    at_ms: int
    multiplier: float
    until_ms: int
    why: str


class Fare(msgspec.Struct, frozen=True, gc=False):
    """By which multiplier a request is charged: a row of the table ``fares``, and a message.

    Attributes:
        request_id: The request.
        rider_id: The rider.
        quote_id: The quote that it carries; empty if there is none.
        region: The region of the cell.
        cell: H3 cell of the pick-up, resolution 8.
        at_ms: When, UTC ms.
        multiplier: The multiplier.
        outcome: What became of the quote.
        why: What the multiplier follows from.
    """

    request_id: str
    rider_id: str
    quote_id: str
    region: str
    cell: str
    at_ms: int
    multiplier: float
    outcome: Outcome
    why: str


class Multiplier(msgspec.Struct, frozen=True, gc=False):
    """A cell has another multiplier: a row of the table ``surge``, and a message.

    Attributes:
        region: The region of the cell.
        cell: H3 cell, resolution 8.
        from_ms: From when on, UTC ms; what is asked at this time has it.
        multiplier: The multiplier.
        before: The one before.
        target: What demand and supply ask for.
        demand: Who asked in the time that is counted, and who waits, with the neighbours' share.
        supply: Cars taken in that time, and a share of those that stand free, with the neighbours' share.
        cap: The largest multiplier then.
        why: Demand and supply in words, or that an operator has lowered the cap.
    """

    region: str
    cell: str
    from_ms: int
    multiplier: float
    before: float
    target: float
    demand: float
    supply: float
    cap: float
    why: str


class SurgeCount(msgspec.Struct, frozen=True, gc=False):
    """What a cell had in an epoch: a row of the table ``scarcity``; cells without anything have no row.

    Attributes:
        region: The region of the cell.
        cell: H3 cell, resolution 8.
        end_ms: The end of the epoch, UTC ms.
        asked: Who asked for a price in it.
        free: Free cars at its end.
        multiplier: The multiplier from then on.
        taken: Cars that were bound to a ride in it.
        waiting: Riders who wait for a car at its end.
    """

    region: str
    cell: str
    end_ms: int
    asked: int
    free: int
    multiplier: float
    taken: int = 0
    waiting: int = 0
