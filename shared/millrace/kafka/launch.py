"""Start a broker and wait until it answers, or say in one line why it did not."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from millrace.errors import UserError
from millrace.kafka.admin import BrokerUnreachable, cluster_id
from millrace.kafka.formatting import Formatted
from millrace.kafka.server import HOST, Server, new_id
from millrace.local.class_archive import archive_flags
from millrace.local.jars import ensure_jars
from millrace.local.java_check import check_java
from millrace.local.processes import Child

#: A broker is ready in 2-4 s on an idle machine; on a busy one it must not fail for that.
READY_TIMEOUT_S = 60.0

_PORT_ATTEMPTS = 5
_FORMAT_TIMEOUT_S = 60.0
_SHOWN_LOG_LINES = 8


class BrokerStartFailed(UserError):
    """The embedded broker did not start; the message has the end of its log, and where that is."""


class _PortTaken(Exception):
    """Another process listens on a port that was free a moment ago."""


class Running(Protocol):
    """A started process."""

    def is_alive(self) -> bool:
        """Say whether it still runs."""

    def stop(self) -> object:
        """End it."""


P = TypeVar("P", bound=Running)


def launch(
    start: Callable[[list[str]], P],
    *,
    root: Path,
    log_file: Path,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
    ready_timeout_s: float = READY_TIMEOUT_S,
    temporary: bool = False,
) -> tuple[Server, P]:
    """Start a broker on a directory, formatting that first if need be, and wait until it answers.

    Args:
        start: Starts a command in ``root``, with its output appended to ``log_file``.
        root: The broker's directory.
        log_file: Where it logs.
        port: Where clients connect; by default a free one.
        settings: Kafka settings that differ from the usual.
        ready_timeout_s: Seconds that it may take to answer.
        temporary: Whether ``root`` is deleted afterwards, also if this process is killed.

    Returns:
        What was started, and its process.

    Raises:
        UserError: No usable Java, jars that cannot be had, a port that is taken, a directory that cannot
            be written or is in use, or a broker that did not start or answer in time.
    """
    java = check_java(os.environ)
    jars = ensure_jars(("broker",))["broker"]
    jvm = [str(java.path), "-cp", os.pathsep.join(map(str, jars))]
    quicker = archive_flags(java, jars, write_below=root if temporary else None)
    if temporary:  # what a broker that is killed leaves there goes with its data
        (root / "tmp").mkdir(parents=True, exist_ok=True)
        quicker = [*quicker, f"-Djava.io.tmpdir={root / 'tmp'}"]
    if port is not None:
        _refuse_taken(port)
    formatted = Formatted(java, jars) if temporary else None
    for _ in range(_PORT_ATTEMPTS):
        client_port = port or free_port()
        server = Server(root, log_file, client_port, free_port(unlike=client_port), dict(settings or {}))
        if server.is_in_use():
            raise UserError(f"{root} is in use by another broker; stop that, or choose another directory")
        server.write()
        cluster = server.cluster_id()
        copied = formatted.copy_to(server) if formatted and cluster is None else None
        if cluster is None and (cluster := copied) is None:
            cluster = _format(server, [*jvm, *archive_flags(java, jars)], temporary)
            if formatted:
                formatted.keep(server)
        log_start = log_file.stat().st_size if log_file.exists() else 0
        process = start(server.run_command([*jvm, *quicker]))
        try:
            _await_ready(server, cluster, process, log_start, ready_timeout_s)
        except _PortTaken:
            if port is not None:
                _refuse_taken(port)
            continue
        except BaseException as error:
            ended = not process.is_alive()
            process.stop()
            if formatted:
                formatted.forget()
            if copied and ended and isinstance(error, BrokerStartFailed):
                # What was copied may be damaged: what the tool writes now is not.
                shutil.rmtree(server.data)
                continue
            raise
        return server, process
    raise BrokerStartFailed(
        f"the broker found {_PORT_ATTEMPTS} times that its port was taken; see {log_file}"
    )


def free_port(unlike: int | None = None) -> int:
    """Return a port that nobody listens on at the moment.

    Args:
        unlike: A port that is promised already. The system forgets what it gave as soon as that is let go,
            and may give it again.
    """
    while True:
        with socket.socket() as found:
            found.bind((HOST, 0))
            port = int(found.getsockname()[1])
        if port != unlike:
            return port


def is_free(port: int) -> bool:
    """Say whether a broker could listen on a port at the moment."""
    with socket.socket() as tried:
        # As the broker does: the remains of closed connections do not count.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
        except OSError:  # taken, or reserved to the administrator
            return False
        return True


def _refuse_taken(port: int) -> None:
    if not is_free(port):
        raise UserError(f"port {port} is taken or may not be used; choose another port")


def _format(server: Server, jvm: Sequence[str], temporary: bool) -> str:
    """Format the data directory for a new cluster, and return its id."""
    made = new_id()
    with Child(
        server.format_command(jvm, made),
        log_file=server.log_file,
        cwd=server.root,
        remove_if_orphaned=[server.root] if temporary else [],
    ) as tool:
        try:
            code = tool.wait(_FORMAT_TIMEOUT_S)
        except TimeoutError as error:
            raise BrokerStartFailed(f"formatting {server.data} hangs; see {server.log_file}") from error
    if code:
        raise BrokerStartFailed(f"{server.data} could not be formatted: {_log_end(server.log_file, 0)}")
    return made


def _await_ready(server: Server, cluster: str, process: Running, log_start: int, timeout_s: float) -> None:
    """Return when the broker answers; an answer from another cluster on that port does not count."""
    deadline = time.monotonic() + timeout_s
    while process.is_alive():
        if time.monotonic() > deadline:
            end = _log_end(server.log_file, log_start)
            raise BrokerStartFailed(f"the broker did not answer within {timeout_s:g} s: {end}")
        if _listens(server.port) and _cluster_at(server.bootstrap) == cluster:
            return
        time.sleep(0.02)
    raise _death(server, log_start)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1.0):
            return True
    except OSError:
        return False


def _cluster_at(bootstrap: str) -> str | None:
    try:
        return cluster_id(bootstrap, timeout_s=1.0)
    except BrokerUnreachable:
        return None


def _death(server: Server, log_start: int) -> Exception:
    """Return the exception for a broker that ended at its start."""
    log = _log_from(server.log_file, log_start)
    if "Address already in use" in log:
        return _PortTaken()
    return BrokerStartFailed(f"the broker ended while starting: {_log_end(server.log_file, log_start)}")


def _log_from(log_file: Path, start: int) -> str:
    with log_file.open("rb") as log:
        log.seek(start)
        return log.read().decode(errors="replace")


def _log_end(log_file: Path, start: int) -> str:
    """Return the last lines of a log that tell something, and where it is."""
    lines = [line for line in _log_from(log_file, start).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("\tat ")][-_SHOWN_LOG_LINES:]
    return "\n".join([f"see {log_file}, which ends with:", *told])
