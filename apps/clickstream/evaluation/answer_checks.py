"""Checks of shoppers' answers to offers, in a loop, beside the app's tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from millrace.console.report import Check, equal, same
from millrace.testing.world_ledger import WorldTruth
from millrace_apps.clickstream.evaluation.offer_checks import Consents

Row = dict[str, Any]
#: Offers that were due this shortly before the last one heard may still have been on their way, ms.
_ON_ITS_WAY_MS: Final = 10 * 60_000


def check_answers(
    offers: Sequence[Row],
    outcomes: Iterable[Row],
    heard: Sequence[WorldTruth],
    orders: Iterable[WorldTruth],
    logins: Iterable[WorldTruth],
    consents: Consents,
    *,
    until_ms: int,
    listening: bool = False,
) -> list[Check]:
    """Compare offers and outcomes with what the shoppers know of them.

    Args:
        offers: The table ``offers``.
        outcomes: The table ``outcomes``.
        heard: Truths of the offers that the shoppers have heard of.
        orders: Truths of what was bought.
        logins: Which browsers were known to be whose.
        consents: What was allowed.
        until_ms: Up to when all outcomes have been told, UTC ms.
        listening: Whether shoppers were to listen: where none has heard anything there is nothing to compare;
            otherwise nothing is told then.
    """
    if not heard:
        names = ("offers that shoppers have heard of", "purchases by who was shown nothing",
                 "purchases that offers brought about")  # fmt: skip
        return [equal(name, 0, 0) for name in names if listening]
    last = min(until_ms, max(t.detail["due_ms"] for t in heard) - _ON_ITS_WAY_MS)
    made = {(o["offer_id"], o["arm"], o["cart_id"]) for o in offers if o["at_ms"] <= last}
    known = {(t.entity, t.detail["arm"], t.detail["cart_id"]) for t in heard if t.detail["due_ms"] <= last}
    arms = {o["offer_id"]: o["arm"] for o in offers}
    answered = [t for t in heard if t.detail["order_id"] is not None]
    unasked = sum(arms.get(t.entity, "offer") != "offer" for t in answered)
    expected, clear = _brought_about(offers, answered, orders, logins, consents, until_ms)
    found = {(o["offer_id"], o["order_id"]) for o in outcomes if o["converted"] and o["offer_id"] in clear}
    return [
        same("offers that shoppers have heard of", made, known, "identity, arm and cart"),
        equal("purchases by who was shown nothing", 0, unasked, of=len(answered)),
        same("purchases that offers brought about", expected, found, "of browsers nobody has logged in on"),
    ]


def _brought_about(
    offers: Iterable[Row],
    answered: Iterable[WorldTruth],
    orders: Iterable[WorldTruth],
    logins: Iterable[WorldTruth],
    consents: Consents,
    until_ms: int,
) -> tuple[set[tuple[str, str]], set[str]]:
    """Return offer and order of the answers that are first after their offer, and these offers."""
    shared = {t.entity for t in logins}
    bought: dict[str, list[WorldTruth]] = defaultdict(list)
    for order in sorted(orders, key=lambda t: t.last_event_time_ms):
        for visitor in order.detail["visitors"]:
            bought[visitor].append(order)
    rows = {o["offer_id"]: o for o in offers}
    found: set[tuple[str, str]] = set()
    for truth in answered:
        offer, done = rows.get(truth.entity), truth.detail["bought_ms"]
        if offer is None or done > until_ms or offer["person"] != f"v:{offer['visitor_id']}":
            continue
        visitor = offer["visitor_id"]
        after = [t for t in bought[visitor] if t.last_event_time_ms > offer["at_ms"]]
        first = after[0].entity if after and not any(t.disturbed for t in after) else None
        if visitor in shared or consents.changed(visitor, offer["at_ms"], until_ms):
            continue
        if first is not None and first == truth.detail["order_id"]:
            found.add((truth.entity, first))
    return found, {offer_id for offer_id, _ in found}
