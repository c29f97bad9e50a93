"""The clickstream page's panels over a small folder of tables."""

from __future__ import annotations

import shutil
import typing
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from millrace.dashboard.data import AppData
from millrace.dashboard.views import Bars, Table
from millrace_apps.clickstream.app import app as clickstream
from millrace_apps.clickstream.dashboard import page as dashboard
from millrace_apps.clickstream.dashboard.data import boards, newest_board, uplift_so_far
from millrace_apps.clickstream.operations.uplift import uplift_of
from millrace_apps.clickstream.processes.funnels import PURCHASE
from millrace_apps.clickstream.settings import ClickstreamSettings
from millrace_apps.clickstream.state.offers import Offer
from tests.unit.apps.clickstream.tables import (
    EVIL,
    HOUR,
    MINUTE,
    START_MS,
    ShopRecords,
    books,
    items,
    newest_of,
    shop_folder,
)
from tests.unit.millrace.dashboard.cases import (
    Clock,
    check_panels,
    figures,
    frame,
    panel_of,
    put_records,
    without_rows,
)

World = tuple[AppData, ShopRecords, Clock]
shown = partial(panel_of, dashboard.page)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ShopRecords]:
    root = tmp_path_factory.mktemp("shop")
    return root, shop_folder(root)


@pytest.fixture(scope="module")
def world(made: tuple[Path, ShopRecords]) -> World:
    """To be looked at, not to be written to."""
    root, records = made
    clock = Clock(records.until_ms)
    return AppData(clickstream, ClickstreamSettings(), root, clock), records, clock


@pytest.fixture
def own(made: tuple[Path, ShopRecords], tmp_path: Path) -> World:
    """A copy that may be written to."""
    root, records = made
    shutil.copytree(root, tmp_path / "shop")
    clock = Clock(records.until_ms)
    return AppData(clickstream, ClickstreamSettings(), tmp_path / "shop", clock), records, clock


def test_every_panel_shows_something_of_a_full_folder_and_nothing_of_an_empty_one(
    world: World, tmp_path: Path
) -> None:
    data, _, clock = world
    check_panels(dashboard.page, data, AppData(clickstream, ClickstreamSettings(), tmp_path / "none", clock))


def test_tables_without_a_row_are_waited_for(own: World) -> None:
    data, _, clock = own
    # It says that there were no answers.
    assert without_rows(dashboard.page, data, clock).keys() <= {"privacy"}


def test_visitors_are_those_of_all_devices_and_of_no_minute_twice(world: World) -> None:
    data, records, _ = world
    rows = frame(records.boards)
    end = records.until_ms
    recent = rows[rows.window_end_ms > end - 2 * HOUR]
    for series, board in zip(shown(data, "visitors").series, ("visitors/now", "visitors/1m"), strict=True):
        expected = recent[recent.board == board].groupby("window_end_ms").value.sum()
        assert {at: v for at, v in series.points if v} == expected.to_dict()
        assert [b - a for (a, _), (b, _) in zip(series.points, series.points[1:], strict=False)] == [
            MINUTE
        ] * (len(series.points) - 1)
    found = figures(shown(data, "headline"))
    now = rows[(rows.board == "visitors/now") & (rows.window_end_ms == found["up to"])]
    assert found["visitors now"] == now.value.sum()
    assert {b.label: b.value for b in shown(data, "devices").bars} == dict(
        zip(now.item, now.value, strict=True)
    )


def test_sessions_of_people_are_told_from_those_of_bots_and_final_ones_from_open_ones(world: World) -> None:
    data, records, _ = world
    rows = frame(records.sessions)
    people = rows[rows.bot == ""]
    found = figures(shown(data, "sessions"))
    assert (found["over"], found["open"]) == (people.is_final.sum(), (~people.is_final).sum())
    assert found["bots"] == (rows.bot != "").sum()
    assert found["engaged"] == pytest.approx(people.is_engaged.mean())
    assert found["converted"] == pytest.approx(people.is_converted.mean())
    assert found["views"] == pytest.approx(people.page_views.mean(), abs=0.05)
    over = people[people.is_final]
    assert found["length"] == pytest.approx((over.end_ms - over.start_ms).median())


