"""Stopping a job from another process, and reading its log."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from millrace.errors import UserError
from millrace.observing.jobs import JobRecord, record_path, write_atomically
from millrace.observing.stopping import Stopped, stop_job
from millrace.observing.tail import following, last_lines
from tests.unit.millrace.observing.cases import record

#: Ends some time after the signal that it is told, as a job does in the middle of a batch.
JOB = """
import signal, sys, time
asked = []
signal.signal(getattr(signal, sys.argv[1]), lambda *_: asked.append(1))
print("ready", flush=True)
while not asked: time.sleep(0.01)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def job(
    started: list[subprocess.Popen[bytes]], root: Path, number: str = "SIGTERM", more_s: float = 0.3
) -> JobRecord:
    process = subprocess.Popen([sys.executable, "-c", JOB, number, str(more_s)], stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    # Somebody waits for it, as a shell does: a zombie has ended.
    threading.Thread(target=process.wait, daemon=True).start()
    made = record(root, pid=process.pid, process_started=psutil.Process(process.pid).create_time())
    return msgspec.structs.replace(made, signal="INT" if number == "SIGINT" else "TERM")


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_job_is_asked_by_its_own_signal_and_waited_for(
    started: list[subprocess.Popen[bytes]], tmp_path: Path, number: str
) -> None:
    said: list[str] = []
    running = job(started, tmp_path, number)
    done = stop_job(running, tmp_path, timeout_s=30, say=said.append)
    assert (done.did, done.pid, done.error) == ("stopped", running.pid, None)
    assert done.waited_s >= 0.3
    assert said[0] == f"fraud (pid {running.pid}): asked to end after its running batch"
    assert started[0].wait() == 0, "it ended by itself"


def test_a_job_with_a_long_batch_goes_on_after_the_time_that_there_was(
    started: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    said: list[str] = []
    now = 0.0

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    running = job(started, tmp_path, more_s=60)
    done = stop_job(running, tmp_path, timeout_s=5, say=said.append, clock=lambda: now, sleep=pass_time)
    assert done.did == "still running"
    assert 5 <= done.waited_s < 5.2
    assert [line.partition(": ")[2] for line in said[1:]] == [
        "2 s so far; no batch is committed yet", "4 s so far; no batch is committed yet",
    ]  # fmt: skip
    assert started[0].poll() is None


def test_a_process_that_got_the_id_of_a_killed_job_is_left_alone(
    started: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    running = job(started, tmp_path, more_s=0)
    reused = msgspec.structs.replace(running, process_started=running.process_started - 60)
    path = record_path(tmp_path, "fraud", reused.root)
    write_atomically(path, msgspec.json.encode(reused))
    done = stop_job(reused, tmp_path, timeout_s=5, say=lambda _: None)
    assert done == Stopped("fraud", str(tmp_path), "died", running.pid)
    assert not path.exists(), "and it is forgotten"
    assert started[0].poll() is None
    started[0].send_signal(signal.SIGTERM)


def test_a_job_of_another_machine_is_to_be_stopped_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"runs on far\.example"):
        stop_job(record(host="far.example"), tmp_path, timeout_s=1, say=lambda _: None)


# -- logs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "shown"), [(0, []), (1, ["c"]), (2, ["b", "c"]), (9, ["a", "b", "c"])])
def test_the_last_lines_of_a_log(tmp_path: Path, count: int, shown: list[str]) -> None:
    path = tmp_path / "job.log"
    path.write_text("a\nb\nc\nhalf a l")
    lines, at = last_lines(path, count)
    assert lines == shown
    assert path.read_bytes()[at:] == b"half a l"


def test_the_last_lines_of_a_log_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    every = [f"{n} {'x' * 997}" for n in range(300)]
    path.write_text("\n".join(every) + "\n")
    for count in (0, 1, 63, 64, 65, 66, 150, 300, 301):
        lines, at = last_lines(path, count)
        assert lines == every[max(0, 300 - count) :]
        assert at == path.stat().st_size
    path.write_text("")
    assert last_lines(path, 5) == ([], 0)


def test_lines_that_come_are_followed_into_the_next_file_and_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    steps = iter(
        [
            lambda: path.write_text("old\na\nb"),
            lambda: path.open("a").write("b\n"),
            lambda: (path.open("a").write("last of it\n"), path.rename(tmp_path / "job.log.1")),
            lambda: path.write_text("new\n"),
            lambda: None,
            lambda: path.open("a").write("the end\n"),
        ]
    )
    left = 6

    def goes_on() -> bool:
        return left > 0

    def step(_: float) -> None:
        nonlocal left
        left -= 1
        next(steps)()

    assert list(following(path, 4, goes_on, step)) == ["a", "bb", "last of it", "new", "the end"]
