"""Simulated arrivals: what a Kafka record carries as its time when the world's clock is not ours."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.cli import main
from millrace.errors import UserError
from millrace.kafka import admin
from millrace.kafka.admin import APPEND_TIME, SENT_TIME
from millrace_apps.generators import command, domains
from millrace_apps.generators.cli import app
from millrace_apps.generators.command import Destination
from millrace_apps.generators.engine import Generated
from millrace_apps.generators.engine.disturb import Disturbances
from millrace_apps.generators.engine.stages import spaced
from millrace_apps.generators.engine.world import deliver_domain
from millrace_apps.generators.fraud import DOMAIN, FraudProfile
from millrace_apps.generators.handbook import DOMAIN as HANDBOOK
from millrace_apps.generators.handbook import HandbookProfile
from millrace_apps.generators.kafka_loop import close_the_loop
from millrace_apps.generators.replay import Replay, replayed
from millrace_apps.generators.ridesharing.loop import LOOP
from millrace_apps.generators.sinks import KafkaSink
from tests.unit.generators.test_kafka_sink import MockBroker
from tests.unit.generators.test_ridesharing_command import TIMING, VALUES, Inbox
from tests.unit.generators.world import METERS, MeterProfile

START = 1_767_225_600_000
ROWS = '{"at": 5, "got": 40}\n{"at": 90, "got": 60}\n{"at": 7, "got": 50}\n{"at": 100, "got": 100}\n'


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    mock = MockBroker()
    yield mock
    mock.stop()


def check_arrivals(sent: Sequence[Generated], longest_ms: int | None = None) -> None:
    """Each message arrives when it has happened, and in the order of sending."""
    kept = [message for message in sent if not message.dropped]
    assert kept
    assert all(message.arrival_ms >= message.happened_ms for message in kept)
    assert all(before.arrival_ms <= after.arrival_ms for before, after in pairwise(kept))
    if longest_ms is not None:
        usual = [m for m in kept if m.fault is None or m.fault.kind not in ("late", "duplicate")]
        assert max(m.arrival_ms - m.happened_ms for m in usual) <= longest_ms


@pytest.mark.parametrize("seed", range(20))
def test_messages_arrive_after_they_happened_and_in_the_order_of_sending(seed: int) -> None:
    draw = random.Random(seed)

    def some(share: float) -> float:
        return draw.choice((0.0, share))

    disorder_ms = draw.choice((0, 1, 500, 5_000))
    profile = MeterProfile(
        seed=seed, events=draw.choice((1, 5, 400)), disorder_ms=disorder_ms, late=some(0.3),
        lateness_ms=7_000, duplicates=some(0.2), malformed=some(0.2),
    )  # fmt: skip
    wrong = Disturbances(
        loss=some(0.2), drift=some(0.2), clock_skew=some(0.5), clock_skew_ms=30_000,
        silence_ms=int(some(1_000)), silence_every_ms=9_000,
    )  # fmt: skip
    sent = list(deliver_domain(METERS, profile, wrong))
    if any(not message.dropped for message in sent):
        check_arrivals(sent, disorder_ms)


@pytest.mark.parametrize("name", domains.names())
def test_every_world_has_arrivals(name: str) -> None:
    domain = domains.load(name)
    profile = domain.profile(
        seed=2, events=400, start_ms=START, late=0.05, lateness_ms=60_000, malformed=0.05
    )
    check_arrivals(list(deliver_domain(domain, profile, Disturbances(clock_skew=0.2, loss=0.1))))


def test_labels_arrive_when_they_are_known() -> None:
    profile = FraudProfile(seed=3, events=3_000, event_rate=5, label_scale=0.0005, authorised=0.1)
    check_arrivals(list(deliver_domain(DOMAIN, profile)))


def test_late_messages_that_are_left_at_the_end_arrive_last() -> None:
    """Nothing was on its way any more when the stream ended: they came out with the times of their events."""
    profile = MeterProfile(seed=1, events=60, disorder_ms=0, late=0.5, lateness_ms=3_600_000)
    sent = list(deliver_domain(METERS, profile))
    assert [m.fault.expected for m in sent[-3:] if m.fault is not None] == ["either"] * 3
    check_arrivals(sent)


class TestOtherPaces:
    def test_a_payment_arrives_when_it_is_made_at_whatever_rate_it_is_sent(self) -> None:
        small = HandbookProfile(customers=20, terminals=40, days=5, radius=30)
        paced = list(spaced(deliver_domain(HANDBOOK, small), small.start_ms, 4.0))
        assert [m.arrival_ms for m in paced] == [m.event_time_ms for m in paced]
        assert [m.due_ms - paced[0].due_ms for m in paced[:3]] == [0, 250, 500]

    def replay(self, tmp_path: Path, **more: Any) -> list[Generated]:
        path = tmp_path / "rows.jsonl"
        path.write_text(ROWS)
        return list(replayed(Replay(path=path, time_column="at", **more), "t"))

    def test_a_row_arrives_as_the_newest_before_it_happened(self, tmp_path: Path) -> None:
        assert [m.arrival_ms for m in self.replay(tmp_path)] == [5, 90, 90, 100]

    def test_a_rate_changes_when_rows_are_sent_and_not_when_they_arrived(self, tmp_path: Path) -> None:
        paced = self.replay(tmp_path, rate=2.0)
        assert [(m.due_ms, m.arrival_ms) for m in paced] == [(5, 5), (505, 90), (1_005, 90), (1_505, 100)]

    def test_a_file_may_hold_when_a_row_arrived(self, tmp_path: Path) -> None:
        found = self.replay(tmp_path, arrival_column="got")
        assert [(m.due_ms, m.arrival_ms) for m in found] == [(40, 40), (60, 60), (60, 60), (100, 100)]
        assert [m.event_time_ms for m in found] == [5, 90, 7, 100]

    def test_a_row_without_its_arrival_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="row 1 has no column came"):
            self.replay(tmp_path, arrival_column="came")


class TestKafka:
    def sent(self, broker: MockBroker, **more: Any) -> list[tuple[int, int]]:
        """Send some messages; return of each its arrival and the time of its record."""
        stream = list(deliver_domain(METERS, MeterProfile(seed=3, events=300, start_ms=START)))
        with KafkaSink(broker.bootstrap, broker.topic, **more) as sink:
            for message in stream:
                message.topic = ""
                sink.write(message)
            sink.flush()
        found = broker.read(len(stream))
        wanted = {m.transaction_id.encode(): m.arrival_ms for m in stream}
        return [(wanted[bytes(dict(m.headers() or ())["ce_id"])], m.timestamp()[1]) for m in found]  # type: ignore[arg-type]

    def test_records_carry_the_simulated_arrival(
        self, broker: MockBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admin, "topic_configs", lambda *_, **__: {})
        assert all(wanted == found for wanted, found in self.sent(broker, arrivals=True))

    def test_else_they_carry_when_they_are_sent(self, broker: MockBroker) -> None:
        assert min(found for _, found in self.sent(broker)) > START + 86_400_000

    def test_topics_are_created_for_the_times_that_they_get(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[dict[str, Any]] = []

        def create(_: str, topics: dict[str, Any], **__: Any) -> set[str]:
            made.append(topics)
            return set(topics)

        monkeypatch.setattr(admin, "topic_partitions", lambda *_, **__: {"there": 1})
        monkeypatch.setattr(admin, "create_topics", create)
        monkeypatch.setattr(admin, "topic_configs", lambda *_, **__: {})
        for arrivals in (False, True):
            KafkaSink("b:1", "there", topics=["there", "new"], partitions=3, arrivals=arrivals)
        assert [{t: (s.partitions, s.config) for t, s in topics.items()} for topics in made] == [
            {"new": (3, {})},
            {"new": (3, SENT_TIME)},
        ]

    def test_a_topic_that_would_not_keep_them_is_said(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(admin, "topic_partitions", lambda *_, **__: {"old": 1, "mine": 1})
        configs = {"old": dict(APPEND_TIME), "mine": dict(SENT_TIME)}
        monkeypatch.setattr(admin, "topic_configs", lambda *_, **__: configs)
        wanted = (
            r"old at b:1 has message\.timestamp\.type=LogAppendTime: .*--timestamps append.*"
            r"kafka-configs\.sh --bootstrap-server b:1 --alter .*--entity-name old "
            r"--add-config message\.timestamp\.type=CreateTime"
        )
        with pytest.raises(UserError, match=wanted):
            KafkaSink("b:1", "old", topics=["old", "mine"], arrivals=True, insist=True)
        KafkaSink("b:1", "old", topics=["old", "mine"], arrivals=True)
        assert capsys.readouterr().err.startswith("warning: old at b:1 has")
        KafkaSink("b:1", "old", topics=["old", "mine"])
        KafkaSink("b:1", "mine", arrivals=True, insist=True)
        assert capsys.readouterr() == ("", "")


class TestCommand:
    """Which time is sent where nothing is said."""

    @pytest.mark.parametrize(
        ("flags", "arrivals"),
        [
            (["fraud", "--rate", "50", "--duration", "1s"], False),
            (["iot", "--rate", "50"], False),
            (["fraud", "--rate", "50", "--start", "2026-01-01", "--live"], False),
            (["fraud", "--rate", "max", "--events", "5"], True),
            (["iot", "--rate", "50", "--speed", "60"], True),
            (["fraud", "--rate", "50", "--start", "2026-01-01"], True),
            (["handbook", "--days", "3"], True),
            (["fraud", "--rate", "50", "--timestamps", "arrival"], True),
            (["iot", "--rate", "max", "--timestamps", "append"], False),
        ],
    )
    def test_arrivals_are_simulated_where_event_time_is_not_the_clocks(
        self, flags: list[str], arrivals: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found: list[Destination] = []
        monkeypatch.setattr(command, "execute", lambda _job, _timing, where, **_: found.append(where))
        assert CliRunner().invoke(app, flags, catch_exceptions=False).exit_code == 0
        assert [(where.arrivals, where.insist) for where in found] == [(arrivals, "--timestamps" in flags)]

    def test_a_world_that_answers_an_app_in_real_time_sends_the_clocks(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("millrace_apps.generators.kafka_loop.KafkaInbox", Inbox)
        for live in (False, True):
            _, timing = close_the_loop(domains.load("ridesharing"), LOOP, VALUES, replace(TIMING, live=live))
            assert (timing.speed, timing.live) == (None, live)

    def test_it_is_of_kafkas_records_only(
        self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flags = ["--rate", "max", "--events", "1", "--to", "stdout", "--timestamps", "arrival"]
        monkeypatch.setattr(sys, "argv", ["millrace", "generate", "fraud", *flags])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        assert "--timestamps is of Kafka's records; with --to stdout leave it out" in capfd.readouterr().err


def test_a_destination_hands_its_arrivals_to_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(command, "KafkaSink", lambda *_, **more: given.update(more))
    Destination("kafka", "b:1", {"s": "t"}, 1, None, arrivals=True, insist=True).open(threading.Event())
    assert (given["arrivals"], given["insist"]) == (True, True)