@pytest.mark.parametrize(("bot", "final", "counts"), [("rate", True, (0, 0, 5)), ("", False, (0, 5, 0))])
def test_bots_alone_and_open_sessions_alone_are_counted(
    tmp_path: Path, world: World, bot: str, final: bool, counts: tuple[int, int, int]
) -> None:
    rows = [msgspec.structs.replace(s, bot=bot, is_final=final) for s in world[1].sessions[:5]]
    put_records(tmp_path, "sessions", rows, key=["session_id"])
    found = figures(shown(AppData(clickstream, ClickstreamSettings(), tmp_path, Clock()), "sessions"))
    assert (found["over"], found["open"], found["bots"]) == counts
    assert found["length"] is None


def test_the_funnel_counts_who_came_at_least_so_far_by_arm(world: World) -> None:
    data, records, _ = world
    rows = frame(records.funnels)
    bars = {b.label: b.value for b in shown(data, "funnel").bars}
    table = {(row[0], row[1]): row for row in shown(data, "drop-offs").rows}
    assert len(bars) == len(table) == 2 * len(PURCHASE.steps)
    for arm, of in rows.groupby("arm"):
        for place, step in enumerate(PURCHASE.steps, 1):
            here = of[of.reached >= place]
            assert bars[f"{step}, {arm}"] == pytest.approx(len(here) / len(of))
            row = table[step, arm]
            assert (row[2], row[3]) == (len(here), 0 if place == 1 else (of.reached == place - 1).sum())
            times = [t[place - 2] for t in here.step_ms] if place > 1 else []
            assert row[5] == (pytest.approx(pd.Series(times).median()) if times else None)
    order = [b.label.split(", ")[0] for b in shown(data, "funnel").bars]
    assert order == [s for s in PURCHASE.steps for _ in range(2)]


def test_top_products_are_the_newest_window_of_each_board(world: World) -> None:
    data, records, _ = world
    rows = frame(records.boards)
    found = shown(data, "products")
    assert isinstance(found, Table)
    assert len(found.rows) == 10
    for n, (name, board, every) in enumerate(
        (("viewed, 5 min", "views/5m", 1), ("viewed, 1 h", "views/1h", 1), ("sold, 1 h", "sold/1h", 1),
         ("sold, last full hour", "sold/1h", HOUR), ("sold, 24 h", "sold/24h", 1)), 1,
    ):  # fmt: skip
        own = rows[(rows.board == board) & (rows.window_end_ms % every == 0)]
        last = own[own.window_end_ms == own.window_end_ms.max()].sort_values("rank")
        assert found.columns[n].name == name
        assert [row[n] for row in found.rows] == [
            f"{i}  ×{v:,}" for i, v in zip(last["item"], last["value"], strict=True)
        ]


def test_a_full_hour_is_told_from_the_sliding_hour_that_is_newer(world: World) -> None:
    found = boards(world[0])
    newest, full = newest_board(found, "sold/1h"), newest_board(found, "sold/1h", every_ms=HOUR)
    assert newest is not None
    assert full is not None
    assert full[0] % HOUR == 0
    assert newest_board(found, "none") is None


def test_carts_are_counted_by_stage_with_what_was_in_them(own: World) -> None:
    data, records, clock = own
    rows = frame(records.carts)
    found = shown(data, "abandonment")
    assert isinstance(found, Bars)
    assert {b.label: b.value for b in found.bars} == rows.stage.value_counts().to_dict()
    assert [b.label for b in found.bars] == ["cart", "address", "payment"]
    cents = rows[rows.stage == "payment"].value_cents.sum()
    assert found.bars[-1].note == f"{cents / 100:,.2f} in them"
    put_records(data.root, "abandonments", records.carts[:1])
    clock.later()
    assert sum(b.value for b in shown(data, "abandonment").bars) == len(rows) + 1


