"""Topics that no table has, of two versions, on a real broker: read on, and compared."""

from __future__ import annotations

from millrace.kafka.admin import end_offsets
from millrace.operations.reading import Stored, read_on
from millrace.runtime.settings import KafkaSettings
from millrace.testing.kafka import Record, TopicFactory, produce
from millrace.upgrading.sent import SentTopic, reader


def said(*ids: str, value: bytes = b"{}") -> list[Record]:
    return [Record(value, key=one, headers=[("event_id", one.encode())]) for one in ids]


def test_a_topic_is_read_on_from_where_it_was_read_to_where_it_ends(
    kafka_bootstrap: str, topic_factory: TopicFactory
) -> None:
    topic, kafka = topic_factory(2), KafkaSettings(bootstrap=kafka_bootstrap)
    found: list[Stored] = []
    assert read_on(kafka, f"{topic}-none", {}, found.append) == {}
    produce(kafka_bootstrap, topic, said("a", "b", "c"))
    first = read_on(kafka, topic, {}, found.append)
    assert (first, sorted(one.event_id for one in found)) == (
        end_offsets(kafka_bootstrap, topic),
        ["a", "b", "c"],
    )
    found.clear()
    assert read_on(kafka, topic, first, found.append) == first
    produce(kafka_bootstrap, topic, [*said("d"), Record(b"of somebody else")])
    then = read_on(kafka, topic, first, found.append)
    assert sorted(one.event_id for one in found) == ["", "d"]
    found.clear()
    assert read_on(kafka, topic, {}, found.append, first) == first
    assert sorted(one.event_id for one in found) == ["a", "b", "c"], "and no further"
    assert then == end_offsets(kafka_bootstrap, topic)


def test_what_two_versions_sent_is_compared_where_it_stands(
    kafka_bootstrap: str, topic_factory: TopicFactory
) -> None:
    """What others say there, and what was there before, is no part of it.

    ::

    of blue     old |since  x  y  z  (other)   | later
    of green               x' y     n          | later
    """
    topic = topic_factory(3)
    green = topic_factory(1, prefix=f"{topic}.green")
    suffix = green.removeprefix(topic)
    produce(kafka_bootstrap, topic, said("old"))
    since = end_offsets(kafka_bootstrap, topic)
    produce(kafka_bootstrap, topic, [*said("x", "y", "z"), Record(b"of somebody else")])
    produce(kafka_bootstrap, green, [*said("x", value=b"[]"), *said("y", "y", "n")])
    sent = SentTopic(topic, suffix, since, reader(KafkaSettings(bootstrap=kafka_bootstrap)))
    sent.look()
    for name in (topic, green):
        produce(kafka_bootstrap, name, said("later"))
    sent.look()
    found = sent.difference()
    assert (found.same, found.only_blue, found.only_green, found.differ) == (1, 1, 1, 1)
    assert (found.blue, found.green, found.others, found.share) == (3, 3, 1, 1.0)
    assert found.examples == {"only_blue": ["z"], "only_green": ["n"], "differ": ["x"]}
