"""A city through the app: what stands in the tables hangs on what its people did, not on how that came."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from millrace.testing.app_contract import AppInMemory, AppWorld
from millrace.testing.standing import Happened
from millrace_apps.generators.engine.loop import Mailbag
from millrace_apps.generators.ridesharing import RidesProfile, World
from millrace_apps.generators.ridesharing.loop import APP_TOPICS
from millrace_apps.ridesharing.app import app
from millrace_apps.ridesharing.evaluation.replay import Chain, memory_chain
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.settings import RidesharingSettings
from tests.unit.apps.ridesharing.cases import HOUR, SECOND, as_read

#: A Friday evening.
START = 1_767_369_600_000
#: So often people look what the app has told them.
STEP_MS = 4 * SECOND
CONFIG = RidesharingSettings().dispatch_config()
PROFILE = RidesProfile(
    seed=5, start_ms=START, drivers=60, rings=2, location_interval_ms=60_000, requests_per_hour=16,
    late_accepts=0.15, cancel_races=0.15, no_approach=0.05, breakdowns=0.1, no_shows=0.1, offline_in_trip=0.1,
    lost_heartbeats=0.1, vanishing=0.2, prebooked=0.1,
)  # fmt: skip


def two_hours() -> Iterator[Happened]:
    """Two hours of riders and drivers who make trouble, and who were answered by the app."""
    world, mail = World(PROFILE), Mailbag(APP_TOPICS)
    app = Chain(lambda: memory_chain(Dispatcher(CONFIG), audit=False))
    while world.now_ms < START + 2 * HOUR:
        until = world.now_ms + STEP_MS
        batch = []
        for simulated in world.advance(until):
            event = as_read(simulated.stream, simulated.event)
            at = event.event_time_ms
            batch.append((simulated.key, at, event, simulated.stream))
            yield Happened(at, simulated.key, at, msgspec.structs.replace(event), simulated.stream)
        for told in app.run(batch, until - 1):
            topic = f"ridesharing.{told.output}"
            if topic in APP_TOPICS and (message := mail.open(topic, told.payload)) is not None:
                world.receive(message)


class RidesWorld(AppWorld):
    app = app
    bound_ms = 5 * SECOND
    per_key = False
    repeats = True

    def world(self) -> Iterator[Happened]:
        return two_hours()


class TestContract(RidesWorld, AppInMemory):
    def test_all_ends_of_a_trip_are_told_and_no_alarm(self) -> None:
        found = self.standing.expected()
        states = {msgspec.json.decode(trip)[0]["state"] for trip in found["Dispatcher.trips"]}
        assert states >= {"accepted", "in_progress", "completed", "rider_cancelled", "no_show", "booked"}
        assert "main" not in found, "an alarm of the auditor"


@pytest.mark.long
class TestContractWithArrivalTimes(RidesWorld, AppInMemory):
    """The whole app with arrival times and prices: whatever the cut, the order and the restarts."""

    overrides = ("arrivals.on=true", "arrivals.every=5s", "surge.on=true")
    seeds = range(2)

    def test_ways_are_told(self) -> None:
        found = {name: rows.total() for name, rows in self.standing.expected().items()}
        assert found["Dispatcher.drives"] > 5
        assert found["Dispatcher.arrivals"] > 20
