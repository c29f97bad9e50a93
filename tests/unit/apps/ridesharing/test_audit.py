from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import pandas as pd
import pytest

from millrace.testing import TestDriver
from millrace.testing.properties import leaks
from millrace_apps.ridesharing.contracts.records import Journal
from millrace_apps.ridesharing.evaluation.fleet import Fleet, Request
from millrace_apps.ridesharing.evaluation.recorded import cut
from millrace_apps.ridesharing.evaluation.replay import Faults, Replay, alarms_of, run_replay
from millrace_apps.ridesharing.evaluation.replay_report import Plan, measure, served_table
from millrace_apps.ridesharing.operations.audit import INVARIANTS, audit
from millrace_apps.ridesharing.processes.auditor import Auditor
from tests.broken import (
    Break,
    Change,
    breaks,
    check_listed,
    doubled,
    dropped,
    renamed,
    shifted,
    stuck,
    where,
)
from tests.unit.apps.ridesharing.cases import KM, LAT, LON, START, ms


def step(
    name: str, s: float, *, driver: str = "d1", ride: str = "r1", attempt: int = 1, seq: int = 1, **more: Any
) -> Journal:
    fields = {"region": "all", "state": "", "before": "", "deadline_ms": 0} | more
    return Journal(f"d:{driver}", 1_000_000_000 + seq, name, ride, driver, attempt, at_ms=ms(s), **fields)


def state(before: str, after: str, s: float, attempt: int = 0, ride: str = "r1") -> Journal:
    return Journal(f"r:{ride}", 1_000_000_000, "state", ride, "", attempt, "all", after, before, ms(s), 0)


def alarms(*steps: Journal, until: float = 10_000) -> list[int]:
    driver = TestDriver(Auditor())
    for each in steps:
        driver.send(each.subject, each, at=each.at_ms)
        driver.advance_watermark(each.at_ms)
    driver.advance_watermark(ms(until))
    return [v.invariant for v in driver.values()]


GOOD = [
    step("open", 10, deadline_ms=ms(25), age_ms=5, ttl_ms=9, distance_m=5, radius_m=9),
    step("accepted", 12),
    step("close", 400),
]


def test_a_good_journal_raises_no_alarm() -> None:
    assert alarms(*GOOD) == []
    ride = ["", "processing", "offered", "accepted", "arrived", "in_progress", "completed"]
    steps = [state(b, a, n, int(n > 0)) for n, (b, a) in enumerate(itertools.pairwise(ride))]
    assert alarms(*steps) == []


@pytest.mark.parametrize(
    ("steps", "invariant"),
    [
        ([step("open", 10), step("open", 11, ride="r2", region="other")], 1),
        ([step("close", 10)], 1),
        ([step("open", 10), step("close", 11, ride="r2")], 1),
        ([step("open", 10, age_ms=10, ttl_ms=9)], 2),
        ([step("open", 10, distance_m=10, radius_m=9)], 2),
        ([step("open", 10, fits=False)], 2),
        ([step("open", 10, deadline_ms=ms(25))], 4),
        ([state("", "offered", 1, 1)], 3),
        ([state("", "processing", 1), state("processing", "no_show", 2), state("no_show", "offered", 3)], 3),
        ([state("", "processing", 1), state("offered", "accepted", 2, 1)], 3),
        ([state("", "processing", 1), state("processing", "arrived", 2, 1)], 3),
        ([state("", "processing", 1), state("processing", "offered", 2, 3)], 8),
    ],
)
def test_what_violates_an_invariant_raises_its_alarm(steps: list[Journal], invariant: int) -> None:
    assert invariant in alarms(*steps)


def test_the_auditor_forgets() -> None:
    events = [(s.subject, s.at_ms, s) for s in [*GOOD, state("", "processing", 1)]]
    assert leaks(Auditor(), events) == []


