"""A file as a stream: its rows, keys, times and order, whatever its format."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace.testing.world_ledger import read_world_ledger
from millrace_apps.generators.engine.pace import pace
from millrace_apps.generators.replay import Replay, replayed
from millrace_apps.generators.replay_cli import app

ROWS = [
    {"user": "007", "at": 1_767_225_600_000, "amount": 2.5},
    {"user": "b", "at": 1_767_225_603_000, "amount": None},
    {"user": "007", "at": 1_767_225_601_000, "amount": 4.0},
    {"user": "c", "at": 1_767_225_605_500, "amount": 0.1},
]
TIMES = [row["at"] for row in ROWS]


def jsonl(folder: Path, rows: list[Any] = ROWS) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def csv(folder: Path) -> Path:
    path = folder / "rows.csv"
    lines = ["user,at,amount", *(f"{r['user']},{r['at']},{r['amount'] or ''}" for r in ROWS)]
    path.write_text("\n".join(lines) + "\n")
    return path


def parquet(folder: Path) -> Path:
    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


@pytest.mark.parametrize("make", [jsonl, csv, parquet])
def test_every_format_gives_the_same_rows_keys_and_times(make: Any, tmp_path: Path) -> None:
    sent = list(replayed(Replay(path=make(tmp_path), time_column="at", key_column="user"), "topic"))
    assert [json.loads(m.value) for m in sent] == ROWS
    assert [m.key for m in sent] == [b"007", b"b", b"007", b"c"]
    assert [m.event_time_ms for m in sent] == TIMES
    assert {m.topic for m in sent} == {"topic"}
    headers = [dict(m.headers) for m in sent]
    assert len({h["ce_id"] for h in headers}) == 4
    assert headers[3]["ce_time"] == b"2026-01-01T00:00:05.500Z"


def test_json_lines_are_sent_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "odd.ndjson"
    lines = [b'{"at": 5,  "z":1, "a":"\xc3\xa9"}', b'{"at":6}']
    path.write_bytes(b"\r\n".join(lines) + b"\n\n")
    assert [m.value for m in replayed(Replay(path=path, time_column="at"), "t")] == lines


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@pytest.mark.parametrize(
    ("speed", "rate", "expected"),
    [(1.0, None, [0, 3, 3, 5.5]), (2.0, None, [0, 1.5, 1.5, 2.75]), (1.0, 4.0, [0, 0.25, 0.5, 0.75])],
)
def test_rows_go_at_the_files_own_pace_or_at_a_rate(
    speed: float, rate: float | None, expected: list[float], tmp_path: Path
) -> None:
    """A row that is older than one before it goes out with that one, as late as it is in the file."""
    clock = Clock()
    stream = replayed(Replay(path=jsonl(tmp_path), time_column="at", rate=rate), "t")
    paced = pace(stream, speed=speed, start_ms=TIMES[0], clock=clock)
    assert [clock.time for _ in paced] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (1.5, "s", 1_500),
        (1_500_000, "us", 1_500),
        (1_500_000_000, "ns", 1_500),
        ("1970-01-01T00:00:01.500Z", "ms", 1_500),
        ("1970-01-01 01:00:01.5+01:00", "ms", 1_500),
        ("1970-01-01 00:00:01.5", "ms", 1_500),
        ("1970-01-02", "ms", 86_400_000),
    ],
)
def test_times_are_read_in_their_unit_and_as_utc(
    value: Any, unit: str, expected: int, tmp_path: Path
) -> None:
    path = jsonl(tmp_path, [{"at": value}])
    (message,) = replayed(Replay(path=path, time_column="at", time_unit=unit), "t")
    assert message.event_time_ms == expected


@pytest.mark.parametrize("kind", [pa.timestamp("us", tz="UTC"), pa.timestamp("ms"), pa.date32()])
def test_times_of_parquet_are_read(kind: pa.DataType, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    value = moment.date() if kind == pa.date32() else moment
    pq.write_table(pa.table({"at": pa.array([value], kind)}), path)
    (message,) = replayed(Replay(path=path, time_column="at"), "t")
    assert message.event_time_ms == TIMES[0]
    assert json.loads(message.value)["at"].startswith("2026-01-01")


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"when": 1}], "row 1 has no column at; it has when"),
        ([{"at": 1}, {"at": None}], "row 2: at is no time: None"),
        ([{"at": "noon"}], "row 1: at is no time: noon"),
        ([{"at": True}], "row 1: at is no time"),
        ([{"at": -5}], "not between the years 1970 and 9999"),
        ([{"at": 1_767_225_600_000_000}], "--time-unit says otherwise"),
        ([[1]], r"rows\.jsonl:1: no JSON object"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(rows: list[Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        list(replayed(Replay(path=jsonl(tmp_path, rows), time_column="at"), "t"))


@pytest.mark.parametrize(
    ("name", "unit", "says"),
    [
        ("rows.jsonl", "min", "--time-unit is one of"),
        ("rows.xls", "ms", "is none of"),
        ("no.csv", "ms", "there is no file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name: str, unit: str, says: str, tmp_path: Path) -> None:
    jsonl(tmp_path)
    with pytest.raises(UserError, match=says):
        Replay(path=tmp_path / name, time_column="at", time_unit=unit)


def test_a_torn_parquet_file_is_named(tmp_path: Path) -> None:
    path = parquet(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="cannot read"):
        list(replayed(Replay(path=path, time_column="at"), "t"))


def test_the_command_writes_rows_and_a_ledger(tmp_path: Path) -> None:
    out, ledger = tmp_path / "out.jsonl", tmp_path / "ledger.jsonl"
    flags = ["--time-column", "at", "--key", "user", "--rate", "max", "--to", "jsonl", "--out", str(out)]
    done = CliRunner().invoke(app, [str(parquet(tmp_path)), *flags, "--ledger", str(ledger), "--events", "3"])
    assert done.exit_code == 0, done.output
    assert [json.loads(line) for line in out.read_bytes().splitlines()] == ROWS[:3]
    found = read_world_ledger(ledger)
    assert (found.summary.sent, found.summary.streams) == (3, {"rows": 3})
    assert found.run.parameters["time_column"] == "at"


def test_the_command_shows_a_sample(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [str(csv(tmp_path)), "--time-column", "at", "--sample", "1"])
    assert json.loads(done.stdout)["topic"] == "rows"


def test_an_empty_file_is_an_empty_stream(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    flags = ["--time-column", "at", "--to", "jsonl", "--out", str(out), "--quiet"]
    assert CliRunner().invoke(app, [str(jsonl(tmp_path, [])), *flags]).exit_code == 0
    assert out.read_bytes() == b""
