"""Few files of many: rows, their order and when they were written stay, whatever others do meanwhile."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, TableFeatures, write_deltalake
from deltalake.transaction import AddAction

from millrace.checkpoints.positions import TablePosition, has_moved
from millrace.connectors import gathering, upkeep
from millrace.connectors.gathering import (
    Source,
    Written,
    files_of,
    gather_files,
    is_gathered,
    is_plain,
    runs_below,
    sources_of,
    times_of,
    written_of,
)
from millrace.connectors.upkeep import compact, gather, next_run, vacuum
from millrace.dashboard.tables import DeltaReader
from tests.cases import case_count

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("kind", pa.string()),
        ("of", pa.list_(pa.struct([("a", pa.float64()), ("b", pa.string())]))),
        ("by", pa.map_(pa.string(), pa.int64())),
        ("raw", pa.binary()),
        ("is_last", pa.bool_()),
        ("score", pa.float64()),
    ]
)


def row(n: int) -> dict[str, Any]:
    return {
        "n": n,
        "at": datetime.fromtimestamp(1_790_000_000 + n * 1.25, UTC),
        "kind": None if n % 7 == 3 else f"k{n % 5}",
        "of": [{"a": n / 4, "b": None}] * (n % 3),
        "by": [(f"m{i}", n) for i in range(n % 4)],
        "raw": bytes([n % 256]),
        "is_last": n % 2 == 0,
        "score": float("nan") if n % 11 == 5 else n * 0.5,
    }


def append(folder: Path, *numbers: int) -> None:
    rows = pa.Table.from_pylist([row(n) for n in numbers], schema=SCHEMA)
    write_deltalake(str(folder), rows, mode="append")


def numbers(folder: Path) -> list[int]:
    return sorted(DeltaTable(str(folder)).to_pyarrow_table(columns=["n"])["n"].to_pylist())


def all_in_one(folder: Path) -> bool:
    table = DeltaTable(str(folder))
    return gather_files(table, folder, files_of(table))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of six files."""
    for n in range(6):
        append(tmp_path / "t", n * 2, n * 2 + 1)
    return tmp_path / "t"


def test_rows_their_order_types_and_times_stay(table: Path) -> None:
    before = files_of(DeltaTable(str(table)))
    wanted = pa.Table.from_pylist([row(n) for n in range(12)], schema=SCHEMA).to_pylist()
    assert all_in_one(table)
    opened = DeltaTable(str(table))
    (file,) = files_of(opened)
    assert is_gathered(file.name)
    assert file.at_ms == before[-1].at_ms
    assert written_of(table / file.name) == [Written(one.at_ms, 2) for one in before]
    assert sources_of(table / file.name) == [Source(one.name, 2) for one in before]
    found = pq.read_table(table / file.name)
    assert found.schema.remove_metadata().equals(pa.schema(opened.schema().to_arrow()))
    assert str(found.to_pylist()) == str(wanted)  # a NaN is not itself
    assert str(opened.to_pyarrow_table().to_pylist()) == str(wanted)


def test_what_the_log_says_of_columns_holds_for_all_rows(table: Path) -> None:
    assert all_in_one(table)
    (file,) = files_of(DeltaTable(str(table)))
    assert file.statistics["num_records"] == 12
    assert (file.statistics["min.n"], file.statistics["max.n"]) == (0, 11)
    assert file.statistics["min.at"] == row(0)["at"]
    assert file.statistics["max.at"] == row(11)["at"]
    assert file.statistics["null_count.kind"] == 2
    assert (file.statistics["min.kind"], file.statistics["max.kind"]) == ("k0", "k4")
    for n in (-1, 0, 5, 11, 12):
        assert DeltaTable(str(table)).to_pyarrow_table(filters=[("n", "=", n)]).num_rows == (0 <= n <= 11)


