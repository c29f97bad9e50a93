"""Times and numbers at their bounds: nothing raises out of the host, and nothing is lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace import (
    Context,
    KeyedProcess,
    Timer,
    arrival,
    list_state,
    map_state,
    reducing_state,
    value_state,
    versioned_state,
)
from millrace.dead_letters import DeadLetter
from millrace.host.key_times import FIRST_MS, LAST_MS
from millrace.host.memory import MemoryHost
from millrace.operators import top_n
from millrace.time import END_OF_TIME, NEVER, NO_WATERMARK
from millrace.windows import count, global_window, hopping, max_of, session, sliding, sum_of, tumbling, window

#: Times that events can have.
EDGES = [FIRST_MS, FIRST_MS + 1, -(2**31) - 1, -1, 0, 1, 2**31, 2**53, LAST_MS - 1, LAST_MS]
#: Times that a timer, a version or a life may be given.
FAR = [NO_WATERMARK - 1, NO_WATERMARK, NO_WATERMARK + 1, FIRST_MS, -1, 0, 1, LAST_MS, 2**62, 2**62 + 1,
       END_OF_TIME - 1, END_OF_TIME, NEVER, NEVER + 1, 2**64]  # fmt: skip


class Step(msgspec.Struct):
    far: int
    what: str
    number: int = 0


WHAT = ("timer", "after", "ttl", "map", "list", "reduce", "version", "read", "lives", "number", "ticks")


class Edges(KeyedProcess[Step, list[Any]]):
    """Uses a far time, or number, in one way; says what it sees."""

    order = arrival(in_order_per_key=True)
    processing_time = True
    value = value_state(int, default=0, ttl=1_000)
    long = value_state(int, default=0, ttl=2**70)
    longest = value_state(list[int], default_factory=list, ttl=2**64, refresh="read_write")
    at_most = value_state(int, default=0, ttl="per_write")
    of_map = map_state(str, int, ttl="per_write")
    of_list = list_state(int, ttl=2**63 - 1)
    reduced = reducing_state(int, max, ttl=2**63 + 5)
    versions = versioned_state(int, history=2**62, ttl=2**62)
    ticks = value_state(int, default=0, ttl=2**63, ttl_time="processing_time")
    tick_map = map_state(str, int, ttl="per_write", ttl_time="processing_time")

    def process(self, event: Step, ctx: Context) -> None:
        far, what = event.far, event.what
        if what == "timer":
            ctx.timers.at(far, "t", on_key_time=far % 2 == 0)
            ctx.processing_timers.at(far, "p")
        elif what == "after":
            ctx.timers.after(far, "a")
            ctx.processing_timers.after(far, "b")
        elif what == "ttl":
            self.at_most.set(1, ttl=far)
        elif what == "map":
            self.of_map.put("a", 1, ttl=far)
            self.tick_map.put("a", 1, ttl=far)
        elif what == "list":
            self.of_list.append(far, ttl=far)
        elif what == "reduce":
            self.reduced.add(far)
        elif what == "version":
            self.versions.put(event.number, far)
        elif what == "number":
            self.value.value = far
        elif what == "ticks":
            self.ticks.value += 1
        else:
            self.value.value += 1
            self.long.value += 1
            self.longest.value.append(1)
        self.say(ctx)

    def say(self, ctx: Context) -> None:
        version = self.versions.get(ctx.event_time)
        lengths = [len(self.longest.value), len(self.of_map), len(self.of_list), len(self.tick_map)]
        values = [s.value for s in (self.value, self.long, self.at_most, self.reduced, self.ticks)]
        ctx.emit([ctx.event_time, version and version.valid_from, *lengths, *values])

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self.value.value += 1
        self.long.value += 1
        self.say(ctx)


class EdgesWaiting(Edges):
    order = "event_time"
    name = "Edges"


steps = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from(EDGES),
        st.builds(Step, st.sampled_from(FAR), st.sampled_from(WHAT), st.integers(0, 3)),
    ),
    max_size=8,
)
ticks = st.sampled_from([None, NO_WATERMARK + 1, -1, 0, LAST_MS, 2**60])


def play(process: Any, events: list[Any], bound: int, cuts: list[Any]) -> list[Any]:
    """Bring events in batches with ticks between them, restart after each, and drain."""
    found: list[Any] = []
    host = MemoryHost(process, out_of_orderness_ms=bound)
    for place, event in enumerate(events):
        found += host.run_batch([event])
        tick = cuts[place % len(cuts)] if cuts else None
        if tick is not None and process.needs_ticks():
            found += host.advance_processing_time(tick)
        snapshot = host.snapshot()
        host = MemoryHost(process, out_of_orderness_ms=bound)
        host.restore(snapshot)
    return found + host.drain()


@pytest.mark.parametrize("process", [Edges, EdgesWaiting])
@settings(max_examples=40, deadline=None)
@given(steps, st.sampled_from([0, 1_000, 2**53]), st.lists(ticks, max_size=4))
def test_no_time_and_no_number_raises_out_of_the_host(
    process: Any, events: list[Any], bound: int, cuts: list[Any]
) -> None:
    found = play(process(), events, bound, cuts)
    handled = [e for e in found if e.output == "main"]
    aside = [e for e in found if e.output in ("dead_letters", "late")]
    assert len(handled) + len(aside) >= len(events)
    for e in found:
        if e.output == "dead_letters":  # of what nobody could keep, or a life that is none
            letter = msgspec.json.decode(e.payload, type=DeadLetter)
            step = msgspec.json.decode(letter.value or b"", type=Step)
            assert abs(step.far) >= NEVER - LAST_MS or step.far <= 0, letter.error


class Ev(msgspec.Struct):
    item: str
    x: float
    n: int


DEFINED = {
    "tumbling": window(Ev, tumbling(1_000)).aggregate(n=count(), most=max_of("n")),
    "days": window(Ev, tumbling(2**40)).aggregate(n=count()),
    "hopping": window(Ev, hopping(10_000, every=5_000)).aggregate(n=count()),
    "session": window(Ev, session(2**45)).aggregate(total=sum_of("x")),
    "sliding": window(Ev, sliding(1_000)).aggregate(n=count()),
    "global": window(Ev, global_window()).aggregate(n=count()),
    "ranking": top_n(Ev, 2, item="item", window=tumbling(60_000)),
}


@pytest.mark.parametrize("name", DEFINED)
@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.sampled_from(EDGES),
            st.builds(Ev, st.sampled_from("xy"), st.floats(), st.sampled_from([0, -(2**63), 2**63 - 1])),
        ),
        max_size=6,
    ),
    st.sampled_from([0, 1_000, 2**53]),
)
def test_windows_take_every_time_that_an_event_can_have(name: str, events: list[Any], bound: int) -> None:
    play(DEFINED[name], events, bound, [])


def test_how_late_an_event_is_fits_64_bits() -> None:
    host = MemoryHost(Edges())
    host.drain()
    (late,) = host.run_batch([("a", FIRST_MS, Step(0, "read"))])
    assert msgspec.json.decode(late.payload)["lateness_ms"] == NEVER
