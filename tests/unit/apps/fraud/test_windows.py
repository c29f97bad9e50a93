"""What is found in one pass over a history is what each window function gives by itself."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from millrace.parts.lookback import GAPS, Look
from millrace.rules import Match, Rule, RuleSet, Use
from millrace_apps.fraud.processes.rulebook import LANGUAGE, Windows, text_of
from millrace_apps.fraud.processes.window_functions import asked, entity_of
from millrace_apps.fraud.processes.windows import CardWindows, Plan
from millrace_apps.fraud.state.history import HORIZON_MS, History
from tests.cases import case_count
from tests.unit.apps.fraud.cases import DAY, HOUR, MINUTE, transaction

LENGTHS = (1_000, MINUTE, 7 * MINUTE, HOUR, DAY, 5 * DAY, HORIZON_MS)


def some_history(random: Random, number: int) -> History:
    history, at = History(since=0), 0
    for _ in range(number):
        at += random.choice([0, 500, MINUTE, HOUR, 2 * DAY])
        before = random.choice([0, 0, 0, HOUR])  # some come out of order
        links = (random.randrange(1, 4), random.randrange(3), random.randrange(3))
        history.add(max(0, at - before), random.choice([0, 50, 99, 1_250, 70_000]), links)
    return history


def some_uses(random: Random) -> list[Use]:
    uses = [Use(name, ("card", length)) for name in ("count",) for length in LENGTHS]
    uses += [
        Use(name, ("amount", "card", n)) for name in ("sum", "mean", "largest", "smallest") for n in LENGTHS
    ]
    uses += [Use("count", ("card_terminal", DAY)), Use("sum", ("amount", "card_device", DAY))]
    uses += [Use("distinct", ("terminal", "card", DAY)), Use("small_then_large", (1.0, 500.0, HOUR))]
    return random.sample(uses, random.randint(0, len(uses)))


@pytest.mark.parametrize("seed", range(case_count(40)))
def test_many_windows_found_together_are_what_each_is_alone(seed: int) -> None:
    random = Random(seed)
    history = some_history(random, random.choice([0, 1, 2, 30]))
    uses = some_uses(random)
    plan = Plan(uses)
    for cents in (0, 1, 60_000):
        at = random.choice([0, HOUR, history.columns.times[-1] if len(history) else 5, 70 * DAY])
        tx = transaction(at, 600.0)
        look = Look(history, at)
        found = plan.values(look, tx, cents)
        alone = [asked(use)(look, tx, cents) for use in uses]
        assert list(found) == [None if value is None else float(value) for value in alone]
        assert all(value is None or type(value) is float for value in found)
        assert plan.texts == tuple(map(text_of, uses))


def test_what_is_filled_in_is_what_would_be_asked_for_in_the_same_order() -> None:
    uses = (
        Use("sum", ("amount", "card", HOUR)),
        Use("count", ("device", HOUR)),  # of another stage: left out
        Use("mean", ("amount", "card", MINUTE)),
        Use("count", ("card", DAY)),
    )
    of_card = {text_of(use): asked(use) for use in uses if entity_of(use) == "card"}
    look, tx = Look(some_history(Random(1), 20), 10 * DAY), transaction(10 * DAY, 5.0, kind="refund")
    filled, lazily = CardWindows({}, of_card, look, tx, 0), Windows({}, of_card, look, tx, 0)
    filled.fill(uses)
    assert list(filled.items()) == [(text, lazily[text]) for text in of_card]
    assert filled[text_of(uses[2])] is None, "no purchase, no mean"


def first_of(*conditions: str) -> tuple[Use, ...]:
    return RuleSet(
        [Match(Rule(f"r{n}", text), 1, False, LANGUAGE.condition(text)) for n, text in enumerate(conditions)]
    ).first


def test_rules_tell_what_every_event_is_asked_for_first() -> None:
    total, count = Use("sum", ("amount", "card", HOUR)), Use("count", ("card", DAY))
    assert first_of("sum(amount, card, 1 h) > 5", "count(card, 1 d) > 3", "amount > 7") == (total, count)
    assert first_of("count(card, 1 d) < 3", "sum(amount, card, 1 h) > 5") == (total, count), (
        "limits from below"
    )
    assert first_of("sum(amount, card, 1 h) > 5", "sum(amount, card, 1 h) > 9") == (total,)
    assert first_of("sum(amount, card, 1 h) / 2 > 5", "count(card, 1 d) > 3") == (), (
        "not before a part of one"
    )
    assert first_of("amount > 7") == ()
    assert first_of("count(card, 1 d) > 3 and sum(amount, card, 1 h) > 5") == (), (
        "which of them is not known yet"
    )


@pytest.mark.parametrize("seed", range(case_count(10)))
def test_the_usual_gap_follows_what_is_added_inserted_and_removed(seed: int) -> None:
    random = Random(seed)
    history, at = History(since=0), 0
    for _ in range(3 * GAPS):
        at += random.choice([0, 1, 1, 7, MINUTE, HOUR, DAY])
        history.add(max(0, at - random.choice([0] * 9 + [HOUR])), 100, (1, 2, 3))
        if random.random() < 0.1:
            history.prune(at - HORIZON_MS, most=random.choice([2 * GAPS, GAPS, 10, 1]))
        for end in (len(history), random.randint(0, len(history))):
            times = history.columns.times[:end][-GAPS - 1 :]
            gaps = sorted(after - before for before, after in pairwise(times))
            found = history.columns.usual_gap(end)
            assert found == (gaps[(len(gaps) - 1) // 2] if gaps else None)
