"""Contracts of the outputs: enriched readings, liveness, KPIs; alarms are in ``alarms.record``."""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

import msgspec

from millrace_apps.iot_maintenance.processes.quality import Fault, Quality


class EnrichedReading(msgspec.Struct, frozen=True, gc=False):
    """A reading with what held for its machine at its time; the row of highest ``revision`` counts.

    Attributes:
        reading_id: The reading.
        sensor_id: Its sensor.
        machine_id: Its machine.
        quantity: What was measured.
        value: The value as it came.
        unit: The unit as it came.
        event_time_ms: When it was measured.
        revision: 0, 1, …: how often the row was corrected.
        corrected: Whether this row corrects an earlier one: a fact came late.
        late: Whether the reading itself came behind the watermark; it is then in no statistic and no alarm.
        quality: Whether it is to be believed.
        fault: Why not.
        status: The machine's status, ``None`` before the first.
        status_since_ms: Since when.
        kind: The machine's kind, empty if nobody has said.
        attributes: The machine's other master data.
        last_maintenance_ms: Component → when it was last replaced, strictly before the reading.
        component_age_days: Component → days since then.
        errors_24h: Error code → how often in the 24 hours up to the reading, both told.
        average: Mean of the last values.
        average_by_time: Mean of the last minutes.
        trend: Slope, per hour.
        low: Least good value since the last maintenance.
        high: Largest good value since then.
        zscore: How unusual the value is, in standard deviations.
        point: The measuring point, where the machine has several of the quantity.
    """

    reading_id: str
    sensor_id: str
    machine_id: str
    quantity: str
    value: float | None
    unit: str
    event_time_ms: int
    revision: int
    corrected: bool
    late: bool
    quality: Quality
    fault: Fault
    status: str | None
    status_since_ms: int | None
    kind: str
    attributes: dict[str, str]
    last_maintenance_ms: dict[str, int]
    component_age_days: dict[str, float]
    errors_24h: dict[str, int]
    average: float | None = None
    average_by_time: float | None = None
    trend: float | None = None
    low: float | None = None
    high: float | None = None
    zscore: float | None = None
    point: str = ""


class Liveness(msgspec.Struct, frozen=True, gc=False):
    """A sensor, machine or gateway has fallen silent, or is heard again.

    Attributes:
        device_id: What it is.
        device_kind: Which of the three.
        gateway_id: Its gateway.
        state: ``silent`` or ``online``.
        cause: Whose silence it is: the device's own, that of its machine, or of its gateway.
        event_time_ms: When it was found.
        last_heard_ms: When it was last heard before.
        plant_id: Its plant.
        line_id: Its line.
        never_heard: It is in the registry, and has not been heard at all (``last_heard_ms`` is then when it
            was registered).
    """

    device_id: str
    device_kind: Literal["sensor", "machine", "gateway"]
    gateway_id: str
    state: Literal["silent", "online"]
    cause: Literal["own", "machine", "gateway"]
    event_time_ms: int
    last_heard_ms: int
    plant_id: str
    line_id: str
    never_heard: bool = False


class ShiftKpi(msgspec.Struct, frozen=True):
    """How a machine did in one shift; the row of highest ``revision`` counts.

    Attributes:
        machine_id: The machine.
        shift: Name of the shift: its local begin, ``2026-03-29T06:00``.
        shift_start_ms: Its begin.
        shift_end_ms: Its end.
        planned_ms: Planned busy time: without what was off, maintenance by plan, and unknown statuses.
        operating_ms: Time in which it produced.
        down_ms: Time in which it was broken or being repaired.
        failures: How often it broke down.
        repairs: How many of those were over in the shift.
        produced: Parts.
        rejected: Scrap among them.
        availability: Operating time of planned time.
        performance: Parts of what the operating time could have made (effectiveness).
        quality: Good parts of parts.
        oee: Product of the three (ISO 22400-2).
        mtbf_h: Operating hours per failure since the machine is known.
        mttr_h: Hours down per repair since then.
        by_status_ms: Time in each status.
        revision: 0, 1, …: how often it was told anew, because the machine was behind and had more to say, or
            said later how many parts it had made.
        planned_stop_ms: Time of maintenance by plan.
        unknown_ms: Time in statuses that nobody has said the meaning of.
    """

    machine_id: str
    shift: str
    shift_start_ms: int
    shift_end_ms: int
    planned_ms: int
    operating_ms: int
    down_ms: int
    failures: int
    repairs: int
    produced: int
    rejected: int
    availability: float | None
    performance: float | None
    quality: float | None
    oee: float | None
    mtbf_h: float | None
    mttr_h: float | None
    by_status_ms: dict[str, int]
    revision: int = 0
    planned_stop_ms: int = 0
    unknown_ms: int = 0


def digest_of(row: msgspec.Struct) -> bytes:
    """Return eight bytes by which a row is known again."""
    return blake2b(msgspec.json.encode(row), digest_size=8).digest()
