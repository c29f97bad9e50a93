"""Truths about visits, as they stand in the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from millrace_apps.clickstream.contracts.events import ItemChange
from millrace_apps.generators.clickstream.carts import Cart, CartStep, idle_spells
from millrace_apps.generators.clickstream.visitors import Device, Person, Touch
from millrace_apps.generators.engine.simulated import Truth

if TYPE_CHECKING:
    from millrace_apps.generators.clickstream.trail import Trail

SCENARIOS: Final = {
    "session": "clicks of one visitor with pauses of 30 minutes at most; at all of them",
    "identity": "a visitor turns out to be a person; at every login of it",
    "abandonment": "a cart that lay idle for 15 minutes or longer, with every such spell; at all its events",
    "attribution": "first and last touch of a purchase, over all devices linked to the person by then",
    "bot": "a visit of a crawler (by user agent) or scraper (by rate); at all its events",
    "consent_withdrawn": "from the next event on: no stitching, profile or offer for the visitor",
    "erasure": "the account asks to be forgotten and never comes back",
    "order": "what is ordered, with value, tax, shipping and costs; at the purchase",
    "refund": "part or all of an order comes back and is paid for",
    "cancellation": "part or all of an order is not sent",
    "uplift": "what an offer adds to the share of abandoned carts that are bought; at the first event",
    "item": "what is true of an item from then on: category, price, pieces",
    "search": "somebody searches for something; at the search",
    "list": "of --loop: a list of next items that somebody reads, how likely a click was, and which came",
    "offer": "of --loop: an app's offer, whether it was shown, and whether it adds a purchase",
}


def identity(device: Device, user_id: str, *, shared: bool) -> Truth:
    """Return the truth of a login: this visitor is this person, on a shared device for now."""
    return Truth(
        truth_id=f"identity-{device.visitor_id}-{user_id}",
        kind="identity",
        entity=device.visitor_id,
        expected="stitched",
        detail={"user_id": user_id, "shared": shared},
    )


def abandonment(cart: Cart, to_come: list[CartStep], device: Device) -> Truth | None:
    """Return the truth about a cart if it lies idle for long enough to be called abandoned.

    Args:
        cart: The cart and what has happened to it.
        to_come: What will happen to it in a later visit.
        device: Where it was filled.
    """
    steps = [*cart.steps, *to_come]
    spells = idle_spells(steps)
    if not spells:
        return None
    last = steps[-1]
    bought_ms = last.at_ms if last.stage == "bought" else None
    return Truth(
        truth_id=f"abandonment-{cart.cart_id}",
        kind="abandonment",
        entity=cart.cart_id,
        expected="cart_abandoned",
        detail={
            "visitor_id": device.visitor_id,
            "user_id": device.user_id,
            "idle": spells,
            "bought_ms": bought_ms,
        },
    )


def attribution(order_id: str, cents: int, devices: Iterable[Device]) -> Truth:
    """Return where a purchase came from: the first and the last touch on any of these devices."""
    devices = tuple(devices)
    first = min((d.first_touch for d in devices if d.first_touch), key=_moment, default=None)
    last = max((d.last_touch for d in devices if d.last_touch), key=_moment, default=None)
    return Truth(
        truth_id=f"attribution-{order_id}",
        kind="attribution",
        entity=order_id,
        expected="attributed",
        detail={
            "amount_cents": cents,
            "first_touch": first.label if first else None,
            "last_touch": last.label if last else None,
            "visitors": sorted(device.visitor_id for device in devices),
            "parted": any(device.parted for device in devices),
        },
    )


def erasure(request_id: str, person: Person) -> Truth:
    """Return the truth about a person who asks to be forgotten."""
    return Truth(
        truth_id=f"truth-{request_id}",
        kind="erasure",
        entity=person.user_id,
        expected="erased",
        detail={"visitors": sorted(device.visitor_id for device in person.devices if device.linked)},
    )


def uplift(run: str, recovery: float, offer_uplift: float) -> Truth:
    """Return the truth about what an offer does to abandoned carts."""
    return Truth(
        truth_id=f"uplift-{run}",
        kind="uplift",
        entity="offer",
        expected="recovered_in_interval",
        detail={"recovery": recovery, "uplift": offer_uplift},
    )


def search(trail: Trail, term: str, place: int, *, bot: bool = False) -> Truth:
    """Return the truth about a search at the present moment of a visit.

    Args:
        trail: The visit.
        term: What is searched for.
        place: Place of the search in the visit.
        bot: Whether it is a bot's: until that is known, it counts.
    """
    return Truth(
        truth_id=f"search-{trail.visitor_id}-{trail.number:x}-{place:x}",
        kind="search",
        entity=trail.visitor_id,
        expected="counted",
        detail={"term": term, "at_ms": trail.at_ms, "bot": bot},
    )


def item_changed(event: ItemChange) -> Truth:
    """Return what is true of an item from the time of an event on."""
    return Truth(
        truth_id=f"truth-{event.change_id}",
        kind="item",
        entity=event.item_id,
        expected="known",
        detail={
            "at_ms": event.event_time_ms,
            "category": event.category,
            "price": event.price,
            "stock": event.stock,
        },
    )


def offer_made(offer_id: str, visitor_id: str, detail: Mapping[str, Any]) -> Truth:
    """Return the truth about an offer of an app."""
    return Truth(
        truth_id=f"offer-{offer_id}",
        kind="offer",
        entity=offer_id,
        expected="answered" if detail["order_id"] is not None else "nothing",
        detail={"visitor_id": visitor_id, **detail},
    )


def _moment(touch: Touch) -> int:
    return touch.at_ms
