"""What cannot be kept is put aside with what brought it, as if that had failed at once."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace import (
    BroadcastContext,
    Context,
    KeyedProcess,
    Timer,
    arrival,
    broadcast_state,
    list_state,
    map_state,
    reducing_state,
    side_output,
    value_state,
)
from millrace.batch import Batch
from millrace.host.memory import MemoryHost
from millrace.host.memory_chain import MemoryChain
from millrace.state import pages as pages_module
from millrace.testing import TestDriver

MOST = 2**64 - 1
LIMIT = 2_000


class Step(msgspec.Struct):
    """What an event does: ``poison`` names what it leaves that cannot be kept."""

    number: int
    timer: int | None = None
    poison: str = ""
    changed: int = 0


class Unkept(ValueError):
    """What the measure raises where the other leaves something that cannot be kept."""


def spoil(process: Any, ctx: Context, kind: str) -> None:
    """Leave something that cannot be kept; nothing else ever touches it."""
    if kind == "number":
        process.total.value += 2**70
    elif kind == "type":
        process.seen.put("x", "text")
    elif kind == "key":
        process.seen.put(7, 7)
    elif kind == "text":
        process.words.append("\ud800")
    elif kind == "object":
        process.anything.value = object()
    elif kind == "deep":
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        process.anything.value = deep
    elif kind == "large":
        process.words.append("x" * LIMIT)
    elif kind == "timer name":
        ctx.timers.after(10**6, "\ud800")


POISONS = ("number", "type", "key", "text", "object", "deep", "large", "timer name")


class Spoilt(KeyedProcess[Step, list[int]]):
    name = "Kept"
    order = arrival(in_order_per_key=True)
    total = value_state(int, default=0)
    short = value_state(int, default=0, ttl=50)
    seen = map_state(str, int, ttl=70)
    words = list_state(str)
    anything = value_state(Any)
    product = reducing_state(int, lambda a, b: a + b)
    side = side_output(str)

    def spoil(self, ctx: Context, kind: str) -> None:
        spoil(self, ctx, kind)

    def add(self, number: int) -> None:
        self.product.add(number << 61)

    def process(self, event: Step, ctx: Context) -> None:
        event.changed += 1  # what a callback does to its event must not show when it is called again
        self.total.value += event.number
        self.short.value += event.changed
        self.seen.put(str(event.number), ctx.event_time)
        self.words.append(str(event.number))
        if event.timer is not None:
            ctx.timers.after(event.timer, event.poison and "poison", on_key_time=self.keyed)
        ctx.emit([event.number, self.total.value, self.short.value, len(self.seen), len(self.words)])
        if event.poison and event.timer is None:
            self.spoil(ctx, event.poison)
        self.add(event.number)
        ctx.output(self.side, f"{self.product.value}")

    keyed = True

    def on_late(self, event: Step, ctx: Context) -> None:
        self.process(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit([-1, self.total.value, self.short.value, len(self.seen), len(self.words)])
        self.words.append("t")
        if timer.name == "poison":
            self.spoil(ctx, "number")
        if self.total.value % 3 == 0 and timer.name != "again":
            ctx.timers.after(5, "again")


class Failing(Spoilt):
    """The measure: raises where its base leaves what cannot be kept."""

    name = "Kept"

    def spoil(self, ctx: Context, kind: str) -> None:
        raise Unkept(kind)

    def add(self, number: int) -> None:
        if (self.product.value or 0) + (number << 61) > MOST:
            raise Unkept("reduce")
        super().add(number)


class SpoiltWaiting(Spoilt):
    order = "event_time"
    name = "Kept"


class FailingWaiting(Failing):
    order = "event_time"
    name = "Kept"


class SpoiltCommuting(Spoilt):
    order = arrival(commutes=True)
    name = "Kept"
    keyed = False


class FailingCommuting(Failing):
    order = arrival(commutes=True)
    name = "Kept"
    keyed = False


PAIRS = [(Spoilt, Failing), (SpoiltWaiting, FailingWaiting), (SpoiltCommuting, FailingCommuting)]

steps = st.builds(
    Step,
    st.integers(0, 4),
    st.one_of(st.none(), st.none(), st.integers(-30, 60)),
    st.one_of(st.just(""), st.just(""), st.sampled_from(POISONS)),
)
batches_of_events = st.lists(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 200), steps), max_size=7), max_size=5
)


def outcome(
    process: KeyedProcess[Any, Any], batches: list[Any], bound: int, *, restarts: bool, ahead: bool
) -> Any:
    """Return all that is emitted, in order, and all that is kept.

    Args:
        process: The process.
        batches: Batches of events.
        bound: The watermark's distance, ms.
        restarts: Whether every batch is followed by a restart.
        ahead: Whether a batch knows the watermark that it ends with, as on Spark.
    """
    host = MemoryHost(process, out_of_orderness_ms=bound)
    found = []
    for batch in [*batches, None]:
        events = [(key, at, msgspec.structs.replace(event)) for key, at, event in batch or ()]
        if batch is None:
            emissions = host.drain()
        elif ahead:
            rows = host.rows_of(events)
            reached = max(host.watermark, host.newest - bound - 1) if rows else host.watermark
            host.runner.controls.load(None)
            host.runner.run_batch(host.store, rows, host.watermark, ahead=reached)
            host.watermark = reached
            host.store.commit(reached)
            emissions = host.take()
        else:
            emissions = host.run_batch(events)
        for e in emissions:
            payload = msgspec.json.decode(e.payload)
            if e.output == "dead_letters":
                del payload["error"], payload["error_digest"]
            found.append((e.output, e.event_id, e.key, e.event_time, e.on_time, payload))
        kept = {key: (bytes(cell.body), cell.timer, cell.expiry) for key, cell in host.store.cells.items()}
        found.append(kept)
        if restarts:
            snapshot = host.snapshot()
            host = MemoryHost(process, out_of_orderness_ms=bound)
            host.restore(snapshot)
    return found


@pytest.mark.parametrize("pair", PAIRS, ids=["in order", "event time", "arrival"])
@settings(max_examples=20, deadline=None)
@given(batches_of_events, st.sampled_from([0, 40]), st.booleans(), st.booleans())
def test_what_cannot_be_kept_is_as_if_its_event_or_timer_had_failed_at_once(
    pair: Any, batches: list[Any], bound: int, restarts: bool, ahead: bool
) -> None:
    spoilt, failing = pair
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages_module, "MAX_ENTRY_BYTES", LIMIT)
        found = outcome(spoilt(), batches, bound, restarts=restarts, ahead=ahead)
        assert found == outcome(failing(), batches, bound, restarts=restarts, ahead=ahead)


class Summing(KeyedProcess[int, int]):
    order = arrival(commutes=True)
    name = "Sum"
    total = value_state(int, default=0)
    last = value_state(int, default=0, ttl=60)

    def process(self, event: int, ctx: Context) -> None:
        self.total.value += event
        self.last.value = event
        ctx.emit(event)


class SummingTogether(Summing):
    name = "Sum"

    def process_batch(self, batch: Batch[int]) -> None:
        starts = batch.starts.tolist()
        sums = [sum(batch.events[a:b]) for a, b in itertools.pairwise(starts)]
        batch.write(self.total, [t + s for t, s in zip(batch.read(self.total), sums, strict=True)])
        batch.write(self.last, [batch.events[end - 1] for end in starts[1:]])
        batch.emit(batch.events)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(0, 300), st.sampled_from([1, 2, 2**62, 2**63])),
            max_size=8,
        ),
        max_size=4,
    )
)
def test_a_column_that_cannot_be_kept_is_handled_one_by_one(batches: list[Any]) -> None:
    def found(process: KeyedProcess[Any, Any]) -> Any:
        host = MemoryHost(process, out_of_orderness_ms=50)
        emitted = []
        for batch in batches:
            for e in host.run_batch(batch):
                payload = msgspec.json.decode(e.payload)
                if e.output == "dead_letters":
                    del payload["error_digest"]
                emitted.append((e.key, e.output, e.event_id, e.event_time, repr(payload)))
        kept = {key: bytes(cell.body) for key, cell in host.store.cells.items()}
        return sorted(emitted, key=lambda e: e[0]), kept

    together, alone = found(SummingTogether()), found(Summing())
    assert together == alone
    for total in (msgspec.msgpack.decode(body)[3] for body in together[1].values()):
        assert total <= MOST


def test_the_dead_letter_of_a_poisonous_event_has_all_that_is_known_of_it() -> None:
    driver = TestDriver(Summing())
    driver.send_batch([("a", 1, 1), ("a", 2, 2**70), ("a", 3, 2), ("b", 2, 5)])
    assert driver.values() == [1, 2, 5]
    (letter,) = driver.values("dead_letters")
    assert (letter["reason"], letter["stage"], letter["key"]) == ("process_error", "process", "1:a")
    assert (letter["event_time_ms"], letter["topic"], letter["offset"]) == (2, "memory", 1)
    assert letter["error"].startswith("StateTypeError: Sum keeps state that cannot be kept: ")
    assert (driver.state("a")["total"], driver.state("b")["total"]) == (3, 5)


def test_a_poisonous_timer_is_put_aside_and_the_others_fire() -> None:
    class Timed(Summing):
        def process(self, event: int, ctx: Context) -> None:
            super().process(event, ctx)
            for delay in (5, 6, 7):
                ctx.timers.after(delay, f"t{delay}")

        def on_timer(self, timer: Timer, ctx: Context) -> None:
            self.total.value += 2**70 if timer.name == "t6" else 1
            ctx.emit(-timer.at)

    driver = TestDriver(Timed())
    driver.send("a", 1, at=0)
    driver.drain()
    assert driver.values() == [1, -5, -7]
    (letter,) = driver.values("dead_letters")
    assert (letter["stage"], letter["event_time_ms"]) == ("timer", 6)
    assert driver.state("a")["total"] == 3


class Tall(KeyedProcess[str, int]):
    """Raises at "!", and keeps the rest."""

    order = "event_time"
    kept = list_state(str, ttl=1_000)

    def process(self, event: str, ctx: Context) -> None:
        if event == "!":
            raise ValueError(event)
        self.kept.append(event)
        ctx.emit(len(self.kept))


@pytest.mark.parametrize("whole", [True, False])
def test_events_with_which_a_key_would_outgrow_the_limit_are_put_aside_also_while_they_wait(
    monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    monkeypatch.setattr(pages_module, "MAX_ENTRY_BYTES", LIMIT)
    driver = TestDriver(Tall(), out_of_orderness_ms=100)
    events = [("a", at, f"{at:0300}") for at in range(10)]
    for batch in [events] if whole else [[e] for e in events]:
        driver.send_batch(batch)
    waiting = driver.waiting("a")
    letters = driver.values("dead_letters")
    assert 4 <= len(waiting) == 10 - len(letters)
    assert {letter["error"].split(":")[0] for letter in letters} == {"EntryTooLarge"}
    driver.drain()
    assert driver.values() == list(range(1, len(waiting) + 1))


def test_an_event_that_fails_after_a_poisonous_one_does_not_stop_anything() -> None:
    """What is taken back after the second is a state that cannot be packed."""

    class Both(Summing):
        def process(self, event: int, ctx: Context) -> None:
            super().process(event, ctx)
            if event == 13:
                raise ValueError(event)

    driver = TestDriver(Both())
    driver.send_batch([("a", 1, 1), ("a", 2, 2**70), ("a", 3, 13), ("a", 4, 4)])
    assert driver.values() == [1, 4]
    assert [letter["offset"] for letter in driver.values("dead_letters")] == [1, 2]


class Rules(KeyedProcess[str, int]):
    order = arrival(commutes=True)
    control_type = int
    rules = broadcast_state(str, int)

    def process(self, event: str, ctx: Context) -> None:
        ctx.emit(sum(rule for _, rule in self.rules.items()))

    def process_broadcast(self, control: int, ctx: BroadcastContext) -> None:
        self.rules.put(str(control), control if control != 5 else "five")  # type: ignore[arg-type]


def test_a_control_event_that_leaves_what_cannot_be_kept_is_put_aside() -> None:
    driver = TestDriver(Rules())
    driver.broadcast(1, 2**70, 2, 5)
    driver.send("a", "x", at=1)
    assert driver.values() == [3]
    assert [letter["stage"] for letter in driver.values("dead_letters")] == ["broadcast"] * 2


@pytest.mark.parametrize("text", ["\ud800", "\ud83d alone"])
def test_an_error_that_is_no_text_can_be_put_aside(text: str) -> None:
    class Saying(Summing):
        def process(self, event: int, ctx: Context) -> None:
            raise ValueError(text)

    driver = TestDriver(Saying())
    driver.send("a", 1, at=1)
    (letter,) = driver.values("dead_letters")
    assert "\\ud8" in letter["error"]


# -- events that JSON cannot say ---------------------------------------------------------------------


class Measured(msgspec.Struct):
    x: float
    y: float | None = None
    much: int = 0


class Holding(KeyedProcess[Measured, str]):
    order = "event_time"
    last = value_state(float, default=0.0)

    def process(self, event: Measured, ctx: Context) -> None:
        if event.much == 13:
            raise ValueError("thirteen")
        ctx.emit(f"{event.x} {event.y} {event.much} after {self.last.value}")
        self.last.value = event.x


class HoldingInputs(Holding):
    inputs: ClassVar = {"a": Measured, "b": int}
    name = "Holding"


class Passing(Holding):
    order = arrival(in_order_per_key=True)
    name = "Holding"


@pytest.mark.parametrize("process", [Holding, HoldingInputs, Passing])
@pytest.mark.parametrize("restart", [True, False])
def test_an_event_with_a_number_that_json_has_not_waits_and_is_taken_back_like_any_other(
    process: Any, restart: bool
) -> None:
    driver = TestDriver(process(), out_of_orderness_ms=10)
    events = [Measured(math.nan, None), Measured(math.inf, -math.inf), Measured(1.0, math.nan, 2**70)]
    driver.send_batch(
        [("k", at, event) for at, event in enumerate(events)] + [("k", 3, Measured(1.0, much=13))]
    )
    if restart:
        driver.restart()
    driver.drain()
    assert driver.values() == [
        "nan None 0 after 0.0", "inf -inf 0 after nan", f"1.0 nan {2**70} after inf",
    ]  # fmt: skip
    assert [letter["stage"] for letter in driver.values("dead_letters")] == ["process"]


class Texts(KeyedProcess[str, str]):
    order = "event_time"

    def process(self, event: str, ctx: Context) -> None:
        ctx.emit(event)


def test_an_event_that_is_no_text_is_a_dead_letter() -> None:
    driver = TestDriver(Texts())
    driver.send_batch([("k", 1, "a"), ("k", 2, "\ud800"), ("k", 3, "b")])
    driver.drain()
    assert driver.values() == ["a", "b"]
    assert [letter["reason"] for letter in driver.values("dead_letters")] == ["malformed"]


def test_what_has_waited_and_cannot_be_read_any_more_is_a_dead_letter_with_its_position() -> None:
    """A new version of a process may ask more of its events than the one that let them wait."""

    class Bounded(KeyedProcess[Annotated[str, msgspec.Meta(max_length=1)], str]):
        order = "event_time"
        name = "Texts"

        def process(self, event: str, ctx: Context) -> None:
            ctx.emit(event)

    old = TestDriver(Texts(), out_of_orderness_ms=100)
    old.send_batch([("k", 1, "a"), ("k", 2, "long"), ("k", 3, "b")])
    new = TestDriver(Bounded(), out_of_orderness_ms=100)
    new.restore(old.snapshot())
    new.drain()
    assert new.values() == ["a", "b"]
    (letter,) = new.values("dead_letters")
    assert (letter["reason"], letter["stage"], letter["offset"], letter["key"]) == (
        "range",
        "decode",
        1,
        "1:k",
    )


class Ratio(msgspec.Struct):
    name: str
    x: float


class Dividing(KeyedProcess[Measured, Ratio]):
    order = arrival(commutes=True)

    def process(self, event: Measured, ctx: Context) -> None:
        ctx.emit(Ratio("r", event.x))


class Taking(KeyedProcess[Ratio, float]):
    order = arrival(commutes=True)

    def process(self, event: Ratio, ctx: Context) -> None:
        ctx.emit(event.x)


def test_a_number_that_json_has_not_does_not_reach_the_next_link() -> None:
    """As on Spark, where a link reads what the one before has written."""
    chain = MemoryChain(Dividing(), ("name", Taking()))
    found = chain.run_batch([("k", 1, Measured(math.nan)), ("k", 2, Measured(2.0))])
    assert [e.payload for e in found if e.output == "main"] == [b"2.0"]
    (letter,) = [msgspec.json.decode(e.payload) for e in found if e.output == "dead_letters"]
    assert (letter["reason"], letter["stage"], letter["process"]) == ("schema", "decode", "Taking")
