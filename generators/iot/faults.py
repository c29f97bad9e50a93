"""Faults of the measuring: broken sensors, silent gateways and machines, false errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from millrace_apps.generators.engine.simulated import Simulated, Truth
from millrace_apps.generators.iot.agenda import Agenda
from millrace_apps.generators.iot.fleet import Fleet, Gateway, Machine, Sensor, SensorFault, Silence
from millrace_apps.generators.iot.laws import exponential, lognormal
from millrace_apps.generators.iot.models import CONVERSIONS
from millrace_apps.generators.iot.profile import HEARTBEAT_TICKS, IotProfile
from millrace_apps.iot_maintenance.contracts.events import MachineError

STUCK: Final = "stuck"
SPIKE: Final = "spike"
DRIFT: Final = "drift"
DROPOUT: Final = "dropout"
WRONG_UNIT: Final = "wrong_unit"
GAP: Final = "gap"
NOISE: Final = "noise"
#: Fault → median duration, hours of plant life. A spike is one reading.
SENSOR_FAULTS: Final[Mapping[str, float]] = {
    STUCK: 0.5,
    SPIKE: 0.0,
    DRIFT: 3.0,
    DROPOUT: 0.3,
    WRONG_UNIT: 0.5,
    GAP: 0.4,
    NOISE: 0.7,
}
GATEWAY_OUTAGE: Final = "gateway_outage"
MACHINE_SILENCE: Final = "machine_silence"
#: A fault lasts at least this many of the sensor's intervals, a silence this many heartbeats.
LEAST_INTERVALS: Final = 6
_LEAST_BEATS: Final = 3


class Troubles:
    """Plans faults: for each kind one Poisson process over the whole fleet, its victims all alike.

    Args:
        profile: Rates.
        fleet: The victims.
        agenda: Where the future is planned.
    """

    def __init__(self, profile: IotProfile, fleet: Fleet, agenda: Agenda) -> None:
        self._profile = profile
        self._fleet = fleet
        self._uniform = fleet.draws.uniform
        self._agenda = agenda
        self._tick_ms = profile.tick_ms
        self._sensors = [sensor for machine in fleet.machines for sensor in machine.sensors]

    def begin(self) -> None:
        """Plan the first of every kind."""
        profile, start_ms = self._profile, self._profile.start_ms
        machines, gateways = self._fleet.machines, self._fleet.gateways
        for name, rate, size, strike in (
            ("sensor", profile.sensor_fault_rate, len(self._sensors), self._sensor),
            ("gateway", profile.outage_rate, len(gateways), self._gateway),
            ("machine", profile.outage_rate, len(machines), self._machine),
            ("error", profile.false_error_rate, len(machines), self._error),
        ):
            if rate:
                self._plan(name, 1000.0 / (rate * size), size, strike, 0, start_ms)

    def _plan(
        self,
        name: str,
        mean_h: float,
        size: int,
        strike: Callable[[int, int, int], Iterable[Simulated]],
        number: int,
        now_ms: int,
    ) -> None:
        """Plan the ``number``-th strike: it hits one of ``size`` victims and plans the one after it."""

        def happen(at_ms: int) -> Iterable[Simulated]:
            self._plan(name, mean_h, size, strike, number + 1, at_ms)
            return strike(int(size * self._uniform(name, "victim", number)), number, at_ms)

        hours = exponential(self._uniform(name, "when", number), mean_h)
        self._agenda.plan(now_ms + self._profile.event_ms(hours), happen)

    def _sensor(self, victim: int, number: int, at_ms: int) -> Iterable[Simulated]:
        sensor = self._sensors[victim]
        if sensor.fault is None:
            kinds = list(SENSOR_FAULTS)
            kind = kinds[int(len(kinds) * self._uniform("sensor", "kind", number))]
            hours = lognormal(self._uniform("sensor", "span", number), SENSOR_FAULTS[kind], 0.5)
            least = int(LEAST_INTERVALS * sensor.model.every * self._tick_ms) + 1
            span_ms = 1 if kind == SPIKE else max(self._profile.event_ms(hours), least)
            bad = self._uniform("sensor", "bad", number)
            sensor.fault = SensorFault(f"{self._fleet.run}-q{number:07d}", kind, span_ms, bad)
        return ()

    def _gateway(self, victim: int, number: int, at_ms: int) -> Iterable[Simulated]:
        gateway = self._fleet.gateways[victim]
        if gateway.silence is None:
            span_ms = self._silence_ms("gateway", number)
            gateway.silence = Silence(f"{self._fleet.run}-g{number:07d}", GATEWAY_OUTAGE, span_ms)
        return ()

    def _machine(self, victim: int, number: int, at_ms: int) -> Iterable[Simulated]:
        machine = self._fleet.machines[victim]
        if machine.silence is None:
            span_ms = self._silence_ms("machine", number)
            machine.silence = Silence(f"{self._fleet.run}-h{number:07d}", MACHINE_SILENCE, span_ms)
        return ()

    def _silence_ms(self, name: str, number: int) -> int:
        hours = lognormal(self._uniform(name, "span", number), 0.5, 0.6)
        return max(self._profile.event_ms(hours), int(_LEAST_BEATS * HEARTBEAT_TICKS * self._tick_ms) + 1)

    def _error(self, victim: int, number: int, at_ms: int) -> Iterable[Simulated]:
        machine = self._fleet.machines[victim]
        if not machine.on:
            return ()
        components = machine.model.components
        code = components[int(len(components) * self._uniform("error", "code", number))].code
        event = MachineError(f"{self._fleet.run}-x{number:07d}", machine.machine_id, code, at_ms)
        return (Simulated("errors", machine.machine_id, event, at_ms),)


def heard(device: Gateway | Machine, entity: str, at_ms: int) -> tuple[bool, tuple[Truth, ...]]:
    """Return whether a heartbeat of a device gets out, and the silence that it is the edge of.

    The last heartbeat before a silence and the first after it belong to the silence.
    """
    silence = device.silence
    if silence is None:
        return True, ()
    if silence.truth is None:
        end_ms = at_ms + silence.duration_ms
        detail = {"begin_ms": at_ms, "end_ms": end_ms}
        silence.truth = Truth(
            truth_id=silence.truth_id, kind=silence.kind, entity=entity, expected="no_data", detail=detail
        )
        device.silent_until_ms = end_ms
        return True, (silence.truth,)
    if at_ms < device.silent_until_ms:
        return False, ()
    device.silence = None
    return True, (silence.truth,)


def distort(
    sensor: Sensor, fault: SensorFault, value: float, deviate: float, at_ms: int
) -> tuple[bool, float | None, str, tuple[Truth, ...]]:
    """Return what a faulty sensor makes of a value.

    Args:
        sensor: The sensor.
        fault: What is wrong with it.
        value: What it would read.
        deviate: The reading's standard normal number.
        at_ms: When, ms.

    Returns:
        Whether there is a reading at all, its value, its unit, and the fault it is part of.
    """
    unit = sensor.model.unit
    if fault.truth is None:
        return _first(sensor, fault, value, at_ms)
    if at_ms >= fault.end_ms:
        sensor.fault = None
        # The first reading after a gap shows the gap.
        return True, value, unit, (fault.truth,) if fault.kind == GAP else ()
    if fault.kind == GAP:
        return False, None, unit, ()
    return True, *_wrong(sensor, fault, value, deviate, at_ms), (fault.truth,)


def _first(
    sensor: Sensor, fault: SensorFault, value: float, at_ms: int
) -> tuple[bool, float | None, str, tuple[Truth, ...]]:
    """Begin a fault; its first reading, or the last one before a gap."""
    fault.begin_ms, fault.end_ms = at_ms, at_ms + fault.duration_ms
    detail: dict[str, object] = {"begin_ms": at_ms, "end_ms": fault.end_ms, "quantity": sensor.model.quantity}
    if fault.kind == WRONG_UNIT:
        detail["unit_says_so"] = _unit_says_so(fault)
    fault.truth = Truth(
        truth_id=fault.truth_id,
        kind=f"sensor_{fault.kind}",
        entity=sensor.sensor_id,
        expected="sensor_alarm",
        detail=detail,
    )
    if fault.kind == GAP:
        return True, value, sensor.model.unit, (fault.truth,)
    sensor.last = value
    return True, *_wrong(sensor, fault, value, 0.0, at_ms), (fault.truth,)


def _wrong(
    sensor: Sensor, fault: SensorFault, value: float, deviate: float, at_ms: int
) -> tuple[float | None, str]:
    model = sensor.model
    sign = 1 if fault.uniform < 0.5 else -1
    if fault.kind == STUCK:
        return sensor.last, model.unit
    if fault.kind == DROPOUT:
        return None, model.unit
    if fault.kind == WRONG_UNIT:
        other, factor, offset = CONVERSIONS[model.unit]
        return value * factor + offset, other if _unit_says_so(fault) else model.unit
    if fault.kind == SPIKE:
        return value + sign * model.span * (1.5 + fault.uniform), model.unit
    if fault.kind == NOISE:
        return value + 15 * model.noise * deviate, model.unit
    part = (at_ms - fault.begin_ms) / fault.duration_ms
    return value + sign * (0.4 + 0.4 * fault.uniform) * model.span * part, model.unit


def _unit_says_so(fault: SensorFault) -> bool:
    """Whether the unit field names the unit that the value is in, or still the right one."""
    return fault.uniform < 0.5
