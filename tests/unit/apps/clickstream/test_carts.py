"""A cart by itself."""

from __future__ import annotations

from apps.clickstream.carts import Cart
from tests.unit.apps.clickstream.app_cases import HOUR, MINUTE, START, act


def test_what_happens_to_a_cart_after_its_purchase_never_leaves_it() -> None:
    """A browser that still shows the cart puts something in; nothing follows."""
    cart = Cart()
    for at, stage, cents in ((0, "cart", 500), (MINUTE, "bought", 0), (2 * MINUTE, "cart", 100)):
        cart.take(act("c:c1", "cart", at, stage=stage, cents=cents, cause=f"e{at}"))
    assert cart.left(START + HOUR, 30 * MINUTE) == []
    assert cart.steps == []
