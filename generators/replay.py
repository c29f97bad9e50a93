"""Any file of rows as a stream: in its own order, at the pace of its own times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from millrace.errors import UserError
from millrace_apps.generators.engine.message import Generated, Headers
from millrace_apps.generators.engine.randomness import digest

#: The one stream of a replay, as its ledger calls it.
STREAM: Final = "rows"
#: Milliseconds per unit of a time that is a number.
UNITS_MS: Final = {"s": 1000.0, "ms": 1.0, "us": 0.001, "ns": 0.000001}
_FORMATS: Final = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_BATCH: Final = 8_192
_ENCODE: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a file's messages are made from.

    Attributes:
        path: Parquet, CSV with a header line, or JSON lines; its suffix says which.
        time_column: Column of the event time: a timestamp, ISO 8601 text (UTC if it names no zone), or a
            number of ``time_unit``.
        key_column: Column of the Kafka key; None sends without.
        arrival_column: Column of the time at which a row arrived, written as that of the event; None: each
            arrived as its event happened.
        time_unit: Unit of times that are numbers: ``s``, ``ms``, ``us`` or ``ns``.
        events: So many rows at most; None: all.
        rate: Rows per second of the clock in place of the file's own pace; None keeps the pace.
    """

    path: Path
    time_column: str
    key_column: str | None = None
    arrival_column: str | None = None
    time_unit: str = "ms"
    events: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.time_unit not in UNITS_MS:
            raise UserError(f"--time-unit is one of {', '.join(UNITS_MS)}, got {self.time_unit}")
        if self.path.suffix.lower() not in _FORMATS:
            raise UserError(f"{self.path} is none of {', '.join(_FORMATS)}: rename it or convert it")
        if not self.path.is_file():
            raise UserError(f"there is no file {self.path}")

    def parameters(self) -> dict[str, Any]:
        """Return what decides the messages, by name, for the ledger; the file by its name and size."""
        return {
            "file": self.path.name,
            "bytes": self.path.stat().st_size,
            "time_column": self.time_column,
            "key_column": self.key_column,
            "arrival_column": self.arrival_column,
            "time_unit": self.time_unit,
            "events": self.events,
            "rate": self.rate,
        }


def replayed(replay: Replay, topic: str) -> Iterator[Generated]:
    """Yield a message per row, in the file's order.

    A row that arrived earlier than one before it is due together with that one: the file's order is that of
    arrival. JSON lines are sent byte for byte; rows of other formats as JSON objects.

    Args:
        replay: The file and its columns.
        topic: Topic of the messages.

    Raises:
        UserError: If a column is missing, or a row has no time; with the row's number.
    """
    run = digest("replay", replay.path.name, replay.path.stat().st_size)[:10]
    first_ms = newest_ms = -1
    for number, (value, row) in enumerate(_rows(replay)):
        if number == replay.events:
            return
        at_ms = came_ms = _time_ms(row, replay, replay.time_column, number + 1)
        if replay.arrival_column is not None:
            came_ms = _time_ms(row, replay, replay.arrival_column, number + 1)
        newest_ms = max(newest_ms, came_ms)
        if first_ms < 0:
            first_ms = newest_ms
        key = _key(row, replay.key_column, number + 1)
        row_id = f"{run}-{number:010d}"
        message = Generated(row_id, key, value, _headers(replay.path.name, row_id, at_ms), at_ms, "", 0)
        message.stream, message.topic = STREAM, topic
        message.due_ms = message.arrival_ms = newest_ms
        if replay.rate is not None:
            message.due_ms = first_ms + int(number * 1000 / replay.rate)
        yield message


def _headers(name: str, row_id: str, at_ms: int) -> Headers:
    time = datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", row_id.encode()),
        ("ce_type", b"millrace.replay.row"),
        ("ce_source", f"millrace/replay/{name}".encode()),
        ("ce_time", f"{time}.{at_ms % 1000:03d}Z".encode()),
        ("content-type", b"application/json"),
    ]


def _rows(replay: Replay) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield every row as bytes and as values by column."""
    readers: dict[str, Callable[[Replay], Iterator[tuple[bytes, dict[str, Any]]]]] = {
        "jsonl": _json_rows,
        "csv": _csv_rows,
        "parquet": _parquet_rows,
    }
    try:
        yield from readers[_FORMATS[replay.path.suffix.lower()]](replay)
    except OSError as error:
        raise UserError(f"cannot read {replay.path}: {error.strerror or error}") from error


def _json_rows(replay: Replay) -> Iterator[tuple[bytes, dict[str, Any]]]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    with replay.path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            value = line.rstrip(b"\r\n")
            if not value:
                continue
            try:
                yield value, decode(value)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise UserError(f"{replay.path}:{number}: no JSON object: {error}") from error


def _parquet_rows(replay: Replay) -> Iterator[tuple[bytes, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(replay.path).iter_batches(batch_size=_BATCH):
            yield from ((_ENCODE(row), row) for row in batch.to_pylist())
    except pa.ArrowException as error:
        raise UserError(f"cannot read {replay.path}: {error}") from error


def _csv_rows(replay: Replay) -> Iterator[tuple[bytes, dict[str, Any]]]:
    import pyarrow as pa
    from pyarrow import csv

    # A key is text: 007 and 7 are two.
    kinds = {replay.key_column: pa.string()} if replay.key_column is not None else {}
    try:
        with csv.open_csv(replay.path, convert_options=csv.ConvertOptions(column_types=kinds)) as reader:
            for batch in reader:
                yield from ((_ENCODE(row), row) for row in batch.to_pylist())
    except pa.ArrowException as error:
        raise UserError(f"cannot read {replay.path}: {error}") from error


def _column(row: dict[str, Any], name: str, number: int) -> Any:
    if name not in row:
        raise UserError(f"row {number} has no column {name}; it has {', '.join(row)}")
    return row[name]


def _key(row: dict[str, Any], column: str | None, number: int) -> bytes:
    value = None if column is None else _column(row, column, number)
    return b"" if value is None else str(value).encode()


def _time_ms(row: dict[str, Any], replay: Replay, column: str, number: int) -> int:
    value = _column(row, column, number)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        at_ms = int(value * UNITS_MS[replay.time_unit])
    elif (moment := _moment(value)) is not None:
        at_ms = math.floor(moment.timestamp() * 1000 + 0.0005)
    else:
        raise UserError(f"row {number}: {column} is no time: {value}")
    if not 0 <= at_ms < 253_402_300_800_000:
        raise UserError(
            f"row {number}: {column} is {value}, not between the years 1970 and 9999; is it in "
            f"{replay.time_unit}? --time-unit says otherwise"
        )
    return at_ms


def _moment(value: Any) -> datetime | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, datetime):
        return None
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
