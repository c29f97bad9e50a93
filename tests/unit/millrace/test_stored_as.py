"""What is renamed in the code stays what it was in checkpoints and identities, if it says `stored_as`."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
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
    side_output,
    value_state,
)
from millrace.host.memory import MemoryHost
from millrace.host.memory_chain import MemoryChain
from millrace.host.rows import Emission
from millrace.process import ProcessDefinitionError
from millrace.runtime.contract import _differences
from millrace.testing import TestDriver
from millrace.topology import Input, Topology, read
from millrace.topology.contract import contract_of

CASES = 25


class Ev(msgspec.Struct):
    user: str
    shop: str
    at: int
    n: int


class Rule(msgspec.Struct):
    above: int


class Before(KeyedProcess[Ev, Ev]):
    """As it was called first."""

    order = "event_time"
    control_type = Rule
    total = value_state(int, default=0)
    seen = list_state(int, ttl=5_000)
    shops = map_state(str, int)
    many = map_state(int, int, ttl=9_000, paged=True)
    rules = broadcast_state(str, int)
    alerts = side_output(Ev)

    def process(self, event: Ev, ctx: Context) -> None:
        if event.n == 13:
            raise ValueError("thirteen")
        self.total.value += event.n
        self.seen.append(event.n)
        self.shops.put(event.shop, event.n)
        self.many.put(event.n, event.at)
        ctx.emit(event)
        if self.total.value > next((above for _, above in self.rules.items()), 20):
            ctx.output(self.alerts, event)
            ctx.output(self.alerts, event, identity=f"of {event.shop}")
            self.total.clear()
        ctx.timers.after(3_000, "quiet")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.output(self.alerts, Ev(ctx.key, "none", timer.at, self.total.value))
        self.shops.clear()

    def process_broadcast(self, control: Rule, ctx: BroadcastContext) -> None:
        self.rules.put("one", control.above)


class After(KeyedProcess[Ev, Ev]):
    """The same, and everything in it has another name."""

    stored_as = "Before"
    order = "event_time"
    control_type = Rule
    sum_of_all = value_state(int, default=0, stored_as="total")
    lately = list_state(int, ttl=5_000, stored_as="seen")
    places = map_state(str, int, stored_as="shops")
    all_of_them = map_state(int, int, ttl=9_000, paged=True, stored_as="many")
    limits = broadcast_state(str, int, stored_as="rules")
    warnings = side_output(Ev, stored_as="alerts")

    def process(self, event: Ev, ctx: Context) -> None:
        if event.n == 13:
            raise ValueError("thirteen")
        self.sum_of_all.value += event.n
        self.lately.append(event.n)
        self.places.put(event.shop, event.n)
        self.all_of_them.put(event.n, event.at)
        ctx.emit(event)
        if self.sum_of_all.value > next((above for _, above in self.limits.items()), 20):
            ctx.output(self.warnings, event)
            ctx.output(self.warnings, event, identity=f"of {event.shop}")
            self.sum_of_all.clear()
        ctx.timers.after(3_000, "quiet")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.output(self.warnings, Ev(ctx.key, "none", timer.at, self.sum_of_all.value))
        self.places.clear()

    def process_broadcast(self, control: Rule, ctx: BroadcastContext) -> None:
        self.limits.put("one", control.above)


class Shops(KeyedProcess[Ev, int]):
    """The next link."""

    order = arrival(commutes=True)
    count = value_state(int, default=0)

    def process(self, event: Ev, ctx: Context) -> None:
        self.count.value += 1
        ctx.emit(self.count.value)


class Stores(KeyedProcess[Ev, int]):
    """The next link, with another name."""

    stored_as = "Shops"
    order = arrival(commutes=True)
    times = value_state(int, default=0, stored_as="count")

    def process(self, event: Ev, ctx: Context) -> None:
        self.times.value += 1
        ctx.emit(self.times.value)


NAMES = {"alerts": "warnings", "rules": "limits", "sum": "total", "Before": "After"}


def both(renamed: bool) -> Any:
    """Two members in one operator, then a link."""
    if not renamed:
        return multiplex({"sum": Before(), "other": Another()}, name="Both")
    members: dict[str, KeyedProcess[Any, Any]] = {"total": After(), "other": Another()}
    return multiplex(members, name="Pair", stored_as="Both", members_stored_as={"total": "sum"})


class Another(KeyedProcess[Ev, Ev]):
    order = "event_time"
    last = value_state(int, default=0)

    def process(self, event: Ev, ctx: Context) -> None:
        self.last.value = event.n
        ctx.emit(event)
        ctx.timers.after(100, "quiet")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(Ev(ctx.key, "of a timer", timer.at, self.last.value))


def said(emitted: list[Emission]) -> list[tuple[Any, ...]]:
    """Return what was emitted, less the names of outputs and those in dead letters."""
    return [(e.event_id, e.key, e.event_time, e.on_time, _without_process(e)) for e in emitted]


def _without_process(e: Emission) -> Any:
    if e.output.rpartition(".")[2] not in ("late", "dead_letters"):
        return e.payload
    return {
        name: value
        for name, value in json.loads(e.payload).items()
        if name not in ("process", "input", "error_digest")
    }


def run(host: Any, rng: random.Random, input: str = "", restart: Any = None) -> tuple[list[Emission], Any]:
    """Bring random events and rules; go on in another host halfway, where one is given."""
    emitted: list[Emission] = []
    for step in range(6):
        if step == 3 and restart is not None:
            kept = host.snapshot()
            host = restart()
            host.restore(kept)
        if rng.random() < 0.3:
            host.broadcast(Rule(rng.randrange(40)))
        rows = [
            (rng.choice("abc"), (at := step * 1_000 + rng.randrange(2_000)),
             Ev("u", rng.choice("xy"), at, rng.randrange(30)), *((input,) if input else ()))
            for _ in range(rng.randrange(8))
        ]  # fmt: skip
        emitted += host.run_batch(rows)
    return emitted, host


def test_bytes_and_identities_of_a_renamed_process_are_those_of_before() -> None:
    found = 0
    for seed in range(CASES):
        old, was = run(MemoryHost(Before(), out_of_orderness_ms=500), random.Random(seed))
        new, now = run(MemoryHost(After(), out_of_orderness_ms=500), random.Random(seed))
        assert said(new) == said(old)
        assert now.snapshot() == was.snapshot()
        assert {NAMES.get(e.output, e.output) for e in old} == {e.output for e in new}
        assert said(now.drain()) == said(was.drain())
        found += sum(e.output == "warnings" for e in new)
    assert found > CASES


def test_a_renamed_process_goes_on_from_what_the_one_of_before_had_kept() -> None:
    for seed in range(CASES):
        old, was = run(MemoryHost(Before(), out_of_orderness_ms=500), random.Random(seed))
        new, now = run(
            MemoryHost(Before(), out_of_orderness_ms=500), random.Random(seed),
            restart=lambda: MemoryHost(After(), out_of_orderness_ms=500),
        )  # fmt: skip
        assert said(new) == said(old)
        assert now.snapshot() == was.snapshot()


def test_a_renamed_member_and_whole_keep_bytes_and_identities() -> None:
    timers = 0
    for seed in range(CASES):
        for input, named in (("sum", "total"), ("other", "other")):
            old, was = run(MemoryHost(both(False)), random.Random(seed), input)
            new, now = run(MemoryHost(both(True)), random.Random(seed), named)
            assert said(new) == said(old)
            assert now.snapshot() == was.snapshot()
            timers += sum(b"of a timer" in e.payload for e in new)
    assert timers


def chain(renamed: bool) -> Topology:
    first, then, output = (After(), Stores(), "warnings") if renamed else (Before(), Shops(), "alerts")
    started = read(Input("events", "user", "at"), control="control").process(first)
    return started.key_by("shop", output=output).process(then)


def test_a_chain_of_renamed_links_has_contract_bytes_and_identities_of_before() -> None:
    def contract(renamed: bool) -> Any:
        return json.loads(json.dumps(contract_of(chain(renamed), [4, 4])))

    assert _differences(contract(False), contract(True)) == []
    for seed in range(CASES):
        rng = random.Random(seed)
        hosts = [MemoryChain(chain(renamed), out_of_orderness_ms=500) for renamed in (False, True)]
        for step in range(5):
            rows = [
                (rng.choice("abc"), (at := step * 1_000 + rng.randrange(2_000)),
                 Ev("u", rng.choice("xy"), at, rng.randrange(30)))
                for _ in range(rng.randrange(8))
            ]  # fmt: skip
            old, new = (said(host.run_batch(rows)) for host in hosts)
            assert old == new
        assert said(hosts[0].drain()) == said(hosts[1].drain())


def test_the_contract_of_a_multiplex_does_not_change_with_its_names() -> None:
    def contract(renamed: bool) -> Any:
        first, second = ("total" if renamed else "sum"), "other"
        inputs = {first: Input("a", "user", "at"), second: Input("b", "user", "at")}
        made = read(inputs, control="control").process(both(renamed))
        return json.loads(json.dumps(contract_of(made, [4])))

    assert _differences(contract(False), contract(True)) == []


def test_an_identity_is_what_it_was_when_this_was_written() -> None:
    """A constant, so that old and new cannot change together."""
    for process in (Before(), After()):
        driver = TestDriver(process)
        driver.send("ann", Ev("ann", "x", 5, 30), at=5)
        driver.drain()
        ids = [e.event_id for e in driver.emissions]
        assert ids == GOLDEN


#: Made by the commit before there was `stored_as`.
GOLDEN = [
    "79efdf802ab526527cdf56e249e53248",
    "5539ff76496f42dbf2f502086522fb50",
    "9826836c672082576c3dfdc7d81e3786",
    "40a9b41775f1483c15587d469cd21e81",
]


def test_two_states_or_outputs_cannot_be_stored_under_one_name() -> None:
    with pytest.raises(ProcessDefinitionError, match="two states are stored as 'a'"):

        class _States(KeyedProcess[Ev, Ev]):
            order = "event_time"
            a = value_state(int)
            b = value_state(int, stored_as="a")

    with pytest.raises(ProcessDefinitionError, match="two outputs are stored as 'late'"):

        class _Outputs(KeyedProcess[Ev, Ev]):
            order = "event_time"
            behind = side_output(Ev, stored_as="late")

    with pytest.raises(ProcessDefinitionError, match="two members are stored under one name"):
        multiplex({"a": Before(), "b": Another()}, name="Both", members_stored_as={"a": "b"})
    with pytest.raises(ProcessDefinitionError, match="has no member c"):
        multiplex({"a": Before(), "b": Another()}, name="Both", members_stored_as={"c": "b"})
