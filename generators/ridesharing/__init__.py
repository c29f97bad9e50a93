"""Riders and drivers of a city, as agents that answer whoever dispatches them."""

from __future__ import annotations

from typing import Final

from millrace_apps.generators.engine.simulated import Domain, StreamSpec
from millrace_apps.generators.ridesharing.agents import World
from millrace_apps.generators.ridesharing.dispatch import NearestDispatcher
from millrace_apps.generators.ridesharing.profile import NAME, RidesProfile
from millrace_apps.generators.ridesharing.simulation import simulate
from millrace_apps.ridesharing.contracts.events import (
    Answer,
    Cancellation,
    DriverStatus,
    Position,
    Progress,
    QuoteRequest,
    RideRequest,
)

__all__ = ["DOMAIN", "NearestDispatcher", "RidesProfile", "World", "simulate"]


def _stream(name: str, event_type: type, id_field: str = "event_id") -> StreamSpec:
    return StreamSpec(
        topic=f"ridesharing.{name}", event_type=event_type, id_field=id_field, time_field="event_time_ms"
    )


DOMAIN: Final = Domain(
    name=NAME,
    description="riders and drivers of a city: positions, shifts, requests, answers, trips, cancellations",
    streams={
        "locations": _stream("locations", Position),
        "status": _stream("status", DriverStatus),
        "requests": _stream("requests", RideRequest, "request_id"),
        "answers": _stream("answers", Answer),
        "cancellations": _stream("cancellations", Cancellation),
        "progress": _stream("progress", Progress),
        "quote_requests": StreamSpec(
            topic="ridesharing.quote-requests",
            event_type=QuoteRequest,
            id_field="quote_id",
            time_field="event_time_ms",
        ),
    },
    profile=RidesProfile,
    simulate=simulate,
    scenarios={
        "served": "the request ended with a finished trip",
        "cancelled": "the rider cancelled although a driver was coming, or changed their mind",
        "no_driver": "the rider gave up before a driver was found",
        "no_show": "the rider is not at the pick-up",
        "breakdown": "the driver cancels on the way to the pick-up",
        "no_approach": "the driver accepts and stays where they are",
        "late_accept": "the driver accepts after the offer's end",
        "cancel_race": "the rider cancels within 200 ms of the driver's accept",
        "offline_in_trip": "the driver goes off line in a trip, which is finished all the same",
        "lost_heartbeats": "30 to 300 s without a position of a driver on line",
        "quote_asked": "the rider asks for a quote, and requests if the multiplier is below a number",
        "quote_taken": "the rider requested in time: the request keeps the multiplier of the quote",
        "quote_stale": "the rider requested when the quote was over",
        "at_airport": "the rider stands at the terminal: drivers in the pen are asked in turn",
        "named_point": "the rider at the terminal names a door to be picked up at, or one that there is not",
        "vanished": "the driver's shift ends without a word: no more positions",
    },
)
