"""Processes and ways to run them, for tests of identities and of the end of the input."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from millrace import Context, KeyedProcess, Timer, arrival, map_state, side_output, value_state
from millrace.host.memory import MemoryHost
from millrace.host.runner import Emission
from millrace.joins import asof_join, interval, interval_join, table_join, window_join
from millrace.operators import (
    absence,
    deduplicate,
    drift,
    ewm,
    heartbeat,
    holt_winters,
    moving,
    page_hinkley,
    running,
    top_n,
)
from millrace.patterns import begin, detect, skip_past_last, skip_to_next
from millrace.windows import (
    collect,
    count,
    count_hopping,
    count_sliding,
    global_window,
    hopping,
    lookback,
    session,
    sliding,
    sum_of,
    tumbling,
    watermark,
    window,
)

#: Later than any event of a test and than all that may be due after it.
FAR = 1 << 50
SPAN = 150
BOUND = 25


class Ev(msgspec.Struct, frozen=True, tag="ev"):
    """An event with a number and a name."""

    v: int = 0
    tag: str = "a"


class Other(msgspec.Struct, frozen=True, tag="other"):
    """An event of another input."""

    w: int = 0


class Placed(NamedTuple):
    """An event in its place: its cause is its place in the source."""

    key: str
    at: int
    event: Any
    cause: str


def is_a(event: Ev) -> bool:
    return event.tag == "a"


def is_b(event: Ev) -> bool:
    return event.tag == "b"


def gap_of(event: Ev) -> int:
    return 1 + event.v


def name_of(match: Any) -> Ev:
    return Ev(match.end_ms, match.key)


class Minutes(KeyedProcess[Ev, str]):
    """Tells how many events each stretch of 10 had, by a timer that sets itself while there were any."""

    order = "event_time"
    n = value_state(int, default=0)

    def process(self, event: Ev, ctx: Context) -> None:
        self.n.value += 1
        ctx.timers.bring_forward(ctx.event_time - ctx.event_time % 10 + 9, "ten")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(f"{timer.at}: {self.n.value}")
        if self.n.value:
            ctx.timers.after(10, "ten")
        self.n.clear()

    def last_due(self, latest: int) -> int:
        return latest + 10


class Idle(KeyedProcess[Ev, str]):
    """A timer that every event moves, and one beside it that none does."""

    order = "event_time"
    n = value_state(int, default=0)

    def process(self, event: Ev, ctx: Context) -> None:
        self.n.value += 1
        ctx.emit(f"{ctx.key} {self.n.value}")
        ctx.timers.after(12, "idle")
        if ctx.timers.pending("first") is None:
            ctx.timers.after(20, "first")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(f"{timer.name} {self.n.value}")
        if timer.name == "idle":
            self.n.clear()


class Again(KeyedProcess[Ev, str]):
    """Timers that fire again and again at one time: set by themselves, and by events after it."""

    order = "event_time"
    left = value_state(int, default=0)
    told = side_output(str)

    def process(self, event: Ev, ctx: Context) -> None:
        self.left.value = event.v % 4
        ctx.timers.at(ctx.event_time - ctx.event_time % 30, "past")
        ctx.timers.at(ctx.event_time, "now")
        ctx.timers.at(50, "fixed")
        if event.tag == "b":
            ctx.timers.delete("fixed")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(timer.name)
        ctx.output(self.told, f"{timer.name} {self.left.value}")
        if self.left.value:
            self.left.value -= 1
            ctx.timers.at(timer.at, timer.name)
            ctx.timers.at(timer.at - 1, "before")


class Dues(KeyedProcess[Ev, str]):
    """In arrival order: one timer for many things, each of which says what it is."""

    order = arrival(commutes=True)
    dues = map_state(int, int)

    def process(self, event: Ev, ctx: Context) -> None:
        due = ctx.event_time - ctx.event_time % 8 + 30 + event.v
        self.dues.put(due, self.dues.get(due, 0) + 1)
        ctx.timers.bring_forward(due)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        for due, n in sorted(self.dues.items()):
            if due <= timer.at:
                ctx.emit(f"{due} {n}", identity=f"due {due}")
                self.dues.remove(due)
        ctx.timers.bring_forward(min(self.dues, default=FAR * 2))
        if not len(self.dues):
            ctx.timers.delete()

    def last_due(self, latest: int) -> int:
        return max(self.dues, default=latest)


class Each(KeyedProcess[Ev, str]):
    """In arrival order: a timer for each event."""

    order = arrival(commutes=True)

    def process(self, event: Ev, ctx: Context) -> None:
        ctx.timers.after(5, f"{ctx.event_time} {event.v} {event.tag}")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(timer.name)
        if timer.name.endswith("b"):
            ctx.timers.at(timer.at, f"{timer.name}!")
            ctx.timers.after(3, "after")

    def last_due(self, latest: int) -> int:
        return latest + 3


class OnKeyTime(KeyedProcess[Ev, str]):
    """In order per key: fired by the key's own events, a chain of three."""

    order = arrival(in_order_per_key=True)
    step = value_state(int, default=0)

    def process(self, event: Ev, ctx: Context) -> None:
        self.step.value = 0
        ctx.timers.after(4, "step", on_key_time=True)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(f"step {self.step.value}")
        self.step.value += 1
        if self.step.value < 3:
            ctx.timers.after(4, "step", on_key_time=True)
        else:
            self.step.clear()

    def last_due(self, latest: int) -> int:
        return latest + 8


