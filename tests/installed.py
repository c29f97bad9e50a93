"""Packages that are installed as far as Python's metadata goes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(site: Path, name: str, group: str, points: Mapping[str, str]) -> None:
    """Write what an installed package says of its entry points, into a folder that is on the path.

    Args:
        site: The folder.
        name: The package.
        group: Group of its entry points.
        points: Name → ``module:attribute``.
    """
    folder = site / f"{name.replace('-', '_')}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{point} = {value}\n" for point, value in points.items())
    (folder / "entry_points.txt").write_text(f"[{group}]\n{lines}")
