"""Chains as workers run them give what memory gives, with ``process_batch`` and without, cut anywhere."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from millrace import Context, KeyedProcess, Timer, arrival, side_output, value_state
from millrace.batch import Batch
from millrace.host import station
from millrace.host.key_times import KeyFields
from millrace.host.memory import LiveStore
from millrace.host.packing import Repacker
from millrace.host.rows import Emission
from millrace.host.spark import ProcessedStream
from millrace.operators import deduplicate
from millrace.process import order_of
from millrace.state import page_index, pages
from millrace.state.pages import PagedStore
from millrace.time.clock import ClockSettings
from millrace.topology import Input, Link, Topology, read
from tests.cases import case_count
from tests.spark.fuzzing import BOUND, Set, build, in_memory, random_case
from tests.spark.mirror import DRAIN, Mirror, comparable, to_row
from tests.spark.mirror import Item as Told
from tests.unit.millrace.host.test_station import Runs
from tests.unit.millrace.host.worker_chain import WorkerChain
from tests.unit.millrace.topology.random_steps import Item as Way
from tests.unit.millrace.topology.random_steps import made as random_topology

CASES = case_count(30)


def repacker(topology: Topology, key_groups: int) -> Any:
    """Return what makes the packers of a chain's links, as Spark's host makes them."""
    stream = ProcessedStream(topology, SimpleNamespace(key_groups=key_groups))  # type: ignore[arg-type]

    def of(place: int) -> Repacker:
        return stream._repacker(place)

    return of


def single(process: KeyedProcess[Any, Any]) -> Topology:
    return Topology({"": Input("", ("user",), "at")}, (Link(process),))


@pytest.mark.parametrize("start", range(0, CASES, max(1, CASES // 4)))
def test_random_processes_give_what_memory_gives(start: int) -> None:
    for seed in range(start, min(CASES, start + max(1, CASES // 4))):
        expected, _ = in_memory(random_case(seed))
        case, rng = random_case(seed), random.Random(seed)
        process = build(case.definition)
        topology, groups = single(process), rng.choice([1, 3, 8])
        chain = WorkerChain(
            topology,
            KeyFields((("user", str),), ("at", int)),
            ClockSettings(BOUND, incarnation=DRAIN.incarnation, patience_ms=order_of(process).patience_ms),
            repacker(topology, groups),
            rng=rng,
            key_groups=groups,
        )
        for batches in case.runs:
            chain.restart()
            for batch in batches:
                rows = []
                for item in batch:
                    time = getattr(item.value, "since", None) if isinstance(item.value, Set) else None
                    rows.append({**to_row(item), "time": None if time is None else str(time)})
                rng.shuffle(rows)
                chain.batch(rows, controls=True)
        assert comparable(chain.emissions) == comparable(expected), seed


class Act(msgspec.Struct):
    """What an event does: how often it emits, and something with a timer."""

    user: str
    at: int
    to: str
    n: int
    kind: str = ""
    delay: int = 0
    way: str = ""


class Acts(KeyedProcess[Act, Act]):
    """Emits each event none, one or two times, tells of others aside, and has timers."""

    order = arrival(commutes=True)
    total = value_state(int, default=0)
    recent = value_state(int, default=0, ttl=60)
    told = side_output(list[Any], stored_as="said")

    def process(self, event: Act, ctx: Context) -> None:
        self.total.value += event.n
        self.recent.value += 1
        if event.kind == "put aside":
            ctx.dead_letter("conflict", "told to")
        if event.kind == "clear":
            self.total.clear()
            self.recent.clear()
            return
        for number in range(event.n % 3):
            ctx.emit(self._made(event, self.total.value, number))
        if event.kind == "fail":
            event.n, event.way = -1, "changed"
            raise ValueError("told to")
        if event.n % 4 == 0:
            ctx.output(self.told, [event.n, self.recent.value])
        match event.kind:
            case "timer":
                ctx.timers.at(event.at + event.delay, f"t{event.n % 2}")
            case "sooner":
                ctx.timers.bring_forward(event.at + event.delay, "t0")
            case "delete":
                ctx.timers.delete("t1")

    def _made(self, event: Act, total: int, number: int) -> Act:
        kind = event.kind if event.kind != "put aside" else ""
        return Act(
            event.to, event.at, event.user, event.n + number, kind, event.delay, f"{event.way}>{total}"
        )

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self.total.value += 100
        ctx.output(self.told, [timer.name, timer.at, self.total.value, self.recent.value])
        if timer.name == "t1" and timer.at % 2:
            ctx.timers.after(11, "t0")
        ctx.emit(Act(f"{timer.at % 3}", timer.at, f"{ctx.key}", 3, way=f"timer {self.total.value}"))

    def on_late(self, event: Act, ctx: Context) -> None:
        self.total.value += 1000
        self.emit_late(event, ctx)


class ActsTogether(Acts):
    together = 0

    def process_batch(self, batch: Batch[Act]) -> None:
        totals, recent = batch.read(self.total), batch.read(self.recent)
        made: list[tuple[int, Act]] = []
        told: list[tuple[int, list[Any]]] = []
        for row, (key, event) in enumerate(zip(batch.key_of_row.tolist(), batch.events, strict=True)):
            if event.kind in ("fail", "put aside", "clear"):
                event.n, event.way = -1, "changed in place"
                raise ValueError("for single events")
            totals[key] += event.n
            recent[key] += 1
            made += [(row, self._made(event, totals[key], number)) for number in range(event.n % 3)]
            if event.n % 4 == 0:
                told.append((row, [event.n, recent[key]]))
            at = [int(batch.event_times[row]) + event.delay]
            if event.kind == "timer":
                batch.timers.at(at, [row], name=f"t{event.n % 2}")
            elif event.kind == "sooner":
                batch.timers.bring_forward(at, [row], name="t0")
            elif event.kind == "delete":
                batch.timers.delete([row], name="t1")
        ActsTogether.together += len(batch)
        batch.write(self.total, totals)
        batch.write(self.recent, recent)
        batch.emit([record for _, record in made], [row for row, _ in made])
        batch.output(self.told, [said for _, said in told], [row for row, _ in told])


class ActsByKey(Acts):
    """The totals are read and written once."""

    def process_key(self, events: Any, ctx: Context) -> None:
        total = self.total.value
        for event in events:
            if event.kind not in ("", "timer") or event.n % 4 == 0:
                raise ValueError("for single events")
            total += event.n
            self.recent.value += 1
            for number in range(event.n % 3):
                ctx.emit(self._made(event, total, number))
            if event.kind == "timer":
                self.total.value = total
                ctx.timers.at(event.at + event.delay, f"t{event.n % 2}")
        self.total.value = total


class ActsAnew(Acts):
    """A later version: a shorter life, and a state that the earlier one has not."""

    recent = value_state(int, default=0, ttl=25)
    last = value_state(list[int], default_factory=list, ttl=40)

    def process(self, event: Act, ctx: Context) -> None:
        super().process(event, ctx)
        if event.n % 2:
            self.last.value = [*self.last.value[-2:], event.n]
        elif event.kind == "clear":
            self.last.clear()
        else:
            ctx.output(self.told, ["last", *self.last.value])


def acts(base: type[Acts], name: str) -> Acts:
    made: Acts = type(name, (base,), {"name": name})()
    return made


def topology_of(kinds: tuple[type[Acts], ...]) -> Topology:
    topology = read(Input("acts", "user", "at")).process(acts(kinds[0], "L0"))
    for place, kind in enumerate(kinds[1:], 1):
        topology = topology.key_by("user").process(acts(kind, f"L{place}"))
    return topology.write(tables={f"L{place}.main": f"m{place}" for place in range(len(kinds) - 1)})


def in_order(emissions: list[Emission]) -> dict[tuple[str, str], list[Any]]:
    """Return what each output has of each key, in order."""
    found: dict[tuple[str, str], list[Any]] = {}
    for e in emissions:
        payload = msgspec.json.decode(e.payload)
        if e.output.endswith("dead_letters"):
            del payload["error_digest"]
        found.setdefault((e.output, e.key), []).append(
            (e.event_id, e.event_time, bool(e.on_time & 1), payload)
        )
    return found


class Batches:
    """Random batches of acts: disorder, late ones, repeats of one instant."""

    def __init__(
        self, seed: int, users: int = 3, kinds: tuple[str, ...] = (), sizes: tuple[int, ...] = (1, 1, 4, 12)
    ) -> None:
        rng = random.Random(seed)
        self.groups = rng.choice([1, 2, 5])
        self.bound = rng.choice([0, 20])
        special = rng.choice([0.0, 0.1, 0.5])
        now, number = 1_000, 0
        #: How many pages a station had at the end.
        self.most_pages = 0
        self.batches: list[list[tuple[str, Act]]] = []
        for _ in range(rng.randrange(2, 9)):
            batch = []
            for _ in range(rng.choice(sizes)):
                kind = ""
                if rng.random() < special:
                    kind = rng.choice(["timer", "timer", "sooner", "delete", "fail", "put aside", *kinds])
                act = Act(
                    f"{rng.randrange(users)}",
                    now + rng.randrange(-30, 40),
                    f"{rng.randrange(users)}",
                    rng.randrange(12),
                    kind,
                    rng.randrange(-20, 90),
                )
                batch.append((f"acts:{number % 2}:{number}", act))
                number += 1
            self.batches.append(batch)
            now += rng.randrange(40)

    def rows(self, batch: list[tuple[str, Act]]) -> list[dict[str, Any]]:
        return [{"value": msgspec.json.encode(act).decode(), "source": source} for source, act in batch]

    def by_chain(self, *kinds: type[Acts], by_place: bool, seed: int) -> list[Emission]:
        topology = topology_of(kinds)
        chain = WorkerChain(
            topology,
            KeyFields((("user", str),), ("at", int)),
            ClockSettings(self.bound),
            repacker(topology, self.groups),
            rng=random.Random(seed),
            key_groups=self.groups,
            by_place=by_place,
        )
        for batch in self.batches:
            chain.batch(self.rows(batch))
        return chain.emissions

    def by_station(self, *kinds: type[Acts], seed: int, reshapes: bool = False) -> list[Emission]:
        topology = topology_of(kinds)
        runs = Runs(
            topology,
            KeyFields((("user", str),), ("at", int)),
            ClockSettings(self.bound),
            rng=random.Random(seed),
            key_groups=self.groups,
            kept_bytes=random.Random(seed).choice([0, 600, 4_000, 1 << 20]),
        )
        for batch in self.batches:
            if reshapes and runs.store.kept and runs.rng.random() < 0.3:
                runs.become(1, runs.rng.choice([1, 2, 5]))
            runs.batch(self.rows(batch), controls=False)
        self.most_pages = max(self.most_pages, sum(place[2] > 1 for place in runs.store.kept))
        return runs.emissions

    def in_memory(self, kind: type[Acts]) -> list[Emission]:
        mirror = Mirror(acts(kind, "L0"), self.bound)
        for batch in self.batches:
            mirror.batch([Told(source, act) for source, act in batch], key="user", at="at")
        return mirror.runner.emissions


def test_batches_of_random_acts_give_the_same_on_all_hosts() -> None:
    before = ActsTogether.together
    for seed in range(CASES):
        batches = Batches(seed)
        wanted = batches.in_memory(Acts)
        for kind in (Acts, ActsTogether, ActsByKey):
            for by_place in (False, True):
                found = batches.by_chain(kind, by_place=by_place, seed=seed)
                assert in_order(found) == in_order(wanted), (seed, kind, by_place)
            assert in_order(batches.by_station(kind, seed=seed)) == in_order(wanted), (seed, kind)
            assert in_order(batches.in_memory(kind)) == in_order(wanted), (seed, kind)
    assert ActsTogether.together > before


def test_pages_that_split_and_fold_while_workers_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages, many keys that come and go, lists of pages in pages of their own."""
    monkeypatch.setattr(page_index, "FLAT_PAGES", 6)
    monkeypatch.setattr(page_index, "_FIRST_BITS", 2)
    monkeypatch.setattr(station, "STATION_PAGE_BYTES", 60)
    monkeypatch.setitem(PagedStore.__init__.__kwdefaults__, "page_bytes", 60)  # type: ignore[arg-type]
    most_pages = 0
    for seed in range(CASES // 3):
        batches = Batches(seed, 60, ("clear",) * 12, (10, 40, 120))
        wanted = in_order(batches.in_memory(Acts))
        for kind in (Acts, ActsTogether):
            assert in_order(batches.by_chain(kind, by_place=True, seed=seed)) == wanted, (seed, kind)
            for reshapes in (False, True):
                found = batches.by_station(kind, seed=seed, reshapes=reshapes)
                assert in_order(found) == wanted, (seed, kind, reshapes)
        most_pages = max(most_pages, batches.most_pages)
    assert most_pages > 30


def test_versions_of_a_process_take_turns_over_pages_of_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of several versions stand beside each other; whoever reads one brings it over."""
    monkeypatch.setattr(page_index, "FLAT_PAGES", 6)
    monkeypatch.setattr(page_index, "_FIRST_BITS", 2)
    monkeypatch.setattr(station, "STATION_PAGE_BYTES", 60)
    monkeypatch.setitem(PagedStore.__init__.__kwdefaults__, "page_bytes", 60)  # type: ignore[arg-type]
    monkeypatch.setattr(pages, "_RENEWED_PER_BATCH", 3)
    for seed in range(CASES // 3):
        rng = random.Random(seed)
        batches = Batches(seed, 40, ("clear",) * 8, (2, 10, 60))
        topologies = [topology_of((kind,)) for kind in (Acts, ActsAnew)]
        fields, settings = KeyFields((("user", str),), ("at", int)), ClockSettings(batches.bound)
        groups = batches.groups
        runs = Runs(
            topologies[0], fields, settings, rng=random.Random(seed), key_groups=groups,
            kept_bytes=rng.choice([0, 600, 1 << 20]),
        )  # fmt: skip
        chain = WorkerChain(
            topologies[0], fields, settings, repacker(topologies[0], groups), rng=random.Random(seed),
            key_groups=groups,
        )  # fmt: skip
        mirror = Mirror(topologies[0].links[0].process, batches.bound)
        wanted: list[Emission] = []
        for batch in batches.batches:
            if rng.random() < 0.4:
                topology = rng.choice(topologies)
                runs.topology = chain.topology = topology
                runs._begin(runs.stores, groups)
                chain.restart()
                before, mirror = mirror, Mirror(topology.links[0].process, batches.bound)
                mirror.store = LiveStore(mirror.runner.layout, before.store.pack())
                mirror._watermark, mirror._newest = before._watermark, before._newest
                wanted += before.runner.emissions
            runs.batch(batches.rows(batch), controls=False)
            chain.batch(batches.rows(batch))
            mirror.batch([Told(source, act) for source, act in batch], key="user", at="at")
        wanted += mirror.runner.emissions
        assert in_order(chain.emissions) == in_order(wanted), seed
        assert in_order(runs.emissions) == in_order(wanted), seed


def test_chains_of_random_acts_give_the_same_whatever_takes_them_together() -> None:
    for seed in range(CASES):
        rng, batches = random.Random(seed), Batches(seed)
        count = rng.choice([2, 3])
        wanted = comparable(batches.by_station(*[Acts] * count, seed=seed))
        for number in range(2):
            kinds = [rng.choice([Acts, ActsTogether, ActsByKey]) for _ in range(count)]
            found = batches.by_chain(*kinds, by_place=rng.random() < 0.5, seed=seed + number)
            assert comparable(found) == wanted, (seed, kinds)
        assert comparable(batches.by_station(*kinds, seed=seed + 7)) == wanted, (seed, kinds)


def test_random_topologies_give_what_stations_give() -> None:
    for seed in range(CASES):
        rng = random.Random(seed)
        topology = random_topology(rng)
        fields, groups = KeyFields((("a", str),), ("at", int)), rng.choice([1, 2, 8])
        chain = WorkerChain(
            topology, fields, ClockSettings(0), repacker(topology, groups), rng=rng, key_groups=groups
        )
        other = Runs(topology, fields, ClockSettings(0), rng=random.Random(seed), key_groups=groups)
        number = 0
        for at in range(rng.randint(1, 8)):
            rows = []
            for _ in range(rng.randint(1, 6)):
                item = Way(rng.choice("xyz"), rng.randrange(5), rng.choice([True, False, None]), at + 1)
                rows.append({"value": msgspec.json.encode(item).decode(), "source": f"memory:0:{number}"})
                number += 1
            chain.batch(rows)
            other.batch(rows, controls=False)
        assert comparable(chain.emissions) == comparable(other.emissions), seed


class Seen(msgspec.Struct, frozen=True):
    user: str
    at: int
    n: int


@pytest.mark.parametrize("refresh", [False, True])
def test_deduplication_in_arrival_order_lets_the_first_within_the_horizon_pass(refresh: bool) -> None:
    within = 50
    process = deduplicate(Seen, within=within, order="arrival", refresh=refresh)
    for seed in range(CASES):
        rng = random.Random(seed)
        topology, groups = single(process), rng.choice([1, 4])
        chain = WorkerChain(
            topology,
            KeyFields((("user", str),), ("at", int)),
            ClockSettings(10**6),
            repacker(topology, groups),
            rng=rng,
            key_groups=groups,
            by_place=True,
        )
        marks: dict[str, tuple[int, int, int]] = {}
        wanted: Counter[Any] = Counter()
        number = 0
        for _ in range(rng.randrange(1, 7)):
            rows = []
            for _ in range(rng.choice([1, 5, 20])):
                rows.append((f"in:0:{number}", Seen(rng.choice("abcd"), 1_000 + rng.randrange(300), number)))
                number += 1
            # Of a batch each key's events come in order of time, those of one instant by their bytes.
            for _, of in sorted(rows, key=lambda row: (row[1].at, msgspec.json.encode(row[1]))):
                seen = marks.get(of.user)
                if seen is not None and of.at >= seen[1] + within:
                    seen = None  # its life is over
                if seen is None or abs(of.at - seen[1]) >= within:
                    wanted["main", of.n, None] += 1
                    if seen is None or of.at > seen[1]:
                        marks[of.user] = of.at, of.at, 0
                    continue
                first, mark, repeats = seen[0], seen[1], seen[2] + 1
                wanted["repeats", of.n, (first, repeats)] += 1
                marks[of.user] = first, of.at if refresh and of.at > mark else mark, repeats
            chain.batch(
                [{"value": msgspec.json.encode(of).decode(), "source": source} for source, of in rows]
            )
        found: Counter[Any] = Counter()
        for e in chain.emissions:
            told = msgspec.json.decode(e.payload)
            if e.output == "main":
                found["main", told["n"], None] += 1
            else:
                found[e.output, told["event"]["n"], (told["first_ms"], told["repeats"])] += 1
        assert found == wanted, seed
