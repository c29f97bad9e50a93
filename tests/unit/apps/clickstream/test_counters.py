"""What shards count of items in a day, in maps of keyed state: held to plain sums; what was before moves."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from millrace_apps.clickstream.contracts.events import Click, OrderLine
from millrace_apps.clickstream.contracts.messages import ItemCount
from millrace_apps.clickstream.processes.counters import MINUTE_MS, Counted, Shard
from millrace_apps.clickstream.state.browser_state import VisitorRules
from tests.cases import case_count
from tests.unit.apps.clickstream.app_cases import HOUR, MINUTE, SECOND, START, Run, click, keyed, shop_chain


class Map(dict[str, Any]):
    """A map as keyed state gives one."""

    def put(self, key: str, value: Any) -> None:
        self[key] = value

    def remove(self, key: str) -> None:
        del self[key]

    def items(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]
        return iter(list(super().items()))


def told(item: str, minute: int, pieces: int = 1, cents: int = 0, what: Any = "view") -> ItemCount:
    return ItemCount("s:00", minute * MINUTE_MS, "c", item, f"of {item}", what, pieces, cents)


@pytest.mark.parametrize("seed", range(20))
def test_windows_are_sums_of_what_was_counted_and_nothing_else_stays(seed: int) -> None:
    draws, shard, hours, kinds = random.Random(seed), Shard(), Map(), Map()
    counted, all_ = Counted(shard, hours, kinds, Map()), []
    for _ in range(400):
        one = told(
            f"i{draws.randrange(9)}", draws.randrange(3 * 1440), draws.randint(1, 3), draws.randrange(9)
        )
        counted.count(one)
        all_.append(one)
    for end in (1440, 1500, 2880, 4320):
        wanted: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for one in all_:
            if end - 1440 <= one.at_ms // MINUTE_MS < end:
                wanted[one.item][0] += one.quantity
                wanted[one.item][2] += one.cents
        assert counted.window("24h", end) == wanted
    before = counted.window("24h", 4320)
    counted.forget(4320)
    assert counted.window("24h", 4320) == before
    assert {int(name.partition(":")[0]) for name in hours} == set(shard.hours)
    assert set(kinds) == set(before)
    counted.forget(4320 + 2 * 1440)
    assert (hours, kinds, shard.hours) == ({}, {}, {})


def test_what_a_shard_of_before_has_is_moved_once() -> None:
    shard = Shard(hours={60: {"a": [3, 0, 0]}, 120: {"a": [1, 2, 40]}}, categories={"a": "shoes"})
    hours, kinds = Map(), Map()
    counted = Counted(shard, hours, kinds, Map())
    counted.count(told("a", 130))
    counted = Counted(shard, hours, kinds, Map())
    assert counted.window("24h", 180) == {"a": [5, 2, 40]}
    assert shard.hours == {60: {}, 120: {}}
    assert kinds == {"a": "of a"}
    assert shard.next_end(0) == 120


@pytest.mark.parametrize("seed", range(40))
def test_windows_of_minutes_are_sums_wherever_their_panes_stand(seed: int) -> None:
    """Events come up to an hour late; a shard of before has all panes in one entry."""
    draws, shard, past = random.Random(seed), Shard(), Map()
    hours, kinds, all_ = Map(), Map(), list[ItemCount]()
    begins, now = draws.random() < 0.5, 600
    for _ in range(150):
        counted = Counted(shard, hours, kinds, past)
        for _ in range(draws.randrange(6)):
            late = draws.choice((0, 0, 0, 3, 20, 59))
            one = told(f"i{draws.randrange(200)}", now - late, draws.choice((1, 2, -1)), 5)
            counted.count(one)
            all_.append(one)
        now += draws.choice((1, 1, 2, 9))
        for span, length, every in (("5m", 5, 1), ("1h", 60, 5)):
            for end in {now - now % every, -(-max(600, now - draws.randrange(60)) // every) * every}:
                wanted: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
                for one in all_:
                    if end - length <= one.at_ms // MINUTE_MS < end:
                        wanted[one.item][0] += one.quantity
                        wanted[one.item][2] += one.cents
                assert counted.window(span, end) == wanted, (span, end)
        ends = [e for e in range(now + 1, now + 120) if counted.window("5m", e)]
        ends += [e for e in range(now + 1, now + 120) if e % 5 == 0 and counted.window("1h", e)]
        day = -(-(now + 1) // 60) * 60
        assert shard.next_end(now) == min([*ends, *([day] if shard.hours else [])], default=None)
        counted.forget(now - 60)
        if begins or now > 700:
            counted.set_aside(now)
            assert all(start >= now - 2 for start in shard.minutes)
            assert all(start >= now - 10 for start in shard.fives)
    assert all(len(part) <= 64 for part in past.values())
    counted.forget(now + 2 * 1440)
    assert (past, shard.past_minutes, shard.past_fives) == ({}, {}, {})


# -- boards of each kind of device ----------------------------------------------------------------------


def devices_seen(draws: random.Random) -> list[Click]:
    """Views, searches and orders of browsers of three kinds of devices in three hours."""
    kinds = dict(zip("abcdefgh", itertools.cycle(("mobile", "desktop", "tablet")), strict=False))
    found, at = list[Click](), 0
    for number in range(draws.randrange(20, 60)):
        at += draws.choice((1, 30, 400)) * 1_000
        browser = draws.choice("abcdefgh")
        what = draws.choice(("page_view", "page_view", "search", "purchase"))
        fields: dict[str, Any] = {"device": kinds[browser]}
        if what == "page_view":
            fields |= {"item_id": f"i{draws.randrange(5)}", "category": "toys"}
        if what == "search":
            fields |= {"query": draws.choice(("red", "hat"))}
        if what == "purchase":
            line = OrderLine(f"i{draws.randrange(5)}", "toys", 2.0, draws.randrange(1, 4))
            # Told again: an earlier telling takes back what the later one has counted.
            order = f"o-{browser}-{draws.randrange(3)}"
            fields |= {"order_id": order, "amount": 9.0, "lines": (line,)}
        found.append(click(at, what, browser, id=f"e{number}", **fields))
    return found


BOUND = 10 * MINUTE
Boards = dict[tuple[str, int], dict[str, int]]


def boards_of(batches: Iterable[Sequence[Any]], bound: int = BOUND, **rules: Any) -> Boards:
    """Board and end of its window → its places."""
    chain = shop_chain(VisitorRules(rate_events=1_000, **rules), (), bound_ms=bound)
    emitted = [one for batch in batches for one in chain.run_batch(keyed(*batch))]
    run = Run([*emitted, *chain.drain()], chain.is_empty())
    assert run.empty
    found: Boards = {}
    for row in run.table("boards", "board", "window_end_ms", "rank"):
        found.setdefault((row["board"], row["window_end_ms"]), {})[row["item"]] = row["value"]
    return found


def one_by_one(events: Iterable[Any]) -> list[list[Any]]:
    return [[event] for event in events]


def of_segment(found: Boards, segment: str) -> Boards:
    """The boards of a segment, by the names of those of all; ``""``: those of all."""
    return {
        (name, end): rows
        for (board, end), rows in found.items()
        for name, _, own in [board.partition("@")]
        if own == segment
    }


def ranked(found: Boards) -> Boards:
    """Those that there are of segments, too."""
    parts = ("views/", "sold/", "categories/", "revenue/", "searches/")
    return {place: rows for place, rows in found.items() if place[0].startswith(parts)}


@pytest.mark.parametrize("seed", range(case_count(6)))
def test_boards_by_device_are_those_of_a_shop_with_that_device_alone(seed: int) -> None:
    draws = random.Random(seed)
    events = devices_seen(draws)
    came = sorted(events, key=lambda e: e.event_time_ms + draws.uniform(0, 10 * 60_000))
    found, plain = boards_of(one_by_one(came), by_device=True), boards_of(one_by_one(came))
    assert of_segment(found, "") == plain
    for kind in ("mobile", "desktop", "tablet"):
        alone = boards_of(one_by_one(e for e in came if e.device == kind))
        own = of_segment(found, f"device: {kind}")
        assert own == ranked(alone), seed
        assert own


# -- boards of each channel -----------------------------------------------------------------------------

#: What a landing says → its channel.
LANDINGS: dict[str, dict[str, Any]] = {
    "paid_search": {"click_id": "gclid-1"},
    "email": {"utm_source": "letter", "utm_medium": "email"},
    "organic_search": {"referrer": "https://www.google.com/"},
}


def visits_seen(draws: random.Random) -> list[Click]:
    """Views, searches and orders of visits with and without landings, each at a moment of its own."""
    found, at = list[Click](), 0
    for number in range(draws.randrange(30, 80)):
        at += draws.choice((1, 20, 60)) * SECOND + 1
        browser = draws.choice("abc")
        what = draws.choice(("page_view", "page_view", "page_view", "search", "purchase"))
        fields: dict[str, Any] = {}
        if what == "page_view":
            place = draws.randrange(4)
            fields = {"item_id": f"i{place}", "category": ("toys", "hats")[place % 2]}
            if draws.random() < 0.4:
                fields |= draws.choice([*LANDINGS.values()])
        if what == "search":
            fields = {"query": draws.choice(("red", "hat"))}
        if what == "purchase":
            place = draws.randrange(4)
            line = OrderLine(f"i{place}", ("toys", "hats")[place % 2], 2.0, draws.randrange(1, 4))
            fields = {"order_id": f"o-{browser}-{draws.randrange(3)}", "amount": 9.0, "lines": (line,)}
        found.append(click(at, what, browser, id=f"e{number}", **fields))
        if draws.random() < 0.2:
            at += 40 * MINUTE
    return found


def by_channel(events: Iterable[Click]) -> dict[str, list[Click]]:
    """Channel → what was done in visits that it had brought by then, by a look at all events at once."""
    found: dict[str, list[Click]] = defaultdict(list)
    came, last, told = dict[str, str](), dict[str, int](), set[tuple[str, str]]()
    for event in sorted(events, key=lambda e: e.event_time_ms):
        browser, at = event.visitor_id, event.event_time_ms
        if at - last.get(browser, at) > 30 * MINUTE:
            came.pop(browser, None)
        last[browser] = at
        named = [c for c, said in LANDINGS.items() if all(getattr(event, k) == v for k, v in said.items())]
        if named:
            came.setdefault(browser, named[0])
        if event.event_type == "purchase":  # of an order that is told again the earliest telling counts
            if (browser, str(event.order_id)) in told:
                continue
            told.add((browser, str(event.order_id)))
        found[came.get(browser, "direct")].append(event)
    return found


def cut(draws: random.Random, events: Iterable[Click], bound: int) -> list[list[Click]]:
    """The events in an order that a stream of that bound may have, in batches of any size."""
    came = sorted(events, key=lambda e: e.event_time_ms + draws.uniform(0, bound))
    batches: list[list[Click]] = [[]]
    most = draws.choice((1, 3, 30))
    for event in came:
        if len(batches[-1]) >= draws.randint(1, most):
            batches.append([])
        batches[-1].append(event)
    return batches


@pytest.mark.parametrize("seed", range(3, 3 + case_count(6)))  # in the first landings are read after views
def test_boards_by_channel_are_those_of_a_shop_with_the_visits_of_that_channel_alone(seed: int) -> None:
    draws = random.Random(seed)
    events = visits_seen(draws)
    bound = (BOUND, MINUTE, 0)[seed % 3]
    cuts = cut(draws, events, bound)
    found, plain = boards_of(cuts, bound, by_channel=True), boards_of(cuts, bound)
    assert of_segment(found, "") == plain
    own = by_channel(events)
    assert {board.partition("@")[2] for board, _ in found} <= {"", *(f"channel: {name}" for name in own)}
    for name, done in own.items():
        alone = boards_of(one_by_one(done), 0)
        assert of_segment(found, f"channel: {name}") == ranked(alone), (seed, name)


@pytest.mark.parametrize("seed", range(case_count(6)))
def test_each_click_is_counted_for_one_channel_however_late_it_comes(seed: int) -> None:
    draws = random.Random(seed)
    late = cut(draws, visits_seen(draws), draws.choice((2 * MINUTE, 55 * MINUTE, 3 * HOUR)))
    bound, lateness = draws.choice((0, BOUND)), draws.choice((0, HOUR))
    found = boards_of(late, bound, by_channel=True, session_lateness_ms=lateness)
    added: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for (board, end), rows in found.items():
        name, _, segment = board.partition("@")
        if segment:
            added[name, end].update(rows)
    all_ = {place: rows for place, rows in ranked(of_segment(found, "")).items() if rows}
    browsers = ("searches/",)  # three in a channel are three of all, but not the other way round
    assert {place: dict(rows) for place, rows in added.items() if not place[0].startswith(browsers)} == {
        place: rows for place, rows in all_.items() if not place[0].startswith(browsers)
    }, seed


def buys(at: int, id: str) -> Click:
    """A piece is bought, of an order that several events tell of."""
    return click(at, "purchase", order_id="o", amount=2.0, lines=(OrderLine("i", "toys", 2.0, 1),), id=id)


#: What moves the watermark, in another browser.
SOON, LATER = click(20 * MINUTE, visitor="z"), click(HOUR, visitor="z")


@pytest.mark.parametrize(
    ("events", "bound", "lateness", "channel"),
    [
        # Both are told, the earlier one late, after the later one was counted.
        ([buys(10 * MINUTE, "e2"), SOON, buys(8 * MINUTE, "e1")], 0, HOUR, "email"),
        # The later one waits when an earlier one comes, too late for its session.
        ([buys(55 * MINUTE, "e2"), LATER, buys(5 * MINUTE, "e1")], 10 * MINUTE, 0, "direct"),
        # That one alone.
        ([LATER, buys(5 * MINUTE, "e1")], 10 * MINUTE, 0, "direct"),
    ],
)  # fmt: skip
def test_an_order_that_is_told_late_stands_on_the_boards_of_one_channel(
    events: list[Click], bound: int, lateness: int, channel: str
) -> None:
    landing = click(1, **LANDINGS["email"])
    found = boards_of(
        one_by_one([landing, *events]), bound, by_channel=True, session_lateness_ms=lateness
    )  # fmt: skip
    day = START + 24 * HOUR
    sold = {
        board: rows for (board, end), rows in found.items() if "sold/24h" in board and end == day and rows
    }
    assert sold == {"sold/24h": {"i": 1}, f"sold/24h@channel: {channel}": {"i": 1}}
