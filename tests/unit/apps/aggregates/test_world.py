"""The aggregates app holds to the contract of apps: readings of machines, aggregations of them published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from millrace.testing.app_contract import AppInMemory, AppWorld
from millrace.testing.standing import Happened
from millrace_apps.aggregates.app import app
from millrace_apps.aggregates.definition import Aggregation, Windows
from millrace_apps.aggregates.life import PublishAggregation
from millrace_apps.generators.iot import IotProfile, simulate
from millrace_apps.iot_maintenance.contracts.events import Reading

START = 1_767_261_600_000
SOURCE = "iot.readings"
AGGREGATIONS = (
    Aggregation("heat", SOURCE, Windows("tumbling", 10_000),
                {"n": "count", "mean": "mean(value)", "p90": "quantile(value, 0.9)"},
                ["machine_id", "quantity"], "quantity == 'temperature'"),
    Aggregation("who", SOURCE, Windows("hopping", 20_000, 5_000),
                {"machines": "count_distinct(machine_id)", "values": "count_distinct(value)"}, ["quantity"]),
    Aggregation("calls", SOURCE, Windows("session", 1_500, None, 9_000),
                {"n": "count", "median": "quantile(value, .5)", "some": "distinct(quantity, 2)",
                 "last": "last(sensor_id)"}, ["machine_id"]),
)  # fmt: skip


class AggregatesWorld(AppWorld):
    app = app
    overrides = (f"sources={SOURCE}",)
    bound_ms = 3_000
    seeds = range(2)
    hostile_events = 1_500
    repeats = True
    controls = tuple(PublishAggregation(one, 1, "ann", START, 0) for one in AGGREGATIONS)

    def world(self) -> Iterator[Happened]:
        profile = IotProfile(
            seed=6,
            start_ms=START,
            machines=9,
            machines_per_line=3,
            event_rate=60.0,
            sensor_fault_rate=1000.0,
            events=1_000,
        )
        for simulated in simulate(profile):
            if simulated.stream != "readings":
                continue
            event: Any = msgspec.convert(simulated.event, Reading, from_attributes=True)
            yield Happened(event.event_time_ms, event.machine_id, event.event_time_ms, event)


class TestAggregates(AppInMemory, AggregatesWorld):
    pass
