"""The table of offers compared with what is known of carts, consent and purchases."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from millrace.console.report import Check, equal, same
from millrace.testing.world_ledger import WorldTruth
from millrace_apps.clickstream.processes.offer_rules import OfferRule, duration_ms
from millrace_apps.clickstream.state.offers import OUTCOME_MS, experiment_of

Row = dict[str, Any]
#: The purposes by which a browser may be known as somebody's, and by which something may be offered there.
STITCHING: Final = frozenset({"personalisation"})
MARKETING: Final = frozenset({"personalisation", "marketing"})
#: The kind of event that completes the rules whose events the ledger knows.
_LEFT: Final = "abandoned"


class Consents:
    """What was allowed in a browser, and when.

    Args:
        rows: The table ``consents``.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._by: dict[str, list[tuple[int, frozenset[str]]]] = defaultdict(list)
        for row in sorted(rows, key=lambda r: r["at_ms"]):
            self._by[row["visitor_id"]].append((row["at_ms"], frozenset(row["in_force"])))

    def allow(self, visitor: str, at_ms: int, purposes: frozenset[str] = MARKETING) -> bool:
        """Tell whether something is allowed in a browser at a time, ms."""
        said = self._by.get(visitor, [])
        place = bisect_right(said, at_ms, key=lambda answer: answer[0])
        return place > 0 and purposes <= said[place - 1][1]

    def changed(self, visitor: str, since_ms: int, until_ms: int) -> bool:
        """Tell whether an answer came between two times, ms."""
        return any(since_ms < at <= until_ms for at, _ in self._by.get(visitor, []))


class Brought(NamedTuple):
    """What was offered in a browser before a login counts for the account.

    Attributes:
        browser: ``v:`` and the browser.
        since_ms: Offers from this moment on, UTC ms: those before went with an earlier login.
        from_ms: The login, UTC ms: offers before it, which count from then on.
        until_ms: Until when they count, UTC ms: the browser is another's then; ``None``: for good.
    """

    browser: str
    since_ms: int
    from_ms: int
    until_ms: int | None = None


def brought_along(changes: Iterable[Row]) -> dict[str, list[Brought]]:
    """Return by account what browsers have brought along.

    Args:
        changes: The table ``cap_changes``.
    """
    found: dict[str, list[Brought]] = defaultdict(list)
    since: dict[str, int] = {}
    for row in sorted(changes, key=lambda r: (r["at_ms"], r["change"])):
        browser, at, theirs = f"v:{row['visitor_id']}", row["at_ms"], found[row["person"]]
        if row["change"] == "merged":
            theirs.append(Brought(browser, since.get(browser, 0), at))
            since[browser] = at
            continue
        theirs[:] = [
            one._replace(until_ms=at) if one.browser == browser and one.until_ms is None else one
            for one in theirs
        ]
    return dict(found)


class Made:
    """When persons were offered something, and by which rule.

    Args:
        brought: What browsers have brought along.
    """

    def __init__(self, brought: Mapping[str, Sequence[Brought]]) -> None:
        self._brought = brought
        self._by: dict[str, list[tuple[int, str]]] = defaultdict(list)

    def add(self, person: str, at_ms: int, rule: str) -> None:
        """Take down an offer."""
        self._by[person].append((at_ms, rule))

    def forbids(self, rule: OfferRule, person: str, at_ms: int) -> bool:
        """Tell whether the cap or the cool-down of a rule forbids an offer, by those made up to then."""
        theirs = list(self._by.get(person, ()))
        for one in self._brought.get(person, ()):
            if one.from_ms <= at_ms and (one.until_ms is None or at_ms < one.until_ms):
                made = self._by.get(one.browser, ())
                theirs += [offer for offer in made if one.since_ms <= offer[0] < one.from_ms]
        cool, cap = duration_ms(rule.cool_down), duration_ms(rule.cap_within)
        before = [(at_ms - at, name) for at, name in theirs if at <= at_ms]
        recent = sum(name == rule.name and ago < cap for ago, name in before)
        return recent >= rule.cap or any(ago < cool for ago, _ in before)


