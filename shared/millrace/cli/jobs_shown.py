"""Selection of jobs for `status`, `top`, `stop` and `logs`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.errors import UserError

if TYPE_CHECKING:
    from millrace.observing.jobs import JobRecord
    from millrace.observing.reading import Jobs, JobStatus


def now_ms() -> int:
    """Return now, UTC milliseconds."""
    return time.time_ns() // 1_000_000


def jobs_of(config: Path | None, overrides: list[str]) -> Jobs:
    """Return what finds this machine's jobs."""
    from millrace.observing.reading import Jobs
    from millrace.runtime.apps import load_app
    from millrace.runtime.settings import load_settings

    def options(record: JobRecord) -> Mapping[str, str]:
        try:
            settings = load_settings(
                load_app(record.app).settings, app=record.app, config=config, overrides=overrides
            )
            return (
                settings.kafka.client_options() if settings.kafka.bootstrap else dict(settings.kafka.options)
            )
        except UserError:  # an app that is not installed here, settings of another version
            return {}

    return Jobs(options=options, wall_ms=now_ms)


class Places:
    """Where apps keep what they make; what is installed and set is looked up once.

    Args:
        config: Settings file.
        overrides: Settings, ``key=value``.
    """

    def __init__(self, config: Path | None, overrides: list[str]) -> None:
        self._config, self._overrides = config, overrides
        self._apps: list[str] | None = None
        self._roots: dict[str, Path | None] = {}

    def of(self, names: list[str]) -> list[tuple[str, Path]]:
        """Return apps with their folders: their ``storage.root``, and that of their last demo.

        Args:
            names: Apps; none: all that are installed.

        Raises:
            UserError: There is no such app.
        """
        if not names and self._apps is None:
            from millrace.runtime.installed import list_apps

            self._apps = list(list_apps())
        return [(name, place) for name in names or self._apps or () for place in self._of(name)]

    def _of(self, name: str) -> list[Path]:
        from millrace.local.home import demo_path
        from millrace.observing.figures import FIGURES_FILE

        if name not in self._roots:
            from millrace.runtime.apps import load_app
            from millrace.runtime.settings import load_settings

            settings = load_settings(
                load_app(name).settings, app=name, config=self._config, overrides=self._overrides
            )
            self._roots[name] = settings.storage.local_root
        root, demo = self._roots[name], demo_path(name)
        return [*([] if root is None else [root]), *([demo] if (demo / FIGURES_FILE).exists() else [])]


def found_jobs(jobs: Jobs, names: list[str], root: Path | None, places: Places) -> list[JobStatus]:
    """Return how jobs do: of the apps that are named, else of all.

    Args:
        jobs: Finds them.
        names: Apps; none: all.
        root: Their folder; default: all that are known.
        places: Where apps keep what they make.

    Raises:
        UserError: There is no such app, or no such folder.
    """
    from millrace.observing.reading import is_at

    known: list[tuple[str, Path]] = []
    if root is not None:
        recorded = any(job.record is not None and is_at(job.record.root, root) for job in jobs.records())
        if not root.is_dir() and not recorded:
            raise UserError(f"{root} is no folder")
        # As a job itself calls its folder, so that it is found by it.
        place = Path(os.path.abspath(root))
        known = [] if recorded else [(app, place) for app in names or [_app_of(root)]]
    else:
        known = places.of(names)
    found = [s for s in jobs.all(known) if root is None or is_at(s.root, root)]
    ran = {s.app for s in found if s.state != "never run"}
    return [
        s
        for s in found
        if (s.state != "never run" or s.app not in ran)
        and (not names or s.app in names or s.state == "unreadable")
    ]


def record_of(name: str, status: JobStatus) -> JobRecord | None:
    """Return what a job says of itself, where it can be told.

    Args:
        name: Its app.
        status: How it does.
    """
    from millrace.observing.jobs import jobs_folder, read_job, record_path

    job = read_job(record_path(jobs_folder(), name, status.root))
    if job is not None and job.record is not None:
        return job.record
    if status.figures is not None and status.state in ("running", "starting", "died"):
        return status.figures.job  # it was started with another MILLRACE_HOME
    return None


def _app_of(root: Path) -> str:
    from millrace.observing.figures import read_figures

    figures = read_figures(root)
    if figures is None:
        raise UserError(f"no job has run in {root}, or not of this version: name the app")
    return figures.job.app
