"""The review queue: the cases with most to be saved, as many as the day has looks left."""

from __future__ import annotations

from random import Random

import pytest

from millrace.host.memory_chain import MemoryChain
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from millrace_apps.fraud.cases.book import CaseBook
from millrace_apps.fraud.cases.events import Case, QueueDay, QueueEntry, Status
from millrace_apps.fraud.cases.live import LiveCases, ranked
from millrace_apps.fraud.cases.queue import ReviewQueue
from millrace_apps.fraud.cases.rules import CaseRules
from tests.cases import case_count
from tests.unit.apps.fraud.case_book_cases import DAY, HOUR, MINUTE, RULES, START_MS, alert, said

QUEUE = "cards"


def case(
    at: int, name: str, priority: float, *, status: Status = "open", revision: int = 1
) -> tuple[str, int, Case]:
    made = Case(
        name, f"card-{name}", None, QUEUE, status, START_MS, START_MS + at, 1, 1.0, 1.0, priority, [], [],
        None, None, "", revision,
    )  # fmt: skip
    return QUEUE, START_MS + at, made


def driver(*events: tuple[str, int, Case], capacity: int = 2, most_waiting: int = 5_000) -> TestDriver:
    target = TestDriver(ReviewQueue(capacity, most_waiting=most_waiting))
    for event in events:
        send(target, event)
    return target


def settle(target: TestDriver, at: int) -> TestDriver:
    target.advance_watermark(START_MS + at)
    return target


def places(target: TestDriver) -> dict[str, str]:
    entries: dict[str, QueueEntry] = {}
    for entry in target.values():
        before = entries.get(entry.case_id)
        assert before is None or entry.revision == before.revision + 1
        entries[entry.case_id] = entry
    return {name: entry.place for name, entry in entries.items()}


def send(target: TestDriver, event: tuple[str, int, Case]) -> None:
    key, at, what = event
    target.send(key, what, at=at)


def days(target: TestDriver) -> list[QueueDay]:
    return target.values("days")


def test_the_cases_with_the_highest_priority_are_queued_and_the_others_wait() -> None:
    target = settle(driver(case(0, "a", 10), case(1, "b", 30), case(2, "c", 20)), 2)
    assert places(target) == {"a": "waiting", "b": "queued", "c": "queued"}


def test_a_case_that_grows_takes_the_place_of_another() -> None:
    events = [case(0, "a", 10), case(1, "b", 30), case(2, "c", 20), case(3, "a", 25, revision=2)]
    assert places(settle(driver(*events), 3)) == {"a": "queued", "b": "queued", "c": "waiting"}


def test_a_decision_takes_one_of_the_days_looks() -> None:
    """Capacity 2: one decided leaves one look, so the best of the others stays and the next waits."""
    events = [
        case(0, "a", 10),
        case(1, "b", 30),
        case(2, "c", 20),
        case(3, "b", 30, status="fraud", revision=2),
    ]
    assert places(settle(driver(*events), 3)) == {"a": "waiting", "b": "done", "c": "queued"}


def test_midnight_brings_new_looks_and_the_days_figures() -> None:
    events = [
        case(0, "a", 10), case(1, "b", 30), case(2, "c", 20),
        case(3, "b", 30, status="fraud", revision=2), case(4, "c", 20, status="genuine", revision=2),
    ]  # fmt: skip
    target = settle(driver(*events), 4)
    assert places(target)["a"] == "waiting"
    settle(target, DAY)
    assert places(target)["a"] == "queued"
    assert days(target) == [QueueDay(QUEUE, START_MS, 2, 3, 2, 1, 0, 0, 1)]


def test_an_expired_case_leaves_and_takes_no_look() -> None:
    events = [
        case(0, "a", 10),
        case(1, "b", 30),
        case(2, "c", 20),
        case(3, "b", 30, status="expired", revision=2),
    ]
    assert places(settle(driver(*events), 3)) == {"a": "queued", "b": "gone", "c": "queued"}


def test_an_older_revision_changes_nothing_and_opens_nothing_again() -> None:
    target = settle(driver(case(0, "a", 30), case(1, "a", 50, revision=3)), 1)
    send(target, case(2, "a", 40, revision=2))
    assert [e.priority for e in settle(target, 2).values()][-1] == 50
    send(target, case(3, "a", 50, status="fraud", revision=4))
    send(target, case(4, "a", 50, revision=3))
    assert places(settle(target, 5)) == {"a": "done"}


