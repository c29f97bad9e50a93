"""Tables of the dashboard: only what is new is read, and what is read is what is there."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import shutil
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

import millrace.dashboard
from millrace.connectors import gathering
from millrace.connectors.upkeep import compact, vacuum
from millrace.dashboard.broker import Broker, BrokerAway
from millrace.dashboard.common_panels import standing_of
from millrace.dashboard.progress import lag, offsets_of, read_progress
from millrace.dashboard.tables import DeltaReader, open_table
from millrace.dashboard.values import cell, table_of
from tests.cases import case_count
from tests.unit.millrace.dashboard.cases import Clock, data_of, put, put_checkpoint


def reader(root: Path, clock: Clock, table: str = "sales") -> DeltaReader:
    found = open_table(root / "tables" / table, clock)
    assert found is not None
    return found


def total(value: int, rows: pa.Table) -> int:
    return value + int(sum(rows["n"].to_pylist()))


def test_there_is_no_reader_of_what_is_no_table(tmp_path: Path) -> None:
    assert open_table(tmp_path / "nothing", Clock()) is None
    (tmp_path / "empty" / "_delta_log").mkdir(parents=True)
    assert open_table(tmp_path / "empty", Clock()) is None


def test_the_latest_rows_come_from_the_newest_files(tmp_path: Path) -> None:
    for n in range(5):
        put(tmp_path, "sales", [{"n": n * 10 + i, "text": "x"} for i in range(3)])
    found = reader(tmp_path, Clock())
    assert found.rows == 15
    assert found.latest(4, ["n"]).to_pydict() == {"n": [32, 40, 41, 42]}
    assert found.latest(100).column_names == ["n", "text"]
    assert found.latest(2, ["n", "gone"]).column_names == ["n"]


def test_a_new_version_is_seen_after_a_moment(tmp_path: Path) -> None:
    clock = Clock()
    put(tmp_path, "sales", [{"n": 1}])
    found = reader(tmp_path, clock)
    put(tmp_path, "sales", [{"n": 2}])
    found.refresh()
    assert found.rows == 1  # looked at a moment ago
    clock.later()
    found.refresh()
    assert (found.rows, found.version) == (2, 1)


def test_a_fold_reads_every_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, read = Clock(), []
    put(tmp_path, "sales", [{"n": 1}, {"n": 2}])
    found = reader(tmp_path, clock)
    original = DeltaReader._read
    monkeypatch.setattr(
        DeltaReader, "_read", lambda self, path, columns: read.append(path) or original(self, path, columns)
    )
    assert found.fold("sum", ["n"], int, total) == 3
    assert found.fold("sum", ["n"], int, total) == 3
    put(tmp_path, "sales", [{"n": 10}])
    clock.later()
    found.refresh()
    assert found.fold("sum", ["n"], int, total) == 13
    assert len(read) == len(set(read)) == 2


@pytest.mark.parametrize("seed", range(case_count(12)))
def test_a_fold_is_the_sum_of_the_table_whatever_happened_to_it(tmp_path: Path, seed: int) -> None:
    """Appends, compactions, deletes and restores at random; after each, the sum of a plain reading."""
    random, clock = Random(seed), Clock()
    path = str(tmp_path / "tables" / "sales")
    put(tmp_path, "sales", [{"n": 0}])
    found = reader(tmp_path, clock)
    for _ in range(12):
        what = random.choice(
            ["append", "append", "append", "compact", "gather", "gather", "delete", "restore"]
        )
        if what == "append":
            put(tmp_path, "sales", [{"n": random.randrange(100)} for _ in range(random.randrange(1, 5))])
        elif what == "compact":
            DeltaTable(path).optimize.compact()
        elif what == "gather":
            compact(Path(path), target_bytes=random.choice([1, 2_000, 1 << 20]))
        elif what == "delete":
            DeltaTable(path).delete(f"n > {random.randrange(50, 100)}")
        else:
            if version := DeltaTable(path).version():
                DeltaTable(path).restore(random.randrange(version))
        clock.later()
        found.refresh()
        wanted = DeltaTable(path).to_pyarrow_table()
        assert found.fold("sum", ["n"], int, total) == sum(wanted["n"].to_pylist())
        assert found.rows == wanted.num_rows


def test_of_gathered_files_a_fold_adds_what_is_new(tmp_path: Path) -> None:
    clock, seen = Clock(), []
    put(tmp_path, "sales", [{"n": 1}])
    put(tmp_path, "sales", [{"n": 2}])
    found = reader(tmp_path, clock)

    def sum_of(value: int, rows: pa.Table) -> int:
        seen.extend(rows["n"].to_pylist())
        return total(value, rows)

    assert found.fold("sum", ["n"], int, sum_of) == 3
    for n in (3, 4):  # twice gathered before it is looked again
        put(tmp_path, "sales", [{"n": n}])
        assert compact(tmp_path / "tables" / "sales").after == 1
    put(tmp_path, "sales", [{"n": 5}])
    clock.later()
    found.refresh()
    assert found.fold("sum", ["n"], int, sum_of) == 15
    assert sorted(seen) == [1, 2, 3, 4, 5]
    assert compact(tmp_path / "tables" / "sales").before == 2
    vacuum(tmp_path / "tables" / "sales", keep_ms=0)
    clock.later()
    found.refresh()
    assert found.fold("sum", ["n"], int, sum_of) == 15
    assert sorted(seen) == [1, 2, 3, 4, 5]


def test_of_a_large_file_a_fold_has_a_part_in_memory_and_nothing_that_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "_GROUP_ROWS", 10)
    clock, folder = Clock(), tmp_path / "tables" / "sales"
    groups, seen = [], []
    original = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile,
        "read_row_group",
        lambda self, group, **more: groups.append(group) or original(self, group, **more),
    )

    def collect(value: list[int], rows: pa.Table) -> list[int]:
        seen.append(rows.num_rows)
        return value + rows["n"].to_pylist()

    for n in range(20):
        put(tmp_path, "sales", [{"n": n * 5 + i} for i in range(5)])
    compact(folder)
    groups.clear()
    found = reader(tmp_path, clock)
    assert found.fold("all", ["n"], list, collect) == [*range(100)]
    assert (max(seen), groups) == (10, [*range(10)])
    put(tmp_path, "sales", [{"n": 100}])
    clock.later()
    found.refresh()
    assert found.fold("all", ["n"], list, collect) == [*range(101)]
    put(tmp_path, "sales", [{"n": 101}])
    compact(folder)
    groups.clear()
    clock.later()
    found.refresh()
    assert found.fold("all", ["n"], list, collect) == [*range(102)]
    assert groups == [10]


def test_of_a_large_file_only_rows_of_the_last_while_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "_GROUP_ROWS", 10)
    clock, folder, read = Clock(), tmp_path / "tables" / "sales", []
    original = pq.ParquetFile.read_row_groups
    monkeypatch.setattr(
        pq.ParquetFile,
        "read_row_groups",
        lambda self, groups, **more: read.append(groups) or original(self, groups, **more),
    )
    for n in range(20):
        put(tmp_path, "sales", [{"n": n * 5 + i, "at": n * 5 + i} for i in range(5)])
    compact(folder)
    found = reader(tmp_path, clock)
    for _ in range(2):
        assert sorted(found.lately("at", 15)["n"].to_pylist()) == [*range(85, 100)]
    assert read == [[8, 9]]
    assert sum(part.num_rows for kept in found._lately.values() for _, part in kept.values()) == 15
    put(tmp_path, "sales", [{"n": 100, "at": 110}])
    clock.later()
    found.refresh()
    assert sorted(found.lately("at", 15)["n"].to_pylist()) == [96, 97, 98, 99, 100]
    DeltaTable(str(folder)).delete("at = 110")
    clock.later()
    found.refresh()
    assert sorted(found.lately("at", 15)["n"].to_pylist()) == [*range(85, 100)]
    assert sorted(found.lately("at", 40)["n"].to_pylist()) == [*range(60, 100)]


def test_rows_of_both_writers_are_of_the_tables_types(tmp_path: Path) -> None:
    """Spark, which writes large batches, writes times without a zone, and in nanoseconds few years have."""
    times = [datetime(year, 12, 31, 1, 2, 3, 123456, UTC) for year in (1601, 2026, 9999)]
    kind = pa.timestamp("us", "UTC")
    rows = pa.table({"n": [1, 2, 3], "at": pa.array(times, kind), "of": [{"at": at} for at in times]})
    rows = rows.set_column(2, "of", rows["of"].cast(pa.struct([("at", kind)])))
    folder = tmp_path / "tables" / "sales"
    write_deltalake(folder, rows, mode="append")
    file = folder / "part-spark.parquet"
    pq.write_table(rows, file, use_deprecated_int96_timestamps=True, store_schema=False)
    table = DeltaTable(folder)
    added = AddAction(file.name, file.stat().st_size, {}, 9_999_999_999_999, True, '{"numRecords":3}')
    table.create_write_transaction([added], "append", table.schema())
    found = reader(tmp_path, Clock())
    wanted = [{"n": n, "at": at, "of": {"at": at}} for n, at in zip((1, 2, 3), times, strict=True)] * 2
    assert found.latest(9).to_pylist() == wanted
    assert sorted(found.lately("n", 9).to_pylist(), key=str) == sorted(wanted, key=str)
    assert found.fold("rows", ["at"], list, lambda to, part: to + part["at"].to_pylist()) == times * 2


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_the_last_while_are_those_of_a_plain_reading(tmp_path: Path, seed: int) -> None:
    """Appends out of order, merges, compactions, deletes and restores at random."""
    random, clock = Random(seed), Clock()
    path = str(tmp_path / "tables" / "sales")
    put(tmp_path, "sales", [{"at": 0, "n": 0, "text": "x"}])
    found = reader(tmp_path, clock)
    at = numbers = 0
    for _ in range(15):
        what = random.choice(["append", "append", "append", "merge", "compact", "delete", "restore"])
        if what in ("append", "merge"):
            rows = []
            for _ in range(random.randrange(1, 6)):
                at, numbers = at + random.randrange(-30, 50), numbers + 1
                rows.append({"at": at, "n": random.randrange(numbers) if what == "merge" else numbers})
            new = pa.Table.from_pylist(list({row["n"]: row for row in rows}.values()))
            if what == "append":
                write_deltalake(path, new, mode="append", schema_mode="merge")
            else:
                merge = DeltaTable(path).merge(new, "t.n = s.n", "s", "t")
                merge.when_matched_update({"at": "s.at"}).execute()
        elif what == "compact":
            DeltaTable(path).optimize.compact()
        elif what == "delete":
            DeltaTable(path).delete(f"at < {random.randrange(0, 100)}")
        elif (version := DeltaTable(path).version()) > 0:
            DeltaTable(path).restore(random.randrange(version))
        clock.later()
        found.refresh()
        wanted = DeltaTable(path).to_pyarrow_table().select(["n", "at"]).to_pylist()
        since = max((row["at"] for row in wanted), default=0) - 60
        wanted = [row for row in wanted if row["at"] > since]
        got = found.lately("at", 60, ["n", "at"])
        assert sorted(map(str, got.select(["n", "at"]).to_pylist())) == sorted(map(str, wanted))


def test_of_the_last_while_no_file_is_read_twice_and_none_that_is_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, read = Clock(), []
    for n in range(5):
        put(tmp_path, "sales", [{"at": n * 100 + i, "n": n} for i in range(3)])
    found = reader(tmp_path, clock)
    original = DeltaReader._read
    monkeypatch.setattr(
        DeltaReader, "_read", lambda self, path, columns: read.append(path) or original(self, path, columns)
    )
    for _ in range(2):
        assert sorted(found.lately("at", 150)["at"].to_pylist()) == [300, 301, 302, 400, 401, 402]
    assert len(read) == 2
    put(tmp_path, "sales", [{"at": 460, "n": 5}])
    clock.later()
    found.refresh()
    assert sorted(found.lately("at", 150)["at"].to_pylist()) == [400, 401, 402, 460]
    assert len(read) == len(set(read)) == 3
    assert found.lately("at", 10_000, ["at"], most=3)["at"].to_pylist() == [460, 400, 401, 402]
    assert found.lately("gone", 150).num_rows == 0
    assert found.lately("at", 150, ["at", "gone"]).column_names == ["at"]


def test_files_without_statistics_are_read(tmp_path: Path) -> None:
    path = str(tmp_path / "tables" / "sales")
    for n in range(3):
        rows = pa.table({"at": [n * 100]})
        write_deltalake(path, rows, mode="append", configuration={"delta.dataSkippingNumIndexedCols": "0"})
    assert sorted(reader(tmp_path, Clock()).lately("at", 150)["at"].to_pylist()) == [100, 200]


def test_rows_of_a_key_are_found_in_all_files(tmp_path: Path) -> None:
    for n in range(4):
        put(tmp_path, "sales", [{"card": f"c{i}", "n": n} for i in range(3)])
    found = reader(tmp_path, Clock()).where("card", "c1", limit=10)
    assert sorted(found["n"].to_pylist()) == [0, 1, 2, 3]
    assert reader(tmp_path, Clock()).where("card", "c1' OR '1'='1", limit=10).num_rows == 0
    assert reader(tmp_path, Clock()).where("gone", "c1", limit=10).num_rows == 0
    assert reader(tmp_path, Clock()).where("card", "c2", limit=2).num_rows == 2


def test_rows_of_a_key_are_found_whoever_has_written_their_file(tmp_path: Path) -> None:
    folder = tmp_path / "tables" / "sales"
    put(tmp_path, "sales", [{"n": 0}])  # from before the column
    for n in range(1, 7):
        rows = pa.table({"n": [n], "card": [None if n == 3 else f"c{n % 2}"], "is_late": [n > 3]})
        write_deltalake(folder, rows, mode="append", schema_mode="merge")
    clock, wanted = Clock(), {"c0": [2, 4, 6], "c1": [1, 5], "none": []}
    found = reader(tmp_path, clock)

    def told() -> dict[str, list[int]]:
        clock.later()
        found.refresh()
        return {card: found.where("card", card, limit=9, columns=["n"])["n"].to_pylist() for card in wanted}

    assert told() == wanted
    compact(folder)
    assert told() == wanted
    assert found.where("is_late", True, limit=9)["n"].to_pylist() == [4, 5, 6]
    assert found.where("card", "c0", limit=2).to_pylist() == [
        {"n": n, "card": "c0", "is_late": True} for n in (4, 6)
    ]
    new = pa.table({"n": [7, 6], "card": ["c1", "c0"], "is_late": [True, False]})
    merge = DeltaTable(folder).merge(new, "t.n = s.n", "s", "t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    wanted["c1"].append(7)
    assert {card: sorted(rows) for card, rows in told().items()} == wanted


def test_recent_rows_of_a_key_come_from_the_newest_files_in_the_order_of_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "sales", [{"n": -1}])  # from before the column
    path = str(tmp_path / "tables" / "sales")
    for n in range(4):
        rows = pa.table({"n": [n * 10, n * 10 + 1], "card": ["a", "b"]})
        write_deltalake(path, rows, mode="append", schema_mode="merge")
    found = reader(tmp_path, Clock())
    assert found.recent("card", "b", limit=2)["n"].to_pylist() == [21, 31]
    assert found.recent("card", "b", limit=9, columns=["card", "n"])["n"].to_pylist() == [1, 11, 21, 31]
    assert found.recent("card", "gone", limit=9).num_rows == 0
    assert found.recent("gone", "b", limit=9).num_rows == 0
    monkeypatch.setattr("millrace.dashboard.tables.MOST_ROWS", 4)
    assert found.recent("card", "a", limit=9)["n"].to_pylist() == [20, 30]  # older ones are not recent


def test_texts_that_a_merge_has_written_can_be_filtered_and_grouped(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("text", pa.string()), ("many", pa.list_(pa.string()))])
    rows = pa.table({"n": [1, 2], "text": ["a", "b"], "many": [["x"], []]}, schema=schema)
    table = DeltaTable.create(str(tmp_path / "tables" / "sales"), schema)
    table.merge(rows, "t.n = s.n", "s", "t").when_not_matched_insert_all().execute()
    found = reader(tmp_path, Clock()).latest(5)
    assert found.schema.types == [pa.int64(), pa.string(), pa.list_(pa.string())]
    assert found.group_by("text").aggregate([([], "count_all")]).num_rows == 2
    assert reader(tmp_path, Clock()).recent("text", "b", limit=5)["n"].to_pylist() == [2]
    table.delete()
    assert reader(tmp_path, Clock()).latest(5).schema.types == found.schema.types


def test_what_is_made_once_is_made_anew_only_for_a_new_version(tmp_path: Path) -> None:
    clock, made = Clock(), []
    put(tmp_path, "sales", [{"n": 1}])
    found = reader(tmp_path, clock)
    for _ in range(3):
        assert found.once("rows", lambda t: made.append(1) or t.rows) == 1  # type: ignore[func-returns-value]
    put(tmp_path, "sales", [{"n": 2}])
    clock.later()
    found.refresh()
    assert found.once("rows", lambda t: t.rows) == 2
    assert len(made) == 1


def test_rates_are_rows_by_second_of_writing(tmp_path: Path) -> None:
    put(tmp_path, "sales", [{"n": n} for n in range(50)])
    found = reader(tmp_path, Clock())
    at = found.files[0].at_ms
    begin = at - at % 5_000
    rates = found.rates(begin - 10_000, begin + 10_000, 5_000)
    assert rates == [(begin - 10_000, 0.0), (begin - 5_000, 0.0), (begin, 10.0), (begin + 5_000, 0.0)]


def test_a_column_that_came_later_is_missing_in_older_rows(tmp_path: Path) -> None:
    put(tmp_path, "sales", [{"n": 1}])
    path = str(tmp_path / "tables" / "sales")
    write_deltalake(path, pa.table({"n": [2], "shop": ["x"]}), mode="append", schema_mode="merge")
    assert reader(tmp_path, Clock()).latest(5).to_pydict() == {"n": [1, 2], "shop": [None, "x"]}


def test_a_table_that_is_made_anew_is_opened_anew(tmp_path: Path) -> None:
    clock = Clock()
    put(tmp_path, "sales", [{"n": 1}, {"n": 2}])
    data = data_of(tmp_path, clock=clock)
    table = data.table("sales")
    assert table is not None
    assert table.fold("sum", ["n"], int, total) == 3
    shutil.rmtree(tmp_path / "tables")
    assert data.table("sales") is None
    assert data.table_names() == []
    put(tmp_path, "sales", [{"n": 7}])
    clock.later()
    again = data.table("sales")
    assert again is not None
    assert again.fold("sum", ["n"], int, total) == 7


def test_a_table_that_cannot_be_looked_at_now_is_shown_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "sales", [{"n": 1}])
    data = data_of(tmp_path)
    before = data.table("sales")
    assert before is not None

    def fail(self: DeltaReader) -> None:
        raise OSError("the log is being cleaned up")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaReader, "refresh", fail)
        assert [data.table("sales") for _ in range(4)] == [before] * 4
    again = data.table("sales")
    assert again is not None
    assert again is not before  # it failed too often: opened anew
    assert again.rows == 1


def test_progress_is_read_from_the_checkpoint(tmp_path: Path) -> None:
    assert read_progress(tmp_path) is None
    put_checkpoint(tmp_path, {"sales": {"0": 5}}, batch=3, watermark=1_000)
    put_checkpoint(tmp_path, {"sales": {"0": 9, "1": 2}}, batch=4, watermark=2_000, held_by="sales:1")
    found = read_progress(tmp_path)
    assert found is not None
    assert (found.batch, found.watermark_ms, found.done) == (4, 2_000, {"sales": {0: 9, 1: 2}})
    assert (len(found.batches), found.held_by) == (2, "sales:1")


def test_progress_is_read_where_nothing_is_known_of_the_clock(tmp_path: Path) -> None:
    """Before the first event, and of a checkpoint that was restored and has not run yet."""
    put_checkpoint(tmp_path, {"sales": {"0": 5}}, batch=3)
    found = read_progress(tmp_path)
    assert found is not None
    assert (found.batch, found.watermark_ms, found.held_by) == (3, None, "")


def test_damaged_files_of_a_checkpoint_are_no_progress(tmp_path: Path) -> None:
    put_checkpoint(tmp_path, {"sales": {"0": 5}})
    (tmp_path / "checkpoint" / "offsets" / "0").write_text("v1\n{half")
    assert read_progress(tmp_path) is None


def test_lag_counts_partitions_that_were_never_read() -> None:
    assert lag({"a": {0: 5}}, {"a": {0: 9, 1: 3}, "b": {0: 2}}) == {"a": 7, "b": 2}
    assert lag({"a": {0: 9}}, {"a": {0: 5}}) == {"a": 0}  # the topic was made anew
    assert offsets_of(('{"a": {"0": 5}}', "-1", None, "no json")) == {"a": {0: 5}}


def test_cells_are_short_and_show_no_bytes() -> None:
    assert cell("x" * 500) == "x" * 199 + "…"
    assert cell(b"4111") == "4 bytes"
    assert cell({"a": b"4111", "b": [1.5]}) == '{"a": "4 bytes", "b": [1.5]}'
    assert cell(float("nan")) == "nan"
    assert table_of(pa.table({"n": [1, 2], "event_time_ms": [3, 4]})).rows == [[2, 4], [1, 3]]


def test_a_broker_that_does_not_answer_is_not_asked_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(self: Broker, names: tuple[str, ...]) -> dict[str, dict[int, int]]:
        asked.append(names)
        return original(self, names)

    original = Broker._ask
    monkeypatch.setattr(Broker, "_ask", ask)
    monkeypatch.setattr("millrace.dashboard.broker._TIMEOUT_S", 0.2)
    clock = Clock()
    broker = Broker({"bootstrap.servers": "127.0.0.1:9"}, clock)
    for _ in range(3):
        with pytest.raises(BrokerAway, match=r"no broker answers at 127\.0\.0\.1:9"):
            broker.ends(["sales"])
    assert len(asked) == 1
    clock.later(20_000)
    with pytest.raises(BrokerAway):
        broker.ends(["sales"])
    assert len(asked) == 2


def test_a_partition_without_a_leader_is_left_out_and_the_broker_is_there() -> None:
    from concurrent.futures import Future
    from types import SimpleNamespace

    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    def offsets(*, code: int) -> Any:
        known: Future[Any] = Future()
        known.set_result(SimpleNamespace(offset=7))
        unknown: Future[Any] = Future()
        unknown.set_exception(KafkaException(KafkaError(code)))
        return {TopicPartition("sales", 0): known, TopicPartition("sales", 1): unknown}

    def broker(code: int) -> Broker:
        made = Broker({"bootstrap.servers": "127.0.0.1:9"}, Clock())
        about = SimpleNamespace(topics={"sales": SimpleNamespace(partitions=[0, 1])})
        made._admin = SimpleNamespace(
            list_topics=lambda timeout: about, list_offsets=lambda asked, request_timeout: offsets(code=code)
        )
        return made

    assert broker(KafkaError.NOT_LEADER_FOR_PARTITION).ends(["sales"]) == {"sales": {0: 7}}
    with pytest.raises(BrokerAway):
        broker(KafkaError._TIMED_OUT).ends(["sales"])


MODULES = [
    *(f"millrace.dashboard.{m.name}" for m in pkgutil.iter_modules(millrace.dashboard.__path__)),
    *(f"millrace_apps.fraud.{name}" for name in (
        "cases.book", "cases.live", "cases.store", "dashboard.card", "dashboard.data", "dashboard.model",
        "operations.economics", "operations.economics_data",
    )),
    "millrace_apps.clickstream.dashboard.data",
    "millrace_apps.iot_maintenance.dashboard.data",
    "millrace_apps.ridesharing.dashboard.data",
    "millrace.runtime.demo_settings",
]  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize(("held_by", "note"), [("", ""), ("sales:1", "waits for sales:1")])
def test_a_panel_says_which_source_holds_the_watermark_back(tmp_path: Path, held_by: str, note: str) -> None:
    put_checkpoint(tmp_path, {"sales": {"0": 5}}, watermark=1_000, held_by=held_by)
    data, found = data_of(tmp_path), read_progress(tmp_path)
    assert found is not None
    (mark,) = [n for n in standing_of(data, found).items if n.label == "watermark"]
    assert (mark.value, mark.note) == (1_000, note)
