"""Limits on the page: of rules published since, and of master data; against the rules' own words."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.dashboard.broker import KafkaRecord
from millrace.errors import UserError
from millrace.operations.control_topic import ControlState, ControlTopic
from millrace.rules import PublishRule, SetRuleState
from millrace_apps.iot_maintenance.alarms.language import Facts, language
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, Level
from millrace_apps.iot_maintenance.contracts.events import Equipment, MeasuringPoint
from millrace_apps.iot_maintenance.dashboard.limits import limits_in, limits_of
from millrace_apps.iot_maintenance.evaluation.stream import settings_for
from millrace_apps.iot_maintenance.evaluation.stream import written as file_of
from millrace_apps.iot_maintenance.operations.app_rules import written
from tests.cases import case_count

AT = 1_767_600_000_000
ROW = {"kind": "pump", "machine_id": "m1", "event_time_ms": AT, "attributes": [("limit", "75"), ("max", "x")]}


@pytest.mark.parametrize("seed", range(case_count(300)))
def test_limits_of_an_expression_are_where_it_changes_its_mind(seed: int) -> None:
    rnd = random.Random(seed)
    attributes = {"limit": str(rnd.randrange(20, 80)), "trip": str(rnd.randrange(20, 80))}

    def number(depth: int = 0) -> str:
        if depth < 2 and rnd.random() < 0.4:
            return f"({number(depth + 1)} {rnd.choice('+-*')} {number(depth + 1)})"
        return rnd.choice((str(rnd.randrange(1, 90)), "attribute('limit')", "attribute('trip')", "0.5"))

    parts = []
    for _ in range(rnd.randrange(1, 3)):
        sign, of = rnd.choice(("<", "<=", ">", ">=")), rnd.choice(("value", "mean(value, 5 min)"))
        texts = f"value {sign} {number()}", f"{number()} {sign} value", f"{of} {sign} {number()}"
        parts.append(rnd.choice(texts))
    found = set()
    for part in parts:
        condition = language("reading").condition(part)
        facts = Facts(0)
        facts.attributes = attributes

        def holds(value: float, condition: Any = condition, facts: Facts = facts) -> bool:
            facts.value = value
            facts.spans = {300_000: _Span(value)}  # type: ignore[dict-item]
            return bool(condition.holds(facts))

        # Halving where it changes: it does once, or never.
        low, high = -1e5, 1e5
        if holds(low) == holds(high):
            continue
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if holds(middle) == holds(low) else (low, middle)
        found.add(round(high, 4))
    text = f" {rnd.choice(('and', 'or'))} ".join(parts)
    inside = {round(limit, 4) for limit in limits_in(f"regime == 'producing' and ({text})", attributes)}
    assert {limit for limit in inside if abs(limit) < 1e5} == found


class _Span:
    """A window over one value."""

    def __init__(self, value: float) -> None:
        self.mean = self.low = self.high = value
        self.lowest = self.highest = value
        self.count = 1


class Topics:
    """A broker with a control topic and master data."""

    def __init__(self, events: list[Any], master_data: Iterable[Equipment] = ()) -> None:
        self.events = events
        self.records = [KafkaRecord(b"", msgspec.json.encode(one), AT, {}) for one in master_data]
        self.away = False

    def ends(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        if self.away:
            raise UserError("no broker answers")
        (topic,) = topics
        return {topic: {0: len(self.events) if "control" in topic else len(self.records)}}

    def tail(self, topic: str, records: int) -> list[KafkaRecord]:
        return self.records[-records:]


class Data:
    """What a page has of an app, with another broker."""

    def __init__(self, fleet: Path, broker: Topics | None) -> None:
        self.settings: Any = settings_for([f"monitor.fleet_file={fleet}"])
        self.broker = broker
        self._made: dict[str, tuple[Any, Any]] = {}
        self.made: list[str] = []

    def once(self, name: str, version: Any, make: Callable[[], Any]) -> Any:
        if name not in self._made or self._made[name][0] != version:
            self.made.append(name)
            self._made[name] = version, make()
        return self._made[name][1]


def publish(rule: AlarmRule, version: int = 1, *, at: int = 0, state: Any = "active") -> PublishRule:
    return PublishRule(written(rule), version, "ann", AT, state, at)


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    broker = Topics([])

    def read(self: ControlTopic) -> ControlState:
        book = self.empty()
        for event in broker.events:
            book.apply(event)
        return book

    monkeypatch.setattr(ControlTopic, "read", read)
    return broker


HOT = AlarmRule("hot", (Level("high", above=80.0),), quantities=("oil",))


def shown(data: Any, subject: str = "oil", row: dict[str, Any] | None = None) -> list[float]:
    return limits_of(data, subject, row or ROW, [])


def test_limits_are_of_the_rules_in_force_and_change_as_they_do(topics: Topics) -> None:
    with file_of([HOT]) as fleet:
        data = Data(fleet, topics)
        assert shown(data) == [80.0]
        topics.events.append(publish(AlarmRule("cold", (Level("low", below=10.0),), quantities=("oil",))))
        assert shown(data) == [10.0, 80.0]
        # One of the file's own id takes its place; what holds from later on does not yet.
        topics.events.append(publish(AlarmRule("hot", (Level("high", above=70.0),), quantities=("oil",))))
        later = AlarmRule("hot", (Level("high", above=60.0),), quantities=("oil",))
        topics.events.append(publish(later, 2, at=AT + 1))
        assert shown(data) == [10.0, 70.0]
        assert shown(data, row={**ROW, "event_time_ms": AT + 1}) == [10.0, 60.0]
        topics.events.append(SetRuleState("cold", 1, "paused", "ann", AT - 1))
        assert shown(data) == [70.0]
        # Who only tries a rule draws no limit; neither do rules of other kinds and quantities.
        topics.events.append(
            publish(AlarmRule("tried", (Level("low", above=1.0),), quantities=("oil",)), state="shadow")
        )
        of_others = AlarmRule("of-fans", (Level("low", above=2.0),), quantities=("oil",), kinds=("fan",))
        topics.events.append(publish(of_others))
        assert shown(data) == [70.0]
        assert shown(data, "flow") == []
        made = len(data.made)
        shown(data)
        assert len(data.made) == made, "what has not changed is not read anew"


def test_limits_of_master_data_are_the_points_else_the_machines(topics: Topics) -> None:
    rule = AlarmRule(
        "own", (Level("high", when="value > attribute('limit') or value < 0.1 * attribute('max')"),),
        quantities=("oil",),
    )  # fmt: skip
    with file_of([rule]) as fleet:
        data = Data(fleet, topics)
        assert shown(data) == [75.0]
        points = [MeasuringPoint("oil", "de", attributes={"limit": "65", "max": "90"}), MeasuringPoint("oil")]
        for at, of in ((AT - 5, "m1"), (AT - 9, "m1"), (AT, "m2")):
            said = Equipment(of, at, "pump", points=points if at == AT - 5 else [])
            topics.records.append(KafkaRecord(b"", msgspec.json.encode(said), AT, {}))
        topics.records.append(KafkaRecord(b"", b"{", AT, {}))
        assert shown(data, "oil@de") == [9.0, 65.0]
        assert shown(data) == [75.0]
        assert shown(data, row={**ROW, "attributes": None}) == []


def test_without_a_broker_limits_are_those_of_the_file_and_of_alarms_that_stand(topics: Topics) -> None:
    with file_of([HOT]) as fleet:
        topics.events.append(publish(AlarmRule("cold", (Level("low", below=10.0),), quantities=("oil",))))
        alarm = {"limit": 33.0, "alarm_id": "m1:other/oil"}
        assert limits_of(Data(fleet, None), "oil", ROW, [alarm]) == [33.0, 80.0]  # type: ignore[arg-type]
        topics.away = True
        assert shown(Data(fleet, topics)) == [80.0]
    assert shown(Data(Path("/none"), topics)) == []
