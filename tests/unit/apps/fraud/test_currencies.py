"""Payments in several currencies: decided on by their amounts in the app's, or by all that is no amount."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import msgspec
import pytest

from millrace.rules import PublishRule, Rule
from millrace.testing import TestDriver
from millrace_apps.fraud.contracts.events import Control, Decision, SetRate, Transaction
from millrace_apps.fraud.processes.billing import billed, cents_of, in_currency
from millrace_apps.fraud.processes.cards import CardMonitor
from millrace_apps.fraud.processes.currencies import MAX_AMOUNT, MOST_RATES, Rate, put_rate, rate_at, turned
from millrace_apps.fraud.processes.rulebook import LANGUAGE, text_of
from millrace_apps.fraud.processes.window_functions import asked, without_amounts
from millrace_apps.fraud.settings import FraudSettings
from millrace_apps.fraud.state.card_history import CardLook, counted, links_of
from millrace_apps.fraud.topology import topology
from tests.unit.apps.fraud.cases import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    START_MS,
    authorisations,
    driver,
    label,
    send,
    transaction,
)
from tests.unit.apps.fraud.chain import Chain, time_of

UNKNOWN = "XTS"


def paid(at: int, amount: float, currency: str, **more: Any) -> Transaction:
    return transaction(at, amount, currency=currency, **more)


def cents_by_fractions(amount: float, rate: float) -> int:
    exact = Fraction(Decimal(repr(amount))) * Fraction(Decimal(repr(rate))) * 100
    whole = (exact * 2 + 1) // 2  # halves go up
    return min(max(int(whole), 1), MAX_AMOUNT * 100)


def test_of_10000_amounts_and_rates_each_is_turned_exactly() -> None:
    random = Random(1)
    for _ in range(10_000):
        scale = random.choice([1, 100, 1_000])
        amount = random.choice([random.randrange(1, 10**6), random.randrange(1, MAX_AMOUNT * scale)]) / scale
        rate = round(10 ** random.uniform(-5, 2), random.randrange(2, 7)) or 1e-6
        found = turned(amount, rate)
        assert round(found * 100) == cents_by_fractions(amount, rate), (amount, rate)
        assert round(found * 100) / 100 == found


def test_bounds() -> None:
    assert turned(MAX_AMOUNT, 1_000_000) == MAX_AMOUNT
    assert turned(0.001, 0.000001) == 0.01
    assert turned(1.005, 1.0) == 1.01


def test_of_10000_times_the_rate_is_the_newest_that_was_said_of_it() -> None:
    random = Random(2)
    for _ in range(500):
        said: list[Rate] = []
        kept: list[Rate] = []
        for _ in range(random.randrange(8)):
            rate = Rate(random.randrange(10), random.random())
            said.append(rate)
            kept = put_rate(kept, rate)
        for time in range(20):
            before = [r for r in said if r.from_ms <= time]
            newest = max((r.from_ms for r in before), default=None)
            expected = [r.rate for r in before if r.from_ms == newest]
            assert rate_at(kept, time) == (expected[-1] if expected else None)
    many: list[Rate] = []
    for at in range(MOST_RATES + 5):
        many = put_rate(many, Rate(at, 1.0))
    assert (len(many), many[0].from_ms) == (MOST_RATES, 5)


def test_what_the_issuer_says_comes_before_rates_and_what_nobody_says_is_not_known() -> None:
    rates = {"USD": [Rate(0, 0.5)], "CHF": [Rate(0, 2.0)]}

    def of(tx: Transaction, **issuer: Any) -> tuple[float | None, float | None]:
        found = in_currency(msgspec.structs.replace(tx, **issuer), "EUR", rates)
        assert (found.amount, found.currency) == (tx.amount, tx.currency)  # the original is kept
        return billed(found), found.billing_rate

    usd, yen = paid(0, 100, "USD"), paid(0, 100, "JPY")
    assert of(usd) == (50.0, 0.5)
    assert of(usd, billing_amount=48.0, billing_currency="EUR") == (48.0, None)
    assert of(usd, billing_amount=48.0, billing_currency="EUR", billing_rate=0.48) == (48.0, 0.48)
    assert of(usd, billing_amount=30.0, billing_currency="CHF") == (60.0, 2.0)
    assert of(usd, billing_amount=30.0, billing_currency="JPY") == (50.0, 0.5)
    assert of(yen) == (None, None)
    assert of(yen, billing_currency="EUR") == (None, None)
    assert of(paid(0, 100, "EUR"), billing_amount=30.0, billing_currency="JPY") == (100.0, 1.0)
    assert cents_of(paid(0, 19.99, "EUR")) == 1999


RATES = {"USD": 0.9173, "JPY": 0.00614, "KWD": 2.9871}
DECIMALS = {"EUR": 2, "USD": 2, "JPY": 0, "KWD": 3}


def world(seed: int, count: int) -> list[Transaction]:
    random, at, found = Random(seed), 0, []
    for number in range(count):
        at += random.choice([SECOND, 20 * SECOND, 10 * MINUTE, 3 * HOUR])
        currency = random.choice(list(DECIMALS))
        euros = random.choice([1.5, 20, 25, 30, 400])
        amount = round(max(euros / RATES.get(currency, 1.0), 0.01), DECIMALS[currency]) or 1.0
        kind = random.choices(["purchase", "refund", "top_up"], [18, 1, 1])[0]
        card = f"card-{random.randrange(3)}"
        found.append(paid(at, amount, currency, id=f"tx-{number}", card=card, kind=kind))
    return found


def decided(transactions: list[Transaction], cuts: int, *controls: Any) -> list[Decision]:
    target = driver(out_of_orderness_ms=DAY)
    if controls:
        target.broadcast(*controls)
    for start in range(0, len(transactions), cuts):
        send(target, *transactions[start : start + cuts])
        target.restart()
    assert target.values("dead_letters") == []
    made = {decision.transaction_id: decision for decision in target.values()}
    return [made[tx.transaction_id] for tx in transactions]


@pytest.mark.parametrize("seed", range(5))
def test_2500_decisions_are_those_of_a_world_in_which_all_is_paid_in_the_apps_currency(seed: int) -> None:
    abroad = world(seed, 500)
    at_home = [
        msgspec.structs.replace(
            tx,
            currency="EUR",
            amount=cents_by_fractions(tx.amount, RATES.get(tx.currency, 1.0)) / 100,
        )
        for tx in abroad
    ]
    rates = [SetRate(currency, rate, 0) for currency, rate in RATES.items()]
    found, expected = decided(abroad, 7, *rates), decided(at_home, 50)
    assert len(found) == len(expected) == 500
    assert any(d.reasons for d in found)
    told = {"amount", "currency", "billing_rate"}
    for tx, one, other in zip(abroad, found, expected, strict=True):
        assert (one.amount, one.currency) == (tx.amount, tx.currency)
        assert (one.billing_amount, one.billing_currency) == (other.amount, "EUR")
        left, right = (msgspec.to_builtins(d) for d in (one, other))
        assert {k: v for k, v in left.items() if k not in told} == {
            k: v for k, v in right.items() if k not in told
        }


def test_a_rate_holds_for_payments_of_its_time() -> None:
    target = driver()
    target.broadcast(SetRate("USD", 0.5, START_MS), SetRate("USD", 0.25, START_MS + HOUR))
    send(target, *(paid(at, 100, "USD") for at in (-1, 0, HOUR - 1, HOUR)))
    assert [d.billing_amount for d in target.values()] == [None, 50.0, 50.0, 25.0]
    assert [d.billing_rate for d in target.values()] == [None, 0.5, 0.5, 0.25]


@pytest.mark.parametrize("seed", range(3))
def test_what_is_not_known_counts_as_a_purchase_and_changes_no_amount(seed: int) -> None:
    """Some payments have no known amount; the oracle looks through the whole past of each."""
    random = Random(seed)
    all_of = [
        msgspec.structs.replace(tx, currency=UNKNOWN, amount=9999.0) if random.random() < 0.3 else tx
        for tx in world(seed, 400)
    ]
    rates = [SetRate(currency, rate, 0) for currency, rate in RATES.items()]
    found = decided(all_of, 9, *rates)
    known = {d.transaction_id: d for d in decided([t for t in all_of if t.currency != UNKNOWN], 9, *rates)}
    windows = {"1m": MINUTE, "1h": HOUR, "24h": DAY}
    for place, (tx, one) in enumerate(zip(all_of, found, strict=True)):
        past = [t for t in all_of[: place + 1] if t.card_id == tx.card_id and t.kind == "purchase"]
        for name, width in windows.items():
            count = sum(t.event_time_ms > tx.event_time_ms - width for t in past)
            assert getattr(one, f"count_{name}") == count
        assert one.card.count_10m == sum(t.event_time_ms > tx.event_time_ms - 10 * MINUTE for t in past)
        if tx.currency == UNKNOWN:
            assert (one.billing_amount, one.billing_rate, one.zscore) == (None, None, None)
            assert (one.small_count_1m, one.large_count_5m) == (0, 0)
            continue
        without = known[tx.transaction_id]
        for name in ("mean_before", "std_before", "median_before", "zscore", "balance", "sum_1h", "sum_24h",
                     "small_count_1m", "large_count_5m", "purchases_before"):  # fmt: skip
            assert getattr(one, name) == getattr(without, name), name
        assert (one.card.sum_30d, one.card.max_30d or 0) == (without.card.sum_30d, without.card.max_30d or 0)
        assert one.card.min_1m == without.card.min_1m


@pytest.mark.parametrize("seed", range(3))
def test_what_becomes_known_of_an_unknown_amount_changes_none(seed: int) -> None:
    """Declined, captured, reversed or a fraud: the others' decisions are those of a world without it."""
    random = Random(seed)
    events: list[tuple[bool, Any]] = []
    for tx in world(seed, 300):
        unknown = random.random() < 0.3
        kept = msgspec.structs.replace(tx, currency=UNKNOWN if unknown else "EUR", amount=round(tx.amount, 2))
        said = [kept, *authorisations(kept)]
        if kept.kind == "purchase" and random.random() < 0.1:
            said.append(label(kept, kept.event_time_ms - START_MS + random.randrange(HOUR)))
        events += [(unknown, event) for event in said]

    def decisions(chosen: list[Any]) -> dict[str, Decision]:
        target = driver(out_of_orderness_ms=HOUR)
        for start in range(0, len(chosen), 7):
            batch = chosen[start : start + 7]
            target.send_batch([(e.card_id, time_of(e), e) for e in batch])
        return {decision.transaction_id: decision for decision in target.values()}

    found = decisions([event for _, event in events])
    without = decisions([event for unknown, event in events if not unknown])
    assert len(without) > 150
    assert any(d.excluded_24h for d in without.values())
    for name, expected in without.items():
        for of in ("mean_before", "std_before", "median_before", "zscore", "balance", "purchases_before",
                   "excluded_1m", "excluded_1h", "excluded_24h", "per_hour_before"):  # fmt: skip
            assert getattr(found[name], of) == getattr(expected, of), (name, of)


