"""The fraud app's demo: what is sent, what is shown, and what must come out of it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Final

import msgspec

from millrace.console.live_panels import AlertLine
from millrace.console.report import Check, equal, same
from millrace.demo import DemoRun, DemoSpec
from millrace.runtime.commands import app_rows
from millrace_apps.fraud.contracts.events import Alert, to_cents
from millrace_apps.fraud.evaluation.ledger import Ledger, read_ledger
from millrace_apps.fraud.settings import FraudSettings

#: Kinds of transactions, and of frauds, that the generator sends.
KINDS: Final = ("purchase", "refund", "top_up")
SCENARIOS: Final = ("amount_spike", "card_testing", "spree")
#: Share of the complete fraud episodes that must raise an alert, and of what is genuine that may.
_CAUGHT: Final = 0.9
_FALSE: Final = 0.005
#: What was sent so long after another, by the clock of the events, is read after it, ms.
_APART_MS: Final = 120_000
_decode_alert = msgspec.json.Decoder(Alert).decode


def settings(run_id: str) -> list[str]:
    """Return settings for the run: topics of its own on a broker that others use."""
    names = FraudSettings().topics
    topics = ("transactions", "labels", "authorisations", "control", "alerts", "dead_letters", "erasures")
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
    decided = app_rows(run.folder, "transactions", ["transaction_id", "kind", "amount", "action"])
    aside = app_rows(run.folder, "late", ["event", "watermark_ms"])
    late = [row["event"] for row in aside]
    reasons = Counter(row["reason"] for row in app_rows(run.folder, "dead_letters", ["reason"]))
    alerts = app_rows(run.folder, "alerts", ["transaction_id", "_event_id"])
    said = [row["label_id"] for row in app_rows(run.folder, "labels", ["label_id"])]
    ids = [row["transaction_id"] for row in (*decided, *late)]
    alerted = {row["transaction_id"] for row in alerts}
    broken = sum(reasons[name] for name in ("malformed", "schema", "range"))
    summary = ledger.summary
    sums, amounts = summary.amount_cents, _cents([*decided, *late])
    return [
        equal("events sent = rows in transactions + late", summary.valid_unique, len(ids)),
        equal("no transaction twice", 0, len(ids) - len(set(ids)), of=len(ids)),
        *(
            equal(f"sum of {kind}s, cents", sums.get(kind, 0), amounts[kind])
            for kind in sorted({*KINDS, *sums, *amounts})
        ),
        equal("repeats in dead letters", summary.duplicates, reasons["duplicate"]),
        equal("malformed in dead letters", summary.malformed, broken),
        equal("no other dead letters", summary.duplicates + summary.malformed, reasons.total()),
        _late(ledger, aside),
        same("alerts on the topic = rows in alerts", {row["_event_id"] for row in alerts}, alert_ids),
        equal("no alert twice", 0, len(alerts) - len(alerted), of=len(alerts)),
        same(
            "alerts = transactions to be looked at",
            {row["transaction_id"] for row in decided if row["action"] != "approve"},
            alerted,
        ),
        equal("labels sent = rows in labels", summary.labels, len(said)),
        equal("no label twice", 0, len(said) - len(set(said)), of=len(said)),
        *_caught(ledger, alerted, len(decided)),
    ]


def _late(ledger: Ledger, aside: Sequence[dict[str, Any]]) -> Check:
    """Return whether those were set aside that the watermark had passed, and nobody else.

    How far the watermark is when an event comes hangs on the batches, the first of which waits for Spark. But
    a row in ``late`` says how far it was then, and it does not go back: what was sent after it and is older
    than that must be there, too.
    """
    sent = {fault.transaction_id: fault for fault in ledger.faults if fault.kind == "late"}
    found = {row["event"]["transaction_id"] for row in aside}
    early = sum(row["event"]["event_time_ms"] > row["watermark_ms"] for row in aside)
    known = sorted((sent[name].sent_ms, row["watermark_ms"]) for row in aside
                   if (name := row["event"]["transaction_id"]) in sent)  # fmt: skip
    reached = list(accumulate((mark for _, mark in known), max))
    due = set()
    for name, fault in sent.items():
        before = bisect_left(known, (fault.sent_ms - _APART_MS,))
        if before and fault.event_time_ms <= reached[before - 1]:
            due.add(name)
    wrong = len(found - sent.keys()) + len(due - found) + early
    said = f"{len(found):,}" if not wrong else f"{len(found):,}, {wrong:,} wrong"
    expected = f"{max(len(due), min(1, len(sent))):,} to {len(sent):,}"
    return Check(
        "late events set aside, no other",
        expected,
        said,
        not wrong and bool(found or not sent),
        "late is what the watermark had passed when it came",
        compared=len(sent),
    )


def _cents(rows: Sequence[dict[str, Any]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for row in rows:
        sums[row["kind"]] += to_cents(row["amount"])
    return sums


def _caught(ledger: Ledger, alerted: set[str], decided: int) -> list[Check]:
    """Return a check per fraud scenario, and one for alerts that belong to no fraud."""
    found = []
    for scenario in SCENARIOS:
        episodes = [t for t in ledger.episodes if t.scenario == scenario]
        caught = sum(1 for t in episodes if alerted & set(t.transaction_ids))
        enough = caught >= _CAUGHT * len(episodes)
        wanted = f"at least {_CAUGHT:.0%} of {len(episodes)}"
        found.append(Check(f"caught: {scenario}", wanted, caught, enough, compared=len(episodes)))
    frauds = {i for t in ledger.truths for i in t.transaction_ids}
    false = len(alerted - frauds)
    share = false / max(1, decided - len(frauds))
    found.append(
        Check(
            "false alarms",
            f"at most {_FALSE:.1%} of what is genuine",
            f"{false} ({share:.2%})",
            share <= _FALSE,
            compared=len(alerted),
        )
    )
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
