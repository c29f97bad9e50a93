"""The contract of apps, as tests that any app can have.

Wiring, cuts, restarts and wrong clocks in memory; on Spark the same tables, poison, ``kill -9``.

Derive a test class, name the app, and say what happens in its world::

    class TestOrders(AppContract):
        app = orders
        bound_ms = 60_000

        def world(self):
            for order in simulate(seed=1):
                yield Happened(order.at_ms, order.order_id, order.at_ms, order)

pytest then finds the tests that begin with ``test_``; those on Spark take half a minute each.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from millrace.host.groups import encode_key
from millrace.host.memory import MemoryHost
from millrace.host.rows import Emission
from millrace.runtime.settings import load_settings
from millrace.testing.standing import Happened, Standing, merged
from millrace.topology import Topology, Upsert
from millrace.topology.sinks import Table, table_name

if TYPE_CHECKING:
    from millrace.runtime.apps import App
    from millrace.runtime.replay import Record, Replayed
    from millrace.runtime.settings import AppSettings

_SEARCH_S = 120.0
_POLL_S = 0.05


class AppWorld:
    """An app and what happens in its world; what its tests stand on.

    Attributes:
        app: The app.
        overrides: Its settings, ``key=value``.
        bound_ms: How far events of the world come out of order, ms.
        seeds: Each gives other cuts, orders and restarts.
        repeats: Whether some events come twice; the app must then drop them.
        per_key: Whether the events of a key come in order.
        ignored: Fields of rows that count how often a row was written.
        left_out: Output → fields that hang on the cuts, and why that is right stands beside it.
        spark_events: So many events of the world run on Spark.
        fast_ms: How far the wrong clock of one key is ahead, ms.
        hostile_events: So many records are sent that are not all as they should be.
        controls: Control events that come before all else, where the app does nothing without any.
    """

    app: ClassVar[App]
    overrides: ClassVar[Sequence[str]] = ()
    bound_ms: ClassVar[int]
    seeds: ClassVar[Iterable[int]] = range(3)
    repeats: ClassVar[bool] = False
    per_key: ClassVar[bool] = True
    ignored: ClassVar[tuple[str, ...]] = ("revision",)
    left_out: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    only: ClassVar[Mapping[str, Callable[[dict[str, Any]], bool]]] = {}
    spark_events: ClassVar[int] = 600
    fast_ms: ClassVar[int] = 30_000
    hostile_events: ClassVar[int] = 5_000
    controls: ClassVar[Sequence[Any]] = ()

    def world(self) -> Iterable[Happened]:
        """Return what happens: events with key, time, and when they came about."""
        raise NotImplementedError

    def session(self) -> Any:
        """Return the Spark session of the tests; ``None``: each starts its own."""
        return None

    @cached_property
    def settings(self) -> AppSettings:
        """The app's settings."""
        overrides = [
            f"stream.out_of_orderness={self.bound_ms} ms",
            "stream.max_future_skew=100000d",
            "spark.key_groups=8",
            *self.overrides,
        ]
        return load_settings(self.app.settings, app=self.app.name, overrides=overrides, env={})

    def topology(self) -> Topology:
        """Return the app's topology."""
        return self.app.topology(self.settings)

    @property
    def standing(self) -> Standing:
        """What stands in the tables at any moment of the world; the tests of a class share it."""
        cls = type(self)
        found: Standing | None = cls.__dict__.get("_standing")
        if found is None:
            found = self._made()
            cls._standing = found  # type: ignore[attr-defined]
        return found

    def _made(self) -> Standing:
        return Standing(
            self.world,
            self.topology,
            self.bound_ms,
            ignored=self.ignored,
            left_out=self.left_out,
            only=self.only,
            per_key=self.per_key,
            repeats=self.repeats,
            controls=self.controls,
        )


