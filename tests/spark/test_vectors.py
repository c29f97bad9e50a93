"""The acceptance vectors of windows, sessions, timers, broadcast and lateness, once more on Spark.

Each script runs in memory too, and both hosts must give the rows that stand here. Times are those of the
vectors, moved by an aligned offset, since a watermark of 0 means "none yet" to the engine; where vectors
share a query, the later ones begin further on. See ``docs/semantics.md`` for what each vector says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from pyspark.sql import functions as F

from millrace import (
    BroadcastContext,
    Context,
    KeyedProcess,
    Timer,
    arrival,
    broadcast_state,
    keyed,
    value_state,
)
from millrace.host.memory import MemoryHost
from millrace.host.runner import Emission
from millrace.host.system import Idle
from millrace.windows import (
    collect,
    count,
    hopping,
    max_of,
    mean,
    min_of,
    session,
    sliding,
    sum_of,
    tumbling,
    window,
)
from tests.spark.conftest import StreamFactory
from tests.spark.mirror import SCHEMA, Item, comparable, to_row

#: A midnight: a multiple of every window here.
EPOCH = 1_699_920_000_000
#: So far behind the events that the watermark moves by hand only.
BY_HAND = 1_000 * 86_400_000
#: After all that a script has.
END = 10_000_000


class Ev(msgspec.Struct, frozen=True):
    key: str
    at: int
    v: int = 1
    tag: str = ""


@dataclass(frozen=True)
class Watermark:
    """The watermark comes to ``to``."""

    to: int


@dataclass(frozen=True)
class Rule:
    """A control event: amounts above ``above`` are told."""

    above: int


class Restart:
    """The query ends here, and another goes on from its checkpoint."""


def events(*rows: tuple[Any, ...]) -> list[Ev]:
    """One batch of (key, time, value)."""
    return [Ev(key, EPOCH + at, *more) for key, at, *more in rows]


def each(*rows: tuple[Any, ...]) -> list[list[Ev]]:
    """A batch for every (key, time, value)."""
    return [events(row) for row in rows]


def tagged(text: str) -> list[list[Ev]]:
    """Batches of an event each, from ``"a1 b5"``."""
    return [[Ev("k", EPOCH + int(word[1:]), 1, word[0])] for word in text.split()]


@dataclass(frozen=True)
class Script:
    """What goes in, and the rows that must come out."""

    process: Callable[[], KeyedProcess[Any, Any]]
    steps: Sequence[Any]
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    bound: int = BY_HAND
    late: int = 0


WINDOW = ("key", "window_start_ms", "window_end_ms")

SCRIPTS = {
    "V3 and V6: tumbling": Script(
        lambda: window(Ev, tumbling(10)).aggregate(
            n=count(), total=sum_of("v"), avg=mean("v"), high=max_of("v"), low=min_of("v"), all=collect("v")
        ),
        [*each(("k", 100, 1), ("k", 110, 2)), *each(("m", 1_002, 1), ("m", 1_004, 4), ("m", 1_012, 2))],
        (*WINDOW, "n", "total", "avg", "high", "low", "all"),
        [
            ("k", 100, 110, 1, 1, 1.0, 1, 1, [1]),
            ("k", 110, 120, 1, 2, 2.0, 2, 2, [2]),
            ("m", 1_000, 1_010, 2, 5, 2.5, 4, 1, [1, 4]),
            ("m", 1_010, 1_020, 1, 2, 2.0, 2, 2, [2]),
        ],
        bound=0,
    ),
    "V2 and V5: hopping": Script(
        lambda: window(Ev, hopping(10, every=5)).aggregate(total=sum_of("v")),
        [
            events(*(("k", at) for at in (0, 4, 5, 9, 10, -1))),
            *each(("m", 1_100, 1), ("m", 1_110, 2)),
        ],
        (*WINDOW, "total"),
        [
            ("k", -10, 0, 1),
            ("k", -5, 5, 3),
            ("k", 0, 10, 4),
            ("k", 5, 15, 3),
            ("k", 10, 20, 1),
            ("m", 1_095, 1_105, 1),
            ("m", 1_100, 1_110, 1),
            ("m", 1_105, 1_115, 2),
            ("m", 1_110, 1_120, 2),
        ],
        bound=0,
    ),
    "V18: hopping, late for some": Script(
        lambda: window(Ev, hopping(3_000, every=1_000)).aggregate(total=sum_of("v")),
        [
            events(("key2", 1_000)),
            Watermark(1_999),
            events(("key2", 2_000)),
            Watermark(3_000),
            events(("key2", 2_400), ("key2", 2_400)),
            events(("key1", 3_001), ("key1", 3_001), ("key2", 3_900)),
            Watermark(6_000),
            events(("key1", 3_001)),
        ],
        ("key", "window_end_ms", "total"),
        [
            *(("key1", end, 2) for end in (4_000, 5_000, 6_000)),
            ("key2", 2_000, 1),
            ("key2", 3_000, 2),
            ("key2", 4_000, 5),
            ("key2", 5_000, 4),
            ("key2", 6_000, 1),
        ],
        late=1,
    ),
    "V11: sliding by record": Script(
        lambda: window(Ev, sliding(10)).aggregate(all=collect("tag")),
        tagged("110 210 314 415 520 622 730"),
        ("window_start_ms", "all"),
        [
            (start, list(tags))
            for start, tags in {
                0: "12",
                4: "123",
                5: "1234",
                10: "12345",
                11: "345",
                12: "3456",
                15: "456",
                16: "56",
                20: "567",
                21: "67",
                23: "7",
            }.items()
        ],
        bound=5,
    ),
    "V12: tumbling, final only": Script(
        lambda: window(Ev, tumbling(2)).aggregate(n=count()),
        each(*(("k1", at) for at in (0, 1, 2, 1, 0, 5, 0))),
        (*WINDOW, "n"),
        [("k1", 0, 2, 4), ("k1", 2, 4, 1), ("k1", 4, 6, 1)],
        bound=1,
        late=1,
    ),
    "V13: sessions, final only": Script(
        lambda: window(Ev, session(5)).aggregate(n=count()),
        each(("k1", 0), ("k1", 5), ("k1", 1), ("k2", 11), ("k1", 5), ("k1", 30)),
        (*WINDOW, "n"),
        [("k1", 0, 10, 3), ("k1", 30, 35, 1), ("k2", 11, 16, 1)],
        bound=0,
        late=1,
    ),
    "V16 and V19: sessions over a restart, and late ones": Script(
        lambda: window(Ev, session(3_000)).aggregate(total=sum_of("v")),
        [
            events(("key2", 0, 1), ("key2", 1_000, 2), ("key2", 2_500, 3)),
            Restart(),
            events(("key1", 10, 1), ("key1", 1_000, 2), ("key1", 2_500, 3)),
            events(("key2", 5_501, 4), ("key2", 6_000, 5), ("key2", 6_000, 5), ("key2", 6_050, 6)),
            Watermark(12_000),
            events(("key2", 15_000, 10), ("key2", 15_000, 20)),
            Watermark(18_000),
            events(("k", 101_000)),
            Watermark(101_999),
            events(("k", 102_000)),
            Watermark(104_998),
            events(("k", 104_500), ("k", 108_500)),
            Watermark(107_400),
            Restart(),
            events(("k", 107_000)),
            Watermark(111_501),
            events(("k", 111_600)),
            Watermark(114_600),
            events(("k", 110_000), ("k", 110_100)),
            events(("k", 114_500)),
        ],
        (*WINDOW, "total"),
        [
            ("k", 101_000, 111_500, 5),
            ("k", 111_600, 114_600, 1),
            ("k", 114_500, 117_500, 1),
            ("key1", 10, 5_500, 6),
            ("key2", 0, 5_500, 6),
            ("key2", 5_501, 9_050, 20),
            ("key2", 15_000, 18_000, 30),
        ],
        late=2,
    ),
    "V17: late side output": Script(
        lambda: window(Ev, tumbling(2_000)).aggregate(total=sum_of("v")),
        [
            events(("k", 1_000)),
            Watermark(1_985),
            events(("k", 1_980)),
            Watermark(1_999),
            events(("k", 1_998)),
            events(("k", 2_001)),
            Watermark(2_999),
            Watermark(3_999),
        ],
        (*WINDOW, "total"),
        [("k", 0, 2_000, 2), ("k", 2_000, 4_000, 1)],
        late=1,
    ),
}


class Told(msgspec.Struct, frozen=True):
    key: str
    what: str
    at: int
    watermark: int


class Alarms(KeyedProcess[Ev, Told]):
    """Timers of every sort, and a threshold that control events move."""

    order = arrival(commutes=True)
    control_type = Rule
    limits = broadcast_state(str, int)
    rings = value_state(int, default=0)

    def process(self, event: Ev, ctx: Context) -> None:
        if event.tag == "set":
            for at in (1_999, 2_000, 4_999, 5_000):
                ctx.timers.at(EPOCH + at, str(at))
            ctx.timers.at(EPOCH + 1_000, "moved")
            ctx.timers.at(EPOCH + 4_000, "moved")
            ctx.timers.at(EPOCH + 1_500, "deleted")
            ctx.timers.delete("deleted")
            ctx.timers.at(EPOCH + 3_000, "again")
            ctx.timers.at(0, "past")
        if event.v > (self.limits.get("above") or 0):
            ctx.emit(Told(ctx.key, f"{event.v}", event.at - EPOCH, 0))

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(Told(ctx.key, timer.name, timer.at - EPOCH, ctx.watermark - EPOCH))
        if timer.name == "again" and self.rings.value < 2:
            self.rings.value += 1
            ctx.timers.at(timer.at, "again")  # its own instant
        elif timer.name == "again":
            self.rings.clear()

    def process_broadcast(self, control: Rule, ctx: BroadcastContext) -> None:
        self.limits.put("above", control.above)


SCRIPTS["V22: the clock, timers and broadcast"] = Script(
    Alarms,
    [
        [Ev("k", EPOCH + 7_000, 0, "set")],
        [Rule(5), *events(("m", 10_000, 5), ("n", 10_000, 6))],
        events(("k", 3_000, 9)),  # behind 4999, and the clock stays
        Restart(),
        events(("k", 6_000, 5), ("k", 6_000, 7)),
        [Rule(8), *events(("k", 6_001, 7), ("m", 6_001, 9))],
    ],
    ("key", "what", "at", "watermark"),
    [
        ("k", "1999", 1_999, 1_999),
        ("k", "2000", 2_000, 4_999),
        ("k", "4999", 4_999, 4_999),
        ("k", "5000", 5_000, END),
        ("k", "7", 6_000, 0),
        *[("k", "again", 3_000, 4_999)] * 3,
        ("k", "moved", 4_000, 4_999),
        ("k", "past", -EPOCH, None),
        ("m", "9", 6_001, 0),
        ("n", "6", 10_000, 0),
    ],
    bound=5_000,
    late=1,
)


def in_memory(script: Script) -> list[Emission]:
    host = MemoryHost(script.process(), out_of_orderness_ms=script.bound)
    emissions: list[Emission] = []
    for step in [*script.steps, Watermark(END)]:
        if isinstance(step, Watermark):
            emissions += host.advance_watermark(EPOCH + step.to)
        elif isinstance(step, Restart):
            kept = host.snapshot()
            host = MemoryHost(script.process(), out_of_orderness_ms=script.bound)
            host.restore(kept)
        else:
            controls = [control for control in step if isinstance(control, Rule)]
            emissions += host.broadcast(*controls) if controls else []
            emissions += host.run_batch([(e.key, e.at, e) for e in step if isinstance(e, Ev)])
    assert not host.store.cells
    return emissions


def on_spark(script: Script, stream: StreamFactory) -> Any:
    made = stream(
        SCHEMA,
        lambda df: keyed(
            df,
            by="key",
            event_time="at",
            value="value",
            out_of_orderness=script.bound,
            source_id="source",
            control=F.col("control"),
            key_groups=2,
        ).process(script.process()),
    )
    number = 0
    for step in [*script.steps, Watermark(END)]:
        if isinstance(step, Restart):
            made.run()
        elif isinstance(step, Watermark):
            made.add([to_row(Item("", Idle(EPOCH + step.to + script.bound + 1)))])
        else:
            rows = []
            for value in step:  # named as the in-memory host names its own
                kind = "control" if isinstance(value, Rule) else "0"
                rows.append(to_row(Item(f"memory:{kind}:{number}", value, kind == "control")))
                number += 1
            made.add(rows)
    made.run()
    return made


def rows_of(script: Script, emissions: Sequence[Any]) -> list[tuple[Any, ...]]:
    found = []
    for e in emissions:
        if e.output == "main":
            record = e.payload if not isinstance(e.payload, bytes) else msgspec.json.decode(e.payload)
            row = {n: v - EPOCH if n.startswith("window_") else v for n, v in record.items()}
            if row.get("what") == "past":
                row["watermark"] = None  # before the first watermark; the hosts agree on it below
            found.append(tuple(row[column] for column in script.columns))
    return sorted(found, key=repr)


#: Left to the matrix: kinds of windows of which another vector is run every day.
LONG_WAY = ("V2 and V5: hopping", "V13: sessions, final only", "V11: sliding by record")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.matrix] * (name in LONG_WAY)) for name in SCRIPTS]
)
def test_a_vector_gives_on_spark_what_it_says(stream: StreamFactory, name: str) -> None:
    script = SCRIPTS[name]
    expected = in_memory(script)
    wanted = sorted(script.rows, key=repr)
    assert rows_of(script, expected) == wanted
    assert sum(e.output == "late" for e in expected) == script.late
    made = on_spark(script, stream)
    assert rows_of(script, made.emitted) == wanted
    assert comparable(made.emitted) == comparable(expected)
    assert made.late_drops == 0
