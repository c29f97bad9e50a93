"""The driver of small batches: which of them count, what is sent ahead of them, what it may import."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace_apps.benchmarks.cli.apps import BenchApp
from millrace_apps.benchmarks.drivers import small_batches
from millrace_apps.benchmarks.drivers.small_batches import BOUNDS, BatchRecorder, Failed, Feed, Message, Plan

#: What stood at a6f5cc6 and means the same today.
KNOWN = {
    "millrace_apps.benchmarks": {"core_app"},
    "millrace_apps.benchmarks.app_bench": {"bench_of"},
    "millrace_apps.benchmarks.app_run": {"BenchRun", "bench_run", "read_ends"},
    "millrace_apps.benchmarks.cpu": {"CpuMeter"},
    "millrace_apps.benchmarks.inputs": {"make_events"},
    "millrace_apps.benchmarks.kafka_io": {"preload"},
    "millrace_apps.benchmarks.w1": {"bench_session"},
    "millrace_apps.benchmarks.w1_job": {"native"},
    "millrace.connectors.kafka": {"kafka_stream"},
    "millrace.connectors.producing": {"Delivery"},
    "millrace.errors": {"MillraceError"},
    "millrace.kafka.admin": {"TopicSpec", "client_config", "create_topics", "end_offsets"},
    "millrace.kafka.broker": {"broker_or_embedded"},
    "millrace.runtime.job": {"Job"},
}


def test_the_driver_imports_nothing_that_older_commits_do_not_have() -> None:
    tree = ast.parse(Path(small_batches.__file__).read_text(encoding="utf-8"))
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found.setdefault(node.module, set()).update(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            assert not any(
                alias.name.split(".")[0] in ("benchmarks", "millrace", "millrace_apps")
                for alias in node.names
            )
    tops = ("benchmarks", "millrace", "millrace_apps")
    ours = {m: names for m, names in found.items() if m.split(".")[0] in tops}
    assert ours == KNOWN


def test_every_app_has_a_bound() -> None:
    assert set(BOUNDS) == {"w1", *(member.value for member in BenchApp)}


def test_a_batch_is_bounded_by_its_rows_and_nothing_is_late() -> None:
    assert Plan("clickstream", rows=600).overrides == [
        "stream.max_offsets_per_trigger=600",
        "stream.out_of_orderness=15000ms",
    ]
    given = Plan("w1", rows=10, settings=("stream.out_of_orderness=1s",)).overrides
    assert given[1:] == ["stream.out_of_orderness=5000ms", "stream.out_of_orderness=1s"], "what is given wins"


def test_there_are_events_for_all_batches_and_some_more() -> None:
    assert Plan("w1", batches=10, warm_batches=5, rows=100).events > 15 * 100


class Clock:
    """Times that a test gives, and CPU time that goes twice as fast."""

    def __init__(self, times: Sequence[float]) -> None:
        self._times = iter(times)
        self.now = 0.0

    def __call__(self) -> float:
        self.now = next(self._times)
        return self.now

    def used(self) -> dict[str, float]:
        return {"spark": 2 * self.now, "broker": 50 * self.now}


def watched(plan: Plan, times: Sequence[float], batches: int) -> BatchRecorder:
    clock = Clock(times)
    recorder = BatchRecorder(plan, clock.used, lambda batch: 600 * (batch + 1), clock)
    for batch in range(batches):
        recorder.note(batch, {"main": 600, "Monitor.late": int(batch == 3), "latest": 9})
    return recorder


def test_only_batches_after_the_warm_up_count() -> None:
    """Ends of batches; the clock is read once more behind the last of the warm-up, as looking takes time.

    warm-up      10, 11 (12)
    measured     12.1, 12.4, 12.6
    after that   not noted
    """
    plan = Plan("w1", batches=3, warm_batches=2)
    recorder = watched(plan, [10, 11, 12, 12.1, 12.4, 12.6], batches=7)
    assert recorder.done.is_set()
    found = recorder.figures()
    assert found["batch_seconds"] == [0.1, 0.3, 0.2]
    assert found["batch_ms"] == {"median": 200.0, "p95": 290.0, "low": 100.0, "high": 300.0}
    assert (found["batches"], found["warm_batches"], found["rows_per_batch"]) == (3, 2, 600.0)
    assert found["outputs"] == {"main": 1_800, "Monitor.late": 1, "latest": 27}
    assert (found["late"], found["dead_letters"]) == (1, 0)


def test_cpu_time_is_of_the_measured_batches_and_without_the_broker() -> None:
    found = watched(Plan("w1", batches=2, warm_batches=1), [5, 6, 7, 8], batches=3).figures()
    assert found["cpu_ms_per_batch"] == pytest.approx(2 * (8 - 5) * 1e3 / 2)
    assert found["cpu_ms_per_batch_by"]["broker"] == pytest.approx(50 * (8 - 5) * 1e3 / 2)


def test_a_job_that_ends_too_early_has_no_figures() -> None:
    recorder = watched(Plan("w1", batches=3, warm_batches=2), [1, 2, 3, 4], batches=3)
    with pytest.raises(Failed, match="the job ended after 3 of 5 batches"):
        recorder.figures()


def message(number: int, at: int, topic: str = "t") -> Message:
    return Message(topic, b"k", json.dumps({"id": number, "event_time_ms": at}).encode(), [])


def test_messages_of_all_topics_go_in_the_order_of_their_time() -> None:
    given = [message(1, 10), message(2, 30), message(3, 10, "u"), message(4, 20, "u")]
    ordered = [json.loads(m.value or b"")["id"] for m in small_batches.by_time(given)]
    assert ordered == [1, 3, 4, 2]


def test_so_many_messages_are_ahead_of_the_job_until_there_are_no_more() -> None:
    sent: list[Message] = []
    feed = Feed([message(n, n) for n in range(10)], sent.append, ahead=4)
    counts = []
    for read in (0, 1, 1, 0, 5, 9, 10):
        feed(read)
        counts.append(len(sent))
    assert counts == [4, 5, 5, 5, 9, 10, 10]
    assert [m.value for m in sent] == [message(n, n).value for n in range(10)]


def test_the_command_line_says_what_is_run(tmp_path: Path) -> None:
    plan, out = small_batches.parse(
        ["--job", "iot", "--batches", "7", "--rows", "50", "--set", "a=1", "--set", "b=2", "--out", "r.json"]
    )
    assert plan == Plan("iot", batches=7, warm_batches=250, rows=50, settings=("a=1", "b=2"))
    assert out == Path("r.json")


@pytest.mark.parametrize("arguments", [["--rows", "0"], ["--job", "nosuch"], ["--warm-batches", "0"]])
def test_a_mistake_on_the_command_line_is_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        small_batches.parse(arguments)
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_report_has_the_machine_and_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: dict[str, Any] = watched(Plan("w1", batches=2, warm_batches=1), [5, 6, 7, 8], batches=3).figures()
    monkeypatch.setattr(small_batches, "measure", lambda *_: found)
    monkeypatch.setattr(small_batches.signal, "signal", lambda *_: None)
    assert small_batches.main(["--job", "w1", "--set", "a=1", "--out", str(tmp_path / "r.json")]) == 0
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["batch_ms"] == found["batch_ms"]
    assert written["machine"].keys() == {"load_before", "load_after", "speed", "speed_after"}
    assert written["configuration"]["settings"][-1] == "a=1"
    assert capsys.readouterr().out.startswith("w1: 1000.0 ms a batch (p95 1000.0), ")


def test_a_job_that_fails_is_told_of_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from millrace.errors import UserError

    def measure(*_: object) -> dict[str, Any]:
        raise UserError("--set a: unknown")

    monkeypatch.setattr(small_batches, "measure", measure)
    monkeypatch.setattr(small_batches.signal, "signal", lambda *_: None)
    assert small_batches.main(["--job", "w1"]) == 2
    assert capsys.readouterr().err == "small_batches: --set a: unknown\n"
