"""The clickstream app's wiring: visitors → persons, carts and shards → offers, boards and orders."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from apps.clickstream.entities import Entities
from apps.clickstream.events import INPUTS
from apps.clickstream.reactions import Reactions
from apps.clickstream.settings import ClickstreamSettings
from apps.clickstream.visitor import visitors
from millrace.connectors.router import Outputs, Upsert
from millrace.runtime.wiring import keyed_records


def _keys() -> dict[str, Column]:
    """Return the key of each stream: the browser or the account that an event is about."""
    key = F.nullif(F.col("key").cast("string"), F.lit(""))
    # What the app sends itself has the key of its sender: whom it concerns stands in it.
    subject = F.get_json_object(F.col("value").cast("string"), "$.subject")
    return {**dict.fromkeys(INPUTS, key), "forget": subject}


def build(streams: Mapping[str, DataFrame], settings: ClickstreamSettings) -> Outputs:
    """Wire the pipeline; nothing starts here.

    Args:
        streams: ``events``: Kafka records of the app's topics, as
            :func:`millrace.connectors.kafka.kafka_stream` gives them.
        settings: The app's settings.

    Returns:
        Tables and topics; see the README.
    """
    names = settings.topics
    stream = (
        keyed_records(
            streams["events"],
            settings,
            by=_keys(),
            topics={name: getattr(names, name) for name in INPUTS},
            control=F.col("topic") == names.control,
            clock={"forget": False},
        )
        .process(visitors(settings.visitor_rules()))
        .key_by("key")
        .process(Entities(settings.entity_rules()))
        .key_by("key")
        .process(Reactions(settings.offer_rules()))
    )
    first = visitors(settings.visitor_rules()).name
    return Outputs(
        stream=stream,
        tables={
            f"{first}.sessions": Upsert("sessions", ("session_id",), "revision", "deleted"),
            f"{first}.funnels": Upsert("funnels", ("funnel", "session_id"), "revision", "deleted"),
            f"{first}.identities": Upsert("identities", ("visitor_id",), "revision", "deleted"),
            f"{first}.consents": "consents",
            f"{first}.erasures": "erasures",
            f"{first}.late": "late",
            f"{first}.dead_letters": "dead_letters",
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
            f"{first}.dead_letters": names.dead_letters,
        },
    )
