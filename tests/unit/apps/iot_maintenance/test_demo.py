"""The demo's checks on a small plant through the monitor in memory: they hold, and they can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.console.report import Check
from millrace.demo import DemoRun
from millrace.testing.world_ledger import ReadLedger
from millrace_apps.benchmarks.iot_world import run_world
from millrace_apps.generators.iot import IotProfile
from millrace_apps.iot_maintenance import demo
from millrace_apps.iot_maintenance.evaluation.stream import settings_for
from millrace_apps.iot_maintenance.settings import IotSettings, IotTopics
from tests.broken import (
    Break,
    Rows,
    added,
    all_hold,
    breaks,
    check_listed,
    doubled,
    dropped,
    fails,
    less,
    shifted,
    stuck,
    where,
)
from tests.cases import sampled

PROFILE = IotProfile(
    seed=3,
    start_ms=1_767_261_600_000,
    machines=6,
    machines_per_line=2,
    event_rate=100.0,
    events=10_000,
    acceleration=180.0,
    failure_scale=4,
    sensor_fault_rate=500.0,
    outage_rate=300.0,
    disorder_ms=300,
    late=0.002,
    lateness_ms=5_000,
    duplicates=0.005,
    malformed=0.001,
    worn=0.8,
    worn_from=0.5,
    warning_scale=30.0,
)
#: The topic of forecasts; the table has the newest of each point.
TOPIC = "topic of forecasts"
TABLES = (
    "readings", "late", "dead_letters", "alarm_history", "liveness",
    "scores", "anomalies", TOPIC, "forecasts", "machine_features", "risks", "machine_health",
)  # fmt: skip
Tables = dict[str, Rows]


def settings() -> IotSettings:
    return settings_for(demo.settings(""))


@pytest.fixture(scope="module")
def seen() -> tuple[Tables, ReadLedger]:
    world = run_world(PROFILE, settings())
    tables = {name: list(world.tables.get(name, ())) for name in TABLES}
    tables[TOPIC] = [msgspec.json.decode(value) for value in world.topics[settings().topics.forecasts]]
    newest = {(row["machine_id"], row["subject"]): row for row in tables[TOPIC]}
    return {**tables, "forecasts": list(newest.values())}, world.ledger


def checked(
    seen: tuple[Tables, ReadLedger], patch: pytest.MonkeyPatch, one: Break | None = None
) -> list[Check]:
    """The demo's checks, with something broken."""
    tables, ledger = seen
    changed = tables if one is None else one.applied(tables)
    patch.setattr(
        demo, "app_rows", lambda folder, name, columns: [{c: r[c] for c in columns} for r in changed[name]]
    )
    # In so small a plant little is foreseen: what is broken shows all the same.
    patch.setattr(demo.demo_foreseen, "LEAST_SAID", 8)
    patch.setattr(demo.demo_foreseen, "FEW", 1)
    patch.setattr(demo.demo_foreseen, "LEAST_WARNED", 2)
    patch.setattr(demo.demo_health, "LEAST_WORN", 20)
    told = {demo.FORECASTS: [msgspec.json.encode(row) for row in changed[TOPIC]]}
    run = DemoRun("", Path(), settings(), 60.0, 100, PROFILE.seed, told)
    return demo.checks(run, ledger, {row["_event_id"] for row in tables["alarm_history"]})


