"""Figures and reports of the benchmarks, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from millrace_apps.benchmarks import big_state, kafka_running_zscore, report, running, streams, timers, w1
from millrace_apps.benchmarks.cli import app
from millrace_apps.benchmarks.digest import Digest, digest
from millrace_apps.benchmarks.inputs import Events, make_events
from millrace_apps.benchmarks.kafka_io import Pace, Results
from millrace_apps.benchmarks.streams import BenchmarkFailed, Mark, Run

#: SELECT xxhash64(1L)
SPARK_ONE = -7001672635703045582


def spark_xxhash64(value: int, seed: int) -> int:
    """xxHash64 of 8 bytes, written from its definition with Python's whole numbers."""
    p1, p2, p3, p4, p5 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5  # fmt: skip # noqa: E501
    mask = 2**64 - 1

    def rotated(x: int, by: int) -> int:
        return (x << by | x >> 64 - by) & mask

    h = (seed + p5 + 8) & mask
    h ^= rotated(value % 2**64 * p2 & mask, 31) * p1 & mask
    h = (rotated(h, 27) * p1 + p4) & mask
    h = (h ^ h >> 33) * p2 & mask
    h = (h ^ h >> 29) * p3 & mask
    return h ^ h >> 32


def test_digest_has_the_hashes_that_spark_makes() -> None:
    of_one = spark_xxhash64(1, 42)
    assert of_one - 2**64 == SPARK_ONE
    chained = spark_xxhash64(2, of_one)
    assert digest([1], [2]) == Digest(1, chained & 0xFFFFFFFF, chained >> 32)
    assert digest([-7]) == Digest(1, spark_xxhash64(-7, 42) & 0xFFFFFFFF, spark_xxhash64(-7, 42) >> 32)


@pytest.mark.parametrize(
    "other",
    [
        ([1, 2, 3], [0.5, 0.25, 0.125]),
        ([1, 2], [0.5, np.nextafter(0.25, 1)]),
        ([1, 2], [0.25, 0.5]),
        ([1, 1], [0.5, 0.5]),
        ([1], [0.5]),
    ],
)
def test_digest_tells_multisets_apart(other: tuple[list[int], list[float]]) -> None:
    assert digest(*other) != digest([1, 2], [0.5, 0.25])


def test_digest_knows_no_order_no_sign_of_zero_and_no_batches() -> None:
    assert digest([2, 1], [0.0, 3.0]) == digest([1, 2], [3.0, -0.0])
    assert digest([1], [3.0]).plus(digest([2], [0.0])) == digest([1, 2], [3.0, 0.0])


def mark(at: float, cpu: float = 0.0, rows: int = 1) -> Mark:
    return Mark(at, cpu, Digest(rows))


def test_first_batch_and_the_last_without_rows_do_not_count() -> None:
    run = Run(
        mark(100.0), [mark(110.0, 5.0, 50), mark(112.0, 6.0, 50), mark(114.0, 8.0, 50), mark(119.0, 9.0, 0)]
    )
    found = streams.figures(run, [0, 50, 100, 150], correct=True)
    assert found["rows_per_s"] == 100 / 4.0
    assert found["cpu_s_per_million"] == pytest.approx(3.0 / 100 * 1e6)
    assert found["rows_per_s_with_first_batch"] == 150 / 14.0
    assert found["batch_seconds"] == [10.0, 2.0, 2.0, 5.0]


def test_a_run_of_one_batch_has_no_figures() -> None:
    with pytest.raises(BenchmarkFailed, match="run more rows"):
        streams.figures(Run(mark(0.0), [mark(1.0)]), [0, 10], correct=True)


def test_several_runs_are_their_median_and_correct_only_if_all_are() -> None:
    runs = [
        {"rows_per_s": rate, "cpu_s_per_million": 10 / rate, "correct": rate != 9.0}
        for rate in (5.0, 9.0, 7.0)
    ]
    found = streams.combined(runs)
    assert (found["rows_per_s"], found["rows_per_s_min"], found["rows_per_s_max"]) == (7.0, 5.0, 9.0)
    assert found["correct"] is False
    assert streams.combined(runs[:1]) is runs[0]


