"""The stream of card transactions: its contract, its frauds, its cards."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import jsonschema
import pytest

from millrace.errors import UserError
from millrace_apps.generators.engine import Generated
from millrace_apps.generators.fraud import FIELDS, FraudProfile, fraud_events, simulate

SCHEMA = Path(__file__).parents[3] / "apps/fraud/schemas/transaction.v2.schema.json"


@pytest.fixture(scope="module")
def events() -> list[Generated]:
    return list(simulate(FraudProfile(seed=11, events=40_000, cards=400, fraud_rate=3)))


@pytest.fixture(scope="module")
def payloads(events: list[Generated]) -> list[dict[str, Any]]:
    return [json.loads(event.value) for event in events]


def test_every_valid_event_keeps_the_contract(payloads: list[dict[str, Any]]) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_bytes()))
    for payload in payloads[::8]:
        validator.validate(payload)


def test_the_schema_is_a_schema_and_describes_every_field() -> None:
    schema = json.loads(SCHEMA.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    # What the contract has beyond these is optional: other producers send it.
    assert tuple(schema["properties"])[: len(FIELDS)] == tuple(schema["required"]) == FIELDS
    assert all(field["description"] for field in schema["properties"].values())


def test_fields_stand_in_the_order_of_the_contract(payloads: list[dict[str, Any]]) -> None:
    assert {tuple(payload) for payload in payloads} == {FIELDS}


def test_amounts_have_at_most_two_decimals(events: list[Generated]) -> None:
    for event in events:
        text = event.value.split(b'"amount":')[1].split(b",")[0].decode()
        assert len(text.partition(".")[2]) <= 2
        assert round(float(text) * 100) == event.amount > 0


def test_key_and_headers_follow_cloudevents_binary_mode(events: list[Generated]) -> None:
    event = events[12_345]
    payload = json.loads(event.value)
    assert event.key == payload["card_id"].encode()
    headers = dict(event.headers)
    assert list(headers) == [
        "ce_specversion",
        "ce_id",
        "ce_type",
        "ce_source",
        "ce_time",
        "content-type",
        "schema_version",
    ]
    assert headers["ce_specversion"] == b"1.0"
    assert headers["ce_id"].decode() == payload["transaction_id"]
    assert headers["ce_type"] == b"millrace.fraud.transaction"
    assert headers["ce_time"] == b"2026-01-01T00:00:12.345Z"
    assert payload["event_time_ms"] == 1_767_225_612_345
    assert headers["content-type"] == b"application/json"
    assert headers["schema_version"] == b"1"


def test_transaction_ids_are_unique_and_differ_between_seeds_and_starts(events: list[Generated]) -> None:
    ids = {event.transaction_id for event in events}
    assert len(ids) == len(events)
    for other in (FraudProfile(seed=12, events=50), FraudProfile(seed=11, start_ms=0, events=50)):
        assert not ids & {event.transaction_id for event in simulate(other)}


def test_the_truth_is_not_in_the_bytes(events: list[Generated]) -> None:
    frauds = [event for event in events if event.episode]
    for event in frauds:
        assert event.episode is not None
        everything = event.value + event.key + b"".join(value for _, value in event.headers)
        assert event.episode.scenario.encode() not in everything
        assert event.episode.episode_id.encode() not in everything
    ordinary = next(event for event in events if event.kind == "purchase" and not event.episode)
    assert [name for name, _ in frauds[0].headers] == [name for name, _ in ordinary.headers]


def test_event_time_never_runs_back_and_ends_where_the_profile_says(events: list[Generated]) -> None:
    times = [event.event_time_ms for event in events]
    assert times == sorted(times)
    profile = FraudProfile(events=40_000)
    assert (times[0], times[-1]) == (profile.start_ms, profile.last_ms)


def test_a_balance_falls_below_zero_only_by_fraud(events: list[Generated]) -> None:
    balances: Counter[bytes] = Counter()
    hit: set[bytes] = set()
    for event in events:
        balances[event.key] += -event.amount if event.kind == "purchase" else event.amount
        if event.episode:
            hit.add(event.key)
        assert balances[event.key] >= 0 or event.key in hit
    assert len(hit) < len(balances)


def test_a_refund_gives_an_earlier_purchase_back_once(events: list[Generated]) -> None:
    bought: defaultdict[bytes, Counter[int]] = defaultdict(Counter)
    refunds = 0
    for event in events:
        if event.kind == "purchase":
            bought[event.key][event.amount] += 1
        elif event.kind == "refund":
            refunds += 1
            bought[event.key][event.amount] -= 1
            assert bought[event.key][event.amount] >= 0
    assert 0.005 < refunds / len(events) < 0.015


def test_cards_keep_to_their_habits(events: list[Generated]) -> None:
    amounts: defaultdict[bytes, list[int]] = defaultdict(list)
    for event in events:
        if event.kind == "purchase" and not event.episode:
            amounts[event.key].append(event.amount)
    means = [mean(spent) for spent in amounts.values() if len(spent) >= 60]
    assert len(means) > 200
    # Means are uniform over 5 to 100; redrawn small amounts and the sample's error widen that a little.
    assert 4.00 < min(means) / 100 < 12
    assert 85 < max(means) / 100 < 125
    ratios = [stdev(spent) / mean(spent) for spent in amounts.values() if len(spent) >= 60]
    assert 0.38 < mean(ratios) < 0.52
    assert max(cents / min(means) for cents in min(amounts.values(), key=mean)) < 8


def episodes(events: list[Generated]) -> dict[str, list[Generated]]:
    found: defaultdict[str, list[Generated]] = defaultdict(list)
    for event in events:
        if event.episode:
            found[event.episode.episode_id].append(event)
    return {name: hits for name, hits in found.items() if is_whole(hits)}


def is_whole(hits: list[Generated]) -> bool:
    episode = hits[0].episode
    return episode is not None and len(hits) == episode.size


def test_all_scenarios_occur_about_as_often_as_asked(events: list[Generated]) -> None:
    scenarios = Counter(hits[0].labels.scenario for hits in episodes(events).values())
    assert set(scenarios) == {"card_testing", "amount_spike", "spree"}
    # 3 per 1,000 of 40,000 events = 120, less those without a suitable card or cut off by the end.
    assert 70 <= scenarios.total() <= 150
    assert min(scenarios.values()) >= 15


def test_an_episode_is_of_one_card_and_purchases_only(events: list[Generated]) -> None:
    for hits in episodes(events).values():
        assert len({event.key for event in hits}) == 1
        assert {event.kind for event in hits} == {"purchase"}


def history(events: list[Generated], until: Generated) -> list[int]:
    """Amounts of the card's ordinary purchases before an event."""
    before = events[: events.index(until)]
    return [e.amount for e in before if e.key == until.key and e.kind == "purchase" and not e.episode]


