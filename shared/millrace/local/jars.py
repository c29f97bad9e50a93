"""The jars that Spark and the embedded broker need beside PySpark's own: find, fetch, verify.

They are named with their hashes in ``jars.lock``. Spark gets them by path (``spark.jars``), never by
``spark.jars.packages``, which asks the network at every start even when its cache is warm.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from millrace.errors import UserError
from millrace.local.jar_cache import Cancelled, JarCache, JarState, cache_root, sha256_of
from millrace.local.jar_lock import Artifact, Jar, JarGroup, JarLock, load_lock
from millrace.local.jar_sources import (
    MIRROR_VARIABLES,
    Advance,
    LocalRepository,
    RemoteRepository,
    Source,
    Unavailable,
    sources_from,
)

_WORKERS = 6


class Progress(Protocol):
    """Told how a fetch goes; called from several threads."""

    def start(self, jars: int, size: int) -> None:
        """Begin to download ``jars`` files of ``size`` bytes together."""

    def advance(self, size: int) -> None:
        """Count bytes received; negative when a download starts over."""

    def done(self, artifact: Artifact) -> None:
        """Count one jar as checked and in the cache."""


@dataclass(frozen=True)
class JarReport:
    """What is known of one locked jar.

    Args:
        jar: The entry of the lock.
        state: Whether it is in the cache and whole.
        used: The choice that is in the cache, if any.
        path: Where it is, or where the first choice would be.
    """

    jar: Jar
    state: JarState
    used: Artifact | None
    path: Path


def jar_paths(group: JarGroup, *, lock: JarLock | None = None, cache: JarCache | None = None) -> list[Path]:
    """Return the cached jars of one group, in the order of the lock; never asks the network.

    Args:
        group: ``"spark"`` or ``"broker"``.
        lock: What is needed; by default the ``jars.lock`` of this installation.
        cache: Where to look; by default the user's cache.

    Raises:
        UserError: A jar is missing or damaged.
    """
    lock = lock or load_lock()
    cache = cache or JarCache(cache_root())
    found = {jar: cache.find(jar) for jar in lock.of_group(group)}
    missing = [jar.coordinate for jar, choice in found.items() if choice is None]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        where = f"not in {cache.root}, or damaged there"
        raise UserError(f"jar {missing[0]}{more} ({group}): {where}; run: millrace jars fetch")
    return [cache.path(choice) for choice in found.values() if choice is not None]


def ensure_jars(
    groups: Iterable[JarGroup] = ("spark", "broker"),
    progress: Progress | None = None,
    *,
    lock: JarLock | None = None,
    cache: JarCache | None = None,
    sources: Sequence[LocalRepository | RemoteRepository] | None = None,
) -> dict[JarGroup, list[Path]]:
    """Return the jars of the groups, after fetching those that the cache lacks.

    When all are cached, nothing is asked of the network. Several processes may do this at once.

    Args:
        groups: Which groups.
        progress: Told how the downloads go; by default nobody.
        lock: What is needed; by default the ``jars.lock`` of this installation.
        cache: Where the jars are kept; by default the user's cache.
        sources: Places to ask, in order; by default those that the environment names.

    Returns:
        Group → paths, in the order of the lock.

    Raises:
        UserError: A jar cannot be had; the message names the places tried and the reason of each.

    Example:
        >>> ensure_jars(["spark"])["spark"][0].name  # doctest: +SKIP
        'delta-spark_4.2_2.13-4.4.0.jar'
    """
    lock = lock or load_lock()
    cache = cache or JarCache(cache_root())
    groups = list(groups)
    wanted = {jar.sha256: jar for group in groups for jar in lock.of_group(group)}
    missing = [jar for jar in wanted.values() if cache.find(jar) is None]
    if missing:
        fetch = _Fetch(cache, sources if sources is not None else sources_from(), progress)
        fetch.run(missing)
    return {group: jar_paths(group, lock=lock, cache=cache) for group in groups}


def report_jars(
    groups: Iterable[JarGroup] = ("spark", "broker"),
    *,
    rehash: bool = False,
    lock: JarLock | None = None,
    cache: JarCache | None = None,
) -> list[JarReport]:
    """Say of each locked jar whether it is cached and whole.

    Args:
        groups: Which groups.
        rehash: Read every file again instead of trusting what was checked before.
        lock: What is needed; by default the ``jars.lock`` of this installation.
        cache: Where the jars are kept; by default the user's cache.
    """
    lock = lock or load_lock()
    cache = cache or JarCache(cache_root())
    return [_report(jar, cache, rehash) for group in groups for jar in lock.of_group(group)]


def _report(jar: Jar, cache: JarCache, rehash: bool) -> JarReport:
    states = {choice: cache.state(choice, rehash=rehash) for choice in jar.choices}
    for wanted in (JarState.OK, JarState.CORRUPT):
        for choice, state in states.items():
            if state is wanted:
                return JarReport(jar, state, choice if state is JarState.OK else None, cache.path(choice))
    return JarReport(jar, JarState.ABSENT, None, cache.path(jar))


class _Fetch:
    """One run over the jars that are missing."""

    def __init__(
        self,
        cache: JarCache,
        sources: Sequence[LocalRepository | RemoteRepository],
        progress: Progress | None,
    ) -> None:
        self._cache = cache
        self._sources = list(sources)
        self._progress = progress
        self._cancelled = threading.Event()

    def run(self, jars: Sequence[Jar]) -> None:
        """Bring every jar into the cache, or raise for those that cannot be had."""
        remaining = [jar for jar in jars if not self._copied(jar)]
        if not remaining:
            return
        if self._progress:
            self._progress.start(len(remaining), sum(jar.expected_size for jar in remaining))
        with ThreadPoolExecutor(_WORKERS, thread_name_prefix="jars") as pool:
            tasks = [pool.submit(self._download, jar) for jar in remaining]
            try:
                wait(tasks, return_when=FIRST_EXCEPTION)
            finally:  # also on Ctrl-C: the pool waits for its threads, and these look at the event
                self._cancelled.set()
        for source in self._sources:
            if isinstance(source, RemoteRepository):
                source.close()
        failures = [error for task in tasks if (error := task.exception())]
        if failures:
            raise next((error for error in failures if not isinstance(error, Cancelled)), failures[0])
        refused = [
            (jar, tried) for jar, task in zip(remaining, tasks, strict=True) if (tried := task.result())
        ]
        if refused:
            raise UserError(_refusal(refused))

    def _copied(self, jar: Jar) -> bool:
        local = [source for source in self._sources if isinstance(source, LocalRepository)]
        return any(self._tried(choice, local, _nobody) is None for choice in jar.choices)

    def _download(self, jar: Jar) -> list[str] | None:
        """Return None when the jar is in the cache, else what was tried and why it failed."""
        advance = self._progress.advance if self._progress else _nobody
        every_try: list[str] = []
        for choice in jar.choices:
            tried = self._tried(choice, self._sources, advance)
            if tried is None:
                if self._progress:
                    self._progress.done(choice)
                return None
            which = "" if choice is jar else f"alternate {choice.coordinate}: "
            every_try += [which + attempt for attempt in tried]
        return every_try

    def _tried(self, choice: Artifact, sources: Sequence[Source], advance: Advance) -> list[str] | None:
        """Return None when the choice is in the cache, else a few words on each source's failure."""
        if self._cancelled.is_set():
            raise Cancelled("the fetch was given up")
        failures = []
        with self._cache.lock(choice, self._cancelled):
            if self._cache.state(choice) is JarState.OK:  # another process was quicker
                return None
            part = self._cache.part(choice)
            for source in sources:
                try:
                    self._take(choice, source, part, advance)
                except Unavailable as error:
                    failures.append(f"{source.name}: {error}")
                else:
                    self._cache.publish(choice, part)
                    return None
        return failures

    def _take(self, choice: Artifact, source: Source, part: Path, advance: Advance) -> None:
        """Complete the file ``part`` from one source, with the right hash, or raise Unavailable."""
        resumed = part.exists()
        source.fetch(choice, part, advance, self._cancelled)
        if sha256_of(part) != choice.sha256:
            advance(-part.stat().st_size)
            part.unlink()
            if not resumed:
                raise Unavailable("its file has another hash than jars.lock says, refused")
            self._take(choice, source, part, advance)  # the beginning came from elsewhere: from nothing


def _nobody(_: int) -> None:
    """Count bytes for nobody."""


def _refusal(refused: Sequence[tuple[Jar, list[str]]]) -> str:
    jar, tried = refused[0]
    more = f" (nor {len(refused) - 1} more jars)" if len(refused) > 1 else ""
    advice = f"set {MIRROR_VARIABLES[0]} to a Maven repository that this machine reaches"
    return f"cannot get the jar {jar.coordinate}{more}: {'; '.join(tried)}; {advice}"
