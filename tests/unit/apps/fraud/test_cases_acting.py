"""Cases that act: cards are blocked and let pass, cases claimed, followed, left alone; queues and times."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from millrace.host.memory_chain import MemoryChain
from millrace.rules import PutListEntry, RemoveListEntry
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from millrace_apps.fraud.cases.app import CaseTopics, processes
from millrace_apps.fraud.cases.book import CaseBook, case_id_of
from millrace_apps.fraud.cases.events import AlertReason, AlertSeen, Case, Disposition, ServiceDay
from millrace_apps.fraud.cases.live import LiveCases
from millrace_apps.fraud.cases.queue import ReviewQueue
from millrace_apps.fraud.cases.rules import CaseRefused, CaseRules, QueueRule
from millrace_apps.fraud.contracts.control_events import Propose
from tests.cases import case_count
from tests.oracles import fraud_cases as oracle
from tests.unit.apps.fraud.case_book_cases import (
    ACTING,
    DAY,
    HOUR,
    MINUTE,
    START_MS,
    UPSERT,
    Event,
    act,
    alert,
    cases,
    driver,
    event,
    said,
    settle,
)


def the_case(target: TestDriver, first_tx: str = "a") -> Case:
    return cases(target)[case_id_of("card-1", first_tx)]


def errors(target: TestDriver) -> list[str]:
    return [letter["error"] for letter in target.values("dead_letters")]


# -- what a verdict does -----------------------------------------------------------------------------


def test_a_confirmed_fraud_blocks_its_card_with_author_reason_and_end() -> None:
    """F4: the card of a confirmed fraud is blocked, and not in words only."""
    target = settle(driver(alert(0, "a"), said(HOUR, "a", "fraud")), HOUR)
    case_id = case_id_of("card-1", "a")
    until, at = START_MS + HOUR + 5 * DAY, START_MS + HOUR
    assert target.values("control") == [
        PutListEntry("blocked", "card:card-1", until, "eva", at, f"case {case_id} is fraud")
    ]
    assert the_case(target).blocked_until_ms == until


def test_without_blocks_a_confirmed_fraud_changes_no_list() -> None:
    rules = msgspec.structs.replace(ACTING, block_ms=0)
    target = settle(driver(alert(0, "a"), said(HOUR, "a", "fraud"), rules=rules), HOUR)
    assert target.values("control") == []
    assert the_case(target).blocked_until_ms is None


@pytest.mark.parametrize("verdict", ["genuine", "unclear"])
def test_other_verdicts_block_nothing(verdict: Any) -> None:
    assert settle(driver(alert(0, "a"), said(HOUR, "a", verdict)), HOUR).values("control") == []


def test_a_verdict_that_is_taken_back_asks_for_the_card_to_be_unblocked() -> None:
    target = settle(driver(alert(0, "a"), said(HOUR, "a", "fraud"), said(DAY, "a", "genuine")), DAY)
    (_, asked) = target.values("control")
    assert asked.changes == [RemoveListEntry("blocked", "card:card-1", "eva", START_MS + DAY)]
    assert the_case(target).blocked_until_ms is None


def two_frauds(*more: Event) -> TestDriver:
    """A card with two cases that are fraud, decided after an hour and after a day, and what comes then."""
    events = [
        alert(0, "a"), said(HOUR, "a", "fraud"), alert(2 * HOUR, "b"), said(DAY, "b", "fraud"), *more,
    ]  # fmt: skip
    return settle(driver(*events), 2 * DAY)


def test_a_card_stays_blocked_where_another_of_its_cases_is_fraud() -> None:
    target = two_frauds(said(DAY + HOUR, "b", "genuine"))
    asked = target.values("control")[-1]
    note = f"case {case_id_of('card-1', 'a')} is fraud"
    until, at = START_MS + HOUR + 5 * DAY, START_MS + DAY + HOUR
    assert asked.changes == [PutListEntry("blocked", "card:card-1", until, "eva", at, note)]
    assert (the_case(target).blocked_until_ms, the_case(target, "b").blocked_until_ms) == (until, None)


def test_unblocking_a_card_ends_the_blocks_of_all_its_cases() -> None:
    target = two_frauds(act(DAY + HOUR, "b", "unblock"))
    assert [case.blocked_until_ms for case in cases(target).values()] == [None, None]
    asked = target.values("control")[-1]
    assert asked.changes == [RemoveListEntry("blocked", "card:card-1", "eva", START_MS + DAY + HOUR)]


# -- alerts of a card whose case is closed -------------------------------------------------------------


def test_alerts_after_a_confirmed_fraud_open_a_case_that_follows_it_and_is_queued() -> None:
    """F4: the next alerts of a card in foreign hands are seen by somebody."""
    events = [alert(0, "a"), said(HOUR, "a", "fraud"), alert(2 * HOUR, "b"), alert(3 * HOUR, "c")]
    target = settle(driver(*events), 4 * HOUR)
    first, second = the_case(target), the_case(target, "b")
    assert (first.status, first.alerts) == ("fraud", 1)
    assert (second.status, second.alerts, second.follows) == ("open", 2, first.case_id)
    live = LiveCases(ACTING)
    live.add_alerts([e for e in events if isinstance(e, AlertSeen)])
    live.add_dispositions([e for e in events if isinstance(e, Disposition)])
    live.settle()
    assert [(r.place, r.case.case_id) for r in live.ranked()] == [
        ("queued", second.case_id), ("done", first.case_id),
    ]  # fmt: skip


def test_a_card_in_foreign_hands_is_more_suspicious_than_its_alert_says() -> None:
    events = [alert(0, "a"), said(HOUR, "a", "fraud"), alert(2 * HOUR, "b", score=0.1)]
    assert the_case(settle(driver(*events), 2 * HOUR), "b").score == ACTING.least_followed


def test_what_the_list_blocked_is_noted_in_the_closed_case_as_long_as_it_blocks() -> None:
    until = HOUR + 5 * DAY
    blocked = [
        alert(at, f"x{at}", action="block", codes=("BLOCK_LIST",)) for at in (2 * HOUR, until - 1, until)
    ]
    target = settle(driver(alert(0, "a"), said(HOUR, "a", "fraud"), *blocked), until)
    assert the_case(target).alerts == 3
    assert the_case(target, f"x{until}").status == "open"


def test_blocked_attempts_beyond_the_most_of_a_case_open_nothing() -> None:
    rules = msgspec.structs.replace(ACTING, most_alerts=3)
    tries = [alert(2 * HOUR + n, f"x{n}", action="block", codes=("BLOCK_LIST",)) for n in range(9)]
    target = settle(driver(alert(0, "a"), said(HOUR, "a", "fraud"), *tries, rules=rules), DAY)
    assert [c.alerts for c in cases(target).values()] == [3]


@pytest.mark.parametrize(
    ("at", "amount", "code", "action", "opens"),
    [
        (3 * HOUR, 50.0, "SPREE", "review", False),
        (HOUR + 2 * DAY - 1, 50.0, "SPREE", "review", False),
        (HOUR + 2 * DAY, 50.0, "SPREE", "review", True),
        (3 * HOUR, 50.01, "SPREE", "review", True),
        (3 * HOUR, 50.0, "CARD_TESTING", "review", True),
        (3 * HOUR, 50.0, "SPREE", "block", True),
    ],
)
def test_after_genuine_only_another_pattern_opens_a_case_at_once(
    at: int, amount: float, code: str, action: str, *, opens: bool
) -> None:
    """F4: after genuine the same pattern opens no case within hours."""
    later = alert(at, "b", amount=amount, codes=(code,), action=action)
    target = settle(driver(alert(0, "a"), said(HOUR, "a", "genuine"), later), at)
    assert (len(cases(target)) == 2) == opens
    assert the_case(target).alerts == (1 if opens else 2)
    assert len(target.values("labels")) == 1  # nobody has looked at b


# -- acts ------------------------------------------------------------------------------------------------


def test_who_claims_a_case_has_it_until_the_claim_ends() -> None:
    events = [
        alert(0, "a"), act(HOUR, "a", "claim", by="ann"), act(2 * HOUR, "a", "claim", by="bob"),
        said(3 * HOUR, "a", "fraud", by="bob"),
    ]  # fmt: skip
    target = settle(driver(*events), 3 * HOUR)
    case = the_case(target)
    assert (case.claimed_by, case.claimed_until_ms, case.status) == ("ann", START_MS + 4 * HOUR, "open")
    assert ["claimed by ann" in e for e in errors(target)] == [True, True]
    case = the_case(settle(target, 4 * HOUR))
    assert (case.claimed_by, case.claimed_until_ms) == (None, None)
    target.send("card-1", act(4 * HOUR + 1, "a", "claim", by="bob"), at=START_MS + 4 * HOUR + 1)
    assert the_case(settle(target, 5 * HOUR)).claimed_by == "bob"


def test_a_claim_is_given_back_by_who_has_it_alone() -> None:
    events = [alert(0, "a"), act(1, "a", "claim", by="ann"), act(2, "a", "release", by="bob")]
    target = settle(driver(*events), 3)
    assert the_case(target).claimed_by == "ann"
    target.send("card-1", act(4, "a", "release", by="ann"), at=START_MS + 4)
    assert the_case(settle(target, 5)).claimed_by is None
    assert "claimed by ann" in errors(target)[0]


def test_a_decision_ends_the_claim_and_closed_cases_are_not_claimed() -> None:
    events = [alert(0, "a"), act(1, "a", "claim", by="ann"), said(2, "a", "genuine", by="ann"),
              act(3, "a", "claim", by="bob")]  # fmt: skip
    target = settle(driver(*events), 3)
    assert (the_case(target).claimed_by, the_case(target).status) == (None, "genuine")
    assert "only open cases are claimed" in errors(target)[0]


def test_a_case_does_not_expire_while_somebody_looks_at_it() -> None:
    target = driver(alert(0, "a"), act(7 * DAY - HOUR, "a", "claim", by="ann"))
    assert the_case(settle(target, 7 * DAY)).status == "open"
    assert the_case(settle(target, 7 * DAY + 2 * HOUR)).status == "expired"
    assert target.is_empty()


def test_verified_payments_pass_for_a_while_and_unblocking_is_recorded() -> None:
    events = [
        alert(0, "a"), act(HOUR, "a", "contacted", by="ann"), act(2 * HOUR, "a", "verified", by="ann"),
        alert(3 * DAY, "b", codes=("OTHER",)), said(3 * DAY + 1, "b", "fraud"),
        act(3 * DAY + 2, "b", "unblock", by="ann"),
    ]  # fmt: skip
    target = settle(driver(*events), 4 * DAY)
    passes, blocks, unblocks = target.values("control")
    (entry,) = passes.changes
    until = START_MS + 2 * HOUR + DAY
    assert (entry.list, entry.entry, entry.until_ms, entry.by) == ("allowed", "card:card-1", until, "ann")
    assert isinstance(blocks, PutListEntry)
    assert unblocks.changes == [RemoveListEntry("blocked", "card:card-1", "ann", START_MS + 3 * DAY + 2)]
    assert [h.what for h in the_case(target).history] == ["contacted", "verified"]
    assert [h.what for h in the_case(target, "b").history] == ["fraud", "unblock"]
    assert the_case(target, "b").blocked_until_ms is None


@pytest.mark.parametrize("block_ms", [0, 5 * DAY])
def test_a_verdict_of_fraud_ends_that_payments_pass_by_the_holders_word(block_ms: int) -> None:
    """Without it what was allowed before stayed so where nothing is blocked, or once it is unblocked."""
    rules = msgspec.structs.replace(ACTING, block_ms=block_ms)
    events = [alert(0, "a"), act(HOUR, "a", "verified", by="ann"), said(2 * HOUR, "a", "fraud")]
    target = settle(driver(*events, rules=rules), 2 * HOUR)
    assert target.values("control")[1] == RemoveListEntry(
        "allowed", "card:card-1", "eva", START_MS + 2 * HOUR
    )
    assert the_case(target).cards[0].verified_until_ms is None
    later = [alert(0, "a"), act(HOUR, "a", "verified", by="ann"), said(HOUR + DAY, "a", "fraud")]
    told = settle(driver(*later, rules=rules), 2 * DAY).values("control")[1:]
    assert not any(isinstance(one, RemoveListEntry) for one in told)  # it has ended by itself


def test_payments_of_a_card_found_to_be_in_foreign_hands_are_not_let_pass() -> None:
    target = settle(driver(alert(0, "a"), said(1, "a", "fraud"), act(2, "a", "verified")), 2)
    assert len(target.values("control")) == 1
    assert "decide that it is genuine first" in errors(target)[0]


def test_repeats_of_acts_change_nothing_and_others_under_their_id_are_told_apart() -> None:
    once = act(HOUR, "a", "contacted", by="ann")
    target = settle(driver(alert(0, "a"), once, once, msgspec.structs.replace(once, note="x")), HOUR)
    assert [letter["reason"] for letter in target.values("dead_letters")] == ["duplicate", "conflict"]
    assert len(the_case(target).history) == 1


def test_an_act_on_an_unknown_case_goes_to_the_dead_letters() -> None:
    target = settle(driver(alert(0, "a"), act(1, "other", "claim")), 1)
    assert "has no case" in errors(target)[0]


# -- queues and times --------------------------------------------------------------------------------------

CARDS = case_count(10_000, share=10)
QUEUES = (
    QueueRule("testing", "reason('CARD_TESTING')", 1),
    QueueRule("abroad", "country in ('FR', 'IT') and amount > 40", 2),
)


def test_a_case_is_in_the_first_queue_that_takes_it_and_each_has_its_capacity() -> None:
    rules = msgspec.structs.replace(ACTING, queues=QUEUES)
    live = LiveCases(rules, capacity=1)
    alerts = [
        msgspec.structs.replace(
            alert(n, f"t{n}", card=f"c{n}", codes=("CARD_TESTING",) if n < 2 else ("SPREE",)),
            country="FR" if n < 5 else "DE",
        )
        for n in range(7)
    ]
    live.add_alerts(alerts)
    live.settle()
    placed = {r.case.card_id: (r.case.queue, r.place, r.rank) for r in live.ranked()}
    assert placed == {
        "c0": ("testing", "queued", 1), "c1": ("testing", "waiting", None),
        "c2": ("abroad", "queued", 1), "c3": ("abroad", "queued", 2), "c4": ("abroad", "waiting", None),
        "c5": ("cards", "queued", 1), "c6": ("cards", "waiting", None),
    }  # fmt: skip


@pytest.mark.parametrize(
    "made",
    [
        lambda: QueueRule("two words", "amount > 1"),
        lambda: QueueRule("cards", "amount > 1"),
        lambda: QueueRule("a", "amont > 1"),
        lambda: QueueRule("a", "amount > 1", 0),
        lambda: CaseRules(queues=(QUEUES[0], QUEUES[0])),
        lambda: CaseRules(quiet_ms=2, kept_ms=1, followed_ms=1),
    ],
)
def test_queues_that_make_no_sense_are_refused(made: Any) -> None:
    with pytest.raises(CaseRefused):
        made()


def test_times_of_people_are_counted_on_the_day_of_the_look_and_of_the_decision() -> None:
    """Drawn: a at 0, looked at after 2 h by ann, decided a day later by bob; b decided by bob after 1 h."""
    chain = MemoryChain(processes(CaseBook(ACTING), ReviewQueue(), CaseTopics()))
    decided = said(5 * HOUR, "b", "fraud", card="card-2", by="bob")
    events: list[tuple[str, int, Any, str]] = [
        ("card-1", START_MS, alert(0, "a"), "alerts"),
        ("card-1", START_MS + 2 * HOUR, act(2 * HOUR, "a", "claim", by="ann"), "acts"),
        ("card-2", START_MS + 4 * HOUR, alert(4 * HOUR, "b", card="card-2"), "alerts"),
        (
            "card-2",
            START_MS + 5 * HOUR,
            decided,
            "dispositions",
        ),
        ("card-1", START_MS + 26 * HOUR, said(26 * HOUR, "a", "genuine", by="bob"), "dispositions"),
    ]
    emissions = chain.run_batch(events) + chain.advance_watermark(START_MS + 3 * DAY)
    served = [msgspec.json.decode(e.payload, type=ServiceDay) for e in emissions if e.output == "service"]
    assert served == [
        ServiceDay("cards", START_MS, "ann", 1, 2 * HOUR, 2 * HOUR, 0, 0, 0, 0),
        ServiceDay("cards", START_MS, "bob", 1, HOUR, HOUR, 1, 1, HOUR, HOUR),
        ServiceDay("cards", START_MS + DAY, "bob", 0, 0, 0, 1, 0, 26 * HOUR, 26 * HOUR),
    ]


# -- against going through everything ------------------------------------------------------------------------


def some_life(random: Random, card: str, n: int) -> list[Event]:
    """Alerts of a card, and what people say of its cases, most of it of cases that are there."""
    events: list[Event] = []
    alerted: list[str] = []
    at = random.randrange(DAY)
    for number in range(n):
        at += random.choice([MINUTE, 20 * MINUTE, HOUR, 5 * HOUR, DAY, 2 * DAY]) * random.randrange(1, 4) + 1
        kind = random.random()
        if kind < 0.45 or not alerted:
            tx = f"{card}-{number}" if random.random() < 0.95 or not alerted else random.choice(alerted)
            codes = tuple(random.sample(["SPREE", "CARD_TESTING", "BLOCK_LIST"], random.choice([1, 1, 2])))
            action = random.choice(["review", "block"])
            amount = random.choice([10.0, 20.0, 50.0])
            events.append(alert(at, tx, card=card, amount=amount, codes=codes, action=action))
            alerted.append(tx)
        else:
            tx, by = random.choice(alerted[-3:]), random.choice(["ann", "bob"])
            if kind < 0.7:
                verdict: Any = random.choice(["fraud", "fraud", "genuine", "unclear"])
                events.append(said(at, tx, verdict, card=card, by=by))
            else:
                what: Any = random.choice(["claim", "claim", "release", "contacted", "verified", "unblock"])
                events.append(act(at, tx, what, card=card, by=by))
            if random.random() < 0.05:
                events.append(events[-1])
    return events


def control_of(event: PutListEntry | RemoveListEntry | Propose) -> tuple[Any, ...]:
    if isinstance(event, RemoveListEntry):
        return ("remove", event.list, event.entry, event.by)
    if isinstance(event, PutListEntry):
        return ("put", event.list, event.entry, event.until_ms, event.by)
    (change,) = event.changes
    if isinstance(change, PutListEntry):
        return ("propose", "put", change.list, change.entry, change.until_ms, change.by)
    return ("propose", "remove", change.list, change.entry, change.by)  # type: ignore[union-attr]


def told(case: Case) -> tuple[Any, ...]:
    return (
        [t.transaction_id for t in case.transactions], case.status, case.follows, case.claimed_by,
        case.claimed_until_ms, case.looked_by, case.looked_ms, case.blocked_until_ms,
        {c.verified_until_ms for c in case.cards if c.verified_until_ms},
        [(h.what, h.by, h.at_ms) for h in case.history],
    )  # fmt: skip


def test_random_cards_are_what_going_through_their_events_gives() -> None:
    random = Random(23)
    rules = msgspec.structs.replace(ACTING, most_alerts=4, open_for_ms=4 * DAY, kept_ms=6 * DAY)
    lives = {f"c{n}": some_life(random, f"c{n}", random.randrange(3, 14)) for n in range(CARDS)}
    target = TestDriver(CaseBook(rules))
    target.send_batch([(key, at, what) for life in lives.values() for key, at, what in map(event, life)])
    end = START_MS + 40 * DAY
    target.advance_watermark(end)
    found, control, labels = cases(target), target.values("control"), target.values("labels")
    by_card: dict[str, list[tuple[Any, ...]]] = {}
    for one in map(control_of, control):
        by_card.setdefault(one[3 if one[0] == "propose" else 2].removeprefix("card:"), []).append(one)
    cases_by: dict[str, dict[str, Case]] = {}
    for case in found.values():
        cases_by.setdefault(case.card_id, {})[case.case_id] = case
    said_of: dict[str, list[tuple[str, bool, str]]] = {}
    for label in labels:
        said_of.setdefault(label.card_id, []).append((label.transaction_id, label.is_fraud, label.source))
    refused, reached = 0, dict.fromkeys(("followed", "quiet", "claimed", "expired", "full"), 0)
    for card, life in lives.items():
        ids = {e.transaction_id: case_id_of(card, e.transaction_id) for e in life if isinstance(e, AlertSeen)}
        wanted = oracle.cases_of(card, sorted(life, key=lambda e: event(e)[1]), rules, ids, end)
        refused += wanted.refused
        assert {ids[first]: as_told(case, ids) for first, case in wanted.cases.items()} == {
            case_id: told(case) for case_id, case in cases_by.get(card, {}).items()
        }, card
        assert by_card.get(card, []) == wanted.control, card
        assert said_of.get(card, []) == wanted.labels, card
        for case in wanted.cases.values():
            reached["followed"] += case.follows is not None
            reached["quiet"] += case.status == "genuine" and len(case.alerts) > 1
            reached["claimed"] += any(what == "claim" for what, _, _ in case.history)
            reached["expired"] += case.status == "expired"
            reached["full"] += len(case.alerts) == rules.most_alerts
    assert len(target.values("dead_letters")) == refused
    assert min(reached.values()) > CARDS // 100, reached


def as_told(case: oracle.Told, ids: dict[str, str]) -> tuple[Any, ...]:
    return (
        [a.transaction_id for a in case.alerts], case.status, ids[case.follows] if case.follows else None,
        *(case.claim or (None, None)), *(case.looked or (None, None)), case.blocked_until,
        case.passes, case.history,
    )  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2])
def test_acts_do_not_depend_on_order_cuts_and_restarts(seed: int) -> None:
    random = Random(seed)
    events = [event(e) for n in range(5) for e in some_life(random, f"c{n}", 14)]
    invariant(CaseBook(ACTING), events, bound_ms=3 * DAY, upsert_by=UPSERT, seed=seed)


def test_nothing_is_kept_once_all_is_over() -> None:
    random = Random(7)
    events = [event(e) for n in range(5) for e in some_life(random, f"c{n}", 14)]
    assert leaks(CaseBook(ACTING), events, bound_ms=60 * DAY) == []


def test_old_state_of_a_case_opens_with_what_is_new_left_out() -> None:
    from millrace_apps.fraud.cases.book import KeptCase

    old = msgspec.json.decode(
        b'{"customer_id":null,"status":"fraud","opened_ms":1,"last_ms":1,"transactions":[],"reasons":{},'
        b'"revision":2,"verdict_by":"eva","verdict_ms":2,"note":"","dispositions":["d"]}',
        type=KeptCase,
    )
    assert (old.queue, old.follows, old.claimed_by, old.blocked_until_ms, old.history) == (
        "cards", None, None, None, [],
    )  # fmt: skip
    assert AlertReason("SPREE", 1.0).beside is False