def test_items_in_left_carts_are_counted_once_a_cart(own: World) -> None:
    data, records, clock = own
    table = shown(data, "left-items")
    assert table.rows == [["item-001", 60, 1.0], ["item-002", 20, 20 / 60], ["item-003", 20, 20 / 60]]
    again = [msgspec.structs.replace(records.carts[2], time=2, items=["item-009"])]
    put_records(data.root, "abandonments", again)
    clock.later()
    assert [row[:2] for row in shown(data, "left-items").rows] == [
        ["item-001", 59], ["item-002", 20], ["item-003", 19], ["item-009", 1],
    ]  # fmt: skip


def test_searches_are_those_of_the_newest_hour(world: World) -> None:
    data, records, _ = world
    newest = max(b.window_end_ms for b in records.boards if b.board == "searches/1h")
    wanted = [
        [b.item, b.value] for b in records.boards if (b.board, b.window_end_ms) == ("searches/1h", newest)
    ]
    assert shown(data, "searches").rows == wanted


def test_uplift_counts_everybody_whom_an_offer_was_made_or_held_back_from(world: World) -> None:
    data, records, _ = world
    made = Counter((o.rule, o.arm) for o in records.offers)
    bought = Counter((o.rule, o.arm) for o in records.outcomes if o.converted)
    found = {u.rule: u for u in uplift_so_far(data)}
    for rule in ("left-cart", "all-new", "unclear"):
        offer, control = (rule, "offer"), (rule, "control")
        assert found[rule] == uplift_of(rule, (bought[offer], made[offer]), (bought[control], made[control]))
    rows = {row[0]: row for row in shown(data, "uplift").rows}
    assert rows["left-cart"][8] == "adds"
    assert rows["left-cart"][6] < 0.2 < rows["left-cart"][7]  # the true uplift
    assert rows["all-new"][5:] == [None, None, None, "too few to tell"]
    assert rows["unclear"][8] == "cannot be told from nothing"


def test_the_newest_offers_say_why(own: World) -> None:
    data, records, clock = own
    new = Offer("x", "r", "gift", "offer", "v:v9", "v9", None, START_MS, {"a": "view b", "c": "view d"})
    put_records(data.root, "offers", [new])
    clock.later()
    table = shown(data, "offers")
    assert table.rows[0] == [START_MS, "v:v9", "r", "gift", "offer", "a: view b; c: view d"]
    assert len(table.rows) + table.more == len(records.offers) + 1


def test_next_items_are_shown_with_their_quality_beside_what_is_popular(world: World) -> None:
    data, _, _ = world
    lines = {series.name: series for series in shown(data, "next-items").series}
    assert lines["resume, learned"].points == [(START_MS + (n + 1) * HOUR, 0.25 + n / 100) for n in range(3)]
    assert {name for name, series in lines.items() if series.look == "dashed"} == {
        "resume, popular items",
        "discover, popular items",
    }
    table = shown(data, "next-quality")
    assert [(row[0], row[1], row[3], row[8]) for row in table.rows] == [
        ("discover", "learned", 102, "down"),
        ("discover", "popular", 102, "down"),
        ("resume", "learned", 102, "none"),
        ("resume", "popular", 102, "none"),
    ]
    newest = shown(data, "next-lists")
    assert (len(newest.rows), newest.more) == (20, 10)
    assert newest.rows[0][4:6] == ["item-014", f"item-015, {EVIL}"]


def test_clicks_on_next_items_are_shares_of_the_lists_with_their_interval(world: World) -> None:
    data, _, _ = world
    lines = {series.name: series for series in shown(data, "next-click-through").series}
    assert lines["discover, learned"].points == [(START_MS + (n + 1) * HOUR, 0.2) for n in range(3)]
    assert [row[:5] + row[7:] for row in shown(data, "next-clicks").rows] == [
        ["discover", "learned", 300, 60, 0.2, 3.0],
        ["discover", "popular", 300, 0, 0.0, None],
        ["discover", "unlearned", 300, 30, 0.1, 3.0],
    ]
    low, high = shown(data, "next-clicks").rows[0][5:7]
    assert (round(low, 3), round(high, 3)) == (0.159, 0.249)


