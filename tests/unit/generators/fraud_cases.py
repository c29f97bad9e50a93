"""A run of the world of payments that the tests of the domain share, simulated once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from typing import TypeAlias

import msgspec

from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.generators.engine.simulated import Simulated, Truth
from millrace_apps.generators.fraud import FraudProfile, simulate

#: Kind → its frauds with their transactions.
Frauds: TypeAlias = dict[str, list[tuple[Truth, list[Transaction]]]]

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
#: 300 cards for 17 days of event time, about six transactions a day each; many frauds, three times as quick.
PROFILE = FraudProfile(
    seed=7,
    transactions=30_000,
    event_rate=0.02,
    cards=300,
    terminals=200,
    fraud_rate=10.0,
    fraud_scale=0.3,
    label_scale=0.2,
)


def euros(event: Transaction) -> float:
    """Return what a transaction comes to, whatever it was asked for in."""
    return event.amount if event.billing_amount is None else event.billing_amount


def as_bytes(event: Simulated) -> bytes:
    return event.key.encode() + msgspec.json.encode(event.event)


def digest(events: Iterable[Simulated]) -> str:
    return sha256(b"\n".join(as_bytes(event) for event in events)).hexdigest()


def transactions(events: Iterable[Simulated]) -> list[Simulated]:
    return [event for event in events if event.stream == "transactions"]


@cache
def simulated() -> list[Simulated]:
    return list(simulate(PROFILE))


@cache
def genuine_transactions() -> list[Transaction]:
    return [event.event for event in transactions(simulated()) if not event.truths]


@cache
def whole_frauds() -> Frauds:
    """Return the frauds; those that say how many transactions they have only if all were sent."""
    members: defaultdict[str, list[Transaction]] = defaultdict(list)
    truths: dict[str, Truth] = {}
    for event in transactions(simulated()):
        for truth in event.truths:
            members[truth.truth_id].append(event.event)
            truths[truth.truth_id] = truth
    found: defaultdict[str, list[tuple[Truth, list[Transaction]]]] = defaultdict(list)
    for truth_id, truth in truths.items():
        if truth.detail.get("events", len(members[truth_id])) == len(members[truth_id]):
            found[truth.kind].append((truth, members[truth_id]))
    return found


def kilometres_between(one: Transaction, other: Transaction) -> float:
    """Spherical law of cosines: another formula than the generator's."""
    a, b = math.radians(one.latitude or 0), math.radians(other.latitude or 0)
    turn = math.radians((other.longitude or 0) - (one.longitude or 0))
    cosine = math.sin(a) * math.sin(b) + math.cos(a) * math.cos(b) * math.cos(turn)
    return 6_371.0 * math.acos(min(1.0, cosine))
