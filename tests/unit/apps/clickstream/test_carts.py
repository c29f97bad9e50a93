"""A cart by itself."""

from __future__ import annotations

from apps.clickstream.carts import Cart
from apps.clickstream.messages import CartChange
from tests.unit.apps.clickstream.app_cases import HOUR, MINUTE, START


def test_what_happens_to_a_cart_after_its_purchase_never_leaves_it() -> None:
    """A browser that still shows the cart puts something in; nothing follows."""
    cart = Cart()
    for at, stage, cents in ((0, "cart", 500), (MINUTE, "bought", 0), (2 * MINUTE, "cart", 100)):
        cart.take(CartChange("c1", START + at, f"e{at}", "v1", "v:v1", stage, cents))
    assert cart.left(START + HOUR, 30 * MINUTE) == []
    assert cart.steps == []
