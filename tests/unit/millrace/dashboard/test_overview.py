"""The first page: states, figures, flows with rates, a day; each held to the figures of the job."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient

from millrace import KeyedProcess, arrival
from millrace.dashboard.access import Access
from millrace.dashboard.common_panels import dead_letters
from millrace.dashboard.data import AppData
from millrace.dashboard.flow import flow_of, short
from millrace.dashboard.live import LivePage
from millrace.dashboard.overview import Overview, _dead_rows
from millrace.dashboard.page import ActionRefused, DashboardPage
from millrace.dashboard.server import Site, make_app
from millrace.dashboard.tables import DeltaReader
from millrace.dashboard.views import Bars, Graph, Note
from millrace.errors import UserError
from millrace.observing.figures import Figures, SourceFigures, write_figures
from millrace.observing.history import HistoryWriter
from millrace.observing.jobs import recorded_job
from millrace.observing.reading import Jobs
from millrace.runtime.apps import App, Topic, Topics
from millrace.runtime.settings import AppSettings
from millrace.topology import Input, Topology, read
from tests.cases import case_count
from tests.unit.millrace.dashboard.cases import NOW, Clock, put, put_checkpoint
from tests.unit.millrace.observing.cases import figures, record


class Sale(msgspec.Struct):
    card: str
    shop: str
    at: int


class Cards(KeyedProcess[Sale, Sale]):
    order = arrival(commutes=True)

    def process(self, event: Sale, ctx: Any) -> None:
        ctx.emit(event)


class Shops(Cards):
    pass


def topology(settings: Any = None) -> Topology:
    """Sales by card, then by shop; what goes on from one to the other is a table, too."""
    return (
        read(Input("sales", key="card", event_time="at"), control="control")
        .process(Cards())
        .key_by("shop")
        .process(Shops())
        .write(
            tables={
                "main": "shops",
                "Cards.main": "sales",
                "dead_letters": "dead_letters",
                "Cards.dead_letters": "dead_letters_cards",
            },
            topics={"main": "shops-out"},
        )
    )


APP = App("shop", "Sales.", AppSettings, topology, lambda s: Topics((Topic("sales"), Topic("control"))))


def told(root: Path, **more: Any) -> Figures:
    usual: dict[str, Any] = {
        "job": record(root, app="shop"),
        "sources": {"sales:0": SourceFigures(600, 640), "sales:1": SourceFigures(400, 400),
                    "control:0": SourceFigures(3, 3)},
        "outputs": {"main": 80, "Cards.main": 990, "dead_letters": 0, "Cards.dead_letters": 6},
        "read_rates": {"sales": 50.0, "control": 0.1},
        "written_rates": {"main": 4.0, "Cards.main": 49.5, "Cards.dead_letters": 0.3},
    }  # fmt: skip
    return figures(root, **usual | more)


def page_of(root: Path, clock: Clock | None = None) -> LivePage:
    return LivePage(AppData(APP, AppSettings(), root, clock or Clock()), DashboardPage())


def overview_of(root: Path, folder: Path, clock: Clock | None = None) -> Overview:
    return Overview({"shop": page_of(root, clock)}, {"gone": "not installed"}, jobs=Jobs(folder))


def bodies(view: Overview, seen: dict[str, int] | None = None) -> dict[str, Any]:
    view.refresh()
    return {body["id"]: body for body in map(json.loads, view.changed({} if seen is None else seen))}


def graph(edges: Graph) -> dict[tuple[str, str], str]:
    return {(e.source, e.target): e.label for e in edges.edges}


# -- the flow ----------------------------------------------------------------------------------


def test_arrows_of_a_running_job_have_its_rates_and_of_one_that_is_over_its_totals() -> None:
    live = flow_of(topology(), told(Path("/x")), {"sales": 990, "shops": 80}, live=True)
    assert graph(live) == {
        ("in:sales", "link:Cards"): "50/s",
        ("in:control", "link:Cards"): "0.1/s",
        ("link:Cards", "link:Shops"): "50/s",
        ("link:Cards", "table:sales"): "50/s",
        ("link:Shops", "table:shops"): "4/s",
        ("link:Shops", "topic:shops-out"): "4/s",
    }
    over = flow_of(topology(), told(Path("/x")), {"dead_letters_cards": 6}, live=False)
    assert graph(over)["in:sales", "link:Cards"] == "1,000"
    assert graph(over)["link:Cards", "table:dead_letters_cards"] == "6", "what failed is a place to look for"
    tones = {n.id: n.tone for n in (*live.nodes, *over.nodes)}
    assert (tones["table:dead_letters_cards"], tones["table:sales"]) == ("warn", "plain")
    assert next(n for n in live.nodes if n.id == "in:sales").tone == "warn", "40 records wait"


def test_a_table_says_how_many_batches_wait_for_it() -> None:
    waits = {"sales": 1, "shops": 12, "dead_letters_cards": 2}
    flow = flow_of(topology(), told(Path("/x")), {"sales": 990, "shops": 80}, live=True, waits=waits)
    notes = {n.id: n.note for n in flow.nodes}
    assert notes["table:sales"] == "990 rows, 1 batch waits"
    assert notes["table:shops"] == "80 rows, 12 batches wait"
    assert notes["topic:shops-out"].endswith(" sent"), "what waits is the table's"
    assert "table:dead_letters_cards" in notes, "what failed is a place to look for before it is in its table"


def test_of_an_app_without_a_job_the_flow_is_shown_without_figures() -> None:
    assert set(graph(flow_of(topology(), None, {}, live=False)).values()) == {""}


def test_what_goes_on_and_is_not_written_is_not_counted() -> None:
    chain = read(Input("sales", key="card", event_time="at")).process(Cards()).key_by("shop").process(Shops())
    flow = flow_of(chain, told(Path("/x"), outputs={"Cards.main": 5}), {}, live=True)
    assert graph(flow)["link:Cards", "link:Shops"] == ""


@pytest.mark.parametrize("seed", range(case_count(200)))
def test_both_ends_of_every_arrow_are_there_and_the_largest_places_are_kept(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"t{n}" for n in range(rng.randrange(1, 30))]
    tables = {"main": names, **({"dead_letters": "dead"} if rng.random() < 0.5 else {})}
    one = read(Input("sales", key="card", event_time="at")).process(Cards()).write(tables=tables)
    rows = {name: rng.randrange(1_000) for name in (*names, "dead") if rng.random() < 0.9}
    flow = flow_of(one, told(Path("/x")), rows, live=rng.random() < 0.5)
    ids = {node.id for node in flow.nodes}
    assert len(ids) == len(flow.nodes)
    assert all({e.source, e.target} <= ids for e in flow.edges)
    drawn = sorted((rows.get(i.partition(":")[2], 0) for i in ids if i.startswith("table:")), reverse=True)
    every = [rows.get(name, 0) for name in names] + ([rows["dead"]] if "dead_letters" in tables
             and rows.get("dead") else [])  # fmt: skip
    assert drawn == sorted(every, reverse=True)[:14]
    assert flow.more == len(every) - len(drawn)


@pytest.mark.parametrize(("rate", "text"), [(0.04, "0"), (9.96, "10"), (123_456.0, "123.5k"), (1e4, "10k")])
def test_rates_take_few_letters(rate: float, text: str) -> None:
    assert short(rate) == text


# -- the page ----------------------------------------------------------------------------------


def test_a_running_job_one_that_is_over_and_one_that_never_ran(tmp_path: Path) -> None:
    root, folder = tmp_path / "app", tmp_path / "jobs"
    root.mkdir()
    view = overview_of(root, folder)
    found = bodies(view)
    assert found["apps"]["view"]["rows"][0][:2] == ["shop", "never run"]
    assert found["app-shop"]["state"] == "never run"

    put_checkpoint(root, {"sales": {"0": 600, "1": 400}}, batch=6)
    made = told(root)
    write_figures(root, made)
    clock = Clock()
    view = overview_of(root, folder, clock)
    with recorded_job(made.job, folder):
        found = bodies(view)
        row = found["apps"]["view"]["rows"][0]
        assert row[:2] == ["shop", "running"]
        assert row[3:] == [100.0, None, 7_000, 400, 5, 6, ""], "lag is the broker's, and there is none"
        numbers = {n["label"]: n for n in found["app-shop"]["views"][0]["view"]["items"]}
        assert (numbers["state"]["value"], numbers["state"]["tone"]) == ("running", "good")
        assert (numbers["rate"]["value"], numbers["watermark"]["value"]) == (100.0, made.watermark_ms)
        assert numbers["watermark"]["note"] == "7.0 s behind the newest event, waits for in:1"
        flow = found["app-shop"]["views"][1]["view"]
        assert {e["label"] for e in flow["edges"]} >= {"50/s", "4/s"}
        models = next(m for m in found["app-shop"]["more"] if m["id"] == "models")["view"]
        assert models["rows"][0][:3] == ["risk", "champion", "3"]
    write_figures(root, told(root, phase="ended", ended_ms=NOW - 100, error="the disk is full"))
    clock.later()
    found = bodies(view)
    assert found["app-shop"]["state"] == "failed"
    assert found["app-shop"]["note"] == "the disk is full"
    assert found["apps"]["view"]["tones"] == ["bad"]


def test_figures_of_a_run_before_are_not_shown_as_those_of_now(tmp_path: Path) -> None:
    write_figures(tmp_path, told(tmp_path, job=record(tmp_path, app="shop", began_ms=1)))
    with recorded_job(record(tmp_path, app="shop"), tmp_path / "jobs"):
        found = bodies(overview_of(tmp_path, tmp_path / "jobs"))
    assert found["app-shop"]["state"] == "starting"
    numbers = {n["label"]: n["value"] for n in found["app-shop"]["views"][0]["view"]["items"]}
    assert numbers["rate"] is None


def test_only_what_changed_is_sent_again(tmp_path: Path) -> None:
    clock, seen = Clock(), {}
    write_figures(tmp_path, told(tmp_path, phase="ended", ended_ms=NOW))
    view = overview_of(tmp_path, tmp_path / "jobs", clock)
    assert bodies(view, seen).keys() == {"apps", "app-shop"}
    clock.later(100)
    assert bodies(view, seen) == {}, "made a moment ago"
    clock.later()
    assert bodies(view, seen).keys() == {"apps"}, "how long it is over"
    put(tmp_path, "sales", [{"n": 1}] * 7)
    clock.later()
    assert bodies(view, seen).keys() == {"apps"}, "tables are looked at more seldom"
    clock.later(20_000)
    found = bodies(view, seen)["app-shop"]["views"][1]["view"]
    assert next(n for n in found["nodes"] if n["id"] == "table:sales")["note"] == "7 rows"


def test_rates_are_told_at_once_and_tables_when_it_is_their_time_or_a_job_ends(tmp_path: Path) -> None:
    clock = Clock()
    made = told(tmp_path)
    put(tmp_path, "sales", [{"n": 1}] * 7)
    write_figures(tmp_path, made)

    def shown(view: Overview) -> tuple[str, str]:
        flow = bodies(view)["app-shop"]["views"][1]["view"]
        note = next(n for n in flow["nodes"] if n["id"] == "table:sales")["note"]
        return note, next(e["label"] for e in flow["edges"] if e["target"] == "table:sales")

    view = overview_of(tmp_path, tmp_path / "jobs", clock)
    with recorded_job(made.job, tmp_path / "jobs"):
        assert shown(view) == ("7 rows", "50/s")
        put(tmp_path, "sales", [{"n": 1}] * 2)
        write_figures(tmp_path, told(tmp_path, written_rates={"Cards.main": 70.0}))
        clock.later(2_000)
        assert shown(view) == ("7 rows", "70/s")
        clock.later(28_000)
        assert shown(view) == ("9 rows", "70/s")
        put(tmp_path, "sales", [{"n": 1}])
    write_figures(tmp_path, told(tmp_path, phase="ended", ended_ms=NOW))
    clock.later(2_000)
    assert shown(view)[0] == "10 rows", "a job that ends has its rows"


def test_a_table_whose_log_does_not_go_on_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is asked for what is new when the next commit's file is there, and once a minute."""
    clock = Clock()
    put(tmp_path, "sales", [{"n": 1}] * 7)
    reader = DeltaReader(tmp_path / "tables" / "sales", clock)
    asked: list[int] = []
    real = reader._table.update_incremental
    monkeypatch.setattr(reader._table, "update_incremental", lambda: (asked.append(clock.now), real()))
    for _ in range(59):
        clock.later(1_000)
        reader.refresh()
    assert (asked, reader.rows) == ([], 7)
    put(tmp_path, "sales", [{"n": 1}])
    clock.later(500)
    reader.refresh()
    assert (len(asked), reader.rows) == (1, 8)
    for _ in range(61):
        clock.later(1_000)
        reader.refresh()
    assert len(asked) == 2


