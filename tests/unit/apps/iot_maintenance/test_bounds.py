"""Limits in expressions: from which side a value crosses them, asked of the condition itself."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millrace_apps.iot_maintenance.alarms.book import RuleSet
from millrace_apps.iot_maintenance.alarms.bounds import bounds_in
from millrace_apps.iot_maintenance.alarms.language import Facts, language
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, Level
from tests.cases import case_count
from tests.unit.apps.iot_maintenance.monitor_cases import (
    action,
    driver,
    equipment,
    history,
    reading,
    rule,
    send,
    until,
)


def comparison(rnd: random.Random) -> str:
    """A condition on the value, with a number or master data, said one way round or the other."""
    number = rnd.choice((str(rnd.randrange(10, 90)), "attribute('limit')", "attribute('limit') - 5"))
    kind = rnd.random()
    if kind < 0.3:
        low = rnd.randrange(10, 50)
        return f"value {rnd.choice(('', 'not '))}between {low} and {low + rnd.randrange(5, 40)}"
    sign = rnd.choice(("<", "<=", ">", ">="))
    return f"value {sign} {number}" if kind < 0.65 else f"{number} {sign} value"


@pytest.mark.parametrize("seed", range(case_count(300)))
def test_a_value_that_crosses_a_bound_from_its_side_makes_the_condition_hold(seed: int) -> None:
    rnd = random.Random(seed)
    attributes = {"limit": str(rnd.randrange(30, 70))}
    text = comparison(rnd)
    for _ in range(rnd.randrange(3)):
        text = f"not ({text})"
    condition = language("reading").condition(text)

    def holds(value: float) -> bool:
        facts = Facts(0)
        facts.value, facts.attributes = value, attributes
        return bool(condition.holds(facts))

    found = bounds_in(text)
    assert len(found) == (2 if "between" in text else 1)
    for bound in found:
        limit = bound.limit(attributes)
        assert limit is not None
        assert (holds(limit - 0.01), holds(limit + 0.01)) == (bound.side == "below", bound.side == "above")
        assert bound.limit({}) is None or "attribute" not in text


@pytest.mark.parametrize(
    "text",
    ["rate > 5", "value > rate", "value > attribute('limit') * rate", "status == 'running'", "zscore < 3",
     "value > attribute('limit') / 0", "value in (1, 2)", "value is missing", "count(value, 1 h) > 3",
     "value >"],
)  # fmt: skip
def test_what_hangs_on_more_than_master_data_is_no_limit(text: str) -> None:
    assert [bound for bound in bounds_in(text) if bound.limit({"limit": "5"}) is not None] == []


@pytest.mark.parametrize("seed", range(case_count(100)))
def test_the_limits_of_a_point_are_the_nearest_of_all_its_rules(seed: int) -> None:
    """Held against a walk: the first value above, and the first below, at which any rule begins to hold."""
    rnd = random.Random(seed)
    attributes = {"limit": str(rnd.randrange(60, 90)), "least": str(rnd.randrange(10, 40))}
    rules = []
    for n in range(rnd.randrange(1, 5)):
        level = rnd.choice((
            Level(above=float(rnd.randrange(60, 95))), Level(below=float(rnd.randrange(5, 40))),
            Level(when="value > attribute('limit')"), Level(when="attribute('least') > value"),
            Level(when="value > 0.9 * attribute('limit') or value < 2"),
        ))  # fmt: skip
        kinds = rnd.choice(((), ("pump",), ("fan",)))
        rules.append((AlarmRule(f"r{n}", (level,), quantities=("oil",), kinds=kinds), rnd.random() < 0.2))
    made = RuleSet(rules)
    below, above = made.limits_for("pump", "oil").of(attributes)
    of_pumps = [c for c in made.of["oil"] if not c.shadow and (not c.kinds or "pump" in c.kinds)]

    def trips(value: float) -> bool:
        facts = Facts(0, kind="pump")
        facts.value, facts.attributes = value, attributes
        return any(c.trips(facts) for c in of_pumps)

    up: Any = next((n / 10 for n in range(500, 1_000) if trips(n / 10 + 0.05)), None)
    down: Any = next((n / 10 for n in range(500, 0, -1) if trips(n / 10 - 0.05)), None)
    assert above == (None if up is None else pytest.approx(up, abs=0.06))
    assert below == (None if down is None else pytest.approx(down, abs=0.06))


def test_an_alarm_says_the_limit_of_its_point_that_the_value_is_beyond() -> None:
    """Two levels of a point's own limit; what holds a value against two limits says none."""
    levels = (
        Level("low", when="value > 0.8 * attribute('limit')"),
        Level("high", when="value > attribute('limit')"),
    )
    two = AlarmRule("two", (Level(when="value > attribute('limit') or value < 10"),), quantities=("oil",))
    target = driver(rule(*levels), two)
    send(target, equipment(0, "pump", limit="80"), reading(1_000, 70.0), reading(2_000, 81.0))
    send(target, action(3_000, "ack"), equipment(3_500, "pump", limit="60"), reading(4_000, 50.0))
    send(target, reading(5_000, 61.0))
    until(target, 6_000)
    found = [(e.change, e.value, e.limit) for e in history(target) if e.rule_id == "hot"]
    assert found == [
        ("active", 70.0, pytest.approx(64.0)),
        ("raised", 81.0, 80.0),
        ("ack", 81.0, 80.0),
        ("lowered", 50.0, pytest.approx(48.0)),
        ("raised", 61.0, 60.0),
    ]
    assert {e.limit for e in history(target) if e.rule_id == "two"} == {None}
