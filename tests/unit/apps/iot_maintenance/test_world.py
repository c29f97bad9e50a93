"""The generator's world through the monitor: what its truths say must be found, and nothing else.

And it is found whatever the batches in which the world came.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from millrace.host.groups import context_key, encode_key
from millrace.host.memory import MemoryHost
from millrace.host.rows import Emission, Row
from millrace.testing.app_contract import AppInMemory, AppWorld
from millrace.testing.standing import Happened, Standing
from millrace.time import END_OF_TIME, ms
from millrace_apps.generators.engine.simulated import Truth
from millrace_apps.generators.iot import IotProfile, simulate
from millrace_apps.iot_maintenance.alarms.record import AlarmEvent
from millrace_apps.iot_maintenance.app import app
from millrace_apps.iot_maintenance.contracts.events import Action, Reading, Status
from millrace_apps.iot_maintenance.contracts.records import Liveness, ShiftKpi
from millrace_apps.iot_maintenance.contracts.signals import INPUTS, as_row
from millrace_apps.iot_maintenance.demo import WORDS
from millrace_apps.iot_maintenance.processes.monitor import MachineMonitor
from millrace_apps.iot_maintenance.processes.plant import PlantMonitor
from millrace_apps.iot_maintenance.processes.windows import AlarmKpi
from millrace_apps.iot_maintenance.settings import IotSettings, monitoring
from tests.unit.apps.iot_maintenance.test_windows import windows_of

START = 1_767_261_600_000
#: A sensor is judged by what it was like before.
LEARN_MS = 30_000


class World(NamedTuple):
    """What happened, and what was told."""

    truths: list[Truth]
    alarms: list[dict[str, Any]]
    liveness: list[dict[str, Any]]
    rows: int
    readings: int
    last: int


@pytest.fixture(scope="module")
def world() -> World:
    profile = IotProfile(
        seed=6,
        start_ms=START,
        machines=12,
        machines_per_line=3,
        event_rate=400.0,
        acceleration=60.0,
        failure_scale=8,
        sensor_fault_rate=1000.0,
        outage_rate=150.0,
        events=26_000,
    )
    host = MemoryHost(MachineMonitor(monitoring(IotSettings())), out_of_orderness_ms=1_000, records=True)
    truths: dict[str, Truth] = {}
    batch, found, readings, last = [], [], 0, 0
    for simulated in simulate(profile):
        event = msgspec.convert(simulated.event, INPUTS[simulated.stream], from_attributes=True)
        readings += simulated.stream == "readings"
        last = event.event_time_ms
        truths.update((truth.truth_id, truth) for truth in simulated.truths)
        batch.append(as_row(simulated.stream, event))
        if len(batch) == 3_000:
            found += host.run_batch(batch)
            batch = []
    found += host.run_batch(batch)
    found += host.advance_watermark(last)
    told = defaultdict(list)
    for e in found:
        told[e.output].append(e.payload)
    return World(
        list(truths.values()),
        [msgspec.structs.asdict(a) for a in told["alarms"]],
        [msgspec.structs.asdict(a) for a in told["liveness"]],
        len(told["main"]),
        readings,
        last,
    )


def begins(truth: Truth) -> int:
    return int(str(truth.detail["begin_ms"]))


def ends(truth: Truth) -> int:
    return int(str(truth.detail["end_ms"]))


def raised(world: World, category: str) -> dict[str, list[int]]:
    """Entity and quantity → when an alarm of a category became active."""
    found: dict[str, list[int]] = defaultdict(list)
    for alarm in world.alarms:
        if alarm["category"] == category and alarm["change"] == "active":
            found[f"{alarm['entity_id']}.{alarm['quantity']}"].append(alarm["event_time_ms"])
    return found


def test_every_reading_has_its_row(world: World) -> None:
    assert world.rows == world.readings > 20_000


def test_the_faults_of_sensors_are_found(world: World) -> None:
    sensors, silent = raised(world, "sensor"), raised(world, "liveness")
    found: dict[str, list[bool]] = defaultdict(list)
    for truth in world.truths:
        kind = truth.kind.removeprefix("sensor_")
        if kind not in WORDS or begins(truth) < START + LEARN_MS or ends(truth) + 7_000 > world.last:
            continue
        if kind == "gap" and ends(truth) - begins(truth) < 8_000:
            continue  # no longer than a sensor may be silent
        at = [*sensors[truth.entity], *silent[truth.entity]]
        found[kind].append(any(begins(truth) <= t <= ends(truth) + 10_000 for t in at))
    assert set(found) == set(WORDS), "the world must have them all"
    total = [ok for of_kind in found.values() for ok in of_kind]
    assert len(total) >= 15
    assert sum(total) >= 0.85 * len(total), dict(found)
    assert all(any(of_kind) for of_kind in found.values()), dict(found)


def test_sensors_that_are_well_are_left_alone(world: World) -> None:
    faulty = defaultdict(list)
    for truth in world.truths:
        if truth.kind.startswith("sensor_"):
            faulty[truth.entity].append((begins(truth), ends(truth) + 15_000))
    false = [
        (entity, at)
        for entity, times in raised(world, "sensor").items()
        for at in times
        if not any(low <= at <= high for low, high in faulty[entity])
    ]
    assert len(false) <= 2, false


def test_silent_gateways_and_machines_are_found_and_a_gateway_is_one_alarm(world: World) -> None:
    silences = [
        t
        for t in world.truths
        if t.kind in ("gateway_outage", "machine_silence") and min(ends(t), world.last) - begins(t) > 11_000
    ]
    told = raised(world, "liveness")
    devices = {entity.rpartition(".")[2]: times for entity, times in told.items()}
    assert len(silences) >= 3
    for truth in silences:
        assert any(begins(truth) <= at <= ends(truth) for at in devices.get(truth.entity, [])), truth
    of_gateways = [row for row in world.liveness if row["cause"] == "gateway" and row["state"] == "silent"]
    assert of_gateways
    for row in of_gateways:
        assert row["event_time_ms"] not in devices.get(row["device_id"], [])


def test_limits_that_are_exceeded_for_a_while_are_alarms(world: World) -> None:
    """By the true value: alarms see the noisy one, and wait half a second."""
    process = raised(world, "process")
    happened = [t for t in world.truths if t.kind == "limit_exceeded" and begins(t) + 5_000 < world.last]
    found = [any(begins(t) - 5_000 <= at <= begins(t) + 5_000 for at in process[t.entity]) for t in happened]
    assert len(found) >= 3
    assert sum(found) >= 0.6 * len(found)


def test_broken_sensors_raise_no_process_alarm(world: World) -> None:
    faults = [t for t in world.truths if t.kind in ("sensor_spike", "sensor_dropout", "sensor_stuck")]
    exceeded = {t.entity for t in world.truths if t.kind == "limit_exceeded"}
    process = raised(world, "process")
    for truth in faults:
        if truth.entity not in exceeded and begins(truth) > START + LEARN_MS:
            assert not any(begins(truth) <= at <= ends(truth) for at in process[truth.entity]), truth


def test_plants_as_plants_are_are_understood() -> None:
    """Words of three plants, two sensors of a quantity, whole degrees, currents that are off: all well."""
    profile = IotProfile(
        seed=3, start_ms=START, machines=12, machines_per_line=2, lines_per_plant=2, event_rate=60.0,
        failure_scale=0.0, sensor_fault_rate=0.0, outage_rate=0.0, variety=1, events=20_000,
    )  # fmt: skip
    host = MemoryHost(MachineMonitor(monitoring(IotSettings())), out_of_orderness_ms=1_000, records=True)
    events = [
        (simulated.stream, msgspec.convert(simulated.event, INPUTS[simulated.stream], from_attributes=True))
        for simulated in simulate(profile)
    ]
    told = defaultdict(list)
    for emission in host.run_batch([as_row(name, event) for name, event in events]):
        told[emission.output].append(emission.payload)
    assert told["dead_letters"] == told["notices"] == told["late"] == []
    words = {event.status for name, event in events if name == "status"}
    assert {"Execute", "Aus", "running"} <= words
    points = {(row.quantity, row.point) for row in told["main"] if row.point}
    assert points == {("vibration", "drive end"), ("vibration", "fan end")}
    bad = [row for row in told["main"] if row.quality == "bad"]
    assert len(bad) <= 0.01 * len(told["main"])
    assert len([a for a in told["alarms"] if a.category == "sensor" and a.change == "active"]) <= 5


# -- whatever the batches ----------------------------------------------------------------------------

HOUR, MINUTE = 3_600_000, 60_000


def two_hours() -> Iterator[Happened]:
    """Two hours of a small fleet, in which a shift ends; most of its devices are often silent.

    On each machine work is planned once it has been heard for half an hour.
    """
    start = START + 3 * HOUR
    profile = IotProfile(
        seed=5, start_ms=start, machines=9, machines_per_line=2, lines_per_plant=1, event_rate=0.8,
        failure_scale=8, sensor_fault_rate=1000.0, outage_rate=150.0, events=6_000,
    )  # fmt: skip
    planned: set[str] = set()
    for simulated in simulate(profile):
        event = msgspec.convert(simulated.event, INPUTS[simulated.stream], from_attributes=True)
        key, at, _ = as_row(simulated.stream, event)
        if at >= start + 2 * HOUR:
            return
        yield Happened(at, key, at, event)
        if simulated.stream == "readings" and at >= start + HOUR / 2 and key not in planned:
            planned.add(key)
            said = ("plan", at, "ann", 20 * MINUTE, "", "", at + 15 * MINUTE, True)
            yield Happened(at, key, at, Action(f"{key}.plan", key, "seal", *said))


class IotWorld(AppWorld):
    app = app
    # So that two hours have scores and forecasts.
    overrides = ("scores.interval=0", "scores.learn=20", "forecast.learn=10")
    bound_ms = MINUTE
    per_key = False

    def world(self) -> Iterator[Happened]:
        return two_hours()


class TestContract(IotWorld, AppInMemory):
    def test_all_tables_are_written(self) -> None:
        assert_all_tables(self.standing)


def assert_all_tables(standing: Standing) -> None:
    found = {name: rows.total() for name, rows in standing.expected().items()}
    told = ("main", "liveness", "shifts", "scores", "forecasts", "notices", "clocks", "replaced", "orders")
    first = {f"MachineMonitor.{name}" for name in told}
    anomalies = "MachineMonitor.anomalies"
    assert found.keys() == first | {anomalies, "main", "main:alarms", "kpis", "health"}
    del found["MachineMonitor.notices"]  # everything is in the registry
    del found["MachineMonitor.clocks"]  # and no gateway says when it received what
    assert min(number for name, number in found.items() if name != anomalies) >= 9


# -- machines that are hours behind -------------------------------------------------------------------


def told_of(
    world: list[Happened],
    delays: dict[str, int],
    clock: str,
    seed: int,
    ahead: dict[str, int] | None = None,
    said: list[Emission] | None = None,
    bound_ms: int = MINUTE,
) -> dict[str, dict[str, Counter[bytes]]]:
    """Return what is said of each machine and gateway by output, if some are behind or have a fast clock.

    All of it goes into ``said``, in the order in which it is said.
    """
    rng, fast = random.Random(seed), ahead or {}
    settings = IotSettings.model_validate({"monitor": {"clock": clock, "patience": "3 h"}})
    first = MemoryHost(MachineMonitor(monitoring(settings)), out_of_orderness_ms=bound_ms)
    chain = [first, MemoryHost(PlantMonitor(), out_of_orderness_ms=bound_ms)]
    chain[1].follow(first)
    came = sorted(
        ((h.at_ms + delays.get(h.key, 0), h.key, h) for h in world), key=lambda c: (c[0], c[1], c[2].at_ms)
    )
    found: dict[str, dict[str, Counter[bytes]]] = defaultdict(lambda: defaultdict(Counter))
    newest, rest = 0, came
    while rest:
        batch, rest = rest[: (n := rng.choice((1, 20, 500)))], rest[n:]
        # A clock is believed no further than its events' arrival.
        newest = max([newest, *(min(at, h.at_ms + fast.get(key, 0)) for at, key, h in batch)])
        rows = first.rows_of(
            [(key, h.at_ms + fast.get(key, 0), later(h.event, fast.get(key, 0))) for _, key, h in batch]
        )
        believed: dict[str, int] = {}
        for at, key, h in batch:
            text = encode_key((key,))
            believed[text] = max(believed.get(text, 0), min(at, h.at_ms + fast.get(key, 0)))
        take(chain, first.run_rows(rows, to=newest - bound_ms - 1, newest=believed), found, said)
    take(chain, first.advance_watermark(END_OF_TIME), found, said)
    return found


def later(event: Any, by_ms: int) -> Any:
    return msgspec.structs.replace(event, event_time_ms=event.event_time_ms + by_ms) if by_ms else event


def take(
    chain: list[MemoryHost],
    emitted: list[Emission],
    found: dict[str, dict[str, Counter[bytes]]],
    said: list[Emission] | None,
) -> None:
    """Sort what the monitor said by key and output, and bring its alarms to the plant's."""
    rows: dict[str, list[Row]] = defaultdict(list)
    for e in emitted:
        found[context_key(e.key)][e.output][e.payload] += 1
        if e.output == "alarms":
            event = chain[1].decode(e.payload)
            rows[encode_key((event.plant_id,))].append(
                Row(e.event_time, e.payload, e.event_id, event, on_time=e.on_time)
            )
    chain[1].watermark = chain[0].watermark
    of_plants = chain[1].run_rows(dict(rows))
    for e in of_plants:
        found[context_key(e.key)][f"plant {e.output}"][e.payload] += 1
    if said is not None:
        said += [e for e in emitted if e.output in ("liveness", "shifts")] + of_plants


