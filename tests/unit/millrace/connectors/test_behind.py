"""Tables that are written behind the batches, beside a list of what committed batches said.

A schedule of batches, kills at any point, faults that pass, restarts under other settings and versions of the
records, erasures, savepoints and restores. The oracle goes through the records and knows nothing of files.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import deltalake
import msgspec
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from millrace.checkpoints import positions
from millrace.checkpoints.positions import TablePosition
from millrace.connectors import merging
from millrace.connectors.driver_writer import DriverWriter
from millrace.connectors.gathering import as_columns
from millrace.connectors.merging import (
    MergeFailed,
    open_with_waiting,
    waiting_batches,
    waiting_files,
    waiting_rows,
)
from millrace.connectors.router import DeadLetterLimit, Outputs
from millrace.connectors.upkeep import compact, vacuum
from millrace.privacy.erasure import Names, count_rows, delete_where
from millrace.topology import Upsert
from tests.cases import case_count
from tests.unit.millrace.connectors.test_upsert import Session, batch

NEWEST = Upsert("newest", key=("user", "n"), newest="revision", deleted="gone")
LAST = Upsert("last", key=("user",))
TABLES = ("all", "newest", "last")
#: Where a run may be cut off, or a fault be: before or after what is done there.
POINTS = ("keep", "append", "merge")
Mode = Literal["rollback", "merge", "refuse"]


class Noted(msgspec.Struct):
    """The records of a later version."""

    user: str
    n: int
    revision: int
    clicks: int
    gone: bool = False
    note: str = "-"


class Cut(BaseException):
    """The run is cut off here."""


class Faults:
    """Cuts off, or fails, at the next call of a point but so many."""

    def __init__(self) -> None:
        self.point, self.left, self.after = "", 0, False
        self.fault: BaseException = Cut()

    def arm(self, point: str, left: int, fault: BaseException, *, after: bool) -> None:
        self.point, self.left, self.fault, self.after = point, left, fault, after

    def disarm(self) -> None:
        self.point = ""

    def around(self, point: str, done: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if point != self.point or (left := self.left) < 0:
                return done(*arguments, **named)
            self.left = left - 1
            if not left and not self.after:
                raise self.fault
            found = done(*arguments, **named)
            if not left:
                raise self.fault
            return found

        return call


class World:
    """An app's tables, the run that writes them, and what it has said."""

    def __init__(self, folder: Path, chance: random.Random, faults: Faults) -> None:
        self.folder, self.chance, self.faults = folder, chance, faults
        self.said: list[list[Session]] = []
        #: Tables that a batch did not go to.
        self.left_out: dict[int, set[str]] = {}
        self.erased: set[str] = set()
        self.incarnation, self.life, self.revision = 0, 0, 0
        self.kind: type[Any] = Session
        self.wanted = set(TABLES)
        self.known: dict[str, Path] = {}
        self.savepoint: tuple[int, dict[str, TablePosition]] | None = None
        self.into = self.begin()

    @property
    def name(self) -> str:
        return f"inc{self.incarnation}"

    def begin(self) -> DriverWriter:
        stream: Any = SimpleNamespace(types={"main": self.kind})
        tables: list[Any] = [
            t for name, t in zip(TABLES, ("all", NEWEST, LAST), strict=True) if name in self.wanted
        ]
        made = DriverWriter(
            Outputs(stream, {"main": tuple(tables)}), lambda table: str(self.folder / table), {},
            f"app:{self.name}", DeadLetterLimit(), self.known,
            merge_interval_s=self.chance.choice((0.0, 1e6, 1e6)),
        )  # fmt: skip
        made._merger.told = lambda: None  # type: ignore[method-assign]  # the schedule says when
        made.prepare()
        return made

    # -- what is done --------------------------------------------------------------------------

    def again(self) -> None:
        """Begin again after a kill, perhaps under other settings, or with another version."""
        self.faults.disarm()
        if self.chance.random() < 0.3:
            self.kind = self.chance.choice((Session, Noted))
        if self.chance.random() < 0.2:
            self.wanted = {"all", *self.chance.sample(TABLES, 2)} - {self.chance.choice(("all", ""))}
            self.savepoint = None
        self.into = self.begin()

    def restart(self) -> None:
        if self.chance.random() < 0.5:
            self.into.close()
        self.again()

    def batch(self) -> None:
        """Run the next batch; where it is cut off, or fails, again until it is done."""
        number, made = len(self.said), []
        for _ in range(self.chance.randrange(5)):
            self.revision += 1
            user = f"{self.chance.choice('ab')}-{self.life}"
            gone = self.chance.random() < 0.2
            made.append(Session(user, self.chance.randrange(3), self.revision, number, gone))
        self.run(number, made)
        self.said.append(made)

    def run(self, number: int, made: list[Session]) -> None:
        chance = self.chance
        if chance.random() < 0.3:
            self.faults.arm(chance.choice(POINTS), chance.randrange(3), Cut(), after=chance.random() < 0.5)
        while True:
            rows = [self.kind(**{f: getattr(s, f) for f in Session.__struct_fields__}) for s in made]
            try:
                if rows:
                    self.into.write(batch(*rows), number)
                break
            except (Cut, MergeFailed) as error:
                wanted = isinstance(error, Cut) or isinstance(error.__cause__, Cut | OSError | Panic)
                self.faults.disarm()
                assert wanted, "nothing fails but what is to"
                self.look_for_uncommitted(number)
                self.again()
        self.faults.disarm()
        # An attempt that was cut off may have written to a table that is not written now.
        left_out = set(TABLES) - self.wanted
        self.left_out[number] = {name for name in left_out if self.last_written(name) < number}

    def look_for_uncommitted(self, number: int) -> None:
        """Whoever makes another checkpoint of this one is told where a batch is that was not committed."""
        told = [self.last_written(name) for name in TABLES]
        if self.chance.random() < 0.2 and max(told, default=-1) < number:
            self.begin()  # as `millrace rescale`, and the start after it
            self.check(only=self.wanted)

    def last_written(self, name: str) -> int:
        left = waiting_batches(self.folder / name)
        found = positions.last_written(self.folder / name, "delta", self.name, left)
        return -1 if found is None else found

    def spark(self) -> None:
        """A batch of Spark's writer: it appends by the same transactions, and merges without any."""
        self.into.flush()
        self.revision += 1
        made = [Session(f"a-{self.life}", 1, self.revision, len(self.said))]
        number, rows = len(self.said), self.into.columns("main", self._output(made))
        for name in self.wanted:
            table, done = (
                DeltaTable(str(self.folder / name)),
                [Transaction(f"app:{self.name}:{name}", number)],
            )
            if name == "all":
                done_by = CommitProperties(app_transactions=done)
                filled = as_columns(rows, pa.schema(table.schema().to_arrow()))
                deltalake.write_deltalake(table, filled, mode="append", commit_properties=done_by)
            else:
                merging._merge(table, rows, NEWEST if name == "newest" else LAST, CommitProperties())
        self.left_out[number] = set(TABLES) - self.wanted
        self.said.append(made)

    def _output(self, made: list[Session]) -> Any:
        from millrace.host.chunks import join_output

        found = batch(*made).toArrow()
        return join_output(found["chunk"].to_pylist())

    def behind(self) -> None:
        """What the thread does; a fault there is told, and tried again by the next batch."""
        chance, name = self.chance, self.chance.choice(sorted(self.wanted))
        kills = chance.random() < 0.3
        if chance.random() < 0.5:
            fault: BaseException = Cut() if kills else chance.choice((OSError("full"), Panic("it")))
            self.faults.arm(
                chance.choice(("append", "merge", "unlink")), chance.randrange(3), fault,
                after=chance.random() < 0.5,
            )  # fmt: skip
        try:
            self.into._tables[name].merge()
        except MergeFailed as error:
            told = self.into._tables[name].failed is error
            if isinstance(error.__cause__, Cut):
                self.again()
            assert told, "the next batch knows of it"
        self.faults.disarm()

    def tidy(self) -> None:
        """What the other thread does."""
        if "all" in self.wanted:
            self.into._tables["all"].tidy()

    def upkeep(self) -> None:
        folder = self.folder / self.chance.choice(TABLES)
        if (folder / "_delta_log").exists():
            compact(folder)
            if self.savepoint is None:
                vacuum(folder, keep_ms=0)

    def erase(self) -> None:
        """Forget a person: what waits of them is told, and the next time it is in the tables."""
        user = f"{self.chance.choice('ab')}-{self.life}"
        self.life += 1
        self.savepoint = None
        for attempt in range(2):
            left = 0
            for folder in map(self.folder.__truediv__, TABLES):
                if (folder / "_delta_log").exists():
                    delete_where(folder, {"user": [user]})
                    left += sum(count_rows(rows, Names((user,))) for rows in waiting_rows(folder))
            if not left:
                break
            assert not attempt
            self.into.flush()
            if any(waiting_files(self.folder / name) for name in TABLES):
                self.again()  # of a table that is not written now
        self.erased.add(user)

    def save(self) -> None:
        self.into.flush()
        if any(waiting_files(self.folder / name) for name in TABLES):
            return  # it would be refused
        found = {
            name: positions.position_of(self.folder / name, "delta", self.name, len(self.said) - 1)
            for name in TABLES
        }
        self.savepoint = len(self.said), {name: at for name, at in found.items() if at is not None}

    def restore(self, mode: Mode) -> None:
        """Go on from the savepoint under another identity; all batches since come again."""
        if self.savepoint is None:
            return
        saved, at = self.savepoint
        moved = [
            name
            for name, where in at.items()
            if positions.has_moved(self.folder / name, where) or positions.has_waiting(self.folder / name)
        ]
        if mode == "refuse":
            if moved:
                return
            self.check(upto=saved)
        if self.chance.random() < 0.5:
            self.into.close()
            moved = list(at)
        ids: dict[Path, set[str]] = {}
        for name in moved:
            folder = self.folder / name
            if mode == "merge":
                ids[folder] = positions.ids_written_after(folder, at[name], waiting_rows(folder))
            elif mode == "rollback":
                positions.forget_waiting(folder)
                if positions.has_moved(folder, at[name]):
                    positions.roll_back(folder, at[name])
        root = self.folder / f"root{self.incarnation}"
        root.mkdir()
        for path, file in self.known_by_path():
            ids[path] = ids.get(path, set()) | positions.read_ids(file)
        positions.keep_ids(root, ids)
        self.known = {path.name: file for path, file in positions.kept_ids(root).items()}
        self.incarnation += 1
        self.savepoint = None
        self.into = self.begin()
        again, self.said = self.said[saved:], self.said[:saved]
        for made in again:
            self.run(len(self.said), made)
            self.said.append(made)

    def known_by_path(self) -> Iterator[tuple[Path, Path]]:
        return ((self.folder / name, file) for name, file in self.known.items())

    # -- what it must have come to -------------------------------------------------------------

    def check(self, *, upto: int | None = None, only: set[str] | None = None) -> None:
        """Compare the tables with what was said, as they are and as a query sees them."""
        for name in sorted(only or set(TABLES)):
            if not (self.folder / name / "_delta_log").exists():
                continue
            table, waits = open_with_waiting(self.folder / name)
            found = table.to_pyarrow_table().to_pylist()
            if name == "all":
                found += [row for rows in waits for row in rows.to_pylist()]
            elif waits:
                continue
            fields = [tuple(row[f] for f in Session.__struct_fields__) for row in found]
            assert Counter(fields) == Counter(self.expected(name, upto)), name

    def expected(self, name: str, upto: int | None) -> Iterator[tuple[Any, ...]]:
        kept: dict[tuple[Any, ...], Session] = {}
        for number, made in enumerate(self.said[:upto]):
            for one in made if name not in self.left_out.get(number, set()) else ():
                if one.user in self.erased:
                    continue
                key: tuple[Any, ...] = (one.revision,)
                if name != "all":
                    key = (one.user, one.n) if name == "newest" else (one.user,)
                if name == "newest" and one.gone:
                    kept.pop(key, None)
                else:
                    kept[key] = one
        return (msgspec.structs.astuple(one) for one in kept.values())


