"""The clickstream app's topology: visitors → persons, carts and shards → offers, boards and orders."""

from __future__ import annotations

from typing import Any

from millrace import KeyedProcess, multiplex
from millrace.time import ms
from millrace.topology import FirstOf, Input, RecordKey, Topology, Upsert, read
from millrace_apps.clickstream.contracts.events import INPUTS
from millrace_apps.clickstream.processes.attributions import Attributions
from millrace_apps.clickstream.processes.boards import Boards
from millrace_apps.clickstream.processes.caps import Caps
from millrace_apps.clickstream.processes.carts import CART_TIMEOUT_MS, Carts
from millrace_apps.clickstream.processes.channels import Channels
from millrace_apps.clickstream.processes.offer_matches import OfferMatches
from millrace_apps.clickstream.processes.offer_rules import DEFAULT_RULES, OfferRule
from millrace_apps.clickstream.processes.offering import Offers
from millrace_apps.clickstream.processes.orders import Orders
from millrace_apps.clickstream.processes.persons import Persons
from millrace_apps.clickstream.processes.revenue import Revenue
from millrace_apps.clickstream.processes.shards import Shards
from millrace_apps.clickstream.processes.visitor import visitors
from millrace_apps.clickstream.recommend.process import Recommender
from millrace_apps.clickstream.settings import ClickstreamSettings
from millrace_apps.clickstream.state import earlier
from millrace_apps.clickstream.state.browser_state import HOLDOUT
from millrace_apps.clickstream.state.profiles import LOOK_BACK_MS


def entities(
    cart_timeout_ms: int = CART_TIMEOUT_MS,
    orders: Orders | None = None,
    look_back_ms: int = LOOK_BACK_MS,
    *,
    merges_caps: bool = False,
    persons: Persons | None = None,
) -> KeyedProcess[Any, Any]:
    """Return the processes of carts, persons, shards and orders, in one operator.

    Args:
        cart_timeout_ms: A cart is left when nothing happens to it for longer than this, ms.
        orders: That of orders, with what it is told of currencies and tax.
        look_back_ms: A touch so long before an order has not brought it, ms.
        merges_caps: Whether what was offered in a browser counts for whoever logs in there.
        persons: That of persons, where it is told more than that.
    """
    return multiplex(
        {
            "carts": Carts(cart_timeout_ms),
            "persons": persons or Persons(look_back_ms=look_back_ms, merges_caps=merges_caps),
            "shards": Shards(),
            "orders": orders or Orders(),
        },
        name="Entities",
        converts={1: earlier.ENTITIES, 3: earlier.BEFORE_ORDERS},
    )


def results(
    rules: tuple[OfferRule, ...] = DEFAULT_RULES,
    holdout: float = HOLDOUT,
    channels: Channels | None = None,
    *,
    merges_caps: bool = False,
) -> KeyedProcess[Any, Any]:
    """Return the processes of offers, boards, attributions and books, in one operator.

    Args:
        rules: Rules of offers.
        holdout: Share of the persons who are offered nothing by any rule.
        channels: What tells where visits come from.
        merges_caps: Whether caps are a person's over all browsers: then :class:`Caps` makes the offers.
    """
    return multiplex(
        {
            "offers": OfferMatches(rules, holdout) if merges_caps else Offers(rules, holdout),
            "boards": Boards(),
            "orders": Attributions(channels),
            "revenue": Revenue(),
        },
        name="Results",
        stored_as="Reactions",
        converts={1: earlier.RESULTS, 3: earlier.BEFORE_ORDERS},
    )


def followed(
    visited: Topology,
    then: KeyedProcess[Any, Any],
    last: KeyedProcess[Any, Any],
    caps: Caps | None = None,
) -> Topology:
    """Return a topology of visitors with what follows from them.

    Args:
        visited: It begins with the visitors.
        then: The process of :func:`entities`.
        last: The process of :func:`results`.
        caps: What makes the offers, where ``last`` only finds whom rules match.
    """
    first = visited.links[0].name
    led = f"{first}." if len(visited.links) > 1 else ""
    found = (
        visited.key_by(
            {
                "carts": "cart_id",
                "persons": "person",
                "shards": "shard",
                "orders_told": "order_id",
                "orders_refunded": "order_id",
            },
            output={
                "carts": f"{led}carts",
                "persons": f"{led}main",
                "shards": f"{led}counts",
                "orders_told": f"{led}orders",
                "orders_refunded": f"{led}refunds",
            },
        )
        .process(then)
        .key_by(
            {
                "offers_persons": "person",
                "offers_carts": "person",
                "boards": "window",
                "orders_placed": "order_id",
                "orders_refunded": "order_id",
                "orders_valued": "order_id",
                "revenue": "book",
            },
            output={
                "offers_persons": "persons",
                "offers_carts": "carts",
                "boards": "shards",
                "orders_placed": "placed",
                "orders_refunded": f"{first}.refunds",
                "orders_valued": "orders",
                "revenue": "bookings",
            },
        )
        .process(last)
    )
    return found if caps is None else found.key_by("person", output="offers").process(caps)


