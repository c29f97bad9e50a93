"""What an earlier version has kept, brought over: the newer one goes on as if it had always been there."""

from __future__ import annotations

import json
import operator
import random
from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pytest

from millrace import (
    BroadcastContext,
    Context,
    KeyedProcess,
    Timer,
    arrival,
    broadcast_state,
    list_state,
    map_state,
    multiplex,
    reducing_state,
    value_state,
)
from millrace.checkpoints.conversion import converted, needs_conversion
from millrace.checkpoints.groups import StoredGroup
from millrace.checkpoints.reading import opened
from millrace.checkpoints.rescale import RescaleError
from millrace.checkpoints.reshape import CellRows, GroupPacker, GroupShape, Shared
from millrace.host.groups import decode_key, group_labels
from millrace.host.memory import MemoryHost, _Snapshot, _snapshot
from millrace.inputs import mark_of
from millrace.process import kept_states
from millrace.runtime.contract import ContractMismatch, refuse_older, write_contract
from millrace.state.broadcast import renamed_maps
from millrace.state.cells import StateCorrupted
from millrace.state.conversion import Conversion, Converter, EarlierEntry
from millrace.state.layout import ENCODING_VERSION, EntryLayout
from millrace.state.specs import StateDeclarationError
from millrace.time import NO_WATERMARK
from millrace.time.clock import from_watermark
from millrace.topology import Input, read
from millrace.topology.contract import contract_of

CASES = 60
BOUND = 400


class Paid(msgspec.Struct):
    shop: str
    cents: int
    at: int


class Paid1(msgspec.Struct):
    """The event as it was read first: its field had another name, and what waits has it."""

    shop: str
    amount: int
    at: int


class Limit(msgspec.Struct):
    above: int


class First(KeyedProcess[Paid1, list[Any]]):
    """Version 1: keys are led by ``p:``, money is in euros, each state has its first name."""

    name = "Payments"
    order = "event_time"
    control_type = Limit
    euros = value_state(float, default=0.0, ttl=3_000)
    log = list_state(int, ttl=2_000)
    shops = map_state(str, int)
    largest = reducing_state(int, max)
    rules = broadcast_state(str, int)

    def process(self, event: Paid1, ctx: Context) -> None:
        self.euros.value += event.amount / 100
        self.log.append(event.amount)
        self.shops.put(event.shop, (self.shops.get(event.shop) or 0) + 1)
        self.largest.add(event.amount)
        limit = next((above for _, above in self.rules.items()), 50)
        ctx.emit([round(self.euros.value * 100), list(self.log), sorted(self.shops.items()), limit])
        ctx.timers.at(event.at + 700, "soon")
        ctx.timers.bring_forward(event.at + 1_500, "tell")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit([timer.at, round(self.euros.value * 100), list(self.log), self.largest.value])
        if timer.name == "tell":
            self.shops.clear()

    def process_broadcast(self, control: Limit, ctx: BroadcastContext) -> None:
        self.rules.put("limit", control.above)


def second(entry: EarlierEntry) -> None:
    """Bring an entry of version 1 over."""
    entry.key = (entry.key[0].removeprefix("p:"),)
    if "cents" in entry.states:
        entry.states["cents"] = round(entry.states["cents"] * 100)
    if (shops := entry.states.pop("shops", None)) is not None:
        entry.states["visits"] = Visits(dict(shops), sum(shops.values()))
    for timer in [t for t in entry.timers if t.name == "told"]:
        entry.timers.remove(timer)
        entry.stream_timers.append(timer)
    for row in entry.waiting:
        was = msgspec.json.decode(row.raw, type=Paid1)
        row.raw = msgspec.json.encode(Paid(was.shop, was.amount, was.at))


class Visits(msgspec.Struct, array_like=True):
    of: dict[str, int] = {}
    total: int = 0