def line_of_requests(count: int, every_s: float) -> list[Request]:
    """Requests along a line, of trips of five minutes and a kilometre."""
    return [
        Request(
            f"r{n:03}",
            START + int(n * every_s * 1_000) + 137,
            LAT + (n % 7 - 3) * 0.4 * KM,
            LON,
            LAT + (n % 5 - 2) * 0.5 * KM,
            LON,
            240_000 + 7_000 * (n % 9),
        )
        for n in range(count)
    ]


def run(
    requests: list[Request] | None = None,
    cars: int = 14,
    faults: Faults | None = None,
    regions: int = 1,
    *,
    evidence: bool = False,
) -> tuple[Plan, Replay]:
    requests = requests or line_of_requests(60, 15)
    plan = Plan(
        start_ms=START,
        end_ms=START + 900_000,
        fleet=cars,
        policy="optimal",
        window_ms=10_000,
        radius_m=3_000,
        seed=3,
        regions=cut(requests, regions),
        region_count=regions,
    )
    fleet = Fleet(requests, cars, plan.seed, plan.start_ms, plan.end_ms)
    return plan, run_replay(fleet, plan.config, faults=faults, keep_evidence=evidence)


def tables(done: Replay) -> dict[str, pd.DataFrame]:
    names = {"assignments": "attempts", "trips": "trips", "offers": "offers", "windows": "windows"}
    return {table: pd.DataFrame(done.records[output]) for table, output in names.items()}


@pytest.fixture(scope="module")
def replayed() -> tuple[Plan, Replay]:
    return run()


def test_a_replay_serves_whom_it_can_and_every_figure_is_there(replayed: tuple[Plan, Replay]) -> None:
    plan, done = replayed
    report = measure(plan, done)
    assert report["requests"] == 60
    assert report["served_share"] > 0.5
    assert report["invariant_violations"] == 0, report["violations"]
    assert report["optimality_ratio"] == 1.0
    assert 0 <= report["idle_gini"] < 1
    assert 0 < report["mean_wait_s"] <= report["p95_wait_s"] <= report["max_wait_s"]
    assert not report["state_left"]
    served = served_table(done)
    assert list(served.columns) == [
        "request_id",
        "driver_id",
        "attempt",
        "offered_time",
        "accepted_time",
        "pickup_time",
        "pickup_km",
        "dropoff_time",
    ]


def test_a_replay_is_told_hour_by_hour() -> None:
    """Each hour's requests, the share served and their waits, held against plain loops."""
    plan, done = run(line_of_requests(70, 130), cars=3)
    hours: dict[str, list[float | None]] = {}
    for r in done.fleet.requests:
        served = done.fleet.served.get(r.request_id)
        wait = None if served is None else (served.pickup_ms - r.at_ms) / 1_000
        hours.setdefault(f"{datetime.fromtimestamp(r.at_ms / 1_000, UTC):%Y-%m-%dT%H}", []).append(wait)
    told = measure(plan, done)["by_hour"]
    assert list(told) == sorted(hours) == [f"2026-01-02T{hour}" for hour in (16, 17, 18)]
    assert sum(of["requests"] for of in told.values()) == 70
    for hour, waits in hours.items():
        got = sorted(w for w in waits if w is not None)
        assert len(got) > 0
        place = 0.95 * (len(got) - 1)
        below = int(place)
        above = min(below + 1, len(got) - 1)
        p95 = got[below] + (place - below) * (got[above] - got[below])
        assert told[hour] == {
            "requests": len(waits),
            "served_share": pytest.approx(len(got) / len(waits)),
            "mean_wait_s": pytest.approx(sum(got) / len(got)),
            "p95_wait_s": pytest.approx(p95),
        }
    assert any(of["served_share"] < 1 for of in told.values())


