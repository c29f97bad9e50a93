"""The monitor reads Spark's progress events; the JSON below has the form that Spark 4.2 sends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millrace.runtime.monitor import QueryMonitor, QuerySnapshot, snapshot_from_progress
from millrace.time import END_OF_TIME, NO_WATERMARK
from millrace.time.clock import ClockStatus

RUN = "e3b1202f-5ad4-4fe1-8ca1-847ed0f36289"
START = datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC)


def kafka_source(
    end: Mapping[str, int], latest: Mapping[str, int] | None, behind: str | None = None
) -> dict[str, Any]:
    source: dict[str, Any] = {
        "description": "KafkaV2[Subscribe[transactions]]",
        "startOffset": {"transactions": dict.fromkeys(end, 0)},
        "endOffset": {"transactions": dict(end)},
        "latestOffset": None if latest is None else {"transactions": dict(latest)},
        "numInputRows": 0,
    }
    if behind is not None:
        source["metrics"] = {
            "avgOffsetsBehindLatest": behind,
            "maxOffsetsBehindLatest": behind,
            "minOffsetsBehindLatest": "0",
        }
    return source


def progress(
    batch_id: int,
    rows: int = 100,
    *,
    at_s: float = 0.0,
    took_ms: int = 200,
    **more: Any,
) -> dict[str, Any]:
    """Make the progress JSON of a batch that starts `at_s` seconds after START."""
    started = (START + timedelta(seconds=at_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "id": "4c2e239c-0621-4687-b9ee-e5647a70dd2c",
        "runId": RUN,
        "name": "fraud",
        "timestamp": started,
        "batchId": batch_id,
        "batchDuration": took_ms + 7,
        "numInputRows": rows,
        "inputRowsPerSecond": 95.0,
        "processedRowsPerSecond": 190.1,
        "durationMs": {
            "addBatch": took_ms - 50,
            "commitOffsets": 20,
            "getBatch": 0,
            "latestOffset": 3,
            "queryPlanning": 10,
            "triggerExecution": took_ms,
            "walCommit": 17,
        },
        "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"},
        "stateOperators": [],
        "sources": [],
        "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
        "observedMetrics": {},
    } | more


def after(*events: Mapping[str, Any]) -> QuerySnapshot:
    snapshot = QuerySnapshot()
    for event in events:
        snapshot = snapshot_from_progress(snapshot, event)
    return snapshot


class TestBatches:
    def test_rows_and_batches_add_up(self) -> None:
        now = after(progress(0, 100), progress(1, 50, at_s=1))
        assert (now.name, now.batch_id, now.batches, now.input_rows) == ("fraud", 1, 2, 150)

    def test_the_same_batch_reported_twice_counts_once(self) -> None:
        now = after(progress(0, 100), progress(0, 100))
        assert (now.batches, now.input_rows) == (1, 100)

    def test_a_report_while_waiting_is_no_batch(self) -> None:
        waiting = progress(1, 0) | {"durationMs": {"latestOffset": 2, "triggerExecution": 2}}
        now = after(progress(0, 100), waiting)
        assert (now.batches, now.idle) == (1, True)
        assert after(progress(0), waiting, progress(1, 30, at_s=1)).input_rows == 130

    def test_a_restarted_run_goes_on_counting(self) -> None:
        now = after(progress(5, 10), progress(5, 20, at_s=9, runId="another"))
        assert (now.batches, now.input_rows, now.run_id) == (2, 30, "another")

    def test_the_rate_of_arrival_is_over_wall_time_and_the_rate_of_work_over_batch_time(self) -> None:
        # Two batches of 0.2 s, started 0.8 s apart: 200 rows within 1.0 s, worked on for 0.4 s.
        now = after(progress(0, 100), progress(1, 100, at_s=0.8))
        assert now.input_rate == pytest.approx(200.0)
        assert now.processed_rate == pytest.approx(500.0)

    def test_rates_forget_batches_of_long_ago(self) -> None:
        slow = [progress(n, 1, at_s=n) for n in range(10)]
        fast = [progress(10 + n, 1000, at_s=10 + n, took_ms=1000) for n in range(5)]
        assert after(*slow, *fast).input_rate == pytest.approx(1000.0)

    def test_durations_are_of_batches_that_read_rows(self) -> None:
        took = [progress(n, 10, at_s=n, took_ms=100 + n) for n in range(20)]
        now = after(*took, progress(20, 0, at_s=20, took_ms=9_000))
        assert (now.batch_ms, now.batch_ms_p50, now.batch_ms_p95) == (119, 109, 118)

    def test_a_first_batch_without_rows_has_no_duration_yet(self) -> None:
        now = after(progress(0, 0))
        assert (now.batch_ms, now.batch_ms_p50, now.idle) == (None, None, True)

    def test_what_is_kept_of_past_batches_is_bounded(self) -> None:
        assert len(after(*[progress(n, at_s=n) for n in range(250)]).recent) == 100


def clock(
    watermark: str | None, newest: str | None, *, held_by: str = "", batch_ends: int | None = None
) -> ClockStatus:
    """How far a clock is, its times written out; ``None``: before the first event."""
    at = [NO_WATERMARK if t is None else round(datetime.fromisoformat(t).timestamp() * 1000)
          for t in (watermark, newest)]  # fmt: skip
    return ClockStatus(NO_WATERMARK, at[0] if batch_ends is None else batch_ends, at[1], held_by=held_by)


class TestTimes:
    def seen(self, *statuses: ClockStatus, events: Sequence[Mapping[str, Any]] = ()) -> QuerySnapshot:
        monitor = QueryMonitor()
        monitor.progressed(progress(0))
        for status in statuses:
            monitor.on_clock("fraud", status)
        for event in events:
            monitor.progressed(event)
        return monitor.snapshot()

    def test_there_is_no_watermark_before_the_first_event(self) -> None:
        for now in (self.seen(), self.seen(clock(None, None))):
            assert (now.watermark, now.newest_event, now.watermark_gap) == (None, None, None)

    def test_a_newest_event_may_come_before_there_is_a_watermark(self) -> None:
        now = self.seen(clock(None, "2026-11-21T10:00:00.000Z", held_by="in:3"))
        assert (now.watermark, now.watermark_gap, now.held_by) == (None, None, "in:3")
        assert now.newest_event == datetime(2026, 11, 21, 10, tzinfo=UTC)

    def test_the_gap_is_to_the_newest_event_ever_seen(self) -> None:
        now = self.seen(
            clock("2026-11-21T10:00:01.000Z", "2026-11-21T10:00:06.001Z", held_by="in:1"),
            clock("2026-11-21T10:00:05.499Z", "2026-11-21T10:00:10.500Z"),
        )
        assert now.watermark == datetime(2026, 11, 21, 10, 0, 5, 499_000, tzinfo=UTC)
        assert now.newest_event == datetime(2026, 11, 21, 10, 0, 10, 500_000, tzinfo=UTC)
        assert now.watermark_gap == timedelta(milliseconds=5_001)
        assert now.held_by == ""

    def test_1970_and_before_are_times(self) -> None:
        now = self.seen(clock("1970-01-01T00:00:00.000Z", "1970-01-01T00:00:01.000Z"))
        assert (now.watermark, now.watermark_gap) == (datetime(1970, 1, 1, tzinfo=UTC), timedelta(seconds=1))
        before = self.seen(clock("1969-12-31T23:59:00.000Z", "1969-12-31T23:59:59.000Z"))
        assert before.watermark_gap == timedelta(seconds=59)

    def test_the_end_of_time_is_no_date(self) -> None:
        now = self.seen(clock(None, "2026-11-21T10:00:00.000Z", batch_ends=END_OF_TIME))
        assert (now.watermark, now.watermark_gap) == (None, None)

    def test_what_spark_says_of_a_watermark_is_not_ours(self) -> None:
        event_time = {"watermark": "2001-01-01T00:00:00.000Z", "max": "2002-01-01T00:00:00.000Z"}
        status = clock("2026-11-21T10:00:01.000Z", "2026-11-21T10:00:06.001Z")
        now = self.seen(status, events=[progress(1, at_s=1, eventTime=event_time)])
        assert now.watermark == datetime(2026, 11, 21, 10, 0, 1, tzinfo=UTC)
        assert self.seen(events=[progress(1, at_s=1, eventTime=event_time)]).watermark is None

    def test_clocks_of_queries_are_kept_apart(self) -> None:
        monitor = QueryMonitor()
        monitor.on_clock("other", clock("2026-11-21T10:00:01.000Z", "2026-11-21T10:00:06.001Z"))
        monitor.progressed(progress(0, name="other", runId="r2"))
        monitor.progressed(progress(0))
        assert monitor.snapshot().watermark is None
        assert monitor.snapshots()["fraud"].watermark is None
        for other in (monitor.snapshot("other"), monitor.snapshots()["other"]):
            assert other.watermark == datetime(2026, 11, 21, 10, 0, 1, tzinfo=UTC)


class TestLag:
    def lag(self, *sources: Mapping[str, Any]) -> tuple[int | None, int | None]:
        now = after(progress(0, sources=list(sources)))
        return now.lag, now.lag_max

    def test_it_is_what_the_topics_hold_beyond_the_batch(self) -> None:
        assert self.lag(kafka_source({"0": 90, "1": 70}, {"0": 100, "1": 100}, "30")) == (40, 30)

    def test_several_sources_add_up(self) -> None:
        assert self.lag(kafka_source({"0": 1}, {"0": 5}), kafka_source({"0": 1}, {"0": 8})) == (11, 7)

    def test_caught_up_is_zero_and_not_unknown(self) -> None:
        assert self.lag(kafka_source({"0": 100}, {"0": 100}, "0")) == (0, 0)

    def test_offsets_that_went_back_are_not_negative_lag(self) -> None:
        assert self.lag(kafka_source({"0": 100}, {"0": 90})) == (0, 0)

    def test_a_partition_that_has_just_appeared_is_unread(self) -> None:
        assert self.lag(kafka_source({"0": 5}, {"0": 5, "1": 12})) == (12, 12)

    def test_without_the_latest_offsets_the_reported_metric_remains(self) -> None:
        assert self.lag(kafka_source({"0": 5}, None, "17")) == (17, 17)

    @pytest.mark.parametrize("offset", [None, 6, "6", "not json", {"logOffset": 3}, [1]])
    def test_sources_without_kafka_offsets_have_no_lag(self, offset: Any) -> None:
        source = {
            "description": "RateStreamV2",
            "startOffset": offset,
            "endOffset": offset,
            "latestOffset": offset,
        }
        assert self.lag(source) == (None, None)

    def test_offsets_as_text_are_read(self) -> None:
        source = kafka_source({}, None) | {"endOffset": '{"t":{"0":3}}', "latestOffset": '{"t":{"0":9}}'}
        assert self.lag(source) == (6, 6)


class TestStateAndOutputs:
    def test_memory_rows_and_drops_of_all_operators(self) -> None:
        operators = [
            {"operatorName": "transformWithStateExec", "numRowsTotal": 7, "memoryUsedBytes": 1000,
             "numRowsDroppedByWatermark": 2},
            {"operatorName": "dedupe", "numRowsTotal": 5, "memoryUsedBytes": 24},
        ]  # fmt: skip
        now = after(progress(0, stateOperators=operators), progress(1, at_s=1, stateOperators=operators))
        assert (now.state_rows, now.state_bytes, now.rows_dropped) == (12, 1024, 4)

    def test_rows_that_the_engine_does_not_count_are_unknown_and_not_zero(self) -> None:
        operators = [{"operatorName": "x", "numRowsTotal": 0, "memoryUsedBytes": 10}]
        assert after(progress(0, stateOperators=operators)).state_rows is None

    def test_observed_counts_of_outputs_add_up(self) -> None:
        def observed(**counts: int | None) -> dict[str, Any]:
            return {"observedMetrics": {"millrace_outputs": counts, "another": {"x": 9}}}

        now = after(progress(0, **observed(alerts=2, main=9)), progress(1, **observed(alerts=1, late=None)))
        assert now.outputs == {"alerts": 3, "main": 9}


class TestMonitor:
    def test_a_query_that_waits_has_no_rate(self) -> None:
        monitor = QueryMonitor()
        monitor.started("fraud", RUN)
        monitor.progressed(progress(0))
        assert monitor.snapshot().input_rate > 0
        monitor.idled(RUN)
        assert (monitor.snapshot().idle, monitor.snapshot().input_rate) == (True, 0.0)
        monitor.progressed(progress(1, at_s=60))
        assert monitor.snapshot().idle is False

    def test_an_error_is_one_line_without_secrets(self) -> None:
        monitor = QueryMonitor()
        monitor.started("fraud", RUN)
        monitor.terminated(RUN, '\norg.apache.kafka: bad jaas password="hunter2";\n\tat somewhere\n')
        now = monitor.snapshot()
        assert now.error == "org.apache.kafka: bad jaas password=********;"
        assert now.active is False

    def test_a_query_that_was_stopped_has_no_error(self) -> None:
        monitor = QueryMonitor()
        monitor.started("fraud", RUN)
        monitor.terminated(RUN, None)
        assert (monitor.snapshot().error, monitor.snapshot().active) == (None, False)

    def test_queries_are_kept_apart(self) -> None:
        monitor = QueryMonitor()
        monitor.progressed(progress(0, 1))
        monitor.progressed(progress(0, 2, name="other", runId="r2"))
        assert monitor.snapshot("fraud").input_rows == 1
        assert monitor.snapshot().input_rows == 2
        assert set(monitor.snapshots()) == {"fraud", "other"}
        monitor.idled(RUN)
        assert (monitor.snapshot("fraud").idle, monitor.snapshot("other").idle) == (True, False)

    def test_counts_of_the_writer_win_over_observed_ones(self) -> None:
        monitor = QueryMonitor()
        monitor.progressed(progress(0, observedMetrics={"millrace_outputs": {"main": 50}}))
        monitor.on_batch(0, {"main": 49})
        monitor.on_batch(0, {"main": 49})
        monitor.on_batch(1, {"alerts": 2})
        assert monitor.snapshot().outputs == {"main": 49, "alerts": 2}

    def test_before_the_first_event_everything_is_empty(self) -> None:
        assert QueryMonitor().snapshot() == QuerySnapshot()

    def test_many_threads_may_report_at_once(self) -> None:
        monitor = QueryMonitor()

        def report(query: int) -> None:
            for batch in range(200):
                monitor.progressed(progress(batch, 1, at_s=batch, name=f"q{query}", runId=f"r{query}"))

        threads = [threading.Thread(target=report, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [monitor.snapshot(f"q{n}").input_rows for n in range(4)] == [200] * 4

    def test_the_module_does_not_load_the_engine(self) -> None:
        code = "import sys, millrace.runtime.monitor; sys.exit('pyspark' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