def test_bounds_are_those_of_all_values_where_files_have_none(tmp_path: Path) -> None:
    append(tmp_path / "t", 3)  # its kind is null: no bounds
    append(tmp_path / "t", 5)  # its score is no number
    append(tmp_path / "t", 6)
    assert all_in_one(tmp_path / "t")
    (file,) = files_of(DeltaTable(str(tmp_path / "t")))
    said = {name: value for name, value in file.statistics.items() if value is not None}
    assert (said["min.kind"], said["max.kind"], said["null_count.kind"]) == ("k0", "k1", 1)
    assert (said["min.score"], said["max.score"]) == (1.5, 3.0)
    assert (said["min.is_last"], said["max.is_last"]) == (False, True)


#: Values of a column, some of them in files of their own.
COLUMNS = {
    "null in a file": [["a", "b"], [None, None], [None, "c"]],
    "null everywhere": [[None], [None]],
    "missing in a file": [["a"], None, ["b"]],
    "whole numbers": [[3, 1], [None, 2]],
    "infinite": [[1.5, float("inf")], [float("-inf")], [2.5]],
    "no numbers": [[float("nan")], [1.5, float("nan")]],
    "booleans": [[True, None], [False], [True]],
    "decimals": [[Decimal("1.50"), Decimal("12345678901234567.25")], [None, Decimal("-3.75")]],
    "days": [[date(2026, 1, 1)], [date(1, 1, 1), None]],
    "times": [
        [datetime(2026, 1, 1, 0, 0, 0, 123456, UTC)],
        [datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)],
    ],
    "times without a zone": [[datetime(2026, 1, 1, 0, 0, 0, 1)], [datetime(1600, 1, 1)]],  # noqa: DTZ001
    "long texts": [["x" * 300, "é" * 300], ["y" * 64, ""], ["\U0010ffff" * 300]],
    "texts with a bound": [["x" * 300, "é" * 300], ["y" * 64, ""], [None]],
    "bytes": [[b"a", b"\xff" * 300], [None]],
}


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("groups", [1, 100])
def test_no_reader_leaves_out_rows_of_which_bounds_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, groups: int
) -> None:
    monkeypatch.setattr(gathering, "_GROUP_ROWS", groups)
    folder, files = tmp_path / "t", COLUMNS[kind]
    every = [value for values in files for value in values or ()]
    values = pa.array(every, pa.string() if {*every} == {None} else None)
    rows, number = [], 0
    for some in files:
        count = 1 if some is None else len(some)
        part = {"n": list(range(number, number + count))}
        if some is not None:
            part["a.b"] = pa.array(some, values.type)
        rows += [(number + place, None if some is None else some[place]) for place in range(count)]
        number += count
        write_deltalake(folder, pa.table(part), mode="append", schema_mode="merge")
    assert all_in_one(folder)
    table = DeltaTable(folder)
    reader, engine = table.to_pyarrow_dataset(), QueryBuilder().register("t", table)
    whole = reader.to_table()
    assert [(n, str(value)) for n, value in zip(*whole.to_pydict().values(), strict=True)] == [
        (n, str(value)) for n, value in rows
    ]
    for value in {value for _, value in rows if value is not None and value == value}:
        wanted = [n for n, other in rows if other == value]
        assert (
            reader.to_table(filter=ds.field("a.b") == pa.scalar(value, values.type))["n"].to_pylist()
            == wanted
        )
        assert DeltaReader(folder, lambda: 0).where("a.b", value, limit=9)["n"].to_pylist() == wanted
    texts = {value for _, value in rows if value} if pa.types.is_string(values.type) else ()
    asked = {f"n = {n}": 1 for n, _ in rows}
    asked |= {f"\"a.b\" = '{value}'": sum(other == value for _, other in rows) for value in texts}
    for condition, count in asked.items():
        answer = engine.execute(f"SELECT count(*) AS c FROM t WHERE {condition}").read_all()  # noqa: S608
        assert pa.table(answer)["c"].to_pylist() == [count]


