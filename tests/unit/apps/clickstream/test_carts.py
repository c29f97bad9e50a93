"""A cart's own steps: what is left when its time is over, and what a purchase leaves of it."""

from __future__ import annotations

import random
from collections import Counter

from millrace.testing import TestDriver
from millrace_apps.clickstream.contracts.messages import CartChange
from millrace_apps.clickstream.processes.carts import MOST_ITEMS, Cart, Carts
from tests.unit.apps.clickstream.app_cases import HOUR, MINUTE, START

T = 30 * MINUTE


def change(
    at: int, stage: str, cents: int = 0, order: str = "", item: str = "", pieces: int = 0
) -> CartChange:
    return CartChange(
        "c1", START + at, f"e{at}", "v1", "v:v1", stage, cents, order_id=order, item=item, pieces=pieces
    )


def test_c8_a_purchase_empties_a_cart_and_what_is_put_in_then_is_left_by_itself() -> None:
    """The cart keeps its name.

    ==== ==== ====== ==== =========
    c1   500  bought 100  left: 100
    ==== ==== ====== ==== =========
    """
    cart = Cart()
    for at, stage, cents in ((0, "cart", 500), (MINUTE, "bought", 0), (2 * MINUTE, "cart", 100)):
        cart.take(change(at, stage, cents))
    assert [(step.at_ms - START, cents) for step, cents, *_ in cart.left(START + HOUR, T)] == [
        (2 * MINUTE, 100)
    ]


def test_an_order_that_is_told_again_empties_no_cart() -> None:
    cart = Cart()
    cart.take(change(0, "cart", 500))
    cart.take(change(MINUTE, "bought", order="o1"))
    cart.take(change(2 * MINUTE, "cart", 100))
    cart.take(change(3 * MINUTE, "bought", order="o1"))
    cart.take(change(4 * MINUTE, "cart", 50))
    assert [cents for _, cents, *_ in cart.left(START + HOUR, T)] == [150]


def by_hand(changes: list[CartChange]) -> list[tuple[int, int, list[str]]]:
    """When the cart was left, what it was worth and what was in it, by all that ever happened to it."""
    found, orders, inside, pieces = [], set(), 0, Counter[str]()
    ordered = sorted(changes, key=lambda c: (c.at_ms, c.cause))
    for one, after in zip(ordered, [*ordered[1:], None], strict=True):
        if one.stage != "bought":
            inside += one.cents
            pieces[one.item] = max(0, pieces[one.item] + one.pieces)
        elif one.order_id not in orders:
            orders.add(one.order_id)
            inside, pieces = 0, Counter[str]()
        lonely = after is None or after.at_ms - one.at_ms > T
        if lonely and inside > 0 and one.stage != "bought":
            items = sorted(item for item in pieces if pieces[item] and item)
            found.append((one.at_ms, inside, sorted(items, key=lambda item: -pieces[item])))
    return found


def test_a_cart_that_keeps_its_name_is_left_as_a_look_at_all_its_steps_says_in_any_order_and_cut() -> None:
    for seed in range(400):
        rng = random.Random(seed)
        changes = []
        for at in rng.sample(range(0, 240, 4), rng.randint(3, 14)):
            if rng.random() < 0.3:
                changes.append(change(at * MINUTE, "bought", order=f"o{rng.randrange(3)}"))
            else:
                item, pieces = rng.choice("abc"), rng.choice((1, 1, 2, -1))
                changes.append(change(at * MINUTE, "cart", rng.choice((100, 250, 400)), "", item, pieces))
        target = TestDriver(Carts(T), out_of_orderness_ms=5 * HOUR)
        rest = list(changes)
        rng.shuffle(rest)
        while rest:
            cut = rng.randint(1, 4)
            target.send_batch([("c1", one.at_ms, one) for one in rest[:cut]])
            rest = rest[cut:]
            if rng.random() < 0.3:
                target.restart()
        target.drain()
        rows = sorted((a.since_ms, a.value_cents, a.items) for a in target.values("abandonments"))
        assert rows == by_hand(changes), seed


def test_of_a_cart_with_very_many_items_those_are_known_that_were_changed_last() -> None:
    cart = Cart()
    for n in range(MOST_ITEMS + 5):
        cart.take(change(n, "cart", 100, "", f"i{n:03}", 1))
    cart.take(change(MINUTE, "cart", 100, "", "i007", 1))
    ((_, _, items, _),) = cart.left(START + HOUR, T)
    assert items == ["i007", *(f"i{n:03}" for n in range(5, MOST_ITEMS + 5) if n != 7)]
