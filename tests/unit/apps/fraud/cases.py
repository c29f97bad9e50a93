"""Transactions for the tests of the fraud app."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from random import Random
from typing import Any

import msgspec

from millrace.testing import TestDriver
from millrace_apps.fraud.contracts.events import (
    Authorisation,
    AuthorisationStatus,
    Kind,
    Label,
    LabelSource,
    Transaction,
)
from millrace_apps.fraud.operations.governance import Governance
from millrace_apps.fraud.processes.cards import CardMonitor

START_MS = 1_767_225_600_000
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000

_ids = count()


def begin_ids() -> None:
    """Number transactions from 0 again, so that a test's ids do not hang on which tests ran before it."""
    global _ids
    _ids = count()


def transaction(
    at: int,
    amount: float,
    *,
    id: str = "",
    card: str = "card-1",
    kind: Kind = "purchase",
    terminal: str = "terminal-1",
    currency: str = "EUR",
    **more: Any,
) -> Transaction:
    """A transaction ``at`` ms after the start; without an id it gets one of its own."""
    return Transaction(
        transaction_id=id or f"tx-{next(_ids)}",
        card_id=card,
        terminal_id=terminal,
        mcc="5411",
        country="DE",
        amount=amount,
        currency=currency,
        kind=kind,
        event_time_ms=START_MS + at,
        **more,
    )


def label(
    of: Transaction, known: int, fraud: bool = True, *, id: str = "", source: LabelSource = "feedback"
) -> Label:
    """A label on a transaction that becomes known ``known`` ms after the start."""
    return Label(
        id or f"label-{next(_ids)}",
        START_MS + known,
        of.transaction_id,
        of.event_time_ms,
        of.card_id,
        of.terminal_id,
        fraud,
        source,
    )


def authorisation(
    of: Transaction,
    known: int,
    status: AuthorisationStatus,
    settled: float | None = None,
    *,
    id: str = "",
) -> Authorisation:
    """What became of a transaction ``known`` ms after the start."""
    return Authorisation(
        id or f"auth-{next(_ids)}",
        START_MS + known,
        of.transaction_id,
        of.event_time_ms,
        of.card_id,
        status,
        of.amount,
        settled,
        of.terminal_id,
    )


def authorisations(tx: Transaction, *, scale: int = MINUTE) -> list[Authorisation]:
    """What becomes of a purchase within some ``scale`` (ms): most are captured, some declined or reversed."""
    if tx.kind != "purchase":
        return []
    random = Random(tx.transaction_id)
    at = tx.event_time_ms - START_MS
    if random.random() < 0.15:
        return [authorisation(tx, at + random.randrange(2), "declined", id=f"{tx.transaction_id}-d")]
    found = [authorisation(tx, at + 1, "approved", id=f"{tx.transaction_id}-a")]
    part = None if random.random() < 0.7 else round(tx.amount * random.random(), 2)
    at += random.randrange(scale)
    found.append(authorisation(tx, at, "captured", part, id=f"{tx.transaction_id}-c"))
    if random.random() < 0.2:
        back = None if random.random() < 0.5 else round(tx.amount / 2, 2)
        found.append(
            authorisation(tx, at + random.randrange(scale), "reversed", back, id=f"{tx.transaction_id}-r")
        )
    return found


def driver(*, out_of_orderness_ms: int = 0) -> TestDriver:
    monitor = CardMonitor()
    monitor.governance = Governance(frozenset())  # thresholds are set by one event
    return TestDriver(monitor, out_of_orderness_ms=out_of_orderness_ms)


def send(target: TestDriver, *transactions: Transaction) -> None:
    """Send transactions as one batch."""
    target.send_batch([(tx.card_id, tx.event_time_ms, tx) for tx in transactions])


def send_each(target: TestDriver, transactions: Iterable[Transaction]) -> None:
    """Send transactions as a batch each."""
    for tx in transactions:
        send(target, tx)


def decide(target: TestDriver, tx: Transaction) -> Any:
    """Send one transaction and return the decision on it."""
    send(target, tx)
    decision = target.values()[-1]
    assert decision.transaction_id == tx.transaction_id
    return decision


def rows(target: TestDriver) -> dict[str, dict[str, Any]]:
    """The decisions so far as plain rows by transaction, without what the score adds to the features."""
    found = {}
    for decision in target.values():
        row = msgspec.structs.asdict(decision)
        for name in ("score", "action", "reasons"):
            del row[name]
        found[decision.transaction_id] = row
    return found


def plain(transactions: Iterable[Transaction]) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(tx) for tx in transactions]


def purchases(
    random: Random, mean: float, number: int, *, every_ms: int, start: int = 0, card: str = "card-1"
) -> list[Transaction]:
    """Ordinary purchases of a card: normal(mean, mean / 2) amounts, exponential gaps."""
    found = []
    at = start
    for _ in range(number):
        at += 1 + int(random.expovariate(1 / every_ms))
        amount = random.gauss(mean, mean / 2)
        while amount < 0.01:
            amount = random.gauss(mean, mean / 2)
        found.append(transaction(at, round(amount, 2), card=card))
    return found
