"""The case book: alerts of one card become one case, which an analyst's disposition closes.

::

    alerts       a1   a2          a3                     a4                 gap 24 h
    case         |-- c1 (a1, a2, a3) ---- fraud          |-- c2, follows c1 (within 7 days)
    dispositions                          d1
    labels                                l(a1) l(a2) l(a3)
    control                               card on the list of blocked ones, by d1, for 30 days

What is said of a case has effects: ``fraud`` blocks the card, ``genuine`` takes that back, and acts unblock
it or let its payments pass for a while. They leave as control events of the decisions' stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from apps.fraud.cases_events import (
    LISTED,
    ONE_QUEUE,
    AlertReason,
    AlertSeen,
    Case,
    CaseAct,
    CaseEvent,
    CaseLabel,
    CaseReason,
    CaseTransaction,
    Disposition,
    Status,
)
from apps.fraud.cases_rules import CaseRefused, CaseRules
from apps.fraud.control_events import Change, Propose
from millrace import Context, KeyedProcess, Timer, map_state, side_output
from millrace.rules import PutListEntry, RemoveListEntry

#: Reasons shown of a case.
_MOST_REASONS = 8
#: Lines of a case's history, and acts whose repeats are known.
_MOST_EVENTS = 50
_MOST_ACTS = 200
#: Leads the names of timers at which claims end.
_CLAIM = "claim:"


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
        queue: The queue it is in.
        follows: The case before it that was found to be fraud.
        claimed_by: Who looks at it now.
        claimed_until_ms: Until when.
        looked_by: Who was the first to look at it.
        looked_ms: When.
        blocked_until_ms: Until when the card is blocked by this case.
        history: Who did what.
        acts: Identity of an act → hash of what it said.
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
    queue: str = ONE_QUEUE
    follows: str | None = None
    claimed_by: str | None = None
    claimed_until_ms: int | None = None
    looked_by: str | None = None
    looked_ms: int | None = None
    blocked_until_ms: int | None = None
    history: list[CaseEvent] = msgspec.field(default_factory=list)
    acts: dict[str, str] = msgspec.field(default_factory=dict)

    def claimed_by_other(self, by: str, at_ms: int) -> bool:
        """Say whether somebody else looks at it at a time."""
        return self.claimed_by not in (None, by) and at_ms < (self.claimed_until_ms or 0)

    def look(self, by: str, at_ms: int) -> None:
        """Note who was the first to look at it."""
        if self.looked_ms is None:
            self.looked_by, self.looked_ms = by, at_ms

    def tell(self, what: str, by: str, at_ms: int, note: str) -> None:
        """Add a line to its history."""
        self.history = [*self.history, CaseEvent(what, by, at_ms, note)][-_MOST_EVENTS:]

    def has_pattern_of(self, alert: AlertSeen) -> bool:
        """Say whether an alert says nothing that its alerts have not said."""
        known = {code for code, reason in self.reasons.items() if not reason.beside}
        most = max(t.amount for t in self.transactions)
        blocked = any(t.action == "block" for t in self.transactions)
        return alert.codes <= known and alert.amount <= most and (blocked or alert.action != "block")


def case_id_of(card_id: str, transaction_id: str) -> str:
    """Return the identity of the case that a card's alert opens: the same in every run.

    >>> case_id_of("card-1", "tx-7") == case_id_of("card-1", "tx-7") != case_id_of("card-2", "tx-7")
    True
    """
    return "case-" + hashlib.blake2b(f"{card_id}\x00{transaction_id}".encode(), digest_size=8).hexdigest()


class CaseBook(KeyedProcess[AlertSeen | Disposition | CaseAct, Case]):
    """Keeps the cases of a card.

    Every change emits the whole case with a higher revision. A disposition emits a label for each of the
    case's transactions; one that says otherwise than an earlier one emits corrections. An alert behind the
    watermark still enters its card's case: what was seen must be looked at, however late.

    What must be done about the card leaves as ``control``: a block at once; what lets payments pass as a
    proposal, which holds at once or waits for a second person, as the decisions' stream is told to have it.

    Args:
        rules: How alerts become cases.
    """

    # A disposition stands after the alerts that it is about, an expiry between them: exact order.
    order = "event_time"
    inputs: ClassVar[dict[str, Any]] = {"alerts": AlertSeen, "dispositions": Disposition, "acts": CaseAct}

    cases = map_state(str, KeptCase)
    #: The same as main: of a chain's link, main is what the next one reads, and is no output.
    book = side_output(Case)
    labels = side_output(CaseLabel)
    control = side_output(PutListEntry | Propose)

    def __init__(self, rules: CaseRules | None = None) -> None:
        self.rules = rules or CaseRules()

    def process(self, event: AlertSeen | Disposition | CaseAct, ctx: Context) -> None:
        """Take an alert, an analyst's disposition, or what else somebody did."""
        if isinstance(event, AlertSeen):
            self._alert(event, ctx)
        elif isinstance(event, Disposition):
            self._decide(event, ctx)
        else:
            self._act(event, ctx)

    def on_late(self, event: AlertSeen | Disposition | CaseAct, ctx: Context) -> None:
        """Take what comes late as well."""
        self.process(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """End a claim; let a case expire that nobody decided on; forget one that was decided on long ago."""
        case_id = timer.name.removeprefix(_CLAIM)
        case = self.cases.get(case_id)
        if case is None:
            return
        if timer.name != case_id:
            case.claimed_by = case.claimed_until_ms = None
            self._emit(case_id, case, ctx, timer.at)
            return
        if case.claimed_until_ms is not None and case.claimed_until_ms > timer.at:
            ctx.timers.at(case.claimed_until_ms, case_id)  # somebody looks at it: not now
            return
        if case.status != "open":
            self.cases.remove(case_id)
            return
        case.status = "expired"
        case.claimed_by = case.claimed_until_ms = None
        ctx.timers.delete(_CLAIM + case_id)
        self._emit(case_id, case, ctx, timer.at)
        self.cases.remove(case_id)

    def _alert(self, alert: AlertSeen, ctx: Context) -> None:
        found = self._case_of(alert)
        least = 0.0
        if found is None:
            case_id = case_id_of(ctx.key, alert.transaction_id)
            follows = self._followed_by(alert.event_time_ms)
            least = 0.0 if follows is None else self.rules.least_followed
            case = KeptCase(alert.customer_id, "open", alert.event_time_ms, alert.event_time_ms, [], {},
                            queue=self.rules.queue_of(alert), follows=follows)  # fmt: skip
        else:
            case_id, case = found
        told = CaseTransaction(
            alert.transaction_id,
            alert.event_time_ms,
            alert.worth,
            max(self.rules.suspicion(alert), least),
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
        if len(case.transactions) >= self.rules.most_alerts:
            return  # what was stopped, or is known to be genuine: the table of alerts has it
        case.transactions.append(told)
        case.opened_ms = min(case.opened_ms, alert.event_time_ms)
        case.last_ms = max(case.last_ms, alert.event_time_ms)
        case.reasons = _with_reasons(case.reasons, alert.reasons)
        if case.status == "open":
            ctx.timers.at(case.last_ms + self.rules.open_for_ms, case_id)
        self._emit(case_id, case, ctx, max(ctx.event_time, case.last_ms))

    def _case_of(self, alert: AlertSeen) -> tuple[str, KeptCase] | None:
        """Return the case that an alert belongs to: one that has it, an open one nearby, a closed one."""
        near: tuple[str, KeptCase] | None = None
        nearest: tuple[bool, int, str] | None = None
        for case_id, case in self.cases.items():
            if any(t.transaction_id == alert.transaction_id for t in case.transactions):
                return case_id, case
            rank = (case.status == "open", case.opened_ms, case_id)
            if self._takes(case, alert) and (nearest is None or rank > nearest):
                near, nearest = (case_id, case), rank
        return near

    def _takes(self, case: KeptCase, alert: AlertSeen) -> bool:
        at = alert.event_time_ms
        if case.status == "open":
            full = len(case.transactions) >= self.rules.most_alerts
            return not full and case.opened_ms - self.rules.gap_ms <= at <= case.last_ms + self.rules.gap_ms
        if at < case.opened_ms:
            return False
        if case.status == "fraud":
            return LISTED in alert.codes and at < (case.blocked_until_ms or 0)
        quiet_until = (case.verdict_ms or 0) + self.rules.quiet_ms
        return case.status == "genuine" and at < quiet_until and case.has_pattern_of(alert)

    def _followed_by(self, at_ms: int) -> str | None:
        """Return the newest case that was found to be fraud, if an alert at a time follows it."""
        found = [
            (case.verdict_ms or 0, case_id)
            for case_id, case in self.cases.items()
            if case.status == "fraud"
            and case.opened_ms <= at_ms <= (case.verdict_ms or 0) + self.rules.followed_ms
        ]
        return max(found)[1] if found else None

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
        _refuse_claimed(said.case_id, case, said.by, said.at_ms)
        if said.verdict != "unclear":
            self._label(case, said, ctx)
        if said.verdict == "fraud":
            self._block(case, said, ctx)
        elif said.at_ms < (case.blocked_until_ms or 0):
            self._take_back(case, said, ctx)
        case.status = said.verdict
        case.verdict_by, case.verdict_ms, case.note = said.by, said.at_ms, said.note
        case.dispositions.append(said.disposition_id)
        case.look(said.by, said.at_ms)
        case.tell(said.verdict, said.by, said.at_ms, said.note)
        self._unclaim(said.case_id, case, ctx)
        kept_until = max(ctx.event_time, said.at_ms) + self.rules.kept_ms
        ctx.timers.at(max(kept_until, case.blocked_until_ms or 0), said.case_id)
        self._emit(said.case_id, case, ctx, said.at_ms)

    def _act(self, act: CaseAct, ctx: Context) -> None:
        case = self.cases.get(act.case_id)
        if case is None:
            raise CaseRefused(f"card {ctx.key} has no case {act.case_id}, or it expired")
        digest = hashlib.blake2b(msgspec.json.encode(act), digest_size=6).hexdigest()
        if (known := case.acts.get(act.act_id)) is not None:
            what = f"act {act.act_id} has come before"
            if known == digest:
                ctx.dead_letter("duplicate", what)
            else:
                ctx.dead_letter("conflict", f"{what}, and said something else")
            return
        if act.what != "contacted":
            _refuse_claimed(act.case_id, case, act.by, act.at_ms)
        if act.what == "claim":
            if case.status != "open":
                raise CaseRefused(f"case {act.case_id} is {case.status}: only open cases are claimed")
            case.claimed_by, case.claimed_until_ms = act.by, act.at_ms + self.rules.claim_ms
            ctx.timers.at(case.claimed_until_ms, _CLAIM + act.case_id)
        elif act.what == "release":
            if case.claimed_by != act.by:
                raise CaseRefused(f"case {act.case_id} is not claimed by {act.by}")
            self._unclaim(act.case_id, case, ctx)
        elif act.what == "verified":
            if case.status == "fraud":
                raise CaseRefused(f"case {act.case_id} is fraud: decide that it is genuine first")
            until = act.at_ms + self.rules.verified_ms
            note = f"case {act.case_id}: the holder stands by the payments"
            entry = PutListEntry("allowed", f"card:{ctx.key}", until, act.by, act.at_ms, note)
            self._propose(entry, act.case_id, act.act_id, ctx)
        elif act.what == "unblock":
            self._unblock(case, act, ctx)
        if act.what != "release":
            case.look(act.by, act.at_ms)
        case.tell(act.what, act.by, act.at_ms, act.note)
        case.acts[act.act_id] = digest
        while len(case.acts) > _MOST_ACTS:
            del case.acts[next(iter(case.acts))]
        self._emit(act.case_id, case, ctx, act.at_ms)

    def _unclaim(self, case_id: str, case: KeptCase, ctx: Context) -> None:
        case.claimed_by = case.claimed_until_ms = None
        ctx.timers.delete(_CLAIM + case_id)

    def _block(self, case: KeptCase, said: Disposition, ctx: Context) -> None:
        """Put the card on the list of blocked ones: what stops payments needs nobody's agreement."""
        if not self.rules.block_ms:
            return
        until = said.at_ms + self.rules.block_ms
        listed_until = max(kept.blocked_until_ms or 0 for kept in self.cases.values())
        case.blocked_until_ms = max(case.blocked_until_ms or 0, until)
        if until > listed_until:
            note = f"case {said.case_id} is fraud"
            ctx.output(self.control, _blocked(until, said, note))

    def _take_back(self, case: KeptCase, said: Disposition, ctx: Context) -> None:
        """Ask for the card to be unblocked, as far as no other case of it is fraud."""
        case.blocked_until_ms = None
        others = [
            (kept.blocked_until_ms or 0, case_id)
            for case_id, kept in self.cases.items()
            if case_id != said.case_id
        ]
        until, other = max(others, default=(0, ""))
        change: Change = RemoveListEntry("blocked", f"card:{ctx.key}", said.by, said.at_ms)
        if until > said.at_ms:
            change = _blocked(until, said, f"case {other} is fraud")
        self._propose(change, said.case_id, said.disposition_id, ctx)

    def _unblock(self, case: KeptCase, act: CaseAct, ctx: Context) -> None:
        """Ask for the card to be unblocked, whichever of its cases blocks it."""
        case.blocked_until_ms = None
        for case_id, kept in list(self.cases.items()):
            if case_id != act.case_id and kept.blocked_until_ms is not None:
                kept.blocked_until_ms = None
                self._emit(case_id, kept, ctx, act.at_ms)
        change = RemoveListEntry("blocked", f"card:{ctx.key}", act.by, act.at_ms)
        self._propose(change, act.case_id, act.act_id, ctx)

    def _propose(self, change: Change, case_id: str, of: str, ctx: Context) -> None:
        """Ask for what lets payments pass."""
        named = f"{case_id}.{hashlib.blake2b(of.encode(), digest_size=6).hexdigest()}"
        event = Propose(named[:64], [change], str(change.by), change.at_ms, f"case {case_id}")
        ctx.output(self.control, event)

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
            case.queue,
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
            case.follows,
            case.claimed_by,
            case.claimed_until_ms,
            case.looked_by,
            case.looked_ms,
            case.blocked_until_ms,
            case.history,
        )
        ctx.emit(now)
        ctx.output(self.book, now)


def _blocked(until_ms: int, said: Disposition, note: str) -> PutListEntry:
    return PutListEntry("blocked", f"card:{said.card_id}", until_ms, said.by, said.at_ms, note)


def _refuse_claimed(case_id: str, case: KeptCase, by: str, at_ms: int) -> None:
    if case.claimed_by_other(by, at_ms):
        raise CaseRefused(f"case {case_id} is claimed by {case.claimed_by}: wait, or have it released")


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