class Second(KeyedProcess[Paid, list[Any]]):
    """Version 2: says the same, and keeps it otherwise."""

    name = "Payments"
    version = 2
    order = "event_time"
    control_type = Limit
    stream_timers = True
    converts: ClassVar = {
        1: Conversion(
            states={"euros": "cents", "log": "amounts", "rules": "limits"},
            timers={"soon": "quiet", "tell": "told"},
            rewrite=second,
            rewrites=("cents", "visits"),
        )
    }
    largest = reducing_state(int, operator.or_)  # what it does with what is kept says no schema
    limits = broadcast_state(str, int)
    visits = value_state(Visits, default_factory=Visits)
    amounts = list_state(int, ttl=2_000)
    cents = value_state(int, default=0, ttl=3_000)

    def process(self, event: Paid, ctx: Context) -> None:
        self.cents.value += event.cents
        self.amounts.append(event.cents)
        visits = self.visits.value
        visits.of[event.shop] = visits.of.get(event.shop, 0) + 1
        visits.total += 1
        before = self.largest.value
        if before is None or event.cents > before:
            self.largest.clear()
            self.largest.add(event.cents)
        limit = next((above for _, above in self.limits.items()), 50)
        assert visits.total == sum(visits.of.values())
        ctx.emit([self.cents.value, list(self.amounts), sorted(visits.of.items()), limit])
        ctx.timers.at(event.at + 700, "quiet")
        ctx.timers.bring_forward(event.at + 1_500, "told", clock="stream")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit([timer.at, self.cents.value, list(self.amounts), self.largest.value])
        if timer.name == "told":
            self.visits.clear()

    def process_broadcast(self, control: Limit, ctx: BroadcastContext) -> None:
        self.limits.put("limit", control.above)


def brought(host: MemoryHost, process: KeyedProcess[Any, Any], conversion: Conversion | None) -> MemoryHost:
    """Return a host of a process that goes on from what another has kept, brought over as Spark would."""
    kept = _snapshot.decode(host.snapshot())
    clock = None if kept.watermark == NO_WATERMARK else from_watermark(kept.watermark, 0)
    shape = GroupShape(process.stored_as, 1, None, clock, newest=process, conversion=conversion)
    label = group_labels(1)[0]
    stored = kept.stored
    if stored[0] is not None:
        rows = CellRows(shape, None)(label, StoredGroup(*stored))
        layout = EntryLayout(kept_states(process), owner=process.name)
        packed = GroupPacker(shape, Shared(), layout.schema)(
            (pa.scalar(0), pa.scalar(label)), rows
        ).to_pylist()
        group = opened(process.stored_as, label, {row["number"]: row["data"] for row in packed}, None)
        stored = (group.header or None, group.pages)
    broadcast = kept.broadcast
    if broadcast is not None and conversion is not None:
        broadcast = renamed_maps(broadcast, conversion.states)
    new = MemoryHost(process, out_of_orderness_ms=BOUND)
    beside = (kept.watermark, kept.newest, kept.sequence, broadcast, kept.processing_time, 0, kept.own)
    new.restore(msgspec.msgpack.encode(_Snapshot(stored, *beside)))
    return new


Batch = list[tuple[str, int, int, str]]


def batches_of(rng: random.Random) -> list[Batch]:
    """Return batches of (who, time, cents, shop), out of order, some late, times at bounds."""
    now, found = 10_000, []
    for _ in range(rng.randint(4, 12)):
        batch = []
        for _ in range(rng.randint(0, 6)):
            now += rng.choice([0, 1, 100, 399, 700, 1_500])
            at = now - rng.choice([0, 0, 1, BOUND, BOUND + 1, 2_000])
            batch.append((rng.choice("abc"), at, rng.randrange(1, 99), rng.choice("xy")))
        found.append(batch)
    return found


def first_rows(batch: Batch) -> list[Any]:
    return [(f"p:{who}", at, Paid1(shop, cents, at)) for who, at, cents, shop in batch]


def second_rows(batch: Batch) -> list[Any]:
    return [(who, at, Paid(shop, cents, at)) for who, at, cents, shop in batch]


