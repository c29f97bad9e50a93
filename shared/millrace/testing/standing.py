"""Table contents at a moment of event time, whatever the batches before it.

A run of a generated world through an app's processes, with no drain at its end: what is due at the watermark
that the world has come to stands in the tables, and nothing else does. The measure is the run in order of
time with an event a batch.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from millrace.host.memory_chain import MemoryChain
from millrace.host.rows import Emission
from millrace.testing.deliveries import in_some_order
from millrace.topology import Topology, Upsert

#: Sizes of batches.
_SIZES = (1, 1, 2, 5, 20, 100, 500)
#: Share of batches after which the app is started anew from what it has kept.
_RESTARTS = 0.1
#: One event in so many is brought twice, where that is asked for.
_REPEATED = 50
_SHOWN = 3


class Happened(NamedTuple):
    """An event of a world.

    Attributes:
        came_ms: When it came about, UTC ms; it is brought within the bound after that.
        key: Its key.
        at_ms: Its event time, UTC ms; before ``came_ms`` for what speaks of something past.
        event: The event.
        input: Its input, where its type does not tell.
    """

    came_ms: int
    key: str
    at_ms: int
    event: Any
    input: str | None = None


@dataclass(frozen=True)
class Standing:
    """An app and its world.

    Attributes:
        world: What happens.
        topology: The app's topology.
        bound_ms: How far the watermark stays behind the newest event, ms; no event comes later than that.
        ignored: Fields of rows that count how often a row was written.
        left_out: Output → fields that are not compared.
        only: Output → which of its rows are compared; all of the others are.
        per_key: Whether the events of a key come in order.
        repeats: Whether some events come twice; the dead letters then say so, and are not compared.
        controls: Control events that come before all else.
    """

    world: Callable[[], Iterable[Happened]]
    topology: Callable[[], Topology]
    bound_ms: int
    ignored: tuple[str, ...] = ("revision",)
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    only: Mapping[str, Callable[[dict[str, Any]], bool]] = field(default_factory=dict)
    per_key: bool = True
    repeats: bool = False
    controls: Sequence[Any] = ()

    @cached_property
    def upserted(self) -> dict[str, Upsert]:
        """Output → table with one row per key; what comes out of the others is appended.

        Of an output that goes to several tables: one that is appended to has the output's name here, one
        with a row per key its own name behind it (``main:alarms``).
        """
        return {name: table for _, name, table in self._merged}

    @cached_property
    def _merged(self) -> list[tuple[str, str, Upsert]]:
        """Of each table with one row per key: its output, what it is called here, and itself."""
        return [
            (output, output if len(tables) == 1 else f"{output}:{table.table}", table)
            for output, tables in self.topology().tables.items()
            for table in tables
            if isinstance(table, Upsert)
        ]

    @cached_property
    def _only_merged(self) -> set[str]:
        """Outputs that go to tables with one row per key and to no other."""
        return {
            output
            for output, tables in self.topology().tables.items()
            if all(isinstance(table, Upsert) for table in tables)
        }

    @cached_property
    def events(self) -> list[Happened]:
        """The world in order of time; of one instant in the order in which a batch is handled."""
        return sorted(self.world(), key=lambda h: (h.came_ms, h.key, msgspec.json.encode(h.event)))

    def chain(self) -> MemoryChain:
        """Return the app in memory as it begins: what its control events say holds."""
        chain = MemoryChain(self.topology(), out_of_orderness_ms=self.bound_ms)
        if self.controls:
            assert chain.broadcast(*self.controls) == [], "control events are refused"
        return chain

    @cached_property
    def _one_by_one(self) -> tuple[list[Emission], list[int]]:
        """What comes out if every event is a batch, and how much of it with which event."""
        emissions: list[Emission] = []
        until = []
        chain = self.chain()
        for happened in self.events:
            emissions += self._run(chain, [happened])
            until.append(len(emissions))
        return emissions, until

    def expected(self, number: int | None = None) -> dict[str, Counter[bytes]]:
        """Return the tables after so many events, or at the end, each event a batch."""
        emissions, until = self._one_by_one
        return self.tables(emissions if number is None else emissions[: until[number - 1]])

    def found(self, number: int, seed: int, *, whole: bool = False) -> dict[str, Counter[bytes]]:
        """Return the tables after so many events, out of order and in batches as a seed has it.

        Args:
            number: How many events.
            seed: Where order, batches and restarts come from.
            whole: Whether all of them are one batch.
        """
        chain, emissions = self.chain(), []
        for batch, restarts in self._batches(number, random.Random(seed), whole=whole):
            emissions += self._run(chain, batch)
            if restarts:
                chain.restart()
        return self.tables(emissions)

    def check(self, seeds: Iterable[int]) -> None:
        """Compare the tables at moments that seeds pick; seed 0: the end, and all is one batch."""
        for seed in seeds:
            whole, most = seed == 0, len(self.events)
            number = most if whole else random.Random(f"until {seed}").randint(most // 2, most)
            difference = unlike(self.expected(number), self.found(number, seed, whole=whole))
            assert difference == {}, f"seed {seed}, after {number} events: {difference}"

    def differing(self, seeds: Iterable[int]) -> dict[str, tuple[int, int]]:
        """Return, by table, how many rows there are, and how many of them other cuts would have made others.

        For apps that decide on events as they come, where order matters: events come in one order, which
        seeds pick, once in batches with restarts between them and once one by one.

        Returns:
            Table → rows of all seeds' runs, and those of them that only one of the two has.
        """
        rows, others = Counter[str](), Counter[str]()
        for seed in seeds:
            found = self.found(len(self.events), seed)
            chain, emissions = self.chain(), []
            for batch, _ in self._batches(len(self.events), random.Random(seed), whole=False):
                for happened in batch:
                    emissions += self._run(chain, [happened])
            alone = self.tables(emissions)
            for name in {*found, *alone}:
                here, there = found.get(name, Counter()), alone.get(name, Counter())
                rows[name] += here.total()
                others[name] += max((here - there).total(), (there - here).total())
        return {name: (rows[name], others[name]) for name in sorted(rows)}

    def _batches(
        self, number: int, draws: random.Random, *, whole: bool
    ) -> Iterator[tuple[list[Happened], bool]]:
        events = self.events[:number]
        came = [(h.key, h.came_ms, h.event) for h in events]
        twice = number // _REPEATED if self.repeats else 0
        order = in_some_order(draws, came, self.bound_ms, twice, per_key=self.per_key)
        taken = [events[place] for place in order]
        while taken:
            size = len(taken) if whole else draws.choice(_SIZES)
            yield taken[:size], draws.random() < _RESTARTS
            del taken[:size]

    def _run(self, chain: MemoryChain, batch: Sequence[Happened]) -> list[Emission]:
        late = [h for h in batch if h.at_ms == h.came_ms and h.at_ms <= chain.watermark]
        assert late == [], "the bound is too small for the world"
        # A copy each, as from their bytes: a process may change its own.
        emissions = chain.run_batch([(h.key, h.at_ms, copy(h.event), h.input) for h in batch])
        odd = [e for e in emissions if _is_odd(e)]
        repeated = [e for e in odd if self.repeats and b'"reason":"duplicate"' in e.payload]
        assert odd == repeated, "nothing is late, and nothing fails"
        return [e for e in emissions if e not in repeated] if repeated else emissions

    def tables(self, emissions: Iterable[Emission]) -> dict[str, Counter[bytes]]:
        """Return what stands in the tables."""
        records: dict[str, list[dict[str, Any]]] = {}
        appended: dict[str, list[Any]] = {}
        for e in emissions:
            record = msgspec.json.decode(e.payload)
            records.setdefault(e.output, []).append(record)
            if e.output not in self._only_merged:
                bare = self._bare(e.output, record)
                appended.setdefault(e.output, []).append([bare, e.event_time, bool(e.on_time)])
        standing: dict[str, list[Any]] = {}
        for output, name, table in self._merged:
            rows = merged(records.get(output, ()), table)
            standing[name] = [self._bare(name, row) for row in rows if self._is_wanted(name, row)]
        return {name: Counter(map(_encode, found)) for name, found in (standing | appended).items()}

    def _is_wanted(self, output: str, row: dict[str, Any]) -> bool:
        return output not in self.only or self.only[output](row)

    def _bare(self, output: str, record: Any) -> Any:
        gone = {*self.ignored, *self.left_out.get(output, ())}
        return {k: v for k, v in record.items() if k not in gone} if isinstance(record, dict) else record


def merged(records: Iterable[dict[str, Any]], table: Upsert) -> list[dict[str, Any]]:
    """Return the rows of a table with one per key, after records in their order."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in records:
        key = tuple(record[name] for name in table.key)
        there = rows.get(key)
        if there is None or [record[v] for v in table.versions] >= [there[v] for v in table.versions]:
            rows[key] = record
    return [row for row in rows.values() if not (table.deleted and row.get(table.deleted))]


def _is_odd(emission: Emission) -> bool:
    name = emission.output.rpartition(".")[2]
    return name == "dead_letters" or name.startswith("late")


def _encode(row: Any) -> bytes:
    return msgspec.json.encode(row, order="sorted")


def unlike(expected: Mapping[str, Counter[bytes]], found: Mapping[str, Counter[bytes]]) -> dict[str, Any]:
    """Return, by table, how many rows are missing and how many are too many, and some of them."""
    difference: dict[str, Any] = {}
    for name in sorted({*expected, *found}):
        there, here = expected.get(name, Counter()), found.get(name, Counter())
        missing, more = sorted((there - here).elements()), sorted((here - there).elements())
        if missing or more:
            difference[name] = {
                f"missing {len(missing)}": missing[:_SHOWN],
                f"too many {len(more)}": more[:_SHOWN],
            }
    return difference
