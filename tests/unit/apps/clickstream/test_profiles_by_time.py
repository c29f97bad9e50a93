"""Whose profile and cart something done is follows from the times of events alone.

```
browser A   ··· view ····· add to cart ·· login u1 ···· logout ·· view ·· login u2     what nobody did is the
            └──────── u1's ───────────┘                           └ u2's              next one's by time,
browser B   ······ login u1 ··· view ··· order ···                                    in whatever order read
```
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from millrace.host.memory_chain import MemoryChain
from millrace.topology import Link, Topology
from millrace_apps.clickstream.contracts.events import Click, Forget
from millrace_apps.clickstream.processes.persons import Persons
from millrace_apps.clickstream.processes.visitor import visitors
from millrace_apps.clickstream.state.browser_state import VisitorRules
from millrace_apps.clickstream.topology import entities
from tests.cases import case_count
from tests.unit.apps.clickstream.app_cases import (
    HOUR,
    MINUTE,
    SECOND,
    START,
    Run,
    click,
    consent,
    keyed,
)

BROWSERS = ("a", "b")
ACCOUNTS = ("u1", "u2")
#: Carts are left after this.
TIMEOUT = 30 * MINUTE
#: First seed: others than those of CI are played by another one.
FROM = int(os.environ.get("BY_TIME_FROM", "0"))


def story(draws: random.Random) -> list[Click]:
    """Logins, logouts, views, searches, carts and orders of accounts in browsers, each at its moment."""
    found, there = list[Click](), dict.fromkeys(BROWSERS, "")
    at = 10
    for number in range(draws.randrange(4, 22)):
        at += draws.choice((2, 300, 2 * SECOND, 20 * SECOND, 4 * MINUTE, 12 * MINUTE, 40 * MINUTE))
        browser = draws.choice(BROWSERS)
        what = draws.choice(
            ("login", "login", "logout", "page_view", "page_view", "search", "add_to_cart", "purchase")
        )
        if what == "login":
            there[browser] = draws.choice(ACCOUNTS)
        named = there[browser] and (what in ("login", "logout") or draws.random() < 0.4)
        fields: dict[str, Any] = {"user_id": there[browser] if named else None}
        cart = f"c-{browser}-{draws.randrange(2)}"
        if what in ("page_view", "add_to_cart"):
            fields |= {
                "item_id": f"i{number}",
                "category": draws.choice(("toys", "hats")),
                "price": 1.0 + number,
            }
        if what == "add_to_cart":
            fields |= {"cart_id": cart, "quantity": 1}
        if what == "search":
            fields |= {"query": f"q{number}"}
        if what == "purchase":
            order = f"o{draws.choice((number, number, number - 1))}"
            fields |= {"order_id": order, "amount": 2.0 + number}
            if draws.random() < 0.5:
                fields |= {"cart_id": cart}
        found.append(click(at, what, browser, id=f"e{number}", **fields))
        if what == "logout":
            there[browser] = ""
    return found


# -- a look at everything at once ---------------------------------------------------------------------


class Shop:
    """What a shop's people have done, by a look at the whole history in order of time."""

    def __init__(self, events: Iterable[Click], shared: str) -> None:
        self._events, self._shared = sorted(events, key=lambda e: e.event_time_ms), shared
        orders: dict[tuple[str, str], Click] = {}
        for event in self._events:
            if event.event_type == "purchase":
                orders.setdefault((event.visitor_id, str(event.order_id)), event)
        #: What counts: of an order that is told again in its browser the earliest telling alone.
        self.done = [
            e for e in self._events
            if e.event_type not in ("login", "logout")
            and (e.event_type != "purchase" or orders[e.visitor_id, str(e.order_id)] is e)
        ]  # fmt: skip

    def _names(self, browser: str, after: int, until: int) -> list[tuple[int, str]]:
        return [
            (e.event_time_ms, e.user_id) for e in self._events
            if e.visitor_id == browser and e.user_id and after < e.event_time_ms <= until
        ]  # fmt: skip

    def there(self, event: Click) -> str:
        """Who was there when something was done; empty for nobody."""
        browser, at = event.visitor_id, event.event_time_ms
        named = self._names(browser, -1, at)
        outs = [
            e.event_time_ms for e in self._events
            if e.visitor_id == browser and e.event_type == "logout" and e.event_time_ms < at
        ]  # fmt: skip
        if not named or (self._shared == "split" and outs and outs[-1] >= named[-1][0]):
            return ""
        return named[-1][1]

    def comes(self, event: Click) -> tuple[int, str]:
        """Who is there next after something that nobody did, and when; empty for nobody."""
        return next(iter(self._names(event.visitor_id, event.event_time_ms, 1 << 62)), (0, ""))

    def owner(self, event: Click) -> str:
        """Whose profile something counts for in the end; empty: of nobody who is known any more."""
        who = self.there(event)
        if who:
            return f"u:{who}"
        at, who = self.comes(event)
        if not who:
            return f"v:{event.visitor_id}"
        if self._shared == "last" and any(n != who for _, n in self._names(event.visitor_id, at, 1 << 62)):
            return ""  # it went with the browser, which is another's by now
        return f"u:{who}"

    def profiles(self) -> dict[str, dict[str, Any]]:
        """Person → what its last row says."""
        found: dict[str, list[Click]] = {}
        for event in self.done:
            found.setdefault(self.owner(event), []).append(event)
        return {who: self._profile(own) for who, own in found.items() if who}

    @staticmethod
    def _profile(own: Sequence[Click]) -> dict[str, Any]:
        orders: dict[str, Click] = {}
        for event in own:
            if event.event_type == "purchase":
                orders.setdefault(str(event.order_id), event)  # it may be told in two browsers
        own = [e for e in own if e.event_type != "purchase" or orders[str(e.order_id)] is e]
        last = max(e.event_time_ms for e in own)
        viewed = [e for e in own if e.event_type == "page_view"]
        categories = Counter(e.category for e in viewed)
        top = min(categories, key=lambda name: (-categories[name], str(name)), default="")
        day = [e.event_type for e in own if e.event_time_ms // HOUR > last // HOUR - 24]
        return {
            "views_1d": day.count("page_view"),
            "searches_1d": day.count("search"),
            "adds_1d": day.count("add_to_cart"),
            "orders": len(orders),
            "spent_cents": sum(round(100 * (e.amount or 0)) for e in orders.values()),
            "last_items": [e.item_id for e in viewed][::-1][:10],
            "top_category": top,
            "price_level_cents": (
                sum(round(100 * (e.price or 0)) for e in viewed) // len(viewed) if viewed else 0
            ),
            "seen_ms": last,
        }

    def left(self) -> set[tuple[str, int, str | None]]:
        """Carts that were left: which, since when, and whose."""
        carts: dict[str, list[Click]] = {}
        for event in self.done:
            if event.cart_id:
                carts.setdefault(event.cart_id, []).append(event)
        found = set()
        for cart, steps in carts.items():
            full = False
            for place, step in enumerate(steps):
                full = step.event_type != "purchase"
                at = step.event_time_ms
                after = steps[place + 1].event_time_ms if place + 1 < len(steps) else 1 << 62
                if full and after - at > TIMEOUT:
                    found.add((cart, at, self._whose(steps, step)))
        return found

    def _whose(self, steps: Sequence[Click], step: Click) -> str | None:
        """Whose a cart was when it was left: of who came since it was bought, the first."""
        who = self.there(step)
        if who:
            return who
        at = step.event_time_ms
        bought = max(
            (s.event_time_ms for s in steps if s.event_type == "purchase" and s.event_time_ms < at), default=0
        )
        come = [
            self.comes(s) for s in steps
            if bought < s.event_time_ms <= at and s.event_type != "purchase" and not self.there(s)
        ]  # fmt: skip
        return next((name for since, name in sorted(come) if name and since <= at + TIMEOUT), None)


# -- the app --------------------------------------------------------------------------------------------


def chain(shared: str, bound: int) -> MemoryChain:
    rules = VisitorRules(shared=shared, rate_events=1_000)  # type: ignore[arg-type]
    visited = Topology({}, (Link(visitors(rules)),))
    by = {"carts": "cart_id", "persons": "person", "shards": "shard", "orders_told": "order_id",
          "orders_refunded": "order_id"}  # fmt: skip
    outputs = {"carts": "carts", "persons": "main", "shards": "counts", "orders_told": "orders",
               "orders_refunded": "refunds"}  # fmt: skip
    last = entities(TIMEOUT, persons=Persons())
    return MemoryChain(visited.key_by(by, output=outputs).process(last), out_of_orderness_ms=bound)


def played(
    batches: Sequence[Sequence[Any]], shared: str, bound: int, restarts: random.Random | None = None
) -> Run:
    """What comes of batches, with restarts between some of them."""
    running, found = chain(shared, bound), list[Any]()
    for batch in batches:
        found += running.run_batch(keyed(*batch))
        if restarts is not None and restarts.random() < 0.1:
            running.restart()
    return Run([*found, *running.drain()], running.is_empty())


def cut(draws: random.Random, events: Sequence[Click], bound: int) -> list[list[Any]]:
    """The events in any order within the bound, in any cut, with repeats."""
    found: list[list[Any]] = [[consent(0, visitor=browser) for browser in BROWSERS]]
    rest = sorted(events, key=lambda e: (e.event_time_ms + draws.uniform(0, bound), draws.random()))
    rest += draws.sample(rest, min(2, len(rest))) if bound else []
    while rest:
        size = draws.choice((1, 2, 3, 7, 100))
        found.append(rest[:size])
        rest = rest[size:]
    return found


def rows(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Person → its rows, in order of their revisions."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in run.rows("profiles"):
        found.setdefault(row["person"], []).append(row)
    return {who: sorted(own, key=lambda row: row["revision"]) for who, own in found.items()}


def left(run: Run) -> list[tuple[Any, ...]]:
    return sorted(
        (
            row["cart_id"],
            row["since_ms"],
            row["noticed_ms"],
            row["value_cents"],
            row["time"],
            row["user_id"] or "",
        )
        for row in run.rows("abandonments")
    )


def check(seed: int) -> int:
    draws = random.Random(seed)
    shared = draws.choice(("split", "split", "last"))
    bound = draws.choice((0, SECOND, MINUTE, 20 * MINUTE))
    events = story(draws)
    shop = Shop(events, shared)
    in_order = played([[consent(0, visitor=b)] for b in BROWSERS] + [[e] for e in events], shared, 0)
    anyhow = played(cut(draws, events, bound), shared, bound, draws)

    wanted = shop.profiles()
    for name, run in (("in order", in_order), ("anyhow", anyhow)):
        last = {row["person"]: row for row in run.table("profiles", "person")}
        compared = {
            who: {field: last.get(who, {}).get(field) for field in row} for who, row in wanted.items()
        }
        assert compared == wanted, (seed, shared, name)
        found = {(cart, since, user or None) for cart, since, _, _, _, user in left(run)}
        assert found == shop.left(), (seed, shared, name)
    assert rows(anyhow) == rows(in_order), (seed, shared)
    assert left(anyhow) == left(in_order), (seed, shared)
    return len(wanted)


@pytest.mark.parametrize("block", range(2))
def test_profiles_and_carts_are_what_a_look_at_all_events_says_row_by_row(block: int) -> None:
    cases = case_count(100) // 2
    first = FROM + block * cases
    assert sum(check(seed) for seed in range(first, first + cases)) > cases


def items_of(*events: Any) -> dict[str, list[str]]:
    """Person → the last items of its last row, of events that are read one by one; time goes on with each."""
    run = played([[event] for event in events], "split", 0)
    return {row["person"]: row["last_items"] for row in run.table("profiles", "person")}


def view(at: int, item: str, visitor: str = "a", **fields: Any) -> Click:
    return click(at, item_id=item, visitor=visitor, **fields)


def test_what_is_read_late_counts_for_whoever_had_come_by_then() -> None:
    """Behind the watermark, while its session may still change: the login after it has been told already."""
    found = items_of(
        consent(0, visitor="a"), click(10 * MINUTE, "login", "a", user_id="u1"), view(11 * MINUTE, "tea"),
        click(20 * MINUTE, visitor="z"), view(5 * MINUTE, "cup"),
        click(21 * MINUTE, "logout", "a", user_id="u1"), view(22 * MINUTE, "pot"),
        click(30 * MINUTE, "login", "a", user_id="u2"), view(31 * MINUTE, "mug"),
    )  # fmt: skip
    assert found == {"u:u1": ["tea", "cup"], "u:u2": ["mug", "pot"]}


def test_a_login_that_is_read_late_takes_what_nobody_did_until_then() -> None:
    found = items_of(
        consent(0, visitor="a"), view(5 * MINUTE, "cup"), click(20 * MINUTE, visitor="z"),
        click(10 * MINUTE, "login", "a", user_id="u1"), click(12 * MINUTE, "logout", "a", user_id="u1"),
        click(30 * MINUTE, "login", "a", user_id="u2"), view(31 * MINUTE, "mug"),
    )  # fmt: skip
    assert found == {"u:u1": ["cup"], "u:u2": ["mug"]}


def test_what_is_done_before_a_withdrawal_is_the_accounts_that_is_known_by_then() -> None:
    """The withdrawal ends who is known there; what waits is told before."""
    found = items_of(
        consent(0, visitor="a"), click(1, "login", "a", user_id="u1"), view(2, "tea"),
        consent(3, granted=False, visitor="a"), view(4, "cup"), view(5, "mug", "b", user_id="u1"),
    )  # fmt: skip
    assert found == {"u:u1": ["tea"]}


def test_what_was_done_by_an_account_whose_browser_is_forgotten_stays_its() -> None:
    found = items_of(
        consent(0, visitor="a"), click(1, "login", "a", user_id="u1"), view(2, "tea"),
        Forget("r1", "a", START + 3),
    )  # fmt: skip
    assert found == {"u:u1": ["tea"]}


def test_a_login_elsewhere_that_is_read_ahead_brings_no_row_forward() -> None:
    """Row of 12 min is due, and the view of 9 min is in it, though the login of 13 min was read with that."""
    first = [
        consent(0, visitor="a"), consent(0, visitor="b"), click(1, "login", "a", user_id="u1"),
        view(2, "tea"), view(2 * MINUTE, "cup"), click(2 * MINUTE + 1, visitor="z"),
    ]  # fmt: skip
    then = [view(9 * MINUTE, "pot"), click(13 * MINUTE, "login", "b", user_id="u1")]
    at_once = rows(played([*([one] for one in first), then], "split", 0))
    assert at_once == rows(played([[one] for one in (*first, *then)], "split", 0))
    assert [row["last_items"] for row in at_once["u:u1"]] == [["tea"], ["pot", "cup", "tea"]]


def test_a_cart_has_the_channel_of_its_visit_and_not_of_the_browsers_first() -> None:
    events = [
        consent(0, visitor="a"),
        click(MINUTE, visitor="a", utm_source="newsletter", utm_medium="email"),
        click(3 * HOUR, visitor="a", utm_source="google", utm_medium="cpc"),
        click(3 * HOUR + MINUTE, "add_to_cart", "a", item_id="tea", cart_id="c", quantity=1, price=1.0),
        click(9 * HOUR, visitor="z"),
    ]
    run = played([[event] for event in events], "split", 0)
    (cart,) = run.rows("abandonments")
    assert cart["channel"] == "paid_search"


@pytest.mark.parametrize("comes", ["u2", None])
def test_a_cart_that_was_bought_is_filled_anew_by_whoever_comes_next(comes: str | None) -> None:
    """It keeps its name; who had bought it has logged out."""
    put = {"item_id": "tea", "cart_id": "c", "quantity": 1, "price": 1.0}
    events = [
        consent(0, visitor="a"),
        click(MINUTE, "add_to_cart", "a", **put), click(2 * MINUTE, "login", "a", user_id="u1"),
        click(3 * MINUTE, "purchase", "a", cart_id="c", order_id="o", amount=1.0),
        click(4 * MINUTE, "logout", "a", user_id="u1"), click(5 * MINUTE, "add_to_cart", "a", **put),
        *([click(6 * MINUTE, "login", "a", user_id=comes)] if comes else []),
        click(9 * HOUR, visitor="z"),
    ]  # fmt: skip
    (cart,) = played([[event] for event in events], "split", 0).rows("abandonments")
    assert (cart["since_ms"] - START, cart["user_id"]) == (5 * MINUTE, comes)


def test_a_cart_has_the_channel_of_its_visits_first_landing_of_many() -> None:
    """More of them than a browser remembers."""
    events = [
        consent(0, visitor="a"),
        click(MINUTE, visitor="a", utm_source="google", utm_medium="cpc"),
        click(3 * HOUR, visitor="a", utm_source="newsletter", utm_medium="email"),
        *(click(3 * HOUR + n * MINUTE, visitor="a", utm_source=f"s{n}") for n in range(1, 30)),
        click(3 * HOUR + 40 * MINUTE, "add_to_cart", "a", item_id="tea", cart_id="c", quantity=1, price=1.0),
        click(9 * HOUR, visitor="z"),
    ]
    run = played([[event] for event in events], "split", 0)
    (cart,) = run.rows("abandonments")
    assert cart["channel"] == "email"
