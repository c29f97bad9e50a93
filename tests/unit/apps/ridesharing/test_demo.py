"""The demo's checks on a short evening with the app in memory: they hold, and they can fail."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import h3
import msgspec
import pandas as pd
import pytest

from millrace.console.report import Check
from millrace.demo import DemoRun
from millrace.testing.world_ledger import ReadLedger, WorldFault, WorldRun, WorldSummary, WorldTruth
from millrace_apps.generators.engine.loop import Mailbag
from millrace_apps.generators.ridesharing import RidesProfile, World
from millrace_apps.generators.ridesharing.loop import APP_TOPICS
from millrace_apps.ridesharing import demo
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import Event, key_of, stream_of
from millrace_apps.ridesharing.evaluation.demo_venues import airport
from millrace_apps.ridesharing.processes.arrivals import ArrivalConfig
from millrace_apps.ridesharing.settings import ArrivalSettings, RidesharingSettings, SurgeSettings
from millrace_apps.ridesharing.state.lifecycle import TERMINAL
from tests.broken import (
    Break,
    Change,
    Rows,
    added,
    all_hold,
    breaks,
    check_listed,
    doubled,
    dropped,
    fails,
    less,
    renamed,
    shifted,
    stuck,
    swapped,
    where,
)
from tests.cases import sampled
from tests.unit.apps.ridesharing.cases import START, Whole, as_read
from tests.unit.apps.ridesharing.evenings import CAME, Topics

STEP_MS = 5_000
#: One event in so many is sent twice.
REPEATED = 20
#: More riders than drivers, who cancel, break down, race, come late or vanish, so that much ends early.
PROFILE = RidesProfile(
    seed=5,
    start_ms=START,
    drivers=160,
    rings=2,
    requests_per_hour=200.0,
    location_interval_ms=20_000,
    late_accepts=0.1,
    cancel_races=0.1,
    breakdowns=0.1,
    no_shows=0.1,
    vanishing=0.1,
    lost_heartbeats=0.1,
    quoted=0.8,
    stale_quotes=0.2,
    airport=0.3,
    named_points=0.4,
    hotel_rides=0.5,
)
#: Few ask in each cell: prices follow sooner.
SETTINGS = RidesharingSettings(
    surge=SurgeSettings(on=True, cap=1.8, balance=0.8), arrivals=ArrivalSettings(on=True)
)
#: Output of the chain → table.
OUTPUTS = {
    "attempts": "assignments",
    "trips": "trips",
    "offers": "offers",
    "windows": "windows",
    "main": "violations",
    "Gate.dead_letters": "dead_letters",
    "Surge.main": "quotes",
    "Surge.fares": "fares",
    "Surge.multipliers": "surge",
    "Surge.counts": "scarcity",
    "arrivals": "arrivals",
    "drives": "drives",
    "pickups": "pickups",
    "tickets": "tickets",
    "journeys": "journeys",
}
Tables = dict[str, Rows]


def run_app(steps: int) -> tuple[Tables, ReadLedger]:
    """Let agents and app talk in steps; return what stands in tables and on topics, and what happened."""
    world, mail = World(PROFILE), Mailbag(APP_TOPICS)
    app = Whole(DispatchConfig(arrivals=ArrivalConfig()), SETTINGS.surge_config())
    topics = Topics(DispatchConfig())
    topics.switch(airport(), START - 1)
    app.emissions += app.chain.switch(airport())
    truths: dict[str, WorldTruth] = {}
    sent, faults = Counter[str](), list[WorldFault]()
    again: list[tuple[str, Event]] = []
    for _ in range(steps):
        now = world.now_ms + STEP_MS
        happened = world.advance(now)
        for one in happened:
            for t in one.truths:
                at = one.event_time_ms
                truths[t.truth_id] = WorldTruth(
                    t.truth_id, t.kind, t.entity, t.expected, t.detail, [], [], at, at
                )
        sent.update(one.stream for one in happened)
        faults += [WorldFault("duplicate", f"{len(faults)}-{n}", stream, "", "duplicate", 0)
                   for n, (stream, _) in enumerate(again)]  # fmt: skip
        events = [*(event for _, event in again), *(as_read(one.stream, one.event) for one in happened)]
        again = [(one.stream, as_read(one.stream, one.event)) for one in happened[::REPEATED]]
        found = app.chain.run([(key_of(e), e.event_time_ms, e, stream_of(e)) for e in events], now - 1)
        app.emissions += found
        topics.bring(((stream_of(e), e) for e in events), now - 1)
        topics.say(found, now - 1)
        for e in found:
            output = "quotes" if e.output == "Surge.main" else e.output
            if (topic := f"ridesharing.{output}") in APP_TOPICS:
                message = mail.open(topic, e.payload)
                assert message is not None
                world.receive(message)
    rows: dict[str, Rows] = defaultdict(list)
    for e in app.emissions:
        if e.output in OUTPUTS:
            rows[OUTPUTS[e.output]].append({**msgspec.json.decode(e.payload), "_event_id": e.event_id})
    # The table of attempts has the newest row of each.
    rows["assignments"] = list({(r["request_id"], r["attempt"]): r for r in rows["assignments"]}.values())
    rows["dead_letters"] += [{"reason": "malformed", "error": "no JSON"}] * 2
    faults += [WorldFault("malformed", f"m{n}", "requests", "", "dead_letter", 0) for n in range(2)]
    ledger = ReadLedger(
        WorldRun("ridesharing", PROFILE.seed, {}, {}, {}),
        faults,
        [],
        list(truths.values()),
        WorldSummary(0, 0, dict(sent), {}, {}, START, world.now_ms),
    )
    of_topics = {f"topic of {name}": found for name, found in topics.rows.items()}
    return {name: rows[name] for name in OUTPUTS.values()} | of_topics, ledger


@pytest.fixture(scope="module")
def seen() -> tuple[Tables, ReadLedger]:
    return run_app(260)


def checked(
    seen: tuple[Tables, ReadLedger], patch: pytest.MonkeyPatch, one: Break | None = None
) -> list[Check]:
    """The demo's checks, with something broken."""
    tables, ledger = seen
    changed = tables if one is None else one.applied(tables)
    patch.setattr(demo, "read_table", lambda folder, name: pd.DataFrame(changed[name]))
    on_topics = {name.removeprefix("topic of "): found for name, found in changed.items() if "topic" in name}
    evidence = Topics(DispatchConfig()).evidence(on_topics)
    patch.setattr(demo, "read_evidence", lambda settings, margin_ms, control_ms: evidence)
    run = DemoRun("", Path(), SETTINGS, 60.0, 100, PROFILE.seed)
    return demo.checks(run, ledger, {row["_event_id"] for row in tables["trips"]})


