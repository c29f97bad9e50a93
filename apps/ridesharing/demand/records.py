"""Where free cars stand, and where they would be wanted: what goes into hints, and what comes out."""

from __future__ import annotations

import msgspec


class StandingCar(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A car that could be offered a ride.

    Attributes:
        driver_id: Its driver.
        lat: Where, degrees.
        lon: Where, degrees.
        since_ms: Since when it is free, UTC ms.
    """

    driver_id: str
    lat: float
    lon: float
    since_ms: int


class Standing(msgspec.Struct, frozen=True, gc=False):
    """The free cars of a region at one moment, but for those that wait in the line of a venue.

    Attributes:
        region: The region.
        at_ms: When, UTC ms.
        cars: The cars, by driver.
    """

    region: str
    at_ms: int
    cars: list[StandingCar]


class DriverHint(msgspec.Struct, frozen=True, gc=False):
    """A driver is told where a free car would be wanted: a row of the table ``hints``, and a message.

    Attributes:
        driver_id: The driver.
        region: The region.
        cell: Where to: an H3 cell.
        lat: Its middle, degrees north.
        lon: Its middle, degrees east.
        short: By how many requests of the next minutes that cell is short of cars.
        until_ms: Until when the car is counted on there while it comes nearer, UTC ms.
        at_ms: When, UTC ms.
    """

    driver_id: str
    region: str
    cell: str
    lat: float
    lon: float
    short: float
    until_ms: int
    at_ms: int
