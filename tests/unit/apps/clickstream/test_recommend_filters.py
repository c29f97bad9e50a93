"""What rules keep from lists of next items: by a catalogue and rules that change while the shop is open."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.chaos.hostile import Message
from millrace.checkpoints.committed import CommittedState
from millrace.errors import UserError
from millrace.rules import PublishRule, Rule, SetRuleState
from millrace.testing import TestDriver
from millrace.testing.properties import invariant
from millrace_apps.clickstream.contracts.messages import SHOP, ItemFacts, Looked
from millrace_apps.clickstream.processes.money import Rates
from millrace_apps.clickstream.processes.visitor import visitors
from millrace_apps.clickstream.recommend.filters import BUILT_IN, MOST_TOLD, read_filters
from millrace_apps.clickstream.recommend.index import build
from millrace_apps.clickstream.recommend.process import Recommender, Recommending
from millrace_apps.clickstream.recommend.scoring import recommend
from millrace_apps.clickstream.recommend.serve import Follower
from millrace_apps.clickstream.state.browser_state import VisitorRules
from tests.cases import case_count
from tests.unit.apps.clickstream.app_cases import START as DAY_START
from tests.unit.apps.clickstream.test_recommend_serve import asked, query_of
from tests.unit.apps.clickstream.test_recommender import (
    GAP,
    HOUR,
    MINUTE,
    START,
    Event,
    answers,
    driver,
    look,
    made,
    send,
)

CASES = case_count(60)
CATEGORIES = ("shoes", "socks", None)


def change(
    at: int, item: str, stock: int | None = None, *, category: str | None = None, cents: int | None = None
) -> Event:
    """What is true of an item from ``at`` ms after the start on."""
    cause = f"c.{at}.{item}"
    told = ItemFacts(START + at, cause, category, cents, stock)
    return SHOP, START + at, Looked(SHOP, START + at, cause, "", "", item, told=told)


def with_changes(events: list[Event], rnd: random.Random, *, items: int = 9) -> list[Event]:
    """The clicks with changes of items between them, no two at once."""
    found, last = [], events[-1][1] - START
    for n in range(rnd.randrange(2 * items)):
        at = 2 * rnd.randrange(last) + 1 if n % 2 else rnd.randrange(MINUTE)
        found.append(
            change(at % last, f"i{rnd.randrange(items)}", rnd.choice((0, 0, 3, None)),
                   category=rnd.choice(CATEGORIES), cents=rnd.choice((None, 500, 9_900)))
        )  # fmt: skip
    times = {at for _, at, _ in events}
    kept = {at: event for event in found if (at := event[1]) not in times}
    return sorted([*events, *kept.values()], key=lambda e: e[1])


@dataclass
class Seen:
    """An item at a click, for the other way of saying what a rule says."""

    item: str
    facts: ItemFacts | None
    visit: list[str]
    bought: list[str]
    surface: str
    current: ItemFacts | None

    @property
    def cents(self) -> int | None:
        return None if self.facts is None else self.facts.cents

    @property
    def category(self) -> str | None:
        return None if self.facts is None else self.facts.category


def _dearer(seen: Seen) -> bool:
    now = None if seen.current is None else seen.current.cents
    return seen.cents is not None and now is not None and seen.cents > 3 * now


SAYINGS: dict[str, tuple[str, Callable[[Seen], bool]]] = {
    "bought": ("bought", lambda s: s.item in s.bought),
    "sold-out": ("stock == 0", lambda s: s.facts is not None and s.facts.stock == 0),
    "dear": ("price > 50", lambda s: s.cents is not None and s.cents > 5_000),
    "band": ("price > 3 * current_price", _dearer),
    "only-shoes": (
        "surface == 'discover' and category != 'shoes'",
        lambda s: s.surface == "discover" and s.category not in (None, "shoes"),
    ),
    "unknown": ("category is missing and seen == 0", lambda s: s.category is None and s.item not in s.visit),
    "often": ("seen >= 2 or item == 'i0'", lambda s: s.visit.count(s.item) >= 2 or s.item == "i0"),
    "same": (
        "category == current_category and item != current",
        lambda s: (
            s.category is not None
            and s.current is not None
            and s.category == s.current.category
            and s.item != s.visit[-1]
        ),
    ),
}


@dataclass
class Said:
    """A rule from a moment on."""

    id: str
    version: int
    says: str
    from_ms: int
    shadow: bool


def published(rnd: random.Random, last: int) -> list[Said]:
    """Some rules, one of them perhaps in the place of a built-in one."""
    found = [
        Said(name, 1, name, rnd.choice((0, START + rnd.randrange(last))), rnd.random() < 0.3)
        for name in rnd.sample(sorted(SAYINGS)[1:], rnd.randrange(4))
        if name != "sold-out"
    ]
    if rnd.random() < 0.4:
        found.append(Said("sold-out", 1, "dear", START + rnd.randrange(last), False))
    return found


def tell(target: TestDriver, rules: Sequence[Said]) -> None:
    for said in rules:
        state: Any = "shadow" if said.shadow else "active"
        rule = Rule(said.id, SAYINGS[said.says][0])
        target.broadcast(PublishRule(rule, said.version, "ann", 0, state, said.from_ms))


def in_force(rules: Sequence[Said], at: int) -> list[Said]:
    """The rules of a moment, in the order of their ids."""
    own = {said.id for said in rules}
    built_in = [Said(r.id, 0, r.id, 0, False) for r in BUILT_IN if r.id not in own]
    return sorted([*built_in, *(s for s in rules if s.from_ms <= at)], key=lambda s: s.id)


def expected(events: Sequence[Event], rules: Sequence[Said], most: int) -> list[tuple[str, str, Any, Any]]:
    """Walk through all events, and build an index and look through all changes for every click."""
    ended: list[list[str]] = []
    visits: dict[str, tuple[int, list[str], list[str]]] = {}
    minute, found = 0, []
    for place, (_, at, event) in enumerate(events):
        if event.told is not None:
            continue
        minute = minute or at - at % MINUTE
        while minute <= at:
            over = sorted((t, v) for v, (t, _, _) in visits.items() if t + GAP < minute)
            ended += [visits.pop(v)[1] for _, v in over]
            minute += MINUTE
        visit = visits.get(event.visitor)
        if event.forget:
            visits.pop(event.visitor, None)
            continue
        if visit is not None and at - visit[0] > GAP:
            ended.append(visits.pop(event.visitor)[1])
            visit = None
        if not event.item:
            if visit is not None:
                visit[2].extend(event.bought)
            continue
        _, items, bought = visit or (at, [], [])
        items = [*items, event.item]
        visits[event.visitor] = at, items, bought
        facts: dict[str, ItemFacts] = {}
        for _, _, other in sorted(events[:place], key=lambda e: e[1]):
            if other.told is not None:
                facts[other.item] = other.told
        index = build(ended)
        for surface in ("resume", "discover"):
            kept: list[str] = []
            dropped: list[tuple[str, str, int, bool]] = []
            for one in recommend(index, items, policy=surface, most=1_000):  # type: ignore[arg-type]
                name = str(one.item)
                seen = Seen(name, facts.get(name), items, bought, surface, facts.get(event.item))
                holds = [said for said in in_force(rules, at) if SAYINGS[said.says][1](seen)]
                if len(kept) == most:
                    break
                dropped += [(name, said.id, said.version, said.shadow) for said in holds]
                if all(said.shadow for said in holds):
                    kept.append(name)
            if kept:
                found.append((event.cause, surface, kept, dropped))
    return found


@pytest.mark.parametrize("seed", range(CASES))
def test_lists_are_what_rules_leave_of_them_and_say_what_was_dropped(seed: int) -> None:
    rnd = random.Random(seed)
    events = with_changes(made(seed, number=rnd.randrange(5, 70)), rnd)
    rules, most = published(rnd, events[-1][1] - START), rnd.choice((1, 3, 5))
    target = driver(most=most)
    tell(target, rules)
    send(target, events)
    target.advance_watermark(events[-1][1] + 3 * HOUR)
    rows = [
        (r.cause, r.surface, r.items, [(d.item, d.rule, d.version, d.shadow) for d in r.dropped])
        for r in answers(target)
    ]
    assert rows == expected(events, rules, most)


def test_random_histories_have_lists_with_and_without_what_was_dropped() -> None:
    rows = []
    for seed in range(12):
        rnd = random.Random(seed)
        events = with_changes(made(seed, number=60), rnd)
        rows += expected(events, published(rnd, events[-1][1] - START), 3)
    assert {bool(dropped) for _, _, _, dropped in rows} == {True, False}
    assert {rule for _, _, _, dropped in rows for _, rule, _, _ in dropped} >= {"bought", "sold-out", "dear"}
    assert {shadow for _, _, _, dropped in rows for *_, shadow in dropped} == {True, False}


@pytest.mark.parametrize("seed", range(3))
def test_lists_hang_on_no_cut_order_or_restart_whatever_changes(seed: int) -> None:
    rnd = random.Random(seed)
    events = with_changes(made(seed), rnd)
    invariant(Recommender(Recommending(most=3)), events, bound_ms=10 * MINUTE, runs=3)


POPULAR = [look(n * 1000, f"a{n}", item) for n, item in enumerate("xxyxzyw")]


def test_what_is_sold_out_makes_room_for_the_next_and_comes_back() -> None:
    target = driver(most=2, surfaces=("discover",))
    send(target, [*POPULAR, change(HOUR, "x", 0), look(HOUR + 1, "b", "new")])
    send(target, [change(HOUR + 2, "x", 7), look(HOUR + 3, "c", "new")])
    target.advance_watermark(START + HOUR + 4)
    without, with_ = answers(target)[-2:]
    assert (without.items, [(d.item, d.rule) for d in without.dropped]) == (["y", "z"], [("x", "sold-out")])
    assert (with_.items, with_.dropped) == (["x", "y"], [])


def test_what_was_said_of_an_earlier_moment_changes_nothing_however_late_it_comes() -> None:
    target = driver(most=1, surfaces=("discover",))
    send(target, [*POPULAR, change(HOUR, "x", 0)])
    target.advance_watermark(START + HOUR + 1)
    send(target, [change(MINUTE, "x", 9), change(2 * MINUTE, "y", 0), look(HOUR + 5, "b", "new")])
    target.advance_watermark(START + HOUR + 6)
    last = answers(target)[-1]
    assert last.items == ["z"]  # of x the newer holds; of y nothing else was known
    assert target.values("late") == []


def test_a_built_in_rule_can_be_paused_and_one_be_published_in_its_place() -> None:
    target = driver(most=1, surfaces=("discover",))
    tell(target, [Said("sold-out", 1, "dear", 0, False)])
    send(target, [*POPULAR, change(HOUR, "x", 0), look(HOUR + 1, "b", "new")])
    target.advance_watermark(START + HOUR + 2)
    assert answers(target)[-1].items == ["x"]
    target.broadcast(SetRuleState("sold-out", 1, "paused", "ann", 0))
    send(target, [change(HOUR + 3, "x", cents=6_000), look(HOUR + 4, "c", "new")])
    target.advance_watermark(START + HOUR + 5)
    assert answers(target)[-1].items == ["x"]


def test_a_rule_that_is_none_is_refused_and_the_others_stay() -> None:
    target = driver(most=1, surfaces=("discover",))
    target.broadcast(PublishRule(Rule("bad", "stock = 0"), 1, "ann", 0, "active"))
    send(target, [*POPULAR, change(HOUR, "x", 0), look(HOUR + 1, "b", "new")])
    target.advance_watermark(START + HOUR + 2)
    assert "compare with ==" in target.values("dead_letters")[0]["error"]
    assert answers(target)[-1].items == ["y"]


def test_where_nothing_may_be_shown_there_is_no_list_and_what_is_told_is_bounded() -> None:
    target = driver(most=100, surfaces=("discover",))
    tell(target, [Said("dear", 1, "dear", 0, False)])
    items = [f"i{n}" for n in range(150)]
    send(target, [look(n, f"a{n}", item) for n, item in enumerate(items)])
    send(target, [change(1_000 + n, item, cents=6_000) for n, item in enumerate(items[:-1])])
    send(target, [look(HOUR, "b", "new")])
    target.advance_watermark(START + HOUR + 1)
    only = answers(target)[-1]
    assert (only.items, len(only.dropped)) == (items[-1:], MOST_TOLD)
    send(target, [change(HOUR + 2, items[-1], cents=6_000), look(HOUR + 3, "c", "new")])
    target.advance_watermark(START + HOUR + 4)
    assert answers(target)[-1].visitor_id == "b"


# -- the answers over HTTP ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_answers_leave_out_what_lists_leave_out(seed: int, tmp_path: Path) -> None:
    query, rnd = query_of(tmp_path, most=4), random.Random(seed)
    events = [e for e in with_changes(made(seed, number=120), rnd) if not e[2].bought]
    rule = PublishRule(Rule("dear", "price > 50"), 1, "ann", 0, "active")
    state, follower, compared, dropped = None, Follower(), 0, 0
    last = waits = events[0][2]
    controls = [Message("control", None, msgspec.json.encode(rule), 0)]
    while events:
        part, events = events[: (n := rnd.randrange(1, 9))], events[n:]
        found = query.run(
            [*controls, *(Message("looks", None, msgspec.json.encode(e), 0) for _, _, e in part)]
        )
        controls = []
        told = {(r["visitor_id"], r["surface"]): r for output, r in found if output == "main"}
        state = state or CommittedState(query.writer.checkpoint)
        state.move_to()
        # The newest event waits for its time: what is known is as of the one before it.
        last, waits = (part[-2][2] if n > 1 and len(part) > 1 else waits), part[-1][2]
        for surface in ("resume", "discover"):
            row = told.get((last.visitor, surface))
            if row is not None and last.cause == row["cause"]:
                answer = asked(state, follower, last.visitor, surface=surface, most="4")
                if answer["sessions"] != row["sessions"]:
                    continue  # visits have ended after it
                compared, dropped = compared + 1, dropped + len(row["dropped"])
                assert [one["item"] for one in answer["items"]] == row["items"]
                assert answer["dropped"] == row["dropped"]
    assert compared > 5
    assert dropped > 5


# -- the catalogue's topic, and files of rules --------------------------------------------------------


def test_a_change_of_an_item_is_told_once_in_the_shop_s_currency_and_is_forgotten_by_its_key() -> None:
    from millrace_apps.clickstream.contracts.events import ItemChange

    target = TestDriver(visitors(VisitorRules(recommends=True, rates=Rates("EUR"))))
    target.send("v1", ItemChange("c1", "v1", DAY_START + 5, "shoes", 19.99, "EUR", 3), at=DAY_START + 5)
    target.send("v1", ItemChange("c2", "v1", DAY_START + 6, price=10.0, currency="USD"), at=DAY_START + 6)
    target.send("v1", ItemChange("c2", "v1", DAY_START + 6, price=10.0, currency="USD"), at=DAY_START + 6)
    target.advance_watermark(DAY_START + HOUR)
    target.send("v1", ItemChange("c3", "v1", DAY_START + 7, stock=0), at=DAY_START + 7)  # late
    facts = [look.told for look in target.values("looks")]
    assert facts == [
        ItemFacts(DAY_START + 5, "c1", "shoes", 1_999, 3),
        ItemFacts(DAY_START + 6, "c2", None, None, None),  # nobody says what a dollar is worth
        ItemFacts(DAY_START + 7, "c3", None, None, 0),
    ]
    assert target.values("late") == []
    assert [letter["reason"] for letter in target.values("dead_letters")] == ["duplicate"]
    target.drain()
    assert target.is_empty()


def test_without_next_items_changes_of_items_go_nowhere() -> None:
    from millrace_apps.clickstream.contracts.events import ItemChange

    target = TestDriver(visitors(VisitorRules()))
    target.send("v1", ItemChange("c1", "v1", DAY_START + 5, stock=0), at=DAY_START + 5)
    assert target.emissions == []


def test_a_file_of_rules_is_read_and_what_is_wrong_in_it_is_said(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("- {id: dear, when: price > 50 and surface == 'discover', owner: ann}\n")
    bad.write_text("- {id: dear, when: prise > 50}\n")
    assert [rule.id for rule in read_filters(good)] == ["dear"]
    with pytest.raises(UserError, match="no field 'prise'"):
        read_filters(bad)
