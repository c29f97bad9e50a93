"""Evenings in memory whose topics are kept: agents, operators and the app, with faults on the way."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from millrace.host.runner import Emission
from millrace.places import distance_m
from millrace_apps.generators.engine.loop import Mailbag
from millrace_apps.generators.ridesharing import RidesProfile, World
from millrace_apps.generators.ridesharing.loop import APP_TOPICS
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import (
    INPUTS,
    Command,
    Control,
    Event,
    Handover,
    Position,
    RideRequest,
    SetPair,
)
from millrace_apps.ridesharing.evaluation.replay import Chain, Courier, Faults
from millrace_apps.ridesharing.topic_audit.evidence import OUTPUTS, Evidence
from millrace_apps.ridesharing.topic_audit.report import Audited, audit_topics
from tests.broken import Rows
from tests.unit.apps.ridesharing.cases import START, Whole, as_read

STEP_MS = 5_000
#: When a message came, ms; of what is no event of a topic: how far the app's clock was moved.
CAME = "_came_ms"
CLOCK = "clock"
CONTROL = "control"
STREAMS = (CONTROL, *INPUTS, *OUTPUTS, CLOCK)


@dataclass
class Topics:
    """What stands on the topics after an evening: a row per message.

    Attributes:
        config: How was dispatched.
        rows: Topic → its messages; ``clock``: how far the app's clock was moved.
    """

    config: DispatchConfig
    rows: dict[str, Rows] = field(default_factory=lambda: {name: [] for name in STREAMS})

    def bring(self, brought: Iterable[tuple[str, Event]], came: int) -> None:
        """Take down what comes to the app at a time, by streams; then its clock is moved."""
        for stream, event in brought:
            if stream not in self.rows:
                continue  # who asks for a price is of no concern to the audit
            self.rows[stream].append({**msgspec.to_builtins(event), CAME: came})
        self.rows[CLOCK].append({CAME: came})

    def switch(self, control: Control, came: int) -> None:
        """Take down what operators say to all regions."""
        self.rows[CONTROL].append({**msgspec.to_builtins(control), CAME: came})

    def say(self, said: Iterable[Emission], came: int) -> None:
        """Take down what the app says."""
        for e in said:
            if e.output in OUTPUTS:
                self.rows[e.output].append({**msgspec.json.decode(e.payload), CAME: came})

    def evidence(self, changed: Mapping[str, Rows] | None = None) -> Evidence:
        """Return what the topics, or others in their place, are evidence of."""
        evidence = Evidence(self.config, margin_ms=-1)
        for stream, rows in (self.rows if changed is None else changed).items():
            for row in rows:
                came = row[CAME]
                if stream == CLOCK:
                    evidence.passed(came)
                elif stream == CONTROL:
                    evidence.switch(msgspec.convert(row, Control), came)
                elif stream in OUTPUTS:
                    evidence.hear(stream, msgspec.convert(row, OUTPUTS[stream]))
                else:
                    evidence.take(stream, msgspec.convert(row, INPUTS[stream]), came)
        return evidence

    def audited(self, changed: Mapping[str, Rows] | None = None, **more: Any) -> Audited:
        """Audit the topics, or others in their place."""
        return audit_topics(self.evidence(changed), **more)


def profile(seed: int, **more: Any) -> RidesProfile:
    """More riders than drivers, who cancel, break down, race, come late or vanish."""
    usual = RidesProfile(
        seed=seed, start_ms=START, drivers=100, rings=2, requests_per_hour=200.0, location_interval_ms=20_000,
        late_accepts=0.1, cancel_races=0.1, breakdowns=0.1, no_shows=0.1, vanishing=0.1, lost_heartbeats=0.1,
    )  # fmt: skip
    return dataclasses.replace(usual, **more)


def evening(
    seed: int, *, steps: int = 200, faults: Faults | None = None, operators: float = 0.0, pairs: float = 0.0,
    config: DispatchConfig | None = None, topics: Callable[[DispatchConfig], Topics] = Topics,
    between: Callable[[int, Chain], Chain] = lambda step, chain: chain,
    world: Mapping[str, Any] | None = None,
) -> Topics:  # fmt: skip
    """Let agents, operators and the app talk in steps of five seconds.

    Args:
        seed: Of the agents, operators and faults.
        steps: How many steps.
        faults: What goes wrong on the way to the app.
        operators: Share of the steps in which an operator does something.
        pairs: Share of the steps in which somebody says what a rider and a driver are to each other.
        config: How to dispatch.
        topics: What keeps the topics.
        world: What is otherwise with the agents.
        between: Number of a step that has ended, and the processes → those that go on.
    """
    config = config or DispatchConfig()
    faults = faults or Faults()
    draws = random.Random(seed)
    agents, app, mail = World(profile(seed, **(world or {}))), Whole(config), Mailbag(APP_TOPICS)
    courier, desk = Courier(draws, faults, STEP_MS), Operators(draws)
    stops = set(draws.sample(range(1, steps), faults.restarts))
    kept = topics(config)
    again: list[Event] = []
    for number in range(steps):
        now = agents.now_ms + STEP_MS
        happened = [as_read(one.stream, one.event) for one in agents.advance(now)]
        desk.see(happened)
        if draws.random() < operators:
            happened += desk.act(now)
        if pairs and draws.random() < pairs and (said := desk.pair(now)) is not None:
            kept.switch(said, now - 1)
            kept.say(app.chain.switch(said), now - 1)
        brought = courier.carry([*again, *happened], now)
        again = []
        kept.bring(((stream, event) for _, _, event, stream in brought), now - 1)
        found = app.chain.run(brought, now - 1)
        kept.say(found, now - 1)
        for e in found:
            if e.output == "handovers":
                again.append(msgspec.json.decode(e.payload, type=Handover))
            if (topic := f"ridesharing.{e.output}") in APP_TOPICS:
                message = mail.open(topic, e.payload)
                assert message is not None
                agents.receive(message)
        if number in stops:
            app.chain.restart()
        app.chain = between(number, app.chain)
    return kept


class Operators:
    """Operators who do things at random to drivers and requests of late."""

    def __init__(self, draws: random.Random) -> None:
        self._draws = draws
        self._requests: list[RideRequest] = []
        self._drivers: list[str] = []
        self._places: dict[str, Position] = {}
        self._count = 0

    def see(self, happened: list[Event]) -> None:
        """Hear of who there is."""
        self._requests += [e for e in happened if isinstance(e, RideRequest)]
        self._drivers += [e.driver_id for e in happened if getattr(e, "driver_id", "")]
        self._places |= {e.driver_id: e for e in happened if isinstance(e, Position)}
        self._requests, self._drivers = self._requests[-30:], self._drivers[-3_000:]

    def pair(self, now: int) -> SetPair | None:
        """Say what a rider and the nearest driver of late are to each other, some of it from later on."""
        if not self._requests or not self._drivers:
            return None
        self._count += 1
        ride = self._draws.choice(self._requests[-5:])
        near = sorted(
            (distance_m(p.lat, p.lon, ride.pickup_lat, ride.pickup_lon), name)
            for name, p in self._places.items() if p.state == "idle"
        )  # fmt: skip
        driver = near[0][1] if near else self._draws.choice(self._drivers)
        stands: Any = self._draws.choice(["block", "block", "favourite", "none"])
        begins = self._draws.choice([0, 0, now + self._draws.randint(0, 300_000)])
        return SetPair(ride.rider_id, driver, stands, f"p{self._count}", "ann", "test", begins)

    def act(self, now: int) -> list[Event]:
        """Do something in the last five seconds, if there is anybody."""
        if not self._requests or not self._drivers:
            return []
        self._count += 1
        ride, driver = self._draws.choice(self._requests), self._draws.choice(self._drivers)
        of_ride = {"request_id": ride.request_id, "zone": ride.zone}
        about: dict[Any, dict[str, Any]] = {
            "assign": {**of_ride, "driver_id": driver},
            "cancel": of_ride,
            "end_trip": of_ride,
            "block": {"driver_id": driver, "until_ms": now + 600_000},
            "unblock": {"driver_id": driver},
            "blackout": {"zone": ride.zone, "until_ms": now + 120_000},
            "lift": {"zone": ride.zone},
        }
        action = self._draws.choice(list(about))
        at = now - self._draws.randint(0, STEP_MS - 1)
        return [
            Command(
                command_id=f"c{self._count}", action=action, operator="ann", reason="test", event_time_ms=at,
                **about[action],
            )
        ]  # fmt: skip