def test_a_day_is_folded_below(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path)
    for n in range(6):
        writer.see(told(tmp_path, at_ms=NOW - 60_000 + 10_000 * n, rows=100 * n))
    found = bodies(overview_of(tmp_path, tmp_path / "jobs"))["app-shop"]["more"]
    day = next(m for m in found if m["id"] == "day")["view"]
    assert [round(v, 3) for _, v in day["series"][0]["points"]] == [10.0] * 5
    assert {m["id"] for m in found} >= {"day", "lag", "letters"}


def test_the_server_gives_it_as_events_to_those_who_may_look(tmp_path: Path) -> None:
    pages = {"shop": page_of(tmp_path)}
    site = Site(pages, Access("127.0.0.1", "a token of the test", private=True))
    with TestClient(make_app(site), base_url="http://127.0.0.1:8600") as client:
        assert client.get("/api/overview").status_code == 401
        headers = {"authorization": "Bearer a token of the test"}
        about = client.get("/api/overview", headers=headers).json()
        assert [a["app"] for a in about["apps"]] == ["shop"]
        said = client.get("/api/overview/events?once=true", headers=headers).text
        assert said.count("event: panel") == 2


# -- dead letters ------------------------------------------------------------------------------


def declares(tables: dict[str, str]) -> App:
    def made(settings: Any) -> Topology:
        if not tables:
            raise UserError("these settings fit no topology")
        read_in = read(Input("sales", key="card", event_time="at"), control="control")
        return read_in.process(Cards()).key_by("shop").process(Shops()).write(tables=tables)

    return App("shop", "Sales.", AppSettings, made, lambda s: Topics((Topic("sales"), Topic("control"))))