def test_ratios_of_w1_have_the_names_that_readers_of_the_report_know() -> None:
    rates = {
        "process": 60.0,
        "process_batch": 120.0,
        "tws_pandas": 5.0,
        "tws_row": 15.0,
        "spark_native": 160.0,
        "process_big": 45.0,
    }
    found = w1.CASE.ratios_of({name: {"rows_per_s": rate} for name, rate in rates.items()})
    assert found == {
        "process_over_tws_pandas": 12.0,
        "process_over_tws_row": 4.0,
        "batch_over_tws_pandas": 24.0,
        "batch_over_tws_row": 8.0,
        "batch_over_spark_native": 0.75,
        "keys_1m_over_50k": 0.75,
    }


def test_speed_over_kafka_leaves_out_the_first_batch_and_empty_ones() -> None:
    marks = [(mark(5.0, 1.0), 100), (mark(7.0, 2.0), 100), (mark(8.0, 4.0), 60), (mark(9.0, 9.0), 0)]
    found = kafka_running_zscore.warm_figures(marks)
    assert (found["rows_per_s"], found["rows"], found["batches"]) == (160 / 3.0, 160, 3)
    assert found["cpu_s_per_million"] == pytest.approx(3.0 / 160 * 1e6)
    with pytest.raises(BenchmarkFailed, match="send more"):
        kafka_running_zscore.warm_figures(marks[:1])


def test_ratios_over_kafka_are_above_1_where_ours_is_faster_or_takes_less_cpu_time() -> None:
    rates = {"process": 60.0, "process_batch": 120.0, "spark_native": 150.0}
    rates |= {"spark_native_per_event": 80.0, "loop": 30.0}
    systems = {name: {"rows_per_s": rate, "cpu_s_per_million": 900 / rate} for name, rate in rates.items()}
    wanted = {
        "process_over_spark_native": 0.4,
        "process_over_spark_native_per_event": 0.75,
        "process_over_loop": 2.0,
        "process_batch_over_spark_native": 0.8,
        "process_batch_over_spark_native_per_event": 1.5,
        "process_batch_over_loop": 4.0,
    }
    assert kafka_running_zscore.ratios(systems) == pytest.approx(wanted)
    assert kafka_running_zscore.cpu_ratios(systems) == pytest.approx(wanted)
    slow = {name: {**found, "cpu_s_per_million": 1.0} for name, found in systems.items()}
    assert set(kafka_running_zscore.cpu_ratios(slow).values()) == {1.0}, "of CPU time alone"


def test_batches_of_a_rival_take_what_is_left_and_then_nothing() -> None:
    sizes = kafka_running_zscore.Sizes(messages=250, batch=100)
    assert [sizes.taken(number) for number in range(4)] == [100, 100, 50, 0]


def test_a_batch_of_the_rival_is_read_again_from_where_the_one_before_ended(tmp_path: Path) -> None:
    from millrace_apps.benchmarks.native_per_event import offsets

    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text('v1\n{"batchWatermarkMs":0}\n{"events":{"0":7,"1":5}}')
    assert offsets(tmp_path, 3) == {"events": {"0": 7, "1": 5}}


def test_last_word_of_sparks_aggregation_is_the_one_with_the_most_events() -> None:
    events = make_events(100, 4)
    wanted = kafka_running_zscore.expected_totals(events)
    import msgspec

    early = kafka_running_zscore.expected_totals(events.part(0, 50))
    said = [msgspec.json.encode(t) for t in (*wanted.values(), *early.values())]
    assert kafka_running_zscore.final_totals(said) == wanted
    assert kafka_running_zscore.final_totals(msgspec.json.encode(t) for t in early.values()) != wanted


def test_batches_with_due_timers_are_timed_without_the_first() -> None:
    sizes = timers.Sizes(pending=1_000, due=10, rounds=3, fill_batches=2)
    ends = [(10.0, 0), (14.0, 0), (15.0, 0), (18.0, 10), (19.0, 10), (21.0, 10)]
    found = timers.figures(Run(mark(0.0), [mark(at, rows=rows) for at, rows in ends]), sizes)
    assert found["first_s"] == 3.0
    assert (found["batch_with_due_timers_s"], found["batch_with_due_timers_max_s"]) == (1.5, 2.0)
    assert found["timers_set_per_s"] == 500 / 4.0


def found_at(ids: list[int], at: list[int]) -> Results:
    return Results(np.array(ids), np.ones(len(ids), dtype=np.int64), np.zeros(len(ids)), np.array(at), 0, 0)


