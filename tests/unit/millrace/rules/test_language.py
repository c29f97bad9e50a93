from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.rules import Match, Rule, RuleError, RuleSet, Use
from millrace.rules.language import Language
from millrace.rules.parser import MAX_DEPTH, MAX_ITEMS
from millrace.rules.words import LanguageError
from tests.unit.millrace.rules.cases import FIELDS, LANGUAGE, MINUTE, Event, meant, written


def holds(text: str, **fields: Any) -> bool:
    return LANGUAGE.condition(text).holds(Event(**fields))


def refused(text: str) -> str:
    with pytest.raises(RuleError) as caught:
        LANGUAGE.condition(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        ("amount > 500", {"amount": 500.01}, True),
        ("amount > 500", {"amount": 500.0}, False),
        ("500 < amount", {"amount": 501.0}, True),
        ("amount between 1 and 2", {"amount": 2.0}, True),
        ("amount not between 1 and 2", {"amount": 2.0}, False),
        ("mcc in ('1', \"5411\")", {}, True),
        ("mcc not in ['1', '2']", {}, True),
        ("amount in (1, 2.5)", {"amount": 2.5}, True),
        ("online", {"online": True}, True),
        ("online == false", {"online": False}, True),
        ("not online and amount > 1", {"amount": 2.0}, True),
        ("amount > 1 or amount < -1 and online", {"amount": 2.0}, True),
        ("(amount > 1 or amount < -1) and online", {"amount": 2.0}, False),
        ("2 + 3 * amount - 4 / 2 == 6", {"amount": 2.0}, True),
        ("-amount * 2 < -3", {"amount": 2.0}, True),
        ("amount % 10 == 3", {"amount": 13.0}, True),
        ("max(amount, 3, 2) == 3 and abs(0 - amount) == 1", {"amount": 1.0}, True),
        ("starts_with(mcc, '54') and length(mcc) == 4", {}, True),
        ("sum(amount, card, 1 h 30 min) > 5", {"windows": {("card", 90 * MINUTE): 6.0}}, True),
        ("amount > 1 # small\n and online", {"amount": 2.0, "online": True}, True),
        ("limit is missing", {}, True),
        ("limit is not missing and limit > 1", {"limit": 2.0}, True),
        ("limit > 1", {}, False),
        ("not (limit > 1)", {}, False),
        ("limit > 1 or amount > 1", {"amount": 2.0}, True),
        ("not (limit > 1 and amount > 1)", {"amount": 0.0}, True),
        ("amount / limit > 1", {"amount": 5.0, "limit": 0.0}, False),
        ("coalesce(limit, 10) < amount", {"amount": 11.0}, True),
        ("device != 'd-1'", {}, False),
        ("sqrt(amount) > 1", {"amount": -4.0}, False),
        ("listed(card, 'bad')", {"lists": {"bad": {"c-1": 10}}, "event_time_ms": 9}, True),
        ("listed(card, 'bad')", {"lists": {"bad": {"c-1": 10}}, "event_time_ms": 10}, False),
        ("listed(device, 'bad')", {"lists": {"bad": {"c-1": 10}}}, False),
    ],
)
def test_what_a_rule_means(text: str, fields: dict[str, Any], expected: bool) -> None:
    assert holds(text, **fields) is expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1, column 1: the rule is empty"),
        ("amount", "line 1, column 1: a rule is true or false, this is a number"),
        ("amount >\n  'x'", "line 1, column 8: a number cannot be compared with a text"),
        ("amount > 1\nand\n  amont < 3", "line 3, column 3: there is no field 'amont'; did you mean amount?"),
        ("summ(amount, card, 1 h) > 1", "line 1, column 1: there is no function 'summ'; did you mean sum?"),
        ("sum > 1", "line 1, column 1: 'sum' is a function: write sum(…)"),
        ("sum(amount, card) > 1", "takes (amount, card|device, duration), not 2 arguments"),
        ("sum(amount, cart, 1 h) > 1", "column 13: 'cart' is none of card, device; did you mean card?"),
        ("sum(amount, card, 5) > 1", "column 19: this must be a duration, for example 10 min"),
        ("sum(amount, card, 31 d) > 1", "column 19: a window is 1m to 30d, not 31d"),
        ("sum(amount, card, 1 s) > 1", "a window is 1m to 30d, not 1s"),
        ("sum(limit, card, 1 h) > 1", "'limit' is none of amount"),
        ("listed(amount, 'x')", "this must be a text, 'amount' is a number"),
        ("listed(card, mcc)", "this must be a text, written out"),
        ("amount = 5", "column 8: unexpected '=': compare with =="),
        ("amount > 5 && online", "write 'and'"),
        ("amount > 'x", "this quote has no end in its line"),
        ("1 < amount < 5", "join two comparisons with 'and'"),
        ("amount > 1 amount", "unexpected 'amount' and the rule could end here"),
        ("online > true", "true and false have no order"),
        ("amount in ()", "where a value should be"),
        ("amount in (1, 'x')", "a number is looked for, this is a text"),
        ("amount in (1, limit)", "the items of 'in' are constants"),
        ("amount between 5 and 1", "between takes the smaller number first"),
        ("amount is missing", "this is never missing"),
        ("coalesce(amount, 1) > 1", "this is never missing"),
        ("true", "the rule is the same for every event"),
        ("1 > 2", "both sides are constant"),
        ("true or amount > 1", "is the same for every event"),
        ("amount > 1 / 0", "division by zero"),
        ("10 min > 5", "a duration can only be an argument"),
        ("not amount > 1 > 0", "join two comparisons"),
        ("mcc + 1 > 2", "this must be a number, it is a text"),
        ("amount > 1e999", "is too large"),
        ("__import__('os') == 1", "there is no function '__import__'"),
        ("amount.__class__ == 1", "there is no field 'amount.__class__'"),
    ],
)
def test_a_bad_rule_is_refused_with_its_place(text: str, problem: str) -> None:
    assert problem in refused(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(" * (MAX_DEPTH + 1) + "online" + ")" * (MAX_DEPTH + 1), "nested deeper"),
        ("not " * 200 + "online", "nested deeper"),
        ("-" * 200 + "1 < amount", "nested deeper"),
        ("amount > " + "+".join(["1"] * 500), "more than 60 signs"),
        (" or ".join(["amount>1"] * 200), "parts"),
        ("amount in (" + ",".join(["1"] * (MAX_ITEMS + 2)) + ")", "at most 1,000 items"),
        ("amount > 1 " + " " * 4_000, "at most 4,000 characters"),
    ],
)
def test_size_and_depth_are_bounded(text: str, problem: str) -> None:
    assert problem in refused(text)


