"""The query monitor: rates, lag, watermark, state, outputs, taken from Spark's progress events.

:func:`snapshot_from_progress` is the whole logic, plain Python over the progress JSON. The listener only
hands events to a :class:`QueryMonitor`: it runs on a thread of the engine and must return at once.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from millrace.runtime.redaction import redact_text

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    from millrace.time.clock import ClockStatus

#: Name of the observed metrics (``DataFrame.observe``) that count the records of each output.
OUTPUTS_METRIC: Final = "millrace_outputs"

#: What stands in the error of a query that was asked to end, and is none.
STOPPED: Final = "millrace.connectors.router.StopRequested"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Batches over which rates are averaged: short enough to show a stall, long enough not to flicker.
_RATE_BATCHES: Final = 5
#: Batches over which percentiles are taken.
_KEPT_BATCHES: Final = 100
#: Upper bounds of the classes that durations of batches are counted in, seconds.
DURATIONS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class BatchStat:
    """One batch: when it started and how long it took, in milliseconds, and how many rows it read."""

    start_ms: int
    duration_ms: int
    rows: int


@dataclass(frozen=True, slots=True)
class QuerySnapshot:
    """The state of a query at its last event.

    Attributes:
        name: Its name.
        run_id: The engine's id of this run.
        batch_id: Id of the last finished batch, -1 before the first.
        batches: Batches finished since the monitor was attached.
        input_rows: Rows read since then.
        input_rate: Rows per second that arrived, over the last few batches; 0 when idle.
        processed_rate: Rows per second of batch time, over the last few batches: what it could do.
        batch_ms: Duration of the last batch that read rows, milliseconds; None before it.
        batch_ms_p50: Median over the last 100 batches that read rows.
        batch_ms_p95: 95th percentile of the same.
        watermark: Event time up to which everything is assumed to be there; None before the first.
        newest_event: Largest event time that was believed: no later than the event came.
        held_by: The source that holds the watermark back while a backlog is read; empty: none does.
        lag: Records in the topics that are not read yet, all partitions together; None if unknown.
        lag_max: The same of the partition furthest behind.
        state_rows: Rows of state; None where the engine does not count them.
        state_bytes: Memory of the state stores, bytes; None without state.
        rows_dropped: Rows that the engine dropped behind the watermark.
        outputs: Records written per output since the monitor was attached.
        error: First line of what ended the query, secrets removed.
        idle: Whether it waits for data.
        active: Whether it runs.
        ended_ms: When the last batch ended, UTC ms; None before the first.
        alive_ms: When the query last showed that its loop runs: a batch, or that there is nothing to do.
        phases_ms: Phase of a batch as Spark calls it → milliseconds of the last batch.
        phases_total_ms: The same of all batches since the monitor was attached.
        durations: Batches by how long they took: for each of :data:`DURATIONS_S` those up to it, at the end
            all.
        durations_sum_ms: What they took together.
        positions: ``topic:partition`` → offset after what was read, and after what there was.
    """

    name: str = ""
    run_id: str = ""
    batch_id: int = -1
    batches: int = 0
    input_rows: int = 0
    input_rate: float = 0.0
    processed_rate: float = 0.0
    batch_ms: int | None = None
    batch_ms_p50: int | None = None
    batch_ms_p95: int | None = None
    watermark: datetime | None = None
    newest_event: datetime | None = None
    held_by: str = ""
    lag: int | None = None
    lag_max: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    rows_dropped: int = 0
    outputs: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    idle: bool = False
    active: bool = True
    ended_ms: int | None = None
    alive_ms: int | None = None
    phases_ms: Mapping[str, int] = field(default_factory=dict)
    phases_total_ms: Mapping[str, int] = field(default_factory=dict)
    durations: tuple[int, ...] = (0,) * (len(DURATIONS_S) + 1)
    durations_sum_ms: int = 0
    positions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    recent: tuple[BatchStat, ...] = field(default=(), repr=False)

    @property
    def watermark_gap(self) -> timedelta | None:
        """How far the watermark is behind the newest event: the bound; 0 once a silence took it on."""
        if self.watermark is None or self.newest_event is None:
            return None
        return max(self.newest_event - self.watermark, timedelta(0))


def snapshot_from_progress(prev: QuerySnapshot, progress: Mapping[str, Any]) -> QuerySnapshot:
    """Return the snapshot after a progress event.

    Args:
        prev: The snapshot before it; ``QuerySnapshot()`` at first.
        progress: The event's JSON as a dict (``StreamingQueryProgress.json``).

    Returns:
        The new snapshot; totals go on from ``prev``.

    >>> first = {"batchId": 0, "numInputRows": 30, "timestamp": "2026-01-01T00:00:00.000Z",
    ...          "durationMs": {"addBatch": 90, "triggerExecution": 100}}
    >>> snapshot_from_progress(QuerySnapshot(), first).processed_rate
    300.0
    """
    durations = progress.get("durationMs") or {}
    run_id = str(progress.get("runId") or "")
    batch_id = int(progress.get("batchId", -1))
    rows = int(progress.get("numInputRows") or 0)
    repeated = run_id == prev.run_id and batch_id <= prev.batch_id
    # A report without a batch has no addBatch: Spark sends one now and then while it waits.
    if "addBatch" not in durations or repeated:
        return replace(prev, name=progress.get("name") or prev.name, idle=rows == 0, active=True)
    stat = BatchStat(
        start_ms=int(_time(progress["timestamp"]).timestamp() * 1000),
        duration_ms=int(durations.get("triggerExecution", progress.get("batchDuration") or 0)),
        rows=rows,
    )
    after = replace(
        prev,
        name=progress.get("name") or prev.name,
        run_id=run_id,
        batch_id=batch_id,
        batches=prev.batches + 1,
        input_rows=prev.input_rows + rows,
        outputs=_added(prev.outputs, _observed(progress)),
        idle=rows == 0,
        active=True,
    )
    after = _with_phases(_with_batch(after, stat), stat, durations)
    after = _with_state(after, progress.get("stateOperators") or ())
    total, largest = _lag(progress.get("sources") or ())
    return replace(
        after, lag=total, lag_max=largest, positions=_positions(progress.get("sources") or (), prev.positions)
    )


def _with_phases(prev: QuerySnapshot, stat: BatchStat, durations: Mapping[str, Any]) -> QuerySnapshot:
    phases = {name: int(took) for name, took in durations.items() if name != "triggerExecution"}
    took_s = stat.duration_ms / 1000
    counted = tuple(
        n + (bound is None or took_s <= bound)
        for n, bound in zip(prev.durations, (*DURATIONS_S, None), strict=True)
    )
    return replace(
        prev,
        ended_ms=stat.start_ms + stat.duration_ms,
        phases_ms=phases,
        phases_total_ms=_added(prev.phases_total_ms, phases),
        durations=counted,
        durations_sum_ms=prev.durations_sum_ms + stat.duration_ms,
    )


def _positions(
    sources: Iterable[Mapping[str, Any]], before: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    """Return where each partition stands; what the last batch did not tell of stays as it was."""
    found = dict(before)
    for source in sources:
        read, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for place in read.keys() | latest.keys():
            # A partition that appeared since the batch was planned is unread as a whole.
            done = read.get(place, 0)
            found[":".join(place)] = done, max(done, latest.get(place, done))
    return found


def _with_batch(prev: QuerySnapshot, stat: BatchStat) -> QuerySnapshot:
    recent = (*prev.recent, stat)[-_KEPT_BATCHES:]
    last = recent[-_RATE_BATCHES:]
    rows = sum(b.rows for b in last)
    span_ms = last[-1].start_ms + last[-1].duration_ms - last[0].start_ms
    busy_ms = sum(b.duration_ms for b in last)
    took = [b.duration_ms for b in recent if b.rows]
    return replace(
        prev,
        recent=recent,
        input_rate=rows * 1000 / span_ms if span_ms > 0 else 0.0,
        processed_rate=rows * 1000 / busy_ms if busy_ms > 0 else 0.0,
        batch_ms=took[-1] if took else None,
        batch_ms_p50=_percentile(sorted(took), 50),
        batch_ms_p95=_percentile(sorted(took), 95),
    )


def _percentile(ordered: list[int], percent: int) -> int | None:
    """Return the nearest-rank percentile of values in ascending order."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else None


