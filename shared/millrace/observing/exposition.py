"""A job's figures as metrics of Prometheus, and whether the job is well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.observing.figures import Figures

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

#: How each metric's name begins.
PREFIX: Final = "millrace_"


class Bounds(NamedTuple):
    """What a job is judged by.

    Attributes:
        ready_lag: Most records that may wait.
        ready_age_ms: For how long its query may have shown nothing, ms.
        dead_after_ms: After so long without a sign it is not healthy, ms.
    """

    ready_lag: int
    ready_age_ms: int
    dead_after_ms: int


def health_of(figures: Figures, now_ms: int, bounds: Bounds) -> list[str]:
    """Return what is wrong with a job that should be ended and started again; nothing: it is healthy."""
    if figures.ended_ms is not None:
        return ["the job has ended"]
    if figures.error is not None:
        return [f"the query has ended: {figures.error}"]
    # Before its first batch Spark starts, which has its own time.
    silent = now_ms - max(figures.alive_ms or 0, figures.job.began_ms)
    if silent > bounds.dead_after_ms:
        return [f"no batch, and no sign that there is nothing to do, for {silent / 1000:.0f} s"]
    return []


def readiness_of(figures: Figures, now_ms: int, bounds: Bounds) -> list[str]:
    """Return why a job does not keep up, or has not begun; nothing: it is ready."""
    if wrong := health_of(figures, now_ms, bounds):
        return wrong
    if figures.batches == 0 and figures.phase != "waiting":
        return ["no batch has been committed yet"]
    found = []
    if (lag := figures.lag or 0) > bounds.ready_lag:
        found.append(f"{lag:,} records wait, more than {bounds.ready_lag:,}")
    if (silent := now_ms - (figures.alive_ms or 0)) > bounds.ready_age_ms:
        found.append(f"no sign of the query for {silent / 1000:.0f} s")
    return found


class JobCollector:
    """Gives a job's figures as metrics when they are asked for.

    Args:
        figures: Gives them.
    """

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        """Return all metrics; those that are not known are left out."""
        return _metrics(self._figures())


def registry_of(figures: Callable[[], Figures]) -> CollectorRegistry:
    """Return a registry with a job's metrics, and those of its process."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    registry.register(JobCollector(figures))
    ProcessCollector(registry=registry)
    return registry