def said(emitted: list[Any]) -> Counter[Any]:
    """Return what was emitted by key, less that keys were led by ``p:`` and what a late event was called."""

    def payload(e: Any) -> bytes:
        found: bytes = e.payload.replace(b'"amount"', b'"cents"')
        return found

    keys = [decode_key(e.key)[0].removeprefix("p:") for e in emitted]
    return Counter(
        (key, e.output, e.event_time, e.on_time, payload(e)) for key, e in zip(keys, emitted, strict=True)
    )


def one_case(seed: int) -> int:
    """Check a random case; return how many events waited and timers were pending when it was converted."""
    rng = random.Random(seed)
    batches = batches_of(rng)
    cut = rng.randint(1, len(batches))
    old, always = (
        MemoryHost(First(), out_of_orderness_ms=BOUND),
        MemoryHost(Second(), out_of_orderness_ms=BOUND),
    )
    for batch in batches[:cut]:
        if rng.random() < 0.3:
            limit = Limit(rng.randrange(200))
            old.broadcast(limit)
            always.broadcast(limit)
        assert said(old.run_batch(first_rows(batch))) == said(always.run_batch(second_rows(batch)))
    entries = [old.runner.layout.decode(cell.body) for cell in old.store.cells.values()]
    pending = sum(len(entry.pending_) + len(entry.timers_) for entry in entries)
    new = brought(old, Second(), Second.converts[1])
    for batch in batches[cut:]:
        assert said(new.run_batch(second_rows(batch))) == said(always.run_batch(second_rows(batch)))
    assert _contents(new) == _contents(always)
    assert said(new.drain()) == said(always.drain())
    assert new.store.cells.keys() == always.store.cells.keys()
    return pending


def _contents(host: MemoryHost) -> Any:
    """Return what is kept by key, less what tells timers of one time apart: that hangs on the key."""
    found = {}
    for key, cell in host.store.cells.items():
        entry = host.runner.layout.decode(cell.body)
        for timer in (*entry.timers_, *entry.stream_timers_):
            timer.again = 0
        found[key] = (
            cell.timer,
            cell.expiry,
            sorted(map(repr, entry.timers_)),
            msgspec.to_builtins(entry)[2:],
        )
    return found


def test_the_newer_version_goes_on_as_if_it_had_always_been_there() -> None:
    assert sum(one_case(seed) for seed in range(CASES)) > CASES


class Gone(Second):
    """A conversion that names a state which is not there."""

    name = "Payments"
    converts: ClassVar = {1: Conversion(rewrites=("nothing",))}


def converter(conversion: Conversion) -> Converter:
    return Converter(EntryLayout(kept_states(Second())), EntryLayout(First.states).schema, conversion)


def entry_of_first() -> bytes:
    layout = EntryLayout(First.states)
    entry = layout.new()
    entry.euros = (9_000, 1.5)
    return layout.encode(entry)


