"""The ridesharing app's topology: events in; offers, assignments, trips, alarms and tables out."""

from __future__ import annotations

from millrace.topology import FirstOf, Input, RecordKey, Topology, Upsert, read
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import CLOCKS, GATE_INPUTS, INPUTS
from millrace_apps.ridesharing.demand.hinting import Hinting
from millrace_apps.ridesharing.processes.auditor import Auditor
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.processes.gate import Gate
from millrace_apps.ridesharing.processes.riders import Riders
from millrace_apps.ridesharing.settings import RidesharingSettings
from millrace_apps.ridesharing.surge.config import SurgeConfig
from millrace_apps.ridesharing.surge.process import Surge

#: Whom a message of the app to itself concerns: it has the key of its sender.
_ABOUT = FirstOf(("driver_id", "request_id", RecordKey()))


def processes(
    dispatcher: Dispatcher,
    settings: RidesharingSettings,
    *,
    audit: bool = True,
    prices: SurgeConfig | None = None,
) -> Topology:
    """Return the app's processes as they are wired, without what is written.

    Args:
        dispatcher: The dispatcher; the gate is told what it is.
        settings: The app's settings.
        audit: Whether the auditor stands behind it, and surge where prices follow scarcity. Hints are given
            where the dispatcher says which cars stand free.
        prices: How they do, in place of what the settings say (``surge.on``).
    """
    topics = settings.topics
    inputs = {
        name: Input(
            getattr(topics, name), _ABOUT if name == "handovers" else RecordKey(), clock=name in CLOCKS
        )
        for name in GATE_INPUTS
    }
    # Every stream goes on by an output of its own name, but for the main one.
    onward = {name: "main" if name == "locations" else name for name in INPUTS}
    checked = read(inputs, control=topics.control).process(Gate(dispatcher.config))
    if dispatcher.config.asks_everywhere:
        asked = checked.key_by("rider_id", output={"notices": "notices", "requests": "requests"})
        checked = asked.process(Riders(dispatcher.config))
        onward = {name: f"Gate.{output}" for name, output in onward.items()} | {"requests": "main"}
    wired = checked.key_by("region", output=onward).process(dispatcher)
    if prices is None and settings.surge.on:
        prices = settings.surge_config()
    if prices is not None and audit:
        wired = wired.key_by("region", output={"free": "free", "asks": "Gate.asks"}).process(Surge(prices))
    if dispatcher.config.standing_ms:
        lead = "" if wired.links[-1].process is dispatcher else "Dispatcher."
        seen = {"asks": f"{lead}journeys", "standing": f"{lead}standing"}
        wired = wired.key_by("region", output=seen).process(Hinting(settings.hint_config()))
    if not audit:
        return wired
    if wired.links[-1].process is dispatcher:
        return wired.key_by("subject").process(Auditor())
    return wired.key_by("subject", output="Dispatcher.main").process(Auditor())


def topology(settings: RidesharingSettings, config: DispatchConfig | None = None) -> Topology:
    """Return the app's topology.

    Args:
        settings: The app's settings.
        config: What the processes are told, in place of what the settings say.
    """
    told, topics = config or settings.dispatch_config(), settings.topics
    wired = processes(Dispatcher(told), settings)
    if settings.surge.on:
        wired = wired.write(
            tables={
                "Surge.main": "quotes",
                "Surge.fares": "fares",
                "Surge.multipliers": "surge",
                "Surge.counts": "scarcity",
                "Surge.dead_letters": "surge_dead_letters",
            },
            topics={
                "Surge.main": topics.quotes,
                "Surge.fares": topics.fares,
                "Surge.multipliers": topics.surge,
            },
        )
    if told.standing_ms:
        wired = wired.write(
            tables={
                "Hinting.main": "demand",
                "Hinting.hints": "hints",
                "Hinting.dead_letters": "hinting_dead_letters",
            },
            topics={"Hinting.hints": topics.hints},
        )
    if told.arrivals is not None:
        wired = wired.write(
            tables={"Dispatcher.arrivals": "arrivals", "Dispatcher.drives": "drives"},
            topics={"Dispatcher.arrivals": topics.arrivals},
        )
    if told.acceptance is not None:
        wired = wired.write(tables={"Dispatcher.chances": "chances"})
    return wired.write(
        tables={
            "main": "violations",
            "Dispatcher.attempts": Upsert("assignments", key=("request_id", "attempt"), newest="revision"),
            "Dispatcher.trips": "trips",
            "Dispatcher.offers": "offers",
            "Dispatcher.releases": "releases",
            "Dispatcher.windows": "windows",
            "Dispatcher.operations": "operations",
            "Dispatcher.ignored": "ignored",
            "Dispatcher.mismatches": "mismatches",
            "Dispatcher.drivers": "drivers",
            "Dispatcher.handovers": "handovers",
            "Dispatcher.supply": "supply",
            "Dispatcher.places": "places",
            "Dispatcher.journeys": "journeys",
            "Dispatcher.pickups": "pickups",
            "Dispatcher.lines": "lines",
            "Dispatcher.tickets": "tickets",
            "Dispatcher.shapes": "venues",
            "Gate.suspects": "suspects",
            "Gate.late": "late",
            "Gate.dead_letters": "dead_letters",
            "Dispatcher.dead_letters": "dispatcher_dead_letters",
            "dead_letters": "auditor_dead_letters",
        },
        topics={
            "main": topics.violations,
            "Dispatcher.offers": topics.offers,
            "Dispatcher.assignments": topics.assignments,
            "Dispatcher.releases": topics.releases,
            "Dispatcher.trips": topics.trips,
            "Dispatcher.pickups": topics.pickups,
            "Dispatcher.lines": topics.lines,
            "Dispatcher.tickets": topics.tickets,
            "Dispatcher.handovers": topics.handovers,
            "Gate.dead_letters": topics.dead_letters,
        },
    )
