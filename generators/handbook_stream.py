"""The Handbook's table as a stream: its payments as messages in order of time, its frauds as truths."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec

from millrace_apps.generators.engine.message import Generated, Headers
from millrace_apps.generators.engine.randomness import digest
from millrace_apps.generators.engine.simulated import Truth
from millrace_apps.generators.handbook import Compromise, Handbook, HandbookProfile, simulate_handbook

DOMAIN: Final = "handbook"
DESCRIPTION: Final = "the table of the Fraud Detection Handbook: payments with its three scenarios of fraud"
#: The one stream, as its ledger calls it.
STREAM: Final = "transactions"
TOPIC: Final = "handbook.transactions"
SCHEMA_VERSION: Final = "1"
#: Kind of truth → what it is.
SCENARIOS: Final = {
    "high_amount": "scenario 1: one payment above 220",
    "terminal_compromised": "scenario 2: all payments of a terminal for 28 days",
    "customer_compromised": "scenario 3: a third of a customer's payments for 14 days, five times as high",
}
_HITS: Final = ("", "high_amount", "terminal_compromised", "customer_compromised")
_BATCH: Final = 20_000


class Payment(msgspec.Struct, frozen=True, gc=False):
    """A payment with the published columns; whether it is a fraud is in the ledger alone.

    Attributes:
        TRANSACTION_ID: Its number in order of time.
        TX_DATETIME: When, ISO 8601, UTC.
        CUSTOMER_ID: Who pays; the key.
        TERMINAL_ID: Where.
        TX_AMOUNT: The amount.
        TX_TIME_SECONDS: Seconds since the start.
        TX_TIME_DAYS: Whole days since the start.
    """

    TRANSACTION_ID: int
    TX_DATETIME: str
    CUSTOMER_ID: int
    TERMINAL_ID: int
    TX_AMOUNT: float
    TX_TIME_SECONDS: int
    TX_TIME_DAYS: int


def parameters_of(profile: HandbookProfile) -> dict[str, Any]:
    """Return what decides the payments, by name, for the ledger."""
    return {**asdict(profile), "start": profile.start.isoformat(), "start_ms": start_ms(profile)}


def start_ms(profile: HandbookProfile) -> int:
    """Return the beginning of the first day, ms since the epoch."""
    return round(profile.start.timestamp()) * 1000


def handbook_events(
    profile: HandbookProfile, topic: str = TOPIC, *, events: int | None = None, rate: float | None = None
) -> Iterator[Generated]:
    """Yield the payments of a table in order of time; the table is made before the first.

    Args:
        profile: What it is made from.
        topic: Topic of the messages.
        events: So many at most; None: all.
        rate: Payments per second in place of the table's own pace; None keeps the pace.

    >>> small = HandbookProfile(customers=20, terminals=40, days=5, radius=30)
    >>> first = next(handbook_events(small))
    >>> first.topic, sorted(msgspec.json.decode(first.value))[:2]
    ('handbook.transactions', ['CUSTOMER_ID', 'TERMINAL_ID'])
    """
    return islice(_messages(profile, topic, rate), events)


def _messages(profile: HandbookProfile, topic: str, rate: float | None) -> Iterator[Generated]:
    made = simulate_handbook(profile)
    begin_ms, encode = start_ms(profile), msgspec.json.Encoder().encode
    run = digest(DOMAIN, profile.seed, begin_ms)[:10]
    hits = _Hits(made, run)
    fixed = _fixed_headers()
    for batch in made.transactions.to_batches(max_chunksize=_BATCH):
        columns = [column.to_pylist() for column in batch.columns]
        for number, _, customer, terminal, amount, second, day, _, scenario in zip(*columns, strict=True):
            at_ms = begin_ms + second * 1000
            when = datetime.fromtimestamp(begin_ms // 1000 + second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            value = encode(Payment(number, when, customer, terminal, amount, second, day))
            event_id = f"{run}-{number:010d}"
            headers = [*fixed, ("ce_id", event_id.encode()), ("ce_time", when.encode())]
            message = Generated(event_id, str(customer).encode(), value, headers, at_ms, "", 0)
            message.stream, message.topic = STREAM, topic
            if rate is not None:
                message.arrival_ms = at_ms
                message.due_ms = begin_ms + int(number * 1000 / rate)
            if scenario:
                message.truths = (hits.truth(scenario, number, customer, terminal, day),)
            yield message


def _fixed_headers() -> Headers:
    return [
        ("ce_specversion", b"1.0"),
        ("ce_type", b"millrace.handbook.transactions"),
        ("ce_source", b"millrace/generators/handbook"),
        ("content-type", b"application/json"),
        ("schema_version", SCHEMA_VERSION.encode()),
    ]


#: Scenario and entity.
_Hit: TypeAlias = tuple[int, int]


class _Hits:
    """Finds the truth behind a fraudulent payment."""

    def __init__(self, made: Handbook, run: str) -> None:
        self._run = run
        self._of: dict[_Hit, list[Compromise]] = {}
        for hit in made.compromises:
            self._of.setdefault((hit.scenario, hit.entity), []).append(hit)

    def truth(self, scenario: int, number: int, customer: int, terminal: int, day: int) -> Truth:
        """Return what a payment is a part of; of compromises that overlap, the last."""
        entity = terminal if scenario == 2 else customer
        kind, named = _HITS[scenario], f"{'terminal' if scenario == 2 else 'customer'}-{entity}"
        if scenario == 1:
            return Truth(truth_id=f"{self._run}-s1-{number}", kind=kind, entity=named, expected="alert")
        hits = self._of[scenario, entity]
        hit = hits[bisect_right(hits, day, key=lambda one: one.first_day) - 1]
        return Truth(
            truth_id=f"{self._run}-s{scenario}-{entity}-{hit.first_day}",
            kind=kind,
            entity=named,
            expected="alert",
            detail={"first_day": hit.first_day, "end_day": hit.end_day},
        )
