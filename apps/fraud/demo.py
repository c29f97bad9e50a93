"""The fraud app's demo: what is sent, what is shown, and what must come out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from apps.fraud.events import Alert, to_cents
from apps.fraud.ledger import Ledger, read_ledger
from apps.fraud.settings import FraudSettings
from millrace.console.live_panels import AlertLine
from millrace.console.report import Check, equal
from millrace.demo import DemoRun, DemoSpec
from millrace.runtime.commands import app_rows

#: Share of the complete fraud episodes that must raise an alert.
_CAUGHT = 0.9
_decode_alert = msgspec.json.Decoder(Alert).decode


def settings(run_id: str) -> list[str]:
    """Return settings for the run: topics of its own on a broker that others use."""
    names = FraudSettings().topics
    topics = ("transactions", "labels", "control", "alerts", "dead_letters")
    own = [f"topics.{t}={getattr(names, t)}.demo-{run_id}" for t in topics] if run_id else []
    # An hour of event time passes in a minute: two minutes are two seconds between a topic's partitions.
    return [*own, "stream.out_of_orderness=2m"]


def generate(run: DemoRun) -> Sequence[str]:
    """Return the generator's arguments: a minute of clock time is an hour of event time."""
    arguments: dict[str, object] = {
        "--rate": run.rate,
        "--duration": f"{run.duration_s:g}s",
        "--seed": run.seed,
        "--speed": 60,
        "--lateness": "30m",
        "--late": 0.005,
        "--duplicates": 0.01,
        "--malformed": 0.002,
        "--fraud-rate": 0.6,
        # What takes investigators hours and holders weeks takes half a minute and half an hour here.
        "--label-scale": 0.001,
        "--labels-topic": run.settings.topics.labels,
        "--bootstrap": run.bootstrap,
        "--topic": run.settings.topics.transactions,
        "--partitions": run.settings.topics.partitions,
        "--ledger": run.ledger,
    }
    return ["fraud", "--quiet", *(str(part) for pair in arguments.items() for part in pair)]


def alert_line(value: bytes) -> AlertLine:
    """Return what is shown of an alert."""
    alert = _decode_alert(value)
    at = datetime.fromtimestamp(alert.event_time_ms / 1000, UTC)
    reasons = ", ".join(r.code for r in alert.reasons)
    return AlertLine(f"{at:%H:%M:%S}", alert.card_id, reasons, alert.score, f"{alert.amount:,.2f}")


def checks(run: DemoRun, ledger: Ledger, alert_ids: set[str]) -> list[Check]:
    """Compare the tables with the ledger.

    Args:
        run: The run.
        ledger: What the generator did.
        alert_ids: Identities of the alerts seen on the topic.
    """
    decided = app_rows(run.folder, "transactions", ["transaction_id", "kind", "amount"])
    late = [row["event"] for row in app_rows(run.folder, "late", ["event"])]
    reasons = Counter(row["reason"] for row in app_rows(run.folder, "dead_letters", ["reason"]))
    alerts = app_rows(run.folder, "alerts", ["transaction_id", "_event_id"])
    said = {row["label_id"] for row in app_rows(run.folder, "labels", ["label_id"])}
    ids = [row["transaction_id"] for row in (*decided, *late)]
    broken = sum(reasons[name] for name in ("malformed", "schema", "range"))
    summary = ledger.summary
    sums, amounts = summary.amount_cents, _cents([*decided, *late])
    return [
        equal("events sent = rows in transactions + late", summary.valid_unique, len(ids)),
        equal("no transaction twice", 0, len(ids) - len(set(ids))),
        *(
            equal(f"sum of {kind}s, cents", sums.get(kind, 0), amounts[kind])
            for kind in sorted({*sums, *amounts})
        ),
        equal("repeats in dead letters", summary.duplicates, reasons["duplicate"]),
        equal("malformed in dead letters", summary.malformed, broken),
        equal("no other dead letters", summary.duplicates + summary.malformed, reasons.total()),
        _late(summary.late, len(late)),
        equal("alerts on the topic = rows in alerts", len(alerts), len(alert_ids & _identities(alerts))),
        equal("labels sent = rows in labels", summary.labels, len(said)),
        *_caught(ledger, {row["transaction_id"] for row in alerts}),
    ]


def _late(sent: int, found: int) -> Check:
    note = "late is what the watermark had passed when it came"
    return Check("late events set aside", f"at most {sent:,}", f"{found:,}", found <= sent, note)


def _cents(rows: Sequence[dict[str, Any]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for row in rows:
        sums[row["kind"]] += to_cents(row["amount"])
    return sums


def _identities(alerts: Sequence[dict[str, Any]]) -> set[str]:
    return {row["_event_id"] for row in alerts}


def _caught(ledger: Ledger, alerted: set[str]) -> list[Check]:
    """Return a check per fraud scenario, and one for alerts that belong to no fraud."""
    found = []
    for scenario in sorted({t.scenario for t in ledger.episodes}):
        episodes = [t for t in ledger.episodes if t.scenario == scenario and t.complete]
        caught = sum(1 for t in episodes if alerted & set(t.transaction_ids))
        enough = caught >= _CAUGHT * len(episodes)
        found.append(
            Check(f"caught: {scenario}", f"at least {_CAUGHT:.0%} of {len(episodes)}", caught, enough)
        )
    frauds = {i for t in ledger.truths for i in t.transaction_ids}
    false = len(alerted - frauds)
    share = false / max(1, len(alerted))
    found.append(Check("false alarms", "at most 50 % of alerts", f"{false} ({share:.0%})", share <= 0.5))
    return found


spec = DemoSpec(
    simulated=True,
    settings=settings,
    generate=generate,
    alert_topic=lambda s: str(s.topics.alerts),
    alert_line=alert_line,
    checks=checks,
    read_ledger=read_ledger,
    sent=lambda ledger: ledger.summary.sent + ledger.summary.labels,
)
