"""Reading topics to where they end, with a broker's consumer played by a script of what it gives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, TopicPartition

from millrace.errors import UserError
from millrace.kafka import admin
from millrace.operations import reading
from millrace.operations.reading import Stored, read_topics
from millrace.operations.sending import NoBroker
from millrace.runtime.settings import KafkaSettings


class Message:
    """What a consumer gives: a record, or an error."""

    def __init__(
        self, topic: str, offset: int, error: int | None = None, at_ms: int = 0, identity: bytes = b""
    ):
        self._topic, self._offset, self._error, self._at_ms = topic, offset, error, at_ms
        self._identity = identity

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)

    def headers(self) -> list[tuple[str, bytes]] | None:
        return [("event_id", self._identity)] if self._identity else None

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return str(self._offset).encode()

    def timestamp(self) -> tuple[int, int]:
        return 1, self._at_ms


class Player:
    """A consumer of topics of one partition each: of each where it begins and ends, and what comes."""

    def __init__(
        self, bounds: dict[str, tuple[int, int]], *batches: list[Message], times: dict[str, int]
    ) -> None:
        self._bounds, self._batches, self._times = bounds, list(batches), times
        self.asked: list[str] = []
        self.begun: dict[str, int] = {}
        self.closed = False

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        self.asked.append(place.topic)
        return self._bounds[place.topic]

    def offsets_for_times(self, places: Iterable[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition(p.topic, p.partition, self._times[p.topic]) for p in places]

    def assign(self, places: Iterable[TopicPartition]) -> None:
        self.begun = {place.topic: place.offset for place in places}

    def consume(self, count: int, timeout: float) -> list[Message]:
        return self._batches.pop(0) if self._batches else []

    def close(self) -> None:
        self.closed = True


def read(
    patch: pytest.MonkeyPatch, bounds: dict[str, tuple[int, int]], *batches: list[Message],
    times: dict[str, int] | None = None, **more: Any,
) -> tuple[list[Stored], Player]:  # fmt: skip
    player = Player(bounds, *batches, times=times or {})
    patch.setattr(reading, "reachable", lambda kafka: "nowhere:1")
    patch.setattr(admin, "topic_partitions", lambda bootstrap, options: dict.fromkeys(bounds, 1))
    patch.setattr(confluent_kafka, "Consumer", lambda config: player)
    found: list[Stored] = []
    try:
        read_topics(KafkaSettings(), [*bounds, "not there"], found.append, quiet_s=0.0, **more)
    finally:
        assert player.closed or "needed" in more
    return found, player


def test_topics_are_read_to_where_they_ended_in_the_order_of_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes behind the end, while others are read, is left out."""
    said = [Message("said", 0, at_ms=7, identity=b"e0"), Message("said", 1), Message("said", 2)]
    found, player = read(
        monkeypatch, {"said": (0, 2), "empty": (5, 5), "came": (0, 1)}, said, [Message("came", 0)], from_ms=0,
        times={"said": 0, "came": 0},
    )  # fmt: skip
    assert found == [
        Stored("said", "k", b"0", 7, "e0"), Stored("said", "k", b"1", 0, ""), Stored("came", "k", b"0", 0, "")
    ]  # fmt: skip
    assert player.asked == ["said", "empty", "came"]


def test_a_topic_that_ends_with_a_transactions_mark_ends_there(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Message("said", 3, KafkaError._PARTITION_EOF)
    found, _ = read(monkeypatch, {"said": (0, 3)}, [Message("said", 0), end])
    assert [record.value for record in found] == [b"0"]


def test_from_a_time_on_only_what_is_of_it_and_later_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = {"said": (4, 9), "old": (0, 3)}
    _, player = read(monkeypatch, bounds, [Message("said", 8)], from_ms=1, times={"said": 6, "old": -1})
    assert player.begun == {"said": 6}


def test_a_topic_whose_words_hold_on_is_read_from_the_first_record_that_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds = {"said": (4, 9), "control": (2, 3)}
    for from_ms in (1, None):
        more: dict[str, Any] = {"from_ms": from_ms, "whole": ["control"] if from_ms else list(bounds)}
        batches = [Message("said", 8)], [Message("control", 2)]
        found, player = read(monkeypatch, bounds, *batches, times={"said": 6}, **more)
        assert player.begun == {"said": 6 if from_ms else 4, "control": 2}
        assert [record.topic for record in found] == ["said", "control"]


def test_records_that_may_be_deleted_are_not_gone_without(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="the first 4 records of said are deleted: say with --since"):
        read(monkeypatch, {"said": (4, 9)})
    with pytest.raises(UserError, match="the first 4 records of said are deleted, and may have been needed"):
        read(monkeypatch, {"said": (4, 9)}, from_ms=1, times={"said": 4})


def test_what_does_not_come_or_cannot_be_read_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoBroker, match="nothing came of said, partition 0"):
        read(monkeypatch, {"said": (0, 2)}, [Message("said", 0)])
    with pytest.raises(NoBroker, match="said cannot be read"):
        read(monkeypatch, {"said": (0, 2)}, [Message("said", 0, KafkaError.TOPIC_AUTHORIZATION_FAILED)])
    with pytest.raises(UserError, match="there is no topic not there"):
        read(monkeypatch, {"said": (0, 2)}, needed=["not there"])
