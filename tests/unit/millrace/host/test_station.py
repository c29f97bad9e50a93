"""A station gives what the in-memory hosts give, whichever worker runs its batches and however often."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from millrace import Context, arrival, value_state
from millrace.host.chunks import WATERMARK, decode_input, decode_output, status_of
from millrace.host.groups import group_labels
from millrace.host.intake import JsonEvents
from millrace.host.key_times import KeyFields
from millrace.host.memory_chain import MemoryChain
from millrace.host.packing import Packer
from millrace.host.rows import Emission
from millrace.host.spark import outputs_of_links
from millrace.host.station import HEADER, TOKEN, At, Station, StationLink
from millrace.process import KeyedProcess, order_of
from millrace.state.cells import CLOCK_PAGE, SCHEMA_PAGE, StateCorrupted
from millrace.state.keyring import KeyReference, configured_keys, generate_key
from millrace.time.clock import ClockSettings
from millrace.topology import Input, Link, Topology, read
from tests.spark.fuzzing import BOUND, Set, build, in_memory, random_case
from tests.spark.mirror import DRAIN, comparable, to_row
from tests.unit.millrace.topology.random_steps import Item as Step
from tests.unit.millrace.topology.random_steps import made, step

CASES = int(os.environ.get("MILLRACE_CASES", "60"))


@dataclass
class Bytes:
    """What a station keeps, in memory; a batch counts when it is committed."""

    kept: dict[At, bytes] = field(default_factory=dict)
    batch: dict[At, bytes | None] = field(default_factory=dict)
    reads: int = 0

    def read(self, places: Sequence[At]) -> list[bytes | None]:
        self.reads += len(places)
        return [self.kept.get(place) for place in places]

    def write(self, place: At, data: bytes) -> None:
        self.batch[place] = data

    def remove(self, place: At) -> None:
        self.batch[place] = None

    def flush(self) -> None:
        pass

    def commit(self) -> None:
        for place, data in self.batch.items():
            if data is None:
                self.kept.pop(place, None)
            else:
                self.kept[place] = data
        self.batch.clear()

    def fail(self) -> None:
        self.batch.clear()


@dataclass(frozen=True)
class Fixed:
    settings: ClockSettings

    def now(self) -> ClockSettings:
        return self.settings


class Runs:
    """A topology in a station, batch by batch: in this worker or in another, at once or after a failure."""

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
    ) -> None:
        first = topology.links[0].process
        by_key = order_of(first).by_key
        self.packer = Packer((keys,), group_labels(1), clock=Fixed(settings), by_key=by_key)
        self.settings, self.rng, self.store = settings, rng, Bytes()
        names, onward = outputs_of_links(topology)
        self.made = lambda: Station(
            [
                StationLink(
                    link.process,
                    JsonEvents(
                        link.process.event_type, link.process.control_type, inputs=link.process.inputs
                    ),
                    key_groups,
                    onward[place],
                    names[place],
                )
                for place, link in enumerate(topology.links)
            ],
            sealed,
            kept_bytes=kept_bytes,
        )
        self.workers = [self.made(), self.made()]
        self.emissions: list[Emission] = []
        self.watermarks: list[int] = []

    def batch(self, rows: Iterable[dict[str, Any]], *, controls: bool) -> None:
        rows = list(rows)
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
        packed = [
            chunk for found in self.packer(iter(batches)) for chunk in found["_chunk"].to_pylist()
        ]  # fmt: skip
        if self.rng.random() < 0.2:  # an attempt that is not committed, by either worker
            list(self.rng.choice(self.workers).run(map(decode_input, packed), self.store, self.settings))
            self.store.fail()
        if self.rng.random() < 0.15:
            self.workers[self.rng.randrange(2)] = self.made()
        worker = self.workers[0] if self.rng.random() < 0.7 else self.workers[1]
        for output, records, chunk in worker.run(map(decode_input, packed), self.store, self.settings):
            if output == WATERMARK:
                self.watermarks.append(status_of(chunk).watermark)
                continue
            found = decode_output(chunk)
            assert len(found.keys) == records
            for row in zip(*found, strict=True):
                identity, key, time, on_time, payload = row
                self.emissions.append(Emission(output, identity, key, time, bool(on_time & 1), payload))
        self.store.commit()


def events_of(process: KeyedProcess[Any, Any]) -> JsonEvents:
    return JsonEvents(process.event_type, process.control_type, inputs=process.inputs)


def of_case(seed: int, **more: Any) -> Runs:
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


@pytest.mark.parametrize("start", range(0, CASES, max(1, CASES // 6)))
def test_random_processes_give_what_memory_gives(start: int) -> None:
    for seed in range(start, min(CASES, start + max(1, CASES // 6))):
        expected, left = in_memory(random_case(seed))
        assert not left
        runs = of_case(seed, kept_bytes=random.Random(seed).choice([0, 400, 1 << 20]))
        assert comparable(runs.emissions) == comparable(expected), seed
        kept = {number for link, _, number in runs.store.kept if link >= 0}
        assert kept <= {CLOCK_PAGE, -2}, f"seed {seed}: {kept} are left"


def test_random_topologies_give_what_chains_in_memory_give() -> None:
    for seed in range(CASES):
        rng = random.Random(seed)
        topology = made(rng)
        chain = MemoryChain(topology)
        fields = KeyFields((("a", str),), ("at", int))
        runs = Runs(topology, fields, ClockSettings(0), rng=rng, key_groups=rng.choice([1, 2, 8]))
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
            runs.batch(rows, controls=False)
        assert comparable(runs.emissions) == wanted, seed


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


class Always(random.Random):
    """Takes the first worker, and fails never."""

    def random(self) -> float:
        return 0.5


def read_one() -> Topology:
    return read(Input("t", "a", "at")).process(step("L0", 1)).write(tables={"main": "main", "aside": "aside"})
