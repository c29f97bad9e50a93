"""A table kept at few files by its job, while others are at it: every reader against plain lists of rows."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.transaction import AddAction

from millrace.checkpoints.positions import (
    TablePosition,
    files_appended,
    has_moved,
    ids_written_after,
    roll_back,
)
from millrace.connectors import gathering, merging
from millrace.connectors.gathering import files_of, gather_files
from millrace.connectors.merging import AppendedTable
from millrace.connectors.upkeep import compact, expire, gather, state_of, vacuum
from millrace.dashboard.tables import DeltaReader
from millrace.dead_letters.letters import COLUMNS, DeadLetterTable, Selection
from millrace.privacy.erasure import Names, count_left, delete_where
from tests.cases import case_count

_KINDS = {"event_time_ms": pa.int64(), "partition": pa.int32(), "offset": pa.int64(), "value": pa.binary()}
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("user", pa.string()),
        ("_event_time", pa.timestamp("us", "UTC")),
        *((name, _KINDS.get(name, pa.string())) for name in COLUMNS),
    ]
)
USERS = ("u1", "u2", "u3")
REASONS = ("schema", "late", "process_error")
INCARNATION = "0123456789ab"


class Row(NamedTuple):
    """What is known of a row.

    Attributes:
        n: Its number, in the order of writing.
        event_ms: Its event time.
        written_ms: When it was written.
    """

    n: int
    event_ms: int
    written_ms: int

    @property
    def user(self) -> str:
        return USERS[self.n % 3]

    @property
    def reason(self) -> str:
        return REASONS[self.n % 7 % 3]

    @property
    def id(self) -> str:
        return f"id-{self.n:05}"


def columns_of(n: int, event_ms: int) -> dict[str, Any]:
    row = Row(n, event_ms, 0)
    return {
        "n": n,
        "user": row.user,
        "_event_time": datetime.fromtimestamp(event_ms / 1000, UTC),
        "_event_id": row.id,
        "reason": row.reason,
        "stage": "process",
        "event_time_ms": None if n % 5 == 0 else event_ms,
        "value": f'{{"user":"{row.user}"}}'.encode(),
    }


@dataclass
class World:
    """A table, its job, its readers, and what is to be in it.

    Attributes:
        folder: Where the table is.
        chance: What happens.
        rows: Its rows, in the order of writing.
        is_dated: Whether only such have changed it as keep when and in which order rows were written.
        is_appended: Whether it was only appended to, and all files are there.
    """

    folder: Path
    chance: random.Random
    rows: list[Row] = field(default_factory=list)
    is_dated: bool = True
    is_appended: bool = True
    ever: list[int] = field(default_factory=list)
    batch: int = -1
    life: int = 0
    now: int = 0
    states: dict[int, list[Row]] = field(default_factory=dict)
    kept: tuple[int, int] | None = None  # a version, and how many changes there had been
    changes: int = 0
    since_kept: set[str] = field(default_factory=set)
    reader: DeltaReader | None = None
    job: AppendedTable | None = None

    # -- what happens --------------------------------------------------------------------------------

    def append(self) -> None:
        if self.job is None or self.chance.random() < 0.15:
            self.job = AppendedTable("t", str(self.folder), self.make, self.app_id, keeps=False)
        if self.batch < 0 or self.chance.random() < 0.9:
            self.batch += 1
            count = self.chance.choice((1, 1, 2, 4))
            first = len(self.ever)
            fresh = [
                (n, 1_790_000_000_000 + n * 1_000 - self.chance.randrange(20_000))
                for n in range(first, first + count)
            ]
            self.ever += [n for n, _ in fresh]
            self.job.add(pa.Table.from_pylist([columns_of(*one) for one in fresh], SCHEMA), self.batch)
            at_ms = self.dated(self.batch)
            self.is_dated = self.is_dated and (not self.rows or at_ms > self.rows[-1].written_ms)
            self.rows += [Row(n, event_ms, at_ms) for n, event_ms in fresh]
            self.changed(*(f"id-{n:05}" for n, _ in fresh))
        else:
            self.job.add(SCHEMA.empty_table(), self.batch)  # the same batch again

    def append_as_spark(self) -> None:
        """What Spark's writer appends of a large batch: times without their zone, bounds in milliseconds."""
        n, at_ms = len(self.ever), time.time_ns() // 1_000_000
        event_ms = 1_790_000_000_000 + n * 1_000
        name = f"part-{n:05}-spark.parquet"
        rows = pa.Table.from_pylist([columns_of(n, event_ms)], SCHEMA)
        how = {"use_deprecated_int96_timestamps": True, "store_schema": False}
        pq.write_table(rows, self.folder / name, **how)
        at = datetime.fromtimestamp(event_ms / 1000, UTC)
        bounds = {
            **{name: value for name, value in columns_of(n, event_ms).items() if value is not None},
            "_event_time": f"{at:%Y-%m-%dT%H:%M:%S}.{event_ms % 1000:03}Z",
        }
        del bounds["value"]
        nulls = {name: int(name not in bounds and name != "value") for name in SCHEMA.names}
        about = {"numRecords": 1, "minValues": bounds, "maxValues": bounds, "nullCount": nulls}
        opened, size = self.opened(), (self.folder / name).stat().st_size
        added = AddAction(name, size, {}, at_ms, True, json.dumps(about))
        opened.create_write_transaction([added], "append", opened.schema())
        self.is_dated = self.is_dated and (not self.rows or at_ms > self.rows[-1].written_ms)
        self.ever.append(n)
        self.rows.append(Row(n, event_ms, at_ms))
        self.changed(f"id-{n:05}")

    def make(self) -> DeltaTable:
        return DeltaTable.create(
            str(self.folder), SCHEMA, mode="ignore", configuration={"delta.checkpointInterval": "5"}
        )

    @property
    def app_id(self) -> str:
        return f"app:{INCARNATION}{self.life}:t"

    def dated(self, batch: int) -> int:
        """Return how the log dates what a batch has written."""
        for commit in sorted((self.folder / "_delta_log").glob("*.json"), reverse=True):
            actions = [json.loads(line) for line in commit.read_text().splitlines()]
            told = [(one["txn"]["appId"], one["txn"]["version"]) for one in actions if "txn" in one]
            if (self.app_id, batch) in told:
                return next(int(one["add"]["modificationTime"]) for one in actions if "add" in one)
        raise AssertionError(batch)

    def changed(self, *ids: str) -> None:
        self.changes += 1
        self.since_kept.update(ids)

    def gather(self) -> None:
        opened = self.opened()
        which = self.chance.random()
        if which < 0.4:
            files = files_of(opened)
            begin = self.chance.randrange(max(1, len(files)))
            some = files[begin : begin + self.chance.randrange(2, 6)]
            if len(some) > 1:
                gather_files(opened, self.folder, some)
        elif which < 0.7:
            gather(opened, self.folder, many=self.chance.choice((1, 2, 4)), in_order=True)
        else:
            compact(self.folder, target_bytes=self.chance.choice((1, 20_000, 1 << 20)))

    def gather_beside(self) -> None:
        """Gather while somebody else is there between the reading and the commit."""
        commit = gathering._commit
        what = self.chance.choice(
            (self.append, self.append, self.forget, self.expire, self.gather, self.optimize)
        )

        def late(*args: Any) -> bool:
            gathering._commit = commit
            with free(self.folder):
                what()
            return commit(*args)

        gathering._commit = late
        try:
            self.gather()
        finally:
            gathering._commit = commit

    def killed(self) -> None:
        """What a gathering that was killed leaves, before its file has its name and behind."""
        files = list(self.folder.glob("[pg]*.parquet"))
        copied = self.chance.choice(files) if files else None
        if copied is not None:
            shutil.copy(copied, self.folder / f"_gathered-{self.chance.random()}.parquet")
            shutil.copy(copied, self.folder / f"gathered-{self.chance.random()}.parquet")
        self.job = None

    def forget(self) -> None:
        user = self.chance.choice(USERS)
        gone = delete_where(self.folder, {"user": [user]})
        self.without([row for row in self.rows if row.user == user], gone)

    def expire(self) -> None:
        before = 1_790_000_000_000 + self.chance.randrange(max(1, len(self.ever))) * 700
        gone = expire(self.folder, before_ms=before).rows
        self.without([row for row in self.rows if row.event_ms < before], gone)

    def without(self, gone: list[Row], count: int) -> None:
        assert count == len(gone)
        if gone:
            self.rows = [row for row in self.rows if row not in set(gone)]
            self.is_appended = False
            self.changed()

    def delete(self) -> None:
        n = self.chance.choice([row.n for row in self.rows] or [0])
        self.opened().delete(f"n = {n}")
        self.is_dated = False
        if any(row.n == n for row in self.rows):
            self.without([row for row in self.rows if row.n == n], 1)

    def optimize(self) -> None:
        if self.opened().optimize.compact()["numFilesRemoved"]:
            self.is_dated = False

    def vacuum(self) -> None:
        hours = self.chance.choice((0, 0, 168))
        vacuum(self.folder, keep_ms=hours * 3_600_000)
        if not hours:
            self.states.clear()
            self.is_appended = False
            on_disk = [
                pq.read_table(file, columns=["n"])["n"].to_pylist() for file in self.folder.glob("*.parquet")
            ]
            assert sorted(n for part in on_disk for n in part) == sorted(row.n for row in self.rows)

    def checkpoint(self) -> None:
        self.opened().create_checkpoint()

    def roll_back(self) -> None:
        """Go back to a savepoint; the query goes on under another name."""
        before = sorted(self.states.keys() - {self.opened().version()})
        if not before:
            return
        version = self.chance.choice(before)
        roll_back(self.folder, TablePosition("delta", version, INCARNATION))
        self.rows = list(self.states[version])
        self.is_appended = False
        self.life += 1
        self.batch, self.job, self.kept = -1, None, None
        self.changed()

    def add_column(self) -> None:
        schema = SCHEMA.append(pa.field(f"more{self.chance.randrange(3)}", pa.string()))
        write_deltalake(str(self.folder), schema.empty_table(), mode="append", schema_mode="merge")
        self.kept = None

    def opened(self) -> DeltaTable:
        return DeltaTable(str(self.folder))

    def remember(self) -> None:
        version = self.opened().version()
        self.states[version] = list(self.rows)
        if self.kept is None or self.chance.random() < 0.3:
            self.kept, self.since_kept = (version, self.changes), set()

    # -- what readers say ----------------------------------------------------------------------------

    def look(self) -> None:
        self.remember()
        looks = [
            self.files,
            self.counts,
            self.newest,
            self.times,
            self.sums,
            self.lately,
            self.letters,
            self.positions,
            self.names,
            self.asked,
        ]
        for one in self.chance.sample(looks, 3):
            one()

    def numbers(self) -> list[int]:
        return [row.n for row in self.rows]

    def files(self) -> None:
        """Files of the log are there, and it says of their columns what is in them."""
        found: list[int] = []
        for file in files_of(self.opened()):
            rows = gathering.as_columns(pq.read_table(self.folder / file.name), SCHEMA)
            assert rows.num_rows == file.statistics["num_records"]
            found += rows["n"].to_pylist()
            for column in ("n", "event_time_ms", "_event_time", "user"):
                values = [value for value in rows[column].to_pylist() if value is not None]
                for bound, of in (("min", min), ("max", max)):
                    said = file.statistics.get(f"{bound}.{column}")
                    assert said is None or said == of(values)
                nulls = file.statistics.get(f"null_count.{column}")
                assert nulls is None or nulls == rows.num_rows - len(values)
        assert sorted(found) == sorted(self.numbers())
        if self.is_dated:
            assert found == self.numbers()

    def counts(self) -> None:
        found = self.opened().to_pyarrow_table(columns=["n"])["n"].to_pylist()
        assert sorted(found) == sorted(self.numbers())
        assert state_of(self.folder).rows == self.looked().rows == len(self.rows)
        if self.is_dated:  # the library's filters do not compare texts as it writes them itself
            for user in USERS:
                some = self.opened().to_pyarrow_table(columns=["n"], filters=[("user", "=", user)])
                assert sorted(some["n"].to_pylist()) == sorted(row.n for row in self.rows if row.user == user)

    def looked(self) -> DeltaReader:
        self.now += 10_000
        if self.reader is None or self.chance.random() < 0.1:
            self.reader = DeltaReader(self.folder, lambda: self.now)
        self.reader.refresh()
        return self.reader

    def newest(self) -> None:
        reader, some = self.looked(), self.chance.randrange(1, len(self.rows) + 3)
        user = self.chance.choice(USERS)
        latest = reader.latest(some, ["n"])["n"].to_pylist() if self.rows else []
        recent = reader.recent("user", user, limit=some, columns=["n", "user"])["n"].to_pylist()
        of_user = [row.n for row in self.rows if row.user == user]
        assert sorted(reader.where("user", user, limit=1_000)["n"].to_pylist()) == sorted(of_user)
        if self.is_dated:
            assert latest == self.numbers()[-some:]
            assert recent == of_user[-some:]
        else:
            assert len(latest) == len({*latest} & {*self.numbers()}) == min(some, len(self.rows))

    def times(self) -> None:
        reader = self.looked()
        assert self.rows == [] or not self.is_dated or reader.newest_ms == self.rows[-1].written_ms
        wanted = Counter(row.written_ms // 5 for row in self.rows)
        first, last = min(wanted, default=0), max(wanted, default=0) + 1
        if self.is_dated and last - first < 10_000:
            found = dict(reader.rates(first * 5, last * 5, 5))
            assert {at // 5: rate / 200 for at, rate in found.items() if rate} == wanted

    def sums(self) -> None:
        found = self.looked().fold("n", ["n"], list, lambda to, part: to + part["n"].to_pylist())
        assert sorted(found) == sorted(self.numbers())

    def lately(self) -> None:
        length = self.chance.choice((1_000, 5_000, 30_000))
        known = [columns_of(row.n, row.event_ms)["event_time_ms"] for row in self.rows]
        since = max((at for at in known if at is not None), default=0) - length
        wanted = [row.n for row, at in zip(self.rows, known, strict=True) if at is not None and at > since]
        found = self.looked().lately("event_time_ms", length, ["event_time_ms", "n"])["n"].to_pylist()
        assert sorted(found) == sorted(wanted)

    def letters(self) -> None:
        table = DeadLetterTable(str(self.folder))
        times = sorted({row.written_ms for row in self.rows}) or [0]
        since, until = sorted(self.chance.choices(times, k=2))
        reason = self.chance.choice(REASONS)
        found = [(one.letter_id, one.written_ms) for one in table.read()]
        assert sorted(name for name, _ in found) == sorted(row.id for row in self.rows)
        assert Counter(one.letter_id for one in table.read(Selection(reasons=[reason]))) == Counter(
            row.id for row in self.rows if row.reason == reason
        )
        if self.is_dated:
            assert found == [(row.id, row.written_ms) for row in self.rows]
            some = table.read(
                Selection(reasons=[reason], since_ms=since, until_ms=until), columns=["_event_id"]
            )
            assert [one.letter_id for one in some] == [
                row.id for row in self.rows if row.reason == reason and since <= row.written_ms < until
            ]

    def positions(self) -> None:
        if self.kept is not None:
            at = TablePosition("delta", self.kept[0], INCARNATION)
            if self.changes == self.kept[1]:
                assert not has_moved(self.folder, at) or not self.is_dated
            else:
                assert has_moved(self.folder, at)
            there = {row.id for row in self.rows}
            assert self.since_kept & there <= ids_written_after(self.folder, at)
        if self.is_appended:
            files = files_appended(self.folder, None)
            found = [n for file in files for n in pq.read_table(file, columns=["n"])["n"].to_pylist()]
            assert sorted(found) == self.ever

    def names(self) -> None:
        user = self.chance.choice(USERS)
        assert count_left(self.folder, Names((user,))) == sum(row.user == user for row in self.rows)

    def asked(self) -> None:
        engine = QueryBuilder().register("t", self.opened())
        question = (
            "SELECT count(*) AS c, min(n) AS least, max(_event_time) AS latest, count(event_time_ms) AS k "
            "FROM t"
        )
        (answer,) = pa.table(engine.execute(question).read_all()).to_pylist()
        known = [row.n for row in self.rows if row.n % 5]
        latest = max((datetime.fromtimestamp(row.event_ms / 1000, UTC) for row in self.rows), default=None)
        assert answer == {
            "c": len(self.rows),
            "least": min(self.numbers(), default=None),
            "latest": latest,
            "k": len(known),
        }


@contextmanager
def free(folder: Path) -> Iterator[None]:
    """Let others at a table as if they were on another machine."""
    flock = merging.gather.__globals__["fcntl"].flock
    try:
        merging.gather.__globals__["fcntl"].flock = lambda *_: None
        yield
    finally:
        merging.gather.__globals__["fcntl"].flock = flock


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gather what a job has appended soon, and in small groups."""
    monkeypatch.setattr(merging, "GATHER_EVERY", 2)
    monkeypatch.setattr(AppendedTable, "_many_files", 3)
    monkeypatch.setattr(gathering, "_GROUP_ROWS", 5)


def happen(folder: Path, seed: int) -> World:
    """Let a history happen, and look in between."""
    world = World(folder, random.Random(seed))
    world.append()
    steps: tuple[tuple[Callable[[World], None], float], ...] = (
        (World.append, 10), (World.append_as_spark, 1), (World.gather, 4), (World.gather_beside, 2),
        (World.killed, 1), (World.forget, 1),
        (World.expire, 1), (World.delete, 0.3), (World.optimize, 0.3), (World.vacuum, 1),
        (World.checkpoint, 1), (World.roll_back, 0.5), (World.add_column, 0.5),
    )  # fmt: skip
    for _ in range(world.chance.randrange(4, 12)):
        step = world.chance.choices([one for one, _ in steps], [often for _, often in steps])[0]
        step(world)
        if world.chance.random() < 0.5:
            world.look()
    world.look()
    return world


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(case_count(30)))
def test_every_reader_is_told_what_is_there(tmp_path: Path, seed: int) -> None:
    happen(tmp_path / "t", seed)
