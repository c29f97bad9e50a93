"""First exports of a registry, for a job that starts before anything was exported."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Final

from millrace.models.exports import Exports
from millrace.models.places import sqlite_path

log = logging.getLogger(__name__)

#: How long a job waits for its first models, seconds.
_PATIENCE_S: Final = 120.0


def export_first(app: str, model: str, name: str, registry: str, folder: Path) -> bool:
    """Export a registry's models where that has never been done; a job goes on whatever comes of it.

    It is done in a process of its own: MLflow takes seconds and hundreds of megabytes.

    Args:
        app: The app.
        model: Which of its models.
        name: Name under which it is registered.
        registry: The registry.
        folder: Folder of the exports.

    Returns:
        Whether something was exported.
    """
    database = sqlite_path(registry)
    if Exports(str(folder), name).path.is_dir() or (database is not None and not database.is_file()):
        return False
    command = [sys.executable, "-m", "millrace", "models", app, "export",
               "--model", f"{model}:{name}", "--registry", registry, "--exports", str(folder)]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("the models of %s could not be exported: %s", app, error)
        return False
    if done.returncode:
        told = done.stderr.strip().splitlines() or ["no reason was given"]
        log.warning("the models of %s could not be exported: %s", app, told[-1])
    return done.returncode == 0
