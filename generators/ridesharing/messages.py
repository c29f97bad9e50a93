"""Messages of a dispatcher as agents hear them: of each the fields that they go by.

What they say themselves stands in the app's contracts, which are written once
(:mod:`millrace_apps.ridesharing.contracts.events`).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from millrace_apps.ridesharing.contracts.events import Attempt, Identifier, Latitude, Longitude, TimeMs
from millrace_apps.ridesharing.contracts.records import Release

#: Why agents call a ride off.
CancelReason = Literal["changed_mind", "no_driver", "too_long", "breakdown", "no_show"]
#: Releases after which nobody looks for a driver any more.
FINAL_RELEASES: Final = frozenset({"rider_cancelled", "no_show", "no_driver", "cancelled"})


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
