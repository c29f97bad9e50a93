"""A job's own log: ``logs/job.log`` under its root, as text or as JSON with query and batch."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final, Literal

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


@contextmanager
def logging_to(
    folder: Path,
    *,
    shape: Literal["text", "json"],
    level: str,
    query: str,
    batch: Callable[[], int],
    ours: Iterable[str] = ("millrace",),
) -> Iterator[Path]:
    """Log to a job's file while the block runs; our own warnings go to the terminal all the same.

    Args:
        folder: The folder of logs.
        shape: ``text`` or ``json``.
        level: From which level on, of our own loggers.
        query: Name of the query.
        batch: Gives the batch that runs or ran last.
        ours: Loggers whose lines are taken from that level on; of all others warnings.

    Raises:
        OSError: The file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOG_FILE
    handler = RotatingFileHandler(path, maxBytes=_MOST_BYTES, backupCount=_KEPT, encoding="utf-8")
    handler.setFormatter(LineFormatter(shape, query, batch))
    handler.addFilter(_is_no_stop)
    root = logging.getLogger()
    own = [logging.getLogger(name) for name in dict.fromkeys(ours)]
    # Without any handler Python prints warnings; with this one it would not.
    shown = logging.lastResort if not root.handlers else None
    before = [one.level for one in own]
    root.addHandler(handler)
    for one in own:
        one.setLevel(level)
        if shown is not None:
            one.addHandler(shown)
    try:
        yield path
    finally:
        root.removeHandler(handler)
        for one, was in zip(own, before, strict=True):
            one.setLevel(was)
            if shown is not None:
                one.removeHandler(shown)
        handler.close()
