"""`millrace bench state-encryption`: what checksums and encryption of state cost, without Spark."""

from __future__ import annotations

import hashlib
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any, Final

import msgspec

from millrace.host.groups import encode_key
from millrace.host.rows import Row
from millrace.host.runner import Runner
from millrace.inputs import event_decoder, inputs_of
from millrace.state.backend import GroupBackend
from millrace.state.envelope import EnvelopeBackend, Place, unwrap, wrap
from millrace.state.keyring import Keyring, generate_key, parse_keys
from millrace.state.pages import PagedStore
from millrace.time import NO_WATERMARK
from millrace_apps.benchmarks.paged import GROUPS, Stored
from millrace_apps.fraud.processes.cards import CardMonitor
from millrace_apps.generators.fraud import FraudProfile, simulate

#: Sizes of a value: a small header, an average page, a full one.
_VALUE_BYTES: Final = (256, 4_096, 32_768)

Batch = dict[int, dict[str, list[Row]]]


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        events: Events, the first half of which fills the state and is not counted.
        cards: Cards.
        batch: Events per batch.
        repeats: Runs of each way to keep state, in turns; the figures are their medians.
    """

    events: int = 200_000
    cards: int = 20_000
    batch: int = 10_000
    repeats: int = 3


QUICK = Sizes(events=4_000, cards=200, batch=500, repeats=1)


class _Clocked:
    """A backend that adds up the CPU time of reads and writes."""

    def __init__(self, backend: GroupBackend, spent: list[float]) -> None:
        self.get_header = _clocked(backend.get_header, spent)
        self.put_header = _clocked(backend.put_header, spent)
        self.get_page = _clocked(backend.get_page, spent)
        self.get_pages = _clocked(backend.get_pages, spent)
        self.put_page = _clocked(backend.put_page, spent)
        self.delete_page, self.clear = backend.delete_page, backend.clear


def _clocked(call: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def clocked(*arguments: Any) -> Any:
        begin = time.process_time()
        try:
            return call(*arguments)
        finally:
            spent[0] += time.process_time() - begin

    return clocked


def state_encryption(sizes: Sizes) -> dict[str, Any]:
    """Measure the fraud process over paged state: bare, with checksums, and encrypted.

    Args:
        sizes: How much.
    """
    ring = Keyring(parse_keys(generate_key()))
    ways: dict[str, Callable[[GroupBackend, int], GroupBackend]] = {
        "bare": lambda backend, _: backend,
        "checked": lambda backend, group: EnvelopeBackend(backend, CardMonitor.name, group, None),
        "encrypted": lambda backend, group: EnvelopeBackend(backend, CardMonitor.name, group, ring),
    }
    batches = _batches(sizes)
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(sizes.repeats):
        for way, wrapped in ways.items():
            runs[way].append(_run(batches, wrapped))
    expected = runs["bare"][0]["digest"]
    systems = {
        way: {
            "rows_per_s": 1e6 / median(r["cpu_s_per_million"] for r in found),
            "cpu_s_per_million": median(r["cpu_s_per_million"] for r in found),
            "stored_bytes": found[0]["stored_bytes"],
            "correct": all(r["digest"] == expected for r in found),
        }
        for way, found in runs.items()
    }
    backend = {way: median(r["backend_us_per_event"] for r in found) for way, found in runs.items()}
    return {"systems": systems, "backend_us_per_event": backend, "us_per_value": _values(ring)}


def _batches(sizes: Sizes) -> list[Batch]:
    """Return the events by batch, key group and key."""
    process = CardMonitor()
    inputs, decode = inputs_of(process), event_decoder(process)
    if inputs is None:
        raise TypeError("the card's stage has several inputs")
    profile = FraudProfile(seed=5, events=sizes.events, cards=sizes.cards, label_scale=0.0)
    batches: list[Batch] = []
    for number, made in enumerate(simulate(profile)):
        if number % sizes.batch == 0:
            batches.append({})
        key = encode_key((made.key,))
        raw = inputs.mark(msgspec.json.encode(made.event), inputs.names.index("transactions"))
        row = Row(made.event_time_ms, raw, f"bench:0:{number}", decode(raw))
        of_group = batches[-1].setdefault(zlib.crc32(key.encode()) % GROUPS, {})
        of_group.setdefault(key, []).append(row)
    return batches


def _run(batches: list[Batch], wrap: Callable[[GroupBackend, int], GroupBackend]) -> dict[str, Any]:
    """Run all batches; every group's store is opened for each of them, as Spark's host does."""
    process = CardMonitor()
    runner = Runner(process, encode=msgspec.json.encode, decode=event_decoder(process))
    stored = {group: Stored() for group in range(GROUPS)}
    at_backend = [0.0]
    groups = {group: _Clocked(wrap(memory, group), at_backend) for group, memory in stored.items()}
    digest, spent, events = hashlib.sha256(), 0.0, 0
    watermark = NO_WATERMARK
    for number, batch in enumerate(batches):
        if number == len(batches) // 2:
            spent, events, at_backend[0] = 0.0, 0, 0.0
        begin = time.process_time()
        for group, rows in batch.items():
            store = PagedStore(groups[group], runner.layout, label=group)
            runner.controls.load(None)
            runner.run_batch(store, rows, watermark, store.processing_time)
            store.commit(watermark, store.processing_time)
        spent += time.process_time() - begin
        events += sum(len(of_key) for rows in batch.values() for of_key in rows.values())
        emitted, runner.emissions = runner.emissions, []
        digest.update(msgspec.msgpack.encode(sorted((e.output, e.key, e.payload) for e in emitted)))
        watermark = (
            max(row.event_time for rows in batch.values() for of in rows.values() for row in of) - 5_000
        )
    return {
        "cpu_s_per_million": spent / events * 1e6,
        "backend_us_per_event": at_backend[0] / events * 1e6,
        "stored_bytes": sum(memory.size for memory in stored.values()),
        "digest": digest.hexdigest(),
    }


def _values(ring: Keyring) -> dict[str, float]:
    """Return what wrapping and unwrapping one value of a size takes, µs."""
    place, found = Place("bench", 1, "page", 7), {}
    for size in _VALUE_BYTES:
        data = os.urandom(size)
        for way, keys in (("checked", None), ("encrypted", ring)):
            stored = wrap(data, place, keys)
            found[f"seal_{way}_{size}"] = _timed(partial(wrap, data, place, keys))
            found[f"unseal_{way}_{size}"] = _timed(partial(unwrap, stored, place, keys))
    return found


def _timed(call: Callable[[], bytes], times: int = 500) -> float:
    """Return how long a call takes: the least of five rounds, µs."""
    rounds = []
    for _ in range(5):
        begin = time.process_time()
        for _ in range(times):
            call()
        rounds.append((time.process_time() - begin) / times * 1e6)
    return min(rounds)


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {**asdict(sizes), "key_groups": GROUPS}
