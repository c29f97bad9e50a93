"""The run-time folder of a project: brokers' data, logs, state of started services."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the project's run-time folder: ``MILLRACE_HOME``, or ``.millrace`` in the current directory.

    Args:
        environ: The environment to read.

    Example:
        >>> home({"MILLRACE_HOME": "/srv/millrace"})
        PosixPath('/srv/millrace')
    """
    own = environ.get("MILLRACE_HOME")
    return Path(own).expanduser().absolute() if own else Path.cwd() / ".millrace"


def demo_path(app: str) -> Path:
    """Return where an app's demo keeps what it makes, until the next one."""
    return home() / "demo" / app
