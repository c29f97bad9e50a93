"""The clickstream app's wiring: visitors → persons, carts and shards → offers, boards and orders."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from apps.clickstream.entities import Entities
from apps.clickstream.reactions import Reactions
from apps.clickstream.settings import ClickstreamSettings
from apps.clickstream.visitor import visitors
from millrace.connectors.router import Outputs, Upsert
from millrace.runtime.wiring import keyed_records


def wrapped(settings: ClickstreamSettings) -> Column:
    """Return a record's JSON with its stream and its key added: what the events have in common.

    They are added at the end, where they win over fields of the same name in what a browser has sent. A
    value that is no JSON object, or has no key, stays as it is, and becomes a dead letter.
    """
    names = settings.topics
    streams = {
        names.clicks: "clicks",
        names.customers: "customers",
        names.consents: "consents",
        names.refunds: "refunds",
        names.erasures: "erasures",
        names.forget: "forget",
    }
    stream = F.lit(None).cast("string")
    for topic, name in streams.items():
        stream = F.when(F.col("topic") == topic, F.lit(name)).otherwise(stream)
    text = F.col("value").cast("string")
    # What the app sends itself has the key of its sender: whom it concerns stands in it.
    subject = F.get_json_object(text, "$.subject")
    key = F.when(F.col("topic") == names.forget, subject).otherwise(F.col("key").cast("string"))
    ours = F.to_json(F.struct(stream.alias("stream"), key.alias("key")))
    # {"a":1} and {"stream":"x"} become {"a":1,"stream":"x"}.
    opened = F.regexp_replace(text, r"\}\s*$", ",")
    joined = F.concat(opened, F.substr(ours, F.lit(2)))
    is_object = (opened != text) & F.rlike(opened, F.lit(r"^\s*\{\s*[^\s,]"))
    # Bytes that are no text would be text after the replacement.
    fits = F.is_valid_utf8(F.col("value").cast("string")) & is_object & key.isNotNull() & stream.isNotNull()
    return F.when(fits, joined.cast("binary")).otherwise(F.col("value"))


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
    is_control = F.col("topic") == names.control
    records = streams["events"].withColumn(
        "value", F.when(is_control, F.col("value")).otherwise(wrapped(settings))
    )
    stream = (
        keyed_records(records, settings, by="key", control=is_control)
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
