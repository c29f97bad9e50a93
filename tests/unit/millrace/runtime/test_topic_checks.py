"""What the doctor says of an app's topics; a fake consumer stands for the broker."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException
from typer.testing import CliRunner

from millrace import demo
from millrace.cli import doctor as doctor_cli
from millrace.cli.doctor import app as doctor_app
from millrace.errors import UserError
from millrace.kafka import admin
from millrace.kafka.admin import APPEND_TIME, SENT_TIME, BrokerUnreachable
from millrace.local import processes
from millrace.runtime import apps, installed
from millrace.runtime.apps import App, Topic, Topics, load_app, with_sent_times
from millrace.runtime.arrivals import Arrived, Delays, Percentiles, measure
from millrace.runtime.doctor import Finding
from millrace.runtime.installed import list_apps
from millrace.runtime.settings import AppSettings, load_settings
from millrace.runtime.topic_checks import (
    Sample,
    app_findings,
    bound_finding,
    event_time_of,
    newest,
    sent_times_warning,
    topic_finding,
)

START = 1_767_225_600_000
EVENTS = Topic("events", 2, event_time="at")
COMMENTS = Topic("comments", event_time="about", clock=False)
CONTROL = Topic("control", 1)
#: Topic and partition → records: arrival and value.
Content = dict[tuple[str, int], list[tuple[int, bytes | None]]]


class FakeMessage:
    """A message, or what a client says in place of one."""

    def __init__(
        self, place: tuple[str, int], offset: int, at: int = 0, value: bytes | None = None, error: Any = None
    ) -> None:
        self._place, self._offset, self._at, self._value, self._error = place, offset, at, value, error

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._at

    def value(self) -> bytes | None:
        return self._value

    def error(self) -> Any:
        return self._error


class FakeReader:
    """A consumer over records that are here; offsets begin at 10.

    Args:
        content: The records.
        silent: Partitions that never give anything.
        failing: Partition → error.
    """

    FIRST = 10

    def __init__(
        self,
        content: Content,
        silent: Sequence[tuple[str, int]] = (),
        failing: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        self.content, self.silent, self.failing = content, silent, failing or {}
        self.queue: list[FakeMessage] = []
        self.assigned: dict[tuple[str, int], int] = {}
        self.closed = False

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        assert timeout > 0
        place = partition.topic, partition.partition
        if place not in self.content:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return self.FIRST, self.FIRST + len(self.content[place])

    def assign(self, partitions: list[Any]) -> None:
        for asked in partitions:
            place = asked.topic, asked.partition
            self.assigned[place] = asked.offset
            if place in self.failing:
                self.queue.append(FakeMessage(place, -1, error=KafkaError(self.failing[place])))
            elif place not in self.silent:
                records = self.content[place]
                for number in range(asked.offset - self.FIRST, len(records)):
                    self.queue.append(FakeMessage(place, self.FIRST + number, *records[number]))
                # What came meanwhile.
                end = self.FIRST + len(records)
                self.queue.append(FakeMessage(place, end, START, b'{"at": 1}'))
                self.queue.append(FakeMessage(place, end + 1, error=KafkaError(KafkaError._PARTITION_EOF)))

    def consume(self, num_messages: int, timeout: float) -> list[FakeMessage]:
        found, self.queue = self.queue[:7], self.queue[7:]
        if not found:
            time.sleep(0.001)
        return found

    def close(self) -> None:
        self.closed = True


def records(*arrived: tuple[int, int], name: str = "at") -> list[tuple[int, bytes | None]]:
    return [(came, json.dumps({name: at}).encode()) for came, at in arrived]


class TestSample:
    def test_the_newest_of_each_partition_are_read_up_to_the_end_of_now(self) -> None:
        content: Content = {
            ("events", 0): records(*((START + n, n) for n in range(30))),
            ("events", 1): records((START + 5, 2)),
        }
        reader = FakeReader(content)
        found = newest(lambda: reader, {"events": 2}, {"events": "at"}, 10.0, records=20)
        assert reader.assigned == {("events", 0): 30, ("events", 1): 10}
        assert found["events"].partitions == {
            0: [Arrived(START + n, n) for n in range(20, 30)],
            1: [Arrived(START + 5, 2)],
        }
        assert (found["events"].undated, found["events"].failure, reader.closed) == (0, "", True)

    def test_records_without_a_time_are_counted(self) -> None:
        values = [b"{", b"[]", None, b'{"at": true}', b'{"at": "noon"}', b"\xff", b'{"at": 7}']
        content: Content = {("events", 0): [(START, value) for value in values]}
        found = newest(lambda: FakeReader(content), {"events": 1}, {"events": "at"}, 10.0)
        assert found["events"] == Sample({0: [Arrived(START, 7)]}, undated=6)

    def test_it_ends_in_time_where_nothing_comes(self) -> None:
        content: Content = {("events", 0): records((START, 1)), ("other", 0): records((START, 1))}
        reader = FakeReader(content, silent=[("events", 0)])
        began = time.monotonic()
        found = newest(lambda: reader, {"events": 1, "other": 1}, {"events": "at", "other": "at"}, 0.2)
        assert time.monotonic() - began < 5
        assert found["events"].failure == "not all were read within 0.2 s"
        assert found["other"].partitions == {0: [Arrived(START, 1)]}
        assert reader.closed

    def test_what_may_not_be_read_is_said_and_hides_nothing(self) -> None:
        content: Content = {("events", 0): records((START, 1)), ("other", 0): records((START, 1))}
        reader = FakeReader(content, failing={("events", 0): KafkaError.TOPIC_AUTHORIZATION_FAILED})
        both = {"events": "at", "other": "at", "gone": "at"}
        found = newest(lambda: reader, {"events": 1, "other": 1, "gone": 1}, both, 30.0)
        assert "authorization" in found["events"].failure.lower()
        assert found["gone"].failure
        assert found["other"] == Sample({0: [Arrived(START, 1)]})

    @pytest.mark.parametrize(
        ("value", "at"),
        [
            (b'{"at": "2026-01-01T00:00:00Z"}', START),
            (b'{"at": "2026-01-01T01:00:00+01:00"}', START),
            (b'{"at": "2026-01-01T00:00:00.005"}', START + 5),
            (b'{"at": -5}', -5),
            (b'{"at": 5.5}', None),
            (b'{"be": 5}', None),
            (b"5", None),
            (b"", None),
        ],
    )
    def test_times_are_milliseconds_or_text(self, value: bytes, at: int | None) -> None:
        assert event_time_of(value, "at") == at


GOOD = Delays(2_000, 0, Percentiles(3, 250, 497), 480, in_bulk=False)


class TestFindings:
    def finding(self, topic: Topic = EVENTS, delays: Delays | None = GOOD, **more: Any) -> Finding:
        config = more.pop("config", {**APPEND_TIME, "cleanup.policy": "delete"})
        sample = more.pop("sample", Sample())
        return topic_finding("shop", topic, config, sample, delays, future_ms=60_000, bootstrap="b:1", **more)

    def test_good_delays_are_told(self) -> None:
        found = self.finding()
        assert (found.name, found.status, found.advice) == ("shop: events", "ok", "")
        assert found.found == (
            "2,000 newest records: arrival - event time p1 3ms, p50 250ms, p99 497ms; out of order p99 480ms"
        )
        assert found.figures == {
            "events": 2_000, "delay_p1_ms": 3, "delay_p50_ms": 250, "delay_p99_ms": 497,
            "disorder_p99_ms": 480,
        }  # fmt: skip

    def test_senders_times_are_a_warning_with_the_command_that_changes_them(self) -> None:
        found = self.finding(config=SENT_TIME)
        assert found.status == "warning"
        assert "message.timestamp.type=CreateTime" in found.found
        assert found.advice.endswith(
            "kafka-configs.sh --bootstrap-server b:1 --alter --entity-type topics --entity-name events "
            "--add-config message.timestamp.type=LogAppendTime"
        )
        wanted = replace(EVENTS, config=SENT_TIME)
        assert self.finding(wanted, config=SENT_TIME).status == "ok", "the app wants them"
        assert self.finding(config={}).status == "ok", "it is not known"

    @pytest.mark.parametrize("policy", ["compact", "compact,delete"])
    def test_a_compacted_topic_is_no_source_of_events(self, policy: str) -> None:
        found = self.finding(config={**APPEND_TIME, "cleanup.policy": policy})
        assert (found.status, found.advice) == ("broken", "events need a topic with cleanup.policy=delete")
        assert found.found.startswith("compacted")
        assert self.finding(CONTROL, None, sample=None, config={"cleanup.policy": policy}).status == "ok"

    def test_unknown_arrivals_are_a_warning(self) -> None:
        found = self.finding(delays=replace(GOOD, unknown=7))
        assert (found.status, found.found.split(";")[0]) == ("warning", "7 records have no time of arrival")

    def test_fast_clocks_are_a_warning_unless_it_is_what_clocks_are_apart(self) -> None:
        fast = replace(GOOD, delay_ms=Percentiles(-90_000, 20, 40))
        found = self.finding(delays=fast)
        assert found.status == "warning"
        assert "ahead of their arrival, by 1m 30s" in found.found
        assert "beyond 1m (stream.max_future_skew) such events are dead letters" in found.advice
        near = self.finding(delays=replace(GOOD, delay_ms=Percentiles(-40, 20, 40)))
        assert (near.status, "p1 -40ms" in near.found) == ("ok", True)

    def test_a_field_that_no_record_has_is_a_warning(self) -> None:
        found = self.finding(delays=None, sample=Sample(undated=9))
        assert (found.status, found.found.split(";")[0]) == ("warning", "9 of the newest records have no at")
        some = self.finding(sample=Sample(undated=9))
        assert (some.status, some.advice) == ("ok", "9 of the newest records have no at: dead letters")

    def test_what_could_not_be_read_is_a_warning(self) -> None:
        found = self.finding(delays=None, sample=Sample(failure="not allowed"))
        assert (found.status, found.found) == ("warning", "not allowed; no records yet")

    def test_a_bound_that_is_too_small_is_a_warning_that_names_both_settings(self) -> None:
        slow = Delays(2_000, 0, Percentiles(800, 900, 2_000), 700, in_bulk=False)
        (found,) = bound_finding("shop", [slow], 1_000)
        assert (found.name, found.status) == ("shop: bound", "warning")
        assert found.advice == "set stream.out_of_orderness=1s 200ms and stream.clock_skew=-800ms"
        assert found.figures == {"bound_ms": 1_200, "clock_skew_ms": -800}
        (enough,) = bound_finding("shop", [slow], 1_200)
        assert (enough.status, enough.advice) == ("ok", "")
        assert bound_finding("shop", [], 1_000) == []


def no_outputs(streams: Any, settings: Any) -> Any:
    raise NotImplementedError


SHOP = App(
    "shop",
    "Sells.",
    AppSettings,
    no_outputs,
    lambda s: Topics((EVENTS, COMMENTS, CONTROL), control="control"),
)


def settings(*overrides: str) -> AppSettings:
    return load_settings(AppSettings, app="shop", overrides=overrides, env={})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeReader:
    """A broker with two topics of the shop: its events, and comments on what was long ago."""
    content: Content = {
        ("events", 0): records(*((START + n * 10 + 30 + n % 3, START + n * 10) for n in range(100))),
        ("events", 1): [],
        ("comments", 0): records(*((START + n, START - 10**9) for n in range(50)), name="about"),
    }
    reader = FakeReader(content)
    monkeypatch.setattr(admin, "topic_partitions", lambda *_, **__: {"events": 2, "comments": 1, "else": 1})
    configs = {"events": dict(SENT_TIME), "comments": dict(APPEND_TIME)}
    monkeypatch.setattr(admin, "topic_configs", lambda *_, **__: configs)
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda _: reader)
    return reader


class TestApp:
    def test_topics_that_exist_are_looked_at_and_only_clocks_bound_the_disorder(
        self, cluster: FakeReader
    ) -> None:
        found = {f.name: f for f in app_findings(SHOP, settings("kafka.bootstrap=b:1"))}
        assert {name: f.status for name, f in found.items()} == {
            "shop: events": "warning",
            "shop: comments": "ok",
            "shop: bound": "ok",
        }
        delays = measure([[Arrived(START + n * 10 + 30 + n % 3, START + n * 10) for n in range(100)]])
        assert delays is not None
        assert delays.delay_ms == Percentiles(30, 31, 32)
        assert found["shop: events"].figures["delay_p99_ms"] == 32
        assert found["shop: bound"].figures == {"bound_ms": 2, "clock_skew_ms": -30}
        assert "p50 11d 13h," in found["shop: comments"].found

    def test_of_topics_that_do_not_exist_nothing_is_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admin, "topic_partitions", lambda *_, **__: {})
        (found,) = app_findings(SHOP, settings("kafka.bootstrap=b:1"))
        assert (found.name, found.status) == ("shop: topics", "ok")
        assert app_findings(SHOP, settings("kafka.bootstrap=b:1"), only_if_used=True) == []
        assert app_findings(SHOP, settings()) == []

    def test_a_broker_that_is_down_is_said_soon(self) -> None:
        began = time.monotonic()
        with pytest.raises(BrokerUnreachable, match=r"no Kafka broker answers at 127\.0\.0\.1:1 "):
            app_findings(SHOP, settings("kafka.bootstrap=127.0.0.1:1"), timeout_s=0.3)
        assert time.monotonic() - began < 5


class TestCommand:
    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A machine on which all is well, with one app."""
        monkeypatch.setattr(apps, "load_app", lambda name: SHOP)
        monkeypatch.setattr(installed, "list_apps", lambda: {"shop": "shop:app"})
        monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
        monkeypatch.setattr("millrace.runtime.doctor.run_checks", lambda machine, quick: [*self.found])

    found = [Finding("broker", "ok", "b:1 answers")]  # noqa: RUF012

    def run(self, *arguments: str) -> Any:
        return CliRunner().invoke(doctor_app, list(arguments), catch_exceptions=False)

    @pytest.mark.usefixtures("cluster")
    @pytest.mark.parametrize("names", [[], ["shop"]])
    def test_with_a_broker_the_topics_of_apps_are_looked_at(self, names: list[str]) -> None:
        done = self.run(*names, "--bootstrap", "b:1", "--format", "json")
        assert done.exit_code == 0
        assert [f["name"] for f in json.loads(done.output)] == [
            "broker", "operators", "shop: events", "shop: comments", "shop: bound",
        ]  # fmt: skip

    @pytest.mark.usefixtures("cluster")
    def test_quick_leaves_them_out(self) -> None:
        assert len(json.loads(self.run("--bootstrap", "b:1", "--format", "json", "--quick").output)) == 1

    def test_where_the_broker_is_down_they_are_not_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(type(self), "found", [Finding("broker", "broken", "no broker answers")])
        monkeypatch.setattr(doctor_cli, "_topics", lambda *_: pytest.fail("asked"))
        assert self.run("shop", "--bootstrap", "b:1").exit_code == 1

    def test_an_app_without_a_broker_is_refused_in_a_line(self) -> None:
        with pytest.raises(UserError, match=r"no broker is configured for shop: give --bootstrap HOST:PORT"):
            self.run("shop")

    def test_an_app_that_fails_hides_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any, **__: Any) -> Any:
            raise UserError("its topics are gone; look for them")

        monkeypatch.setattr("millrace.runtime.topic_checks.app_findings", fail)
        done = self.run("--bootstrap", "b:1", "--format", "json")
        found = json.loads(done.output)[-1]
        assert (found["name"], found["status"], found["advice"]) == (
            "shop: topics",
            "broken",
            "look for them",
        )


