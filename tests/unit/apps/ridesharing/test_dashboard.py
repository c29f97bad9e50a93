"""The ridesharing page's panels over a small folder of tables."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import h3
import msgspec
import pandas as pd
import pytest
from deltalake import DeltaTable

from millrace.dashboard.data import AppData
from millrace.dashboard.live import LivePage
from millrace.dashboard.page import ActionRefused
from millrace.dashboard.views import AreaMap, Note, Numbers, Table
from millrace_apps.ridesharing.app import app as ridesharing
from millrace_apps.ridesharing.contracts.events import Command, Control, SetPolicy, SetSurgeCap
from millrace_apps.ridesharing.contracts.records import LinePlace, Operation, VenuePoint, VenueShape
from millrace_apps.ridesharing.dashboard import city as dashboard_city
from millrace_apps.ridesharing.dashboard import page as dashboard
from millrace_apps.ridesharing.dashboard.data import trips
from millrace_apps.ridesharing.dashboard.venues import MOST_CORNERS, Shape, Shapes, edges
from millrace_apps.ridesharing.settings import RidesharingSettings
from millrace_apps.ridesharing.state.lifecycle import TERMINAL
from tests.unit.apps.ridesharing.tables import (
    EVIL,
    HOUR,
    MINUTE,
    REGIONS,
    START_MS,
    RidesRecords,
    rides_folder,
    venue_shapes,
)
from tests.unit.millrace.dashboard.cases import (
    Clock,
    check_panels,
    frame,
    panel_of,
    put_records,
    without_rows,
)
from tests.unit.millrace.operations.cases import MockBroker, records_of

World = tuple[AppData, RidesRecords, Clock]
shown = partial(panel_of, dashboard.page)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RidesRecords]:
    root = tmp_path_factory.mktemp("rides")
    return root, rides_folder(root)


@pytest.fixture(scope="module")
def world(made: tuple[Path, RidesRecords]) -> World:
    """To be looked at, not to be written to."""
    root, records = made
    clock = Clock(records.until_ms)
    return data_in(root, clock), records, clock


@pytest.fixture
def own(made: tuple[Path, RidesRecords], tmp_path: Path) -> World:
    """A copy that may be written to."""
    root, records = made
    shutil.copytree(root, tmp_path / "rides")
    clock = Clock(records.until_ms)
    return data_in(tmp_path / "rides", clock), records, clock


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    mock = MockBroker()
    yield mock
    mock.stop()


def data_in(root: Path, clock: Clock | None = None) -> AppData:
    return AppData(ridesharing, RidesharingSettings(), root, clock or Clock())


def last_states(records: RidesRecords) -> pd.DataFrame:
    """Each request as it stands, by its last revision."""
    return frame(records.trips).sort_values("revision").groupby("request_id").tail(1)


def test_every_panel_shows_something_of_a_full_folder_and_nothing_of_an_empty_one(
    world: World, tmp_path: Path
) -> None:
    data, _, clock = world
    check_panels(dashboard.page, data, data_in(tmp_path / "none", clock))


def test_tables_without_a_row_are_waited_for(own: World) -> None:
    data, _, clock = own
    found = without_rows(dashboard.page, data, clock)
    assert isinstance(found.pop("violations"), Note)
    assert found == {}


def test_violations_come_first_and_say_which_invariant(world: World) -> None:
    data, _, _ = world
    assert dashboard.page.panels[0].id == "violations"
    found = shown(data, "violations")
    assert isinstance(found, Table)
    assert set(found.tones) == {"bad"}
    assert [(row[1], row[3]) for row in found.rows] == [(2, "r003"), (1, "d7")]
    assert "at most one open commitment" in str(found.rows[1][2])
    assert EVIL in str(found.rows[0][4])


def test_where_every_invariant_holds_that_is_said(own: World, tmp_path: Path) -> None:
    data, records, clock = own
    DeltaTable(str(data.root / "tables" / "violations")).delete()
    clock.later()
    found = shown(data, "violations")
    assert isinstance(found, Note)
    assert (found.tone, f"{len(records.trips):,} steps" in found.text) == ("good", True)


def test_lines_of_venues_are_as_they_were_told_last_and_empty_where_nothing_is_told(world: World) -> None:
    data, records, _ = world
    found = shown(data, "lines")
    assert isinstance(found, Table)
    until = records.until_ms
    assert found.rows == [
        ["airport", 3, "d1", until - 30 * MINUTE, 30 * MINUTE, 20 * MINUTE, until],
        ["station", 0, None, None, None, None, until - 10 * MINUTE],
    ]


def test_pick_up_points_say_how_many_riders_were_sent_there(world: World) -> None:
    data, _, _ = world
    found = shown(data, "points")
    assert isinstance(found, Table)
    assert [row[:4] for row in found.rows] == [["airport", "door 1", 10, 60], ["airport", "door 2", 20, 30]]
    assert [row[7:] for row in found.rows] == [[10, 0], [0, 10]]


def test_the_headline_is_what_the_last_revisions_say(world: World) -> None:
    data, records, _ = world
    last = last_states(records)
    found = shown(data, "headline")
    assert isinstance(found, Numbers)
    labels = [n.label for n in found.items]
    values: list[Any] = [n.value for n in found.items]
    over = last[last.state.isin(TERMINAL)]
    rows = frame(records.trips)
    waits = rows[rows.state == "in_progress"].wait_ms
    assert values[labels.index("requests")] == len(last)
    assert values[labels.index("served")] == pytest.approx((over.state == "completed").mean())
    assert values[labels.index("mean wait")] == pytest.approx(waits.mean())
    p95 = values[labels.index("95 % wait")]
    assert waits.quantile(0.95, interpolation="lower") <= p95 <= waits.quantile(0.96, interpolation="higher")
    assert values[labels.index("waiting now")] == last.state.isin(["processing", "offered"]).sum()
    assert values[labels.index("open offers")] == (last.state == "offered").sum()
    supply = frame(records.supply)
    newest = supply[supply.minute_ms == supply.groupby("region").minute_ms.transform("max")]
    assert values[labels.index("free cars")] == newest.free.sum()


@pytest.mark.parametrize("seed", range(3))
def test_states_add_up_in_any_order_and_any_cut_into_files(tmp_path: Path, world: World, seed: int) -> None:
    _, records, _ = world
    rows = list(records.trips)
    random = Random(seed)
    random.shuffle(rows)
    clock = Clock()
    data = data_in(tmp_path / "any", clock)
    while rows:
        cut = random.randrange(1, 600)
        put_records(tmp_path / "any", "trips", rows[:cut])
        rows = rows[cut:]
        clock.later()
        assert trips(data) is not None
    found = trips(data)
    assert found is not None
    expected = Counter(last_states(records).groupby(["region", "state"]).size().to_dict())
    assert +found.states == expected


def test_requests_are_shown_by_state_in_the_order_of_a_ride(world: World) -> None:
    data, records, _ = world
    expected = last_states(records).state.value_counts().to_dict()
    bars = shown(data, "trip-states").bars
    assert {b.label.replace(" ", "_"): b.value for b in bars} == expected
    labels = [b.label for b in bars]
    assert labels.index("in progress") < labels.index("completed")


def test_waits_over_time_are_those_of_the_pick_ups(world: World) -> None:
    data, records, _ = world
    rows = frame(records.trips)
    waits = rows[rows.state == "in_progress"]
    means, tails = shown(data, "waits").series
    begins = [at for at, _ in means.points]
    width = begins[1] - begins[0]
    place = (waits.at_ms - begins[0]) // width
    assert {n: v for n, (_, v) in enumerate(means.points) if v is not None} == pytest.approx(
        waits.groupby(place).wait_ms.mean().to_dict()
    )
    for (_, mean), (_, tail) in zip(means.points, tails.points, strict=True):
        assert (mean is None) == (tail is None)


def test_requests_pick_ups_and_losses_over_time_lose_nothing(world: World) -> None:
    data, records, _ = world
    rows = frame(records.trips)
    lines = shown(data, "demand").series
    width = (lines[0].points[1][0] - lines[0].points[0][0]) / MINUTE
    given_up = rows.state.isin(TERMINAL) & (rows.state != "completed")
    expected = [(rows.before == "").sum(), (rows.state == "in_progress").sum(), given_up.sum()]
    assert [sum(v or 0 for _, v in line.points) * width for line in lines] == pytest.approx(expected)


def test_regions_stand_side_by_side(world: World) -> None:
    data, records, _ = world
    last = last_states(records)
    windows = frame(records.windows).sort_values("window_end_ms")
    found = {row[0]: row for row in shown(data, "regions").rows}
    assert set(found) == set(REGIONS)
    for region, row in found.items():
        own = last[last.region == region]
        driving = own.state.isin(["accepted", "arrived", "in_progress"]).sum()
        counts = [len(own), (own.state == "processing").sum(), (own.state == "offered").sum(), driving]
        assert list(row[1:5]) == counts
        newest = windows[windows.region == region].iloc[-1]
        longest = newest.longest_wait_ms if counts[1] else None  # nobody waits: nobody waits longest
        assert (row[9], row[10], row[11]) == (longest, "optimal", newest.window_end_ms)


def test_policies_are_compared_with_what_was_done_in_the_same_windows(world: World) -> None:
    data, records, _ = world
    rows = frame(records.windows)
    found = {row[0]: row for row in shown(data, "policies").rows}
    assert set(found) == {"fifo", "optimal"}  # nearest was never computed
    assert found["optimal"][1] == "in force in 2 of 2 regions"
    assert found["fifo"][1] == "shadow"
    for policy in found:
        beside = rows[(rows.policy != policy) & (rows[f"shadow_{policy}_matched"] >= 0)]
        own = rows[rows.policy == policy]
        assert (found[policy][2], found[policy][3]) == (len(own), len(beside))
        would, waits = beside[f"shadow_{policy}_matched"].sum(), beside[f"shadow_{policy}_wait_ms"].sum()
        given = own.matched.sum() + would
        assert found[policy][4] == pytest.approx(given / (own.riders.sum() + beside.riders.sum()))
        assert found[policy][5] == pytest.approx((own.wait_ms.sum() + waits) / given)
        assert found[policy][6] == pytest.approx(would / beside.matched.sum() - 1)
        done = beside.wait_ms.sum() / beside.matched.sum()
        assert found[policy][7] == pytest.approx(waits / would / done - 1)


def test_windows_attempts_drivers_and_ignored_events_are_counted(world: World) -> None:
    data, records, _ = world
    rows = frame(records.windows)
    figures = {n.label: n.value for n in shown(data, "matching").items}
    assert figures["offered a car"] == pytest.approx(rows.matched.sum() / rows.riders.sum())
    assert (figures["to the pick-up"], figures["put off"]) == (700, 2)
    bars = {b.label: b.value for b in shown(data, "offers").bars}
    assert bars == Counter(a.state for a in records.attempts)
    assert {b.label: b.value for b in shown(data, "driver-changes").bars} == Counter(
        d.change for d in records.drivers
    )
    assert [(b.label, b.value) for b in shown(data, "ignored").bars] == [("the offer is over", 4)]
    assert [row[5] for row in shown(data, "operations").rows] == ["refused", "done"]


def test_a_request_and_a_driver_are_found(world: World) -> None:
    data, records, _ = world
    one = {p.title: p.view for p in dashboard.request_or_driver(data, "r003")}
    trip = one["Trip"]
    assert "Violations" in one
    assert isinstance(trip, Table)
    own = [t for t in records.trips if t.request_id == "r003"]
    assert [row[2] for row in trip.rows] == [t.state for t in sorted(own, key=lambda t: -t.revision)]
    driver = {p.title: p.view for p in dashboard.request_or_driver(data, "d7")}
    assert list(driver) == ["Violations", "Offers", "Driver"]
    offers = driver["Offers"]
    assert isinstance(offers, Table)
    assert len(offers.rows) == sum(a.driver_id == "d7" for a in records.attempts)
    assert offers.rows[0][0] >= offers.rows[-1][0] >= START_MS  # type: ignore[operator]
    assert {row[7] for row in offers.rows} == {None}  # not over yet: no time
    assert dashboard.request_or_driver(data, "nobody") == []


# -- the city --------------------------------------------------------------------------------------


def test_venues_are_drawn_with_their_lines_as_of_the_moment(own: World) -> None:
    """Three wait at the airport at the end; the station was there until 20 min before."""
    data, records, clock = own
    until = records.until_ms
    assert not dashboard_city.city_map(data).outlines  # type: ignore[union-attr]
    put_records(data.root, "venues", venue_shapes(until))
    clock.later()
    now, then = dashboard_city.city_map(data), dashboard_city.city_map(data, until - 21 * MINUTE)
    told = dashboard_city.city_map(data, until - 60 * MINUTE)
    for view, names in ((now, ["airport"]), (then, ["airport", "station"]), (told, ["airport", "station"])):
        assert isinstance(view, AreaMap)
        zones = [one.text for one in view.outlines if one.kind == "zone"]
        assert zones == names
        assert [one.id for one in view.outlines if one.kind == "pen"] == [f"{name} pen" for name in names]
    assert isinstance(now, AreaMap)
    assert isinstance(then, AreaMap)
    assert [(o.label, o.text) for o in now.outlines] == [
        ("airport, zone; 2 of 2 pick-up points open", "airport"),
        ("airport, pen: 3 in line, the first for 30 min", "3 in line"),
    ]
    assert [o.text for o in then.outlines] == ["airport", "0 in line", "station", "0 in line"]
    doors = {m.text: (m.lat, m.lon) for m in now.marks if m.id.startswith("point ")}
    assert doors == {"door 1": (37.77, -122.42), "door <2>": (37.771, -122.42)}
    assert [m.text for m in then.marks if m.text] == ["door 1", "door <2> (closed)"]
    assert now.kinds[-1].name == "pick-up point"
    assert all(0 <= m.kind < len(now.kinds) for m in now.marks)


def test_a_line_of_which_nothing_was_told_of_late_is_empty_on_the_map(own: World) -> None:
    """One waits 25 min before the end, and nobody from a minute later on."""
    data, records, clock = own
    then = records.until_ms - 25 * MINUTE
    put_records(data.root, "venues", venue_shapes(records.until_ms))
    put_records(data.root, "lines", [LinePlace("airport", "d8", "north", 1, 1, then - 10 * MINUTE, then)])
    clock.later()
    said = {}
    for minutes in (-1, 1, 3, 4):
        view = dashboard_city.city_map(data, then + minutes * MINUTE)
        assert isinstance(view, AreaMap)
        said[minutes] = next(one.text for one in view.outlines if one.id == "airport pen")
    assert said == {-1: "0 in line", 1: "1 in line", 3: "0 in line", 4: "0 in line"}


def test_the_edge_of_an_area_goes_around_its_cells_and_its_holes() -> None:
    """A ring of cells with a hole, and one far away: what is inside of an odd number of lines is in it."""
    middle = h3.latlng_to_cell(37.77, -122.42, 9)
    far = h3.latlng_to_cell(37.9, -122.42, 10)
    cells = (*h3.grid_ring(middle, 2), far)
    rings = edges(cells)
    assert len(rings) == 3
    assert sorted(len(ring) for ring in rings)[0] == 6
    for cell in (*h3.grid_disk(middle, 3), *h3.grid_disk(far, 1)):
        lat, lon = h3.cell_to_latlng(cell)
        inside = sum(_is_in(lon, lat, ring) for ring in rings) % 2 == 1
        assert inside == (cell in cells)


def _is_in(x: float, y: float, ring: Sequence[tuple[float, float]]) -> bool:
    """Return whether a place is inside of a closed line: a ray from it crosses it an odd number of times."""
    crossed = 0
    for (a, b), (c, d) in zip(ring, (*ring[1:], ring[0]), strict=True):
        if (b > y) != (d > y):
            crossed += x < a + (y - b) / (d - b) * (c - a)
    return crossed % 2 == 1


def test_what_is_drawn_of_venues_is_bounded(own: World) -> None:
    """Sixty venues of 400 cells that do not touch: as many as fit, and the points of fifty."""
    data, records, clock = own
    middle, start = h3.latlng_to_cell(37.77, -122.42, 9), records.until_ms - HOUR
    apart = [c for n, c in enumerate(sorted(h3.grid_disk(middle, 40))) if n % 12 == 0][:400]
    door = [VenuePoint("door", 37.77, -122.42, True)]
    shapes = [VenueShape(f"v{n:02}", "north", start, apart, [], door, start) for n in range(60)]
    put_records(data.root, "venues", shapes)
    clock.later()
    view = dashboard_city.city_map(data)
    assert isinstance(view, AreaMap)
    corners = sum(len(ring) for one in view.outlines for ring in one.rings)
    assert MOST_CORNERS - 2_500 < corners <= MOST_CORNERS
    assert sum(bool(mark.text) for mark in view.marks) == 50


def test_versions_of_venues_are_forgotten_that_no_moment_can_show() -> None:
    """A venue that changes every minute for ten hours, and one that is closed after five."""
    shapes = Shapes()
    for n in range(600):
        shapes.put("airport", Shape(START_MS + n * MINUTE, ("872830828ffffff",), (), ()))
        if n in (0, 300):
            shapes.put("station", Shape(START_MS + n * MINUTE, ("872830828ffffff",) if not n else (), (), ()))
    kept = {at: [name for name, _ in shapes.at(at)] for at in (START_MS, START_MS + 301 * MINUTE)}
    assert kept == {START_MS: ["airport", "station"], START_MS + 301 * MINUTE: ["airport"]}
    shapes.forget()
    assert shapes.count == 181
    until = START_MS + 599 * MINUTE
    for minute in range(180):
        ((_, shape),) = shapes.at(until - minute * MINUTE)
        assert shape.from_ms == until - minute * MINUTE


def test_the_map_shows_cells_cars_and_riders_of_a_moment(world: World) -> None:
    data, records, _ = world
    found, then = shown(data, "map"), dashboard_city.city_map(data, records.until_ms - 20 * MINUTE)
    assert isinstance(found, AreaMap)
    assert isinstance(then, AreaMap)
    assert (found.at_ms, found.until_ms, found.since_ms) == (records.until_ms, records.until_ms, START_MS)
    for view in (found, then):
        kinds = Counter(view.kinds[mark.kind].name for mark in view.marks)
        riders = kinds.pop("rider who waits")
        assert kinds == {"free": 14, "on the way": 8, "with a rider": 8, "not to be had": 8}  # two are silent
        assert riders == sum(1 for mark in view.marks if mark.id.startswith("rider")) > 5
        assert {mark.key for mark in view.marks} <= {mark.id.removeprefix("rider ") for mark in view.marks}
        for area in view.areas:
            lons, lats = zip(*area.outline, strict=True)
            assert h3.latlng_to_cell(sum(lats) / 6, sum(lons) / 6, 8) == area.id
            assert any(value is not None for value in area.values)
    west, south, east, north = found.box
    inside = [west <= p.lon <= east and south <= p.lat <= north for p in records.places]
    assert sum(inside) / len(inside) > 0.9
    asked = [j for j in records.journeys if records.until_ms - 15 * MINUTE < j.at_ms <= records.until_ms]
    assert sum(area.values[0] or 0 for area in found.areas) == len(asked)
    assert {m.id for m in found.marks if m.id in ("d0", "d1", "d2")} == {"d2"}


def test_the_panels_of_the_city_are_seen_as_of_a_moment_that_is_over(world: World) -> None:
    data, records, _ = world
    at = records.until_ms - 30 * MINUTE
    past = {one["id"]: one["view"] for one in LivePage(data, dashboard.page).at(at)}
    assert list(past) == ["map", "longest", "shortage", "stuck", "dearest"]
    assert past["map"].at_ms == at // 30_000 * 30_000
    rows = frame([t for t in records.trips if t.at_ms <= past["map"].at_ms])
    last = rows.sort_values("revision").groupby("request_id").tail(1)
    waiting = last[last.state.isin(["processing", "offered", "accepted"])].sort_values("requested_ms")
    assert [row[0] for row in past["longest"].rows] == list(waiting.request_id[:25])
    assert past["longest"].rows != shown(data, "longest").rows
    assert past["stuck"].rows
    assert not past["stuck"].actions  # what is over cannot be ended


def test_zones_that_lack_cars_come_first(world: World) -> None:
    data, _, _ = world
    rows = shown(data, "shortage").rows
    assert [row[1] for row in rows] == sorted((row[1] for row in rows), reverse=True)
    assert all(row[1] == max(0, row[2] - row[3]) for row in rows)
    assert (rows[0][0], rows[0][1] > 0, len(rows) > 2) == (
        "872830828ffffff",
        True,
        True,
    )  # all riders are here


def test_a_trip_with_a_rider_that_stands_still_can_be_ended_by_a_command(
    world: World, broker: MockBroker
) -> None:
    data, records, clock = world
    found = shown(data, "stuck")
    offers = {row[0]: offer for row, offer in zip(found.rows, found.actions, strict=True)}
    states = {row[0]: row[1] for row in found.rows}
    assert {states[name] for name, offer in offers.items() if offer} == {"in progress"}
    assert {states[name] for name, offer in offers.items() if not offer} >= {"accepted"}
    name = next(name for name, offer in offers.items() if offer)
    values = {**offers[name][0].values, "by": "ann", "reason": "the phone is lost"}
    with pytest.raises(ActionRefused, match="no broker"):
        LivePage(data, dashboard.page).act(values, "end-trip")
    until = records.until_ms
    for now, at_ms in ((until + 9_000, until + 9_000), (clock.now * 2, until)):
        topic = broker.topic()
        settings = RidesharingSettings.model_validate(
            {"kafka": {"bootstrap": broker.bootstrap}, "topics": {"commands": topic}}
        )
        page = LivePage(AppData(ridesharing, settings, data.root, Clock(now)), dashboard.page)
        assert f"ending {name} is sent, by ann" in page.act(values, "end-trip")
        with pytest.raises(ActionRefused, match="Why is missing"):
            page.act({**values, "reason": ""}, "end-trip")
        ((key, value),) = [one for n in range(4) for one in records_of(broker.bootstrap, topic, n)]
        event = msgspec.json.decode(value or b"", type=Command)
        assert (key, event.action, event.request_id) == (name.encode(), "end_trip", name)
        assert (event.operator, event.reason, event.zone) == ("ann", "the phone is lost", "872830828ffffff")
        assert event.event_time_ms == at_ms


def test_prices_are_those_of_quotes_and_fares(world: World) -> None:
    data, records, _ = world
    numbers = {n.label: n.value for n in shown(data, "prices").items}
    carried = {fare.quote_id for fare in records.fares}
    over = [q for q in records.quotes if q.until_ms < records.quotes[-1].at_ms]
    assert numbers["quotes taken"] == sum(q.quote_id in carried for q in over) / len(over)
    assert numbers["quotes kept"] == sum(fare.outcome == "locked" for fare in records.fares)
    assert numbers["quotes not kept"] == sum(fare.outcome == "expired" for fare in records.fares) > 0
    newest = {row.cell: row.multiplier for row in sorted(records.surge, key=lambda row: row.from_ms)}
    dear = {name: m for name, m in newest.items() if m > 1.0}
    assert (numbers["dear cells"], numbers["dearest"]) == (len(dear), max(dear.values()))
    assert {row[0]: row[1] for row in shown(data, "dearest").rows}.items() <= dear.items()
    assert numbers["cap"] == 3.0, "that of the newest change"


def test_the_cap_that_is_shown_is_the_newest_that_holds(own: World) -> None:
    data, records, _ = own
    outcomes = (("done", "2.5"), ("done", "1.5"), ("refused", "surge.on is not set"))
    for n, outcome in enumerate(outcomes):
        what = (f"c{n}", "north", "surge_cap", "ann", "a storm", "", "", "", 0, *outcome)
        put_records(data.root, "operations", [Operation(*what, records.until_ms + n)])
    numbers = {n.label: n.value for n in shown(data, "prices").items}
    assert numbers["cap"] == 1.5


def test_the_cap_and_the_policy_are_set_as_the_command_sets_them(world: World, broker: MockBroker) -> None:
    data, records, _ = world
    topic = broker.topic()
    settings = RidesharingSettings.model_validate(
        {"kafka": {"bootstrap": broker.bootstrap}, "topics": {"control": topic}}
    )
    page = LivePage(AppData(ridesharing, settings, data.root, Clock(records.until_ms)), dashboard.page)
    who = {"by": "ann", "reason": "a storm"}
    for wrong in ("0.9", "10.1", "much", "nan"):
        with pytest.raises(ActionRefused, match="a number from 1 to 10"):
            page.act({**who, "cap": wrong}, "set-cap")
    with pytest.raises(ActionRefused, match="olicy"):
        page.act({**who, "policy": "best"}, "set-policy")
    with pytest.raises(ActionRefused, match="no broker"):
        LivePage(data, dashboard.page).act({**who, "cap": "1.5"}, "set-cap")
    assert "a cap of 1.5 is sent, by ann" in page.act({**who, "cap": "1.5"}, "set-cap")
    assert "policy fifo is sent, by ann" in page.act({**who, "policy": "fifo"}, "set-policy")
    said = [
        msgspec.json.decode(value or b"", type=Control) for _, value in records_of(broker.bootstrap, topic, 0)
    ]
    assert [type(one) for one in said] == [SetSurgeCap, SetPolicy]
    assert [(one.operator, one.reason, one.from_ms) for one in said] == [("ann", "a storm", 0)] * 2
    assert len({one.command_id for one in said} | {""}) == 3


def test_a_request_has_its_story_in_order_and_the_way_of_its_car(world: World) -> None:
    data, records, _ = world
    name = "r003"
    story = {p.title: p.view for p in dashboard.request_or_driver(data, name)}
    table, way = story["Story"], story["Where the car was"]
    assert isinstance(table, Table)
    assert isinstance(way, AreaMap)
    times: list[Any] = [row[0] for row in table.rows]
    assert times == sorted(times)
    assert [row[1] for row in table.rows] == [at - times[0] for at in times]
    what = [str(row[2]) for row in table.rows]
    assert "a rider wants to go" in what[0]
    steps = [t for t in records.trips if t.request_id == name]
    attempts = [a for a in records.attempts if a.request_id == name]
    assert len(what) == 2 + len(steps) + len(attempts)
    assert [(str(row[2]), str(row[4])) for row in table.rows if "is sent to" in str(row[2])] == [
        ("the rider is sent to door 1 of airport, 60 m on foot", "asked for door 1: so it is")
    ]
    assert [w for w in what if "attempt" in w] == [
        f"attempt {a.attempt} by optimal: {a.distance_m:,.0f} m to the pick-up" for a in attempts
    ]
    kinds = [way.kinds[mark.kind].name for mark in way.marks]
    assert kinds == ["with a rider"] * 80 + ["pick-up", "drop-off"]
    assert [mark.lat for mark in way.marks[:80]] == [p.lat for p in records.places if p.request_id == name]