def test_the_replay_keeps_the_protocol(replayed: tuple[Plan, Replay]) -> None:
    """Straight line × 1.4 at 25 km/h, lost after 300 s, the next ride begins at the last drop-off."""
    _, done = replayed
    requests = {r.request_id: r for r in done.fleet.requests}
    by_driver: dict[str, list[Any]] = {}
    for name, s in done.fleet.served.items():
        request = requests[name]
        assert request.at_ms <= s.offered_ms <= request.at_ms + 300_000
        assert s.offered_ms % 10_000 == 0
        assert s.accepted_ms == s.offered_ms + 1
        assert s.pickup_ms - s.accepted_ms == pytest.approx(s.pickup_km / 25 * 3_600_000, abs=2)
        assert s.dropoff_ms == s.pickup_ms + request.duration_ms
        by_driver.setdefault(s.driver_id, []).append((s.offered_ms, s.dropoff_ms, request, s))
    chained = 0
    for rides in by_driver.values():
        rides.sort(key=lambda r: r[0])
        for (_, ends, before, _), (offered, _, after, s) in itertools.pairwise(rides):
            assert ends <= offered
            way = abs(before.to_lat - after.lat) / KM * 1.4
            assert s.pickup_km == pytest.approx(way, abs=0.01)
            chained += 1
    assert chained > 10


def test_repeats_lateness_and_restarts_violate_nothing() -> None:
    plan, done = run(faults=Faults(duplicates=0.1, late=0.1, restarts=8, seed=5))
    report = measure(plan, done)
    assert report["invariant_violations"] == 0, report["violations"]
    assert report["late"] > 10
    assert report["dead_letters"]["duplicate"] > 10
    assert report["served_share"] > 0.4
    assert not report["state_left"]


def test_the_auditor_reads_the_journal_of_a_replay(replayed: tuple[Plan, Replay]) -> None:
    from millrace_apps.ridesharing.config import DispatchConfig
    from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
    from tests.unit.apps.ridesharing.cases import REGION, answer, position, request

    driver = TestDriver(Dispatcher(DispatchConfig(window_ms=10_000)))
    for s in (position("d1", 0), request("r1", 2), answer("r1", "d1", 12, "reject"), position("d1", 60)):
        driver.send(REGION, s, at=s.event_time_ms)
    journal = [msgspec.to_builtins(step) for step in driver.values()]
    assert alarms_of(journal) == []
    assert {v.invariant for v in alarms_of([j for j in journal if j["step"] != "close"])} == {4}
    assert {v.invariant for v in alarms_of([j for j in journal if j["state"] != "offered"])} == {3}
    assert replayed[1].alarms == []


def test_restarts_alone_change_nothing(replayed: tuple[Plan, Replay]) -> None:
    _, done = run(faults=Faults(restarts=20))
    pd.testing.assert_frame_equal(served_table(done), served_table(replayed[1]))


def test_four_regions_own_every_driver_once() -> None:
    plan, done = run(regions=4)
    report = measure(plan, done)
    assert report["invariant_violations"] == 0, report["violations"]
    assert report["handovers"] > 3
    assert report["served_share"] > 0.4