def _with_clock(prev: QuerySnapshot, status: ClockStatus) -> QuerySnapshot:
    return replace(
        prev,
        watermark=_time_of(status.watermark),
        newest_event=_time_of(status.furthest),
        held_by=status.held_by,
    )


def _time_of(ms: int) -> datetime | None:
    """Return a time of the clock; ``None`` before the first event, and at the end of time."""
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


def _with_state(prev: QuerySnapshot, operators: Sequence[Mapping[str, Any]]) -> QuerySnapshot:
    rows = sum(int(op.get("numRowsTotal") or 0) for op in operators)
    dropped = sum(int(op.get("numRowsDroppedByWatermark") or 0) for op in operators)
    return replace(
        prev,
        # With trackTotalNumberOfRows=false, our default, the engine reports 0 whatever there is.
        state_rows=rows or None,
        state_bytes=sum(int(op.get("memoryUsedBytes") or 0) for op in operators) if operators else None,
        rows_dropped=prev.rows_dropped + dropped,
    )


def _lag(sources: Iterable[Mapping[str, Any]]) -> tuple[int | None, int | None]:
    """Return the records not read yet of all Kafka partitions, and of the one furthest behind."""
    behind: list[int] = []
    reported: list[int] = []
    for source in sources:
        latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
        behind += [max(0, offset - end[at]) for at, offset in latest.items() if at in end]
        # A partition that appeared since the batch was planned is unread as a whole.
        behind += [offset for at, offset in latest.items() if end and at not in end]
        metric = (source.get("metrics") or {}).get("maxOffsetsBehindLatest")
        reported += [] if metric is None else [int(float(metric))]
    largest = max([*behind, *reported], default=None)
    if behind:
        return max(sum(behind), largest or 0), largest
    return largest, largest


