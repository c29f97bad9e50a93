"""Time to live: on either clock, per state and per write, and the sweep that needs no reads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace import Context, KeyedProcess, arrival, minutes
from millrace.state import (
    aggregating_state,
    list_state,
    map_state,
    reducing_state,
    value_state,
    versioned_state,
)
from millrace.state.cursor import StateAccessError
from millrace.state.layout import TimerRecord
from millrace.state.specs import StateDeclarationError
from millrace.state.sweep import SweepGrid, grid_for
from millrace.testing import TestDriver
from millrace.time import NEVER, NO_WATERMARK
from tests.cases import case_count
from tests.unit.millrace.state.cases import HOUR, MINUTE, SECOND, Bed

#: Kind → (declaration with these options, write 1, whether it is visible).
KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[Any], bool]]] = {
    "value": (lambda **o: value_state(int, **o), lambda s, **w: s.set(1, **w), lambda s: s.value == 1),
    "map": (
        lambda **o: map_state(str, int, **o),
        lambda s, **w: s.put("a", 1, **w),
        lambda s: s.get("a") == 1,
    ),
    "list": (lambda **o: list_state(int, **o), lambda s, **w: s.append(1, **w), lambda s: list(s) == [1]),
    "reducing": (
        lambda **o: reducing_state(int, max, **o),
        lambda s, **w: s.add(1, **w),
        lambda s: s.value == 1,
    ),
    "aggregating": (
        lambda **o: aggregating_state(int, create=int, add=lambda a, b: b, result=int, **o),
        lambda s, **w: s.add(1, **w),
        lambda s: s.value == 1,
    ),
    "versioned": (
        lambda **o: versioned_state(int, history=HOUR, **o),
        lambda s, **w: s.put(1, **w),
        lambda s: s.value == 1,
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


class State:
    """One state of one key, on the clock of its time to live."""

    def __init__(self, kind: str, **options: Any) -> None:
        declare, self._write, self._visible = KINDS[kind]
        self.on_ticks = options.get("ttl_time") == "processing_time"
        self.bed = Bed(x=declare(**options))

    def write(self, now: int, **options: Any) -> None:
        with self._at(now) as s:
            self._write(s.x, **options)

    def visible(self, now: int) -> bool:
        with self._at(now) as s:
            return self._visible(s.x)

    def _at(self, now: int) -> Any:
        if self.on_ticks:
            self.bed.processing_time = now
        return self.bed.on(now=0 if self.on_ticks else now)

    def pass_time(self, to: int) -> None:
        """Restart, and let the clock go on with nothing happening to the key."""
        if self.on_ticks:
            self.bed.tick(to)
        else:
            self.bed.commit(to)

    @property
    def sweep(self) -> int:
        grids = self.bed.layout
        return (grids.processing_sweeps if self.on_ticks else grids.sweeps).step_ms


@pytest.mark.parametrize("ttl_time", ["event_time", "processing_time"])
@every_kind
def test_what_is_written_is_visible_until_its_life_ends_and_not_at_its_end(kind: str, ttl_time: str) -> None:
    for restart in (False, True):
        state = State(kind, ttl=10 * SECOND, ttl_time=ttl_time)
        state.write(5_000)
        if restart:
            state.bed.commit()
        assert state.visible(14_999)
        assert not state.visible(15_000)


@pytest.mark.parametrize("ttl_time", ["event_time", "processing_time"])
@every_kind
def test_time_alone_empties_the_store_within_life_and_sweep(kind: str, ttl_time: str) -> None:
    """The key is never touched again; the space is bounded by the life and one step of the sweep."""
    state = State(kind, ttl=HOUR, ttl_time=ttl_time)
    state.write(0)
    state.pass_time(HOUR - 1)
    assert not state.bed.backend.is_empty()
    state.pass_time(HOUR + state.sweep)
    assert state.bed.backend.is_empty()


@every_kind
def test_a_write_may_live_longer_or_shorter_than_declared(kind: str) -> None:
    for ttl in (2 * SECOND, timedelta(hours=2)):
        state = State(kind, ttl=MINUTE)
        state.write(0, ttl=ttl)
        life = ttl if isinstance(ttl, int) else 2 * HOUR
        assert state.visible(life - 1)
        assert not state.visible(life)
        state.pass_time(life + state.sweep)
        assert state.bed.backend.is_empty()


@every_kind
def test_declared_per_write_it_lives_for_ever_unless_the_write_says_otherwise(kind: str) -> None:
    state = State(kind, ttl="per_write")
    state.write(0)
    state.pass_time(1_000 * HOUR)
    assert state.visible(1_000 * HOUR)
    state = State(kind, ttl="per_write")
    state.write(0, ttl=5)
    assert state.visible(4)
    assert not state.visible(5)
    state.pass_time(5 + state.sweep)
    assert state.bed.backend.is_empty()


@every_kind
def test_a_ttl_for_one_write_is_refused_where_no_expiry_is_kept(kind: str) -> None:
    state = State(kind)
    with pytest.raises(StateAccessError, match=r"state 'x' keeps no expiry: declare it with a ttl"):
        state.write(0, ttl=5)


@every_kind
def test_a_ttl_of_a_write_is_positive(kind: str) -> None:
    with pytest.raises(ValueError, match="state 'x': a time to live must be positive"):
        State(kind, ttl=5).write(0, ttl=0)


@every_kind
def test_a_read_renews_the_life_only_where_that_is_declared(kind: str) -> None:
    state = State(kind, ttl=10)
    state.write(0)
    assert state.visible(9)
    assert not state.visible(10)
    state = State(kind, ttl=10, refresh="read_write")
    state.write(0)
    for now in range(9, 100, 9):
        assert state.visible(now)
        state.bed.commit()
    assert not state.visible(99 + 10)


@every_kind
def test_a_read_never_shortens_a_life(kind: str) -> None:
    state = State(kind, ttl=10, refresh="read_write")
    state.write(0, ttl=100)
    assert state.visible(5)
    assert state.visible(99)


@every_kind
def test_what_is_written_before_the_first_tick_begins_to_live_with_it(kind: str) -> None:
    r"""Before the first tick nobody knows the processing time.

    write   (unknown)
    ticks               1,000,000        +HOUR-1     +HOUR
    value   |-- visible --|-- visible -----|           | gone
    """
    state = State(kind, ttl=HOUR, ttl_time="processing_time")
    state.write(NO_WATERMARK)
    state.bed.commit(10 * HOUR)  # event time is another clock
    assert state.visible(NO_WATERMARK)
    state.bed.commit(20 * HOUR)
    state.pass_time(1_000_000)
    assert state.visible(1_000_000 + HOUR - 1)
    state.pass_time(1_000_000 + HOUR - 1)
    assert not state.visible(1_000_000 + HOUR)
    state.pass_time(1_000_000 + HOUR + state.sweep)
    assert state.bed.backend.is_empty()


def test_both_clocks_in_one_entry_go_their_own_ways() -> None:
    bed = Bed(a=value_state(int, ttl=HOUR), b=value_state(int, ttl=HOUR, ttl_time="processing_time"))
    bed.processing_time = 5 * HOUR
    with bed.on(now=0) as s:
        s.a.value = s.b.value = 1
    bed.commit(0)
    bed.commit(3 * HOUR)
    (entry,) = bed.kept().values()
    assert (entry.a, entry.b) == (None, (6 * HOUR, 1))
    bed.tick(8 * HOUR)
    assert bed.backend.is_empty()


def test_each_element_of_a_list_and_a_map_expires_by_itself() -> None:
    bed = Bed(items=list_state(int, ttl=100), seen=map_state(str, int, ttl=100))
    for now in (0, 40, 80):
        with bed.on(now=now) as s:
            s.items.append(now)
            s.seen.put(str(now), now)
        bed.commit()
    with bed.on(now=139) as s:
        assert list(s.items) == [40, 80]
        assert list(s.seen.items()) == [("40", 40), ("80", 80)]
        assert (len(s.items), len(s.seen), "0" in s.seen) == (2, 2, False)
        assert (list(s.seen.keys()), list(s.seen.values())) == (["40", "80"], [40, 80])


# -- writes out of order -----------------------------------------------------------------------------

SINGLE = sorted(set(KINDS) - {"list"})


class Balance(KeyedProcess[float, float]):
    order = arrival(commutes=True)
    total = value_state(float, default=0.0, ttl=100)

    def process(self, event: float, ctx: Context) -> None:
        self.total.value += event
        ctx.emit(self.total.value)


@pytest.mark.parametrize("times", [(40, 100, 150), (100, 40, 150)])
def test_a_write_that_comes_out_of_order_does_not_end_what_a_later_one_began(times: Any) -> None:
    """A life is drawn from its write to its end.

    written at 40          |-----------------|140
    written at 100                 |------------------|200
    read at 150                             .
    """
    driver = TestDriver(Balance(), out_of_orderness_ms=1_000)
    for at in times:
        driver.send("k", {40: 1.0, 100: 2.0, 150: 4.0}[at], at=at)
    assert driver.values()[-1] == 7.0


writes = st.lists(
    st.tuples(st.integers(0, 50), st.one_of(st.none(), st.integers(1, 60))), min_size=1, max_size=6
)


@pytest.mark.parametrize("kind", SINGLE)
@pytest.mark.parametrize("ttl", [20, "per_write"])
@settings(max_examples=25, deadline=None)
@given(writes, st.randoms(use_true_random=False))
def test_in_any_order_of_writes_what_is_kept_lives_until_the_last_of_their_ends(
    kind: str, ttl: Any, times: list[Any], rng: Any
) -> None:
    state = State(kind, ttl=ttl)
    rng.shuffle(times)
    for now, own in times:
        state.write(now, **({} if own is None else {"ttl": own}))
        if rng.random() < 0.3:
            state.bed.commit()  # packed, and opened anew
    if ttl == "per_write" and any(own is None for _, own in times):
        assert state.visible(NEVER - 1)
        return
    end = max(now + (own or ttl) for now, own in times)
    assert state.visible(end - 1)
    assert not state.visible(end)


@pytest.mark.parametrize("kind", SINGLE)
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 60), max_size=3), st.lists(st.integers(1, 60), max_size=3), st.booleans())
def test_on_ticks_too_and_for_what_was_written_before_the_first(
    kind: str, before: list[int], after: list[int], sweeps: bool
) -> None:
    """What is written before the first tick, at 1,000, lives from then on."""
    state = State(kind, ttl=20, ttl_time="processing_time")
    for ttl in before:
        state.write(NO_WATERMARK, ttl=ttl)
    if sweeps:
        state.pass_time(1_000)
    for now, ttl in enumerate(after, 1_000):
        state.write(now, ttl=ttl)
    ends = [1_000 + ttl for ttl in before] + [now + ttl for now, ttl in enumerate(after, 1_000)]
    if not after and not sweeps:
        state.pass_time(1_000)
    if ends:
        assert state.visible(max(ends) - 1)
        assert not state.visible(max(ends))


@pytest.mark.parametrize("kind", SINGLE)
def test_what_was_cleared_begins_a_life_of_its_own(kind: str) -> None:
    state = State(kind, ttl=100)
    state.write(0, ttl=1_000)
    with state._at(10) as s:
        s.x.remove("a") if kind == "map" else s.x.clear()
    state.write(20, ttl=5)
    assert state.visible(24)
    assert not state.visible(25)


def test_a_list_that_is_replaced_begins_a_life_of_its_own() -> None:
    bed = Bed(x=list_state(int, ttl=100))
    with bed.on(now=0) as s:
        s.x.append(1, ttl=1_000)
        s.x.replace([2], ttl=5)
    with bed.on(now=5) as s:
        assert list(s.x) == []


@pytest.mark.parametrize("ttl", [100, "per_write"])
@pytest.mark.parametrize("commits", [False, True])
def test_a_default_that_was_only_read_lends_its_life_to_nothing(ttl: Any, commits: bool) -> None:
    bed = Bed(x=value_state(list[int], default_factory=list, ttl=ttl))
    with bed.on(now=50) as s:
        _ = s.x.value
    if commits:
        bed.commit()
    with bed.on(now=60) as s:
        items = s.x.value
        items.append(1)
        s.x.set(items, ttl=5)
        assert s.x.value == [1]
    with bed.on(now=65) as s:
        assert s.x.value == []


@pytest.mark.parametrize("ttl_time", ["event_time", "processing_time"])
@pytest.mark.parametrize("ttl", [1, 10**9, 2**62, 2**63 - 1, 2**70])
@every_kind
def test_a_life_beyond_all_times_is_kept(kind: str, ttl: int, ttl_time: str) -> None:
    latest = NEVER - 1 if ttl_time == "event_time" else 2**61
    for now in (NO_WATERMARK, -62_135_596_800_000, -1, 0, 253_402_300_799_999, latest):
        state = State(kind, ttl=ttl, ttl_time=ttl_time)
        state.write(now)
        assert state.visible(now)
        state.pass_time(now)
        assert state.visible(now)


# -- a mutable default -------------------------------------------------------------------------------


class Tally(msgspec.Struct):
    n: int = 0
    names: list[str] = []


@pytest.mark.parametrize(
    ("spec", "change", "wanted"),
    [
        (lambda: value_state(list[int], default_factory=list, ttl=100), lambda v: v.append(1), [1]),
        (
            lambda: value_state(dict[str, int], default_factory=dict, ttl=100),
            lambda v: v.update(a=1),
            {"a": 1},
        ),
        (lambda: value_state(Tally, default_factory=Tally, ttl=100), lambda v: setattr(v, "n", 1), Tally(1)),
    ],
)
def test_a_change_in_place_of_a_default_is_kept_and_lives_from_the_change(
    spec: Any, change: Any, wanted: Any
) -> None:
    bed = Bed(x=spec())
    with bed.on(now=0) as s:
        _ = s.x.value  # read, and not changed
    with bed.on(now=50) as s:
        change(s.x.value)
        assert s.x.value == wanted
    bed.commit()
    with bed.on(now=149) as s:
        assert s.x.value == wanted
    with bed.on(now=150) as s:
        assert s.x.value != wanted
        change(s.x.value)  # of a new default, the old value is gone
        assert s.x.value == wanted


def test_reading_a_mutable_default_keeps_nothing() -> None:
    bed = Bed(x=value_state(Tally, default_factory=Tally, ttl=100))
    with bed.on(now=0) as s:
        assert s.x.value == Tally()
    bed.commit()
    assert bed.backend.is_empty()


@pytest.mark.parametrize("default", [[], {}, set(), Tally(), ([],)])
def test_a_default_that_all_keys_would_share_is_refused(default: Any) -> None:
    with pytest.raises(StateDeclarationError, match="use default_factory"):
        value_state(Tally, default=default)


# -- declarations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ttl": 0}, "must be positive"),
        ({"ttl": timedelta(0)}, "must be positive"),
        ({"ttl": "1h"}, "timedelta or milliseconds"),
        ({"ttl": 1.5}, "timedelta or milliseconds"),
        ({"ttl": True}, "timedelta or milliseconds"),
        ({"ttl": 5, "ttl_time": "wall"}, "'event_time' or 'processing_time'"),
        ({"ttl": 5, "refresh": "always"}, "'write' or 'read_write'"),
        ({"refresh": "read_write"}, "needs a ttl"),
        ({"ttl": "per_write", "refresh": "read_write"}, "needs a ttl"),
        ({"ttl_time": "processing_time"}, "give a ttl"),
    ],
)
@every_kind
def test_options_that_make_no_sense_are_refused(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(StateDeclarationError, match=message):
        KINDS[kind][0](**options)


# -- the sweep ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl_time", ["event_time", "processing_time"])
@every_kind
def test_what_ends_at_a_line_of_the_sweep_goes_at_that_line(kind: str, ttl_time: str) -> None:
    """The lines of group 0 are at multiples of the step, and an hour is one of them."""
    state = State(kind, ttl=HOUR, ttl_time=ttl_time)
    assert HOUR % state.sweep == 0
    state.write(0)
    state.pass_time(HOUR)
    assert state.bed.backend.is_empty()


@given(st.integers(1, 10**12), st.integers(0, 100_000), st.integers(-(10**13), 10**13))
def test_sweep_lines_are_a_step_apart_and_take_everything_within_one(life: int, label: int, now: int) -> None:
    grid = grid_for(life).apart(label)
    assert grid.step_ms == max(60_000, life // 16)
    assert now - grid.step_ms < grid.line(now) <= now
    assert now <= grid.next(now) < now + grid.step_ms
    assert grid.line(grid.next(now)) == grid.next(now)
    assert (grid.next(now) - grid.line(now)) in (0, grid.step_ms)


def test_groups_are_swept_at_different_times() -> None:
    lines = {grid_for(days := 24 * HOUR).apart(label).line(days) for label in range(64)}
    assert len(lines) == 64


def test_what_never_expires_needs_no_sweep_and_nothing_is_swept_before_the_first_watermark() -> None:
    assert SweepGrid(60_000).next(NEVER) == NEVER
    assert SweepGrid(60_000).line(NO_WATERMARK) == NO_WATERMARK


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 90_000), min_size=1, max_size=30), st.integers(0, 63), st.data())
def test_what_is_swept_follows_from_the_time_and_not_from_the_batches(
    steps: list[int], label: int, data: st.DataObject
) -> None:
    """Two groups get the same writes; one has a batch for each, the other batches as drawn."""
    fine, coarse = (
        Bed(label=label, x=map_state(str, int, ttl=5 * MINUTE), y=list_state(int, ttl=7 * MINUTE))
        for _ in "ab"
    )
    now = 1_000_000
    for n, step in enumerate(steps):
        now += step
        for bed in (fine, coarse):
            with bed.on(f"1:{n % 3}", now=now) as s:
                s.x.put(str(n % 5), n)
                s.y.append(n)
        fine.commit(now)
        if data.draw(st.booleans()):
            coarse.commit(now)
    coarse.commit(now)
    assert msgspec.to_builtins(fine.kept()) == msgspec.to_builtins(coarse.kept())
    end = now + minutes(7) + fine.layout.sweep_slack_ms
    for bed in (fine, coarse):
        bed.commit(end)
        assert bed.backend.is_empty()


@settings(max_examples=case_count(100), deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.integers(0, 40),
                st.integers(-30_000, 30_000),
                st.sampled_from([None, None, 500, 40_000, 10**7]),
                st.sampled_from(["write", "write", "again", "timer", "clear"]),
            ),
            max_size=40,
        ),
        max_size=6,
    ),
    st.booleans(),
    st.booleans(),
    st.integers(0, 63),
)
def test_a_sweep_of_values_alone_leaves_what_one_of_anything_leaves(
    batches: list[list[tuple[int, int, int | None, str]]], lives_on: bool, lets_go: bool, label: int
) -> None:
    """The same bytes are kept where entries are looked at one by one: all lives, and timers."""
    quick, slow = (
        Bed(page_bytes=300, lives_on=lives_on, lets_go=lets_go, label=label, x=value_state(int, ttl=MINUTE))
        for _ in "ab"
    )
    assert quick.layout.only_value == "x"
    slow.layout.only_value = None
    now = 1_000_000
    for batch in [*batches, [], [], []]:
        now += 45_000
        for bed in (quick, slow):
            bed.store.due(now)
            for number, at, ttl, what in batch:
                with bed.on(f"1:{number}", now=now + at) as s:
                    if what == "clear":
                        s.x.clear()
                    elif what == "timer":
                        bed.cursor.entry.timers_[:] = [TimerRecord(now + 90_000, "t")]
                    else:
                        s.x.set(number, ttl=ttl)
                        if what == "again":
                            s.x.set(number, ttl=1)
            bed.commit(now)
        assert (quick.backend.header, quick.backend.pages) == (slow.backend.header, slow.backend.pages)
    assert msgspec.to_builtins(quick.kept()) == msgspec.to_builtins(slow.kept())


@pytest.mark.parametrize(
    "states",
    [
        {"x": value_state(int, ttl=MINUTE, ttl_time="processing_time")},
        {"x": value_state(int)},
        {"x": map_state(str, int, ttl=MINUTE)},
        {"x": value_state(int, ttl=MINUTE), "y": value_state(int)},
        {"x": reducing_state(int, max, ttl=MINUTE)},
    ],
)
def test_of_entries_with_more_than_a_value_a_sweep_looks_at_everything(states: dict[str, Any]) -> None:
    assert Bed(**states).layout.only_value is None
