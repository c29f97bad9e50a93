"""The Handbook's table as a stream: its payments in order of time, its frauds as truths."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, TypeAlias

import msgspec

from millrace_apps.generators.engine.randomness import digest
from millrace_apps.generators.engine.simulated import Simulated, Truth
from millrace_apps.generators.fraud.profile import SCENARIOS as FRAUDS
from millrace_apps.generators.handbook.table import Compromise, Handbook, HandbookProfile, simulate_handbook

#: The three scenarios, in the words of all payments: kind of truth → what it is.
SCENARIOS: Final = {
    kind: FRAUDS[kind] for kind in ("high_amount", "compromised_terminal", "compromised_card")
}
_KINDS: Final = ("", *SCENARIOS)
_BATCH: Final = 20_000


class Payment(msgspec.Struct, frozen=True, gc=False):
    """A payment with the published columns; whether it is a fraud is in the ledger alone.

    Attributes:
        TRANSACTION_ID: Its number in order of time.
        TX_DATETIME: When, UTC.
        CUSTOMER_ID: Who pays; the key. A customer has one card.
        TERMINAL_ID: Where.
        TX_AMOUNT: The amount.
        TX_TIME_SECONDS: Seconds since the start.
        TX_TIME_DAYS: Whole days since the start.
    """

    TRANSACTION_ID: int
    TX_DATETIME: datetime
    CUSTOMER_ID: int
    TERMINAL_ID: int
    TX_AMOUNT: float
    TX_TIME_SECONDS: int
    TX_TIME_DAYS: int


def simulate(profile: HandbookProfile) -> Iterator[Simulated]:
    """Yield the payments of a table in order of time; the table is made before the first.

    Args:
        profile: What it is made from.

    >>> first = next(simulate(HandbookProfile(customers=20, terminals=40, days=5, radius=30)))
    >>> first.stream, first.key == str(first.event.CUSTOMER_ID)
    ('transactions', True)
    """
    made = simulate_handbook(profile)
    begin_s, hits = profile.start_ms // 1000, _Hits(made, digest("handbook", profile.seed, profile.start_ms))
    for batch in made.transactions.to_batches(max_chunksize=_BATCH):
        columns = [column.to_pylist() for column in batch.columns]
        for number, _, customer, terminal, amount, second, day, _, scenario in zip(*columns, strict=True):
            when = datetime.fromtimestamp(begin_s + second, UTC)
            payment = Payment(number, when, customer, terminal, amount, second, day)
            truths = (hits.truth(scenario, payment),) if scenario else ()
            yield Simulated("transactions", str(customer), payment, (begin_s + second) * 1000, truths)


#: Scenario and entity.
_Hit: TypeAlias = tuple[int, int]


class _Hits:
    """Finds the truth behind a fraudulent payment."""

    def __init__(self, made: Handbook, run: str) -> None:
        self._run = run[:10]
        self._of: dict[_Hit, list[Compromise]] = {}
        for hit in made.compromises:
            self._of.setdefault((hit.scenario, hit.entity), []).append(hit)

    def truth(self, scenario: int, payment: Payment) -> Truth:
        """Return what a payment is a part of; of compromises that overlap, the last."""
        place = "terminal" if scenario == 2 else "customer"
        entity = payment.TERMINAL_ID if scenario == 2 else payment.CUSTOMER_ID
        name, detail = str(payment.TRANSACTION_ID), dict[str, int]()
        if scenario != 1:
            hits = self._of[scenario, entity]
            hit = hits[bisect_right(hits, payment.TX_TIME_DAYS, key=lambda one: one.first_day) - 1]
            name, detail = f"{entity}-{hit.first_day}", {"first_day": hit.first_day, "end_day": hit.end_day}
        return Truth(
            truth_id=f"{self._run}-{_KINDS[scenario]}-{name}",
            kind=_KINDS[scenario],
            entity=f"{place}-{entity}",
            expected="fraud",
            detail=detail,
        )
