"""Who is likely to say yes, whose turn it is, and policies that take turns."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from millrace.experiments import Switchback
from millrace.runtime.settings import SettingsError, load_settings
from millrace.testing.properties import invariant, leaks
from millrace_apps.ridesharing.contracts.events import SetPolicy
from millrace_apps.ridesharing.evaluation.cli import app as evaluate_cli
from millrace_apps.ridesharing.evaluation.fleet import Fleet, Request
from millrace_apps.ridesharing.evaluation.matcher_report import carry_out as measure_matcher
from millrace_apps.ridesharing.evaluation.replay import run_replay
from millrace_apps.ridesharing.evaluation.replay_report import Plan, beside, carry_out, paired
from millrace_apps.ridesharing.evaluation.willing import Willing
from millrace_apps.ridesharing.operations.cli import app as operator_cli
from millrace_apps.ridesharing.operations.switchbacks import compare_trips
from millrace_apps.ridesharing.processes.acceptance import STEPS_M, Acceptance, AcceptanceConfig, Tally
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.processes.income import Idle, Income, IncomeConfig
from millrace_apps.ridesharing.processes.matching import FreeCar, Rider, Rules, optimal, problem
from millrace_apps.ridesharing.settings import RidesharingSettings
from tests.cases import case_count
from tests.unit.apps.ridesharing.cases import (
    CONFIG,
    LAT,
    LON,
    REGION,
    START,
    answer,
    bring,
    command,
    dispatcher,
    ms,
    position,
    request,
)
from tests.unit.apps.ridesharing.test_audit import line_of_requests
from tests.unit.apps.ridesharing.test_invariance import BOUND_MS, evening
from tests.unit.apps.ridesharing.test_settings import trips_file

CASES = case_count(200)
LEARNS = msgspec.structs.replace(
    CONFIG, acceptance=AcceptanceConfig(), income=IncomeConfig(worth_ms=60_000)
)  # fmt: skip
DAY = 86_400_000


class Kept(dict[str, Any]):
    """A map state that packs what it keeps."""

    def __init__(self, tp: type) -> None:
        self.tp = tp

    def put(self, key: str, value: Any) -> None:
        self[key] = msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=self.tp)


# -- who is likely to say yes ----------------------------------------------------------------------


def recounted(
    history: list[tuple[str, float, bool, int]],
    driver: str,
    metres: float,
    now: int,
    config: AcceptanceConfig,
) -> float:
    """The chance from the whole history, each answer weighed by its age."""

    def weight(at: int) -> float:
        return float(0.5 ** ((now - at) / config.half_life_ms))

    def step(away: float) -> int:
        return sum(away > edge for edge in STEPS_M)

    def usual(of: int, until: int, at: int) -> float:
        """What the fleet says to a step of distance, by the answers before a place of the history."""

        def age(then: int) -> float:
            return float(0.5 ** ((at - then) / config.half_life_ms))

        rows = [(yes, age(t), step(m)) for _, m, yes, t in history[:until]]
        total = (sum(y * w for y, w, _ in rows) + 9) / (sum(w for _, w, _ in rows) + 10)
        own = [(y, w) for y, w, s in rows if s == of]
        return (sum(y * w for y, w in own) + 30 * total) / (sum(w for _, w in own) + 30)

    mine = [(n, m, yes, at) for n, (who, m, yes, at) in enumerate(history) if who == driver]
    said = sum(yes * weight(at) for _, _, yes, at in mine)
    expected = sum(usual(step(m), n, at) * weight(at) for n, m, _, at in mine)
    ratio = (said + config.shrink) / (expected + config.shrink)
    return min(max(usual(step(metres), len(history), now) * ratio, 0.02), 0.99)


def test_what_is_expected_is_what_the_whole_history_says() -> None:
    for seed in range(CASES):
        draws = random.Random(seed)
        config = AcceptanceConfig(
            half_life_ms=draws.choice([DAY // 24, DAY]), shrink=draws.choice([1.0, 5.0])
        )
        kept, history, now = Kept(Tally), list[tuple[str, float, bool, int]](), DAY
        for _ in range(draws.randrange(40)):
            now += draws.randrange(DAY // 24)
            who, metres, yes = draws.choice("abc"), draws.uniform(0, 7_000), draws.random() < 0.6
            Acceptance(kept, config, now).hear(who, metres, yes=yes)
            history.append((who, metres, yes, now))
        now += draws.randrange(DAY)
        found = Acceptance(kept, config, now)
        for who in "abcd":
            metres = draws.uniform(0, 7_000)
            assert found.chance(who, metres) == pytest.approx(recounted(history, who, metres, now, config))


def test_true_shares_are_found_and_who_has_said_little_counts_as_the_others() -> None:
    willing, kept, draws = Willing(seed=3), Kept(Tally), random.Random(3)
    config = AcceptanceConfig()
    for n in range(12_000):
        driver, metres = f"d{n % 100}", draws.uniform(0, 3_000)
        yes = willing.says(driver, f"o{n}", metres) == "accept"
        Acceptance(kept, config, n * 1_000).hear(driver, metres, yes=yes)
    found = Acceptance(kept, config, 12_000_000)
    wrong = [
        found.chance(f"d{n}", m) - willing.chance(f"d{n}", m) for n in range(100) for m in (300, 1_200, 2_500)
    ]
    assert np.abs(wrong).mean() < 0.06
    of_fleet = np.mean([willing.chance(f"d{n}", 1_200) for n in range(100)])
    assert found.chance("nobody knows", 1_200) == pytest.approx(of_fleet, abs=0.04)


def test_a_driver_who_says_no_is_asked_where_nobody_better_is_near_enough() -> None:
    kept = Kept(Tally)
    for _ in range(30):
        Acceptance(kept, AcceptanceConfig(), 0).hear("d1", 100.0, yes=False)
        Acceptance(kept, AcceptanceConfig(), 0).hear("d2", 100.0, yes=True)
    rider = Rider("r1", LAT, LON, "standard", 0)
    for away, chosen in ((0.003, "d2"), (0.02, "d1")):
        cars = [FreeCar("d1", LAT, LON, "standard"), FreeCar("d2", LAT + away, LON, "standard")]
        doubts = Acceptance(kept, AcceptanceConfig(miss_ms=180_000), 0).doubts(
            [car.driver_id for car in cars]
        )
        given = problem([rider], cars, Rules(), {}, doubts=doubts)
        assert cars[int(given.pairs.car[optimal(given)[0]])].driver_id == chosen
        plain = problem([rider], cars, Rules(), {})
        assert (given.pairs.cost - plain.pairs.cost >= 0).all()


def test_answers_teach_and_busy_withdrawn_and_given_by_hand_do_not() -> None:
    driver = dispatcher(LEARNS)
    cars = [position(f"d{n}", n / 10, 0.1 * n) for n in range(5)]
    bring(driver, *cars, request("r1", 2), answer("r1", "d0", 12, "reject"), until=20)
    bring(driver, answer("r1", "d1", 22, "reject", 2, reason="busy"), until=31)
    asked = [o.driver_id for o in driver.values("offers")]
    assert asked[:3] == ["d0", "d1", "d2"]
    driver.advance_watermark(ms(51))  # d2 says nothing
    (fourth,) = [o for o in driver.values("offers") if o.attempt == 4]
    assign = command("assign", 52, request_id="r1", driver_id="d4")
    bring(driver, assign, until=53)
    bring(driver, request("r2", 54), until=60)
    last = driver.values("offers")[-1]
    bring(driver, answer("r2", last.driver_id, 61), until=62)
    told = [(c.request_id, c.driver_id, c.answer) for c in driver.values("chances")]
    assert told == [("r1", "d0", "reject"), ("r1", "d2", "ignore"), ("r2", last.driver_id, "accept")]
    assert fourth.driver_id == "d3"
    assert all(0.02 <= c.expected <= 0.99 for c in driver.values("chances"))


def test_without_the_setting_nothing_is_kept_and_nothing_said() -> None:
    driver = dispatcher()
    bring(driver, position("d1", 0), request("r1", 2), answer("r1", "d1", 12), until=20)
    assert driver.values("chances") == []
    state = driver.state(REGION)
    assert state is not None
    assert not {"answered", "idled"} & {name for name, value in state.items() if value}


@pytest.mark.parametrize("seed", range(3))
def test_any_order_any_cut_and_restarts_teach_the_same(seed: int) -> None:
    plan = Switchback("turns", ("fifo", "optimal"), 30_000, 5_000)
    config = msgspec.structs.replace(LEARNS, switchback=plan)
    invariant(Dispatcher(config), evening(seed), bound_ms=BOUND_MS, runs=3, seed=seed)


def test_what_was_learned_goes_with_time() -> None:
    assert leaks(Dispatcher(LEARNS), evening(1), bound_ms=BOUND_MS) == []


# -- whose turn it is ------------------------------------------------------------------------------


def test_idle_time_is_what_the_whole_history_says_and_costs_follow_it() -> None:
    for seed in range(CASES):
        draws = random.Random(seed)
        config = IncomeConfig(
            worth_ms=draws.randrange(1, 200_000), half_life_ms=draws.choice([3_600_000, DAY])
        )
        kept, now = Kept(Idle), DAY
        spells: dict[str, list[tuple[int, int]]] = defaultdict(list)
        names = [f"d{n}" for n in range(draws.randrange(1, 8))]
        for _ in range(draws.randrange(60)):
            now += draws.randrange(1_000_000)
            who, idle = draws.choice(names), draws.randrange(3_000_000)
            Income(kept, config, now).took(who, idle)
            spells[who].append((now, idle))
        now += draws.randrange(1_000_000)
        since = {name: now - draws.randrange(2_000_000) for name in names}

        class Cars(dict[str, Any]):
            pass

        class Standing(msgspec.Struct):
            free_since_ms: int

        cars = Cars({name: Standing(at) for name, at in since.items()})
        found = Income(kept, config, now).costs([FreeCar(n, LAT, LON, "standard") for n in names], cars)
        idle = [
            sum(ms_ * 0.5 ** ((now - at) / config.half_life_ms) for at, ms_ in spells[name])
            + now
            - since[name]
            for name in names
        ]
        mean = max(sum(idle) / len(idle), 300_000)
        wanted = [config.worth_ms * min(max(1 - one / mean, -1), 1) for one in idle]
        assert np.abs(np.array(wanted) - found).max() <= 1


def test_who_has_been_idle_for_long_gets_the_ride_within_what_it_is_worth() -> None:
    rider = Rider("r1", LAT, LON, "standard", 0)
    cars = [FreeCar("d1", LAT, LON, "standard"), FreeCar("d2", LAT + 0.003, LON, "standard")]
    for worth, chosen in ((10_000, "d1"), (60_000, "d2")):
        turns = Income(Kept(Idle), IncomeConfig(worth_ms=worth), 0).costs_of([0.0, 3_600_000.0])
        given = problem([rider], cars, Rules(car_value_ms=0), {}).with_turns(turns)
        assert cars[int(given.pairs.car[optimal(given)[0]])].driver_id == chosen


@pytest.mark.parametrize("seed", range(case_count(6)))
def test_turns_count_by_what_riders_wait_of_late(seed: int) -> None:
    """Windows one after another: the mean of riders in a list, by who is served without turns."""
    draws = random.Random(seed)
    config = IncomeConfig(worth_ms=300_000, of_wait=draws.choice((0.3, 1.3, 4.0)))
    income, kept, riders_waits, shares = Income(Kept(Idle), config, 0), 0, list[float](), set[float]()
    for _ in range(60):
        riders = [
            Rider(f"r{n}", LAT + draws.uniform(-0.02, 0.02), LON, "standard", draws.randrange(200_000))
            for n in range(draws.randrange(1, 6))
        ]
        cars = [
            FreeCar(f"d{n}", LAT + draws.uniform(-0.02, 0.02), LON, "standard")
            for n in range(draws.randrange(1, 12))
        ]
        turns = income.costs_of([draws.uniform(0, 4_000_000) for _ in cars])
        given = problem(riders, cars, Rules(car_value_ms=0), {})
        found, kept = income.bear(given, turns, np.array([r.waiting_ms for r in riders], np.int64), kept)
        for rider, pair in enumerate(optimal(given).tolist()):
            if pair >= 0:
                riders_waits.append(riders[rider].waiting_ms + given.metres[pair] * 1.4 / 25 * 3_600)
        mean = riders_waits[0] if riders_waits else 0.0
        for wait in riders_waits[1:]:
            mean = 0.98 * mean + 0.02 * wait
        assert kept == pytest.approx(mean, abs=60)
        share = min(1.0, config.of_wait * mean / 300_000)
        assert found.turns is not None
        assert np.abs(found.turns - turns * share).max() <= 300
        assert (found.pairs.cost - given.pairs.cost == found.turns[given.pairs.car]).all()
        shares.add(round(share, 2))
    assert len(shares) > 1 or shares == {1.0}
    whole, nothing = Income(Kept(Idle), IncomeConfig(worth_ms=300_000, of_wait=0.0), 0).bear(
        given, turns, np.zeros(len(riders), np.int64), 7
    )
    assert whole.turns is turns
    assert nothing == 0


def test_in_the_dispatcher_the_driver_who_waits_longest_has_the_turn() -> None:
    config, little = (
        msgspec.structs.replace(CONFIG, income=IncomeConfig(worth_ms=120_000, **more))
        for more in ({}, {"of_wait": 0.05})
    )
    for told, chosen in ((CONFIG, "d2"), (config, "d1"), (little, "d2")):
        driver = dispatcher(told)
        early = [position("d1", s, 0.6) for s in range(0, 1_200, 60)]
        bring(driver, *early, position("d2", 1_195, 0.5), request("r1", 1_196), until=1_200)
        assert [o.driver_id for o in driver.values("offers")] == [chosen]


# -- policies that take turns ----------------------------------------------------------------------


def test_windows_are_decided_by_the_arm_of_their_block_until_an_operator_switches() -> None:
    plan = Switchback("turns", ("fifo", "nearest"), 60_000)
    driver = dispatcher(msgspec.structs.replace(CONFIG, switchback=plan))
    bring(driver, *[request(f"r{n}", 5 + 10 * n, 2.0) for n in range(60)], until=600)
    found = driver.values("windows")
    assert len(found) > 50
    assert {w.policy for w in found} == {"fifo", "nearest"}
    assert all(w.policy == plan.arm(REGION, w.window_end_ms - 1) for w in found)
    driver.broadcast(SetPolicy("optimal", ms(601), "c1", "ann", "waits are too long"))
    bring(driver, *[request(f"s{n}", 602 + 10 * n, 2.0) for n in range(20)], until=800)
    assert {w.policy for w in driver.values("windows")[len(found) :]} == {"optimal"}


def test_arms_are_compared_by_what_riders_had_of_them() -> None:
    """Against a group-by of pandas; blocks in which an operator's policy held say nothing."""
    draws = random.Random(4)
    plan = Switchback("turns", ("fifo", "optimal"), 600_000, 60_000)
    trips, windows, asked = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    for n in range(3_000):
        at, region = draws.randrange(20 * 600_000), draws.choice(["north", "south"])
        arm = plan.arm(region, at)
        served = draws.random() < (0.9 if arm == "optimal" else 0.8)
        wait = round(draws.uniform(50_000, 150_000) - (20_000 if arm == "optimal" else 0))
        name, base = f"r{n}", {"region": region, "wait_ms": 0}
        steps = [("processing", at), ("processing", at + 20_000)]
        steps += [("in_progress", at + wait), ("completed", at + 999_000)] if served else [
            (draws.choice(["no_drivers_available", "rider_cancelled"]), at + 300_000)
        ]  # fmt: skip
        for state, when in steps:
            trips.append({"request_id": name, "state": state, "at_ms": when, **base,
                          "wait_ms": wait if state == "in_progress" else 0})  # fmt: skip
        asked.append({"at": at, "region": region, "wait": wait / 1_000 if served else None,
                      "end": steps[-1][0]})  # fmt: skip
        policy = "nearest" if (region, at // 600_000) == ("north", 6) else arm
        windows.append({"region": region, "window_end_ms": at + 1, "policy": policy})
    draws.shuffle(trips)
    found = compare_trips(plan, trips, windows)
    frame = pd.DataFrame(asked)
    frame["block"], frame["did"] = frame["at"] // 600_000, frame["wait"].notna() * 1.0
    frame = frame[(frame["at"] % 600_000 >= 60_000) & ~((frame["region"] == "north") & (frame["block"] == 6))]
    for name, rows, value in (
        ("wait_s", frame[frame["end"] == "completed"], "wait"),
        (
            "served_share",
            frame[frame["end"] != "rider_cancelled"].assign(did=lambda f: f["wait"].notna() * 1.0),
            "did",
        ),
    ):
        means = rows.groupby(["region", "block"])[value].mean().reset_index()
        means["arm"] = [
            plan.arm(r, b * 600_000) for r, b in zip(means["region"], means["block"], strict=True)
        ]
        means["pair"] = means["block"] // 2
        both = means.pivot(index=["region", "pair"], columns="arm", values=value).dropna()
        assert found[name]["pairs"] == len(both) == 19
        assert found[name]["difference"] == pytest.approx((both["optimal"] - both["fifo"]).mean())
        assert found[name]["broken"] == 1
    assert found["decided"] == ["wait_s", "served_share"]


# -- settings --------------------------------------------------------------------------------------


def told(*overrides: str) -> Any:
    return load_settings(
        RidesharingSettings, app="ridesharing", overrides=list(overrides), env={}
    ).dispatch_config()


def test_all_of_it_is_off_until_it_is_set() -> None:
    usual = told()
    assert (usual.acceptance, usual.income, usual.switchback) == (None, None, None)
    assert told("acceptance.on=true", "acceptance.miss=2m").acceptance == AcceptanceConfig(miss_ms=120_000)
    assert told("dispatch.fairness=45s").income == IncomeConfig(worth_ms=45_000)
    arms = 'experiment.arms=["nearest","optimal"]'
    plan = told("experiment.name=turns", arms, "experiment.block=1h").switchback
    assert plan == Switchback("turns", ("nearest", "optimal"), 3_600_000, 600_000)


@pytest.mark.parametrize("wrong", ['experiment.arms=["fifo","fifo"]', "experiment.guard=2h"])
def test_an_experiment_that_means_nothing_is_refused(wrong: str) -> None:
    with pytest.raises(SettingsError, match="experiment"):
        told("experiment.name=turns", wrong)


# -- replays ---------------------------------------------------------------------------------------


def replayed(cars: int = 10, **more: Any) -> dict[str, Any]:
    plan = Plan(START, START + 900_000, cars, "optimal", 10_000, 3_000.0, 3, **more)
    return carry_out(plan, line_of_requests(60, 15), None, quiet=True)


def test_drivers_of_a_replay_say_no_or_nothing_and_what_came_is_what_was_drawn() -> None:
    willing = Willing(3)
    requests = line_of_requests(60, 15)
    plan = Plan(START, START + 900_000, 10, "optimal", 10_000, 3_000.0, 3, acceptance=True)
    done = run_replay(Fleet(requests, 10, 3, START, START + 900_000, willing=willing), plan.config)
    offers = {o["offer_id"]: o for o in done.records["offers"]}
    drawn = {name: willing.says(o["driver_id"], name, o["distance_m"]) for name, o in offers.items()}
    assert set(drawn.values()) == {"accept", "reject", "ignore"}
    came = {f"{c['request_id']}-o{c['attempt']}": c["answer"] for c in done.records["chances"]}
    assert came == drawn
    after = {f"{c['request_id']}-o{c['attempt']}": c["at_ms"] for c in done.records["chances"]}
    for name, what in drawn.items():
        waited = after[name] - offers[name]["event_time_ms"]
        assert waited == {"accept": 1, "reject": 5_000, "ignore": 15_000}[what]
    assert done.alarms == []
    assert not done.state_left


def test_a_replay_with_declines_has_the_figures_without_and_how_well_yeses_were_foreseen() -> None:
    report = replayed(declines=True, acceptance=True, audit_topics=True)
    assert report["invariant_violations"] == report["topic_violations"] == 0
    assert report["acceptance"]["offers"] == report["attempts"] > 40
    assert 0 < report["acceptance"]["brier"] < 0.3
    before = replayed(declines=True)
    beside(Plan(0, 1, 1, "optimal", 1, 1.0, 1), report, before)
    assert report["without"]["mean_wait_s"] == before["mean_wait_s"]
    assert "gini_lower" not in report


def test_the_price_of_fairness_is_told() -> None:
    report, before = replayed(30, fairness_ms=60_000), replayed(30)
    beside(Plan(0, 1, 1, "optimal", 1, 1.0, 1, fairness_ms=60_000), report, before)
    assert report["gini_lower"] == pytest.approx(1 - report["idle_gini"] / before["idle_gini"])
    assert report["wait_more"] == pytest.approx(report["mean_wait_s"] / before["mean_wait_s"] - 1)
    assert report["idle_gini"] != before["idle_gini"]


def test_policies_take_turns_in_a_replay_and_two_are_told_side_by_side() -> None:
    plan = Switchback("replay", ("fifo", "optimal"), 120_000)
    report = replayed(switchback=plan, beside="fifo")
    assert report["switchback"]["wait_s"]["pairs"] >= 4
    assert report["switchback"]["wait_s"]["broken"] == 0
    by_hour = report["beside"]["by_hour"]
    assert report["beside"]["policy"] == "fifo"
    assert sum(of["requests"] for of in by_hour.values()) == report["beside"]["all"]["requests"] == 60


def test_waits_are_compared_for_those_whom_both_serve() -> None:
    def served(*waits: float | None) -> Any:
        asked = [Request(f"r{n}", n * 1_800_000, LAT, LON, LAT, LON, 60_000) for n in range(len(waits))]
        fleet = SimpleNamespace(requests=asked, served={})
        for one, wait in zip(asked, waits, strict=True):
            if wait is not None:
                fleet.served[one.request_id] = SimpleNamespace(pickup_ms=one.at_ms + int(wait * 1_000))
        return SimpleNamespace(fleet=fleet)

    found = paired(served(10, 20, None, 40), served(16, None, None, 60))
    assert found["by_hour"]["1970-01-01T00"] == {
        "requests": 2, "served_share": 1.0, "other_served_share": 0.5, "both": 1, "paired_wait_s": 10.0,
        "other_paired_wait_s": 16.0,
    }  # fmt: skip
    assert found["by_hour"]["1970-01-01T01"]["paired_wait_s"] == 40.0
    assert (found["all"]["both"], found["all"]["other_paired_wait_s"]) == (2, 38.0)


def test_the_matcher_is_measured_with_yeses_in_its_cost() -> None:
    found = measure_matcher(20, 60, 2, 1, acceptance=True)
    assert (found["acceptance"], found["optimality_ratio"]) == (True, pytest.approx(1.0))
    assert found["p99_ms"] > 0


def test_the_commands_of_a_replay_and_of_turns(tmp_path: Path) -> None:
    out, runner = tmp_path / "report.json", CliRunner()
    span = ["--from", "2008-05-18T02:00Z", "--to", "2008-05-18T02:05Z", "--fleet", "3", "--out", str(out)]
    tries = ["--declines", "--acceptance", "--fairness", "60s", "--beside", "fifo"]
    more = [*tries, "--switchback", "fifo,optimal"]
    trips = str(trips_file(tmp_path))
    ran = runner.invoke(evaluate_cli, ["replay", "--trips", trips, *span, *more])
    assert ran.exit_code == 0, ran.output
    report = msgspec.json.decode(out.read_bytes())
    assert {"acceptance", "switchback", "beside", "without", "gini_lower", "wait_more"} <= report.keys()
    wrong = runner.invoke(evaluate_cli, ["replay", "--trips", trips, *span, "--switchback", "fifo,best"])
    assert "names two of" in str(wrong.exception)
    unset = runner.invoke(operator_cli, ["switchback", "--root", str(tmp_path)])
    assert "experiment.name" in str(unset.exception)


def test_turns_are_compared_from_the_tables(tmp_path: Path) -> None:
    plan = Switchback("turns", ("fifo", "optimal"), 120_000, 30_000)
    told = Plan(START, START + 900_000, 10, "optimal", 10_000, 3_000.0, 3, switchback=plan)
    fleet = Fleet(line_of_requests(60, 15), 10, 3, START, START + 900_000)
    done = run_replay(fleet, told.config)
    for name in ("trips", "windows"):
        write_deltalake(str(tmp_path / "tables" / name), pa.Table.from_pylist(done.records[name]))
    out = tmp_path / "report.json"
    sets = ["experiment.name=turns", "experiment.block=2m", "experiment.guard=30s"]
    options = [option for one in sets for option in ("--set", one)]
    ran = CliRunner().invoke(
        operator_cli, ["switchback", "--root", str(tmp_path), "--out", str(out), *options]
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    report = msgspec.json.decode(out.read_bytes())
    assert report["wait_s"] == compare_trips(plan, done.records["trips"])["wait_s"]
    assert report["wait_s"]["guarded"] > 0


def test_who_was_brought_though_nobody_said_that_the_trip_began_was_served() -> None:
    plan = Switchback("m", ("fifo", "optimal"), 1_000)
    rows = list[dict[str, Any]]()
    for n in range(400):
        ended = ("completed", "no_drivers_available", "rider_cancelled")[n % 3]
        of: dict[str, Any] = {"request_id": f"r{n}", "region": "all", "wait_ms": -1}
        rows += [{**of, "state": "processing", "at_ms": n * 50}, {**of, "state": ended, "at_ms": n * 50 + 5}]
    found = compare_trips(plan, rows)
    assert {of["mean"] for of in found["served_share"]["arms"].values()} != {0.0}
    assert sum(of["observations"] for of in found["served_share"]["arms"].values()) == 267
    assert found["wait_s"]["pairs"] == 0
