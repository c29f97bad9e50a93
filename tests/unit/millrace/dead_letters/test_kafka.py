"""Both ends of a replay against librdkafka's in-process broker, and the commands over them."""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from millrace.cli import main
from millrace.dead_letters.journal import Journal
from millrace.dead_letters.kafka import KafkaOriginals, KafkaSender
from millrace.dead_letters.letters import DeadLetterTable, Position
from millrace.dead_letters.replay import Original, Outgoing, Plan, Replay
from tests.unit.millrace.dead_letters.cases import identity, letter, write

PARTITIONS = 4


class MockBroker:
    """An in-process broker; it lives as long as its client."""

    def __init__(self) -> None:
        self._client: Producer | None = Producer(
            {"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0}
        )
        metadata = self._client.list_topics(timeout=10)
        self.bootstrap = ",".join(f"{b.host}:{b.port}" for b in metadata.brokers.values())

    def topic(self) -> str:
        """Return a new topic with four partitions: asking for it makes it."""
        assert self._client is not None
        name = f"topic-{uuid.uuid4().hex[:8]}"
        self._client.list_topics(name, timeout=10)
        return name

    def stop(self) -> None:
        self._client = None

    def fill(
        self, topic: str, events: list[tuple[int, bytes | None, bytes, list[tuple[str, bytes]]]]
    ) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, "linger.ms": 0})
        for partition, key, value, headers in events:
            producer.produce(topic, value, key, partition=partition, headers=headers)
        assert producer.flush(10) == 0

    def read(self, topic: str, count: int) -> list[Message]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "test", "log_level": 0})
        try:
            consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(PARTITIONS)])
            found: list[Message] = []
            deadline = time.monotonic() + 30
            while len(found) < count:
                assert time.monotonic() < deadline, f"{len(found)} of {count} messages"
                found += consumer.consume(1000, timeout=0.1)
            return found
        finally:
            consumer.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[MockBroker]:
    mock = MockBroker()
    yield mock
    mock.stop()


def test_events_are_found_by_their_positions_and_gone_ones_are_left_out(broker: MockBroker) -> None:
    topic = broker.topic()
    events = [(n % 2, b"k%d" % n, b"v%d" % n, [("h", b"\xff%d" % n)]) for n in range(10)]
    broker.fill(topic, [*events, (2, None, b"alone", [])])
    originals = KafkaOriginals(broker.bootstrap)
    try:
        wanted = [(1, 4), (0, 0), (0, 3), (2, 0), (0, 99), (3, 0)]
        found = originals.fetch([Position(topic, *one) for one in wanted])
        assert found == {
            Position(topic, 1, 4): Original(b"k9", b"v9", [("h", b"\xff9")]),
            Position(topic, 0, 0): Original(b"k0", b"v0", [("h", b"\xff0")]),
            Position(topic, 0, 3): Original(b"k6", b"v6", [("h", b"\xff6")]),
            Position(topic, 2, 0): Original(None, b"alone", []),
        }
        assert originals.fetch([Position(topic, 1, 0)])[Position(topic, 1, 0)].value == b"v1"
    finally:
        originals.close()


def test_records_arrive_as_they_are_and_those_that_do_not_are_told(broker: MockBroker) -> None:
    topic = broker.topic()
    headers = [("ce_id", b"\xff"), ("none", None)]
    good = Outgoing("good", topic, 3, b"\x00k", b"\xffvalue", headers)
    too_large = Outgoing("large", topic, 0, None, b"x" * 2_000_000, [])
    nowhere = Outgoing("nowhere", topic, 77, None, b"x", [])
    failed = KafkaSender(broker.bootstrap, timeout_s=5).send([good, too_large, nowhere])
    assert set(failed) == {"large", "nowhere"}
    assert "too large" in failed["large"].why
    assert not failed["large"].in_doubt
    (message,) = broker.read(topic, 1)
    assert (message.partition(), message.key(), message.value()) == (3, b"\x00k", b"\xffvalue")
    assert message.headers() == headers


