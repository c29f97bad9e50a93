"""Scores of measuring points in the monitor: which values are scored, what is told, and what is kept."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from millrace.operators import novelty
from millrace.rules import RuleError
from millrace.runtime.settings import load_settings
from millrace.testing import TestDriver
from millrace.testing.properties import invariant
from millrace_apps.iot_maintenance.alarms.language import language
from millrace_apps.iot_maintenance.alarms.rule import Level
from millrace_apps.iot_maintenance.processes.anomalies import PointScore, Scoring
from millrace_apps.iot_maintenance.processes.liveness_monitor import Monitoring
from millrace_apps.iot_maintenance.processes.monitor import MachineMonitor
from millrace_apps.iot_maintenance.settings import IotSettings, scoring
from tests.unit.apps.iot_maintenance.monitor_cases import (
    DAY,
    HOUR,
    M1,
    MINUTE,
    SECOND,
    START,
    Event,
    reading,
    rule,
    send,
    told,
    until,
)

#: Learns from few values, so that tests are short.
QUICK = novelty(learn=20)


def monitor(*rules: Any, scoring: Scoring | None = None, **rest: Any) -> MachineMonitor:
    how = {"judge": False, "sensor_least_ms": 10 * DAY, "grace_ms": 0, **rest}
    return MachineMonitor(Monitoring(rules=rules, **how), scoring or Scoring(detector=QUICK))


def driven(*rules: Any, bound: int = 0, **rest: Any) -> TestDriver:
    return TestDriver(monitor(*rules, **rest), out_of_orderness_ms=bound)


def every(step: int, n: int, seed: int = 1, quantity: str = "oil") -> list[Event]:
    """Readings around 60 with an excursion near the end."""
    rng = random.Random(seed)
    values = [60 + rng.gauss(0, 1) + (25 if i > n * 9 // 10 else 0) for i in range(n)]
    return [reading(i * step, round(value, 2), quantity) for i, value in enumerate(values)]


def scores(target: TestDriver, output: str = "scores") -> list[PointScore]:
    found: list[PointScore] = target.values(output)
    return found


def by_detector(values: list[tuple[int, float]]) -> list[tuple[int, float, Any]]:
    """Time, value and what the detector finds, of those that it scores."""
    state = QUICK.new()
    found = [(at, value, QUICK.add(state, value, START + at)) for at, value in values]
    return [one for one in found if one[2] is not None]


def told_scores(target: TestDriver) -> list[tuple[int, float, Any]]:
    return [
        (r.event_time_ms - START, r.value, (r.score, r.expected, r.residual, r.low, r.high, r.why))
        for r in scores(target)
    ]


def test_the_mean_of_a_minute_is_scored_when_the_next_one_begins() -> None:
    events, target = every(5 * SECOND, 1_200), driven()
    send(target, *events)
    until(target, HOUR * 3)
    minutes: dict[int, list[float]] = {}
    for _, at, event in events:
        minutes.setdefault(at // MINUTE, []).append(event.value)
    means = [(minute, sum(values) / len(values)) for minute, values in sorted(minutes.items())][:-1]
    wanted = by_detector([((minute + 1) * MINUTE - START - 5 * SECOND, mean) for minute, mean in means])
    assert told_scores(target) == [(at, pytest.approx(mean), tuple(score)) for at, mean, score in wanted]
    assert max(r.score for r in scores(target)) > 0.5


def test_a_point_that_reports_less_often_is_scored_value_by_value() -> None:
    events, target = every(10 * MINUTE, 150), driven()
    send(target, *events)
    until(target, 2 * DAY)
    got = told_scores(target)
    # How often it reports is known from its second value on.
    wanted = by_detector([(at - START, event.value) for _, at, event in events])
    assert [(at, value) for at, value, _ in got] == [(at, value) for at, value, _ in wanted]
    assert [score for _, _, score in got] == [tuple(score) for _, _, score in wanted]


def test_every_reading_is_scored_where_that_is_asked_for() -> None:
    events, target = every(SECOND, 200), driven(scoring=Scoring(interval_ms=0, detector=QUICK))
    send(target, *events)
    until(target, HOUR)
    wanted = by_detector([(at - START, event.value) for _, at, event in events])
    assert [(at, value) for at, value, _ in told_scores(target)] == [(at, value) for at, value, _ in wanted]


def test_anomalies_are_the_scores_from_the_threshold_on() -> None:
    for threshold in (0.5, 0.9):
        target = driven(scoring=Scoring(interval_ms=0, threshold=threshold, detector=QUICK))
        send(target, *every(SECOND, 400))
        until(target, HOUR)
        found = scores(target, "anomalies")
        assert found
        assert found == [row for row in scores(target) if row.score >= threshold]


def test_each_point_has_a_series_of_its_own_and_a_row_says_whose_it_is() -> None:
    both = [
        event
        for pair in zip(every(SECOND, 200, 1), every(SECOND, 200, 2, "vibration"), strict=True)
        for event in pair
    ]
    target, one = (driven(scoring=Scoring(interval_ms=0, detector=QUICK)) for _ in range(2))
    send(target, *both)
    send(one, *every(SECOND, 200, 1))
    until(target, HOUR)
    until(one, HOUR)
    assert [r for r in scores(target) if r.quantity == "oil"] == scores(one)
    row = scores(target)[-1]
    assert (row.machine_id, row.quantity, row.subject, row.sensor_id) == (
        M1,
        "vibration",
        "vibration",
        f"{M1}.vibration",
    )


def test_what_is_not_believed_or_late_is_not_scored() -> None:
    how = Scoring(interval_ms=0, detector=QUICK)
    events = every(SECOND, 100)
    target = TestDriver(monitor(scoring=how, grace_ms=MINUTE), out_of_orderness_ms=0)
    send(target, *events[:50], reading(49_500, None), *events[50:])
    until(target, 99 * SECOND)
    before = scores(target)
    send(target, reading(98_500, 4_000.0))
    assert scores(target) == before
    assert len(before) == 80


def test_nothing_is_scored_or_kept_where_it_is_off() -> None:
    target = driven(rule(Level(when="anomaly_score > 0.5")), scoring=Scoring(enabled=False))
    send(target, *every(MINUTE, 300))
    until(target, DAY)
    assert scores(target) == []
    assert told(target) == []


def test_a_value_too_large_to_be_kept_leaves_the_series_as_it_was() -> None:
    how = Scoring(interval_ms=0, detector=QUICK)
    events = every(SECOND, 60)
    plain, odd = driven(scoring=how), driven(scoring=how)
    send(plain, *events)
    send(odd, *events[:40], reading(39_500, 1e35), *events[40:])
    until(plain, HOUR)
    until(odd, HOUR)
    assert scores(odd) == scores(plain)


# -- alarms -----------------------------------------------------------------------------------------


def test_an_alarm_rule_can_ask_for_the_score() -> None:
    """It stands from the value that is odd to the next one that is scored."""
    rng = random.Random(4)
    values = [60 + rng.uniform(-1, 1) for _ in range(60)]
    values[50] = 62.5
    events = [reading(i * MINUTE, value) for i, value in enumerate(values)]
    target = driven(rule(Level(when="anomaly_score > 0.8"), id="odd"), scoring=Scoring(detector=QUICK))
    send(target, *events)
    until(target, 2 * HOUR)
    assert told(target) == [(50 * 60, "active"), (51 * 60, "inactive")]
    with pytest.raises(RuleError):
        language("error").condition("anomaly_score > 0.8")


def test_between_two_scored_values_the_score_is_that_of_the_first() -> None:
    rng = random.Random(4)
    events = [
        reading(i * 10 * SECOND, 60 + rng.uniform(-1, 1) + (2 if i // 6 == 50 else 0)) for i in range(360)
    ]
    target = driven(rule(Level(when="anomaly_score > 0.8"), id="odd"), scoring=Scoring(detector=QUICK))
    send(target, *events)
    until(target, 2 * HOUR)
    changes, before = [], False
    for row in scores(target):
        if (row.score > 0.8) != before:
            before = not before
            changes.append(((row.event_time_ms - START) // SECOND + 10, "active" if before else "inactive"))
    assert told(target) == changes
    # The minute from 50 on is scored with the first reading of 51.
    assert changes[0] == (51 * 60, "active")


# -- what is kept, and cuts -------------------------------------------------------------------------


def test_scores_do_not_depend_on_cuts_and_restarts() -> None:
    rng = random.Random(8)
    events = [*every(20 * SECOND, 200, 1), *every(3 * MINUTE, 40, 2, "vibration")]
    process = monitor(rule(Level(when="anomaly_score > 0.6"), id="odd"))
    rng.shuffle(events)
    invariant(process, events, bound_ms=3 * HOUR, runs=8)


def test_what_is_kept_of_a_point_is_less_than_half_a_kib_and_goes_with_its_machine() -> None:
    how = {"keep_ms": DAY, "scoring": Scoring(interval_ms=0)}
    target, off = driven(**how), driven(keep_ms=DAY, scoring=Scoring(enabled=False))
    for one in (target, off):
        rng = random.Random(9)
        for i in range(2_000):
            at = i * MINUTE
            send(one, reading(at, rng.gauss(60, 1), "a"), reading(at, rng.gauss(60, 1), "b"))
        until(one, 2_001 * MINUTE)

    def packed(one: TestDriver) -> int:
        return sum(len(msgspec.msgpack.encode(value)) for value in kept(one))

    assert (packed(target) - packed(off)) / 2 <= 512
    until(target, 2_000 * MINUTE + 2 * DAY)
    assert target.is_empty()


def kept(one: TestDriver) -> list[Any]:
    """Return all that is kept of the machine's points."""
    states = one.state(M1)
    return [states["series"], states["gathered"]]


def test_settings_say_how_values_are_scored() -> None:
    assert scoring(load_settings(IotSettings, app="iot", env={})) == Scoring()
    overrides = ["scores.enabled=false", "scores.interval=5m", "scores.threshold=0.8", "scores.learn=20"]
    told = load_settings(IotSettings, app="iot", overrides=overrides, env={})
    assert scoring(told) == Scoring(False, 5 * MINUTE, 0.8, QUICK)
