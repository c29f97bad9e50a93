"""Random cases for both hosts: a process as plain data with small programs as its callbacks, and input.

A seed makes a case: states of every kind with every kind of life, an order, ticks or none, and batches
of events with disorder, late ones, failures, control events and ticks, in several runs of the query.
"""

from __future__ import annotations

import operator
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import msgspec
from pyspark.sql import functions as F

from millrace import (
    BroadcastContext,
    Context,
    KeyedProcess,
    Timer,
    aggregating_state,
    arrival,
    broadcast_state,
    event_time,
    keyed,
    list_state,
    map_state,
    reducing_state,
    side_output,
    value_state,
    versioned_state,
)
from millrace.host.spark_input import Plan
from millrace.host.station import BROADCAST, HEADER
from millrace.host.system import Tick
from millrace.state.cells import CLOCK_PAGE, SCHEMA_PAGE
from tests.spark.mirror import DRAIN, SCHEMA, Item, Mirror, comparable, to_row

START = 1_700_000_000_000
SECOND = 1_000
BOUND = 10 * SECOND
#: After its last event or timer a key forgets all, so that what is left after the end is a leak.
REST = 300 * SECOND
#: How often a timer may set timers.
DEPTH = 2
#: A tick far beyond all that is set on processing time, and the step to the next.
FAR_TICK, TICK_STEP = START * 2, 1_000 * SECOND

#: How far the clock of a key may stay behind the stream's, where keys have clocks.
PATIENCE = 20 * SECOND

Order = Literal["event_time", "key", "in_order_per_key", "commutes"]
Kind = Literal["value", "inplace", "map", "list", "reducing", "aggregating", "versioned"]
KINDS: tuple[Kind, ...] = ("value", "inplace", "map", "list", "reducing", "aggregating", "versioned")


class Ev(msgspec.Struct):
    """An event that has a program run."""

    user: str
    at: int
    program: int
    n: int


class Set(msgspec.Struct):
    """A control event; an odd ``n`` above 90 fails after it was written."""

    name: str
    n: int
    since: int | None = None


@dataclass(frozen=True)
class State:
    """How a state is declared."""

    kind: Kind
    ttl: int | Literal["per_write"] | None = None
    ttl_time: Literal["event_time", "processing_time"] = "event_time"
    refresh: Literal["write", "read_write"] = "write"


class Op(NamedTuple):
    """One step of a program: what, on which state or timer, and with what."""

    what: str
    on: str = ""
    by: int = 0


@dataclass(frozen=True)
class Definition:
    """A process as plain data, from which workers build it anew."""

    order: Order
    ticks: bool
    states: tuple[State, ...]
    programs: tuple[tuple[Op, ...], ...]


