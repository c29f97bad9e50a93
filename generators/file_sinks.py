"""File sinks of messages: one file of lines per stream, or a Parquet file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from millrace.errors import UserError
from millrace_apps.generators.engine.message import Generated
from millrace_apps.generators.sinks import LineSink, SinkError

#: Messages of a Parquet row group.
_GROUP: Final = 20_000


class FolderSink:
    """Writes one file of lines per stream: ``<folder>/<stream>.jsonl``.

    Args:
        folder: Made where it does not exist.
        streams: Short names of the streams.
        position: Where the files end that are gone on with, from :meth:`position`.
    """

    def __init__(self, folder: Path, streams: list[str], position: Mapping[str, int] | None = None) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {folder}: {error.strerror}") from error
        self._files = {
            name: LineSink.to_file(folder / f"{name}.jsonl", None if position is None else position[name])
            for name in streams
        }

    def write(self, message: Generated) -> None:
        """Write one payload to the file of its stream."""
        self._files[message.stream].write(message)

    def idle(self) -> None:
        """Let readers see what was written so far."""
        self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system."""
        for file in self._files.values():
            file.flush()

    def position(self) -> dict[str, int] | None:
        """Return how long each file is once everything is on disk."""
        return {name: (file.position() or {"bytes": 0})["bytes"] for name, file in self._files.items()}

    def __enter__(self) -> FolderSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.__exit__(kind, error, trace)


class ParquetSink:
    """Writes messages with the columns that Spark's Kafka source has: key, value, topic, timestamp, headers.

    A batch job can then read a file where a streaming one reads a topic. The timestamp is the moment of
    arrival on the clock of event time.

    Args:
        path: The file.
        topic: Topic of messages that name none.
    """

    def __init__(self, path: Path, topic: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._pa, self._path, self._topic = pa, path, topic
        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        self._schema = pa.schema(
            [
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("topic", pa.string()),
                ("timestamp", pa.timestamp("ms", tz="UTC")),
                ("headers", pa.list_(header)),
            ]
        )
        self._rows: list[dict[str, Any]] = []
        try:
            self._writer = pq.ParquetWriter(str(path), self._schema, compression="zstd")
        except OSError as error:
            raise UserError(
                f"cannot write {path}: {error.strerror or error}; give another --out FILE"
            ) from error

    def write(self, message: Generated) -> None:
        """Take one message."""
        self._rows.append(
            {
                "key": message.key,
                "value": message.value,
                "topic": message.topic or self._topic,
                "timestamp": datetime.fromtimestamp(message.arrival_ms / 1000, UTC),
                "headers": [{"key": name, "value": text} for name, text in message.headers],
            }
        )
        if len(self._rows) >= _GROUP:
            self.flush()

    def idle(self) -> None:
        """Do nothing: the file is readable only when it is closed."""

    def flush(self) -> None:
        """Write what was taken as a row group."""
        rows, self._rows = self._rows, []
        if rows:
            try:
                self._writer.write_table(self._pa.Table.from_pylist(rows, schema=self._schema))
            except OSError as error:
                raise SinkError(f"cannot write {self._path}: {error.strerror or error}") from error

    def position(self) -> dict[str, int] | None:
        """Return None: what has no footer cannot be gone on with."""
        return None

    def __enter__(self) -> ParquetSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._writer.close()
        except OSError as failure:
            raise SinkError(f"cannot write {self._path}: {failure.strerror or failure}") from failure
