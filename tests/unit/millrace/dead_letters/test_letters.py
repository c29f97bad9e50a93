"""Reading a table of dead letters: selections, single ones, counts."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from millrace.connectors import gathering
from millrace.connectors.merging import _keep
from millrace.connectors.upkeep import compact
from millrace.dead_letters.letters import DeadLetterTable, Letter, LetterError, Position, Selection
from millrace.dead_letters.stats import stats_of
from tests.cases import case_count
from tests.unit.millrace.dead_letters.cases import SCHEMA, TOPIC, identity, letter, write

ROWS = [
    letter(0),
    letter(
        1,
        reason="malformed",
        error="DecodeError: x",
        error_digest="",
        key=None,
        event_time_ms=None,
        value=b"\xff{",
    ),
    letter(2, reason="process_error", stage="process", error="KeyError: 'a'", error_digest="d2"),
    letter(
        3,
        reason="process_error",
        stage="timer",
        error_digest="d3",
        value=None,
        topic=None,
        partition=None,
        offset=None,
    ),
    letter(4, process="Other"),
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeadLetterTable:
    path = tmp_path_factory.mktemp("letters") / "dead_letters"
    for row in ROWS:  # five batches
        write(path, [row])
    return DeadLetterTable(str(path))


def test_letters_come_in_the_order_of_their_batches_and_whole(table: DeadLetterTable) -> None:
    found = list(table.read())
    assert [one.letter_id for one in found] == [identity(n) for n in range(5)]
    assert [one.written_ms for one in found] == sorted(one.written_ms for one in found)
    second = found[1]
    assert (second.value, second.key, second.event_time_ms) == (b"\xff{", None, None)
    assert second.position == Position(TOPIC, 1, 0)
    assert found[3].position is None
    assert found[0].headers == '{"ce_id":"e-0"}'


def test_letters_are_selected_in_files_that_the_library_has_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "dead_letters"
    for n in range(0, 4, 2):
        write(path, [letter(n, reason="schema"), letter(n + 1, reason="malformed")])
    compact(path)
    DeltaTable(str(path)).delete(f"_event_id = '{identity(1)}'")  # it writes texts as views
    found = [*DeadLetterTable(str(path)).read(Selection(reasons=["schema"]))]
    assert [one.letter_id for one in found] == [identity(n) for n in (0, 2)]


@pytest.mark.parametrize("seed", range(case_count(30)))
def test_letters_of_gathered_files_are_told_as_before(tmp_path: Path, seed: int) -> None:
    """Whatever is asked, by time or otherwise, and however files were gathered."""
    chance, path, place = random.Random(seed), tmp_path / "dead_letters", 0
    for _ in range(chance.randrange(2, 9)):
        rows = [
            letter(n, reason=chance.choice(["schema", "malformed"]), process=chance.choice("AB"))
            for n in range(place, place + chance.randrange(1, 4))
        ]
        place += len(rows)
        write(path, rows)
        if chance.random() < 0.2:
            compact(path, target_bytes=chance.choice([1, 20_000, 1 << 20]))
    every = [*DeadLetterTable(str(path)).read()]
    times = sorted({one.written_ms for one in every})
    asked = [
        Selection(
            reasons=chance.choice([[], ["schema"]]),
            processes=chance.choice([[], ["A"]]),
            ids=chance.choice([[], [identity(chance.randrange(place))]]),
            since_ms=chance.choice([None, *times]),
            until_ms=chance.choice([None, *times]),
        )
        for _ in range(8)
    ]
    wanted = [[*DeadLetterTable(str(path)).read(one)] for one in asked]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "_GROUP_ROWS", chance.choice([1, 3, 100]))
        compact(path)
    assert len(DeltaTable(str(path)).file_uris()) == 1
    assert [*DeadLetterTable(str(path)).read()] == every
    assert [[*DeadLetterTable(str(path)).read(one)] for one in asked] == wanted
    assert [*DeadLetterTable(path.as_uri()).read()] == every
    few = [*DeadLetterTable(str(path)).read(columns=("reason",))]
    assert [(one.reason, one.written_ms) for one in few] == [(one.reason, one.written_ms) for one in every]


@pytest.mark.parametrize(
    ("selection", "numbers"),
    [
        (Selection(reasons=["process_error"]), [2, 3]),
        (Selection(reasons=["process_error"], stages=["timer"]), [3]),
        (Selection(reasons=["malformed", "schema"]), [0, 1, 4]),
        (Selection(processes=["Other"]), [4]),
        (Selection(digests=["d2", "d3"]), [2, 3]),
        (Selection(topics=[TOPIC]), [0, 1, 2, 4]),
        (Selection(ids=[identity(4), identity(0)[:6]]), [0, 4]),
        (Selection(reasons=["late"]), []),
    ],
)
def test_a_selection_has_what_fits_all_its_parts(
    table: DeadLetterTable, selection: Selection, numbers: list[int]
) -> None:
    assert [one.letter_id for one in table.read(selection)] == [identity(n) for n in numbers]
    assert not selection.is_everything
    assert Selection().is_everything


def test_a_selection_by_time_is_by_when_letters_were_written(table: DeadLetterTable) -> None:
    times = [one.written_ms for one in table.read()]
    later = list(table.read(Selection(since_ms=times[2])))
    earlier = list(table.read(Selection(until_ms=times[2])))
    assert len(later) + len(earlier) == 5
    assert all(one.written_ms >= times[2] for one in later)
    assert identity(2) in {one.letter_id for one in later}
    assert list(table.read(Selection(since_ms=times[-1] + 1))) == []


@pytest.mark.parametrize("seed", range(case_count(24)))
def test_letters_that_are_committed_and_not_in_the_table_yet_are_read_with_it_and_none_twice(
    tmp_path: Path, seed: int
) -> None:
    """A job was killed: some batches are in the table, of some the file was not removed, some only wait.

    ::

        in the table   0 1 2
        files beside       2 3 4
    """
    chance = random.Random(seed)
    path, batches = tmp_path / "dead_letters", chance.randrange(1, 7)
    there = chance.randrange(1, batches + 1)
    kept_from = chance.randrange(there + 1)
    rows = [letter(n, reason=chance.choice(["schema", "late"])) for n in range(batches)]
    for n, row in enumerate(rows):
        made = pa.Table.from_pylist([row], schema=SCHEMA)
        if n < there:
            done = CommitProperties(app_transactions=[Transaction("job:dead_letters", n)])
            write_deltalake(str(path), made, mode="append", commit_properties=done)
        if n >= kept_from:
            _keep(path / "_waiting" / f"{n:012d}.arrow", made, "job:dead_letters", n)
    table = DeadLetterTable(str(path))
    assert [one.letter_id for one in table.read()] == [identity(n) for n in range(batches)]
    late = list(table.read(Selection(reasons=["late"])))
    assert [one.letter_id for one in late] == [row["_event_id"] for row in rows if row["reason"] == "late"]
    few = list(table.read(columns=("_event_id", "reason")))
    assert [(one.reason, one.value) for one in few] == [(row["reason"], None) for row in rows]
    assert table.find(identity(batches - 1)).value == rows[-1]["value"]
    assert list(table.read(Selection(until_ms=1_000))) == []


def test_columns_that_are_not_asked_for_are_not_read(table: DeadLetterTable) -> None:
    found = list(table.read(columns=("_event_id", "reason")))
    assert [one.reason for one in found] == [row["reason"] for row in ROWS]
    assert all(one.value is None and one.process == "" for one in found)


def test_one_letter_is_found_by_the_beginning_of_its_id(table: DeadLetterTable) -> None:
    assert table.find(identity(2)[:8]).error == "KeyError: 'a'"
    with pytest.raises(LetterError, match="no dead letter's id begins with 'zzzz'"):
        table.find("zzzz")
    with pytest.raises(LetterError, match="too short"):
        table.find(identity(2)[:3])


def test_an_id_that_begins_two_letters_is_refused_and_a_whole_one_is_not(tmp_path: Path) -> None:
    ids = ("abcdef", "abcde", "abcxyz")
    write(tmp_path / "t", [letter(number, _event_id=one) for number, one in enumerate(ids)])
    table = DeadLetterTable(str(tmp_path / "t"))
    with pytest.raises(LetterError, match="'abcd' begins 2 ids"):
        table.find("abcd")
    assert table.find("abcde").position == Position(TOPIC, 1, 0)


def test_a_letter_without_an_id_gets_one_that_stays(tmp_path: Path) -> None:
    write(tmp_path / "t", [letter(0, _event_id=None), letter(1, _event_id=None)])
    first, second = (one.letter_id for one in DeadLetterTable(str(tmp_path / "t")).read())
    assert first != second
    assert [one.letter_id for one in DeadLetterTable(str(tmp_path / "t")).read()] == [first, second]


def test_what_is_no_table_of_dead_letters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LetterError, match="there is no table"):
        DeadLetterTable(str(tmp_path / "none"))
    write_deltalake(str(tmp_path / "other"), pa.table({"reason": ["x"]}))
    with pytest.raises(LetterError, match="it has no _event_id, error"):
        DeadLetterTable(str(tmp_path / "other"))


def test_a_compacted_table_has_the_same_letters(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / "t", [letter(number)])
    before = [one.letter_id for one in DeadLetterTable(str(tmp_path / "t")).read()]
    DeltaTable(str(tmp_path / "t")).optimize.compact()
    assert sorted(one.letter_id for one in DeadLetterTable(str(tmp_path / "t")).read()) == sorted(before)


def test_counts_are_by_reason_hour_and_cause() -> None:
    hour = 3_600_000
    letters = [
        Letter(
            letter_id=f"l{n}",
            written_ms=at,
            reason=reason,
            stage="process",
            process="P",
            error=f"e{n}",
            error_digest=d,
        )
        for n, (at, reason, d) in enumerate(
            [(0, "schema", "a"), (hour - 1, "schema", "a"), (hour, "schema", "b"), (hour, "malformed", "")]
        )
    ]
    found = stats_of(letters)
    assert found.total == 4
    assert found.reasons == {"schema": 3, "malformed": 1}
    assert found.hours == {(0, "schema"): 2, (hour, "schema"): 1, (hour, "malformed"): 1}
    first, *rest = found.most(10)
    assert (first.count, first.digest, first.example, first.letter_id) == (2, "a", "e0", "l0")
    assert len(rest) == 2
    assert len(found.most(1)) == 1
