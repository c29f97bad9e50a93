"""The case book: alerts of a card become a case; a disposition closes it and labels its transactions."""

from __future__ import annotations

import base64
from random import Random

import msgspec
import pytest

from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from millrace_apps.fraud.cases.book import CaseBook, case_id_of
from millrace_apps.fraud.cases.events import AlertReason, AlertSeen, Case, CaseLabel, Disposition
from millrace_apps.fraud.cases.rules import CaseRefused, CaseRules
from tests.unit.apps.fraud.case_book_cases import (
    DAY,
    HOUR,
    MINUTE,
    RULES,
    START_MS,
    UPSERT,
    alert,
    event,
    history,
    said,
)


def driver(*events: AlertSeen | Disposition, rules: CaseRules = RULES) -> TestDriver:
    target = TestDriver(CaseBook(rules))
    for one in events:
        key, at, what = event(one)
        target.send(key, what, at=at)
    return target


def settle(target: TestDriver, at: int) -> TestDriver:
    target.advance_watermark(START_MS + at)
    return target


def cases(target: TestDriver) -> dict[str, Case]:
    """The last revision of every case."""
    return {case.case_id: case for case in target.values()}


def labels(target: TestDriver) -> list[CaseLabel]:
    return target.values("labels")


def test_alerts_of_a_card_within_the_gap_are_one_case() -> None:
    target = driver(alert(0, "a"), alert(DAY, "b", amount=20.0, score=0.9), alert(2 * DAY, "c", amount=5.0))
    (case,) = cases(settle(target, 2 * DAY)).values()
    assert [t.transaction_id for t in case.transactions] == ["a", "b", "c"]
    assert (case.alerts, case.amount, case.score, case.revision) == (3, 75.0, 0.9, 3)
    assert case.priority == pytest.approx(0.9 * (75.0 + 100.0))
    assert (case.status, case.opened_ms, case.case_id) == ("open", START_MS, case_id_of("card-1", "a"))


def test_an_alert_beyond_the_gap_opens_another_case() -> None:
    target = driver(alert(0, "a"), alert(DAY + 1, "b"))
    assert len(cases(settle(target, DAY + 1))) == 2


def test_cards_have_cases_of_their_own() -> None:
    target = driver(alert(0, "a"), alert(1, "b", card="card-2"))
    assert {c.card_id for c in cases(settle(target, 1)).values()} == {"card-1", "card-2"}


def test_reasons_are_counted_with_their_last_value_and_baseline() -> None:
    target = driver(alert(0, "a", codes=("SPREE", "OVERDRAWN")), alert(1, "b", codes=("SPREE",)))
    (case,) = cases(settle(target, 1)).values()
    assert [(r.code, r.alerts, r.value, r.baseline) for r in case.reasons] == [
        ("SPREE", 2, 4.0, 1.0),
        ("OVERDRAWN", 1, 4.0, 1.0),
    ]


