"""The register of jobs on this machine: a small file for each, to find, watch and stop it by.

A file says who wrote it by process id *and* start time, since ids are given again. It is written under
another name first and removed by a job that ends; one that was killed leaves its file behind, which says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from millrace.local.home import home
from millrace.local.processes import DetachedProcess

#: Version of the form of the files; of another one nothing is believed.
FORM: Final = 1

State = Literal["running", "died", "elsewhere", "unreadable"]


class JobRecord(msgspec.Struct, frozen=True):
    """What a job says of itself.

    Attributes:
        app: Name of the app.
        root: The folder with its checkpoint and its tables.
        pid: Its process.
        process_started: When that process started, seconds since the epoch, as the system tells it.
        began_ms: When the job began, UTC milliseconds.
        host: The machine.
        bootstrap: Its broker.
        reads: Topics that it reads.
        writes: Topics that it writes.
        clocks: Those of ``reads`` whose events move the watermark.
        metrics: Address of its metrics, ``http://host:port``; ``None``: it has none.
        signal: What ends it gracefully: ``TERM``, or ``INT`` where it is part of a demo.
        form: Version of this form.
    """

    app: str
    root: str
    pid: int
    process_started: float
    began_ms: int
    host: str
    bootstrap: str | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    clocks: tuple[str, ...] = ()
    metrics: str | None = None
    signal: Literal["TERM", "INT"] = "TERM"
    form: int = FORM

    @property
    def process(self) -> DetachedProcess:
        """The process, which no other one is taken for."""
        return DetachedProcess(self.pid, self.process_started)


@dataclass(frozen=True)
class FoundJob:
    """A record, and what has become of the job.

    Attributes:
        path: The file.
        state: ``running``; ``died``: it was ended without being asked; ``elsewhere``: it is of another
            machine, whose processes nobody here knows; ``unreadable``: the file is none of ours, or of
            another version.
        record: What it says; ``None`` where it is unreadable.
    """

    path: Path
    state: State
    record: JobRecord | None


def this_process() -> tuple[int, float]:
    """Return this process's id, and its start time in seconds since the epoch."""
    import psutil

    return os.getpid(), psutil.Process().create_time()


def jobs_folder() -> Path:
    """Return the folder of the records of this machine's jobs."""
    return home() / "jobs"


def record_path(folder: Path, app: str, root: str | Path) -> Path:
    """Return the file of a job: one for each app and root, as a checkpoint has one query.

    >>> record_path(Path("jobs"), "fraud", "/data/a") == record_path(Path("jobs"), "fraud", "/data/b")
    False
    """
    digest = hashlib.blake2b(str(root).encode(), digest_size=4).hexdigest()
    return folder / f"{app}-{digest}.json"


@contextlib.contextmanager
def recorded_job(record: JobRecord, folder: Path) -> Iterator[None]:
    """Keep a record of a job while the block runs; whoever dies in it leaves the record behind.

    Args:
        record: What it says.
        folder: The folder of records.

    Raises:
        OSError: It cannot be written.
    """
    path = record_path(folder, record.app, record.root)
    write_atomically(path, msgspec.json.encode(record))
    try:
        yield
    finally:
        # Not that of another process, which has the root by now.
        found = read_job(path)
        if found is not None and found.record == record:
            path.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that readers see the one before or this one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def read_job(path: Path) -> FoundJob | None:
    """Return a record and what has become of its job; ``None`` where there is no such file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError:
        return FoundJob(path, "unreadable", None)
    try:
        record = msgspec.json.decode(data, type=JobRecord)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return FoundJob(path, "unreadable", None)
    if record.form != FORM or record.pid <= 0 or "\0" in record.root:
        return FoundJob(path, "unreadable", None)
    return FoundJob(path, state_of(record), record)


def state_of(record: JobRecord) -> State:
    """Return what has become of a job."""
    if record.host != socket.gethostname():
        return "elsewhere"
    return "running" if record.process.is_alive() else "died"


def find_jobs(folder: Path) -> list[FoundJob]:
    """Return all records in a folder, by name."""
    try:
        paths = sorted(folder.glob("[!.]*.json"))
    except OSError:
        return []
    return [found for path in paths if (found := read_job(path)) is not None]