def test_machines_that_are_an_hour_behind_have_not_one_late_row_and_the_same_alarms() -> None:
    world = [h for h in two_hours() if h.at_ms >= h.came_ms]
    machines = sorted({h.key for h in world if isinstance(h.event, Reading)})
    delays = dict.fromkeys(machines[::3], HOUR)
    prompt = told_of(world, {}, "key", 1)
    for seed in (2, 3):
        behind = told_of(world, delays, "key", seed)
        late = [
            (key, name)
            for key, of in behind.items()
            for name in of
            if name.endswith(("late", "dead_letters"))
        ]
        assert late == []
        for machine in machines:
            assert behind[machine]["main"] == prompt[machine]["main"], (seed, machine)
            process = [
                Counter(
                    {row: n for row, n in of[machine]["alarms"].items() if b'"category":"process"' in row}
                )
                for of in (behind, prompt)
            ]
            assert process[0] == process[1], (seed, machine)
        assert any(prompt[machine]["alarms"] for machine in delays)
        # Silent by the stream's clock: told once, and not with every row that comes from then.
        for machine in delays:
            silences = [row for row in behind[machine]["liveness"] if b'"state":"silent"' in row]
            assert len(silences) <= 4 * len({msgspec.json.decode(row)["device_id"] for row in silences})
        # Every alarm has passed its plant.
        alarms = sum(n for of in behind.values() for n in of["alarms"].values())
        assert sum(n for of in behind.values() for n in of["plant main"].values()) == alarms
    by_stream = told_of(world, delays, "stream", 2)
    assert sum(n for of in by_stream.values() for n in of["late"].values()) > 100