def test_the_message_shows_the_line_with_a_mark() -> None:
    text = "amount > 1\n  and amont > 2"
    with pytest.raises(RuleError) as caught:
        LANGUAGE.condition(text)
    assert caught.value.shown(text).splitlines()[1:] == ["    and amont > 2", "        ^"]


def test_a_rule_tells_which_windows_and_fields_it_needs() -> None:
    condition = LANGUAGE.condition("sum(amount, card, 10 min) > 5 * amount and device == 'x'")
    assert condition.uses == {Use("sum", ("amount", "card", 10 * MINUTE))}
    assert condition.fields == {"amount", "device"}


def test_a_language_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(LanguageError, match="names no action: blok"):
        Language(FIELDS, actions=("block",), two_person=frozenset({"blok"}))


_NUMBERS = st.one_of(
    st.sampled_from(
        [("field", "amount"), ("field", "limit"), ("window", "card", 10), ("window", "device", 60)]
    ),
    st.integers(-3, 6).map(lambda v: ("value", float(v))),
)
_SUMS = st.recursive(
    _NUMBERS, lambda part: st.tuples(st.sampled_from("+-*/%"), part, part), max_leaves=3
).filter(lambda tree: any(kind in str(tree) for kind in ("field", "window")))
_FIELD = st.sampled_from([("field", "mcc"), ("field", "device")])
_SIMPLE = st.one_of(
    st.tuples(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), _SUMS, _NUMBERS),
    st.tuples(st.just("in"), _FIELD, st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=2)),
    st.tuples(st.just("=="), _FIELD, st.sampled_from("abc").map(lambda v: ("value", v))),
    st.tuples(st.just("between"), _SUMS, st.just(("value", 0.0)), st.just(("value", 3.0))),
    st.sampled_from([("missing", "limit"), ("missing", "device")]),
)
_RULES = st.recursive(
    _SIMPLE,
    lambda part: st.one_of(
        st.tuples(st.just("not"), part),
        st.lists(part, min_size=2, max_size=4).map(lambda p: ("and", *p)),
        st.lists(part, min_size=2, max_size=3).map(lambda p: ("or", *p)),
    ),
    max_leaves=6,
)
_EVENTS = st.builds(
    Event,
    amount=st.integers(-2, 5).map(float),
    limit=st.none() | st.integers(-2, 5).map(float),
    mcc=st.sampled_from("abc"),
    device=st.none() | st.sampled_from("abc"),
    windows=st.dictionaries(
        st.sampled_from([("card", 10 * MINUTE), ("device", 60 * MINUTE)]), st.integers(-2, 6).map(float)
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_RULES, min_size=1, max_size=8), st.lists(_EVENTS, min_size=1, max_size=6))
def test_rules_one_by_one_and_through_the_index_mean_what_a_second_reading_says(
    trees: list[Any], events: list[Event]
) -> None:
    armed, kept = [], []
    for number, tree in enumerate(trees):
        try:
            condition = LANGUAGE.condition(written(tree))
        except RuleError as error:
            assert "division by zero" in str(error) or "both sides" in str(error)  # noqa: PT017
            continue
        armed.append(Match(Rule(f"r{number}", ""), 1, False, condition))
        kept.append(tree)
    rules = RuleSet(armed)
    for event in events:
        wanted = [meant(tree, event) for tree in kept]
        runs = [match.condition.run(event) for match in armed]
        assert [0.5 if r is None else float(r) for r in runs] == wanted
        assert rules.matches(event) == [m for m, w in zip(armed, wanted, strict=True) if w == 1]