def _metrics(now: Figures) -> Iterator[Metric]:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    def name(own: str) -> str:
        return PREFIX + own

    def gauge(own: str, about: str, value: float | None) -> Iterator[Metric]:
        if value is not None:
            yield GaugeMetricFamily(name(own), about, value=value)

    def counter(own: str, about: str, value: float) -> Iterator[Metric]:
        yield CounterMetricFamily(name(own), about, value=value)

    def gauges(
        own: str, about: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
    ) -> Iterator[Metric]:
        made = GaugeMetricFamily(name(own), about, labels=labels)
        for of, value in values:
            made.add_metric(of, value)
        yield made

    def counters(own: str, about: str, label: str, values: Iterable[tuple[str, float]]) -> Iterator[Metric]:
        made = CounterMetricFamily(name(own), about, labels=(label,))
        for of, value in values:
            made.add_metric((of,), value)
        yield made

    info = GaugeMetricFamily(name("job_info"), "What runs.", labels=("app", "root", "plan", "host"))
    info.add_metric((now.job.app, now.job.root, now.plan, now.job.host), 1)
    yield info
    up = now.error is None and now.ended_ms is None and now.phase in ("running", "waiting")
    yield from gauge("query_up", "Whether the query runs.", float(up))
    yield from gauge("job_start_timestamp_seconds", "When the job began.", now.job.began_ms / 1000)
    yield from counter("batches", "Batches committed since the job began.", now.batches)
    yield from gauge("batch_id", "Id of the last committed batch.", now.batch)
    yield from counter("rows_read", "Rows read from the topics.", now.rows)
    yield from gauge("input_rows_per_second", "Rows that arrive, over the last batches.", now.input_rate)
    yield from gauge("processed_rows_per_second", "Rows per second of batch time.", now.processed_rate)
    if now.durations:
        yield HistogramMetricFamily(
            name("batch_duration_seconds"),
            "How long batches take.",
            buckets=[(bound, float(count)) for bound, count in now.durations.items()],
            sum_value=now.durations_sum_ms / 1000,
        )
    phases = [(phase, took / 1000) for phase, took in sorted(now.phases_total_ms.items())]
    yield from counters("batch_phase_seconds", "Time of batches by Spark's phase.", "phase", phases)
    yield from gauge("last_batch_timestamp_seconds", "When the last batch ended.", _s(now.last_batch_ms))
    yield from gauge(
        "last_sign_timestamp_seconds", "When the query last showed that its loop runs.", _s(now.alive_ms)
    )
    yield from gauge("watermark_timestamp_seconds", "The watermark.", _s(now.watermark_ms))
    yield from gauge(
        "watermark_gap_seconds", "Newest event time less the watermark.", _s(now.watermark_gap_ms)
    )
    yield from gauges(
        "watermark_held", "The source that holds the watermark back.", ("source",),
        [((now.held_by,), 1.0)] if now.held_by else (),
    )  # fmt: skip
    newest = now.newest_ms
    behind = [
        ((place,), (newest - s.newest_ms) / 1000)
        for place, s in now.sources.items()
        if newest is not None and s.newest_ms is not None
    ]
    yield from gauges(
        "source_behind_seconds", "Newest event time of all less that of a source.", ("source",), behind
    )
    places = [(_place(place), s) for place, s in now.sources.items()]
    at = ("topic", "partition")
    yield from gauges(
        "kafka_lag_records", "Records not read at the last batch.", at, [(p, float(s.lag)) for p, s in places]
    )
    yield from gauges(
        "kafka_read_offset", "Offset after what was read.", at, [(p, float(s.read)) for p, s in places]
    )
    written = [(output, float(n)) for output, n in sorted(now.outputs.items())]
    yield from counters("records_written", "Records by output.", "output", written)
    yield from counter("late_events", "Events behind the watermark.", now.late)
    reasons = [(reason, float(n)) for reason, n in sorted(now.dead_letters.items())]
    yield from counters("dead_letters", "Dead letters by reason.", "reason", reasons)
    yield from gauge("state_memory_bytes", "Memory of the state stores.", now.state_memory_bytes)
    yield from gauge(
        "state_files_bytes", "Files of state on the disk, of all batches kept.", now.state_files_bytes
    )
    of = ("process",)
    for own, about, field in (
        ("state_entries", "Keys that have state.", "entries"),
        ("state_bytes", "Bytes of state as it is stored.", "bytes"),
        ("state_pages", "Pages of state.", "pages"),
        ("state_timers", "Pending timers.", "timers"),
        ("state_waiting_events", "Events that wait for the watermark.", "waiting"),
        ("state_largest_entry_bytes", "Size of the largest entry.", "largest_entry_bytes"),
        ("state_key_group_skew", "Bytes of the largest key group over the mean.", "skew"),
        (
            "state_looked_at_share",
            "Share of the pages that these figures are of; below 1 estimates.",
            "share",
        ),
    ):
        values = [((process,), float(getattr(s, field))) for process, s in sorted(now.state.items())]
        yield from gauges(own, about, of, values)
    yield from gauges(
        "state_looked_at_timestamp_seconds", "As of when state is told.", of,
        [((process,), s.at_ms / 1000) for process, s in sorted(now.state.items())],
    )  # fmt: skip
    waits = [((table,), w) for table, w in sorted(now.waiting.items())]
    yield from gauges(
        "table_waiting_batches", "Batches whose rows are not in their table yet.", ("table",),
        [(table, float(w.batches)) for table, w in waits],
    )  # fmt: skip
    yield from gauges(
        "table_waiting_seconds", "Since when the oldest of these rows wait.", ("table",),
        [(table, max(0, now.at_ms - w.since_ms) / 1000) for table, w in waits],
    )  # fmt: skip
    models = [(*name_of.rpartition("/")[::2], m) for name_of, m in sorted(now.models.items())]
    yield from gauges(
        "model_info", "Models by alias.", ("model", "alias", "version"),
        [((model, alias, m.version), 1.0) for model, alias, m in models],
    )  # fmt: skip
    yield from gauges(
        "model_trained_until_timestamp_seconds", "Newest row that a model was trained on.",
        ("model", "alias"),
        [((model, alias), m.trained_until_ms / 1000) for model, alias, m in models],
    )  # fmt: skip
    yield from counter(
        "observing_cpu_seconds", "CPU time of the driver that went into these figures.", now.observing_cpu_s
    )
    yield from counter(
        "process_tree_cpu_seconds", "CPU time of the driver, its JVM and Python workers.", now.process_cpu_s
    )


def _s(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _place(place: str) -> tuple[str, ...]:
    topic, _, partition = place.rpartition(":")
    return topic, partition
