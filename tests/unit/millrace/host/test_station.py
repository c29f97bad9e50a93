"""A station gives what the in-memory hosts give, whichever worker runs its batches and however often."""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from millrace import BroadcastContext, Context, arrival, broadcast_state, value_state
from millrace.chaos.memory import FixedClock, StationBytes
from millrace.checkpoints.reading import opened
from millrace.checkpoints.reshape import CellRows, GroupPacker, GroupShape, Shared, cell_rows, shared_rows
from millrace.host import spark_station, station
from millrace.host.chunks import WATERMARK, decode_input, decode_output, status_of
from millrace.host.groups import decode_key, group_labels
from millrace.host.intake import JsonEvents
from millrace.host.key_times import KeyFields
from millrace.host.memory_chain import MemoryChain
from millrace.host.packing import Packer
from millrace.host.rows import Emission
from millrace.host.station import (
    BROADCAST,
    HEADER,
    SHARED,
    TOKEN,
    At,
    Head,
    LocalityError,
    Station,
    StationLink,
    outputs_of_links,
    place_of,
    read_head,
)
from millrace.process import KeyedProcess, order_of
from millrace.state import pages as pages_module
from millrace.state.cells import CLOCK_PAGE, SCHEMA_PAGE, StateCorrupted, encode, read_clock
from millrace.state.change_log import LOG_PAGES
from millrace.state.envelope import unwrap
from millrace.state.keyring import KeyReference, configured_keys, generate_key
from millrace.time.clock import ClockSettings
from millrace.topology import Input, Link, Topology, read
from tests.cases import case_count
from tests.spark.fuzzing import BOUND, Set, build, in_memory, random_case
from tests.spark.mirror import DRAIN, comparable, to_row
from tests.unit.millrace.topology.random_steps import Item as Step
from tests.unit.millrace.topology.random_steps import made, step

CASES = case_count(60)


@dataclass
class Bytes(StationBytes):
    """What a station keeps, with how often it is read, and batches that fail."""

    reads: int = 0
    #: After so many requests the connection breaks.
    breaks_after: int = 1 << 60

    def _asked(self) -> None:
        self.breaks_after -= 1
        if self.breaks_after < 0:
            raise ConnectionError

    def read(self, places: Sequence[At]) -> list[bytes | None]:
        self._asked()
        self.reads += len(places)
        return super().read(places)

    def write(self, place: At, data: bytes) -> None:
        self._asked()
        super().write(place, data)

    def remove(self, place: At) -> None:
        self._asked()
        super().remove(place)

    def push(self) -> None:
        self._asked()

    def flush(self) -> None:
        self._asked()

    def fail(self) -> None:
        self.batch.clear()
        self.breaks_after = 1 << 60


class Worker:
    """A worker of Spark's: it runs whichever station it is given, and keeps what it has built."""

    def __init__(self, made: Callable[[int], Station]) -> None:
        self._made = made
        self._stations: dict[int, Station] = {}

    def run(
        self, number: int, packed: Sequence[bytes], store: Bytes, settings: ClockSettings
    ) -> list[tuple[str, int, bytes]]:
        if number not in self._stations:
            self._stations[number] = self._made(number)
        return list(self._stations[number].run(map(decode_input, packed), store, settings))