def check_offers(
    offers: Sequence[Row],
    abandonments: Sequence[Row],
    consents: Consents,
    rules: Sequence[OfferRule],
    *,
    holdout: float,
    until_ms: int,
    erased: frozenset[str] = frozenset(),
    orders: Iterable[WorldTruth] = (),
    changes: Sequence[Row] = (),
) -> list[Check]:
    """Compare offers with the carts that were left, with consent, and with the caps and arms of their rules.

    Args:
        offers: The table ``offers``.
        abandonments: The table of carts that were left, compared with the ledger elsewhere.
        consents: What was allowed.
        rules: The rules that were in force.
        holdout: Share of the persons who are offered nothing.
        until_ms: Up to when all offers have been made, UTC ms.
        erased: Persons who have been forgotten since: whether they were offered something is not compared.
        orders: What was bought. To who buys something else before their cart is said to be left nothing is
            offered for it; whether they were known as one person then is not compared.
        changes: The table ``cap_changes``: what was offered in a browser counts for its account, too.
    """
    # What was offered to who is forgotten is not compared, and so not what it forbids others, either.
    erased |= {row["person"] for row in changes if f"v:{row['visitor_id']}" in erased}
    brought = brought_along(changes)
    bought = _bought(orders)
    open_to = {
        (row["cart_id"], row["noticed_ms"])
        for row in abandonments
        if any(row["since_ms"] <= at <= row["noticed_ms"] for at in bought.get(row["visitor_id"], ()))
    }
    named = {rule.name: rule for rule in rules}
    ids = [o["offer_id"] for o in offers]
    known = [o for o in offers if o["rule"] in named and o["at_ms"] <= until_ms and o["person"] not in erased]
    left = [rule for rule in rules if rule.counts == (_LEFT,)]
    owed = [_due(rule, abandonments, known, consents, until_ms, erased, open_to, brought) for rule in left]
    due = {one for found, _ in owed for one in found}
    refused = sum(number for _, number in owed)
    made = {
        _made(o)
        for o in known
        if o["rule"] in {rule.name for rule in left} and (o["cart_id"], o["at_ms"]) not in open_to
    }
    unproven = sum(o["rule"] not in named or _unproven(o, named[o["rule"]]) for o in offers)
    forbidden = sum(not consents.allow(o["visitor_id"], o["at_ms"]) for o in offers)
    arms = {(o["offer_id"], o["arm"]) for o in known}
    dealt = {(o["offer_id"], experiment_of(named[o["rule"]], holdout).arm(o["person"])) for o in known}
    return [
        equal("no offer twice", 0, len(ids) - len(set(ids)), of=len(ids)),
        same("offers for carts that were left", due, made, "rule, person, cart and time"),
        equal("offers without what their rule asks for", 0, unproven, of=len(offers)),
        equal("offers without consent", 0, forbidden, of=len(offers)),
        equal(
            "offers above caps and cool-downs",
            0,
            _above(known, named, brought),
            "of those refused",
            of=refused,
        ),
        same("arms of offers", dealt, arms),
    ]


def _made(offer: Row) -> tuple[Any, ...]:
    return (offer["rule"], offer["person"], offer["cart_id"], offer["at_ms"])


def _bought(orders: Iterable[WorldTruth]) -> dict[str, list[int]]:
    """Return when something was bought, by each browser of who bought it, UTC ms."""
    found: dict[str, list[int]] = defaultdict(list)
    for order in orders:
        for visitor in order.detail["visitors"]:
            found[visitor].append(order.last_event_time_ms)
    return found


def _due(
    rule: OfferRule,
    abandonments: Iterable[Row],
    offers: Iterable[Row],
    consents: Consents,
    until_ms: int,
    erased: frozenset[str],
    open_to: Container[tuple[str, int]],
    brought: Mapping[str, Sequence[Brought]],
) -> tuple[set[tuple[Any, ...]], int]:
    """Return the offers that a rule owes for the carts that were left, and how many its caps forbid.

    Of those that it may owe or not, the ones that were made count for caps and cool-downs.
    """
    made, moments = Made(brought), []
    for o in offers:
        if o["rule"] != rule.name or (o["cart_id"], o["at_ms"]) in open_to:
            made.add(o["person"], o["at_ms"], o["rule"])
    for row in abandonments:
        visitor, since, at = row["visitor_id"], row["since_ms"], row["noticed_ms"]
        person = f"v:{visitor}" if row["user_id"] is None else f"u:{row['user_id']}"
        if at > until_ms or person in erased or not consents.allow(visitor, since):
            continue
        if consents.allow(visitor, at) and (row["cart_id"], at) not in open_to:
            moments.append((at, person, row["cart_id"]))
    found, refused = set(), 0
    for at, person, cart in sorted(moments):
        if made.forbids(rule, person, at):
            refused += 1
            continue
        found.add((rule.name, person, cart, at))
        made.add(person, at, rule.name)
    return found, refused


def _above(
    offers: Iterable[Row], rules: Mapping[str, OfferRule], brought: Mapping[str, Sequence[Brought]]
) -> int:
    """Return how many offers their rule's cap or the cool-down forbids."""
    wrong, made = 0, Made(brought)
    for offer in sorted(offers, key=lambda o: o["at_ms"]):
        wrong += made.forbids(rules[offer["rule"]], offer["person"], offer["at_ms"])
        made.add(offer["person"], offer["at_ms"], offer["rule"])
    return wrong


def _unproven(offer: Row, rule: OfferRule) -> bool:
    """Return whether an offer does not name an event for each step of its rule, in order, up to its time."""
    said = dict(offer["why"])
    times = [int(text.partition(" at ")[2].partition(" ")[0]) for text in said.values()]
    steps = {step.name for step in rule.steps}
    return said.keys() != steps or times != sorted(times) or times[-1] != offer["at_ms"]


