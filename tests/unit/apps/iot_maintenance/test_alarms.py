from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.rules import ApproveRule, PublishRule, Rule, RuleError, SetRuleState
from millrace.testing.properties import invariant
from millrace.testing.standing import merged
from millrace.topology import Upsert
from millrace.topology.sinks import each_table
from millrace_apps.iot_maintenance.alarms.book import RuleSet
from millrace_apps.iot_maintenance.alarms.language import Facts
from millrace_apps.iot_maintenance.alarms.rule import (
    AlarmRule,
    CompiledRule,
    Escalate,
    Level,
    ReAlarm,
    Repeat,
)
from millrace_apps.iot_maintenance.alarms.schedule import Schedule, ScheduleError
from millrace_apps.iot_maintenance.processes.quality import Limits
from millrace_apps.iot_maintenance.settings import IotSettings
from millrace_apps.iot_maintenance.topology import topology
from tests.unit.apps.iot_maintenance.monitor_cases import (
    DAY,
    HOUR,
    M1,
    MINUTE,
    SECOND,
    START,
    Event,
    action,
    driver,
    equipment,
    error,
    history,
    maintenance,
    monitor,
    reading,
    rule,
    send,
    status,
    told,
    until,
)


def states(target: Any) -> list[tuple[bool, bool, bool, bool]]:
    return [(e.active, e.acked, e.confirmed, e.retain) for e in history(target)]


def test_the_sequence_of_opc_ua_part_9_b_1_2() -> None:
    """The worked example of a server that keeps the current state only; each step is one event."""
    target = driver(rule(confirm=True))
    t, f = True, False
    steps: list[tuple[Event, tuple[bool, bool, bool, bool]]] = [
        (reading(1_000, 90.0), (t, f, t, t)),  # goes active
        (action(2_000, "ack"), (t, t, f, t)),
        (reading(3_000, 70.0), (f, t, f, t)),  # goes inactive
        (action(4_000, "confirm"), (f, t, t, f)),
        (reading(5_000, 90.0), (t, f, t, t)),
        (reading(6_000, 70.0), (f, f, t, t)),
        (action(7_000, "ack"), (f, t, f, t)),
        (action(8_000, "confirm"), (f, t, t, f)),
    ]
    for number, (event, wanted) in enumerate(steps, start=1):
        send(target, event)
        until(target, event[1] - START)
        assert len(history(target)) == number
        assert states(target)[-1] == wanted
    # What has come to its end is forgotten; the initial state is that of an alarm that nobody knows.
    assert not target.state(M1)["conditions"].conditions  # type: ignore[index]


def test_a_dead_band_keeps_a_value_at_the_limit_from_chattering() -> None:
    """Limit 80, dead-band 5: active above 80, inactive at or below 75."""
    target = driver(rule(Level(above=80.0, dead_band=5.0)))
    for at, value in enumerate([80.0, 80.1, 79.0, 75.1, 80.5, 75.0, 79.9], start=1):
        send(target, reading(at * SECOND, value))
    until(target, MINUTE)
    assert told(target) == [(2, "active"), (6, "inactive")]
    assert history(target)[0].limit == 80.0


def test_a_low_limit_has_its_dead_band_above() -> None:
    target = driver(rule(Level(below=10.0, dead_band=2.0)))
    for at, value in enumerate([10.0, 9.9, 11.9, 12.0], start=1):
        send(target, reading(at * SECOND, value))
    until(target, MINUTE)
    assert told(target) == [(2, "active"), (4, "inactive")]


def test_an_on_delay_waits_without_a_further_reading_and_ends_with_the_condition() -> None:
    """A delay that is cut short, and one that is not.

    value      90 ──── 70    90 ─────────────
    on-delay   └── 10 s …    └── 10 s ──┤ active
    """
    target = driver(rule(Level(above=80.0, on_delay="10s")))
    send(target, reading(1_000, 90.0), reading(6_000, 70.0), reading(20_000, 90.0))
    until(target, 29_999)
    assert told(target) == []
    until(target, 30_000)
    assert told(target) == [(30, "active")]