def test_channels_have_visits_and_revenue_by_both_touches(world: World) -> None:
    data, records, _ = world
    visits, bought = frame(records.sessions), frame(records.orders)
    visits = visits[visits.bot == ""].assign(campaign=lambda f: f.campaign.fillna("direct"))
    found = {row[0]: row for row in shown(data, "channels").rows}
    assert set(found) == set(visits.campaign) | set(bought.first_touch) | set(bought.last_touch)
    for name, row in found.items():
        own = visits[visits.campaign == name]
        assert row[1] == len(own)
        assert (row[2], row[3]) == (
            pytest.approx(own.is_engaged.mean()),
            pytest.approx(own.is_converted.mean()),
        )
        last = bought[bought.last_touch == name]
        assert (row[4], row[5]) == (len(last), pytest.approx(last.net_cents.sum() / 100))
        assert row[6] == pytest.approx(bought[bought.first_touch == name].net_cents.sum() / 100)


def test_the_last_hour_stands_beside_the_one_before(world: World) -> None:
    data, records, _ = world
    rows = frame(records.sessions)
    people = rows[rows.bot == ""]
    newest = people.start_ms.max()
    now = people[people.start_ms > newest - HOUR]
    before = people[(people.start_ms > newest - 2 * HOUR) & (people.start_ms <= newest - HOUR)]
    found = {row[0]: row[1:] for row in shown(data, "compared").rows}
    assert found["sessions"] == [f"{len(now):,}", f"{len(before):,}", f"{len(now) / len(before) - 1:+.1%}"]
    shares = [part.is_converted.mean() for part in (now, before)]
    assert found["converted"][:2] == [f"{share:.1%}" for share in shares]
    assert found["converted"][2] == f"{100 * (shares[0] - shares[1]):+.1f} points"
    assert found["revenue"][:2] == [f"{part.revenue_cents.sum() / 100:,.2f}" for part in (now, before)]
    assert [column.name for column in shown(data, "compared").columns][1:3] == ["last hour", "hour before"]
    segments = shown(data, "segments")
    assert segments.choose == "kind"
    kinds = {"channel": "channel", "device": "device"}
    table = {(row[0], row[1]): row for row in segments.rows}
    assert {name for by, name in table if by == "channel"} == {"direct", "paid_search", "email"}
    for (by, name), row in table.items():
        own, past = now[now[kinds[by]] == name], before[before[kinds[by]] == name]
        assert row[2:4] == [len(own), len(past)]
        assert row[5] == pytest.approx(own.is_converted.mean())
        assert row[6] == pytest.approx(past.is_converted.mean())
        assert row[8:] == [own.revenue_cents.sum() / 100, past.revenue_cents.sum() / 100]


def test_days_are_compared_where_there_are_days_and_nothing_with_nothing(
    tmp_path: Path, world: World
) -> None:
    base = world[1].sessions[0]
    at = [0, 10 * HOUR, 20 * HOUR, 30 * HOUR, 46 * HOUR]
    rows = [
        msgspec.structs.replace(base, session_id=f"s{n}", start_ms=START_MS + hour, bot="")
        for n, hour in enumerate(at)
    ]

    def compared(n: int) -> Table:
        root = tmp_path / str(n)
        put_records(root, "sessions", rows[:n], key=["session_id"])
        view = shown(AppData(clickstream, ClickstreamSettings(), root, Clock()), "compared")
        assert isinstance(view, Table)
        return view

    days, alone = compared(5), compared(1)
    assert [column.name for column in days.columns][1:3] == ["last day", "day before"]
    assert days.rows[0] == ["sessions", "2", "3", "-33.3%"]
    assert alone.rows[0] == ["sessions", "1", None, None]


def test_c9_the_page_opens_no_file_of_sessions_of_weeks_ago(tmp_path: Path, world: World) -> None:
    base = world[1].sessions[0]
    for week in range(4):
        rows = [
            msgspec.structs.replace(base, session_id=f"{week} {n}", start_ms=START_MS + week * 168 * HOUR + n)
            for n in range(10)
        ]
        put_records(tmp_path, "sessions", rows)
    data = AppData(clickstream, ClickstreamSettings(), tmp_path, Clock())
    table = data.table("sessions")
    assert table is not None
    opened: list[str] = []
    read = table._read
    table._read = lambda path, columns: opened.append(path) or read(path, columns)  # type: ignore[method-assign,func-returns-value]
    found = figures(shown(data, "sessions"))
    assert found["over"] + found["open"] + found["bots"] == 10
    assert len(set(opened)) == 1


