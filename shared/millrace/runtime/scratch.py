"""Temporary folders that do not outlive their owner, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_LOCK = "owner.lock"


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Give a folder in the system's temporary one, and remove it at the end.

    A process that is killed removes nothing: the next one that asks for a folder of this prefix removes
    those whose owner has died.

    Args:
        prefix: What the folder's name begins with; no other folders may.

    Example:
        >>> with scratch_folder("millrace-example-") as folder:
        ...     _ = (folder / "data").write_text("x")
        >>> folder.exists()
        False
    """
    remove_orphans(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    lock = _own(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_orphans(prefix: str) -> list[Path]:
    """Remove the folders of this prefix whose owner has died, and return them.

    Others may make folders there as well, and links with such names: only what is this user's is touched.
    """
    gone = []
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # One without a lock was made this instant.
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                gone.append(folder)
            finally:
                os.close(lock)
    return gone


def _own(folder: Path) -> int:
    """Lock the folder for the life of this process: the lock stands there under its name once it is held."""
    made = folder / f"{_LOCK}.new"
    lock = os.open(made, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    made.rename(folder / _LOCK)
    return lock