def test_comparisons_that_stand_beside_reasons_come_last() -> None:
    beside = AlertReason("AMOUNT", 9.0, 8.0, 0.0, 0.0)
    rule = AlertReason("RULE:night", 9.0, 0.0, 0.0, 0.0)
    one = alert(0, "a")
    target = driver(msgspec.structs.replace(one, reasons=[beside, rule, *one.reasons]))
    (case,) = cases(settle(target, 0)).values()
    assert [(r.code, r.beside) for r in case.reasons] == [
        ("RULE:night", False), ("SPREE", False), ("AMOUNT", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("score", "model_score", "action", "expected"),
    [
        (0.8, None, "review", 0.8),
        (0.0, None, "review", 0.3),
        (0.0, None, "block", 0.6),
        (0.5, 0.9, "block", 0.9),
    ],
)
def test_suspicion_is_the_highest_of_score_model_and_action(
    score: float, model_score: float | None, action: str, expected: float
) -> None:
    one = msgspec.structs.replace(alert(0, "a", score=score, action=action), model_score=model_score)
    (case,) = cases(settle(driver(one), 0)).values()
    assert (case.score, case.priority) == (expected, pytest.approx(expected * 150.0))


def test_a_disposition_closes_the_case_and_labels_all_its_transactions() -> None:
    target = driver(alert(0, "a"), alert(HOUR, "b"), said(2 * HOUR, "a", "fraud"))
    (case,) = cases(settle(target, 2 * HOUR)).values()
    assert (case.status, case.verdict_by, case.verdict_ms) == ("fraud", "eva", START_MS + 2 * HOUR)
    assert [(x.transaction_id, x.is_fraud, x.source, x.corrects) for x in labels(target)] == [
        ("a", True, "feedback", None),
        ("b", True, "feedback", None),
    ]
    first = labels(target)[0]
    assert (first.event_time_ms, first.transaction_time_ms) == (START_MS + 2 * HOUR, START_MS)
    assert (first.card_id, first.terminal_id) == ("card-1", "t-1")


def test_an_unclear_case_is_closed_without_labels() -> None:
    target = settle(driver(alert(0, "a"), said(HOUR, "a", "unclear")), HOUR)
    assert [c.status for c in cases(target).values()] == ["unclear"]
    assert labels(target) == []


def test_another_verdict_corrects_the_labels_of_the_first() -> None:
    target = driver(alert(0, "a"), said(HOUR, "a", "fraud"), said(DAY, "a", "genuine", by="max"))
    (case,) = cases(settle(target, DAY)).values()
    first, second = labels(target)
    assert (case.status, case.verdict_by) == ("genuine", "max")
    assert (second.is_fraud, second.source, second.corrects) == (False, "correction", first.label_id)


def test_an_unclear_verdict_can_be_made_clear_but_not_the_other_way_round() -> None:
    target = driver(alert(0, "a"), said(HOUR, "a", "unclear"), said(2 * HOUR, "a", "genuine"))
    target = settle(target, 2 * HOUR)
    assert [(x.is_fraud, x.source) for x in labels(target)] == [(False, "feedback")]
    target.send("card-1", said(3 * HOUR, "a", "unclear"), at=START_MS + 3 * HOUR)
    (letter,) = settle(target, 3 * HOUR).values("dead_letters")
    assert (letter["reason"], "decided" in letter["error"]) == ("process_error", True)
    assert [c.status for c in cases(target).values()] == ["genuine"]


def test_another_alert_or_disposition_under_a_known_id_is_told_from_a_repeat() -> None:
    seen, decided = alert(0, "a"), said(HOUR, "a", "fraud")
    others = [
        msgspec.structs.replace(seen, amount=seen.amount + 1),
        msgspec.structs.replace(decided, verdict="genuine"),
    ]
    target = settle(driver(seen, decided, *others), HOUR)
    assert cases(target) == cases(settle(driver(seen, decided), HOUR))
    assert [d["reason"] for d in target.values("dead_letters")] == ["conflict"] * 2


def test_repeats_of_alerts_and_dispositions_change_nothing() -> None:
    once = [alert(0, "a"), alert(1, "b"), said(HOUR, "a", "fraud")]
    target = settle(driver(*once, *once), HOUR)
    single = settle(driver(*once), HOUR)
    assert cases(target) == cases(single)
    assert labels(target) == labels(single)
    assert [d["reason"] for d in target.values("dead_letters")] == ["duplicate"] * 3


def test_a_disposition_of_an_unknown_case_goes_to_the_dead_letters() -> None:
    target = settle(driver(alert(0, "a"), said(HOUR, "other", "fraud")), HOUR)
    (letter,) = target.values("dead_letters")
    assert "has no case" in letter["error"]
    assert [c.status for c in cases(target).values()] == ["open"]


def test_alerts_of_a_card_found_to_be_in_foreign_hands_follow_its_case() -> None:
    """Drawn: a ---- fraud ---- b (follows, within 2 days) ------ c, beyond, follows nothing."""
    target = driver(
        alert(0, "a"), said(HOUR, "a", "fraud"), alert(HOUR + 2 * DAY, "b"), said(3 * DAY, "b", "genuine"),
        alert(5 * DAY + 2 * HOUR, "c", codes=("CARD_TESTING",)),
    )  # fmt: skip
    found = cases(settle(target, 6 * DAY))
    assert [[t.transaction_id for t in c.transactions] for c in found.values()] == [["a"], ["b"], ["c"]]
    assert [c.status for c in found.values()] == ["fraud", "genuine", "open"]
    first = case_id_of("card-1", "a")
    assert [c.follows for c in found.values()] == [None, first, None]
    assert [x.transaction_id for x in labels(target)] == ["a", "b"]


def test_another_alert_after_a_genuine_case_opens_a_new_one() -> None:
    other = alert(2 * HOUR, "b", codes=("CARD_TESTING",))
    target = driver(alert(0, "a"), said(HOUR, "a", "genuine"), other)
    assert sorted(c.status for c in cases(settle(target, 2 * HOUR)).values()) == ["genuine", "open"]


def test_a_case_that_nobody_takes_expires_after_its_last_alert() -> None:
    target = settle(driver(alert(0, "a"), alert(DAY, "b")), 8 * DAY - 1)
    assert [c.status for c in cases(target).values()] == ["open"]
    (case,) = cases(settle(target, 8 * DAY)).values()
    assert (case.status, case.updated_ms, case.revision) == ("expired", START_MS + 8 * DAY, 3)
    assert target.is_empty()


def test_a_decided_case_is_forgotten_after_its_time_for_corrections() -> None:
    target = settle(driver(alert(0, "a"), said(HOUR, "a", "fraud")), HOUR + 10 * DAY - 1)
    assert not target.is_empty()
    assert settle(target, HOUR + 10 * DAY).is_empty()
    assert [c.status for c in cases(target).values()] == ["fraud"]


def test_a_late_alert_still_enters_its_cards_case() -> None:
    target = settle(driver(alert(2 * HOUR, "b")), 3 * HOUR)
    target.send("card-1", alert(HOUR, "a"), at=START_MS + HOUR)
    (case,) = cases(target).values()
    assert (case.alerts, case.opened_ms) == (2, START_MS + HOUR)


def test_a_full_case_takes_no_more_and_loses_nothing() -> None:
    rules = CaseRules(most_alerts=5, gap_ms=DAY)
    target = driver(*(alert(n * MINUTE, f"tx-{n}") for n in range(12)), rules=rules)
    found = cases(settle(target, DAY))
    assert [c.alerts for c in found.values()] == [5, 5, 2]


@pytest.mark.parametrize("rules", [{"gap_ms": 0}, {"followed_ms": 5, "kept_ms": 4}, {"most_alerts": 0}])
def test_rules_that_make_no_sense_are_refused(rules: dict[str, int]) -> None:
    with pytest.raises(CaseRefused):
        CaseRules(**rules)  # type: ignore[arg-type]


# -- properties ------------------------------------------------------------------------------------


def with_dispositions(seed: int) -> list[AlertSeen | Disposition]:
    """A random history, and decisions on two of three of its cases."""
    events = history(seed)
    target = settle(driver(*sorted(events, key=lambda e: event(e)[1])), 21 * DAY)
    random = Random(seed)
    for case in cases(target).values():
        if random.random() < 0.66:
            verdict = random.choice(["fraud", "genuine", "unclear"])
            at = case.transactions[-1].event_time_ms - START_MS + random.randrange(1, 30) * HOUR + 7
            events.append(said(at, case.transactions[0].transaction_id, verdict, card=case.card_id))  # type: ignore[arg-type]
    return events


def refused(events: list[AlertSeen | Disposition]) -> list[bytes]:
    target = settle(driver(*sorted(events, key=lambda e: event(e)[1])), 60 * DAY)
    return [base64.b64decode(letter["value"]) for letter in target.values("dead_letters")]


@pytest.mark.parametrize("seed", [1, 2])
def test_results_do_not_depend_on_order_cuts_and_restarts(seed: int) -> None:
    events = with_dispositions(seed)
    assert len(refused(events)) < len(events) / 10
    invariant(CaseBook(RULES), [event(e) for e in events], bound_ms=3 * DAY, upsert_by=UPSERT, seed=seed)


@pytest.mark.parametrize("seed", [1, 2])
def test_results_do_not_depend_on_repeats(seed: int) -> None:
    events = with_dispositions(seed)
    out = refused(events)  # a repeat of what was refused is refused again, as a dead letter of its own
    taken = [event(e) for e in events if not any(msgspec.json.encode(e) in value for value in out)]
    invariant(CaseBook(RULES), taken, bound_ms=3 * DAY, runs=5, duplicates=5, upsert_by=UPSERT, seed=seed)


@pytest.mark.parametrize("seed", [3, 4])
def test_nothing_is_kept_once_all_is_over(seed: int) -> None:
    assert leaks(CaseBook(RULES), [event(e) for e in with_dispositions(seed)], bound_ms=30 * DAY) == []


@pytest.mark.parametrize("seed", range(5))
def test_cases_are_what_a_plain_grouping_of_all_alerts_gives(seed: int) -> None:
    """Without dispositions and expiry a case is a run of alerts no further apart than the gap."""
    rules = CaseRules(gap_ms=DAY, open_for_ms=60 * DAY, most_alerts=1_000)
    events = sorted(history(seed, cards=3, alerts=80), key=lambda e: event(e)[1])
    wanted: dict[str, list[list[str]]] = {}
    last: dict[str, int] = {}
    for one in events:
        assert isinstance(one, AlertSeen)
        runs = wanted.setdefault(one.card_id, [])
        if one.event_time_ms - last.get(one.card_id, -10 * DAY) > DAY:
            runs.append([])
        runs[-1].append(one.transaction_id)
        last[one.card_id] = one.event_time_ms
    found: dict[str, list[list[str]]] = {}
    for case in cases(settle(driver(*events, rules=rules), 30 * DAY)).values():
        found.setdefault(case.card_id, []).append([t.transaction_id for t in case.transactions])
    assert found == wanted


def test_state_of_a_card_stays_small_under_thousands_of_alerts() -> None:
    target = driver(*(alert(n * HOUR, f"tx-{n:05d}") for n in range(800)))
    size = len(target.host.store.cells["6:card-1"].body)
    assert size < 40_000, f"{size} bytes for the cases of one card"
