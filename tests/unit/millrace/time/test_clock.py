"""The rule of time: against a model of it, and against what must be true whatever the rule is.

A model can only repeat a rule that is wrong. So most of what is tested here is told in late events: input
that is in order within the bound has none, whichever way it is read, and one wrong clock makes none of
others'. ``MILLRACE_CASES=10000 pytest tests/unit/millrace/time/test_clock.py`` tries so many random worlds of
each kind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.testing.partitions import Partition, Reader, Record, Row, reports
from millrace.time import END_OF_TIME, NO_WATERMARK
from millrace.time.clock import (
    ClockSettings,
    ClockState,
    ClockStatus,
    Idle,
    Minimum,
    SourceReport,
    advance,
    ended,
    from_watermark,
    merged,
    plausible,
    skew_ms,
)
from millrace.time.durations import DurationError
from tests.cases import case_count

Advance = Callable[[ClockState, list[SourceReport], ClockSettings], tuple[ClockState, ClockStatus]]
LIMITS = (1, 2, 3, 7, 20, 100, 1_000, None)
SEEDS = range(max(15, case_count(15)))


# -- worlds ---------------------------------------------------------------------------------------


def a_partition(
    rng: random.Random, name: str, bound: int, *, holes: bool = False, dead: bool = True
) -> Partition:
    """Return a partition in order within the bound; it lags, ends early or is sparse, as it comes."""
    partition = Partition(name)
    newest = rng.randrange(10_000)
    step = rng.choice([0, 1, 10, 100, 1_000])
    for arrival in range(rng.choice([0, 1, 3, 10, 50, 200])):
        time = newest + rng.randint(0, step) if rng.random() < 0.8 else newest - rng.randint(0, bound)
        newest = max(newest, time)
        partition.records.append(Record(time, arrival + 1))
        # At most one after the other: more of them want more full batches to be looked at together.
        if holes and rng.random() < 0.2:
            partition.records.append(Record(0, arrival + 1, "hole"))
        elif dead and rng.random() < 0.05:
            partition.records += [Record(0, arrival + 1, "dead")] * rng.choice([1, 1, 30])
    if holes and partition.records and rng.random() < 0.3:
        partition.records.insert(0, Record(0, 1, "hole"))
    return partition


def a_backlog(rng: random.Random, bound: int, **how: bool) -> list[Partition]:
    """Return partitions that are all there before they are read, and perhaps one of control events."""
    made = [a_partition(rng, f"in:{n}", bound, **how) for n in range(rng.randint(1, 5))]
    if rng.random() < 0.5:
        made.append(Partition("control:0", [Record(0, 1, "control")] * rng.choice([1, 5, 50]), True))
    if rng.random() < 0.3:  # control events that hold from a time on
        times = sorted(rng.randrange(1, 20_000) for _ in range(rng.choice([1, 5, 50])))
        made.append(Partition("rules:0", [Record(at, 20_001, "control") for at in times], True))
    return made


def late_of(
    batches: Iterable[list[Row]], settings: ClockSettings, rule: Advance = advance
) -> tuple[int, ClockState]:
    """Return how many events a clock makes late, and where it ends."""
    late, state = 0, ClockState()
    for rows in batches:
        timed = [
            row.record.time for row in rows if row.record.kind in ("event", "control") and row.record.time
        ]
        late += sum(at <= state.watermark for at in timed)
        if rows:
            state, _ = rule(state, reports(rows, skew_ms=settings.skews[0]), settings)
    return late, state


def unheld(
    state: ClockState, found: list[SourceReport], settings: ClockSettings
) -> tuple[ClockState, ClockStatus]:
    """Follow the newest event of all, as Spark's own watermark does."""
    return advance(state, found, msgspec.structs.replace(settings, limits=(None,)))


def one_full_batch(
    state: ClockState, found: list[SourceReport], settings: ClockSettings
) -> tuple[ClockState, ClockStatus]:
    """Look at one full batch by itself."""
    return advance(state, found, msgspec.structs.replace(settings, full_batches=1))


