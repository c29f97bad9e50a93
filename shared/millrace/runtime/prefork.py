"""Python processes for Spark that are forked from one which has loaded their libraries.

Spark starts a Python process on the driver for every stateful operator of every query that starts, and a
daemon for its workers, which forks one for each task that runs at a time. Each of them loads PySpark, numpy,
pandas and the process's own libraries by itself: one to three seconds of CPU time. Here they are loaded once,
beside the start of the JVM, by a server; Spark is given a small *launcher* in place of Python, which asks the
server for a fork of itself, hands over its standard streams, and ends as the fork ends. Whatever else Spark
has it start, it starts as Python would.

The server ends with the process that started it. Where something of this cannot be, Spark starts Python
itself.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

#: What may be run in a fork: Spark's daemon of workers, and its process for the schemas of state.
MODULES: Final = ("pyspark.daemon", "pyspark.sql.streaming.transform_with_state_driver_worker")
#: What their forks need. pandas comes with it: PySpark's state client looks at every value whether it is one
#: of numpy's, by way of a module that loads both.
LIBRARIES: Final = (
    "pyspark.worker",
    "pyspark.testing.utils",
    "millrace.host.packing",
    "millrace.host.spark_worker",
)
#: Longest first line of a script that every Linux takes.
_SHEBANG_CHARS: Final = 127

_LAUNCHER: Final = """#!{python} -IS
import os, signal, socket, sys
arguments = sys.argv[1:]
if arguments[:1] == ["-m"] and arguments[1:2] and arguments[1] in {modules!r}:
    ends = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # one that comes meanwhile is the fork's too
    try:
        server = socket.socket(socket.AF_UNIX)
        server.connect({address!r})
        import json
        asked = json.dumps([arguments[1:], dict(os.environ), os.getcwd()]).encode()
        socket.send_fds(server, [len(asked).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(asked)
        pid = int.from_bytes(server.recv(4), "big")
    except OSError:
        pid = 0
    if pid:
        for number in ends:
            signal.signal(number, lambda number, _: os.kill(pid, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
        for number in (0, 1):  # the fork has them: their ends must be seen as its own
            os.close(number)
        code = server.recv(4)
        os._exit(int.from_bytes(code, "big") if code else 1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
os.execv({python!r}, [{python!r}, *arguments])
"""


@contextmanager
def launcher(
    folder: Path,
    preload: Sequence[str] = (),
    *,
    modules: Sequence[str] = MODULES,
    libraries: Sequence[str] = LIBRARIES,
) -> Iterator[Path | None]:
    r"""Give Spark's Python: an executable that forks where it can. It is there while the block runs.

    Args:
        folder: An empty folder of this user alone; its path must be short enough for a socket.
        preload: Further modules that the forks will need; one that cannot be loaded is left to them.
        modules: What ``-m`` runs in a fork.
        libraries: Modules that are loaded for them in any case.

    Yields:
        The executable; ``None`` where the system or the path of Python does not allow one.

    Example:
        >>> import subprocess, tempfile
        >>> with tempfile.TemporaryDirectory() as folder, launcher(Path(folder)) as python:
        ...     subprocess.run([python, "-c", "print('as Python would')"], capture_output=True).stdout
        b'as Python would\n'
    """
    shebang = f"#!{sys.executable} -IS"
    if not hasattr(os, "fork") or len(shebang) > _SHEBANG_CHARS or any(c.isspace() for c in sys.executable):
        yield None
        return
    address = folder / "fork"
    script = folder / "python"
    script.write_text(_LAUNCHER.format(python=sys.executable, modules=tuple(modules), address=str(address)))
    script.chmod(0o700)
    environment = {
        **os.environ,
        # As Spark starts its workers: text has the same hash in all of them, numpy has one thread.
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    loaded = dict.fromkeys((*modules, *libraries, *preload))
    command = [sys.executable, "-m", "millrace.runtime.prefork", str(address), *loaded]
    server = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        # An interrupt of the terminal is for the job, which ends in its own time.
        process_group=0,
    )
    try:
        yield script
    finally:
        if server.stdin is not None:
            server.stdin.close()
        server.wait()


def serve(address: str, modules: Sequence[str]) -> None:
    """Answer launchers until standard input ends.

    Args:
        address: Path of the socket.
        modules: Modules to load first.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    # Launchers that come while libraries are loaded wait in the queue.
    listener.listen(64)
    for name in modules:
        with suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, waker = os.pipe()
    for end in (woken, waker):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    forks: dict[int, socket.socket] = {}
    while True:
        watched: list[Any] = [0, listener, woken]
        ready, _, _ = select.select(watched, [], [])
        if woken in ready:
            os.read(woken, 4_096)
            _tell_ended(forks)
        if listener in ready:
            connection, _ = listener.accept()
            pid = _fork(connection, [listener, *forks.values()], [woken, waker])
            if pid:
                forks[pid] = connection
                with suppress(OSError):
                    connection.sendall(pid.to_bytes(4, "big"))
            else:
                connection.close()
        if 0 in ready and not os.read(0, 1):
            return


def _tell_ended(forks: dict[int, socket.socket]) -> None:
    """Tell the launchers of forks that have ended how they did."""
    while forks:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        with forks.pop(pid) as connection, suppress(OSError):
            connection.sendall((code if code >= 0 else 128 - code).to_bytes(4, "big"))


def _fork(connection: socket.socket, sockets: Sequence[socket.socket], pipes: Sequence[int]) -> int:
    """Fork what a launcher asks for; return the process id, 0 where it has gone away."""
    try:
        size, streams, _, _ = socket.recv_fds(connection, 4, 3)
        asked = b""
        while len(asked) < int.from_bytes(size, "big"):
            part = connection.recv(1 << 16)
            if not part:
                break
            asked += part
        arguments, environment, folder = json.loads(asked)
    except (OSError, ValueError):
        return 0
    pid = os.fork()
    if pid:
        for stream in streams:
            os.close(stream)
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in (connection, *sockets):
            other.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for descriptor in (*streams, *pipes):
            if descriptor > 2:
                os.close(descriptor)
        code = _become(arguments, environment, folder)
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _become(arguments: list[str], environment: dict[str, str], folder: str) -> int:
    """Run a module in this process as ``python -m`` would; return the exit code."""
    import runpy
    import traceback

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    known = set(sys.path)
    given = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p and p not in known]
    # What the server was started with stands first in its path, too: the folder that it was started in.
    sys.path[0] = folder
    sys.path[1:1] = given
    sys.argv = arguments
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
