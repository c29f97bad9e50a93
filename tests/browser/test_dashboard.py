"""The dashboard in a real browser: live, safe, readable in any width and light."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from millrace.dashboard.access import Access
from millrace.dashboard.data import AppData
from millrace.dashboard.live import LivePage
from millrace.dashboard.page import DashboardPage, Panel
from millrace.dashboard.serve import serving, wall_clock_ms
from millrace.dashboard.views import Column, Point, Points, Table
from millrace.operations.roster import Role, RosterFile
from millrace.runtime.settings import load_settings
from millrace.serving.gate import RateLimit
from millrace_apps.fraud.app import app as fraud
from millrace_apps.fraud.cases.store import case_view
from millrace_apps.fraud.dashboard import page as dashboard
from tests.browser.checks import check_contrast, check_width
from tests.browser.conftest import PATIENCE_MS, Look
from tests.unit.apps.fraud.tables import EVIL, decisions, fraud_folder, put_decisions
from tests.unit.millrace.dashboard.cases import data_of, put

expect.set_options(timeout=PATIENCE_MS)


def trips(data: AppData) -> Table:
    """A table of as many rows as there are sales, and 59 more."""
    sales = data.table("sales")
    rows = [[n, f"town {n % 3}"] for n in range(59 + (sales.rows if sales else 0))]
    return Table(columns=(Column("n", "count"), Column("town")), rows=rows, page=25, choose="town")


CARS = DashboardPage(
    panels=(
        Panel("trips", "Trips", trips),
        Panel("cars", "Cars", lambda data: Points(
            points=[Point(13.3 + n / 100, 52.4 + n / 200, f"car {n}") for n in range(20)],
            x_label="longitude", y_label="latitude", is_map=True,
        )),
    ),
)  # fmt: skip


class Served:
    """A server with a full fraud folder and a small second app."""

    def __init__(self, data: AppData, url: str, access: Access, rows: list[dict[str, Any]]) -> None:
        self.data, self.root, self.url, self.access, self.rows = data, data.root, url, access, rows

    @property
    def with_token(self) -> str:
        """The address that lets act."""
        return f"{self.url}/?token={self.access.token}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The fraud folder, made once; each test has a copy."""
    root = tmp_path_factory.mktemp("made")
    return root, fraud_folder(root, number=1_600)