class Panic(BaseException):
    """As a native library raises it."""


@contextmanager
def faulty() -> Iterator[Faults]:
    faults = Faults()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "_keep", faults.around("keep", merging._keep))
        patch.setattr(merging, "_merge", faults.around("merge", merging._merge))
        patch.setattr(deltalake, "write_deltalake", faults.around("append", deltalake.write_deltalake))
        unlink = faults.around("unlink", Path.unlink)
        patch.setattr(Path, "unlink", lambda self, missing_ok=False: unlink(self, missing_ok=missing_ok))
        patch.setattr(merging, "GATHER_EVERY", 3)
        patch.setattr(merging.AppendedTable, "_many_files", 4)
        yield faults


@pytest.mark.parametrize("seed", range(case_count(12)))
def test_any_history_comes_to_what_committed_batches_said(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with faulty() as faults:
        world = World(tmp_path, chance, faults)
        steps: list[tuple[int, Callable[[], None]]] = [
            (10, world.batch), (8, world.behind), (2, world.restart), (1, world.upkeep), (1, world.spark),
            (2, world.tidy),
            (1, world.erase), (1, world.save), (1, world.check),
            (2, lambda: world.restore(chance.choice(("rollback", "merge", "refuse")))),
        ]  # fmt: skip
        ways, doing = zip(*steps, strict=True)
        for _ in range(25):
            chance.choices(doing, ways)[0]()
        world.restart()
        world.into.close()
        for name in TABLES:
            assert not waiting_files(tmp_path / name), name
        world.check()
