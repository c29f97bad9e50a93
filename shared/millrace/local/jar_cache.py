"""The local store of checked jars: laid out as a Maven repository, shared by processes.

A jar becomes visible only by a rename, after its hash was checked. A stamp beside it records what
was checked (hash, size, modification time), so that the common question "is it there?" costs one
look at the file system instead of a hash of the file.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import hashlib
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from millrace.errors import MillraceError, UserError
from millrace.local.jar_lock import Artifact, Jar
from millrace.local.private import is_ours, make_shared, share

_LOCK_POLL_S = 0.1


class Cancelled(MillraceError):
    """The fetch was given up, because another part of it failed or the user stopped it."""


class JarState(enum.Enum):
    """What the cache knows of one jar file."""

    OK = "ok"
    ABSENT = "absent"
    CORRUPT = "corrupt"


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that holds the jars: ``jars`` in ``MILLRACE_CACHE``, or in the user's own cache.

    Example:
        >>> cache_root({"MILLRACE_CACHE": "/var/cache/millrace"})
        PosixPath('/var/cache/millrace/jars')
    """
    if own := environ.get("MILLRACE_CACHE"):
        return Path(own).expanduser() / "jars"
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "millrace" / "jars"


def sha256_of(path: Path) -> str:
    """Return the hash of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class JarCache:
    """Checked jars below one folder.

    Args:
        root: The folder; made when the first jar is published.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, artifact: Artifact) -> Path:
        """Return where the artifact is, or would be."""
        return self.root / artifact.repository_path

    def part(self, artifact: Artifact) -> Path:
        """Return where an unfinished download of exactly this content is kept, to be resumed."""
        return self.root / ".parts" / f"{artifact.sha256}.part"

    def state(self, artifact: Artifact, *, rehash: bool = False) -> JarState:
        """Say whether the artifact is here and has the right content.

        Args:
            artifact: What to look for.
            rehash: Read the whole file instead of trusting the stamp.
        """
        path = self.path(artifact)
        try:
            stamp = self._stamp(artifact)
            told = self._stamp_path(artifact).read_text(encoding="ascii", errors="replace")
            if not rehash and told == stamp and is_ours(path) and is_ours(self._stamp_path(artifact)):
                return JarState.OK
        except (FileNotFoundError, NotADirectoryError):
            if not path.is_file():
                return JarState.ABSENT
        if sha256_of(path) != artifact.sha256:
            return JarState.CORRUPT
        with contextlib.suppress(OSError):  # a cache that is read-only serves as well, only slower
            self._write_stamp(artifact)
        return JarState.OK

    def find(self, jar: Jar) -> Artifact | None:
        """Return the most preferred choice of a jar that is here and whole, or None."""
        return next((choice for choice in jar.choices if self.state(choice) is JarState.OK), None)

    def publish(self, artifact: Artifact, checked: Path) -> None:
        """Move a file, whose hash the caller has checked, to its place, in one step."""
        path = self.path(artifact)
        make_shared(path.parent)
        with checked.open("rb") as file:
            os.fsync(file.fileno())
        share(checked)
        os.replace(checked, path)
        self._write_stamp(artifact)

    @contextlib.contextmanager
    def lock(self, artifact: Artifact, cancelled: threading.Event) -> Iterator[None]:
        """Hold the right to fetch an artifact, against other processes and threads.

        Raises:
            Cancelled: The event was set while waiting.
            UserError: The cache folder cannot be written.
        """
        path = self.root / ".locks" / f"{artifact.sha256}.lock"
        try:
            for folder in (path.parent, self.part(artifact).parent):
                make_shared(folder)
            _drop_foreign(self.part(artifact))
            _drop_foreign(path)
            file = path.open("a")
        except OSError as error:
            reason = f"the jar cache {self.root} cannot be written ({error.strerror})"
            raise UserError(f"{reason}: set MILLRACE_CACHE to a folder of yours") from error
        with file:  # closing the file releases the lock; so does the end of the process, however it ends
            while not _try_lock(file.fileno()):
                if cancelled.wait(_LOCK_POLL_S):
                    raise Cancelled("waiting for another process was given up")
            yield

    def _stamp_path(self, artifact: Artifact) -> Path:
        path = self.path(artifact)
        return path.with_name(path.name + ".checked")

    def _stamp(self, artifact: Artifact) -> str:
        status = self.path(artifact).stat()
        return f"{artifact.sha256} {status.st_size} {status.st_mtime_ns}"

    def _write_stamp(self, artifact: Artifact) -> None:
        stamp = self._stamp_path(artifact)
        draft = stamp.with_name(f"{stamp.name}.{os.getpid()}.{threading.get_ident()}")
        draft.write_text(self._stamp(artifact), encoding="ascii")
        share(draft)
        os.replace(draft, stamp)


def _drop_foreign(path: Path) -> None:
    """Remove what another user has put where we are about to write: a link, or a file that stays theirs."""
    with contextlib.suppress(FileNotFoundError):
        status = path.lstat()
        # A lock is shared among users, and nothing is ever read from or written to it.
        if stat.S_ISLNK(status.st_mode) or (path.suffix == ".part" and status.st_uid != os.geteuid()):
            path.unlink()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