def lag_of_the_batch(
    state: ClockState, found: list[SourceReport], settings: ClockSettings
) -> tuple[ClockState, ClockStatus]:
    """Hold time back by the sources of every batch, and forget them with the next one."""
    after, status = unheld(state, found, settings)
    newest = [r.newest for r in found if r.newest is not None]
    lagging = min(newest, default=NO_WATERMARK) - settings.bound_ms - 1
    held = (
        after if status.is_full else msgspec.structs.replace(after, watermark=max(state.watermark, lagging))
    )
    return held, status


def lag_by_arrival(
    state: ClockState, found: list[SourceReport], settings: ClockSettings
) -> tuple[ClockState, ClockStatus]:
    """Hold time back only by sources whose rows came later than any before: a draft of the rule."""
    fresh = [r for r in found if state.arrival is None or (r.arrival or 0) >= state.arrival]
    return advance(state, fresh or found[:1], settings)


# -- truth ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", LIMITS)
def test_a_backlog_in_order_within_the_bound_has_no_late_event_at_any_limit(limit: int | None) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        bound = rng.choice([0, 1, 5, 50, 1_000])
        reader = Reader(a_backlog(rng, bound), limit)
        late, _ = late_of(reader.batches(), ClockSettings(bound, (limit,), skews=(None,)))
        assert late == 0, f"seed {seed}"


def test_offsets_that_are_no_rows_make_nothing_late() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        bound = rng.choice([0, 5, 1_000])
        partitions = a_backlog(rng, bound, holes=True)
        limit = 8 * len(partitions)  # with a few offsets a batch may have no row, and is not seen to be full
        late, _ = late_of(Reader(partitions, limit).batches(), ClockSettings(bound, (limit,), skews=(None,)))
        assert late == 0, f"seed {seed}"


@pytest.mark.parametrize("rule", [unheld, one_full_batch, lag_of_the_batch, lag_by_arrival])
def test_other_rules_do_make_events_late(rule: Advance) -> None:
    lost = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        bound = rng.choice([0, 5, 1_000])
        partitions = a_backlog(rng, bound, holes=True)
        limit = 8 * len(partitions)
        lost += late_of(
            Reader(partitions, limit).batches(), ClockSettings(bound, (limit,), skews=(None,)), rule
        )[0]
    assert lost > 0


def test_when_all_is_read_the_watermark_is_the_bound_behind_the_newest_event() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        bound = rng.choice([0, 5, 1_000])
        partitions = a_backlog(rng, bound)
        limit = rng.choice(LIMITS)
        settings = ClockSettings(bound, (limit,), skews=(None,))
        _, state = late_of(Reader(partitions, limit).batches(), settings)
        last = [SourceReport(0, "control:0", 0, 0, 1, False, None, None)]
        calm = msgspec.structs.replace(settings, limits=(None if limit is None else 1_000,))
        state, status = advance(state, last, calm)
        times = [r.time for p in partitions for r in p.records if r.kind == "event"]
        assert state.watermark == (max(times) - bound - 1 if times else NO_WATERMARK), f"seed {seed}"
        assert status.held_by == ""


def live_world(rng: random.Random, bound: int) -> list[Partition]:
    """Return partitions into which events come that are within the bound of the newest one before."""
    partitions = [Partition(f"in:{n}") for n in range(rng.randint(1, 4))]
    newest, arrival = rng.randrange(1_000), 1
    weights = [rng.choice([1, 1, 20]) for _ in partitions]
    for _ in range(rng.choice([10, 100, 300])):
        arrival += rng.choice([0, 0, 1, 5, 50])
        time = newest + rng.randint(0, 30) if rng.random() < 0.6 else newest - rng.randint(0, bound)
        newest = max(newest, time)
        rng.choices(partitions, weights)[0].records.append(Record(time, arrival))
    return partitions


