"""What thresholds are chosen on: all decisions, what is known of them, and whose score (F1)."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from millrace.dashboard.data import AppData
from millrace.errors import UserError
from millrace.runtime.settings import load_settings
from millrace_apps.fraud.app import app as fraud
from millrace_apps.fraud.cases.cli import app as cases_app
from millrace_apps.fraud.cases.store import case_view, dispose
from millrace_apps.fraud.dashboard import page as dashboard
from millrace_apps.fraud.operations.economics import Costs, EconomicsError, Scored, choose, outcome
from millrace_apps.fraud.operations.economics_data import Basis, ScoreName, scored_decisions
from tests.unit.apps.fraud.tables import DECISION, START_MS, put_decisions
from tests.unit.millrace.dashboard.cases import put

DAY, HOUR = 86_400_000, 3_600_000
SETTINGS = dashboard.case_settings()
EXTRA = pa.schema(
    [
        *DECISION, ("challenger_score", pa.float64()),
        ("challenger_version", pa.string()),
    ]
)  # fmt: skip
Rows = list[dict[str, Any]]


def payments(
    n: int, days: float, *, fraud_share: float = 0.01, seed: int = 1
) -> tuple[Rows, dict[str, bool]]:
    """Decisions over some days, most of them of score 0; and what they are in truth."""
    random, rows, truth = Random(1), [], {}
    for number in range(n):
        is_fraud = random.random() < fraud_share
        told = random.random() < (0.7 if is_fraud else 0.01)
        score = round(random.uniform(0.5, 1), 2) if told else 0.0 if random.random() < 0.9 else 0.2
        action = "approve" if score < 0.5 else "review" if score < 0.95 else "block"
        name = f"tx-{number:06}"
        rows.append(
            {
                "transaction_id": name, "card_id": f"card-{random.randrange(3_000)}", "terminal_id": "t",
                "country": "DE", "amount": round(random.lognormvariate(4, 1), 2), "kind": "purchase",
                "event_time_ms": START_MS + int(number * days * DAY / n), "mean_before": 40.0,
                "count_1h": 1, "sum_24h": 9.0, "balance": 9.0,
                "card": {"gap_s": 1.0, "count_10m": 1, "new_device": False},
                "score": score, "action": action, "reasons": [], "rules": [], "shadow_rules": [],
                "model_score": 0.9 * score, "model_version": "3", "control_group": False,
                "challenger_score": None, "challenger_version": None,
            }
        )  # fmt: skip
        truth[name] = is_fraud
    return rows, truth


def label(row: dict[str, Any], is_fraud: bool, after: int, source: str = "feedback") -> dict[str, Any]:
    return {
        "label_id": f"l-{row['transaction_id']}-{after}", "transaction_id": row["transaction_id"],
        "transaction_time_ms": row["event_time_ms"], "card_id": row["card_id"], "is_fraud": is_fraud,
        "event_time_ms": row["event_time_ms"] + after, "source": source,
    }  # fmt: skip


def folder(root: Path, rows: Rows, labels: Rows) -> AppData:
    put(root, "transactions", rows, EXTRA)
    if labels:
        put(root, "labels", labels)
    settings = load_settings(fraud.settings, app="fraud", env={})
    newest = max(r["event_time_ms"] for r in [*rows, *labels])
    return AppData(fraud, settings, root, lambda: newest + 1, dashboard.page.folders)


def spoken_of(rows: Rows, truth: dict[str, bool]) -> Rows:
    """Few labels: of what was alerted, and of the frauds that passed."""
    return [
        label(row, truth[row["transaction_id"]], HOUR)
        for row in rows
        if row["action"] != "approve" or truth[row["transaction_id"]]
    ]


@pytest.mark.parametrize("days", [0.5, 20])
def test_payments_that_nobody_has_spoken_of_are_not_recommended_to_be_blocked(
    tmp_path: Path, days: float
) -> None:
    """F1: 24,000 payments with few labels; what is recommended does what it says over all of them."""
    rows, truth = payments(24_000, days)
    labels = spoken_of(rows, truth)
    assert len(labels) < 700
    data = folder(tmp_path, rows, labels)
    scored, basis = scored_decisions(data, SETTINGS, ScoreName.rules, 7 * DAY)
    assert basis.early == (days < 7)
    assert basis.payments == len(scored.score) == 24_000 - basis.young
    best, _ = choose(scored, Costs(), 100)
    assert best.block_from >= 0.5  # below are the scores of what nobody was told of
    old_until = basis.as_of_ms - basis.label_delay_ms
    judged = [r for r in rows if r["event_time_ms"] <= old_until]
    flagged = [truth[r["transaction_id"]] for r in judged if r["score"] >= best.review_from]
    assert best.precision == pytest.approx(sum(flagged) / len(flagged), abs=0.02)
    blocked = sum(r["score"] >= best.block_from for r in judged)
    assert best.blocks_per_day * scored.days == pytest.approx(blocked)


def test_the_labelled_alone_would_recommend_what_is_wrong_for_all(tmp_path: Path) -> None:
    """F1, as it was: of the labelled most are frauds, so that blocking everything seems to pay."""
    rows, truth = payments(24_000, 0.5)
    said = {x["transaction_id"] for x in spoken_of(rows, truth) if truth[x["transaction_id"]]}
    labelled = [r for r in rows if r["transaction_id"] in said or r["action"] == "block"]
    alone = Scored.of(
        [
            (r["event_time_ms"], r["card_id"], r["amount"], r["score"], truth[r["transaction_id"]])
            for r in labelled
        ]
    )
    wrong, _ = choose(alone, Costs(), 100)
    assert wrong.block_from == 0.0
    data = folder(tmp_path, rows, spoken_of(rows, truth))
    scored, _ = scored_decisions(data, SETTINGS, ScoreName.rules, 7 * DAY)
    best, _ = choose(scored, Costs(), 100)
    everything = outcome(scored, wrong.block_from, wrong.block_from, Costs())
    assert everything.precision < 0.02 < wrong.precision
    assert best.cost < everything.cost / 10


def test_what_was_stopped_and_nobody_looked_at_is_counted_and_not_known(tmp_path: Path) -> None:
    rows, _ = payments(8, 8)
    for row, action in zip(rows, ["block", "block", "review", *["approve"] * 5], strict=True):
        row |= {"action": action, "score": 0.9 if action != "approve" else 0.0}
    labels = [label(rows[1], True, HOUR), label(rows[2], True, HOUR), label(rows[7], False, 8 * DAY)]
    scored, basis = scored_decisions(folder(tmp_path, rows, labels), SETTINGS, ScoreName.rules, 7 * DAY)
    assert (basis.payments, basis.frauds, basis.genuine, basis.unknown) == (8, 2, 5, 1)
    assert scored.weights.tolist() == [0.0, *[1.0] * 7]
    found = outcome(scored, 0.5, 0.5, Costs())
    assert (found.precision, found.unknown_share) == (1.0, pytest.approx(1 / 3))


def test_the_control_group_stands_for_what_was_blocked(tmp_path: Path) -> None:
    rows, _ = payments(8, 8)
    for row, action in zip(rows, ["block", "block", "block", *["approve"] * 5], strict=True):
        row |= {"action": action, "score": 0.9 if action == "block" else 0.0}
    rows[2] |= {"action": "review", "control_group": True}
    labels = [label(rows[0], True, HOUR), label(rows[2], True, HOUR), label(rows[7], False, 8 * DAY)]
    scored, basis = scored_decisions(folder(tmp_path, rows, labels), SETTINGS, ScoreName.rules, 7 * DAY)
    assert scored.weights.tolist() == [0.0, 0.0, 3.0, *[1.0] * 5]
    assert basis.control_group == 1


def test_young_payments_are_left_out_and_what_became_known_later_is_not_used(tmp_path: Path) -> None:
    rows, truth = payments(1_000, 20, fraud_share=0.1)
    labels = [label(r, True, 3 * DAY, "chargeback") for r in rows if truth[r["transaction_id"]]]
    data = folder(tmp_path, rows, labels)
    as_of = START_MS + 12 * DAY
    scored, basis = scored_decisions(data, SETTINGS, ScoreName.rules, 7 * DAY, as_of_ms=as_of)
    judged = [r for r in rows if r["event_time_ms"] <= as_of - 7 * DAY]
    assert basis.frauds == sum(truth[r["transaction_id"]] for r in judged) == int(scored.fraud.sum())
    assert (basis.payments, basis.as_of_ms, basis.early) == (len(judged), as_of, False)
    assert basis.young == sum(r["event_time_ms"] <= as_of for r in rows) - len(judged)
    _, two = scored_decisions(data, SETTINGS, ScoreName.rules, 7 * DAY, as_of_ms=as_of, days=2)
    assert two.payments == sum(r["event_time_ms"] > as_of - 9 * DAY for r in judged)


def test_where_nothing_is_old_enough_silence_is_an_answer_unless_a_delay_is_insisted_on(
    tmp_path: Path,
) -> None:
    rows, truth = payments(500, 1, fraud_share=0.1)
    data = folder(tmp_path, rows, spoken_of(rows, truth))
    _, basis = scored_decisions(data, SETTINGS, ScoreName.rules, 7 * DAY)
    assert (basis.early, basis.label_delay_ms, basis.payments) == (True, 0, 500)
    with pytest.raises(EconomicsError, match="none of 500 purchases is older"):
        scored_decisions(data, SETTINGS, ScoreName.rules, 7 * DAY, insist=True)


def test_each_score_is_judged_by_the_decisions_that_have_it(tmp_path: Path) -> None:
    rows, truth = payments(1_000, 1, fraud_share=0.1)
    for row in rows[:400]:
        row |= {"challenger_score": 0.5 * row["score"], "challenger_version": "7"}
    data = folder(tmp_path, rows, spoken_of(rows, truth))
    found = {name: scored_decisions(data, SETTINGS, name, 7 * DAY) for name in ScoreName}
    about = {name: (b.score, b.versions, b.payments, b.unscored) for name, (_, b) in found.items()}
    assert about == {
        "rules": ("rules", [], 1_000, 0),
        "champion": ("champion", ["3"], 1_000, 0),
        "challenger": ("challenger", ["7"], 400, 600),
    }
    assert found[ScoreName.champion][0].score.tolist() == [r["model_score"] for r in rows]
    assert found[ScoreName.challenger][0].score.tolist() == [r["challenger_score"] for r in rows[:400]]


def test_a_score_that_no_decision_has_is_refused_in_one_line(tmp_path: Path) -> None:
    rows, _ = payments(10, 1)
    put_decisions(tmp_path, [{k: v for k, v in r.items() if k in DECISION.names} for r in rows])
    assert "has a score of the challenger" in str(command(tmp_path, "--score", "challenger").exception)
    assert "no labelled fraud" in str(command(tmp_path).exception)


def test_refunds_are_not_chosen_by(tmp_path: Path) -> None:
    rows, truth = payments(100, 1, fraud_share=0.2)
    rows[5]["kind"] = "refund"
    _, basis = scored_decisions(
        folder(tmp_path, rows, spoken_of(rows, truth)), SETTINGS, ScoreName.rules, 7 * DAY
    )
    assert basis.payments == 99


def test_what_was_said_of_cases_counts_before_it_has_come_back_as_labels(tmp_path: Path) -> None:
    rows, _ = payments(200, 1)
    rows[9] |= {"action": "review", "score": 0.9}
    put_decisions(tmp_path, [{k: v for k, v in r.items() if k in DECISION.names} for r in rows])
    data = AppData(
        fraud, load_settings(fraud.settings, app="fraud", env={}), tmp_path,
        lambda: rows[-1]["event_time_ms"] + HOUR, dashboard.page.folders,
    )  # fmt: skip
    view = case_view(data, SETTINGS)
    assert view is not None
    (one,) = view.of_card(rows[9]["card_id"])
    dispose(data, SETTINGS, one.case.case_id, "fraud", by="eva")
    _, basis = scored_decisions(data, SETTINGS, ScoreName.rules, 7 * DAY)
    assert basis.frauds == one.case.alerts


def command(root: Path, *words: str) -> Any:
    return CliRunner().invoke(cases_app, ["economics", "--root", str(root), *words])


def test_the_command_says_what_it_rests_on(tmp_path: Path) -> None:
    rows, truth = payments(4_000, 20, fraud_share=0.05)
    folder(tmp_path, rows, spoken_of(rows, truth))
    out = tmp_path / "report.json"
    told = command(tmp_path, "--score", "champion", "--capacity", "20", "--out", str(out))
    assert told.exit_code == 0, told.output
    assert "known frauds" in told.output
    assert "younger than 7 days" in told.output
    report = json.loads(out.read_text())
    assert set(report) == {"capacity", "costs", "best", "curve", "basis"}
    assert set(report["basis"]) == set(Basis.__struct_fields__)
    assert report["basis"]["score"] == "champion"
    assert report["best"]["block_from"] > 0
    refused = command(tmp_path, "--label-delay", "90d")
    assert isinstance(refused.exception, UserError)


def test_a_file_of_scores_may_leave_open_what_a_payment_was(tmp_path: Path) -> None:
    path, out = tmp_path / "scores.parquet", tmp_path / "report.json"
    table = pa.table(
        {
            "time_ms": [0, 1, 2], "card": ["a", "b", "c"], "amount": [9.0, 9.0, 9.0],
            "score": [0.9, 0.9, 0.1], "fraud": [True, None, False],
        }
    )  # fmt: skip
    pq.write_table(table, path)
    told = CliRunner().invoke(cases_app, ["economics", "--scores", str(path), "--out", str(out)])
    assert told.exit_code == 0, told.output
    assert "1 known frauds, 1 genuine, 1 of which it is not known" in told.output
    assert set(json.loads(out.read_text())) == {"capacity", "costs", "best", "curve"}


@pytest.mark.parametrize(
    "row",
    [
        {"score": None}, {"score": float("nan")}, {"score": 1.5}, {"amount": None}, {"amount": float("inf")},
        {"amount": -1.0}, {"time_ms": None}, {"time_ms": -1},
    ],
)  # fmt: skip
def test_scores_that_are_no_figures_are_refused_in_a_line(tmp_path: Path, row: dict[str, Any]) -> None:
    rows = [{"time_ms": 1, "card": "a", "amount": 5.0, "score": 0.5, "fraud": n == 0} for n in range(3)]
    path = tmp_path / "scores.parquet"
    pq.write_table(pa.Table.from_pylist([*rows, {**rows[0], **row}]), path)
    result = CliRunner().invoke(cases_app, ["economics", "--scores", str(path)])
    assert isinstance(result.exception, EconomicsError), result.output
    assert "\n" not in str(result.exception)


def test_costs_that_are_no_numbers_are_refused_in_a_line(tmp_path: Path) -> None:
    for words in (["--review", "nan"], ["--margin", "inf"]):
        result = CliRunner().invoke(cases_app, ["economics", *words])
        assert isinstance(result.exception, EconomicsError), result.output


def test_amounts_of_several_currencies_count_by_what_was_billed(tmp_path: Path) -> None:
    """9,000 yen are 60: by the bill; of before there were currencies the amount; unknown they are nothing."""
    rows, truth = payments(60, 0.2)
    bills: list[tuple[str, float | None, float]]
    bills = [("", None, 9_000.0), ("EUR", 60.0, 60.0), ("EUR", None, 0.0)]
    for n, row in enumerate(rows):
        row["amount"], (row["billing_currency"], row["billing_amount"], _) = 9_000.0, bills[n % 3]
    billed = [("billing_currency", pa.string()), ("billing_amount", pa.float64())]
    put(tmp_path, "transactions", rows, pa.schema([*EXTRA, *(pa.field(*one) for one in billed)]))
    settings = load_settings(fraud.settings, app="fraud", env={})
    newest = max(r["event_time_ms"] for r in rows)
    data = AppData(fraud, settings, tmp_path, lambda: newest + 1, dashboard.page.folders)
    scored, _ = scored_decisions(data, SETTINGS, ScoreName.rules, 0)
    every = zip(scored.time_ms, scored.score, scored.amount, strict=True)
    found = {(int(t), float(s)): float(a) for t, s, a in every}
    assert len(found) == len(rows) == len(truth)
    for n, row in enumerate(rows):
        assert found[row["event_time_ms"], row["score"]] == bills[n % 3][2]
