"""What becomes of payments: money that comes back, and purchases that no longer say what is usual."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from millrace.testing import TestDriver
from millrace_apps.fraud.contracts.events import Authorisation, Label, Transaction
from millrace_apps.fraud.processes.authorised import MOST_OF_CARD, CardSteps, Step
from millrace_apps.fraud.state.known_labels import LabelRules
from tests.cases import case_count
from tests.oracles.fraud import expected_decisions, mismatches
from tests.unit.apps.fraud.cases import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    START_MS,
    authorisation,
    authorisations,
    decide,
    driver,
    label,
    rows,
    transaction,
)
from tests.unit.apps.fraud.chain import Chain, time_of

CASES = case_count(150)
BOUND_MS = 5 * SECOND
Event = Transaction | Label | Authorisation


def bring(target: TestDriver, *events: Event) -> None:
    """Bring events as one batch."""
    target.send_batch([(e.card_id, time_of(e), e) for e in events])


def of_22(*, number: int = 30) -> list[Transaction]:
    """A top-up, and a month in which somebody spends 22 a day, more or less."""
    bought = [transaction(i * DAY, 20 + i % 5) for i in range(number)]
    return [transaction(-HOUR, 10_000, kind="top_up"), *bought]


def spree() -> list[Transaction]:
    return [transaction(30 * DAY + i * MINUTE, 900) for i in range(6)]


def after(*, hours: int = 2) -> Transaction:
    return transaction(30 * DAY + hours * HOUR, 22)


# ---- the balance ----


@pytest.mark.parametrize(
    ("steps", "balance"),
    [
        ((), 40.0),
        ((("approved", None),), 40.0),
        ((("declined", None),), 100.0),
        ((("captured", None),), 40.0),
        ((("captured", 12.34),), 87.66),
        ((("captured", 75.0),), 25.0),
        ((("reversed", None),), 100.0),
        ((("captured", None), ("reversed", 10.0), ("reversed", 5.5)), 55.5),
        ((("captured", 20.0), ("reversed", 30.0)), 100.0),
        ((("declined", None), ("captured", None)), 40.0),
        ((("captured", None), ("declined", None)), 100.0),
        ((("captured", 20.0), ("captured", 30.0)), 70.0),
    ],
)
@pytest.mark.parametrize("order", ["as they happen", "backwards", "before the purchase", "at once"])
def test_the_balance_is_what_was_paid_whatever_comes_first(
    steps: tuple[tuple[Any, float | None], ...], balance: float, order: str
) -> None:
    target = driver(out_of_orderness_ms=DAY)
    bought = transaction(0, 60)
    said = [authorisation(bought, HOUR + n, status, to) for n, (status, to) in enumerate(steps)]
    bring(target, transaction(-MINUTE, 100, kind="top_up"))
    if order == "before the purchase":
        bring(target, *said)
    bring(target, bought, *(said if order == "at once" else ()))
    for event in said[::-1] if order == "backwards" else said if order == "as they happen" else ():
        bring(target, event, event)
    assert decide(target, transaction(HOUR - 1, 1e-2)).balance == 39.99
    assert decide(target, transaction(2 * HOUR, 1e-2)).balance == round(balance - 0.02, 2)
    target.advance_watermark(START_MS + 3 * HOUR)
    target.restart()
    assert decide(target, transaction(4 * HOUR, 1e-2)).balance == round(balance - 0.03, 2)
    assert [d["reason"] for d in target.values("dead_letters")] == (
        ["duplicate"] * len(said) if order in ("backwards", "as they happen") else []
    )


def test_an_authorisation_is_taken_once_and_stands_in_its_table() -> None:
    target = driver()
    bought = transaction(0, 60)
    said = authorisation(bought, 1, "captured", 50.0, id="a")
    other = authorisation(bought, 1, "captured", 40.0, id="a")
    for event in (bought, said, said, other):
        bring(target, event)
    assert target.values("authorisations") == [said]
    assert [d["reason"] for d in target.values("dead_letters")] == ["duplicate", "conflict"]
    assert decide(target, transaction(HOUR, 1)).balance == -51.0


def test_of_a_late_or_unknown_payment_nothing_comes_back() -> None:
    target = driver()
    late, unknown = transaction(0, 60), transaction(1, 70)
    for event in (transaction(HOUR, 5), late):
        bring(target, event)
    bring(target, authorisation(late, HOUR, "declined"), authorisation(unknown, HOUR, "declined"))
    assert decide(target, transaction(2 * HOUR, 5)).balance == -10.0


def test_the_steps_of_a_card_are_bounded() -> None:
    steps = CardSteps()
    for n in range(MOST_OF_CARD + 5):
        assert steps.take(Step(n, 0, n, n, 2, 1), 0) == "new"
    assert len(steps.rows) == MOST_OF_CARD * 32
    assert steps.take(Step(MOST_OF_CARD, 0, 0, MOST_OF_CARD, 2, 1), 0) == "repeat"


# ---- what is usual ----


def test_a_card_that_was_attacked_is_still_measured_against_its_own_purchases() -> None:
    """Six purchases of 900, five of them declined: 150 to 600 are as unusual as before."""
    target = driver()
    bring(target, *of_22())
    thieves = spree()
    for n, tx in enumerate(thieves):
        bring(target, tx)
        if n:
            bring(target, authorisation(tx, tx.event_time_ms - START_MS + 1, "declined"))
    clean = driver()
    bring(clean, *of_22())
    for amount in (150, 300, 600):
        tx = transaction(30 * DAY + 2 * HOUR, amount)
        target.restart()
        attacked, undisturbed = decide(target, tx), decide(clean, tx)
        assert "AMOUNT_DEVIATION" in {r.code for r in attacked.reasons}
        assert attacked.median_before == undisturbed.median_before
        assert attacked.mean_before <= undisturbed.mean_before * 1.15
        for each in (target, clean):
            bring(each, authorisation(tx, 30 * DAY + 2 * HOUR, "declined"))


def test_what_labels_say_is_a_fraud_leaves_what_is_usual_as_if_it_had_never_been() -> None:
    target, clean = driver(), driver()
    thieves = spree()
    for each in (target, clean):
        bring(each, *of_22())
    for tx in thieves:
        bring(target, tx)
    bring(target, *(label(tx, 30 * DAY + HOUR, id=f"l-{n}") for n, tx in enumerate(thieves)))
    usual = ("purchases_before", "mean_before", "std_before", "median_before", "per_hour_before")
    found, expected = decide(target, after()), decide(clean, after())
    assert [getattr(found, name) for name in usual] == [getattr(expected, name) for name in usual]
    assert (found.excluded_1h, found.excluded_24h, found.count_24h) == (0, 6, 7)
    # A correction puts one back.
    bring(target, label(thieves[0], 30 * DAY + 3 * HOUR, False, source="correction"))
    assert decide(target, after(hours=4)).purchases_before == 32


def test_what_is_declined_leaves_the_rate_of_a_card_alone() -> None:
    """A burst that is declined: its own count is not taken from what the card usually makes."""
    target = driver()
    bring(target, *of_22())
    tried = [transaction(30 * DAY + i * SECOND, 5) for i in range(25)]
    for tx in tried:
        bring(target, tx)
        bring(target, authorisation(tx, tx.event_time_ms - START_MS, "declined"))
    last = target.values()[-1]
    assert (last.count_1m, last.excluded_1m, last.purchases_before) == (25, 24, 30)
    assert {"VELOCITY_1M", "VELOCITY_1H"} <= {reason.code for reason in last.reasons}


def test_one_extreme_purchase_hardly_moves_what_is_usual() -> None:
    target = driver()
    bring(target, *of_22())
    before = decide(target, after(hours=1))
    bring(target, transaction(30 * DAY + 90 * MINUTE, 1_000_000))
    extreme = decide(target, after(hours=2))
    assert extreme.mean_before == pytest.approx(before.mean_before, rel=0.15)
    assert extreme.std_before < 15
    assert extreme.median_before == before.median_before


def test_what_is_usual_follows_a_card_that_changes() -> None:
    """Three months at 10 a day, then a month at 50: half-lives make the newer month most of what is usual."""
    target = driver()
    for day in range(120):
        bring(target, transaction(day * DAY, 10 if day < 90 else 30))
    decision = decide(target, transaction(120 * DAY, 30))
    assert 19 < decision.mean_before < 24  # of all purchases alike it would be 15
    assert 90 <= decision.purchases_before <= 120


# ---- any order, any cut, restarts, repeats ----


def a_life(random: Random) -> list[tuple[int, Event]]:
    """Events of two cards with when they come: purchases at once or a little late, all else at any time."""
    found: list[tuple[int, Event]] = []
    at = 0
    for n in range(random.randrange(2, 26)):
        at += random.choice([7, 999, 20 * SECOND, MINUTE, HOUR - 1, HOUR, DAY - 1, DAY, 5 * DAY, 31 * DAY])
        at += random.choice([0] * 60 + [80 * DAY, 95 * DAY])
        kind = random.choices(["purchase", "refund", "top_up"], [8, 1, 1])[0]
        amount = random.choice(
            [0.5, 1.0, 2.0, 7.5, 20.0, 22.0, 33.33, 600.0, random.randrange(1, 10**6) / 100]
        )
        card = f"card-{random.randrange(2)}"
        tx = transaction(at, amount, id=f"t{n:02}", card=card, kind=kind)  # type: ignore[arg-type]
        said: list[Label | Authorisation] = []
        scale = random.choice([SECOND, HOUR, 12 * DAY])
        if random.random() < 0.6:
            said += authorisations(tx, scale=scale)
            random.shuffle(said)
        fraud = random.random() < 0.7
        for step in range(random.choice([0, 0, 1, 1, 2])):
            known = at + random.randrange(1 + step, scale + 2 + step)
            said.append(label(tx, known, fraud, id=f"l{n}-{step}"))
            fraud = not fraud
        found.append((at + random.randrange(BOUND_MS), tx))
        if random.random() < 0.15:
            found.append((at + BOUND_MS, tx))
        for event in said:
            known = event.event_time_ms - START_MS
            lag = random.choice([-DAY, -1, 0, 1, random.randrange(scale), 3 * DAY])
            found += [(min(max(at - 2 * DAY, known + lag), at + 29 * DAY), event)] * random.choice(
                [1, 1, 1, 2]
            )
    return sorted(found, key=lambda entry: entry[0])


def in_batches(random: Random, events: list[tuple[int, Event]]) -> list[list[Event]]:
    batches: list[list[Event]] = [[]]
    cuts = random.choice([0.1, 0.4, 1.0])
    for _, event in events:
        if random.random() < cuts:
            batches.append([])
        batches[-1].append(event)
    return [batch for batch in batches if batch]


def handled(batches: list[list[Event]]) -> list[dict[str, Any]]:
    """Events in the order in which the core hands them to a process: of a batch by their time."""
    return [
        msgspec.structs.asdict(event)
        for batch in batches
        for event in sorted(batch, key=lambda e: (time_of(e), msgspec.json.encode(e)))
    ]


def test_decisions_equal_the_batch_computation_whatever_comes_when() -> None:
    for case in range(CASES):
        random = Random(f"authorisations {case}")
        batches = in_batches(random, a_life(random))
        # What is said of transactions moves no clock: the test does.
        target, newest = driver(out_of_orderness_ms=10**15), 0
        for batch in batches:
            bring(target, *batch)
            newest = max([newest, *(e.event_time_ms for e in batch if isinstance(e, Transaction))])
            target.advance_watermark(newest - BOUND_MS - 1)
            if random.random() < 0.2:
                target.restart()
        assert target.values("late_transactions") == []
        assert mismatches(expected_decisions(handled(batches)), rows(target)) == [], f"case {case}"
        names = ("transaction_id", "label_id", "authorisation_id")
        told = [next(row[name] for name in names[::-1] if name in row) for row in handled(batches)]
        assert [d["reason"] for d in target.values("dead_letters")] == ["duplicate"] * (
            len(told) - len(set(told))
        ), f"case {case}"


# ---- the terminal ----


def seen(chain: Chain) -> list[tuple[int, int, int]]:
    """Known frauds, pending, and purchases of the window of 30 days, as the decisions had them."""
    found = [d.terminal_labels for d in chain.decisions]
    return [(known.frauds, known.pending, known.count_30d) for known in found if known is not None]


@pytest.mark.parametrize("early", [False, True])
def test_of_a_declined_payment_silence_says_nothing(early: bool) -> None:
    """t0 is declined, t1 not; 8 days later t1 is taken for genuine, t0 for nothing, nor is it waited for."""
    chain = Chain(("terminal",), labels=LabelRules(delay_ms=7 * DAY))
    t0, t1, t2 = transaction(0, 10), transaction(HOUR, 10, card="card-2"), transaction(8 * DAY, 10)
    said = authorisation(t0, MINUTE, "declined")
    for event in (said, t0, t1, t2) if early else (t0, said, t1, t2):
        chain.send(event)
    assert seen(chain) == [(0, 0, 0), (0, 0, 0), (0, 0, 1)]
    known = chain.decisions[-1].terminal_labels
    assert known is not None
    assert known.known == 1


def test_a_label_on_a_declined_payment_counts_and_a_capture_takes_the_decline_back() -> None:
    chain = Chain(("terminal",), labels=LabelRules(delay_ms=7 * DAY))
    t0, t1, t2 = transaction(0, 10), transaction(1, 10), transaction(8 * DAY, 10)
    chain.send(t0, t1)
    chain.send(authorisation(t0, MINUTE, "declined"), authorisation(t1, MINUTE, "declined"))
    chain.send(label(t0, HOUR), authorisation(t1, HOUR, "captured"))
    chain.send(t2)
    known = chain.decisions[-1].terminal_labels
    assert known is not None
    assert (known.frauds, known.known, known.pending, known.count_30d, known.risk_30d) == (1, 2, 0, 2, 0.5)


def test_a_decline_without_a_terminal_stays_with_its_card() -> None:
    chain = Chain(("terminal",))
    t0 = transaction(0, 10)
    said = msgspec.structs.replace(authorisation(t0, MINUTE, "declined"), terminal_id=None)
    for event in (t0, said, transaction(HOUR, 10)):
        chain.send(event)
    assert seen(chain)[-1] == (0, 1, 0)
    assert chain.decisions[-1].purchases_before == 0