@pytest.mark.parametrize("most", [5, 1_000])
def test_windows_of_rules_hold_what_is_not_known_for_no_amount(most: int) -> None:
    """A thousand histories, with panes and without: the same of a list that is looked through."""

    def least(cents: list[int]) -> float | None:
        return min(c for c in cents if c) / 100 if any(cents) else None

    texts: dict[str, Callable[[list[int]], float | None]] = {
        "count(card, 30 d)": len,
        "sum(amount, card, 30 d)": lambda cents: sum(cents) / 100,
        "mean(amount, card, 30 d)": lambda cents: sum(cents) / len(cents) / 100,
        "largest(amount, card, 30 d)": lambda cents: max(cents) / 100,
        "smallest(amount, card, 30 d)": least,
        "small_then_large(1, 2, 30 d)": least,
    }
    chosen: dict[str, Callable[[list[int]], float | None]] = {
        "count(card, 30 d, amount < 5)": lambda cents: sum(0 < c < 500 for c in cents),
        "count(card, 30 d, not (amount >= 5))": lambda cents: sum(0 < c < 500 for c in cents),
        "count(card, 30 d, amount is missing)": lambda cents: cents.count(0),
        "count(card, 30 d, amount > 5 or mcc == '5411')": len,
        "smallest(amount, card, 30 d, mcc == '5411')": least,
    }
    random = Random(most)
    for number in range(500):
        history, cents, at = None, [], 0
        for _ in range(random.randrange(1, 12)):
            at += random.randrange(1, HOUR)
            cents.append(random.choice([0, 0, 120, 499, 500, 7_000]))
            tx = transaction(at, 1.0)
            history = counted(history, tx, cents[-1], links_of(tx))
            history.forget(tx.event_time_ms, most)
        look, now = CardLook(history, START_MS + at + 1), transaction(at + 1, 1.0, kind="refund")
        for text, of in (texts if number % 2 or most < 10 else texts | chosen).items():
            (use,) = LANGUAGE.condition(f"{text} > 0" if "then" not in text else text).uses
            assert asked(use)(look, now, 0) == of(cents), (text, cents)


