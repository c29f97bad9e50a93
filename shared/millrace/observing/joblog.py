"""A job's own log: ``logs/job.log`` under its root, as text or as JSON with query and batch."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final, Literal

from millrace.local.belonging import owner
from millrace.runtime.redaction import redact_text

LOG_FILE: Final = "job.log"
#: A log that is longer goes on in a new file; so many old ones stay.
_MOST_BYTES: Final = 10 << 20
_KEPT: Final = 3


class LineFormatter(logging.Formatter):
    """Makes a line of a record, secrets removed.

    Args:
        shape: ``text`` or ``json``.
        query: Name of the query.
        batch: Gives the batch that runs or ran last; -1 before the first.
    """

    def __init__(self, shape: Literal["text", "json"], query: str, batch: Callable[[], int]) -> None:
        super().__init__()
        self._shape, self._query, self._batch = shape, query, batch

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; of text a traceback follows in lines of its own."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        at = at.replace("+00:00", "Z")
        message = redact_text(record.getMessage())
        error = redact_text(self.formatException(record.exc_info)) if record.exc_info else None
        if self._shape == "json":
            said = {
                "at": at, "level": record.levelname, "query": self._query, "batch": self._batch(),
                "logger": record.name, "message": message,
            }  # fmt: skip
            return json.dumps(said if error is None else {**said, "error": error}, ensure_ascii=False)
        line = f"{at} {record.levelname} [{self._query} {self._batch()}] {record.name}: {message}"
        return line if error is None else f"{line}\n{error}"


def _is_no_stop(record: logging.LogRecord) -> bool:
    """Return whether a record is another one than that of a batch which is refused since the job ends."""
    return not (record.exc_info and record.exc_info[0] and record.exc_info[0].__name__ == "StopRequested")


class _Ours:
    """Our own loggers while jobs log: the lowest level that one of them wants, and warnings on the terminal.

    They are as they were when the last of these jobs has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: dict[str, int] = {}
        self._wanted: dict[str, list[int]] = {}
        self._shown: logging.Handler | None = None
        self._logs: list[logging.Handler] = []

    def take(self, log: logging.Handler, names: Collection[str], level: int) -> None:
        """Have a log's lines made."""
        root = logging.getLogger()
        with self._lock:
            if not self._logs and not root.handlers:
                # Without any handler Python prints warnings; with this one it would not.
                self._shown = logging.lastResort
            self._logs.append(log)
            root.addHandler(log)
            for name in names:
                logger = logging.getLogger(name)
                if not self._wanted.setdefault(name, []):
                    self._before[name] = logger.level
                    if self._shown is not None:
                        logger.addHandler(self._shown)
                self._wanted[name].append(level)
                logger.setLevel(min(self._wanted[name]))

    def leave(self, log: logging.Handler, names: Collection[str], level: int) -> None:
        """Have them made no more, unless another wants them."""
        with self._lock:
            logging.getLogger().removeHandler(log)
            self._logs.remove(log)
            for name in names:
                logger, wanted = logging.getLogger(name), self._wanted[name]
                wanted.remove(level)
                logger.setLevel(min(wanted, default=self._before[name]))
                if not wanted and self._shown is not None:
                    logger.removeHandler(self._shown)
            if not self._logs:
                self._shown = None


_OURS: Final = _Ours()


@contextmanager
def logging_to(
    folder: Path,
    *,
    shape: Literal["text", "json"],
    level: str,
    query: str,
    batch: Callable[[], int],
    ours: Iterable[str] = ("millrace",),
    of: object | None = None,
) -> Iterator[Path]:
    """Log to a job's file while the block runs; our own warnings go to the terminal all the same.

    Where several jobs run in one process each has the lines of what is done for it, and all have those of
    what is done for none (:mod:`millrace.local.belonging`).

    Args:
        folder: The folder of logs.
        shape: ``text`` or ``json``.
        level: From which level on, of our own loggers.
        query: Name of the query.
        batch: Gives the batch that runs or ran last.
        ours: Loggers whose lines are taken from that level on; of all others warnings.
        of: For whom it is: lines of what is done for others are left out; ``None``: it has all.

    Raises:
        OSError: The file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOG_FILE
    handler = RotatingFileHandler(path, maxBytes=_MOST_BYTES, backupCount=_KEPT, encoding="utf-8")
    handler.setFormatter(LineFormatter(shape, query, batch))
    handler.addFilter(_is_no_stop)
    names, least = tuple(dict.fromkeys(ours)), logging.getLevelNamesMapping()[level]

    def is_its(record: logging.LogRecord) -> bool:
        if of is not None and owner() not in (None, of):
            return False
        return record.levelno >= least or record.name.partition(".")[0] not in names

    handler.addFilter(is_its)
    _OURS.take(handler, names, least)
    try:
        yield path
    finally:
        _OURS.leave(handler, names, least)
        handler.close()
