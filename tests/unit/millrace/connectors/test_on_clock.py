"""What a writer tells of the clock: once for each batch, when its records are written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from millrace.connectors.driver_writer import DriverWriter
from millrace.connectors.router import DeadLetterLimit, Outputs, TooManyDeadLetters
from millrace.host.chunks import WATERMARK, encode_emissions, encode_status
from millrace.host.runner import Emission
from millrace.time.clock import ClockStatus

STATUS = ClockStatus(5, 9, 15, 14, True, "in:3")
Row = tuple[str, int, bytes]


class Total(msgspec.Struct):
    n: int


def batch(*rows: Row) -> Any:
    """A batch as the state operator gives it."""
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    table = pa.table(
        {
            "output": pa.array(columns[0], pa.string()),
            "records": pa.array(columns[1], pa.int64()),
            "chunk": pa.array(columns[2], pa.binary()),
        }
    )
    return SimpleNamespace(toArrow=lambda: table)


def totals(*numbers: int) -> Row:
    emissions = [Emission("main", f"i{n}", "1:a", n, True, msgspec.json.encode(Total(n))) for n in numbers]
    ((output, records, chunk),) = encode_emissions(emissions)
    return output, records, chunk


def told(status: ClockStatus = STATUS) -> Row:
    return WATERMARK, 0, encode_status(status)


class Heard:
    """Notes what it is told, and how many rows the table had by then."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.of: list[tuple[int, ClockStatus, int]] = []

    def __call__(self, batch_id: int, status: ClockStatus) -> None:
        self.of.append((batch_id, status, rows(self._folder)))


def rows(folder: Path) -> int:
    path = str(folder / "totals")
    return len(DeltaTable(path).to_pyarrow_table()) if DeltaTable.is_deltatable(path) else 0


def writer(folder: Path, heard: Heard | None, limit: DeadLetterLimit | None = None) -> DriverWriter:
    stream: Any = SimpleNamespace(types={"main": Total})
    outputs = Outputs(stream, {"main": "totals"})
    limit = limit or DeadLetterLimit()
    return DriverWriter(outputs, lambda table: str(folder / table), {}, "a", limit, on_clock=heard)


def test_the_clock_of_a_batch_is_told_when_its_records_are_written(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    counts = writer(tmp_path, heard).write(batch(totals(1, 2), told(), totals(3)), 7)
    assert heard.of == [(7, STATUS, 3)]
    assert counts == {"main": 3}  # how far the clock is, is no output


def test_a_batch_without_records_tells_its_clock_too(tmp_path: Path) -> None:
    """One that was asked for by the ticker's wake."""
    heard = Heard(tmp_path)
    assert writer(tmp_path, heard).write(batch(told()), 0) == {}
    assert heard.of == [(0, STATUS, 0)]


def test_a_batch_that_runs_again_tells_the_same_and_writes_nothing(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    into = writer(tmp_path, heard)
    for _ in range(2):
        into.write(batch(totals(1), told()), 0)
    assert heard.of == [(0, STATUS, 1)] * 2


def test_a_batch_that_says_nothing_of_its_clock_or_that_nobody_asks_is_written_all_the_same(
    tmp_path: Path,
) -> None:
    heard = Heard(tmp_path)
    assert writer(tmp_path, heard).write(batch(totals(1)), 0) == {"main": 1}
    assert heard.of == []
    assert writer(tmp_path, None).write(batch(totals(2), told()), 1) == {"main": 1}
    assert rows(tmp_path) == 2


def test_the_clock_of_a_batch_that_is_stopped_is_not_told(tmp_path: Path) -> None:
    """It is not committed: what its clock would have come to is nobody's business."""
    heard = Heard(tmp_path)
    letters = [Emission("dead_letters", None, "1:a", 0, False, b"{}")] * 50
    into, refused = (
        writer(tmp_path, heard, DeadLetterLimit(0.1, 10)),
        batch(*encode_emissions(letters), told()),
    )
    with pytest.raises(TooManyDeadLetters):
        into.write(refused, 0)
    assert heard.of == []