def test_a_reading_at_the_very_end_of_the_delay_still_counts() -> None:
    target = driver(rule(Level(above=80.0, on_delay="10s")), bound=SECOND)
    send(target, reading(1_000, 90.0), reading(11_000, 70.0))
    until(target, MINUTE)
    assert told(target) == []


def test_an_off_delay_holds_an_alarm_over_short_returns() -> None:
    target = driver(rule(Level(above=80.0, off_delay="10s")))
    for at, value in [(1, 90.0), (3, 70.0), (8, 90.0), (20, 70.0)]:
        send(target, reading(at * SECOND, value))
    until(target, MINUTE)
    assert told(target) == [(1, "active"), (30, "inactive")]


def test_raise_at_once_escalate_after_one_minute_step_down_after_two_clear_after_five() -> None:
    levels = (
        Level(severity="low", above=80.0, off_delay="5m"),
        Level(severity="critical", above=80.0, on_delay="1m", off_delay="2m"),
    )
    target = driver(rule(*levels))
    send(target, reading(0, 90.0), reading(5 * MINUTE, 70.0))
    until(target, HOUR)
    found = [((e.event_time_ms - START) // MINUTE, e.change, e.level, e.severity) for e in history(target)]
    assert found == [
        (0, "active", 1, "low"),
        (1, "raised", 2, "critical"),
        (7, "lowered", 1, "low"),
        (10, "inactive", 0, "low"),
    ]


def test_repetition_counts_within_its_time_and_is_over_by_itself() -> None:
    target = driver(rule(Level(above=80.0, repeat=Repeat(3, "10s"))))
    for at, value in [(1, 90.0), (5, 90.0), (6, 70.0), (12, 90.0), (14, 90.0), (40, 90.0)]:
        send(target, reading(at * SECOND, value))
    until(target, HOUR)
    # At 12 s the first is 11 s ago; at 14 s there are three in the last ten (5, 12, 14), until 15 s.
    assert told(target) == [(14, "active"), (15, "inactive")]


def test_errors_repeat_until_the_window_has_passed() -> None:
    again = AlarmRule(
        "again", (Level(when="code == 'E7'", repeat=Repeat(2, "1m")),), source="error", ack=False
    )
    target = driver(again)
    send(target, error(0, "E7"), error(10 * SECOND, "E1"), error(30 * SECOND, "E7"))
    until(target, HOUR)
    assert told(target) == [(30, "active"), (60, "inactive")]


def test_no_data_is_an_alarm_without_any_event() -> None:
    target = driver(rule(Level(no_data="30s")))
    send(target, reading(0, 1.0), reading(SECOND, 1.0), reading(11 * SECOND, 1.0))
    until(target, 40 * SECOND)
    assert told(target) == []
    until(target, 41 * SECOND)
    assert told(target) == [(41, "active")]
    send(target, reading(50 * SECOND, 1.0))
    until(target, MINUTE)
    assert told(target)[1:] == [(50, "inactive")]


def test_a_rate_of_change_is_per_minute() -> None:
    target = driver(rule(Level(when="rate > 30")))
    for at, value in [(0, 10.0), (10, 14.0), (20, 20.0), (30, 20.5)]:
        send(target, reading(at * SECOND, value))
    until(target, MINUTE)
    assert told(target) == [(20, "active"), (30, "inactive")]


def test_an_expression_over_several_sensors_sees_an_instant_as_a_whole() -> None:
    """Both change at 2 s: with one of them alone the condition would hold for a moment."""
    both = AlarmRule(
        "both", (Level(when="flow < 10 and load > 5"),), source="machine", quantities=("flow", "load")
    )
    target = driver(both)
    send(target, reading(0, 50.0, "flow"), reading(0, 1.0, "load"))
    target.send_batch([reading(2_000, 5.0, "flow"), reading(2_000, 0.0, "load")])
    target.send_batch([reading(3_000, 50.0, "flow"), reading(3_000, 9.0, "load")])
    target.send_batch([reading(4_000, 5.0, "flow")])
    until(target, MINUTE)
    assert told(target) == [(4, "active")]


def test_expressions_know_the_machine() -> None:
    worn = rule(Level(when="age_days('seal') > 1 and errors('*') >= 2 and attribute('model') == 'x1'"))
    target = driver(worn)
    send(target, equipment(0, model="x1"), maintenance(0, "seal"), error(DAY, "E1"), error(DAY + 1, "E2"))
    send(target, reading(DAY, 1.0), reading(DAY + HOUR, 1.0))
    until(target, 2 * DAY)
    assert told(target) == [((DAY + HOUR) // SECOND, "active")]


def test_a_rule_for_another_kind_of_machine_is_not_asked() -> None:
    target = driver(rule(kinds=("fan",)))
    send(target, equipment(0, "pump"), reading(SECOND, 90.0), equipment(2_000, "fan"), reading(3_000, 90.0))
    until(target, MINUTE)
    assert told(target) == [(3, "active")]


def test_a_stopped_machine_is_not_an_alarm() -> None:
    target = driver(rule(suppress_in=("off",)))
    send(target, status(0, "off"), reading(1_000, 90.0), status(5_000, "running"), status(9_000, "off"))
    send(target, reading(10_000, 70.0))
    until(target, MINUTE)
    found = [((e.event_time_ms - START) // SECOND, e.change, e.announced) for e in history(target)]
    assert found == [
        (1, "active", False),
        (5, "unsuppress", True),
        (9, "suppress", False),
        (10, "inactive", False),
    ]


def test_a_maintenance_window_suppresses_everything_and_ends() -> None:
    target = driver(rule(), rule(id="warm", quantities=("oil",)))
    send(target, action(0, "suppress", "*", 10 * SECOND), reading(2_000, 90.0))
    until(target, MINUTE)
    found = [((e.event_time_ms - START) // SECOND, e.alarm, e.change, e.announced) for e in history(target)]
    assert found == [
        (2, "hot/oil", "active", False),
        (2, "warm/oil", "active", False),
        (10, "hot/oil", "unsuppress", True),
        (10, "warm/oil", "unsuppress", True),
    ]


def test_a_maintenance_window_that_is_over_says_nothing_of_new_alarms() -> None:
    target = driver(rule())
    send(target, action(0, "suppress", "*", 10 * SECOND), reading(20_000, 90.0))
    until(target, MINUTE)
    assert [(e.change, e.suppressed, e.announced) for e in history(target)] == [("active", False, True)]


def test_of_two_changes_at_one_instant_the_second_one_stands() -> None:
    """By their bytes they are in another order, in which what is merged may come."""
    target = driver(rule())
    send(target, reading(0, 90.0), action(1_000, "suppress", "hot/oil"), reading(2_000, 20.0))
    send(target, action(3_000, "unsuppress", "hot/oil"), reading(3_000, 90.0))
    until(target, MINUTE)
    changes = [e for e in history(target) if e.event_time_ms == START + 3_000]
    assert [(e.change, e.number) for e in changes] == [("unsuppress", 0), ("active", 1)]
    (table,) = (t for t in each_table(topology(IotSettings()).tables["main"]) if isinstance(t, Upsert))
    rows = [msgspec.to_builtins(e) for e in sorted(changes, key=msgspec.json.encode)]
    assert [row["change"] for row in rows] == ["active", "unsuppress"]
    assert [row["change"] for row in merged(rows, table)] == ["active"]


def test_timed_shelving_ends_and_is_no_longer_than_the_rule_allows() -> None:
    target = driver(rule(max_shelve="20s"))
    send(target, reading(0, 90.0), action(1_000, "shelve", duration=HOUR))
    until(target, MINUTE)
    found = [((e.event_time_ms - START) // SECOND, e.change, e.shelved, e.announced) for e in history(target)]
    assert found == [(0, "active", "", True), (1, "shelve", "timed", False), (21, "unshelve", "", True)]


def test_one_shot_shelving_ends_with_the_alarm() -> None:
    target = driver(rule())
    send(target, reading(0, 90.0), action(1_000, "shelve"), reading(2_000, 70.0), reading(3_000, 90.0))
    until(target, MINUTE)
    found = [(e.change, e.shelved, e.announced) for e in history(target)]
    assert found == [
        ("active", "", True),
        ("shelve", "one_shot", False),
        ("inactive", "one_shot", False),
        ("unshelve", "", False),
        ("active", "", True),
    ]


def test_a_latched_alarm_stays_until_it_is_reset() -> None:
    target = driver(rule(latched=True, ack=False))
    send(target, reading(0, 90.0), action(1_000, "reset"), reading(2_000, 70.0))
    until(target, 3_000)
    assert [(e.change, e.latched, e.retain) for e in history(target)] == [
        ("active", True, True),
        ("rejected", True, True),
        ("inactive", True, True),
    ]
    send(target, action(4_000, "reset"))
    until(target, 5_000)
    assert (history(target)[-1].change, history(target)[-1].retain) == ("reset", False)


def test_an_alarm_that_stays_is_raised_again_and_must_be_acknowledged_again() -> None:
    target = driver(rule(re_alarm=ReAlarm("10s", 2)))
    send(target, reading(0, 90.0), action(1_000, "ack"))
    until(target, MINUTE)
    found = [((e.event_time_ms - START) // SECOND, e.change, e.acked) for e in history(target)]
    assert found == [(0, "active", False), (1, "ack", True), (10, "re_alarm", False), (20, "re_alarm", False)]


@pytest.mark.parametrize("seen", [True, False])
def test_what_nobody_acknowledges_becomes_more_severe(seen: bool) -> None:
    target = driver(rule(Level("low", above=80.0), escalate=Escalate("1m", "critical")))
    send(target, reading(0, 90.0), *([action(1_000, "ack")] if seen else []))
    until(target, HOUR)
    assert ("escalated" in [e.change for e in history(target)]) is not seen
    assert history(target)[-1].severity == ("low" if seen else "critical")


def test_the_first_of_a_group_is_marked() -> None:
    target = driver(rule(group="g"), rule(id="warm", quantities=("load",), group="g"))
    send(
        target,
        reading(0, 90.0),
        reading(1_000, 90.0, "load"),
        reading(2_000, 70.0),
        reading(2_000, 7.0, "load"),
    )
    send(target, reading(3_000, 90.0, "load"))
    until(target, MINUTE)
    firsts = {(e.alarm, (e.event_time_ms - START) // SECOND) for e in history(target)
              if e.change == "active" and e.first_in_group}  # fmt: skip
    assert firsts == {("hot/oil", 0), ("warm/load", 3)}


def test_actions_that_make_no_sense_are_recorded_and_change_nothing() -> None:
    target = driver(rule())
    for verb in ("ack", "confirm", "unshelve", "unsuppress", "in_service", "reset"):
        send(target, action(1_000, verb))
    send(target, action(1_000, "ack", "cold/oil"), action(1_000, "ack", "hot/load"))
    until(target, MINUTE)
    assert {e.change for e in history(target)} == {"rejected"}
    assert len(history(target)) == 8
    assert sum("no such alarm" in e.reason for e in history(target)) == 2


def test_a_repeated_action_has_no_second_effect() -> None:
    target = driver(rule(), bound=SECOND)
    again = action(2_000, "ack")
    target.send_batch([reading(1_000, 90.0), again, again])
    until(target, MINUTE)
    assert [e.change for e in history(target)] == ["active", "ack"]


def test_a_late_action_takes_effect_when_it_comes() -> None:
    target = driver(rule())
    send(target, reading(1_000, 90.0), reading(60_000, 90.0))
    send(target, action(2_000, "ack"))
    until(target, HOUR)
    assert [e.change for e in history(target)] == ["active", "ack"]


def test_out_of_service_is_told_to_nobody() -> None:
    target = driver(rule())
    send(target, action(0, "out_of_service"), reading(1_000, 90.0), action(2_000, "in_service"))
    until(target, MINUTE)
    assert [(e.change, e.announced) for e in history(target)] == [
        ("out_of_service", False),
        ("active", False),
        ("in_service", True),
    ]


def test_a_schedule_makes_an_alarm_wait_for_its_hours_and_end_with_them() -> None:
    """The start is Monday 08:00 UTC, 09:00 in Berlin; in force from 10:00 to 12:00 there."""
    hours = Schedule(begin="10:00", end="12:00", tz="Europe/Berlin")
    target = driver(rule(schedule=hours))
    send(target, reading(0, 90.0))
    until(target, 20 * HOUR)
    assert told(target) == [(3600, "active"), (3 * 3600, "inactive")]


def test_a_schedule_of_some_days_over_midnight() -> None:
    nights = Schedule(("mon",), "22:00", "06:00")
    assert [nights.holds(START + at * HOUR) for at in (13, 14, 21, 22, 38)] == [
        False,
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(ScheduleError, match="time zone"):
        Schedule(tz="Mars/Base")
    with pytest.raises(ScheduleError, match="no time of day"):
        Schedule(begin="25:00")


# -- sensors ---------------------------------------------------------------------------------------


def test_what_a_sensor_gets_wrong_is_a_sensor_alarm_and_never_a_process_alarm() -> None:
    faults = AlarmRule("sensor-fault", (Level(severity="low"),), source="quality")
    target = driver(rule(), faults, limits={"oil": Limits("degC", -50, 150)})
    send(target, reading(0, 70.0), reading(1_000, 900.0), reading(2_000, None), reading(3_000, 71.0))
    until(target, MINUTE)
    found = [((e.event_time_ms - START) // SECOND, e.alarm, e.change, e.reason) for e in history(target)]
    assert found == [
        (1, "sensor-fault/oil", "active", "range"),
        (3, "sensor-fault/oil", "inactive", "missing"),
    ]
    assert {e.category for e in history(target)} == {"sensor"}


# -- rules that change -----------------------------------------------------------------------------


def publish(changed: AlarmRule, version: int = 1, state: Any = "active", at: int = 0) -> PublishRule:
    text = msgspec.json.encode(changed).decode()
    return PublishRule(Rule(changed.id, text), version, "ann", 0, state, START + at if at else 0)


def test_a_rule_changes_at_its_event_time_whenever_it_is_published() -> None:
    target = driver(rule())
    target.broadcast(publish(rule(Level(above=95.0)), at=10 * SECOND))
    for at in (1, 5, 9):
        send(target, reading(at * SECOND, 90.0 if at != 5 else 70.0))
    send(target, reading(10 * SECOND, 70.0), reading(11 * SECOND, 90.0), reading(12 * SECOND, 96.0))
    until(target, MINUTE)
    assert told(target) == [(1, "active"), (5, "inactive"), (9, "active"), (10, "inactive"), (12, "active")]


def test_an_alarm_at_a_level_that_its_rule_no_longer_has_comes_down() -> None:
    levels = (Level("low", above=80.0), Level("high", above=90.0))
    target = driver(rule(*levels))
    send(target, reading(1_000, 95.0), action(2_000, "shelve", duration=5_000), reading(3_000, 95.0))
    target.broadcast(publish(rule(levels[0])))
    until(target, MINUTE)
    send(target, reading(2 * MINUTE, 95.0), reading(3 * MINUTE, 70.0))
    until(target, HOUR)
    assert history(target)[-1].change == "inactive"
    assert not target.values("dead_letters")


def test_alarms_of_a_rule_that_goes_are_removed() -> None:
    target = driver(rule())
    send(target, reading(1_000, 90.0), reading(2_000, 91.0))
    target.broadcast(publish(rule()))
    target.broadcast(SetRuleState("hot", 1, "paused", "ann", 0))
    send(target, reading(3_000, 92.0), reading(4_000, 93.0))
    until(target, MINUTE)
    assert [e.change for e in history(target)] == ["active", "removed"]


def test_a_published_rule_waits_for_a_second_person() -> None:
    target = driver(two_person=True)
    target.broadcast(publish(rule()))
    send(target, reading(1_000, 90.0), reading(2_000, 70.0))
    until(target, 2_500)
    target.broadcast(ApproveRule("hot", 1, "ann", 0))
    (letter,) = target.values("dead_letters")
    assert "a second person must approve" in letter["error"]
    target.broadcast(ApproveRule("hot", 1, "bob", 0))
    send(target, reading(3_000, 90.0))
    until(target, MINUTE)
    assert [(e.change, e.shadow) for e in history(target)] == [
        ("active", True),
        ("inactive", True),
        ("active", False),
    ]


def test_a_shadow_rule_is_recorded_and_announced_to_nobody() -> None:
    target = driver()
    target.broadcast(publish(rule(), state="shadow"))
    send(target, reading(1_000, 90.0))
    until(target, MINUTE)
    (only,) = history(target)
    assert (only.active, only.announced, only.shadow) == (True, False, True)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"levels": ()}, "length >= 1"),
        ({"levels": (Level(),)}, "one condition"),
        ({"levels": (Level(above=1.0, when="value > 1"),)}, "one condition"),
        ({"levels": (Level(when="valu > 1"),)}, "did you mean value"),
        ({"levels": (Level(above=1.0, until="value < 1"),)}, "until goes with when"),
        ({"levels": (Level("high", above=1.0), Level("low", above=2.0))}, "from mild to severe"),
        ({"levels": (Level(above=1.0, on_delay="soon"),)}, "not a duration"),
        ({"quantities": ()}, "names its quantities"),
    ],
)
def test_a_rule_that_contradicts_itself_is_refused_and_the_others_stay(
    changed: dict[str, Any], why: str
) -> None:
    target = driver(rule())
    bad = msgspec.structs.replace(rule(), **changed)
    target.broadcast(publish(bad))
    (letter,) = target.values("dead_letters")
    assert (letter["reason"], letter["stage"]) == ("process_error", "broadcast")
    assert why in letter["error"]
    send(target, reading(1_000, 90.0))
    until(target, MINUTE)
    assert told(target) == [(1, "active")]


def test_a_rule_names_itself_in_its_error() -> None:
    with pytest.raises(RuleError, match="rule 'hot'"):
        CompiledRule(rule(Level(when="oops >")))


# -- replay ----------------------------------------------------------------------------------------


VERBS = ["ack", "confirm", "shelve", "silence"]


def busy_hour(rng: random.Random) -> list[Event]:
    """Readings about their limits, statuses, errors and operators."""
    found: dict[tuple[Any, ...], Event] = {}
    for _ in range(rng.randint(20, 60)):
        at = rng.randrange(0, 10 * MINUTE, 500)
        made: Event = rng.choice(
            [
                lambda at=at: reading(at, float(rng.randint(70, 95))),
                lambda at=at: reading(at, float(rng.randint(0, 20)), "flow"),
                lambda at=at: status(at, rng.choice(["running", "off"])),
                lambda at=at: error(at),
                lambda at=at: action(
                    at, rng.choice(["ack", "confirm", "shelve", "silence"]), duration=20_000
                ),
                lambda at=at: action(at, "suppress", "*", 30_000),
            ]
        )()
        event = made[2]
        about = [getattr(event, name, None) for name in ("quantity", "verb")]
        found[at, type(event), *about] = made
    return list(found.values())


BUSY = (
    rule(
        Level("low", above=80.0, dead_band=3.0, on_delay="2s", off_delay="5s"),
        Level("high", above=90.0, on_delay="4s", off_delay="1s"),
        suppress_in=("off",),
        confirm=True,
        re_alarm=ReAlarm("20s", 2),
        escalate=Escalate("30s", "critical"),
        group="g",
    ),
    AlarmRule("both", (Level(when="oil > 85 and flow < 10", off_delay="3s"),), source="machine",
              quantities=("oil", "flow"), group="g", latched=True),
    AlarmRule("again", (Level(when="code != ''", repeat=Repeat(3, "1m")),), source="error"),
    rule(Level(no_data="45s"), id="gone"),
)  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_two_replays_give_byte_identical_histories(seed: int) -> None:
    """Any order within the bound, any cut, any restart: the same bytes in the same order."""
    rng = random.Random(seed)
    events = busy_hour(rng)

    def replay(order: list[Event], sizes: random.Random) -> list[bytes]:
        target = driver(*BUSY, bound=30 * SECOND)
        order = list(order)
        while order:
            size = sizes.randint(1, 9)
            target.send_batch(order[:size])
            del order[:size]
            if sizes.random() < 0.3:
                target.restart()
        target.drain()
        return [e.payload for e in target.emissions if e.output == "alarms"]

    in_order = sorted(events, key=lambda e: e[1])
    disordered = sorted(events, key=lambda e: e[1] + rng.randint(0, 30 * SECOND))
    first = replay(in_order, random.Random(1))
    assert replay(in_order, random.Random(seed)) == first
    assert replay(disordered, random.Random(seed + 1)) == first


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_alarms_hang_on_the_events_alone(seed: int) -> None:
    events = busy_hour(random.Random(seed))
    invariant(
        monitor(*BUSY), events, bound_ms=30 * SECOND, runs=3, seed=seed, upsert_by={"main": ("reading_id",)}
    )


def test_a_value_is_safe_for_a_kind_exactly_if_none_of_its_rules_begins_to_hold() -> None:
    rules = RuleSet(
        (found, False)
        for found in (
            AlarmRule("all", (Level(above=90.0),), quantities=("oil",)),
            AlarmRule("pump", (Level(below=2.0), Level(above=50.0)), quantities=("oil",), kinds=("pump",)),
            AlarmRule("fan", (Level(when="value > 5 and zscore > 3"),), quantities=("oil",), kinds=("fan",)),
        )
    )
    for kind in ("pump", "turbine", ""):
        for value in (-1.0, 1.9, 2.0, 49.9, 50.0, 50.1, 90.0, 90.1):
            facts = Facts(0, kind=kind)
            facts.value = value
            trips = any(c.trips(facts) for c in rules.of["oil"] if not c.kinds or kind in c.kinds)
            assert rules.is_safe_for(kind, "oil", value) is not trips
    # An expression asks for more than the value.
    assert not rules.is_safe_for("fan", "oil", 3.0)


# -- who holds an alarm back, and why; who responds to it ---------------------------------------------


@pytest.mark.parametrize("verb", ["shelve", "suppress", "out_of_service"])
def test_holding_an_alarm_back_needs_a_reason(verb: str) -> None:
    target = driver(rule(), reasons=True)
    send(target, reading(0, 81.0), action(SECOND, verb), action(2 * SECOND, verb, comment="being replaced"))
    send(target, action(3 * SECOND, "ack"))
    until(target, MINUTE)
    found = history(target)[1:]
    assert [(e.change, e.reason, e.comment) for e in found] == [
        ("rejected", f"{verb}: it needs a reason", ""),
        (verb, "", "being replaced"),
        ("ack", "", ""),
    ]


def test_suppressing_all_of_a_machine_needs_a_reason_too() -> None:
    target = driver(rule(), reasons=True)
    send(target, reading(0, 81.0), action(SECOND, "suppress", "*", MINUTE), reading(2 * SECOND, 82.0))
    send(target, action(3 * SECOND, "suppress", "*", MINUTE, comment="cleaning"), reading(4 * SECOND, 82.0))
    until(target, 5 * SECOND)
    assert [(e.alarm, e.change, e.announced) for e in history(target)] == [
        ("hot/oil", "active", True),
        ("*", "rejected", False),
        ("hot/oil", "suppress", False),
    ]


def test_a_rule_says_which_roles_may_hold_its_alarms_back() -> None:
    from millrace_apps.iot_maintenance.contracts.events import Action

    target = driver(rule(roles=("supervisor", "engineer")))
    send(target, reading(0, 81.0))
    for at, role in ((1_000, ""), (2_000, "operator"), (3_000, "engineer")):
        event = Action(f"a{at}", M1, "hot/oil", "shelve", START + at, "ann", MINUTE, "why", role)
        send(target, (M1, START + at, event))
    until(target, 4_000)
    only = "shelve: only supervisor, engineer may do that"
    assert [(e.change, e.reason, e.role) for e in history(target)[1:]] == [
        ("rejected", only, ""),
        ("rejected", only, "operator"),
        ("shelve", "", "engineer"),
    ]


def test_all_of_a_machine_is_held_back_but_for_alarms_that_are_for_another_role() -> None:
    """Those that stand say that they are not; those that come later are told as ever."""
    from millrace_apps.iot_maintenance.contracts.events import Action

    guarded = rule(id="guarded", quantities=("oil", "load"), roles=("supervisor",))
    for role, held in (("", False), ("operator", False), ("supervisor", True)):
        target = driver(rule(quantities=("oil", "load")), guarded)
        send(target, reading(0, 81.0))
        event = Action("a1", M1, "*", "suppress", START + SECOND, "ann", HOUR, "cleaning", role)
        send(target, (M1, START + SECOND, event), reading(2 * SECOND, 81.0, "load"))
        until(target, MINUTE)
        at = {(e.alarm, e.change): (e.announced, e.suppressed, e.reason) for e in history(target)}
        assert at["hot/oil", "suppress"] == (False, True, "")
        assert at["hot/load", "active"] == (False, True, "")
        assert at["guarded/load", "active"] == (not held, held, "")
        if held:
            assert at["guarded/oil", "suppress"] == (False, True, "")
        else:
            assert at["guarded/oil", "rejected"] == (True, False, "suppress: only supervisor may do that")
        # It ends for all that it has begun for.
        send(target, action(2 * MINUTE, "unsuppress", "*"), reading(3 * MINUTE, 70.0))
        send(target, reading(4 * MINUTE, 82.0))
        until(target, 5 * MINUTE)
        last = {e.alarm: e for e in history(target)}
        assert {name: last[name].announced for name in ("hot/oil", "guarded/oil")} == {
            "hot/oil": True,
            "guarded/oil": True,
        }


def test_who_may_not_hold_alarms_back_may_still_acknowledge_all_of_a_machine() -> None:
    target = driver(rule(roles=("supervisor",)))
    send(target, reading(0, 81.0), action(SECOND, "ack", "*"))
    until(target, MINUTE)
    assert [(e.change, e.acked) for e in history(target)] == [("active", False), ("ack", True)]


def test_an_alarm_says_what_it_comes_from_what_follows_and_what_to_do_until_when() -> None:
    advice = {"cause": "worn seal", "consequence": "leak", "response": "change the seal"}
    target = driver(rule(Level(above=80.0, off_delay="1s"), response_time="15m", **advice))
    send(target, reading(0, 81.0), action(SECOND, "ack"), reading(2 * SECOND, 70.0))
    until(target, MINUTE)
    found = history(target)
    assert {(e.cause, e.consequence, e.response) for e in found} == {tuple(advice.values())}
    assert [e.respond_by_ms for e in found] == [START + 15 * MINUTE, START + 15 * MINUTE, None]