def test_a_file_of_an_earlier_version_gets_the_columns_of_now(tmp_path: Path) -> None:
    for n in (1, 2):
        write_deltalake(str(tmp_path / "t"), pa.table({"n": [n]}), mode="append")
    more = pa.table({"n": [3], "text": ["x"]})
    write_deltalake(str(tmp_path / "t"), more, mode="append", schema_mode="merge")
    assert all_in_one(tmp_path / "t")
    found = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
    assert found == [{"n": 1, "text": None}, {"n": 2, "text": None}, {"n": 3, "text": "x"}]


def test_of_gathered_files_that_are_gathered_again_times_stay(table: Path) -> None:
    before = files_of(DeltaTable(str(table)))
    assert all_in_one(table)
    append(table, 12)
    append(table, 13, 14)
    after = files_of(DeltaTable(str(table)))
    assert all_in_one(table)
    (file,) = files_of(DeltaTable(str(table)))
    times = [
        *(Written(one.at_ms, 2) for one in before),
        *(Written(one.at_ms, n) for n, one in enumerate(after) if n),
    ]
    assert written_of(table / file.name) == times
    assert [one.rows for one in sources_of(table / file.name)] == [12, 1, 2]
    assert times_of(times).to_pylist() == [one.at_ms for one in times for _ in range(one.rows)]


