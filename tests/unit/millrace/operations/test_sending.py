"""What operators send, against librdkafka's broker in this process: typed, in order, and acknowledged."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import msgspec
import pytest

from millrace.errors import UserError
from millrace.kafka import detached
from millrace.operations import sending
from millrace.operations.sending import NoBroker, NotSent, bootstrap_of, checked, send, who
from millrace.rules import ApproveRule, RuleEvent, SetRuleState
from millrace.runtime.settings import KafkaSettings
from tests.unit.millrace.operations.cases import MockBroker, messages_of, records_of


@pytest.fixture(scope="module")
def broker() -> Iterator[MockBroker]:
    mock = MockBroker()
    yield mock
    mock.stop()


def kafka_of(broker: MockBroker) -> KafkaSettings:
    return KafkaSettings(bootstrap=broker.bootstrap)


def approval(number: int, by: str = "bob") -> ApproveRule:
    return ApproveRule("big", number, by, 5)


def test_events_stand_in_the_topic_in_order_when_it_returns(broker: MockBroker) -> None:
    topic = broker.topic()
    events = [("rules", approval(number)) for number in range(1, 21)]
    places = send(kafka_of(broker), topic, RuleEvent, events, partition=0)
    assert places == [(0, number) for number in range(20)]
    assert records_of(broker.bootstrap, topic) == [
        (
            b"rules",
            b'{"kind":"approve_rule","id":"big","version":%d,"by":"bob","at_ms":5,"reason":""}' % number,
        )
        for number in range(1, 21)
    ]


def test_without_a_partition_a_key_says_where(broker: MockBroker) -> None:
    topic = broker.topic()
    events = [(f"k{number % 7}", approval(number)) for number in range(1, 30)]
    places = send(kafka_of(broker), topic, RuleEvent, events)
    of_key: dict[str, list[tuple[int, int]]] = {}
    for (key, _), place in zip(events, places, strict=True):
        of_key.setdefault(key, []).append(place)
    assert len({p for p, _ in places}) > 1
    for found in of_key.values():
        assert len({partition for partition, _ in found}) == 1
        assert found == sorted(found)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (approval(0), "Expected `int` >= 1"),
        (approval(1, by=""), "Expected `str` of length >= 1"),
        (approval(1, by="\udcff"), "surrogates not allowed"),
        (SetRuleState("big", 1, "gone", "ann", 5), "Invalid enum value 'gone'"),  # type: ignore[arg-type]
        (ApproveRule("big", 1, "bob", 5, reason="x" * 2_001), "length <= 2000"),
        (approval(2**70), "Integer value out of range|Expected `int`"),
    ],
)
def test_nothing_is_sent_where_one_event_does_not_keep_the_contract(
    broker: MockBroker, event: Any, why: str
) -> None:
    topic = broker.topic()
    with pytest.raises(NotSent, match=rf"nothing was sent, since the app would not take it: .*({why})"):
        send(kafka_of(broker), topic, RuleEvent, [("a", approval(1)), ("b", event)], partition=0)
    assert messages_of(broker.bootstrap, topic) == []


def test_what_is_too_large_for_the_broker_is_told_with_what_it_has_taken(broker: MockBroker) -> None:
    class Note(msgspec.Struct):
        text: str

    topic = broker.topic()
    events = [("a", Note("small")), ("b", Note("x" * 2_000_000)), ("c", Note("after"))]
    with pytest.raises(NotSent, match=rf"{topic} at .* has taken 1 of 3 messages: .*too large"):
        send(kafka_of(broker), topic, Note, events, partition=0)
    assert messages_of(broker.bootstrap, topic) == [b'{"text":"small"}']


SILENT = object()


class Refusing:
    """A producer whose broker says of each message what a test wants it to say."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.reports: list[Callable[[Any, Any], None]] = []

    def produce(
        self, topic: str, value: bytes, key: bytes, partition: int, on_delivery: Callable[[Any, Any], None]
    ) -> None:
        self.reports.append(on_delivery)

    def flush(self, timeout: float) -> int:
        for answer, report in zip(self.answers, self.reports, strict=True):
            if answer is not SILENT:
                report(answer, Taken())
        return sum(answer is SILENT for answer in self.answers)


