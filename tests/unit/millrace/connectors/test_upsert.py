"""Tables with one row per key: a batch's last record replaces the row, and the same batch changes nothing."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.connectors.driver_writer import DriverWriter
from millrace.connectors.merging import GATHER_EVERY
from millrace.connectors.router import DeadLetterLimit, Outputs
from millrace.connectors.upkeep import LEVELS_BYTES, MANY_FILES, alone, compact, gather, sizes_of
from millrace.host.chunks import encode_emissions
from millrace.host.runner import Emission
from millrace.topology import Upsert
from millrace.topology.sinks import Table, Tables, table_name


class Session(msgspec.Struct):
    user: str
    n: int
    revision: int
    clicks: int
    gone: bool = False


BY_REVISION = Upsert("sessions", key=("user", "n"), newest="revision", deleted="gone")


def writer(folder: Path, tables: Tables = BY_REVISION) -> DriverWriter:
    stream: Any = SimpleNamespace(types={"main": Session})
    return DriverWriter(
        Outputs(stream, {"main": tables}), lambda table: str(folder / table), {}, "a", DeadLetterLimit()
    )


def batch(*sessions: Session) -> Any:
    """A batch as the state operator gives it."""
    emissions = [
        Emission("main", f"{s.user}-{s.n}-{s.revision}", f"1:{s.user}", 1, True, msgspec.json.encode(s))
        for s in sessions
    ]
    outputs, counts, chunks = zip(*encode_emissions(emissions), strict=True)
    table = pa.table({"output": outputs, "records": counts, "chunk": pa.array(chunks, pa.binary())})
    return SimpleNamespace(toArrow=lambda: table)


def rows(folder: Path) -> dict[tuple[str, int], tuple[int, int]]:
    found = DeltaTable(str(folder / "sessions")).to_pyarrow_table().to_pylist()
    assert len(found) == len({(r["user"], r["n"]) for r in found})
    return {(r["user"], r["n"]): (r["revision"], r["clicks"]) for r in found}


def test_the_newest_version_of_a_row_stays(tmp_path: Path) -> None:
    into = writer(tmp_path)
    into.write(batch(Session("a", 1, 2, 20), Session("a", 1, 1, 10), Session("b", 1, 1, 5)), 0)
    into.write(batch(Session("a", 1, 1, 99), Session("b", 1, 2, 6), Session("a", 2, 1, 1)), 1)

    assert rows(tmp_path) == {("a", 1): (2, 20), ("b", 1): (2, 6), ("a", 2): (1, 1)}


def test_a_version_that_comes_again_replaces_itself(tmp_path: Path) -> None:
    into = writer(tmp_path)
    into.write(batch(Session("a", 1, 1, 10), Session("a", 1, 1, 11)), 0)

    assert rows(tmp_path) == {("a", 1): (1, 11)}


def test_a_deleted_row_goes_and_one_that_never_was_is_not_made(tmp_path: Path) -> None:
    into = writer(tmp_path)
    into.write(batch(Session("a", 1, 1, 10)), 0)
    into.write(batch(Session("a", 1, 2, 0, gone=True), Session("b", 7, 1, 0, gone=True)), 1)
    assert rows(tmp_path) == {}


def test_an_old_deletion_does_not_remove_a_newer_row(tmp_path: Path) -> None:
    into = writer(tmp_path)
    into.write(batch(Session("a", 1, 3, 10)), 0)
    into.write(batch(Session("a", 1, 2, 0, gone=True)), 1)
    assert rows(tmp_path) == {("a", 1): (3, 10)}


def test_the_same_batch_again_makes_no_commit(tmp_path: Path) -> None:
    first = batch(Session("a", 1, 1, 10))
    writer(tmp_path).write(first, 0)
    version = DeltaTable(str(tmp_path / "sessions")).version()
    writer(tmp_path).write(first, 0)
    assert DeltaTable(str(tmp_path / "sessions")).version() == version


def test_without_versions_the_record_that_comes_last_wins(tmp_path: Path) -> None:
    into = writer(tmp_path, Upsert("sessions", key=("user", "n")))
    into.write(batch(Session("a", 1, 5, 1), Session("a", 1, 4, 2)), 0)
    into.write(batch(Session("a", 1, 1, 3)), 1)
    assert rows(tmp_path) == {("a", 1): (1, 3)}


@pytest.mark.parametrize("seed", range(3))
def test_any_cut_into_batches_leaves_the_newest_versions(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    sent = [Session(chance.choice("abc"), chance.randrange(3), r, chance.randrange(99)) for r in range(60)]
    wanted = {(s.user, s.n): (s.revision, s.clicks) for s in sent}
    chance.shuffle(sent)
    into = writer(tmp_path)
    place = number = 0
    while place < len(sent):
        size = chance.randrange(1, 25)
        into.write(batch(*sent[place : place + size]), number)
        place, number = place + size, number + 1

    assert rows(tmp_path) == wanted


# -- one output, several tables ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_of_several_fields_the_next_one_counts_where_those_before_are_equal(
    tmp_path: Path, seed: int
) -> None:
    rng, by_both = random.Random(seed), Upsert("sessions", key=("user",), newest=("n", "revision"))
    told = [Session(rng.choice("ab"), rng.randrange(3), rng.randrange(3), i) for i in range(12)]
    into, rest, number = writer(tmp_path, by_both), list(told), 0
    while rest:
        size = rng.randint(1, 5)
        into.write(batch(*rest[:size]), number := number + 1)
        del rest[:size]
    best: dict[str, Session] = {}
    for one in told:
        last = best.get(one.user)
        if last is None or (one.n, one.revision) >= (last.n, last.revision):
            best[one.user] = one
    found = DeltaTable(str(tmp_path / "sessions")).to_pyarrow_table().to_pylist()
    assert {r["user"]: r["clicks"] for r in found} == {user: s.clicks for user, s in best.items()}


def test_a_merge_looks_into_no_file_that_can_have_none_of_its_keys(tmp_path: Path) -> None:
    """A window's rows come once or twice: what a batch costs must not grow with the windows before it."""
    into = writer(tmp_path)
    for window in range(6):
        for revision in (1, 2):
            found = [Session("a", window, revision, 1), Session("b", window, revision, 1)]
            into.write(batch(*found), 2 * window + revision)
    assert len(rows(tmp_path)) == 12
    table = DeltaTable(str(tmp_path / "sessions"))
    assert len(table.file_uris()) == 6
    metrics = table.history(1)[0]["operationMetrics"]
    assert int(metrics["num_target_files_skipped_during_scan"]) == 5


