"""Writes down what the agents do, as events whose ids depend on who does what, and not on anybody else."""

from __future__ import annotations

from typing import Any, Literal

from millrace_apps.generators.engine.simulated import Simulated, Truth
from millrace_apps.generators.ridesharing.city import degrees
from millrace_apps.generators.ridesharing.drivers import Driver
from millrace_apps.generators.ridesharing.messages import CancelReason, Offer
from millrace_apps.generators.ridesharing.riders import Ride
from millrace_apps.ridesharing.contracts.events import (
    Answer,
    Cancellation,
    DriverStatus,
    Progress,
    QuoteRequest,
    RideRequest,
    Stage,
)

Truths = tuple[Truth, ...]


class Emitter:
    """Collects the events of one advance.

    Args:
        run: Part of every id: runs with another seed or start must not look like repeats of this one.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self.events: list[Simulated] = []

    def take(self) -> list[Simulated]:
        """Return what was collected, and begin anew."""
        events, self.events = self.events, []
        return events

    def truth(self, kind: str, entity: str, mark: str, expected: str, **detail: Any) -> Truth:
        """Return a truth about an entity; ``mark`` tells it from others of its kind and entity."""
        name = f"{self.run}-{kind}-{entity.removeprefix(f'{self.run}-')}"
        truth_id = f"{name}-{mark}" if mark else name
        return Truth(truth_id=truth_id, kind=kind, entity=entity, expected=expected, detail=detail)

    def quote(self, ride: Ride) -> None:
        """A rider asks what it costs."""
        lat, lon = degrees(*ride.pickup)
        quote_id = quote_of(ride.request_id)
        event = QuoteRequest(
            event_time_ms=ride.at_ms,
            quote_id=quote_id,
            rider_id=ride.rider_id,
            pickup_lat=lat,
            pickup_lon=lon,
            pickup_at_ms=ride.pickup_at_ms,
        )
        truth = self.truth("quote_asked", quote_id, "", "quoted", takes_below=ride.takes_below)
        self._add("quote_requests", quote_id, event, ride.at_ms, (truth,))

    def request(self, ride: Ride, at_ms: int, truths: Truths = ()) -> None:
        """A rider wants a ride."""
        lat, lon = degrees(*ride.pickup)
        to_lat, to_lon = degrees(*ride.dropoff)
        event = RideRequest(
            event_time_ms=at_ms,
            request_id=ride.request_id,
            rider_id=ride.rider_id,
            vehicle_class=ride.vehicle_class,
            zone=ride.zone,
            pickup_lat=lat,
            pickup_lon=lon,
            dropoff_lat=to_lat,
            dropoff_lon=to_lon,
            pickup_at_ms=max(ride.pickup_at_ms, at_ms),
            quote_id=ride.quote_id,
            pickup_point=ride.pickup_point,
        )
        self._add("requests", ride.request_id, event, at_ms, truths)

    def status(
        self, driver: Driver, status: Literal["online", "offline"], at_ms: int, truths: Truths = ()
    ) -> None:
        """A driver comes or goes."""
        event_id = f"{self.run}-s{driver.number:06d}-{driver.session:05d}-{status}"
        lat, lon = degrees(*driver.position(at_ms))
        event = DriverStatus(
            event_time_ms=at_ms,
            event_id=event_id,
            driver_id=driver.driver_id,
            vehicle_class=driver.vehicle_class,
            lat=lat,
            lon=lon,
            status=status,
        )
        self._add("status", driver.driver_id, event, at_ms, truths)

    def answer(
        self,
        driver: Driver,
        offer: Offer,
        zone: str,
        reason: Literal["", "declined", "busy"],
        at_ms: int,
        truths: Truths = (),
    ) -> None:
        """A driver answers an offer; no reason is a yes."""
        ride = offer.request_id.rpartition("-")[2]
        # A driver may be busy for the same offer twice, but not in the same millisecond.
        mark = f"busy{at_ms}" if reason == "busy" else f"{driver.token:06d}"
        event_id = f"{self.run}-a-{ride}-{offer.attempt:03d}-{driver.number:06d}-{mark}"
        event = Answer(
            event_time_ms=at_ms,
            event_id=event_id,
            request_id=offer.request_id,
            driver_id=driver.driver_id,
            zone=zone,
            offer_id=offer.offer_id,
            attempt=offer.attempt,
            answer="reject" if reason else "accept",
            reason=reason,
        )
        self._add("answers", offer.request_id, event, at_ms, truths)

    def cancel(
        self, ride: Ride, driver: Driver | None, reason: CancelReason, at_ms: int, truths: Truths
    ) -> None:
        """The rider, or the driver if one is given, calls a ride off."""
        by = f"d{driver.number:06d}-{driver.token:06d}" if driver else "rider"
        event = Cancellation(
            event_time_ms=at_ms,
            event_id=f"{self.run}-c-{ride.number:08d}-{by}",
            request_id=ride.request_id,
            driver_id=driver.driver_id if driver else "",
            zone=ride.zone,
            by="driver" if driver else "rider",
            reason=reason,
        )
        self._add("cancellations", ride.request_id, event, at_ms, truths)

    def progress(
        self,
        ride: Ride,
        driver: Driver,
        stage: Stage,
        at_ms: int,
        truths: Truths = (),
    ) -> None:
        """A trip goes on."""
        lat, lon = degrees(*driver.position(at_ms))
        event_id = f"{self.run}-p-{ride.number:08d}-{driver.number:06d}-{driver.token:06d}-{stage}"
        event = Progress(
            event_time_ms=at_ms,
            event_id=event_id,
            request_id=ride.request_id,
            driver_id=driver.driver_id,
            zone=ride.zone,
            lat=lat,
            lon=lon,
            stage=stage,
        )
        self._add("progress", ride.request_id, event, at_ms, truths)

    def _add(self, stream: str, key: str, event: Any, at_ms: int, truths: Truths) -> None:
        self.events.append(Simulated(stream, key, event, at_ms, truths))


def quote_of(request_id: str) -> str:
    """Return the identity of the quote that is asked for before a request.

    >>> quote_of("run-r00000012")
    'run-q00000012'
    """
    run, _, number = request_id.rpartition("-r")
    return f"{run}-q{number}"
