"""Cases of one card or ring by going through its events in order of time, without timers.

What is over ends itself. Everything is looked up anew in plain lists; nothing is shared with the case book
but its events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millrace_apps.fraud.cases.events import AlertSeen, CaseAct, Disposition
from millrace_apps.fraud.cases.rules import CaseRules


@dataclass
class Told:
    """A case as it is at the end.

    Attributes:
        first: Its first transaction.
        alerts: Its alerts.
        status: Where it stands.
        follows: First transaction of the case that it follows.
        claim: Who looks at it and until when, ms.
        looked: Who was the first to look at it and when.
        blocked: Cards that it blocks → until when, ms.
        ring_blocked: Until when it blocks what the ring has in common, ms.
        passes: Until when the card passes by its holder's word, ms; nothing: it does not.
        stood_by: Cards whose holders stand by their payments → up to when, ms.
        verdict: The last verdict: by whom and when.
        history: What, by whom, when.
        labels: Transaction → the last label that it was given.
        ends: When it is forgotten, ms.
    """

    first: str
    alerts: list[AlertSeen] = field(default_factory=list)
    status: str = "open"
    follows: str | None = None
    claim: tuple[str, int] | None = None
    looked: tuple[str, int] | None = None
    blocked: dict[str, int] = field(default_factory=dict)
    ring_blocked: int | None = None
    passes: set[int] = field(default_factory=set)
    stood_by: dict[str, int] = field(default_factory=dict)
    verdict: tuple[str, int] | None = None
    history: list[tuple[str, str, int]] = field(default_factory=list)
    labels: dict[str, bool] = field(default_factory=dict)
    ends: int = 0

    @property
    def blocked_until(self) -> int | None:
        return max(self.blocked.values()) if self.blocked else None

    def verdict_on(self, alert: AlertSeen, what: str) -> bool:
        return what == "fraud" and alert.event_time_ms >= self.stood_by.get(alert.card_id, 0)

    def span(self) -> tuple[int, int]:
        times = [a.event_time_ms for a in self.alerts]
        return min(times), max(times)


@dataclass
class Outcome:
    """What came of a subject's events: its cases, control events and labels as tuples, what was refused."""

    cases: dict[str, Told] = field(default_factory=dict)
    control: list[tuple[Any, ...]] = field(default_factory=list)
    labels: list[tuple[str, bool, str]] = field(default_factory=list)
    refused: int = 0


def codes(alert: AlertSeen) -> set[str]:
    return {r.code for r in alert.reasons if r.code.startswith("RULE:") or r.weight != 0 or r.limit != 0}


