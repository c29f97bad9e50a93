"""Carts that are left, counting in shards and boards, persons and their orders."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from millrace.testing import TestDriver
from millrace.testing.properties import invariant
from millrace_apps.clickstream.contracts.messages import (
    Absorb,
    Activity,
    CartChange,
    ErasePerson,
    ItemCount,
    Link,
    OrderRefunded,
    Purchase,
    Shopping,
    VisitCount,
    shard_of,
)
from millrace_apps.clickstream.processes.counters import SPANS
from millrace_apps.clickstream.processes.visitor_told import search_of
from millrace_apps.clickstream.topology import entities
from tests.unit.apps.clickstream.app_cases import (
    DAY,
    HOUR,
    MINUTE,
    START,
    Run,
    as_entities_take,
    as_told,
    told_chain,
)

T = 30 * MINUTE


def driver(bound: int = 0) -> TestDriver:
    return TestDriver(entities(T), out_of_orderness_ms=bound)


def send(target: TestDriver, *told: Any) -> None:
    target.send_batch(as_entities_take(told))


def cart(at: int, stage: str = "cart", cents: int = 0, **fields: Any) -> CartChange:
    given: dict[str, Any] = {
        "cart_id": "cart",
        "visitor": "v1",
        "person": "v:v1",
        "cause": f"e{at}",
        **fields,
    }
    return CartChange(at_ms=START + at, stage=stage, cents=cents, **given)


def left(target: TestDriver) -> list[tuple[int, str, int]]:
    return [(a.since_ms - START, a.stage, a.value_cents) for a in target.values("abandonments")]


# -- carts -------------------------------------------------------------------------------------------


def test_a_cart_idle_for_longer_than_the_timeout_is_left_once_per_spell() -> None:
    target = driver()
    send(target, cart(0, cents=500), cart(10 * MINUTE, cents=300))
    target.advance_watermark(START + 40 * MINUTE - 1)
    assert left(target) == []
    target.advance_watermark(START + 40 * MINUTE)
    send(target, cart(HOUR, cents=-300), cart(61 * MINUTE, "address"))
    target.advance_watermark(START + 3 * HOUR)
    assert left(target) == [(10 * MINUTE, "cart", 800), (61 * MINUTE, "address", 500)]
    assert [a.time for a in target.values("abandonments")] == [1, 2]
    assert [a.noticed_ms - a.since_ms for a in target.values("abandonments")] == [T, T]


@pytest.mark.parametrize(("pause", "spells"), [(T - 1, 0), (T, 0), (T + 1, 1)])
def test_a_pause_of_exactly_the_timeout_is_none(pause: int, spells: int) -> None:
    target = driver(bound=DAY)
    send(target, cart(0, cents=500), cart(pause, "bought"))
    target.drain()
    assert len(left(target)) == spells


def test_a_purchase_cancels_also_one_that_comes_late_but_before_the_watermark() -> None:
    target = driver(bound=HOUR)
    send(target, cart(0, cents=500))
    send(target, cart(80 * MINUTE, cents=5, cart_id="other"))  # the watermark is at 20 min
    send(target, cart(25 * MINUTE, "bought"))
    target.drain()
    assert left(target) == [(80 * MINUTE, "cart", 5)]


def test_an_empty_cart_is_not_left() -> None:
    target = driver()
    send(target, cart(0, cents=500), cart(1, cents=-500))
    target.drain()
    assert left(target) == []


def test_nothing_is_said_of_a_cart_after_its_purchase() -> None:
    target = driver()
    send(target, cart(0, cents=500), cart(MINUTE, "bought"))
    target.advance_watermark(START + DAY)
    assert left(target) == []
    assert target.is_empty()


def test_a_left_cart_is_forgotten_after_eight_days() -> None:
    target = driver()
    send(target, cart(0, cents=500))
    target.advance_watermark(START + 9 * DAY)
    assert len(left(target)) == 1
    assert target.is_empty()


@pytest.mark.parametrize("seed", range(5))
def test_carts_are_judged_as_a_look_at_all_steps_does_in_any_order(seed: int) -> None:
    draw = random.Random(seed)
    steps = sorted(draw.sample(range(0, 6 * HOUR, MINUTE), 12))
    bought = steps[-1] if seed % 2 else None
    changes = [cart(at, "bought" if at == bought else "cart", 0 if at == bought else 100) for at in steps]
    target = driver(bound=7 * HOUR)
    shuffled = list(changes)
    draw.shuffle(shuffled)
    for one in shuffled:
        send(target, one)
        if draw.random() < 0.3:
            target.restart()
    target.drain()
    expected = []
    for n, at in enumerate(steps):
        after = steps[n + 1] if n + 1 < len(steps) else None
        if at != bought and (after is None or after - at > T):
            expected.append((at, "cart", 100 * (n + 1)))
    assert sorted(left(target)) == expected


def test_a_left_cart_is_told_to_its_person_where_that_is_allowed() -> None:
    target = driver()
    send(target, cart(0, cents=500, marketing=True))
    target.drain()
    (told,) = target.values("carts")
    assert told == Shopping(
        "v:v1", "abandoned", START + T, "e0", "v1", "cart", stage="cart", cents=500, since_ms=START
    )


def test_a_left_cart_is_of_whom_it_was_then_whatever_has_come_since() -> None:
    """The watermark may be far behind: what a cart knows is then of later than the end of its timeout.

    ==== =========== ============ ==================== ============
    cart nobody 0:00 left at 0:30 u1 logs in, adds 0:50 left at 1:20
    ==== =========== ============ ==================== ============
    """
    target = driver()
    send(target, cart(0, cents=500), cart(50 * MINUTE, cents=1, person="u:u1", visitor="v2", marketing=True))
    target.advance_watermark(START + 80 * MINUTE)
    found = [(a.visitor_id, a.user_id) for a in target.values("abandonments")]
    assert found == [("v1", None), ("v2", "u1")]
    assert [(t.person, t.at_ms - START) for t in target.values("carts")] == [("u:u1", 80 * MINUTE)]


# -- boards ------------------------------------------------------------------------------------------


def view(at: int, item: str, *, sold: int = 0, cents: int = 0) -> ItemCount:
    what: Any = "sold" if sold else "view"
    return ItemCount(shard_of(item), START + at, f"{item}{at}", item, f"c{item[-1]}", what, sold or 1, cents)


def boards(counts: list[Any], *, batch: int = 50, bound: int = 0) -> Run:
    chain = told_chain(bound_ms=bound)
    found: list[Any] = []
    for start in range(0, len(counts), batch):
        found += chain.run_batch(as_told(counts[start : start + batch]))
    found += chain.drain()
    return Run(found, chain.is_empty())


def expected_boards(counts: list[ItemCount]) -> dict[tuple[str, int], list[tuple[str, int]]]:
    """Every window counted by itself, from all events: another way to the same boards."""
    found: dict[tuple[str, int], list[tuple[str, int]]] = {}
    last = max(c.at_ms for c in counts)
    for span, (length, every) in SPANS.items():
        step = every * MINUTE
        for end in range(START + step, last + length * MINUTE + step + 1, step):
            inside = [c for c in counts if end - length * MINUTE <= c.at_ms < end]
            for what, board in (("view", "views"), ("sold", "sold")):
                sums = Counter[str]()
                for one in inside:
                    if one.what == what:
                        sums[one.item] += one.quantity
                ranked = sorted(sums.items(), key=lambda e: (-e[1], e[0]))[:10]
                if ranked:
                    found[f"{board}/{span}", end] = ranked
    return found


def found_boards(run: Run) -> dict[tuple[str, int], list[tuple[str, int]]]:
    found: dict[tuple[str, int], list[tuple[str, int]]] = {}
    rows = run.table("boards", "board", "window_end_ms", "rank")
    for row in sorted(rows, key=lambda r: r["rank"]):
        if row["board"].startswith(("views/", "sold/")):
            found.setdefault((row["board"], row["window_end_ms"]), []).append((row["item"], row["value"]))
    return found


def shop(seed: int, number: int = 150) -> list[ItemCount]:
    draw = random.Random(seed)
    counts = []
    for _ in range(number):
        at, item = draw.randrange(100) * MINUTE + draw.randrange(3) * 59_999, f"item-{draw.randrange(25)}"
        counts.append(view(at, item, sold=draw.randrange(3), cents=100))
    return counts


@pytest.mark.parametrize("seed", [1, 2])
def test_the_ten_best_of_every_window_are_those_of_a_look_at_all_events(seed: int) -> None:
    counts = sorted(shop(seed), key=lambda a: a.at_ms)
    assert found_boards(boards(counts)) == expected_boards(counts)


def test_boards_are_the_same_in_any_order_within_the_bound() -> None:
    counts = shop(3)
    in_order = found_boards(boards(sorted(counts, key=lambda a: a.at_ms)))
    assert found_boards(boards(counts, batch=7, bound=3 * HOUR)) == in_order


def test_a_late_event_corrects_the_boards_that_are_told() -> None:
    counts = sorted(shop(4), key=lambda a: a.at_ms)
    late = counts.pop(60)
    target = [*counts, late]
    gap = max(a.at_ms for a in counts) - late.at_ms
    assert MINUTE < gap < HOUR
    found, expected = found_boards(boards(target)), expected_boards(target)
    assert {k: v for k, v in found.items() if found[k] != expected.get(k)} == {}
    assert found == expected


def test_of_equals_the_lesser_name_is_first() -> None:
    run = boards([view(0, "item-b2"), view(1, "item-a1"), view(2, "item-c3")])
    assert [item for item, _ in found_boards(run)["views/5m", START + 5 * MINUTE]] == [
        "item-a1", "item-b2", "item-c3"]  # fmt: skip


def test_categories_and_revenue_are_added_up_over_the_shards() -> None:
    counts = [view(n, f"item-{n}{n % 3}", sold=2, cents=100) for n in range(30)]
    run = boards(counts)
    rows = run.table("boards", "board", "window_end_ms", "rank")
    hour = {r["item"]: r["value"] for r in rows
            if r["board"] == "revenue/1h" and r["window_end_ms"] == START + HOUR}  # fmt: skip
    assert hour == {"c0": 1000, "c1": 1000, "c2": 1000}


@pytest.mark.parametrize("seed", range(8))
def test_what_is_searched_for_is_counted_by_the_hour_but_not_what_few_have_searched_for(seed: int) -> None:
    """In any order within the bound, against a count of all searches of each hour."""
    rnd = random.Random(seed)
    terms = [f"term {n}" for n in range(rnd.choice((3, 40)))]
    found, visitors = [], rnd.choice((4, 200))
    for n in range(300):
        at, term = rnd.randrange(4 * HOUR), terms[min(rnd.randrange(len(terms)), rnd.randrange(len(terms)))]
        found.append(search_of(shard_of(term), START + at, f"e{n}", term, f"v{rnd.randrange(visitors)}"))
    found.sort(key=lambda one: one.at_ms + rnd.uniform(0, HOUR / 2))
    rows = boards(found, batch=rnd.choice((3, 50)), bound=HOUR).table(
        "boards", "board", "window_end_ms", "rank"
    )
    told = {}
    for row in sorted(rows, key=lambda r: r["rank"]):
        assert row["board"] == "searches/1h"  # and nothing else is counted by it
        told.setdefault(row["window_end_ms"], []).append((row["item"], row["value"]))
    wanted = {}
    for end in range(START, START + 6 * HOUR, 5 * MINUTE):
        inside = [one for one in found if end - HOUR <= one.at_ms < end]
        counts, browsers = (
            Counter(one.item for one in inside),
            Counter(t for t, _ in {(o.item, o.by) for o in inside}),
        )
        told_of = [(t, n) for t, n in counts.items() if browsers[t] >= 3]
        best = sorted(told_of, key=lambda pair: (-pair[1], pair[0]))
        if best:
            wanted[end] = best[:10]
    assert told == wanted


def test_a_search_that_comes_late_corrects_no_board_but_its_own() -> None:
    shard = shard_of("lamp")
    views = [view(minute * MINUTE, "lamp") for minute in (1, 2, 3, 40)]
    searches = [
        msgspec.structs.replace(search_of(shard, START + 2 * MINUTE, f"s{n}", "lamp", f"v{n}"), shard=shard)
        for n in range(4)  # what three have searched for is told
    ]
    told = boards([*views, *searches], batch=1).rows("boards")
    assert {row["board"] for row in told if row["revision"]} == {"searches/1h"}
    assert {row["board"] for row in told if not row["revision"]} >= {"views/5m", "categories/5m"}
    late = boards([*views, view(2 * MINUTE, "lamp")], batch=1).rows("boards")
    assert "views/5m" in {row["board"] for row in late if row["revision"]}  # what is seen late corrects it


def test_c5_visits_of_a_source_are_added_up_over_the_shards_in_every_board_of_sources() -> None:
    """200 visits by one source: they are told by the shards of their browsers, most of which have some."""
    visits = [
        VisitCount(
            shard_of(f"v{n}"), START + n * 1_000, "mail", n % 2 == 0, n % 4 == 0, int(n % 4 == 0), 3, 500
        )
        for n in range(200)
    ]
    assert len({v.shard for v in visits}) == 16
    rows = boards(visits).table("boards", "board", "window_end_ms", "rank")
    assert {r["board"]: r["value"] for r in rows if r["item"] == "mail"} == {
        "sources.visits/1h": 200,
        "sources.engaged/1h": 100,
        "sources.converted/1h": 50,
        "sources.orders/1h": 50,
        "sources.views/1h": 600,
        "sources.revenue/1h": 100_000,
    }


def test_nothing_is_kept_of_counts_two_days_later() -> None:
    target = driver()
    send(target, *shop(5))
    target.advance_watermark(START + 2 * DAY)
    assert target.is_empty()


# -- persons -----------------------------------------------------------------------------------------


def purchase(at: int, order: str = "o1", **fields: Any) -> Purchase:
    given: dict[str, Any] = {"person": "u:u1", "cause": f"p{at}", "visitor": "v1", "cents": 1000, **fields}
    return Purchase(at_ms=START + at, order_id=order, **given)


def link(at: int, visitor: str, first: tuple[int, str], last: tuple[int, str]) -> Link:
    return Link("u:u1", START + at, visitor, START + first[0], first[1], START + last[0], last[1])


def come(at: int, visitor: str) -> Absorb:
    return Absorb("u:u1", START + at, visitor, None, [])


def look(at: int, item: str, **fields: Any) -> Activity:
    return Activity("u:u1", "view", START + at, f"{item}{at}", subject=item, **{"visitor": "v1", **fields})


def attributed(target: TestDriver) -> list[tuple[str, str, str]]:
    return [(o.order_id, o.first, o.last) for o in target.values("placed")]


def test_a_purchase_is_attributed_over_all_devices_by_what_was_before_it() -> None:
    target = driver()
    send(
        target,
        link(100, "phone", (5, "mail"), (90, "search")),
        link(200, "laptop", (2, "social"), (150, "cpc")),
        purchase(300),
        link(400, "phone", (5, "mail"), (390, "later")),
    )
    target.drain()
    assert attributed(target) == [("o1", "social", "cpc")]


def test_a_purchase_without_a_touch_is_direct() -> None:
    chain = told_chain()
    found = chain.run_batch(as_told([purchase(0)])) + chain.drain()
    (row,) = Run(found, True).rows("orders")
    assert (row["first_touch"], row["last_touch"], row["net_cents"]) == ("direct", "direct", 1000)


@pytest.mark.parametrize("refund_first", [True, False])
def test_refunds_are_taken_off_once_each_whatever_comes_first(refund_first: bool) -> None:
    refunds = [(OrderRefunded("o1", f"r{n}", 300), START + 50) for n in (1, 2, 2)]
    told = [*refunds, purchase(10)] if refund_first else [purchase(10), *refunds]
    chain = told_chain(bound_ms=DAY)
    found: list[Any] = []
    for one in told:
        found += chain.run_batch(as_told([one]))
    row = Run(found + chain.drain(), True).table("orders", "order_id")[0]
    assert (row["amount_cents"], row["refunded_cents"], row["net_cents"]) == (1000, 600, 400)


def test_a_profile_counts_what_is_done_and_goes_with_an_erasure() -> None:
    target = driver()
    known = link(0, "phone", (0, "mail"), (0, "mail"))
    views = [look(n, f"i{n % 12}", category="shoes", cents=100 * n, visitor="phone") for n in range(1, 21)]
    send(target, known, come(0, "phone"), *views, purchase(25, cart_id="cart-1", visitor="phone"))
    row = target.values("profiles")[-1]
    target.advance_watermark(START + 30)
    row = target.values("profiles")[-1]
    assert (row.person, row.visitors, row.views_1d, row.orders, row.spent_cents) == (
        "u:u1",
        ["phone"],
        20,
        1,
        1000,
    )
    assert row.last_items == [f"i{n % 12}" for n in range(20, 10, -1)]
    assert (row.top_category, row.price_level_cents) == ("shoes", 1050)
    gone = ErasePerson("u:u1", START + 40, "r1")
    send(target, gone)
    assert target.state("u:u1")["persons_person"] is None
    assert [(f.kind, f.subject, f.request_id) for f in target.values("forget")] == [
        ("browser", "phone", "r1"),
        ("cart", "cart-1", "r1"),
    ]
    assert target.values("profiles")[-1].deleted
    assert target.values("persons") == [gone]


def test_of_one_instant_a_browser_is_linked_before_what_was_done_there_counts_and_erased_last() -> None:
    for told in itertools.permutations(
        (link(5, "v1", (0, "mail"), (0, "mail")), come(5, "v1"), look(5, "tea"), purchase(5))
    ):
        target = driver()
        send(target, *told)
        rows = target.values("profiles")
        assert [(row.visitors, row.last_items, row.orders) for row in rows] == [
            (["v1"], ["tea"], 0), (["v1"], ["tea"], 1)]  # fmt: skip
        send(target, ErasePerson("u:u1", START + 9, "r"), look(9, "mug"))
        assert target.state("u:u1")["persons_person"] is None


def test_a_profile_written_at_a_purchase_has_nothing_of_what_came_after_it() -> None:
    target = driver()
    views = [look(at, f"i{at}") for at in (1, MINUTE)]
    send(target, views[0], purchase(25), views[1])
    row = target.values("profiles")[-1]
    assert (row.orders, row.last_items, row.seen_ms) == (1, ["i1"], START + 25)


def test_c8_a_profile_is_written_when_its_person_has_gone_whatever_came_last() -> None:
    for seed in range(60):
        draws = random.Random(seed)
        views = [look(draws.randrange(3 * HOUR), f"i{n}", cents=100) for n in range(draws.randrange(1, 30))]
        target = driver()
        rest: list[Any] = [link(0, "phone", (0, "mail"), (0, "mail")), *views]
        while rest:
            cut = draws.randrange(1, 6)
            send(target, *rest[:cut])
            rest = rest[cut:]
            if draws.random() < 0.2:
                target.restart()
        target.advance_watermark(START + 3 * HOUR + 11 * MINUTE)
        row = target.values("profiles")[-1]
        latest = sorted((view.at_ms, view.subject) for view in views)[-10:]
        assert row.views_1d == len(views), seed
        assert row.last_items == [item for _, item in reversed(latest)], seed
        assert row.seen_ms == latest[-1][0], seed
        rows = len(target.values("profiles"))
        target.advance_watermark(START + DAY)
        assert len(target.values("profiles")) == rows  # and not again


def test_of_a_browser_without_consent_nothing_is_kept_after_its_purchase() -> None:
    target = driver()
    send(target, purchase(0, person="v:v1"))
    target.advance_watermark(START + 1)
    assert target.is_empty()
    assert target.values("profiles") == []


def test_what_comes_out_hangs_on_what_is_told_alone() -> None:
    draw = random.Random(2)
    told: list[Any] = [cart(draw.randrange(4 * HOUR), cents=100, cause=f"c{n}") for n in range(12)] + shop(
        6, 20
    )
    told += [purchase(draw.randrange(HOUR), f"o{n}") for n in range(4)]
    events, by = as_entities_take(told), {"profiles": ["person"]}
    invariant(entities(), events, bound_ms=5 * HOUR, seed=2, upsert_by=by, ignore=["revision", "written_ms"])


def test_an_items_features_are_told_at_every_full_hour() -> None:
    target = driver()
    send(
        target,
        view(0, "item-7"),
        view(70 * MINUTE, "item-7"),
        view(71 * MINUTE, "item-7", sold=2, cents=1000),
    )
    target.advance_watermark(START + 2 * HOUR)
    rows = [r for r in target.values("items") if r.item_id == "item-7"]
    assert [(r.as_of_ms - START, r.views_1h, r.views_24h, r.sold_24h, r.price_cents) for r in rows] == [
        (HOUR, 1, 1, 0, 0),
        (2 * HOUR, 1, 2, 2, 500),
    ]


def test_items_count_what_is_put_into_carts_by_the_hour_as_a_look_at_all_does() -> None:
    for seed in range(40):
        draws = random.Random(seed)

        def one(draws: random.Random = draws) -> ItemCount:
            return view(draws.randrange(30 * 60) * MINUTE + 1, f"item-{draws.randrange(3)}")

        told = [one() for _ in range(draws.randrange(10))]
        adds = [msgspec.structs.replace(one(), what="add") for _ in range(draws.randrange(1, 30))]
        target = driver()
        rest = sorted([*told, *adds], key=lambda one: one.at_ms)
        while rest:
            cut = draws.randrange(1, 6)
            send(target, *rest[:cut])
            rest = rest[cut:]
        target.advance_watermark(START + 60 * HOUR)
        rows = {(r.item_id, r.as_of_ms): r for r in target.values("items")}
        for hour in range(1, 60):
            end = START + hour * HOUR
            for item in ("item-0", "item-1", "item-2"):
                ago = [end - one.at_ms for one in adds if one.item == item and one.at_ms < end]
                seen = [one for one in told if one.item == item and 0 < end - one.at_ms <= 24 * HOUR]
                lately, day = sum(t <= HOUR for t in ago), sum(t <= 24 * HOUR for t in ago)
                row = rows.get((item, end))
                assert (row is None) == (not day and not seen), (seed, item, hour)
                if row is not None:
                    assert (row.adds_1h, row.adds_24h, row.views_24h) == (lately, day, len(seen)), seed
        target.drain()
        assert target.is_empty()


def test_what_comes_late_of_a_person_who_was_erased_brings_nobody_back_and_forgets_its_browser() -> None:
    target = driver()
    send(target, link(1, "v1", (0, "mail"), (0, "mail")), ErasePerson("u:u1", START + 9, "r"))
    rows = len(target.values("profiles"))
    send(target, link(8, "v2", (0, "mail"), (0, "mail")), look(8, "mug"), purchase(8))
    assert len(target.values("profiles")) == rows
    assert target.state("u:u1")["persons_person"] is None
    assert [f.subject for f in target.values("forget")] == ["v1", "v2"]
    assert len(target.values("placed")) == 1  # an order names nobody, and counts
    send(target, look(10, "tea"))
    assert target.state("u:u1")["persons_person"] is not None
