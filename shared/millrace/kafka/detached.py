"""One broker per project that outlives the command that starts it: ``millrace kafka start``.

What was started is written to a file beside its data, so that a later command finds it again and stops
nothing else: a process id counts only together with its start time.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from millrace.errors import UserError
from millrace.kafka.launch import is_free, launch
from millrace.local.home import home
from millrace.local.processes import DetachedProcess, start_detached

#: Kafka's own port, taken for a broker without a port of its own where it is free.
DEFAULT_PORT = 9092


@dataclass(frozen=True)
class DetachedBroker:
    """A broker that runs, or ran, apart from the command that started it.

    Args:
        bootstrap: Its address for clients.
        process: Its JVM.
        data_dir: Its directory.
        log_file: Its log.
    """

    bootstrap: str
    process: DetachedProcess
    data_dir: Path
    log_file: Path


def find(directory: Path | None = None) -> DetachedBroker | None:
    """Return the project's broker if it runs.

    Args:
        directory: Where the project keeps it; by default ``kafka`` in the run-time folder.
    """
    found = _read(_state_file(directory or _directory()))
    return found if found and found.process.is_alive() else None


def start(
    *, port: int | None = None, data_dir: Path | None = None, directory: Path | None = None
) -> tuple[DetachedBroker, bool]:
    """Start the project's broker unless it runs already, and return when it answers.

    Args:
        port: Where clients connect; by default 9092, or any free one if that is taken.
        data_dir: Its directory, kept; by default that of the project.
        directory: Where the project keeps it; by default ``kafka`` in the run-time folder.

    Returns:
        The broker, and whether it was started now.

    Raises:
        UserError: It could not be started, or runs already at another place than the one asked for.
    """
    directory = directory or _directory()
    with _exclusive(directory):
        if running := find(directory):
            _refuse_other(running, port, data_dir)
            return running, False
        root = (data_dir or directory).absolute()
        log_file = root / "logs" / "broker.log"

        def detached(command: list[str]) -> DetachedProcess:
            return start_detached(command, log_file=log_file, cwd=root)

        if port is None and is_free(DEFAULT_PORT):
            port = DEFAULT_PORT
        server, process = launch(detached, root=root, log_file=log_file, port=port)
        broker = DetachedBroker(server.bootstrap, process, root, log_file)
        _write(_state_file(directory), broker)
        return broker, True


def stop(directory: Path | None = None) -> DetachedBroker | None:
    """Stop the project's broker; its data stays.

    Args:
        directory: Where the project keeps it; by default ``kafka`` in the run-time folder.

    Returns:
        What was stopped, or None when it did not run.
    """
    directory = directory or _directory()
    if not directory.exists():
        return None
    with _exclusive(directory):
        broker = find(directory)
        if broker:
            broker.process.stop()
        _state_file(directory).unlink(missing_ok=True)
        return broker


def _directory() -> Path:
    return home() / "kafka"


def _state_file(directory: Path) -> Path:
    return directory / "broker.json"


def _refuse_other(running: DetachedBroker, port: int | None, data_dir: Path | None) -> None:
    other_port = port is not None and not running.bootstrap.endswith(f":{port}")
    other_place = data_dir is not None and data_dir.absolute() != running.data_dir
    if other_port or other_place:
        where = f"at {running.bootstrap} with {running.data_dir}"
        raise UserError(f"this project's broker runs already {where}; stop it first: millrace kafka stop")


def _read(state_file: Path) -> DetachedBroker | None:
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        found = json.loads(state_file.read_text())
        return DetachedBroker(
            found["bootstrap"],
            DetachedProcess(**found["process"]),
            Path(found["data_dir"]),
            Path(found["log_file"]),
        )
    return None


def _write(state_file: Path, broker: DetachedBroker) -> None:
    fresh = state_file.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(broker), default=str, indent=2) + "\n")
    fresh.replace(state_file)


@contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """Let one command at a time start or stop."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "lock").open("w")
    except OSError as error:
        raise UserError(f"cannot write {directory}: {error.strerror}; set MILLRACE_HOME elsewhere") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