class TestDeclarations:
    @pytest.mark.parametrize("name", ["fraud", "iot", "clickstream", "ridesharing"])
    def test_every_input_of_an_app_names_the_time_of_its_events(self, name: str) -> None:
        assert name in list_apps()
        app = load_app(name)
        topics = app.topics(app.settings())
        fields = {f.name for kind in app.contracts.values() for f in _fields(kind)}
        assert {t.name for t in topics.reads if t.event_time is None} == {topics.control}
        assert {t.event_time for t in topics.reads} - {None} <= fields
        assert any(t.clock and t.event_time for t in topics.reads)

    def test_labels_and_what_people_write_down_later_are_no_clocks(self) -> None:
        past = set()
        for name in ("fraud", "iot", "clickstream", "ridesharing"):
            app = load_app(name)
            past |= {t.name for t in app.topics(app.settings()).reads if t.event_time and not t.clock}
        assert past == {
            "fraud.labels", "fraud.authorisations", "fraud.erasures",
            "iot.equipment", "iot.maintenance", "iot.actions",
            "clickstream.forget", "clickstream.items", "ridesharing.commands", "ridesharing.handovers",
            "ridesharing.quote-requests",
        }  # fmt: skip

    def test_a_simulated_world_keeps_its_times_but_for_control(self) -> None:
        topics = with_sent_times(SHOP).topics(settings())
        assert [t.config for t in topics.reads] == [SENT_TIME, SENT_TIME, {}]
        mine = replace(EVENTS, config={"message.timestamp.type": "LogAppendTime", "retention.ms": "5"})
        own = with_sent_times(replace(SHOP, topics=lambda s: Topics((mine,)))).topics(settings()).reads[0]
        assert dict(own.config) == {**SENT_TIME, **mine.config}, "what an app says wins"