def test_a_conversion_that_does_not_fit_is_refused_and_says_of_which_key() -> None:
    good = Second.converts[1]
    with pytest.raises(StateDeclarationError, match="no state nothing that a conversion could rewrite"):
        converter(replace(good, rewrites=("nothing",)))

    def run(rewrite: Any) -> None:
        converter(replace(good, rewrite=rewrite)).convert(("ann",), entry_of_first(), None, 0, NO_WATERMARK)

    def other(entry: EarlierEntry) -> None:
        entry.states["other"] = 1

    with pytest.raises(StateCorrupted, match=r"key ann of .*there is no state other"):
        run(other)
    with pytest.raises(StateCorrupted, match=r"key ann of .*Expected `int`"):
        run(lambda entry: entry.states.update(cents="much"))
    with pytest.raises(StateCorrupted, match=r"key ann of .*ZeroDivisionError"):
        run(lambda entry: 1 // 0)


def test_what_a_conversion_takes_out_is_gone_and_what_expires_keeps_its_time() -> None:
    good = Second.converts[1]
    made = converter(replace(good, rewrite=lambda entry: entry.states.update(cents=7)))
    key, entry = made.convert(("p:ann",), entry_of_first(), 5_000, 5_000, NO_WATERMARK)
    assert (key, entry.cents, entry.amounts, entry.visits) == (("p:ann",), (9_000, 7), [], Visits())
    made = converter(replace(good, rewrite=lambda entry: entry.states.clear()))
    assert made.convert(("ann",), entry_of_first(), 5_000, 5_000, NO_WATERMARK)[1].cents is None


def test_two_entries_cannot_come_to_one_key() -> None:
    old = MemoryHost(First(), out_of_orderness_ms=BOUND)
    old.run_batch([("p:a", 1_000, Paid1("x", 5, 1_000)), ("a", 1_000, Paid1("x", 5, 1_000))])
    old.advance_watermark(2_000)
    with pytest.raises(StateCorrupted, match="two entries of Payments would have the key 1:a"):
        brought(old, Second(), Second.converts[1])


class Arriving(KeyedProcess[Paid, int]):
    """What waited for its time is taken as it comes now."""

    name = "Payments"
    version = 3
    order = arrival(commutes=True)
    total = value_state(int, default=0, alias="cents")

    def process(self, event: Paid, ctx: Context) -> None:
        self.total.value += event.cents
        ctx.emit(self.total.value)


class Waiting(Arriving):
    name = "Payments"
    version = 2
    order = "event_time"


def test_events_that_wait_are_not_lost_when_events_are_taken_as_they_come() -> None:
    for seed in range(CASES):
        rng = random.Random(seed)
        batches = batches_of(rng)
        cut = rng.randint(1, len(batches))
        old = MemoryHost(Waiting(), out_of_orderness_ms=BOUND)
        emitted = [e for batch in batches[:cut] for e in old.run_batch(second_rows(batch))]
        new = brought(old, Arriving(), Conversion())
        emitted += [e for batch in batches[cut:] for e in new.run_batch(second_rows(batch))] + new.drain()
        late = [e for e in emitted if e.output == "late"]
        assert len(emitted) == sum(map(len, batches))
        assert len({e.event_id for e in emitted}) == len(emitted)
        by_key = Counter[str]()
        for batch in batches:
            for who, _, cents, _ in batch:
                by_key[who] += cents
        for e in late:
            by_key[decode_key(e.key)[0]] -= json.loads(e.payload)["event"]["cents"]
        last = {decode_key(e.key)[0]: int(e.payload) for e in emitted if e.output == "main"}
        assert last == {who: total for who, total in by_key.items() if total}


# -- the contract ------------------------------------------------------------------------------------


def contract_then(**more: Any) -> dict[str, Any]:
    """The contract of a checkpoint of version 1, of the time when Spark kept the clock."""
    made = read(Input("paid", "shop", "at"), control="control").process(First())
    found: dict[str, Any] = json.loads(json.dumps(contract_of(made, [4])))
    found.pop("clock")
    return {**found, "encoding": 2, "time_domain": "event_time", "incarnation": "one", **more}


def topology_now(process: KeyedProcess[Any, Any] | None = None) -> Any:
    return read(Input("paid", "shop", "at"), control="control").process(process or Second())


def test_the_contract_becomes_that_of_the_topology() -> None:
    made = converted(contract_then(), [Second()], topology_now())
    assert made == {"incarnation": "one", **json.loads(json.dumps(contract_of(topology_now(), [4])))}
    assert converted(contract_then(), [Second()]) == made
    assert not needs_conversion(made, [Second()])
    assert needs_conversion({**made, "encoding": ENCODING_VERSION - 1}, [Second()])
    assert needs_conversion({**made, "version": 1}, [Second()])


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (contract_then(version=7), "version was 7, is now 2"),
        (contract_then(process="Others"), "of the processes Others, these are Payments"),
        (contract_then(key=["card"]) | {"version": 7}, r'key was \["card"\], is now \["shop"\]'),
        (contract_then(states=contract_then()["states"] | {
            "log": {**contract_then()["states"]["log"], "type": "str"}}), "Payments: states.amounts.type"),
        (contract_then(earlier_states=[{"largest": {"kind": "map", "type": "int", "key_type": "str"}}]),
         "Payments: states.largest.kind"),
    ],
)  # fmt: skip
def test_what_the_next_start_would_refuse_is_refused_before_anything_is_done(
    kept: dict[str, Any], said: str
) -> None:
    with pytest.raises(RescaleError, match=said):
        converted(kept, [Second()], topology_now())


