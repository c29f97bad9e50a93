"""A folder as the fraud app leaves it, small and seeded: decisions, alerts, labels, models, rules."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from millrace.operations.control_topic import append_audit
from millrace_apps.fraud.contracts.control_events import Propose, SetThreshold
from tests.unit.millrace.dashboard.cases import put, put_checkpoint

START_MS = 1_767_225_600_000
MINUTE = 60_000
REASON = pa.struct(
    [("code", pa.string()), ("value", pa.float64()), ("baseline", pa.float64()), ("limit", pa.float64()),
     ("weight", pa.float64())]
)  # fmt: skip
FEATURES = pa.struct([("gap_s", pa.float64()), ("count_10m", pa.int64()), ("new_device", pa.bool_())])
DECISION = pa.schema(
    [
        ("transaction_id", pa.string()), ("card_id", pa.string()), ("terminal_id", pa.string()),
        ("country", pa.string()), ("amount", pa.float64()), ("kind", pa.string()),
        ("event_time_ms", pa.int64()), ("mean_before", pa.float64()), ("count_1h", pa.int64()),
        ("sum_24h", pa.float64()), ("balance", pa.float64()), ("card", FEATURES), ("score", pa.float64()),
        ("action", pa.string()), ("reasons", pa.list_(REASON)), ("rules", pa.list_(pa.string())),
        ("shadow_rules", pa.list_(pa.string())), ("model_score", pa.float64()),
        ("model_version", pa.string()), ("device_id", pa.string()), ("ip", pa.string()),
        ("merchant_id", pa.string()), ("control_group", pa.bool_()), ("mcc", pa.string()),
        ("currency", pa.string()),
    ]
)  # fmt: skip
ALERT = pa.schema([DECISION.field(n) for n in (
    "card_id", "transaction_id", "event_time_ms", "amount", "score", "action", "reasons", "rules",
    "terminal_id",
)])  # fmt: skip
CODES = ("CARD_TESTING", "SPREE", "AMOUNT_DEVIATION", "VELOCITY_1M", "GEO_VELOCITY", "NEW_DEVICE")
SPREE = {"code": "SPREE", "value": 9.0, "baseline": 1.5, "limit": 4.0, "weight": 0.5}
#: A card whose name is what an attacker would wish it to be.
EVIL = "<img src=x onerror=window.harmed=1>"


def decisions(
    seed: int, number: int, *, start: int = START_MS, drifted: bool = False
) -> list[dict[str, Any]]:
    """Decisions of a few hours; 3 % of them are alerts."""
    random = Random(seed)
    found = []
    for n in range(number):
        suspicious = random.random() < 0.03
        score = round(random.uniform(0.5, 0.99) if suspicious else random.random() * 0.2, 3)
        action = "approve" if not suspicious else "block" if score > 0.85 else "review"
        card = (
            random.choice(("card-0007", "card-0042", EVIL))
            if suspicious
            else f"card-{random.randrange(200):04}"
        )
        codes = random.sample(CODES, random.randrange(1, 4)) if suspicious else []
        found.append(
            {
                "transaction_id": f"tx-{seed}-{n:06}", "card_id": card,
                "terminal_id": f"term-{random.randrange(50)}",
                "country": "DE", "amount": round(random.lognormvariate(5.5 if drifted else 3.5, 1), 2),
                "kind": "purchase", "event_time_ms": start + n * MINUTE // 4, "mean_before": 40.0,
                "count_1h": random.randrange(5), "sum_24h": 90.5, "balance": 250.0,
                "card": {"gap_s": 12.5, "count_10m": 2, "new_device": suspicious}, "score": score,
                "action": action, "reasons": [{**SPREE, "code": code} for code in codes],
                "rules": ["night-spree@2"] if "SPREE" in codes else [],
                "shadow_rules": ["new-shop@1"] if random.random() < 0.05 else [],
                "model_score": score, "model_version": "3",
                **_used(n, suspicious), "mcc": "5411", "currency": "EUR",
                "control_group": action == "review" and n % 3 == 0,
            }
        )  # fmt: skip
    return found


def _used(n: int, suspicious: bool) -> dict[str, str | None]:
    """What a payment was made with: half of them at a terminal, and a shop of several terminals."""
    device = (EVIL if n % 2 else "device-shared") if suspicious else f"device-{n % 97}" if n % 2 else None
    return {"device_id": device, "ip": device and f"10.0.0.{n % 89}", "merchant_id": f"shop-{n % 7}"}


def put_decisions(root: Path, rows: list[dict[str, Any]]) -> None:
    """Append decisions, and the alerts among them."""
    put(root, "transactions", rows, DECISION)
    raised = [row for row in rows if row["action"] != "approve"]
    if raised:
        put(root, "alerts", [{f.name: row[f.name] for f in ALERT} for row in raised], ALERT)


def put_labels(root: Path, rows: list[dict[str, Any]], *, fraud_share: float = 0.7) -> None:
    """Append labels of the first half of the alerts, and of one fraud that nobody alerted on."""
    random = Random(5)
    raised = [row for row in rows if row["action"] != "approve"]
    quiet = next(row for row in rows if row["action"] == "approve")
    known = [(row, random.random() < fraud_share) for row in raised[: len(raised) // 2]] + [(quiet, True)]
    put(
        root,
        "labels",
        [
            {
                "label_id": f"l-{row['transaction_id']}", "transaction_id": row["transaction_id"],
                "transaction_time_ms": row["event_time_ms"], "card_id": row["card_id"], "is_fraud": fraud,
                "event_time_ms": row["event_time_ms"] + random.randrange(10, 600) * MINUTE,
                "source": "feedback",
            }
            for row, fraud in known
        ],
    )  # fmt: skip


def fraud_folder(root: Path, *, number: int = 1_500) -> list[dict[str, Any]]:
    """Write everything that the page can show; return the decisions."""
    rows = decisions(1, number // 2)
    rows += decisions(2, number - number // 2, start=rows[-1]["event_time_ms"] + MINUTE, drifted=True)
    for at in range(0, number, 250):
        put_decisions(root, rows[at : at + 250])
    put_labels(root, rows)
    put(root, "dead_letters", [{"reason": r, "value": b"x"} for r in ("duplicate", "schema", "duplicate")])
    put(root, "late", [{"lateness_ms": 5}])
    put(root, "model_metrics", [
        {"at_ms": START_MS + day * 86_400_000, "role": role, "model_version": v, "ap": ap + day / 100}
        for day in range(8) for role, v, ap in (("champion", "3", 0.70), ("challenger", "4", 0.73))
    ])  # fmt: skip
    asked = Propose("c-1", [SetThreshold("block_score", 0.8)], "ann", START_MS, "wrong blocks")
    append_audit(root / "tables" / "rule_audit", [asked])
    put_checkpoint(root, {"fraud.transactions": {"0": number}}, batch=6, watermark=rows[-1]["event_time_ms"])
    put_checkpoint(root / "cases", {"fraud.alerts": {"0": 5}}, batch=2, watermark=START_MS)
    return rows