class Runs:
    """A topology in stations, batch by batch: in this worker or in another, at once or after a failure."""

    def __init__(
        self,
        topology: Topology,
        keys: KeyFields,
        settings: ClockSettings,
        *,
        rng: random.Random,
        key_groups: int = 3,
        kept_bytes: int = 1 << 20,
        sealed: KeyReference | None = None,
        stations: int = 1,
    ) -> None:
        self.topology, self.keys, self.settings, self.rng = topology, keys, settings, rng
        self.kept_bytes, self.sealed = kept_bytes, sealed
        self.emissions: list[Emission] = []
        self.watermarks: list[int] = []
        #: Which stations have emitted anything of a key.
        self.worked: dict[str, set[int]] = {}
        self.stores: list[Bytes] = []
        self._begin([Bytes() for _ in range(stations)], key_groups)

    def _begin(self, stores: list[Bytes], key_groups: int) -> None:
        self.stores, self.key_groups, stations = stores, key_groups, len(stores)
        by_key = order_of(self.topology.links[0].process).by_key
        self.packer = Packer(
            (self.keys,), group_labels(stations), clock=FixedClock(self.settings), by_key=by_key,
            by_locality=stations > 1,
        )  # fmt: skip
        names, onward = outputs_of_links(self.topology)

        def station(number: int) -> Station:
            links = [
                StationLink(link.process, events_of(link.process), key_groups, onward[place], names[place])
                for place, link in enumerate(self.topology.links)
            ]
            return Station(
                links, self.sealed, kept_bytes=self.kept_bytes, number=number, stations=stations
            )  # fmt: skip

        self.made = lambda: Worker(station)
        self.workers = [self.made(), self.made()]

    @property
    def store(self) -> Bytes:
        (only,) = self.stores
        return only

    def batch(self, rows: Iterable[dict[str, Any]], *, controls: bool) -> None:
        came = self._packed(list(rows), controls=controls)
        assert all(came), "every station is told of every batch"
        if self.rng.random() < 0.2:  # an attempt that is not committed, by either worker
            for number in range(self.rng.randrange(len(came)) + 1):
                worker = self.rng.choice(self.workers)
                if self.rng.random() < 0.5:  # in the middle of it, with half of the pages sent
                    self.stores[number].breaks_after = self.rng.randrange(30)
                with contextlib.suppress(ConnectionError):
                    worker.run(number, came[number], self.stores[number], self.settings)
            for store in self.stores:
                store.fail()
        if self.rng.random() < 0.15:
            self.workers[self.rng.randrange(2)] = self.made()
        told = 0
        for number, packed in enumerate(came):
            worker = self.workers[0] if self.rng.random() < 0.7 else self.workers[1]
            for output, records, chunk in worker.run(number, packed, self.stores[number], self.settings):
                if output == WATERMARK:
                    self.watermarks.append(status_of(chunk).watermark)
                    told += 1
                    continue
                found = decode_output(chunk)
                assert len(found.keys) == records
                for row in zip(*found, strict=True):
                    identity, key, time, on_time, payload = row
                    self.worked.setdefault(key, set()).add(number)
                    self.emissions.append(Emission(output, identity, key, time, bool(on_time & 1), payload))
        assert told == 1
        for store in self.stores:
            store.commit()

    def _packed(self, rows: list[dict[str, Any]], *, controls: bool) -> list[list[bytes]]:
        """Return what comes to each station, of rows that several tasks have read."""
        columns = {
            "_value": pa.array([r["value"].encode() for r in rows], pa.binary()),
            "_source_id": pa.array([r["source"] for r in rows], pa.string()),
        }
        if controls:
            columns["_control"] = pa.array([r["control"] for r in rows], pa.bool_())
            columns["_control_time"] = pa.array([r["time"] for r in rows], pa.string())
        batches = [pa.record_batch(columns)]
        if len(rows) > 3 and self.rng.random() < 0.3:
            batches = [batches[0].slice(0, 2), batches[0].slice(2)]
        tasks = [batches] if self.rng.random() < 0.6 else [[batch] for batch in batches]
        labels = group_labels(len(self.stores))
        came: list[list[bytes]] = [[] for _ in labels]
        for task in tasks:
            for found in self.packer(iter(task)):
                for label, chunk in zip(*(column.to_pylist() for column in found.columns), strict=True):
                    came[labels.index(label)].append(chunk)
        return came

    def clocks(self) -> list[set[bytes]]:
        """Return what the clocks of each link say, in all stations: one thing."""
        ring = None if self.sealed is None else self.sealed.ring()
        return [
            {
                unwrap(data, place_of(link.process.stored_as, SHARED, CLOCK_PAGE, number), ring)
                for number, store in enumerate(self.stores)
                if (data := store.kept.get((place, SHARED, CLOCK_PAGE))) is not None
            }
            for place, link in enumerate(self.topology.links)
        ]

    def become(self, stations: int, key_groups: int) -> None:
        """Bring what is kept into other stations and key groups, as Spark's workers would."""
        made = [Bytes() for _ in range(stations)]
        heads = [read_head(store.kept[TOKEN]) for store in self.stores]
        assert len({tuple(head.ticks) for head in heads}) == 1
        ring = None if self.sealed is None else self.sealed.ring()
        for place, link in enumerate(self.topology.links):
            name = link.process.stored_as
            old: dict[tuple[int, int], dict[int, bytes]] = {}
            for number, store in enumerate(self.stores):
                for (of, label, page), data in store.kept.items():
                    if of == place:
                        old.setdefault((number, label), {})[page] = data
            beside = [old.pop((number, SHARED), {}) for number in range(len(self.stores))]
            shared = [
                {page: unwrap(data, place_of(name, SHARED, page, number), ring) for page, data in of.items()}
                for number, of in enumerate(beside)
            ]
            assert all(one == shared[0] for one in shared), "all stations share alike"
            clock = shared[0].get(CLOCK_PAGE)
            shape = GroupShape(
                name, key_groups, self.sealed, None if clock is None else read_clock(clock), stations=stations
            )
            tick = heads[0].ticks[place]
            take = CellRows(shape, tick)
            rows = [
                row
                for (number, label), values in old.items()
                for row in take(label, opened(name, label, values, self.sealed, number)).to_pylist()
            ]
            pack = GroupPacker(shape, Shared(shared[0].get(BROADCAST), tick), b"[]")
            of_group: dict[tuple[int, int], list[Any]] = {}
            for row in rows:
                of_group.setdefault((row["station"], row["label"]), []).append(tuple(row.values()))
            packed = [pack(tuple(map(pa.scalar, at)), cell_rows(of)) for at, of in of_group.items()]
            packed.append(shared_rows(shape, Shared(shared[0].get(BROADCAST), tick)))
            for table in packed:
                for row in table.to_pylist():
                    made[row["station"]].kept[place, row["label"], row["number"]] = row["data"]
        for store in made:
            store.kept[TOKEN] = encode(Head(b"", heads[0].ticks))
        self._begin(made, key_groups)


