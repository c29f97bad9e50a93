"""The fraud app's demo: what is sent, what is shown, and what must come out of it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Final

import msgspec

from millrace.console.live_panels import AlertLine
from millrace.console.report import Check, equal, same
from millrace.demo import DemoRun, DemoSpec
from millrace.runtime.commands import app_rows
from millrace.testing.world_ledger import ReadLedger, WorldTruth, read_world_ledger
from millrace_apps.fraud.contracts.events import Alert, to_cents
from millrace_apps.fraud.settings import FraudSettings

#: Kinds of transactions that the generator sends.
KINDS: Final = ("purchase", "refund", "top_up")
#: Kinds of fraud that must raise an alert → whether the card must be known for that. The others change
#: nothing about a purchase, or too little.
SCENARIOS: Final = {
    "card_testing": False,
    "high_amount": True,
    "spree": True,
    "small_then_large": False,
    "account_takeover": True,
    "impossible_travel": False,
    "device_ring": False,
}
#: Reason → the kind of fraud whose alerts must give it: by place, by device, by address.
REASONS: Final = {
    "IMPOSSIBLE_TRAVEL": "impossible_travel",
    "SHARED_DEVICE": "device_ring",
    "NEW_DEVICE": "account_takeover",
    "NEW_ADDRESS": "account_takeover",
}
#: Purchases from which on a card is known: five more than it needs, since some are late or do not count.
_KNOWN: Final = 15
#: Share of the frauds that must raise an alert, or give a reason, and of what is genuine that may.
_CAUGHT: Final = 0.9
_FALSE: Final = 0.005
#: What was sent so long after another, by the clock of the events, is read after it, ms.
_APART_MS: Final = 120_000
#: Of fewer late events than this in a run it may be that none came too late.
_FEW: Final = 25
_COLUMNS: Final = ("transaction_id", "card_id", "device_id", "event_time_ms")
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
        "--cards": 1_200,
        "--fraud-rate": 3,
        # Days of fraud and of trips are minutes here; what takes investigators hours and holders weeks takes
        # half a minute and half an hour.
        "--fraud-scale": 0.004,
        "--label-scale": 0.001,
        "--authorised": 0.1,
        "--bootstrap": run.bootstrap,
        "--partitions": run.settings.topics.partitions,
        "--ledger": run.ledger,
    }
    topics = run.settings.topics
    named = [f"{name}={getattr(topics, name)}" for name in ("transactions", "labels", "authorisations")]
    return [
        "fraud", "--quiet", *(str(part) for pair in arguments.items() for part in pair),
        *(part for name in named for part in ("--topic", name)),
    ]  # fmt: skip


def alert_line(value: bytes) -> AlertLine:
    """Return what is shown of an alert."""
    alert = _decode_alert(value)
    at = datetime.fromtimestamp(alert.event_time_ms / 1000, UTC)
    reasons = ", ".join(r.code for r in alert.reasons)
    return AlertLine(f"{at:%H:%M:%S}", alert.card_id, reasons, alert.score, f"{alert.amount:,.2f}")


def checks(run: DemoRun, ledger: ReadLedger, alert_ids: set[str]) -> list[Check]:
    """Compare the tables with the ledger.

    Args:
        run: The run.
        ledger: What the generator did.
        alert_ids: Identities of the alerts seen on the topic.
    """
    decided = app_rows(run.folder, "transactions", [*_COLUMNS, "kind", "billing_amount", "action"])
    aside = app_rows(run.folder, "late", ["event", "watermark_ms"])
    late = [row["event"] for row in aside]
    reasons = Counter(row["reason"] for row in app_rows(run.folder, "dead_letters", ["reason"]))
    alerts = app_rows(run.folder, "alerts", ["transaction_id", "_event_id", "reasons"])
    said = [row["label_id"] for row in app_rows(run.folder, "labels", ["label_id"])]
    fates = app_rows(run.folder, "authorisations", ["authorisation_id", "status"])
    told = [row["authorisation_id"] for row in fates]
    ids = [row["transaction_id"] for row in (*decided, *late)]
    alerted = {row["transaction_id"] for row in alerts}
    broken = sum(reasons[name] for name in ("malformed", "schema", "range"))
    summary, faults = ledger.summary, Counter(ledger.summary.faults)
    sums, amounts = summary.sums, _cents(decided, late)
    return [
        equal("events sent = rows in transactions + late", summary.streams["transactions"], len(ids)),
        equal("no transaction twice", 0, len(ids) - len(set(ids)), of=len(ids)),
        *(
            equal(f"sum of {kind}s, cents", sums.get(kind, 0), amounts[kind])
            for kind in sorted({*KINDS, *amounts})
        ),
        equal("repeats in dead letters", faults["duplicate"], reasons["duplicate"]),
        equal("malformed in dead letters", faults["malformed"], broken),
        equal("no other dead letters", faults["duplicate"] + faults["malformed"], reasons.total()),
        _late(ledger, aside),
        same("alerts on the topic = rows in alerts", {row["_event_id"] for row in alerts}, alert_ids),
        equal("no alert twice", 0, len(alerts) - len(alerted), of=len(alerts)),
        same(
            "alerts = transactions to be looked at",
            {row["transaction_id"] for row in decided if row["action"] != "approve"},
            alerted,
        ),
        equal("labels sent = rows in labels", summary.streams["labels"], len(said)),
        equal("no label twice", 0, len(said) - len(set(said)), of=len(said)),
        equal("authorisations sent = rows in authorisations", summary.streams["authorisations"], len(told)),
        equal("no authorisation twice", 0, len(told) - len(set(told)), of=len(told)),
        equal("payments declined", sums.get("declined", 0), Counter(r["status"] for r in fates)["declined"]),
        *_caught(ledger, decided, alerts),
    ]


def _late(ledger: ReadLedger, aside: Sequence[dict[str, Any]]) -> Check:
    """Return whether those were set aside that the watermark had passed, and nobody else.

    How far the watermark is when an event comes hangs on the batches, the first of which waits for Spark. But
    a row in ``late`` says how far it was then, and it does not go back: what was sent after it and is older
    than that must be there, too.
    """
    sent = {f.event_id: f for f in ledger.faults if f.kind == "late" and f.stream == "transactions"}
    found = {row["event"]["transaction_id"] for row in aside}
    early = sum(row["event"]["event_time_ms"] > row["watermark_ms"] for row in aside)
    came_ms = {name: fault.event_time_ms + fault.lateness_ms for name, fault in sent.items()}
    known = sorted((came_ms[name], row["watermark_ms"]) for row in aside
                   if (name := row["event"]["transaction_id"]) in sent)  # fmt: skip
    reached = list(accumulate((mark for _, mark in known), max))
    due = set()
    for name, fault in sent.items():
        before = bisect_left(known, (came_ms[name] - _APART_MS,))
        if before and fault.event_time_ms <= reached[before - 1]:
            due.add(name)
    wrong = len(found - sent.keys()) + len(due - found) + early
    said = f"{len(found):,}" if not wrong else f"{len(found):,}, {wrong:,} wrong"
    # Of so few none may have come behind a watermark.
    few = len(sent) < _FEW and not due
    expected = f"{max(len(due), 0 if few else 1):,} to {len(sent):,}"
    return Check(
        "late events set aside, no other",
        expected,
        said,
        not wrong and (bool(found) or few),
        "late is what the watermark had passed when it came",
        compared=len(sent) if found else 0,
    )


def _cents(decided: Sequence[dict[str, Any]], late: Sequence[dict[str, Any]]) -> Counter[str]:
    """Return kind → sum of what was billed, cents; an amount that was not known is missing."""
    sums: Counter[str] = Counter()
    for row in decided:
        sums[row["kind"]] += to_cents(row["billing_amount"] or 0.0)
    for row in late:
        billed = row["billing_amount"]
        sums[row["kind"]] += to_cents(row["amount"] if billed is None else billed)
    return sums


class _Cards:
    """What had been decided on of a card before a time."""

    def __init__(self, decided: Sequence[dict[str, Any]]) -> None:
        self.first = {row["transaction_id"]: row for row in decided}
        self._times: dict[str, list[int]] = defaultdict(list)
        self._devices: dict[str, int] = {}
        for row in sorted(decided, key=lambda row: row["event_time_ms"]):
            card, at = row["card_id"], row["event_time_ms"]
            if row["kind"] == "purchase":
                self._times[card].append(at)
            if row["device_id"] is not None:
                self._devices.setdefault(card, at)

    def know(self, truth: WorldTruth, *, device: bool = False) -> bool:
        """Whether the card was known when a fraud began, and where that matters had been used by a device."""
        rows = [self.first[name] for name in truth.event_ids if name in self.first]
        if not rows:
            return False
        began = min(rows, key=lambda row: row["event_time_ms"])
        card, at = began["card_id"], began["event_time_ms"]
        used = not device or self._devices.get(card, at) < at
        return used and bisect_left(self._times[card], at) >= _KNOWN


def _whole(truths: Sequence[WorldTruth]) -> Iterator[WorldTruth]:
    """Yield the frauds that were sent whole and undisturbed."""
    for truth in truths:
        if len(truth.event_ids) == truth.detail.get("events") and not truth.disturbed:
            yield truth


def _caught(
    ledger: ReadLedger, decided: Sequence[dict[str, Any]], alerts: Sequence[dict[str, Any]]
) -> list[Check]:
    """Return a check per kind of fraud and per reason, and one for alerts that belong to no fraud."""
    cards = _Cards(decided)
    given = {row["transaction_id"]: {r["code"] for r in row["reasons"] if r["weight"]} for row in alerts}
    whole: dict[str, list[WorldTruth]] = defaultdict(list)
    for truth in _whole(ledger.truths):
        if not SCENARIOS.get(truth.kind) or cards.know(truth):
            whole[truth.kind].append(truth)
    found = [_share(f"caught: {kind}", whole[kind], given.keys()) for kind in SCENARIOS]
    for code, kind in REASONS.items():
        of = [t for t in whole[kind] if code != "NEW_DEVICE" or cards.know(t, device=True)]
        found.append(
            _share(f"told by {code}: {kind}", of, {n for n, codes in given.items() if code in codes})
        )
    frauds = {name for truth in ledger.truths if truth.kind != "wrong_label" for name in truth.event_ids}
    false = len(given.keys() - frauds)
    share = false / max(1, len(decided) - len(frauds))
    found.append(
        Check(
            "false alarms",
            f"at most {_FALSE:.1%} of what is genuine",
            f"{false} ({share:.2%})",
            share <= _FALSE,
            compared=len(given),
        )
    )
    return found


def _share(name: str, truths: Sequence[WorldTruth], ids: Collection[str]) -> Check:
    """Return whether enough frauds have a transaction among some."""
    among = set(ids)
    hit = sum(1 for truth in truths if among & set(truth.event_ids))
    wanted = f"at least {_CAUGHT:.0%} of {len(truths)}"
    return Check(name, wanted, hit, hit >= _CAUGHT * len(truths), compared=len(truths))


#: Checks of what a short run may not have.
SELDOM: Final = frozenset(
    (
        *(f"caught: {kind}" for kind in SCENARIOS),
        *(f"told by {code}: {kind}" for code, kind in REASONS.items()),
    )
)


spec = DemoSpec(
    simulated=True,
    settings=settings,
    generate=generate,
    alert_topic=lambda s: str(s.topics.alerts),
    alert_line=alert_line,
    checks=checks,
    read_ledger=read_world_ledger,
    sent=lambda ledger: int(ledger.summary.sent),
    seldom=SELDOM,
)
