"""What a demo shows of a topic: all that stood there when it ended, each once, however slowly it comes."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from millrace.console.live_panels import AlertLine
from millrace.demo import AlertTail


class Message(NamedTuple):
    """A message, or the end of a partition."""

    number: int
    name: str = ""
    of: int = 0

    def error(self) -> Any:
        return None if self.name else KafkaError(KafkaError._PARTITION_EOF)

    def headers(self) -> list[tuple[str, bytes]]:
        return [("event_id", self.name.encode())]

    def value(self) -> bytes:
        return self.name.encode()

    def partition(self) -> int:
        return self.of

    def offset(self) -> int:
        return self.number


class Topic:
    """A consumer of a topic of two partitions; what is written after the stop comes bit by bit."""

    made: Topic | None = None
    stop: threading.Event

    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.coming, self.highs = config, deque[list[Message]](), {0: 0, 1: 0}
        self.asked, self.gone, self.closed = threading.Event(), False, False
        Topic.made = self

    def subscribe(self, topics: list[str]) -> None:
        assert topics == ["alerts"]

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition("alerts", n) for n in self.highs]

    def get_watermark_offsets(self, one: TopicPartition, timeout: float) -> tuple[int, int]:
        if self.gone:
            raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        return 0, self.highs[one.partition]

    def consume(self, most: int, timeout: float) -> list[Message]:
        self.asked.set()
        return self.coming.popleft() if self.coming and self.stop.is_set() else []

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def tail(monkeypatch: pytest.MonkeyPatch) -> AlertTail:
    monkeypatch.setattr(confluent_kafka, "Consumer", Topic)
    tail = AlertTail("localhost:1", "alerts", {}, lambda value: AlertLine("", value.decode(), ""))
    Topic.made, Topic.stop = None, tail._stop
    return tail


def reading() -> Topic:
    """The consumer, once it reads."""
    while Topic.made is None or not Topic.made.asked.wait(0.01):
        pass
    return Topic.made


def test_what_was_written_before_the_end_is_read_however_late_it_comes(tail: AlertTail) -> None:
    with tail:
        topic = reading()
        # The ends are known before what leads to them: a fetch is on its way.
        topic.highs = {0: 3, 1: 2}
        topic.coming.extend(
            [
                [],
                [Message(0, "a"), Message(1, "b")],
                [Message(2)],  # the end of the partition as the consumer knew it, long ago
                [],
                [Message(0, "c", 1), Message(0, "c", 1), Message(1, "d", 1)],
                [Message(2, "e")],
                [Message(3, "written later")],
            ]
        )
    assert tail.ids == {"a", "b", "c", "d", "e"}
    assert [line.key for line in tail.lines] == ["a", "b", "c", "d", "e"]
    assert topic.closed


def test_an_end_that_no_message_stands_before_is_one(
    tail: AlertTail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks of transactions have offsets and are no messages: the broker's word for the end counts."""
    with tail:
        topic = reading()
        topic.highs = {0: 2}
        monkeypatch.setattr("millrace.demo._LAST_READ_S", 3_600.0)
        topic.coming.extend([[Message(0, "a")], [Message(2)], [Message(2, "written later")]])
    assert tail.ids == {"a"}


def test_a_broker_that_is_gone_does_not_hold_the_end_up(tail: AlertTail) -> None:
    with tail:
        topic = reading()
        topic.gone = True
    assert tail.ids == set()
    assert topic.closed