def test_too_many_waiting_cases_put_the_least_one_out_and_count_it() -> None:
    events = [case(n, f"c{n}", float(n)) for n in range(5)]
    target = settle(driver(*events, most_waiting=3), 5)
    assert places(target) == {"c0": "gone", "c1": "gone", "c2": "waiting", "c3": "queued", "c4": "queued"}
    settle(target, DAY)
    assert (days(target)[0].put_out, days(target)[0].left) == (2, 3)


def test_a_case_that_was_put_out_can_still_be_decided() -> None:
    events = [case(n, f"c{n}", float(n)) for n in range(3)]
    target = settle(driver(*events, most_waiting=2), 3)
    send(target, case(4, "c0", 0.0, status="fraud", revision=2))
    assert places(settle(target, 5))["c0"] == "done"


def test_an_empty_queue_keeps_nothing_once_verdicts_cannot_be_replaced() -> None:
    target = settle(driver(case(0, "a", 10), case(1, "a", 10, status="fraud", revision=2)), 2)
    assert not settle(target, 31 * DAY - 1).is_empty()
    assert settle(target, 31 * DAY).is_empty()


def test_a_verdict_replaced_after_an_empty_midnight_is_no_second_decision() -> None:
    """The queue had forgotten the case, and counted the new verdict as decided on its day."""
    target = settle(driver(case(0, "a", 10), case(1, "a", 10, status="fraud", revision=2)), DAY)
    send(target, case(2 * DAY, "a", 10, status="genuine", revision=3))
    settle(target, 3 * DAY)
    assert [(d.day_ms - START_MS, d.opened, d.decided, d.confirmed) for d in days(target)] == [
        (0, 1, 1, 1),
        (2 * DAY, 0, 0, 0),
    ]
    assert places(target) == {"a": "done"}
    # An older revision opens it no more than on the day itself.
    send(target, case(4 * DAY, "a", 10, revision=1))
    assert places(settle(target, 5 * DAY)) == {"a": "done"}
    # Each day on which something happened puts the forgetting off.
    assert not settle(target, 34 * DAY).is_empty()
    assert settle(target, 35 * DAY).is_empty()


@pytest.mark.parametrize("seed", range(case_count(200)))
def test_each_case_is_decided_once_however_often_its_verdict_is_replaced(seed: int) -> None:
    random = Random(seed)
    events, first_ends = [], 0
    for n in range(random.randrange(1, 6)):
        at = random.randrange(3 * DAY)
        events.append(case(at, f"c{n}", 10.0 * n))
        statuses: list[Status] = random.choice(
            [["fraud"], ["fraud", "genuine"], ["genuine", "fraud", "fraud"]]
        )
        for revision, status in enumerate(statuses, 2):
            at += random.randrange(1, 6 * DAY)
            events.append(case(at, f"c{n}", 10.0 * n, status=status, revision=revision))
        first_ends += 1
    events.sort(key=lambda e: (e[1], e[2].case_id))
    target = driver(*events)
    settle(target, 90 * DAY)
    assert sum(d.decided for d in days(target)) == first_ends
    assert sum(d.opened for d in days(target)) == first_ends
    assert target.is_empty()


def random_days(seed: int, cases: int = 40) -> list[tuple[str, int, Case]]:
    random = Random(seed)
    found = []
    for n in range(cases):
        at, priority, revision = random.randrange(3 * DAY), float(random.randrange(1_000)), 1
        found.append(case(at, f"c{n:02d}", priority, revision=revision))
        for status in random.choice(
            [("open", "open", "fraud"), ("open", "genuine"), ("expired",), ("fraud",)]
        ):
            at += random.randrange(1, 10 * HOUR)
            priority += random.randrange(0, 200)
            revision += 1
            found.append(case(at, f"c{n:02d}", priority, status=status, revision=revision))  # type: ignore[arg-type]
    taken = {(at, what.case_id): (key, at, what) for key, at, what in found}
    return sorted(taken.values(), key=lambda e: (e[1], e[2].case_id))


