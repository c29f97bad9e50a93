"""Upkeep of an app's tables by itself: compact and vacuum, when it is quiet and never in the way of a merge.

A table that is appended to may be compacted at any time: an append does not read what a compaction replaces.
It is done when nobody has written for a moment, since it takes a core and the disk from the job. A table that
is merged into is another thing: its job keeps it at few files itself, and two that replace its files at once
make a merge begin again. So it is compacted here only while no job runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from millrace.connectors.upkeep import (
    TARGET_BYTES,
    TableUnreadable,
    alone,
    compacted,
    open_table,
    sizes_of,
    vacuum,
)
from millrace.runtime.contract import CheckpointInUse, owned

#: So many small files a table may have.
ENOUGH_FILES: Final = 16
#: With so many it is compacted though it is never quiet.
MOST_FILES: Final = 500
_POLL_S: Final = 0.25

What = Literal[
    "compacted", "few files", "the job does it", "not quiet", "somebody else does it", "cannot be read"
]


@dataclass(frozen=True)
class Maintained:
    """What was done for a table.

    Attributes:
        name: The table.
        what: Whether it was compacted, or why not.
        before: Files that were replaced.
        after: Files that replace them.
        removed: Old files that were removed.
        freed: Their bytes.
    """

    name: str
    what: What
    before: int
    after: int
    removed: int
    freed: int


@dataclass(frozen=True)
class Care:
    """How tables are maintained.

    Attributes:
        keep_ms: How long replaced files are kept, ms, whole hours.
        quiet_s: It is quiet when nobody has written to a table for so long, s.
        patience_s: So long a quiet moment is waited for, s.
        target_bytes: Size of the files that are made.
        sleep: Waits some seconds; returns whether all is to end.
    """

    keep_ms: int
    quiet_s: float = 2.0
    patience_s: float = 60.0
    target_bytes: int = TARGET_BYTES
    sleep: Callable[[float], bool] = field(default_factory=lambda: threading.Event().wait)


def maintain(root: Path, tables: Iterable[Path], merged: frozenset[str], care: Care) -> Iterator[Maintained]:
    """Compact and vacuum tables, one after the other, and yield what was done for each.

    Args:
        root: The app's folder.
        tables: Folders of its tables.
        merged: Names of those that are merged into.
        care: How.

    Raises:
        UserError: Files are not kept for whole hours.
    """
    for table in tables:
        try:
            what, before, after = _compact(root, table, table.name in merged, care)
            gone = vacuum(table, keep_ms=care.keep_ms)
        except TableUnreadable:  # the others are there all the same
            yield Maintained(table.name, "cannot be read", 0, 0, 0, 0)
            continue
        yield Maintained(table.name, what, before, after, gone.files, gone.size)


def is_running(root: Path) -> bool:
    """Return whether a job runs on an app's folder.

    Args:
        root: The folder.
    """
    try:
        with owned(root):
            return False
    except CheckpointInUse:
        return True


def _compact(root: Path, table: Path, is_merged: bool, care: Care) -> tuple[What, int, int]:
    from deltalake.exceptions import CommitFailedError

    def small() -> int:
        return sum(size < care.target_bytes for size in sizes_of(open_table(table)))

    files = small()
    if files <= ENOUGH_FILES:
        return "few files", 0, 0
    if is_merged and is_running(root):
        return "the job does it", 0, 0
    if not _is_quiet(table, care) and files <= MOST_FILES:
        return "not quiet", 0, 0
    with suppress(BlockingIOError), alone(table, wait=False):
        opened = open_table(table)
        try:
            done = compacted(opened, table, care.target_bytes)
        except CommitFailedError:
            return "somebody else does it", 0, 0
        return "compacted", done.before, done.after
    return "somebody else does it", 0, 0


def _is_quiet(table: Path, care: Care) -> bool:
    """Wait for a moment in which nobody writes; return whether there was one."""
    deadline = time.monotonic() + care.patience_s
    while True:
        idle = time.time() - _written(table)
        if idle >= care.quiet_s:
            return True
        if time.monotonic() + care.quiet_s - idle > deadline or care.sleep(min(_POLL_S, care.quiet_s)):
            return False


def _written(table: Path) -> float:
    """Return when a table's newest version was written, s since the epoch."""
    newest = max((table / "_delta_log").glob("*.json"), key=lambda file: file.name, default=None)
    with suppress(FileNotFoundError):
        return 0.0 if newest is None else newest.stat().st_mtime
    return time.time()
