"""Ends a job from another process, gracefully, and says what it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from millrace.errors import UserError
from millrace.local.waiting import wait_until
from millrace.observing.figures import read_figures
from millrace.observing.jobs import JobRecord, record_path, state_of

#: How often it is looked whether the job has ended, seconds.
_LOOK_S = 0.1
#: How often is said what is waited for, seconds.
_SAY_S = 2.0


class Stopped(msgspec.Struct):
    """What became of a job that was to be stopped.

    Attributes:
        app: Name of the app.
        root: Its folder.
        did: ``stopped``; ``died``: it had ended before, unasked, and is forgotten now; ``not running``;
            ``still running``: it goes on with its batch after the time that there was.
        pid: Its process.
        waited_s: How long that took, seconds.
        batch: The last batch that it has committed.
        error: What ended it, if it was not the stop.
    """

    app: str
    root: str
    did: Literal["stopped", "died", "not running", "still running"]
    pid: int | None = None
    waited_s: float = 0.0
    batch: int | None = None
    error: str | None = None


def stop_job(
    record: JobRecord,
    folder: Path,
    *,
    timeout_s: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Stopped:
    """Ask a job to end after its running batch, and wait for it.

    Args:
        record: What it says of itself.
        folder: The folder of records.
        timeout_s: How long to wait, seconds; it is asked all the same and ends some time later.
        say: Told in a line what is waited for.
        clock: Seconds that only go forward.
        sleep: Waits for some seconds.

    Raises:
        UserError: It is of another machine, or of another user.
    """
    root = Path(record.root)
    state = state_of(record)
    if state == "elsewhere":
        raise UserError(f"{record.app} runs on {record.host} (pid {record.pid}): stop it there")
    if state == "died":
        record_path(folder, record.app, record.root).unlink(missing_ok=True)
        return Stopped(record.app, record.root, "died", record.pid, batch=_batch(root))
    _ask(record)
    began, name = clock(), f"{record.app} (pid {record.pid})"
    say(f"{name}: asked to end after its running batch")
    ended = wait_until(
        lambda: not record.process.is_alive(),
        timeout_s,
        every_s=_LOOK_S,
        told=lambda seconds: say(f"{name}: {seconds:.0f} s so far; {_doing(record, root)}"),
        told_every_s=_SAY_S,
        clock=clock,
        sleep=sleep,
    )
    waited_s = clock() - began
    if not ended:
        return Stopped(record.app, record.root, "still running", record.pid, waited_s, _batch(root))
    figures = read_figures(root)
    error = figures.error if figures is not None and figures.job == record else None
    return Stopped(record.app, record.root, "stopped", record.pid, waited_s, _batch(root), error)


def _ask(record: JobRecord) -> None:
    import signal

    import psutil

    number = signal.SIGINT if record.signal == "INT" else signal.SIGTERM
    try:
        # It compares the start time once more: the id may be another process's by now.
        process = psutil.Process(record.pid)
        if record.process.is_alive():
            process.send_signal(number)
    except psutil.NoSuchProcess:
        return
    except (psutil.AccessDenied, PermissionError) as error:
        raise UserError(
            f"{record.app} runs as another user (pid {record.pid}): it cannot be stopped"
        ) from error


def _doing(record: JobRecord, root: Path) -> str:
    figures = read_figures(root)
    if figures is not None and figures.job == record and figures.phase in ("ending", "ended"):
        return "the query has ended, Spark ends"
    batch = _batch(root)
    return "no batch is committed yet" if batch is None else f"batch {batch} is the last committed one"


def _batch(root: Path) -> int | None:
    from millrace.dashboard.progress import read_progress

    progress = read_progress(root)
    return None if progress is None else progress.batch