def places_by_looking_at_everything(
    events: list[tuple[str, int, Case]], capacity: int, until: int
) -> dict[str, str]:
    """The places at a time, from the last revision of every case up to then."""
    last: dict[str, Case] = {}
    decided_on: dict[str, int] = {}
    for _, at, what in events:
        if at <= until and what.revision > (last[what.case_id].revision if what.case_id in last else 0):
            last[what.case_id] = what
            if what.status in ("fraud", "genuine"):
                decided_on[what.case_id] = at // DAY
    left = max(0, capacity - sum(day == until // DAY for day in decided_on.values()))
    still_open = sorted(
        (c for c in last.values() if c.status == "open"), key=lambda c: (-c.priority, c.opened_ms, c.case_id)
    )
    found = {c.case_id: "queued" if n < left else "waiting" for n, c in enumerate(still_open)}
    closed = {
        c.case_id: "gone" if c.status == "expired" else "done" for c in last.values() if c.status != "open"
    }
    return found | closed


@pytest.mark.parametrize("seed", range(6))
def test_places_at_any_time_are_what_a_look_at_everything_gives(seed: int) -> None:
    events = random_days(seed)
    random = Random(seed)
    for until in sorted(random.randrange(4 * DAY) for _ in range(5)):
        known = [e for e in events if e[1] <= START_MS + until]
        target = settle(driver(*known, capacity=7), until)
        assert places(target) == places_by_looking_at_everything(events, 7, START_MS + until)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_queue_does_not_depend_on_order_cuts_and_restarts(seed: int) -> None:
    upsert = {"main": ("case_id",)}
    invariant(ReviewQueue(5), random_days(seed), bound_ms=DAY, runs=8, upsert_by=upsert, seed=seed)


def test_nothing_is_kept_once_every_case_is_closed() -> None:
    events = random_days(7)
    closed = [case(10 * DAY, f"c{n:02d}", 1.0, status="expired", revision=99) for n in range(40)]
    assert leaks(ReviewQueue(5), [*events, *closed], bound_ms=DAY) == []


def test_a_chain_of_book_and_queue_reviews_the_days_best_cases() -> None:
    """Over ten days with capacity 3: the queue's precision is that of the best three cards of each day."""
    random = Random(5)
    chain = MemoryChain(CaseBook(RULES), ("queue", ReviewQueue(3)))
    live = LiveCases(RULES, capacity=3)
    for day in range(10):
        cards = random.sample(range(30), 6)
        alerts = [
            alert(
                day * DAY + n * MINUTE,
                f"t-{day}-{n}",
                card=f"card-{card}",
                score=random.randrange(50, 100) / 100,
            )
            for n, card in enumerate(cards)
        ]
        chain.run_batch([(a.card_id, a.event_time_ms, a, "alerts") for a in alerts])
        live.add_alerts(alerts)
        live.settle()
        best = live.ranked()[:3]
        assert [r.rank for r in best] == [1, 2, 3]
        waiting = [r.case.priority for r in live.ranked() if r.place == "waiting"]
        assert min(r.case.priority for r in best) >= max(waiting, default=0.0)
        live.add_dispositions(
            [said(day * DAY + HOUR + n, r.case.transactions[0].transaction_id, "genuine", card=r.case.card_id)
             for n, r in enumerate(best)]
        )  # fmt: skip
        live.settle()
        assert not [r for r in live.ranked() if r.place == "queued"]  # the day's looks are used up
    assert sum(r.place == "done" for r in live.ranked()) == 30
    assert len(live.labels) >= 30
    chain.drain()
    assert chain.is_empty()


def test_cases_in_memory_do_not_depend_on_how_they_are_handed_over() -> None:
    random = Random(9)
    alerts = [alert(n * HOUR, f"t-{n}", card=f"card-{random.randrange(5)}") for n in range(60)]
    whole, bits = LiveCases(RULES), LiveCases(RULES)
    whole.add_alerts(alerts)
    whole.settle()
    for one in alerts:
        bits.add_alerts([one])
        bits.settle()
    assert whole.ranked() == bits.ranked()
    assert whole.newest_ms == bits.newest_ms == START_MS + 59 * HOUR


def test_ranked_takes_cases_without_an_entry_by_their_status() -> None:
    found = {n: case(0, n, 1.0, status=s)[2] for n, s in (("a", "open"), ("b", "expired"), ("c", "fraud"))}  # type: ignore[arg-type]
    assert [(r.case.case_id, r.place) for r in ranked(found, {})] == [
        ("a", "waiting"), ("c", "done"), ("b", "gone"),
    ]  # fmt: skip


def test_rules_of_the_case_work_have_defaults_that_fit_together() -> None:
    assert CaseRules().followed_ms <= CaseRules().kept_ms
