"""From the cart to the order: removals, the steps of the checkout, purchases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millrace_apps.clickstream.contracts.events import CheckoutStep
from millrace_apps.generators.clickstream import truths
from millrace_apps.generators.clickstream.carts import Cart
from millrace_apps.generators.clickstream.orders import Order, order_of
from millrace_apps.generators.clickstream.trail import SHOP, Trail
from millrace_apps.generators.clickstream.visitors import Device, Person

#: A step is done by the conversion to the power of this: by 55, 44 and 37 of 100 carts if 30 are bought.
STEPS: Final[tuple[tuple[CheckoutStep, float], ...]] = (
    ("address", 0.5),
    ("delivery", 0.685),
    ("payment", 0.82),
)
#: Share of the lines in a cart that are taken out again.
REMOVED: Final = 0.08


def steps_done(conversion: float, uniform: float) -> tuple[int, bool]:
    """Return how many steps of the checkout one cart goes through, and whether it is bought.

    Args:
        conversion: Share of carts that are bought, 0 to 1.
        uniform: A random number in [0, 1).

    >>> steps_done(0.3, 0.29), steps_done(0.3, 0.4), steps_done(0.3, 0.9)
    ((3, True), (2, False), (0, False))
    """
    return sum(uniform < conversion**power for _, power in STEPS), uniform < conversion


def remove_some(trail: Trail, cart: Cart, draw: Callable[[], float]) -> None:
    """Take some lines out of the cart again."""
    for line in list(cart.lines):
        if draw() < REMOVED:
            item, quantity = line
            trail.wait(2_000 + int(draw() * 8_000))
            cart.lines.remove(line)
            place = trail.click(
                "remove_from_cart",
                "cart",
                f"{SHOP}/cart",
                item=item,
                quantity=quantity,
                cart_id=cart.cart_id,
            )
            cart.note(trail.at_ms, "cart", place)


def do_step(trail: Trail, cart: Cart, step: CheckoutStep) -> None:
    """Do one step of the checkout."""
    place = trail.click("checkout", "checkout", f"{SHOP}/checkout/{step}", cart_id=cart.cart_id, step=step)
    cart.note(trail.at_ms, step, place)


def buy(trail: Trail, cart: Cart, order_id: str, currency: str | None, *, person: Person | None) -> Order:
    """Buy what is in the cart; returns the order.

    Args:
        trail: The visit.
        cart: The cart.
        order_id: Identity of the order.
        currency: In what it is paid; None: EUR.
        person: Who buys, if it is somebody with an account.
    """
    order = order_of(order_id, cart.lines, currency)
    place = trail.click(
        "purchase",
        "checkout",
        f"{SHOP}/checkout/done",
        cart_id=cart.cart_id,
        order_id=order_id,
        amount=order.cents / 100,
        lines=order.lines,
        currency=currency,
        tax=sum(order.taxes) / 100,
        shipping=order.shipping / 100,
    )
    cart.note(trail.at_ms, "bought", place)
    trail.mark(place, truths.attribution(order_id, order.eur_cents, _linked(trail.device, person)))
    trail.mark(place, order.truth())
    return order


def _linked(device: Device, person: Person | None) -> list[Device]:
    """Return the devices that are known to be of one person with this one."""
    if person is None or not (device.linked or device.user_id == person.user_id):
        return [device]
    # A shared tablet gets direct visits only: it has no touches that could be missing here.
    return [own for own in person.devices if own.linked]
