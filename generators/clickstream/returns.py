"""Visits that come back to buy what an earlier one left in the cart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from millrace_apps.generators.clickstream.campaigns import DIRECT, Channel, labelled
from millrace_apps.generators.clickstream.carts import Cart, CartStep
from millrace_apps.generators.clickstream.checkout import STEPS
from millrace_apps.generators.clickstream.trail import SESSION_GAP_MS
from millrace_apps.generators.clickstream.visitors import Device, Person
from millrace_apps.generators.engine.randomness import normal
from millrace_apps.generators.engine.simulated import Truth

_MINUTE_MS: Final = 60_000
#: How long after: median and spread of a lognormal law, and the latest.
_MEDIAN_MS, _SPREAD, _LATEST_MS = 240 * _MINUTE_MS, 1.6, 7 * 24 * 60 * _MINUTE_MS
#: On the same browser it must be another session.
_EARLIEST_HERE_MS, _EARLIEST_ELSEWHERE_MS = SESSION_GAP_MS + 5 * _MINUTE_MS, 2 * _MINUTE_MS
_ELSEWHERE_SHARE: Final = 0.4
_REMINDER: Final = labelled("newsletter", "email", "cart-reminder")
_REMINDER_SHARE: Final = 0.35


class Return:
    """A visit that is still to come; its times are fixed, so that the truth about the cart is known now.

    Args:
        number: Number of the visit.
        at_ms: When it begins, ms since the epoch, UTC.
        device: What it is made with.
        person: Who comes, if it is somebody with an account.
        cart: What will be bought.
        how: Channel of the landing.
        pauses: Time before the login (if one is needed), every step of the checkout and the purchase, ms.
    """

    __slots__ = ("at_ms", "cart", "device", "how", "number", "pauses", "person", "truth")

    def __init__(
        self,
        number: int,
        at_ms: int,
        device: Device,
        person: Person | None,
        cart: Cart,
        how: Channel,
        pauses: Sequence[int],
    ) -> None:
        self.number = number
        self.at_ms = at_ms
        self.device = device
        self.person = person
        self.cart = cart
        self.how = how
        self.pauses = tuple(pauses)
        #: What is true about the cart.
        self.truth: Truth | None = None

    @property
    def end_ms(self) -> int:
        """When it buys."""
        return self.at_ms + sum(self.pauses)

    def cart_steps(self) -> list[CartStep]:
        """Return what it will do with the cart."""
        cents, at_ms = self.cart.cents, self.at_ms + self.pauses[0]
        stages = [step for step, _ in STEPS]
        steps = []
        for stage, pause in zip([*stages, "bought"], self.pauses[1:], strict=True):
            at_ms += pause
            steps.append(CartStep(at_ms, stage, cents, self.cart.items))
        return steps


def plan_return(
    number: int,
    left_ms: int,
    cart: Cart,
    device: Device,
    person: Person | None,
    *,
    shared: bool,
    draw: Callable[[], float],
    some_seconds: Callable[[], int],
) -> Return:
    """Return the visit that will buy an abandoned cart.

    Args:
        number: Its number.
        left_ms: When the cart was left, ms since the epoch, UTC.
        cart: The cart.
        device: What it was filled with.
        person: By whom, if it is somebody with an account.
        shared: Whether the device is a household's.
        draw: Random numbers; three are used.
        some_seconds: Pauses between two pages, ms.
    """
    elsewhere, when, reminded = draw(), draw(), draw()
    earliest = _EARLIEST_HERE_MS
    # A cart goes along to another device only if the account is known on this one.
    if person is not None and not shared and device.user_id == person.user_id:
        others = [own for own in person.devices if own is not device]
        if others and elsewhere < _ELSEWHERE_SHARE:
            device = others[int(elsewhere / _ELSEWHERE_SHARE * len(others))]
            earliest = _EARLIEST_ELSEWHERE_MS
    delay = int(_MEDIAN_MS * math.exp(_SPREAD * normal(when)))
    at_ms = left_ms + min(max(delay, earliest), _LATEST_MS)
    how = _REMINDER if reminded < _REMINDER_SHARE and not shared else DIRECT
    pauses = [some_seconds() for _ in range(len(STEPS) + 2)]
    return Return(number, at_ms, device, person, cart, how, pauses)
