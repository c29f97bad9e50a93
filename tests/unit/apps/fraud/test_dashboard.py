"""The fraud page's panels and the case commands, over a small folder of tables."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from millrace.dashboard.data import AppData
from millrace.dashboard.views import Bars, Numbers, Table, TimeSeries
from millrace.errors import UserError
from millrace.rules import PutListEntry
from millrace.runtime.settings import load_settings
from millrace_apps.fraud.app import app as fraud
from millrace_apps.fraud.cases.cli import app as cases_app
from millrace_apps.fraud.cases.live import alerts_of
from millrace_apps.fraud.cases.store import CaseView, NoCase, case_view, dispose, journal
from millrace_apps.fraud.contracts.events import Label
from millrace_apps.fraud.dashboard import page as dashboard
from millrace_apps.fraud.dashboard.card import card
from millrace_apps.fraud.dashboard.data import decided, judged
from millrace_apps.fraud.dashboard.model import drift_of, lines_of
from tests.unit.apps.fraud.tables import DECISION, EVIL, decisions, fraud_folder, put_decisions
from tests.unit.millrace.dashboard.cases import Clock, check_panels, panel_of, put

Rows = list[dict[str, Any]]
shown = partial(panel_of, dashboard.page)
SETTINGS = dashboard.case_settings()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    root = tmp_path_factory.mktemp("made")
    return root, fraud_folder(root, number=2_000)


@pytest.fixture
def world(made: tuple[Path, Rows], tmp_path: Path) -> tuple[AppData, Rows, Clock]:
    root, rows = made
    shutil.copytree(root, tmp_path / "fraud")
    clock = Clock(rows[-1]["event_time_ms"] + 60_000)
    settings = load_settings(fraud.settings, app="fraud", env={})
    return AppData(fraud, settings, tmp_path / "fraud", clock, dashboard.page.folders), rows, clock


def view_of(data: AppData) -> CaseView:
    found = case_view(data, SETTINGS)
    assert found is not None
    return found


def test_every_panel_shows_something_of_a_full_folder_and_nothing_of_an_empty_one(
    world: tuple[AppData, Rows, Clock], tmp_path: Path
) -> None:
    data, _, clock = world
    dispose(data, SETTINGS, view_of(data).queue()[0].case.case_id, "fraud", by="eva")
    clock.later()
    check_panels(
        dashboard.page, data, AppData(fraud, data.settings, tmp_path / "none", clock, dashboard.page.folders)
    )


def test_the_headline_counts_what_is_there(world: tuple[AppData, Rows, Clock]) -> None:
    data, rows, _ = world
    found = shown(data, "headline")
    assert isinstance(found, Numbers)
    values = {n.label: n.value for n in found.items}
    raised = sum(r["action"] != "approve" for r in rows)
    assert (values["decisions"], values["alerts"]) == (len(rows), raised)
    view = view_of(data)
    assert values["in the queue"] == len(view.queue()) > 0
    known = judged(data, SETTINGS)
    assert values["precision so far"] == pytest.approx(sum(j.is_fraud for j in known) / len(known))


def test_the_queue_is_in_order_of_priority_and_carries_its_cases(world: tuple[AppData, Rows, Clock]) -> None:
    data, _, _ = world
    found = shown(data, "queue")
    assert isinstance(found, Table)
    priorities = [row[7] for row in found.rows]
    assert priorities == sorted(priorities, reverse=True)
    assert [row[0] for row in found.rows] == list(range(1, len(found.rows) + 1))
    ids = {r.case.case_id for r in view_of(data).queue()}
    offered = [[offer.action for offer in row] for row in found.actions]
    assert offered == [["dispose", "claim", "act"]] * len(ids)
    assert {offer.values["case_id"] for row in found.actions for offer in row} == ids


def test_flagged_payments_are_counted_by_event_time(world: tuple[AppData, Rows, Clock]) -> None:
    data, rows, _ = world
    found = shown(data, "flagged")
    assert isinstance(found, TimeSeries)
    width = (found.series[0].points[1][0] - found.series[0].points[0][0]) / 60_000
    for series in found.series:
        counted = sum(value or 0 for _, value in series.points) * width
        assert counted == pytest.approx(sum(r["action"] == series.name for r in rows))


def test_reasons_and_rules_are_counted_with_what_labels_say(world: tuple[AppData, Rows, Clock]) -> None:
    data, rows, _ = world
    bars = shown(data, "reasons")
    assert isinstance(bars, Bars)
    sprees = sum(any(r["code"] == "SPREE" for r in row["reasons"]) for row in rows)
    assert {b.label: b.value for b in bars.bars}["SPREE"] == sprees
    table = shown(data, "rules")
    held = {row[0]: row[2] for row in table.rows}
    assert held["night-spree@2"] == sum("night-spree@2" in row["rules"] for row in rows)
    assert held["new-shop@1"] == sum("new-shop@1" in row["shadow_rules"] for row in rows)


def test_precision_and_delay_follow_the_labels(world: tuple[AppData, Rows, Clock]) -> None:
    data, _, _ = world
    line = shown(data, "precision").series[0].points
    known = judged(data, SETTINGS)
    assert line[-1] == (
        known[-1].alert.event_time_ms,
        pytest.approx(sum(j.is_fraud for j in known) / len(known)),
    )
    delays = [bar.value for bar in shown(data, "label-delay").bars]
    assert delays == sorted(delays)
    assert 10 * 60_000 <= delays[0] <= delays[-1] <= 600 * 60_000
    worth = {n.label: n.value for n in shown(data, "worth").items}
    assert worth["fraud not alerted"] == 1


def test_drift_is_small_before_and_large_after_amounts_have_changed(
    world: tuple[AppData, Rows, Clock],
) -> None:
    data, _, _ = world
    steady = {n: np.array([250, 250, 0, 0]) for n in range(8)}
    assert [v for _, v in drift_of(steady)] == pytest.approx([0.0] * len(drift_of(steady)))
    turned = {**steady, 7: np.array([0, 0, 250, 250])}
    assert [(v or 0) > 0.25 for _, v in drift_of(turned)][-1]
    assert drift_of({1: np.array([1, 2])}) == []
    found = {s.name: [v for _, v in s.points if v is not None] for s in shown(data, "drift").series}
    assert max(found["amount"]) > 0.25
    assert max(found["score"]) < 0.25


@pytest.mark.parametrize(
    "rows",
    [
        [{"at_ms": 5, "role": "champion", "metric": m, "value": v} for m, v in (("ap", 0.5), ("auc", 0.9))],
        [{"day_ms": 5, "alias": "champion", "ap": 0.5, "auc": 0.9}],
    ],
)  # fmt: skip
def test_model_figures_are_read_long_and_wide(rows: Rows) -> None:
    found = lines_of(rows)
    assert isinstance(found, TimeSeries)
    assert [(s.name, s.points) for s in found.series] == [("champion, ap", [(5, 0.5)])]
    assert lines_of([{"other": 1}]) is None


def test_a_card_is_shown_with_history_features_and_cases(world: tuple[AppData, Rows, Clock]) -> None:
    data, rows, _ = world
    parts = {part.title: part.view for part in card(data, "card-0007", SETTINGS)}
    own = [r for r in rows if r["card_id"] == "card-0007"]
    history = parts["History"]
    assert isinstance(history, Table)
    assert len(history.rows) + history.more == len(own)
    assert history.rows[0][0] == max(r["event_time_ms"] for r in own)
    features = parts["Features at its last transaction"]
    assert isinstance(features, Numbers)
    assert {"mean before", "card gap s"} <= {n.label for n in features.items}
    assert "Cases" in parts
    assert card(data, "no-such-card", SETTINGS) == []
    assert card(data, EVIL, SETTINGS) != []


def test_amounts_are_those_that_were_billed(tmp_path: Path) -> None:
    rows = [
        {**row, "card_id": "card-1", "amount": 9_000.0, "currency": currency, "kind": "purchase",
         "billing_amount": billed, "billing_currency": told}
        for row, (currency, billed, told) in zip(
            decisions(1, 4), [("JPY", 54.5, "EUR"), ("JPY", None, "EUR"), ("EUR", None, ""),
                             ("EUR", 9_000.0, "EUR")], strict=True,
        )
    ]  # fmt: skip
    more = [("billing_amount", pa.float64()), ("billing_currency", pa.string())]
    put(tmp_path, "transactions", rows, pa.schema([*DECISION, *more]))
    settings = load_settings(fraud.settings, app="fraud", env={})
    data = AppData(fraud, settings, tmp_path, Clock(rows[-1]["event_time_ms"]), dashboard.page.folders)
    parts = {part.title: part.view for part in card(data, "card-1", SETTINGS)}
    history, purchases = parts["History"], parts["Purchases"]
    assert isinstance(history, Table)
    assert isinstance(purchases, TimeSeries)
    assert [row[1:3] for row in reversed(history.rows)] == [
        [54.5, "9,000 JPY"], [None, "9,000 JPY"], [9_000.0, ""], [9_000.0, ""],
    ]  # fmt: skip
    assert [value for _, value in purchases.series[0].points] == [54.5, None, 9_000.0, 9_000.0]
    found = decided(data)
    assert found is not None
    # Of which the amount is not known is in no bin of amounts: ln 9,001 is 9.1, ln 55.5 is 4.0.
    assert sum(found.amounts.values()).tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 2]  # type: ignore[union-attr]
    assert sum(int(counts.sum()) for counts in found.scores.values()) == 4


# -- dispositions ----------------------------------------------------------------------------------


def test_a_disposition_leaves_the_queue_and_labels_the_alerts(world: tuple[AppData, Rows, Clock]) -> None:
    data, _, clock = world
    first = view_of(data).queue()[0]
    before = len(judged(data, SETTINGS))
    said = dispose(data, SETTINGS, first.case.case_id, "fraud", by="eva", note="called")
    clock.later()
    view = view_of(data)
    assert view.find(first.case.case_id).place == "done"
    assert {x.transaction_id for x in view.labels} == {t.transaction_id for t in first.case.transactions}
    assert journal(data) == [said]
    assert len(judged(data, SETTINGS)) > before
    with pytest.raises(UserError, match="decided as fraud already, by eva"):
        dispose(data, SETTINGS, first.case.case_id, "fraud", by="max")
    dispose(data, SETTINGS, first.case.case_id, "genuine", by="max")
    clock.later()
    corrected = [x for x in view_of(data).labels if x.source == "correction"]
    assert {x.transaction_id for x in corrected} == {t.transaction_id for t in first.case.transactions}


def test_a_disposition_sends_its_labels_where_no_stream_does(
    world: tuple[AppData, Rows, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _, clock = world
    sent: list[tuple[str, list[Any]]] = []
    monkeypatch.setattr(
        "millrace_apps.fraud.cases.store._send",
        lambda data, topic, events, what: sent.append((topic, list(events))),
    )
    monkeypatch.setattr(
        "millrace_apps.fraud.cases.store._send_control",
        lambda data, topic, events: sent.append((topic, list(events))),
    )
    settings = load_settings(fraud.settings, app="fraud", overrides=["kafka.bootstrap=127.0.0.1:9"], env={})
    with_broker = AppData(fraud, settings, data.root, clock, dashboard.page.folders)
    first = view_of(with_broker).queue()[0]
    said = dispose(with_broker, SETTINGS, first.case.case_id, "fraud", by="eva")
    clock.later()
    labels = view_of(with_broker).labels
    note, until = f"case {first.case.case_id} is fraud", said.at_ms + 30 * 86_400_000
    blocked = PutListEntry("blocked", f"card:{first.case.card_id}", until, "eva", said.at_ms, note)
    assert sent == [
        ("fraud.dispositions", [said]), ("fraud.labels", labels), ("fraud.control", [blocked]),
    ]  # fmt: skip
    assert {x.transaction_id for x in labels} == {t.transaction_id for t in first.case.transactions}
    for label in labels:  # what cases send is what the decisions' stream takes
        assert msgspec.json.decode(msgspec.json.encode(label), type=Label).source == "feedback"


def test_cases_go_on_with_alerts_that_come_after_a_disposition(world: tuple[AppData, Rows, Clock]) -> None:
    data, rows, clock = world
    first = view_of(data).queue()[0]
    dispose(data, SETTINGS, first.case.case_id, "fraud", by="eva")
    clock.later()
    view_of(data)
    put_decisions(data.root, decisions(3, 300, start=rows[-1]["event_time_ms"] + 120_000))
    clock.later()
    bit_by_bit = view_of(data)
    again = AppData(fraud, data.settings, data.root, clock, dashboard.page.folders)
    at_once = view_of(again)
    assert [(r.place, r.case) for r in bit_by_bit.ranked] == [(r.place, r.case) for r in at_once.ranked]
    (followed,) = [r for r in bit_by_bit.queue() if r.case.card_id == first.case.card_id]
    assert followed.case.follows == first.case.case_id


def test_a_case_is_found_by_the_first_characters_of_its_id(world: tuple[AppData, Rows, Clock]) -> None:
    data, _, _ = world
    view = view_of(data)
    case_id = view.ranked[0].case.case_id
    assert view.find(case_id[:13]).case.case_id == case_id
    for wrong in ("case-", "case-zzzzzzzz", ""):
        with pytest.raises(NoCase):
            view.find(wrong)


def test_a_disposition_that_is_not_complete_is_refused(world: tuple[AppData, Rows, Clock]) -> None:
    data, _, _ = world
    case_id = view_of(data).ranked[0].case.case_id
    for by, note in (("", ""), ("x" * 65, ""), ("eva", "x" * 501)):
        with pytest.raises(UserError, match="not complete"):
            dispose(data, SETTINGS, case_id, "fraud", by=by, note=note)
    assert journal(data) == []


def test_a_disposition_that_the_broker_does_not_take_is_not_written_down(
    world: tuple[AppData, Rows, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _, clock = world
    monkeypatch.setattr("millrace_apps.fraud.cases.store._PATIENCE_MS", 500)
    settings = load_settings(fraud.settings, app="fraud", overrides=["kafka.bootstrap=127.0.0.1:9"], env={})
    away = AppData(fraud, settings, data.root, clock, dashboard.page.folders)
    case_id = view_of(data).ranked[0].case.case_id
    with pytest.raises(UserError, match="did not take the disposition"):
        dispose(away, SETTINGS, case_id, "fraud", by="eva")
    assert journal(away) == []
    assert view_of(away).find(case_id).case.status == "open"


def test_a_decision_on_a_stream_of_the_past_is_dated_by_the_stream(
    world: tuple[AppData, Rows, Clock],
) -> None:
    data, _, clock = world
    newest = view_of(data).newest_ms
    clock.later(30 * 86_400_000)
    case_id = view_of(data).ranked[0].case.case_id
    assert dispose(data, SETTINGS, case_id, "genuine", by="eva").at_ms == newest + 1
    assert view_of(data).find(case_id).case.status == "genuine"


def test_alerts_with_little_in_them_are_taken() -> None:
    row = {
        "card_id": "c",
        "transaction_id": "t",
        "event_time_ms": 5,
        "amount": 1.0,
        "score": 1.2,
        "action": None,
    }
    (found,) = alerts_of([row])
    assert (found.score, found.action, found.reasons) == (1.0, "review", [])


# -- commands --------------------------------------------------------------------------------------


def run(root: Path, *words: str) -> str:
    result = CliRunner().invoke(cases_app, [*words, "--root", str(root)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_commands_list_show_decide_and_give_labels(
    world: tuple[AppData, Rows, Clock], tmp_path: Path
) -> None:
    data, _, _ = world
    listed = json.loads(run(data.root, "list", "--format", "json"))
    assert [c["rank"] for c in listed] == list(range(1, len(listed) + 1))
    case_id = listed[0]["case_id"]
    assert f"{len(listed)} queued of" in run(data.root, "list")
    assert listed[0]["card_id"] in run(data.root, "show", case_id)
    said = run(
        data.root, "dispose", case_id, "--verdict", "fraud", "--by", "eva", "--note", "asked the holder"
    )
    assert "fraud, by eva" in said
    assert "asked the holder" in run(data.root, "show", case_id)
    assert case_id not in {c["case_id"] for c in json.loads(run(data.root, "list", "--format", "json"))}
    out = tmp_path / "labels.jsonl"
    run(data.root, "labels", "--out", str(out))
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == len(listed[0]["transactions"])
    assert {(x["is_fraud"], x["source"]) for x in lines} == {(True, "feedback")}


def test_the_commands_claim_hand_out_and_note(world: tuple[AppData, Rows, Clock]) -> None:
    data, _, _ = world
    queued = [r.case.case_id for r in view_of(data).queue()]
    assert f"{queued[0]}: claim, by ann" in run(data.root, "next", "--by", "ann")
    assert f"{queued[1]}: claim, by bob" in run(data.root, "next", "--by", "bob")  # not the one that ann has
    assert f"{queued[0]}: claim, by ann" in run(data.root, "next", "--by", "ann")  # the one that she has
    assert "[ann]" in run(data.root, "list").splitlines()[1]
    with pytest.raises(UserError, match="claimed by ann"):
        run(data.root, "dispose", queued[0], "--verdict", "fraud", "--by", "bob")
    run(data.root, "contacted", queued[0], "--by", "bob", "--note", "no answer")
    run(data.root, "release", queued[0], "--by", "ann")
    assert f"{queued[0]}: claim, by bob" in run(data.root, "claim", queued[0], "--by", "bob")
    shown_case = run(data.root, "show", queued[0])
    assert "claimed by bob until" in shown_case
    assert "contacted by bob: no answer" in shown_case
    assert "no list is changed" in run(data.root, "unblock", queued[0], "--by", "bob")


def test_the_list_is_shown_page_by_page(world: tuple[AppData, Rows, Clock]) -> None:
    data, _, _ = world
    every = json.loads(run(data.root, "list", "--all", "--limit", "1000", "--format", "json"))
    pages = [
        json.loads(run(data.root, "list", "--all", "--limit", "2", "--page", str(n), "--format", "json"))
        for n in range(1, len(every) // 2 + 3)
    ]
    assert [c for page in pages for c in page] == every
    assert [len(page) for page in pages][-1] == 0
    assert "page 2 of" in run(data.root, "list", "--all", "--limit", "2", "--page", "2")


def test_the_command_chooses_thresholds_from_the_tables(
    world: tuple[AppData, Rows, Clock], tmp_path: Path
) -> None:
    data, _, _ = world
    out = tmp_path / "report.json"
    said = run(data.root, "economics", "--capacity", "3", "--out", str(out))
    report = json.loads(out.read_text())
    assert report["best"]["reviews_per_day"] <= 3
    assert report["best"]["cost"] == min(o["cost"] for o in report["curve"])
    assert "best" in said


def test_commands_without_alerts_say_what_to_do(tmp_path: Path) -> None:
    for words in (["list"], ["labels"], ["dispose", "case-12345678", "--verdict", "fraud", "--by", "x"]):
        result = CliRunner().invoke(cases_app, [*words, "--root", str(tmp_path)])
        assert isinstance(result.exception, UserError)
        assert "no alerts" in str(result.exception)