class AppInMemory(AppWorld):
    """The tests that need no engine."""

    def test_topology_and_topics_agree(self) -> None:
        """All topics are read by an input or are the control topic, with the same time and clock."""
        topology, topics = self.topology(), self.app.topics(self.settings)
        reads = {topic.name: topic for topic in topics.reads}
        assert {one.topic for one in topology.inputs.values()} | {topology.control} - {None} == set(reads)
        assert topology.control == topics.control
        for one in topology.inputs.values():
            assert (reads[one.topic].event_time, reads[one.topic].clock) == (one.event_time, one.clock), one
        assert {*topology.topics.values()} <= {topic.name for topic in (*topics.writes, *topics.reads)}
        tables = [table_name(table) for _, table in topology.written]
        assert len(set(tables)) == len(tables), "two outputs have one table"
        for link in topology.links:
            full = topology.full_name(link.name, "dead_letters")
            assert full in {*topology.tables, *topology.topics}, (
                f"{link.name}: its `{full}` are written to no table and no topic: events would be lost"
            )

    def test_cuts_and_restarts_change_no_table(self) -> None:
        """Whatever the batches, and wherever it is restarted, the tables stand alike at any moment."""
        self.standing.check(self.seeds)
        assert sum(rows.total() for rows in self.standing.expected().values()) > 0, "nothing came out"

    def test_no_event_stops_it_and_every_one_is_accounted_for(self) -> None:
        """Whatever is sent is processed, late or a dead letter; what its contract allows fails nowhere."""
        from millrace.chaos.hostile import Message
        from millrace.chaos.inputs import input_in_memory

        topology = self.topology()

        def message(h: Happened) -> Message:
            topic = topology.inputs[h.input or topology.input_of(h.event)].topic
            return Message(topic, h.key.encode(), msgspec.json.encode(h.event), h.came_ms)

        began = self.standing.events[0].came_ms
        controls = [Message(str(topology.control), b"", msgspec.json.encode(c), began) for c in self.controls]
        world = chain(controls, map(message, self.world()))
        report = input_in_memory(self.app, self.settings, world, events=self.hostile_events, seed=1)
        assert report.holds, [report.ended, *report.faults, *(row for row in report.rows if not row.holds)]
        assert sum(row.processed + row.late for row in report.rows) > self.hostile_events // 4
        assert sum(sum(row.dead.values()) for row in report.rows) > self.hostile_events // 10

    def test_a_wrong_clock_is_nobody_elses(self) -> None:
        """A key whose clock is ahead makes no event of another late, and changes nothing of others."""
        of_key = Counter(h.key for h in self.standing.events)
        fast = of_key.most_common(1)[0][0]
        right, wrong = self._first_link("", 0), self._first_link(fast, self.fast_ms)
        for key, output in wrong.keys() - right.keys():
            assert key == fast, f"only beside a wrong clock: {output} of {key}"
        for key, output in right:
            if key != fast:
                assert wrong.get((key, output)) == right[key, output], (key, output)

    def _first_link(self, fast: str, by_ms: int) -> dict[tuple[str, str], Counter[bytes]]:
        """Return what the first process says by key and output; the clock of one key is ahead."""
        topology = self.topology()
        host = MemoryHost(topology.links[0].process, out_of_orderness_ms=self.bound_ms)
        if self.controls:
            host.broadcast(*self.controls)
        newest, found = None, defaultdict[tuple[str, str], Counter[bytes]](Counter)
        for h in self.standing.events:
            name = h.input or topology.input_of(h.event)
            shift = by_ms if h.key == fast and topology.inputs[name].clock and h.at_ms == h.came_ms else 0
            event, at = h.event, h.at_ms
            if shift:
                event = msgspec.structs.replace(event, **{topology.inputs[name].event_time: at + shift})
                at += shift
            rows = host.rows_of([(h.key, at, event, name) if name else (h.key, at, event)])
            plausible = min(at, h.came_ms)
            newest = plausible if newest is None else max(newest, plausible)
            believed = {encode_key((h.key,)): plausible}
            for e in host.run_rows(rows, to=newest - self.bound_ms - 1, newest=believed):
                found[e.key.partition(":")[2], e.output][e.payload] += 1
        return dict(found)


