"""A demo: broker, generator and app in one run, shown live and checked against the truth."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from millrace.errors import ChecksFailed, MillraceError, UserError
from millrace.local.home import demo_path
from millrace.runtime.apps import App, with_sent_times
from millrace.runtime.demo_settings import publish_settings
from millrace.runtime.monitor import QueryMonitor, QuerySnapshot

if TYPE_CHECKING:
    from millrace.console.live import AlertLine, LiveView
    from millrace.console.report import Check
    from millrace.local.processes import Child
    from millrace.runtime.job import Job
    from millrace.runtime.keeping import KeptJob
    from millrace.runtime.settings import AppSettings

_TICK_S = 0.25
#: How long nothing may be read once all has been sent, seconds; the first batch compiles, and takes its time
#: on a busy machine.
_CATCH_UP_S = 120.0
_FIRST_BATCH_S = 300.0
_ALERTS_SHOWN = 50
#: An app has settled when no batch ran for so long, seconds, or after so many from the last watermark on.
_QUIET_S = 1.0
#: How long a topic is read to its end, and how long a broker may take to say where that is, seconds.
_LAST_READ_S = 20.0
_TIMEOUT_S = 5.0
_SETTLE_BATCHES = 8
#: So many batches are waited for when all is read.
_LAST_BATCHES = 4 * _SETTLE_BATCHES


@dataclass(frozen=True)
class DemoRun:
    """What an app's demo is told.

    Attributes:
        bootstrap: The broker.
        folder: A fresh folder for everything that the run makes.
        settings: The app's settings for this run.
        duration_s: How long events are sent, seconds.
        rate: Events per second.
        seed: Seed of the generator.
        told: Name → what stood on a topic that the spec reads beside that of the alerts, each record once.
    """

    bootstrap: str
    folder: Path
    settings: Any
    duration_s: float
    rate: int
    seed: int
    told: Mapping[str, list[bytes]] = field(default_factory=dict)

    @property
    def ledger(self) -> Path:
        """Where the generator writes its ledger of truth."""
        return self.folder / "ledger.jsonl"


@dataclass(frozen=True)
class DemoSpec:
    """What an app adds to its demo; named by ``App.demo``.

    Attributes:
        settings: Run id (empty on an embedded broker) → settings overrides, e.g. topic names.
        generate: The arguments of ``millrace generate``.
        alert_topic: Settings → topic whose records are shown as they come.
        alert_line: A record's value → what is shown of it.
        checks: Run, ledger and ids of the alerts seen on the topic → the checks to print.
        read_ledger: Reads the generator's ledger.
        sent: Ledger → messages that were sent, to all topics that the app reads.
        answers: Whether the generator answers the app: then it begins when the app has warmed up.
        simulated: Whether the generator's event time is not the clock's: then its messages carry their
            simulated arrival, and the topics that the app reads keep it.
        prepare: What is told the app before the generator begins; where it answers, the app runs by then.
        also: Settings → name → topic that is read to its end for the checks (:attr:`DemoRun.told`).
        seldom: Names of checks of what does not happen in every run that sends less than the demo does by
            itself. Each compares what something else says must be, so that it is empty where that is nothing,
            and not where the app does nothing.
    """

    settings: Callable[[str], Sequence[str]]
    generate: Callable[[DemoRun], Sequence[str]]
    alert_topic: Callable[[Any], str]
    alert_line: Callable[[bytes], AlertLine]
    checks: Callable[[DemoRun, Any, set[str]], list[Check]]
    read_ledger: Callable[[Path], Any]
    sent: Callable[[Any], int]
    answers: bool = False
    simulated: bool = False
    prepare: Callable[[DemoRun], None] = lambda run: None
    also: Callable[[Any], Mapping[str, str]] = lambda settings: {}
    seldom: frozenset[str] = frozenset()


@dataclass(frozen=True)
class DemoOptions:
    """What the user chose.

    Attributes:
        duration_s: How long events are sent, seconds.
        rate: Events per second.
        seed: Seed of the generator.
        bootstrap: An existing broker, or ``None`` for an embedded one.
        overrides: Settings (``key=value``).
    """

    duration_s: float = 60.0
    rate: int = 1_000
    seed: int = 7
    bootstrap: str | None = None
    overrides: Sequence[str] = ()

    @property
    def is_small(self) -> bool:
        """Whether less is sent than without options.

        >>> DemoOptions(rate=200).is_small, DemoOptions(rate=200, duration_s=300).is_small
        (True, False)
        """
        return self.duration_s * self.rate < DemoOptions.duration_s * DemoOptions.rate


class Verdict(NamedTuple):
    """What the checks of a demo come to.

    Attributes:
        wrong: Names of the checks that fail.
        empty: Those that have nothing to compare, and should have.
        seldom: Those that have nothing to compare, which may be in a run so small.
    """

    wrong: list[str]
    empty: list[str]
    seldom: list[str]

    @property
    def holds(self) -> bool:
        """Whether the demo has shown what it is there for."""
        return not (self.wrong or self.empty)


def verdict_of(checks: Sequence[Check], options: DemoOptions, seldom: Container[str] = ()) -> Verdict:
    """Judge the checks of a demo.

    Args:
        checks: They; none is a failure.
        options: What the user chose.
        seldom: See :class:`DemoSpec`.
    """
    wrong = [check.name for check in checks if not check.ok]
    empty = [check.name for check in checks if check.is_empty] if checks else ["all checks"]
    forgiven = [name for name in empty if options.is_small and name in seldom]
    return Verdict(wrong, [name for name in empty if name not in forgiven], forgiven)


class AlertTail:
    """Reads an alerts topic from its beginning in a thread, dropping repeats by ``event_id``.

    At its end it has read all that stood on the topic then.

    Args:
        bootstrap: The broker.
        topic: The topic.
        options: Options of the client.
        line: A record's value → what is shown of it; ``None``: nothing is, and values are kept.
    """

    def __init__(
        self, bootstrap: str, topic: str, options: dict[str, str], line: Callable[[bytes], AlertLine] | None
    ):
        self._bootstrap, self._topic, self._options, self._line = bootstrap, topic, options, line
        self.values: list[bytes] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millrace-alerts", daemon=True)
        self.ids: set[str] = set()
        self.lines: deque[AlertLine] = deque(maxlen=_ALERTS_SHOWN)
        self.first_at: float | None = None

    def __enter__(self) -> AlertTail:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_LAST_READ_S + _TIMEOUT_S)

    def _run(self) -> None:
        from confluent_kafka import Consumer, KafkaError

        from millrace.kafka.admin import client_config, quiet_config

        config = {**client_config(self._bootstrap, self._options), **quiet_config()}
        config |= {"group.id": f"millrace-demo-{id(self):x}", "auto.offset.reset": "earliest"}
        # The question where a topic ends waits behind a fetch.
        config |= {"enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 100}
        consumer = Consumer(config)
        consumer.subscribe([self._topic])
        read: dict[int, int] = {}  # partition → the next offset
        ends: dict[int, int] | None = None
        deadline = 0.0
        try:
            while ends is None or (_behind(read, ends) and time.monotonic() < deadline):
                if self._stop.is_set() and ends is None:
                    ends, deadline = _ends(consumer), time.monotonic() + _LAST_READ_S
                messages: list[Any] = consumer.consume(500, 0.2)
                for message in messages:
                    error = message.error()
                    if error is None:
                        self._take(message)
                        read[message.partition()] = message.offset() + 1
                    elif error.code() == KafkaError._PARTITION_EOF:
                        read[message.partition()] = message.offset()
        finally:
            consumer.close()

    def _take(self, message: Any) -> None:
        identity = dict(message.headers() or ()).get("event_id", b"").decode()
        if identity in self.ids:
            return
        self.first_at = self.first_at or time.monotonic()
        self.ids.add(identity)
        if self._line is None:
            self.values.append(message.value())
        else:
            self.lines.append(self._line(message.value()))


class DemoTails:
    """The topics that a demo reads while it runs: its alerts, and what its checks ask for beside them.

    Args:
        spec: What the app adds to its demo.
        run: The run.

    Attributes:
        alerts: The alerts.
    """

    def __init__(self, spec: DemoSpec, run: DemoRun) -> None:
        self._spec, self._run = spec, run
        options = dict(run.settings.kafka.options)
        self.alerts = AlertTail(run.bootstrap, spec.alert_topic(run.settings), options, spec.alert_line)
        also = spec.also(run.settings)
        self._also = {name: AlertTail(run.bootstrap, topic, options, None) for name, topic in also.items()}
        self._reading = contextlib.ExitStack()

    def __enter__(self) -> DemoTails:
        for tail in (self.alerts, *self._also.values()):
            self._reading.enter_context(tail)
        return self

    def __exit__(self, *_: object) -> None:
        self._reading.close()

    def checks(self) -> list[Check]:
        """Return the checks of the run, once everything was read."""
        run = replace(self._run, told={name: tail.values for name, tail in self._also.items()})
        return self._spec.checks(run, self._spec.read_ledger(run.ledger), self.alerts.ids)


def _ends(consumer: Any) -> dict[int, int]:
    """Return partition → its end now, of what a consumer has been given."""
    from confluent_kafka import KafkaException

    ends = {}
    for one in consumer.assignment():
        with contextlib.suppress(KafkaException):  # the broker is gone: what was read is all there is
            ends[one.partition] = consumer.get_watermark_offsets(one, timeout=_TIMEOUT_S)[1]
    return ends


def _behind(read: dict[int, int], ends: dict[int, int]) -> bool:
    return any(read.get(partition, 0) < end for partition, end in ends.items())


def demo_folder(app: str) -> Path:
    """Return the folder of an app's demo, emptied; refuses while another demo uses it."""
    from millrace.runtime.contract import owned

    folder = demo_path(app)
    if folder.exists():
        with owned(folder):
            pass
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def run_demo(app: App, spec: DemoSpec, options: DemoOptions, view: LiveView) -> list[Check]:
    """Run an app's demo to its end and return its checks.

    Args:
        app: The app.
        spec: What the app adds.
        options: What the user chose.
        view: Where it is shown.

    Raises:
        UserError: Something is missing or in use.
        MillraceError: The generator or the query failed, or was interrupted.
    """
    began = time.monotonic()
    folder = demo_folder(app.name)
    if spec.simulated:
        app = with_sent_times(app)
    with _broker(options.bootstrap, folder) as (bootstrap, broker_ready, run_id):
        settings = demo_settings(app, spec, options, folder, bootstrap, run_id)
        run = DemoRun(bootstrap, folder, settings, options.duration_s, options.rate, options.seed)
        # The dashboard finds the broker and the topics by it.
        told = [f"kafka.bootstrap={bootstrap}", *spec.settings(run_id)]
        try:
            with publish_settings(folder, told):
                return _stream(app, spec, run, view, broker_ready, began)
        finally:
            if run_id:
                delete_demo_topics(app, settings, run_id)


