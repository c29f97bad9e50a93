"""A running app: session, query, graceful stop, end of a bounded run."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.checkpoints.positions import kept_ids
from millrace.connectors.driver_writer import DriverWriter
from millrace.connectors.kafka import kafka_stream
from millrace.connectors.router import DeadLetterLimit, Outputs, Router, StopRequested
from millrace.connectors.spark_writer import SparkWriter
from millrace.errors import MillraceError, UserError
from millrace.host.spark_clock import clock_settings_for
from millrace.host.spark_input import Plan
from millrace.host.spark_partitions import PARTITIONS_CONF
from millrace.host.spark_uploads import AwaitingUploads, uploads_of
from millrace.host.system import Drain, Idle, SystemMessage, Wake
from millrace.local.belonging import belonging, belonging_to
from millrace.local.stopping import stop_signals
from millrace.observing.endpoint import Endpoint
from millrace.observing.exposition import Bounds
from millrace.observing.joblog import logging_to
from millrace.observing.jobs import JobRecord, jobs_folder, recorded_job, this_process
from millrace.observing.observer import Observer
from millrace.runtime.apps import App, app_version, with_output_suffix
from millrace.runtime.clock_files import keep_settings, write_status
from millrace.runtime.clocks import ControlTopic, Offsets, Progress, Silence, Ticker, progress_of
from millrace.runtime.contract import check_contract, owned, refuse_older
from millrace.runtime.defaults import ASKED_DEFAULTS, STATION_DEFAULTS
from millrace.runtime.monitor import QueryMonitor, listener
from millrace.runtime.plans import Backlog, Choice, choose, is_short, settled, settled_what
from millrace.runtime.session import spark_metrics, spark_session
from millrace.runtime.settings import AppSettings
from millrace.runtime.shared import Sessions
from millrace.runtime.shipping import ship_project
from millrace.runtime.wiring import outputs_of
from millrace.state.keyring import KEY_FILE_CONF, configured_keys
from millrace.time.durations import to_ms
from millrace.topology.sinks import table_name

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from millrace.process import KeyedProcess
    from millrace.time.clock import ClockStatus

log = logging.getLogger(__name__)
#: Beside a checkpoint whose input has ended.
DRAINED_FILE = "drained"
_DRAINING = "draining\n"
_POLL_S = 0.1
# What the status of a query that has nothing to do begins with (MicroBatchExecution of Spark 4.2).
_LOOKING = ("Getting offsets", "Waiting for")


class QueryFailed(MillraceError):
    """The streaming query ended with an error."""


class Job:
    """One app's query from start to end.

    Args:
        app: The app.
        settings: Its settings; ``kafka.bootstrap`` must be set.
        until_end: Take what is in the topics at the start and end; else run until stopped.
        drain: At the end, move the watermark to the end of time, so that every timer fires; the
            checkpoint cannot be gone on from then.
        until_batch: Stop when this batch is committed; ``None``: no batch ends it.
        monitor: Fed with the query's progress, if given.
        on_batch: Called after each batch with its id and the number of records per output.
        on_warning: Told in a line what may go wrong; left out, it is logged.
        on_plan: Told in a line how the app's topology runs, and why; left out, it is logged.
        log_file: Where Spark's own log goes.
        wait_for_broker: Returns when the broker answers; for a broker that starts meanwhile.
        sessions: Gives its Spark session, where several jobs of a process have one engine; left out, it has
            one of its own.

    Example:
        >>> job = Job(load_app("fraud"), settings, until_end=True)  # doctest: +SKIP
        >>> job.run()  # doctest: +SKIP
    """

    def __init__(
        self,
        app: App,
        settings: AppSettings,
        *,
        until_end: bool = False,
        drain: bool = False,
        until_batch: int | None = None,
        monitor: QueryMonitor | None = None,
        on_batch: Callable[[int, dict[str, int]], None] | None = None,
        on_warning: Callable[[str], None] | None = None,
        on_plan: Callable[[str], None] | None = None,
        log_file: Path | None = None,
        wait_for_broker: Callable[[], None] | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        if settings.kafka.bootstrap is None:
            raise UserError(
                f"{app.name} needs a broker: set kafka.bootstrap or KAFKA_BOOTSTRAP_SERVERS, "
                f"or try `millrace demo {app.name}`, which brings its own"
            )
        root = settings.storage.local_root
        if root is None:
            raise UserError(
                f"storage.root is {settings.storage.root}: only local and mounted folders are supported"
            )
        self.app = app
        self.settings = settings
        self.root = root
        self._topics = with_output_suffix(app.topics(settings), settings.kafka.output_suffix)
        self._until_end = until_end
        self._drain = drain
        self._until_batch = until_batch
        self._monitor = monitor or QueryMonitor()
        self._observer: Observer | None = None
        self._batch = -1
        self._on_batch = on_batch
        self._warn: Callable[[str], None] = on_warning or (lambda text: log.warning("%s", text))
        self._on_plan = on_plan or (lambda text: log.info("%s", text))
        self._choice: Choice | None = None
        self._backlog = Backlog(self._warn)
        self._log_file = log_file or root / "logs" / "spark.log"
        self._stop = threading.Event()
        self._wait_for_broker = wait_for_broker
        self._sessions = sessions
        self._ran = False
        self._query: StreamingQuery | None = None
        self._writers = contextlib.ExitStack()
        self._incarnation = ""
        #: How far the query's clock is; ``None`` before its first batch.
        self.clock: ClockStatus | None = None
        #: Set when broker and session are there and the query is about to be started.
        self.session_ready = threading.Event()
        #: Set when the query runs.
        self.started = threading.Event()
        #: Set when no batch runs any more, and Spark is about to end.
        self.ended = threading.Event()

    @property
    def query(self) -> StreamingQuery | None:
        """The query, once it runs."""
        return self._query

    @property
    def plan(self) -> Plan:
        """How the app's topology runs; chosen when it is first asked for."""
        return self._chosen().plan

    def _chosen(self) -> Choice:
        if self._choice is None:
            topology = self.app.topology(settled(self.app, self.settings, "station"))
            self._choice = choose(self.settings, self.root, self._waiting, topology.locality)
            before = self.settings
            self.settings = settled(self.app, before, self._choice.plan)
            self._on_plan(f"{self.app.name}: {self._choice}{settled_what(before, self.settings)}")
        return self._choice

    def _stations(self) -> int | None:
        """Return how many stations there are; ``None``: it is a chain."""
        return self._chosen().stations if self.plan == "station" else None

    def _waiting(self) -> int:
        """Return how many events wait in the topics; of a broker that is still to start: none."""
        from millrace.kafka.admin import offset_ranges

        kafka, stream = self.settings.kafka, self.settings.stream
        if self._wait_for_broker is not None or kafka.bootstrap is None:
            return 0
        if stream.starting_offsets == "latest":
            return 0
        return sum(
            end - first
            for topic in self._topics.reads
            for first, end in offset_ranges(kafka.bootstrap, topic.name, options=kafka.options)
        )

    def stop(self) -> None:
        """Ask for a graceful stop: the running batch is finished, the next is not begun."""
        self._stop.set()

    def working(self) -> bool:
        """Return whether a batch runs or waits to be run; looking for new data is not work."""
        if self._query is None or not self._query.isActive:
            return False
        status = self._query.status
        # A trigger is active whenever it asks the broker for its offsets, which it does all the time.
        return bool(status["isDataAvailable"]) or not str(status["message"]).startswith(_LOOKING)

    def pass_time(self, to_ms: int) -> bool:
        """Tell the query that event time has come to ``to_ms``, as after a silence.

        Returns:
            Whether it could be told: that takes a control topic.
        """
        arrival = None if self.clock is None else self.clock.arrival
        return self._send(Idle(to_ms, self._topics.clocks, arrival))

    def wake(self) -> bool:
        """Have a batch run without events; returns whether it could be asked for."""
        return self._send(Wake())

    def _send(self, message: SystemMessage) -> bool:
        if self._topics.control is None:
            return False
        ControlTopic(self.settings.kafka.client_options(), self._topics.control).send(message)
        return True

    def run(self) -> None:
        """Run until the end, a stop or an error.

        Raises:
            UserError: No broker, no Java, a checkpoint in use or not fitting, a missing topic.
            QueryFailed: The query failed; the message is its first line, the log has the rest.
        """
        self._refuse_drained()
        refuse_older(self.root, self._processes())
        if self._wait_for_broker is None:
            self._check_broker()
        # A signal while Spark starts must not leave anything behind either.
        with owned(self.root), _signals(self.stop), self._observed(), self._session() as spark:
            if self._wait_for_broker is not None:
                self._wait_for_broker()
                self._check_broker()
            self.session_ready.set()
            if self._stop.is_set():
                return
            if self.app.begin is not None and (told := self.app.begin(self.settings)):
                self._on_plan(f"{self.app.name}: {told}")
            self._bring_over(spark)
            query = self._query = self._start(spark)
            self._observe("running", None if self._choice is None else self._choice.plan)
            self.started.set()
            with self._ticking(query):
                self._watch(query)
            self._observe("ending")
            if self._until_end and self._drain and not self._stop.is_set():
                self._run_dry(spark, progress_of(query))
            self.ended.set()

    @contextlib.contextmanager
    def _observed(self) -> Iterator[None]:
        """Let others see the job while the block runs: its record, its figures, its log, its metrics."""
        metrics, kafka = self.settings.metrics, self.settings.kafka
        with belonging_to(self), contextlib.ExitStack() as kept:
            endpoint = None
            if metrics.port is not None:
                endpoint = kept.enter_context(Endpoint(metrics.host, metrics.port))
            pid, started = this_process()
            record = JobRecord(
                app=self.app.name,
                root=str(self.root),
                pid=pid,
                process_started=started,
                began_ms=time.time_ns() // 1_000_000,
                host=socket.gethostname(),
                bootstrap=kafka.bootstrap,
                reads=tuple(t.name for t in self._topics.reads),
                writes=tuple(t.name for t in self._topics.writes),
                clocks=self._topics.clocks,
                metrics=None if endpoint is None else endpoint.address,
                signal="TERM" if threading.current_thread() is threading.main_thread() else "INT",
            )
            observer = self._observer = Observer(
                record,
                self._monitor,
                key_file=self.settings.state.encryption.key_file,
                exports=_exports(self.settings),
            )
            try:
                kept.enter_context(
                    logging_to(
                        self.root / "logs",
                        shape=self.settings.log_format,
                        level=self.settings.log_level,
                        query=self.app.name,
                        batch=lambda: self._batch,
                        ours=("millrace", self.app.topology.__module__.partition(".")[0]),
                        of=self,
                    )
                )
                kept.enter_context(recorded_job(record, jobs_folder()))
            except OSError as error:
                self._warn(f"`millrace status` will not see this job: {error}")
            kept.enter_context(observer)
            if endpoint is not None:
                kept.enter_context(endpoint.serving(observer.figures, self._bounds(), observer.spent))
            log.info("%s began in %s, pid %d", self.app.name, self.root, pid)
            if self._choice is not None:
                log.info("%s", self._choice)
            try:
                yield
            except Exception as error:
                log.error("%s ended: %s", self.app.name, error)
                raise
            log.info("%s has ended", self.app.name)

    def _observe(self, phase: str, plan: str | None = None) -> None:
        if self._observer is not None:
            self._observer.update(phase=phase, plan=plan)

    def _bounds(self) -> Bounds:
        metrics, trigger = self.settings.metrics, self.settings.stream.trigger_interval
        dead_after = max(metrics.dead_after, 10 * trigger)
        return Bounds(metrics.ready_lag, to_ms(metrics.ready_age), to_ms(dead_after))

    def _session(self) -> contextlib.AbstractContextManager[SparkSession]:
        spark = self.settings.spark
        partitions = self._stations() or spark.shuffle_partitions
        if self._sessions is not None:
            told = {} if partitions is None else {PARTITIONS_CONF: str(partitions)}
            return self._sessions(self.app.name, told | self._state_conf())
        return spark_session(
            f"millrace-{self.app.name}",
            master=spark.master,
            shuffle_partitions=partitions,
            driver_memory=spark.driver_memory,
            quick_start=is_short(self.settings, self._waiting, until_end=self._until_end),
            log_file=self._log_file,
            conf=spark_metrics(self.settings.metrics.host, self.settings.metrics.spark_port)
            | self._state_conf()
            | dict(spark.conf),
            is_typical=lambda: self._ran,
            preload=(self.app.topology.__module__,),
        )

    def _state_conf(self) -> dict[str, str]:
        """Return what Spark's state store is told, beside what it is told in every session."""
        of_plan = STATION_DEFAULTS if self._stations() is not None else {}
        return {name: default.value for name, default in of_plan.items()} | state_conf(self.settings)

    def _bring_over(self, spark: SparkSession) -> None:
        """Bring the checkpoint to the plan that is set, where it has the other one."""
        if self._choice is None or not self._choice.converts:
            return
        from millrace.checkpoints.checkpoint import Checkpoint
        from millrace.checkpoints.rescale import rekey_owned

        stations = self._stations()
        partitions = None if stations else int(spark.conf.get(PARTITIONS_CONF) or 1)
        checkpoint = Checkpoint(self.root, self.root / "checkpoint")
        key_file = self.settings.state.encryption.key_file
        rekey_owned(
            spark,
            checkpoint,
            plan=self.plan,
            stations=stations,
            partitions=partitions,
            key_file=key_file,
            processes=self._processes(),
        )

    def _processes(self) -> list[KeyedProcess[Any, Any]]:
        settings = self.settings if self._choice is not None else settled(self.app, self.settings)
        return [link.process for link in self.app.topology(settings).links]

    def _check_broker(self) -> None:
        from millrace.kafka.admin import TopicSpec, cluster_id, create_topics, topic_configs
        from millrace.runtime.topic_checks import sent_times_warning

        kafka = self.settings.kafka
        assert kafka.bootstrap is not None  # noqa: S101  (checked in __init__)
        cluster_id(kafka.bootstrap, timeout_s=10.0, options=kafka.options)
        topics = {
            t.name: TopicSpec(t.partitions, dict(t.config))
            for t in (*self._topics.reads, *self._topics.writes)
        }
        made = create_topics(kafka.bootstrap, topics, options=kafka.options)
        old = [t for t in self._topics.reads if t.name not in made]
        configs = topic_configs(kafka.bootstrap, [t.name for t in old], options=kafka.options)
        if warning := sent_times_warning(old, configs):
            self._warn(warning)

    def _ticking(self, query: StreamingQuery) -> contextlib.AbstractContextManager[object]:
        """Return what sends ticks while the query runs, if any are wanted."""
        stream, control = self.settings.stream, self._topics.control
        if self.settings.kafka.output_suffix:
            return contextlib.nullcontext()  # the job beside which it runs sends them, to both
        if self._until_end or control is None or not (stream.tick_interval or stream.idle_after):
            return contextlib.nullcontext()
        silence = None
        if stream.idle_after is not None:
            silence = Silence(to_ms(stream.idle_after), control, self._topics.clocks)
        tick_ms = None if stream.tick_interval is None else to_ms(stream.tick_interval)
        topic = ControlTopic(self.settings.kafka.client_options(), control)
        return Ticker(topic, query, tick_ms=tick_ms, silence=silence, status=lambda: self.clock)

    def _run_dry(self, spark: SparkSession, progress: Progress | None) -> None:
        """Let every timer fire: a last run that sees the end of the input, and nothing that came since."""
        if self._topics.control is None or progress is None:
            return
        marker = self.root / DRAINED_FILE
        marker.write_text(_DRAINING)
        control = ControlTopic(self.settings.kafka.client_options(), self._topics.control)
        end = {**progress.done, control.topic: {0: control.send(Drain(self._incarnation)) + 1}}
        self._watch(self._start(spark, end))
        if not self._stop.is_set():
            marker.write_text("drained\n")

    def build(self, spark: SparkSession, end: Offsets | None = None) -> Outputs:
        """Build the app's pipeline over its Kafka topics, without starting it.

        Args:
            spark: The session.
            end: Records from these offsets on are left out.
        """
        stream, kafka = self.settings.stream, self.settings.kafka
        events = kafka_stream(
            spark,
            kafka.spark_options(),
            [t.name for t in self._topics.reads],
            starting_offsets=stream.starting_offsets,
            max_offsets_per_trigger=stream.max_offsets_per_trigger,
        )
        if end is not None:
            events = events.filter(_before(end))
        return outputs_of(self.app, events, self.settings, self.plan, self._chosen().stations)

    def table_path(self, table: str) -> str:
        """Return where a table of the app is."""
        return self.settings.storage.path("tables", table)

    def _start(self, spark: SparkSession, end: Offsets | None = None) -> StreamingQuery:
        if end is None:
            ship_project(spark, self.root / "shipped")
        outputs = self.build(spark, end)
        if self._observer is not None:  # an app may make records of its own of late events
            self._observer.late_in(o for o, to in outputs.written if table_name(to) == "late")
        incarnation = self._incarnation = check_contract(self.root, outputs.stream.contract())
        clock = msgspec.structs.replace(
            outputs.stream.clock, topics=self._topics.clocks, incarnation=incarnation
        )
        epochs = keep_settings(self.root, clock)
        router = self._router(outputs, f"{self.app.name}:{incarnation}")
        self._writers.callback(router.close)
        if end is None:
            spark.streams.addListener(listener(self._monitor))
        checkpoint = self.settings.storage.path("checkpoint")
        ask = self._uploads(spark)
        write = AwaitingUploads(router, Path(checkpoint) / "state", self._stop, ask=ask)
        writer = (
            outputs.stream.raw.writeStream.queryName(self.app.name)
            .option("checkpointLocation", checkpoint)
            .foreachBatch(belonging(write))
        )
        interval = self.settings.stream.trigger_interval
        if self._until_end:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{int(interval.total_seconds() * 1000)} milliseconds")
        with clock_settings_for(spark, epochs):
            return writer.start()

    def _uploads(self, spark: SparkSession) -> Callable[[], None] | None:
        """Return what has the state uploaded, where that can be asked for; then the clock may be slow."""
        if not self.settings.spark.master.startswith("local"):
            return None
        ask = uploads_of(spark)
        if ask is not None and self._stations() is not None:
            for name, default in ASKED_DEFAULTS.items():
                if spark.conf.get(name, None) is None:
                    spark.conf.set(name, default.value)
        return ask

    def _refuse_drained(self) -> None:
        """Refuse a checkpoint whose timers have fired as at the end of time, or have begun to.

        A drain that was cut off is finished by running it again.
        """
        marker = self.root / DRAINED_FILE
        if not marker.exists() or (marker.read_text() == _DRAINING and self._until_end and self._drain):
            return
        raise UserError(
            f"the checkpoint in {self.root} has been drained: its timers fired as at the end of time. "
            "Use another storage.root, and --no-drain for runs that are to be gone on from"
        )

    def _router(self, outputs: Outputs, app_id: str) -> Router:
        kafka = self.settings.kafka
        limit = DeadLetterLimit(self.settings.stream.max_dead_letter_ratio)
        known = kept_ids(self.root)
        places = {table: Path(self.table_path(table)) for table in outputs.table_names()}
        written = {table: known[place] for table, place in places.items() if place in known}
        stamp = {"dlq.app": self.app.name, "dlq.version": app_version(self.app.name)}
        small = DriverWriter(
            outputs=outputs,
            table_path=self.table_path,
            client_options=kafka.client_options(),
            app_id=app_id,
            limit=limit,
            written=written,
            stamp=stamp,
            on_clock=self._after_clock,
            merge_interval_s=self.settings.stream.merge_interval.total_seconds(),
            on_reasons=self._after_reasons,
        )
        small.prepare()
        large = SparkWriter(
            outputs,
            self.table_path,
            kafka.spark_options(),
            app_id,
            limit,
            written,
            stamp,
            self._after_clock,
            self._after_reasons,
        )
        records = self.settings.stream.driver_write_max_records
        return Router(
            small, large, driver_write_max_records=records, on_batch=self._after_batch, stop=self._stop
        )

    def _after_batch(self, batch_id: int, counts: dict[str, int]) -> None:
        self._ran = self._ran or bool(counts)
        self._batch = batch_id
        if self._until_batch is not None and batch_id >= self._until_batch:
            self._stop.set()  # it is committed, and the next is refused
        if self._observer is not None:
            self._observer.on_batch(batch_id, counts)
        if self._on_batch is not None:
            self._on_batch(batch_id, counts)

    def _after_clock(self, batch_id: int, status: ClockStatus) -> None:
        self.clock = status
        if self._choice is not None and self._choice.plan == "station" and not self._until_end:
            self._backlog.see(is_full=status.is_full)
        write_status(self.root, batch_id, status)
        self._monitor.on_clock(self.app.name, status)
        if self._observer is not None:
            self._observer.on_clock(status)

    def _after_reasons(self, batch_id: int, reasons: Mapping[str, int]) -> None:
        if self._observer is not None:
            self._observer.on_reasons(batch_id, reasons)

    def _watch(self, query: StreamingQuery) -> None:
        """Wait for the query's end, and bring all tables to its last batch."""
        try:
            self._await(query)
        except BaseException:
            # What cannot be merged now is on the disk, and is merged when the job goes on.
            with contextlib.suppress(Exception):
                self._writers.close()
            raise
        self._writers.close()

    def _await(self, query: StreamingQuery) -> None:
        while not _ended(query, _POLL_S):
            if self._stop.is_set():
                self._end(query)
                return
        error = query.exception()
        if error is not None and not self._stop.is_set():
            raise QueryFailed(f"{self.app.name}: {first_line(str(error))} (log: {self._log_file})")

    def _end(self, query: StreamingQuery) -> None:
        """Wait until the running batch is committed, then end the query.

        The router refuses the next batch before it has any effect; a query that has nothing to do is
        simply stopped.
        """
        while query.isActive:
            status = query.status
            if not status["isTriggerActive"] and not status["isDataAvailable"]:
                query.stop()
                return
            _ended(query, _POLL_S)
        error = query.exception()
        if error is not None and StopRequested.__name__ not in str(error):
            raise QueryFailed(f"{self.app.name}: {first_line(str(error))} (log: {self._log_file})")


