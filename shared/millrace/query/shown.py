"""Output formats of a query: columns, JSON lines, CSV, Parquet."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import msgspec

from millrace.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

#: A cell of a table is no wider.
_WIDEST: Final = 60
_NULL: Final = "-"


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yield rows as dictionaries; times are in UTC, maps are dictionaries.

    A time before the year 1 or behind 9999, as wrong clocks give it, is a text.

    Raises:
        UserError: There is such a time within a value, or a date.
    """
    for batch in batches:
        try:
            rows = batch.to_pylist(maps_as_pydicts="lossy")
        except (OverflowError, ValueError):
            columns = [[_plain(name, value) for value in batch[name]] for name in batch.schema.names]
            rows = [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
        for row in rows:
            yield {name: _utc(value) for name, value in row.items()}


def _plain(name: str, value: pa.Scalar) -> Any:
    import pyarrow as pa

    try:
        return value.as_py(maps_as_pydicts="lossy")
    except (OverflowError, ValueError):
        if not pa.types.is_timestamp(value.type):
            raise UserError(
                f"{name} has a date or time outside the years 1 to 9999: cast it to text or leave it out"
            ) from None
        text: str = value.cast(pa.timestamp(value.type.unit, "UTC")).cast(pa.string()).as_py()
        return text.replace(" ", "T").removesuffix("Z" if value.type.tz is None else "")


def _utc(value: Any) -> Any:
    if isinstance(value, list):
        return [_utc(one) for one in value]
    if isinstance(value, dict):
        return {name: _utc(one) for name, one in value.items()}
    if not isinstance(value, datetime):
        return value
    plain = value.to_pydatetime(warn=False) if hasattr(value, "to_pydatetime") else value  # of nanoseconds
    return plain.astimezone(UTC) if plain.tzinfo else plain


def as_text(value: Any) -> str:
    """Return a value as a cell has it.

    Example:
        >>> as_text(datetime(2026, 1, 5, 12, tzinfo=UTC)), as_text(None), as_text(0.5), as_text([1, "a"])
        ('2026-01-05T12:00:00Z', '', '0.5', '[1,"a"]')
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, float):
        return repr(value)
    text = msgspec.json.encode(value).decode()
    return text[1:-1] if text.startswith('"') else text


def as_table(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return rows as lines with columns side by side.

    Args:
        names: The columns.
        rows: The rows.

    Example:
        >>> as_table(["card", "n"], [{"card": "c-1", "n": 12}, {"card": "c-20", "n": None}])
        ['card   n', 'c-1   12', 'c-20   -']
    """
    numbers = {
        name for name in names
        if all(isinstance(row[name], int | float | None) for row in rows)
        and any(row[name] is not None for row in rows)
    }  # fmt: skip
    cells = [[_in_line(name) for name in names]]
    for row in rows:
        texts = (_NULL if row[name] is None else _in_line(as_text(row[name])) for name in names)
        cells.append([text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…" for text in texts])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        placed = (
            text.rjust(width) if name in numbers else text.ljust(width)
            for name, text, width in zip(names, line, widths, strict=True)
        )
        lines.append("  ".join(placed).rstrip())
    return lines


def _in_line(text: str) -> str:
    r"""Return text in one line, without control characters: data must not steer the terminal.

    >>> _in_line("two\nlines \x1b[31m")
    'two lines ?[31m'
    """
    from millrace.console.live_panels import clean

    return clean(" ".join(text.split()))


def write_csv(
    into: TextIO, names: Sequence[str], rows: Iterable[dict[str, Any]], *, header: bool = True
) -> int:
    """Write rows as CSV, below a line of names (``header``), and return how many there were."""
    writer = csv.writer(into, lineterminator="\n")
    if header:
        writer.writerow(names)
    count = 0
    for row in rows:
        writer.writerow([as_text(row[name]) for name in names])
        count += 1
    return count


def write_json(say: Callable[[str], object], rows: Iterable[dict[str, Any]]) -> int:
    """Say rows as JSON, one a line, and return how many there were."""
    count = 0
    for row in rows:
        say(msgspec.json.encode(row).decode())
        count += 1
    return count


def write_parquet(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write rows into a Parquet file that is there whole or not at all, and return how many there were.

    Args:
        path: The file; one that is there is replaced.
        schema: The columns.
        batches: The rows.

    Raises:
        UserError: It cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    written, count = path.with_name(f".{path.name}.tmp"), 0
    try:
        with pq.ParquetWriter(written, schema) as into:
            for batch in batches:
                into.write_batch(batch)
                count += batch.num_rows
        written.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    except pa.ArrowNotImplementedError as error:  # such as an interval
        raise UserError(f"Parquet cannot have these columns: {error}") from None
    finally:
        written.unlink(missing_ok=True)
    return count