class Taken:
    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 3


REFUSED = confluent_kafka.KafkaError(confluent_kafka.KafkaError.NOT_ENOUGH_REPLICAS)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([REFUSED], "0 of 1 messages: .*replicas"),
        ([None, REFUSED], "1 of 2 messages: .*replicas"),
        ([SILENT], "0 of 1 messages: no answer within 20 s"),
        ([None, None, SILENT], "2 of 3 messages: no answer within 20 s"),
    ],
)
def test_what_the_broker_has_not_acknowledged_is_not_done(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, answers: list[Any], said: str
) -> None:
    monkeypatch.setattr(confluent_kafka, "Producer", lambda config: Refusing(answers))
    events = [("rules", approval(n + 1)) for n in range(len(answers))]
    with pytest.raises(NotSent, match=f"topic at .* has taken {said}"):
        send(kafka_of(broker), "topic", RuleEvent, events)


def test_a_broker_acknowledges_after_all_its_copies_have_it(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[dict[str, Any]] = []

    def made(config: dict[str, Any]) -> Refusing:
        configs.append(config)
        return Refusing([None])

    monkeypatch.setattr(confluent_kafka, "Producer", made)
    kafka = KafkaSettings(bootstrap=broker.bootstrap, options={"client.id": "desk", "linger.ms": "1"})
    assert send(kafka, "topic", RuleEvent, [("rules", approval(1))], timeout_s=7) == [(0, 3)]
    (config,) = configs
    # Idempotence takes in acks=all and the order of messages.
    assert (config["enable.idempotence"], config["message.timeout.ms"]) == (True, 7_000)
    assert (config["client.id"], config["linger.ms"]) == ("desk", "1")


def test_an_option_that_no_client_knows_is_one_line(broker: MockBroker) -> None:
    kafka = KafkaSettings(bootstrap=broker.bootstrap, options={"no.such.option": "1"})
    with pytest.raises(UserError, match=r"no\.such\.option") as told:
        send(kafka, "topic", RuleEvent, [("rules", approval(1))])
    assert "\n" not in str(told.value)


def test_no_broker_is_told_with_its_address_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(NoBroker) as told:
            send(KafkaSettings(bootstrap=address), "t", RuleEvent, [("rules", approval(1))], timeout_s=0.3)
    assert str(told.value) == (
        f"no broker at {address} (waited 0.3 s): start it, or give another with --bootstrap HOST:PORT"
    )


def test_a_broker_that_nobody_names_is_the_one_that_runs_detached(monkeypatch: pytest.MonkeyPatch) -> None:
    class Running:
        bootstrap = "127.0.0.1:9"

    assert bootstrap_of(KafkaSettings(bootstrap="shop:9092")) == "shop:9092"
    monkeypatch.setattr(detached, "find", lambda: Running)
    assert bootstrap_of(KafkaSettings()) == "127.0.0.1:9"
    monkeypatch.setattr(detached, "find", lambda: None)
    with pytest.raises(NoBroker, match="no broker is named, and none runs: give --bootstrap HOST:PORT"):
        bootstrap_of(KafkaSettings())


def test_no_events_need_no_broker() -> None:
    assert send(KafkaSettings(), "topic", RuleEvent, []) == []


def test_who_acts_is_who_is_named_else_who_has_logged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "eva")
    assert (who(None), who("ann"), who(" bob ")) == ("eva", "ann", "bob")
    with pytest.raises(UserError, match="nobody is named"):
        who("  ")

    def nobody() -> str:
        raise OSError("no such user")

    monkeypatch.setattr(getpass, "getuser", nobody)
    with pytest.raises(UserError, match="this session's user has no name: give --by NAME"):
        who(None)


def test_the_clock_is_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending.time, "time_ns", lambda: 1_234_567_899)
    assert sending.now_ms() == 1_234


def test_an_event_is_checked_as_it_comes_back() -> None:
    assert checked(approval(3), RuleEvent).startswith(b'{"kind":"approve_rule"')
    with pytest.raises(NotSent, match="kind"):
        checked(msgspec.structs.asdict(approval(3)), RuleEvent)