@pytest.mark.parametrize("clock", ["key", "stream"])
def test_rows_of_machines_that_are_behind_are_in_order_and_end_as_they_should(clock: str) -> None:
    world = [h for h in two_hours() if h.at_ms >= h.came_ms]
    keys = sorted({h.key for h in world})
    delays = dict.fromkeys(keys[::3], HOUR) | dict.fromkeys(keys[1::3], 20000)
    said: list[Emission] = []
    told_of(world, delays, clock, 4, said=said)
    last: dict[str, tuple[int, int]] = {}
    windows: dict[tuple[str, str, int], AlarmKpi] = {}
    alarms: dict[str, list[AlarmEvent]] = defaultdict(list)
    revised = 0
    for e in said:
        if e.output == "main":
            event = msgspec.json.decode(e.payload, type=AlarmEvent)
            place = event.event_time_ms, event.number
            assert place > last.get(event.alarm_id, (0, 0)), event
            last[event.alarm_id] = place
            alarms[event.plant_id].append(event)
        elif e.output == "liveness":
            row = msgspec.json.decode(e.payload, type=Liveness)
            assert row.event_time_ms >= last.get(row.device_id, (0, 0))[0], row
            last[row.device_id] = row.event_time_ms, 0
        elif e.output == "kpis":
            kpi = msgspec.json.decode(e.payload, type=AlarmKpi)
            windows[kpi.plant_id, kpi.span, kpi.start_ms] = kpi
            revised += kpi.revision
    final = {key: msgspec.structs.replace(kpi, revision=0) for key, kpi in windows.items()}
    assert final == {
        (plant, *key): msgspec.structs.replace(kpi, plant_id=plant)
        for plant, events in alarms.items()
        for key, kpi in windows_of(events, END_OF_TIME).items()
    }
    assert bool(revised) == (clock == "key")