def test_products_go_from_view_to_purchase_as_the_last_full_hour_tells(world: World) -> None:
    rows = frame(newest_of(items()))
    rows = rows[rows.as_of_ms == START_MS + 2 * HOUR]
    found = shown(world[0], "product-funnel")
    assert len(found.rows) + found.more == 31
    total = found.rows[0]
    assert total[:4] == ["all items", "", rows.views_24h.sum(), rows.adds_24h.sum()]
    assert total[5] == rows.sold_24h.sum()
    assert total[7] == rows.revenue_24h_cents.sum() / 100
    ordered = rows.sort_values(["views_24h", "item_id"], ascending=[False, True])
    for (_, of), row in zip(ordered.iterrows(), found.rows[1:], strict=False):
        assert row[:4] == [of["item_id"], "shoes", of.views_24h, of.adds_24h]
        assert row[4] == pytest.approx(of.adds_24h / of.views_24h)
        assert row[6] == pytest.approx(of.sold_24h / of.views_24h)


def test_days_of_orders_are_added_up_over_their_currencies(world: World) -> None:
    rows = frame(books())
    found = shown(world[0], "books")
    assert (len(found.rows), found.more) == (14, 3)
    days = rows.groupby("day").sum(numeric_only=True).sort_index(ascending=False)
    for (day, of), row in zip(days.iterrows(), found.rows, strict=False):
        assert row[:2] == [day, of.orders]
        assert row[3:5] == [of.amount_reported_cents / 100, of.net_reported_cents / 100]
        assert (row[6], row[8]) == (of.margin_reported_cents / 100, of.margin_orders / of.orders)
        assert row[7] == pytest.approx(of.margin_reported_cents / of.net_reported_cents)
        assert row[9] == of.paid_back_reported_cents / 100
    net = days.net_reported_cents
    assert [row[5] for row in found.rows] == [
        f"{a / b - 1:+.1%}" if b else None for a, b in list(pairwise(net))[:14]
    ]


def test_a_day_without_what_its_orders_cost_has_no_share_of_margin(tmp_path: Path) -> None:
    few = [msgspec.structs.replace(b, margin_orders=0) for b in books()[:2]]
    part = [msgspec.structs.replace(b, net_reported_cents=0) for b in books()[2:4]]
    put_records(tmp_path, "revenue", [*few, *part], key=["day", "currency"])
    data = AppData(clickstream, ClickstreamSettings(), tmp_path, Clock())
    second, first = shown(data, "books").rows
    assert (first[5], first[6], first[7], first[8]) == (None, None, None, 0.0)
    assert (second[5], second[6], second[7]) == ("-100.0%", 800.0, None)


def test_revenue_over_time_adds_up_to_all_orders(world: World) -> None:
    data, records, _ = world
    rows = frame(records.orders)
    gross, net = shown(data, "revenue").series
    width = gross.points[1][0] - gross.points[0][0]
    for series, column in ((gross, "amount_cents"), (net, "net_cents")):
        assert sum(v or 0 for _, v in series.points) * width / HOUR == pytest.approx(rows[column].sum() / 100)
    assert figures(shown(data, "headline"))["revenue"] == pytest.approx(rows.net_cents.sum() / 100)


def test_a_person_is_found_by_browser_and_account(world: World) -> None:
    data, records, _ = world
    by_account = {p.title: p.view for p in dashboard.person(data, "u:u0")}
    assert list(by_account) == ["Profile", "Sessions", "Offers", "Next items"]
    sessions = by_account["Sessions"]
    assert isinstance(sessions, Table)
    own = [s for s in records.sessions if s.user_id == "u0"]
    assert [row[0] for row in sessions.rows] == sorted((s.start_ms for s in own), reverse=True)
    by_browser = {p.title: p.view for p in dashboard.person(data, "v3")}
    assert list(by_browser) == ["Sessions", "Offers", "Carts left"]
    offers = by_browser["Offers"]
    assert isinstance(offers, Table)
    expected = sum(o.visitor_id == "v3" for o in records.offers)
    assert len(offers.rows) + offers.more == expected
    assert dashboard.person(data, "nobody") == []


