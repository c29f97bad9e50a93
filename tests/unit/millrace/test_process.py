"""What a process may declare, and what its state and timers do, event by event."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import (
    Context,
    KeyedProcess,
    Timer,
    arrival,
    broadcast_state,
    map_state,
    minutes,
    side_output,
    value_state,
)
from millrace.process import ProcessDefinitionError
from millrace.state.specs import StateDeclarationError
from millrace.testing import TestDriver

MINUTE = 60_000
COMMUTES = arrival(commutes=True)
IN_ORDER = arrival(in_order_per_key=True)


# -- declarations ----------------------------------------------------------------------------------


def test_a_process_without_an_order_is_refused() -> None:
    class NoOrder(KeyedProcess[str, str]):
        def process(self, event: str, ctx: Context) -> None: ...

    with pytest.raises(ProcessDefinitionError, match="NoOrder declares no order"):
        TestDriver(NoOrder())


def test_arrival_order_needs_a_reason() -> None:
    with pytest.raises(ProcessDefinitionError, match="commutes=True, corrects=True or in_order_per_key"):
        arrival()


def test_a_process_that_does_nothing_is_refused() -> None:
    class Nothing(KeyedProcess[str, str]):
        order = COMMUTES

    with pytest.raises(ProcessDefinitionError, match="does not override process"):
        TestDriver(Nothing())


def test_a_process_that_names_no_types_is_refused() -> None:
    class Untyped(KeyedProcess):  # type: ignore[type-arg]
        order = COMMUTES

        def process(self, event: Any, ctx: Context) -> None: ...

    with pytest.raises(ProcessDefinitionError, match="must name its types"):
        TestDriver(Untyped())


@pytest.mark.parametrize("name", ["main", "late", "dead_letters"])
def test_reserved_output_names_are_refused(name: str) -> None:
    with pytest.raises(ProcessDefinitionError, match=f"'{name}' is reserved"):

        class Taken(KeyedProcess[str, str]):
            out = side_output(str, name=name)


@pytest.mark.parametrize("default", [[], {}, set(), bytearray()])
def test_a_mutable_default_is_refused(default: Any) -> None:
    with pytest.raises(StateDeclarationError, match="use default_factory"):
        value_state(list, default=default)


def test_a_default_and_a_factory_together_are_refused() -> None:
    with pytest.raises(StateDeclarationError, match="not both"):
        value_state(int, default=1, default_factory=int)


@pytest.mark.parametrize("ttl", [0, -1, minutes(-1)])
def test_a_time_to_live_that_is_not_positive_is_refused(ttl: Any) -> None:
    with pytest.raises(StateDeclarationError, match="must be positive"):
        value_state(int, ttl=ttl)


def test_map_keys_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(StateDeclarationError, match="map_state keys"):
        map_state(float, int)
    with pytest.raises(StateDeclarationError, match="broadcast_state keys"):
        broadcast_state(tuple, int)


def test_a_state_type_that_cannot_be_kept_is_refused_when_the_process_is_bound() -> None:
    class Unkeepable(KeyedProcess[str, str]):
        order = COMMUTES
        state = value_state(type("Opaque", (), {"__slots__": ("f",), "__init__": lambda self, f: None}) | int)

        def process(self, event: str, ctx: Context) -> None: ...

    with pytest.raises(StateDeclarationError, match="cannot be kept"):
        TestDriver(Unkeepable())


def test_subclasses_inherit_states_outputs_and_types() -> None:
    class Base(KeyedProcess[str, int]):
        order = COMMUTES
        n = value_state(int, default=0)
        odd = side_output(int)

        def process(self, event: str, ctx: Context) -> None:
            self.n.value += 1
            ctx.emit(self.n.value)

    class Child(Base):
        m = value_state(int, default=10)

        def process(self, event: str, ctx: Context) -> None:
            super().process(event, ctx)
            self.m.value += 1
            ctx.output(self.odd, self.m.value)

    driver = TestDriver(Child())
    driver.send("a", "x", at=1)
    assert (driver.values(), driver.values("odd")) == ([1], [11])
    assert [s.name for s in Child.states] == ["n", "m"]
    assert [s.name for s in Base.states] == ["n"]
    assert (Child.name, Base.name) == ("Child", "Base")


Seen = TypeVar("Seen")


class Told(KeyedProcess[Seen, str]):
    """One type is left to those who go on from it."""

    order = COMMUTES

    def process(self, event: Seen, ctx: Context) -> None:
        ctx.emit(repr(event))


def test_a_process_may_leave_types_to_those_who_go_on_from_it() -> None:
    class Child(Told[int | bytes]): ...

    class Grandchild(Child): ...

    for process in (Child, Grandchild):
        assert (process.event_type, process.output_type) == (int | bytes, str)
    driver = TestDriver(Grandchild())
    driver.send("a", 7, at=1)
    assert driver.values() == ["7"]


def test_a_process_whose_types_are_still_to_be_named_is_refused() -> None:
    class Untold(Told[Seen]): ...

    for process in (Told, Untold):
        with pytest.raises(ProcessDefinitionError, match="must name its types"):
            TestDriver(process())


def test_an_output_that_is_not_declared_stops() -> None:
    foreign = side_output(str, name="elsewhere")

    class Emits(KeyedProcess[str, str]):
        order = COMMUTES

        def process(self, event: str, ctx: Context) -> None:
            ctx.output(foreign, event)

    with pytest.raises(ProcessDefinitionError, match="emits to 'elsewhere'"):
        TestDriver(Emits()).send("a", "x", at=1)


def test_two_hosts_of_one_process_object_share_nothing() -> None:
    process = Values()
    one, other = TestDriver(process), TestDriver(process)
    one.send("a", ("set", 5), at=1)
    other.send("a", ("get", 0), at=1)
    assert other.values() == [[None, 7, [], []]]


# -- values ----------------------------------------------------------------------------------------


class Values(KeyedProcess[tuple[str, int], list[Any]]):
    """Emits its four values after doing as told."""

    order = COMMUTES
    plain = value_state(int)
    seven = value_state(int, default=7)
    items = value_state(list[int], default_factory=list)
    seen = map_state(str, list[int])

    def process(self, event: tuple[str, int], ctx: Context) -> None:
        what, n = event
        if what == "set":
            self.plain.value = self.seven.value = n
        elif what == "append":
            self.items.value.append(n)
            if "k" not in self.seen:
                self.seen.put("k", [])
            kept = self.seen.get("k")
            assert kept is not None
            kept.append(n)
        elif what == "clear":
            self.plain.clear()
            self.seven.clear()
            self.items.clear()
            self.seen.clear()
        ctx.emit([self.plain.value, self.seven.value, self.items.value, sorted(self.seen.items())])


def test_a_value_never_written_reads_as_its_default() -> None:
    driver = TestDriver(Values())
    driver.send("a", ("get", 0), at=1)
    assert driver.values() == [[None, 7, [], []]]
    assert driver.is_empty()  # reading keeps nothing


def test_values_are_kept_between_batches_per_key() -> None:
    driver = TestDriver(Values())
    driver.send("a", ("set", 5), at=1)
    driver.send("b", ("get", 0), at=2)
    driver.send("a", ("get", 0), at=3)
    assert driver.values() == [[5, 5, [], []], [None, 7, [], []], [5, 5, [], []]]


def test_changes_in_place_are_kept() -> None:
    driver = TestDriver(Values())
    for at in (1, 2, 3):
        driver.send("a", ("append", at), at=at)
        driver.restart()
    assert driver.values()[-1] == [None, 7, [1, 2, 3], [["k", [1, 2, 3]]]]
    driver.send("b", ("append", 9), at=4)
    assert driver.values()[-1] == [None, 7, [9], [["k", [9]]]]  # the default is nobody's


def test_clear_brings_the_default_back_and_forgets_the_key() -> None:
    driver = TestDriver(Values())
    driver.send_batch([("a", 1, ("set", 5)), ("a", 2, ("append", 5)), ("a", 3, ("clear", 0))])
    assert driver.values()[-1] == [None, 7, [], []]
    assert driver.state("a") is None
    assert driver.is_empty()


def test_composite_keys_are_tuples_and_do_not_run_together() -> None:
    class Keys(KeyedProcess[str, list[Any]]):
        order = COMMUTES
        n = value_state(int, default=0)

        def process(self, event: str, ctx: Context) -> None:
            self.n.value += 1
            ctx.emit([ctx.key, self.n.value])

    driver = TestDriver(Keys())
    for at, key in enumerate([("a", "bc"), ("ab", "c"), ("a", "bc"), "abc", ("é", "")]):
        driver.send(key, "x", at=at)
    assert driver.values() == [
        [["a", "bc"], 1],
        [["ab", "c"], 1],
        [["a", "bc"], 2],
        ["abc", 1],
        [["é", ""], 1],
    ]


# -- maps ------------------------------------------------------------------------------------------


class Maps(KeyedProcess[list[Any], Any]):
    """Runs a list of map operations and emits what the last one returns."""

    order = COMMUTES
    m = map_state(str, int)

    def process(self, event: list[Any], ctx: Context) -> None:
        for what, *args in event:
            if what == "put":
                self.m.put(*args)
            elif what == "remove":
                self.m.remove(*args)
        ctx.emit([list(self.m.items()), len(self.m), "a" in self.m, self.m.get("a"), self.m.get("a", -1)])


def test_map_operations() -> None:
    driver = TestDriver(Maps())
    driver.send("k", [], at=1)
    driver.send("k", [("put", "b", 2), ("put", "a", 0), ("put", "b", 3)], at=2)
    driver.send("k", [("remove", "a"), ("remove", "zz")], at=3)
    driver.send("k", [("remove", "b")], at=4)
    assert driver.values() == [
        [[], 0, False, None, -1],
        [[["b", 3], ["a", 0]], 2, True, 0, 0],
        [[["b", 3]], 1, False, None, -1],
        [[], 0, False, None, -1],
    ]
    assert driver.is_empty()


@pytest.mark.parametrize(("kind", "keys"), [(int, [3, -1, 2**40]), (bool, [True, False]), (str, ["", "é"])])
def test_map_keys_keep_their_type(kind: type, keys: list[Any]) -> None:
    class Typed(KeyedProcess[bool, list[Any]]):
        order = COMMUTES
        m = map_state(kind, int, ttl=100)

        def process(self, event: bool, ctx: Context) -> None:
            if event:
                for n, key in enumerate(keys):
                    self.m.put(key, n)
            ctx.emit([[k, v, type(k).__name__] for k, v in self.m.items()])

    driver = TestDriver(Typed())
    driver.send("a", True, at=1)
    driver.restart()
    driver.send("a", False, at=2)
    assert driver.values()[1] == [[k, n, kind.__name__] for n, k in enumerate(keys)]


def test_a_map_may_be_changed_while_it_is_iterated() -> None:
    class Drops(KeyedProcess[int, int]):
        order = COMMUTES
        m = map_state(int, int)

        def process(self, event: int, ctx: Context) -> None:
            self.m.put(event, event)
            for key, _ in self.m.items():
                if key % 2:
                    self.m.remove(key)
            ctx.emit(len(self.m))

    driver = TestDriver(Drops())
    driver.send_batch([("a", n, n) for n in range(5)])
    assert driver.values()[-1] == 3


# -- time to live ----------------------------------------------------------------------------------


class Expiring(KeyedProcess[str, list[Any]]):
    """Writes on ``w``; emits what is visible."""

    order = COMMUTES
    value = value_state(int, default=-1, ttl=10)
    seen = map_state(str, int, ttl=10)

    def process(self, event: str, ctx: Context) -> None:
        if event.startswith("w"):
            self.value.value = ctx.event_time
            self.seen.put(event, ctx.event_time)
        ctx.emit(
            [self.value.value, list(self.seen.items()), len(self.seen), "w" in self.seen, self.seen.get("w")]
        )


def test_a_value_is_visible_until_its_time_to_live_and_not_at_it() -> None:
    """``w`` at 100, read at 109 (there) and at 110 (gone), in one batch and in several."""
    there = [100, [["w", 100]], 1, True, 100]
    gone = [-1, [], 0, False, None]
    one = TestDriver(Expiring())
    one.send_batch([("a", 100, "w"), ("a", 109, "r"), ("a", 110, "r")])
    several = TestDriver(Expiring())
    for at, event in ((100, "w"), (109, "r"), (110, "r")):
        several.send("a", event, at=at)
        several.restart()
    assert one.values() == several.values() == [there, there, gone]


def test_a_new_write_starts_the_time_to_live_anew_for_that_map_key_only() -> None:
    driver = TestDriver(Expiring())
    driver.send_batch([("a", 100, "w"), ("a", 105, "w2"), ("a", 112, "r"), ("a", 114, "w"), ("a", 120, "r")])
    assert [v[:2] for v in driver.values()[2:]] == [
        [105, [["w2", 105]]],
        [114, [["w2", 105], ["w", 114]]],
        [114, [["w", 114]]],
    ]


def test_visibility_is_judged_at_the_events_time_and_not_at_the_watermark() -> None:
    """The watermark of a far newer key does not hide a value from an event of its time."""
    driver = TestDriver(Expiring(), out_of_orderness_ms=MINUTE)
    driver.send("a", "w", at=100_000)
    driver.send("b", "w", at=100_000 + MINUTE)
    driver.send("a", "r", at=100_005)
    assert driver.values()[-1][0] == 100_000


def test_the_sweep_forgets_keys_that_are_never_touched_again() -> None:
    driver = TestDriver(Expiring())
    driver.send_batch([(f"k{i}", 100, "w") for i in range(20)])
    driver.advance_watermark(110)
    assert driver.state("k3") is not None  # kept, though no longer visible, until the sweep
    driver.advance_watermark(110 + MINUTE)
    assert driver.is_empty()


def test_the_sweep_leaves_what_lives() -> None:
    class Both(KeyedProcess[str, int]):
        order = COMMUTES
        short = value_state(int, ttl=10)
        long = map_state(str, int, ttl=100 * MINUTE)

        def process(self, event: str, ctx: Context) -> None:
            self.short.value = 1
            self.long.put(event, 1)

    driver = TestDriver(Both())
    driver.send("a", "x", at=0)
    driver.advance_watermark(50 * MINUTE)
    assert driver.state("a") == {"short": None, "long": {"x": (100 * MINUTE, 1)}}
    driver.advance_watermark(100 * MINUTE - 1)
    assert not driver.is_empty()
    driver.advance_watermark(107 * MINUTE)
    assert driver.is_empty()


# -- timers ----------------------------------------------------------------------------------------


class Timed(KeyedProcess[list[Any], list[Any]]):
    """Sets and deletes timers as told; emits every firing."""

    order = IN_ORDER

    def process(self, event: list[Any], ctx: Context) -> None:
        for what, *args in event:
            if what == "at":
                ctx.timers.at(args[0], args[1])
            elif what == "key":
                ctx.timers.at(args[0], args[1], on_key_time=True)
            elif what == "after":
                ctx.timers.after(args[0], args[1])
            elif what == "delete":
                ctx.timers.delete(args[0])
            elif what == "pending":
                ctx.emit(["pending", args[0], ctx.timers.pending(args[0])])
            else:
                ctx.emit(["event", ctx.event_time])

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        # One that was set in the past is at the time of the event that set it.
        assert ctx.event_time == (110 if timer.name in ("past", "not yet") else timer.at)
        ctx.emit([timer.name, timer.at])


@pytest.mark.parametrize("at", [1 << 63, 1 << 70, -(1 << 63) - 1])
def test_a_timer_that_could_not_be_kept_is_its_events_fault_and_does_not_stop_the_query(at: int) -> None:
    driver = TestDriver(Timed())
    driver.send("a", [("at", at, "t")], at=50)
    assert [d["reason"] for d in driver.values("dead_letters")] == ["process_error"]
    assert driver.is_empty()


def test_a_timer_fires_when_the_watermark_reaches_it() -> None:
    driver = TestDriver(Timed())
    driver.send("a", [("at", 100, "t")], at=50)
    driver.advance_watermark(99)
    assert driver.values() == []
    assert driver.timers("a") == {"t": 100}
    driver.advance_watermark(100)
    assert driver.values() == [["t", 100]]
    assert driver.is_empty()
    driver.advance_watermark(200)
    assert driver.values() == [["t", 100]]


def test_a_timer_set_again_replaces_the_one_of_its_name() -> None:
    driver = TestDriver(Timed())
    driver.send("a", [("at", 100, "t"), ("at", 100, "u"), ("at", 80, "t"), ("pending", "t")], at=50)
    driver.send("a", [("at", 90, "t"), ("pending", "t"), ("pending", "nope")], at=60)
    driver.advance_watermark(100)
    assert driver.values() == [
        ["pending", "t", 80],
        ["pending", "t", 90],
        ["pending", "nope", None],
        ["t", 90],
        ["u", 100],
    ]


def test_a_deleted_timer_does_not_fire() -> None:
    driver = TestDriver(Timed())
    driver.send("a", [("at", 100, "t"), ("at", 100, "u")], at=50)
    driver.send("a", [("delete", "t"), ("delete", "nope")], at=60)
    driver.advance_watermark(100)
    assert driver.values() == [["u", 100]]
    assert driver.is_empty()


def test_timers_fire_in_order_of_time_then_name() -> None:
    driver = TestDriver(Timed())
    driver.send("a", [("at", 90, "z"), ("at", 100, "c"), ("at", 100, "a"), ("after", 50, "b")], at=50)
    driver.advance_watermark(1_000)
    assert driver.values() == [["z", 90], ["a", 100], ["b", 100], ["c", 100]]


def test_a_timer_in_the_past_fires_right_after_the_event_that_set_it() -> None:
    driver = TestDriver(Timed())
    driver.advance_watermark(100)
    driver.send_batch([("a", 110, [("at", 100, "past"), ("at", 101, "not yet")]), ("a", 111, [("event",)])])
    assert driver.values() == [["past", 100], ["event", 111], ["not yet", 101]]


def test_timers_that_the_watermark_passed_fire_before_the_next_events() -> None:
    driver = TestDriver(Timed())
    driver.send("a", [("at", 20, "t")], at=10)
    driver.send_batch([("b", 1_000, [("event",)])])
    driver.send_batch([("a", 1_001, [("event",)])])
    of_a = [msgspec.json.decode(e.payload) for e in driver.emissions if e.key == "1:a"]
    assert of_a == [["t", 20], ["event", 1_001]]


def test_a_later_event_fires_a_key_time_timer_strictly_before_it() -> None:
    """``a`` at 50 sets 100; an event at 100 comes before the timer, one at 101 after it."""
    driver = TestDriver(Timed(), out_of_orderness_ms=10_000)
    driver.send_batch([("a", 50, [("key", 100, "t")]), ("a", 100, [("event",)]), ("a", 101, [("event",)])])
    assert driver.values() == [["event", 100], ["t", 100], ["event", 101]]
    driver.advance_watermark(100_000)
    assert len(driver.values()) == 3  # once


def test_a_key_time_timer_that_an_event_passes_takes_none_of_the_events_own_instant_along() -> None:
    driver = TestDriver(Timed(), out_of_orderness_ms=10_000)
    driver.send_batch([("a", 50, [("key", 60, "k"), ("key", 100, "l")]), ("a", 100, [("event",)])])
    assert driver.values() == [["k", 60], ["event", 100]]
    driver.send("a", [("event",)], at=101)
    assert driver.values()[2:] == [["l", 100], ["event", 101]]


def test_only_key_time_timers_are_fired_by_events() -> None:
    driver = TestDriver(Timed(), out_of_orderness_ms=10_000)
    driver.send_batch([("a", 50, [("key", 60, "k"), ("at", 55, "w")]), ("b", 70, [("event",)])])
    assert driver.values() == [["event", 70]]  # another key's event is no reason
    driver.send("a", [("event",)], at=61)
    assert driver.values()[1:] == [["k", 60], ["event", 61]]
    assert driver.timers("a") == {"w": 55}


def test_key_time_timers_need_input_in_order() -> None:
    class Disordered(Timed):
        order = COMMUTES

    with pytest.raises(ProcessDefinitionError, match="in_order_per_key=True"):
        TestDriver(Disordered()).send("a", [("key", 10, "t")], at=1)


class Chain(KeyedProcess[int, list[Any]]):
    """Every firing sets the same timer again, a step later, until none are left."""

    order = IN_ORDER
    left = value_state(int, default=0)
    step = 10

    def process(self, event: int, ctx: Context) -> None:
        self.left.value = event
        ctx.timers.after(self.step, "t")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self.left.value -= 1
        ctx.emit([timer.at, self.left.value])
        if self.left.value:
            ctx.timers.at(timer.at + self.step, "t")


def test_a_timer_set_again_while_it_fires_fires_in_the_same_advance() -> None:
    driver = TestDriver(Chain())
    driver.send("a", 4, at=100)
    driver.advance_watermark(130)
    assert driver.values() == [[110, 3], [120, 2], [130, 1]]
    driver.advance_watermark(140)
    assert driver.values()[3:] == [[140, 0]]
    assert driver.is_empty()


def test_a_timer_may_be_set_again_for_the_instant_at_which_it_fires() -> None:
    class Still(Chain):
        step = 0

    driver = TestDriver(Still())
    driver.send("a", 3, at=100)
    driver.advance_watermark(100)
    assert driver.values() == [[100, 2], [100, 1], [100, 0]]
    assert len({e.event_id for e in driver.emissions}) == 3
    assert driver.is_empty()


def test_a_process_that_sets_timers_must_handle_them() -> None:
    class Forgets(KeyedProcess[str, str]):
        order = COMMUTES

        def process(self, event: str, ctx: Context) -> None:
            ctx.timers.after(10)

    driver = TestDriver(Forgets())
    driver.send("a", "x", at=1)
    with pytest.raises(ProcessDefinitionError, match="does not override on_timer"):
        driver.advance_watermark(100)


# -- in order of event time ------------------------------------------------------------------------


class TimedInOrder(Timed):
    order = "event_time"


def test_rows_that_wait_are_handled_in_order_of_time_when_the_watermark_comes_to_them() -> None:
    driver = TestDriver(TimedInOrder(), out_of_orderness_ms=1_000)
    driver.send_batch([("a", 30, [("event",)]), ("a", 10, [("event",)])])
    driver.send_batch([("a", 20, [("event",)]), ("a", 40, [("event",)])])
    assert driver.values() == []
    driver.advance_watermark(30)
    assert driver.values() == [["event", 10], ["event", 20], ["event", 30]]
    assert driver.waiting("a") == [40]
    driver.advance_watermark(40)
    assert driver.values()[3:] == [["event", 40]]


def test_a_row_at_the_watermark_is_late_and_one_after_it_waits() -> None:
    driver = TestDriver(TimedInOrder(), out_of_orderness_ms=1_000)
    driver.advance_watermark(100)
    driver.send_batch([("a", 100, [("event",)]), ("a", 101, [("event",)])])
    assert [late["lateness_ms"] for late in driver.values("late")] == [0]
    assert driver.waiting("a") == [101]
    driver.advance_watermark(101)
    assert driver.values() == [["event", 101]]


def test_a_timer_of_an_instant_goes_after_its_events_also_where_an_earlier_one_goes_before() -> None:
    driver = TestDriver(TimedInOrder(), out_of_orderness_ms=1_000)
    driver.send_batch([("a", 1, [("at", 5, "early"), ("at", 10, "then")]), ("a", 10, [("event",)])])
    driver.advance_watermark(10)
    assert driver.values() == [["early", 5], ["event", 10], ["then", 10]]


# -- late events -----------------------------------------------------------------------------------


class Echo(KeyedProcess[str, str]):
    order = COMMUTES
    n = value_state(int, default=0)

    def process(self, event: str, ctx: Context) -> None:
        self.n.value += 1
        ctx.emit(f"{event}{self.n.value}")


def test_an_event_at_the_watermark_is_late_and_one_after_it_is_not() -> None:
    driver = TestDriver(Echo())
    driver.advance_watermark(100)
    driver.send_batch([("a", 100, "x"), ("a", 101, "y"), ("a", 40, "z")])
    assert driver.values() == ["y1"]
    assert driver.values("late") == [
        {"event": "z", "lateness_ms": 60, "watermark_ms": 100},
        {"event": "x", "lateness_ms": 0, "watermark_ms": 100},
    ]
    assert [(e.output, e.on_time) for e in driver.emissions] == [
        ("late", False),
        ("late", False),
        ("main", True),
    ]


def test_the_watermark_stays_behind_the_newest_event_by_the_bound_and_a_millisecond() -> None:
    driver = TestDriver(Echo(), out_of_orderness_ms=10)
    driver.send("a", "x", at=1_000)
    assert driver.host.watermark == 989
    driver.send_batch([("a", 990, "y"), ("a", 989, "z")])
    assert driver.values() == ["x1", "y2"]
    assert [late["event"] for late in driver.values("late")] == ["z"]
    driver.send("a", "old", at=5)
    assert driver.host.watermark == 989  # never back


def test_the_watermark_never_goes_back() -> None:
    driver = TestDriver(Echo())
    driver.advance_watermark(100)
    driver.advance_watermark(50)
    assert driver.host.watermark == 100
    driver.send("a", "x", at=80)
    assert [late["lateness_ms"] for late in driver.values("late")] == [20]


def test_events_of_one_batch_are_not_late_for_each_other() -> None:
    driver = TestDriver(Echo())
    driver.send_batch([("a", 1_000, "x"), ("a", 1, "y"), ("b", 500, "z")])
    assert sorted(driver.values()) == ["x2", "y1", "z1"]


def test_a_process_may_handle_late_events_itself() -> None:
    class Patient(Echo):
        def on_late(self, event: str, ctx: Context) -> None:
            if ctx.watermark - ctx.event_time > 50:
                self.emit_late(event, ctx)
            else:
                self.process(event, ctx)

    driver = TestDriver(Patient())
    driver.advance_watermark(100)
    driver.send_batch([("a", 60, "x"), ("a", 101, "y"), ("a", 40, "z")])
    assert driver.values() == ["x1", "y2"]
    assert [late["event"] for late in driver.values("late")] == ["z"]
    assert [e.on_time for e in driver.emissions if e.output == "main"] == [False, True]


# -- records ---------------------------------------------------------------------------------------


def test_a_record_changed_after_it_was_emitted_stays_as_it_was() -> None:
    class Total(msgspec.Struct):
        n: int

    class Reuses(KeyedProcess[int, Total]):
        order = COMMUTES

        def process(self, event: int, ctx: Context) -> None:
            record = Total(event)
            ctx.emit(record)
            record.n = -1

    driver = TestDriver(Reuses())
    driver.send("a", 5, at=1)
    assert driver.values() == [Total(5)]


class Before(KeyedProcess[int, str]):
    order = arrival(commutes=True)
    processing_time = True

    def process(self, event: int, ctx: Context) -> None:
        ctx.processing_timers.after(event, "t")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(timer.name)


@pytest.mark.parametrize("delay", [-1, 0, 5])
def test_a_timer_set_before_the_first_tick_fires_at_it_whatever_its_delay(delay: int) -> None:
    driver = TestDriver(Before())
    driver.send("a", delay, at=50)
    driver.restart()
    driver.advance_processing_time(1_000)
    assert driver.values() == ["t"]
    assert driver.is_empty()


class Forward(KeyedProcess[list[int], int]):
    order = IN_ORDER
    processing_time = True

    def process(self, event: list[int], ctx: Context) -> None:
        for due in event:
            ctx.timers.bring_forward(due, "first")
            ctx.processing_timers.bring_forward(due, "first")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(timer.at)


@given(dues=st.lists(st.lists(st.integers(100, 200), max_size=4), max_size=5))
def test_a_timer_that_is_brought_forward_stands_at_the_earliest(dues: list[list[int]]) -> None:
    driver = TestDriver(Forward(), out_of_orderness_ms=1_000)
    for due in dues:
        driver.send("a", due, at=1)
    every = [due for some in dues for due in some]
    expected = {"first": min(every)} if every else {}
    assert driver.timers("a") == driver.timers("a", "processing_time") == expected
    driver.advance_watermark(200)
    assert driver.values() == sorted(expected.values())


def test_bringing_a_timer_forward_is_refused_as_setting_it_is() -> None:
    class OnKeyTime(Forward):
        order = COMMUTES

        def process(self, event: list[int], ctx: Context) -> None:
            ctx.timers.bring_forward(5, on_key_time=True)

    driver = TestDriver(OnKeyTime())
    with pytest.raises(ProcessDefinitionError, match="on_key_time"):
        driver.send("a", [], at=1)
