"""Runs of the iot domain and ways to look at them, shared by its tests."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from millrace_apps.generators.engine.simulated import Simulated, Truth
from millrace_apps.generators.iot import IotProfile
from millrace_apps.generators.iot.laws import HOUR_MS
from millrace_apps.generators.iot.models import MODELS

#: Thursday 2026-01-01 10:00 UTC: the plants of all zones but one are at work.
MORNING_MS = 1_767_225_600_000 + 10 * HOUR_MS
#: Some 700 hours of 25 machines' lives in under two seconds.
WORN = IotProfile(
    seed=5, events=120_000, machines=25, start_ms=MORNING_MS, event_rate=100.0, acceleration=2_000.0,
    machines_per_line=5, lines_per_plant=2, failure_scale=2.0, outage_rate=2.0,
)  # fmt: skip
CALM: dict[str, Any] = dict.fromkeys(
    ("failure_scale", "sensor_fault_rate", "outage_rate", "false_error_rate"), 0.0
)
#: A day of twelve machines in three plants without anything wrong.
DAY = IotProfile(
    seed=9, machines=12, machines_per_line=2, lines_per_plant=2, event_rate=0.5, acceleration=1.0,
    events=43_200, **CALM,
)  # fmt: skip
MODES = {component.mode: component for model in MODELS for component in model.components}


def digest(events: Iterable[Simulated]) -> str:
    return hashlib.sha256(b"\n".join(msgspec.json.encode(event) for event in events)).hexdigest()


def truths(events: Iterable[Simulated]) -> dict[str, tuple[Truth, list[Simulated]]]:
    """Each truth with its events."""
    found: dict[str, tuple[Truth, list[Simulated]]] = {}
    for event in events:
        for truth in event.truths:
            known, its_events = found.setdefault(truth.truth_id, (truth, []))
            assert known == truth
            its_events.append(event)
    return found


def is_faulty(event: Simulated) -> bool:
    return any(truth.kind.startswith("sensor_") for truth in event.truths)


def of(events: Iterable[Simulated], stream: str) -> Iterator[Any]:
    return (event.event for event in events if event.stream == stream)


def readings_by_regime(events: Iterable[Simulated]) -> dict[tuple[str, str], list[float]]:
    """Values by quantity and regime of the machine, without those of faulty sensors."""
    status: dict[str, str] = {}
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        if event.stream == "status":
            status[event.event.machine_id] = event.event.status
        elif event.stream == "readings" and not is_faulty(event):
            found[event.event.quantity, status[event.event.machine_id]].append(event.event.value)
    return found