# -- persons ---------------------------------------------------------------------------------------------


def as_frame(view: Any) -> pd.DataFrame:
    assert isinstance(view, Table)
    return pd.DataFrame(view.rows, columns=[column.name for column in view.columns])


def test_persons_by_their_best_way_and_cohorts_by_week(world: World) -> None:
    data, _, _ = world
    view = shown(data, "person-funnel")
    assert isinstance(view, Bars)
    notes = {bar.label: bar.note for bar in view.bars}
    assert notes["item, control"] == "10 of 10"
    assert notes["purchase, control"] == "3 of 10"  # 0, 20, 40
    assert notes["purchase, offer"] == "9 of 38"
    table = as_frame(shown(data, "cohorts"))
    assert list(table["persons"]) == [24, 24]
    assert list(table["came to the end"]) == [12, 0]
    assert list(table["again"]) == [4, 0]
    assert table["time to it"][0] == 5 * MINUTE
    assert table["week"][0] > table["week"][1]


# -- one segment for several panels --------------------------------------------------------------------------


def chosen(panel: str, data: AppData, value: str) -> Any:
    (found,) = [p for p in dashboard.page.panels if p.id == panel]
    assert found.chosen is not None
    return found.chosen(data, value)


def in_segment(records: ShopRecords, value: str) -> tuple[list[Any], list[Any]]:
    """Sessions of people of the last hour and of the one before, by a look at all."""
    newest = max(row.start_ms for row in records.sessions)
    kind, _, name = value.partition(": ")
    own = [r for r in records.sessions if not r.bot and (getattr(r, kind) or "none") == name]
    now = [r for r in own if r.start_ms > newest - HOUR]
    return now, [r for r in own if newest - 2 * HOUR < r.start_ms <= newest - HOUR]


def test_every_segment_of_the_last_hour_can_be_chosen(world: World) -> None:
    data, records, _ = world
    assert dashboard.page.choice is not None
    values = dashboard.page.choice.values(data)
    assert {v.partition(": ")[0] for v in values} == {"channel", "device"}
    for value in values:
        assert in_segment(records, value)[0], value
        for panel in dashboard.page.panels:
            if panel.chosen is not None:
                assert panel.chosen(data, value) is not None, (panel.id, value)
    assert chosen("sessions", data, "device: none of these").items[0].value == 0


@pytest.mark.parametrize("value", ["device: mobile", "device: desktop"])
def test_panels_of_a_segment_are_of_its_sessions_now_and_before(world: World, value: str) -> None:
    data, records, _ = world
    now, before = in_segment(records, value)
    told = {n.label: n for n in chosen("sessions", data, value).items}
    assert told["sessions"].value == len(now)
    assert told["sessions"].note == f"hour before: {len(before):,}"
    assert told["converted"].value == sum(r.is_converted for r in now) / len(now)
    table = as_frame(chosen("compared", data, value)).set_index("figure")
    assert table.loc["sessions", "last hour"] == f"{len(now):,}"
    assert table.loc["orders", "hour before"] == f"{sum(r.orders for r in before):,}"
    ids = [{r.session_id for r in rows} for rows in (now, before)]
    ways, earlier = ([f for f in records.funnels if f.session_id in own] for own in ids)
    if ways:
        bars = {b.label: b for b in chosen("funnel", data, value).bars}
        for arm in {f.arm for f in ways}:
            entered = [f for f in ways if f.arm == arm]
            carts = sum(f.reached >= 2 for f in entered)
            if carts:
                assert bars[f"cart, {arm}"].note.startswith(f"{carts} of {len(entered)}; hour before ")
    assert earlier
    visits = as_frame(chosen("channels", data, value))
    assert visits["visits"].sum() == len(now)
    assert visits["before"].sum() == len(before)
    assert round(visits["revenue before"].sum() * 100) == sum(r.revenue_cents for r in before)
    assert {b.label: b.note for b in chosen("abandonment", data, value).bars}
    lines = {s.name: s for s in chosen("revenue", data, value).series}
    steps = HOUR // (5 * MINUTE)
    assert round(sum(v for _, v in lines["now"].points) / steps * 100) == sum(r.revenue_cents for r in now)


