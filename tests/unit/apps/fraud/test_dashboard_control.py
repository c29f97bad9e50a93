"""The control group on the page, beside a count of random worlds by hand."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from millrace.dashboard.data import AppData
from millrace.dashboard.views import Note, Numbers
from millrace.experiments.shares import share_interval
from millrace.runtime.settings import load_settings
from millrace_apps.fraud.app import app as fraud
from millrace_apps.fraud.dashboard import page as dashboard
from millrace_apps.fraud.dashboard.control_group import figures
from tests.unit.millrace.dashboard.cases import Clock, panel_of, put

DAY = 86_400_000
NOW = 100 * DAY
SCHEMA = pa.schema([
    ("transaction_id", pa.string()), ("event_time_ms", pa.int64()), ("action", pa.string()),
    ("control_group", pa.bool_()), ("reasons", pa.list_(pa.struct([("code", pa.string())]))),
    ("amount", pa.float64()), ("billing_amount", pa.float64()), ("billing_currency", pa.string()),
    ("card_id", pa.string()), ("kind", pa.string()), ("score", pa.float64()),
])  # fmt: skip


def world(seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Decisions, labels and authorisations; the newest decision is of now."""
    random = Random(seed)
    rows, labels, responses = [], [], []
    for n in range(random.randrange(40, 200)):
        at = NOW - random.randrange(20 * DAY) if n else NOW
        let = random.random() < 0.3
        foreign = random.random() < 0.3
        name = f"t{n}"
        rows.append(
            {
                "transaction_id": name, "event_time_ms": at,
                "action": random.choice(["approve", "review"] if let else ["block", "approve"]),
                "control_group": let or random.choice([False, None]),
                "reasons": [] if let else [{"code": random.choice(["SPREE", "BLOCK_LIST"])}],
                "amount": 1_000.0, "billing_amount": random.choice([None, 7.5, 7.5]) if foreign else None,
                "billing_currency": "EUR" if foreign else "",
                "card_id": "c", "kind": "purchase", "score": 0.9,
            }
        )  # fmt: skip
        for k in range(random.choice([0, 0, 0, 1, 2])):
            labels.append(
                {"transaction_id": name, "transaction_time_ms": at, "is_fraud": random.random() < 0.7,
                 "event_time_ms": at + random.randrange(1, 9 * DAY), "label_id": f"l{n}-{k}", "card_id": "c"}
            )  # fmt: skip
        if random.random() < 0.4:
            status = random.choice(["declined", "approved", "captured"])
            responses.append({"transaction_id": name, "event_time_ms": at + 1, "status": status})
    return rows, labels, responses


@pytest.mark.parametrize("seed", range(25))
def test_the_control_group_is_what_counting_by_hand_gives(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    rows, labels, responses = world(seed)
    for made, table, schema in (
        (rows, "transactions", SCHEMA),
        (labels, "labels", None),
        (responses, "authorisations", None),
    ):
        random.shuffle(made)
        for at in range(0, len(made), 30):
            put(tmp_path, table, made[at : at + 30], schema)
    settings = load_settings(fraud.settings, app="fraud", env={}, overrides=["decisions.control_share=0.1"])
    now = max([NOW, *(label["event_time_ms"] for label in labels)])
    data = AppData(fraud, settings, tmp_path, Clock(now + DAY), dashboard.page.folders)
    found = figures(data, dashboard.case_settings())
    assert found is not None
    newest: dict[str, dict[str, Any]] = {}
    for label in sorted(labels, key=lambda x: x["event_time_ms"]):
        newest[label["transaction_id"]] = label
    declined = {r["transaction_id"] for r in responses if r["status"] == "declined"}
    stopped = [
        r
        for r in rows
        if r["control_group"] or (r["action"] == "block" and r["reasons"][0]["code"] != "BLOCK_LIST")
    ]
    let = [r for r in stopped if r["control_group"]]
    frauds, genuine, young, amount = 0, 0, 0, 0.0
    for row in let:
        said = newest.get(row["transaction_id"])
        if now - row["event_time_ms"] < 7 * DAY:
            young += said is not None or row["transaction_id"] not in declined
        elif said is not None and said["is_fraud"]:
            frauds += 1
            amount += (row["billing_amount"] or 0.0) if row["billing_currency"] else row["amount"]
        elif said is not None or row["transaction_id"] not in declined:
            genuine += 1
    assert (found.stopped, found.let_through) == (len(stopped), len(let))
    assert (found.frauds, found.genuine, found.young) == (frauds, genuine, young)
    assert found.fraud_amount == pytest.approx(amount)
    told = frauds + genuine
    assert found.share == (frauds / told if told else None)
    assert (found.low, found.high) == (share_interval(frauds, told) or (None, None))
    view = panel_of(dashboard.page, data, "control-group")
    assert isinstance(view, Numbers)
    shown = {n.label: n.value for n in view.items}
    assert shown["frauds, estimated"] == (round(frauds / told * len(stopped), 1) if told else None)


def test_a_control_group_that_is_off_or_empty_is_told(tmp_path: Path) -> None:
    rows = [{**row, "control_group": False} for row in world(1)[0]]
    put(tmp_path, "transactions", rows, SCHEMA)
    for share, said in (("0", "off: decisions.control_share is 0"), ("0.1", "nothing was let through yet")):
        settings = load_settings(
            fraud.settings, app="fraud", env={}, overrides=[f"decisions.control_share={share}"]
        )
        data = AppData(fraud, settings, tmp_path, Clock(NOW + DAY), dashboard.page.folders)
        view = panel_of(dashboard.page, data, "control-group")
        assert isinstance(view, Note)
        assert said in view.text
