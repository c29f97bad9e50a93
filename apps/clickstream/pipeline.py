"""The clickstream app's topology: visitors → persons, carts and shards → offers, boards and orders."""

from __future__ import annotations

from apps.clickstream.entities import Entities
from apps.clickstream.events import INPUTS
from apps.clickstream.reactions import Reactions
from apps.clickstream.settings import ClickstreamSettings
from apps.clickstream.visitor import visitors
from millrace.topology import FirstOf, Input, RecordKey, Topology, Upsert, read


def topology(settings: ClickstreamSettings) -> Topology:
    """Return the app's topology; its tables and topics stand in the README."""
    names = settings.topics
    inputs = {name: Input(getattr(names, name), RecordKey()) for name in INPUTS}
    # What the app sends itself has the key of its sender: whom it concerns stands in it.
    inputs["forget"] = Input(names.forget, FirstOf(("subject",)), clock=False)
    first = visitors(settings.visitor_rules())
    return (
        read(inputs, control=names.control)
        .process(first)
        .key_by("key")
        .process(Entities(settings.entity_rules()))
        .key_by("key")
        .process(Reactions(settings.offer_rules()))
        .write(
            tables={
                f"{first.name}.sessions": Upsert("sessions", ("session_id",), "revision", "deleted"),
                f"{first.name}.funnels": Upsert("funnels", ("funnel", "session_id"), "revision", "deleted"),
                f"{first.name}.identities": Upsert("identities", ("visitor_id",), "revision", "deleted"),
                f"{first.name}.consents": "consents",
                f"{first.name}.erasures": "erasures",
                f"{first.name}.late": "late",
                f"{first.name}.dead_letters": "dead_letters",
                "Entities.abandonments": "abandonments",
                "Entities.profiles": Upsert("profiles", ("person",), "revision", "deleted"),
                "Entities.items": Upsert("items", ("item_id",), "as_of_ms"),
                "Entities.late": "late_acts",
                "Entities.dead_letters": "dead_acts",
                "main": "offers",
                "outcomes": Upsert("outcomes", ("offer_id",)),
                "boards": Upsert("boards", ("board", "window_end_ms", "rank"), "revision", "deleted"),
                "attributions": Upsert("attributions", ("order_id",), "revision"),
                "late": "late_reactions",
                "dead_letters": "dead_reactions",
            },
            topics={
                "main": names.offers,
                "Entities.forget": names.forget,
                f"{first.name}.dead_letters": names.dead_letters,
            },
        )
    )
