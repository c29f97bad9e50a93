"""One card: its decisions with their features, its cases, what is known of its transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from millrace.dashboard.data import AppData
from millrace.dashboard.values import cell
from millrace.dashboard.views import (
    Cell,
    Column,
    Number,
    Numbers,
    Series,
    Table,
    TimeSeries,
    Titled,
    Tone,
)
from millrace_apps.fraud.cases.app import FraudCasesSettings
from millrace_apps.fraud.cases.store import NoCase, case_view
from millrace_apps.fraud.dashboard.data import billed, labels
from millrace_apps.fraud.dashboard.entity import entity, picture
from millrace_apps.fraud.dashboard.links import KINDS

_MOST: Final = 100
#: Columns of a decision that are no features of the card.
_NO_FEATURES: Final = frozenset(
    (
        "transaction_id", "card_id", "terminal_id", "mcc", "country", "currency", "kind", "event_time_ms",
        "score", "action", "reasons", "amount", "rules", "shadow_rules", "rules_version", "rule_action",
        "model_version", "features_version", "windows", "customer_id", "account_id", "merchant_id", "channel",
        "device_id", "ip", "address_id",
    )
)  # fmt: skip


def detail(data: AppData, key: str, settings: FraudCasesSettings) -> list[Titled]:
    """Return what is shown of a key: a card, or by its beginning a case or another entity.

    Args:
        data: The app's data.
        key: A card, a case, or kind and name: ``device:…``, ``ip:…``, ``terminal:…``, ``merchant:…``.
        settings: The settings of the case work.
    """
    found = card(data, key, settings)
    if found:
        return found
    kind, _, name = key.partition(":")
    if name and kind in KINDS:
        return card(data, name, settings) if kind == "card" else entity(data, kind, name, settings)
    view = case_view(data, settings) if key.startswith("case-") else None
    if view is None:
        return []
    try:
        return card(data, view.find(key).case.card_id, settings)
    except NoCase:
        return []


def card(data: AppData, key: str, settings: FraudCasesSettings) -> list[Titled]:
    """Return what is shown of a card; empty where there is none.

    Args:
        data: The app's data.
        key: The card.
        settings: The settings of the case work.
    """
    table = data.table("transactions")
    rows = [] if table is None else table.where("card_id", key, limit=5_000).to_pylist()
    rows.sort(key=lambda r: r["event_time_ms"])
    found: list[Titled] = []
    view = case_view(data, settings)
    cases = [] if view is None else view.of_card(key)
    if cases:
        found.append(Titled("Cases", _cases(cases)))
    if rows:
        amounts = [(r["event_time_ms"], billed(r)) for r in rows if r["kind"] == "purchase"]
        scores = [(r["event_time_ms"], float(r["score"])) for r in rows]
        found += picture(data, "card", key, settings)
        found.append(Titled("History", _decisions(rows[-_MOST:], labels(data, settings), len(rows) - _MOST)))
        found.append(Titled("Purchases", TimeSeries(series=(Series("amount", amounts),), kind="money",
                                                    clock="event time")))  # fmt: skip
        found.append(Titled("Score", TimeSeries(series=(Series("score", scores),), clock="event time")))
        found.append(Titled("Features at its last transaction", features(rows[-1])))
    return found


def _decisions(rows: list[dict[str, Any]], known: Mapping[str, Any], more: int) -> Table:
    columns = (
        Column("time", "time"), Column("amount", "money"), Column("as it came"), Column("kind"),
        Column("where"), Column("score"), Column("action"), Column("reasons: value (usual)"), Column("label"),
    )  # fmt: skip
    tones: dict[str, Tone] = {"block": "bad", "review": "warn"}
    lines: list[list[Cell]] = []
    for row in reversed(rows):
        label = known.get(row["transaction_id"])
        why = "; ".join(
            f"{r['code']} {_short(r['value'])} ({_short(r['baseline'])})" for r in row.get("reasons") or ()
        )
        where = " ".join(str(row[c]) for c in ("country", "terminal_id") if row.get(c))
        said = "" if label is None else "fraud" if label.is_fraud else "genuine"
        lines.append(
            [
                row["event_time_ms"],
                billed(row),
                _charged(row),
                row["kind"],
                where,
                f"{row['score']:.2f}",
                row["action"],
                why,
                said,
            ]
        )
    shades = [tones.get(row["action"], "plain") for row in reversed(rows)]
    return Table(columns=columns, rows=lines, tones=shades, more=max(0, more))


def _charged(row: Mapping[str, Any]) -> str:
    """Return the amount in the currency that it came in, where that is another one."""
    currency = row.get("currency") or ""
    is_other = row.get("billing_currency") and currency != row["billing_currency"]
    return f"{row['amount']:,.10g} {currency}" if is_other else ""


def _cases(cases: list[Any]) -> Table:
    columns = (
        Column("case"), Column("status"), Column("opened", "time"), Column("alerts", "count"),
        Column("amount", "money"), Column("priority", "money"), Column("decided by"), Column("note"),
    )  # fmt: skip
    rows = [
        [r.case.case_id, r.case.status, r.case.opened_ms, r.case.alerts, r.case.amount, r.case.priority,
         r.case.verdict_by, r.case.note]
        for r in cases
    ]  # fmt: skip
    return Table(columns=columns, rows=rows)


def features(row: Mapping[str, Any]) -> Numbers:
    """Return the features of a decision, those in structs led by the struct's name.

    >>> [n.label for n in features({"amount": 5.0, "count_1h": 3, "card": {"gap_s": 7.0}}).items]
    ['count 1h', 'card gap s']
    """
    items = []
    for name, value in row.items():
        if name.startswith("_") or name in _NO_FEATURES:
            continue
        parts = value.items() if isinstance(value, dict) else [("", value)]
        for part, one in parts:
            if isinstance(one, bool | int | float | None):
                label = f"{name} {part}".strip().replace("_", " ")
                items.append(
                    Number(label=label, value=cell(round(one, 3) if isinstance(one, float) else one))
                )
    return Numbers(tuple(items))


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
