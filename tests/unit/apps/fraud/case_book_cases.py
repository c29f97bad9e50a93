"""Alerts and dispositions for the tests of the case work."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from millrace.testing import TestDriver
from millrace_apps.fraud.cases.book import CaseBook, case_id_of
from millrace_apps.fraud.cases.events import (
    ActKind,
    AlertReason,
    AlertSeen,
    Case,
    CaseAct,
    Disposition,
    Verdict,
)
from millrace_apps.fraud.cases.rules import CaseRules

START_MS = 1_767_225_600_000  # a midnight
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
UPSERT = {"main": ("case_id",), "book": ("case_id",)}
RULES = CaseRules(
    gap_ms=DAY, open_for_ms=7 * DAY, followed_ms=2 * DAY, kept_ms=10 * DAY, exposure=100.0, block_ms=5 * DAY
)


Event = AlertSeen | Disposition | CaseAct
ACTING = msgspec.structs.replace(
    RULES, quiet_ms=2 * DAY, block_ms=5 * DAY, verified_ms=DAY, claim_ms=3 * HOUR
)


def driver(*events: Event, rules: CaseRules = ACTING) -> TestDriver:
    """A case book that has taken some events."""
    target = TestDriver(CaseBook(rules))
    for one in events:
        target.send(rules.key_of(one), one, at=event(one)[1])
    return target


def settle(target: TestDriver, at: int) -> TestDriver:
    target.advance_watermark(START_MS + at)
    return target


def cases(target: TestDriver) -> dict[str, Case]:
    """The last revision of every case."""
    return {case.case_id: case for case in target.values()}


def alert(
    at: int,
    tx: str,
    *,
    card: str = "card-1",
    amount: float = 50.0,
    score: float = 0.8,
    action: str = "review",
    codes: tuple[str, ...] = ("SPREE",),
    ring: str = "",
) -> AlertSeen:
    """An alert ``at`` ms after the start."""
    reasons = [AlertReason(code, 4.0, 1.0) for code in codes]
    return AlertSeen(card, tx, START_MS + at, amount, score, action, reasons, terminal_id="t-1", ring=ring)


def said(
    at: int,
    first_tx: str,
    verdict: Verdict,
    *,
    card: str = "card-1",
    by: str = "eva",
    id: str = "",
    ring: str = "",
    **more: Any,
) -> Disposition:
    """A disposition of the case that the alert of ``first_tx`` opened."""
    subject = ring or card
    return Disposition(
        id or f"d-{subject}-{first_tx}-{verdict}-{at}", case_id_of(subject, first_tx), card, verdict, by,
        START_MS + at, ring=ring, **more,
    )  # fmt: skip


def act(
    at: int,
    first_tx: str,
    what: ActKind,
    *,
    card: str = "card-1",
    by: str = "eva",
    id: str = "",
    ring: str = "",
    **more: Any,
) -> CaseAct:
    """An act about the case that the alert of ``first_tx`` opened."""
    subject = ring or card
    return CaseAct(
        id or f"a-{subject}-{first_tx}-{what}-{at}", case_id_of(subject, first_tx), card, what, by,
        START_MS + at, ring=ring, **more,
    )  # fmt: skip


def event(what: AlertSeen | Disposition | CaseAct) -> tuple[str, int, Any]:
    at = what.event_time_ms if isinstance(what, AlertSeen) else what.at_ms
    return CaseRules().key_of(what), at, what


def history(seed: int, *, cards: int = 4, alerts: int = 40, days: int = 20) -> list[AlertSeen | Disposition]:
    """Random alerts, some of whose cases are decided, some of them twice."""
    random = Random(seed)
    found: list[AlertSeen | Disposition] = []
    for n in range(alerts):
        card = f"card-{random.randrange(cards)}"
        at = random.randrange(days * DAY // MINUTE) * MINUTE + n  # no two at the same time
        amount = random.randrange(1, 500) / 2
        found.append(alert(at, f"tx-{n}", card=card, amount=amount, score=random.randrange(50, 100) / 100))
    return found