def framed(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Change:
    """A change of a table as a frame."""
    return lambda rows: change(pd.DataFrame(rows)).to_dict("records")  # type: ignore[return-value]


def overlap(frame: pd.DataFrame, region: str = "all") -> pd.DataFrame:
    last = frame[frame["state"] == "completed"].sort_values("offered_ms")
    first = last.iloc[0]
    other = last.iloc[1:2].assign(
        driver_id=first["driver_id"], offered_ms=first["offered_ms"] + 1, region=region
    )
    return pd.concat([frame[~frame.index.isin(other.index)], other])


def state_of(state: str, change: Change) -> Change:
    return where(lambda row: row["state"] == state, change)


NAMES = {number: f"{number}: {what}" for number, what in INVARIANTS.items()}
BREAKS = (
    *breaks(
        NAMES[1],
        a_driver_with_two_riders={"assignments": framed(overlap)},
        one_driver_for_all={"assignments": stuck("driver_id")},
    ),
    *breaks(
        NAMES[2],
        farther_away={"assignments": shifted("distance_m", 3_000)},
        positions_too_old={"assignments": stuck("location_age_ms", 200_000)},
        another_class={"assignments": stuck("vehicle_class", "xl")},
        more_pairs_than_riders={"windows": framed(lambda f: f.assign(matched=f["riders"] + 1))},
    ),
    *breaks(
        NAMES[3],
        offers_dropped={"trips": state_of("offered", dropped)},
        a_step_again={"trips": framed(lambda f: pd.concat([f, f.tail(1).assign(revision=99)]))},
        another_state_before={"trips": state_of("accepted", stuck("before", "processing"))},
        another_end={"trips": state_of("completed", stuck("state", "no_show"))},
        backwards={"trips": state_of("completed", stuck("at_ms", START))},
        doubled={"trips": doubled},
        ends_before_it_begins={"assignments": state_of("completed", stuck("closed_ms", 1))},
    ),
    *breaks(
        NAMES[4],
        expired_when_made={"offers": framed(lambda f: f.assign(expires_ms=f["event_time_ms"]))},
        open_for_ever={"assignments": state_of("completed", stuck("closed_ms", 0))},
        never_closed={
            "offers": framed(lambda f: pd.concat([f, f.head(1).assign(request_id="rx", offer_id="rx")])),
            "assignments": framed(
                lambda f: pd.concat(
                    [f, f.head(1).assign(request_id="rx", state="offered", accepted_ms=0, closed_ms=0)]
                )
            ),
        },
    ),
    *breaks(
        NAMES[6],
        a_request_dropped={"trips": where(lambda row: row["request_id"] == "r001", dropped)},
        more_drivers_than_there_are={
            "windows": framed(lambda f: f.assign(drivers_free=f["drivers_online"] + 5))
        },
        completed_by_nobody={"assignments": state_of("completed", dropped)},
    ),
    *breaks(
        NAMES[7],
        searched_for_hours={"trips": state_of("offered", shifted("at_ms", 10**7))},
        searched_for_still={
            "trips": framed(
                lambda f: pd.concat([f, f.head(1).assign(request_id="rx", at_ms=START - 864_000_000)])
            )
        },
    ),
    *breaks(
        NAMES[8],
        doubled={"assignments": doubled},
        shifted={"assignments": shifted("attempt", 1)},
        offers_doubled={"offers": doubled},
        offers_of_no_attempt={"offers": renamed("request_id")},
    ),
    *breaks(NAMES[9], a_driver_in_two_regions={"assignments": framed(partial(overlap, region="other"))}),
    *breaks(NAMES[11], one_rider_for_all={"trips": stuck("rider_id")}),
)


@pytest.mark.parametrize("one", BREAKS, ids=str)
def test_the_audit_finds_what_is_wrong_in_the_tables(replayed: tuple[Plan, Replay], one: Break) -> None:
    good = {name: frame.to_dict("records") for name, frame in tables(replayed[1]).items()}
    changed = {name: pd.DataFrame(rows) for name, rows in one.applied(good).items()}  # type: ignore[arg-type]
    findings = audit(changed, patience_ms=300_000)
    assert findings.by_invariant[int(one.check.partition(":")[0])] > 0
    assert findings.examples


def test_every_invariant_is_listed_with_what_breaks_it() -> None:
    check_listed("`millrace ridesharing audit`, and `evaluate ridesharing replay`", NAMES.values(), BREAKS)


def test_the_audit_finds_nothing_in_good_tables(replayed: tuple[Plan, Replay]) -> None:
    findings = audit(tables(replayed[1]), patience_ms=300_000)
    assert (findings.count, findings.examples) == (0, [])
    assert (
        audit(
            {name: pd.DataFrame() for name in ("assignments", "trips", "offers", "windows")}, patience_ms=1
        ).count
        == 0
    )
