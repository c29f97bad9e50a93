"""The fleet in motion: every tick each machine moves on a little and its due sensors sample."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from math import exp, pi, sin
from typing import Final

from millrace_apps.generators.engine.randomness import NORMAL, substream
from millrace_apps.generators.engine.simulated import Simulated, Truth
from millrace_apps.generators.iot.agenda import Agenda
from millrace_apps.generators.iot.faults import Troubles, distort, heard
from millrace_apps.generators.iot.fleet import (
    Fleet,
    Gateway,
    Machine,
    Plant,
    Sensor,
    registered,
)
from millrace_apps.generators.iot.laws import DAY_MS
from millrace_apps.generators.iot.machines import Life
from millrace_apps.generators.iot.profile import HEARTBEAT_TICKS, IotProfile
from millrace_apps.iot_maintenance.contracts.events import Heartbeat, Reading

EXCEEDANCE: Final = "limit_exceeded"
#: Time constants of the load's fluctuation, of losses and of warming up, seconds of plant life.
_LOAD_S, _HEAT_S, _WARM_S = 300.0, 900.0, 600.0
_LOAD_DEVIATION: Final = 0.03
#: Halls are coldest at 03 and warmest at 15 by the plant's clock, ± this many °C.
_DAILY_SWING: Final = 5.0
#: An exceedance is over when the value is back by this share of the sensor's span.
DEAD_BAND: Final = 0.05
_STEPS: Final = len(NORMAL)


def simulate(profile: IotProfile) -> Iterator[Simulated]:
    """Yield the events of a fleet in event time.

    Args:
        profile: What the fleet is; equal profiles give equal events.

    >>> stream = simulate(IotProfile(seed=1, machines=3))
    >>> [next(stream).stream for _ in range(3)]
    ['equipment', 'equipment', 'equipment']
    """
    return islice(_Simulation(profile).events(), profile.events)


class _Simulation:
    def __init__(self, profile: IotProfile) -> None:
        self._profile = profile
        self._fleet = Fleet(profile)
        self._agenda = Agenda()
        self._life = Life(profile, self._fleet, self._agenda)
        self._troubles = Troubles(profile, self._fleet, self._agenda)
        self._load_draw = substream(profile.seed, "iot", "load").random
        self._noise_draw = substream(profile.seed, "iot", "noise").random
        self._tick_ms = profile.tick_ms
        seconds = self._tick_ms / 1000.0 * profile.acceleration
        self._keep_load = exp(-seconds / _LOAD_S)
        self._push_load = _LOAD_DEVIATION * (1 - self._keep_load**2) ** 0.5
        self._heating = 1 - exp(-seconds / _HEAT_S)
        self._warming = 1 - exp(-seconds / _WARM_S)
        self._beats: list[list[Gateway]] = [[] for _ in range(HEARTBEAT_TICKS)]
        for gateway in self._fleet.gateways:
            self._beats[gateway.beat_class].append(gateway)

    def events(self) -> Iterator[Simulated]:
        """Yield everything, without end."""
        if self._profile.registry:
            yield from registered(self._fleet, self._profile)
        self._troubles.begin()
        for tick in count():
            now = self._profile.start_ms + tick * self._tick_ms
            for plant in self._fleet.plants:
                _weather(plant, now)
            yield from self._gateways(int(now), tick)
            yield from self._machines(now, tick)

    def _gateways(self, now_ms: int, tick: int) -> Iterator[Simulated]:
        if self._agenda.next_ms <= now_ms:
            yield from self._agenda.happen(now_ms)
        number = tick // HEARTBEAT_TICKS
        for gateway in self._beats[tick % HEARTBEAT_TICKS]:
            device_id = gateway.gateway_id
            out, truths = heard(gateway, device_id, now_ms)
            if out:
                event = Heartbeat(
                    f"{self._fleet.run}-k{gateway.number:06d}-{number}",
                    device_id,
                    "gateway",
                    device_id,
                    now_ms,
                )
                yield Simulated("heartbeats", device_id, event, now_ms, truths)

    def _machines(self, now: float, tick: int) -> Iterator[Simulated]:
        """Yield all that happens in one tick, machine by machine in the order of their phases.

        One loop with everything in it: it runs for every reading, and a call more is a third more time.
        """
        agenda, load_draw, noise_draw = self._agenda, self._load_draw, self._noise_draw
        slot, number = tick % HEARTBEAT_TICKS, tick // HEARTBEAT_TICKS
        varied = self._profile.variety
        for machine in self._fleet.in_order:
            self._move(machine, load_draw(), now)
            at_ms = int(now + machine.phase_ms)
            if agenda.next_ms <= at_ms:
                yield from agenda.happen(at_ms)
            if not tick:
                yield self._life.begin(machine, at_ms)
            gateway = machine.gateway
            if slot == machine.phase_class and gateway.silent_until_ms <= at_ms:
                out, silence = heard(machine, machine.machine_id, at_ms)
                if out:
                    yield self._beat(machine, number, at_ms, silence)
            ambient, effects, severity = machine.plant.ambient, machine.effects, machine.severity
            for sensor in machine.due[slot]:
                deviate = NORMAL[int(noise_draw() * _STEPS)]
                second = sensor.second
                other = 0.0 if second is None else NORMAL[int(noise_draw() * _STEPS)]
                at_ms = int(now + sensor.phase_ms)
                if agenda.next_ms <= at_ms:
                    yield from agenda.happen(at_ms)
                model = sensor.model
                value = (
                    model.base + model.on * machine.on + model.load * machine.load
                    + model.warm * machine.warm + model.heat * machine.heat + model.ambient * ambient
                )  # fmt: skip
                if effects:
                    value += effects[sensor.index] * severity * machine.on
                if gateway.silent_until_ms > at_ms or machine.silent_until_ms > at_ms:
                    continue
                signal = sensor.gain * value + sensor.offset + model.noise * deviate
                read: float | None = signal
                unit = model.unit
                truths: tuple[Truth, ...] = ()
                out = True
                if sensor.fault is not None:
                    out, read, unit, truths = distort(sensor, sensor.fault, signal, deviate, at_ms)
                if out:
                    if value > model.high or value < model.low or sensor.exceeding is not None:
                        truths += self._exceed(sensor, machine, value, at_ms)
                    if varied and read is not None:
                        read = _as_shown(model.quantity, read, machine.on)
                    event = Reading(
                        f"{sensor.prefix}{tick}", sensor.sensor_id, machine.machine_id, gateway.gateway_id,
                        model.quantity, read if read is None else round(read, 3), unit, at_ms,
                    )  # fmt: skip
                    yield Simulated("readings", machine.machine_id, event, at_ms, truths)
                if second is not None:
                    value *= 0.9
                    truths = ()
                    if value > model.high or value < model.low or second.exceeding is not None:
                        truths = self._exceed(second, machine, value, at_ms)
                    event = Reading(
                        f"{sensor.prefix}{tick}b", second.sensor_id, machine.machine_id, gateway.gateway_id,
                        model.quantity, round(value + model.noise * other, 3), model.unit, at_ms,
                    )  # fmt: skip
                    yield Simulated("readings", machine.machine_id, event, at_ms, truths)

    def _beat(self, machine: Machine, number: int, at_ms: int, truths: tuple[Truth, ...]) -> Simulated:
        machine_id, gateway_id = machine.machine_id, machine.gateway.gateway_id
        beat_id = f"{self._fleet.run}-b{machine.number:06d}-{number}"
        event = Heartbeat(beat_id, machine_id, "machine", gateway_id, at_ms)
        return Simulated("heartbeats", machine_id, event, at_ms, truths)

    def _move(self, machine: Machine, uniform: float, now: float) -> None:
        """Move a machine's load, temperatures and wear on by one tick."""
        deviation = machine.deviation * self._keep_load + self._push_load * NORMAL[int(uniform * _STEPS)]
        machine.deviation = deviation
        machine.load = load = machine.target + deviation if machine.on else 0.0
        machine.heat += self._heating * (load * load - machine.heat)
        machine.warm += self._warming * (machine.on - machine.warm)
        if machine.degrading is not None:
            part = (now - machine.onset_ms) / (machine.fails_ms - machine.onset_ms)
            # The square: damage grows faster the further it has gone.
            machine.severity = min(max(part, 0.0), 1.0) ** 2

    def _exceed(self, sensor: Sensor, machine: Machine, value: float, at_ms: int) -> tuple[Truth, ...]:
        """Return the exceedance that this reading begins or ends, if it does.

        It is judged by the true value: neither noise nor a faulty sensor makes one.
        """
        model = sensor.model
        truth = sensor.exceeding
        if truth is not None:
            back = DEAD_BAND * model.span
            if truth.detail["side"] == "high":
                lasts = value > model.high - back
            else:
                lasts = bool(machine.on) and value < model.low + back
            if lasts:
                return ()
            sensor.exceeding = None
            return (truth,)
        if value > model.high:
            side, limit = "high", model.high
        elif machine.on:
            side, limit = "low", model.low
        else:
            return ()
        detail = {"quantity": model.quantity, "side": side, "limit": limit, "begin_ms": at_ms}
        sensor.exceeding = Truth(
            truth_id=f"{sensor.prefix}l{at_ms}",
            kind=EXCEEDANCE,
            entity=sensor.sensor_id,
            expected="alarm",
            detail=detail,
        )
        return (sensor.exceeding,)


def _as_shown(quantity: str, value: float, on: float) -> float:
    """Return what a sensor of a plant as plants are shows: whole degrees; nought while it is off."""
    if quantity == "current" and not on:
        return 0.0
    return float(round(value)) if quantity.endswith("temperature") else value


def _weather(plant: Plant, now: float) -> None:
    local = (now + plant.shifts.offset_ms) / DAY_MS
    plant.ambient = _DAILY_SWING * sin(2 * pi * (local - 9 / 24))