def _offsets(value: Any) -> dict[tuple[str, str], int]:
    """Return the offset of each partition, from Kafka's ``{"topic": {"0": 5}}``; other sources have none."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return {}
    if not isinstance(value, Mapping):
        return {}
    return {
        (topic, partition): offset
        for topic, partitions in value.items()
        if isinstance(partitions, Mapping)
        for partition, offset in partitions.items()
        if isinstance(offset, int)
    }


def _observed(progress: Mapping[str, Any]) -> dict[str, int]:
    metrics = (progress.get("observedMetrics") or {}).get(OUTPUTS_METRIC) or {}
    return {name: int(count) for name, count in metrics.items() if count is not None}


def _added(totals: Mapping[str, int], counts: Mapping[str, int]) -> dict[str, int]:
    return dict(totals) | {name: totals.get(name, 0) + count for name, count in counts.items()}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


class QueryMonitor:
    """Keeps the snapshot of every query that it is told about; safe to use from any thread.

    Args:
        wall_ms: Now, UTC milliseconds.
    """

    def __init__(self, wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._wall_ms = wall_ms
        #: CPU seconds that went into what the engine told.
        self.cpu_s = 0.0
        self._lock = threading.Lock()
        self._queries: dict[str, QuerySnapshot] = {}
        self._last = ""
        self._counted: dict[str, int] = {}
        self._counted_batch = -1
        self._clocks: dict[str, ClockStatus] = {}

    def snapshot(self, name: str | None = None) -> QuerySnapshot:
        """Return the snapshot of the query called ``name``, by default of the one heard of last.

        Where the writer counts outputs itself (:meth:`on_batch`), those counts are shown.
        """
        with self._lock:
            chosen = self._last if name is None else name
            found = self._with_clock(chosen, self._queries.get(chosen, QuerySnapshot()))
            return replace(found, outputs=dict(self._counted)) if self._counted_batch >= 0 else found

    def snapshots(self) -> dict[str, QuerySnapshot]:
        """Return the snapshot of every query, by name."""
        with self._lock:
            return {name: self._with_clock(name, query) for name, query in self._queries.items()}

    def _with_clock(self, name: str, query: QuerySnapshot) -> QuerySnapshot:
        status = self._clocks.get(name)
        return query if status is None else _with_clock(query, status)

    def on_batch(self, batch_id: int, counts: Mapping[str, int]) -> None:
        """Add the number of records that a batch wrote to each output; a batch told twice counts once."""
        with self._lock:
            if batch_id > self._counted_batch:
                self._counted = _added(self._counted, counts)
                self._counted_batch = batch_id

    def on_clock(self, name: str, status: ClockStatus) -> None:
        """Note how far the clock of a query is at the end of a batch."""
        with self._lock:
            self._clocks[name] = status

    def started(self, name: str, run_id: str) -> None:
        """Note that a query runs."""
        self._update(name, lambda prev: replace(prev, run_id=run_id, active=True, idle=False, error=None))

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Note a progress event, given as its JSON."""
        self._update(_name(progress), lambda prev: snapshot_from_progress(prev, progress))

    def idled(self, run_id: str) -> None:
        """Note that the query of this run waits for data."""
        self._update(
            self._named(run_id), lambda prev: replace(prev, idle=True, input_rate=0.0, processed_rate=0.0)
        )

    def terminated(self, run_id: str, error: str | None) -> None:
        """Note that the query of this run has ended, and with which error."""
        lines = [line.strip() for line in (error or "").splitlines() if line.strip()]
        text = redact_text(lines[0]) if lines and STOPPED not in (error or "") else None
        self._update(self._named(run_id), lambda prev: replace(prev, active=False, idle=False, error=text))

    def _named(self, run_id: str) -> str:
        with self._lock:
            return next((name for name, q in self._queries.items() if q.run_id == run_id), self._last)

    def _update(self, name: str, change: Callable[[QuerySnapshot], QuerySnapshot]) -> None:
        with self._lock:
            prev = self._queries.get(name, QuerySnapshot(name=name))
            self._queries[name] = replace(change(prev), alive_ms=self._wall_ms())
            self._last = name


