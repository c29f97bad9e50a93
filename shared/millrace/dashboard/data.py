"""Data sources of panels: an app's tables, its query's progress, its topics, its settings."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from millrace.dashboard.broker import Broker
from millrace.dashboard.progress import Progress, read_progress
from millrace.dashboard.tables import DeltaReader, open_table
from millrace.dead_letters import one_line
from millrace.errors import UserError
from millrace.runtime.demo_settings import demo_instead, published_settings

if TYPE_CHECKING:
    from millrace.runtime.apps import App
    from millrace.runtime.settings import AppSettings

A = TypeVar("A")

log = logging.getLogger("millrace.dashboard")

#: A table that could not be looked at more often than this in a row is opened anew.
_MOST_FAILURES = 3


@dataclass
class _Kept:
    """An open table: what it was made of, and how often in a row it could not be looked at."""

    made: tuple[int, int]
    reader: DeltaReader
    failures: int = 0


class AppData:
    """The data of one app, read without Spark; safe to use from several threads.

    Args:
        app: The app.
        settings: Its settings.
        root: The folder with its checkpoint and its folder ``tables``.
        clock: Now, UTC milliseconds.
        folders: Further folders with tables, relative to the root.
        settings_with: Makes the settings with what a demo in the root tells (``key=value``); without it
            nobody listens to demos.
    """

    def __init__(
        self,
        app: App,
        settings: AppSettings,
        root: Path,
        clock: Callable[[], int],
        folders: Sequence[str] = (),
        settings_with: Callable[[Sequence[str]], AppSettings] | None = None,
    ) -> None:
        self.app = app
        self.root = root
        self.now_ms = clock
        self._folders = [root / "tables", *(root / folder for folder in folders)]
        self._lock = threading.Lock()
        self._tables: dict[Path, _Kept] = {}
        self._settings_with = settings_with
        self._told: tuple[str, ...] = ()
        self._making = threading.Lock()
        self._made: dict[str, tuple[Hashable, Any]] = {}
        self._take(settings)

    def listen(self) -> None:
        """Take the settings that a demo in the root tells while it runs: its broker and its topics."""
        told = published_settings(self.root)
        if self._settings_with is None or told == self._told:
            return
        self._told = told
        try:
            self._take(self._settings_with(told))
        except UserError as error:  # the file of another version
            log.warning("what the demo in %s tells is not understood: %s", self.root, one_line(error))

    def _take(self, settings: AppSettings) -> None:
        kafka = settings.kafka
        self.settings: Any = settings
        self._broker = Broker(kafka.client_options(), self.now_ms) if kafka.bootstrap else None

    @property
    def broker(self) -> Broker | None:
        """The broker, where one is configured."""
        return self._broker

    def table_names(self) -> list[str]:
        """Return the names of the tables that exist."""
        found = {
            path.name
            for folder in self._folders
            if folder.is_dir()
            for path in folder.iterdir()
            if (path / "_delta_log").is_dir()
        }
        return sorted(found)

    def table(self, name: str) -> DeltaReader | None:
        """Return a table as it is now, or ``None`` where it does not exist (yet).

        A table that was deleted and made anew, as by the next demo, is opened anew.
        """
        for folder in self._folders:
            if (reader := self._open(folder / name)) is not None:
                return reader
        return None

    def _open(self, path: Path) -> DeltaReader | None:
        made = _identity(path / "_delta_log")
        with self._lock:
            if made is None:
                self._tables.pop(path, None)
                return None
            kept = self._tables.get(path)
            if kept is None or kept.made != made or kept.failures > _MOST_FAILURES:
                reader = open_table(path, self.now_ms)
                if reader is None:
                    return None
                self._tables[path] = kept = _Kept(made, reader)
        try:
            kept.reader.refresh()
            kept.failures = 0
        except Exception as error:  # what the Delta library raises is not one family
            # A log that is being cleaned up: what was read last is shown until it can be read again.
            kept.failures += 1
            log.info("%s cannot be looked at now: %s", path, one_line(error))
        return kept.reader

    def once(self, name: str, version: Hashable, make: Callable[[], A]) -> A:
        """Return what is made of something outside of the tables, made anew only for another version of it.

        Args:
            name: Identity of what is made.
            version: Tells whether what it is made of has changed.
            make: Makes it; nobody may change that.
        """
        with self._making:
            kept = self._made.get(name)
            if kept is None or kept[0] != version:
                kept = self._made[name] = (version, make())
            value: A = kept[1]
            return value

    def progress(self) -> Progress | None:
        """Return where the query stands, ``None`` before its first batch."""
        return read_progress(self.root)


def _identity(log: Path) -> tuple[int, int] | None:
    """Return what tells a table from another that is made in its place; ``None`` where there is none."""
    for path in (log / f"{0:020}.json", log):  # the first commit is gone once a log was cleaned up
        try:
            about = path.stat()
        except OSError:
            continue
        return about.st_ino, about.st_mtime_ns if path != log else 0
    return None


def find_root(app: str, settings: AppSettings, given: Path | None) -> Path:
    """Return the folder that an app's page reads.

    Args:
        app: Name of the app.
        settings: Its settings.
        given: What the user named; else the app's ``storage.root`` if there are tables in it, else the
            folder of its last demo if there is one.

    Raises:
        UserError: What the user named is no folder, or the storage is not local.
    """
    if given is not None:
        if not given.is_dir():
            raise UserError(f"{given} is no folder: name the one that has the folder 'tables' in it")
        return given.absolute()
    root = settings.storage.local_root
    if root is None:
        raise UserError(
            f"storage.root is {settings.storage.root}: only local and mounted folders are supported"
        )
    return demo_instead(app, root) or root