def topology(settings: ClickstreamSettings, offers: tuple[OfferRule, ...] | None = None) -> Topology:
    """Return the app's topology; its tables and topics stand in the README.

    Args:
        settings: The app's settings.
        offers: Rules of offers in place of those of the settings.
    """
    names = settings.topics
    inputs = {name: Input(getattr(names, name), RecordKey()) for name in INPUTS}
    # What the app sends itself has the key of its sender: whom it concerns stands in it.
    inputs["consents"] = Input(names.consents, FirstOf(("visitor_id",)))
    inputs["forget"] = Input(names.forget, FirstOf(("subject",)), clock=False)
    # A catalogue may be of long ago, and its changes dated ahead.
    inputs["items"] = Input(names.items, FirstOf(("item_id",)), clock=False)
    first = visitors(settings.visitor_rules())
    visited = read(inputs, control=names.control).process(first)
    tables: dict[str, str | Upsert] = {}
    topics = {}
    if settings.recommend.on:
        visited = visited.key_by("shop", output="looks").process(Recommender(settings.recommending()))
        tables = {
            "Recommender.main": "recommendations",
            "Recommender.quality": "recommendation_quality",
            "Recommender.examples": "recommendation_examples",
            "Recommender.clicks": "recommendation_clicks",
            "Recommender.click_through": "recommendation_click_through",
            "Recommender.late": "late_recommendations",
            "Recommender.dead_letters": "dead_recommendations",
        }
        topics = {"Recommender.main": names.recommendations}
    rules = settings.offer_rules() if offers is None else offers
    holdout, merges = settings.offers.control, settings.offers.merge_caps
    # Outputs of the last link have their bare names.
    third = "Results." if merges else ""
    if merges:
        tables |= {"cap_changes": "cap_changes", "Results.late": "late_results", "late": "late_offers",
                   "Results.dead_letters": "dead_results", "dead_letters": "dead_offers"}  # fmt: skip
    else:
        tables |= {"late": "late_results", "dead_letters": "dead_results"}
    return followed(
        visited,
        entities(ms(settings.cart_timeout), settings.orders_process(), persons=settings.persons_process()),
        results(rules, holdout, settings.channels_table(), merges_caps=merges),
        Caps(rules, holdout) if merges else None,
    ).write(
        tables={
            **tables,
            f"{first.name}.sessions": Upsert("sessions", ("session_id",), "revision", "deleted"),
            f"{first.name}.funnels": Upsert("funnels", ("funnel", "session_id"), "revision", "deleted"),
            f"{first.name}.identities": Upsert("identities", ("visitor_id",), "revision", "deleted"),
            f"{first.name}.owner_changes": Upsert(
                "owner_changes", ("visitor_id", "from_ms"), "revision", "deleted"
            ),
            f"{first.name}.consents": Upsert("consents", ("visitor_id", "consent_id"), "revision"),
            f"{first.name}.erasures": "erasures",
            f"{first.name}.late": "late",
            f"{first.name}.dead_letters": "dead_letters",
            "Entities.abandonments": "abandonments",
            "Entities.profiles": Upsert("profiles", ("person",), "revision", "deleted"),
            "Entities.person_funnels": Upsert(
                "person_funnels", ("funnel", "person", "way"), "revision", "deleted"
            ),
            "Entities.items": Upsert("items", ("item_id",), "as_of_ms"),
            "Entities.order_rows": Upsert("orders", ("order_id",), "revision"),
            "Entities.late": "late_entities",
            "Entities.dead_letters": "dead_entities",
            "main" if merges else "offers": "offers",
            "outcomes": Upsert("outcomes", ("offer_id",)),
            f"{third}boards": Upsert("boards", ("board", "window_end_ms", "rank"), "revision", "deleted"),
            f"{third}orders": Upsert("attributions", ("order_id",), "revision"),
            f"{third}revenue": Upsert("revenue", ("day", "currency"), "revision"),
        },
        topics={
            **topics,
            "main" if merges else "offers": names.offers,
            "Entities.forget": names.forget,
            "Entities.consents": names.consents,
            f"{first.name}.dead_letters": names.dead_letters,
        },
    )