def check_outcomes(
    outcomes: Sequence[Row],
    offers: Iterable[Row],
    orders: Iterable[WorldTruth],
    logins: Iterable[WorldTruth],
    consents: Consents,
    *,
    until_ms: int,
) -> list[Check]:
    """Compare what came of offers with the orders of the ledger.

    Of orders by one browser it is known whose they are; a person with more is not compared.

    Args:
        outcomes: The table ``outcomes``.
        offers: The table ``offers``.
        orders: What was bought.
        logins: Which browsers were known to be whose.
        consents: What was allowed: of whom nothing may be offered nothing is told, either.
        until_ms: Up to when all outcomes have been told, UTC ms.
    """
    shared = {t.entity for t in logins}
    bought: dict[str, list[WorldTruth]] = defaultdict(list)
    value = {t.entity: t.detail["amount_cents"] for t in orders if not t.disturbed}
    for order in sorted(orders, key=lambda t: t.last_event_time_ms):
        if order.detail["visitors"] and order.last_event_time_ms <= until_ms:
            for visitor in order.detail["visitors"]:
                bought[visitor].append(order)
    expected, clear = set(), set()
    for offer in offers:
        at, visitor = offer["at_ms"], offer["visitor_id"]
        mine = [t for t in bought[visitor] if at < t.last_event_time_ms <= at + OUTCOME_MS]
        if offer["person"] != f"v:{visitor}" or visitor in shared or any(t.disturbed for t in mine):
            continue
        if consents.changed(visitor, at, until_ms):
            continue
        clear.add(offer["offer_id"])
        if mine:
            expected.add((offer["offer_id"], mine[0].entity, mine[0].detail["amount_cents"]))
    told = [o for o in outcomes if o["converted"]]
    found = {(o["offer_id"], o["order_id"], o["cents"]) for o in told if o["offer_id"] in clear}
    made = {o["offer_id"]: o["at_ms"] for o in offers}
    wrong = sum(
        o["offer_id"] not in made or (o["order_id"] in value and value[o["order_id"]] != o["cents"])
        or not made[o["offer_id"]] < o["decided_ms"] <= made[o["offer_id"]] + OUTCOME_MS
        for o in told
    )  # fmt: skip
    return [
        same("purchases after an offer", expected, found, "of browsers that nobody has logged in on"),
        equal("outcomes of another offer, order or time", 0, wrong, of=len(told)),
    ]


def check_purchases_after_logins(
    outcomes: Iterable[Row],
    offers: Iterable[Row],
    orders: Iterable[WorldTruth],
    logins: Iterable[WorldTruth],
    consents: Consents,
    changes: Iterable[Row],
    *,
    until_ms: int,
    erased: frozenset[str] = frozenset(),
) -> Check:
    """Compare what came of offers before a login with what the ledger says that person has bought.

    An order of the ledger names the browsers that its buyer was known by. Of a browser that several persons
    use, or where an answer came in between, nothing is compared.

    Args:
        outcomes: The table ``outcomes``.
        offers: The table ``offers``.
        orders: What was bought.
        logins: Which browsers were known to be whose.
        consents: What was allowed.
        changes: The table ``cap_changes``: which offers went along with a login, and which were given back.
        until_ms: Up to when all outcomes have been told, UTC ms.
        erased: Persons who have been forgotten since: of them nothing is told.
    """
    come: dict[str, list[int]] = defaultdict(list)
    unclear = {t.entity for t in logins if t.detail["shared"]}
    for row in changes:
        if row["change"] == "merged":
            come[row["visitor_id"]].append(row["at_ms"])
        else:
            unclear.add(row["visitor_id"])
    bought: dict[str, list[WorldTruth]] = defaultdict(list)
    for order in sorted(orders, key=lambda t: t.last_event_time_ms):
        for visitor in order.detail["visitors"]:
            bought[visitor].append(order)
    expected, clear = set(), set()
    for offer in offers:
        at, visitor = offer["at_ms"], offer["visitor_id"]
        if offer["person"] != f"v:{visitor}" or not any(since > at for since in come[visitor]):
            continue
        last = min(at + OUTCOME_MS, until_ms)
        mine = [t for t in bought[visitor] if at < t.last_event_time_ms <= last]
        browsers = {visitor, *(name for t in mine for name in t.detail["visitors"])}
        forgotten = any(f"v:{one}" in erased for one in browsers)
        if forgotten or browsers & unclear or any(t.disturbed for t in mine):
            continue
        if all(consents.allow(one, at) and not consents.changed(one, at, until_ms) for one in browsers):
            clear.add(offer["offer_id"])
            expected |= {(offer["offer_id"], t.entity, t.detail["amount_cents"]) for t in mine[:1]}
    told = [o for o in outcomes if o["converted"] and o["offer_id"] in clear]
    found = {(o["offer_id"], o["order_id"], o["cents"]) for o in told}
    return same("purchases after a login", expected, found, "of offers that were made before it")