class Programs(KeyedProcess[Ev, list[Any]]):
    """Runs the programs of a definition; :func:`build` makes subclasses with its states."""

    definition: Definition
    control_type = Set
    order = arrival(commutes=True)
    stream_timers = True
    settings = broadcast_state(str, int)
    side = side_output(list[Any])

    def __init__(self, definition: Definition) -> None:
        self.definition = definition

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return build, (self.definition,)

    def process(self, event: Ev, ctx: Context) -> None:
        self._run(event.program, event.n, DEPTH, ["event", event.n], ctx, ticks=self.definition.ticks)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        if timer.name == "rest":
            for place in range(len(self.definition.states)):
                getattr(self, f"s{place}").clear()
            ctx.emit(["rest", timer.at])
            return
        name, program, depth = timer.name.split(".")
        said = [timer.domain, name, timer.at - START]
        ticks = timer.domain == "processing_time" and self.definition.ticks
        self._run(int(program), timer.at % 97, int(depth) - 1, said, ctx, ticks=ticks)

    def last_due(self, latest: int) -> int:
        return latest + 1_000 * REST  # what timers set ends by itself

    def process_broadcast(self, control: Set, ctx: BroadcastContext) -> None:
        self.settings.put(control.name, control.n)
        if control.n > 90 and control.n % 2:
            raise ValueError("odd")

    def _run(self, program: int, n: int, depth: int, said: list[Any], ctx: Context, *, ticks: bool) -> None:
        said += [ctx.event_time - START, ctx.on_time, ctx.processing_time]
        for op in self.definition.programs[program]:
            if op.what in ("timer", "key_timer", "stream_timer", "tick_timer"):
                if depth > 0:
                    self._set(
                        op, f"{op.on}.{(program + 1) % len(self.definition.programs)}.{depth}", ctx, ticks
                    )
            elif op.what == "delete":
                ctx.timers.delete(f"{op.on}.{program}.{DEPTH}", clock="stream" if op.by % 3 == 0 else "own")
            elif op.what == "settings":
                said.append(sorted(self.settings.items()))
            elif op.what == "side":
                ctx.output(self.side, [op.by, n], revision=op.by % 2)
            elif op.what == "correct":
                ctx.emit(["correction", n], on_time=False, revision=1)
            elif op.what == "reject":
                if said[0] == "event" and n % 5 == op.by % 5:
                    ctx.dead_letter("duplicate", "by program")
            elif op.what == "fail":
                if n % 7 == op.by % 7:
                    raise ValueError(f"program {program}")
            else:
                said.append(self._touch(op, n, ctx))
        ctx.timers.at(ctx.event_time + REST, "rest")
        ctx.emit(said)

    def _set(self, op: Op, name: str, ctx: Context, ticks: bool) -> None:
        if op.what == "tick_timer":
            if ticks:
                ctx.processing_timers.after(op.by, name)
        elif op.what == "stream_timer":
            ctx.timers.after(op.by, name, clock="stream")
        else:
            ctx.timers.after(op.by, name, on_key_time=op.what == "key_timer")

    def _touch(self, op: Op, n: int, ctx: Context) -> Any:
        """Use a state in one way, and return what it then holds."""
        place = int(op.on)
        declared, state = self.definition.states[place], getattr(self, f"s{place}")
        more = {"ttl": op.by} if declared.ttl == "per_write" and op.by > 0 else {}
        if op.what == "clear":
            state.clear()
        elif op.what == "write":
            WRITES[declared.kind](state, n, more, ctx)
        return READS[declared.kind](state, ctx)


def _write_in_place(state: Any, n: int, more: dict[str, int], ctx: Context) -> None:
    if n % 3:
        state.value.append(n)
    else:
        state.set([*state.value[-3:], n], **more)


def _write_map(state: Any, n: int, more: dict[str, int], ctx: Context) -> None:
    if n % 5:
        state.put(f"m{n % 4}", n, **more)
    else:
        state.remove(f"m{n % 4}")


def _write_list(state: Any, n: int, more: dict[str, int], ctx: Context) -> None:
    if n % 5:
        state.append(n, **more)
    else:
        state.replace([n, n + 1], **more)


WRITES: dict[Kind, Callable[[Any, int, dict[str, int], Context], Any]] = {
    "value": lambda state, n, more, _: state.set(n, **more),
    "inplace": _write_in_place,
    "map": _write_map,
    "list": _write_list,
    "reducing": lambda state, n, more, _: state.add(n, **more),
    "aggregating": lambda state, n, more, _: state.add(n, **more),
    "versioned": lambda state, n, more, ctx: state.put(n, ctx.event_time - n * 100, **more),
}
READS: dict[Kind, Callable[[Any, Context], Any]] = {
    "value": lambda state, _: state.value,
    "inplace": lambda state, _: list(state.value),
    "map": lambda state, _: [list(item) for item in state.items()],
    "list": lambda state, _: list(state),
    "reducing": lambda state, _: state.value,
    "aggregating": lambda state, _: state.value,
    "versioned": lambda state, ctx: [v.value for v in state.versions(since=ctx.event_time - 5_000)],
}


def _declare(state: State) -> Any:
    how: dict[str, Any] = {"ttl": state.ttl, "ttl_time": state.ttl_time, "refresh": state.refresh}
    makers: dict[Kind, Callable[[], Any]] = {
        "value": lambda: value_state(int, default=0, **how),
        "inplace": lambda: value_state(list[int], default_factory=list, **how),
        "map": lambda: map_state(str, int, **how),
        "list": lambda: list_state(int, **how),
        "reducing": lambda: reducing_state(int, operator.add, **how),
        "aggregating": lambda: aggregating_state(
            list[int], create=list, add=lambda kept, n: sorted({*kept, n})[-4:], result=sum, **how
        ),
        "versioned": lambda: versioned_state(int, history=20 * SECOND, **how),
    }
    return makers[state.kind]()