@pytest.mark.parametrize("simulated", [False, True])
def test_a_demo_of_a_simulated_world_keeps_and_sends_its_arrivals(
    simulated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as the start of its generator."""
    seen: list[Any] = []

    class Started(Exception):
        """The generator would run now."""

    def start(command: list[str], log_file: Path) -> Any:
        seen.append(command[-2:])
        raise Started

    @contextlib.contextmanager
    def broker(bootstrap: str | None, folder: Path) -> Iterator[Any]:
        yield "127.0.0.1:9", lambda: None, ""

    @contextlib.contextmanager
    def running(job: Any) -> Iterator[Any]:
        seen.append([dict(t.config) for t in job._topics.reads])
        yield None

    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path))
    monkeypatch.setattr(demo, "_broker", broker)
    monkeypatch.setattr(demo, "_running", running)
    monkeypatch.setattr(processes, "Child", start)
    nothing: Any = lambda *_: ()  # noqa: E731
    of_all = [nothing] * 4
    spec = demo.DemoSpec(nothing, nothing, lambda _: "alerts", *of_all, simulated=simulated)
    view: Any = SimpleNamespace(message=str, phase=lambda _: contextlib.nullcontext())
    with pytest.raises(Started):
        demo.run_demo(SHOP, spec, demo.DemoOptions(), view)
    kept = dict(SENT_TIME) if simulated else {}
    assert seen == [[kept, kept, {}], ["--timestamps", "arrival" if simulated else "append"]]


def _fields(kind: Any) -> tuple[Any, ...]:
    try:
        return msgspec.structs.fields(kind)
    except TypeError:  # one of several kinds
        return ()


class TestCreation:
    def created(self, monkeypatch: pytest.MonkeyPatch, config: Mapping[str, str]) -> dict[str, str]:
        made: list[Any] = []

        class Client:
            def create_topics(self, topics: list[Any], **_: Any) -> dict[str, Any]:
                made.extend(topics)
                return {}

        monkeypatch.setattr(admin, "_admin", lambda *_: Client())
        monkeypatch.setattr(admin, "_metadata", lambda *_: type("Seen", (), {"topics": {}}))
        monkeypatch.setattr(admin, "_await", lambda *_: None)
        admin.create_topics("b:1", {"t": admin.TopicSpec(1, config)})
        return dict(made[0].config)

    def test_records_carry_their_arrival_unless_something_else_is_said(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.created(monkeypatch, {}) == APPEND_TIME
        assert self.created(monkeypatch, {"retention.ms": "5"}) == {**APPEND_TIME, "retention.ms": "5"}
        assert self.created(monkeypatch, SENT_TIME) == SENT_TIME

    def test_simulated_arrivals_may_be_any_time_ago_or_ahead_and_are_kept(self) -> None:
        assert SENT_TIME["message.timestamp.after.max.ms"] == SENT_TIME["message.timestamp.before.max.ms"]
        assert int(SENT_TIME["message.timestamp.after.max.ms"]) == 2**63 - 1
        assert SENT_TIME["retention.ms"] == "-1"


class TestWarningOfARun:
    def test_topics_with_senders_times_are_named(self) -> None:
        configs = {"events": dict(SENT_TIME), "comments": dict(APPEND_TIME)}
        warning = sent_times_warning([EVENTS, COMMENTS, CONTROL], configs)
        assert warning is not None
        assert warning.startswith("records of events carry their senders' times")

    def test_what_is_wanted_or_not_known_is_no_warning(self) -> None:
        assert sent_times_warning([replace(EVENTS, config=SENT_TIME)], {"events": dict(SENT_TIME)}) is None
        assert sent_times_warning([EVENTS], {}) is None
        assert sent_times_warning([], {}) is None
