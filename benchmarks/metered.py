"""Metered commands: wall time and CPU time, of the command and all that it has started.

Between us and the command stands a small process, which is this very file run by its path, with nothing but
the standard library. Whatever loses its parent below it becomes its child (Linux' "child subreaper"), so that
it can wait for all of it, which counts it, and end what does not end by itself.

What nobody waits for is not counted by the system: the children of a process that ignores SIGCHLD, as the
daemon of PySpark's workers does. These are looked at all the time, and their last look is added.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

#: Between two looks at the processes, s: so much of one that nobody waits for may be missed.
_LOOK_S: Final = 0.5
#: Between SIGTERM and SIGKILL, s.
GRACE_S: Final = 40.0
#: For what is left when the command has ended by itself, s: a broker's watchdog takes its folder away.
SETTLE_S: Final = 5.0
#: Between SIGTERM and SIGKILL for what is left then, s.
LEFT_GRACE_S: Final = 15.0
_STOPPING_POLL_S: Final = 0.05
_SIGN_OF_LIFE_S: Final = 30.0
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_SIGCHLD_BIT: Final = 1 << (signal.SIGCHLD - 1)
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Metered:
    """What a command took.

    Attributes:
        wall_s: Seconds from its start to its end.
        cpu_s: CPU seconds of it and of all that it started, also of what outlived it.
        exit_code: As the shell has it: 128 and more is a signal.
        stderr: The last lines of its standard error.
    """

    wall_s: float
    cpu_s: float
    exit_code: int
    stderr: tuple[str, ...] = ()


class NotStarted(Exception):
    """The command could not be started; the message says why."""


def run(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    scratch: Path,
    on_wait: Callable[[float], None] = lambda _: None,
    settle_s: float = SETTLE_S,
    left_grace_s: float = LEFT_GRACE_S,
) -> Metered:
    """Run a command to its end; on an exception, Ctrl-C among them, it is ended with all that it started.

    Args:
        command: Program and arguments; the program is looked up on the ``PATH`` of ``env``.
        cwd: Its working directory.
        env: Its whole environment.
        scratch: Folder for what it prints; removed should this process be killed.
        on_wait: Called every half a minute with the seconds so far.
        settle_s: For what outlives the command, before it is asked to end, s.
        left_grace_s: For the same until it is killed, s.

    Raises:
        NotStarted: There is no such program, or it may not be run.
    """
    report, errors = scratch / "meter.json", scratch / "stderr"
    arguments = [str(os.getpid()), str(report), str(scratch), str(settle_s), str(left_grace_s), *command]
    with (scratch / "stdout").open("wb") as out, errors.open("wb") as err:
        meter = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *arguments],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,  # Ctrl-C reaches us alone, and we end it in good order
        )
    begin = time.monotonic()
    try:
        while True:
            try:
                meter.wait(_SIGN_OF_LIFE_S)
                break
            except subprocess.TimeoutExpired:
                on_wait(time.monotonic() - begin)
    finally:
        _end(meter)
    found: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {"error": "it was killed"}
    if "error" in found:
        raise NotStarted(found["error"])
    lines = [line.rstrip() for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    return Metered(found["wall_s"], found["cpu_s"], found["exit_code"], tuple(lines[-10:]))


def _end(meter: subprocess.Popen[bytes]) -> None:
    """Ask the meter to end all, and wait for it; a second Ctrl-C makes it kill."""
    while meter.poll() is None:
        meter.terminate()
        with contextlib.suppress(KeyboardInterrupt):
            meter.wait()


# -- the process in between --------------------------------------------------------------------------


class _Process(NamedTuple):
    """A process as the system shows it: CPU time (s) of itself and of those it has waited for."""

    pid: int
    parent: int
    started: int
    cpu_s: float


class _Meter:
    """One command and all its descendants."""

    def __init__(self, command: Sequence[str], settle_s: float, left_grace_s: float) -> None:
        self._stops, self._settle_s, self._left_grace_s = 0, settle_s, left_grace_s
        self._wakeup, written = os.pipe()
        os.set_blocking(written, False)
        os.set_blocking(self._wakeup, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._asked_to_stop)
        self._status: int | None = None
        self._ended = 0.0
        #: What nobody waits for: (process, start) → its CPU time at the last look.
        self._unwaited: dict[tuple[int, int], float] = {}
        self._next_look = 0.0
        self._start = time.monotonic()
        self.child = os.posix_spawnp(
            command[0],
            list(command),
            os.environ,
            setpgroup=0,
            # Python ignores these two, and what is ignored would stay ignored in the child.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )

    def _asked_to_stop(self, *_: object) -> None:
        self._stops += 1

    def run(self) -> dict[str, Any]:
        """Wait for the command's end, or a request to stop; end what is left; return what it took."""
        while self._status is None and not self._stops:
            self._turn(_LOOK_S)
        if self._status is None:
            self._signal_command(signal.SIGTERM)
            deadline = time.monotonic() + GRACE_S
            while self._status is None and time.monotonic() < deadline and self._stops < 2:
                self._turn(_STOPPING_POLL_S)
            if self._status is None:
                self._signal_command(signal.SIGKILL)
        self._clear()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        code = os.waitstatus_to_exitcode(self._status or 0)
        return {
            "wall_s": self._ended - self._start,
            "cpu_s": used.ru_utime + used.ru_stime + sum(self._unwaited.values()),
            "exit_code": code if code >= 0 else 128 - code,
        }

    def _signal_command(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child, number)

    def _clear(self) -> None:
        """Wait for all that is left; what does not end in time is asked to, and then killed."""
        ask = time.monotonic() + (0.0 if self._stops else self._settle_s)
        asked: set[int] = set()
        while self._turn(_STOPPING_POLL_S):
            now = time.monotonic()
            if now < ask and not self._stops:
                continue
            kill = now > ask + self._left_grace_s or self._stops > 1
            for process in _descendants(os.getpid()):
                if kill or process.pid not in asked:
                    asked.add(process.pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL if kill else signal.SIGTERM)

    def _turn(self, wait_s: float) -> bool:
        """Wait a moment, take in what has ended, look; return whether anything is left."""
        with contextlib.suppress(InterruptedError):
            select.select([self._wakeup], [], [], wait_s)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup, 512)
        if time.monotonic() >= self._next_look:
            self._look()
            self._next_look = time.monotonic() + _LOOK_S
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self.child:
                self._status, self._ended = status, time.monotonic()
            # Counted by the system now.
            self._unwaited = {same: cpu_s for same, cpu_s in self._unwaited.items() if same[0] != pid}

    def _look(self) -> None:
        for process in _descendants(os.getpid()):
            same = process.pid, process.started
            if process.parent != os.getpid() and _ignores_its_children(process.parent):
                self._unwaited[same] = process.cpu_s
            else:
                self._unwaited.pop(same, None)