Orders = Literal["any", "per_key"]
BOTH = {"left": Ev, "right": Other}


class Kind(NamedTuple):
    """A process, and what its events may be.

    Attributes:
        orders: Orders of events in which it gives the same.
        distinct: Whether a key's events have to be at different times.
    """

    process: KeyedProcess[Any, Any]
    orders: Orders = "any"
    distinct: bool = False


_N: dict[str, Any] = {"n": count(), "total": sum_of("v")}
_AB = begin("a").where(is_a).followed_by("b").where(is_b)
KINDS: dict[str, Kind] = {
    "tumbling": Kind(window(Ev, tumbling(10, offset=3)).aggregate(**_N)),
    "hopping": Kind(window(Ev, hopping(25, every=10)).aggregate(**_N)),
    "days": Kind(window(Ev, tumbling(86_400_000, tz="Europe/Berlin")).aggregate(**_N)),
    "in order": Kind(window(Ev, tumbling(10), order="event_time").aggregate(all=collect("v"))),
    "session": Kind(window(Ev, session(7)).aggregate(**_N)),
    "session of its own gap": Kind(window(Ev, session(gap_of)).aggregate(**_N)),
    "session that splits": Kind(window(Ev, session(7, exact_gap="split")).aggregate(**_N)),
    "session of a length": Kind(window(Ev, session(7, max_length=20)).aggregate(**_N)),
    "sliding": Kind(window(Ev, sliding(9)).aggregate(**_N)),
    "lookback": Kind(window(Ev, lookback(9, keep="tag")).aggregate(**_N)),
    "lookback before": Kind(window(Ev, lookback(9, closed="left", keep="tag")).aggregate(**_N)),
    "counts": Kind(window(Ev, count_hopping(4, every=2, idle=30)).aggregate(**_N)),
    "sliding counts": Kind(window(Ev, count_sliding(3, idle=30)).aggregate(**_N)),
    "global": Kind(window(Ev, global_window()).aggregate(**_N)),
    "allowed lateness": Kind(window(Ev, tumbling(10), allowed_lateness=20).aggregate(**_N)),
    "session, lateness": Kind(window(Ev, session(7), allowed_lateness=20, emit="changelog").aggregate(**_N),
                              "per_key", distinct=True),
    "as of, corrected": Kind(asof_join(left=Ev, right=Other, keep=40), "per_key", distinct=True),
    "as of": Kind(asof_join(left=Ev, right=Other, keep=40, emit="final")),
    "as of, grace": Kind(asof_join(left=Ev, right=Other, keep=40, grace=15, emit="final")),
    "table": Kind(table_join(stream=Ev, table=Other, how="left", keep=60)),
    "interval": Kind(interval_join(left=Ev, right=Other, within=interval(backward=9, forward=5),
                                   how="outer")),
    "window join": Kind(window_join(left=Ev, right=Other, assigner=tumbling(15), how="outer")),
    "session join": Kind(window_join(left=Ev, right=Other, assigner=session(6))),
    "pattern": Kind(detect(Ev, _AB.within(12))),
    "pattern that skips": Kind(detect(Ev, _AB.within(30), after_match=skip_past_last(), select=name_of,
                                      output=Ev)),
    "pattern of what does not come": Kind(detect(Ev, begin("a").where(is_a).not_followed_by("b").where(is_b)
                                                 .within(12), after_match=skip_to_next(), select=name_of,
                                                 output=Ev)),
    "deduplicate": Kind(deduplicate(Ev, id="v", within=20)),
    "top_n": Kind(top_n(Ev, 2, item="tag", by=sum_of("v"), window=hopping(20, every=10))),
    "absence": Kind(absence(Ev, start=is_a, end=is_b, within=7, keep=("v",), remember=20)),
    "heartbeat": Kind(heartbeat(Ev, timeout=5, remember=9)),
    "heartbeat in order": Kind(heartbeat(Ev, timeout=5, in_order=True), "per_key", distinct=True),
    "running": Kind(running(Ev, idle=500).aggregate(n=count())),
    "moving": Kind(moving(Ev, 3, idle=500).aggregate(n=count())),
    "ewm": Kind(ewm(Ev, "v", half_life=20, idle=500)),
    "holt_winters": Kind(holt_winters(Ev, "v", season=3, idle=500)),
    "drift": Kind(drift(Ev, "v", page_hinkley(threshold=3, min_n=3), idle=500)),
    "minutes": Kind(Minutes()),
    "idle": Kind(Idle()),
    "again": Kind(Again()),
    "dues": Kind(Dues()),
    "each": Kind(Each()),
    "on key time": Kind(OnKeyTime(), "per_key", distinct=True),
}  # fmt: skip

