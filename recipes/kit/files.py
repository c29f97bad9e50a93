"""The files that Spark reads as a stream, one a batch, and what it has made of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


def write_batches(folder: Path, batches: Iterable[Sequence[Any]], *, start: int = 0) -> None:
    """Write batches of records as JSON, a file each; ``start`` is the number of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, batch in enumerate(batches, start):
        write_file(folder, number, [msgspec.json.encode(record) for record in batch])


def write_file(folder: Path, number: int, lines: Iterable[bytes]) -> None:
    """Write the file of a batch."""
    path = folder / f"{number:05}.json"
    path.write_bytes(b"\n".join(lines))
    # Spark takes files by the time they were changed; a second apart leaves no doubt.
    os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))


def committed_batches(state: Path) -> list[int]:
    """Return the batches that a checkpoint of ``write_to`` knows to be done."""
    commits = (state / "checkpoint" / "commits").glob("[0-9]*")
    return sorted(int(path.name) for path in commits if path.name.isdigit())


def delta_rows(spark: SparkSession, table: Path) -> list[Row]:
    """Return the rows of a Delta table by event time, and then by their first column."""
    rows = spark.read.format("delta").load(str(table))
    return rows.orderBy("_event_time", rows.columns[0]).collect()