@pytest.mark.parametrize("device", ["mobile", "desktop"])
def test_who_is_there_is_told_of_a_kind_of_device(world: World, device: str) -> None:
    data, records, _ = world
    value, own = f"device: {device}", [b for b in records.boards if b.item == device]
    newest = max(b.window_end_ms for b in records.boards if b.board == "visitors/now")
    lines = chosen("visitors", data, value).series
    for series, board in zip(lines, ("visitors/now", "visitors/1m"), strict=True):
        told = {end: n for end, n in series.points if n}
        assert told == {b.window_end_ms: b.value for b in own if b.board == board and b.window_end_ms in told}
        assert sum(told.values()) > 0
    there = [b.value for b in own if (b.board, b.window_end_ms) == ("visitors/now", newest)]
    (bar,) = chosen("devices", data, value).bars
    assert [bar.value] == there
    first = {n.label: n.value for n in chosen("headline", data, value).items}
    now, _ = in_segment(records, value)
    assert first["visitors now"] == there[0] < figures(shown(data, "headline"))["visitors now"]
    assert first["sessions"] == len(now)
    assert first["revenue"] == sum(r.revenue_cents for r in now) / 100
    since = max(row.start_ms for row in records.sessions) - HOUR
    assert first["carts left"] == sum(c.device == device and c.since_ms > since for c in records.carts)
    made = [o for o in records.offers if o.device == device and o.at_ms > since]
    assert first["offers"] == sum(o.arm == "offer" for o in made)


def test_who_is_there_is_not_told_of_a_channel_and_the_page_says_so(world: World) -> None:
    data, _, _ = world
    for panel in ("visitors", "devices"):
        assert "not by channel" in chosen(panel, data, "channel: paid_search").text
    first = {n.label for n in chosen("headline", data, "channel: paid_search").items}
    assert "sessions" in first
    assert "visitors now" not in first


def test_a_key_led_by_what_it_is_of_is_found_as_that_alone(own: World) -> None:
    """A browser is called as an account is: the letters before it tell them apart."""
    data, records, clock = own
    row = msgspec.structs.replace(records.sessions[0], session_id="s", visitor_id="u0", user_id=None)
    put_records(data.root, "sessions", [row], key=["session_id"])
    clock.later()

    def browsers(key: str) -> set[str]:
        (table,) = [p.view for p in dashboard.person(data, key) if p.title == "Sessions"]
        assert isinstance(table, Table)
        return {str(shown[2]) for shown in table.rows}

    assert browsers("v:u0") == {"u0"}
    assert "u0" not in browsers("u:u0")
    assert "u0" in browsers("u0")


