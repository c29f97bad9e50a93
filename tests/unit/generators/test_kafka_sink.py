"""The Kafka sink against librdkafka's in-process broker, which speaks the real protocol."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from millrace.cli import main
from millrace.kafka.admin import BrokerUnreachable
from millrace_apps.generators.engine import Generated
from millrace_apps.generators.fraud import FraudProfile
from millrace_apps.generators.sinks import KafkaSink, SinkError
from tests.payments import transactions_of

PARTITIONS = 4


class MockBroker:
    """An in-process broker with one topic; it lives as long as its client."""

    def __init__(self) -> None:
        self.topic = f"topic-{uuid.uuid4().hex[:8]}"
        self._client: Producer | None = Producer(
            {"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0}
        )
        # Asking for a topic creates it, here with four partitions.
        metadata = self._client.list_topics(self.topic, timeout=10)
        self.bootstrap = ",".join(f"{b.host}:{b.port}" for b in metadata.brokers.values())

    def stop(self) -> None:
        self._client = None

    def read(self, count: int) -> list[Message]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "test", "log_level": 0})
        try:
            consumer.assign([TopicPartition(self.topic, n, OFFSET_BEGINNING) for n in range(PARTITIONS)])
            found: list[Message] = []
            deadline = time.monotonic() + 30
            while len(found) < count:
                assert time.monotonic() < deadline, f"{len(found)} of {count} messages"
                found += consumer.consume(1000, timeout=0.1)
            return found
        finally:
            consumer.close()


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    mock = MockBroker()
    yield mock
    mock.stop()


def messages(count: int = 2_000) -> list[Generated]:
    profile = FraudProfile(seed=7, events=count, cards=50, duplicates=0.05, malformed=0.05)
    found = list(transactions_of(profile))
    for message in found:
        message.topic = ""  # the sink's own
    return found


def send(sink: KafkaSink, stream: list[Generated]) -> None:
    with sink:
        for message in stream:
            sink.write(message)
        sink.flush()


def test_a_topic_gets_the_same_key_bytes_and_headers(broker: MockBroker) -> None:
    stream = messages()
    send(KafkaSink(broker.bootstrap, broker.topic), stream)
    found = broker.read(len(stream))
    assert sorted((m.key(), m.value(), tuple(m.headers() or ())) for m in found) == sorted(
        (m.key, m.value, tuple(m.headers)) for m in stream
    )


def test_a_key_stays_in_one_partition_and_in_order(broker: MockBroker) -> None:
    stream = messages()
    send(KafkaSink(broker.bootstrap, broker.topic), stream)
    found = broker.read(len(stream))
    for key in {message.key for message in stream}:
        mine = [message for message in found if message.key() == key]
        assert len({message.partition() for message in mine}) == 1
        assert [m.value() for m in mine] == [m.value for m in stream if m.key == key]
    assert len({message.partition() for message in found}) == PARTITIONS


def test_keys_land_where_java_clients_put_them(broker: MockBroker) -> None:
    """Kafka's DefaultPartitioner: murmur2(key) & 0x7fffffff % partitions."""
    stream = messages(500)
    send(KafkaSink(broker.bootstrap, broker.topic), stream)
    for message in broker.read(len(stream)):
        key = message.key()
        assert isinstance(key, bytes)
        assert message.partition() == (murmur2(key) & 0x7FFFFFFF) % PARTITIONS


def murmur2(data: bytes) -> int:
    """Kafka's murmur2, written from its definition."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return h ^ (h >> 15)


def test_murmur2_is_kafkas() -> None:
    # From Kafka's own UtilsTest.
    assert murmur2(b"21") - (1 << 32) == -973932308
    assert murmur2(b"foobar") - (1 << 32) == -790332482
    assert murmur2(b"a-little-bit-long-string") - (1 << 32) == -985981536


def test_a_full_queue_makes_the_sink_wait_and_loses_nothing(broker: MockBroker) -> None:
    stream = messages(300)
    sink = KafkaSink(broker.bootstrap, broker.topic, options={"queue.buffering.max.messages": "16"})
    send(sink, stream)
    assert len({(m.partition(), m.offset()) for m in broker.read(len(stream))}) == len(stream)


def test_messages_that_cannot_be_delivered_end_the_run(broker: MockBroker) -> None:
    stream = messages(100)
    sink = KafkaSink(broker.bootstrap, broker.topic, options={"message.timeout.ms": "500"})
    broker.stop()
    with pytest.raises(SinkError, match=f"not every message reached topic {broker.topic} .*timed out"):
        send(sink, stream)


def test_a_message_that_the_client_refuses_ends_the_run(broker: MockBroker) -> None:
    sink = KafkaSink(broker.bootstrap, broker.topic, options={"message.max.bytes": "1000"})
    big = Generated("run-1", b"k", b"x" * 2_000, [], 0, "purchase", 1)
    with pytest.raises(SinkError, match="too large"):
        send(sink, [big])


def test_no_broker_is_found_out_before_anything_is_generated() -> None:
    with pytest.raises(BrokerUnreachable, match=r"no Kafka broker answers at 127\.0\.0\.1:1 "):
        KafkaSink("127.0.0.1:1", "topic", connect_timeout_s=0.3)


def test_the_command_sends_to_the_broker_of_the_environment(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker.bootstrap)
    flags = ["--rate", "max", "--events", "500", "--seed", "7", "--topic", broker.topic, "--quiet"]
    # The mock broker does not tell the settings of its topics.
    flags += ["--timestamps", "append"]
    monkeypatch.setattr(sys, "argv", ["millrace", "generate", "stocks", *flags])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert len(broker.read(500)) == 500
    assert capfd.readouterr() == ("", "")
