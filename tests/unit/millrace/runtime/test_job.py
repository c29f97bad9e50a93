"""Whether a job may go on from what is there, before anything is started."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from millrace.errors import UserError
from millrace.host.system import Idle, SystemMessage, Wake
from millrace.runtime import job as job_module
from millrace.runtime.apps import load_app
from millrace.runtime.clock_files import read_status
from millrace.runtime.contract import ContractMismatch
from millrace.runtime.job import DRAINED_FILE, Job, QueryFailed
from millrace.runtime.monitor import QueryMonitor
from millrace.runtime.settings import load_settings
from millrace.time.clock import ClockStatus
from millrace_apps.fraud.settings import FraudSettings


def job(folder: Path, *, until_end: bool, drain: bool) -> Job:
    sets = ["kafka.bootstrap=localhost:1", f"storage.root={folder}"]
    settings = load_settings(FraudSettings, app="fraud", overrides=sets)
    return Job(load_app("fraud"), settings, until_end=until_end, drain=drain)


@pytest.mark.parametrize(("until_end", "drain"), [(True, True), (True, False), (False, False)])
def test_a_drained_checkpoint_is_refused(tmp_path: Path, until_end: bool, drain: bool) -> None:
    (tmp_path / DRAINED_FILE).write_text("drained\n")
    with pytest.raises(UserError, match="has been drained"):
        job(tmp_path, until_end=until_end, drain=drain).run()


@pytest.mark.parametrize(
    ("until_end", "drain", "goes_on"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_drain_that_was_cut_off_is_finished_by_running_it_again(
    tmp_path: Path, until_end: bool, drain: bool, goes_on: bool
) -> None:
    (tmp_path / DRAINED_FILE).write_text("draining\n")
    held = nullcontext() if goes_on else pytest.raises(UserError, match="has been drained")
    with held:
        job(tmp_path, until_end=until_end, drain=drain)._refuse_drained()


@pytest.mark.parametrize(("plan", "snapshots"), [("station", "30"), ("chain", None)])
def test_a_station_makes_snapshots_of_its_state_less_often_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str, snapshots: str | None
) -> None:
    said: list[dict[str, str]] = []

    def session(name: str, *, conf: dict[str, str], **more: Any) -> Any:
        said.append(conf)
        return nullcontext()

    monkeypatch.setattr(job_module, "spark_session", session)
    name = "spark.sql.streaming.stateStore.minDeltasForSnapshot"
    for more in ([], [f"spark.conf.{name}=7"]):
        sets = ["kafka.bootstrap=localhost:1", f"storage.root={tmp_path}", f"stream.plan={plan}", *more]
        settings = load_settings(FraudSettings, app="fraud", overrides=sets)
        running = Job(load_app("fraud"), settings, wait_for_broker=lambda: None)
        monkeypatch.setattr(running, "_until_end", False)
        with running._session():
            pass
    assert [conf.get(name) for conf in said] == [snapshots, "7"]


@pytest.mark.parametrize(
    ("plan", "master", "own", "can", "asks", "interval"),
    [
        ("station", "local[2]", None, True, True, "150s"),
        ("station", "local[2]", "20s", True, True, "20s"),
        ("station", "local[2]", None, False, False, None),  # a PySpark that cannot be asked
        ("station", "spark://host:7077", None, True, False, None),  # the state is in other processes
        ("chain", "local[2]", None, True, True, None),
    ],
)
def test_where_uploads_of_state_can_be_asked_for_a_station_has_few_by_the_clock(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plan: str,
    master: str,
    own: str | None,
    can: bool,
    asks: bool,
    interval: str | None,
) -> None:
    name = "spark.sql.streaming.stateStore.maintenanceInterval"
    said = {} if own is None else {name: own}
    spark: Any = SimpleNamespace(conf=SimpleNamespace(get=said.get, set=said.__setitem__))
    monkeypatch.setattr(job_module, "uploads_of", lambda of: (lambda: None) if can else None)
    sets = ["kafka.bootstrap=localhost:1", f"storage.root={tmp_path}", f"spark.master={master}"]
    running = Job(load_app("fraud"), load_settings(FraudSettings, app="fraud", overrides=sets))
    monkeypatch.setattr(running, "_stations", lambda: 1 if plan == "station" else None)
    assert (running._uploads(spark) is not None, said.get(name)) == (asks, interval)


@pytest.mark.parametrize(
    ("message", "available", "active", "working"),
    [
        ("Initializing sources", False, True, True),
        ("Getting offsets from KafkaV2[Subscribe[t]]", False, True, False),
        ("Waiting for data to arrive", False, False, False),
        ("Getting offsets from KafkaV2[Subscribe[t]]", True, True, True),
        ("Processing new data", True, True, True),
        ("No new data but cleaning up state", False, True, True),
    ],
)
def test_asking_the_broker_for_its_offsets_is_not_work(
    tmp_path: Path, message: str, available: bool, active: bool, working: bool
) -> None:
    running = job(tmp_path, until_end=False, drain=False)
    assert not running.working(), "it was not started"
    status = {"message": message, "isDataAvailable": available, "isTriggerActive": active}
    query: Any = SimpleNamespace(isActive=True, status=status)
    running._query = query
    assert running.working() is working
    query.isActive = False
    assert not running.working()


# -- what a job knows and says of its clock -----------------------------------------------------------

STATUS = ClockStatus(5, 9, 15, 14, True, "fraud.transactions:1")


class Control:
    """A control topic that notes what it is sent."""

    sent: ClassVar[list[tuple[str, SystemMessage]]] = []

    def __init__(self, options: object, topic: str) -> None:
        self.topic = topic

    def send(self, message: SystemMessage) -> int:
        self.sent.append((self.topic, message))
        return 0


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, SystemMessage]]:
    monkeypatch.setattr(job_module, "ControlTopic", Control)
    monkeypatch.setattr(Control, "sent", [])
    return Control.sent


def test_time_is_passed_for_the_inputs_that_are_clocks_and_for_what_has_arrived(
    tmp_path: Path, sent: list[tuple[str, SystemMessage]]
) -> None:
    running = job(tmp_path, until_end=False, drain=False)
    topics = running.app.topics(running.settings)
    assert running.pass_time(77)
    running._after_clock(0, STATUS)
    assert running.pass_time(78)
    assert topics.clocks
    assert topics.control not in topics.clocks
    assert sent == [
        (topics.control, Idle(77, topics.clocks, None)),
        (topics.control, Idle(78, topics.clocks, 14)),
    ]


def test_a_batch_can_be_asked_for(tmp_path: Path, sent: list[tuple[str, SystemMessage]]) -> None:
    running = job(tmp_path, until_end=False, drain=False)
    assert running.wake()
    assert sent == [(running.app.topics(running.settings).control, Wake())]


def test_without_a_control_topic_nothing_can_be_told(
    tmp_path: Path, sent: list[tuple[str, SystemMessage]]
) -> None:
    running = job(tmp_path, until_end=False, drain=False)
    running._topics = dataclasses.replace(running._topics, control=None)
    assert not running.pass_time(77)
    assert not running.wake()
    assert sent == []


def test_how_far_the_clock_is_stands_beside_the_checkpoint_and_in_the_monitor(tmp_path: Path) -> None:
    monitor = QueryMonitor()
    settings = load_settings(
        FraudSettings, app="fraud", overrides=["kafka.bootstrap=localhost:1", f"storage.root={tmp_path}"]
    )
    running = Job(load_app("fraud"), settings, monitor=monitor)
    assert running.clock is None
    running._after_clock(3, STATUS)
    assert running.clock == STATUS
    assert read_status(running.root, 3) == STATUS
    assert monitor.snapshot("fraud").held_by == "fraud.transactions:1"


def test_a_checkpoint_of_the_time_when_the_engine_kept_the_clock_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    (tmp_path / "contract.json").write_text(
        '{"process": "Fraud", "time_domain": "event_time", "encoding": 2}'
    )
    with pytest.raises(ContractMismatch, match=f"millrace convert {tmp_path}"):
        job(tmp_path, until_end=False, drain=False).run()


# -- the end of a query -------------------------------------------------------------------------------


class Query:
    """A query that ends after some waits, well or not."""

    def __init__(self, waits: int, error: Exception | None = None) -> None:
        self.waits, self.error, self.asked = waits, error, [0.0]
        self.stopped = False
        self.status = {"isTriggerActive": False, "isDataAvailable": False}
        self.isActive = True

    def awaitTermination(self, seconds: float) -> bool:
        self.asked.append(seconds)
        self.waits -= 1
        if self.waits >= 0:
            return False
        self.isActive = False
        if self.error is not None:
            raise self.error
        return True

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.stopped, self.isActive = True, False


def failure(text: str) -> Exception:
    from pyspark.errors import StreamingQueryException

    return StreamingQueryException(text, errorClass=None, messageParameters=None)


def test_a_job_waits_in_java_until_its_query_has_ended(tmp_path: Path) -> None:
    query: Any = Query(3)
    job(tmp_path, until_end=False, drain=False)._watch(query)
    assert len(query.asked) == 5, "it was asked once per wait, and not in between"
    assert all(wait <= 0.1 for wait in query.asked), "a stop is seen within a tenth of a second"
    assert not query.stopped


def test_what_ended_a_query_is_told_in_one_line(tmp_path: Path) -> None:
    query: Any = Query(2, failure("millrace.errors.Broken: no more\n at"))
    with pytest.raises(QueryFailed, match=r"no more \(log"):
        job(tmp_path, until_end=False, drain=False)._watch(query)


def test_a_job_that_is_stopped_stops_a_query_that_has_nothing_to_do(tmp_path: Path) -> None:
    query: Any = Query(1_000)
    running = job(tmp_path, until_end=False, drain=False)
    running._stop.set()
    running._watch(query)
    assert query.stopped


def test_an_app_begins_once_before_its_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    made = job(tmp_path, until_end=False, drain=False)
    made.app = dataclasses.replace(made.app, begin=lambda _: calls.append("begin"))
    for name, does in {
        "_check_broker": lambda: None,
        "_session": lambda: nullcontext(object()),
        "_bring_over": lambda _: None,
        "_start": lambda _: calls.append("start"),
        "_ticking": lambda _: nullcontext(),
        "_watch": lambda _: None,
    }.items():
        monkeypatch.setattr(made, name, does)
    made.run()
    assert calls == ["begin", "start"]