def test_what_is_asked_of_a_purchase_of_unknown_amount_is_what_hangs_on_none() -> None:
    texts = (
        *("count(card, 1 h)", "count(card, 1 h, mcc == '5411')"),
        *("distinct(mcc, card, 1 h)", "declined(card, 1 h)"),
        *("count(card, 1 h, amount > 1)", "sum(amount, card, 1 h)", "smallest(amount, card, 1 h)"),
    )
    uses = [use for text in texts for use in LANGUAGE.condition(f"{text} > 0").uses]
    left = without_amounts({text_of(use): asked(use) for use in uses})
    assert list(left) == [text_of(use) for use in uses[:4]]


def test_rules_and_reasons_that_need_no_amount_hold_where_none_is_known() -> None:
    chain = Chain(["terminal"])
    conditions = (
        "count(card, 10 min) >= 2",
        "count(terminal, 10 min) >= 2",
        "amount > 0",
        "sum(amount, card, 1 h) >= 0",
        "small_then_large(1, 5, 1 h)",
        "currency == 'XTS' and original_amount > 5000",
        "billing_amount > 0",
    )
    for number, when in enumerate(conditions):
        chain.control(PublishRule(Rule(f"r{number}", when, "review"), 1, "ann", 0, "active"))
    chain.send(paid(0, 9999.0, UNKNOWN))
    chain.send(paid(MINUTE, 9999.0, UNKNOWN))
    chain.send(paid(MINUTE + SECOND, 20.0, "EUR"))
    first, second, third = chain.decisions
    assert first.rules == ["r5@1"]
    assert second.rules == ["r0@1", "r1@1", "r5@1"]
    assert third.rules == ["r0@1", "r1@1", "r2@1", "r3@1", "r6@1"]
    assert not {r.code for d in (first, second, third) for r in d.reasons} & {
        "CARD_TESTING",
        "SMALL_THEN_LARGE",
    }
    assert (third.billing_amount, third.billing_currency, third.billing_rate) == (20.0, "EUR", 1.0)