def test_a_footer_tells_so_many_times_apart(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files_of(DeltaTable(str(table)))
    monkeypatch.setattr(gathering, "_MOST_TIMES", 4)
    assert all_in_one(table)
    (file,) = files_of(DeltaTable(str(table)))
    assert written_of(table / file.name) == [Written(before[n].at_ms, 4) for n in (1, 3, 5)]
    assert numbers(table) == list(range(12))


def test_rows_are_written_in_groups(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_GROUP_ROWS", 5)
    assert all_in_one(table)
    (file,) = files_of(DeltaTable(str(table)))
    footer = pq.read_metadata(table / file.name)
    assert [footer.row_group(n).num_rows for n in range(footer.num_row_groups)] == [6, 6]
    reader = DeltaReader(table, lambda: 0)
    assert reader.latest(4, ["n"])["n"].to_pylist() == [8, 9, 10, 11]
    assert reader.latest(9, ["n"])["n"].to_pylist() == [*range(3, 12)]
    assert all_in_one(table)
    assert numbers(table) == list(range(12))


def test_files_of_a_run_stand_behind_each_other_and_make_one_of_about_a_size() -> None:
    def of(*sizes: int) -> list[gathering.TableFile]:
        return [gathering.TableFile(str(place), size, place, {}) for place, size in enumerate(sizes)]

    def runs(*sizes: int, target: int = 10, in_order: bool = True) -> list[str]:
        return ["".join(f.name for f in run) for run in runs_below(of(*sizes), 10, target, in_order=in_order)]

    assert runs() == runs(1) == runs(10, 10) == runs(3, 10, 3) == []
    assert runs(1, 2, 3) == ["012"]
    assert runs(1, 2, 12, 3, 4, 10, 5) == ["01", "34"]
    assert runs(1, 2, 12, 3, 4, 10, 5, in_order=False) == ["0134"]
    assert runs(1, 2, 12, 3, 2, 10, 5, in_order=False) == ["01346"]
    assert runs(6, 6, 6, 6, 6) == ["01", "23"]
    assert runs(9, 1, 9) == ["01"]
    assert runs(9, 1, 9, 9, 11, 1, 9, target=19) == ["012", "56"]


def others() -> dict[str, Callable[[Path], None]]:
    """What somebody else may do between reading files and committing."""
    return {
        "appends": lambda folder: append(folder, 99),
        "appends twice": lambda folder: (append(folder, 98), append(folder, 99))[0],
        "deletes": lambda folder: DeltaTable(str(folder)).delete("n = 3") and None,
        "deletes all": lambda folder: DeltaTable(str(folder)).delete() and None,
        "compacts": lambda folder: DeltaTable(str(folder)).optimize.compact() and None,
        "gathers": lambda folder: all_in_one(folder) and None,
        "adds a column": lambda folder: write_deltalake(
            str(folder), pa.table({"n": [99], "new": [1]}), mode="append", schema_mode="merge"
        ),
        "overwrites": lambda folder: write_deltalake(
            str(folder), pa.Table.from_pylist([row(7)], schema=SCHEMA), mode="overwrite"
        ),
    }


@pytest.mark.parametrize("other", others())
def test_what_somebody_else_does_meanwhile_stays_and_no_row_is_lost_or_there_twice(
    other: str, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[int] = []
    commit = gathering._commit

    def late(*args: Any) -> bool:
        monkeypatch.setattr(gathering, "_commit", commit)
        others()[other](table)
        wanted.extend(numbers(table))
        return commit(*args)

    opened = DeltaTable(str(table))
    monkeypatch.setattr(gathering, "_commit", late)
    assert gather_files(opened, table, files_of(opened)) is other.startswith("appends")
    assert numbers(table) == wanted
    held = {file.name for file in files_of(DeltaTable(str(table)))}
    assert {path.name for path in table.glob("*gathered-*")} == {
        name for name in held if is_gathered(name)
    } | ({path.name for path in table.glob("gathered-*")} if other == "gathers" else set())


def test_a_file_stays_where_what_failed_was_behind_its_commit(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DeltaTable.create_write_transaction

    def failing(self: DeltaTable, *args: Any, **more: Any) -> None:
        real(self, *args, **more)
        raise OSError("no room for a checkpoint")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", failing)
    with pytest.raises(OSError, match="no room"):
        all_in_one(table)
    monkeypatch.undo()
    assert numbers(table) == list(range(12))
    assert len(files_of(DeltaTable(str(table)))) == 1


def test_rows_are_on_the_disk_before_files_that_have_them_go(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, real = os.fsync, DeltaTable.create_write_transaction

    def forced(descriptor: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name[:10])
        fsync(descriptor)

    def committed(self: DeltaTable, *args: Any, **more: Any) -> None:
        done.append("committed")
        real(self, *args, **more)

    monkeypatch.setattr(os, "fsync", forced)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", committed)
    assert all_in_one(table)
    assert done == ["_gathered-", "committed"]


def test_a_file_goes_where_nothing_was_committed(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: DeltaTable, *args: Any, **more: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", failing)
    with pytest.raises(OSError, match="full"):
        all_in_one(table)
    assert list(table.glob("*gathered-*")) == []
    assert numbers(table) == list(range(12))


def test_what_a_run_that_was_cut_off_has_left_goes_with_the_next(table: Path) -> None:
    (table / "_gathered-0.parquet").write_bytes(b"half of")
    assert numbers(table) == list(range(12))
    assert all_in_one(table)
    assert len(list(table.glob("*gathered-*"))) == 1


def test_of_a_table_that_is_more_than_its_files_the_library_makes_few(tmp_path: Path) -> None:
    for n in range(40):
        rows = pa.table({"n": [n], "day": ["a"]})
        write_deltalake(str(tmp_path / "t"), rows, mode="append", partition_by=["day"])
    opened = DeltaTable(str(tmp_path / "t"))
    assert not is_plain(opened)
    assert gather(opened, tmp_path / "t", many=4) == 0
    assert (compact(tmp_path / "t").before, numbers(tmp_path / "t")) == (40, list(range(40)))


def test_small_files_between_large_ones_are_not_put_out_of_order(tmp_path: Path) -> None:
    def large(first: int) -> None:
        rows = pa.table(
            {"n": [*range(first, first + 4_000)], "x": [random.Random(first).randbytes(400)] * 4_000}
        )
        rows = rows.set_column(
            1, "x", pa.array([random.Random(first + i).randbytes(400) for i in range(4_000)])
        )
        write_deltalake(str(tmp_path / "t"), rows, mode="append")

    def small(n: int) -> None:
        write_deltalake(str(tmp_path / "t"), pa.table({"n": [n], "x": [b"x"]}), mode="append")

    for n in range(6):
        small(n)
    large(1_000)
    for n in range(10, 16):
        small(n)
    opened = DeltaTable(str(tmp_path / "t"))
    assert [gather(opened, tmp_path / "t", many=4, in_order=True) for _ in "123"] == [5, 5, 0]
    found = [pq.read_table(tmp_path / "t" / f.name, columns=["n"])["n"].to_pylist() for f in files_of(opened)]
    assert found == [[*range(6)], [*range(1_000, 5_000)], [*range(10, 16)]]


def test_a_table_whose_files_became_fewer_has_not_moved(table: Path) -> None:
    def moved(at: int) -> bool:
        return has_moved(table, TablePosition("delta", at, "0123456789ab"))

    at = DeltaTable(str(table)).version()
    assert all_in_one(table)
    assert (moved(at - 1), moved(at)) == (True, False)
    append(table, 12)
    assert moved(at)
    at += 2
    assert not moved(at)
    compact(table)
    assert not moved(at)
    DeltaTable(str(table)).optimize.compact()
    assert not moved(at)
    DeltaTable(str(table)).delete("n = 3")
    assert moved(at)
    DeltaTable(str(table)).alter.set_table_properties({"delta.logRetentionDuration": "interval 3 days"})
    assert moved(DeltaTable(str(table)).version() - 1)


def test_a_table_whose_old_files_were_removed_has_not_moved(table: Path) -> None:
    kept = TablePosition("delta", DeltaTable(str(table)).version(), "0123456789ab")
    compact(table)
    vacuum(table, keep_ms=0)
    assert not has_moved(table, kept)
    append(table, 12)
    assert has_moved(table, kept)


def test_whether_a_table_has_moved_is_not_told_by_half_a_log(table: Path) -> None:
    kept = TablePosition("delta", DeltaTable(str(table)).version(), "0123456789ab")
    append(table, 12)
    compact(table)
    (table / "_delta_log" / f"{kept.version + 1:020}.json").unlink()  # cleaned up
    assert has_moved(table, kept)


def test_a_table_that_is_more_than_its_files_by_then_is_left_as_it_is(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = gathering._commit

    def late(*args: Any) -> bool:
        DeltaTable(str(table)).alter.add_feature(
            TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
        )
        return commit(*args)

    opened = DeltaTable(str(table))
    monkeypatch.setattr(gathering, "_commit", late)
    assert not gather_files(opened, table, files_of(opened))
    assert list(table.glob("*gathered-*")) == []


def test_times_are_those_that_spark_has_written(tmp_path: Path) -> None:
    """Spark writes them so that, in nanoseconds, those before 1677 and after 2262 are others."""
    times = [datetime(year, 12, 31, 1, 2, 3, 123456, UTC) for year in (1601, 2026, 9999)]
    rows = pa.table({"at": pa.array(times, pa.timestamp("us", "UTC"))})
    table = DeltaTable.create(str(tmp_path / "t"), rows.schema)
    for number in range(2):
        name = f"part-{number}.parquet"
        pq.write_table(rows, tmp_path / "t" / name, use_deprecated_int96_timestamps=True, store_schema=False)
        size = (tmp_path / "t" / name).stat().st_size
        action = AddAction(name, size, {}, number, True, '{"numRecords":3}')
        table.create_write_transaction([action], "append", table.schema())
        table.update_incremental()
    assert gather_files(table, tmp_path / "t", files_of(table))
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["at"].to_pylist() == times * 2
    for at in times:
        assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table(filters=[("at", "=", at)]).num_rows == 2


# -- which files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "most", "times"),
    [
        ([10], 220, 1.1),
        ([900, 1_200], 400, 1.3),  # about the border between two sizes
        ([900] * 9 + [1_200], 400, 1.3),
        ([900] + [1_200] * 9, 400, 1.3),
        ([10] * 19 + [3_000], 250, 1.3),
        ([10] * 19 + [20_000], 250, 1.3),
    ],
)
def test_files_stay_few_whatever_their_sizes_and_no_row_is_written_often(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], most: int, times: float
) -> None:
    """Looked at after every eight batches, as a job does."""
    monkeypatch.setattr(upkeep, "LEVELS_BYTES", (1_000, 16_000, 128_000))
    monkeypatch.setattr(upkeep, "TARGET_BYTES", 128_000)
    chance, files, written = random.Random(1), [], 0
    appended: list[int] = []
    for number in range(3_000):
        appended.append(chance.choice(sizes))
        files.append(gathering.TableFile(f"{number:05}", appended[-1], number, {}))
        if number % 8 == 7 and (run := next_run(files, many=128, in_order=True)):
            place = files.index(run[0])
            assert files[place : place + len(run)] == run
            made = gathering.TableFile(run[-1].name, sum(file.size for file in run), run[-1].at_ms, {})
            files[place : place + len(run)] = [made]
            written += made.size
            assert made.size < 2 * 128_000
        assert len(files) <= most
    assert sum(file.size for file in files) == sum(appended)
    assert written <= times * sum(appended)


# -- a random history ----------------------------------------------------------------------------------


class History:
    """A table to which things happen, and what its readers must be told, kept in lists."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.rows: list[tuple[int, int]] = []  # number, when it was written
        self.next = 0
        self.reader: DeltaReader | None = None
        self.now = 0

    def append(self) -> None:
        fresh = [*range(self.next, self.next + self.chance.choice((1, 1, 2, 5)))]
        self.next += len(fresh)
        append(self.folder, *fresh)
        at_ms = files_of(DeltaTable(str(self.folder)))[-1].at_ms
        self.rows += [(n, at_ms) for n in fresh]

    def gather(self) -> None:
        opened = DeltaTable(str(self.folder))
        if self.chance.random() < 0.3 and self.next:
            files = files_of(opened)
            begin = self.chance.randrange(len(files))
            gather_files(opened, self.folder, files[begin : begin + self.chance.randrange(1, 5)])
        elif self.chance.random() < 0.5:
            gather(opened, self.folder, many=self.chance.choice((1, 2, 5)), in_order=True)
        else:
            compact(self.folder, target_bytes=self.chance.choice((1, 6_000, 20_000, 1 << 20)))

    def vacuum(self) -> None:
        vacuum(self.folder, keep_ms=0)

    def look(self) -> None:
        self.now += 10_000
        if self.reader is None or self.chance.random() < 0.1:
            self.reader = DeltaReader(self.folder, lambda: self.now)
        self.reader.refresh()
        found = [n for n, _ in self.rows]
        some = self.chance.randrange(1, len(found) + 3)
        assert self.reader.rows == len(found)
        assert self.reader.latest(some, ["n"])["n"].to_pylist() == found[-some:]
        kind = f"k{self.chance.randrange(5)}"
        of_kind = [n for n in found if row(n)["kind"] == kind]
        assert (
            self.reader.recent("kind", kind, limit=some, columns=["n", "kind"])["n"].to_pylist()
            == (of_kind[-some:])
        )
        total = self.reader.fold("numbers", ["n"], list, lambda to, part: to + part["n"].to_pylist())
        assert sorted(total) == found
        first, last = self.rows[0][1] // 5, self.rows[-1][1] // 5 + 1
        rates = self.reader.rates(first * 5, last * 5, 5)
        wanted = dict.fromkeys(range(first, last), 0)
        for _, at_ms in self.rows:
            wanted[at_ms // 5] += 1
        assert rates == [(place * 5, count * 200) for place, count in wanted.items()]
        assert self.reader.newest_ms == self.rows[-1][1]


@pytest.mark.parametrize("seed", range(case_count(60)))
def test_readers_are_told_the_same_however_files_are_gathered(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path / "t", random.Random(seed))
    history.append()
    for _ in range(history.chance.randrange(10, 40)):
        history.chance.choice(
            (history.append, history.append, history.gather, history.look, history.vacuum)
        )()
    history.look()
    assert numbers(tmp_path / "t") == [n for n, _ in history.rows]
