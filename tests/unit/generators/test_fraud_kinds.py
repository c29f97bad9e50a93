"""The ten kinds of fraud of the world of payments, each held to its definition."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from statistics import mean

import msgspec
import pytest

from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.generators.engine.simulated import Simulated
from millrace_apps.generators.fraud import SCENARIOS, FraudProfile, simulate
from millrace_apps.generators.fraud.frauds import FAR_KM, IMPOSSIBLE_KM_PER_HOUR
from tests.unit.generators.fraud_cases import (
    DAY_MS,
    HOUR_MS,
    PROFILE,
    Frauds,
    euros,
    genuine_transactions,
    kilometres_between,
    simulated,
    transactions,
    whole_frauds,
)


@pytest.fixture(scope="module")
def events() -> list[Simulated]:
    return simulated()


@pytest.fixture(scope="module")
def genuine() -> list[Transaction]:
    return genuine_transactions()


@pytest.fixture(scope="module")
def frauds() -> Frauds:
    return whole_frauds()


def test_every_kind_of_fraud_occurs(frauds: Frauds) -> None:
    assert set(frauds) == set(SCENARIOS)
    assert min(len(found) for found in frauds.values()) >= 3
    for kind, found in frauds.items():
        for truth, members in found:
            assert truth.expected == "fraud"
            assert members
            cards = truth.detail["cards"]
            assert not cards or {member.card_id for member in members} == set(cards), kind


def test_frauds_begin_as_often_as_asked() -> None:
    profile = replace(PROFILE, transactions=20_000, scenarios="card_testing", cards=3_000)
    kinds = {t.truth_id for event in simulate(profile) for t in event.truths if t.kind == "card_testing"}
    # 10 per 1,000 of 20,000, a fifth of them of this kind: 40 expected, Poisson.
    assert 25 <= len(kinds) <= 58


def test_a_card_is_chosen_by_one_kind_of_fraud_only(
    frauds: Frauds,
) -> None:
    hit_by: defaultdict[str, set[str]] = defaultdict(set)
    for kind, found in frauds.items():
        if kind not in ("merchant_compromise", "compromised_terminal"):
            for truth, _ in found:
                for card in truth.detail["cards"]:
                    hit_by[card].add(kind)
    assert max(len(kinds) for kinds in hit_by.values()) == 1


def test_a_high_amount_is_above_every_genuine_one(
    frauds: Frauds,
) -> None:
    for _, (purchase,) in frauds["high_amount"]:
        assert 600 <= euros(purchase) <= 1_500


def test_every_purchase_at_a_compromised_terminal_is_a_fraud(events: list[Simulated], frauds: Frauds) -> None:
    for truth, members in frauds["compromised_terminal"]:
        assert {member.terminal_id for member in members} == {truth.entity}
        assert len(members) <= truth.detail["most"]
        begin_ms, end_ms = members[0].event_time_ms, members[-1].event_time_ms
        assert end_ms < truth.detail["until_ms"] <= begin_ms + 28 * DAY_MS
        of_others = [
            event
            for event in transactions(events)
            if event.event.terminal_id == truth.entity
            and event.event.kind == "purchase"
            and begin_ms <= event.event_time_ms <= end_ms
            and truth not in event.truths
        ]
        # A cloned card may be used there too, and that is a fraud as well.
        assert all(event.truths for event in of_others)


def test_a_third_of_a_compromised_cards_purchases_are_raised_five_times(
    events: list[Simulated], frauds: Frauds
) -> None:
    calm = {
        event.event.transaction_id: event.event
        for event in transactions(simulate(replace(PROFILE, fraud_rate=0.0)))
    }
    raised = 0
    for truth, members in frauds["compromised_card"]:
        assert {member.card_id for member in members} == {truth.entity}
        assert members[-1].event_time_ms < truth.detail["until_ms"]
        for member in members:
            before = calm[member.transaction_id]
            assert member.amount == pytest.approx(5 * before.amount)
            assert euros(member) == pytest.approx(5 * euros(before))
            own = {"amount": before.amount, "billing_amount": before.billing_amount}
            assert msgspec.structs.replace(member, **own) == before
            raised += 1
    assert raised > 20


def test_card_testing_is_eight_small_purchases_within_half_a_minute(
    frauds: Frauds,
) -> None:
    for _, members in frauds["card_testing"]:
        assert len(members) >= 8
        assert members[-1].event_time_ms - members[0].event_time_ms < 30_000
        assert max(euros(member) for member in members) <= 2.0
        assert len({(member.terminal_id, member.device_id) for member in members}) == 1


def test_a_takeover_has_a_new_device_a_new_address_and_high_amounts(
    genuine: list[Transaction],
    frauds: Frauds,
) -> None:
    usual: defaultdict[str, list[float]] = defaultdict(list)
    for event in genuine:
        if event.kind == "purchase":
            usual[event.card_id].append(euros(event))
    known = {event.device_id for event in genuine} | {event.address_id for event in genuine}
    for truth, members in frauds["account_takeover"]:
        assert 2 <= len(members) <= 5
        assert {member.device_id for member in members} == {truth.detail["device_id"]}
        assert {member.address_id for member in members} == {truth.detail["address_id"]}
        assert not {truth.detail["device_id"], truth.detail["address_id"]} & known
        assert members[-1].event_time_ms - members[0].event_time_ms <= 90 * 60_000
        if len(usual[truth.entity]) >= 30:
            assert min(euros(member) for member in members) > 4.5 * mean(usual[truth.entity])


def test_a_clone_is_used_where_the_card_cannot_be(events: list[Simulated], frauds: Frauds) -> None:
    by_id = {event.event.transaction_id: event.event for event in transactions(events)}
    for truth, members in frauds["impossible_travel"]:
        genuine = by_id[truth.detail["genuine_transaction_id"]]
        assert genuine.card_id == truth.entity
        kilometres = kilometres_between(genuine, members[0])
        hours = (members[0].event_time_ms - genuine.event_time_ms) / HOUR_MS
        assert kilometres >= FAR_KM
        assert kilometres / hours >= IMPOSSIBLE_KM_PER_HOUR * 0.99
        assert truth.detail["kilometres"] == round(kilometres)
        for one, other in pairwise(members):
            assert kilometres_between(one, other) < 60


def test_a_ring_shares_a_device_and_an_address(
    frauds: Frauds,
) -> None:
    for truth, members in frauds["device_ring"]:
        assert {member.device_id for member in members} == {truth.entity}
        assert {member.address_id for member in members} == {truth.detail["address_id"]}
        assert len({member.card_id for member in members}) >= 4
        assert members[-1].event_time_ms - members[0].event_time_ms <= DAY_MS


def test_cards_seen_at_a_compromised_merchant_are_misused_elsewhere_later(
    events: list[Simulated], frauds: Frauds
) -> None:
    by_id = {event.event.transaction_id: event.event for event in transactions(events)}
    for truth, members in frauds["merchant_compromise"]:
        exposures = [by_id[transaction_id] for transaction_id in truth.detail["exposed_by"]]
        assert [exposure.card_id for exposure in exposures] == truth.detail["cards"]
        assert len(set(truth.detail["cards"])) == len(exposures) >= 3
        assert {exposure.merchant_id for exposure in exposures} == {truth.entity}
        assert {exposure.channel for exposure in exposures} == {"terminal"}
        assert max(exposure.event_time_ms for exposure in exposures) < truth.detail["exposed_until_ms"]
        for misuse in members:
            assert misuse.event_time_ms > truth.detail["exposed_until_ms"]
            assert misuse.channel == "online"
            assert misuse.merchant_id != truth.entity


def test_a_small_purchase_is_followed_by_a_large_one_within_a_minute(
    frauds: Frauds,
) -> None:
    for _, (small, large) in frauds["small_then_large"]:
        assert euros(small) < 1.0
        assert euros(large) > 500.0
        assert 0 < large.event_time_ms - small.event_time_ms < 60_000


def test_scaled_frauds_fit_into_a_short_run() -> None:
    profile = FraudProfile(
        seed=1,
        transactions=20_000,
        event_rate=200.0,
        cards=500,
        terminals=60,
        fraud_rate=8,
        fraud_scale=0.0001,
    )
    kinds = Counter(truth.kind for event in simulate(profile) for truth in event.truths)
    assert set(SCENARIOS) <= set(kinds)


def test_a_spree_is_many_high_purchases_at_usual_terminals_within_half_a_minute(frauds: Frauds) -> None:
    at: defaultdict[str, set[str]] = defaultdict(set)
    for event in genuine_transactions():
        if event.channel == "terminal":
            at[event.card_id].add(event.terminal_id)
    for truth, members in frauds["spree"]:
        assert {member.card_id for member in members} == {truth.entity}
        assert 6 <= len(members) == truth.detail["events"] <= 10
        times = [member.event_time_ms for member in members]
        assert max(times) - min(times) <= 30_000
        assert {member.channel for member in members} == {"terminal"}
        amounts = [euros(member) for member in members]
        assert max(amounts) <= 5 / 3 * min(amounts) + 0.05
        assert len({member.terminal_id for member in members} & at[truth.entity]) > 0
