"""Asking a broker where a topic ends while one of its partitions has no leader."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from millrace.errors import UserError
from millrace.kafka import admin


class _Broker:
    """Refuses with the given errors, one a time that it is asked, and then answers."""

    def __init__(self, *refusals: int) -> None:
        self.refusals = list(refusals)
        self.asked = 0

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(topics={"t": SimpleNamespace(partitions={0: None})})

    def list_offsets(self, asked: Any, **_: Any) -> Any:
        self.asked += 1
        answer: Future[Any] = Future()
        if self.refusals:
            answer.set_exception(KafkaException(KafkaError(self.refusals.pop(0))))
        else:
            answer.set_result(SimpleNamespace(offset=7))
        return dict.fromkeys(asked, answer)


def _with(monkeypatch: pytest.MonkeyPatch, broker: _Broker) -> _Broker:
    monkeypatch.setattr(admin, "AdminClient", lambda _: broker)
    monkeypatch.setattr(admin, "_AGAIN_S", 0.001)
    return broker


def test_a_partition_without_a_leader_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = _with(monkeypatch, _Broker(*sorted(admin.WITHOUT_LEADER)))
    assert admin.end_offsets("b:1", "t") == {0: 7}
    assert broker.asked == 1 + len(admin.WITHOUT_LEADER)


@pytest.mark.parametrize(
    ("refusals", "wait_s"),
    [((KafkaError.TOPIC_AUTHORIZATION_FAILED,), 30.0), ((KafkaError.UNKNOWN_LEADER_EPOCH,) * 9_999, 0.05)],
)
def test_what_does_not_pass_is_told(
    refusals: tuple[int, ...], wait_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with(monkeypatch, _Broker(*refusals))
    with pytest.raises(UserError, match="topic t at b:1: Broker"):
        admin.end_offsets("b:1", "t", timeout_s=wait_s)
