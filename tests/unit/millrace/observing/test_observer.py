"""Figures that an observer makes of what a job tells it."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace.local.belonging import adopted, belonging, belonging_to
from millrace.observing import observer as module
from millrace.observing.figures import FIGURES_FILE, read_figures
from millrace.observing.joblog import LOG_FILE, logging_to
from millrace.observing.observer import Observer
from millrace.runtime.monitor import QueryMonitor
from millrace.time import END_OF_TIME
from millrace.time.clock import ClockStatus
from tests.unit.millrace.observing.cases import NOW, record
from tests.unit.millrace.runtime.test_monitor import RUN, kafka_source, progress


def observed(root: Path, monitor: QueryMonitor | None = None) -> Observer:
    return Observer(record(root), monitor or QueryMonitor(lambda: NOW - 5), wall_ms=lambda: NOW)


def test_figures_follow_from_batches_progress_and_clock(tmp_path: Path) -> None:
    monitor = QueryMonitor(lambda: NOW - 5)
    seen = observed(tmp_path, monitor)
    seen.update(phase="running", plan="chain")
    monitor.started("fraud", RUN)
    for batch, rows in ((0, 100), (1, 50)):
        source = kafka_source({"0": 100 * (batch + 1), "1": 7}, {"0": 250, "1": 7})
        monitor.progressed(
            progress(batch, rows, took_ms=300, durationMs={"addBatch": 250, "triggerExecution": 300},
                     sources=[source])
        )  # fmt: skip
        seen.on_batch(batch, {"main": rows - 3, "late": 2, "dead_letters": 1})
        seen.on_reasons(batch, {"future": 1})
        newest = {"transactions:0": 5_000 + batch, "transactions:1": 9_000 - batch}
        seen.on_clock(ClockStatus(0, 4_000, 9_000, held_by="transactions:0", sources=newest))
    now = seen.figures()
    assert (now.batch, now.batches, now.rows, now.plan, now.phase) == (1, 2, 150, "chain", "running")
    assert (now.outputs, now.late, now.dead_letters) == (
        {"main": 144, "late": 4, "dead_letters": 2}, 4, {"future": 2}
    )  # fmt: skip
    assert (now.phases_ms, now.phases_total_ms) == ({"addBatch": 250}, {"addBatch": 500})
    assert (now.durations["0.25"], now.durations["0.5"], now.durations["+Inf"]) == (0, 2, 2)
    assert now.durations_sum_ms == 600
    seen.late_in(["main"])  # where an app makes records of its own of late events
    assert seen.figures().late == 148
    assert {place: (s.read, s.end, s.newest_ms) for place, s in now.sources.items()} == {
        "transactions:0": (200, 250, 5_001), "transactions:1": (7, 7, 9_000),
    }  # fmt: skip
    assert now.lag == 50
    assert (now.watermark_ms, now.newest_ms, now.watermark_gap_ms) == (4_000, 9_000, 5_000)
    assert (now.held_by, now.alive_ms) == ("transactions:0", NOW - 5)


def test_a_batch_that_is_told_twice_counts_once(tmp_path: Path) -> None:
    seen = observed(tmp_path)
    for batch in (3, 3, 2, 4):
        seen.on_batch(batch, {"main": 10})
        seen.on_reasons(batch, {"schema": 1})
    assert (seen.figures().outputs, seen.figures().dead_letters) == ({"main": 20}, {"schema": 2})


def test_the_end_of_time_is_no_watermark(tmp_path: Path) -> None:
    seen = observed(tmp_path)
    seen.on_clock(ClockStatus(0, END_OF_TIME, 9_000))
    assert (seen.figures().watermark_ms, seen.figures().watermark_gap_ms) == (None, None)


def test_figures_stand_beside_the_checkpoint_from_the_begin_to_after_the_end(tmp_path: Path) -> None:
    with observed(tmp_path) as seen:
        kept = read_figures(tmp_path)
        assert kept is not None
        assert (kept.phase, kept.ended_ms, kept.job) == ("starting", None, seen.record)
    kept = read_figures(tmp_path)
    assert kept is not None
    assert (kept.phase, kept.ended_ms, kept.error) == ("ended", NOW, None)
    assert not [t for t in module.threading.enumerate() if t.name == "millrace-observer"]


def test_what_ended_a_job_is_kept_without_secrets(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no way"), observed(tmp_path):
        raise ValueError("no way; sasl.password=hunter2")
    kept = read_figures(tmp_path)
    assert kept is not None
    assert kept.error is not None
    assert kept.error.startswith("no way")
    assert "hunter2" not in kept.error


def test_a_stop_is_no_error(tmp_path: Path) -> None:
    monitor = QueryMonitor()
    monitor.started("fraud", RUN)
    monitor.terminated(
        RUN, "py4j: An exception\n  raise StopRequested\nmillrace.connectors.router.StopRequested"
    )
    assert observed(tmp_path, monitor).figures().error is None
    monitor.terminated(RUN, "py4j: disk full\nat x")
    assert observed(tmp_path, monitor).figures().error == "py4j: disk full"


def test_a_root_that_cannot_be_written_does_not_end_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FIGURES_FILE).mkdir()
    with observed(tmp_path) as seen:
        seen.on_batch(0, {"main": 1})
    assert len([r for r in caplog.records if "figures cannot be written" in r.getMessage()]) == 1
    assert read_figures(tmp_path) is None


def test_a_look_at_state_that_fails_does_not_end_the_observer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise OSError("gone")

    monkeypatch.setattr(module, "sampled_state", broken)
    seen = observed(tmp_path)
    seen._monitor.progressed(progress(0))
    seen._sample()
    kept = read_figures(tmp_path)
    assert kept is not None
    assert (kept.batch, kept.state) == (0, {})
    assert seen._slow_at > 0, "and it waits before it looks again"


# -- the log ---------------------------------------------------------------------------------------


def test_lines_of_the_log_are_json_with_query_and_batch_and_without_secrets(tmp_path: Path) -> None:
    batch = -1
    log = logging.getLogger("millrace.try")
    with logging_to(tmp_path, shape="json", level="INFO", query="fraud", batch=lambda: batch):
        log.info("before")
        batch = 7
        try:
            raise ValueError("ssl.key.password=hunter2")
        except ValueError:
            log.warning("sasl.password=%s\nand a second line", "hunter2", exc_info=True)
        log.debug("not at this level")
        logging.getLogger("somebody.else").info("nor of others")
        logging.getLogger("somebody.else").warning("their warnings")
    log.info("after")
    lines = (tmp_path / LOG_FILE).read_text().splitlines()
    first, second, third = map(json.loads, lines)
    assert (first["query"], first["batch"], first["level"], first["message"]) == (
        "fraud",
        -1,
        "INFO",
        "before",
    )
    assert (second["batch"], second["logger"], third["message"]) == (7, "millrace.try", "their warnings")
    assert "second line" in second["message"]
    assert "ValueError" in second["error"]
    assert "hunter2" not in "".join(lines)


def test_what_watching_takes_is_counted_where_it_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is the process's own CPU time while nothing but the observer runs in it."""
    monkeypatch.setattr(module, "EVERY_S", 0.001)
    with observed(tmp_path) as seen:
        began, before = time.process_time(), seen.figures().observing_cpu_s
        deadline = time.monotonic() + 60
        while time.process_time() - began < 0.5:
            threading.Event().wait(0.05)
            assert time.monotonic() < deadline
        spent, told = time.process_time() - began, seen.figures().observing_cpu_s - before
    assert 0.6 * spent < told < 1.1 * spent
    seen.spent(7.0)
    assert seen.figures().observing_cpu_s > 7.0 + told


