"""Frauds are caught and ordinary cards left alone, over many seeded cards."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from random import Random

import msgspec
import pytest

from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.generators.fraud import FraudProfile, simulate
from tests.unit.apps.fraud.cases import (
    HOUR,
    MINUTE,
    SECOND,
    driver,
    purchases,
    send,
    transaction,
)
from tests.unit.apps.fraud.chain import Chain

#: A card in life, one in a demo whose time is pressed together, and a very busy one.
PACES = [8 * HOUR, 20 * SECOND, 2 * SECOND]


def history(random: Random, *, every_ms: int, number: int, card: str) -> list[Transaction]:
    funds = transaction(0, 10_000_000, kind="top_up", card=card)
    return [funds, *purchases(random, random.uniform(5, 100), number, every_ms=every_ms, card=card)]


def card_testing(random: Random, start: int, usual: float, card: str) -> list[Transaction]:
    return [transaction(start + i * 7 * SECOND, random.randrange(10, 201) / 100, card=card) for i in range(8)]


def amount_spike(random: Random, start: int, usual: float, card: str) -> list[Transaction]:
    return [transaction(start, round(8.5 * usual, 2), card=card)]


def spree(random: Random, start: int, usual: float, card: str) -> list[Transaction]:
    times = [start + i * 25 * SECOND for i in range(6)]
    return [transaction(at, round(random.uniform(3, 5) * usual, 2), card=card) for at in times]


@pytest.mark.parametrize("every_ms", PACES)
def test_an_ordinary_card_raises_no_alert_in_10000_transactions(every_ms: int) -> None:
    random = Random(f"ordinary {every_ms}")
    target = driver()
    for number in range(10):
        card = f"card-{number}"
        stream = history(random, every_ms=every_ms, number=1_000, card=card)
        for i in range(0, len(stream), 50):
            target.host.watermark = -(2**63)  # the cards follow each other in the test, not in time
            send(target, *stream[i : i + 50])
    assert len(target.values()) == 10_010
    assert target.values("alerts") == []


@pytest.mark.parametrize("every_ms", PACES[:2])
@pytest.mark.parametrize("fraud", [card_testing, amount_spike, spree])
def test_a_fraud_on_a_card_with_twenty_purchases_is_caught(
    fraud: Callable[[Random, int, float, str], list[Transaction]], every_ms: int
) -> None:
    random = Random(f"frauds {every_ms}")
    for number in range(60):
        target = driver()
        card = f"card-{number}"
        stream = history(random, every_ms=every_ms, number=20, card=card)
        send(target, *stream)
        start = stream[-1].event_time_ms - stream[0].event_time_ms + MINUTE
        usual = statistics.fmean(tx.amount for tx in stream[1:])
        hits = fraud(random, start, usual, card)
        send(target, *hits)
        alerted = {alert.transaction_id for alert in target.values("alerts")}
        assert alerted & {tx.transaction_id for tx in hits}, f"{card}, usually {usual:.2f}"


def test_every_fraud_that_can_be_seen_is_caught_in_the_world_of_payments() -> None:
    profile = FraudProfile(
        seed=2, transactions=3_000, event_rate=0.02, cards=100, terminals=60, fraud_rate=12, fraud_scale=0.3
    )
    events = [e for e in simulate(profile) if e.stream == "transactions"]
    chain = Chain(("device",), out_of_orderness_ms=MINUTE)
    for first in range(0, len(events), 50):
        batch = events[first : first + 50]
        chain.send(*(msgspec.convert(e.event, Transaction, from_attributes=True) for e in batch))
    alerted = {alert.transaction_id for alert in chain.alerts}
    frauds: dict[tuple[str, str], set[str]] = defaultdict(set)
    for event in events:
        for truth in event.truths:
            frauds[truth.kind, truth.truth_id].add(event.event.transaction_id)
    for kind in ("card_testing", "small_then_large", "impossible_travel", "device_ring"):
        members = [ids for (of, _), ids in frauds.items() if of == kind]
        assert members, kind
        assert all(ids & alerted for ids in members), kind
    bought = {decision.transaction_id: decision.purchases_before for decision in chain.decisions}
    for kind in ("high_amount", "spree", "account_takeover"):
        known = [ids for (of, _), ids in frauds.items() if of == kind and min(bought[i] for i in ids) >= 10]
        assert known, kind
        assert all(ids & alerted for ids in known), kind
    false = alerted - set().union(*frauds.values())
    assert len(false) <= 0.15 * len(alerted)
