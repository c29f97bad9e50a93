"""A plant's windows and health, its machines apart: after every batch what a look at all that came gives."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, NamedTuple

import msgspec
import pytest

from millrace.host.groups import encode_key
from millrace.host.memory import MemoryHost
from millrace.host.runner import Emission, Row
from millrace.time import END_OF_TIME, NO_WATERMARK
from millrace_apps.iot_maintenance.alarms.record import AlarmEvent
from millrace_apps.iot_maintenance.alarms.rule import SEVERITIES
from millrace_apps.iot_maintenance.processes.plant import AssetHealth, PlantMonitor
from millrace_apps.iot_maintenance.processes.windows import (
    CHATTER,
    DAY_MS,
    FLOOD,
    MINUTE_MS,
    WINDOW_MS,
    AlarmKpi,
)
from tests.cases import case_count
from tests.unit.apps.iot_maintenance.monitor_cases import START
from tests.unit.apps.iot_maintenance.test_kpis import alarm

CASES = case_count(150)
PLANT = "p01"


class Come(NamedTuple):
    """A change of an alarm, how far the stream was when it came, and whether it came in time."""

    came: int
    event: AlarmEvent
    on_time: bool = True


class Stretch(NamedTuple):
    """A time in which an alarm stood or was shelved, and since when it was active."""

    alarm: str
    begin: int
    until: int
    age: int


def made(
    at: int, name: str, announced: bool, entity: str, rng: random.Random, active: dict[Any, int] | None = None
) -> AlarmEvent:
    """A change of an alarm: it begins, is raised again, ends, or is active still and held back."""
    change = "re_alarm" if announced and rng.random() < 0.2 else "active" if announced else "inactive"
    severity = rng.choice(["low", "critical"])
    more: dict[str, Any] = {}
    if active is not None:
        if announced:
            active.setdefault((entity, name), at)
        elif (entity, name) in active and rng.random() < 0.6:
            shelved = rng.random() < 0.5
            more = {"active": True, "shelved": "timed" if shelved else "", "suppressed": not shelved}
            change = "shelve" if shelved else "suppress"
        else:
            active.pop((entity, name), None)
        more["active_since_ms"] = active.get((entity, name))
    _, _, event = alarm(at - START, name, announced, entity=entity, severity=severity, change=change, **more)
    found: AlarmEvent = event
    return found


def stream(rng: random.Random, patience: int) -> list[Come]:
    """Return the alarms of three machines, each behind the stream by its own delay, in order of coming."""
    found = []
    step = rng.choice([20_000, 200_000, 3_000_000])
    for number in range(3):
        entity = f"{PLANT}-l0{number % 2}-m{number}"
        delay = rng.choice([0, 0, patience // 3, max(patience - 1, 0)])
        at = START + rng.randint(0, DAY_MS)
        came, active = at, dict[Any, int]()
        for _ in range(rng.randint(5, 25)):
            at += rng.choice([1, 2, rng.randint(1, step), WINDOW_MS - 1 - at % WINDOW_MS or 1, WINDOW_MS])
            came = max(came, at + rng.randint(0, delay))
            found.append(Come(came, made(at, rng.choice("ab"), rng.random() < 0.6, entity, rng, active)))
    return sorted(found, key=lambda c: c.came)


def windows_of(events: list[AlarmEvent], upto: int) -> dict[tuple[str, int], AlarmKpi]:
    """Return the rows of all windows that end up to a time, by looking at all events for each."""
    changes = sorted(events, key=lambda e: e.event_time_ms)
    counted: list[AlarmEvent] = []
    stood: list[Stretch] = []
    since: dict[str, int] = {}
    shelved: list[Stretch] = []
    known: dict[str, int] = {}  # alarms that were counted, and are active since
    for name in sorted({event.alarm_id for event in changes}):
        mine = [event for event in changes if event.alarm_id == name]
        for event, after in zip(mine, [*mine[1:], None], strict=True):
            age = event.event_time_ms if event.active_since_ms is None else event.active_since_ms
            until = NEVER if after is None else after.event_time_ms
            if not event.active:
                known.pop(name, None)
                since.pop(name, None)
                continue
            if event.announced:
                if event.change == "re_alarm" or (name not in since and known.get(name) != age):
                    counted.append(event)
                known[name] = since[name] = since.get(name, age)
                stood.append(Stretch(name, event.event_time_ms, until, since[name]))
            else:
                since.pop(name, None)
                if name in known and event.shelved:
                    shelved.append(Stretch(name, event.event_time_ms, until, known[name]))
    counted.sort(key=lambda e: e.event_time_ms)
    return {
        (span, start): row_of(span, start, size, counted, stood, shelved)
        for span, size in (("10min", WINDOW_MS), ("day", DAY_MS))
        for start in {e.event_time_ms // size * size for e in counted}
        if start + size - 1 <= upto
    }


NEVER = END_OF_TIME * 2


def row_of(
    span: Any,
    start: int,
    size: int,
    counted: list[AlarmEvent],
    stood: list[Stretch],
    shelved: list[Stretch],
) -> AlarmKpi:
    end = start + size
    mine = [e for e in counted if start <= e.event_time_ms < end]
    tens = Counter(e.event_time_ms // WINDOW_MS for e in mine)
    floods = sum(n > FLOOD for n in tens.values())
    chattering = set()
    for name in {e.alarm_id for e in mine}:
        times = [e.event_time_ms for e in mine if e.alarm_id == name]
        if any(b - a <= MINUTE_MS for a, b in zip(times, times[CHATTER - 1 :], strict=False)):
            chattering.add(name)
    standing = [one for one in stood if one.begin < end <= one.until]
    aged = [*standing, *(one for one in shelved if one.begin < end <= one.until)]
    top = sorted(Counter(e.alarm_id for e in mine).items(), key=lambda item: (-item[1], item[0]))[:10]
    return AlarmKpi(
        PLANT, span, start, end, len(mine), floods > 0, floods / (size // WINDOW_MS), sorted(chattering),
        sorted({one.alarm for one in aged if end - one.age > DAY_MS}), len(standing),
        {s: sum(e.severity == s for e in mine) / len(mine) for s in SEVERITIES},
        dict(top), sum(n for _, n in top) / len(mine),
    )  # fmt: skip


def health_of(events: list[AlarmEvent]) -> dict[str, tuple[str, int, int]]:
    """Return the health of each asset of which there was an alarm, by adding up what stands."""
    stands: dict[str, AlarmEvent] = {}
    changed: dict[str, int] = {}
    for event in events:
        was = stands.pop(event.alarm_id, None)
        if event.announced:
            stands[event.alarm_id] = event
        if (was and was.severity) != (event.severity if event.announced else None):
            for name in (event.entity_id, event.line_id, event.plant_id):
                changed[name] = max(changed.get(name, 0), event.event_time_ms)
    found = {}
    for name, at in changed.items():
        mine = [e for e in stands.values() if name in (e.entity_id, e.line_id, e.plant_id)]
        worst = max((SEVERITIES.index(e.severity) for e in mine), default=-1)
        found[name] = ("good" if worst < 0 else SEVERITIES[worst], len(mine), at)
    return found


class Tables:
    """What consumers have who keep the newest row of each."""

    def __init__(self) -> None:
        self.kpis: dict[tuple[str, int], AlarmKpi] = {}
        self.health: dict[str, tuple[str, int, int]] = {}

    def take(self, emissions: list[Emission]) -> None:
        for e in emissions:
            assert e.output in ("main", "kpis", "health"), e
            if e.output == "kpis":
                row = msgspec.json.decode(e.payload, type=AlarmKpi)
                before = self.kpis.get((row.span, row.start_ms))
                assert row.revision == (0 if before is None else before.revision + 1)
                self.kpis[row.span, row.start_ms] = row
            elif e.output == "health":
                asset = msgspec.json.decode(e.payload, type=AssetHealth)
                now = (asset.health, asset.active, asset.event_time_ms)
                before_it = self.health.get(asset.asset_id)
                assert before_it is None or before_it[2] <= asset.event_time_ms
                self.health[asset.asset_id] = now

    def final(self) -> dict[tuple[str, int], AlarmKpi]:
        return {key: msgspec.structs.replace(row, revision=0) for key, row in self.kpis.items()}


def host_behind(patience: int) -> MemoryHost:
    host = MemoryHost(PlantMonitor())
    host.lag_ms = host.runner.layout.lag_ms = patience
    return host


def rows_of(batch: list[Come]) -> dict[str, list[Row]]:
    rows = []
    for n, come in enumerate(batch):
        raw = msgspec.json.encode(come.event)
        cause = f"in:0:{come.came}{n:03}"
        rows.append(Row(come.event.event_time_ms, raw, cause, come.event, on_time=come.on_time))
    return {encode_key((PLANT,)): rows} if rows else {}


@pytest.mark.parametrize("patience", [0, 600_000, 7_200_000])
def test_after_every_batch_the_tables_are_what_a_look_at_all_that_came_gives(patience: int) -> None:
    revised = 0
    for seed in range(CASES):
        rng = random.Random(seed)
        left, done = stream(rng, patience), []
        host, tables = host_behind(patience), Tables()
        watermark = START
        while left:
            batch, left = left[: (n := rng.randint(1, 12))], left[n:]
            # A machine's clock may be ahead of the stream's a little; what it says waits for no other.
            watermark = max(watermark, batch[-1].came)
            while left and left[0].came <= watermark:
                batch.append(left.pop(0))
            done += [come.event for come in batch]
            tables.take(host.run_rows(rows_of(batch), to=watermark))
            if rng.random() < 0.3:
                tables.take(host.run_rows({}, to=(watermark := watermark + rng.randint(0, WINDOW_MS))))
            if rng.random() < 0.2:
                kept = host.snapshot()
                host = host_behind(patience)
                host.restore(kept)
            assert tables.final() == windows_of(done, watermark), f"seed {seed}"
            assert tables.health == health_of(done), f"seed {seed}"
            left = [c for c in left if c.event.event_time_ms > watermark - patience]
        if rng.random() < 0.5:  # all is over: nothing stays
            for name in sorted({e.alarm_id for e in done}):
                entity, _, short = name.partition(":")
                over = made(watermark + 1, short, False, entity, rng)
                tables.take(host.run_rows(rows_of([Come(watermark + 1, over)]), to=watermark + 1))
                done.append(over)
            tables.take(host.drain())
            assert not host.store.cells, [host.store.decode(c.body) for c in host.store.cells.values()]
        else:
            tables.take(host.drain())
        assert tables.final() == windows_of(done, END_OF_TIME), f"seed {seed}"
        assert tables.health == health_of(done), f"seed {seed}"
        revised += sum(row.revision for row in tables.kpis.values())
    assert bool(revised) == bool(patience)


def test_a_window_that_was_told_for_good_is_not_told_anew_by_an_action_that_came_late() -> None:
    host, tables, rng = host_behind(600_000), Tables(), random.Random(1)
    at = START - START % DAY_MS + 5_000
    machine = f"{PLANT}-l01-m1"
    tables.take(host.run_rows(rows_of([Come(at, made(at, "a", True, machine, rng))]), to=at))
    tables.take(host.run_rows({}, to=at + 2 * WINDOW_MS))
    before = dict(tables.kpis)
    late = made(at + 1, "b", True, machine, rng)
    tables.take(host.run_rows(rows_of([Come(at, late, on_time=False)]), to=at + 2 * WINDOW_MS))
    assert tables.kpis == before
    assert tables.health[machine][1] == 2
    tables.take(host.run_rows({}, to=at + DAY_MS))
    assert tables.kpis["day", at - 5_000].alarms == 2, "the day is open"


def test_nothing_is_told_of_a_window_before_the_stream_has_passed_its_end() -> None:
    host, tables, rng = host_behind(600_000), Tables(), random.Random(1)
    begin = START - START % DAY_MS
    machine = f"{PLANT}-l01-m1"
    rows = rows_of([Come(begin, made(begin + 5, "a", True, machine, rng))])
    tables.take(host.run_rows(rows, to=begin + WINDOW_MS - 2))
    assert tables.kpis == {}
    tables.take(host.run_rows({}, to=begin + WINDOW_MS - 1))
    assert [(row.revision, row.alarms) for row in tables.kpis.values()] == [(0, 1)]
    assert host.watermark != NO_WATERMARK
