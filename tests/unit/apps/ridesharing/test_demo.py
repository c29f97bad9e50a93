"""The demo's checks on a short evening with the app in memory: they hold, and they can fail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from apps.ridesharing import demo
from apps.ridesharing.config import DispatchConfig
from apps.ridesharing.events import Event, key_of, stream_of
from apps.ridesharing.settings import RidesharingSettings
from generators.ridesharing import RidesProfile, World
from generators.ridesharing.loop import APP_TOPICS, Mailbag
from millrace.demo import DemoRun
from millrace.testing.world_ledger import ReadLedger, WorldRun, WorldSummary, WorldTruth
from tests.unit.apps.ridesharing.cases import START, Whole, as_read

STEP_MS = 5_000
#: One event in so many is sent twice.
REPEATED = 20
#: More riders than drivers, who cancel, break down, race, come late or vanish, so that much ends early.
PROFILE = RidesProfile(
    seed=5, start_ms=START, drivers=100, rings=2, requests_per_hour=200.0,
    location_interval_ms=20_000, late_accepts=0.1, cancel_races=0.1, breakdowns=0.1, no_shows=0.1,
    vanishing=0.1, lost_heartbeats=0.1,
)  # fmt: skip
#: Output of the chain → table.
OUTPUTS = {
    "attempts": "assignments", "trips": "trips", "offers": "offers", "windows": "windows",
    "main": "violations", "Gate.dead_letters": "dead_letters",
}  # fmt: skip
Tables = dict[str, pd.DataFrame]


def run_app(steps: int) -> tuple[Tables, ReadLedger]:
    """Let agents and app talk in steps; return what stands in the tables, and what happened."""
    world, app, mail = World(PROFILE), Whole(DispatchConfig()), Mailbag()
    truths: dict[str, WorldTruth] = {}
    again: list[Event] = []
    for _ in range(steps):
        now = world.now_ms + STEP_MS
        happened = world.advance(now)
        for one in happened:
            for t in one.truths:
                at = one.event_time_ms
                truths[t.truth_id] = WorldTruth(t.truth_id, t.kind, t.entity, t.expected, {}, [], [], at, at)
        events = [*again, *(as_read(one.stream, one.event) for one in happened)]
        again = [as_read(one.stream, one.event) for one in happened[::REPEATED]]
        found = app.chain.run([(key_of(e), e.event_time_ms, e, stream_of(e)) for e in events], now - 1)
        app.emissions += found
        for e in found:
            if (topic := f"ridesharing.{e.output}") in APP_TOPICS:
                message = mail.open(topic, e.payload)
                assert message is not None
                world.receive(message)
    rows: dict[str, list[Any]] = defaultdict(list)
    for e in app.emissions:
        if e.output in OUTPUTS:
            rows[OUTPUTS[e.output]].append(msgspec.json.decode(e.payload))
    ledger = ReadLedger(
        WorldRun("ridesharing", PROFILE.seed, {}, {}, {}), [], [], list(truths.values()),
        WorldSummary(0, 0, {}, {}, {}, START, world.now_ms),
    )  # fmt: skip
    return {name: pd.DataFrame(rows[name]) for name in OUTPUTS.values()}, ledger


@pytest.fixture(scope="module")
def seen() -> tuple[Tables, ReadLedger]:
    return run_app(260)


@pytest.fixture
def checked(
    seen: tuple[Tables, ReadLedger], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., dict[str, bool]]:
    """Name of each check → whether it holds, with some tables changed."""

    def check(**changes: Callable[[pd.DataFrame], pd.DataFrame]) -> dict[str, bool]:
        tables, ledger = seen
        changed = {**tables, **{name: change(tables[name]) for name, change in changes.items()}}
        monkeypatch.setattr(demo, "read_table", lambda folder, name: changed[name])
        run = DemoRun("", tmp_path, RidesharingSettings(), 60.0, 100, PROFILE.seed)
        return {check.name: check.ok for check in demo.checks(run, ledger, set())}

    return check


def test_every_check_of_the_demo_holds(checked: Callable[..., dict[str, bool]]) -> None:
    assert [name for name, holds in checked().items() if not holds] == []


def test_nothing_that_is_checked_is_missing_from_the_evening(seen: tuple[Tables, ReadLedger]) -> None:
    tables, ledger = seen
    assert sum(t.kind == "served" for t in ledger.truths) > 5
    assert {"accepted", "completed", "rider_cancelled"} <= set(tables["trips"]["state"])
    assert tables["assignments"]["state"].isin(["rejected", "expired", "replaced"]).any()


def none(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.iloc[:0]


def a_trip_less(trips: pd.DataFrame) -> pd.DataFrame:
    done = trips.loc[trips["state"] == "completed", "request_id"].iloc[0]
    return trips[trips["request_id"] != done]


def one_who_was_not_served(trips: pd.DataFrame) -> pd.DataFrame:
    begun = trips.loc[trips["state"] == "processing", "request_id"].iloc[-1]
    made = trips.tail(1).assign(request_id=begun, state="completed", revision=99)
    return pd.concat([trips, made], ignore_index=True)


def nobody_accepts(attempts: pd.DataFrame) -> pd.DataFrame:
    return attempts.assign(accepted_ms=0)


def an_alarm(violations: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame([{"invariant": 1}])


def one_driver_for_all(attempts: pd.DataFrame) -> pd.DataFrame:
    return attempts.assign(driver_id="d")


_SERVED = "trips that the drivers finished are completed, and no others"


@pytest.mark.parametrize(
    ("table", "change", "broken"),
    [
        ("assignments", one_driver_for_all, "violations of the invariants"),
        ("violations", an_alarm, "violations of the invariants"),
        ("trips", a_trip_less, _SERVED),
        ("trips", one_who_was_not_served, _SERVED),
        ("assignments", nobody_accepts, "offers that drivers accepted"),
        ("offers", none, "offers made"),
        ("dead_letters", none, "repeats in dead letters"),
    ],
)
def test_a_check_of_the_demo_fails_where_rows_are_missing_too_many_or_wrong(
    table: str, change: Any, broken: str, checked: Callable[..., dict[str, bool]]
) -> None:
    assert not checked(**{table: change})[broken]
