"""Sending records to Kafka, from the driver and from tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest

from millrace.connectors import producing
from millrace.connectors.producing import Delivery, DeliveryFailed, Record, TaskSender
from millrace.host.chunks import encode_emissions
from millrace.host.runner import Emission

OPTIONS = {"bootstrap.servers": "nowhere:1"}


class Heard(Delivery):
    """A delivery that keeps what it is given, and refuses to say that it arrived when told so."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Record]] = []
        self.flushed = 0
        self.fails = False

    def send(self, topic: str, records: Iterable[Record]) -> None:
        self.sent += [(topic, record) for record in records]

    def flush(self) -> None:
        self.flushed = len(self.sent)
        if self.fails:
            raise DeliveryFailed("Kafka did not take 1 records: gone")


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """Stand in for the producer of a worker."""
    delivery = Heard()
    monkeypatch.setattr(producing, "_deliveries", {tuple(OPTIONS.items()): delivery})
    return delivery


def batch(*emissions: Emission) -> pa.RecordBatch:
    """Return emissions as the state operator gives them."""
    outputs, counts, chunks = zip(*encode_emissions(emissions), strict=True)
    return pa.RecordBatch.from_pydict({"output": outputs, "records": counts, "chunk": chunks})


def emission(output: str, key: str, event_id: str | None = "e") -> Emission:
    return Emission(output, event_id, f"{len(key)}:{key}", 5, True, b'{"of":"%s"}' % key.encode())


def run(sender: TaskSender, *batches: pa.RecordBatch) -> Iterator[str]:
    for found in sender(iter(batches)):
        yield from found["output"].to_pylist()


def test_outputs_go_to_their_topics_and_what_others_need_passes(heard: Heard) -> None:
    sender = TaskSender(
        {"main": "decisions", "alerts": "alerts"}, frozenset({"main", "dead_letters"}), OPTIONS
    )

    passed = list(
        run(
            sender,
            batch(emission("main", "a"), emission("alerts", "a:b", None), emission("dead_letters", "c")),
            batch(emission("main", "ü"), emission("other", "d")),
        )
    )

    assert passed == ["main", "dead_letters", "main"]
    assert heard.sent == [
        ("decisions", (b"a", b'{"of":"a"}', [("event_id", b"e")])),
        ("alerts", (b"a:b", b'{"of":"a:b"}', [])),
        ("decisions", ("ü".encode(), '{"of":"ü"}'.encode(), [("event_id", b"e")])),
    ]
    assert heard.flushed == 3


def test_a_task_fails_when_a_record_did_not_arrive_and_its_producer_is_not_used_again(heard: Heard) -> None:
    heard.fails = True

    with pytest.raises(DeliveryFailed):
        list(run(TaskSender({"main": "t"}, frozenset(), OPTIONS), batch(emission("main", "a"))))

    assert producing._deliveries == {}


def test_a_task_without_records_for_topics_needs_no_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producing, "_deliveries", {})

    assert list(
        run(TaskSender({"main": "t"}, frozenset({"late"}), OPTIONS), batch(emission("late", "a")))
    ) == ["late"]

    assert producing._deliveries == {}


def test_what_does_not_arrive_is_an_error() -> None:
    delivery = Delivery({"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 100})
    delivery.send("t", [(b"k", b"v", [("event_id", b"e")])])

    with pytest.raises(DeliveryFailed, match="did not take 1 records"):
        delivery.flush()


def test_options_of_the_client_are_not_shown() -> None:
    """They may hold passwords, and a task's function stands in plans and errors."""
    assert "secret" not in repr(TaskSender({}, frozenset(), {"sasl.password": "secret"}))