def _descendants(root: int) -> list[_Process]:
    """Return all processes below one; none where the system has no ``/proc``."""
    below: dict[int, list[_Process]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        if name.isdigit() and (process := _read(name)) is not None:
            below.setdefault(process.parent, []).append(process)
    found, parents = [], [root]
    while parents:
        children = below.get(parents.pop(), [])
        found += children
        parents += [child.pid for child in children]
    return found


def _read(pid: str) -> _Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:  # ended meanwhile
        return None
    # From the third field on, see proc(5): state, parent, …; user, system, and both of those waited for.
    return _Process(int(pid), int(fields[1]), int(fields[19]), sum(map(int, fields[11:15])) * _TICK_S)


def _ignores_its_children(pid: int) -> bool:
    """Say whether a process ignores SIGCHLD: then nobody is told what its children used."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            ignored = next((line for line in file if line.startswith(b"SigIgn:")), b"SigIgn: 0")
    except OSError:
        return False
    return bool(int(ignored.split()[1], 16) & _SIGCHLD_BIT)


def _keep_what_is_orphaned(parent: int) -> None:
    """Become the parent of what loses its own below us, and be told when ours ends (Linux)."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


def main(arguments: Sequence[str]) -> None:
    """Run a command: ``metered.py PARENT REPORT SCRATCH SETTLE_S GRACE_S COMMAND…``.

    Args:
        arguments: Process id of who wants to know; file for the report; folder to remove when that process
            is gone; seconds for what outlives the command, until it is asked to end and from then until
            it is killed; the command.
    """
    parent, report, scratch = int(arguments[0]), Path(arguments[1]), arguments[2]
    _keep_what_is_orphaned(parent)
    try:
        meter = _Meter(arguments[5:], float(arguments[3]), float(arguments[4]))
    except OSError as error:
        found: dict[str, Any] = {"error": error.strerror or str(error)}
    else:
        found = meter.run()
    if os.getppid() != parent:
        shutil.rmtree(scratch, ignore_errors=True)
        return
    draft = report.with_suffix(".new")
    draft.write_text(json.dumps(found))
    draft.replace(report)


if __name__ == "__main__":
    main(sys.argv[1:])
