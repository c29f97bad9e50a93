"""Child processes end when they should, with all that they started, however their parent ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from millrace.local import watchdog
from millrace.local.processes import Child, DetachedProcess, StartFailed, start_detached

STUBBORN = "trap '' TERM; echo up; while :; do sleep 1; done"


def until(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def numbers(log: Path, count: int) -> list[int]:
    """Return the process ids that a child wrote to its log, once they are all there."""
    until(lambda: log.exists() and log.read_text().count("\n") >= count, f"{count} lines in {log}")
    return [int(line) for line in log.read_text().split()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "child.log"


def test_output_and_errors_are_appended_to_the_log(log: Path) -> None:
    for word in ("one", "two"):
        with Child(["sh", "-c", f"echo {word}; echo error-{word} >&2"], log_file=log) as child:
            child.wait(timeout_s=20)
    assert log.read_text().split() == ["one", "error-one", "two", "error-two"]


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_exit_code_of_the_child_is_passed_on(code: int, log: Path) -> None:
    with Child(["sh", "-c", f"exit {code}"], log_file=log) as child:
        assert child.wait(timeout_s=20) == code
        assert not child.is_alive()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_the_signal_that_ended_the_child_is_passed_on(number: signal.Signals, log: Path) -> None:
    with Child(["sleep", "600"], log_file=log) as child:
        os.kill(child.pid, number)
        assert child.wait(timeout_s=20) == -number


def test_waiting_for_a_child_that_runs_on_times_out(log: Path) -> None:
    with Child(["sleep", "600"], log_file=log) as child:
        with pytest.raises(TimeoutError, match="still runs"):
            child.wait(timeout_s=0.01)
        assert child.is_alive()
        assert child.poll() is None


@pytest.mark.parametrize(("program", "why"), [("no-such-program", "No such file"), ("/", "denied")])
def test_a_program_that_cannot_be_run_fails_at_once(program: str, why: str, log: Path) -> None:
    with pytest.raises(StartFailed, match=rf"{program}: could not be started: .*{why}"):
        Child([program], log_file=log)


def test_the_pid_is_the_childs_own(log: Path) -> None:
    with Child(["sleep", "600"], log_file=log) as child:
        until(lambda: psutil.Process(child.pid).name() == "sleep", "the child runs sleep")


def test_environment_and_directory_are_the_given_ones(log: Path, tmp_path: Path) -> None:
    with Child(["/bin/sh", "-c", "echo $WORD; pwd"], log_file=log, env={"WORD": "hi"}, cwd=tmp_path) as child:
        child.wait(timeout_s=20)
    assert log.read_text().split() == ["hi", str(tmp_path.resolve())]


def test_stopping_lets_the_child_clean_up(log: Path) -> None:
    script = "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.01; done"
    child = Child(["sh", "-c", script], log_file=log)
    until(lambda: log.read_text() == "up\n", "the child is up")
    assert child.stop() == 5
    assert log.read_text().split()[-1] == "bye"


def test_stopping_kills_a_child_that_will_not_end_within_its_grace(log: Path) -> None:
    child = Child(["sh", "-c", STUBBORN], log_file=log, grace_s=0.1)
    until(lambda: log.read_text() == "up\n", "the child is up")
    assert child.stop() == -signal.SIGKILL
    assert gone(child.pid)


def test_stopping_twice_and_after_the_end_is_harmless(log: Path) -> None:
    child = Child(["sh", "-c", "exit 4"], log_file=log)
    child.wait(timeout_s=20)
    assert child.stop() == 4
    assert child.stop() == 4


def test_stopping_ends_grandchildren_also_in_groups_of_their_own(log: Path) -> None:
    with Child([sys.executable, "-c", FAMILY], log_file=log) as child:
        family = numbers(log, 3)
        assert child.pid in family
    until(lambda: all(map(gone, family)), "all of the family ended")


def test_what_a_child_leaves_behind_when_it_ends_by_itself_is_ended(log: Path) -> None:
    child = Child(["sh", "-c", "sleep 600 & echo $!"], log_file=log)
    (left,) = numbers(log, 1)
    assert child.wait(timeout_s=20) == 0
    assert gone(left)
    child.stop()


def test_killing_ends_the_child_without_asking(log: Path) -> None:
    with Child([sys.executable, "-c", FAMILY], log_file=log) as child:
        family = numbers(log, 3)
        child.kill()
        assert child.poll() == -signal.SIGKILL
    assert all(map(gone, family))


def test_the_child_is_still_ended_when_its_watchdog_was_killed(log: Path) -> None:
    child = Child(["sleep", "600"], log_file=log)
    psutil.Process(child.pid).parent().kill()  # type: ignore[union-attr]
    child.stop()
    until(lambda: gone(child.pid), "the child ended")


def test_an_interrupt_at_the_terminal_does_not_reach_the_child(log: Path) -> None:
    with Child(["sleep", "600"], log_file=log) as child:
        assert os.getsid(child.pid) != os.getsid(0)
        assert os.getpgid(child.pid) != os.getpgid(0)


def test_without_proc_the_session_is_found_by_ps(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Child([sys.executable, "-c", FAMILY], log_file=log) as child:
        family = numbers(log, 3)
        leader = psutil.Process(child.pid).ppid()
        expected = watchdog.session_members(leader)
        monkeypatch.setattr(os.path, "isdir", lambda path: False)
        assert sorted(watchdog.session_members(leader)) == sorted(expected) == sorted(family)


#: Prints the process ids of itself, of a child, and of a child in a process group of its own.
FAMILY = """
import os, subprocess, time
one = subprocess.Popen(["sleep", "600"])
two = subprocess.Popen(["sleep", "600"], process_group=0)
print(os.getpid(), one.pid, two.pid, sep="\\n", flush=True)
time.sleep(600)
"""

PARENT = """
import os, sys, time
from pathlib import Path
from millrace.local.processes import Child
log, kept, removed = map(Path, sys.argv[1:4])
child = Child([sys.executable, "-c", sys.argv[4]], log_file=log, grace_s=0.2, remove_if_orphaned=[removed])
if sys.argv[5] == "fork" and os.fork() == 0:  # inherits the pipe that says that the parent lives
    (kept / "fork.pid").write_text(str(os.getpid()))
    time.sleep(600)
