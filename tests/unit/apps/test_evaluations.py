"""The comparisons of the evaluations see what is dropped, doubled, shifted or stuck, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import pandas as pd
import pytest

from millrace_apps.clickstream.evaluation.files import differing_sessions, expected_sessions, sessions_of
from millrace_apps.clickstream.evaluation.snowplow_files import SESSION_COLUMNS, compare
from millrace_apps.clickstream.processes.rules import SNOWPLOW
from millrace_apps.clickstream.processes.snowplow import summarise
from millrace_apps.fraud.evaluation.oracle import handbook_features, mismatches
from millrace_apps.iot_maintenance.evaluation import ai4i, azure, cmapss, nab
from millrace_apps.ridesharing.evaluation.location_report import differing_counts, stale_drivers, zone_counts
from tests.broken import (
    Break,
    Rows,
    Tables,
    breaks,
    check_listed,
    doubled,
    dropped,
    halved,
    less,
    shifted,
    stuck,
    swapped,
    where,
)
from tests.unit.apps.clickstream.test_snowplow import event
from tests.unit.apps.fraud.handbook_cases import DAY, of_table, streamed
from tests.unit.apps.fraud.handbook_cases import table as payments

HOUR, MINUTE = 3_600_000, 60_000


class Compared(NamedTuple):
    """A comparison: the tables that are right, and how much is wrong with such tables."""

    tables: Tables
    wrong: Callable[[Tables], int]


@cache
def snowplow() -> Compared:
    rows = [
        summarise([event(n, session_id=f"s{n}"), event(n + 1, session_id=f"s{n}")], SNOWPLOW)[0]
        for n in range(4)
    ]
    columns = ("domain_sessionid", "page_views", "engaged_time_in_s", "absolute_time_in_s")
    sessions = [{"row": row, "views": row.page_views} for row in rows if row is not None]

    def wrong(tables: Tables) -> int:
        found = [msgspec.structs.replace(one["row"], page_views=one["views"]) for one in tables["sessions"]]
        with expected_file(columns, [row for row in rows if row is not None]) as path:
            return compare("sessions", found, path, SESSION_COLUMNS, "domain_sessionid").mismatches

    return Compared({"sessions": sessions}, wrong)


@contextmanager
def expected_file(columns: tuple[str, ...], rows: list[Any]) -> Iterator[Path]:
    """A file of expected sessions, as Snowplow's."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "expected.csv"
        cells = [",".join(str(SESSION_COLUMNS[name](row)) for name in columns) for row in rows]
        path.write_text("\n".join([",".join(columns), *cells]) + "\n")
        yield path


@cache
def sessionize() -> Compared:
    rng = Random(4)
    clicks = pd.DataFrame(
        {
            "visitor_id": [f"v{rng.randrange(9)}" for _ in range(300)],
            "at": sorted(rng.randrange(24 * HOUR) for _ in range(300)),
        }
    )
    wanted = expected_sessions(clicks, 30 * MINUTE)
    rows = [
        {
            "session_id": f"{r.visitor_id}:{r.session_start}",
            "visitor_id": r.visitor_id,
            "revision": 1,
            "session_start_ms": r.session_start,
            "session_end_ms": r.session_end,
            "events": r.events,
            "close_reason": "inactivity",
        }
        for r in wanted.itertuples()
    ]

    def wrong(tables: Tables) -> int:
        frame = pd.DataFrame(tables["sessions"], columns=list(rows[0]))
        return len(differing_sessions(sessions_of(frame), wanted))

    return Compared({"sessions": rows}, wrong)


@cache
def features() -> Compared:
    frame = payments(Random(1), 120)
    wanted = handbook_features(frame, 7 * DAY)
    return Compared(
        {"features": streamed([of_table(frame)])},
        lambda tables: mismatches(pd.DataFrame(tables["features"]), wanted),
    )


