"""Disorder, lateness, repeats and broken messages, checked against what the messages themselves say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.generators.engine import Generated, substream
from millrace_apps.generators.engine.corrupt import StructCorruptor
from millrace_apps.generators.engine.stages import (
    DUPLICATE_GAP_MS,
    disorder,
    duplicates,
    in_arrival_order,
    late,
)
from millrace_apps.generators.fraud import FraudProfile
from tests.payments import transactions_of

HEADERS = [("ce_id", b"run-1"), ("schema_version", b"1")]


def plain(times: list[int]) -> Iterator[Generated]:
    for number, at in enumerate(times):
        name = f"run-{number}"
        value = json.dumps({"id": name, "amount": 2.5, "at": at}).encode()
        yield Generated(name, b"k", value, [("ce_id", name.encode())], at, "purchase", 250)


times = st.lists(st.integers(0, 20_000), max_size=200).map(sorted)


@given(times, st.integers(0, 2_000), st.integers(0, 99))
def test_disorder_loses_nothing_and_stays_within_its_bound(at: list[int], bound: int, seed: int) -> None:
    sent = list(in_arrival_order(disorder(plain(at), bound, substream(seed, "disorder"))))
    assert sorted(message.transaction_id for message in sent) == sorted(f"run-{n}" for n in range(len(at)))
    newest = -1
    for message in sent:
        assert newest - message.event_time_ms <= bound
        newest = max(newest, message.event_time_ms)
    assert [message.due_ms for message in sent] == sorted(message.due_ms for message in sent)


def test_messages_arrive_after_every_delay_up_to_the_bound_and_after_none_beyond_it() -> None:
    sent = disorder(plain([1_000] * 400), 3, substream(7, "disorder"))
    assert {message.due_ms - message.event_time_ms for message in sent} == {0, 1, 2, 3}


@given(times, st.integers(0, 500), st.integers(501, 5_000), st.floats(0.01, 1.0), st.integers(0, 99))
def test_a_late_event_is_at_least_its_lateness_behind_and_none_is_lost(
    at: list[int], bound: int, lateness: int, share: float, seed: int
) -> None:
    stream = disorder(plain(at), bound, substream(seed, "disorder"))
    last = at[-1] if at else 0
    sent = list(in_arrival_order(late(stream, share, lateness, last, substream(seed, "late"))))
    assert len(sent) == len(at)
    newest = -1
    for message in sent:
        behind = newest - message.event_time_ms
        if message.fault is None:
            assert behind <= bound
        else:
            assert message.fault.lateness_ms == behind >= lateness
        newest = max(newest, message.event_time_ms)


@given(times, st.floats(0.01, 1.0), st.integers(0, 99))
def test_a_repeat_is_byte_identical_and_follows_soon(at: list[int], share: float, seed: int) -> None:
    stream = duplicates(plain(at), share, substream(seed, "duplicates"))
    first: dict[str, Generated] = {}
    for message in in_arrival_order(stream):
        if message.fault is None:
            assert message.transaction_id not in first
            first[message.transaction_id] = message
            continue
        original = first[message.transaction_id]
        assert (message.key, message.value, message.headers) == (
            original.key,
            original.value,
            original.headers,
        )
        assert 0 < message.due_ms - original.due_ms <= DUPLICATE_GAP_MS
    assert len(first) == len(at)


def test_shares_come_out_as_asked() -> None:
    profile = FraudProfile(
        seed=5, events=50_000, late=0.02, lateness_ms=2_000, duplicates=0.03, malformed=0.01, fraud_rate=0
    )
    faults = [message.fault and message.fault.kind for message in transactions_of(profile)]
    # Five standard deviations of a binomial.
    assert faults.count("late") == pytest.approx(1_000, abs=157)
    assert faults.count("duplicate") == pytest.approx(1_500, abs=191)
    assert faults.count("malformed") == pytest.approx(500, abs=111)
    assert len(faults) - faults.count("duplicate") - faults.count("malformed") == 50_000


def is_event(value: bytes) -> bool:
    try:
        msgspec.json.decode(value, type=Plain)
    except (ValueError, msgspec.DecodeError):
        return False
    return True


class Plain(msgspec.Struct):
    id: str
    amount: Annotated[float, Meta(gt=0)]
    at: int


def test_every_variant_of_broken_message_breaks_the_contract_and_says_why() -> None:
    corrupt = StructCorruptor(Plain, id_field="id", run="run")
    numbers = substream(1, "corrupt")
    (event,) = plain([5])
    assert is_event(event.value)
    seen = set()
    for number in range(500):
        broken = corrupt(event, number, numbers)
        assert broken.fault is not None
        seen.add(broken.fault.detail)
        assert not is_event(broken.value)
        assert dict(broken.headers)["ce_id"].decode() == broken.transaction_id != event.transaction_id
        assert broken.key == event.key
        readable = True
        try:
            json.loads(broken.value.decode())
        except ValueError:
            readable = False
        out_of_range = broken.fault.detail == "out_of_range:amount"
        assert broken.fault.reason == ("range" if out_of_range else "schema" if readable else "malformed")
        assert b"\n" not in broken.value
    assert seen == {
        "truncated_json",
        "not_utf8",
        "wrong_type:amount",
        "wrong_type:at",
        "out_of_range:amount",
        "missing_field:id",
        "missing_field:amount",
        "missing_field:at",
        "wrong_root",
    }
    assert is_event(event.value)


def test_broken_messages_come_beside_valid_ones_and_have_ids_of_their_own() -> None:
    profile = FraudProfile(seed=5, events=2_000, malformed=0.2)
    messages = list(transactions_of(profile))
    valid = [m.transaction_id for m in messages if m.fault is None]
    broken = [m.transaction_id for m in messages if m.fault is not None]
    assert len(valid) == len(set(valid)) == 2_000
    assert len(broken) == len(set(broken)) > 300
    assert not set(valid) & set(broken)
    details = {m.fault.detail for m in messages if m.fault is not None}
    assert {f"missing_field:{f.name}" for f in msgspec.structs.fields(Transaction) if f.required} <= details
