"""Records with values that their columns cannot have become dead letters; the others are in their table.

The oracle judges a value by Python's own types; the writer never looks at them, only at JSON.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from millrace.checkpoints import positions
from millrace.connectors.driver_writer import DriverWriter
from millrace.connectors.merging import MergeFailed, open_with_waiting, rows_waiting, waiting_files
from millrace.connectors.misfits import OfOtherType
from millrace.connectors.router import DeadLetterLimit, Outputs, Router
from millrace.dead_letters import DeadLetter
from millrace.dead_letters.letters import DeadLetterTable
from millrace.host import spark_records
from millrace.host.chunks import encode_emissions
from millrace.host.json_columns import RecordMisfits
from millrace.host.rows import Emission
from millrace.query.catalog import AppTable
from millrace.query.tables import asking
from millrace.topology import Upsert
from tests.cases import case_count
from tests.unit.millrace.connectors.test_behind import Cut, Faults, faulty

NEVER = 1e6
NEWEST = Upsert("newest", key=("user",), newest="revision")


class Click(msgspec.Struct):
    user: str
    revision: int
    count: Any
    share: float | None = None


class Typed(Click):
    """What its tables are made for; whoever makes a record is not held to it."""

    count: int | None = None


def fits(count: Any) -> bool:
    return count is None or (type(count) is int and -(2**63) <= count < 2**63)


COUNTS: tuple[Any, ...] = (2**63, 2**64 - 1, 1.5, "7", "many", True, [1], {"a": 1})
FITTING: tuple[Any, ...] = (None, 0, -(2**63), 2**63 - 1, 2**53 + 1)


def writer(folder: Path, *, wait_s: float = NEVER, letters: bool = True, app_id: str = "a") -> DriverWriter:
    stream: Any = SimpleNamespace(types={"main": Typed, "dead_letters": DeadLetter})
    tables: dict[str, Any] = {"main": ("all", NEWEST)}
    if letters:
        tables["dead_letters"] = "dead_letters"
    made = DriverWriter(
        Outputs(stream, tables), lambda table: str(folder / table), {}, app_id, DeadLetterLimit(),
        merge_interval_s=wait_s,
    )  # fmt: skip
    made._merger.told = lambda: None  # type: ignore[method-assign]
    return made


def batch(*clicks: Click, letters: int = 0, number: int = 0) -> Any:
    """A batch as the state operator gives it, with dead letters of its own."""
    emissions = [
        Emission("main", f"e{c.revision}", f"1:{c.user}", c.revision, True, msgspec.json.encode(c))
        for c in clicks
    ]
    own = msgspec.json.encode(DeadLetter("process_error", "process", "P", "it failed", value=b"{}"))
    emissions += [Emission("dead_letters", f"l{number}-{n}", "1:a", 5, False, own) for n in range(letters)]
    outputs, counts, chunks = zip(*encode_emissions(emissions), strict=True)
    table = pa.table({"output": outputs, "records": counts, "chunk": pa.array(chunks, pa.binary())})
    return SimpleNamespace(toArrow=lambda: table)


def found_in(folder: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(folder / table)).to_pyarrow_table().to_pylist()
    return found


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("wait_s", [0.0, NEVER])
def test_a_record_that_does_not_fit_is_a_dead_letter_and_the_others_are_written(
    tmp_path: Path, count: Any, wait_s: float
) -> None:
    into = writer(tmp_path, wait_s=wait_s)
    into.prepare()
    into.write(batch(Click("a", 1, 5), Click("b", 2, count), Click("c", 3, None)), 0)
    into.close()
    for table in ("all", "newest"):
        assert {row["user"]: row["count"] for row in found_in(tmp_path, table)} == {"a": 5, "c": None}
        assert not waiting_files(tmp_path / table)
    letters = list(DeadLetterTable(str(tmp_path / "dead_letters")).read())
    assert [(letter.reason, letter.stage, letter.event_time_ms) for letter in letters] == [
        ("process_error", "table", 2)
    ] * 2
    assert {letter.value for letter in letters} == {msgspec.json.encode(Click("b", 2, count))}
    assert {letter.error.split(":")[0] for letter in letters} == {"table all", "table newest"}
    assert len({letter.letter_id for letter in letters}) == 2
    assert len({letter.error_digest for letter in letters}) == 2


def test_whoever_looks_meanwhile_sees_the_rows_that_fit(tmp_path: Path) -> None:
    into = writer(tmp_path)
    into.prepare()
    into.write(batch(Click("a", 1, 5), Click("b", 2, 2**63)), 0)
    assert rows_waiting(tmp_path / "all") == 1
    _, waits = open_with_waiting(tmp_path / "newest")
    assert [row["user"] for rows in waits for row in rows.to_pylist()] == ["a"]
    table = AppTable("app", "all", tmp_path / "all")
    with asking('SELECT "count" FROM app."all"', [table], {}, "app") as answer:
        assert [row for part in answer.batches() for row in part.to_pylist()] == [{"count": 5}]
    into.close()


@pytest.mark.parametrize("wait_s", [0.0, NEVER])
def test_without_a_place_for_it_the_job_says_what_is_wrong_and_loses_nothing(
    tmp_path: Path, wait_s: float
) -> None:
    into = writer(tmp_path, wait_s=wait_s, letters=False)
    into.prepare()
    wrong = batch(Click("a", 1, 5), Click("b", 2, 1.5))

    def written() -> None:
        into.write(wrong, 0)
        into.flush()

    with pytest.raises((MergeFailed, OfOtherType), match=r"not of its column's type.*no table of dead"):
        written()
    # Whoever gives it one goes on.
    into = writer(tmp_path, wait_s=wait_s)
    into.prepare()
    into.write(wrong, 0)
    into.close()
    assert [row["user"] for row in found_in(tmp_path, "all")] == ["a"]
    assert len(found_in(tmp_path, "dead_letters")) == 2


def test_those_of_a_later_batch_may_be_put_aside_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_records, "_AT_ONCE", 1)
    into = writer(tmp_path)
    into.prepare()
    into.write(batch(Click("a", 1, 1.5)), 0)  # is read behind the batch
    into.write(batch(Click("b", 2, 1.5), Click("c", 3, 1.5)), 1)  # at once
    into.close()
    letters = found_in(tmp_path, "dead_letters")
    assert sorted(msgspec.json.decode(letter["value"])["user"] for letter in letters) == [*"aabbcc"]


def test_a_savepoint_goes_by_the_batches_that_the_table_of_dead_letters_has(tmp_path: Path) -> None:
    into = writer(tmp_path, app_id="app:inc1")
    into.prepare()
    for number in range(3):
        into.write(batch(Click("a", number + 1, 1.5), letters=1, number=number), number)
    into._tables["dead_letters"].merge()
    own = DeltaTable(str(tmp_path / "dead_letters")).version()
    into.close()
    # Behind those of batch 2 stand records of batches 0 to 2; the table of after batch 1 has none of either.
    found = positions.position_of(tmp_path / "dead_letters", "delta", "inc1", 1)
    assert found is not None
    assert found.version == own - 1
    assert positions.last_written(tmp_path / "dead_letters", "delta", "inc1") == 2


def test_a_large_batch_is_written_by_the_driver_where_a_table_cannot_take_some_of_it() -> None:
    wrote: list[str] = []

    class Writer:
        def __init__(self, name: str, error: Exception | None = None) -> None:
            self.name, self.error = name, error

        def write(self, _batch: Any, _batch_id: int) -> dict[str, int]:
            wrote.append(self.name)
            if self.error is not None:
                raise self.error
            return {"main": 9}

        def flush(self) -> None:
            """Nothing waits."""

        close = flush

    told = RuntimeError(f"Traceback …\nmillrace.host.json_columns.{RecordMisfits.__name__}: …")
    router = Router(Writer("driver"), Writer("spark", told), driver_write_max_records=5)
    router(SimpleNamespace(), 0)  # type: ignore[arg-type]
    router(SimpleNamespace(), 1)  # type: ignore[arg-type]
    assert wrote == ["driver", "spark", "driver"]
    router.large = Writer("spark", RuntimeError("the disk is full"))
    with pytest.raises(RuntimeError, match="full"):
        router(SimpleNamespace(), 2)  # type: ignore[arg-type]


def test_rows_of_a_table_that_is_not_written_any_more(tmp_path: Path) -> None:
    into = writer(tmp_path)
    into.prepare()
    into.write(batch(Click("a", 1, 5), Click("b", 2, 2**63)), 0)
    stream: Any = SimpleNamespace(types={"dead_letters": DeadLetter})
    DriverWriter(
        Outputs(stream, {"dead_letters": "dead_letters"}),
        lambda t: str(tmp_path / t),
        {},
        "a",
        DeadLetterLimit(),
    ).prepare()
    assert [row["user"] for row in found_in(tmp_path, "all")] == ["a"]
    assert len(found_in(tmp_path, "dead_letters")) == 2


def test_objects_larger_than_what_is_read_at_once() -> None:
    class Long(msgspec.Struct):
        text: str
        n: int

    payloads = [
        msgspec.json.encode(Long("ä" * size, size)) for size in (5_000_000, 1, 6_000_000, 2, 4_500_000)
    ]
    rows = spark_records.TypedColumns(Long)
    chunk = spark_records.OutputChunk(["e"] * 5, ["1:a"] * 5, [1] * 5, b"\x01" * 5, payloads)
    assert [len(text) for text in rows.table(chunk)["text"].to_pylist()] == [
        5_000_000,
        1,
        6_000_000,
        2,
        4_500_000,
    ]


class History:
    """Batches with kills anywhere, beside what they must come to."""

    def __init__(self, folder: Path, chance: random.Random, faults: Faults) -> None:
        self.folder, self.chance, self.faults = folder, chance, faults
        self.clicks: list[Click] = []
        self.letters = 0
        self.number = 0
        self.into = self.begin()

    def begin(self) -> DriverWriter:
        while True:
            made = writer(self.folder, wait_s=self.chance.choice((0.0, NEVER, NEVER)))
            try:
                made.prepare()
                return made
            except (Cut, OSError, MergeFailed):
                self.faults.disarm()

    def batch(self) -> None:
        chance, made = self.chance, []
        for _ in range(chance.randrange(1, 7)):
            count = chance.choice(COUNTS if chance.random() < 0.3 else FITTING)
            made.append(
                Click(chance.choice("abc"), len(self.clicks) + len(made), count, chance.choice((None, 0.5)))
            )
        own = chance.randrange(3)
        if chance.random() < 0.4:
            self.cut_off()
        while True:
            try:
                self.into.write(batch(*made, letters=own, number=self.number), self.number)
                break
            except (Cut, MergeFailed, OSError):
                self.again()
        self.faults.disarm()
        self.clicks += made
        self.letters += own
        self.number += 1

    def cut_off(self) -> None:
        chance = self.chance
        point, fault = (
            chance.choice(("keep", "append", "merge", "unlink")),
            chance.choice((Cut(), OSError("full"))),
        )
        self.faults.arm(point, chance.randrange(5), fault, after=chance.random() < 0.5)

    def again(self) -> None:
        self.faults.disarm()
        if self.chance.random() < 0.3:
            self.cut_off()
        self.into = self.begin()

    def behind(self) -> None:
        if self.chance.random() < 0.5:
            self.cut_off()
        try:
            self.into._tables[self.chance.choice(("all", "newest", "dead_letters"))].merge()
        except MergeFailed as error:
            if isinstance(error.__cause__, Cut) or self.chance.random() < 0.3:
                self.again()
        self.faults.disarm()

    def check(self) -> None:
        fitting = [c for c in self.clicks if fits(c.count)]
        found = found_in(self.folder, "all")
        assert Counter((r["revision"], r["count"], r["share"]) for r in found) == Counter(
            (c.revision, c.count, c.share) for c in fitting
        )
        newest = {c.user: c.revision for c in fitting}
        assert {r["user"]: r["revision"] for r in found_in(self.folder, "newest")} == newest
        letters = found_in(self.folder, "dead_letters")
        assert len({letter["_event_id"] for letter in letters}) == len(letters)
        told = Counter(letter["value"] for letter in letters if letter["stage"] == "table")
        assert told == {msgspec.json.encode(c): 2 for c in self.clicks if not fits(c.count)}
        assert sum(letter["stage"] == "process" for letter in letters) == self.letters


@pytest.mark.parametrize("seed", range(case_count(6)))
def test_any_history_has_each_record_once_in_its_table_or_among_the_dead_letters(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(spark_records, "_AT_ONCE", 4)  # so that batches of both kinds come
    with faulty() as faults:
        history = History(tmp_path, chance, faults)
        for _ in range(15):
            chance.choice((history.batch, history.batch, history.behind))()
        faults.disarm()
        history.again()
        faults.disarm()
        history.into = history.begin()
        history.into.close()
    history.check()