def demo_settings(
    app: App, spec: DemoSpec, options: DemoOptions, folder: Path, bootstrap: str, run_id: str, *more: str
) -> AppSettings:
    """Return the settings that an app's demo runs with.

    Args:
        app: The app.
        spec: What it adds to its demo.
        options: What the user chose, whose settings win.
        folder: Where it keeps what it makes.
        bootstrap: The broker.
        run_id: See :class:`DemoSpec`.
        more: Settings that every app's demo has in this kind of run, ``key=value``.
    """
    from millrace.runtime.settings import load_settings

    overrides = [f"storage.root={folder}", f"kafka.bootstrap={bootstrap}", "spark.quick_start=true", *more]
    overrides += spec.settings(run_id)
    return load_settings(app.settings, app=app.name, overrides=[*overrides, *options.overrides])


def start_generator(spec: DemoSpec, run: DemoRun) -> Child:
    """Begin to send a demo's events; return the process that does."""
    from millrace.local.processes import Child

    spec.prepare(run)
    times = "arrival" if spec.simulated else "append"
    command = [sys.executable, "-m", "millrace", "generate", *spec.generate(run), "--timestamps", times]
    return Child(command, log_file=run.folder / "logs" / "generator.log")


def sent_by(generator: Child, spec: DemoSpec, run: DemoRun, called: str = "the generator") -> int | None:
    """Return how many messages a generator that has ended has sent; ``None``: it still sends.

    Raises:
        UserError: It failed.
    """
    code = generator.poll()
    if code is None:
        return None
    if code != 0:
        log_file = run.folder / "logs" / "generator.log"
        raise UserError(f"{called} ended with code {code}; see {log_file}")
    return spec.sent(spec.read_ledger(run.ledger))