def test_a_merge_does_not_open_a_file_for_every_batch_before_it(tmp_path: Path) -> None:
    """Keys that are always new leave a file per batch, each of which the next merge would open."""
    into, most = writer(tmp_path), 0
    chance = random.Random(4)
    wanted: dict[tuple[str, int], tuple[int, int]] = {}
    for number in range(100):
        made = [
            Session(chance.choice("ab"), chance.randrange(9_999), number, chance.randrange(9)) for _ in "12"
        ]
        into.write(batch(*made), number)
        wanted |= {(s.user, s.n): (s.revision, s.clicks) for s in made}
        most = max(most, len(DeltaTable(str(tmp_path / "sessions")).file_uris()))
    assert most <= MANY_FILES + GATHER_EVERY
    assert rows(tmp_path) == wanted
    version = DeltaTable(str(tmp_path / "sessions")).version()
    writer(tmp_path).write(batch(*made), 99)
    assert DeltaTable(str(tmp_path / "sessions")).version() == version


def test_of_two_who_gather_the_same_files_one_does(tmp_path: Path) -> None:
    """Of two compactions at once both would succeed, and every row be there twice."""
    folder = tmp_path / "sessions"
    into = writer(tmp_path)
    for number in range(GATHER_EVERY * 2 + 4):
        into.write(batch(Session("a", number, 1, number)), number)
    stale = DeltaTable(str(folder))
    wanted = rows(tmp_path)
    assert len(stale.file_uris()) > MANY_FILES
    with alone(folder):
        assert gather(stale, folder) == 0  # somebody is at it
    assert compact(folder).before > MANY_FILES
    assert gather(stale, folder) == 0  # it sees that it is done
    assert rows(tmp_path) == wanted
    assert gather(stale, tmp_path / "elsewhere") == 0


def test_a_merge_goes_on_where_somebody_compacts_between_the_batches(tmp_path: Path) -> None:
    into = writer(tmp_path)
    for number in range(60):
        if number % 7 == 3:
            compact(tmp_path / "sessions")
        into.write(batch(Session("a", number * 7 % 61, 1, number)), number)
    assert rows(tmp_path) == {("a", number * 7 % 61): (1, number) for number in range(60)}


def test_large_files_are_not_written_anew_for_a_few_small_ones(tmp_path: Path) -> None:
    table = DeltaTable.create(str(tmp_path / "t"), pa.schema([("x", pa.binary())]))
    chance = random.Random(1)
    for rows_of in (12_000, *([10] * (MANY_FILES + 1))):
        write_deltalake(
            table, pa.table({"x": [chance.randbytes(100) for _ in range(rows_of)]}), mode="append"
        )
    large = max(sizes_of(table))
    assert large > LEVELS_BYTES[0]
    assert gather(table, tmp_path / "t") == MANY_FILES
    sizes = sizes_of(table)
    assert len(sizes) == 2
    assert large in sizes
    assert gather(table, tmp_path / "t") == 0
    assert table.to_pyarrow_table().num_rows == 12_000 + 10 * (MANY_FILES + 1)


def history(folder: Path) -> list[tuple[str, int, int]]:
    found = DeltaTable(str(folder / "history")).to_pyarrow_table().to_pylist()
    return sorted((r["user"], r["n"], r["revision"]) for r in found)


def test_an_output_goes_to_all_its_tables_and_each_remembers_its_own_batches(tmp_path: Path) -> None:
    """Ended between the two tables, the batch comes again: what is there stays, what is missing comes."""
    tables = ("history", BY_REVISION)
    first, second = batch(Session("a", 1, 1, 10)), batch(Session("a", 1, 2, 20), Session("b", 1, 1, 5))
    into = writer(tmp_path, tables)
    into.prepare()
    assert (history(tmp_path), rows(tmp_path)) == ([], {})
    into.write(first, 0)

    write = into._write_table

    def is_full(output: str, to: Table, *rest: Any) -> None:
        if table_name(to) == "sessions":
            raise OSError("the disk is full")
        write(output, to, *rest)

    into._write_table = is_full  # type: ignore[method-assign, assignment]
    with pytest.raises(OSError, match="full"):
        into.write(second, 1)
    assert (len(history(tmp_path)), len(rows(tmp_path))) == (3, 1)

    assert writer(tmp_path, tables).write(second, 1) == {"main": 2}
    assert history(tmp_path) == [("a", 1, 1), ("a", 1, 2), ("b", 1, 1)]
    assert rows(tmp_path) == {("a", 1): (2, 20), ("b", 1): (1, 5)}
