"""The recipe on printers of the generated plant: those whose heater runs away are stopped in time."""

from __future__ import annotations

from millrace.testing import TestDriver
from millrace.time import minutes
from millrace_apps.generators.iot import IotProfile, simulate
from millrace_apps.recipes.stop_the_print import LIMIT, Bed, Reading

#: A Thursday, ten in the morning: most plants work.
MORNING_MS = 1_767_261_600_000
#: Heaters that run away do so within an hour; beds are read once a minute.
PLANT = IotProfile(
    seed=4, start_ms=MORNING_MS, machines=45, event_rate=12.0, acceleration=1.0, events=130_000, worn=1.0,
    warning_scale=8.0, sensor_fault_rate=0.0, outage_rate=0.0, false_error_rate=0.0,
)  # fmt: skip


def test_printers_are_stopped_before_their_bed_is_too_hot_and_no_others() -> None:
    driver = TestDriver(Bed(), out_of_orderness_ms=10_000)
    run_away, too_hot = set(), dict[str, int]()
    for simulated in simulate(PLANT):
        run_away |= {truth.entity for truth in simulated.truths if truth.kind == "heater_runaway"}
        event = simulated.event
        if simulated.stream == "readings" and event.quantity == "bed_temperature":
            name, at = event.machine_id, event.event_time_ms
            driver.send(name, Reading(name, at, event.value), at=at)
            if event.value > LIMIT:
                too_hot.setdefault(name, at)
    driver.drain()
    rows, times = driver.values(), [e.event_time for e in driver.emissions if e.output == "main"]
    stops = {row.printer: row for row in rows}
    told = {row.printer: at for row, at in zip(rows, times, strict=True)}
    assert len(rows) == len(stops)  # each is told once
    assert len(too_hot) >= 2
    assert set(too_hot) <= run_away
    for name, at in too_hot.items():
        assert minutes(1) <= at - told[name] <= minutes(30)
        assert stops[name].earliest < 5
    assert set(stops) <= run_away