def test_alerts_tell_what_was_billed() -> None:
    target = driver()
    target.broadcast(SetRate("JPY", 0.005, 0))
    send(target, *(paid(at * SECOND, 100, "JPY") for at in range(8)))
    alerts = target.values("alerts")
    assert {(a.amount, a.currency, a.billing_amount, a.billing_currency) for a in alerts} == {
        (100, "JPY", 0.5, "EUR")
    }
    assert all("CARD_TESTING" in {r.code for r in a.reasons} for a in alerts)


def test_the_control_event_keeps_its_contract() -> None:
    raw = b'{"kind":"set_rate","currency":"USD","rate":0.9,"from_ms":5}'
    assert msgspec.json.decode(raw, type=Control) == SetRate("USD", 0.9, 5)
    for broken in (b'"rate":0', b'"rate":-1', b'"rate":1e9', b'"rate":"1"'):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(raw.replace(b'"rate":0.9', broken), type=Control)


def test_an_app_of_another_currency_reckons_in_it() -> None:
    settings = FraudSettings.model_validate({"currency": {"billing": "USD"}})
    monitor = topology(settings).links[0].process
    assert isinstance(monitor, CardMonitor)
    target = TestDriver(monitor)
    send(target, paid(0, 10, "USD"), paid(1, 10, "EUR"))
    assert [d.billing_amount for d in target.values()] == [10, None]
    assert [d.billing_currency for d in target.values()] == ["USD", "USD"]