@contextlib.contextmanager
def _broker(bootstrap: str | None, folder: Path) -> Iterator[tuple[str, Callable[[], None], str]]:
    """Give a broker's address at once, a function that waits until it answers, and a run id for topics."""
    import os
    import uuid

    from millrace.kafka.broker import BOOTSTRAP_VARIABLE, EmbeddedBroker
    from millrace.kafka.launch import free_port

    if named := bootstrap or os.environ.get(BOOTSTRAP_VARIABLE):
        yield named, lambda: None, uuid.uuid4().hex[:8]
        return
    port = free_port()
    broker = EmbeddedBroker(port=port, log_dir=folder / "logs")
    failure: list[BaseException] = []

    def start() -> None:
        try:
            broker.start()
        except BaseException as error:
            failure.append(error)

    # Spark takes longer to start than the broker: let them start side by side.
    thread = threading.Thread(target=start, name="millrace-broker")
    thread.start()

    def wait() -> None:
        thread.join()
        if failure:
            raise failure[0]

    try:
        yield f"127.0.0.1:{port}", wait, ""
    finally:
        thread.join()
        broker.stop()


def _stream(
    app: App,
    spec: DemoSpec,
    run: DemoRun,
    view: LiveView,
    broker_ready: Callable[[], None],
    began: float,
) -> list[Check]:
    from millrace.runtime.job import Job

    monitor = QueryMonitor()
    job = Job(
        app,
        run.settings,
        monitor=monitor,
        on_batch=monitor.on_batch,
        wait_for_broker=broker_ready,
        on_plan=view.message,
    )
    with _running(job) as thread:
        with view.phase("broker"):
            broker_ready()
        with contextlib.ExitStack() as stack:
            if not spec.answers:
                # Events may wait for Spark, so that the first alert has not to wait for the events.
                generator = stack.enter_context(start_generator(spec, run))
            with view.phase("Spark"):
                _wait_for(job.session_ready, thread)
            tails = stack.enter_context(DemoTails(spec, run))
            with view.phase("query"):
                _wait_for(job.started, thread)
            if spec.answers:
                with view.phase("first batch"):
                    _warm_up(job, monitor, thread)
                generator = stack.enter_context(start_generator(spec, run))
            _watch(spec, run, view, monitor, tails.alerts, generator, thread, began, Settling(job))
            # No batch is begun any more: the tables are read while Spark ends. The one that ran may have
            # written to the topic, which is read to its end.
            job.stop()
            _wait_for(job.ended, thread)
        with view.phase("checks"):
            return tails.checks()