_LATE: dict[str, Any] = {"allowed_lateness": 30}
_EARLY = watermark().early(count=2).late(count=2)
#: What says more than one thing of a window, or does so again: no two of them may be one.
REPEATING: dict[str, KeyedProcess[Any, Any]] = {
    "updates": window(Ev, tumbling(10), emit="updates", **_LATE).aggregate(**_N),
    "changelog": window(Ev, hopping(20, every=10), emit="changelog", **_LATE).aggregate(**_N),
    "sessions": window(Ev, session(7), **_LATE).aggregate(**_N),
    "sessions, changelog": window(Ev, session(7), emit="changelog", **_LATE).aggregate(**_N),
    "sessions, early": window(Ev, session(7), trigger=_EARLY, **_LATE).aggregate(**_N),
    "early": window(Ev, tumbling(20), trigger=_EARLY, **_LATE).aggregate(**_N),
    "early by time": window(Ev, tumbling(20), trigger=watermark().early(every=5), **_LATE).aggregate(**_N),
    "early, anew": window(Ev, tumbling(20), trigger=watermark().early(count=2, discard=True)).aggregate(**_N),
    "early by the wall": window(
        Ev, tumbling(20), trigger=watermark().early(every=5, clock="processing_time"), **_LATE
    ).aggregate(**_N),
    "sessions by the wall": window(
        Ev, session(7), trigger=watermark().early(every=5, clock="processing_time")
    ).aggregate(**_N),
    "global, early": window(Ev, global_window(), trigger=watermark().early(count=3)).aggregate(**_N),
    "top_n": top_n(Ev, 2, item="tag", window=tumbling(20), allowed_lateness=30),
    "top_n, changelog": top_n(Ev, 2, item="tag", window=tumbling(20), emit="changelog", allowed_lateness=30),
    "as of, corrected": asof_join(left=Ev, right=Other, keep=40, grace=30),
    **{name: kind.process for name, kind in KINDS.items()},
}


