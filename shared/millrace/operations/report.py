"""Reports: what a command has found, as a file that is there whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["as_json", "write", "write_parquet", "write_text"]


def as_json(data: Any) -> str:
    """Return a report as JSON, indented; what is no number is ``null``, what JSON has no word for its text.

    >>> print(as_json({"rate": float("nan"), "path": Path("/tmp"), "rows": [1]}))
    {
      "rate": null,
      "path": "/tmp",
      "rows": [
        1
      ]
    }
    """
    return msgspec.json.format(msgspec.json.encode(data, enc_hook=_plain), indent=2).decode()


def write(path: Path | None, data: Any, *, markdown: tuple[Path | None, str] | None = None) -> None:
    """Write a report as JSON, and beside it a text of Markdown where one is given.

    Each file takes the place of the one before it in one step; folders are made.

    Args:
        path: The JSON file; ``None``: none is asked for.
        data: The report: structs, dataclasses, maps, sequences and plain values.
        markdown: The Markdown file (``None``: none is asked for) and what it says.

    Raises:
        UserError: A file cannot be written; says which and why.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(Path(folder, "new", "report.json"), {"rows": 3})
        ...     print(Path(folder, "new", "report.json").read_text(), end="")
        {
          "rows": 3
        }
    """
    if path is not None:
        write_text(path, as_json(data) + "\n")
    if markdown is not None and markdown[0] is not None:
        write_text(markdown[0], markdown[1])


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step: whoever reads it sees what was there before, or all of it.

    Args:
        path: The file; folders are made. One that is no plain file, such as a pipe, is written to.
        text: What it says.

    Raises:
        UserError: It cannot be written; says why.
    """
    _in_one_step(path, lambda place: place.write_text(text, encoding="utf-8"))


def write_parquet(path: Path, rows: pd.DataFrame | pa.Table) -> None:
    """Write a table as Parquet in one step, a frame without its index.

    Args:
        path: The file; folders are made.
        rows: The table.

    Raises:
        UserError: It cannot be written; says why.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pandas(rows, preserve_index=False)
    _in_one_step(path, lambda place: pq.write_table(table, place))


def _in_one_step(path: Path, write: Callable[[Path], object]) -> None:
    try:
        place = path.resolve()
        if place.exists() and not place.is_file():
            write(place)
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f".{place.name[:100]}.{os.getpid()}.part")
        try:
            write(part)
            if place.exists():
                part.chmod(stat.S_IMODE(place.stat().st_mode))
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or 'it is a folder'}") from None


def _plain(value: Any) -> Any:
    if hasattr(value, "item") and not getattr(value, "shape", ()):  # a number of numpy
        return value.item()
    if hasattr(value, "tolist"):
        return value.tolist()
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