def _warm_up(job: Job, monitor: QueryMonitor, thread: _JobThread) -> None:
    """Have a batch run without events: the first one takes many times as long as those after it."""
    if not job.wake():
        return
    while not monitor.snapshot().batches:
        if not thread.is_alive():
            thread.check()
            raise MillraceError("the query ended before its first batch")
        time.sleep(_TICK_S)


class _JobThread(threading.Thread):
    """Runs a job; what it raised is raised again by :meth:`check`."""

    def __init__(self, job: Job) -> None:
        super().__init__(name="millrace-job")
        self._job = job
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._job.run()
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        if self._error is not None:
            raise self._error


@contextlib.contextmanager
def _running(job: Job) -> Iterator[_JobThread]:
    thread = _JobThread(job)
    thread.start()
    try:
        yield thread
    finally:
        job.stop()
        thread.join()
    thread.check()


def _wait_for(event: threading.Event, thread: _JobThread) -> None:
    while not event.wait(_TICK_S):
        if not thread.is_alive():
            thread.check()
            raise MillraceError("the job ended before it began")


class Settling:
    """Judges when an app has done all that the last events bring about.

    When all is read, event time goes on past the last event, as it would after a silence; what waits for the
    watermark is handled in the batches that follow, one per process of a chain.

    Args:
        job: The job.
    """

    def __init__(self, job: Job | KeptJob) -> None:
        self._job = job
        self._target: datetime | None = None
        self._began = False
        self._reached = self._batches = 0
        self._since = 0.0

    def done(self, snapshot: QuerySnapshot, sent: int) -> bool:
        """Return whether nothing more is to come.

        Args:
            snapshot: What the query has done.
            sent: Messages that were sent.
        """
        if snapshot.input_rows < sent or snapshot.lag != 0:
            return False
        now = time.monotonic()
        newest = snapshot.newest_event
        # Rows of the control topic count as read, too: an event may come behind what was taken for all.
        later = newest is not None and self._target is not None and newest > self._target
        if not self._began or later:
            self._began, self._since = True, now
            self._reached = 0
            if newest is not None:
                past = int((newest + self._job.settings.stream.out_of_orderness).timestamp() * 1_000) + 2
                self._target = newest if self._job.pass_time(past) else None
            return False
        if snapshot.batches != self._batches or self._job.working():
            self._batches, self._since = snapshot.batches, now
        if self._target is not None and (snapshot.watermark is None or snapshot.watermark < self._target):
            return False
        self._reached = self._reached or snapshot.batches
        # Where silence itself makes batches, it never gets quiet.
        return now - self._since >= _QUIET_S or snapshot.batches >= self._reached + _SETTLE_BATCHES