def _before(end: Offsets) -> Column:
    """Return whether a record stands before these offsets; what has none is new, and left out."""
    from pyspark.sql import functions as F

    place = F.concat_ws(":", "topic", F.col("partition").cast("string"))
    ends = [F.lit(x) for t, of in end.items() for p, offset in of.items() for x in (f"{t}:{p}", offset)]
    return F.col("offset") < F.coalesce(F.create_map(*ends)[place], F.lit(0))


def state_conf(settings: AppSettings) -> dict[str, str]:
    """Return the settings of a session that say where state's keys are; never the keys.

    Raises:
        StateKeyError: The keys cannot be used; better known before Spark starts.
    """
    reference = configured_keys(settings.state.encryption.key_file)
    return {} if reference is None or reference.file is None else {KEY_FILE_CONF: reference.file}


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into a graceful stop; a second SIGINT interrupts at once."""

    def told(name: str) -> None:
        log.info("%s: finishing the running batch", name)
        stop()

    with stop_signals(told):
        yield


def _ended(query: StreamingQuery, seconds: float) -> bool:
    """Wait a moment for the query to end, without raising what ended it.

    Java waits: to ask it again and again whether the query is active took both sides a hundredth of a core.
    """
    from pyspark.errors import StreamingQueryException

    try:
        return query.awaitTermination(seconds) is not False  # type: ignore[arg-type] # also of parts of a second
    except StreamingQueryException:
        return True


def _exports(settings: AppSettings) -> tuple[Path, ...]:
    """Return the folders of exported models: under the root, and the one that the app's settings name."""
    found = [Path(settings.storage.path("models", "exported"))]
    named = getattr(getattr(settings, "model", None), "exports", "")
    if isinstance(named, str) and named:
        found.append(Path(named).expanduser().absolute())
    return tuple(dict.fromkeys(found))


def first_line(text: str) -> str:
    """Return the line of an engine's error that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        name, colon, rest = line.partition(": ")
        if colon and rest and name.startswith("millrace.") and "." in name:
            return rest
    return lines[0] if lines else "unknown error"
