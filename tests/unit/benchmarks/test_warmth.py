"""Latency is measured when the job is warm: batches are counted, producers stopped when all is measured."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from millrace.errors import MillraceError
from millrace_apps.benchmarks import app_latency, app_run, core_app, core_latency, kafka_io, running
from millrace_apps.benchmarks.app_bench import bench_of
from millrace_apps.benchmarks.cli import app
from millrace_apps.benchmarks.kafka_io import Pace
from millrace_apps.benchmarks.streams import BenchmarkFailed
from millrace_apps.benchmarks.warmth import WARM_BATCHES, WarmUp, told


def no_check() -> None:
    return None


def test_a_warm_up_takes_both_its_batches_and_its_seconds() -> None:
    warm = WarmUp(250, 60.0)
    assert [warm.is_over(*at) for at in ((249, 999.0), (250, 59.9), (250, 60.0))] == [False, False, True]
    assert WARM_BATCHES == 250


def test_progress_is_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    told(lambda: "often", every_s=0.0)()
    told(lambda: "seldom", every_s=600.0)()
    assert capsys.readouterr().err == "often\n"


class Waits(threading.Event):
    """An event whose waiting makes a batch go by."""

    def __init__(self, batches: list[int]) -> None:
        super().__init__()
        self._batches = batches

    def wait(self, timeout: float | None = None) -> bool:
        self._batches[0] += 1
        return self.is_set()


def test_an_apps_warm_up_lasts_until_its_batches_have_been_committed() -> None:
    batches = [0]
    assert app_latency._warm(WarmUp(7, 0.0), lambda: batches[0], no_check, Waits(batches))
    assert batches == [7]


def test_an_app_that_ends_is_not_waited_for() -> None:
    ended = Waits([0])
    ended.set()
    assert not app_latency._warm(WarmUp(7, 0.0), lambda: 0, no_check, ended)


def test_a_warm_up_that_takes_for_ever_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_latency, "_WARM_LIMIT_S", -1.0)
    with pytest.raises(BenchmarkFailed, match=r"0 of 7 batches .* give fewer --warm-batches"):
        app_latency._warm(WarmUp(7, 0.0), lambda: 0, no_check, Waits([0]))


def test_what_counts_begins_with_the_first_event_that_is_due_then() -> None:
    sent = Pace("b:1", "t", rate=1_000, rows=10, keys=5, start_ms=5_000)
    assert core_latency.due_from(sent, 6_001, 3) == range(1_001, 4_001)
    assert core_latency.due_from(sent, 4_000, 1) == range(1_000), "none is due before the first"


def test_committed_batches_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    settings = core_app.core_settings([f"storage.root={tmp_path}"])
    on = running.Stage("b:1", tmp_path, settings, cast(running.RunningApp, None))
    assert on.committed() == 0
    commits = tmp_path / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    for name in ("8", "9", "10", ".11.tmp", "11.crc"):
        (commits / name).touch()
    assert on.committed() == 11


# -- producers that are stopped ----------------------------------------------------------------------


class FakeProducer:
    """Takes messages, and stops the sending after some."""

    def __init__(self, stop: threading.Event, after: int) -> None:
        self.sent: list[bytes] = []
        self.flushed = False
        self._stop, self._after = stop, after

    def produce(self, _topic: str, value: bytes, _key: str, *, timestamp: int) -> None:
        assert timestamp == 0, "the clock's"
        self.sent.append(value)
        if len(self.sent) == self._after:
            self._stop.set()

    def poll(self, _seconds: float) -> None:
        return None

    def flush(self, _seconds: float) -> int:
        self.flushed = True
        return 0


def test_a_stopped_producer_has_sent_a_first_part_of_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    fake = FakeProducer(stop, after=7)
    monkeypatch.setattr(kafka_io, "_producer", lambda *_: fake)
    monkeypatch.setattr(kafka_io, "_PART", 3)
    pace = Pace("b:1", "t", rate=1_000, rows=20, keys=5, first_id=100)
    assert kafka_io.produce_paced(pace, stop) == 7
    assert fake.flushed
    assert fake.sent == list(kafka_io.as_json(pace.events().part(0, 7), 100))


def test_a_producer_says_how_many_it_sent_when_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: (print(7), sys.exit()))\n"
    code += "print('ready', file=sys.stderr, flush=True)\nwhile True: signal.pause()"
    monkeypatch.setattr(running, "paced_command", lambda _: [sys.executable, "-c", code])
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: popen(*a, stderr=subprocess.PIPE, **k))
    with running.Producer(cast(Pace, None)) as producer:
        errors = producer._child.stderr
        assert errors is not None
        assert errors.readline() == "ready\n"
        assert producer.stop() == 7


def test_a_producer_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "paced_command", lambda _: [sys.executable, "-c", "raise SystemExit(1)"])
    with running.Producer(cast(Pace, None)) as producer, pytest.raises(BenchmarkFailed, match="failed"):
        producer.wait()


def generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> app_run.BenchRun:
    monkeypatch.setattr(app_run.BenchRun, "_generator", lambda *_: [sys.executable, "-c", code])
    return app_run.BenchRun(bench_of("fraud"), cast(Any, None), "b:1", tmp_path, ".x")


def test_a_generator_that_runs_beside_is_stopped_in_good_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tmp_path / "done"
    code = f"""\
import pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(done)!r}).touch(), sys.exit()))
pathlib.Path({str(tmp_path / "ready")!r}).touch()
while True: signal.pause()
"""
    with generator(tmp_path, monkeypatch, code).generating() as check:
        while not (tmp_path / "ready").exists():
            check()
    assert done.exists()


def test_a_generator_that_ends_too_early_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = generator(tmp_path, monkeypatch, "raise SystemExit('no broker')")

    def until_it_ends() -> None:
        with run.generating() as check:
            while True:
                check()

    with pytest.raises(MillraceError, match="the generator ended: no broker"):
        until_it_ends()


# -- the command -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], WarmUp(250, 60)),
        (["--quick"], WarmUp(20, 5)),
        (["--quick", "--warm-batches", "3"], WarmUp(3, 5)),
        (["--warm-batches", "400", "--warm-up", "0"], WarmUp(400, 0)),
    ],
)
@pytest.mark.parametrize("job", ["w1", "iot"])
def test_every_latency_is_taken_after_250_batches_unless_told_otherwise(
    job: str, arguments: list[str], wanted: WarmUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[WarmUp] = []

    def fake(*given: Any) -> dict[str, Any]:
        seen.extend(g for g in given if isinstance(g, WarmUp))
        return {"warm_batches": 7}

    monkeypatch.setattr(core_latency, "latency", fake)
    monkeypatch.setattr(app_latency, "latency", fake)
    done = CliRunner().invoke(app, ["latency", "--job", job, *arguments])
    assert done.exit_code == 0, done.output
    assert seen == [wanted]


def test_every_benchmark_has_an_example_with_options_that_it_knows() -> None:
    for info in app.registered_commands:
        assert info.callback is not None
        name = info.name or info.callback.__name__
        assert info.epilog is not None, f"{name} has no example"
        words = info.epilog.removeprefix("Example: ").split()
        assert words[:3] == ["millrace", "bench", name]
        help_text = CliRunner().invoke(app, [name, "--help"], terminal_width=200).output
        own = words[3 : words.index("--")] if "--" in words else words[3:]
        unknown = [word for word in own if word.startswith("--") and word not in help_text]
        assert unknown == []


def test_a_benchmark_that_is_ended_ends_in_good_order() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        CliRunner().invoke(app, ["timers", "--pending", "1000", "--due", "900"])
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler)
        with pytest.raises(SystemExit) as ended:
            handler(signal.SIGTERM, None)
        assert ended.value.code == 143
    finally:
        signal.signal(signal.SIGTERM, before)
