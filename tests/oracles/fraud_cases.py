"""Cases of one card by going through its events in order of time, with no timers: what is over ends itself.

Everything is looked up anew in plain lists; nothing is shared with the case book but its events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from apps.fraud.cases_events import AlertSeen, CaseAct, Disposition
from apps.fraud.cases_rules import CaseRules


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
        blocked_until: Until when it blocks the card, ms.
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
    blocked_until: int | None = None
    verdict: tuple[str, int] | None = None
    history: list[tuple[str, str, int]] = field(default_factory=list)
    labels: dict[str, bool] = field(default_factory=dict)
    ends: int = 0

    def span(self) -> tuple[int, int]:
        times = [a.event_time_ms for a in self.alerts]
        return min(times), max(times)


@dataclass
class Outcome:
    """What came of a card's events: its cases, control events and labels as tuples, what was refused."""

    cases: dict[str, Told] = field(default_factory=dict)
    control: list[tuple[Any, ...]] = field(default_factory=list)
    labels: list[tuple[str, bool, str]] = field(default_factory=list)
    refused: int = 0


def codes(alert: AlertSeen) -> set[str]:
    return {r.code for r in alert.reasons if r.code.startswith("RULE:") or r.weight != 0 or r.limit != 0}


def cases_of(
    card: str,
    events: list[AlertSeen | Disposition | CaseAct],
    rules: CaseRules,
    ids: dict[str, str],
    end: int,
) -> Outcome:
    """Return what comes of a card's events.

    Args:
        card: The card.
        events: Its events, in order of time, no two at the same one.
        rules: The rules.
        ids: Transaction → id of the case that its alert would open.
        end: The time at which to look, ms.
    """
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

    for event in events:
        if isinstance(event, AlertSeen):
            at = event.event_time_ms
            pass_time(at)
            known = [a for c in found.cases.values() for a in c.alerts]
            if any(a.transaction_id == event.transaction_id for a in known):
                found.refused += 1
                continue
            mine = [c for c in found.cases.values() if belongs(event, c, rules)]
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
            if len(case.alerts) < rules.most_alerts:
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
        if (
            (other and what != "contacted")
            or (what in ("unclear", "claim") and about.status != "open")
            or (what == "release" and (about.claim is None or about.claim[0] != event.by))
            or (what == "verified" and about.status == "fraud")
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
                    before = about.labels.get(alert.transaction_id)
                    if before == (what == "fraud") and about.status == what:
                        continue
                    source = "feedback" if before is None else "correction"
                    found.labels.append((alert.transaction_id, what == "fraud", source))
                    about.labels[alert.transaction_id] = what == "fraud"
            if what == "fraud":
                until = event.at_ms + rules.block_ms
                if rules.block_ms:
                    if not any((c.blocked_until or 0) >= until for c in found.cases.values()):
                        found.control.append(("put", "blocked", card, until, event.by))
                    if not about.blocked_until or about.blocked_until < until:
                        about.blocked_until = until
            elif event.at_ms < (about.blocked_until or 0):
                about.blocked_until = None
                ends = sorted(c.blocked_until for c in found.cases.values() if c.blocked_until)
                if ends and ends[-1] > event.at_ms:
                    found.control.append(("propose", "put", "blocked", card, ends[-1], event.by))
                else:
                    found.control.append(("propose", "remove", "blocked", card, event.by))
            about.status, about.verdict = what, (event.by, event.at_ms)
            about.ends = max(event.at_ms + rules.kept_ms, about.blocked_until or 0)
        elif what == "claim":
            about.claim = (event.by, event.at_ms + rules.claim_ms)
        elif what == "release":
            about.claim = None
        elif what == "verified":
            found.control.append(
                ("propose", "put", "allowed", card, event.at_ms + rules.verified_ms, event.by)
            )
        elif what == "unblock":
            for case in found.cases.values():
                case.blocked_until = None
            found.control.append(("propose", "remove", "blocked", card, event.by))
    pass_time(end)
    found.cases |= gone
    return found


def belongs(alert: AlertSeen, case: Told, rules: CaseRules) -> bool:
    """Say whether an alert goes into a case."""
    begin, last = case.span()
    at = alert.event_time_ms
    if case.status == "open":
        return begin - rules.gap_ms <= at <= last + rules.gap_ms and len(case.alerts) < rules.most_alerts
    if at < begin or case.verdict is None:
        return False
    if case.status == "fraud":
        return "BLOCK_LIST" in codes(alert) and case.blocked_until is not None and at < case.blocked_until
    if case.status != "genuine" or at >= case.verdict[1] + rules.quiet_ms:
        return False
    seen = set().union(*(codes(a) for a in case.alerts))
    stopped = any(a.action == "block" for a in case.alerts)
    return (
        codes(alert) <= seen
        and alert.amount <= max(a.amount for a in case.alerts)
        and (alert.action != "block" or stopped)
    )
