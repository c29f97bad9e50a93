"""The world of payments: the same bytes for the same profile, the stream as such, genuine life."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from random import Random
from statistics import mean, stdev
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import UserError
from millrace_apps.fraud.contracts.events import Authorisation, Transaction
from millrace_apps.generators.engine.simulated import Simulated
from millrace_apps.generators.fraud import DOMAIN, SCENARIOS, FraudProfile, simulate
from millrace_apps.generators.fraud.names import scattered
from millrace_apps.generators.fraud.ordinary import summer_min
from millrace_apps.generators.fraud.rhythm import day_and_night
from millrace_apps.generators.fraud.simulation import Simulation
from millrace_apps.generators.fraud.world import Terminal, World, distance_km
from tests.unit.generators.fraud_cases import (
    DAY_MS,
    HOUR_MS,
    PROFILE,
    as_bytes,
    digest,
    euros,
    genuine_transactions,
    kilometres_between,
    simulated,
    transactions,
)


@pytest.fixture(scope="module")
def events() -> list[Simulated]:
    return simulated()


@pytest.fixture(scope="module")
def genuine() -> list[Transaction]:
    return genuine_transactions()


def test_same_profile_gives_same_bytes_and_another_seed_gives_others() -> None:
    short = replace(PROFILE, events=2_000)
    assert digest(simulate(short)) == digest(simulate(short))
    assert digest(simulate(replace(short, seed=8))) != digest(simulate(short))


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_another_process_gives_the_same_bytes(hash_seed: str) -> None:
    short = replace(PROFILE, events=1_000)
    code = (
        "import hashlib, msgspec\nfrom millrace_apps.generators.fraud import FraudProfile, simulate\n"
        f"events = simulate(FraudProfile(**{short.parameters()!r}))\n"
        "rows = [event.key.encode() + msgspec.json.encode(event.event) for event in events]\n"
        "print(hashlib.sha256(b'\\n'.join(rows)).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == digest(simulate(short))


@pytest.mark.parametrize("count", [0, 1, 3_000])
def test_a_shorter_run_is_the_beginning_of_a_longer_one(count: int, events: list[Simulated]) -> None:
    short = list(simulate(replace(PROFILE, events=count, transactions=None)))
    assert len(short) == count
    assert digest(short) == digest(events[:count])


def test_bytes_stay_the_same_between_releases() -> None:
    """A change here changes every stream that someone made with a seed: say so in the change log."""
    first = next(simulate(PROFILE))
    assert msgspec.json.encode(first.event) == (
        b'{"transaction_id":"381063ae4f-369aed03efb7","card_id":"card-0000007","terminal_id":"topup-AT",'
        b'"mcc":"6540","country":"AT","amount":650.0,"currency":"EUR","kind":"top_up",'
        b'"event_time_ms":1767225641233,"customer_id":"cust-0000006","account_id":"acct-0000006",'
        b'"merchant_id":"bank-AT","channel":"online","latitude":null,"longitude":null,"device_id":null,'
        b'"ip":null,"address_id":null,"utc_offset_min":60,"home_country":"AT","billing_amount":null,'
        b'"billing_currency":null,"billing_rate":null}'
    )
    expected = "0c661a53e33cb7f1386bb7402863bb5f6b49ae3f53343fca6ef1b851d3bc99c8"
    assert digest(simulate(replace(PROFILE, events=2_000))) == expected


@pytest.mark.parametrize("kind", SCENARIOS)
def test_a_kind_of_fraud_is_the_same_whatever_others_there_are(kind: str, events: list[Simulated]) -> None:
    end_ms = PROFILE.slot_ms(15_000)

    def of_kind(stream: Iterable[Simulated]) -> list[tuple[str, int]]:
        return [
            (event.event.transaction_id, event.event_time_ms)
            for event in stream
            if event.event_time_ms < end_ms and any(truth.kind == kind for truth in event.truths)
        ]

    alone = of_kind(simulate(replace(PROFILE, scenarios=kind, events=15_400)))
    assert len(alone) > 0
    assert alone == of_kind(events)


def test_frauds_and_labels_change_no_genuine_transaction(events: list[Simulated]) -> None:
    """A fraud takes the slot of a genuine transaction, which is left out; all others stay as they were."""
    calm = {as_bytes(event) for event in transactions(simulate(replace(PROFILE, fraud_rate=0.0)))}
    assert len(calm) == PROFILE.transactions
    for event in transactions(events):
        if not event.truths:
            assert as_bytes(event) in calm


def test_events_come_in_event_time_and_end_where_the_profile_says(events: list[Simulated]) -> None:
    times = [event.event_time_ms for event in events]
    assert times == sorted(times)
    assert all(event.event_time_ms == event.event.event_time_ms for event in events)
    sent = transactions(events)
    assert len(sent) == PROFILE.transactions
    assert PROFILE.start_ms <= sent[0].event_time_ms < PROFILE.slot_ms(1)
    assert PROFILE.slot_ms(len(sent) - 1) <= sent[-1].event_time_ms < PROFILE.slot_ms(len(sent))


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("rate", [0.02, 1000.0])
def test_every_run_has_as_many_transactions_as_asked(count: int, rate: float) -> None:
    profile = replace(PROFILE, transactions=count, event_rate=rate, fraud_rate=100.0, fraud_scale=0.001)
    sent = transactions(simulate(profile))
    assert len(sent) == count
    assert not sent or profile.slot_ms(count - 1) <= sent[-1].event_time_ms <= profile.slot_ms(count)


def test_ids_are_unique_and_differ_between_seeds_and_starts(events: list[Simulated]) -> None:
    ids = {event.event.transaction_id for event in transactions(events)}
    assert len(ids) == PROFILE.transactions
    for other in (replace(PROFILE, seed=8, events=500), replace(PROFILE, start_ms=0, events=500)):
        assert not ids & {event.event.transaction_id for event in transactions(simulate(other))}


def test_scattered_numbers_stay_different() -> None:
    names = {scattered(number, owner) for number in range(5_000) for owner in range(4)}
    assert len(names) == 20_000
    assert {len(name) for name in names} == {12}


def test_every_event_keeps_its_contract_and_its_key(events: list[Simulated]) -> None:
    for event in events[::5]:
        spec = DOMAIN.streams[event.stream]
        assert msgspec.json.decode(msgspec.json.encode(event.event), type=spec.event_type) == event.event
        assert event.key == event.event.card_id


def test_the_domain_names_fields_that_exist() -> None:
    for spec in DOMAIN.streams.values():
        fields = {field.name for field in msgspec.structs.fields(spec.event_type)}
        assert {spec.id_field, spec.time_field} <= fields
    assert set(SCENARIOS) < set(DOMAIN.scenarios)


def test_the_truth_is_not_in_the_bytes(events: list[Simulated]) -> None:
    for event in transactions(events):
        for truth in event.truths:
            assert truth.kind.encode() not in as_bytes(event)
            assert truth.truth_id.encode() not in as_bytes(event)


def test_online_purchases_have_equipment_and_those_at_terminals_a_position(
    genuine: list[Transaction],
) -> None:
    for event in genuine:
        positions = [event.latitude is not None, event.longitude is not None]
        equipment = [value is not None for value in (event.device_id, event.ip, event.address_id)]
        assert positions == [event.channel == "terminal"] * 2
        assert equipment == [event.channel == "online" and event.kind == "purchase"] * 3


def test_shares_of_channels_and_kinds(genuine: list[Transaction]) -> None:
    kinds = Counter(event.kind for event in genuine)
    assert kinds["refund"] / len(genuine) == pytest.approx(0.0115, abs=0.003)
    assert 0.02 < kinds["top_up"] / len(genuine) < 0.08
    purchases = [event for event in genuine if event.kind == "purchase"]
    online = sum(event.channel == "online" for event in purchases) / len(purchases)
    # 30 % and the purchases of those on their way.
    assert 0.29 < online < 0.33


def test_cards_keep_to_their_amounts(genuine: list[Transaction]) -> None:
    amounts: defaultdict[str, list[float]] = defaultdict(list)
    for event in genuine:
        if event.kind == "purchase":
            amounts[event.card_id].append(euros(event))
    means = [mean(spent) for spent in amounts.values() if len(spent) >= 40]
    assert 4 < min(means) < 12
    assert 85 < max(means) < 125
    assert mean(means) == pytest.approx(52.5, rel=0.1)
    # Lognormal with sigma 0.5: deviation 0.533 of the mean, and never above 5.6 times the mean.
    spreads = [stdev(spent) / mean(spent) for spent in amounts.values() if len(spent) >= 40]
    assert mean(spreads) == pytest.approx(0.53, abs=0.04)
    logs = [mean(map(math.log, spent)) - math.log(mean(spent)) for spent in amounts.values()]
    assert mean(logs) == pytest.approx(-0.125, abs=0.02)
    assert max(euros(event) for event in genuine if event.kind == "purchase") < 560


def test_no_genuine_card_moves_faster_than_a_plane(genuine: list[Transaction]) -> None:
    last: dict[str, Transaction] = {}
    trips = 0
    for event in genuine:
        if event.channel == "online":
            continue
        before = last.get(event.card_id)
        last[event.card_id] = event
        if before is None:
            continue
        kilometres = kilometres_between(before, event)
        if kilometres > 60:
            trips += 1
            assert kilometres / ((event.event_time_ms - before.event_time_ms) / HOUR_MS) < 600
    assert trips > 20


def test_an_account_falls_below_zero_only_by_fraud() -> None:
    balances: Counter[str] = Counter()
    for event in simulate(replace(PROFILE, events=5_000, fraud_rate=0.0)):
        if event.stream == "transactions":
            cents = round(euros(event.event) * 100)
            balances[event.event.account_id] += -cents if event.event.kind == "purchase" else cents
            assert balances[event.event.account_id] >= 0


def test_a_refund_gives_an_earlier_purchase_back_once(events: list[Simulated]) -> None:
    bought: defaultdict[tuple[str, str], Counter[float]] = defaultdict(Counter)
    for event in transactions(events):
        paid = event.event
        if paid.kind == "purchase":
            bought[paid.card_id, paid.terminal_id][paid.amount] += 1
        elif paid.kind == "refund":
            bought[paid.card_id, paid.terminal_id][paid.amount] -= 1
            assert bought[paid.card_id, paid.terminal_id][paid.amount] >= 0


def test_households_share_accounts_devices_and_addresses(genuine: list[Transaction]) -> None:
    """Sharing alone must not give a fraud away: it is a part of genuine life, and so are new devices."""
    cards_of: defaultdict[str, set[str]] = defaultdict(set)
    devices_of: defaultdict[str, set[str]] = defaultdict(set)
    for event in genuine:
        cards_of[event.account_id].add(event.card_id)
        if event.device_id is not None:
            cards_of[event.device_id].add(event.card_id)
            devices_of[event.card_id].add(event.device_id)
    accounts = [len(cards) for name, cards in cards_of.items() if name.startswith("acct-")]
    devices = [len(cards) for name, cards in cards_of.items() if name.startswith("dev-")]
    assert max(accounts) == 2
    assert 0.1 < sum(count == 2 for count in accounts) / len(accounts) < 0.45
    assert max(devices) == 2
    assert sum(count == 2 for count in devices) > 20
    assert sum(len(held) > 2 for held in devices_of.values()) > 5


def test_no_state_grows_with_the_run() -> None:
    simulation = Simulation(
        replace(
            PROFILE,
            transactions=None,
            event_rate=50.0,
            fraud_rate=4.0,
            fraud_scale=0.0003,
            label_scale=0.00001,
        )
    )
    stream = simulation.events()
    devices = simulation.held()["devices"]
    for _ in range(4):
        assert sum(1 for _ in islice(stream, 8_000)) == 8_000
        held = simulation.held()
        assert held["devices"] == devices
        assert held["coming"] < 150
        assert held["plans"] < 150
        assert held["watches"] < 100


def test_what_is_held_is_counted() -> None:
    simulation = Simulation(replace(PROFILE, transactions=None))
    for _ in islice(simulation.events(), 3_000):
        pass
    held = simulation.held()
    assert min(held.values()) > 0


@pytest.mark.parametrize(
    ("flaw", "says"),
    [
        ({"cards": 0}, "cards is a count"),
        ({"terminals": 9}, "terminals is a count from 10"),
        ({"card_skew": -1.0}, "card skew"),
        ({"online": 1.5}, "online is a share"),
        ({"rhythm": 1.0}, "rhythm is 0 to 0.95"),
        ({"fraud_rate": 101.0}, "fraud rate"),
        ({"fraud_scale": 0.0}, "fraud scale"),
        ({"label_scale": 11.0}, "label scale"),
        ({"transactions": -1}, "transactions is a count"),
        ({"scenarios": "card_testing,teleport"}, "scenarios are all or some of .*, got teleport"),
        ({"late": 1.5}, "late is a share"),
    ],
)
def test_a_parameter_out_of_range_is_named(flaw: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        FraudProfile(**flaw)


@pytest.mark.parametrize("cards", [1, 5])
def test_a_tiny_world_works(cards: int) -> None:
    profile = FraudProfile(transactions=500, cards=cards, terminals=10, fraud_rate=50.0)
    assert len(transactions(simulate(profile))) == 500
    calm = replace(profile, fraud_rate=0.0)
    assert {event.event.card_id for event in simulate(calm)} == {f"card-{n:07d}" for n in range(cards)}


@given(st.integers(0, 10 * DAY_MS), st.integers(0, DAY_MS), st.floats(0.0, 0.95))
def test_a_rhythm_keeps_order_and_days(at_ms: int, later_ms: int, depth: float) -> None:
    shaped = day_and_night(depth)
    assert shaped(at_ms) <= shaped(at_ms + later_ms)
    assert shaped(at_ms) // DAY_MS == at_ms // DAY_MS


def test_nights_are_quieter_than_days_if_asked() -> None:
    profile = replace(PROFILE, transactions=5_000, rhythm=0.8, fraud_rate=0.0)
    hours = Counter(
        event.event_time_ms // HOUR_MS % 24
        for event in transactions(simulate(profile))
        if event.event_time_ms < PROFILE.start_ms + 2 * DAY_MS
    )
    # Two days of 1,728 transactions: 1 − 0.8 of the mean at three, 1 + 0.8 at fifteen o'clock.
    assert sum(hours.values()) == pytest.approx(2 * 1_728, abs=2)
    assert hours[2] + hours[3] == pytest.approx(0.2 * 2 * 144, rel=0.25)
    assert hours[14] + hours[15] == pytest.approx(1.8 * 2 * 144, rel=0.1)


def test_frauds_cannot_be_told_by_their_times(events: list[Simulated]) -> None:
    """Neither stands on the grid of slots (50 s here), nor shares its time with another transaction."""
    on_grid = Counter(
        bool(event.truths)
        for event in transactions(events)
        if (event.event_time_ms - PROFILE.start_ms) % 50_000 == 0
    )
    assert on_grid.total() < 20
    times = Counter(event.event_time_ms for event in transactions(events))
    shared = [event for event in transactions(events) if times[event.event_time_ms] > 1]
    assert len(shared) < 50


def test_skewed_activity_makes_some_cards_hot() -> None:
    def top_share(skew: float) -> float:
        profile = FraudProfile(events=5_000, cards=1_000, card_skew=skew, fraud_rate=0.0)
        per_card = Counter(event.key for event in simulate(profile) if event.stream == "transactions")
        return sum(count for _, count in per_card.most_common(10)) / 5_000

    assert top_share(0.0) < 0.04
    assert top_share(1.2) > 0.4


def test_distances_are_great_circles() -> None:
    world = World(replace(PROFILE, events=0))
    berlin, paris = world.at_place[0][0], world.at_place[4][0]
    assert distance_km(berlin, paris) == pytest.approx(878, rel=0.06)
    shop: Terminal = world.shops[0]
    with pytest.raises(ValueError, match="a web shop has no position"):
        distance_km(berlin, shop)


def test_every_field_of_the_contract_is_sent() -> None:
    """A field that no event has, no app can be tried with."""
    profile = replace(PROFILE, authorised=0.3, label_scale=0.001, events=12_000)
    given: defaultdict[str, set[str]] = defaultdict(set)
    types: list[Any] = [spec.event_type for spec in DOMAIN.streams.values()]
    wanted = {kind.__name__: set(kind.__struct_fields__) for kind in types}
    for simulated_ in simulate(profile):
        event = simulated_.event
        given[type(event).__name__] |= {
            name for name in event.__struct_fields__ if getattr(event, name) is not None
        }
    assert given == wanted


def test_what_a_shop_abroad_asks_is_billed_at_its_rate(genuine: list[Transaction]) -> None:
    rates: defaultdict[str, set[float | None]] = defaultdict(set)
    for event in genuine:
        rates[event.currency].add(event.billing_rate)
        if event.billing_amount is not None and event.billing_rate is not None:
            assert event.channel == "online"
            assert abs(event.billing_amount - event.amount * event.billing_rate) <= event.billing_rate / 100
            assert event.billing_currency == "EUR" != event.currency
    assert rates.pop("EUR") == {None}
    assert all(len(found) == 1 for found in rates.values())
    assert len(rates) > 1


def test_local_time_is_that_of_the_place(genuine: list[Transaction]) -> None:
    zones = {"DE": "Europe/Berlin", "PT": "Europe/Lisbon", "GR": "Europe/Athens", "FI": "Europe/Helsinki"}
    seen = set()
    for event in genuine:
        zone = zones.get(event.country)
        if zone is None or event.channel != "terminal":
            continue
        at = datetime.fromtimestamp(event.event_time_ms / 1000, ZoneInfo(zone))
        offset = at.utcoffset()
        assert offset is not None
        assert event.utc_offset_min == offset.total_seconds() / 60
        seen.add(zone)
    assert len(seen) > 2


def test_summer_time_is_that_of_the_zone_database() -> None:
    numbers, berlin = Random(4), ZoneInfo("Europe/Berlin")
    for _ in range(5_000):
        hour = numbers.randrange(26 * 8_766, 80 * 8_766)
        offset = datetime.fromtimestamp(hour * 3_600, UTC).astimezone(berlin).utcoffset()
        assert offset is not None
        assert summer_min(hour) == offset.total_seconds() / 60 - 60


def test_authorisations_tell_what_becomes_of_a_share_of_the_purchases() -> None:
    profile = replace(PROFILE, authorised=0.3, transactions=8_000, label_scale=0.001)
    events = list(simulate(profile))
    paid = {e.event.transaction_id: e.event for e in transactions(events) if e.event.kind == "purchase"}
    told: defaultdict[str, list[Authorisation]] = defaultdict(list)
    for event in events:
        if event.stream == "authorisations":
            told[event.event.transaction_id].append(event.event)
    assert told.keys() <= paid.keys()
    assert 0.27 <= len(told) / len(paid) <= 0.33
    ends: Counter[str] = Counter()
    for name, steps in told.items():
        of = paid[name]
        assert [step.event_time_ms for step in steps] == sorted(step.event_time_ms for step in steps)
        assert all(step.amount == euros(of) and step.card_id == of.card_id for step in steps)
        assert of.event_time_ms + 200 <= steps[0].event_time_ms < of.event_time_ms + 2_000
        words = [step.status for step in steps]
        assert words in (["declined"], ["approved", "captured"], ["approved", "reversed"])
        ends[words[-1]] += 1
        for step in steps:
            assert step.settled_amount is None or 0 < step.settled_amount < step.amount + 0.01
    assert 0.02 <= ends["declined"] / len(told) <= 0.045
    assert min(ends.values()) > 5
    calm = [as_bytes(e) for e in transactions(simulate(replace(profile, authorised=0.0)))]
    assert [as_bytes(e) for e in events if e.stream == "transactions"] == calm
