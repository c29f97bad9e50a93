"""Time and CPU time of a command: all that it started counts, however it ended, and nothing is left."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from millrace_apps.benchmarks import metered
from millrace_apps.benchmarks.metered import Metered, NotStarted

BUSY = "import time\nwhile time.process_time() < 0.3: pass\n"


def run(folder: Path, *command: str) -> Metered:
    return metered.run(command, cwd=folder, env=dict(os.environ), scratch=folder)


def python(folder: Path, code: str) -> Metered:
    return run(folder, sys.executable, "-c", code)


def test_a_commands_own_time_counts(tmp_path: Path) -> None:
    took = python(tmp_path, BUSY)
    assert 0.3 <= took.cpu_s < 0.6
    assert took.wall_s >= 0.29
    assert took.exit_code == 0


def test_a_child_that_outlives_the_command_counts_and_is_waited_for(tmp_path: Path) -> None:
    took = python(
        tmp_path,
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BUSY!r}], start_new_session=True)",
    )
    assert took.cpu_s >= 0.3


def test_a_child_that_nobody_waits_for_counts_too(tmp_path: Path) -> None:
    """The system counts no child of a process that ignores SIGCHLD, which PySpark's daemon does."""
    child = BUSY + "import sys; print('x', flush=True); sys.stdin.read()"
    parent = f"""\
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.read(1)
# As long as a look takes to come by.
end = __import__("time").monotonic() + {metered._LOOK_S * 1.5}
while __import__("time").monotonic() < end:
    signal.sigtimedwait([signal.SIGUSR1], 0.1)
child.stdin.close()
while __import__("os").path.exists(f"/proc/{{child.pid}}"):
    signal.sigtimedwait([signal.SIGUSR1], 0.01)
"""
    took = python(tmp_path, parent)
    assert took.exit_code == 0, took.stderr
    assert took.cpu_s >= 0.3


@pytest.mark.parametrize("deaf", [False, True], ids=["gentle", "ignores SIGTERM"])
def test_what_does_not_end_by_itself_is_ended(tmp_path: Path, deaf: bool) -> None:
    endless = f"""\
import signal, time
if {deaf}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("x", flush=True)
time.sleep(600)
"""
    command = f"""\
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", {endless!r}], start_new_session=True, stdout=subprocess.PIPE
)
child.stdout.read(1)
open("pid", "w").write(str(child.pid))
"""
    took = metered.run(
        [sys.executable, "-c", command],
        cwd=tmp_path,
        env=dict(os.environ),
        scratch=tmp_path,
        settle_s=0.0,
        left_grace_s=0.2,
    )
    assert took.exit_code == 0, took.stderr
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_exit_code_and_last_words_are_told(tmp_path: Path) -> None:
    took = run(tmp_path, "sh", "-c", "echo no one hears this; echo why >&2; echo >&2; exit 3")
    assert (took.exit_code, took.stderr) == (3, ("why",))
    assert run(tmp_path, "sh", "-c", "kill -9 $$").exit_code == 137


def test_a_program_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(NotStarted, match="No such file"):
        run(tmp_path, "no-such-program")