def _name(progress: Mapping[str, Any]) -> str:
    return str(progress.get("name") or progress.get("id") or "")


class _JavaListener:
    """What the engine calls; it takes an event's JSON whole, in two calls.

    PySpark's own listener asks for every field of every event by itself, some hundred calls between the
    processes for each batch.
    """

    def __init__(self, monitor: QueryMonitor) -> None:
        self._monitor = monitor

    def onQueryStarted(self, event: Any) -> None:
        self._monitor.started(event.name() or str(event.id().toString()), str(event.runId().toString()))

    def onQueryProgress(self, event: Any) -> None:
        began = time.thread_time()
        self._monitor.progressed(json.loads(event.progress().json()))
        self._monitor.cpu_s += time.thread_time() - began

    def onQueryIdle(self, event: Any) -> None:
        self._monitor.idled(str(event.runId().toString()))

    def onQueryTerminated(self, event: Any) -> None:
        error = event.exception()
        self._monitor.terminated(
            str(event.runId().toString()), str(error.get()) if error.isDefined() else None
        )

    class Java:
        """What it is on the other side."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


def listener(monitor: QueryMonitor) -> StreamingQueryListener:
    """Return a listener for ``spark.streams.addListener`` that feeds ``monitor``."""
    from pyspark.sql.streaming import listener as spark

    class MonitorListener(spark.StreamingQueryListener):
        """Hands each event over and returns; runs no Spark job, which would wait for itself."""

        @property
        def _jlistener(self) -> Any:
            from pyspark import SparkContext

            jvm: Any = SparkContext._jvm
            return jvm.PythonStreamingQueryListenerWrapper(_JavaListener(monitor))

        def onQueryStarted(self, event: spark.QueryStartedEvent) -> None:
            """Not called: the engine is given another object."""

        def onQueryProgress(self, event: spark.QueryProgressEvent) -> None:
            """Not called."""

        def onQueryTerminated(self, event: spark.QueryTerminatedEvent) -> None:
            """Not called."""

    return MonitorListener()
