"""Starts a job in the background and waits until it has committed a batch, or has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.dashboard.progress import read_progress
from millrace.local.processes import DetachedProcess, start_detached
from millrace.observing.figures import read_figures
from millrace.upgrading.started import Started

#: Under a job's root: what it prints when it was started in the background.
OUTPUT_FILE: Final = Path("logs", "run.log")
_LOOK_S: Final = 0.1
_SAY_S: Final = 5.0


@dataclass(frozen=True)
class Begun:
    """What became of a job that was started.

    Attributes:
        process: Its process.
        batch: The first batch that it committed; ``None``: none yet.
        seconds: From the start to that, or to its end.
        why: Why it has none; empty where it has.
    """

    process: DetachedProcess
    batch: int | None
    seconds: float
    why: str = ""


def start_and_wait(
    started: Started,
    root: Path,
    *,
    after: int,
    wake: Callable[[], bool],
    timeout_s: float,
    say: Callable[[str], None],
) -> Begun:
    """Start a job in the background, and wait for the first batch that it commits.

    Args:
        started: How.
        root: Its root.
        after: The last batch that is committed there now.
        wake: Asks the job for a batch where no events come; returns whether that can be asked for. Called
            when it runs.
        timeout_s: How long to wait, s.
        say: Told in a line what is waited for.
    """
    log = root / OUTPUT_FILE
    begins = log.stat().st_size if log.exists() else 0
    process = start_detached(started.command, log_file=log, env=started.env, cwd=started.folder)
    began = said = time.monotonic()
    say(f"started (pid {process.pid}); what it prints goes to {log}")
    woken: bool | None = None
    while True:
        now, alive = time.monotonic(), process.is_alive()  # before: what has ended may have committed one
        progress = read_progress(root)
        if progress is not None and progress.batch > after:
            return Begun(process, progress.batch, now - began)
        if not alive:
            return Begun(process, None, now - began, _last_words(log, begins))
        figures = read_figures(root)
        phase = "starting"
        if figures is not None and figures.job.pid == process.pid:
            phase = figures.phase
        if phase in ("running", "waiting") and woken is None:
            woken = wake()
        if phase == "waiting" and woken is False:  # no events, and no way to have a batch without any
            return Begun(process, after, now - began)
        if now - began >= timeout_s:
            return Begun(process, None, now - began, f"no batch was committed within {timeout_s:.0f} s")
        if now - said >= _SAY_S:
            said = now
            say(f"{now - began:.0f} s so far: {phase}, no batch is committed yet")
        time.sleep(_LOOK_S)


def _last_words(log: Path, begins: int) -> str:
    """Return the line that says why a job ended: that of the command, else the last one."""
    with log.open("rb") as file:
        file.seek(begins)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    own = [line.removeprefix("millrace: ") for line in lines if line.startswith("millrace: ")]
    return (own or lines or ["it ended without a word"])[-1]