def events_of(process: KeyedProcess[Any, Any]) -> JsonEvents:
    return JsonEvents(process.event_type, process.control_type, inputs=process.inputs)


def of_case(
    seed: int, reshape: Callable[[random.Random], tuple[int, int]] | None = None, **more: Any
) -> Runs:
    """Run a random process as a station of one link."""
    case = random_case(seed)
    process = build(case.definition)
    runs = Runs(
        single(process),
        KeyFields((("user", str),), ("at", int)),
        ClockSettings(BOUND, incarnation=DRAIN.incarnation, patience_ms=order_of(process).patience_ms),
        rng=random.Random(seed),
        **more,
    )
    for batches in case.runs:
        if reshape is not None and runs.stores[0].kept:
            runs.become(*reshape(runs.rng))
        for batch in batches:
            rows = []
            for item in batch:
                time = getattr(item.value, "since", None) if isinstance(item.value, Set) else None
                rows.append({**to_row(item), "time": None if time is None else str(time)})
            runs.rng.shuffle(rows)
            runs.batch(rows, controls=True)
    return runs


def single(process: KeyedProcess[Any, Any]) -> Topology:
    return Topology({"": Input("", ("user",), "at")}, (Link(process),))


@pytest.fixture(params=["pages as they are", "small pages, and logs of them"])
def pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a few keys, so that groups as small as those of random cases have a log."""
    if request.param.startswith("small"):
        log_all(monkeypatch)


def log_all(monkeypatch: pytest.MonkeyPatch, log_bytes: int = 700) -> None:
    """Let every key group of more than one page have a log."""
    monkeypatch.setattr(station, "STATION_PAGE_BYTES", 100)
    monkeypatch.setattr(station, "LOG_BYTES", log_bytes)
    monkeypatch.setattr(pages_module, "LEAST_PAGES", 1)
    monkeypatch.setattr(pages_module, "MOST_TIMES", 1_000)


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize("start", range(0, CASES, max(1, CASES // 6)))
def test_random_processes_give_what_memory_gives(start: int) -> None:
    for seed in range(start, min(CASES, start + max(1, CASES // 6))):
        expected, left = in_memory(random_case(seed))
        assert not left
        runs = of_case(seed, kept_bytes=random.Random(seed).choice([0, 400, 1 << 20]))
        assert comparable(runs.emissions) == comparable(expected), seed
        kept = {number for link, _, number in runs.store.kept if link >= 0}
        assert kept <= {CLOCK_PAGE, -2}, f"seed {seed}: {kept} are left"


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize("start", range(0, CASES, max(1, CASES // 6)))
def test_random_processes_give_the_same_in_several_stations_however_many_they_become(start: int) -> None:
    worked: set[int] = set()
    for seed in range(start, min(CASES, start + max(1, CASES // 6))):
        rng = random.Random(seed)
        expected, _ = in_memory(random_case(seed))
        runs = of_case(
            seed,
            lambda rng: (rng.choice([1, 2, 3, 5]), rng.choice([1, 3, 8])),
            kept_bytes=rng.choice([0, 400, 1 << 20]),
            stations=rng.choice([2, 3, 5]),
        )
        assert comparable(runs.emissions) == comparable(expected), seed
        kept = {number for store in runs.stores for link, _, number in store.kept if link >= 0}
        assert kept <= {CLOCK_PAGE, BROADCAST}, f"seed {seed}: {kept} are left"
        assert [len(found) for found in runs.clocks()] == [1], f"seed {seed}: clocks are not equal"
        worked = worked.union(*runs.worked.values())
    assert len(worked) > 1


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize("local", [False, True])
def test_random_topologies_give_what_chains_in_memory_give(local: bool) -> None:
    worked: set[int] = set()
    for seed in range(CASES):
        rng = random.Random(seed)
        topology = made(rng, "a" if local else None)
        chain = MemoryChain(topology)
        fields = KeyFields((("a", str),), ("at", int))
        groups, stations = rng.choice([1, 2, 8]), rng.choice([2, 3, 4]) if local else 1
        runs = Runs(topology, fields, ClockSettings(0), rng=rng, key_groups=groups, stations=stations)
        wanted: Counter[str] = Counter()
        number = 0
        for at in range(rng.randint(1, 10)):
            batch, rows = [], []
            for _ in range(rng.randint(1, 6)):
                item = Step(rng.choice("xyz"), rng.randrange(5), rng.choice([True, False, None]), at + 1)
                batch.append((item.a, item.at, item))
                rows.append({"value": msgspec.json.encode(item).decode(), "source": f"memory:0:{number}"})
                number += 1
            wanted += comparable(chain.run_batch(batch))
            if local and at and rng.random() < 0.2:
                runs.become(rng.choice([1, 2, 4]), rng.choice([1, 2, 8]))
            runs.batch(rows, controls=False)
        assert comparable(runs.emissions) == wanted, seed
        assert all(len(found) == 1 for found in runs.clocks()), seed
        worked = worked.union(*runs.worked.values())
    assert (len(worked) > 1) is local


def test_a_worker_whose_batch_was_the_last_reads_no_more_than_the_token() -> None:
    topology = read_one()
    runs = Runs(topology, KeyFields((("a", str),), ("at", int)), ClockSettings(0), rng=Always())
    rows = [{"value": '{"a":"x","b":1,"c":true,"at":5}', "source": "t:0:0"}]
    runs.batch(rows, controls=False)
    before = runs.store.reads
    runs.batch([{**rows[0], "source": "t:0:1"}], controls=False)
    assert runs.store.reads - before == 1


def test_a_worker_that_finds_another_token_believes_nothing_that_it_has() -> None:
    runs = Runs(read_one(), KeyFields((("a", str),), ("at", int)), ClockSettings(0), rng=Always())
    row = {"value": '{"a":"x","b":1,"c":true,"at":5}', "source": "t:0:0"}
    runs.batch([row], controls=False)
    runs.workers.reverse()
    runs.batch([{**row, "source": "t:0:1"}], controls=False)
    runs.workers.reverse()
    runs.batch([{**row, "source": "t:0:2"}], controls=False)
    ways = [msgspec.json.decode(e.payload)["way"] for e in runs.emissions]
    assert ways == [f">L0[x]{n}" for n in (1, 2, 3)]


@pytest.mark.usefixtures("pages")
def test_what_is_kept_is_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_STATE_SECRET_KEYS", generate_key())
    keys = configured_keys(None)
    for seed in range(8):
        expected, _ = in_memory(random_case(seed))
        runs = of_case(seed, sealed=keys)
        assert comparable(runs.emissions) == comparable(expected)
        assert all(data[:2] == b"\xc1\x02" for at, data in runs.store.kept.items() if at != TOKEN)


def test_a_page_that_is_missing_stops_the_batch() -> None:
    runs = Runs(read_one(), KeyFields((("a", str),), ("at", int)), ClockSettings(0), rng=Always())
    value = '{"a":"%s","b":1,"c":true,"at":5}'
    keys = [f"key-{n}" for n in range(2_000)]
    runs.batch([{"value": value % k, "source": f"t:0:{n}"} for n, k in enumerate(keys)], controls=False)
    pages = [at for at in runs.store.kept if at[0] == 0 and at[2] > SCHEMA_PAGE]
    assert len(pages) >= 6
    for place in pages:
        del runs.store.kept[place]
    runs.workers = [runs.made(), runs.made()]
    with pytest.raises(StateCorrupted, match="is missing"):
        runs.batch([{"value": value % keys[0], "source": "t:0:9"}], controls=False)


class Remembers(KeyedProcess[Step, int]):
    """Keeps the last number of a key for a minute."""

    order = arrival(commutes=True)
    last = value_state(int, default=0, ttl=60_000)

    def process(self, event: Step, ctx: Context) -> None:
        self.last.value = event.b


def test_what_has_expired_goes_also_where_nobody_comes_by_again() -> None:
    topology = Topology({"": Input("", ("a",), "at")}, (Link(Remembers()),))
    fields = KeyFields((("a", str),), ("at", int))
    runs = Runs(topology, fields, ClockSettings(0), rng=Always(), key_groups=8)
    value = '{"a":"%s","b":1,"c":true,"at":%d}'
    first = [{"value": value % (f"k{n}", 1_000), "source": f"t:0:{n}"} for n in range(40)]
    runs.batch(first, controls=False)
    headers = [at for at in runs.store.kept if at[2] == HEADER]
    assert len(headers) == 8
    runs.batch([{"value": value % ("k0", 400_000), "source": "t:0:50"}], controls=False)
    assert len([at for at in runs.store.kept if at[2] == HEADER]) == 1


def test_a_log_that_nobody_adds_to_ends_within_as_many_batches_as_there_are_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log_all(monkeypatch, 1 << 20)
    topology = Topology({"": Input("", ("a",), "at")}, (Link(Remembers()),))
    runs = Runs(topology, KeyFields((("a", str),), ("at", int)), ClockSettings(0), rng=Always(), key_groups=8)
    value = '{"a":"%s","b":%d,"c":true,"at":1000}'

    def batch(keys: Iterable[int], number: int) -> None:
        rows = [{"value": value % (f"k{n}", number), "source": f"t:0:{number}{n}"} for n in keys]
        runs.batch(rows, controls=False)

    def logged() -> set[int]:
        return {label for _, label, number in runs.store.kept if number >= LOG_PAGES}

    batch(range(200), 1)
    batch(range(200), 2)
    assert len(logged()) >= 7
    counts = []
    for number in range(3, 11):
        batch([0], number)
        counts.append(len(logged()))
    assert counts[-1] <= 1
    assert counts == sorted(counts, reverse=True)


def test_groups_without_keys_keep_nothing() -> None:
    runs = Runs(read_one(), KeyFields((("a", str),), ("at", int)), ClockSettings(0), rng=Always())
    runs.batch([{"value": '{"a":"x","b":1,"c":true,"at":5}', "source": "t:0:0"}], controls=False)
    assert len([at for at in runs.store.kept if at[2] == HEADER]) == 1


def test_events_that_cannot_be_read_are_put_aside() -> None:
    runs = Runs(read_one(), KeyFields((("a", str),), ("at", int)), ClockSettings(0), rng=Always())
    rows = ["{", '{"a":null,"b":1,"c":true,"at":5}', '{"a":"x","b":1,"c":true}']
    runs.batch([{"value": v, "source": f"t:0:{n}"} for n, v in enumerate(rows)], controls=False)
    letters = [msgspec.json.decode(e.payload) for e in runs.emissions]
    assert sorted((one["offset"], one["reason"]) for one in letters) == [
        (0, "malformed"),
        (1, "schema"),
        (2, "schema"),
    ]


class Strays(KeyedProcess[Step, Step]):
    """Sends what has a ``b`` of 13 elsewhere, or gives it no locality."""

    order = arrival(commutes=True)

    def process(self, event: Step, ctx: Context) -> None:
        elsewhere = {13: "elsewhere", 14: None}.get(event.b, event.a)
        ctx.emit(msgspec.structs.replace(event, a=elsewhere))


def of_strays(stations: int) -> Runs:
    strays = read(Input("t", "a", "at"), locality="a").process(Strays())
    topology = strays.key_by(("a", "b")).process(step("L1", 1)).write(tables={"main": "main"})
    return Runs(topology, IN_A, ClockSettings(0), rng=Always(), stations=stations)


IN_A = KeyFields((("a", str),), ("at", int))
VALUE = '{"a":"%s","b":%d,"c":true,"at":5}'


@pytest.mark.parametrize("stations", [2, 3, 64])
def test_a_record_of_another_locality_stops_several_stations_whichever_it_would_go_to(stations: int) -> None:
    runs = of_strays(stations)
    runs.batch([{"value": VALUE % ("x", 1), "source": "t:0:0"}], controls=False)
    with pytest.raises(LocalityError, match="of the locality 9:elsewhere, from a key of 1:x"):
        runs.batch([{"value": VALUE % ("x", 13), "source": "t:0:1"}], controls=False)
    for store in runs.stores:
        store.fail()
    runs.workers = [runs.made(), runs.made()]
    runs.batch([{"value": VALUE % ("x", 1), "source": "t:0:2"}], controls=False)
    assert [msgspec.json.decode(e.payload)["way"] for e in runs.emissions] == [">L1[x,1]1", ">L1[x,1]2"]


def test_a_record_of_another_locality_goes_on_in_one_station() -> None:
    runs = of_strays(1)
    runs.batch([{"value": VALUE % ("x", 13), "source": "t:0:0"}], controls=False)
    assert [msgspec.json.decode(e.payload)["way"] for e in runs.emissions] == [">L1[elsewhere,13]1"]


def test_a_record_that_has_lost_its_locality_becomes_a_dead_letter_where_it_is() -> None:
    runs = of_strays(3)
    runs.batch([{"value": VALUE % ("x", 14), "source": "t:0:0"}], controls=False)
    (letter,) = runs.emissions
    assert (letter.output, msgspec.json.decode(letter.payload)["reason"]) == ("dead_letters", "schema")


class Rules(KeyedProcess[Step, Step]):
    """Says what rule holds of its link."""

    order = arrival(commutes=True)
    control_type = str
    rule = broadcast_state(str, str)

    def process(self, event: Step, ctx: Context) -> None:
        ctx.emit(msgspec.structs.replace(event, way=f"{event.way}>{self.rule.get('it')}"))

    def process_broadcast(self, control: str, ctx: BroadcastContext) -> None:
        if control == "wrong":
            raise ValueError(control)
        self.rule.put("it", control)


class RulesBehind(Rules):
    """The same in the link behind it."""


def test_control_events_come_to_every_link_of_every_station() -> None:
    first = read(Input("t", "a", "at"), locality="a", control="c").process(Rules())
    topology = first.key_by(("a", "b")).process(RulesBehind()).write(tables={"main": "main"})
    runs = Runs(topology, IN_A, ClockSettings(0), rng=Always(), stations=4)
    event = {"control": False, "time": None}
    control = {"control": True, "time": None, "source": "c:0:0"}
    runs.batch([{**control, "value": '"green"'}, {**control, "value": '"wrong"', "source": "c:0:1"},
                {**control, "value": "{", "source": "c:0:2"}], controls=True)  # fmt: skip
    letters = Counter(e.output for e in runs.emissions)
    assert letters == {"Rules.dead_letters": 2, "dead_letters": 1}, "one station tells, of each link"
    runs.emissions.clear()
    runs.workers = [runs.made(), runs.made()]
    rows = [{**event, "value": VALUE % (f"k{n}", n), "source": f"t:0:{n}"} for n in range(20)]
    runs.batch(rows, controls=True)
    assert {msgspec.json.decode(e.payload)["way"] for e in runs.emissions} == {">green>green"}
    assert len(runs.emissions) == 20
    assert set().union(*runs.worked.values()) == {0, 1, 2, 3}


def test_events_without_a_locality_are_put_aside_by_one_station() -> None:
    runs = Runs(read_one("a"), IN_A, ClockSettings(0), rng=Always(), stations=3)
    rows = ["{", '{"a":null,"b":1,"c":true,"at":5}', '{"b":1,"c":true,"at":5}'] * 5
    runs.batch([{"value": v, "source": f"t:0:{n}"} for n, v in enumerate(rows)], controls=False)
    letters = [msgspec.json.decode(e.payload) for e in runs.emissions]
    assert sorted(one["offset"] for one in letters) == list(range(15))
    assert {one["reason"] for one in letters} == {"malformed", "schema"}


def test_what_stands_in_one_station_does_not_open_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_STATE_SECRET_KEYS", generate_key())
    keys = configured_keys(None)
    runs = Runs(read_one("a"), IN_A, ClockSettings(0), rng=Always(), stations=2, sealed=keys)
    rows = [{"value": VALUE % (f"k{n}", 1), "source": f"t:0:{n}"} for n in range(40)]
    runs.batch(rows, controls=False)
    runs.stores.reverse()
    runs.workers = [runs.made(), runs.made()]
    with pytest.raises(StateCorrupted, match="cannot be decrypted"):
        runs.batch(rows, controls=False)


def test_all_of_one_locality_is_in_one_station() -> None:
    topology = read(Input("t", ("a", "b"), "at"), locality="a").process(step("L0", 1))
    runs = Runs(
        topology, KeyFields((("a", str), ("b", int)), ("at", int)), ClockSettings(0), rng=Always(), stations=2
    )
    rows = [{"value": VALUE % ("é" * (n % 4), n), "source": f"t:0:{n}"} for n in range(40)]
    runs.batch(rows, controls=False)
    assert len(runs.worked) == 40
    for key, stations in runs.worked.items():
        locality, number = decode_key(key)
        data = locality.encode()
        assert stations == {zlib.crc32(b"%d:%b" % (len(data), data)) % 2}, (locality, number)
    assert set().union(*runs.worked.values()) == {0, 1}


class Always(random.Random):
    """Takes the first worker, and fails never."""

    def random(self) -> float:
        return 0.5


def read_one(locality: str | None = None) -> Topology:
    return (
        read(Input("t", "a", "at"), locality=locality)
        .process(step("L0", 1))
        .write(tables={"main": "main", "aside": "aside"})
    )


def test_what_becomes_a_cycle_after_it_has_survived_a_collection_is_found_all_the_same() -> None:
    class Left:
        def __init__(self) -> None:
            self.me: Left | None = self

    apart = spark_station._Apart()
    gc.callbacks.append(apart)
    try:
        left = Left()
        seen = weakref.ref(left)
        gc.collect()
        assert not any(one is left for one in gc.get_objects()), "it is looked at again"
        del left
        for _ in range(spark_station.WHOLE_EVERY):
            gc.collect()
        assert seen() is None
    finally:
        gc.callbacks.remove(apart)
        gc.unfreeze()
