"""The loop of agents and app over topics, with a clock and clients of the tests' own."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from millrace.errors import UserError
from millrace_apps.generators.engine.loop import KafkaInbox, LoopError, Mailbag, closed_loop, looped
from millrace_apps.generators.engine.world import deliver_domain
from millrace_apps.generators.ridesharing import DOMAIN, NearestDispatcher, RidesProfile, World
from millrace_apps.generators.ridesharing.loop import APP_TOPICS
from millrace_apps.generators.ridesharing.messages import Assignment, Offer
from millrace_apps.ridesharing.contracts.records import Release

#: Friday, 2026-01-02 17:00 local time.
FRIDAY_MS = 1_767_369_600_000
HOUR_MS = 3_600_000
PROFILE = RidesProfile(
    seed=4, start_ms=FRIDAY_MS, drivers=400, location_interval_ms=60_000, requests_per_hour=200
)


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class App:
    """A dispatcher behind topics of bytes: what an app over Kafka looks like to the agents."""

    topics = ("ridesharing.offers", "ridesharing.assignments", "ridesharing.releases")

    def __init__(self, clock: FakeClock, start_ms: int) -> None:
        self._clock, self._start_ms = clock, start_ms
        self._dispatcher = NearestDispatcher()
        self._kinds = {Offer: self.topics[0], Assignment: self.topics[1], Release: self.topics[2]}

    def on_event(self, stream: str, value: bytes) -> None:
        self._dispatcher.observe(msgspec.json.decode(value, type=DOMAIN.streams[stream].event_type))

    def poll(self, timeout_s: float) -> list[tuple[str, bytes]]:
        self._clock.seconds += timeout_s
        messages = self._dispatcher.decide(self._start_ms + int(self._clock.seconds * 1000))
        return [(self._kinds[type(m)], msgspec.json.encode(m)) for m in messages]


def test_an_app_behind_topics_serves_riders() -> None:
    clock = FakeClock()
    profile = PROFILE
    world, app = World(profile), App(clock, profile.start_ms)
    for event in closed_loop(
        world, app, mailbag=Mailbag(APP_TOPICS), clock=clock, until_ms=FRIDAY_MS + HOUR_MS // 2
    ):
        app.on_event(event.stream, msgspec.json.encode(event.event))
    assert clock.seconds == pytest.approx(1_800, abs=1)
    assert world.fates["served"] > 20
    assert world.conflicts == 0


def test_the_loop_is_a_domain_that_the_engine_delivers() -> None:
    clock = FakeClock()
    profile = replace(PROFILE, duplicates=0.05, malformed=0.05)
    app = App(clock, profile.start_ms)
    domain = looped(
        DOMAIN, World, app, mailbag=Mailbag(APP_TOPICS), clock=clock, speed=10,
        until_ms=FRIDAY_MS + HOUR_MS // 6,
    )  # fmt: skip
    seen: Counter[str] = Counter()
    for message in deliver_domain(domain, profile):
        seen[message.topic] += 1
        if message.fault is None:
            app.on_event(message.stream, message.value)
    assert set(seen) >= {"ridesharing.locations", "ridesharing.answers", "ridesharing.progress"}


def test_event_time_runs_at_the_given_speed_and_stops_when_told() -> None:
    clock, stop = FakeClock(), threading.Event()
    world = World(PROFILE)
    app, mail = App(clock, FRIDAY_MS), Mailbag(APP_TOPICS)
    for event in closed_loop(world, app, mailbag=mail, clock=clock, speed=60, stop=stop):
        if event.event_time_ms > FRIDAY_MS + 120_000:
            stop.set()
    assert clock.seconds == pytest.approx(2.0, abs=0.05)


def test_a_speed_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="above 0"):
        next(
            closed_loop(
                World(PROFILE), App(FakeClock(), 0), mailbag=Mailbag(APP_TOPICS), clock=FakeClock(), speed=0
            )
        )


def test_unreadable_messages_are_counted_and_harm_nobody() -> None:
    bag = Mailbag(APP_TOPICS)
    good = msgspec.json.encode(Release("r", "", "no_driver", 5))
    assert bag.open("ridesharing.releases", good) == Release("r", "", "no_driver", 5)
    assert bag.open("ridesharing.offers", good) is None
    assert bag.open("elsewhere", good) is None
    assert bag.open("ridesharing.offers", b"\xff{") is None
    more = json.dumps({**json.loads(good), "surge": 1.5}).encode()
    assert bag.open("ridesharing.releases", more) == Release("r", "", "no_driver", 5)
    assert bag.unreadable == 3


class FakeError:
    def __init__(self, name: str, retriable: bool) -> None:
        self._name, self._retriable = name, retriable

    def name(self) -> str:
        return self._name

    def str(self) -> str:
        return self._name

    def retriable(self) -> bool:
        return self._retriable


class FakeRecord:
    def __init__(self, value: bytes | None, error: FakeError | None = None) -> None:
        self._value, self._error = value, error

    def topic(self) -> str:
        return "ridesharing.offers"

    def value(self) -> bytes | None:
        return self._value

    def error(self) -> FakeError | None:
        return self._error


class FakeConsumer:
    def __init__(self, *records: FakeRecord) -> None:
        self._records, self.closed = list(records), False

    def consume(self, num_messages: int, timeout: float) -> list[FakeRecord]:
        taken, self._records = self._records[:num_messages], self._records[num_messages:]
        return taken

    def close(self) -> None:
        self.closed = True


def test_the_inbox_reads_past_a_broker_that_is_away_but_not_past_a_refusal() -> None:
    consumer = FakeConsumer(
        FakeRecord(b"1"), FakeRecord(None, FakeError("_TRANSPORT", False)), FakeRecord(b"2")
    )
    inbox = KafkaInbox("b:9092", APP_TOPICS, consumer=consumer)
    assert inbox.poll(0) == [("ridesharing.offers", b"1"), ("ridesharing.offers", b"2")]
    inbox.close()
    assert consumer.closed
    refused = FakeConsumer(FakeRecord(None, FakeError("TOPIC_AUTHORIZATION_FAILED", False)))
    with pytest.raises(LoopError, match="TOPIC_AUTHORIZATION_FAILED"):
        KafkaInbox("b:9092", APP_TOPICS, consumer=refused).poll(0)