def test_every_check_of_the_demo_holds(
    seen: tuple[Tables, ReadLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    all_hold(checked(seen, monkeypatch))


def test_without_faults_and_silences_the_demo_says_that_it_compares_nothing(
    seen: tuple[Tables, ReadLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, ledger = seen
    found = checked((tables, msgspec.structs.replace(ledger, truths=[])), monkeypatch)
    empty = {check.name for check in found if check.is_empty}
    of_failures = {
        "failures that an alarm came before",
        "failures that unusual values came before",
        "failures that machines out of normal came before",
        "failures that were foreseen",
        "limits passed that were foreseen",
        "machines out of normal on the way to a failure",
        "unusual values on the way to a failure",
    }
    assert empty == {*of_failures, *(check.name for check in found if check.name.startswith("found: "))}
    assert len(empty) == len(demo.WORDS) + 10


def test_topics_of_a_demo_on_a_broker_of_others_are_its_own() -> None:
    own = {setting.split("=")[0].removeprefix("topics.") for setting in demo.settings("r1")}
    assert own >= set(IotTopics.model_fields) - {"partitions", "enriched"}


def test_a_slower_demo_has_fewer_machines_and_not_slower_sensors() -> None:
    """In time that is to be learned from, however many apps share the machine."""
    found = {}
    for rate in (20, 250, 1_000, 5_000):
        arguments = demo.generate(DemoRun("", Path(), settings(), 60.0, rate, 1))
        found[rate] = int(arguments[arguments.index("--machines") + 1])
    assert found == {20: 3, 250: 10, 1_000: 40, 5_000: 40}


def stopped(rows: Rows) -> Rows:
    alarm = next(row for row in rows if row["change"] == "active")
    of_stopped = {"category": "process", "announced": True, "status": "off", "quantity": "vibration"}
    return [*rows, {**alarm, **of_stopped}]


def fault(name: str, becomes: str) -> Any:
    """One kind of fault is not told from another."""
    return where(lambda row: row["fault"] == name, stuck("fault", becomes))


def of(rule: str, change: Any) -> Any:
    return where(lambda row: row["rule_id"] == rule, change)


def reason(name: str, change: Any) -> Any:
    return where(lambda row: row["reason"] == name, change)


def silent(change: Any) -> Any:
    return where(lambda row: row["state"] == "silent", change)


def one_sensor(rows: Rows) -> Rows:
    return [{**row, "entity_id": "m", "quantity": "q"} for row in rows]


def other_side(rows: Rows) -> Rows:
    turned = {"above": "below", "below": "above"}
    return [{**row, "side": turned.get(row["side"], row["side"])} for row in rows]


def elsewhere(rows: Rows) -> Rows:
    """Of another quantity of the same machine."""
    return [{**row, "quantity": "colour", "sensor_id": f"{row['machine_id']}.colour"} for row in rows]


def every_tenth_unusual(rows: Rows) -> Rows:
    """As many of all values as if nothing had been looked at."""
    return [{**row, "score": 0.9 if n % 10 == 0 else 0.1} for n, row in enumerate(rows)]


def everywhere(rows: Rows) -> Rows:
    """A failure is foreseen of every machine whenever anything is told of one."""
    first = next(row for row in rows if row["rule_id"] == SOON and row["change"] == "active")
    machines, times = {row["entity_id"] for row in rows}, {row["event_time_ms"] for row in rows}
    told = {**first, "announced": True}
    return [*rows, *({**told, "entity_id": of, "event_time_ms": at} for of in machines for at in times)]


HOUR = 3_600_000
#: The rule on what is foreseen.
SOON = "component-fails-soon"
#: Process alarms on the same quantity are no sensor alarms.
PROCESS_ALARMS_ONLY = {"alarm_history": of("sensor-fault", stuck("rule_id", "vibration-high-pump"))}
BREAKS = (
    *breaks(
        "failures that an alarm came before",
        dropped={"alarm_history": where(lambda row: row["category"] == "process", dropped)},
        an_hour_late={"alarm_history": shifted("event_time_ms", HOUR)},
        of_one_machine={"alarm_history": stuck("entity_id")},
        not_announced={"alarm_history": stuck("announced", False)},
    ),
    *breaks(
        "alarms of machines with a cause",
        an_hour_late={"alarm_history": shifted("event_time_ms", HOUR)},
        of_one_machine={"alarm_history": stuck("entity_id")},
        of_another_quantity={"alarm_history": stuck("quantity", "colour")},
    ),
    *breaks(
        "unusual values = scores from the threshold on",
        dropped={"anomalies": dropped},
        others={"scores": every_tenth_unusual},
        an_hour_late={"anomalies": shifted("event_time_ms", HOUR)},
    ),
    *breaks(
        "unusual values with a cause",
        an_hour_late={"anomalies": shifted("event_time_ms", HOUR)},
        of_another_quantity={"anomalies": elsewhere},
    ),
    *breaks(
        "unusual values on the way to a failure",
        dropped={"anomalies": dropped},
        of_another_machine={"anomalies": stuck("machine_id", "m")},
        of_another_quantity={"anomalies": elsewhere},
    ),
    *breaks(
        "failures that unusual values came before",
        dropped={"anomalies": dropped},
        an_hour_late={"anomalies": shifted("event_time_ms", HOUR)},
        of_another_quantity={"anomalies": elsewhere},
    ),
    *breaks(
        "newest forecasts on the topic = table",
        one_not_on_the_topic={"forecasts": added({"subject": "another"})},
        one_not_in_the_table={"forecasts": less},
        stuck={"forecasts": stuck("side", "above")},
    ),
    *breaks(
        "limits foreseen that were passed",
        an_hour_early={TOPIC: shifted("event_time_ms", -HOUR)},
        of_one_machine={TOPIC: stuck("machine_id")},
        of_the_other_side={TOPIC: other_side},
    ),
    *breaks(
        "limits passed that were foreseen",
        dropped={TOPIC: dropped},
        an_hour_late={TOPIC: shifted("event_time_ms", HOUR)},
        of_one_machine={TOPIC: stuck("machine_id")},
    ),
    *breaks(
        "machines out of normal with a cause",
        an_hour_late={"machine_health": shifted("event_time_ms", HOUR)},
        of_another_machine={"machine_health": stuck("machine_id", "m")},
    ),
    *breaks(
        "machines out of normal on the way to a failure",
        all_normal={"machine_health": stuck("score", 0.1)},
        all_beyond={"machine_health": stuck("score", 0.9)},
    ),
    *breaks(
        "failures that machines out of normal came before",
        all_normal={"machine_health": stuck("score", 0.1)},
        of_one_machine={"machine_health": where(lambda row: row["score"] > 0.5, stuck("machine_id"))},
    ),
    *breaks(
        "steps with risks = steps",
        dropped={"risks": dropped},
        one_too_many={"risks": added({"event_time_ms": 1})},
    ),
    *breaks(
        "alarms of what is foreseen = risks beyond their limit",
        dropped={"alarm_history": of(SOON, dropped)},
        an_hour_late={"alarm_history": of(SOON, shifted("event_time_ms", HOUR))},
        the_model_says_nothing={"risks": stuck("probability", 0.0)},
        of_one_machine={"alarm_history": of(SOON, stuck("entity_id"))},
    ),
    *breaks(
        "failures foreseen of machines that wear",
        an_hour_late={"alarm_history": of(SOON, shifted("event_time_ms", HOUR))},
        of_another_machine={"alarm_history": of(SOON, stuck("entity_id", "m"))},
    ),
    *breaks(
        "failures that were foreseen",
        dropped={"alarm_history": of(SOON, dropped)},
        not_announced={"alarm_history": of(SOON, stuck("announced", False))},
        an_hour_late={"alarm_history": of(SOON, shifted("event_time_ms", HOUR))},
        of_another_machine={"alarm_history": of(SOON, stuck("entity_id", "m"))},
    ),
    *breaks(
        "times without wear of a machine of which a failure is foreseen",
        of_every_machine={"alarm_history": everywhere},
    ),
    *breaks(
        "readings sent = rows in readings + late",
        dropped={"readings": less},
        doubled={"readings": doubled},
        one_late_too_many={"late": added({"input": "readings"})},
        taken_for_corrections={"readings": stuck("revision", 1)},
    ),
    *breaks("no reading twice", doubled={"readings": doubled}, stuck={"readings": stuck("reading_id")}),
    *breaks(
        "repeats in dead letters",
        dropped={"dead_letters": reason("duplicate", dropped)},
        doubled={"dead_letters": reason("duplicate", doubled)},
    ),
    *breaks(
        "broken in dead letters",
        dropped={"dead_letters": reason("malformed", less)},
        doubled={"dead_letters": reason("malformed", doubled)},
    ),
    *breaks(
        "readings know their status",
        dropped={"readings": lambda rows: [{**row, "status": None} for row in rows]},
    ),
    *breaks(
        "changes on the topic = alarm history",
        one_not_in_the_table={"alarm_history": less},
        one_not_on_the_topic={"alarm_history": added({"_event_id": "another"})},
    ),
    *breaks("no change of an alarm twice", doubled={"alarm_history": doubled}),
    *breaks(
        "alarms of stopped machines",
        one_added={"alarm_history": stopped},
        suppression_dropped={
            "alarm_history": where(lambda row: row["category"] == "process", stuck("status", "off"))
        },
    ),
    *breaks(
        "readings without a value are missing",
        believed={"readings": fault("missing", "")},
        one_too_many={"readings": where(lambda row: row["fault"] == "", stuck("fault", "missing"))},
    ),
    *breaks(
        "impossible values are out of range",
        believed={"readings": fault("range", "")},
        one_too_many={"readings": where(lambda row: row["fault"] == "", stuck("fault", "range"))},
    ),
    *breaks(
        "found: gateway outage",
        dropped={"liveness": silent(dropped)},
        an_hour_late={"liveness": silent(shifted("event_time_ms", HOUR))},
        devices_stuck={"liveness": silent(stuck("device_id"))},
    ),
    *breaks(
        "found: machine silence",
        dropped={"liveness": silent(dropped)},
        an_hour_late={"liveness": silent(shifted("event_time_ms", HOUR))},
        devices_stuck={"liveness": silent(stuck("device_id"))},
    ),
    *breaks(
        "found: sensor faults of all kinds",
        only_process_alarms=PROCESS_ALARMS_ONLY,
        alarms_an_hour_late={"alarm_history": shifted("event_time_ms", HOUR)},
        alarms_of_one_sensor={"alarm_history": of("sensor-fault", one_sensor)},
    ),
    *breaks(
        "found: sensor fault: gap",
        dropped={"liveness": silent(dropped)},
        an_hour_late={"liveness": silent(shifted("event_time_ms", HOUR))},
        devices_stuck={"liveness": silent(stuck("device_id"))},
    ),
    *(
        one
        for kind, words in demo.WORDS.items()
        for one in breaks(
            f"found: sensor fault: {kind}",
            not_told_from_others={
                "readings": where(
                    lambda row, words=words: row["fault"] in words,  # type: ignore[misc]
                    stuck("fault", "another"),
                )
            },
            only_process_alarms=PROCESS_ALARMS_ONLY,
            alarms_an_hour_late={"alarm_history": shifted("event_time_ms", HOUR)},
            alarms_of_one_sensor={"alarm_history": of("sensor-fault", one_sensor)},
        )
        if words
    ),
)


@pytest.mark.parametrize("one", sampled(BREAKS), ids=str)
def test_a_check_of_the_demo_fails_where_its_feature_is_broken(
    one: Break, seen: tuple[Tables, ReadLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fails(checked(seen, monkeypatch, one), one.check)


def test_every_check_is_listed_with_what_breaks_it(
    seen: tuple[Tables, ReadLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_listed("`millrace demo iot`", [check.name for check in checked(seen, monkeypatch)], BREAKS)
