"""The base of ledger writers: a file of records, and the span of the events noted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import msgspec

from millrace.testing.record_file import Records, open_records


class LedgerFile:
    """A file of records that a killed run can go on with, and the first and last time of what was noted.

    Args:
        path: File to write, JSON lines or (``.parquet``) Parquet; None writes nothing.
        head: The first record: how the stream is made.
        resume: Go on with the file of a killed run.
    """

    #: Column of a Parquet ledger → the field of its records that is meant.
    NAMES: ClassVar[Mapping[str, str]] = {}

    def __init__(self, path: Path | None, head: msgspec.Struct, *, resume: bool = False) -> None:
        self._first_ms: int | None = None
        self._newest_ms = 0
        self._encode = msgspec.json.Encoder().encode
        self._file: Records | None = (
            None if path is None else (open_records(path, resume=resume, names=self.NAMES))
        )
        self._write(head)
        # A run that is killed can then be gone on with from its first message on.
        self.sync()

    @property
    def _last_ms(self) -> int | None:
        return None if self._first_ms is None else self._newest_ms

    def _note_time(self, at_ms: int) -> None:
        if at_ms > self._newest_ms:
            self._newest_ms = at_ms
        if self._first_ms is None or at_ms < self._first_ms:
            self._first_ms = at_ms

    def _write(self, record: msgspec.Struct) -> None:
        if self._file is not None:
            self._file.write(self._encode(record))

    def sync(self) -> None:
        """Return when every record so far is on disk."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Close the file; without the summary before, it says to its reader that it is incomplete."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
