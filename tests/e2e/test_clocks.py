"""Ticks through the control topic, and the end of a bounded input, on a real broker."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from millrace.host.system import Drain, Idle, Tick, decode_system, encode_system
from millrace.runtime.clock_files import read_settings, read_status
from millrace.testing.kafka import TopicFactory, consume_all, produce
from tests.e2e.fraud_runs import MILLRACE, Command, run_arguments, run_to_end, table
from tests.e2e.fraud_stream import FraudTopics, by, ordered_stream
from tests.e2e.test_life_cycle import refused

pytestmark = [pytest.mark.usefixtures("kafka_bootstrap")]


@pytest.mark.long
def test_drains_and_silences_of_other_readers_are_not_ones_own(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    """The first reader drains, and the second one, in small batches, finds what it said of time."""
    topics = FraudTopics.make(topic_factory)
    stream = ordered_stream(600, seed=5, cards=20, hours=2)
    stream.send(kafka_bootstrap, topics)
    run_to_end(kafka_bootstrap, topics, tmp_path / "first", drain=True)
    end, read = stream.messages[-1].event_time_ms, stream.messages[-1].due_ms
    of_first = [Idle(end + 7_200_000 + n, (topics.transactions,), read) for n in range(20)]
    of_others = [Idle(end + 9_000_000, ("other",), None), Idle(end + 9_000_000), Tick(end + 9_000_000)]
    produce(kafka_bootstrap, topics.control, [encode_system(message) for message in (*of_first, *of_others)])
    run_to_end(kafka_bootstrap, topics, tmp_path / "second", ["stream.max_offsets_per_trigger=150"])
    sent = [decode_system(m.value() or b"") for m in consume_all(kafka_bootstrap, topics.control)]
    assert [type(message) for message in sent if message is not None].count(Drain) == 1
    for root in ("first", "second"):
        assert by("transaction_id", table(tmp_path / root, "transactions")).keys() == stream.decisions.keys()
    # Many batches; the first reader's silence is one here, too, when all that it had read is read.
    (kept,) = read_settings(tmp_path / "second")
    assert kept.settings.topics == (topics.transactions,)
    last = max(int(path.name) for path in (tmp_path / "second" / "clock").iterdir())
    assert last >= 4
    status = read_status(tmp_path / "second", last)
    assert status is not None
    assert status.watermark <= end + 19


@pytest.mark.matrix  # it waits a minute and more for clocks, of which unit tests have every case
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
