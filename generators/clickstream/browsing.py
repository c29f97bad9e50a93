"""Browsing behaviour: number of items, pace, order, and what goes into the cart."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Final

from millrace_apps.generators.clickstream import truths
from millrace_apps.generators.clickstream.campaigns import Channel, other_campaign
from millrace_apps.generators.clickstream.carts import Cart
from millrace_apps.generators.clickstream.catalogue import Catalogue, Item
from millrace_apps.generators.clickstream.profile import DOMAIN_NAME, ClickstreamProfile
from millrace_apps.generators.clickstream.trail import SESSION_GAP_MS, SHOP, Trail
from millrace_apps.generators.engine.randomness import NORMAL, substream

#: Views of items that put the item into the cart: 69,332 of 2,664,312 in the RetailRocket data set.
CART_PER_VIEW: Final = 69_332 / 2_664_312
#: Some visits mean to buy, most do not; the mean of the factors is 1.
_KEEN_SHARE, _KEEN_FACTOR, _IDLE_FACTOR = 0.2, 3.0, 0.5
#: Visits with 1, 2, 3, ... items looked at. From two on as in the RecSys 2015 clicks, which leave single
#: ones out; of the visits that go on after twelve, each goes on after the next with the same probability.
_ONE_ITEM_SHARE: Final = 0.45
_LENGTHS: Final = (0.436, 0.204, 0.121, 0.069, 0.047, 0.032, 0.022, 0.017, 0.012, 0.008, 0.006)
_LENGTH_BOUNDS: Final = tuple(accumulate((_ONE_ITEM_SHARE, *((1 - _ONE_ITEM_SHARE) * p for p in _LENGTHS))))
_LONGER: Final = 0.82
_MAX_LENGTH: Final = 60
#: Pauses between items: lognormal with the quartiles of the RecSys 2015 clicks (25, 56 and 129 s).
_PAUSE_MEDIAN_S, _PAUSE_SPREAD = 56.0, 1.24
_PAUSES_MS: Final = tuple(
    int(1000 * min(max(_PAUSE_MEDIAN_S * math.exp(_PAUSE_SPREAD * z), 1.0), 1_500.0)) for z in NORMAL
)
#: Pauses around the one that ends a session, ms: it must be longer than 30 minutes.
BOUNDARY_PAUSES_MS: Final = (
    SESSION_GAP_MS - 1_000,
    SESSION_GAP_MS - 1,
    SESSION_GAP_MS,
    SESSION_GAP_MS + 1,
    SESSION_GAP_MS + 1_000,
)
#: The next item: one seen before, one that goes with this one, or a popular one of the category or the shop.
_AGAIN, _RELATED, _IN_CATEGORY = 0.16, 0.68, 0.90
_VIA_LIST, _VIA_SEARCH = 0.45, 0.80
_HOME, _SECTION = 0.30, 0.50
_QUANTITIES: Final = (0.85, 0.96, 1.0)


class Browser:
    """Plans what somebody looks at, from random numbers of its own.

    Args:
        profile: Seed and shares.
        catalogue: What there is to look at.
    """

    def __init__(self, profile: ClickstreamProfile, catalogue: Catalogue) -> None:
        def draws(purpose: str) -> Callable[[], float]:
            return substream(profile.seed, DOMAIN_NAME, purpose).random

        self._catalogue = catalogue
        self._boundaries = profile.boundaries
        self._changes = profile.campaign_changes
        self._draw_length = draws("length")
        self._draw_landing = draws("landing")
        self._draw_pause = draws("pause")
        self._draw_item = draws("item")
        self._draw_path = draws("path")
        self._draw_cart = draws("cart")
        self._draw_boundary = draws("boundary")
        self._draw_change = draws("campaign_change")

    def arrive(self, trail: Trail, channel: Channel) -> tuple[Item, bool]:
        """Land on a page; returns the item that is looked at first, and whether it is on this page."""
        where = self._draw_landing()
        item = self._catalogue.popular(self._draw_item())
        if where < _HOME:
            trail.land(channel, "home", SHOP)
        elif where < _SECTION:
            trail.land(channel, "category", _section_url(item))
        else:
            trail.land(channel, "item", item.url, item)
        return item, where >= _SECTION

    def browse(
        self,
        trail: Trail,
        channel: Channel,
        landing: tuple[Item, bool],
        new_cart_id: Callable[[], str],
        *,
        once: bool,
    ) -> Cart:
        """Look at items and put some into the cart, which is returned.

        Args:
            trail: The visit; it has landed.
            channel: How it came.
            landing: The first item, and whether it has been seen on landing.
            new_cart_id: Gives the cart a name if one is needed.
            once: The visit does not arrive again through another campaign.
        """
        length = self._length()
        boundary, change = self._boundary_ms(), self._other_channel(channel)
        if once:
            change = None
        if boundary or change:
            length = max(length, 2)
        factor = _KEEN_FACTOR if self._draw_cart() < _KEEN_SHARE else _IDLE_FACTOR
        cart = Cart(trail.visitor_id)
        item, looked_at = landing
        seen = [item]
        if not looked_at:
            trail.wait(self._pause())
            trail.view(item)
        self._consider(trail, cart, item, factor, new_cart_id)
        for place in range(1, length):
            item = self._next(trail, seen, boundary if place == 1 else 0, change if place == 1 else None)
            seen.append(item)
            self._consider(trail, cart, item, factor, new_cart_id)
        return cart

    def _length(self) -> int:
        uniform = self._draw_length()
        place = bisect_right(_LENGTH_BOUNDS, uniform)
        if place < len(_LENGTH_BOUNDS):
            return place + 1
        rest = (1.0 - uniform) / (1.0 - _LENGTH_BOUNDS[-1])
        return min(place + 1 + int(math.log(max(rest, 1e-9)) / math.log(_LONGER)), _MAX_LENGTH)

    def _pause(self) -> int:
        return _PAUSES_MS[int(self._draw_pause() * len(_PAUSES_MS))]

    def _boundary_ms(self) -> int:
        chance, which = self._draw_boundary(), self._draw_boundary()
        if chance >= self._boundaries:
            return 0
        return BOUNDARY_PAUSES_MS[int(which * len(BOUNDARY_PAUSES_MS))]

    def _other_channel(self, channel: Channel) -> Channel | None:
        chance, which = self._draw_change(), self._draw_change()
        return other_campaign(channel, which) if chance < self._changes else None

    def _next(self, trail: Trail, seen: list[Item], boundary_ms: int, change: Channel | None) -> Item:
        """Go to the next item, perhaps over a list of them, after a long pause or from outside."""
        kind, which, path, pause = self._draw_item(), self._draw_item(), self._draw_path(), self._pause()
        direct = kind < _RELATED
        if kind < _AGAIN:
            item = seen[int(which * len(seen))]
        elif direct:
            item = self._catalogue.next_to(seen[-1], which)
        elif kind < _IN_CATEGORY:
            item = self._catalogue.popular_in(seen[-1].section, which)
        else:
            item = self._catalogue.popular(which)
        if boundary_ms:
            trail.pause(boundary_ms)
        elif not direct and path < _VIA_SEARCH:
            trail.wait(pause * 2 // 5)
            _look_up(trail, item, by_search=path >= _VIA_LIST)
            trail.wait(pause - pause * 2 // 5)
        else:
            trail.wait(pause)
        if change is not None:
            trail.land(change, "item", item.url, item)
        else:
            trail.view(item)
        return item

    def _consider(
        self, trail: Trail, cart: Cart, item: Item, factor: float, new_cart_id: Callable[[], str]
    ) -> None:
        """Put the item just looked at into the cart, or not."""
        chance = self._draw_cart()
        if chance >= CART_PER_VIEW * factor or cart.holds(item):
            return
        if not cart.cart_id:
            cart.cart_id = new_cart_id()
        trail.wait(2_000 + int(self._draw_pause() * 28_000))
        quantity = 1 + bisect_right(_QUANTITIES, self._draw_cart())
        cart.lines.append((item, quantity))
        place = trail.click(
            "add_to_cart", "item", item.url, item=item, quantity=quantity, cart_id=cart.cart_id
        )
        cart.note(trail.at_ms, "cart", place)


def _section_url(item: Item) -> str:
    return f"{SHOP}/category/{item.category}"


def _look_up(trail: Trail, item: Item, *, by_search: bool) -> None:
    if by_search:
        # People search for a kind of thing, not for an item.
        place = trail.click("search", "search", f"{SHOP}/search?q={item.category}", query=item.category)
        trail.mark(place, truths.search(trail, item.category, place))
    else:
        trail.click("page_view", "category", _section_url(item), category=item.category)