def cases_of(
    subject: str,
    events: list[AlertSeen | Disposition | CaseAct],
    rules: CaseRules,
    ids: dict[str, str],
    end: int,
    *,
    is_ring: bool = False,
) -> Outcome:
    """Return what comes of a card's or a ring's events.

    Args:
        subject: The card, or the ring as ``device:ID``.
        events: Its events, in order of time, no two at the same one.
        rules: The rules.
        ids: Transaction → id of the case that its alert would open.
        end: The time at which to look, ms.
        is_ring: Whether it is a ring.
    """
    most = rules.most_ring_alerts if is_ring else rules.most_alerts
    found = Outcome()
    names = {ids[tx]: tx for tx in ids}
    gone: dict[str, Told] = {}
    said_before: set[str] = set()

    def pass_time(at: int) -> None:
        for first, case in list(found.cases.items()):
            if case.claim and case.claim[1] <= at:
                case.claim = None
            if case.status == "open" and expires(case) <= at:
                case.status = "expired"
            if (case.status == "expired") or (case.status != "open" and case.ends <= at):
                gone[first] = found.cases.pop(first)

    def expires(case: Told) -> int:
        over = case.span()[1] + rules.open_for_ms
        return max(over, case.claim[1]) if case.claim else over

    def label(case: Told, alert: AlertSeen, is_fraud: bool, *, say: bool) -> None:
        before = case.labels.get(alert.transaction_id)
        if before == is_fraud or (before is None and not say):
            return
        source = "feedback" if before is None else "correction"
        found.labels.append((alert.transaction_id, is_fraud, source))
        case.labels[alert.transaction_id] = is_fraud

    def off(entry: str, ends: list[int], event: Disposition | CaseAct) -> None:
        if (last := max(ends, default=0)) > event.at_ms:
            found.control.append(("propose", "put", "blocked", entry, last, event.by))
        else:
            found.control.append(("propose", "remove", "blocked", entry, event.by))

    def free(case: Told, card: str, event: Disposition | CaseAct) -> None:
        if case.blocked.get(card, 0) <= event.at_ms:
            return
        del case.blocked[card]
        ends = [c.blocked[card] for c in found.cases.values() if card in c.blocked]
        off(f"card:{card}", ends + [e.until_ms for e in event.elsewhere if e.card_id == card], event)

    for event in events:
        if isinstance(event, AlertSeen):
            at = event.event_time_ms
            pass_time(at)
            known = [a for c in found.cases.values() for a in c.alerts]
            if any(a.transaction_id == event.transaction_id for a in known):
                found.refused += 1
                continue
            mine = [c for c in found.cases.values() if belongs(event, c, rules, most)]
            if not mine:
                case = Told(event.transaction_id)
                frauds = [
                    c for c in found.cases.values()
                    if c.status == "fraud" and c.verdict
                    and c.span()[0] <= at <= c.verdict[1] + rules.followed_ms
                ]  # fmt: skip
                if frauds:
                    case.follows = max(frauds, key=lambda c: (c.verdict[1], ids[c.first])).first  # type: ignore[index]
                found.cases[event.transaction_id] = case
            else:
                case = max(mine, key=lambda c: (c.status == "open", c.span()[0], ids[c.first]))
            if len(case.alerts) < most:
                case.alerts.append(event)
            continue
        pass_time(event.at_ms)
        first = names.get(event.case_id)
        about = found.cases.get(first) if first else None
        name = event.disposition_id if isinstance(event, Disposition) else event.act_id
        if about is None or name in said_before:
            found.refused += 1
            continue
        other = about.claim is not None and about.claim[0] != event.by
        what = event.verdict if isinstance(event, Disposition) else event.what
        meant = event.about if isinstance(event, CaseAct) else ""
        members = list({a.card_id: None for a in about.alerts})
        if (
            (meant and meant not in members)
            or (what == "verified" and is_ring and not meant)
            or (other and what != "contacted")
            or (what in ("unclear", "claim") and about.status != "open")
            or (what == "release" and (about.claim is None or about.claim[0] != event.by))
            or (what == "verified" and about.status == "fraud" and not is_ring)
        ):
            found.refused += 1
            continue
        said_before.add(name)
        if what != "release" and about.looked is None:
            about.looked = (event.by, event.at_ms)
        about.history.append((what, event.by, event.at_ms))
        if isinstance(event, Disposition):
            about.claim = None
            if what != "unclear":
                for alert in about.alerts:
                    label(about, alert, about.verdict_on(alert, what), say=True)
            if what == "fraud" and not is_ring:
                ends = [case.passes.pop() for case in found.cases.values() if case.passes]
                if max(ends, default=0) > event.at_ms:
                    found.control.append(("remove", "allowed", f"card:{subject}", event.by))
            if what == "fraud" and rules.block_ms:
                until = event.at_ms + rules.block_ms
                for card in members:
                    if any(about.verdict_on(a, what) for a in about.alerts if a.card_id == card):
                        if all(c.blocked.get(card, 0) < until for c in found.cases.values()):
                            found.control.append(("put", "blocked", f"card:{card}", until, event.by))
                        about.blocked[card] = max(until, about.blocked.get(card, 0))
                if is_ring and (event.block_ring or rules.block_rings):
                    if all((c.ring_blocked or 0) < until for c in found.cases.values()):
                        found.control.append(("put", "blocked", subject, until, event.by))
                    about.ring_blocked = max(until, about.ring_blocked or 0)
            elif what != "fraud":
                for card in members:
                    free(about, card, event)
                if (about.ring_blocked or 0) > event.at_ms:
                    about.ring_blocked = None
                    off(subject, [c.ring_blocked or 0 for c in found.cases.values()], event)
            about.status, about.verdict = what, (event.by, event.at_ms)
            about.ends = max(event.at_ms + rules.kept_ms, about.blocked_until or 0, about.ring_blocked or 0)
        elif what == "claim":
            about.claim = (event.by, event.at_ms + rules.claim_ms)
        elif what == "release":
            about.claim = None
        elif what == "verified":
            card, until = meant or subject, event.at_ms + rules.verified_ms
            if not is_ring:
                about.passes = {max(until, *about.passes)} if about.passes else {until}
            if is_ring:
                about.stood_by[card] = max(until, about.stood_by.get(card, 0))
                if about.status == "fraud":
                    for alert in about.alerts:
                        if alert.transaction_id in about.labels:
                            label(about, alert, about.verdict_on(alert, "fraud"), say=False)
                    free(about, card, event)
            found.control.append(("propose", "put", "allowed", f"card:{card}", until, event.by))
        elif what == "unblock":
            for card in [meant] if meant else members:
                for case in found.cases.values():
                    case.blocked.pop(card, None)
                found.control.append(("propose", "remove", "blocked", f"card:{card}", event.by))
            if not meant and any(c.ring_blocked for c in found.cases.values()):
                for case in found.cases.values():
                    case.ring_blocked = None
                found.control.append(("propose", "remove", "blocked", subject, event.by))
    pass_time(end)
    found.cases |= gone
    return found


def belongs(alert: AlertSeen, case: Told, rules: CaseRules, most: int) -> bool:
    """Say whether an alert goes into a case."""
    begin, last = case.span()
    at = alert.event_time_ms
    if case.status == "open":
        return begin - rules.gap_ms <= at <= last + rules.gap_ms and len(case.alerts) < most
    if at < begin or case.verdict is None:
        return False
    if case.status == "fraud":
        stopped_until = max(case.blocked.get(alert.card_id, 0), case.ring_blocked or 0)
        return "BLOCK_LIST" in codes(alert) and at < stopped_until
    if case.status != "genuine" or at >= case.verdict[1] + rules.quiet_ms:
        return False
    seen = set().union(*(codes(a) for a in case.alerts))
    stopped = any(a.action == "block" for a in case.alerts)
    return (
        codes(alert) <= seen
        and alert.amount <= max(a.amount for a in case.alerts)
        and (alert.action != "block" or stopped)
    )
