"""Long-running child processes that cannot be orphaned, and detached ones that are meant to stay.

A :class:`Child` ends with its parent however the parent ends, ``kill -9`` included: a watchdog process
(:mod:`millrace.local.watchdog`) stands between the two. :func:`start_detached` is for what must outlive
the command that started it; what it returns can be written to a file and stopped later.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from millrace.errors import MillraceError
from millrace.local import watchdog

#: Seconds that a watchdog gets to report the child's process id; it needs 20 ms on an idle machine.
_REPORT_TIMEOUT_S = 30.0
#: Two readings of one process's start time may differ by the clock's adjustment meanwhile.
_START_TIME_TOLERANCE_S = 2.0


class StartFailed(MillraceError):
    """A child process could not be started at all."""


class Child:
    r"""A supervised child process: own session, output in a file, ended with its parent.

    Args:
        command: Program and arguments; the program is looked up on ``PATH``.
        log_file: Receives standard output and standard error, appended.
        env: The child's whole environment; by default this process's own.
        cwd: The child's working directory; by default this process's own.
        grace_s: Seconds between SIGTERM and SIGKILL when it is stopped.
        remove_if_orphaned: Directories that the watchdog deletes when this process ends without
            stopping the child (so that a ``kill -9`` leaves no temporary data behind).

    Raises:
        StartFailed: There is no such program, or it may not be run.

    Example:
        >>> import tempfile, pathlib
        >>> log = pathlib.Path(tempfile.mkdtemp()) / "out.log"
        >>> with Child(["echo", "hello"], log_file=log) as child:
        ...     child.wait(timeout_s=10)
        0
        >>> log.read_text()
        'hello\n'
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log_file: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        grace_s: float = 10.0,
        remove_if_orphaned: Iterable[Path] = (),
    ) -> None:
        self.command = [str(part) for part in command]
        self.log_file = log_file
        self._grace_s = grace_s
        directories = [str(path.absolute()) for path in remove_if_orphaned]
        stdin, self._lifeline = os.pipe()
        reported, report = os.pipe()
        arguments = [str(os.getpid()), str(report), str(grace_s), str(len(directories)), *directories]
        try:
            with _appending(log_file) as log:
                self._watchdog = subprocess.Popen(
                    [sys.executable, "-I", "-S", watchdog.__file__, *arguments, *self.command],
                    stdin=stdin,
                    stdout=log,
                    stderr=log,
                    env=dict(env) if env is not None else None,
                    cwd=cwd,
                    pass_fds=[report],
                    start_new_session=True,
                )
        except OSError as error:
            self._close()
            os.close(reported)
            raise StartFailed(f"{self.command[0]}: could not be started: {error}") from error
        finally:
            os.close(stdin)
            os.close(report)
        self.pid = self._reported_pid(reported)

    def _reported_pid(self, reported: int) -> int:
        """Return the child's own process id, as the watchdog tells it once the child runs."""
        with open(reported, "rb") as pipe:
            answered = select.select([pipe], [], [], _REPORT_TIMEOUT_S)[0]
            answer = pipe.read().decode() if answered else "!no answer from its watchdog"
        if not answer or answer.startswith("!"):
            self.stop()
            reason = answer[1:] or "its watchdog died"
            raise StartFailed(f"{self.command[0]}: could not be started: {reason}")
        return int(answer)

    def poll(self) -> int | None:
        """Return the child's exit code (negative: the signal that ended it), or None while it runs."""
        return self._watchdog.poll()

    def is_alive(self) -> bool:
        """Say whether the child still runs."""
        return self.poll() is None

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code once the child has ended by itself.

        Args:
            timeout_s: Seconds to wait at most; by default without limit.

        Raises:
            TimeoutError: It still runs.
        """
        try:
            return self._watchdog.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            message = f"{self.command[0]} (pid {self.pid}) still runs after {timeout_s} s"
            raise TimeoutError(message) from error

    def stop(self) -> int:
        """End the child and all that it started: SIGTERM, the grace, SIGKILL; harmless when it has ended.

        Returns:
            Its exit code.
        """
        if self._lifeline >= 0 and self._watchdog.poll() is None:
            # Said in words too, because a fork of this process may keep the pipe open.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._lifeline, b"s")
        self._close()
        try:
            code = self._watchdog.wait(self._grace_s + 10)
        except subprocess.TimeoutExpired:
            self._watchdog.kill()
            code = self._watchdog.wait()
        if code < 0:
            self._clear_session()  # if the watchdog was killed, its work is still to be done
        return code

    def kill(self) -> None:
        """End the child and all that it started with SIGKILL at once, as a crash would."""
        self._clear_session()
        self._watchdog.wait()
        self._close()

    def _clear_session(self) -> None:
        while watchdog.kill_session(self._watchdog.pid):
            time.sleep(0.01)

    def _close(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


@dataclass(frozen=True)
class DetachedProcess:
    """A process that outlives the one that started it, named for good.

    A process id may be given to another process later; together with the start time it cannot be mistaken.

    Args:
        pid: Process id, also of its session.
        started_at: Start time in seconds since the epoch, as the operating system tells it.
    """

    pid: int
    started_at: float

    def is_alive(self) -> bool:
        """Say whether that very process still runs."""
        import psutil

        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started_at) <= _START_TIME_TOLERANCE_S
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def stop(self, grace_s: float = 10.0) -> bool:
        """End it and its session: SIGTERM, the grace, SIGKILL.

        Args:
            grace_s: Seconds between the two signals.

        Returns:
            Whether it was still running.
        """
        if not self.is_alive():
            return False
        os.killpg(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        if self.is_alive():
            os.killpg(self.pid, signal.SIGKILL)
        while watchdog.kill_session(self.pid) or self.is_alive():
            time.sleep(0.02)
        # Only the parent can; anyone else's attempt is refused, and no zombie of ours stays.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        return True


def start_detached(
    command: Sequence[str | Path],
    *,
    log_file: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> DetachedProcess:
    """Start a process that outlives this one, in a session of its own.

    Args:
        command: Program and arguments; the program is looked up on ``PATH``.
        log_file: Receives standard output and standard error, appended.
        env: Its whole environment; by default this process's own.
        cwd: Its working directory; by default this process's own.

    Returns:
        What names it, to end it from this or another process.

    Raises:
        StartFailed: There is no such program, or it may not be run.
    """
    import psutil

    try:
        with _appending(log_file) as log:
            started = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(env) if env is not None else None,
                cwd=cwd,
                start_new_session=True,
            )
    except OSError as error:
        raise StartFailed(f"{command[0]}: could not be started: {error}") from error
    try:
        return DetachedProcess(started.pid, psutil.Process(started.pid).create_time())
    finally:
        # It is not ours to wait for; without this Popen would warn that it still runs.
        started.returncode = 0


def _appending(log_file: Path) -> IO[bytes]:
    log_file.parent.mkdir(parents=True, exist_ok=True)
    return log_file.open("ab")