def build(definition: Definition) -> Programs:
    """Return the process that a definition describes."""
    if definition.order in ("event_time", "key"):
        own = definition.order == "key"
        order = event_time(clock="key", patience=PATIENCE) if own else event_time()
    else:
        order = arrival(**{definition.order: True})
    states = {f"s{place}": _declare(state) for place, state in enumerate(definition.states)}
    for name, spec in states.items():
        spec.name = name
    made: Any = type(
        "Fuzzed",
        (Programs,),
        {"order": order, "processing_time": definition.ticks, "__module__": __name__, **states},
    )
    return cast("Programs", made(definition))


# -- random cases ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A process, and batches in runs of the query."""

    seed: int
    definition: Definition
    runs: list[list[list[Item]]] = field(default_factory=list)


def random_definition(rng: random.Random) -> Definition:
    """Return a process whose states cover all kinds over a few cases."""
    order: Order = rng.choice(["event_time", "key", "in_order_per_key", "commutes"])
    ticks = rng.random() < 0.5
    states = []
    for kind in rng.sample(KINDS, 5):
        ttl = rng.choice([None, "per_write", 1, 3 * SECOND, 30 * SECOND, 100 * SECOND])
        expires = ttl is not None
        clock = "processing_time" if expires and ticks and rng.random() < 0.4 else "event_time"
        refresh = "read_write" if isinstance(ttl, int) and rng.random() < 0.4 else "write"
        states.append(State(kind, ttl, clock, refresh))  # type: ignore[arg-type]
    programs = []
    for _ in range(6):
        ops = [_random_op(rng, order, len(states)) for _ in range(rng.randint(2, 6))]
        programs.append(tuple(ops))
    return Definition(order, ticks, tuple(states), tuple(programs))


def _random_op(rng: random.Random, order: Order, states: int) -> Op:
    what = rng.choice(
        ["write"] * 5 + ["read"] * 2 + ["clear", "timer", "timer", "key_timer", "tick_timer", "delete"]
        + ["stream_timer"]
        + ["settings", "side", "correct", "reject", "fail"]
    )  # fmt: skip
    if what == "key_timer" and order == "commutes":
        what = "timer"
    if what in ("write", "read", "clear"):
        return Op(what, str(rng.randrange(states)), rng.choice([0, 1, SECOND, 8 * SECOND, 60 * SECOND]))
    delay = rng.choice([-5 * SECOND, -1, 0, 1, SECOND, 7 * SECOND, BOUND, BOUND + 1, 61 * SECOND])
    return Op(what, rng.choice("ab"), delay if "timer" in what else rng.randint(0, 9))


