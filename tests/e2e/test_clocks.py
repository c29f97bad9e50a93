"""Ticks through the control topic, and the end of a bounded input, on a real broker."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from millrace.host.system import Drain, Idle, Tick, decode_system
from millrace.testing.kafka import TopicFactory, consume_all
from tests.e2e.fraud_runs import MILLRACE, Command, run_arguments, table
from tests.e2e.fraud_stream import FraudTopics, ordered_stream
from tests.e2e.test_life_cycle import refused

# The broker, and the matrix: it waits a minute and more for clocks, of which unit tests have every case.
pytestmark = [pytest.mark.usefixtures("kafka_bootstrap"), pytest.mark.matrix]


def test_a_quiet_stream_ticks_and_a_drained_one_is_not_gone_on_from(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topics = FraudTopics.make(topic_factory)
    stream = ordered_stream(600, seed=4, cards=20, hours=2)
    stream.send(kafka_bootstrap, topics)
    arguments = run_arguments(
        kafka_bootstrap, topics, tmp_path / "app", ["stream.tick_interval=500ms", "stream.idle_after=1s"]
    )

    def sent() -> list[type]:
        messages = consume_all(kafka_bootstrap, topics.control)
        found = [decode_system(m.value() or b"") for m in messages]
        return [type(message) for message in found if message is not None]

    with Command([*MILLRACE, "run", *arguments], tmp_path) as command:
        command.until(lambda: {Tick, Idle} <= set(sent()), "ticks of both clocks are in the control topic")
        command.signal(signal.SIGTERM)
        assert command.wait() == 0, f"{command.out}\n{command.err}"
        command.check_nothing_left()
    decided = len(table(tmp_path / "app", "transactions"))
    with Command([*MILLRACE, "run", "--until-end", *arguments], tmp_path) as command:
        assert command.wait() == 0, f"{command.out}\n{command.err}"
        command.check_nothing_left()
    assert sent().count(Drain) == 1
    # Nothing of the engine's own messages is a dead letter, and no decision was taken twice.
    assert not [x for x in table(tmp_path / "app", "dead_letters") if b'"$millrace"' in (x["value"] or b"")]
    assert len(table(tmp_path / "app", "transactions")) == decided == len(stream.decisions)
    assert "has been drained" in refused(["--until-end", *arguments], tmp_path)