class CatchUp:
    """Waits for an app that is to do what was sent: as long as it goes on, however slowly."""

    def __init__(self) -> None:
        self._read = self._first = self._batches = 0
        self._since: float | None = None

    def check(self, read: int, batches: int, sent: int, called: str = "") -> None:
        """Take note of what has been done.

        Args:
            read: Messages that were read.
            batches: Batches that were run: what waits for its time is handled when all is read.
            sent: Messages that were sent; no more come.
            called: The app, where there are several.

        Raises:
            ChecksFailed: Nothing was done for too long.
        """
        now = time.monotonic()
        if self._since is None or read != self._read:
            self._read, self._first, self._batches, self._since = read, batches, 0, now
        # A clock makes batches for ever.
        if read >= sent and self._batches < (behind := min(batches - self._first, _LAST_BATCHES)):
            self._batches, self._since = behind, now
        limit_s = _CATCH_UP_S if read else _FIRST_BATCH_S
        if now - self._since > limit_s:
            of_whom = called and f"{called}: "
            raise ChecksFailed(
                f"{of_whom}{read:,} of {sent:,} events were read, and nothing done for {limit_s:.0f} s: "
                "is the machine busy? A lower --rate needs less of it; millrace doctor says what there is"
            )


def _watch(
    spec: DemoSpec,
    run: DemoRun,
    view: LiveView,
    monitor: QueryMonitor,
    tail: AlertTail,
    generator: Child,
    thread: _JobThread,
    began: float,
    settling: Settling,
) -> None:
    """Show figures until the generator has ended and the app has caught up."""
    streaming_since = time.monotonic()
    sent: int | None = None
    catch_up = CatchUp()
    first_alert_told = False
    while True:
        snapshot = monitor.snapshot()
        elapsed = time.monotonic() - streaming_since
        view.update(_model(run, snapshot, tail, sent, elapsed))
        if tail.first_at is not None and not first_alert_told:
            first_alert_told = True
            view.message(f"first alert {tail.first_at - began:.1f} s after the start")
        if not thread.is_alive():
            thread.check()
            raise MillraceError("the query ended before the generator")
        if sent is None:
            sent = sent_by(generator, spec, run)
        if sent is not None:
            if settling.done(snapshot, sent):
                return
            catch_up.check(snapshot.input_rows, snapshot.batches, sent)
        time.sleep(_TICK_S)


def _model(run: DemoRun, snapshot: Any, tail: AlertTail, sent: int | None, elapsed: float) -> Any:
    from millrace.console.live import ViewModel

    alerts = list(tail.lines)
    return replace(
        ViewModel.of(snapshot),
        elapsed_s=elapsed,
        remaining_s=max(0.0, run.duration_s - elapsed) if sent is None else 0.0,
        sent=snapshot.input_rows + snapshot.lag if snapshot.lag is not None else sent,
        sent_rate=float(run.rate) if sent is None else 0.0,
        alerts=alerts,
        alerts_total=len(tail.ids),
        logs=str(run.folder / "logs"),
    )


def delete_demo_topics(app: App, settings: AppSettings, run_id: str) -> None:
    """Delete the topics that a demo has made on a broker that others use.

    Args:
        app: The app.
        settings: Its settings in the run.
        run_id: What the names of the run's own topics end in, also of those that only its generator hears.
    """
    from millrace.kafka.admin import delete_topics, topic_partitions

    bootstrap, options = str(settings.kafka.bootstrap), settings.kafka.options
    topics = app.topics(settings)
    names = {t.name for t in (*topics.reads, *topics.writes)}
    with contextlib.suppress(UserError):
        there = topic_partitions(bootstrap, options=options)
        names |= {name for name in there if name.endswith(f".demo-{run_id}")}
        delete_topics(bootstrap, names, options=options)