def test_a_start_is_refused_with_the_command_until_a_version_before_is_converted(tmp_path: Any) -> None:
    own = {**converted(contract_then(), [Second()]), "version": 1}
    write_contract(tmp_path, own)
    with pytest.raises(
        ContractMismatch, match=f"earlier version of Payments: .*: millrace convert {tmp_path}"
    ):
        refuse_older(tmp_path, [Second()])
    refuse_older(tmp_path, [First()])
    write_contract(tmp_path, {**own, "version": 2})
    refuse_older(tmp_path, [Second()])


# -- one process becomes several --------------------------------------------------------------------


class Carts(KeyedProcess[Paid, int]):
    order = "event_time"
    cart = value_state(int, default=0)

    def process(self, event: Paid, ctx: Context) -> None:
        self.cart.value += event.cents
        ctx.timers.at(event.at + 500, "left")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(self.cart.value)


class Persons(KeyedProcess[Paid, int]):
    order = "event_time"
    person = value_state(int, default=0)

    def process(self, event: Paid, ctx: Context) -> None:
        self.person.value += 1
        ctx.emit(self.person.value)


class Entities(KeyedProcess[Paid, int]):
    """Two processes told apart by prefixes of keys."""

    order = "event_time"
    cart = value_state(int, default=0)
    person = value_state(int, default=0)

    def process(self, event: Paid, ctx: Context) -> None:
        if ctx.key.startswith("c:"):
            self.cart.value += event.cents
            ctx.timers.at(event.at + 500, "left")
        else:
            self.person.value += 1
            ctx.emit(self.person.value)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(self.cart.value)


def to_members(entry: EarlierEntry) -> None:
    mark = mark_of(0 if entry.key[0].startswith("c:") else 1)
    for row in entry.waiting:
        row.raw = mark + row.raw


def test_a_process_that_was_several_becomes_a_multiplex() -> None:
    conversion = Conversion(
        states={"cart": "cart_cart", "person": "person_person"},
        timers={"left": "cart:left"},
        rewrite=to_members,
    )
    now = multiplex({"cart": Carts(), "person": Persons()}, name="Entities", converts={1: conversion})
    assert now.version not in now.converts
    for seed in range(CASES):
        rng = random.Random(seed)
        batches = batches_of(rng)
        cut = rng.randint(1, len(batches))
        old, always = (
            MemoryHost(Entities(), out_of_orderness_ms=BOUND),
            MemoryHost(now, out_of_orderness_ms=BOUND),
        )

        def rows(batch: Batch, *, named: bool) -> list[Any]:
            return [
                (f"{'p' if who == 'a' else 'c'}:{who}", at, Paid(shop, cents, at),
                 *(("person" if who == "a" else "cart",) if named else ()))
                for who, at, cents, shop in batch
            ]  # fmt: skip

        def told(emitted: list[Any]) -> Counter[Any]:
            return Counter((e.key, e.event_time, e.payload) for e in emitted if e.output != "late")

        for batch in batches[:cut]:
            assert told(old.run_batch(rows(batch, named=False))) == told(
                always.run_batch(rows(batch, named=True))
            )
        new = brought(old, now, conversion)
        for batch in batches[cut:]:
            assert told(new.run_batch(rows(batch, named=True))) == told(
                always.run_batch(rows(batch, named=True))
            )
        assert told(new.drain()) == told(always.drain())
