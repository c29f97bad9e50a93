from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from millrace_apps.iot_maintenance.contracts.events import (
    Equipment,
    MachineError,
    Maintenance,
    Reading,
    Status,
)
from millrace_apps.iot_maintenance.state.past import Past
from tests.unit.apps.iot_maintenance.monitor_cases import (
    DAY,
    HOUR,
    M1,
    MINUTE,
    SECOND,
    START,
    Event,
    driver,
    equipment,
    error,
    final,
    maintenance,
    monitor,
    reading,
    rows,
    send,
    status,
    until,
)


def test_a_reading_carries_what_held_at_its_time() -> None:
    target = driver()
    send(
        target,
        equipment(0, "pump", model="x1"),
        status(0, "idle"),
        maintenance(0, "seal"),
        error(HOUR, "E1"),
        error(2 * HOUR, "E1"),
        status(3 * HOUR, "running"),
        reading(3 * HOUR, 50.0),
    )
    until(target, 4 * HOUR)
    (row,) = rows(target)
    assert (row.status, row.status_since_ms) == ("running", START + 3 * HOUR)
    assert (row.kind, row.attributes) == ("pump", {"model": "x1"})
    assert row.last_maintenance_ms == {"seal": START}
    assert row.component_age_days == {"seal": 0.125}
    assert row.errors_24h == {"E1": 2}


def test_maintenance_counts_strictly_before_and_errors_up_to_the_instant() -> None:
    """Seal  replaced at 0 and 10 h; error at 10 h: the reading of 10 h knows the seal of 0 and the error."""
    target = driver()
    send(
        target,
        maintenance(0, "seal"),
        maintenance(10 * HOUR, "seal"),
        error(10 * HOUR),
        reading(10 * HOUR, 1.0),
        reading(10 * HOUR + 1, 1.0),
        reading(34 * HOUR - 1, 1.0),
        reading(34 * HOUR, 1.0),
    )
    until(target, 40 * HOUR)
    at_once, after, before_end, at_end = rows(target)
    assert at_once.last_maintenance_ms == {"seal": START}
    assert after.last_maintenance_ms == {"seal": START + 10 * HOUR}
    assert [r.errors_24h for r in (at_once, after, before_end, at_end)] == [{"E1": 1}] * 3 + [{}]


def test_a_status_of_the_very_instant_holds_for_the_reading_whatever_comes_first() -> None:
    target = driver(bound=SECOND)
    target.send_batch([reading(MINUTE, 1.0), status(MINUTE, "running")])
    until(target, HOUR)
    assert rows(target)[0].status == "running"


