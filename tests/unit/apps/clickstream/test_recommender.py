"""Next items while the shop is open: what an index of all visits that have ended would say."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest

from millrace.testing import TestDriver
from millrace.testing.app_contract import AppInMemory
from millrace.testing.properties import invariant
from millrace_apps.clickstream.contracts.messages import SHOP, Looked
from millrace_apps.clickstream.recommend import log as logs
from millrace_apps.clickstream.recommend.clicked import LEARNED, UNLEARNED, arms_of, compared
from millrace_apps.clickstream.recommend.filters import POPULAR
from millrace_apps.clickstream.recommend.index import build
from millrace_apps.clickstream.recommend.log import SEGMENT, SessionLog, index_of, let_in, sessions_of
from millrace_apps.clickstream.recommend.process import Recommender, Recommending
from millrace_apps.clickstream.recommend.records import Recommendation, RecommendationQuality
from millrace_apps.clickstream.recommend.scoring import recommend
from tests.cases import case_count
from tests.unit.apps.clickstream.test_world import ClickstreamWorld

CASES = case_count(40)
MINUTE, HOUR = 60_000, 3_600_000
START = 1_767_600_000_000
GAP = 30 * MINUTE
Event = tuple[str, int, Looked]


def look(at: int, visitor: str, item: str = "", *, bought: Sequence[str] = (), forget: bool = False) -> Event:
    """A click ``at`` ms after the start."""
    cause = f"{visitor}.{at}.{item}"
    event = Looked(SHOP, START + at, cause, visitor, f"v:{visitor}", item, list(bought), forget)
    return SHOP, START + at, event


def made(seed: int, *, visitors: int = 6, items: int = 9, number: int = 60) -> list[Event]:
    """Clicks in order of time, no two at once."""
    rnd = random.Random(seed)
    at, found = 7, []
    for _ in range(number):
        at += rnd.choice((900, 20_000, 3 * MINUTE, 11 * MINUTE, 29 * MINUTE)) + rnd.randrange(500)
        visitor, item = f"b{rnd.randrange(visitors)}", f"i{min(rnd.randrange(items), rnd.randrange(items))}"
        kind = rnd.random()
        if kind < 0.03:
            found.append(look(at, visitor, forget=True))
        elif kind < 0.08:
            found.append(look(at, visitor, bought=[item]))
        else:
            found.append(look(at, visitor, item))
    return found


def driver(**told: object) -> TestDriver:
    return TestDriver(Recommender(Recommending(**told)))  # type: ignore[arg-type]


def send(target: TestDriver, events: Sequence[Event]) -> None:
    for key, at, event in events:
        target.send(key, event, at=at)


def answers(target: TestDriver) -> list[Recommendation]:
    found: list[Recommendation] = target.values()
    return found


# -- against an index that is built anew for every click ----------------------------------------------


class Shop:
    """Walks through the clicks, and has all visits that have ended; an index is built for each click."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.ended: list[list[str]] = []
        self.open: dict[str, tuple[int, list[str], list[str]]] = {}
        self.lists: list[tuple[str, str, list[str]]] = []
        self.judged: defaultdict[tuple[int, str], list[tuple[str, list[str], list[str]]]] = defaultdict(list)
        self.shown: dict[str, tuple[dict[str, list[str]], list[str]]] = {}
        self.minute = 0

    def pass_to(self, at: int) -> None:
        """End visits at each whole minute that has begun."""
        while self.minute <= at:
            over = [(t, v) for v, (t, _, _) in self.open.items() if t + GAP < self.minute]
            for _, visitor in sorted(over):
                self.ended.append(self.open.pop(visitor)[1])
            self.minute += MINUTE

    def take(self, at: int, event: Looked) -> None:
        if not self.minute:
            self.minute = at - at % MINUTE
        self.pass_to(at)
        visit = self.open.get(event.visitor)
        if event.forget:
            self.open.pop(event.visitor, None)
            return
        if visit is not None and at - visit[0] > GAP:
            self.ended.append(visit[1])
            del self.open[event.visitor]
            visit = None
        if not event.item:
            if visit is not None:
                visit[2].extend(event.bought)
            return
        if visit is None:
            visit = (at, [], [])
        elif visit[1]:
            shown, popular = self.shown[event.visitor]
            for surface, items in shown.items():
                self.judged[at // HOUR, surface].append((event.item, items, popular))
        visit = (at, [*visit[1], event.item], visit[2])
        self.open[event.visitor] = visit
        index = build(self.ended)
        best = [str(s.item) for s in recommend(index, (), most=200) if s.item not in visit[2]][: self.most]
        self.shown[event.visitor] = ({}, best)
        for surface in ("resume", "discover"):
            found = recommend(index, visit[1], policy=surface, most=200)  # type: ignore[arg-type]
            items = [str(s.item) for s in found if s.item not in visit[2]][: self.most]
            if items:
                self.lists.append((event.cause, surface, items))
                self.shown[event.visitor][0][surface] = items


@pytest.mark.parametrize("seed", range(CASES))
def test_lists_are_those_of_an_index_of_all_visits_that_had_ended(seed: int) -> None:
    events = made(seed, number=random.Random(seed).randrange(5, 120))
    shop = Shop(most=4)
    target = driver(most=4)
    for key, at, event in events:
        shop.take(at, event)
        target.send(key, event, at=at)
    target.advance_watermark(events[-1][1] + 3 * HOUR)
    found = [(r.cause, r.surface, r.items) for r in answers(target)]
    assert found == shop.lists
    quality: list[RecommendationQuality] = target.values("quality")
    told = {(q.start_ms // HOUR, q.surface): q for q in quality}
    assert told.keys() == shop.judged.keys()
    for key, judged in shop.judged.items():
        ranks = [items.index(item) + 1 if item in items else 0 for item, items, _ in judged]
        row = told[key]
        assert row.queries == len(judged)
        assert row.hit_rate == pytest.approx(sum(map(bool, ranks)) / len(judged))
        assert row.mrr == pytest.approx(sum(1 / r for r in ranks if r) / len(judged))
        assert row.popular_hit_rate == pytest.approx(sum(i in p for i, _, p in judged) / len(judged))


@pytest.mark.parametrize("seed", range(3))
def test_lists_hang_on_no_cut_order_or_restart(seed: int) -> None:
    invariant(Recommender(Recommending(most=3)), made(seed), bound_ms=10 * MINUTE, runs=3)


class TestContract(ClickstreamWorld, AppInMemory):
    """The whole app with next items: whatever the cut, the order and the restarts."""

    overrides = (
        "recommend.on=true", "recommend.control=0.3", "recommend.unlearned=0.3", "recommend.window=30 min",
    )  # fmt: skip

    def test_lists_are_written_and_judged(self) -> None:
        found = {name: rows.total() for name, rows in self.standing.expected().items()}
        assert found["Recommender.main"] > 100
        assert found["Recommender.quality"] >= 4
        assert found["Recommender.clicks"] > 20
        assert found["Recommender.click_through"] >= 4


# -- clicks on lists ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(CASES))
def test_a_click_is_of_the_newest_list_that_has_the_item(seed: int) -> None:
    """Every look is compared with every list of before, one pair after the other."""
    rnd = random.Random(seed)
    events = [e for e in made(seed, visitors=3, items=6, number=rnd.randrange(30, 120)) if not e[2].bought]
    within = rnd.choice((MINUTE, 10 * MINUTE, 40 * MINUTE))
    target = driver(most=3, horizon_ms=within, control=0.3, unlearned=0.3)
    send(target, events)
    target.advance_watermark(events[-1][1] + 3 * HOUR)
    visits: dict[str, int] = {}  # browser → when its visit began, by what was seen last
    last: dict[str, int] = {}
    wanted, clicked = [], set()
    rows = answers(target)
    for _, at, event in events:
        name = event.visitor
        if event.forget:
            visits.pop(name, None)
            continue
        if name not in visits or at - last[name] > GAP:
            visits[name] = at
        last[name] = at
        for surface in ("resume", "discover"):
            own = [r for r in rows if (r.visitor_id, r.surface) == (name, surface)]
            before = [r for r in own if visits[name] <= r.event_time_ms < at][-8:]
            fits = [r for r in before if event.item in r.items and at - r.event_time_ms <= within]
            if fits and (fits[-1].cause, surface) not in clicked:
                clicked.add((fits[-1].cause, surface))
                rank = fits[-1].items.index(event.item) + 1
                wanted.append((event.cause, surface, fits[-1].arm, event.item, rank, fits[-1].cause))
    found = [(c.cause, c.surface, c.arm, c.item, c.rank, c.list_cause) for c in target.values("clicks")]
    assert sorted(found) == sorted(wanted)
    told = {(r.surface, r.arm, r.start_ms): (r.lists, r.clicked) for r in target.values("click_through")}
    counts: Counter[tuple[str, str, int]] = Counter()
    hits: Counter[tuple[str, str, int]] = Counter()
    for row in rows:
        name_ = (row.surface, row.arm, row.event_time_ms - row.event_time_ms % HOUR)
        counts[name_] += 1
        hits[name_] += (row.cause, row.surface) in clicked
    assert told == {name_: (number, hits[name_]) for name_, number in counts.items()}
    for row in target.values("click_through"):
        assert row.rate == row.clicked / row.lists
        assert (row.rank is None) == (row.clicked == 0)


def test_a_click_at_the_end_of_the_time_counts_and_one_after_it_does_not() -> None:
    target = driver(most=2, surfaces=("discover",), horizon_ms=MINUTE)
    send(target, [look(0, "a", "x"), look(1, "a", "y")])
    for n, late in enumerate((0, 1)):
        begin = (n + 2) * HOUR - 1  # its list is the last one of an hour
        send(target, [look(begin, f"b{n}", "x"), look(begin + MINUTE + late, f"b{n}", "y")])
    target.advance_watermark(START + 9 * HOUR)
    assert [(c.visitor_id, c.rank) for c in target.values("clicks")] == [("b0", 1)]
    rows = {(r.start_ms - START) // HOUR: (r.lists, r.clicked) for r in target.values("click_through")}
    assert rows == {1: (1, 1), 2: (1, 0)}  # who has seen both has nothing to discover


def test_what_is_forgotten_has_no_clicks_and_its_lists_still_count() -> None:
    target = driver(most=2, surfaces=("discover",))
    send(target, [look(0, "a", "x"), look(1, "a", "y"), look(HOUR, "b", "x")])
    send(target, [look(HOUR + 1, "b", forget=True), look(HOUR + 2, "b", "y")])
    target.advance_watermark(START + 4 * HOUR)
    assert target.values("clicks") == []
    assert [(r.lists, r.clicked) for r in target.values("click_through")] == [(2, 0)]


def test_all_arms_are_dealt_and_those_of_what_is_popular_as_before() -> None:
    both, one = arms_of(0.2, 0.3), arms_of(0.2, 0.0)
    arms = Counter(both.arm(f"u:{n}") for n in range(4_000))
    assert {name: round(number / 4_000, 1) for name, number in arms.items()} == {
        POPULAR: 0.2, UNLEARNED: 0.3, LEARNED: 0.5,
    }  # fmt: skip
    assert all((one.arm(p) == POPULAR) == (both.arm(p) == POPULAR) for p in map(str, range(500)))


def test_an_arm_with_better_lists_has_more_clicks_a_person() -> None:
    """What the arms are worth is told by the core's experiments, from the rows of the tables."""
    target, rnd = driver(most=1, control=0.5, surfaces=("discover",)), random.Random(3)
    events: list[Event] = []
    for n in range(400):
        # Each item has one that follows it; what is popular is one of twenty.
        item = rnd.randrange(20)
        events += [look(n * 3 * MINUTE + k * 9_000, f"b{n}", f"{'xy'[k]}{item}") for k in (0, 1)]
    send(target, sorted(events, key=lambda e: e[1]))
    target.advance_watermark(START + 40 * HOUR)
    lists = [{"surface": r.surface, "arm": r.arm, "person": r.person, "event_time_ms": r.event_time_ms}
             for r in answers(target)]  # fmt: skip
    clicks = [{"surface": c.surface, "person": c.person, "event_time_ms": c.event_time_ms}
              for c in target.values("clicks")]  # fmt: skip
    found = compared(lists, clicks, arms_of(0.5, 0.0), POPULAR, until_ms=START + 40 * HOUR, matures_ms=HOUR)[
        "discover"
    ]
    (beside,) = [one for one in found.comparisons if one.arm == LEARNED]
    assert found.sample_ratio.ok
    assert beside.low is not None
    assert beside.low > 0.5
    assert found.arms[LEARNED].mean == pytest.approx(
        sum(c.arm == LEARNED for c in target.values("clicks"))
        / len({r.person for r in answers(target) if r.arm == LEARNED})
    )


def test_an_item_that_nobody_has_seen_gets_what_is_popular_and_says_so() -> None:
    target = driver(most=3)
    send(target, [look(n * 1000, f"a{n}", item) for n, item in enumerate("xxyxz")])
    send(target, [look(HOUR, "b", "new")])
    target.advance_watermark(START + HOUR + 1)
    last = answers(target)[-1]
    assert (last.surface, last.items, last.why) == ("discover", ["x", "y", "z"], ["popular"] * 3)
    assert (last.sessions, last.scores) == (5, [0.0, 0.0, 0.0])


def test_before_anybody_has_left_nothing_is_recommended() -> None:
    target = driver()
    send(target, [look(0, "a", "x"), look(1, "b", "y"), look(2, "a", "z")])
    target.advance_watermark(START + 3)
    assert answers(target) == []


def test_what_was_bought_in_a_visit_is_not_recommended_in_it() -> None:
    target = driver(most=3)
    send(target, [look(n * 1000, f"a{n}", item) for n, item in enumerate("xxyxz")])
    send(target, [look(HOUR, "b", "y"), look(HOUR + 1, "b", bought=["x"]), look(HOUR + 2, "b", "y")])
    target.advance_watermark(START + HOUR + 3)
    before, after = answers(target)[-4:-2], answers(target)[-2:]
    assert all("x" in r.items for r in before)
    assert all("x" not in r.items for r in after)


def test_the_control_arm_gets_what_is_popular() -> None:
    target = driver(most=3, control=1.0)
    events = [look(n * 1000, f"a{n}", item) for n, item in enumerate("xxyxz")]
    send(target, [*events, look(HOUR, "b", "y"), look(HOUR + 5, "b", "z")])
    target.advance_watermark(START + 3 * HOUR)
    rows = answers(target)
    assert {r.arm for r in rows} == {POPULAR}
    assert rows[-1].items == ["x"]  # of "discover": neither y nor z
    assert {q.arm for q in target.values("quality")} == {POPULAR}
    assert LEARNED != POPULAR


def test_a_visit_that_is_to_be_forgotten_teaches_nothing() -> None:
    target = driver()
    send(target, [look(0, "a", "x"), look(1, "b", "y"), look(2, "a", forget=True), look(2 * HOUR, "c", "x")])
    target.advance_watermark(START + 2 * HOUR + 1)
    assert [r.items for r in answers(target)] == [["y"], ["y"]]


def test_a_visit_that_is_over_is_let_in_once_whatever_comes_then() -> None:
    target = driver()
    send(target, [look(0, "a", "x"), look(GAP + 1, "a", bought=["y"]), look(2 * HOUR, "b", "z")])
    target.advance_watermark(START + 2 * HOUR + 1)
    assert answers(target)[-1].sessions == 1


def test_late_clicks_are_put_aside_and_late_requests_to_forget_are_heard() -> None:
    target = driver()
    send(target, [look(0, "a", "x"), look(MINUTE, "b", "y")])
    target.advance_watermark(START + 2 * MINUTE)
    send(target, [look(30_000, "c", "z"), look(50_000, "a", forget=True), look(3 * HOUR, "d", "x")])
    target.advance_watermark(START + 3 * HOUR + 1)
    assert [r.items for r in answers(target)] == [["y"], ["y"]]
    assert len(target.values("late")) == 1


def test_a_click_at_the_very_end_of_an_hour_counts_in_the_next_one() -> None:
    shop = driver(surfaces=("discover",))
    send(shop, [look(0, "a", "shoe"), look(1, "a", "sock"), look(45 * MINUTE, "b", "shoe")])
    send(shop, [look(HOUR - 2, "c", "shoe"), look(HOUR - 1, "b", "sock"), look(HOUR, "c", "sock")])
    send(shop, [look(2 * HOUR, "d", "shoe"), look(2 * HOUR + 1, "d", "sock")])
    shop.advance_watermark(START + 4 * HOUR)
    assert {(q.start_ms - START) // HOUR: q.queries for q in shop.values("quality")} == {0: 1, 1: 1, 2: 1}


def test_a_fall_of_the_hit_rate_is_told() -> None:
    """Everybody goes from x to y, hour by hour, until they go elsewhere."""
    target = driver(most=1, surfaces=("discover",))
    events: list[Event] = []
    for hour in range(60):
        for n in range(8):
            at, name = hour * HOUR + n * 5 * MINUTE, f"h{hour}.{n}"
            # Now and then somebody goes elsewhere: a rate that never changes has no spread.
            fits = n > 0 or hour % 3 > 0
            next_ = "y" if fits and hour < 40 else f"elsewhere{hour}.{n}"
            events += [look(at, name, "x"), look(at + 1_000, name, next_)]
    send(target, events)
    target.advance_watermark(START + 62 * HOUR)
    changes = [(q.start_ms - START) // HOUR for q in target.values("quality") if q.change == "down"]
    assert changes
    assert 40 <= changes[0] <= 43


# -- the log and the index at hand --------------------------------------------------------------------


class Kept(dict[int, list[list[str]]]):
    """Segments."""

    def put(self, key: int, value: list[list[str]]) -> None:
        self[key] = value

    def remove(self, key: int) -> None:
        del self[key]


def sessions(seed: int, number: int) -> list[list[str]]:
    rnd = random.Random(seed)
    return [[f"i{rnd.randrange(40)}" for _ in range(rnd.randrange(1, 6))] for _ in range(number)]


@pytest.mark.parametrize("forget", [False, True])
def test_the_index_at_hand_is_that_of_the_log(forget: bool) -> None:
    """Also where it is made anew at any time, as after a restart."""
    log, segments, rnd = SessionLog(), Kept(), random.Random(5)
    all_ = sessions(1, 3 * SEGMENT + 17)
    rest = all_
    while rest:
        part, rest = rest[: (n := rnd.choice((1, 3, 100)))], rest[n:]
        let_in(log, segments, part, m=7, keep=10_000)
        if forget and rnd.random() < 0.5:
            logs._indexes.clear()
    assert list(sessions_of(log, segments)) == all_
    index, anew = index_of(log, segments, 7), build(all_, 7)
    assert index.names == anew.names
    for item in ("i1", "i7", "i33"):
        visit = [item, "i2"]
        assert recommend(index, visit) == recommend(anew, visit)


def test_a_log_is_cut_to_the_newest_and_its_index_with_it() -> None:
    log, segments = SessionLog(), Kept()
    all_ = sessions(2, 9 * SEGMENT)
    for n in range(0, len(all_), 64):
        let_in(log, segments, all_[n : n + 64], m=50, keep=4 * SEGMENT)
        assert log.sessions <= 5 * SEGMENT
        kept = list(sessions_of(log, segments))
        assert kept == all_[: n + 64][-len(kept) :]
        assert len(kept) >= min(n + 64, 4 * SEGMENT)
        assert len(segments) == log.last - log.first
    index = index_of(log, segments, 50)
    anew = build(list(sessions_of(log, segments)), 50)
    assert index.names == anew.names
    assert recommend(index, ["i3"]) == recommend(anew, ["i3"])


def test_two_ways_from_one_log_have_an_index_each() -> None:
    """A batch that is done again with other sessions finds no index of the first time."""
    log, segments = SessionLog(), Kept()
    let_in(log, segments, [["a", "b"]], m=5, keep=1_000)
    again = SessionLog(log.token, log.first, log.last, [list(s) for s in log.open])
    let_in(log, segments, [["a", "c"]], m=5, keep=1_000)
    let_in(again, Kept(), [["a", "d"]], m=5, keep=1_000)
    first, second = index_of(log, segments, 5), index_of(again, Kept(), 5)
    assert Counter(first.names) == Counter("abc")
    assert Counter(second.names) == Counter("abd")
    assert index_of(SessionLog(), Kept(), 5) is not index_of(SessionLog(), Kept(), 5)