def test_tables_of_dead_letters_are_those_that_the_app_declares_whatever_they_are_called(
    tmp_path: Path,
) -> None:
    said = {"Cards.dead_letters": "failed", "dead_letters": "dead_shops", "main": "dead_letters_of_sales",
            "Cards.late": "late_cards", "late": "late"}  # fmt: skip
    put(tmp_path, "failed", [{"reason": "schema"}] * 3)
    put(tmp_path, "dead_shops", [{"reason": "schema"}, {"reason": "conflict"}])
    put(tmp_path, "late_cards", [{"key": "a"}] * 4)
    for name in ("dead_letters_of_sales", "dead_letters_replayed"):  # by their names they would be
        put(tmp_path, name, [{"reason": "no failure"}] * 5)
    data = AppData(declares(said), AppSettings(), tmp_path, Clock())
    shown = dead_letters(data)
    assert isinstance(shown, Bars)
    assert [(bar.label, bar.value) for bar in shown.bars] == [
        ("schema", 4), ("conflict", 1), ("late (table late_cards)", 4),
    ]  # fmt: skip
    assert _dead_rows(data) == 5
    # Where the topology cannot be made, what every app calls them.
    put(tmp_path, "dead_letters", [{"reason": "schema"}] * 2)
    assert _dead_rows(AppData(declares({}), AppSettings(), tmp_path, Clock())) == 2
    assert _dead_rows(AppData(declares(said), AppSettings(), tmp_path, Clock())) == 5


def test_every_page_can_send_dead_letters_again_and_says_why_it_cannot(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    letters = next(p for p in page.describe()["panels"] if p["id"] == "dead-letters")
    assert letters["actions"] == ("replay-letters",)
    with pytest.raises(ActionRefused, match="no broker is named"):
        page.act({"reason": "schema"}, "replay-letters")
    with pytest.raises(ActionRefused, match="Reason is missing"):
        page.act({"reason": " "}, "replay-letters")
    with pytest.raises(ActionRefused, match="no action"):
        page.act({"reason": "schema"}, "")
    assert isinstance(page.page, DashboardPage)
    assert Note("x").tone == "plain"