def test_a_late_status_corrects_the_rows_of_its_time_and_no_others() -> None:
    """The late status stands between two that were known.

    status    idle 0 ────────────── running 30 s (late) ──── off 50 s
    readings     10 s        29 s        30 s   45 s            55 s
    """
    target = driver(grace_ms=10 * MINUTE)
    send(target, status(0, "idle"), status(50 * SECOND, "off"))
    send(target, *(reading(at * SECOND, 1.0 + at) for at in (55, 60)))
    send(target, *(reading(at * SECOND, 1.0 + at) for at in (10, 29, 30, 45)))  # late themselves
    before = final(rows(target))
    assert {r.status for r in before.values()} == {"idle", "off"}
    send(target, status(30 * SECOND, "running"))
    corrections = [r for r in rows(target) if r.corrected]
    assert sorted((r.event_time_ms - START) // SECOND for r in corrections) == [30, 45]
    assert {(r.status, r.revision) for r in corrections} == {("running", 1)}
    emitted = [e for e in target.emissions if e.output == "main"]
    assert [e.on_time for e in emitted[-2:]] == [False, False]


def test_a_correction_keeps_what_was_measured_and_computed() -> None:
    target = driver(grace_ms=10 * MINUTE)
    send(target, *(reading(at * SECOND, 1.0 * at) for at in range(1, 6)))
    until(target, MINUTE)
    first = final(rows(target))
    send(target, status(0, "running"))
    for identity, row in final(rows(target)).items():
        was = first[identity]
        assert (row.value, row.average, row.high, row.trend) == (was.value, was.average, was.high, was.trend)
        assert (row.status, row.revision, row.corrected) == ("running", 1, True)


def test_what_is_later_than_the_grace_is_put_aside_and_told() -> None:
    target = driver(grace_ms=MINUTE)
    send(target, reading(10 * MINUTE, 1.0), status(8 * MINUTE, "running"), reading(8 * MINUTE, 1.0))
    until(target, HOUR)
    assert len(rows(target)) == 1
    assert [late["input"] for late in target.values("late")] == ["status", "readings"]


def test_an_idle_status_stream_holds_nothing_back() -> None:
    target = driver()
    send(target, *(reading(at * SECOND, 1.0) for at in range(10)))
    assert len(rows(target)) == 9
    assert {r.status for r in rows(target)} == {None}


def changed(event: Event, **fields: object) -> Event:
    key, at, signal = event
    return key, at, msgspec.structs.replace(signal, **fields)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (reading(SECOND, 1.0), changed(reading(SECOND, 1.0), value=2.0)),
        (reading(SECOND, 1.0), changed(reading(SECOND, 1.0), reading_id="another")),
        (status(SECOND, "running", 5), changed(status(SECOND, "running", 5), produced=6)),
        (maintenance(SECOND), changed(maintenance(SECOND), kind="corrective")),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_what_says_something_else_under_a_known_id_is_told_from_a_repeat(
    first: Event, other: Event, late: bool
) -> None:
    target = driver(bound=0, grace_ms=HOUR)
    if late:
        send(target, first, reading(MINUTE, 2.0, "other"))
        target.restart()
        send(target, other, first)
    else:
        target.send_batch([first, other])  # of one instant: which of the two goes first is another matter
    until(target, 2 * MINUTE)
    reasons = [d["reason"] for d in target.values("dead_letters")]
    assert reasons == (["conflict", "duplicate"] if late else ["conflict"])


def test_other_master_data_of_an_instant_that_gives_way_is_told_from_a_repeat() -> None:
    target = driver(bound=0, grace_ms=HOUR)
    known = equipment(SECOND, a="1")
    send(target, known, reading(MINUTE, 2.0, "other"))
    send(target, changed(known, attributes={"a": "0"}), known)
    assert [d["reason"] for d in target.values("dead_letters")] == ["conflict", "duplicate"]


def test_what_was_told_is_forgotten_after_the_grace() -> None:
    target = driver(bound=0, grace_ms=MINUTE)
    send(target, status(SECOND, "running"), *(reading(at * MINUTE, 1.0) for at in range(1, 10)))
    until(target, HOUR)
    assert target.state(M1)["machine"].past.told == {}


@pytest.mark.parametrize("again", [reading(SECOND, 1.0), status(SECOND, "running"), error(SECOND)])
def test_a_repeat_is_a_duplicate_on_time_and_late(again: Event) -> None:
    target = driver(bound=0, grace_ms=HOUR)
    target.send_batch([again, again])
    send(target, reading(MINUTE, 2.0, "other"), again)
    until(target, 2 * MINUTE)
    assert [d["reason"] for d in target.values("dead_letters")] == ["duplicate"] * 2
    assert len([r for r in rows(target) if r.quantity == "oil"]) == isinstance(again[2], Reading)


def facts_and_readings(rng: random.Random) -> list[Event]:
    """A few hours of two machines."""
    found: dict[tuple[Any, ...], Event] = {}
    for machine in (M1, "p01-l01-m002"):
        for _ in range(rng.randint(5, 25)):
            at = rng.randrange(0, 2 * DAY, 7 * MINUTE)
            made: Event = rng.choice(
                [
                    lambda at=at, m=machine: reading(at, float(rng.randint(0, 9)), machine=m),
                    lambda at=at, m=machine: reading(at, float(rng.randint(0, 9)), "load", machine=m),
                    lambda at=at, m=machine: status(at, rng.choice(["running", "off"]), machine=m),
                    lambda at=at, m=machine: maintenance(at, rng.choice(["seal", "belt"]), machine=m),
                    lambda at=at, m=machine: error(at, rng.choice(["E1", "E2"]), machine=m),
                    lambda at=at, m=machine: equipment(at, rng.choice(["pump", "fan"]), machine=m),
                ]
            )()
            event = made[2]
            about = [getattr(event, name, None) for name in ("quantity", "component", "code")]
            found[made[0], at, type(event), *about] = made
    return list(found.values())


def brute_force(events: list[Event]) -> dict[str, tuple[Any, ...]]:
    """What each reading should know, by looking at everything."""
    known = {}
    for machine, at, event in events:
        if not isinstance(event, Reading):
            continue
        mine = sorted(((t, e) for m, t, e in events if m == machine), key=lambda pair: pair[0])
        states = [e.status for t, e in mine if isinstance(e, Status) and t <= at]
        kinds = [e.kind for t, e in mine if isinstance(e, Equipment) and t <= at]
        last = {e.component: t for t, e in mine if isinstance(e, Maintenance) and t < at}
        errors: dict[str, int] = {}
        for t, e in mine:
            if isinstance(e, MachineError) and at - DAY < t <= at:
                errors[e.code] = errors.get(e.code, 0) + 1
        known[event.reading_id] = (
            states[-1] if states else None, kinds[-1] if kinds else "", last, errors,
        )  # fmt: skip
    return known


def found_known(target: TestDriver) -> dict[str, tuple[Any, ...]]:
    return {
        identity: (row.status, row.kind, row.last_maintenance_ms, row.errors_24h)
        for identity, row in final(rows(target)).items()
    }


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_equal_to_a_look_at_everything_for_any_order_cut_duplicate_and_restart_within_the_grace(
    seed: int,
) -> None:
    rng = random.Random(seed)
    events = facts_and_readings(rng)
    grace = rng.choice([3 * DAY, 5 * DAY])
    arriving = [*events, *rng.sample(events, k=min(4, len(events)))]
    rng.shuffle(arriving)
    target = driver(bound=rng.choice([0, HOUR, DAY]), grace_ms=grace, keep_ms=100 * DAY)
    while arriving:
        size = rng.randint(1, 6)
        target.send_batch(arriving[:size])
        del arriving[:size]
        if rng.random() < 0.3:
            target.restart()
    target.drain()
    assert found_known(target) == brute_force(events)
    assert not target.values("late")


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_results_hang_on_the_events_alone(seed: int) -> None:
    events = facts_and_readings(random.Random(seed))
    process = monitor(grace_ms=5 * DAY)
    invariant(process, events, bound_ms=HOUR, runs=4, seed=seed, upsert_by={"main": ("reading_id",)})


def test_nothing_is_left_when_all_is_over() -> None:
    events = facts_and_readings(random.Random(5))
    assert leaks(monitor(grace_ms=HOUR), sorted(events, key=lambda e: e[1]), bound_ms=MINUTE) == []


def test_facts_and_readings_older_than_the_grace_are_forgotten_while_a_machine_goes_on() -> None:
    target = driver(grace_ms=MINUTE)
    for hour in range(60):
        send(
            target,
            status(hour * HOUR, "running" if hour % 2 else "off"),
            maintenance(hour * HOUR, "seal"),
            reading(hour * HOUR + 1, 1.0),
        )
    kept = target.state(M1)
    assert kept is not None
    machine = kept["machine"]
    assert len(machine.past.statuses) <= 3
    assert len(machine.past.replaced["seal"]) <= 3
    assert len(machine.kept.all()) <= 2


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_what_is_remembered_of_a_past_is_what_is_found_anew(seed: int) -> None:
    """The oracle is the same past packed and unpacked: it remembers nothing."""
    draws = random.Random(seed)
    past = Past()
    for _ in range(40):
        at = draws.choice([draws.randint(0, 60), draws.randint(0, 3) * DAY + draws.randint(0, 60)])
        what = draws.randrange(8)
        if what == 0:
            past.put_status(at, draws.choice(["idle", "running"]))
        elif what == 1:
            past.put_maintenance(at, draws.choice(["seal", "bearing"]))
        elif what == 2:
            past.put_error(at, draws.choice(["E1", "E2"]), f"e{draws.randrange(5)}")
        elif what == 3:
            past.put_equipment(at, draws.choice(["pump", "turbine"]), {"model": str(draws.randrange(3))})
        elif what == 4:
            past.prune(draws.randint(0, 60))
        for asked in (at, at + draws.randint(0, 3), at + DAY - 1, at + DAY, at + draws.randint(0, DAY)):
            fresh = msgspec.msgpack.decode(msgspec.msgpack.encode(past), type=Past)
            assert past.as_of(asked) == fresh.as_of(asked)