def test_numbers_that_outgrow_their_type_make_one_rule_not_hold_and_the_others_go_on() -> None:
    product = " * ".join(["amount"] * 60)
    conditions = [LANGUAGE.condition(text) for text in (f"{product} * 1.5 > 1", "amount > 1")]
    rules = RuleSet([Match(Rule(str(i), ""), 1, False, c) for i, c in enumerate(conditions)])
    found = rules.matches(Event(amount=10**9))  # an integer, whose product no float can hold
    assert [match.rule.id for match in found] == ["1"]


def test_an_index_that_has_learned_from_events_gives_the_same_matches() -> None:
    texts = [
        "mcc in ('a', 'b') and sum(amount, card, 10 min) > 3",
        "amount > 0 and limit > 4",
        "amount > 4 or device == 'a' and mcc == 'c'",
        "online or amount < -1",
        "not online and coalesce(limit, 0) >= 2 and mcc in ('a', 'b', 'c')",
        "listed(card, 'bad') and amount > -9",
    ]
    armed = [Match(Rule(f"r{n}", t), 1, False, LANGUAGE.condition(t)) for n, t in enumerate(texts)]
    rules, random = RuleSet(armed), Random(4)
    seen: Counter[str] = Counter()
    for _ in range(600):
        event = Event(
            amount=float(random.randint(-2, 5)),
            limit=random.choice([None, 1.0, 3.0, 5.0]),
            mcc=random.choice("abc"),
            device=random.choice([None, "a", "b"]),
            online=random.random() < 0.2,
            windows={("card", 10 * MINUTE): float(random.randint(0, 5))},
            lists={"bad": {"c-1": 10}},
            event_time_ms=random.randint(5, 15),
        )
        found = rules.matches(event)
        assert found == [m for m in armed if m.condition.holds(event)]
        seen.update(m.rule.id for m in found)
    assert len(seen) == len(texts)
