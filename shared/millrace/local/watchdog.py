"""The small process that stands between a parent and its child, so that no child is ever orphaned.

Run as a plain file by :mod:`millrace.local.processes`, with the standard library's core modules only,
because it is started once per child and must be there in milliseconds. It leads a session of its own;
the child gets a process group in that session. Its standard input is a pipe whose other end only the
parent holds: a byte asks for a graceful stop, the end of the pipe means that the parent is gone. A
parent that dies by ``kill -9`` closes the pipe like any other. Because a fork of the parent may hold a
copy of that end, the parent's process id is watched as well.

When the child ends, for whatever reason, everything that is left in the session is ended too (a
grandchild may have a process group of its own, as PySpark's worker daemon does), and the watchdog ends
the way the child did: same exit code, or same signal.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import sys
import time

#: How often the parent's process id is looked at, and a stopping session is counted, in seconds.
_PARENT_CHECK_S = 1.0
_STOP_CHECK_S = 0.02
_DEV_NULL = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)


def session_members(session: int) -> list[int]:
    """Return the process ids of a session, its leader excepted.

    Args:
        session: Process id of the session's leader.
    """
    found = []
    for pid in _all_pids():
        try:
            if pid != session and os.getsid(pid) == session and not _is_zombie(pid):
                found.append(pid)
        except OSError:  # ended meanwhile, or not ours to ask about
            continue
    return found


def _all_pids() -> list[int]:
    if os.path.isdir("/proc/self"):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    with os.popen("ps -A -o pid=") as listing:  # noqa: S605  macOS and BSD have no /proc
        return [int(line) for line in listing if line.strip().isdigit()]


def _is_zombie(pid: int) -> bool:
    """Say whether a process has ended and only waits for its parent to notice."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] == b"Z"
    except FileNotFoundError:
        return False


def kill_session(session: int) -> bool:
    """Send SIGKILL to every process of a session, its leader excepted.

    Args:
        session: Process id of the session's leader.

    Returns:
        Whether there was any; call again until there is none.
    """
    members = session_members(session)
    _signal_all(members, signal.SIGKILL)
    return bool(members)


def _signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


class _Watch:
    """One child and its parent, seen from between them."""

    def __init__(self, parent: int, grace_s: float, command: list[str]) -> None:
        self._parent = parent
        self._grace_s = grace_s
        self._wakeup, written = os.pipe()
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _noted)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._asked_to_stop)
        self._stop = False
        self.orphaned = False
        self.status: int | None = None
        self.child = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            file_actions=[_DEV_NULL],
            setpgroup=0,
            # Python ignores these two, and what is ignored would stay ignored in the child.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )

    def _asked_to_stop(self, number: int, frame: object) -> None:
        self._stop = True

    def run(self) -> None:
        """Wait for the end of the child, of the parent, or a request to stop; then clear the session."""
        while not self._child_ended() and not self._stop:
            readable, _, _ = select.select([0, self._wakeup], [], [], _PARENT_CHECK_S)
            if self._wakeup in readable:
                os.read(self._wakeup, 512)
            if 0 in readable:
                self._stop = True
                self.orphaned = not os.read(0, 1)
            if os.getppid() != self._parent:
                self._stop = self.orphaned = True
        self._end_session()

    def _end_session(self) -> None:
        """Ask first, then force: SIGTERM, the grace, SIGKILL."""
        session = os.getpid()
        asked: set[int] = set()
        deadline = time.monotonic() + self._grace_s
        if not self._child_ended():
            # Only its own group at first: the child knows best how to end what it started beyond that.
            _signal_all([-self.child], signal.SIGTERM)
        while time.monotonic() < deadline:
            ended, members = self._child_ended(), session_members(session)
            if ended and not members:
                return
            if ended:
                _signal_all([pid for pid in members if pid not in asked], signal.SIGTERM)
                asked.update(members)
            select.select([self._wakeup], [], [], _STOP_CHECK_S)
            _drain(self._wakeup)
        if not self._child_ended():
            _signal_all([-self.child], signal.SIGKILL)
        while kill_session(session) or not self._child_ended():
            time.sleep(_STOP_CHECK_S)

    def _child_ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                self.status = status
        return self.status is not None


def _noted(number: int, frame: object) -> None:
    """Do nothing: the wake-up descriptor has been written."""


def _drain(descriptor: int) -> None:
    while select.select([descriptor], [], [], 0)[0]:
        os.read(descriptor, 512)


def _end_like(status: int) -> None:
    """End this process with the exit code, or by the signal, that ended the child."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child's core dump is the one of interest
    if code != -signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)


def _remove(paths: list[str]) -> None:
    import shutil

    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


def main(arguments: list[str]) -> None:
    """Watch one child: ``watchdog.py PARENT STATUS_FD GRACE_S N DIRECTORY… COMMAND…``.

    Args:
        arguments: Process id of the parent; descriptor on which to report the child's process id (or
            why it could not be started); seconds between SIGTERM and SIGKILL; number of directories,
            and the directories, to remove when the parent is gone; the command.
    """
    parent, report, directories = int(arguments[0]), int(arguments[1]), int(arguments[3])
    removed, command = arguments[4 : 4 + directories], arguments[4 + directories :]
    os.set_inheritable(report, False)
    try:
        watch = _Watch(parent, float(arguments[2]), command)
    except OSError as error:
        os.write(report, f"!{errno.errorcode.get(error.errno or 0, '')} {error.strerror}".encode())
        os._exit(127)
    os.write(report, f"{watch.child}\n".encode())
    os.close(report)
    watch.run()
    if watch.orphaned:
        _remove(removed)
    _end_like(watch.status or 0)


if __name__ == "__main__":
    main(sys.argv[1:])