time.sleep(600)
"""


@pytest.fixture
def start_parent(log: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started = []
    for name in ("kept", "removed"):
        (tmp_path / name).mkdir()

    def start(program: str = FAMILY, *, fork: bool = False) -> subprocess.Popen[bytes]:
        places = [log, tmp_path / "kept", tmp_path / "removed"]
        command = [sys.executable, "-c", PARENT, *places, program, "fork" if fork else "alone"]
        started.append(subprocess.Popen(command))
        return started[-1]

    yield start
    for parent in started:
        parent.kill()
        parent.wait()
    for forked in (tmp_path / "kept").iterdir():
        os.kill(int(forked.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("fork", [False, True], ids=["alone", "forked"])
def test_all_ends_when_the_parent_is_killed(
    number: signal.Signals,
    fork: bool,
    log: Path,
    tmp_path: Path,
    start_parent: Callable[..., subprocess.Popen[bytes]],
) -> None:
    parent = start_parent(fork=fork)
    family = numbers(log, 3)
    until(lambda: (tmp_path / "kept" / "fork.pid").exists() or not fork, "the fork runs")
    leader = psutil.Process(family[0]).ppid()
    parent.send_signal(number)
    until(lambda: all(map(gone, [*family, leader])), "the family and the watchdog ended")
    assert not (tmp_path / "removed").exists()
    assert (tmp_path / "kept").exists()


def test_a_stubborn_child_ends_when_the_parent_is_killed(
    log: Path, start_parent: Callable[..., subprocess.Popen[bytes]]
) -> None:
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    parent = start_parent(ignore + FAMILY)
    family = numbers(log, 3)
    parent.kill()
    until(lambda: all(map(gone, family)), "the family ended")


class TestDetached:
    def test_it_outlives_the_process_that_started_it(self, log: Path, tmp_path: Path) -> None:
        script = (
            "import sys; from pathlib import Path; from millrace.local.processes import start_detached\n"
            "found = start_detached(['sleep', '600'], log_file=Path(sys.argv[1]))\n"
            "print(found.pid, found.started_at)"
        )
        told = subprocess.check_output([sys.executable, "-c", script, log], text=True)
        pid, started_at = told.split()
        process = DetachedProcess(int(pid), float(started_at))
        assert process.is_alive()
        assert process.stop() is True
        until(lambda: gone(process.pid), "it ended")
        assert process.stop() is False

    def test_a_stubborn_one_is_killed_after_its_grace(self, log: Path) -> None:
        process = start_detached(["sh", "-c", STUBBORN], log_file=log)
        until(lambda: log.read_text() == "up\n", "it is up")
        assert process.stop(grace_s=0.1) is True
        assert not process.is_alive()

    def test_another_process_with_the_same_pid_is_left_alone(self, log: Path) -> None:
        process = start_detached(["sleep", "600"], log_file=log)
        former = DetachedProcess(process.pid, process.started_at - 100)
        assert not former.is_alive()
        assert former.stop() is False
        assert process.is_alive()
        process.stop()

    def test_a_program_that_is_not_there_fails_at_once(self, log: Path) -> None:
        with pytest.raises(StartFailed, match="no-such-program"):
            start_detached(["no-such-program"], log_file=log)