class AppOnSpark(AppWorld):
    """The tests on Spark."""

    def test_spark_gives_what_memory_gives(self, tmp_path: Path) -> None:
        """The same batches of a part of the world leave the same tables on Spark as in memory."""
        batches = self._batches()
        done = self._replay(tmp_path, self._records(batches))
        assert self.differences(done, batches) == {}
        assert self.differences(done, batches[:-1]), "that a batch is missing must show"

    def test_broken_records_are_put_aside_and_nothing_else_changes(self, tmp_path: Path) -> None:
        """What is no event is a dead letter with its bytes; all others are handled as without it."""
        batches = self._batches()
        sent = self._records(batches)
        broken = self._broken()
        sent[0] += broken
        done = self._replay(tmp_path, sent)
        table = self._table_of_dead_letters()
        values = Counter(row["value"] for row in done.table(table).to_pylist())
        missing = Counter(record.value for record in broken) - values
        assert not missing, missing
        assert self.differences(done, batches, but=table) == {}

    def test_killed_in_a_batch_it_goes_on_and_nothing_is_twice(self, tmp_path: Path) -> None:
        """Killed twice (``kill -9``) it leaves, in the end, the tables of a run that was not."""
        from millrace.runtime.replay import RecordFiles

        batches = self._batches(pieces=6)
        files = RecordFiles(tmp_path / "records")
        for records in self._records(batches):
            files.add(records)
        self._run_and_kill(tmp_path, after=1)
        self._run_and_kill(tmp_path, after=3)
        done = self._replay(tmp_path, tmp_path / "records")
        assert self.differences(done, batches) == {}

    def differences(
        self, done: Replayed, batches: Sequence[Sequence[Happened]], *, but: str = ""
    ) -> dict[str, Any]:
        """Return by table which rows Spark has and memory has not, and the other way round."""
        topology = self.topology()
        emitted: list[Emission] = []
        app = self.standing.chain()
        for batch in batches:
            emitted += app.run_batch([(h.key, h.at_ms, h.event, h.input) for h in batch])
        emitted += app.drain()
        found: dict[str, Any] = {}
        for output, table in topology.written:
            name = table_name(table)
            if name == but or output.rpartition(".")[2] == "dead_letters":
                continue
            there = (done.folder / "tables" / name).exists()
            rows = done.table(name).to_pylist() if there else []
            spark = Counter(self._bare(output, row) for row in rows)
            memory = self._in_memory(topology.types[output], output, table, emitted)
            if spark != memory:
                found[name] = {
                    "only on Spark": list((spark - memory).elements())[:3],
                    "only in memory": list((memory - spark).elements())[:3],
                }
        return found

    def _in_memory(self, tp: Any, output: str, table: Table, emissions: Sequence[Emission]) -> Counter[bytes]:
        """Return the rows that a table has after what was emitted."""
        from millrace.host.chunks import OutputChunk
        from millrace.host.spark_records import TypedColumns

        emitted = [e for e in emissions if e.output == output]
        if not emitted:
            return Counter()
        ids, keys, times = ([getattr(e, f) for e in emitted] for f in ("event_id", "key", "event_time"))
        chunk = OutputChunk(ids, keys, times, bytes(e.on_time for e in emitted), [e.payload for e in emitted])
        rows = TypedColumns(tp).table(chunk).to_pylist()
        if isinstance(table, Upsert):
            rows = merged(rows, table)
        return Counter(self._bare(output, row) for row in rows)

    def _bare(self, output: str, row: Mapping[str, Any]) -> bytes:
        gone = {*self.left_out.get(output, ())}
        kept = {k: v for k, v in row.items() if not k.startswith("_") and k not in gone}
        return msgspec.json.encode(_plain(kept), order="sorted")

    def _batches(self, pieces: int = 3) -> list[list[Happened]]:
        taken = list(islice(self.standing.events, self.spark_events))
        size = -(-len(taken) // pieces)
        return [taken[at : at + size] for at in range(0, len(taken), size)]

    def _records(self, batches: Sequence[Sequence[Happened]]) -> list[list[Record]]:
        from millrace.runtime.replay import Record

        topology = self.topology()

        def record(h: Happened) -> Record:
            topic = topology.inputs[h.input or topology.input_of(h.event)].topic
            return Record(topic, msgspec.json.encode(h.event), h.key.encode(), h.came_ms)

        began = batches[0][0].came_ms
        controls = [Record(str(topology.control), msgspec.json.encode(c), None, began) for c in self.controls]
        found = [[record(h) for h in batch] for batch in batches]
        return [controls, *found] if controls else found  # in force before any event is read

    def _broken(self) -> list[Record]:
        from millrace.runtime.replay import Record

        at = max(h.came_ms for h in islice(self.standing.events, self.spark_events))
        texts = (
            b"",
            b"no JSON",
            b"[]",
            b"{}",
            b"null",
            b'{"a":' * 2_000,
            b'{"event_time_ms":"soon"}',
            b"\xff",
        )
        return [
            Record(one.topic, text + b" " * place, b"broken", at)
            for place, one in enumerate(self.topology().inputs.values(), 1)
            for text in texts
        ]

    def _table_of_dead_letters(self) -> str:
        topology = self.topology()
        return table_name(topology.tables[topology.full_name(topology.links[0].name, "dead_letters")][0])

    def _replay(self, folder: Path, batches: Iterable[Iterable[Record]] | Path) -> Replayed:
        from millrace.runtime.replay import run_records

        return run_records(self.app, self.settings, folder, batches, session=self.session())

    def _run_and_kill(self, folder: Path, *, after: int) -> None:
        """Run in a process of its own, and end that at once when so many batches are committed."""
        code = (
            "import importlib, sys\nfrom pathlib import Path\n"
            "module, name, folder = sys.argv[1:]\n"
            "case = getattr(importlib.import_module(module), name)()\n"
            "from millrace.runtime.replay import run_records\n"
            "run_records(case.app, case.settings, Path(folder), Path(folder) / 'records', drain=False)\n"
        )
        command = [sys.executable, "-c", code, type(self).__module__, type(self).__name__, str(folder)]
        with (folder / f"killed-{after}.log").open("wb") as log:
            child = subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)
            try:
                for _ in self._until(lambda: (folder / "checkpoint" / "commits" / str(after - 1)).exists()):
                    assert child.poll() is None, (folder / f"killed-{after}.log").read_text()[-2_000:]
            finally:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()

    @staticmethod
    def _until(holds: Callable[[], bool]) -> Iterator[None]:
        end = time.monotonic() + _SEARCH_S
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError("the run has committed no batch")
            yield
            time.sleep(_POLL_S)


class AppContract(AppInMemory, AppOnSpark):
    """All tests of an app; a class of tests derives from it."""


def _plain(value: Any) -> Any:
    """Return a value of a row as JSON takes it: maps as objects, whoever read them."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {str(k): _plain(v) for k, v in value}
        return [_plain(item) for item in value]
    return value