@pytest.mark.parametrize("value", ["device: mobile", "channel: paid_search"])
def test_carts_and_offers_of_a_segment_are_those_made_in_its_visits_now_and_before(
    world: World, value: str
) -> None:
    data, records, _ = world
    newest = max(row.start_ms for row in records.sessions)
    kind, _, name = value.partition(": ")

    def halves(rows: list[Any], column: str) -> tuple[list[Any], list[Any]]:
        own = [r for r in rows if getattr(r, kind) == name]
        now = [r for r in own if getattr(r, column) > newest - HOUR]
        return now, [r for r in own if newest - 2 * HOUR < getattr(r, column) <= newest - HOUR]

    now, before = halves(records.carts, "since_ms")
    assert now
    assert before
    bars = {b.label: b for b in chosen("abandonment", data, value).bars}
    for stage in {r.stage for r in (*now, *before)}:
        left = [r for r in now if r.stage == stage]
        assert bars[stage].value == len(left)
        worth = sum(r.value_cents for r in left) / 100
        earlier = sum(r.stage == stage for r in before)
        assert bars[stage].note == f"{worth:,.2f} in them; hour before {earlier:,}"
    items, was = (Counter(item for r in rows for item in r.items) for rows in (now, before))
    assert [tuple(row) for row in chosen("left-items", data, value).rows] == [
        (item, n, n / len(now), was[item])
        for item, n in sorted(items.items(), key=lambda pair: (-pair[1], pair[0]))
    ]

    made = Counter((o.rule, o.arm) for o in records.offers if getattr(o, kind) == name)
    ids = {o.offer_id for o in records.offers if getattr(o, kind) == name}
    bought = Counter((o.rule, o.arm) for o in records.outcomes if o.offer_id in ids and o.converted)
    now, before = halves(records.offers, "at_ms")
    table = chosen("uplift", data, value)
    assert [c.name for c in table.columns][-2:] == ["offered, last hour", "hour before"]
    assert {row[0]: row[1:6] for row in table.rows} == {
        rule: [
            made[rule, "offer"], bought[rule, "offer"] / made[rule, "offer"], made[rule, "control"],
            bought[rule, "control"] / made[rule, "control"] if made[rule, "control"] else None,
            uplift_of(
                rule, (bought[rule, "offer"], made[rule, "offer"]),
                (bought[rule, "control"], made[rule, "control"]),
            ).uplift,
        ]
        for rule, _ in made
    }  # fmt: skip
    assert {row[0]: row[-2:] for row in table.rows} == {
        rule: [sum((o.rule, o.arm) == (rule, "offer") for o in rows) for rows in (now, before)]
        for rule, _ in made
    }
    shown_people = {(row[0], row[1]) for row in chosen("offers", data, value).rows}
    assert shown_people <= {(o.at_ms, o.person) for o in records.offers if o.offer_id in ids}
    assert len(shown_people) > 5


def test_carts_and_offers_of_earlier_versions_are_of_no_segment(own: World) -> None:
    """Their tables have no columns of it; what is written afterwards has."""
    data, records, _ = own
    for table in ("abandonments", "offers", "outcomes"):
        rows = getattr(records, "carts" if table == "abandonments" else table)
        hints = typing.get_type_hints(type(rows[0]))
        names = [name for name in hints if name not in ("device", "channel")]
        earlier = msgspec.defstruct("Earlier", [(name, hints[name]) for name in names])
        shutil.rmtree(data.root / "tables" / table)
        put_records(data.root, table, [earlier(*(getattr(row, name) for name in names)) for row in rows])
    made = sum(o.arm == "offer" for o in records.offers if o.rule == "unclear")
    by_rule = {row[0]: row[1] for row in shown(data, "uplift").rows}
    assert by_rule["unclear"] == made
    assert chosen("abandonment", data, "device: mobile") is None
    assert chosen("offers", data, "device: mobile").rows == []


@pytest.mark.parametrize("value", ["device: mobile", "channel: paid_search"])
def test_boards_of_a_segment_are_shown_beside_the_hour_before_where_they_are_made(
    world: World, value: str
) -> None:
    data, records, _ = world
    ends = sorted({b.window_end_ms for b in records.boards if b.board == f"views/1h@{value}"})

    def on(board: str, end: int) -> dict[str, int]:
        return {
            b.item: b.value for b in records.boards
            if b.board == f"{board}@{value}" and b.window_end_ms == end
        }  # fmt: skip

    found = {row[0]: row[1:] for row in chosen("categories", data, value).rows}
    newest, before = (on("categories/1h", end) for end in (ends[-1], ends[-1] - HOUR))
    earned = on("revenue/1h", ends[-1])
    assert found == {
        name or "none": [views, earned[name] / 100, before[name]] for name, views in newest.items()
    }
    terms = {row[0]: row[1:] for row in chosen("searches", data, value).rows}
    was = on("searches/1h", ends[-1] - HOUR)
    assert terms == {term: [n, was.get(term, 0)] for term, n in on("searches/1h", ends[-1]).items()}
    first = next(iter(on("views/1h", ends[-1]).items()))
    assert chosen("products", data, value).rows[0][1] == f"{first[0]}  ×{first[1]:,}"
    assert "boards.by_device" in chosen("products", data, "device: desktop").text
    assert "boards.by_channel" in chosen("products", data, "channel: email").text
