"""The web shop's streams as the clickstream app reads them, and runs of the app in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import msgspec

from millrace import Context, KeyedProcess, arrival, side_output
from millrace.host.memory_chain import MemoryChain
from millrace.testing import TestDriver
from millrace.topology import Link, Topology
from millrace_apps.clickstream.contracts.events import INPUTS, Click, Consent, ShopEvent
from millrace_apps.clickstream.contracts.messages import (
    CartChange,
    EraseCart,
    ItemCount,
    OrderRefunded,
    OrderTold,
    ToCart,
    ToPerson,
    ToShard,
    VisitCount,
)
from millrace_apps.clickstream.processes.caps import Caps
from millrace_apps.clickstream.processes.carts import CART_TIMEOUT_MS
from millrace_apps.clickstream.processes.offer_rules import DEFAULT_RULES, OfferRule
from millrace_apps.clickstream.processes.orders import Orders
from millrace_apps.clickstream.processes.persons import Persons
from millrace_apps.clickstream.processes.visitor import visitors
from millrace_apps.clickstream.recommend.process import Recommender, Recommending
from millrace_apps.clickstream.state.browser_state import HOLDOUT, VisitorRules
from millrace_apps.clickstream.topology import entities, followed, results
from millrace_apps.generators.clickstream import ClickstreamProfile, simulate
from millrace_apps.generators.engine.simulated import Simulated, Truth

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
START = 1_767_225_600_000
PHONE = "Mozilla/5.0 (Linux; Android 15; Pixel 9) AppleWebKit/537.36 Chrome/142.0 Mobile Safari/537.36"
_encode = msgspec.json.encode
Events = list[tuple[str, int, ShopEvent]]


def click(
    at: int, kind: str = "page_view", visitor: str = "v1", *, id: str | None = None, **fields: Any
) -> Click:
    """A click at so many ms after the start."""
    page = {"add_to_cart": "item", "remove_from_cart": "cart", "purchase": "checkout"}.get(kind, "item")
    given: dict[str, Any] = {
        "event_type": kind,
        "page_type": page,
        "page_url": "https://shop.example/x",
        "client_session_id": "s1",
        "client_session_number": 1,
        "client_time_ms": START + at,
        "device": "mobile",
        "user_agent": PHONE,
    }
    identity = id or f"{visitor}-{kind}-{at}"
    return Click(event_id=identity, event_time_ms=START + at, visitor_id=visitor, **{**given, **fields})


def consent(
    at: int,
    purposes: Sequence[str] = ("analytics", "personalisation", "marketing"),
    visitor: str = "v1",
    *,
    granted: bool = True,
    user: str | None = None,
) -> Consent:
    return Consent(
        event_time_ms=START + at,
        consent_id=f"consent-{visitor}-{at}",
        visitor_id=visitor,
        user_id=user,
        purposes=tuple(purposes),  # type: ignore[arg-type]
        granted=granted,
    )


def keyed(*events: ShopEvent) -> Events:
    """The events with their keys."""
    return [(_key_of(e), e.event_time_ms, e) for e in events]


def _key_of(event: ShopEvent) -> str:
    names = ("visitor_id", "subject", "user_id")
    return next(str(getattr(event, name)) for name in names if hasattr(event, name))


def send(driver: TestDriver, *events: ShopEvent) -> None:
    driver.send_batch(keyed(*events))


def as_read(simulated: Iterable[Simulated]) -> Events:
    """The events as the app reads them from its topics."""
    return [
        (s.key, s.event_time_ms, msgspec.json.decode(_encode(s.event), type=INPUTS[s.stream]))
        for s in simulated
    ]


class Run:
    """What a run of the whole app gives, by output."""

    def __init__(self, emissions: Iterable[Any], empty: bool) -> None:
        self.emissions = list(emissions)
        self.empty = empty

    def rows(self, output: str) -> list[dict[str, Any]]:
        return [msgspec.json.decode(e.payload) for e in self.emissions if e.output == output]

    def table(self, output: str, *key: str) -> list[dict[str, Any]]:
        """The rows that hold, as an upserted table has them."""
        newest: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in self.rows(output):
            name = tuple(row[k] for k in key)
            version = "revision" if "revision" in row else "as_of_ms"
            if name not in newest or row[version] >= newest[name][version]:
                newest[name] = row
        return [row for row in newest.values() if not row.get("deleted")]


def shop_chain(
    rules: VisitorRules | None = None,
    offers: tuple[OfferRule, ...] = DEFAULT_RULES,
    *,
    bound_ms: int = 0,
    holdout: float = HOLDOUT,
    cart_timeout_ms: int = CART_TIMEOUT_MS,
    recommending: Recommending | None = None,
    orders: Orders | None = None,
    merges_caps: bool = False,
) -> MemoryChain:
    """The app's processes, its first given events by their keys."""
    told = rules or VisitorRules()
    visited = Topology({}, (Link(visitors(told)),))
    persons = Persons(merges_caps=merges_caps, funnels=told.ways, holdout=holdout)
    if recommending is not None:
        visited = visited.key_by("shop", output="looks").process(Recommender(recommending))
    wired = followed(
        visited,
        entities(cart_timeout_ms, orders, persons=persons),
        results(offers, holdout, merges_caps=merges_caps),
        Caps(offers, holdout) if merges_caps else None,
    )
    return MemoryChain(wired, out_of_orderness_ms=bound_ms)


