"""Carts: which are left, after how long, how far they had come, and what they are worth."""

from __future__ import annotations

from bisect import insort
from typing import Final

import msgspec

from apps.clickstream.acts import Act

#: A cart is forgotten this long after anything last happened to it: later purchases still find it, ms.
LIFE_MS: Final = 8 * 86_400_000


class Step(msgspec.Struct, array_like=True, frozen=True, order=True, gc=False):
    """Something that happened to a cart.

    Attributes:
        at_ms: When, ms.
        cause: The event.
        stage: ``cart``, a step of the checkout, or ``bought``.
        cents: How much its value changed.
        visitor: The browser in which it happened.
        person: The person that was known by it.
        marketing: Whether something might be offered there.
    """

    at_ms: int
    cause: str
    stage: str
    cents: int
    visitor: str = ""
    person: str = ""
    marketing: bool = False


class Cart(msgspec.Struct, array_like=True, gc=False):
    """A cart, whatever browser it is filled in.

    Attributes:
        steps: What happened to it since it was last judged, in order of time.
        cents: Its value before the first of them.
        judged_ms: Up to which time it has been judged; earlier steps are too late to matter.
        bought_ms: When it was bought; 0: it was not.
        visitor: The browser in which something last happened.
        person: The person that is known by it.
        marketing: Whether something may be offered there.
        last_ms: When that was.
        told: How many times it has been reported as left.
    """

    steps: list[Step] = msgspec.field(default_factory=list)
    cents: int = 0
    judged_ms: int = 0
    bought_ms: int = 0
    visitor: str = ""
    person: str = ""
    marketing: bool = False
    last_ms: int = 0
    told: int = 0

    def take(self, act: Act) -> None:
        """Take down an act; order makes no difference."""
        step = Step(act.at_ms, act.cause, act.stage, act.cents, act.visitor, act.person, act.marketing)
        insort(self.steps, step)
        if act.at_ms >= self.last_ms:
            self.last_ms, self.visitor, self.person = act.at_ms, act.visitor, act.person
            self.marketing = act.marketing
        if act.stage == "bought" and (not self.bought_ms or act.at_ms < self.bought_ms):
            self.bought_ms = act.at_ms

    def left(self, until_ms: int, timeout_ms: int) -> list[tuple[Step, int]]:
        """Return the steps after which it lay idle for longer than a timeout, each once.

        Args:
            until_ms: All that happened up to this time is known, ms.
            timeout_ms: The timeout, ms.

        Returns:
            Each step with the cart's value after it, cents.
        """
        found, settled, cents = [], 0, self.cents
        steps = self.steps
        for place, step in enumerate(steps):
            if step.at_ms + timeout_ms > until_ms:
                break  # what comes after it may still be to come
            cents += step.cents
            after = steps[place + 1].at_ms if place + 1 < len(steps) else None
            idle = after is None or after - step.at_ms > timeout_ms
            bought = self.bought_ms and step.at_ms >= self.bought_ms
            if idle and cents > 0 and not bought and step.stage != "bought":
                found.append((step, cents))
            settled = place + 1
            self.cents = cents
        del steps[:settled]
        return found


class Abandonment(msgspec.Struct, frozen=True, gc=False):
    """A cart that was left: nothing happened to it for longer than the timeout.

    Attributes:
        cart_id: The cart.
        since_ms: When something last happened to it, UTC ms.
        noticed_ms: When the timeout was over.
        stage: How far it had come: ``cart``, ``address``, ``delivery`` or ``payment``.
        value_cents: What was in it.
        visitor_id: The browser in which something last happened.
        user_id: The account, where that is known and allowed.
        time: 1 for the first time that it was left, 2 for the next.
    """

    cart_id: str
    since_ms: int
    noticed_ms: int
    stage: str
    value_cents: int
    visitor_id: str
    user_id: str | None
    time: int
