"""The project as one archive for executors that have nothing of it installed."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import zipfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.runtime.installed import APPS_GROUP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SKIP = {"__pycache__", ".mypy_cache", ".ruff_cache"}


def project_packages() -> dict[str, Path]:
    """Return the top-level packages to ship: the core and those of every installed app.

    Returns:
        Package name → its folder.
    """
    names = {
        "millrace",
        *(e.value.partition(":")[0].partition(".")[0] for e in entry_points(group=APPS_GROUP)),
    }
    found: dict[str, Path] = {}
    for name in sorted(names):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            found[name] = Path(next(iter(spec.submodule_search_locations)))
    return found


def _files(root: Path) -> list[Path]:
    """Return a package's files in order; in a checkout the apps' folders are links."""
    found: list[Path] = []
    for folder, inside, files in os.walk(root, followlinks=True):
        inside[:] = [name for name in inside if name not in _SKIP]
        found += [Path(folder, name) for name in files]
    return sorted(found)


def project_archive(folder: Path) -> Path:
    """Return a zip of the project's packages, made once per content.

    Args:
        folder: Where to put it; older archives of it there are removed, and nothing else.
    """
    files = [
        (path, f"{name}/{path.relative_to(root).as_posix()}")
        for name, root in project_packages().items()
        for path in _files(root)
    ]
    digest = hashlib.sha256()
    for path, name in files:
        digest.update(name.encode() + b"\0" + path.read_bytes())
    target = folder / f"millrace-{digest.hexdigest()[:16]}.zip"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"millrace-{'[0-9a-f]' * 16}.zip"):
        old.unlink()
    part = target.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, name in files:
            archive.write(path, name)
    part.replace(target)
    return target


def ship_project(spark: SparkSession, folder: Path) -> None:
    """Give the executors of a cluster this project's code, of which they have nothing installed.

    Args:
        spark: The session.
        folder: Where the archive is kept; one per version of the code.
    """
    master = spark.sparkContext.master
    if master is None or master.startswith("local"):
        return
    archive = str(project_archive(folder))
    spark.sparkContext.addPyFile(archive)
    # One Python worker runs beside the driver, to learn what state there is, and gets no files.
    environment = spark.sparkContext.environment
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [archive, environment.get("PYTHONPATH")]))
