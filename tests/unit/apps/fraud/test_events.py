from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_apps.fraud.contracts.control_events import MAX_AMOUNT, ResetThreshold, SetThreshold
from millrace_apps.fraud.contracts.events import Control, Transaction, to_cents

SCHEMA = json.loads(
    (files("millrace_apps.fraud") / "schemas" / "transaction.v2.schema.json").read_text("utf-8")
)
VALID: dict[str, Any] = {
    "transaction_id": "tx-1",
    "card_id": "card-1",
    "terminal_id": "terminal-1",
    "mcc": "5411",
    "country": "DE",
    "amount": 12.34,
    "currency": "EUR",
    "kind": "purchase",
    "event_time_ms": 1_767_225_600_000,
}
#: Each must be refused by the schema and by the struct.
BROKEN: list[dict[str, Any]] = [
    *({name: None} for name in VALID),
    *({name: ""} for name in VALID),
    *({name: True} for name in VALID),
    *({name: {}} for name in VALID),
    {"transaction_id": 1},
    {"mcc": "541"},
    {"mcc": "54111"},
    {"mcc": "54a1"},
    {"mcc": 5411},
    {"country": "D"},
    {"country": "DEU"},
    {"country": "de"},
    {"amount": 0},
    {"amount": -0.01},
    {"amount": "12.34"},
    {"currency": "EURO"},
    {"currency": "eur"},
    {"currency": "€"},
    {"billing_currency": "EURO"},
    {"billing_amount": 0, "billing_currency": "EUR"},
    {"billing_rate": -1},
    {"kind": "payment"},
    {"event_time_ms": -1},
    {"event_time_ms": 1.5},
    {"event_time_ms": "1767225600000"},
    {"event_time_ms": "2026-01-01T00:00:00Z"},
]


def decode(value: Any) -> Transaction:
    return msgspec.json.decode(json.dumps(value), type=Transaction)


def is_valid(value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(SCHEMA).is_valid(value))


def test_struct_and_schema_name_the_same_fields_and_require_the_same() -> None:
    fields = msgspec.structs.fields(Transaction)
    assert [f.encode_name for f in fields] == list(SCHEMA["properties"])
    assert [f.encode_name for f in fields if f.required] == SCHEMA["required"]


def test_struct_and_schema_have_the_same_types_and_constraints() -> None:
    (_, made), *_ = msgspec.json.schema_components([Transaction])[1].items()
    for name, wanted in SCHEMA["properties"].items():
        wanted = {k: v for k, v in wanted.items() if k != "description" and not k.startswith("x-")}
        if "const" in wanted:
            wanted = {"enum": [wanted["const"]]}
        found = {k: sorted(v) if k == "enum" else v for k, v in made["properties"][name].items()}
        wanted = {k: sorted(v) if k == "enum" else v for k, v in wanted.items()}
        # What the struct bounds and the schema leaves open: what no state and no clock can hold.
        for limit in ("maximum", "maxLength"):
            if limit not in wanted:
                found.pop(limit, None)
        assert found == wanted, name


@pytest.mark.parametrize("change", BROKEN, ids=json.dumps)
def test_struct_and_schema_refuse_the_same(change: dict[str, Any]) -> None:
    assert not is_valid({**VALID, **change})
    with pytest.raises(msgspec.ValidationError):
        decode({**VALID, **change})


@pytest.mark.parametrize("name", VALID)
def test_struct_and_schema_refuse_a_missing_field(name: str) -> None:
    value = {k: v for k, v in VALID.items() if k != name}
    assert not is_valid(value)
    with pytest.raises(msgspec.ValidationError, match=name):
        decode(value)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"currency": "USD"},
        {"billing_amount": 5, "billing_currency": "EUR"},
        {"amount": 5},
        {"amount": 0.01},
        {"kind": "refund"},
        {"kind": "top_up"},
        {"new_field": [1]},
    ],
)
def test_struct_and_schema_take_the_same(change: dict[str, Any]) -> None:
    assert is_valid({**VALID, **change})
    decode({**VALID, **change})


@pytest.mark.parametrize("amount", [12.345, 0.001, 1e-9, 99.999, MAX_AMOUNT + 1, 1e300])
def test_an_amount_with_fractions_of_cents_or_beyond_all_reason_is_refused(amount: float) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode({**VALID, "amount": amount})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"amount": 100.5, "currency": "JPY"}, "amount has no decimals"),
        ({"amount": 1.2345, "currency": "KWD"}, "amount has at most 3 decimals"),
        ({"amount": 1.234, "currency": "XXX"}, "amount has at most two decimals"),
        ({"billing_amount": 5}, "billing_amount needs billing_currency"),
        ({"billing_amount": 5.123, "billing_currency": "EUR"}, "billing_amount has at most two decimals"),
    ],
)
def test_an_amount_that_its_currency_does_not_have_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=said):
        decode({**VALID, **change})
    assert decode({**VALID, "amount": 1000, "currency": "JPY"}).amount == 1000
    assert decode({**VALID, "amount": 1.234, "currency": "KWD"}).amount == 1.234


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_an_amount_that_is_no_number_is_refused(text: str) -> None:
    raw = json.dumps(VALID).replace("12.34", text)
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(raw, type=Transaction)


@given(st.integers(1, MAX_AMOUNT * 100))
def test_every_amount_with_two_decimals_is_taken_and_exact(cents: int) -> None:
    raw = json.dumps(VALID).replace("12.34", f"{cents // 100}.{cents % 100:02d}")
    tx = msgspec.json.decode(raw, type=Transaction)
    assert to_cents(tx.amount) == cents


def test_control_events_are_told_apart_by_their_kind() -> None:
    def read(text: str) -> Control:
        return msgspec.json.decode(text, type=Control)

    assert read('{"kind":"set_threshold","name":"review_score","value":1}') == SetThreshold("review_score", 1)
    assert read('{"kind":"reset_threshold","name":"review_score"}') == ResetThreshold("review_score")


@pytest.mark.parametrize(
    "text",
    [
        '{"kind":"set_threshold","name":"review_score"}',
        '{"kind":"set_threshold","name":"review_score","value":-1}',
        '{"kind":"set_threshold","name":"review_score","value":"1"}',
        '{"kind":"delete_threshold","name":"review_score"}',
        '{"name":"review_score","value":1}',
    ],
)
def test_a_control_event_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Control)