def pauses(rng: random.Random, reader: Reader) -> Iterable[list[Row]]:
    """Read a world as it comes, with pauses in which a backlog grows, and restarts with other limits."""
    now = 0
    while any(reader.waiting().values()):
        now += rng.choice([1, 10, 10, 100, 1_000])
        for _ in range(rng.choice([0, 1, 1, 2, 5])):
            if any(reader.waiting(now).values()):
                yield reader.batch(now)


def test_what_nothing_is_late_in_when_it_comes_has_nothing_late_when_it_is_read_again() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        bound = rng.choice([0, 5, 100])
        partitions = live_world(rng, bound)
        for limit in LIMITS:
            settings = ClockSettings(bound, (limit,), skews=(None,))
            assert late_of(Reader(partitions, limit).batches(), settings)[0] == 0, f"seed {seed}"
            live = pauses(rng, Reader(partitions, limit))
            assert late_of(live, settings)[0] == 0, f"seed {seed}, as it came"


@pytest.mark.parametrize("ahead", [-3_600_000, -5_000, 5_000, 30_000, 3_600_000, 31_536_000_000])
@pytest.mark.parametrize(
    ("delay", "bound", "skew"), [(100, 500, 0), (800, 1_500, 500), (2_000, 1_500, -1_000)]
)
def test_one_wrong_clock_makes_no_event_of_others_late(ahead: int, delay: int, bound: int, skew: int) -> None:
    for seed in SEEDS[: max(1, len(SEEDS) // 10)]:
        rng = random.Random(seed)
        partitions = [Partition(f"in:{n}") for n in range(3)]
        for arrival in range(10_000, 25_000, 20):
            device = rng.randrange(20)
            own = arrival - rng.randint(max(1, -skew), delay)  # the smallest delay is what makes it negative
            partitions[device % 3].records.append(Record(own + (ahead if device == 0 else 0), arrival))
        others = {p.name: [r.time <= r.arrival for r in p.records] for p in partitions}
        assert all(any(of) for of in others.values())
        for limit in (50, None):
            settings = ClockSettings(bound, (limit,), skews=(skew,))
            reader = Reader(partitions, limit)
            rng_of_reading = random.Random(seed)
            state, late = ClockState(), 0
            for rows in pauses(rng_of_reading, reader):
                late += sum(
                    row.record.time <= state.watermark
                    for row in rows
                    if -skew <= row.record.arrival - row.record.time <= delay  # of others
                )
                if rows:
                    state, _ = advance(state, reports(rows, skew_ms=skew), settings)
            assert late == 0


def test_without_plausible_times_one_fast_clock_does() -> None:
    partitions = [
        Partition("in:0", [Record(at + (30_000 if at % 200 == 0 else 0), at) for at in range(10, 60_000, 10)])
    ]
    settings = ClockSettings(500, skews=(None,))
    assert late_of(Reader(partitions, 100).batches(), settings)[0] > 4_000
    assert late_of(Reader(partitions, 100).batches(), ClockSettings(500))[0] == 0


# -- the model ------------------------------------------------------------------------------------


def modelled(history: Sequence[tuple[list[Row], ClockSettings]]) -> list[int]:
    """Return the watermark after each batch, by the words of the rule, from all batches so far."""
    found, watermark = [], NO_WATERMARK
    for n, (_, settings) in enumerate(history):
        seen = [
            plausible(row.record.time, row.record.arrival, settings_of.skews[0])
            for rows, settings_of in history[: n + 1]
            for row in rows
            if row.record.kind == "event"
        ]
        full: list[tuple[list[Row], ClockSettings]] = []
        for rows, of in reversed(history[: n + 1]):
            if not is_full(rows, of):
                break
            full.append((rows, of))
        if seen:
            reach: int | None = max(seen)
            if full:
                minima = [least(rows, of) for rows, of in full]
                minima = [m for m in minima if m is not None][: settings.full_batches]
                enough = len(minima) == settings.full_batches
                reach = min(reach, *minima) if enough else None
            if reach is not None and reach != NO_WATERMARK:
                watermark = max(watermark, reach - settings.bound_ms - 1)
        found.append(watermark)
    return found


def is_full(rows: list[Row], settings: ClockSettings) -> bool:
    offsets: dict[str, list[int]] = {}
    for row in rows:
        offsets.setdefault(row.partition, []).append(row.offset)
    limit = settings.limits[0]
    return limit is not None and sum(max(of) - min(of) + 1 for of in offsets.values()) * 2 >= limit


def least(rows: list[Row], settings: ClockSettings) -> int | None:
    newest: dict[str, int] = {}
    for partition, _, record in rows:
        if record.kind == "control":
            if record.time:
                at = plausible(record.time, record.arrival, settings.skews[0])
                newest[partition] = max(newest.get(partition, NO_WATERMARK), at)
        else:
            at = plausible(record.time, record.arrival, settings.skews[0])
            newest[partition] = max(
                newest.get(partition, NO_WATERMARK), at if record.kind == "event" else NO_WATERMARK
            )
    return min(newest.values(), default=None)


def a_history(rng: random.Random) -> list[tuple[list[Row], ClockSettings]]:
    """Return batches as they might come, each with the settings that held: restarts change them."""
    bound = rng.choice([0, 5, 100])
    partitions = a_backlog(rng, bound, holes=True)
    for partition in partitions:
        if rng.random() < 0.3:  # what nobody promised: fast clocks, unknown arrivals, times before 1970
            partition.records = [
                r._replace(
                    time=r.time + rng.choice([0, 0, 10**6, -(10**7)]), arrival=rng.choice([0, -1, r.arrival])
                )
                for r in partition.records
            ]
    reader = Reader(partitions, rng.choice(LIMITS))
    settings = ClockSettings(
        bound, (reader.limit,), skews=(rng.choice([None, 0, -5, 50]),), full_batches=rng.choice([1, 2, 2, 3])
    )
    made = []
    while any(reader.waiting().values()):
        if rng.random() < 0.1:
            reader.limit = rng.choice(LIMITS)
            settings = msgspec.structs.replace(
                settings, bound_ms=rng.choice([bound, 7]), limits=(reader.limit,)
            )
        rows = reader.batch()
        if rows:
            made.append((rows, settings))
    return made


def test_the_clock_does_what_its_words_say() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        history = a_history(rng)
        state, found = ClockState(), []
        for rows, settings in history:
            # The same batch twice says the same, in whichever order its tasks are heard.
            made = [
                advance(state, reports(rows, skew_ms=settings.skews[0], rng=rng), settings) for _ in range(2)
            ]
            assert made[0] == made[1]
            state, status = made[0]
            assert status.watermark == state.watermark
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=ClockState) == state
            found.append(state.watermark)
        assert found == modelled(history), f"seed {seed}"


def test_time_never_goes_back() -> None:
    for seed in SEEDS:
        state = ClockState()
        for rows, settings in a_history(random.Random(seed)):
            after, status = advance(state, reports(rows, skew_ms=settings.skews[0]), settings)
            assert after.watermark >= state.watermark == status.before
            assert after.furthest >= state.furthest
            state = after


# -- cases ----------------------------------------------------------------------------------------


def report(
    newest: int | None, source: str = "in:0", *, rows: int = 1, arrival: int | None = None
) -> SourceReport:
    return SourceReport(0, source, 0, rows - 1, rows, True, newest, arrival)


def test_a_full_batch_is_held_back_by_the_source_that_is_behind_and_says_so() -> None:
    settings = ClockSettings(10, (4,), full_batches=1)
    state, status = advance(ClockState(), [report(1_000), report(500, "in:1")], settings)
    assert (state.watermark, status.held_by, status.is_full) == (489, "in:1", True)
    state, status = advance(state, [report(1_000)], settings)
    assert (state.watermark, status.held_by, status.is_full) == (989, "", False)


def test_a_source_of_which_a_full_batch_has_no_valid_time_holds_time_still() -> None:
    settings = ClockSettings(10, (2,), full_batches=1)
    state, status = advance(ClockState(), [report(1_000), report(None, "in:1")], settings)
    assert (state.watermark, state.furthest, status.held_by) == (NO_WATERMARK, 1_000, "in:1")


def test_times_before_1970_are_times() -> None:
    state, _ = advance(ClockState(), [report(-5_000)], ClockSettings(10))
    assert state.watermark == -5_011
    assert advance(state, [report(0)], ClockSettings(10))[0].watermark == -11


def test_what_is_no_clock_neither_moves_time_nor_holds_it() -> None:
    labels = SourceReport(0, "labels:0", 0, 9, 10, False, 10**9, 10**9)
    state, status = advance(ClockState(), [labels], ClockSettings(0, (10,)))
    assert state == ClockState()
    assert status.is_full
    settings = ClockSettings(0, (10,), full_batches=1)
    assert advance(ClockState(), [labels, report(700)], settings)[0].watermark == 699


def test_control_events_that_hold_from_a_time_on_hold_time_back_in_a_backlog_and_never_move_it() -> None:
    settings = ClockSettings(0, (10,), full_batches=1)
    rules = SourceReport(0, "rules:0", 0, 9, 10, False, None, None, 300)
    state, status = advance(ClockState(), [rules, report(700)], settings)
    assert (state.watermark, state.furthest, status.held_by) == (299, 700, "rules:0")
    calm = msgspec.structs.replace(settings, limits=(1_000,))
    assert advance(state, [rules, report(710)], calm)[0].watermark == 709
    far = SourceReport(0, "rules:0", 0, 9, 10, False, None, None, 10**9)
    assert advance(ClockState(), [far, report(700)], calm)[0].furthest == 700
    ticks = SourceReport(0, "rules:0", 0, 9, 10, False, None, None)
    assert advance(ClockState(), [ticks, report(700)], settings)[0].watermark == 699
    both = merged(rules, SourceReport(0, "rules:0", 10, 12, 3, False, None, None, 350))
    assert (both.control, both.last) == (350, 12)


def test_a_reader_is_full_by_its_own_limit() -> None:
    settings = ClockSettings(0, (4, 1_000), full_batches=1)
    quick, slow = (
        SourceReport(0, "a:0", 0, 1, 2, True, 900, None),
        SourceReport(1, "b:0", 0, 1, 2, True, 100, None),
    )
    state, status = advance(ClockState(), [quick, slow], settings)
    assert (status.is_full, state.watermark) == (True, 99)
    few = SourceReport(0, "a:0", 2, 2, 1, True, 900, None)
    assert advance(ClockState(), [few, slow], settings)[1].is_full is False


def test_rows_are_counted_where_a_source_has_no_offsets() -> None:
    rows = SourceReport(0, "", None, None, 50, True, 900, None)
    assert advance(ClockState(), [rows], ClockSettings(0, (100,)))[1].is_full
    assert not advance(ClockState(), [rows], ClockSettings(0, (101,)))[1].is_full


def test_a_silence_takes_time_on_but_not_what_is_the_furthest() -> None:
    settings = ClockSettings(10, (100,), topics=("in",))
    state, _ = advance(ClockState(), [report(1_000, arrival=1_000)], settings)
    after, _ = advance(state, [], settings, [Idle(5_000, ("in",), 1_000)])
    assert (after.watermark, after.furthest) == (4_989, 1_000)
    # What comes after it and is older is late: that is what a silence says.
    assert advance(after, [report(3_000)], settings)[0].watermark == 4_989


@pytest.mark.parametrize(
    "idle",
    [
        Idle(5_000, ("other",), 1_000),  # of a reader of another topic
        Idle(5_000, (), 1_000),  # of an earlier version, which names none
        Idle(5_000, ("in",), 1_001),  # its sender had read more than this reader
        Idle(5_000, ("in",), None),  # its sender knew no arrivals
    ],
    ids=["other topic", "no topic", "more was read", "no arrival"],
)
def test_a_silence_of_others_is_none_here(idle: Idle) -> None:
    settings = ClockSettings(10, (100,), topics=("in",))
    state, _ = advance(ClockState(), [report(1_000, arrival=1_000)], settings)
    assert advance(state, [], settings, [idle])[0] == state


def test_a_silence_is_none_while_a_backlog_is_read_or_before_the_first_event() -> None:
    settings, idle = ClockSettings(10, (2,), topics=("in",)), Idle(5_000, ("in",), None)
    assert advance(ClockState(), [], settings, [idle])[0] == ClockState()
    state, status = advance(ClockState(), [report(1_000, rows=2)], settings, [idle])
    assert status.is_full
    assert state.watermark == NO_WATERMARK
    assert (
        advance(state, [report(1_000)], ClockSettings(10, (9,), topics=("in",)), [idle])[0].watermark == 4_989
    )


def test_the_slowest_is_followed_as_long_as_it_is_heard() -> None:
    settings = ClockSettings(10, follow="slowest", idle_after_ms=100)
    state, status = advance(
        ClockState(), [report(1_000, arrival=1_000), report(300, "in:1", arrival=950)], settings
    )
    assert (state.watermark, status.held_by) == (289, "in:1")
    state, status = advance(state, [report(1_100, arrival=1_200)], settings)
    assert (state.watermark, status.held_by) == (1_089, "in:0")
    # What was left behind comes back, and is late: time does not wait for it for ever.
    state, _ = advance(state, [report(400, "in:1", arrival=1_210)], settings)
    assert state.watermark == 1_089
    state, _ = advance(state, [report(2_000, arrival=1_220), report(1_500, "in:1", arrival=1_230)], settings)
    assert state.watermark == 1_489


def test_with_the_slowest_partitions_of_very_different_delays_have_nothing_late() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        partitions = [Partition(f"in:{n}") for n in range(3)]
        delays = [0, rng.choice([1_000, 50_000]), rng.choice([0, 100_000])]
        for arrival in range(200_000, 260_000, 200):
            n = rng.randrange(3)
            partitions[n].records.append(Record(arrival - delays[n] - rng.randint(0, 100), arrival))
        # All of them are heard in the first batch.
        first = min(p.records[0].arrival for p in partitions)
        for p in partitions:
            p.records[0] = p.records[0]._replace(arrival=first)
        settings = ClockSettings(300, (rng.choice(LIMITS),), skews=(None,), follow="slowest")
        assert late_of(pauses(rng, Reader(partitions, settings.limits[0])), settings)[0] == 0, f"seed {seed}"


def test_the_end_of_all_input_is_the_end_of_time() -> None:
    state, status = ended(ClockState(5, 16, 3, (Minimum(4, "in:0"),)), ClockSettings(10))
    assert (state.watermark, state.minima, status.before) == (END_OF_TIME, (), 5)


def test_a_clock_can_begin_with_a_watermark() -> None:
    state = from_watermark(1_000, 50)
    assert (state.watermark, state.furthest) == (1_000, 1_051)
    assert advance(state, [report(500)], ClockSettings(50))[0].watermark == 1_000


@given(
    st.integers(-(2**62), 2**62), st.none() | st.integers(-5, 2**61), st.none() | st.integers(-(10**9), 10**9)
)
def test_a_plausible_time_is_never_later_than_the_event_or_its_arrival(
    time: int, arrival: int | None, skew: int | None
) -> None:
    found = plausible(time, arrival, skew)
    assert found <= time
    if arrival is not None and arrival > 0 and skew is not None:
        assert found <= arrival + skew
    elif found != time:
        pytest.fail("an unknown arrival changes a time")


@pytest.mark.parametrize("text", ["-", "later", "--5s", ""])
def test_a_skew_is_a_duration_or_off(text: str) -> None:
    with pytest.raises(DurationError):
        skew_ms(text)