class Told(KeyedProcess[Any, ToPerson]):
    """Stands for the visitors: tells what it is told."""

    name = "Visitors"
    order = arrival(commutes=True)
    inputs: ClassVar = {
        "persons": ToPerson,
        "carts": ToCart,
        "counts": ToShard,
        "refunds": OrderRefunded,
        "orders": OrderTold,
    }
    carts = side_output(ToCart)
    counts = side_output(ToShard)
    refunds = side_output(OrderRefunded)
    orders = side_output(OrderTold)

    def process(self, event: Any, ctx: Context) -> None:
        """Tell it."""
        if ctx.input == "persons":
            ctx.emit(event)
        else:
            ctx.output(getattr(self, ctx.input), event)

    def on_late(self, event: Any, ctx: Context) -> None:
        """Tell it, as late."""
        self.process(event, ctx)


def told_chain(*, bound_ms: int = 0) -> MemoryChain:
    """What follows from what visitors tell."""
    visited = Topology({}, (Link(Told()),))
    return MemoryChain(followed(visited, entities(), results()), out_of_orderness_ms=bound_ms)


def as_told(events: Iterable[Any]) -> list[tuple[str, int, Any, str]]:
    """What visitors tell, as :func:`told_chain` takes it; of some their time besides."""
    found = []
    for one in events:
        event, at = one if isinstance(one, tuple) else (one, one.at_ms)
        found.append(("any", at, event, _OUTPUT[_input_of(event)]))
    return found


def as_entities_take(events: Iterable[Any]) -> list[tuple[str, int, Any, str]]:
    """What visitors tell, as the process of carts, persons, shards and orders takes it."""
    keys = {
        "carts": "cart_id",
        "persons": "person",
        "shards": "shard",
        "orders_told": "order_id",
        "orders_refunded": "order_id",
    }
    return [(getattr(e, keys[_input_of(e)]), e.at_ms, e, _input_of(e)) for e in events]


#: Input of the processes that follow the visitors → output of those.
_OUTPUT = {
    "carts": "carts",
    "shards": "counts",
    "persons": "persons",
    "orders_told": "orders",
    "orders_refunded": "refunds",
}


def _input_of(event: Any) -> str:
    if isinstance(event, OrderTold | OrderRefunded):
        return "orders_told" if isinstance(event, OrderTold) else "orders_refunded"
    if isinstance(event, CartChange | EraseCart):
        return "carts"
    return "shards" if isinstance(event, ItemCount | VisitCount) else "persons"


def run_app(
    events: Events,
    *,
    batch: int = 5_000,
    bound_ms: int = 0,
    visitor_rules: VisitorRules | None = None,
    offers: tuple[OfferRule, ...] = DEFAULT_RULES,
    drain: bool = True,
    holdout: float = HOLDOUT,
    recommending: Recommending | None = None,
    merges_caps: bool = False,
) -> Run:
    """Run the app's processes over events in the order that they come."""
    chain = shop_chain(
        visitor_rules, offers, bound_ms=bound_ms, holdout=holdout, recommending=recommending,
        merges_caps=merges_caps,
    )  # fmt: skip
    found: list[Any] = []
    for start in range(0, len(events), batch):
        found += chain.run_batch(events[start : start + batch])
    if drain:
        found += chain.drain()
    return Run(found, chain.is_empty())


PROFILE = ClickstreamProfile(
    seed=23,
    event_rate=0.4,
    people=300,
    items=400,
    boundaries=0.08,
    campaign_changes=0.05,
    shared=0.05,
    erasures=0.0,
    conversion=0.5,
    recovery=0.25,
    refunds=0.5,
    bots=0.1,
    heartbeat_s=0,
)


@cache
def world(events: int = 4_500, **changes: Any) -> tuple[Simulated, ...]:
    """A part of a day of the shop."""
    return tuple(simulate(replace(PROFILE, events=events, **changes)))


def truths(simulated: Iterable[Simulated], kind: str) -> dict[str, Truth]:
    """The truths of a kind, by identity."""
    return {t.truth_id: t for s in simulated for t in s.truths if t.kind == kind}