def test_latency_counts_from_when_an_event_was_due_after_the_warm_up() -> None:
    rate = running.Rate(rate=10, duration_s=1, warm_up_s=1)
    sent = Pace("b:1", "t", 10, 20, 5, first_id=100, start_ms=1_000)
    ids = list(range(100, 120))
    found = running.latencies(
        found_at([7, *ids], [0, *(1_000 + 100 * i + 50 + i for i in range(20))]), sent, rate.counted
    )
    assert found["events"] == 10
    assert found["latency_ms"]["p50"] == 64.5
    assert found["latency_ms"]["max"] == 69.0


def test_results_of_parts_are_checked_as_one_stream() -> None:
    from millrace_apps.benchmarks import oracles

    events = make_events(90, 5)
    scores = oracles.scores(events)
    found = Results(scores.id + 40, scores.n, scores.z, scores.id, 3, 0)
    assert running.is_correct(found, 40, events.part(0, 30), events.part(30, 90))
    assert not running.is_correct(found, 41, events.part(0, 30), events.part(30, 90))
    assert not running.is_correct(found, 40, events.part(0, 30))


def test_recovery_ends_with_the_first_result_that_is_new() -> None:
    assert big_state.recovery_s(found_at([1, 2, 3], [900, 1_005, 9_000]), 1_000, 1_010) == 8.0
    with pytest.raises(BenchmarkFailed, match="no new result"):
        big_state.recovery_s(found_at([1], [900]), 1_000, 1_010)


def test_files_that_are_gone_still_count_as_written(tmp_path: Path) -> None:
    written = running.Written(tmp_path)
    (tmp_path / "a").write_bytes(b"x" * 10)
    assert written.sample() == 10
    (tmp_path / "a").unlink()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b").write_bytes(b"x" * 5)
    (tmp_path / "deep" / ".b.tmp").write_bytes(b"x" * 7)
    assert written.sample() == 15


def test_report_has_the_systems_side_by_side_and_other_figures_by_their_path(tmp_path: Path) -> None:
    results = {
        "systems": {
            "process": {"rows_per_s": 61_234.5, "cpu_s_per_million": 20.25, "correct": True, "rows": 5}
        },
        "ratios": {"process_over_loop": 0.25},
        "batches": [1, 2],
    }
    systems, figures = report.tables("bench x", results)
    assert systems.columns == ["system", "rows_per_s", "cpu_s_per_million", "correct"]
    assert systems.rows == [["process", "61,234", "20.25", "True"]]
    assert figures.rows == [["ratios.process_over_loop", "0.25"]]
    report.write("x", results, {"rows": 5}, tmp_path / "r.json", tmp_path / "r.md")
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["systems"]["process"]["rows_per_s"] == 61_234.5
    assert written["configuration"] == {"rows": 5}
    assert {"cores", "memory_gb", "pyspark"} <= written["machine"].keys()
    assert written["machine"]["speed"] > 0 < written["machine"]["speed_after"]
    assert written["machine"]["load_before"] >= 0 <= written["machine"]["load_after"]
    assert "| process | 61,234 | 20.25 | True |" in (tmp_path / "r.md").read_text()


def test_memory_host_runs_from_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    done = CliRunner().invoke(app, ["memory-host", "--quick", "--events", "2000", "--out", str(out)])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert found["correct"] is True
    assert found["configuration"]["events"] == 2_000


def test_parts_and_what_apps_keep_of_their_own_say_the_same(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    done = CliRunner().invoke(app, ["parts", "--quick", "--out", str(out)])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert found["correct"] is True
    assert found["labels_of_a_terminal"]["bytes"]["own"] < found["labels_of_a_terminal"]["bytes"]["part"]


def test_a_busy_terminal_is_counted_right_while_it_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    done = CliRunner().invoke(app, ["busy", "--quick", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["correct"] is True


def test_more_due_timers_than_there_are_is_refused_in_one_line() -> None:
    from millrace.errors import UserError

    done = CliRunner().invoke(app, ["timers", "--pending", "1000", "--due", "900"])
    assert isinstance(done.exception, UserError)
    assert "--pending 5400" in str(done.exception)


def test_parts_of_events_are_slices() -> None:
    events = make_events(10, 3)
    assert isinstance(events.part(2, 5), Events)
    assert events.part(2, 5).at.tolist() == events.at[2:5].tolist()
