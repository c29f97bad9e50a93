"""The generator's device rings through decisions and case work: each is one case, and not one per card."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from millrace_apps.fraud.cases.events import AlertSeen, Case
from millrace_apps.fraud.cases.live import LiveCases
from millrace_apps.fraud.cases.rules import CaseRules
from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.generators.fraud import FraudProfile, simulate
from tests.unit.apps.fraud.cases import MINUTE
from tests.unit.apps.fraud.chain import Chain

PROFILE = FraudProfile(
    seed=2, transactions=9_000, event_rate=0.02, cards=200, terminals=60, fraud_rate=12, fraud_scale=0.3
)


def cases_of(alerts: list[AlertSeen], *, rings: bool) -> dict[str, Case]:
    """The cases that alerts come to."""
    live = LiveCases(CaseRules(rings=rings))
    live.add_alerts(alerts)
    live.settle()
    return live.cases


def test_each_device_ring_of_the_generated_world_is_one_case() -> None:
    events = [e for e in simulate(PROFILE) if e.stream == "transactions"]
    chain = Chain(("device",), out_of_orderness_ms=MINUTE)
    rings: dict[str, set[str]] = defaultdict(set)
    devices: dict[str, str] = {}
    for first in range(0, len(events), 50):
        batch = events[first : first + 50]
        chain.send(*(msgspec.convert(e.event, Transaction, from_attributes=True) for e in batch))
    for event in events:
        for truth in event.truths:
            if truth.kind == "device_ring":
                rings[truth.truth_id].add(event.event.transaction_id)
                devices[truth.truth_id] = event.event.device_id
    alerts = [msgspec.json.decode(msgspec.json.encode(one), type=AlertSeen) for one in chain.alerts]
    on, off = cases_of(alerts, rings=True), cases_of(alerts, rings=False)
    assert len(rings) >= 3
    in_ring_case = alerted = 0
    by_ring, by_card = list[Case](), list[Case]()
    for name, frauds in rings.items():
        said = {one.transaction_id for one in alerts if one.transaction_id in frauds}
        mine = [case for case in on.values() if case.subject == f"device:{devices[name]}"]
        assert len(mine) == 1, name
        assert {t.transaction_id for t in mine[0].transactions} <= frauds
        alerted += len(said)
        in_ring_case += len(said & {t.transaction_id for t in mine[0].transactions})
        by_ring += mine
        by_card += [c for c in off.values() if not said.isdisjoint(t.transaction_id for t in c.transactions)]
    assert len(by_card) >= 2 * len(by_ring)
    assert in_ring_case >= 0.8 * alerted
    # Nothing is lost on the way: each alert is in one case, with rings and without.
    for found in (on, off):
        told = [t.transaction_id for case in found.values() for t in case.transactions]
        assert sorted(told) == sorted(one.transaction_id for one in alerts)
    assert {c.subject for c in on.values() if c.ring} <= {f"device:{d}" for d in devices.values()}
