"""Which tables have rows that a batch has committed and that are not in them yet, by what lies beside them.

See :mod:`millrace.connectors.merging`. Nothing is opened: this is looked at once a second.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from millrace.checkpoints.positions import WAITING
from millrace.observing.figures import WaitingFigures


def waits_of(root: Path) -> dict[str, WaitingFigures]:
    """Return the tables for which rows wait, each with how many batches left them and since when.

    Args:
        root: The app's folder.

    Example:
        >>> waits_of(Path("/nowhere"))
        {}
    """
    found: dict[str, WaitingFigures] = {}
    for folder in sorted((root / "tables").glob(f"*/{WAITING}")):
        times = []
        for file in folder.glob("*.arrow"):
            with contextlib.suppress(FileNotFoundError):  # it is in the table by now
                times.append(file.stat().st_mtime_ns // 1_000_000)
        if times:
            found[folder.parent.name] = WaitingFigures(len(times), min(times))
    return found
