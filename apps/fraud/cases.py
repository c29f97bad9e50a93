"""The case book: alerts of one card become one case, which an analyst's disposition closes.

::

    alerts       a1   a2          a3                     a4        gap 24 h
    case         |-- c1 (a1, a2, a3) ---- fraud |        |-- followed, no new case (within 7 days)
    dispositions                          d1
    labels                                l(a1) l(a2) l(a3)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from apps.fraud.cases_events import (
    ONE_QUEUE,
    AlertReason,
    AlertSeen,
    Case,
    CaseLabel,
    CaseReason,
    CaseTransaction,
    Disposition,
    Status,
)
from millrace import Context, KeyedProcess, Timer, map_state, side_output
from millrace.errors import UserError

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
#: Reasons shown of a case.
_MOST_REASONS = 8


class CaseRules(msgspec.Struct, frozen=True):
    """How alerts become cases.

    Attributes:
        gap_ms: An alert within this of the case's last one belongs to it, ms.
        open_for_ms: A case that nobody decided on expires this long after its last alert, ms.
        followed_ms: Alerts of a card go to a case that was found to be fraud for this long, ms: the card is
            blocked, nobody needs to look again.
        kept_ms: A decided case can be decided otherwise for this long, ms.
        most_alerts: A case with so many alerts takes no more; the next one opens another.
        exposure: What a card in foreign hands is going to lose beyond what was alerted, currency units.
        least_review: Suspicion of an alert to review: what a rule says alone has no score of its own.
        least_block: The same of an alert to block.
    """

    gap_ms: int = _DAY_MS
    open_for_ms: int = 7 * _DAY_MS
    followed_ms: int = 7 * _DAY_MS
    kept_ms: int = 30 * _DAY_MS
    most_alerts: int = 50
    exposure: float = 250.0
    least_review: float = 0.3
    least_block: float = 0.6

    def __post_init__(self) -> None:
        if min(self.gap_ms, self.open_for_ms, self.followed_ms, self.kept_ms, self.most_alerts) < 1:
            raise CaseRefused("every length of time and number of the case rules is at least 1")
        if self.followed_ms > self.kept_ms:
            raise CaseRefused("a case cannot be followed for longer than it is kept")

    def suspicion(self, alert: AlertSeen) -> float:
        """Return how suspicious an alert is: the highest of what reasons, a model and its action say.

        >>> CaseRules().suspicion(AlertSeen("card-1", "tx-1", 0, 9.0, 0.0, "block", model_score=0.7))
        0.7
        """
        least = self.least_block if alert.action == "block" else self.least_review
        return max(alert.score, alert.model_score or 0.0, least)

    def priority(self, score: float, amount: float) -> float:
        """Return what is expected to be saved by looking at a case, in currency units.

        >>> CaseRules(exposure=250.0).priority(0.8, 50.0)
        240.0
        """
        return round(score * (amount + self.exposure), 2)


class CaseRefused(UserError):
    """A disposition that cannot be taken; the event goes to the dead letters with this message."""


class KeptCase(msgspec.Struct):
    """A case as it is kept in state.

    Attributes:
        customer_id: Holder of the card, if known.
        status: Where it stands.
        opened_ms: Time of its first alert.
        last_ms: Time of its last alert.
        transactions: Its alerted transactions.
        reasons: Code → in how many alerts, with the last values.
        revision: Counts the changes.
        verdict_by: Who decided.
        verdict_ms: When.
        note: What was noted.
        dispositions: Identities of the dispositions that were taken.
    """

    customer_id: str | None
    status: Status
    opened_ms: int
    last_ms: int
    transactions: list[CaseTransaction]
    reasons: dict[str, CaseReason]
    revision: int = 0
    verdict_by: str | None = None
    verdict_ms: int | None = None
    note: str = ""
    dispositions: list[str] = msgspec.field(default_factory=list)


def case_id_of(card_id: str, transaction_id: str) -> str:
    """Return the identity of the case that a card's alert opens: the same in every run.

    >>> case_id_of("card-1", "tx-7") == case_id_of("card-1", "tx-7") != case_id_of("card-2", "tx-7")
    True
    """
    return "case-" + hashlib.blake2b(f"{card_id}\x00{transaction_id}".encode(), digest_size=8).hexdigest()


class CaseBook(KeyedProcess[AlertSeen | Disposition, Case]):
    """Keeps the cases of a card.

    Every change emits the whole case with a higher revision. A disposition emits a label for each of the
    case's transactions; one that says otherwise than an earlier one emits corrections. An alert behind the
    watermark still enters its card's case: what was seen must be looked at, however late.

    Args:
        rules: How alerts become cases.
    """

    # A disposition stands after the alerts that it is about, an expiry between them: exact order.
    order = "event_time"
    inputs: ClassVar[dict[str, Any]] = {"alerts": AlertSeen, "dispositions": Disposition}

    cases = map_state(str, KeptCase)
    #: The same as main: of a chain's link, main is what the next one reads, and is no output.
    book = side_output(Case)
    labels = side_output(CaseLabel)

    def __init__(self, rules: CaseRules | None = None) -> None:
        self.rules = rules or CaseRules()

    def process(self, event: AlertSeen | Disposition, ctx: Context) -> None:
        """Take an alert, or an analyst's disposition."""
        if isinstance(event, AlertSeen):
            self._alert(event, ctx)
        else:
            self._decide(event, ctx)

    def on_late(self, event: AlertSeen | Disposition, ctx: Context) -> None:
        """Take what comes late as well."""
        self.process(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Let a case expire that nobody decided on; forget one that was decided on long ago."""
        case_id = timer.name
        case = self.cases.get(case_id)
        if case is None:
            return
        if case.status != "open":
            self.cases.remove(case_id)
            return
        case.status = "expired"
        self._emit(case_id, case, ctx, timer.at)
        self.cases.remove(case_id)

    def _alert(self, alert: AlertSeen, ctx: Context) -> None:
        found = self._case_of(alert)
        if found is None:
            case_id = case_id_of(ctx.key, alert.transaction_id)
            case = KeptCase(alert.customer_id, "open", alert.event_time_ms, alert.event_time_ms, [], {})
        else:
            case_id, case = found
        told = CaseTransaction(
            alert.transaction_id,
            alert.event_time_ms,
            alert.worth,
            self.rules.suspicion(alert),
            alert.action,
            alert.terminal_id or "",
        )
        for known in case.transactions:
            if known.transaction_id == told.transaction_id:
                what = f"alert of transaction {told.transaction_id} has come before"
                if known.event_time_ms == told.event_time_ms and known.amount == told.amount:
                    ctx.dead_letter("duplicate", what)
                else:
                    ctx.dead_letter("conflict", f"{what}, and said something else")
                return
        case.transactions.append(told)
        case.opened_ms = min(case.opened_ms, alert.event_time_ms)
        case.last_ms = max(case.last_ms, alert.event_time_ms)
        case.reasons = _with_reasons(case.reasons, alert.reasons)
        if case.status == "open":
            ctx.timers.at(case.last_ms + self.rules.open_for_ms, case_id)
        self._emit(case_id, case, ctx, max(ctx.event_time, case.last_ms))

    def _case_of(self, alert: AlertSeen) -> tuple[str, KeptCase] | None:
        """Return the case that an alert belongs to: one that has it, is near enough, or is followed."""
        near: tuple[str, KeptCase] | None = None
        for case_id, case in self.cases.items():
            if any(t.transaction_id == alert.transaction_id for t in case.transactions):
                return case_id, case
            if len(case.transactions) < self.rules.most_alerts and self._takes(case, alert.event_time_ms):
                near = case_id, case
        return near

    def _takes(self, case: KeptCase, at_ms: int) -> bool:
        if case.status == "open":
            return case.opened_ms - self.rules.gap_ms <= at_ms <= case.last_ms + self.rules.gap_ms
        decided = case.verdict_ms or 0
        return case.status == "fraud" and case.opened_ms <= at_ms <= decided + self.rules.followed_ms

    def _decide(self, said: Disposition, ctx: Context) -> None:
        case = self.cases.get(said.case_id)
        if case is None:
            raise CaseRefused(f"card {ctx.key} has no case {said.case_id}, or it expired")
        if said.disposition_id in case.dispositions:
            what = f"disposition {said.disposition_id} has come before"
            newest = case.dispositions[-1] == said.disposition_id
            if newest and (case.status, case.verdict_by, case.verdict_ms, case.note) != (
                said.verdict, said.by, said.at_ms, said.note,
            ):  # fmt: skip
                ctx.dead_letter("conflict", f"{what}, and said something else")
            else:
                ctx.dead_letter("duplicate", what)
            return
        if said.verdict == "unclear" and case.status != "open":
            raise CaseRefused(f"case {said.case_id} is decided: only fraud or genuine replace a verdict")
        if said.verdict != "unclear":
            self._label(case, said, ctx)
        case.status = said.verdict
        case.verdict_by, case.verdict_ms, case.note = said.by, said.at_ms, said.note
        case.dispositions.append(said.disposition_id)
        ctx.timers.at(max(ctx.event_time, said.at_ms) + self.rules.kept_ms, said.case_id)
        self._emit(said.case_id, case, ctx, said.at_ms)

    def _label(self, case: KeptCase, said: Disposition, ctx: Context) -> None:
        """Emit a label for every transaction that has none, and a correction where one says otherwise."""
        before = case.status if case.status in ("fraud", "genuine") else None
        labelled = []
        for t in case.transactions:
            if t.label_id and before == said.verdict:
                labelled.append(t)
                continue
            label = CaseLabel(
                f"{said.disposition_id}-{t.transaction_id}",
                said.at_ms,
                t.transaction_id,
                t.event_time_ms,
                ctx.key,
                t.terminal_id or "unknown",
                said.verdict == "fraud",
                "correction" if t.label_id else "feedback",
                t.label_id or None,
            )
            ctx.output(self.labels, label)
            labelled.append(msgspec.structs.replace(t, label_id=label.label_id))
        case.transactions = labelled

    def _emit(self, case_id: str, case: KeptCase, ctx: Context, at_ms: int) -> None:
        case.revision += 1
        self.cases.put(case_id, case)
        amount = round(sum(t.amount for t in case.transactions), 2)
        score = max(t.score for t in case.transactions)
        now = Case(
            case_id,
            ctx.key,
            case.customer_id,
            ONE_QUEUE,
            case.status,
            case.opened_ms,
            at_ms,
            len(case.transactions),
            amount,
            score,
            self.rules.priority(score, amount),
            reasons_of(case.reasons),
            case.transactions,
            case.verdict_by,
            case.verdict_ms,
            case.note,
            case.revision,
        )
        ctx.emit(now)
        ctx.output(self.book, now)


def _with_reasons(kept: dict[str, CaseReason], reasons: Iterable[AlertReason]) -> dict[str, CaseReason]:
    found = dict(kept)
    for reason in reasons:
        before = found[reason.code].alerts if reason.code in found else 0
        found[reason.code] = CaseReason(reason.code, before + 1, reason.value, reason.baseline, reason.beside)
    return found


def reasons_of(kept: dict[str, CaseReason]) -> list[CaseReason]:
    """Return the reasons of a case, the most frequent first, comparisons behind them.

    >>> kept = {c: CaseReason(c, n, 1.0, 1.0, b) for c, n, b in
    ...         [("AMOUNT", 9, True), ("SPREE", 1, False), ("CARD_TESTING", 3, False)]}
    >>> [r.code for r in reasons_of(kept)]
    ['CARD_TESTING', 'SPREE', 'AMOUNT']
    """
    ordered = sorted(kept.values(), key=lambda r: (r.beside, -r.alerts, r.code))
    return ordered[:_MOST_REASONS]