def test_a_log_of_text_names_query_and_batch(tmp_path: Path) -> None:
    with logging_to(tmp_path, shape="text", level="DEBUG", query="fraud", batch=lambda: 3):
        logging.getLogger("millrace.try").debug("hello")
    assert (tmp_path / LOG_FILE).read_text().endswith(" DEBUG [fraud 3] millrace.try: hello\n")


def test_of_several_jobs_each_log_has_its_own_lines_and_all_have_those_of_none(tmp_path: Path) -> None:
    """Threads, pools and calls that were begun for a job are its; the main thread's are of none.

    fraud  =====+=======)         its log ends first
    iot        =+============)
    """
    log = logging.getLogger("millrace.try")
    both = threading.Barrier(3, timeout=10)
    calls: dict[str, Callable[[], None]] = {}

    def job(name: str) -> None:
        level = "INFO" if name == "fraud" else "DEBUG"
        folder = tmp_path / name
        with belonging_to(name), logging_to(
            folder, shape="text", level=level, query=name, batch=lambda: 0, of=name
        ):  # fmt: skip
            calls[name] = belonging(lambda: log.info("called by %s", name))
            both.wait()
            log.info("said by %s", name)
            log.debug("whispered by %s", name)
            thread = threading.Thread(target=belonging(lambda: log.info("thread of %s", name)))
            thread.start()
            thread.join()
            with ThreadPoolExecutor(2, initializer=adopted()) as pool:
                pool.submit(log.info, "pool of %s", name).result()
            both.wait()  # as Spark's listener calls, from a thread of another's
            both.wait()
            if name == "iot":
                threads[0].join()
                log.debug("the level stays")

    threads = [threading.Thread(target=job, args=(name,)) for name in ("fraud", "iot")]
    for thread in threads:
        thread.start()
    both.wait()
    both.wait()
    log.warning("said by none")
    for name in ("iot", "fraud"):
        calls[name]()
    both.wait()
    for thread in threads:
        thread.join()
    found = {name: (tmp_path / name / LOG_FILE).read_text() for name in ("fraud", "iot")}
    lines = {name: [line.partition("try: ")[2] for line in text.splitlines()] for name, text in found.items()}
    said = ("said by {}", "whispered by {}", "thread of {}", "pool of {}", "called by {}")
    of = {name: {text.format(name) for text in said} | {"said by none"} for name in found}
    assert set(lines["fraud"]) == of["fraud"] - {"whispered by fraud"}
    assert set(lines["iot"]) == of["iot"] | {"the level stays"}
    assert len(lines["fraud"]) == len(of["fraud"]) - 1
    assert logging.getLogger("millrace").level == before_any
    assert logging.lastResort not in logging.getLogger("millrace").handlers


before_any = logging.getLogger("millrace").level