def random_case(seed: int, *, runs: int = 2, batches: int = 3, events: int = 40) -> Case:
    """Return the case of a seed; its last run brings the ends of the clocks and of the input."""
    rng = random.Random(seed)
    case = Case(seed, random_definition(rng))
    taken = iter(range(1 << 30))
    head, tick = START, START

    def item(value: Any, kind: str = "0") -> Item:
        return Item(f"f:{kind}:{next(taken)}", value, isinstance(value, Set))

    for _ in range(runs):
        run: list[list[Item]] = []
        for _ in range(batches):
            batch: list[Item] = []
            for _ in range(rng.choice([0, 1, events, events])):
                head += rng.choice([0, 0, 1, 100, SECOND, 2 * SECOND])
                lag = rng.choice(
                    [0, 0, 0, 1, SECOND, 5 * SECOND, BOUND, BOUND + 1, BOUND + 2, 3_600 * SECOND]
                )
                key = rng.choice("uvwxyz") + rng.choice(["", "é"])
                programs = len(case.definition.programs)
                batch.append(item(Ev(key, head - lag, rng.randrange(programs), rng.randint(0, 100))))
            if rng.random() < 0.4:
                for _ in range(2):
                    since = rng.choice([None, head + rng.choice([-SECOND, 1, SECOND, 30 * SECOND, REST])])
                    batch.append(item(Set(rng.choice("pq"), rng.randint(0, 100), since), "1"))
            if case.definition.ticks and rng.random() < 0.6:
                tick += rng.choice([0, SECOND, 10 * SECOND, 70 * SECOND])
                batch.append(item(Tick(tick), "2"))
            head += rng.choice([0, 0, 40 * SECOND, 2 * REST])
            if batch:
                run.append(batch)
        case.runs.append(run)
    last: list[list[Item]] = []
    ticks = [FAR_TICK + i * TICK_STEP for i in range(2 * DEPTH)] if case.definition.ticks else []
    last += [[item(Tick(at), "2")] for at in ticks[:DEPTH]] + [[item(DRAIN, "2")]]
    if ticks and case.definition.order in ("event_time", "key"):
        # Events that had waited for the end have set timers on processing time.
        last += [[item(Tick(at), "2")] for at in ticks[DEPTH:]] + [[item(DRAIN, "2")]]
    case.runs[-1].extend(last)
    return case


def in_memory(case: Case) -> tuple[list[Any], list[str]]:
    """Return what a case emits in memory, and the keys that are left in the end."""
    mirror = Mirror(build(case.definition), BOUND, "since")
    for batches in case.runs:
        for batch in batches:
            mirror.batch(batch, key="user", at="at")
        mirror.end_run()
    return mirror.runner.emissions, list(mirror.store.cells)


def on_spark(case: Case, make: Callable[..., Any], plan: Plan = "chain", stations: int = 1) -> Any:
    """Run a case on Spark and return its stream; ``make`` is the fixture's factory of streams."""
    stream = make(
        SCHEMA,
        lambda df: keyed(
            df, by="user", event_time="at", value="value", out_of_orderness=BOUND, source_id="source",
            control=F.col("control"), control_time="since", key_groups=3, plan=plan,
            stations=stations, locality="user",
        ).process(build(case.definition)),
    )  # fmt: skip
    shuffle = random.Random(case.seed)
    for batches in case.runs:
        for batch in batches:
            rows = [to_row(item) for item in batch]
            shuffle.shuffle(rows)
            stream.add(rows)
        if batches:
            stream.run()
    return stream


def check(case: Case, make: Callable[..., Any], plan: Plan = "chain", stations: int = 1) -> Counter[str]:
    """Run a case on both hosts; return how much came out of which output.

    Raises:
        AssertionError: The hosts differ, or something is left; it says what and the seed.
    """
    expected, left = in_memory(case)
    assert not left, f"seed {case.seed}: state is left in memory of {left}"
    stream = on_spark(case, make, plan, stations)
    found, wanted = comparable(stream.emitted), comparable(expected)
    if found != wanted:
        raise AssertionError(difference(case, wanted, found))
    assert stream.late_drops == 0, f"seed {case.seed}: Spark dropped {stream.late_drops} late rows"
    for header in stream.headers():
        kept = (len(header.pages), header.inline)
        assert kept == (1, {}), f"seed {case.seed}: a group keeps {kept}"
    pages = {number for _, _, number, _ in stream.kept()}
    assert pages <= {SCHEMA_PAGE, CLOCK_PAGE, HEADER, BROADCAST}, f"seed {case.seed}: pages {pages} are left"
    assert len(stream.clocks()) == 1, f"seed {case.seed}: key groups disagree on the time"
    return Counter(e.output for e in expected)


def difference(case: Case, wanted: Counter[str], found: Counter[str]) -> str:
    """Say what the first keys differ in."""
    lines = [f"the hosts differ on seed {case.seed}: {case.definition}"]
    for name, more in (("only in memory", wanted - found), ("only on Spark", found - wanted)):
        lines.append(f"{name}: {sum(more.values())}")
        lines += [f"  {text}" for text in sorted(more)[:8]]
    lines.append(f"again: python -m tests.fuzz --seed {case.seed} --cases 1")
    return "\n".join(lines)
