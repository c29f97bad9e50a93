"""A fleet of machines with sensors, and all that happens to them: the iot domain."""

from typing import Final

from millrace_apps.generators.engine.simulated import Domain, StreamSpec
from millrace_apps.generators.iot.faults import GATEWAY_OUTAGE, MACHINE_SILENCE, SENSOR_FAULTS
from millrace_apps.generators.iot.fleet import assets
from millrace_apps.generators.iot.machines import AVERTED
from millrace_apps.generators.iot.models import MODELS
from millrace_apps.generators.iot.profile import IotProfile
from millrace_apps.generators.iot.simulation import EXCEEDANCE, simulate
from millrace_apps.iot_maintenance.contracts.events import (
    Equipment,
    Heartbeat,
    MachineError,
    Maintenance,
    Reading,
    Status,
)

_FAULTS: Final = {
    "stuck": "the sensor repeats one value",
    "spike": "one reading far off",
    "drift": "the reading runs away slowly",
    "dropout": "the transmitter has no value: null",
    "wrong_unit": "the value is in another unit; the unit field says so, or not",
    "gap": "readings are missing; the last before and the first after belong to it",
    "noise": "the noise is fifteen times as loud",
}

DOMAIN: Final = Domain(
    name="iot",
    description="machines with sensors: readings, status, maintenance, errors, registry; what goes wrong",
    streams={
        "readings": StreamSpec(
            topic="iot.readings", event_type=Reading, id_field="reading_id", time_field="event_time_ms"
        ),
        "status": StreamSpec(
            topic="iot.status", event_type=Status, id_field="status_id", time_field="event_time_ms"
        ),
        "maintenance": StreamSpec(
            topic="iot.maintenance",
            event_type=Maintenance,
            id_field="maintenance_id",
            time_field="event_time_ms",
        ),
        "errors": StreamSpec(
            topic="iot.errors", event_type=MachineError, id_field="error_id", time_field="event_time_ms"
        ),
        "heartbeats": StreamSpec(
            topic="iot.heartbeats", event_type=Heartbeat, id_field="heartbeat_id", time_field="event_time_ms"
        ),
        "equipment": StreamSpec(
            topic="iot.equipment", event_type=Equipment, id_field="machine_id", time_field="event_time_ms"
        ),
    },
    profile=IotProfile,
    simulate=simulate,
    scenarios={
        **{
            component.mode: f"{model.kind}: degradation and failure of its {component.name.replace('_', ' ')}"
            for model in reversed(MODELS)
            for component in model.components
        },
        AVERTED: "a component degrades, and a scheduled service replaces it in time",
        **{f"sensor_{kind}": _FAULTS[kind] for kind in SENSOR_FAULTS},
        GATEWAY_OUTAGE: "a gateway and all machines behind it are not heard",
        MACHINE_SILENCE: "one machine's controller is not heard",
        EXCEEDANCE: "the true value passes a limit, and comes back",
    },
)

__all__ = ["DOMAIN", "IotProfile", "assets", "simulate"]
