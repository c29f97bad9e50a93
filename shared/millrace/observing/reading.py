"""Status of all jobs for commands: records, figures, checkpoints and the broker's ends together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from millrace.dashboard.broker import Broker, BrokerAway
from millrace.dashboard.progress import Progress, lag, read_progress
from millrace.errors import UserError
from millrace.observing.figures import Figures, WaitingFigures, read_figures
from millrace.observing.jobs import FoundJob, JobRecord, find_jobs, jobs_folder, state_of
from millrace.observing.waiting import waits_of

State = Literal["running", "starting", "stopped", "failed", "died", "elsewhere", "unreadable", "never run"]


class JobStatus(msgspec.Struct):
    """How a job does.

    Attributes:
        app: Name of the app.
        state: ``running``, ``starting`` (Spark, the broker), ``stopped``, ``failed`` (by an error), ``died``
            (ended without being asked), ``elsewhere`` (of another machine), ``unreadable`` (its record),
            ``never run``.
        root: Its folder; empty where it is not known.
        since_ms: Since when it is so, UTC ms; ``None``: not known.
        pid: Its process, while it runs.
        metrics: Address of its metrics.
        note: What else is to be said, in a line.
        batch: The last committed batch, by the checkpoint; ``None`` before the first.
        committed_ms: When it was committed, UTC ms.
        read: Topic → records read, by the checkpoint: the sum of its partitions' offsets.
        ends: Topic → the same of the broker's ends; nothing where it does not answer.
        lag: Topic → records that are not read yet, by both; ``None`` where the broker does not answer.
        figures: What the job last said of itself.
        waiting: Table → rows of committed batches that are not in it now, whether the job runs or not.
    """

    app: str
    state: State
    root: str = ""
    since_ms: int | None = None
    pid: int | None = None
    metrics: str | None = None
    note: str = ""
    batch: int | None = None
    committed_ms: int | None = None
    read: dict[str, int] = {}
    ends: dict[str, int] = {}
    lag: dict[str, int] | None = None
    figures: Figures | None = None
    waiting: dict[str, WaitingFigures] = {}

    @property
    def lag_total(self) -> int | None:
        """Records of all topics that are not read yet."""
        return None if self.lag is None else sum(self.lag.values())


class Jobs:
    """Finds jobs and how they do; keeps its clients of brokers from one look to the next.

    Args:
        folder: The folder of records; default this machine's.
        options: Gives the Kafka client's options for a job's app, secrets included.
        wall_ms: Now, UTC ms.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        options: Callable[[JobRecord], Mapping[str, str]] | None = None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._folder = folder or jobs_folder()
        self._options = options or (lambda record: {})
        self._wall_ms = wall_ms
        self._brokers: dict[str, Broker] = {}

    def records(self) -> list[FoundJob]:
        """Return the records of this machine's jobs."""
        return find_jobs(self._folder)

    def all(self, known: Iterable[tuple[str, Path]] = ()) -> list[JobStatus]:
        """Return how all jobs do: those with a record, then apps where they ran or would run.

        Args:
            known: Apps, each with a folder that may hold a checkpoint of it.
        """
        found = [self.of_record(job) for job in self.records()]
        seen = {(status.app, status.root) for status in found}
        rest = [self.of_root(app, root) for app, root in known if (app, str(root)) not in seen]
        return sorted([*found, *rest], key=lambda s: (s.app, s.root))

    def of_record(self, job: FoundJob) -> JobStatus:
        """Return how the job of a record does."""
        record = job.record
        if record is None:
            note = f"{job.path} is no record of this version; remove it if nothing runs"
            return JobStatus(job.path.stem.rpartition("-")[0] or job.path.stem, "unreadable", note=note)
        root = Path(record.root)
        figures = _own(read_figures(root), record)
        status = self._at(record.app, root, figures)
        status.state, status.metrics = job.state, record.metrics
        if job.state == "running":
            status.pid, status.since_ms = record.pid, record.began_ms
            if figures is None or figures.phase == "starting":
                status.state = "starting"
        elif job.state == "died":
            status.since_ms = figures.at_ms if figures else None
            status.note = (
                f"pid {record.pid} ended without being asked; `millrace run {record.app}` goes on, "
                f"`millrace stop {record.app}` forgets it"
            )
        elif job.state == "elsewhere":
            status.pid, status.since_ms, status.note = record.pid, record.began_ms, f"on {record.host}"
        self._look_at_broker(status, record)
        return status

    def of_root(self, app: str, root: Path) -> JobStatus:
        """Return how the job of an app did whose folder is known, and that has no record."""
        figures = read_figures(root)
        status = self._at(app, root, figures)
        if figures is None:
            status.state = "never run" if status.batch is None else "stopped"
            status.since_ms = status.committed_ms
            return status
        record = figures.job
        if figures.ended_ms is not None:
            status.state = "failed" if figures.error else "stopped"
            status.since_ms, status.note = figures.ended_ms, figures.error or ""
            return status
        # Its record stands in another folder: it was started with another MILLRACE_HOME.
        state = state_of(record)
        status.state, status.metrics = state, record.metrics
        status.since_ms = record.began_ms if state == "running" else figures.at_ms
        if state == "running":
            status.pid = record.pid
            self._look_at_broker(status, record)
        return status

    def _at(self, app: str, root: Path, figures: Figures | None) -> JobStatus:
        status = JobStatus(app, "stopped", str(root), figures=figures, waiting=waits_of(root))
        progress = read_progress(root)
        if progress is not None:
            status.batch, status.committed_ms = progress.batch, progress.committed_ms
            status.read = _sums(progress.done)
        return status

    def _look_at_broker(self, status: JobStatus, record: JobRecord) -> None:
        """Ask the broker where the topics end, then the checkpoint how far it is: so lag is never less."""
        if record.bootstrap is None or not record.reads:
            return
        broker = self._brokers.get(record.bootstrap)
        if broker is None:
            options = {**self._options(record), "bootstrap.servers": record.bootstrap}
            broker = self._brokers[record.bootstrap] = Broker(options, self._wall_ms)
        try:
            ends = broker.ends(record.reads)
        except (BrokerAway, UserError) as error:
            status.note = status.note or str(error)
            return
        progress: Progress | None = read_progress(Path(record.root))
        done = {} if progress is None else progress.done
        if progress is not None:
            status.batch, status.committed_ms = progress.batch, progress.committed_ms
            status.read = _sums(done)
        status.ends, status.lag = _sums(ends), lag(done, ends)


