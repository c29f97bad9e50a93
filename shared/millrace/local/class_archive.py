"""A JVM's classes as it maps them from a file: it starts in half the time from the second run on.

This is Java's own dynamic class-data sharing. The first run of a Java with a set of jars writes the
file (50 MB for Kafka, 200 MB for Spark) when it ends, which takes it some seconds longer; where that
cannot be done, nothing is lost but the time. A file that does not fit is ignored by the JVM.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from millrace.local.jar_cache import cache_root
from millrace.local.java_check import Java
from millrace.local.private import is_ours

#: Exit code of a JVM that ended cleanly on SIGTERM, its archive written in full.
_CLEAN_EXITS = (0, 143)
_SUFFIX = ".jsa"
_KEPT = 3


def archive_flags(
    java: Java, jars: Sequence[Path], *, write_below: Path | None = None, name: str = "kafka"
) -> list[str]:
    """Return the JVM flags that use the archive; without one, those that write it, if wanted.

    The JVM runs what is in it without a look at the jars: one that another user can have written is not used.

    Args:
        java: The Java that will run.
        jars: The classpath.
        write_below: Where to write it for :func:`keep_archive`; by default it is not written.
        name: What runs.
    """
    archive = _folder() / f"{name}-{fingerprint(java, jars)}{_SUFFIX}"
    if is_ours(archive):
        return [f"-XX:SharedArchiveFile={archive}"]
    return [f"-XX:ArchiveClassesAtExit={write_below / archive.name}"] if write_below else []


def keep_archive(root: Path, exit_code: int, *, name: str = "kafka") -> None:
    """Move an archive that a JVM has written into the cache, in place of older ones of its kind.

    Args:
        root: The directory that :func:`archive_flags` was given.
        exit_code: How the JVM ended; what one left that was killed is of no use.
        name: What ran.
    """
    if exit_code not in _CLEAN_EXITS:
        return
    for written in root.glob(f"{name}-*{_SUFFIX}"):
        # The cache may be full or not ours to write: the next start is just not faster.
        with suppress(OSError):
            _folder().mkdir(parents=True, exist_ok=True)
            arriving = _folder() / f"{written.name}.{os.getpid()}"
            shutil.copyfile(written, arriving)
            arriving.replace(_folder() / written.name)
            _forget_older(name)


def _forget_older(name: str) -> None:
    """Keep the newest archives of a kind: an environment that is made anew has another."""
    found = sorted(_folder().glob(f"{name}-*{_SUFFIX}"), key=lambda f: f.stat().st_mtime, reverse=True)
    for old in found[_KEPT:]:
        old.unlink(missing_ok=True)


def _folder() -> Path:
    return cache_root().with_name("classes")


def fingerprint(java: Java, jars: Sequence[Path]) -> str:
    """Return what changes with a Java or its jars: a JVM would refuse the archive of others."""
    facts = [str(java.path.resolve()), java.version]
    for jar in jars:
        stat = jar.stat()
        facts.append(f"{jar} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
