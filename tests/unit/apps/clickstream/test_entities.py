"""Carts that are left, counting in shards and boards, persons and their orders."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from apps.clickstream.acts import Act, shard_of
from apps.clickstream.counters import SPANS
from apps.clickstream.entities import Entities, EntityRules
from apps.clickstream.reactions import Reactions
from millrace.host.memory_chain import MemoryChain
from millrace.testing import TestDriver
from millrace.testing.properties import invariant
from tests.unit.apps.clickstream.app_cases import DAY, HOUR, MINUTE, START, Run, act

T = 30 * MINUTE


def driver(bound: int = 0) -> TestDriver:
    return TestDriver(Entities(EntityRules(cart_timeout_ms=T)), out_of_orderness_ms=bound)


def send(target: TestDriver, *acts: Act) -> None:
    target.send_batch([(a.key, a.at_ms, a) for a in acts])


def cart(at: int, stage: str = "cart", cents: int = 0, **fields: Any) -> Act:
    given = {"visitor": "v1", "person": "v:v1", "cause": f"e{at}", **fields}
    return act("c:cart", "cart", at, stage=stage, cents=cents, **given)


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
    send(target, act("c:other", "cart", 80 * MINUTE, stage="cart", cents=5))  # the watermark is at 20 min
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
    acts = [cart(at, "bought" if at == bought else "cart", 0 if at == bought else 100) for at in steps]
    target = driver(bound=7 * HOUR)
    shuffled = list(acts)
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
    (told,) = [a for a in target.values() if a.kind == "abandoned"]
    assert (told.key, told.cents, told.subject) == ("p:v:v1", 500, "cart")


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
    assert [(a.key, a.at_ms - START) for a in target.values() if a.kind == "abandoned"] == [
        ("p:u:u1", 80 * MINUTE)
    ]


# -- boards ------------------------------------------------------------------------------------------


def view(at: int, item: str, *, sold: int = 0, cents: int = 0) -> Act:
    stage, quantity = ("sold", sold) if sold else ("view", 1)
    return act(shard_of(item), "count", at, subject=item, category=f"c{item[-1]}", stage=stage,
               quantity=quantity, cents=cents, cause=f"{item}{at}")  # fmt: skip


def boards(acts: list[Act], *, batch: int = 50, bound: int = 0) -> Run:
    chain = MemoryChain(Entities(), ("key", Reactions()), out_of_orderness_ms=bound)
    found: list[Any] = []
    for start in range(0, len(acts), batch):
        found += chain.run_batch([(a.key, a.at_ms, a) for a in acts[start : start + batch]])
    found += chain.drain()
    return Run(found, chain.is_empty())


def expected_boards(acts: list[Act]) -> dict[tuple[str, int], list[tuple[str, int]]]:
    """Every window counted by itself, from all events: another way to the same boards."""
    found: dict[tuple[str, int], list[tuple[str, int]]] = {}
    last = max(a.at_ms for a in acts)
    for span, (length, every) in SPANS.items():
        step = every * MINUTE
        for end in range(START + step, last + length * MINUTE + step + 1, step):
            inside = [a for a in acts if end - length * MINUTE <= a.at_ms < end]
            for stage, board in (("view", "views"), ("sold", "sold")):
                counts = Counter[str]()
                for a in inside:
                    if a.stage == stage:
                        counts[a.subject] += a.quantity
                ranked = sorted(counts.items(), key=lambda e: (-e[1], e[0]))[:10]
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


def shop(seed: int, number: int = 150) -> list[Act]:
    draw = random.Random(seed)
    acts = []
    for _ in range(number):
        at, item = draw.randrange(100) * MINUTE + draw.randrange(3) * 59_999, f"item-{draw.randrange(25)}"
        acts.append(view(at, item, sold=draw.randrange(3), cents=100))
    return acts


@pytest.mark.parametrize("seed", [1, 2])
def test_the_ten_best_of_every_window_are_those_of_a_look_at_all_events(seed: int) -> None:
    acts = sorted(shop(seed), key=lambda a: a.at_ms)
    assert found_boards(boards(acts)) == expected_boards(acts)


def test_boards_are_the_same_in_any_order_within_the_bound() -> None:
    acts = shop(3)
    in_order = found_boards(boards(sorted(acts, key=lambda a: a.at_ms)))
    assert found_boards(boards(acts, batch=7, bound=3 * HOUR)) == in_order


def test_a_late_event_corrects_the_boards_that_are_told() -> None:
    acts = sorted(shop(4), key=lambda a: a.at_ms)
    late = acts.pop(60)
    target = [*acts, late]
    gap = max(a.at_ms for a in acts) - late.at_ms
    assert MINUTE < gap < HOUR
    found, expected = found_boards(boards(target)), expected_boards(target)
    assert {k: v for k, v in found.items() if found[k] != expected.get(k)} == {}
    assert found == expected


def test_of_equals_the_lesser_name_is_first() -> None:
    run = boards([view(0, "item-b2"), view(1, "item-a1"), view(2, "item-c3")])
    assert [item for item, _ in found_boards(run)["views/5m", START + 5 * MINUTE]] == [
        "item-a1", "item-b2", "item-c3"]  # fmt: skip


def test_categories_and_revenue_are_added_up_over_the_shards() -> None:
    acts = [view(n, f"item-{n}{n % 3}", sold=2, cents=100) for n in range(30)]
    run = boards(acts)
    rows = run.table("boards", "board", "window_end_ms", "rank")
    hour = {r["item"]: r["value"] for r in rows
            if r["board"] == "revenue/1h" and r["window_end_ms"] == START + HOUR}  # fmt: skip
    assert hour == {"c0": 1000, "c1": 1000, "c2": 1000}


def test_nothing_is_kept_of_counts_two_days_later() -> None:
    target = driver()
    send(target, *shop(5))
    target.advance_watermark(START + 2 * DAY)
    assert target.is_empty()


# -- persons -----------------------------------------------------------------------------------------


def purchase(at: int, order: str = "o1", **fields: Any) -> Act:
    given = {"visitor": "v1", "person": "u:u1", "subject": order, "cents": 1000, "cause": f"p{at}", **fields}
    return act("p:u:u1", "purchase", at, **given)


def link(at: int, visitor: str, first: tuple[int, str], last: tuple[int, str]) -> Act:
    return act("p:u:u1", "link", at, visitor=visitor, person="u:u1",
               first_ms=START + first[0], first=first[1], last_ms=START + last[0], last=last[1])  # fmt: skip


def attributed(target: TestDriver) -> list[tuple[str, str, str]]:
    return [(a.key, a.first, a.last) for a in target.values() if a.kind == "attributed"]


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
    assert attributed(target) == [("o:o1", "social", "cpc")]


def test_a_purchase_without_a_touch_is_direct() -> None:
    chain = MemoryChain(Entities(), ("key", Reactions()))
    found = chain.run_batch([("p:u:u1", START, purchase(0))]) + chain.drain()
    (row,) = Run(found, True).rows("attributions")
    assert (row["first_touch"], row["last_touch"], row["net_cents"]) == ("direct", "direct", 1000)


@pytest.mark.parametrize("refund_first", [True, False])
def test_refunds_are_taken_off_once_each_whatever_comes_first(refund_first: bool) -> None:
    refunds = [act("o:o1", "refund", 50, subject=f"r{n}", cents=300, cause=f"r{n}") for n in (1, 2, 2)]
    acts = [*refunds, purchase(10)] if refund_first else [purchase(10), *refunds]
    chain = MemoryChain(Entities(), ("key", Reactions()), out_of_orderness_ms=DAY)
    found: list[Any] = []
    for one in acts:
        found += chain.run_batch([(one.key, one.at_ms, one)])
    row = Run(found + chain.drain(), True).table("attributions", "order_id")[0]
    assert (row["amount_cents"], row["refunded_cents"], row["net_cents"]) == (1000, 600, 400)


def test_a_profile_counts_what_is_done_and_goes_with_an_erasure() -> None:
    target = driver()
    link_act = link(0, "phone", (0, "mail"), (0, "mail"))
    views = [act("p:u:u1", "view", n, subject=f"i{n % 12}", category="shoes", cents=100 * n, visitor="phone",
                 person="u:u1") for n in range(1, 21)]  # fmt: skip
    send(target, link_act, *views, purchase(25, stage="cart-1", visitor="phone"))
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
    send(target, act("p:u:u1", "erase", 40, subject="r1", cause="r1"))
    assert target.state("p:u:u1") is None
    assert [(f.subject, f.request_id) for f in target.values("forget")] == [
        ("phone", "r1"),
        ("c:cart-1", "r1"),
    ]
    assert target.values("profiles")[-1].deleted
    assert target.values()[-1].kind == "erase"


def test_a_profile_written_at_a_purchase_has_nothing_of_what_came_after_it() -> None:
    target = driver()
    views = [act("p:u:u1", "view", at, subject=f"i{at}", visitor="v1", person="u:u1") for at in (1, MINUTE)]
    send(target, views[0], purchase(25), views[1])
    row = target.values("profiles")[-1]
    assert (row.orders, row.last_items, row.seen_ms) == (1, ["i1"], START + 25)


def test_of_a_browser_without_consent_nothing_is_kept_after_its_purchase() -> None:
    target = driver()
    bought = msgspec.structs.replace(purchase(0), key="p:v:v1", person="v:v1")
    send(target, bought)
    target.advance_watermark(START + 1)
    assert target.is_empty()
    assert target.values("profiles") == []


def test_what_comes_out_hangs_on_the_acts_alone() -> None:
    draw = random.Random(2)
    acts = [cart(draw.randrange(4 * HOUR), cents=100, cause=f"c{n}") for n in range(12)] + shop(6, 20)
    acts += [purchase(draw.randrange(HOUR), f"o{n}") for n in range(4)]
    events = [(a.key, a.at_ms, a) for a in acts]
    invariant(Entities(), events, bound_ms=5 * HOUR, seed=2, upsert_by={"profiles": ["person"]},
              ignore=["revision", "written_ms"])  # fmt: skip


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
