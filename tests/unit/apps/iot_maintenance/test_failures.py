"""A failure is when the machine broke: in the table of repairs, in what models learn, and in what judges."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from deltalake import write_deltalake

from millrace.models.tables import TrainingTables
from millrace.testing import TestDriver
from millrace_apps.benchmarks.iot_demo_models import read_of
from millrace_apps.benchmarks.iot_world import World, profile, run_world
from millrace_apps.iot_maintenance import demo
from millrace_apps.iot_maintenance.contracts.events import Maintenance
from millrace_apps.iot_maintenance.contracts.records import EnrichedReading
from millrace_apps.iot_maintenance.evaluation.stream import settings_for
from millrace_apps.iot_maintenance.foresight.distribution import level_of
from millrace_apps.iot_maintenance.foresight.failures import failures_of, is_broken
from millrace_apps.iot_maintenance.foresight.learner import Read, read_tables
from millrace_apps.iot_maintenance.foresight.models import Told
from millrace_apps.iot_maintenance.foresight.process import Foresight, Looking
from millrace_apps.iot_maintenance.processes.statuses import Regime
from millrace_apps.iot_maintenance.state.breakdowns import KEPT, Breakdowns
from tests.cases import case_count
from tests.unit.apps.iot_maintenance.foresight_cases import START, errors_of
from tests.unit.apps.iot_maintenance.monitor_cases import (
    HOUR,
    M1,
    MINUTE,
    Event,
    driver,
    equipment,
    reading,
    send,
    status,
)
from tests.unit.apps.iot_maintenance.monitor_cases import START as MONITORED

CASES = case_count(300)
NO_MODELS = Path(__file__).with_name("there-are-none")
REGIMES: tuple[Regime | None, ...] = ("producing", "idle", "maintenance", "failed", "off", None)


def repair(at: int, took: int = 0, kind: str = "corrective", failed: int | None = None) -> Event:
    """A replacement that was done ``at`` ms after the start."""
    told = None if failed is None else MONITORED + failed
    event = Maintenance(f"{M1}.w{at}", M1, "seal", MONITORED + at, kind, took, told)  # type: ignore[arg-type]
    return M1, MONITORED + at, event


# -- when a machine broke ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(CASES))
def test_breakdowns_are_those_of_a_look_at_every_moment(seed: int) -> None:
    rnd = random.Random(seed)
    end = 60
    turns = {at: rnd.choice(REGIMES) for at in sorted(rnd.sample(range(end), rnd.randrange(1, 12)))}
    known = Breakdowns()
    for at, regime in turns.items():
        known.turn(at, regime)
    # At each moment: whether the machine is broken, where repair and words without a meaning change nothing.
    broken: list[bool] = []
    for at in range(end):
        before = broken[-1] if broken else False
        regime = turns.get(at, "same")
        stays = before and regime in ("failed", "maintenance", None, "same")
        broken.append(stays or regime == "failed")
    begins = [at for at in range(end) if broken[at] and not (at and broken[at - 1])]
    spans = [(at, next((t for t in range(at, end) if not broken[t]), None)) for at in begins][-KEPT:]

    for done in range(end):
        for took in (0, 1, 7, 30):
            worked = range(done - took, done + 1)
            hit = [
                begin for begin, over in spans
                if any(t >= begin and (over is None or t <= over) for t in worked)
            ]  # fmt: skip
            assert known.begin_of(done, took) == (hit[0] if hit else done - took)
    assert len(known.spans) <= KEPT


def told_of(*events: Event, **settings: Any) -> list[Maintenance]:
    target = driver(**settings)
    send(target, *events)
    target.drain()
    found: list[Maintenance] = target.values("replaced")
    return found


BROKEN = (
    reading(0, 50.0),
    status(MINUTE, "running"),
    status(HOUR, "failed"),
    status(3 * HOUR, "maintenance"),
)


def test_a_repair_says_when_the_machine_broke() -> None:
    """It waited for two hours, and the work took two: what is booked is its end, and how long it took."""
    found = told_of(*BROKEN, repair(5 * HOUR, 2 * HOUR), status(5 * HOUR, "running"), reading(6 * HOUR, 50.0))
    assert [(one.event_time_ms, one.failed_ms) for one in found] == [(MONITORED + 5 * HOUR, MONITORED + HOUR)]


@pytest.mark.parametrize(
    ("booked", "failed"),
    [
        (repair(5 * HOUR, 2 * HOUR, failed=30 * MINUTE), 30 * MINUTE),  # who books it knows best
        (repair(5 * HOUR, 2 * HOUR, failed=6 * HOUR), 5 * HOUR),  # nothing fails after it was repaired
        (repair(5 * HOUR, 2 * HOUR, "scheduled"), None),
        (repair(5 * HOUR, 2 * HOUR, "scheduled", failed=HOUR), None),
    ],
)
def test_what_a_booking_says_counts(booked: Event, failed: int | None) -> None:
    found = told_of(*BROKEN, booked, reading(6 * HOUR, 50.0))
    assert [one.failed_ms for one in found] == [None if failed is None else MONITORED + failed]


def test_without_a_status_a_failure_is_when_the_work_began() -> None:
    found = told_of(reading(0, 50.0), repair(5 * HOUR, 2 * HOUR), reading(6 * HOUR, 50.0))
    assert [one.failed_ms for one in found] == [MONITORED + 3 * HOUR]


def test_a_breakdown_long_ago_is_not_that_of_a_repair_now() -> None:
    over = (
        status(4 * HOUR, "running"),
        reading(30 * HOUR, 50.0),
        repair(40 * HOUR, HOUR),
        reading(41 * HOUR, 1.0),
    )
    assert [one.failed_ms for one in told_of(*BROKEN, *over)] == [MONITORED + 39 * HOUR]


def test_a_repair_that_is_booked_late_finds_its_breakdown() -> None:
    found = told_of(
        *BROKEN, status(5 * HOUR, "running"), reading(6 * HOUR, 50.0), reading(7 * HOUR, 50.0),
        repair(5 * HOUR, 2 * HOUR), reading(8 * HOUR, 50.0), bound=0, grace_ms=12 * HOUR,
    )  # fmt: skip
    assert [one.failed_ms for one in found] == [MONITORED + HOUR]


def test_words_mean_what_they_mean_on_the_machine() -> None:
    from millrace_apps.iot_maintenance.processes.statuses import Statuses

    words = Statuses(vocabularies={"press": {"7": "failed", "1": "producing"}})
    found = told_of(
        equipment(0, "press", vocabulary="press"), reading(1, 50.0), status(MINUTE, "1"), status(HOUR, "7"),
        repair(5 * HOUR, HOUR), status(5 * HOUR, "1"), reading(6 * HOUR, 50.0), statuses=words,
    )  # fmt: skip
    assert [one.failed_ms for one in found] == [MONITORED + HOUR]


def test_a_repair_comes_as_it_came_before_it_said_when_the_machine_failed() -> None:
    """So that one that is sent again after an upgrade is a repeat, and no conflict."""
    event = repair(5 * HOUR, HOUR)[2]
    assert b"failed_ms" not in msgspec.json.encode(event)
    target = driver(bound=0, grace_ms=12 * HOUR)
    send(target, *BROKEN, repair(5 * HOUR, HOUR), repair(5 * HOUR, HOUR), reading(6 * HOUR, 1.0))
    assert [one["reason"] for one in target.values("dead_letters")] == ["duplicate"]


# -- what models learn ---------------------------------------------------------------------------


def plant(rnd: random.Random) -> Read:
    """Machines that break, wait and are repaired; a step an hour."""
    steps, repairs = [], []
    for machine in ("a", "b", "c"):
        at = rnd.randrange(5)
        life = at
        while at < 100 and rnd.random() < 0.8:
            broke = at + rnd.randrange(1, 40)
            done = broke + rnd.choice([0, 1, 3, 10])
            repairs.append({
                "machine_id": machine, "component": rnd.choice(["pump", "seal"]), "kind": "corrective",
                "event_time_ms": done * HOUR + 1, "failed_ms": broke * HOUR + 1, "duration_ms": 5,
            })  # fmt: skip
            at = done
        repairs.append({
            "machine_id": machine, "component": "pump", "kind": "scheduled", "event_time_ms": 50 * HOUR,
            "failed_ms": None, "duration_ms": HOUR,
        })  # fmt: skip
        steps += [
            {"machine_id": machine, "event_time_ms": hour * HOUR, "begun_ms": life,
             "features": {"hour": float(hour)}}
            for hour in range(120)
        ]  # fmt: skip
    return Read(pd.DataFrame(steps), failures_of(pd.DataFrame(repairs)))


@pytest.mark.parametrize("seed", range(CASES // 3))
def test_lives_and_labels_are_those_of_a_look_at_every_hour(seed: int) -> None:
    rnd = random.Random(seed)
    read, horizon = plant(rnd), rnd.choice([1, 6, 24])
    failures = read.failures.to_dict("records")
    assert {one["kind"] for one in failures} <= {"corrective"}
    wanted_lives, wanted_labels = [], []
    for machine in ("a", "b", "c"):
        of = [one for one in failures if one["machine_id"] == machine]
        for hour in range(120):
            at = hour * HOUR
            if any(one["failed_ms"] <= at < one["event_time_ms"] for one in of):
                continue  # it stands, and waits
            soon = {one["component"] for one in of if 0 < one["failed_ms"] - at <= horizon * HOUR}
            wanted_labels.append((machine, at, sorted(soon)))
            ahead = [one["failed_ms"] - at for one in of if one["failed_ms"] > at]
            if ahead:
                wanted_lives.append((at, min(ahead) / HOUR))
    run = read.running()
    fails = run.fails(horizon * HOUR)
    labels = [
        (row.machine_id, row.event_time_ms, sorted(name for name in fails if fails[name][place]))
        for place, row in enumerate(run.steps.itertuples())
    ]
    assert labels == wanted_labels
    if wanted_lives:
        examples, times = read.lives()
        assert list(zip(times.tolist(), examples.left.tolist(), strict=True)) == wanted_lives
        order = [
            (life, -left) for life, left in zip(examples.life.tolist(), examples.left.tolist(), strict=True)
        ]
        for one, other in pairwise(order):  # within a life less and less is left, and then another begins
            assert one[0] != other[0] or one[1] < other[1]


def test_a_failure_is_known_when_its_repair_is_done() -> None:
    read = plant(random.Random(3))
    one = max(read.failures.to_dict("records"), key=lambda row: row["event_time_ms"] - row["failed_ms"])
    assert one["event_time_ms"] > one["failed_ms"]
    late, early = (read.known(one["event_time_ms"] - before).failures for before in (0, 1))
    assert len(late) > len(early)
    assert not (early["event_time_ms"] == one["event_time_ms"]).any()


def test_tables_of_before_say_when_the_work_began(tmp_path: Path) -> None:
    """A table ``maintenance`` that was written before it said when machines failed."""
    rows = [{"machine_id": "m", "component": "pump", "event_time_ms": 9 * HOUR, "kind": "corrective",
             "duration_ms": 2 * HOUR}]  # fmt: skip
    steps = [{"machine_id": "m", "event_time_ms": hour * HOUR, "begun_ms": 0, "features": {"a": 1.0}}
             for hour in range(12)]  # fmt: skip
    write_deltalake(str(tmp_path / "maintenance"), pd.DataFrame(rows))
    write_deltalake(str(tmp_path / "machine_features"), pd.DataFrame(steps))
    read = read_tables(TrainingTables(tmp_path))
    assert read.failures["failed_ms"].tolist() == [7 * HOUR]
    assert read.lives()[0].left.tolist() == [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    assert len(read.running().steps) == 10
    rows[0]["failed_ms"] = 4 * HOUR
    write_deltalake(str(tmp_path / "maintenance"), pd.DataFrame(rows), mode="append", schema_mode="merge")
    assert read_tables(TrainingTables(tmp_path)).failures["failed_ms"].tolist() == [4 * HOUR, 7 * HOUR]


def test_no_machine_is_broken_where_none_failed() -> None:
    nothing = failures_of(pd.DataFrame({"kind": ["scheduled"], "machine_id": ["m"], "event_time_ms": [5]}))
    assert nothing.empty
    assert not is_broken(["m"], [5], nothing).any()


# -- what judges them ----------------------------------------------------------------------------


class Saying:
    """Says of every step that half a hundred hours remain."""

    def __init__(self) -> None:
        self.kept = errors_of()

    def life(self, features: dict[str, float]) -> Told:
        return Told(50.0, self.kept.spread(50.0), self.kept.ceiling, "1")

    def risks(self, features: dict[str, float]) -> None:
        return None

    def calibration(self) -> Any:
        return self.kept


def test_forecasts_are_held_to_when_the_machine_broke() -> None:
    """Forty hours after its first step it breaks, and sixty later it is repaired."""
    saying: Any = Saying()
    target = TestDriver(Foresight(Looking(forecaster=saying)))
    for hour in range(1, 101):
        at = START + hour * HOUR
        does = "running" if hour < 40 else "failed"
        row = EnrichedReading(
            f"r{hour}", "s", "m1", "heat", 50.0, "1", at, 0, False, False, "good", "", does, at, "pump",
            {}, {}, {}, {},
        )  # fmt: skip
        target.send("m1", row, at=at, input="readings")
    done = START + 100 * HOUR
    broken = Maintenance("w", "m1", "pump", done, "corrective", HOUR, START + 40 * HOUR)
    target.send("m1", broken, at=done, input="replaced")
    target.advance_watermark(done)
    assert [one.at for one in target.state("m1")["life"].awaited] == []
    (truth,) = target.values("truths")
    kept = saying.kept
    wanted = [level_of(kept.spread(50.0), 40.0 - hour, kept.ceiling) for hour in (1, 13, 25, 37)]
    assert truth.levels == pytest.approx(wanted)
    assert truth.event_time_ms == START + 40 * HOUR
    assert target.state("m1")["life"].begun == done  # and lives anew when it is repaired


# -- in a world of the generator -----------------------------------------------------------------


@pytest.fixture(scope="module")
def world() -> World:
    """A dozen machines for half a day, which wear fast; statuses and repairs are late and repeated."""
    made = replace(profile(5, 9, machines=12, seconds=30.0, rate=150), acceleration=1_500.0)
    told = [
        *demo.settings(""),
        "scores.enabled=false",
        "forecast.enabled=false",
        f"foresight.exports={NO_MODELS}",
    ]
    return run_world(made, settings_for(told))


def test_repairs_say_when_the_ledger_says_that_machines_failed(world: World) -> None:
    rows = [row for row in world.tables["maintenance"] if row["kind"] == "corrective"]
    assert len(rows) >= 5
    truths = {(truth.entity, truth.detail["failure_ms"]) for truth in world.ledger.truths
              if truth.detail.get("failure_ms") is not None}  # fmt: skip
    assert {(row["machine_id"], row["failed_ms"]) for row in rows} <= truths
    assert all(row["event_time_ms"] > row["failed_ms"] for row in rows)
    assert not any(row.get("failed_ms") for row in world.tables["maintenance"] if row["kind"] == "scheduled")


def test_the_model_of_the_demo_is_learned_of_machines_that_run(world: World) -> None:
    """By the ledger: of each step of a machine that has not failed, whether it fails soon."""
    read = read_of([world])
    spans = {
        (f"0.{row['machine_id']}", row["failed_ms"]): row["event_time_ms"]
        for row in world.tables["maintenance"] if row["kind"] == "corrective"
    }  # fmt: skip
    stands = [
        (machine, at)
        for machine, at in zip(read.steps["machine_id"], read.steps["event_time_ms"], strict=True)
        for (who, broke), done in spans.items() if who == machine and broke <= at < done
    ]  # fmt: skip
    run = read.running().steps
    assert stands
    assert not set(stands) & set(zip(run["machine_id"], run["event_time_ms"], strict=True))
    assert len(run) < len(read.steps)
    assert np.mean(list(read.fails(15_000).values())) > 0
