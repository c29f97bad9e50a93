"""The loop of deciding and learning: the world answers to decisions, and what is blocked is not unlearned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from millrace_apps.fraud.evaluation.loop_cli import app
from millrace_apps.fraud.loop.report import checks_of, report_of
from millrace_apps.fraud.loop.run import BASE, CONTROL, GENUINE, Arm, DayOfArm, Loop, arms_of, run_arms
from millrace_apps.fraud.loop.thieves import Thief
from millrace_apps.fraud.loop.world import BEGIN_MS, DAY_MS, QUICK, Town
from tests.broken import Break, Rows, Tables, breaks, check_listed, dropped

DAYS = 30


@cache
def world(folder: Path, arm: str) -> list[DayOfArm]:
    """The days of an arm of a small world."""
    chosen = next(one for one in arms_of(0.1, genuine=True) if one.name == arm)
    return run_arms([chosen], 3, DAYS, folder, QUICK, lambda _: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loop")


@pytest.mark.long
def test_a_model_that_takes_blocked_payments_for_genuine_pays_for_it(folder: Path) -> None:
    """F2: it unlearns what it blocks, and the frauds come back."""
    excluded, genuine = (world(folder, arm) for arm in (BASE, GENUINE))
    half = [day for day in genuine if day.day >= DAYS // 2], [d for d in excluded if d.day >= DAYS // 2]
    caught = [sum(d.stopped for d in days) / sum(d.frauds for d in days) for days in half]
    assert caught[1] > caught[0] + 0.1
    assert sum(d.cost for d in excluded) < sum(d.cost for d in genuine)


@pytest.mark.long
def test_the_control_group_passes_and_is_learned_from(folder: Path) -> None:
    days = world(folder, CONTROL)
    blocked = sum(d.stopped + d.false_blocks for d in days)
    assert 0.04 < sum(d.control for d in days) / (blocked + sum(d.control for d in days)) < 0.2
    assert not any(d.control for d in world(folder, BASE))
    assert sum(d.trained > 0 for d in days) == DAYS // 5


def test_equal_seeds_give_equal_days(tmp_path: Path) -> None:
    def some(place: str, seed: int) -> list[DayOfArm]:
        loop = Loop(Arm("a", 0.1), seed, tmp_path / place, QUICK._replace(payments=20, trees=4))
        return [day for day, _ in zip(loop.run(1), range(12), strict=False)]

    first = some("one", 1)
    assert first == some("two", 1)
    assert first != some("three", 2)
    assert [day.day for day in first] == list(range(first[0].day, first[0].day + 12))


def test_genuine_life_is_the_same_whatever_is_decided() -> None:
    one, other = Town(4, QUICK), Town(4, QUICK)
    assert one.genuine(5) == other.genuine(5) != one.genuine(6)
    times = [tx.event_time_ms - BEGIN_MS - 5 * DAY_MS for tx in one.genuine(5)]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] < DAY_MS


def test_a_thief_who_is_blocked_leaves_the_card_and_then_the_way() -> None:
    town = Town(1, QUICK)
    thief = Thief(0, 1, town)
    first = thief.attempt(0, BEGIN_MS)
    again = thief.attempt(0, BEGIN_MS)
    assert first.transaction.card_id == again.transaction.card_id
    ways, cards = {first.way}, set()
    for n in range(40):
        tried = thief.attempt(0, BEGIN_MS + n)
        thief.told(tried, passed=False)
        ways.add(tried.way)
        cards.add(tried.transaction.card_id)
    assert len(ways) > 3
    assert len(cards) > 25
    steady = Thief(1, 1, town)
    kept = []
    for n in range(40):
        tried = steady.attempt(0, BEGIN_MS + n)
        steady.told(tried, passed=True)
        kept.append(tried.way)
    assert len(set(kept)) <= 3


# -- what must hold ---------------------------------------------------------------------------------

#: Days of arms as they should be, with round figures: 10 frauds a day, 9 of them caught.
RIGHT: Tables = {
    "days": [
        msgspec.structs.asdict(
            DayOfArm(arm, day, 100, 10, stopped=8, looked_at=1, cost=cost, control=int(arm == CONTROL))
        )
        for arm, cost in ((BASE, 100.0), (CONTROL, 110.0), (GENUINE, 150.0))
        for day in range(60)
    ]
}


def later(arm: str, **change: Any) -> Any:
    """Change the last third of an arm."""
    return lambda rows: [{**row, **change} if row["arm"] == arm and row["day"] >= 40 else row for row in rows]


def dearer(arm: str) -> Any:
    """Let an arm cost half as much again."""
    return lambda rows: [{**row, "cost": row["cost"] * 1.5} if row["arm"] == arm else row for row in rows]


def without(arm: str) -> Any:
    """Leave out an arm's frauds: there is nothing to compare."""
    nothing = {"frauds": 0, "stopped": 0, "looked_at": 0}
    return lambda rows: [{**row, **nothing} if row["arm"] == arm else row for row in rows]


BREAKS = tuple(
    one
    for arm in (BASE, CONTROL)
    for one in (
        *breaks(
            f"{arm}: recall of the last third",
            frauds_pass_later_on={"days": later(arm, stopped=6)},
            no_frauds={"days": without(arm)},
            days_dropped={"days": dropped},
        ),
        *breaks(
            f"{arm}: cost",
            as_dear_as_the_other={"days": dearer(arm)},
            no_frauds={"days": without(arm)},
        ),
    )
)


def checked(tables: Tables) -> Sequence[Any]:
    rows: Rows = tables["days"]
    return checks_of([msgspec.convert(row, DayOfArm) for row in rows], 60)


def test_what_must_hold_holds_of_days_that_are_right() -> None:
    assert [check.holds for check in checked(RIGHT)] == [True] * 4
    nobody = [day for day in RIGHT["days"] if day["arm"] != GENUINE]
    assert len(checked({"days": nobody})) == 2


@pytest.mark.parametrize("one", BREAKS, ids=str)
def test_a_check_fails_where_the_loop_is_broken(one: Break) -> None:
    held = {check.name: check.holds for check in checked(one.applied(RIGHT))}
    assert not held.get(one.check, False)


def test_every_check_is_listed_with_what_breaks_it() -> None:
    check_listed("`millrace evaluate fraud-loop`", [check.name for check in checked(RIGHT)], BREAKS)


def test_figures_are_those_of_the_days() -> None:
    days = [msgspec.convert(row, DayOfArm) for row in RIGHT["days"]]
    found = report_of(days, 60)
    assert (found["control_recall"], found["control_precision"], found["control_cost"]) == (0.9, 1.0, 6600.0)
    assert found["excluded_cost_by_10_days"] == [1_000.0] * 6
    assert found["genuine_recall_middle"] == found["genuine_recall_last"] == 0.9
    assert (found["control_control_group"], found["excluded_control_group"]) == (60, 0)


def test_the_command_tells_its_arms_and_writes_a_report(tmp_path: Path) -> None:
    out = tmp_path / "loop.json"
    done = CliRunner().invoke(app, ["--seed", "2", "--days", "3", "--quick", "--out", str(out)])
    assert done.exit_code == 0, done.output
    report = json.loads(out.read_text())
    assert (report["seed"], report["days"], report["arms"]) == (2, 3, ["excluded", "control"])
    assert {f"{arm}_recall" for arm in report["arms"]} < report.keys()
    assert report["held"] == {}
    for wrong in (["--days", "1"], ["--control-share", "0.5"]):
        assert CliRunner().invoke(app, [*wrong, "--out", str(out)]).exit_code == 2