def test_an_event_goes_back_to_where_it_came_by_with_its_key_and_headers(
    broker: MockBroker, tmp_path: Path
) -> None:
    topic = broker.topic()
    broker.fill(topic, [(n % 2, b"\x00%d" % n, b'{"n": %d}' % n, [("h", b"\xff")]) for n in range(4)])
    rows = [letter(n, topic=topic, key=None, headers=None) for n in (1, 2)]
    write(tmp_path / "letters", [*rows, letter(9, topic=topic)])  # Kafka does not have the last one
    originals = KafkaOriginals(broker.bootstrap)
    journal = Journal(str(tmp_path / "journal"), "run")
    try:
        summary = Replay(Plan(), journal, originals, now=lambda: 0).run(
            DeadLetterTable(str(tmp_path / "letters")).read(), KafkaSender(broker.bootstrap)
        )
    finally:
        originals.close()
    assert (summary.sent, summary.from_kafka, summary.failed) == (3, 2, {})
    replayed = [m for m in broker.read(topic, 7) if m.offset() is not None and m.offset() >= 2]
    found = {m.value(): (m.partition(), m.key(), (m.headers() or [])[0]) for m in replayed}
    assert found == {
        b'{"n": 1}': (1, b"\x001", ("h", b"\xff")),
        b'{"n": 2}': (0, b"\x002", ("h", b"\xff")),
        b'{"n": 9}': (1, b"key-9", ("ce_id", b"e-9")),
    }


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["millrace", "dlq", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rows: list[dict[str, Any]] = [letter(n, topic="demo") for n in range(3)]
    rows.append(letter(3, reason="malformed", error_digest="", value=b"\xff{", key=None, topic="demo"))
    write(tmp_path / "tables" / "dead_letters", rows)
    return tmp_path


def test_commands_say_what_there_is(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def out(*arguments: str) -> bytes:
        assert run(*arguments, "-s", f"storage.root={root}", monkeypatch=monkeypatch) == 0
        return capfdbinary.readouterr().out

    listed = [json.loads(line) for line in out("list", "fraud", "-r", "schema", "-f", "json").splitlines()]
    assert [one["letter_id"] for one in listed] == [identity(n) for n in range(3)]
    assert out("list", "fraud", "--limit", "2").splitlines()[-1] == (
        b"2 dead letters, the first 2: --limit shows more"
    )
    assert out("list", "fraud", "--until", "2020-01-01").strip() == b"0 dead letters"
    assert len(out("list", "fraud", "--since", "1h").splitlines()) == 5
    shown = json.loads(out("show", "fraud", identity(3)[:8], "-f", "json"))
    assert (shown["value"], shown["position"], shown["headers"]) == ("\\xff{", "demo:1:1", {"ce_id": "e-3"})
    assert b"reason: malformed\n" in out("show", "fraud", identity(3)[:8])
    assert out("show", "fraud", identity(3)[:8], "--raw") == b"\xff{"
    counted = json.loads(out("stats", "fraud", "-f", "json"))
    assert (counted["total"], counted["reasons"]) == (4, {"schema": 3, "malformed": 1})
    assert counted["errors"][0]["count"] == 3
    assert out("stats", "fraud").startswith(b"4 dead letters\n")
    write(root / "tables" / "other", [letter(7, kafka_key=b"k\xff", timestamp_ms=12, topic="demo")])
    other = json.loads(out("show", "fraud", identity(7), "--table", "other", "-f", "json"))
    assert (other["kafka_key"], other["timestamp_ms"]) == ("k\\xff", 12)
    assert b"kafka key: k" in out("show", "fraud", identity(7), "--table", "other")
    assert out("stats", "fraud", "--table", "other").startswith(b"1 dead letters\n")


def test_what_came_does_not_steer_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    odd = "x\x07\x08\x1b[2J"
    row = letter(0, value=f"{{\n\t{odd}}}".encode(), error=odd, key=odd, kafka_key=odd.encode())
    write(tmp_path / "tables" / "dead_letters", [row])
    said = {}
    for command, *rest in (["list"], ["show", identity(0)], ["stats"]):
        assert run(command, "fraud", *rest, "-s", f"storage.root={tmp_path}", monkeypatch=monkeypatch) == 0
        said[command] = capfdbinary.readouterr().out.decode()
        assert [c for c in said[command] if not c.isprintable() and c != "\n"] == []
        assert "x???[2J" in said[command]
    assert "value: {\n        x???[2J}\n" in said["show"]


def test_a_replay_sends_once_and_says_so(
    broker: MockBroker, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = broker.topic()
    settings = ("-s", f"storage.root={root}", "-s", f"kafka.bootstrap={broker.bootstrap}", "--to", topic)
    chosen = ("replay", "fraud", "--reason", "schema", *settings)
    assert run(*chosen, "--dry-run", monkeypatch=monkeypatch) == 0
    assert "fraud: 3 of 3 would be sent; 0 failed" in capsys.readouterr().out
    assert run(*chosen, monkeypatch=monkeypatch) == 0
    assert "fraud: 3 of 3 sent" in capsys.readouterr().out
    found = sorted(broker.read(topic, 3), key=lambda m: m.value() or b"")
    assert [m.value() for m in found] == [b'{"n": 0}', b'{"n": 1}', b'{"n": 2}']
    assert [m.key() for m in found] == [b"key-0", b"key-1", b"key-2"]
    assert dict(found[0].headers() or [])["dlq.replayed_from"] == identity(0).encode()
    assert run(*chosen, monkeypatch=monkeypatch) == 0
    said = capsys.readouterr().out
    assert "left out 3: sent before" in said
    assert "fraud: 0 of 3 sent" in said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("replay", "fraud"), "say which ones"),
        (("replay", "fraud", "abc"), "'abc' is too short"),
        (("replay", "fraud", "--all", "--fix", "nowhere"), "--fix nowhere"),
        (("list", "fraud", "--since", "soon"), "neither a time"),
        (("show", "fraud", "zzzz"), "no dead letter's id begins with"),
        (("list", "nothing"), "there is no app 'nothing'"),
        (("list", "fraud", "-s", "storage.root=/nowhere"), "there is no table /nowhere/tables/dead_letters"),
    ],
)
def test_mistakes_end_in_one_line(
    arguments: tuple[str, ...], why: str, root: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    where = () if "-s" in arguments else ("-s", f"storage.root={root}")
    assert run(*arguments, *where, monkeypatch=monkeypatch) == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1