def test_a_shift_is_told_by_the_streams_clock_and_ends_as_if_nobody_had_been_behind() -> None:
    world = [h for h in two_hours() if h.at_ms >= h.came_ms]
    machines = sorted({h.key for h in world if isinstance(h.event, Status)})

    def shifts(delays: dict[str, int]) -> tuple[dict[tuple[str, int], ShiftKpi], int]:
        said: list[Emission] = []
        told_of(world, delays, "key", 5, said=said)
        found: dict[tuple[str, int], ShiftKpi] = {}
        for e in said:
            if e.output == "shifts":
                kpi = msgspec.json.decode(e.payload, type=ShiftKpi)
                before = found.get((kpi.machine_id, kpi.shift_start_ms))
                assert kpi.revision == (0 if before is None else before.revision + 1)
                found[kpi.machine_id, kpi.shift_start_ms] = kpi
        revised = sum(kpi.revision for kpi in found.values())
        return {key: msgspec.structs.replace(kpi, revision=0) for key, kpi in found.items()}, revised

    prompt, _ = shifts({})
    behind, revised = shifts(dict.fromkeys(machines[::3], HOUR))
    assert behind == prompt
    assert revised > 0


@pytest.mark.parametrize("clock", ["key", "stream"])
@pytest.mark.parametrize("ahead", [5_000, 30_000, HOUR])
def test_one_fast_clock_changes_nothing_of_the_other_machines(clock: str, ahead: int) -> None:
    """At the bound of the app's settings, which is shorter than any of these clocks is ahead."""
    world = [h for h in two_hours() if h.at_ms >= h.came_ms]
    machines = sorted({h.key for h in world if isinstance(h.event, Reading)})
    bound_ms = ms(IotSettings().stream.out_of_orderness)
    assert bound_ms < ahead
    right = told_of(world, {}, clock, 1, bound_ms=bound_ms)
    fast = told_of(world, {}, clock, 1, {machines[0]: ahead}, bound_ms=bound_ms)
    assert any(right[machine]["alarms"] for machine in machines[1:])
    for machine in machines[1:]:
        assert fast[machine] == right[machine]
        assert not fast[machine]["late"]