def of_scenario(events: list[Generated], scenario: str) -> list[list[Generated]]:
    return [hits for hits in episodes(events).values() if hits[0].labels.scenario == scenario]


def test_card_testing_is_eight_small_purchases_within_a_minute(events: list[Generated]) -> None:
    for hits in of_scenario(events, "card_testing"):
        assert len(hits) >= 8
        assert hits[-1].event_time_ms - hits[0].event_time_ms < 60_000
        assert max(event.amount for event in hits) <= 200


def test_an_amount_spike_is_far_outside_the_habit_of_a_card_with_a_history(events: list[Generated]) -> None:
    for hits in of_scenario(events, "amount_spike"):
        (spike,) = hits
        before = history(events, spike)
        assert len(before) >= 10
        assert spike.amount >= 8 * mean(before)
        assert spike.amount >= mean(before) + 10 * stdev(before)


def test_a_spree_is_six_purchases_of_several_times_the_usual_amount(events: list[Generated]) -> None:
    for hits in of_scenario(events, "spree"):
        assert len(hits) >= 6
        assert hits[-1].event_time_ms - hits[0].event_time_ms < 60_000
        usual = mean(history(events, hits[0]))
        assert len(history(events, hits[0])) >= 10
        # "Usual" is the card's habit or its mean so far, whichever is more.
        assert all(event.amount >= 3 * usual for event in hits)
        amounts = [event.amount for event in hits]
        assert max(amounts) / min(amounts) <= 5 / 3


@pytest.mark.parametrize("event_rate", [0.2, 3.0])
def test_frauds_keep_their_definition_in_a_thin_stream(event_rate: float) -> None:
    profile = FraudProfile(seed=3, events=3_000, event_rate=event_rate, cards=5, terminals=3, fraud_rate=20)
    thin = list(simulate(profile))
    times = [event.event_time_ms for event in thin]
    assert times == sorted(times)
    bursts = of_scenario(thin, "card_testing")
    assert bursts
    for hits in bursts:
        assert hits[-1].event_time_ms - hits[0].event_time_ms < 60_000


def test_ordinary_life_hardly_ever_looks_like_card_testing(events: list[Generated]) -> None:
    small: defaultdict[bytes, list[int]] = defaultdict(list)
    bursts = 0
    for event in events:
        if event.kind == "purchase" and event.amount <= 200 and not event.episode:
            times = small[event.key]
            times.append(event.event_time_ms)
            bursts += len(times) >= 8 and times[-1] - times[-8] < 60_000
    assert bursts == 0


def test_skewed_activity_makes_some_cards_hot() -> None:
    def top_share(skew: float) -> float:
        profile = FraudProfile(seed=1, events=20_000, cards=1_000, card_skew=skew, fraud_rate=0)
        per_card = Counter(event.key for event in simulate(profile))
        return sum(count for _, count in per_card.most_common(10)) / 20_000

    assert top_share(0.0) < 0.03
    assert top_share(1.2) > 0.4


def test_a_stream_without_end_keeps_coming() -> None:
    stream = fraud_events(FraudProfile(seed=1, late=0.1, duplicates=0.1, malformed=0.1))
    seen = [next(stream) for _ in range(5_000)]
    assert {event.labels.fault for event in seen} >= {None, "duplicate", "malformed"}


@pytest.mark.parametrize(
    ("flaw", "says"),
    [
        ({"late": 1.5}, "late is a share between 0 and 1, got 1.5"),
        ({"duplicates": -0.1}, "duplicates is a share"),
        ({"malformed": float("nan")}, "malformed is a share"),
        ({"events": -1}, "events is a count"),
        ({"event_rate": 0.0}, "event rate is above 0"),
        ({"event_rate": float("inf")}, "event rate is above 0"),
        ({"start_ms": 1_767_225_600_000_000}, "start is in ms"),
        ({"late": 0.1, "lateness_ms": 400}, "lateness must be more than the natural disorder of 500 ms"),
        ({"cards": 0}, "cards is a count"),
        ({"terminals": 0}, "terminals is a count"),
        ({"fraud_rate": -1.0}, "fraud rate"),
        ({"card_skew": -1.0}, "card skew"),
    ],
)
def test_a_parameter_out_of_range_is_named(flaw: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        FraudProfile(**flaw)
