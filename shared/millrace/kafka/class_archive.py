"""Kafka's classes as the JVM maps them from a file: a broker starts in half the time from the second on.

This is Java's own dynamic class-data sharing. The first temporary broker of a Java and a set of jars
writes the file (50 MB) when it is stopped, which takes it 2-3 s longer; where that cannot be done, nothing
is lost but the time. A file that does not fit is ignored by the JVM.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from millrace.runtime.jar_cache import cache_root
from millrace.runtime.java_check import Java

#: Exit code of a JVM that ended cleanly on SIGTERM, its archive written in full.
_CLEAN_EXITS = (0, 143)
_SUFFIX = ".jsa"


def archive_flags(java: Java, jars: Sequence[Path], *, write_below: Path | None = None) -> list[str]:
    """Return the JVM flags that use the archive; without one, those that write it, if wanted.

    Args:
        java: The Java that will run.
        jars: The classpath.
        write_below: Where to write it for :func:`keep_archive`; by default it is not written.
    """
    archive = _folder() / f"kafka-{_fingerprint(java, jars)}{_SUFFIX}"
    if archive.exists():
        return [f"-XX:SharedArchiveFile={archive}"]
    return [f"-XX:ArchiveClassesAtExit={write_below / archive.name}"] if write_below else []


def keep_archive(root: Path, exit_code: int) -> None:
    """Move an archive that a broker has written into the cache.

    Args:
        root: The directory that :func:`archive_flags` was given.
        exit_code: How the broker ended; what one left that was killed is of no use.
    """
    if exit_code not in _CLEAN_EXITS:
        return
    for written in root.glob(f"kafka-*{_SUFFIX}"):
        # The cache may be full or not ours to write: the next broker is just not faster.
        with suppress(OSError):
            _folder().mkdir(parents=True, exist_ok=True)
            arriving = _folder() / f"{written.name}.{os.getpid()}"
            shutil.copyfile(written, arriving)
            arriving.replace(_folder() / written.name)


def _folder() -> Path:
    return cache_root().with_name("classes")


def _fingerprint(java: Java, jars: Sequence[Path]) -> str:
    """Return what changes whenever the JVM would refuse the archive."""
    facts = [str(java.path.resolve()), java.version]
    for jar in jars:
        stat = jar.stat()
        facts.append(f"{jar} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
