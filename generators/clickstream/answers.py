"""Shoppers' reactions to an app's offers: who would buy anyway, who does because of it, and when."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import msgspec

from millrace_apps.generators.clickstream import truths
from millrace_apps.generators.clickstream.campaigns import labelled
from millrace_apps.generators.clickstream.carts import Cart
from millrace_apps.generators.clickstream.checkout import STEPS
from millrace_apps.generators.clickstream.offers import responds
from millrace_apps.generators.clickstream.profile import DOMAIN_NAME, ClickstreamProfile, Names
from millrace_apps.generators.clickstream.returns import Return
from millrace_apps.generators.clickstream.trail import SESSION_GAP_MS
from millrace_apps.generators.clickstream.visitors import Device, Person
from millrace_apps.generators.engine.randomness import digest, normal
from millrace_apps.generators.engine.simulated import Truth

_MINUTE_MS: Final = 60_000
#: A cart that was left longer ago is forgotten by everybody, and an offer's time is over.
_KEPT_MS: Final = 7 * 24 * 60 * _MINUTE_MS
#: Who buys because of an offer comes so long after it, at least and at most; spread of the lognormal law.
_SOONEST_MS, _LATEST_MS, _SPREAD = 2 * _MINUTE_MS, 6 * 24 * 60 * _MINUTE_MS, 0.6
#: After a visit the next one of the same browser is another session.
_APART_MS: Final = SESSION_GAP_MS + 5 * _MINUTE_MS
_OFFER: Final = labelled("offer", "onsite", "cart-offer")
#: Numbers of visits that answer: beyond those of all others, below 2^32.
_FIRST_NUMBER: Final = 1 << 31


class OfferMade(msgspec.Struct, frozen=True):
    """What an app says of an offer; further fields are no concern of shoppers.

    Attributes:
        offer_id: Its identity.
        rule: The rule.
        offer: What is offered.
        arm: ``offer``, or an arm in which nothing is shown.
        visitor_id: The browser to show it in.
        at_ms: When it was due, UTC ms.
        cart_id: The cart that was left, if it is about one.
    """

    offer_id: str
    rule: str
    offer: str
    arm: str
    visitor_id: str
    at_ms: int
    cart_id: str | None = None


@dataclass(slots=True)
class Left:
    """A cart that its visit did not buy.

    Attributes:
        cart: The cart.
        device: Where it was filled.
        person: By whom, if it is somebody with an account.
        life: Which life of this person; erased since then: nobody is there to answer.
        shared: Whether the device is a household's.
        at_ms: When the visit ended, UTC ms.
        returns: The visit that will buy it without an offer, if any.
    """

    cart: Cart
    device: Device
    person: Person | None
    life: int
    shared: bool
    at_ms: int
    returns: Return | None


class Answers:
    """Remembers the carts that were left, and what offers make of them.

    Args:
        profile: Gives ``seed``, ``recovery``, ``offer_uplift`` and ``offer_answer_min``.
        names: Makes identifiers.
    """

    def __init__(self, profile: ClickstreamProfile, names: Names) -> None:
        self._profile, self._names = profile, names
        self._left: OrderedDict[str, Left] = OrderedDict()
        self._numbers = _FIRST_NUMBER
        #: An offer that comes twice is one.
        self._seen: OrderedDict[str, int] = OrderedDict()

    def leave(self, left: Left) -> None:
        """Remember a cart."""
        self._left[left.cart.cart_id] = left

    def forget(self, now_ms: int) -> None:
        """Forget the carts and offers whose time is over."""
        left, seen = self._left, self._seen
        while left and next(iter(left.values())).at_ms < now_ms - _KEPT_MS:
            left.popitem(last=False)
        while seen and next(iter(seen.values())) < now_ms - _KEPT_MS:
            seen.popitem(last=False)

    def take(self, offer: OfferMade, now_ms: int) -> tuple[Truth, Left | None, Return | None] | None:
        """Return what is true of an offer, and the visit that it brings about, with its cart.

        Whether an offer would make a shopper buy is fixed by the seed, the browser and the offer. It adds
        something where the cart would not be bought without it; where nothing is shown nothing happens.

        Args:
            offer: The offer.
            now_ms: Now, UTC ms.

        Returns:
            ``None`` for an offer that has come before.
        """
        if offer.offer_id in self._seen:
            return None
        self._seen[offer.offer_id] = max(now_ms, offer.at_ms)
        profile, visitor = self._profile, offer.visitor_id
        left = None if offer.cart_id is None else self._left.get(offer.cart_id)
        open_, unaided, aided = False, None, None
        if left is not None:
            unaided = responds(profile, visitor, None)
            aided = responds(profile, visitor, offer.offer)
            gone = left.person is not None and left.person.life != left.life
            open_ = left.returns is None and not gone
        adds = open_ and bool(aided) and not unaided
        returns = None
        if adds and left is not None and offer.arm == "offer":
            returns = left.returns = self._return(left, offer, now_ms)
        truth = truths.offer_made(
            offer.offer_id, offer.visitor_id,
            {
                "rule": offer.rule, "offer": offer.offer, "arm": offer.arm, "cart_id": offer.cart_id,
                "due_ms": offer.at_ms, "shown": offer.arm == "offer", "unaided": unaided, "aided": aided,
                "adds": adds, "bought_ms": None if returns is None else returns.end_ms,
                "order_id": None if returns is None else self._names.of("order", returns.number),
            },
        )  # fmt: skip
        return truth, left, returns

    def _return(self, left: Left, offer: OfferMade, now_ms: int) -> Return:
        uniform = _Draws(self._profile.seed, offer.offer_id)
        delay = int(self._profile.offer_answer_min * _MINUTE_MS * math.exp(_SPREAD * normal(uniform.draw())))
        at_ms = max(now_ms, offer.at_ms) + min(max(delay, _SOONEST_MS), _LATEST_MS)
        at_ms = max(at_ms, left.at_ms + _APART_MS)
        if left.person is not None:
            at_ms = max(at_ms, left.person.household.free_at_ms + 5 * _MINUTE_MS)
        self._numbers += 1
        pauses = [3_000 + int(uniform.draw() * 57_000) for _ in range(len(STEPS) + 2)]
        returns = Return(self._numbers, at_ms, left.device, left.person, left.cart, _OFFER, pauses)
        if left.person is not None:
            left.person.household.free_at_ms = returns.end_ms + SESSION_GAP_MS
        return returns


class _Draws:
    """Uniform numbers that hang on the offer alone, not on the order in which offers come."""

    def __init__(self, seed: int, offer_id: str) -> None:
        self._bits = int(digest(DOMAIN_NAME, seed, "answer", offer_id), 16)

    def draw(self) -> float:
        """Return the next; there are eight of 16 bits."""
        self._bits, low = divmod(self._bits, 1 << 16)
        return (low + 0.5) / 65536