def test_every_check_of_the_demo_holds(
    seen: tuple[Tables, ReadLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    all_hold(checked(seen, monkeypatch))


def test_nothing_that_is_checked_is_missing_from_the_evening(seen: tuple[Tables, ReadLedger]) -> None:
    tables, ledger = seen
    assert sum(t.kind == "served" for t in ledger.truths) > 5
    assert {"accepted", "completed", "rider_cancelled"} <= {row["state"] for row in tables["trips"]}
    assert {"rejected", "expired", "replaced"} & {row["state"] for row in tables["assignments"]}


def test_an_evening_without_rides_says_that_it_compares_nothing(
    seen: tuple[Tables, ReadLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """159 requests, 61 of them cancelled, and nobody was picked up: that is no evening that held."""
    tables, ledger = seen
    few = msgspec.structs.replace(ledger, truths=[t for t in ledger.truths if t.kind != "served"])
    over = {t.entity for t in ledger.truths if t.kind == "served"}
    undriven = {**tables, "trips": [row for row in tables["trips"] if row["request_id"] not in over]}
    empty = {check.name for check in checked((undriven, few), monkeypatch) if check.is_empty}
    assert empty == {_SERVED}


def ride(state: str, change: Change) -> Change:
    """Change the steps of one request that came to a state."""

    def changed(rows: Rows) -> Rows:
        name = next(row["request_id"] for row in rows if row["state"] == state)
        return where(lambda row: row["request_id"] == name, change)(rows)

    return changed


def steps(state: str, change: Change) -> Change:
    return where(lambda row: row["state"] == state, change)


def who_was_not_served(rows: Rows) -> Rows:
    begun = [row["request_id"] for row in rows if row["state"] == "processing"][-1]
    return [*rows, {**rows[-1], "request_id": begun, "state": "completed", "revision": 99}]


def letters(change: Change, *, reason: str = "duplicate", places: bool = False) -> Change:
    return where(
        lambda row: row["reason"] == reason and row["error"].startswith("a position") == places, change
    )


def searches_unended(rows: Rows) -> Rows:
    """The end of a search is never written."""
    return [row for row in rows if row["before"] != "processing" or row["state"] not in TERMINAL]


def of_all_quotes(rows: Rows) -> Rows:
    """Whoever has asked for a quote requests."""
    run = next(row["quote_id"] for row in rows if row["quote_id"]).rpartition("-q")[0]
    return [*rows, *({**rows[0], "quote_id": f"{run}-q{n:08d}"} for n in range(400))]


def locked(change: Change) -> Change:
    return where(lambda row: row["outcome"] == "locked", change)


def to_and_fro(rows: Rows) -> Rows:
    """A cell's multiplier goes up and down every half minute."""
    up, down = {**rows[0], "before": 1.0, "multiplier": 1.2}, {**rows[0], "before": 1.2, "multiplier": 1.0}
    return [
        {**(down if n % 2 else up), "from_ms": up["from_ms"] // 3_600_000 * 3_600_000 + n} for n in range(4)
    ]


def one_more_in_the_pen(rows: Rows) -> Rows:
    """Somebody has waited at the airport from the beginning, and is never asked."""
    lat, lon = h3.cell_to_latlng(airport().pen[0])
    about = {"driver_id": "waits", "vehicle_class": "standard", "lat": lat, "lon": lon, "state": "idle"}
    late = max(row["event_time_ms"] for row in rows)
    return [*rows, *(
        {**about, "event_time_ms": at, "event_id": f"w{at}",
         CAME: START + ((at - START) // STEP_MS + 1) * STEP_MS - 1}
        for at in range(START, late, 10_000)
    )]  # fmt: skip


_THERE = ("arrived", "in_progress", "completed", "no_show")
_SERVED = "trips that the drivers finished are completed, and no others"
BREAKS = (
    *breaks(
        "violations of the invariants",
        one_driver_for_all={"assignments": stuck("driver_id", "d")},
        an_alarm_of_the_auditor={"violations": added({"invariant": 1})},
        attempts_doubled={"assignments": doubled},
        positions_too_old={"assignments": stuck("location_age_ms", 10**9)},
    ),
    *breaks(
        "riders at the airport are told where to meet, once, and no others",
        dropped={"pickups": dropped},
        one_less={"pickups": less},
        doubled={"pickups": doubled},
        of_others={"pickups": renamed("request_id")},
    ),
    *breaks(
        "offers to drivers in line out of turn",
        one_who_is_passed_over={"topic of locations": one_more_in_the_pen},
    ),
    *breaks(
        "drivers from the line who have come to their riders",
        nobody_arrives={"trips": where(lambda row: row["state"] in _THERE, dropped)},
    ),
    *breaks(
        "riders who named a door are sent there",
        dropped={"pickups": dropped},
        all_to_one_door={"pickups": stuck("point", "door 1")},
        not_told_why={"pickups": stuck("why", "")},
        the_name_forgotten={"pickups": stuck("asked", "")},
    ),
    *breaks(
        "short trips from the line give a place in front, once, and no others do",
        dropped={"tickets": dropped},
        one_less={"tickets": less},
        doubled={"tickets": doubled},
        of_others={"tickets": renamed("request_id")},
        one_who_was_not_in_line={"tickets": added({"request_id": "another"})},
    ),
    *breaks(
        "requests sent = requests in trips",
        one_dropped={"trips": ride("processing", dropped)},
        all_dropped={"trips": dropped},
        of_others={"trips": renamed("request_id")},
    ),
    *breaks(
        _SERVED,
        one_dropped={"trips": ride("completed", dropped)},
        one_who_was_not_served={"trips": who_was_not_served},
        never_completed={"trips": steps("completed", dropped)},
        of_other_requests={"trips": steps("completed", swapped("request_id"))},
    ),
    *breaks(
        "requests of riders who gave up that are not over",
        dropped={"trips": steps("rider_cancelled", dropped)},
        driven_all_the_same={"trips": steps("rider_cancelled", stuck("state", "completed"))},
    ),
    *breaks(
        "searches that have not ended in time",
        ends_never_written={"trips": searches_unended},
        stuck_in_the_search={"trips": stuck("state", "processing")},
    ),
    *breaks(
        "offers made = attempts",
        dropped={"offers": less},
        all_dropped={"offers": dropped},
        attempts_dropped={"assignments": less},
        of_other_requests={"offers": renamed("request_id")},
    ),
    *breaks("no offer twice", doubled={"offers": doubled}),
    *breaks("offers accepted", nobody_accepts={"assignments": stuck("accepted_ms", 0)}),
    *breaks(
        "steps on the topic = rows in trips",
        one_not_in_the_table={"trips": less},
        one_not_on_the_topic={"trips": added({"_event_id": "another"})},
    ),
    *breaks("no step twice", doubled={"trips": doubled}),
    *breaks(
        "repeats in dead letters",
        dropped={"dead_letters": letters(less)},
        doubled={"dead_letters": letters(doubled)},
    ),
    *breaks(
        "repeated positions in dead letters",
        dropped={"dead_letters": letters(dropped, places=True)},
        fifty_times={"dead_letters": letters(lambda rows: rows * 50, places=True)},
    ),
    *breaks(
        "malformed in dead letters",
        dropped={"dead_letters": letters(dropped, reason="malformed")},
        doubled={"dead_letters": letters(doubled, reason="malformed")},
    ),
    *breaks(
        "violations by the topics alone",
        nobody_told={"topic of releases": dropped},
        offers_from_elsewhere={"topic of offers": shifted("distance_m", 50)},
        answers_dropped={"topic of answers": dropped},
        one_driver_for_all={"topic of trips": stuck("driver_id", "d")},
        requests_unheard={"topic of trips": ride("processing", dropped)},
    ),
    *breaks(
        "quotes told = those asked for",
        dropped={"quotes": dropped},
        one_dropped={"quotes": less},
        of_others={"quotes": renamed("quote_id")},
    ),
    *breaks("no quote twice", doubled={"quotes": doubled}),
    *breaks("riders who took a quote that was too dear", everybody_takes={"fares": of_all_quotes}),
    *breaks(
        "changes of multipliers = those counted anew",
        one_dropped={"surge": less},
        all_dropped={"surge": dropped},
        later={"surge": shifted("from_ms", 30_000)},
        of_other_cells={"surge": renamed("cell")},
        another_multiplier={"surge": shifted("multiplier", 0.05)},
        cars_doubled={"scarcity": doubled},
        cars_forgotten={"scarcity": dropped},
    ),
    *breaks(
        "prices that are not the multiplier counted anew",
        always_the_usual={"quotes": stuck("multiplier", 1.0)},
        dearer={"quotes": shifted("multiplier", 0.1)},
        requests_dearer={"fares": shifted("multiplier", 0.1)},
        of_other_cells={"quotes": swapped("cell")},
    ),
    *breaks(
        "quotes that were taken in time and not kept",
        price_in_force={"fares": locked(stuck("outcome", "none"))},
        another_multiplier={"fares": locked(shifted("multiplier", 0.1))},
        dropped={"fares": locked(dropped)},
        another_quote={"fares": locked(stuck("quote_id", "q"))},
    ),
    *breaks("quotes that were over and kept", for_ever={"fares": stuck("outcome", "locked")}),
    *breaks("requests sent = requests charged", dropped={"fares": less}, all_dropped={"fares": dropped}),
    *breaks("no request charged twice", doubled={"fares": doubled}),
    *breaks(
        "no multiplier above the cap",
        quotes={"quotes": stuck("multiplier", 1.81)},
        fares={"fares": stuck("multiplier", 3.0)},
        cells={"surge": stuck("multiplier", 1.9)},
    ),
    *breaks("turns of a cell's multiplier in an hour", to_and_fro={"surge": to_and_fro}),
    *breaks(
        "ways that ended = those that the trips tell",
        dropped={"drives": dropped},
        one_dropped={"drives": less},
        later={"drives": shifted("ended_ms", 1)},
        of_other_drivers={"drives": renamed("driver_id")},
    ),
    *breaks("no way twice", doubled={"drives": doubled}),
    *breaks(
        "ways that began and no rider was told of",
        dropped={"arrivals": dropped},
        later={"arrivals": shifted("at_ms", 1)},
    ),
    *breaks(
        "ways whose riders were told otherwise",
        later={"arrivals": shifted("arrives_ms", 5_000)},
        one_told={"arrivals": doubled},
        never_wrong={"drives": stuck("told_wrong_s", 0.0)},
    ),
    *breaks("ways within their interval", no_interval={"drives": shifted("low_s", 100_000.0)}),
    *breaks("other dead letters", one_that_failed={"dead_letters": added({"reason": "process_error"})}),
)


@pytest.mark.parametrize("one", sampled(BREAKS), ids=str)
def test_a_check_of_the_demo_fails_where_its_feature_is_broken(
    one: Break, seen: tuple[Tables, ReadLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fails(checked(seen, monkeypatch, one), one.check)


def test_every_check_is_listed_with_what_breaks_it(
    seen: tuple[Tables, ReadLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_listed("`millrace demo ridesharing`", [check.name for check in checked(seen, monkeypatch)], BREAKS)
