"""The ridesharing app as the runtime knows it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from millrace.runtime.apps import App, Topic, Topics
from millrace_apps.ridesharing.contracts.events import (
    CLOCKS,
    GATE_INPUTS,
    Answer,
    Cancellation,
    Command,
    Control,
    DriverStatus,
    Handover,
    Position,
    Progress,
    QuoteRequest,
    RideRequest,
)
from millrace_apps.ridesharing.contracts.records import (
    Arrival,
    Assignment,
    LinePlace,
    Offer,
    PickUp,
    Release,
    Ticket,
    Trip,
    Violation,
)
from millrace_apps.ridesharing.demand.records import DriverHint
from millrace_apps.ridesharing.settings import RidesharingSettings
from millrace_apps.ridesharing.surge.records import Fare, Multiplier, Quote

if TYPE_CHECKING:
    from millrace.topology import Topology


def topics(settings: RidesharingSettings) -> Topics:
    """Return the topics of the app; the control topic has one partition, so that it is in order."""
    names, partitions = settings.topics, settings.topics.partitions
    dispatched = (names.offers, names.assignments, names.releases, names.trips)
    at_venues = (names.pickups, names.lines, names.tickets)
    priced = (names.quotes, names.fares, names.surge) if settings.surge.on else ()
    told = (names.arrivals,) if settings.arrivals.on else ()
    hinted = (names.hints,) if settings.hints.on else ()
    return Topics(
        reads=(
            *(
                Topic(getattr(names, name), partitions, event_time="event_time_ms", clock=name in CLOCKS)
                for name in GATE_INPUTS
            ),
            Topic(names.control, 1),
        ),
        writes=(
            *(Topic(name, partitions) for name in (*dispatched, *at_venues, *priced, *told, *hinted)),
            Topic(names.violations, 1),
            Topic(names.dead_letters, 1),
        ),
        control=names.control,
    )


def topology(settings: RidesharingSettings) -> Topology:
    """Return the app's topology (see :func:`millrace_apps.ridesharing.topology.topology`)."""
    from millrace_apps.ridesharing.topology import topology as wired

    return wired(settings)


def begin(settings: RidesharingSettings) -> None:
    """Let a job that begins find the models that a registry has and that were never exported."""
    told = settings.arrivals
    folder = told.folder(Path(settings.storage.path("models")))
    if not told.on or not told.registry or not folder:
        return
    from millrace.models.beginning import export_first

    for model, name in (("pickup", told.pickup), ("eta", told.trip)):
        export_first("ridesharing", model, name, told.registry, Path(folder))


app = App(
    name="ridesharing",
    summary="Riders and drivers matched in short windows, and nothing dispatched twice.",
    settings=RidesharingSettings,
    topology=topology,
    topics=topics,
    demo="millrace_apps.ridesharing.demo:spec",
    dashboard="millrace_apps.ridesharing.dashboard.page:page",
    begin=begin,
    models="millrace_apps.ridesharing.eta.model_cli:app",
    evaluate="millrace_apps.ridesharing.evaluation.cli:app",
    rekeying="millrace_apps.ridesharing.operations.rekeying:by_settings",
    contracts={
        "position.v2": Position,
        "driver_status.v2": DriverStatus,
        "ride_request.v4": RideRequest,
        "quote_request.v1": QuoteRequest,
        "answer.v1": Answer,
        "cancellation.v1": Cancellation,
        "progress.v1": Progress,
        "command.v1": Command,
        "control.v6": Control,
        "offer.v3": Offer,
        "assignment.v1": Assignment,
        "release.v1": Release,
        "trip.v1": Trip,
        "pickup.v2": PickUp,
        "line_place.v2": LinePlace,
        "ticket.v1": Ticket,
        "quote.v1": Quote,
        "fare.v1": Fare,
        "multiplier.v1": Multiplier,
        "arrival.v1": Arrival,
        "driver_hint.v1": DriverHint,
        "handover.v4": Handover,
        "violation.v1": Violation,
    },
    narrowed={"control.v2": "times and lengths have the bounds that what is kept of them needs"},
)
