"""Contracts of the ridesharing world: what its agents send, and what they take from a dispatcher."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

VehicleClass = Literal["standard", "xl", "premium"]
DriverState = Literal["idle", "approaching", "waiting", "on_trip"]
#: Why a dispatcher takes a commitment back.
ReleaseReason = Literal["expired", "rider_cancelled", "replaced", "no_show", "no_driver", "cancelled"]
CancelReason = Literal["changed_mind", "no_driver", "too_long", "breakdown", "no_show"]

#: Releases after which nobody looks for a driver any more.
FINAL_RELEASES: Final = frozenset({"rider_cancelled", "no_show", "no_driver", "cancelled"})

Identifier = Annotated[str, Meta(min_length=1, max_length=128)]
Latitude = Annotated[float, Meta(ge=-90, le=90)]
Longitude = Annotated[float, Meta(ge=-180, le=180)]
TimeMs = Annotated[int, Meta(ge=0)]
Attempt = Annotated[int, Meta(ge=1)]


class DriverLocation(msgspec.Struct, frozen=True, gc=False):
    """Where a driver is: the heartbeat of a driver on line.

    Attributes:
        event_id: Its identity.
        driver_id: The driver.
        lat: Latitude, degrees north, WGS 84.
        lon: Longitude, degrees east, WGS 84.
        state: What the driver's phone believes the driver is doing.
        vehicle_class: What the car is.
        event_time_ms: When it was measured, UTC milliseconds.
    """

    event_id: Identifier
    driver_id: Identifier
    lat: Latitude
    lon: Longitude
    state: DriverState
    vehicle_class: VehicleClass
    event_time_ms: TimeMs


class DriverStatus(msgspec.Struct, frozen=True, gc=False):
    """A driver comes on line or goes off line; going off line in a trip does not end the trip.

    Attributes:
        event_id: Its identity.
        driver_id: The driver.
        status: What the driver is from now on.
        vehicle_class: What the car is.
        lat: Latitude, degrees north.
        lon: Longitude, degrees east.
        event_time_ms: When, UTC milliseconds.
    """

    event_id: Identifier
    driver_id: Identifier
    status: Literal["online", "offline"]
    vehicle_class: VehicleClass
    lat: Latitude
    lon: Longitude
    event_time_ms: TimeMs


class RideRequest(msgspec.Struct, frozen=True, gc=False):
    """A rider wants a ride.

    Attributes:
        request_id: Its identity.
        rider_id: The rider.
        vehicle_class: The class of car that is asked for.
        zone: H3 cell of the pick-up, resolution 7; all later events of the request repeat it.
        pickup_lat: Pick-up, degrees north.
        pickup_lon: Pick-up, degrees east.
        dropoff_lat: Drop-off, degrees north.
        dropoff_lon: Drop-off, degrees east.
        pickup_at_ms: When the rider wants to leave, UTC milliseconds; later than the request if booked ahead.
        event_time_ms: When it was asked for, UTC milliseconds.
        quote_id: The quote whose multiplier the rider has taken; empty if there is none.
        pickup_point: The door of the airport where the rider wants to be picked up; empty: any.
    """

    request_id: Identifier
    rider_id: Identifier
    vehicle_class: VehicleClass
    zone: Identifier
    pickup_lat: Latitude
    pickup_lon: Longitude
    dropoff_lat: Latitude
    dropoff_lon: Longitude
    pickup_at_ms: TimeMs
    event_time_ms: TimeMs
    quote_id: str = ""
    pickup_point: str = ""


class QuoteRequest(msgspec.Struct, frozen=True, gc=False):
    """A rider asks what a ride would cost.

    Attributes:
        quote_id: Its identity.
        rider_id: The rider.
        pickup_lat: Pick-up, degrees north.
        pickup_lon: Pick-up, degrees east.
        pickup_at_ms: When the rider wants to leave, UTC milliseconds.
        event_time_ms: When it was asked for, UTC milliseconds.
    """

    quote_id: Identifier
    rider_id: Identifier
    pickup_lat: Latitude
    pickup_lon: Longitude
    pickup_at_ms: TimeMs
    event_time_ms: TimeMs


class DriverAnswer(msgspec.Struct, frozen=True, gc=False):
    """A driver's answer to an offer; it may come after the offer has expired.

    Attributes:
        event_id: Its identity.
        offer_id: The offer.
        request_id: The request that was offered.
        driver_id: The driver.
        attempt: The offer's attempt.
        zone: The request's zone.
        answer: Yes or no.
        reason: Why not: the driver does not want it, or is not free.
        event_time_ms: When it was given, UTC milliseconds.
    """

    event_id: Identifier
    offer_id: Identifier
    request_id: Identifier
    driver_id: Identifier
    attempt: Attempt
    zone: str
    answer: Literal["accept", "reject"]
    reason: Literal["", "declined", "busy"]
    event_time_ms: TimeMs


class Cancellation(msgspec.Struct, frozen=True, gc=False):
    """A rider or a driver calls a ride off.

    Attributes:
        event_id: Its identity.
        request_id: The request.
        by: Who.
        driver_id: The driver who cancels; empty for a rider.
        zone: The request's zone.
        reason: Why.
        event_time_ms: When, UTC milliseconds.
    """

    event_id: Identifier
    request_id: Identifier
    by: Literal["rider", "driver"]
    driver_id: str
    zone: str
    reason: CancelReason
    event_time_ms: TimeMs


class TripProgress(msgspec.Struct, frozen=True, gc=False):
    """A driver is at the pick-up, sets off with the rider, or has brought the rider to the drop-off.

    Attributes:
        event_id: Its identity.
        request_id: The request.
        driver_id: The driver.
        zone: The request's zone.
        stage: What has happened.
        lat: Where, degrees north.
        lon: Where, degrees east.
        event_time_ms: When, UTC milliseconds.
    """

    event_id: Identifier
    request_id: Identifier
    driver_id: Identifier
    zone: str
    stage: Literal["arrived", "started", "finished"]
    lat: Latitude
    lon: Longitude
    event_time_ms: TimeMs


class Offer(msgspec.Struct, frozen=True, gc=False):
    """A dispatcher asks a driver to take a request.

    Attributes:
        offer_id: Its identity.
        request_id: The request.
        driver_id: The driver.
        attempt: How many offers of this request there have been, this one included.
        expires_ms: Until when an answer counts, UTC milliseconds.
        event_time_ms: When it is made, UTC milliseconds.
        pickup_lat: Where driver and rider are to meet, degrees north; ``None``: where the rider has asked.
        pickup_lon: The same, degrees east.
    """

    offer_id: Identifier
    request_id: Identifier
    driver_id: Identifier
    attempt: Attempt
    expires_ms: TimeMs
    event_time_ms: TimeMs
    pickup_lat: float | None = None
    pickup_lon: float | None = None


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """A dispatcher gives a request to a driver, who now drives to the pick-up.

    Attributes:
        request_id: The request.
        driver_id: The driver.
        attempt: The attempt that was accepted.
        event_time_ms: When, UTC milliseconds.
    """

    request_id: Identifier
    driver_id: Identifier
    attempt: Attempt
    event_time_ms: TimeMs


class Release(msgspec.Struct, frozen=True, gc=False):
    """A dispatcher takes an offer or an assignment back, or gives a request up.

    Attributes:
        request_id: The request.
        driver_id: The driver who is free again; empty if there is none.
        reason: Why.
        event_time_ms: When, UTC milliseconds.
    """

    request_id: Identifier
    driver_id: str
    reason: ReleaseReason
    event_time_ms: TimeMs


class Quote(msgspec.Struct, frozen=True, gc=False):
    """Whoever sets prices tells a rider what the usual price is multiplied by.

    Attributes:
        quote_id: Which was asked for.
        multiplier: The multiplier.
        until_ms: Until when a request keeps it, UTC milliseconds.
        at_ms: When it was made, UTC milliseconds.
    """

    quote_id: Identifier
    multiplier: Annotated[float, Meta(ge=0)]
    until_ms: TimeMs
    at_ms: TimeMs


class Hint(msgspec.Struct, frozen=True, gc=False):
    """A driver is told where a free car would be wanted; nobody has to go.

    Attributes:
        driver_id: The driver.
        lat: Where, degrees north.
        lon: Where, degrees east.
        at_ms: When it was told, UTC milliseconds.
    """

    driver_id: Identifier
    lat: Latitude
    lon: Longitude
    at_ms: TimeMs


#: What a dispatcher says to the agents.
Message: TypeAlias = Offer | Assignment | Release | Quote | Hint