@cache
def azure_join() -> Compared:
    times = pd.date_range("2015-01-01", periods=48, freq="h")
    rng = Random(2)
    telemetry = pd.DataFrame(
        [
            {"datetime": at, "machineID": m, **{q: rng.gauss(100, 9) for q in azure.QUANTITIES}}
            for m in (1, 2)
            for at in times
        ]
    )
    errors = pd.DataFrame({"datetime": times[[5, 9, 20]], "machineID": [1, 1, 2], "errorID": ["error1"] * 3})
    maint = pd.DataFrame({"datetime": times[[3, 30]], "machineID": [1, 2], "comp": ["comp1", "comp2"]})
    machines = pd.DataFrame({"machineID": [1, 2], "model": ["m1", "m2"], "age": [3, 7]})
    for frame in (telemetry, errors, maint):
        frame["datetime"] = frame["datetime"].astype("datetime64[ms]")
    wanted = azure.oracle({"telemetry": telemetry, "errors": errors, "maint": maint, "machines": machines})
    rows = []
    for r in wanted.to_dict("records"):
        at = int(r["datetime"].timestamp() * 1_000)
        ages = {c: r[f"days_since_{c}"] for c in azure.COMPONENTS if pd.notna(r[f"days_since_{c}"])}
        told = {e: r[f"{e}_24h"] for e in azure.ERRORS}
        for q in azure.QUANTITIES:
            rows.append(
                {
                    "reading_id": f"{r['machineID']}-{at}-{q}",
                    "revision": 0,
                    "machine_id": r["machineID"],
                    "event_time_ms": at,
                    "quantity": q,
                    "value": r[q],
                    "component_age_days": ages,
                    "errors_24h": told,
                    "attributes": {"model": r["model"], "age": str(r["age"])},
                }
            )

    def wrong(tables: Tables) -> int:
        found, contradicting = azure.features_of(list(tables["readings"]))
        return azure.mismatches(found, wanted) + contradicting

    return Compared({"readings": rows}, wrong)


@cache
def failure_rules() -> Compared:
    rows = [
        {
            "UDI": str(n),
            "Type": "L",
            **dict.fromkeys(ai4i.COLUMNS, "0"),
            **{mode: str(int(n % 5 == place)) for place, mode in enumerate(ai4i.MODES)},
        }
        for n in range(1, 41)
    ]
    alarms = [
        {
            "entity_id": "ai4i-L",
            "rule_id": mode.lower(),
            "number": 0,
            "change": "active" if on else "inactive",
            "event_time_ms": ai4i.START_MS + (int(row["UDI"]) + (not on)) * ai4i.MINUTE_MS,
            "active": on,
        }
        for row in rows
        for mode in ai4i.MODES
        if row[mode] == "1"
        for on in (True, False)
    ]

    def wrong(tables: Tables) -> int:
        reports = ai4i.compare(rows, list(tables["alarms"])).values()
        missed = sum(r.expected - r.matched + r.false for r in reports)
        return missed + sum(abs(r.alarms - r.expected) for r in reports)

    return Compared({"alarms": alarms}, wrong)


@cache
def alarm_filters() -> Compared:
    times = [n * MINUTE for n in range(100)]
    series = nab.Series("s", times, [0.0] * 100)
    windows = {"s": [(20 * MINUTE, 29 * MINUTE), (60 * MINUTE, 69 * MINUTE)]}
    alarms = [
        {
            "rule_id": f"{nab.FILTERED}-0",
            "number": 0,
            "change": "active" if on else "inactive",
            "active": on,
            "event_time_ms": at * MINUTE,
        }
        for at, on in ((21, True), (27, False), (62, True), (66, False))
    ]

    def wrong(tables: Tables) -> int:
        found = nab.compare([series], windows, list(tables["alarms"]), "memory").filtered
        told = (found.transitions, found.windows_hit, found.windows_raised, round(found.active_share * 99))
        return int(told != (4, 2, 2, 10))

    return Compared({"alarms": alarms}, wrong)


@cache
def locations() -> Compared:
    rng = Random(6)
    positions = pd.DataFrame(
        [
            {
                "cab_id": f"c{n % 5}",
                "at_ms": n * 17_000 + rng.randrange(9_000),
                "lat": 37.7 + rng.random() / 20,
                "lon": -122.4 + rng.random() / 20,
                "occupied": rng.random() < 0.5,
            }
            for n in range(120)
        ]
    )
    wanted, gone = zone_counts(positions, 2 * MINUTE), stale_drivers(positions, 2 * MINUTE)
    changes = [{"driver_id": name} for name, times in gone.items() for _ in range(int(times))]

    def wrong(tables: Tables) -> int:
        supply = pd.DataFrame(tables["supply"], columns=["minute_ms", "zone", "cars", "free"])
        stale = pd.DataFrame(tables["stale"], columns=["driver_id"]).groupby("driver_id").size()
        return differing_counts(supply, wanted) + int(stale.sub(gone, fill_value=0).abs().sum())

    return Compared({"supply": wanted.to_dict("records"), "stale": changes}, wrong)


@cache
def engine_features() -> Compared:
    rng = Random(3)
    test = pd.DataFrame(
        [
            {"unit": unit, "cycle": cycle, **{name: rng.gauss(9, 2) for name in cmapss.COLUMNS[2:]}}
            for unit in (1, 2)
            for cycle in range(1, 13)
        ]
    )
    features = cmapss.features_of(test, cmapss.baseline_of(test))
    rows = [
        {"machine_id": f"engine{unit}", "event_time_ms": cmapss.START_MS + cycle * HOUR, "features": found}
        for unit, cycle, found in zip(test["unit"], test["cycle"], features, strict=True)
    ]
    return Compared({"features": rows}, lambda tables: cmapss.differing(tables["features"], test, features))


