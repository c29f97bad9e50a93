"""Files of JSON records, one a line (or in Parquet), that a killed run can go on writing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Protocol

from millrace.errors import MillraceError, UserError

_BUFFER: Final = 1 << 16
#: Records of a Parquet row group.
_GROUP: Final = 20_000


class Records(Protocol):
    """Takes encoded records in order."""

    def write(self, record: bytes) -> None:
        """Take one record, without its line end."""

    def sync(self) -> None:
        """Return when everything taken is on disk."""

    def close(self) -> None:
        """Finish the file."""


class LineRecords:
    """JSON lines.

    With ``resume`` the same records are written from the first one on: those that the file has are
    compared, a torn last one is dropped, and what is missing is added.

    Args:
        path: The file.
        resume: Go on with what is there.

    Raises:
        UserError: If the file cannot be written.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        self._path = path
        self._old = b""
        self._file: IO[bytes]
        with _told(path, opening=True):
            if resume and path.exists():
                self._file = path.open("r+b", buffering=_BUFFER)
                self._replaying = True
            else:
                self._file = path.open("wb", buffering=_BUFFER)
                self._replaying = False

    def write(self, record: bytes) -> None:
        """Take one record."""
        with _told(self._path):
            line = record + b"\n"
            if self._replaying and self._has(line):
                return
            self._file.write(line)

    def _has(self, line: bytes) -> bool:
        at = self._file.tell()
        found = self._file.read(len(line))
        if found == line:
            return True
        if not line.startswith(found):
            raise UserError(
                f"{self._path} is the ledger of another stream from byte {at} on: give the same flags as "
                "before, or another --ledger FILE"
            )
        self._file.seek(at)
        self._file.truncate()
        self._replaying = False
        return False

    def sync(self) -> None:
        """Return when everything taken is on disk."""
        with _told(self._path):
            self._file.flush()
            if not self._replaying and self._file.seekable():
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Finish the file."""
        with _told(self._path):
            self._file.close()


class ParquetRecords:
    """One row per record: its fields of use in a query, and all of it as JSON in ``body``."""

    def __init__(self, path: Path, names: Mapping[str, str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._path, self._rows, self._pa, self._names = path, list[dict[str, Any]](), pa, dict(names)
        text, number = pa.string(), pa.int64()
        columns = [("record", text), ("kind", text), ("id", text), ("event_id", text), ("expected", text)]
        self._schema = pa.schema([*columns, ("event_time_ms", number), ("body", text)])
        with _told(path, opening=True):
            self._writer = pq.ParquetWriter(str(path), self._schema, compression="zstd")

    def write(self, record: bytes) -> None:
        """Take one record."""
        import msgspec

        row = msgspec.json.decode(record)
        names = ("record", "kind", "id", "event_id", "expected", "event_time_ms")
        found = {name: row.get(name, row.get(self._names.get(name, name))) for name in names}
        self._rows.append({**found, "body": record.decode()})
        if len(self._rows) >= _GROUP:
            self._flush()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            with _told(self._path):
                self._writer.write_table(self._pa.Table.from_pylist(rows, schema=self._schema))

    def sync(self) -> None:
        """Do nothing: a Parquet file is readable only when it is closed."""

    def close(self) -> None:
        """Write the footer, without which nobody can read the file."""
        self._flush()
        with _told(self._path):
            self._writer.close()


def open_records(path: Path, *, resume: bool = False, names: Mapping[str, str] | None = None) -> Records:
    """Return the file to write records to: Parquet if it is called so, else JSON lines.

    Args:
        path: The file.
        resume: Go on with the file of a killed run.
        names: Of Parquet: column (``kind``, ``id``, ``event_id``, …) → the field of records that is meant
            where they have none of its name.

    Raises:
        UserError: If it cannot be written, or cannot be gone on with.
    """
    if path.suffix != ".parquet":
        return LineRecords(path, resume=resume)
    if resume:
        raise UserError(
            "--resume needs a ledger of JSON lines: a Parquet file has no end before it is closed"
        )
    return ParquetRecords(path, names or {})


def read_records(path: Path) -> Iterator[bytes]:
    """Yield the complete records of a file that :func:`open_records` wrote.

    Raises:
        UserError: If it cannot be read.
    """
    try:
        if path.suffix == ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            try:
                for batch in pq.ParquetFile(path).iter_batches(columns=["body"]):
                    yield from (text.encode() for text in batch.column(0).to_pylist())
            except pa.ArrowException as error:
                raise UserError(f"{path} is no complete Parquet ledger: {error}") from error
            return
        with path.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    yield line[:-1]
    except OSError as error:
        raise UserError(f"cannot read the ledger {path}: {error.strerror or error}") from error


@contextmanager
def _told(path: Path, *, opening: bool = False) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = UserError if opening else MillraceError
        raise kind(f"cannot write the ledger {path}: {error.strerror or error}") from error