def _own(figures: Figures | None, record: JobRecord) -> Figures | None:
    """Return figures if they are of this run: those of the one before are not what the job does now."""
    return figures if figures is not None and figures.job == record else None


def _sums(offsets: Mapping[str, Mapping[int, int]]) -> dict[str, int]:
    return {topic: sum(of.values()) for topic, of in sorted(offsets.items())}


def is_at(root: str, folder: Path) -> bool:
    """Return whether a job's folder is the one that is meant, by whichever way.

    >>> is_at("/data/fraud", Path("/data/iot/../fraud")), is_at("", Path("/data"))
    (True, False)
    """
    return bool(root) and os.path.realpath(root) == os.path.realpath(folder)


def chosen(found: Sequence[JobStatus], app: str, root: Path | None) -> JobStatus:
    """Return the one job that is meant.

    Args:
        found: All jobs.
        app: Name of the app.
        root: Its folder, where there are several.

    Raises:
        UserError: There is none, there are several, or what is known of it cannot be read.
    """
    of_app = [s for s in found if s.app == app and (root is None or is_at(s.root, root))]
    # Who runs is meant rather than who has died, of which records are left.
    for states, said in (("running", "starting", "elsewhere"), "runs"), (("died",), "has died"):
        live = [s for s in of_app if s.state in states]
        if len(live) > 1:
            raise UserError(f"{app} {said} in {', '.join(s.root for s in live)}: name one with --root")
        if live:
            return live[0]
    if not of_app:
        raise UserError(f"no job of {app} is known{'' if root is None else f' in {root}'}")
    readable = [s for s in of_app if s.state != "unreadable"]
    if not readable:
        raise UserError(of_app[0].note)
    return readable[0]
