"""One case per ring: cards that are used together are one case, whose verdict is about each of them."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest

from millrace.host.memory_chain import MemoryChain
from millrace.rules import PutListEntry, RemoveListEntry
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from millrace_apps.fraud.cases.app import CaseTopics, FraudCasesSettings, processes, topology
from millrace_apps.fraud.cases.book import CaseBook, case_id_of
from millrace_apps.fraud.cases.events import AlertSeen, CardBlock, Case, CaseAct, Disposition
from millrace_apps.fraud.cases.kept import KeptCase
from millrace_apps.fraud.cases.live import LiveCases
from millrace_apps.fraud.cases.queue import ReviewQueue
from millrace_apps.fraud.cases.rows import read_row
from millrace_apps.fraud.cases.rules import CaseRules, QueueRule
from millrace_apps.fraud.contracts.control_events import MAX_CHANGES, Propose
from millrace_apps.fraud.contracts.events import Reason
from millrace_apps.fraud.processes.reasons import RINGS, ring_of
from millrace_apps.fraud.processes.scoring import WEIGHTS
from tests.cases import case_count
from tests.oracles import fraud_cases as oracle
from tests.unit.apps.fraud.case_book_cases import (
    ACTING,
    DAY,
    HOUR,
    MINUTE,
    RULES,
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

RING = "device:d-7"
LIVES = case_count(10_000, share=10)


def of_ring(at: int, tx: str, card: str, ring: str = RING, **more: Any) -> AlertSeen:
    return alert(at, tx, card=card, ring=ring, codes=more.pop("codes", ("SHARED_DEVICE",)), **more)


def the_case(target: TestDriver, first_tx: str = "a", subject: str = RING) -> Case:
    return cases(target)[case_id_of(subject, first_tx)]


def changes(target: TestDriver) -> list[tuple[Any, ...]]:
    """What lists are told, a tuple per change."""
    found: list[tuple[Any, ...]] = []
    for one in target.values("control"):
        asked = isinstance(one, Propose)
        for change in one.changes if isinstance(one, Propose) else [one]:
            put = isinstance(change, PutListEntry)
            lead = ("propose", "put" if put else "remove") if asked else ("put",)
            until = (change.until_ms,) if isinstance(change, PutListEntry) else ()
            assert isinstance(change, PutListEntry | RemoveListEntry)
            found.append((*lead, change.list, change.entry, *until, change.by))
    return found


def three(*more: Event, rules: CaseRules = ACTING) -> TestDriver:
    """A ring of three cards, a, b and c, and what comes then."""
    first = [of_ring(n * MINUTE, tx, f"card-{tx}", amount=10.0 * (n + 1)) for n, tx in enumerate("abc")]
    return settle(driver(*first, *more, rules=rules), 3 * DAY)


# -- which case an alert belongs to ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codes", "device", "ring"),
    [
        (["SHARED_TERMINAL", "SHARED_DEVICE"], "d-7", "device:d-7"),
        (["SHARED_TERMINAL"], "d-7", "terminal:t-1"),
        (["SHARED_TERMINAL", "SHARED_DEVICE"], None, "terminal:t-1"),
        (["SHARED_DEVICE"], None, ""),
        (["SPREE", "NEW_DEVICE"], "d-7", ""),
        ([], "d-7", ""),
    ],
)
def test_a_ring_is_what_the_alerts_own_reasons_say(codes: list[str], device: str | None, ring: str) -> None:
    reasons = [Reason(code, 9.0, 1.0, 4.0, WEIGHTS[code]) for code in codes]
    assert ring_of(reasons, device_id=device, terminal_id="t-1") == ring
    assert ring_of(reasons[::-1], device_id=device, terminal_id="t-1") == ring
    assert set(RINGS) <= set(WEIGHTS)


def test_twenty_cards_of_one_device_are_one_case_and_not_twenty() -> None:
    events = [of_ring(n * MINUTE, f"t{n}", f"card-{n % 20}", amount=5.0) for n in range(40)]
    target = settle(driver(*events), DAY)
    (case,) = cases(target).values()
    assert (case.subject, case.ring, case.alerts, case.amount) == (RING, RING, 40, 200.0)
    assert [(c.card_id, c.alerts, c.amount) for c in case.cards] == [
        (f"card-{n}", 2, 10.0) for n in range(20)
    ]
    assert case.about == "ring of 20 cards via device d-7"
    assert case.priority == pytest.approx(case.score * (200.0 + 20 * RULES.exposure))


def test_alerts_of_cards_in_a_ring_that_do_not_say_so_are_their_cards_cases() -> None:
    own = alert(HOUR, "x", card="card-a", codes=("SPREE",))
    found = cases(three(own)).values()
    assert sorted((c.subject, c.alerts) for c in found) == [("card:card-a", 1), (RING, 3)]


def test_rings_can_be_switched_off_and_each_alert_is_its_cards() -> None:
    off = msgspec.structs.replace(ACTING, rings=False)
    target = three(said(DAY, "a", "fraud", card="card-a"), rules=off)
    found = sorted(cases(target).values(), key=lambda c: c.subject)
    assert [(c.subject, c.status) for c in found] == [
        ("card:card-a", "fraud"), ("card:card-b", "open"), ("card:card-c", "open"),
    ]  # fmt: skip
    assert [c[2:] for c in changes(target)] == [("card:card-a", START_MS + 6 * DAY, "eva")]
    settings = FraudCasesSettings(cases={"rings": "off"})
    assert topology(settings).key_of(of_ring(0, "a", "card-a"), "alerts") == "6:card-a"
    assert topology(FraudCasesSettings()).key_of(of_ring(0, "a", "card-a"), "alerts") == "10:device:d-7"
    assert topology(FraudCasesSettings()).key_of(alert(0, "a"), "alerts") == "6:card-1"


def test_a_full_case_of_a_ring_opens_another_and_loses_nothing() -> None:
    rules = msgspec.structs.replace(ACTING, most_ring_alerts=7)
    events = [of_ring(n * MINUTE, f"t{n}", f"card-{n}") for n in range(16)]
    target = settle(driver(*events, rules=rules), DAY)
    assert [c.alerts for c in cases(target).values()] == [7, 7, 2]


def test_a_card_that_is_called_as_a_ring_has_cases_of_its_own() -> None:
    named = alert(HOUR, "x", card=RING)
    found = cases(three(named))
    assert sorted((c.subject, c.alerts) for c in found.values()) == [(f"card:{RING}", 1), (RING, 3)]


def test_a_card_that_is_called_as_a_ring_is_blocked_and_unblocked_by_itself() -> None:
    target = three(
        alert(HOUR, "x", card=RING),
        said(2 * HOUR, "a", "fraud", card="card-a", ring=RING),
        said(DAY, "x", "fraud", card=RING),
        act(2 * DAY, "a", "unblock", card="card-a", ring=RING),
    )
    until = START_MS + 6 * DAY
    assert changes(target)[3:] == [
        ("put", "blocked", f"card:{RING}", until, "eva"),
        *(("propose", "remove", "blocked", f"card:card-{c}", "eva") for c in "abc"),
    ]
    assert the_case(target).blocked_until_ms is None
    assert the_case(target, "x").blocked_until_ms == until


def test_one_transaction_id_of_two_cards_is_told_from_a_repeat() -> None:
    target = three(of_ring(HOUR, "a", "card-z"), of_ring(0, "a", "card-a", amount=10.0))
    assert Counter(d["reason"] for d in target.values("dead_letters")) == {"conflict": 1, "duplicate": 1}


def test_a_ring_can_have_a_queue_of_its_own() -> None:
    rules = msgspec.structs.replace(ACTING, queues=(QueueRule("rings", "ring in ('device', 'terminal')"),))
    live = LiveCases(rules)
    live.add_alerts([of_ring(0, "a", "card-a"), alert(1, "b")])
    live.settle()
    assert {r.case.subject: r.case.queue for r in live.ranked()} == {RING: "rings", "card:card-1": "cards"}


# -- what is said of it -------------------------------------------------------------------------------------


def test_fraud_blocks_each_card_and_labels_each_transaction_under_its_card() -> None:
    target = three(said(HOUR, "a", "fraud", card="card-a", ring=RING))
    until = START_MS + HOUR + 5 * DAY
    assert changes(target) == [("put", "blocked", f"card:card-{c}", until, "eva") for c in "abc"]
    assert [(x.card_id, x.transaction_id, x.is_fraud) for x in target.values("labels")] == [
        (f"card-{c}", c, True) for c in "abc"
    ]
    case = the_case(target)
    assert {c.blocked_until_ms for c in case.cards} == {until} == {case.blocked_until_ms}
    assert case.ring_blocked_until_ms is None


@pytest.mark.parametrize("how", ["the verdict", "the setting"])
def test_the_device_is_blocked_where_the_verdict_or_the_setting_says_so(how: str) -> None:
    rules = msgspec.structs.replace(ACTING, block_rings=how == "the setting")
    verdict = said(HOUR, "a", "fraud", card="card-a", ring=RING, block_ring=how == "the verdict")
    target = three(verdict, said(2 * HOUR, "a", "genuine", card="card-a", ring=RING), rules=rules)
    until = START_MS + HOUR + 5 * DAY
    assert changes(target)[3] == ("put", "blocked", RING, until, "eva")
    assert changes(target)[4:] == [
        ("propose", "remove", "blocked", value, "eva") for value in (*(f"card:card-{c}" for c in "abc"), RING)
    ]
    assert the_case(target).ring_blocked_until_ms is None


def test_a_card_whose_holder_stands_by_its_payments_is_left_out_of_the_fraud() -> None:
    target = three(
        act(HOUR, "a", "verified", card="card-a", ring=RING, about="card-b"),
        said(2 * HOUR, "a", "fraud", card="card-a", ring=RING),
    )
    assert {c[-3]: c[:-3] for c in changes(target)} == {
        "card:card-b": ("propose", "put", "allowed"),
        "card:card-a": ("put", "blocked"),
        "card:card-c": ("put", "blocked"),
    }
    assert {x.transaction_id: x.is_fraud for x in target.values("labels")} == {
        "a": True,
        "b": False,
        "c": True,
    }
    case = the_case(target)
    assert [bool(c.verified_until_ms) for c in case.cards] == [False, True, False]
    assert case.priority == pytest.approx(case.score * (60.0 + 2 * RULES.exposure))


def test_a_holders_word_after_the_verdict_corrects_labels_and_unblocks_that_card_alone() -> None:
    target = three(
        said(HOUR, "a", "fraud", card="card-a", ring=RING),
        act(2 * HOUR, "a", "verified", card="card-a", ring=RING, about="card-b", by="ann"),
    )
    until = START_MS + 2 * HOUR + DAY
    assert changes(target)[3:] == [
        ("propose", "remove", "blocked", "card:card-b", "ann"),
        ("propose", "put", "allowed", "card:card-b", until, "ann"),
    ]
    (*_, last) = target.values("labels")
    assert (last.transaction_id, last.is_fraud, last.source) == ("b", False, "correction")
    assert [bool(c.blocked_until_ms) for c in the_case(target).cards] == [True, False, True]
    assert the_case(target).status == "fraud"


def test_verified_of_a_ring_says_which_card() -> None:
    target = three(
        act(HOUR, "a", "verified", card="card-a", ring=RING),
        act(HOUR + 1, "a", "verified", card="card-a", ring=RING, about="card-z"),
    )
    assert changes(target) == []
    errors = [letter["error"] for letter in target.values("dead_letters")]
    assert ["say which card" in e for e in errors] == [True, False]
    assert "no card card-z" in errors[1]


def test_unblocking_is_of_one_card_or_of_all() -> None:
    verdict = said(HOUR, "a", "fraud", card="card-a", ring=RING, block_ring=True)
    one = three(verdict, act(DAY, "a", "unblock", card="card-a", ring=RING, about="card-b"))
    assert changes(one)[4:] == [("propose", "remove", "blocked", "card:card-b", "eva")]
    assert [bool(c.blocked_until_ms) for c in the_case(one).cards] == [True, False, True]
    assert the_case(one).ring_blocked_until_ms
    whole = three(verdict, act(DAY, "a", "unblock", card="card-a", ring=RING))
    assert [c[3] for c in changes(whole)[4:]] == [*(f"card:card-{c}" for c in "abc"), RING]
    assert (the_case(whole).blocked_until_ms, the_case(whole).ring_blocked_until_ms) == (None, None)


def test_what_frees_many_cards_comes_in_as_many_proposals_as_it_takes() -> None:
    many = 2 * MAX_CHANGES + 3
    events: list[Event] = [of_ring(n * MINUTE, f"t{n:03}", f"card-{n:03}") for n in range(many)]
    events.append(said(DAY, "t000", "fraud", card="card-000", ring=RING))
    events.append(said(2 * DAY, "t000", "genuine", card="card-000", ring=RING))
    target = settle(driver(*events), 3 * DAY)
    asked = [one for one in target.values("control") if isinstance(one, Propose)]
    assert [len(one.changes) for one in asked] == [MAX_CHANGES, MAX_CHANGES, 3]
    assert len({one.id for one in asked}) == 3
    for one in asked:
        msgspec.json.decode(msgspec.json.encode(one), type=Propose)  # within the bounds of its contract


def test_taking_a_verdict_back_leaves_cards_blocked_that_their_own_cases_block() -> None:
    until = START_MS + 9 * DAY
    target = three(
        said(HOUR, "a", "fraud", card="card-a", ring=RING),
        said(DAY, "a", "genuine", card="card-a", ring=RING, elsewhere=[CardBlock("card-b", until)]),
    )
    assert changes(target)[3:] == [
        ("propose", "remove", "blocked", "card:card-a", "eva"),
        ("propose", "put", "blocked", "card:card-b", until, "eva"),
        ("propose", "remove", "blocked", "card:card-c", "eva"),
    ]


def test_what_was_blocked_of_the_ring_is_noted_and_a_new_card_of_it_opens_a_case_that_follows() -> None:
    blocked = of_ring(2 * HOUR, "x", "card-b", action="block", codes=("BLOCK_LIST", "SHARED_DEVICE"))
    fresh = of_ring(3 * HOUR, "y", "card-n")
    target = three(said(HOUR, "a", "fraud", card="card-a", ring=RING), blocked, fresh)
    first, second = the_case(target), the_case(target, "y")
    assert (first.alerts, second.alerts, second.follows) == (4, 1, first.case_id)
    assert second.score >= ACTING.least_followed


# -- older events, rows and state ------------------------------------------------------------


def test_events_of_before_there_were_rings_are_their_cards() -> None:
    seen = (
        b'{"card_id":"card-1","transaction_id":"a","event_time_ms":5,"amount":9,"score":0.9,'
        b'"action":"review"}'
    )
    verdict = (
        b'{"disposition_id":"d","case_id":"c","card_id":"card-1","verdict":"fraud","by":"eva","at_ms":6}'
    )
    done = b'{"act_id":"a","case_id":"c","card_id":"card-1","what":"claim","by":"eva","at_ms":6}'
    wired = topology(FraudCasesSettings())
    for raw, tp, name in (
        (seen, AlertSeen, "alerts"),
        (verdict, Disposition, "dispositions"),
        (done, CaseAct, "acts"),
    ):
        assert wired.key_of(msgspec.json.decode(raw, type=tp), name) == "6:card-1"


def test_state_of_before_there_were_rings_is_a_cards_case() -> None:
    old = msgspec.json.decode(
        b'{"customer_id":null,"status":"fraud","opened_ms":1,"last_ms":1,"transactions":[{"transaction_id":"a",'
        b'"event_time_ms":1,"amount":5.0,"score":0.9,"action":"block","terminal_id":"t","label_id":"l"}],'
        b'"reasons":{},"blocked_until_ms":9}',
        type=KeptCase,
    )
    case = old.told("case-1", "card-1", CaseRules(), 2)
    assert (case.subject, case.ring, case.card_id, case.blocks) == (
        "card:card-1",
        "",
        "card-1",
        {"card-1": 9},
    )
    assert case.priority == CaseRules().priority(0.9, 5.0)


def test_rows_of_before_there_were_rings_are_read_with_what_is_new_left_out() -> None:
    row = msgspec.to_builtins(the_case(three()))
    later = ("subject", "cards", "ring_blocked_until_ms", "history")
    row |= dict.fromkeys(later)
    for one in row["transactions"]:
        one["card_id"] = None
    case = read_row(row, Case)
    assert (case.subject, case.cards, case.history, case.ring) == ("", [], [], "")
    assert case.blocks == {"card-a": 0}


# -- against going through everything --------------------------------------------------------


def some_life(random: Random, ring: str, n: int) -> list[Event]:
    """Alerts of the cards of a ring, and what people say of its cases."""
    events: list[Event] = []
    alerted: list[str] = []
    members = [f"{ring}-{letter}" for letter in "abc"]
    at = random.randrange(DAY)
    for number in range(n):
        at += random.choice([MINUTE, 20 * MINUTE, HOUR, 5 * HOUR, DAY, 2 * DAY]) * random.randrange(1, 4) + 1
        kind = random.random()
        by, tx = random.choice(["ann", "bob"]), random.choice(alerted[-3:]) if alerted else ""
        more: dict[str, Any] = {"card": members[0], "by": by, "ring": ring}
        if random.random() < 0.8:
            more["elsewhere"] = [CardBlock(random.choice(members), START_MS + at + random.randrange(9) * DAY)]
        if kind < 0.45 or not alerted:
            name = f"{ring}-{number}" if random.random() < 0.95 or not alerted else tx
            codes = tuple(
                random.sample(["SHARED_DEVICE", "CARD_TESTING", "BLOCK_LIST"], random.choice([1, 2]))
            )
            events.append(of_ring(at, name, random.choice(members), ring, codes=codes,
                                  action=random.choice(["review", "block"]),
                                  amount=random.choice([10.0, 20.0])))  # fmt: skip
            alerted.append(name)
        elif kind < 0.7:
            verdict: Any = random.choice(["fraud", "fraud", "genuine", "unclear"])
            events.append(said(at, tx, verdict, block_ring=random.random() < 0.3, **more))
        else:
            what: Any = random.choice(["claim", "release", "contacted", "verified", "verified", "unblock"])
            meant = random.choice(["", *members, "card-z"]) if what != "claim" else ""
            events.append(act(at, tx, what, about=meant, **more))
        if random.random() < 0.05:
            events.append(events[-1])
    return events


def told(case: Case) -> tuple[Any, ...]:
    return (
        [t.transaction_id for t in case.transactions], case.status, case.follows, case.claimed_by,
        case.claimed_until_ms, case.looked_by, case.looked_ms,
        {c.card_id: c.blocked_until_ms for c in case.cards if c.blocked_until_ms}, case.ring_blocked_until_ms,
        {c.card_id: c.verified_until_ms for c in case.cards if c.verified_until_ms},
        [(h.what, h.by, h.at_ms) for h in case.history],
    )  # fmt: skip


def as_told(case: oracle.Told, ids: dict[str, str]) -> tuple[Any, ...]:
    return (
        [a.transaction_id for a in case.alerts], case.status, ids[case.follows] if case.follows else None,
        *(case.claim or (None, None)), *(case.looked or (None, None)), case.blocked, case.ring_blocked,
        case.stood_by, case.history,
    )  # fmt: skip


def test_random_rings_are_what_going_through_their_events_gives() -> None:
    random = Random(31)
    rules = msgspec.structs.replace(ACTING, most_ring_alerts=4, open_for_ms=4 * DAY, kept_ms=6 * DAY)
    lives = {f"device:r{n}": some_life(random, f"device:r{n}", random.randrange(3, 14)) for n in range(LIVES)}
    target = TestDriver(CaseBook(rules))
    target.send_batch([(key, at, what) for life in lives.values() for key, at, what in map(event, life)])
    end = START_MS + 40 * DAY
    target.advance_watermark(end)
    found: dict[str, dict[str, Case]] = {}
    for case in cases(target).values():
        found.setdefault(case.subject, {})[case.case_id] = case
    lists: dict[str, list[tuple[Any, ...]]] = {}
    for one in changes(target):
        entry = next(x for x in one if isinstance(x, str) and ":" in x)
        ring = entry.removeprefix("card:").rpartition("-")[0] if entry.startswith("card:") else entry
        lists.setdefault(ring, []).append(one)
    labels: dict[str, list[tuple[str, bool, str]]] = {}
    for label in target.values("labels"):
        ring = label.card_id.rpartition("-")[0]
        labels.setdefault(ring, []).append((label.transaction_id, label.is_fraud, label.source))
    refused, reached = 0, Counter[str]()
    for ring, life in lives.items():
        ids = {e.transaction_id: case_id_of(ring, e.transaction_id) for e in life if isinstance(e, AlertSeen)}
        ordered = sorted(life, key=lambda e: event(e)[1])
        wanted = oracle.cases_of(ring, ordered, rules, ids, end, is_ring=True)
        refused += wanted.refused
        assert {ids[first]: as_told(case, ids) for first, case in wanted.cases.items()} == {
            case_id: told(case) for case_id, case in found.get(ring, {}).items()
        }, ring
        assert lists.get(ring, []) == wanted.control, ring
        assert labels.get(ring, []) == wanted.labels, ring
        reached["corrected"] += any(source == "correction" for _, _, source in wanted.labels)
        reached["kept blocked"] += any(c[:3] == ("propose", "put", "blocked") for c in wanted.control)
        for told_case in wanted.cases.values():
            reached["followed"] += told_case.follows is not None
            reached["stood by in a fraud"] += told_case.status == "fraud" and bool(told_case.stood_by)
            reached["device blocked"] += told_case.ring_blocked is not None
            reached["full"] += len(told_case.alerts) == rules.most_ring_alerts
    assert len(target.values("dead_letters")) == refused
    assert len(reached) == 6
    assert min(reached.values()) > LIVES // 100, reached


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rings_and_cards_do_not_depend_on_order_cuts_and_restarts(seed: int) -> None:
    random = Random(seed)
    lives = [some_life(random, f"device:r{n}", 14) for n in range(4)]
    lives.append([alert(n * HOUR, f"own-{n}", card="device:r1-a") for n in range(6)])
    events = [event(e) for life in lives for e in life]
    invariant(CaseBook(ACTING), events, bound_ms=3 * DAY, upsert_by=UPSERT, seed=seed)


def test_nothing_is_kept_of_a_ring_once_all_is_over() -> None:
    random = Random(7)
    events = [event(e) for n in range(5) for e in some_life(random, f"device:r{n}", 14)]
    assert leaks(CaseBook(ACTING), events, bound_ms=60 * DAY) == []


def test_a_ring_is_ranked_in_the_queue_by_all_its_cards() -> None:
    chain = MemoryChain(processes(CaseBook(ACTING), ReviewQueue(1), CaseTopics()))
    events: list[tuple[str, int, Any, str]] = [("card-1", START_MS, alert(0, "x", amount=200.0), "alerts")]
    for n, tx in enumerate("abc"):
        events.append((RING, START_MS + n, of_ring(n, tx, f"card-{tx}", amount=1.0), "alerts"))
    emissions = chain.run_batch(events) + chain.advance_watermark(START_MS + HOUR)
    places = {
        row["case_id"]: row["place"]
        for row in (msgspec.json.decode(e.payload) for e in emissions if e.output == "main")
    }
    assert places == {case_id_of("card-1", "x"): "waiting", case_id_of(RING, "a"): "queued"}