class Late(Again):
    """As Again, also of what is late."""

    name: ClassVar[str] = "late"

    def on_late(self, event: Ev, ctx: Context) -> None:
        self.process(event, ctx)


class LateArriving(Late):
    """As Late, as events come."""

    name: ClassVar[str] = "late_arriving"
    order = arrival(commutes=True)


class LateEach(Each):
    """As Each, also of what is late."""

    name: ClassVar[str] = "late_each"

    def on_late(self, event: Ev, ctx: Context) -> None:
        self.process(event, ctx)


REPEATING |= {"late": Late(), "late, arriving": LateArriving(), "late, each": LateEach()}


def events_of(process: KeyedProcess[Any, Any], rng: random.Random, *, distinct: bool = False) -> list[Placed]:
    """Return some events of two keys, in order of time."""
    found = []
    span = rng.choice((12, 40, SPAN))
    for key in ("k1", "k2"):
        n = rng.randint(0, 12)
        times = rng.sample(range(-20, SPAN), n) if distinct else [rng.randint(-20, span) for _ in range(n)]
        for at in times:
            right = bool(process.inputs) and rng.random() < 0.5
            event = Other(rng.randint(0, 3)) if right else Ev(rng.randint(0, 3), rng.choice("aab"))
            found.append((at, key, event))
    found.sort(key=lambda e: e[0])
    return [Placed(key, at, event, f"in:0:{place}") for place, (at, key, event) in enumerate(found)]


def delayed(events: Sequence[Placed], rng: random.Random, bound: int = BOUND) -> list[Placed]:
    """Return events in an order in which none comes more than ``bound`` behind another."""
    delays = {e.cause: rng.randint(0, bound) for e in events}
    return sorted(events, key=lambda e: e.at + delays[e.cause])


def cut(events: Sequence[Placed], rng: random.Random) -> list[list[Placed]]:
    """Return events in batches, some of them empty."""
    batches, left = [], list(events)
    while left:
        size = rng.choice((0, 1, 1, 2, 5, 30))
        batches.append(left[:size])
        left = left[size:]
    return batches


class Player:
    """Runs batches through a process, with the watermark at a bound behind the newest event."""

    def __init__(self, process: KeyedProcess[Any, Any], bound: int) -> None:
        self._process, self._bound = process, bound
        self.host = MemoryHost(process)
        self.emissions: list[Emission] = []
        self._newest: int | None = None

    def batch(self, events: Sequence[Placed]) -> None:
        rows: dict[str, list[Any]] = {}
        for key, at, event, cause in events:
            for text, (row,) in self.host.rows_of([(key, at, event)]).items():
                rows.setdefault(text, []).append(msgspec.structs.replace(row, cause=cause))
            self._newest = at if self._newest is None else max(self._newest, at)
        self.emissions += self.host.run_rows(rows)
        if self._newest is not None:
            self.emissions += self.host.advance_watermark(self._newest - self._bound - 1)

    def tick(self, at: int) -> None:
        self.emissions += self.host.advance_processing_time(at)

    def restart(self) -> None:
        kept = self.host.snapshot()
        self.host = MemoryHost(self._process)
        self.host.restore(kept)

    def step_to_the_end(self, rng: random.Random) -> None:
        """Advance the watermark step by step until nothing can be due."""
        at = SPAN
        while at < FAR:
            self.emissions += self.host.advance_watermark(at)
            at += rng.randint(1, 40) if at < 5 * SPAN else at

    def drain(self) -> None:
        self.emissions += self.host.drain()


def results(player: Player, *, with_identity: bool = True) -> Counter[Any]:
    """Return what came out, in any order."""
    return Counter(
        (e.output, e.key, e.event_time, e.payload, e.event_id if with_identity else None)
        for e in player.emissions
    )


def assert_all_differ(emissions: Sequence[Emission]) -> None:
    """Check that every record has an identity of its own."""
    assert None not in {e.event_id for e in emissions}
    seen: dict[Any, Emission] = {}
    for e in emissions:
        before = seen.setdefault(e.event_id, e)
        assert before is e, f"two records have one identity: {before} and {e}"
