"""The journal of answers: a line of JSON each, one file a day, which only its owner can read."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec


class Journal:
    """Writes lines.

    Args:
        folder: The folder of the files; made if need be.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._lock = threading.Lock()
        self._day, self._file = "", -1

    def write(self, line: dict[str, Any], at_ms: int) -> None:
        """Write a line.

        Args:
            line: What it says.
            at_ms: When, UTC milliseconds.
        """
        day = datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d")
        data = msgspec.json.encode(line) + b"\n"
        with self._lock:
            if day != self._day:
                self.close()
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                self._file = os.open(self._folder / f"{day}.jsonl", flags, 0o600)
                self._day = day
            os.write(self._file, data)

    def close(self) -> None:
        """Close the file that is open."""
        if self._file >= 0:
            os.close(self._file)
            self._file, self._day = -1, ""


def read_journal(folder: Path, *, days: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the lines of a journal, the oldest first; one that is not whole is left out.

    Args:
        folder: Its folder.
        days: Of so many of the last days only.
    """
    files = sorted(folder.glob("*.jsonl"))
    for path in files if days is None else files[-days:]:
        with path.open("rb") as lines:
            for line in lines:
                try:
                    found = msgspec.json.decode(line)
                except msgspec.DecodeError:  # the last one, where the machine has stopped
                    continue
                if isinstance(found, dict):
                    yield found
