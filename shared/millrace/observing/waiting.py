"""Which tables have rows that a batch has committed and that are not in them yet, by what lies beside them.

See :mod:`millrace.connectors.merging`. Nothing is opened: this is looked at once a second.
"""

from __future__ import annotations

import contextlib
import os
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
    tables, found = root / "tables", dict[str, WaitingFigures]()
    try:
        names = sorted(os.listdir(tables))
    except OSError:  # none yet
        return found
    for name in names:
        times = []
        with contextlib.suppress(OSError), os.scandir(f"{tables}/{name}/{WAITING}") as files:
            for file in files:
                if file.name.endswith(".arrow"):
                    with contextlib.suppress(FileNotFoundError):  # it is in the table by now
                        times.append(file.stat().st_mtime_ns // 1_000_000)
        if times:
            found[name] = WaitingFigures(len(times), min(times))
    return found
