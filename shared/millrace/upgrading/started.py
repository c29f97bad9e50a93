"""Start commands of running jobs, so that another version is started the same way, or it again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from millrace.errors import UserError
from millrace.observing.jobs import JobRecord

#: What tells which code runs: of these a new version has its own, of all else that of the job before.
_OF_THE_CODE: Final = (
    "PATH",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYSPARK_PYTHON",
    "PYSPARK_DRIVER_PYTHON",
)


@dataclass(frozen=True)
class Started:
    """How a job is started.

    Attributes:
        launcher: What stands before ``run``: a Python and what makes it ``millrace``.
        arguments: What stands behind ``run``.
        folder: The working directory.
        env: The whole environment, secrets included; never print it.
    """

    launcher: tuple[str, ...]
    arguments: tuple[str, ...]
    folder: Path
    env: Mapping[str, str]

    @property
    def command(self) -> list[str]:
        """The command, ready to be started."""
        return [*self.launcher, "run", *self.arguments]

    def with_settings(self, settings: Iterable[str]) -> Started:
        """Return the same with more settings, ``key=value``; they win over those before."""
        return replace(self, arguments=(*self.arguments, *(f"--set={one}" for one in settings)))

    def by_this_version(self) -> Started:
        """Return the same, run by the version that this process is of."""
        own = {name: os.environ.get(name) for name in _OF_THE_CODE}
        rest = {name: value for name, value in self.env.items() if name not in own}
        env = rest | {name: value for name, value in own.items() if value is not None}
        return replace(self, launcher=(sys.executable, "-m", "millrace"), env=env)

    def is_of_this_python(self) -> bool:
        """Return whether its code is where this process's is: another version of it is not there any more."""
        return Path(self.launcher[0]).absolute() == Path(sys.executable).absolute()


def fresh(app: str, settings: Sequence[str], config: Path | None) -> Started:
    """Return how an app is started from here, of which no job runs.

    Args:
        app: The app.
        settings: Settings, ``key=value``.
        config: Settings file.
    """
    named = [] if config is None else ["--config", str(config.absolute())]
    return Started(
        (sys.executable, "-m", "millrace"),
        (app, *named, *(f"--set={one}" for one in settings)),
        Path.cwd(),
        dict(os.environ),
    )


def started_of(record: JobRecord) -> Started:
    """Return how a running job was started, as the system tells it.

    Raises:
        UserError: It is another user's, has just ended, or is no ``millrace run``: a demo, a notebook.
    """
    import psutil

    try:
        process = psutil.Process(record.pid)
        words, folder, env = process.cmdline(), Path(process.cwd()), process.environ()
    except psutil.NoSuchProcess:
        raise UserError(f"{record.app} (pid {record.pid}) has just ended: try again") from None
    except (psutil.AccessDenied, PermissionError) as error:
        raise UserError(
            f"{record.app} runs as another user (pid {record.pid}): how it was started cannot be read"
        ) from error
    return started_by(words, folder, env, record)


def started_by(words: Sequence[str], folder: Path, env: Mapping[str, str], record: JobRecord) -> Started:
    """Return how a job was started, by the words of its command.

    Raises:
        UserError: It is no ``millrace run``.

    Example:
        >>> job = JobRecord("fraud", "/data", 7, 0.0, 0, "here")
        >>> started_by(["python", "-m", "millrace", "run", "fraud", "-q"], Path("/"), {}, job).arguments
        ('fraud', '-q')
    """
    # Behind the program, so that a path that is called so does not count.
    at = next((n for n, word in enumerate(words) if word == "run" and n), None)
    if at is None or record.app not in words[at:]:
        raise UserError(
            f"{record.app} in {record.root} is no `millrace run` (pid {record.pid}), so how it was "
            "started is not known: a demo or a program of one's own is stopped and started by hand"
        )
    if "--until-end" in words[at:]:
        raise UserError(
            f"{record.app} (pid {record.pid}) runs until the end of its input: let it end, and upgrade then"
        )
    return Started(tuple(words[:at]), tuple(words[at + 1 :]), folder, dict(env))