@pytest.fixture
def served(made: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> Iterator[Served]:
    root, rows = tmp_path / "fraud", made[1]
    shutil.copytree(made[0], root)
    put(tmp_path / "shop", "sales", [{"n": 1}])
    settings = load_settings(fraud.settings, app="fraud", env={})
    data = AppData(fraud, settings, root, wall_clock_ms, dashboard.page.folders)
    pages = {
        "fraud": LivePage(data, dashboard.page, interval_ms=300),
        "shop": LivePage(data_of(tmp_path / "shop", clock=wall_clock_ms), CARS, interval_ms=300),
    }
    with serving(pages) as (url, access):
        yield Served(data, url, access, rows)


def value(page: Page, panel: str, label: str) -> Any:
    """The figure of a label in a panel."""
    return page.locator(f"#panel-{panel} dl > div", has_text=label).locator("dd")


def test_the_apps_are_listed_and_lead_to_their_pages(served: Served, look: Look) -> None:
    page = look(served.url)
    expect(page.locator("#overview h2 a")).to_have_count(2)
    page.locator("#overview h2 a", has_text="fraud").click()
    expect(page.locator("#status")).to_have_attribute("data-state", "live")
    expect(value(page, "headline", "decisions")).to_contain_text(["0", "1,600"])
    expect(page).to_have_title("fraud · Millrace")
    for panel in dashboard.page.panels:
        view = page.locator(f"#panel-{panel.id} .view > *").first
        expect(view).not_to_have_text("…")
        expect(view).not_to_contain_text("this panel failed")


@pytest.mark.parametrize("width", [360, 1280])
def test_bars_are_as_long_as_their_values(served: Served, look: Look, width: int) -> None:
    page = look(f"{served.url}/#/fraud", width=width)
    expect(page.locator("#panel-reasons li")).to_have_count(6)
    lengths = page.eval_on_selector_all(
        "#panel-reasons li",
        "rows => rows.map(r => [parseFloat(r.querySelector('.value').textContent),"
        " r.querySelector('rect:not(.track)').getBoundingClientRect().width])",
    )
    longest = max(lengths)
    for number, length in lengths:
        assert length / longest[1] == pytest.approx(number / longest[0], abs=0.02)


def test_new_rows_are_seen_without_loading_anew(served: Served, look: Look) -> None:
    page = look(f"{served.url}/#/fraud")
    expect(page.locator("#panel-tables tr", has_text="transactions")).to_contain_text("1,600")
    later = served.rows[-1]["event_time_ms"] + 60_000
    put_decisions(served.root, decisions(4, 120, start=later))
    expect(page.locator("#panel-tables tr", has_text="transactions")).to_contain_text("1,720")


def test_a_card_is_shown_with_its_history_and_left_by_escape(served: Served, look: Look) -> None:
    page = look(f"{served.url}/#/fraud")
    page.locator("#panel-queue a", has_text="card-0042").first.click()
    dialog = page.locator("#detail")
    expect(dialog).to_be_visible()
    expect(dialog.locator("h3")).to_contain_text(
        ["Cases", "Used together", "History", "Purchases", "Score", "Features"]
    )
    expect(dialog.locator("svg[role=img]").first).to_have_attribute("aria-label", re.compile("amount"))
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    # The address follows the dialog's end, in an event of its own.
    expect(page).to_have_url(re.compile("#/fraud$"))


def test_a_card_can_be_looked_up(served: Served, look: Look) -> None:
    page = look(f"{served.url}/#/fraud")
    page.locator("#search").fill("card-0007")
    page.keyboard.press("Enter")
    expect(page.locator("#detail-title")).to_have_text("Card card-0007")
    expect(page.locator("#detail tbody tr").first).to_be_visible()


def test_what_looks_like_markup_is_shown_as_text(served: Served, look: Look) -> None:
    page = look(f"{served.url}/#/fraud")
    evil = page.locator("#panel-queue a", has_text=EVIL).first
    expect(evil).to_have_text(EVIL)
    evil.click()
    expect(page.locator("#detail-title")).to_have_text(f"Card {EVIL}")
    expect(page.locator("#detail tbody tr").first).to_be_visible()
    page.keyboard.press("Escape")
    page.locator("[data-table=alerts]").click()
    expect(page.locator("#rows-body")).to_contain_text(EVIL)
    assert page.evaluate("window.harmed") is None
    assert page.locator("main img").count() == 0


def test_without_the_token_nothing_can_be_decided(served: Served, look: Look) -> None:
    page = look(f"{served.url}/#/fraud")
    button = page.locator("#panel-queue button").first
    expect(button).to_be_disabled()
    expect(button).to_have_attribute("title", re.compile("token"))


def test_a_case_is_decided_and_leaves_the_queue(served: Served, look: Look) -> None:
    page = look(served.with_token)
    assert served.access.token not in page.url
    page.goto(f"{served.url}/#/fraud")
    first = page.locator("#panel-queue tbody tr").first
    card = first.locator("a").inner_text()
    rows = page.locator("#panel-queue tbody tr").count()
    first.locator("[data-act=dispose]").click()
    expect(page.locator("#act")).to_be_visible()
    page.locator("#act select[name=verdict]").select_option("fraud")
    page.locator("#act input[name=by]").fill("eva")
    page.locator("#act input[name=note]").fill("the holder <b>said</b> so")
    page.locator("#act-send").click()
    expect(page.locator("#act-said")).to_contain_text("is fraud, by eva")
    expect(page.locator("#panel-queue tbody tr")).to_have_count(rows - 1)
    expect(page.locator("#act")).to_be_hidden()
    page.goto(f"{served.url}/#/fraud/key/{card}")
    expect(page.locator("#detail tbody tr").first).to_contain_text("the holder <b>said</b> so")


def test_a_case_is_claimed_and_given_back(served: Served, look: Look) -> None:
    page = look(served.with_token)
    page.goto(f"{served.url}/#/fraud")
    page.locator("#panel-queue tbody tr").first.locator("[data-act=claim]").click()
    page.locator("#act input[name=by]").fill("ann")
    page.locator("#act-send").click()
    expect(page.locator("#act-said")).to_contain_text("claim, by ann")
    expect(page.locator("#act")).to_be_hidden()
    release = page.locator("#panel-queue tbody tr").first.locator("[data-act=release]")
    expect(release).to_be_enabled()
    expect(page.locator("#panel-queue tbody tr").first).to_contain_text("ann")


def test_a_card_is_linked_with_what_it_was_used_with(served: Served, look: Look) -> None:
    page = look(f"{served.url}/#/fraud/key/card-0007", width=1400)
    graph = page.locator("#detail .graph")
    expect(graph.locator("text.head")).to_have_text(["device", "address", "card", "terminal", "merchant"])
    assert graph.locator("g.node").count() <= 60
    expect(graph.locator("g.node.chosen")).to_contain_text("card-0007")
    expect(graph.locator("path.edge.bad").first).to_be_visible()
    expect(graph.locator("> .wide > svg")).to_have_attribute("aria-label", re.compile("edges"))
    graph.locator("summary").click()
    expect(graph.locator("tbody tr").first).to_be_visible()
    # A name that looks like markup is text, and leads on.
    evil = graph.locator("a", has_text=EVIL[:6]).first
    expect(evil).to_have_attribute("aria-label", re.compile("onerror"))
    evil.click()
    expect(page.locator("#detail-title")).to_have_text(f"Device {EVIL}")
    expect(page.locator("#detail .graph g.node.chosen title")).to_contain_text(EVIL)
    assert page.evaluate("window.harmed") is None


def test_other_thresholds_are_looked_at_ahead_and_without_a_broker_not_sent(
    served: Served, look: Look
) -> None:
    page = look(served.with_token)
    page.goto(f"{served.url}/#/fraud")
    page.locator("#panel-thresholds [data-act=propose]").click()
    page.locator("#act input[name=block_score]").fill("0.6")
    page.locator("#act select[name=period]").select_option("all")
    page.locator("#act-look").click()
    expect(page.locator("#act-view tbody tr").first).to_contain_text("1,600")
    expect(page.locator("#act-view tbody tr", has_text="block_score")).to_contain_text("0.6")
    page.locator("#act input[name=by]").fill("ann")
    page.locator("#act-send").click()
    expect(page.locator("#act-said")).to_contain_text("no broker is named")


def test_a_decision_that_is_refused_says_why(served: Served, look: Look) -> None:
    page = look(served.with_token)
    page.goto(f"{served.url}/#/fraud")
    page.locator("#panel-queue button").first.click()
    page.locator("#act select[name=verdict]").select_option("genuine")
    page.locator("#act input[name=by]").fill("e" * 80)
    page.locator("#act-send").click()
    expect(page.locator("#act-said")).to_contain_text("not complete")
    expect(page.locator("#act-send")).to_be_enabled()


def test_who_leaves_can_decide_no_more(served: Served, look: Look) -> None:
    page = look(served.with_token)
    assert "#act=" not in page.url
    page.goto(f"{served.url}/#/fraud")
    button = page.locator("#panel-queue button").first
    expect(button).to_be_enabled()
    page.reload()
    expect(button).to_be_enabled()
    page.locator("#leave").click()
    expect(button).to_be_disabled()
    expect(page.locator("#leave")).to_be_hidden()
    assert page.evaluate("localStorage.length") == 0


@contextlib.contextmanager
def foreign_page(cookies: list[str] | None = None) -> Iterator[str]:
    """A page of somebody else on another port of this machine: cookies do not keep ports apart."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if cookies is not None:
                cookies.append(self.headers.get("cookie", ""))
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>foreign</title>")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


_ATTACK = """async ([url, body]) => {
    const said = [];
    for (const [mode, type] of [
        ['cors', 'application/json'], ['no-cors', 'text/plain'], ['no-cors', 'application/json'],
    ]) {
        try {
            const headers = {'content-type': type};
            const answer = await fetch(url, {method: 'POST', mode, credentials: 'include', body, headers});
            said.push(answer.type + ' ' + answer.status);
        } catch (error) { said.push('refused'); }
    }
    for (const other of [url.replace('/action', ''), new URL('/api/session', url).href]) {
        try { said.push((await fetch(other, {credentials: 'include'})).status); }
        catch (error) { said.push('refused'); }
    }
    return said;
}"""


def test_a_foreign_page_cannot_decide_nor_read_with_the_analysts_cookie(served: Served, look: Look) -> None:
    view = case_view(served.data, dashboard.case_settings())
    assert view is not None
    body = json.dumps({"case_id": view.queue()[0].case.case_id, "verdict": "fraud", "by": "x", "note": ""})
    with foreign_page() as foreign:
        page = look(served.with_token, foreign=True)  # the analyst is logged in
        page.goto(foreign)
        said = page.evaluate(_ATTACK, [f"{served.url}/api/apps/fraud/action", body])
    assert said == ["refused"] * 5  # and the page cannot even see how it was refused
    assert not (served.root / "cases" / "tables").exists()


def test_a_server_that_was_given_the_analysts_cookie_can_look_and_not_act(served: Served, look: Look) -> None:
    cookies: list[str] = []
    with foreign_page(cookies) as foreign:
        page = look(served.with_token, foreign=True)
        page.goto(foreign)
    stolen = next(cookie for cookie in cookies if "millrace_dashboard=" in cookie)
    with httpx.Client(base_url=served.url, headers={"cookie": stolen}) as thief:
        assert thief.get("/api/session").json() == {"is_known": True, "may_act": False}
        sent = {"origin": served.url, "x-millrace-csrf": ""}
        assert thief.post("/api/apps/fraud/action", json={}, headers=sent).status_code == 403


def test_the_focus_stays_where_it_is_when_a_panel_changes(served: Served, look: Look) -> None:
    page = look(f"{served.url}/#/fraud")
    link = page.locator("#panel-queue a", has_text="card-0007").first
    link.focus()
    version = page.locator("#panel-queue").get_attribute("data-version")
    later = served.rows[-1]["event_time_ms"] + 60_000
    put_decisions(served.root, decisions(6, 150, start=later))
    expect(page.locator("#panel-queue")).not_to_have_attribute("data-version", version or "")
    assert page.evaluate("document.activeElement.dataset.focus") == "key-card-0007"


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_nothing_is_wider_than_the_window(served: Served, look: Look, width: int) -> None:
    page = look(f"{served.url}/#/fraud", width=width)
    expect(page.locator("#panel-queue tbody tr").first).to_be_visible()
    page.locator("[data-table=transactions]").click()
    expect(page.locator("#rows-body tbody tr").first).to_be_visible()
    check_width(page, width)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_from_its_ground(served: Served, look: Look, dark: bool) -> None:
    page = look(f"{served.url}/#/fraud", dark=dark)
    expect(page.locator("#panel-queue tbody tr").first).to_be_visible()
    page.evaluate("document.querySelectorAll('.foldable details').forEach((one) => { one.open = true; })")
    expect(page.locator("#panel-drift svg").first).to_be_visible()
    check_contrast(page)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 150) is dark


def test_points_are_drawn_to_one_scale(served: Served, look: Look) -> None:
    page = look(f"{served.url}/#/shop")
    dots = page.locator("#panel-cars circle.point")
    expect(dots).to_have_count(20)
    boxes = [dots.nth(n).bounding_box() for n in (0, 19)]
    assert boxes[0]
    assert boxes[1]
    east, north = boxes[1]["x"] - boxes[0]["x"], boxes[0]["y"] - boxes[1]["y"]
    # 0.19° of longitude at 52.4° north is 0.116° of latitude; 0.095° lie between the two in latitude.
    assert east / north == pytest.approx(0.19 * 0.61 / 0.095, rel=0.03)


def test_a_table_is_turned_and_chosen_from_and_stays_so_when_it_changes(
    served: Served, look: Look, tmp_path: Path
) -> None:
    page = look(f"{served.url}/#/shop")
    panel = page.locator("#panel-trips")
    cells = panel.locator("tbody tr td:first-child")
    expect(cells).to_have_count(25)
    expect(panel.locator(".turn")).to_contain_text("1–25 of 60")
    panel.locator("[data-focus=next]").click()
    put(tmp_path / "shop", "sales", [{"n": 2}])
    expect(panel.locator(".turn")).to_contain_text("26–50 of 61")
    assert page.evaluate("document.activeElement.dataset.focus") == "next"
    panel.locator("[data-focus=next]").click()
    expect(cells).to_have_text([str(n) for n in range(50, 61)])
    assert page.evaluate("document.activeElement.dataset.focus") == "back"
    panel.locator("select").select_option("town 1")
    expect(cells).to_have_text([str(n) for n in range(1, 61, 3)])
    expect(panel.locator("[data-focus=next]")).to_have_count(0)


def test_a_server_that_is_gone_is_told(tmp_path: Path, look: Look) -> None:
    put(tmp_path, "sales", [{"n": 1}])
    with serving({"shop": LivePage(data_of(tmp_path), CARS, interval_ms=300)}) as (url, _):
        page = look(f"{url}/#/shop")
        expect(page.locator("#status")).to_have_attribute("data-state", "live")
    expect(page.locator("#status")).to_have_attribute("data-state", "lost")
    expect(page.locator("#panel-cars circle.point")).to_have_count(20)  # what was there stays


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The token of ann, who may decide; from then on there are operators."""
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path / "home"))
    file = RosterFile(tmp_path / "home" / "operators.json")
    return file.change(lambda roster: roster.add("ann", Role.decide, 0))


def test_an_operator_logs_in_and_decides_by_their_own_name(
    operator: str, served: Served, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.access, "_tries", RateLimit(0))
    page = look(served.with_token)
    page.goto(f"{served.url}/#/fraud")
    expect(page.locator("#panel-queue button").first).to_be_disabled()
    page.locator("#log-in").click()
    page.locator("#enter input").fill("not the token")
    page.locator("#enter button.primary").click()
    expect(page.locator("#enter-said")).to_contain_text("not the token of an operator")
    page.locator("#enter input").fill(operator)
    page.locator("#enter button.primary").click()
    expect(page.locator("#operator")).to_have_text("ann (decide)")
    expect(page.locator("#log-in")).to_be_hidden()
    page.locator("#panel-queue button").first.click()
    assert page.locator("#act input[name=by]").count() == 0
    page.locator("#act select[name=verdict]").select_option("fraud")
    page.locator("#act-send").click()
    expect(page.locator("#act-said")).to_contain_text("is fraud, by ann")
    page.locator("#leave").click()
    expect(page.locator("#log-in")).to_be_visible()
    expect(page.locator("#panel-queue button").first).to_be_disabled()