SNOWPLOW_ROWS = "clickstream sessions: rows of Snowplow's model"
SESSIONS = "clickstream sessionize: sessions"
HANDBOOK = "fraud: features of the Handbook"
AZURE = "iot azure-join: rows of features"
AI4I = "iot ai4i: products found by rules"
NAB = "iot alarms: transitions, windows hit and time in alarm"
CMAPSS = "iot cmapss: features of test cycles"
LOCATIONS = "ridesharing locations: cars by zone and minute, and exclusions"
COMPARED: dict[str, Callable[[], Compared]] = {
    SNOWPLOW_ROWS: snowplow,
    SESSIONS: sessionize,
    HANDBOOK: features,
    AZURE: azure_join,
    AI4I: failure_rules,
    NAB: alarm_filters,
    CMAPSS: engine_features,
    LOCATIONS: locations,
}


def ages_stuck(rows: Rows) -> Rows:
    return [{**row, "component_age_days": rows[-1]["component_age_days"]} for row in rows]


BREAKS = (
    *breaks(
        SNOWPLOW_ROWS,
        dropped={"sessions": less},
        doubled={"sessions": doubled},
        a_view_too_many={"sessions": shifted("views", 1)},
        stuck={"sessions": stuck("row")},
    ),
    *breaks(
        SESSIONS,
        dropped={"sessions": less},
        all_dropped={"sessions": dropped},
        doubled={
            "sessions": lambda rows: [*rows, *({**r, "session_id": "x" + r["session_id"]} for r in rows)]
        },
        shifted={"sessions": shifted("session_start_ms", 1)},
        of_other_visitors={"sessions": swapped("visitor_id")},
        never_merged={"sessions": shifted("events", 1)},
    ),
    *breaks(
        HANDBOOK,
        dropped={"features": less},
        doubled={"features": doubled},
        shifted={"features": swapped("customer_mean_7d")},
        stuck={"features": stuck("terminal_count_7d")},
        a_bit_more={
            "features": lambda rows: [
                {**r, "customer_mean_7d": r["customer_mean_7d"] * (1 + 2**-52)} for r in rows
            ]
        },
    ),
    *breaks(
        AZURE,
        dropped={"readings": halved},
        all_dropped={"readings": dropped},
        doubled={"readings": doubled},
        shifted={"readings": shifted("event_time_ms", HOUR)},
        ages_stuck={"readings": ages_stuck},
        errors_dropped={"readings": lambda rows: [{**row, "errors_24h": {}} for row in rows]},
    ),
    *breaks(
        AI4I,
        dropped={"alarms": dropped},
        doubled={"alarms": doubled},
        shifted={"alarms": shifted("event_time_ms", 2 * MINUTE)},
        stuck={"alarms": where(lambda row: not row["active"], dropped)},
        of_one_rule={"alarms": stuck("rule_id")},
    ),
    *breaks(
        NAB,
        dropped={"alarms": dropped},
        doubled={"alarms": doubled},
        shifted={"alarms": shifted("event_time_ms", 12 * MINUTE)},
        stuck={"alarms": lambda rows: rows[:1]},
    ),
    *breaks(
        CMAPSS,
        dropped={"features": less},
        all_dropped={"features": dropped},
        doubled={"features": doubled},
        shifted={"features": shifted("event_time_ms", HOUR)},
        stuck={"features": stuck("features")},
    ),
    *breaks(
        LOCATIONS,
        dropped={"supply": less},
        doubled={"supply": doubled},
        shifted={"supply": shifted("minute_ms", MINUTE)},
        a_car_more={"supply": shifted("cars", 1)},
        free_cars_stuck={"supply": stuck("free", 0)},
        exclusions_dropped={"stale": less},
        exclusions_doubled={"stale": doubled},
        exclusions_of_one_car={"stale": stuck("driver_id")},
    ),
)


@pytest.mark.parametrize("name", COMPARED)
def test_a_comparison_finds_nothing_wrong_with_what_is_right(name: str) -> None:
    compared = COMPARED[name]()
    assert all(compared.tables.values())
    assert compared.wrong(compared.tables) == 0


@pytest.mark.parametrize("one", BREAKS, ids=str)
def test_a_comparison_sees_what_is_broken(one: Break) -> None:
    compared = COMPARED[one.check]()
    assert compared.wrong(one.applied(compared.tables)) > 0


def test_every_comparison_is_listed_with_what_breaks_it() -> None:
    check_listed("`millrace evaluate`", COMPARED, BREAKS)
