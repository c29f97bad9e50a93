"""What shards count of items in a day, in maps of keyed state: held to plain sums; what was before moves."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from millrace_apps.clickstream.contracts.events import Click, OrderLine
from millrace_apps.clickstream.contracts.messages import ItemCount
from millrace_apps.clickstream.processes.counters import MINUTE_MS, Counted, Shard
from millrace_apps.clickstream.state.browser_state import VisitorRules
from tests.cases import case_count
from tests.unit.apps.clickstream.app_cases import Run, click, keyed, shop_chain


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


def boards_of(events: Sequence[Click], *, by_device: bool) -> dict[tuple[str, int], dict[str, int]]:
    """Board and end of its window → its places."""
    chain = shop_chain(VisitorRules(by_device=by_device, rate_events=1_000), (), bound_ms=10 * 60_000)
    emitted = [one for event in events for one in chain.run_batch(keyed(event))]
    run = Run([*emitted, *chain.drain()], chain.is_empty())
    assert run.empty
    found: dict[tuple[str, int], dict[str, int]] = {}
    for row in run.table("boards", "board", "window_end_ms", "rank"):
        found.setdefault((row["board"], row["window_end_ms"]), {})[row["item"]] = row["value"]
    return found


@pytest.mark.parametrize("seed", range(case_count(6)))
def test_boards_by_device_are_those_of_a_shop_with_that_device_alone(seed: int) -> None:
    draws = random.Random(seed)
    events = devices_seen(draws)
    came = sorted(events, key=lambda e: e.event_time_ms + draws.uniform(0, 10 * 60_000))
    found, plain = boards_of(came, by_device=True), boards_of(came, by_device=False)
    assert {place: rows for place, rows in found.items() if "@" not in place[0]} == plain
    parts = ("views/", "sold/", "categories/", "revenue/", "searches/")
    for kind in ("mobile", "desktop", "tablet"):
        alone = boards_of([e for e in came if e.device == kind], by_device=False)
        own = {
            (board.removesuffix(f"@device: {kind}"), end): rows
            for (board, end), rows in found.items()
            if board.endswith(f"@device: {kind}")
        }
        assert own == {place: rows for place, rows in alone.items() if place[0].startswith(parts)}, seed
        assert own
