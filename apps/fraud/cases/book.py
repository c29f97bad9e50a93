"""Case management: alerts of one card or ring become one case, which a disposition closes.

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
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import msgspec

from millrace import Context, KeyedProcess, Timer, map_state, side_output
from millrace.rules import PutListEntry, RemoveListEntry
from millrace_apps.fraud.cases.events import (
    LISTED,
    AlertSeen,
    Case,
    CaseAct,
    CaseLabel,
    CaseTransaction,
    Disposition,
)
from millrace_apps.fraud.cases.kept import KeptCase
from millrace_apps.fraud.cases.rules import CaseRefused, CaseRules
from millrace_apps.fraud.contracts.control_events import MAX_CHANGES, Change, Propose

#: Acts of a case whose repeats are known.
_MOST_ACTS = 200
#: Fields of an act that are not part of what tells two acts apart, where they say nothing.
_LATER_FIELDS = frozenset({"ring", "about", "elsewhere"})
#: Leads the names of timers at which claims end.
_CLAIM = "claim:"


def case_id_of(subject: str, transaction_id: str) -> str:
    """Return the identity of the case that an alert of a card or ring opens: the same in every run.

    >>> case_id_of("card-1", "tx-7") == case_id_of("card-1", "tx-7") != case_id_of("card-2", "tx-7")
    True
    """
    return "case-" + hashlib.blake2b(f"{subject}\x00{transaction_id}".encode(), digest_size=8).hexdigest()


class CaseBook(KeyedProcess[AlertSeen | Disposition | CaseAct, Case]):
    """Keeps the cases of a card, or of a ring: of the cards that have a device or a terminal in common.

    Every change emits the whole case with a higher revision. A disposition emits a label for each of the
    case's transactions; one that says otherwise than an earlier one emits corrections. An alert behind the
    watermark still enters its subject's case: what was seen must be looked at, however late. Which subject an
    alert is of hangs on the alert alone.

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
    control = side_output(PutListEntry | RemoveListEntry | Propose)

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
        ring = self.rules.ring_of(alert)
        found = self._case_of(alert, ring)
        least = 0.0
        if found is None:
            case_id = case_id_of(ctx.key, alert.transaction_id)
            follows = self._followed_by(alert.event_time_ms, ring)
            least = 0.0 if follows is None else self.rules.least_followed
            holder, opener = (None, alert.card_id) if ring else (alert.customer_id, "")
            case = KeptCase(holder, "open", alert.event_time_ms, alert.event_time_ms, [], {}, ring=ring,
                            card_id=opener, queue=self.rules.queue_of(alert), follows=follows)  # fmt: skip
        else:
            case_id, case = found
        told = CaseTransaction(
            alert.transaction_id,
            alert.event_time_ms,
            alert.worth,
            max(self.rules.suspicion(alert), least),
            alert.action,
            alert.terminal_id or "",
            card_id=alert.card_id if ring else "",
        )
        for known in case.transactions:
            if known.transaction_id == told.transaction_id:
                what = f"alert of transaction {told.transaction_id} has come before"
                if (known.event_time_ms, known.amount, known.card_id) == (
                    told.event_time_ms, told.amount, told.card_id,
                ):  # fmt: skip
                    ctx.dead_letter("duplicate", what)
                else:
                    ctx.dead_letter("conflict", f"{what}, and said something else")
                return
        if len(case.transactions) >= self.rules.most_of(ring):
            return  # what was stopped, or is known to be genuine: the table of alerts has it
        case.add(told, alert.reasons)
        if case.status == "open":
            ctx.timers.at(case.last_ms + self.rules.open_for_ms, case_id)
        self._emit(case_id, case, ctx, max(ctx.event_time, case.last_ms))

    def _case_of(self, alert: AlertSeen, ring: str) -> tuple[str, KeptCase] | None:
        """Return the case that an alert belongs to: one that has it, an open one nearby, a closed one."""
        near: tuple[str, KeptCase] | None = None
        nearest: tuple[bool, int, str] | None = None
        for case_id, case in self._about(ring):
            if any(t.transaction_id == alert.transaction_id for t in case.transactions):
                return case_id, case
            rank = (case.status == "open", case.opened_ms, case_id)
            if self._takes(case, alert) and (nearest is None or rank > nearest):
                near, nearest = (case_id, case), rank
        return near

    def _takes(self, case: KeptCase, alert: AlertSeen) -> bool:
        at = alert.event_time_ms
        if case.status == "open":
            full = len(case.transactions) >= self.rules.most_of(case.ring)
            return not full and case.opened_ms - self.rules.gap_ms <= at <= case.last_ms + self.rules.gap_ms
        if at < case.opened_ms:
            return False
        if case.status == "fraud":
            until = max(case.blocks_until(alert.card_id), case.ring_blocked_until_ms or 0)
            return LISTED in alert.codes and at < until
        quiet_until = (case.verdict_ms or 0) + self.rules.quiet_ms
        return case.status == "genuine" and at < quiet_until and case.has_pattern_of(alert)

    def _about(self, ring: str) -> list[tuple[str, KeptCase]]:
        """Return the cases of a ring, or (empty) of the card: a card can be called as a ring is."""
        return [(case_id, case) for case_id, case in self.cases.items() if case.ring == ring]

    def _followed_by(self, at_ms: int, ring: str) -> str | None:
        """Return the newest case that was found to be fraud, if an alert at a time follows it."""
        found = [
            (case.verdict_ms or 0, case_id)
            for case_id, case in self._about(ring)
            if case.status == "fraud"
            and case.opened_ms <= at_ms <= (case.verdict_ms or 0) + self.rules.followed_ms
        ]
        return max(found)[1] if found else None

    def _decide(self, said: Disposition, ctx: Context) -> None:
        case = self.cases.get(said.case_id)
        if case is None:
            raise CaseRefused(f"{_subject(said)} has no case {said.case_id}, or it expired")
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
            self._label(case, said.verdict, said.disposition_id, said.at_ms, ctx)
        if said.verdict == "fraud":
            self._stop(case, said, ctx)
            self._block(case, said, ctx)
        else:
            self._take_back(case, said, ctx)
        case.status = said.verdict
        case.verdict_by, case.verdict_ms, case.note = said.by, said.at_ms, said.note
        case.dispositions.append(said.disposition_id)
        case.mark_viewed(said.by, said.at_ms)
        case.note_act(said.verdict, said.by, said.at_ms, said.note)
        self._unclaim(said.case_id, case, ctx)
        kept_until = max(ctx.event_time, said.at_ms) + self.rules.kept_ms
        blocked_until = max(case.blocked_until_ms or 0, case.ring_blocked_until_ms or 0)
        ctx.timers.at(max(kept_until, blocked_until), said.case_id)
        self._emit(said.case_id, case, ctx, said.at_ms)

    def _act(self, act: CaseAct, ctx: Context) -> None:
        case = self.cases.get(act.case_id)
        if case is None:
            raise CaseRefused(f"{_subject(act)} has no case {act.case_id}, or it expired")
        told = {n: v for n, v in msgspec.structs.asdict(act).items() if v or n not in _LATER_FIELDS}
        digest = hashlib.blake2b(msgspec.json.encode(told), digest_size=6).hexdigest()
        if (known := case.acts.get(act.act_id)) is not None:
            what = f"act {act.act_id} has come before"
            if known == digest:
                ctx.dead_letter("duplicate", what)
            else:
                ctx.dead_letter("conflict", f"{what}, and said something else")
            return
        if act.about and act.about not in {card.card_id for card in case.cards(ctx.key)}:
            raise CaseRefused(f"case {act.case_id} has no card {act.about}")
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
            self._verified(case, act, ctx)
        elif act.what == "unblock":
            self._unblock(case, act, ctx)
        if act.what != "release":
            case.mark_viewed(act.by, act.at_ms)
        case.note_act(act.what, act.by, act.at_ms, act.note, act.about)
        case.acts[act.act_id] = digest
        while len(case.acts) > _MOST_ACTS:
            del case.acts[next(iter(case.acts))]
        self._emit(act.case_id, case, ctx, act.at_ms)

    def _unclaim(self, case_id: str, case: KeptCase, ctx: Context) -> None:
        case.claimed_by = case.claimed_until_ms = None
        ctx.timers.delete(_CLAIM + case_id)

    def _verified(self, case: KeptCase, act: CaseAct, ctx: Context) -> None:
        """Ask for a card to be let pass; of a ring its holder's word takes the card out of what is fraud."""
        card, changes = act.about or ctx.key, list[Change]()
        until = act.at_ms + self.rules.verified_ms
        if case.ring and not act.about:
            raise CaseRefused(f"case {act.case_id} is a ring's: say which card its holder stands by")
        cleared = {**case.cleared, card: max(until, case.cleared.get(card, 0))}
        if case.status == "fraud":
            if not case.ring:
                raise CaseRefused(f"case {act.case_id} is fraud: decide that it is genuine first")
            self._label(case, "fraud", act.act_id, act.at_ms, ctx, cleared)
            changes = self._free(case, act, [card])
        case.cleared = cleared
        note = f"case {act.case_id}: the holder stands by the payments"
        changes.append(PutListEntry("allowed", f"card:{card}", until, act.by, act.at_ms, note))
        self._propose(changes, act, act.act_id, ctx)

    def _stop(self, case: KeptCase, said: Disposition, ctx: Context) -> None:
        """Take a card off the list of allowed ones, if its holder's word has put it there: this is newer.

        Of a ring that word stands: the card is no part of the fraud.
        """
        if case.ring:
            return
        passes = False
        for case_id, kept in self._about(""):
            held = case if case_id == said.case_id else kept
            if (until := held.cleared.get(ctx.key)) is not None:
                passes = passes or until > said.at_ms
                held.cleared = {}
                if held is not case:
                    self._emit(case_id, held, ctx, said.at_ms)
        if passes:
            ctx.output(self.control, RemoveListEntry("allowed", f"card:{ctx.key}", said.by, said.at_ms))

    def _block(self, case: KeptCase, said: Disposition, ctx: Context) -> None:
        """Put its cards on the list of blocked ones: what stops payments needs nobody's agreement."""
        if not self.rules.block_ms:
            return
        until = said.at_ms + self.rules.block_ms
        note = f"case {said.case_id} is fraud"
        frauds = [case.card_of(t, ctx.key) for t in case.transactions if case.says_fraud(t, "fraud")]
        for card in dict.fromkeys(frauds):
            listed_until = max(kept.blocks_until(card) for _, kept in self._about(case.ring))
            case.set_block(card, max(case.blocks_until(card), until))
            if until > listed_until:
                ctx.output(self.control, _blocked(f"card:{card}", until, said, note))
        if case.ring and (said.block_ring or self.rules.block_rings):
            listed_until = max(kept.ring_blocked_until_ms or 0 for _, kept in self._about(case.ring))
            case.ring_blocked_until_ms = max(case.ring_blocked_until_ms or 0, until)
            if until > listed_until:
                ctx.output(self.control, _blocked(case.ring, until, said, note))

    def _take_back(self, case: KeptCase, said: Disposition, ctx: Context) -> None:
        """Ask for its cards to be unblocked, as far as no other case of theirs is fraud."""
        changes = self._free(case, said, [card.card_id for card in case.cards(ctx.key)])
        if said.at_ms < (case.ring_blocked_until_ms or 0):
            case.ring_blocked_until_ms = None
            others = [(kept.ring_blocked_until_ms or 0, case_id) for case_id, kept in self._about(case.ring)
                      if case_id != said.case_id]  # fmt: skip
            changes.append(_freed(case.ring, others, said))
        self._propose(changes, said, said.disposition_id, ctx)

    def _free(self, case: KeptCase, said: Disposition | CaseAct, cards: Iterable[str]) -> list[Change]:
        """Return what takes cards off the list of blocked ones as far as this case blocks them."""
        changes = []
        for card in cards:
            if said.at_ms >= case.blocks_until(card):
                continue
            case.set_block(card, None)
            others = [(kept.blocks_until(card), case_id) for case_id, kept in self._about(case.ring)
                      if case_id != said.case_id]  # fmt: skip
            others += [(other.until_ms, "elsewhere") for other in said.elsewhere if other.card_id == card]
            changes.append(_freed(f"card:{card}", others, said))
        return changes

    def _unblock(self, case: KeptCase, act: CaseAct, ctx: Context) -> None:
        """Ask for cards to be unblocked, whichever of their cases here blocks them."""
        cards = [act.about] if act.about else [card.card_id for card in case.cards(ctx.key)]
        whole = bool(case.ring) and not act.about
        off = [f"card:{card}" for card in cards]
        if whole and any(kept.ring_blocked_until_ms for _, kept in self._about(case.ring)):
            off.append(case.ring)
        for case_id, kept in self._about(case.ring):
            held = case if case_id == act.case_id else kept
            blocking = [card for card in cards if held.blocks_until(card)]
            if not blocking and not (whole and held.ring_blocked_until_ms):
                continue
            for card in blocking:
                held.set_block(card, None)
            if whole:
                held.ring_blocked_until_ms = None
            if held is not case:
                self._emit(case_id, held, ctx, act.at_ms)
        changes: list[Change] = [RemoveListEntry("blocked", value, act.by, act.at_ms) for value in off]
        self._propose(changes, act, act.act_id, ctx)

    def _propose(self, changes: Sequence[Change], said: Disposition | CaseAct, of: str, ctx: Context) -> None:
        """Ask for what lets payments pass, in as many proposals as it takes."""
        named = f"{said.case_id}.{hashlib.blake2b(of.encode(), digest_size=6).hexdigest()}"
        for first in range(0, len(changes), MAX_CHANGES):
            name = named if not first else f"{named}.{first // MAX_CHANGES + 1}"
            part = list(changes[first : first + MAX_CHANGES])
            event = Propose(name[:64], part, said.by, said.at_ms, f"case {said.case_id}")
            ctx.output(self.control, event)

    def _label(
        self,
        case: KeptCase,
        status: str,
        of: str,
        at_ms: int,
        ctx: Context,
        cleared: dict[str, int] | None = None,
    ) -> None:
        """Emit a label for every transaction that has none, and a correction where one says otherwise.

        Where only holders' words are new (``cleared``), what has no label gets none: nobody has looked at it.
        """
        after = case if cleared is None else msgspec.structs.replace(case, cleared=cleared)
        labelled = []
        for t in case.transactions:
            is_fraud = after.says_fraud(t, status)
            same = case.says_fraud(t, case.status) == is_fraud if t.label_id else cleared is not None
            if same:
                labelled.append(t)
                continue
            label = CaseLabel(
                f"{of}-{t.transaction_id}",
                at_ms,
                t.transaction_id,
                t.event_time_ms,
                case.card_of(t, ctx.key),
                t.terminal_id or "unknown",
                is_fraud,
                "correction" if t.label_id else "feedback",
                t.label_id or None,
            )
            ctx.output(self.labels, label)
            labelled.append(msgspec.structs.replace(t, label_id=label.label_id))
        case.transactions = labelled

    def _emit(self, case_id: str, case: KeptCase, ctx: Context, at_ms: int) -> None:
        case.revision += 1
        self.cases.put(case_id, case)
        now = case.told(case_id, ctx.key, self.rules, at_ms)
        ctx.emit(now)
        ctx.output(self.book, now)


def _subject(said: Disposition | CaseAct) -> str:
    return said.ring or f"card {said.card_id}"


def _blocked(entry: str, until_ms: int, said: Disposition | CaseAct, note: str) -> PutListEntry:
    return PutListEntry("blocked", entry, until_ms, said.by, said.at_ms, note)


def _freed(entry: str, others: Iterable[tuple[int, str]], said: Disposition | CaseAct) -> Change:
    """Return what takes an entry off the list, or leaves it on as long as another case needs it there."""
    until, other = max(others, default=(0, ""))
    if until > said.at_ms:
        return _blocked(entry, until, said, f"case {other} is fraud")
    return RemoveListEntry("blocked", entry, said.by, said.at_ms)


def _refuse_claimed(case_id: str, case: KeptCase, by: str, at_ms: int) -> None:
    if case.claimed_by_other(by, at_ms):
        raise CaseRefused(f"case {case_id} is claimed by {case.claimed_by}: wait, or have it released")
