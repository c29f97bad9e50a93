"""The asset tree: plants, lines with a gateway each, machines, sensors; made once before the first event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from millrace_apps.generators.engine.randomness import digest, substream
from millrace_apps.generators.engine.simulated import Simulated, Truth
from millrace_apps.generators.iot.laws import HOUR_MS, Draws, Shifts, weibull_life
from millrace_apps.generators.iot.models import MODELS, ComponentModel, MachineModel, SensorModel
from millrace_apps.generators.iot.profile import HEARTBEAT_TICKS, IotProfile
from millrace_apps.generators.iot.regimes import VOCABULARIES
from millrace_apps.iot_maintenance.contracts.events import Equipment, MeasuringPoint

#: UTC offsets of the plants' clocks, hours, in turn.
_OFFSETS_H: Final = (1, 0, -5, 9)
#: Operating hours in an hour of the calendar, for the age of what was built in before the begin.
_UTILISATION: Final = 0.7
#: Where the two vibration sensors of a pump are.
DRIVE_END: Final = "drive end"
FAN_END: Final = "fan end"


class Silence:
    """A device that says nothing: planned until its next heartbeat, then begun, over with the first after it.

    Attributes:
        truth_id: Id of the truth.
        kind: ``gateway_outage`` or ``machine_silence``.
        duration_ms: How long it lasts, ms.
        truth: What is true about it, once it has begun.
    """

    __slots__ = ("duration_ms", "kind", "truth", "truth_id")

    def __init__(self, truth_id: str, kind: str, duration_ms: int) -> None:
        self.truth_id = truth_id
        self.kind = kind
        self.duration_ms = duration_ms
        self.truth: Truth | None = None


class Plant:
    """A plant with its clock, its shifts and the temperature in its halls (°C above 20)."""

    __slots__ = ("ambient", "plant_id", "shifts", "vocabulary", "words")

    def __init__(self, number: int, variety: int = 0) -> None:
        place = number % len(VOCABULARIES) if variety else 0
        self.vocabulary, self.words = VOCABULARIES[place]
        self.plant_id = f"p{number + 1:02d}"
        self.shifts = Shifts(number % 3, _OFFSETS_H[number % len(_OFFSETS_H)] * HOUR_MS)
        self.ambient = 0.0


class Gateway:
    """The gateway of a line: what its machines send passes through it."""

    __slots__ = ("beat_class", "gateway_id", "line_id", "number", "silence", "silent_until_ms")

    def __init__(self, number: int, line_id: str) -> None:
        self.number = number
        self.line_id = line_id
        self.gateway_id = f"{line_id}-gw"
        self.silent_until_ms = 0
        self.silence: Silence | None = None
        self.beat_class = 0


class Component:
    """A component that is built in now, with its operating hours and the age its degradation begins at.

    ``generation`` counts what was built in here: what was planned for an earlier one is void.
    """

    __slots__ = ("age_h", "generation", "life_h", "model", "service_ms")

    def __init__(self, model: ComponentModel) -> None:
        self.model = model
        self.age_h = 0.0
        self.life_h = 0.0
        self.service_ms = 0
        self.generation = 0


class SensorFault:
    """Something wrong with a sensor: planned until its next reading, then begun.

    Attributes:
        truth_id: Id of the truth.
        kind: Its kind.
        duration_ms: How long it lasts, ms.
        uniform: A random number that says how bad it is.
        begin_ms: When it began, ms.
        end_ms: When it ends, ms.
        truth: What is true about it, once it has begun.
    """

    __slots__ = ("begin_ms", "duration_ms", "end_ms", "kind", "truth", "truth_id", "uniform")

    def __init__(self, truth_id: str, kind: str, duration_ms: int, uniform: float) -> None:
        self.truth_id = truth_id
        self.kind = kind
        self.duration_ms = duration_ms
        self.uniform = uniform
        self.begin_ms = 0
        self.end_ms = 0
        self.truth: Truth | None = None


class Sensor:
    """A sensor; ``fault`` is what is wrong with it now, ``second`` the one of its quantity beside it."""

    __slots__ = (
        "exceeding",
        "fault",
        "gain",
        "index",
        "last",
        "model",
        "offset",
        "phase_ms",
        "prefix",
        "second",
        "sensor_id",
    )

    def __init__(self, model: SensorModel, index: int, machine_id: str) -> None:
        self.model = model
        self.index = index
        self.sensor_id = f"{machine_id}.{model.quantity}"
        self.prefix = ""
        self.phase_ms = 0.0
        self.offset = 0.0
        self.gain = 1.0
        self.last: float | None = None
        self.fault: SensorFault | None = None
        self.exceeding: Truth | None = None
        self.second: Sensor | None = None


class Machine:
    """A machine: what it does, how warm it is, what wears in it.

    Attributes:
        version: Counts changes of status: what was planned for an earlier one is void.
        load: Load now; 1 is nominal.
        degrading: The component that is on its way to failure.
    """

    __slots__ = (
        "components",
        "degrading",
        "deviation",
        "due",
        "effects",
        "fails_ms",
        "failure",
        "gateway",
        "heat",
        "load",
        "machine_id",
        "model",
        "nominal",
        "number",
        "on",
        "onset_ms",
        "phase_class",
        "phase_ms",
        "plant",
        "regime",
        "regime_ms",
        "sensors",
        "severity",
        "silence",
        "silent_until_ms",
        "statuses",
        "target",
        "version",
        "warm",
        "work",
    )  # fmt: skip

    def __init__(
        self, number: int, machine_id: str, model: MachineModel, plant: Plant, gateway: Gateway
    ) -> None:
        self.number = number
        self.machine_id = machine_id
        self.model = model
        self.plant = plant
        self.gateway = gateway
        self.sensors = [Sensor(sensor, i, machine_id) for i, sensor in enumerate(model.sensors)]
        self.components = [Component(component) for component in model.components]
        self.due: tuple[tuple[Sensor, ...], ...] = ()
        self.phase_class = 0
        self.phase_ms = 0.0
        self.regime: str = ""
        self.regime_ms = 0
        self.version = 0
        self.statuses = 0
        self.nominal = 0.7
        self.target = 0.0
        self.deviation = 0.0
        self.load = 0.0
        self.on = 0.0
        self.heat = 0.0
        self.warm = 0.0
        self.degrading: Component | None = None
        self.failure: Truth | None = None
        self.effects: tuple[float, ...] = ()
        self.severity = 0.0
        self.onset_ms = 0
        self.fails_ms = 0
        self.silent_until_ms = 0
        self.silence: Silence | None = None
        self.work: list[Work] = []


class Work(NamedTuple):
    """A component that is replaced in the stop that a machine is in."""

    component: Component
    kind: Literal["scheduled", "corrective"]
    truths: tuple[Truth, ...]


class Fleet:
    """All machines of a profile, in the order in which they sample within a tick.

    Args:
        profile: What it is made from.
    """

    def __init__(self, profile: IotProfile) -> None:
        self.run = digest("iot", profile.seed, profile.start_ms)[:10]
        self.draws = Draws(profile.seed)
        self.plants: list[Plant] = []
        self.gateways: list[Gateway] = []
        self.machines: list[Machine] = []
        for number in range(profile.machines):
            self._add(number, profile)
        self.in_order = self._order(profile)

    def _add(self, number: int, profile: IotProfile) -> None:
        line, in_line = divmod(number, profile.machines_per_line)
        plant_number, in_plant = divmod(line, profile.lines_per_plant)
        if plant_number == len(self.plants):
            self.plants.append(Plant(plant_number, profile.variety))
        plant = self.plants[plant_number]
        line_id = f"{plant.plant_id}-l{in_plant + 1:02d}"
        if line == len(self.gateways):
            self.gateways.append(Gateway(line, line_id))
        model = MODELS[number % len(MODELS)]
        machine = Machine(number, f"{line_id}-m{in_line + 1:03d}", model, plant, self.gateways[line])
        machine.nominal = 0.6 + 0.25 * self.draws.uniform("nominal", number, 0)
        for component in machine.components:
            self._build_in(component, machine, profile)
        self._wear_out(machine, profile)
        for sensor in machine.sensors:
            # No two sensors are alike: 2 % of gain and a little offset, as calibration leaves them.
            uniform = self.draws.uniform("gain", number, sensor.index)
            sensor.gain = 0.98 + 0.04 * uniform
            sensor.offset = sensor.model.noise * (uniform * 1000 % 1.0 - 0.5)
            sensor.prefix = f"{self.run}-{number:06d}.{sensor.index}-"
            if has_second(machine, sensor, profile.variety):
                second = sensor.second = Sensor(sensor.model, sensor.index, machine.machine_id)
                second.sensor_id, second.prefix = second_of(sensor), f"{sensor.prefix}b"
        self.machines.append(machine)

    def _build_in(self, component: Component, machine: Machine, profile: IotProfile) -> None:
        """Give a component an age, as some way between two services."""
        model = component.model
        part = self.draws.uniform(f"age:{model.name}", machine.number, 0)
        uniform = self.draws.uniform(f"life:{model.name}", machine.number, 0)
        component.age_h = (1 - part) * model.service_h * _UTILISATION
        if profile.failure_scale:
            scale = model.life_h / profile.failure_scale
            component.age_h /= max(1.0, profile.failure_scale)
            component.life_h = weibull_life(uniform, scale, model.shape, component.age_h)
        component.service_ms = profile.start_ms + profile.event_ms(part * model.service_h)

    def _wear_out(self, machine: Machine, profile: IotProfile) -> None:
        """Bring one component of a machine to its end, if it is one of those that are worn."""
        uniform, number = self.draws.uniform, machine.number
        if not profile.failure_scale or uniform("worn", number, 0) >= profile.worn:
            return
        place = int(uniform("worn:component", number, 0) * len(machine.components))
        component = machine.components[place]
        left_h = uniform("worn:left", number, 0) * component.model.warning_h / profile.warning_scale
        component.life_h = component.age_h + profile.worn_from + left_h

    def _order(self, profile: IotProfile) -> list[Machine]:
        """Spread the samples evenly over a tick, so that no two machines speak at once."""
        tick_ms, size = profile.tick_ms, len(self.machines)
        order = list(range(size))
        draw = substream(profile.seed, "iot", "phase").random
        for last in range(size - 1, 0, -1):
            other = int(draw() * (last + 1))
            order[last], order[other] = order[other], order[last]
        machines = [self.machines[number] for number in order]
        for place, machine in enumerate(machines):
            slots = len(machine.sensors) + 2
            machine.phase_class = place % HEARTBEAT_TICKS
            machine.phase_ms = place / size * tick_ms
            for i, sensor in enumerate(machine.sensors):
                sensor.phase_ms = (place + (i + 1) / slots) / size * tick_ms
            machine.due = due_sensors(machine.sensors, machine.phase_class)
        for number, gateway in enumerate(self.gateways):
            gateway.beat_class = number % HEARTBEAT_TICKS
        return machines


def has_second(machine: Machine, sensor: Sensor, variety: int) -> bool:
    """Return whether a sensor has a second one of its quantity beside it."""
    return bool(variety) and machine.model.kind == "pump" and sensor.model.quantity == "vibration"


def second_of(sensor: Sensor) -> str:
    """Return the name of the second sensor."""
    return f"{sensor.sensor_id}.2"


def registered(fleet: Fleet, profile: IotProfile) -> Iterator[Simulated]:
    """Yield the asset registry of a fleet: its gateways and machines, as of the begin."""
    at, tick_ms = profile.start_ms, profile.tick_ms
    behind: dict[str, list[str]] = {gateway.gateway_id: [gateway.gateway_id] for gateway in fleet.gateways}
    for machine in fleet.machines:
        gateway = machine.gateway
        behind[gateway.gateway_id].append(machine.machine_id)
        points = []
        for s in machine.sensors:
            every = max(1, round(s.model.every * tick_ms))
            twice = has_second(machine, s, profile.variety)
            points.append(MeasuringPoint(s.model.quantity, DRIVE_END if twice else "", s.sensor_id, every))
            if twice:
                points.append(MeasuringPoint(s.model.quantity, FAN_END, second_of(s), every))
        plant = machine.plant
        words = {"vocabulary": plant.vocabulary} if plant.vocabulary else {}
        event = Equipment(
            machine_id=machine.machine_id,
            event_time_ms=at,
            kind=machine.model.kind,
            attributes=words,
            site=plant.plant_id,
            line=gateway.line_id,
            points=points,
        )
        yield Simulated("equipment", machine.machine_id, event, at)
    plants = {machine.gateway.gateway_id: machine.plant.plant_id for machine in fleet.machines}
    for gateway in fleet.gateways:
        name = gateway.gateway_id
        event = Equipment(
            machine_id=name,
            event_time_ms=at,
            kind="gateway",
            site=plants[name],
            line=gateway.line_id,
            devices=behind[name],
        )
        yield Simulated("equipment", name, event, at)


def due_sensors(sensors: list[Sensor], phase_class: int) -> tuple[tuple[Sensor, ...], ...]:
    """Return which sensors sample in each of ten ticks; each keeps its interval exactly."""
    return tuple(
        tuple(s for s in sensors if (tick + phase_class + s.index) % s.model.every == 0)
        for tick in range(HEARTBEAT_TICKS)
    )


def assets(profile: IotProfile) -> Iterator[dict[str, Any]]:
    """Yield the fleet's sensors with all that stands above them in the asset tree, one after another.

    Args:
        profile: What the fleet is made from.

    >>> first = next(assets(IotProfile(seed=1, machines=1)))
    >>> first["sensor_id"], first["kind"], first["unit"]
    ('p01-l01-m001.vibration', 'pump', 'mm/s')
    """
    tick_ms = profile.tick_ms
    for machine in Fleet(profile).machines:
        for sensor in machine.sensors:
            model = sensor.model
            yield {
                "plant_id": machine.plant.plant_id,
                "line_id": machine.gateway.line_id,
                "gateway_id": machine.gateway.gateway_id,
                "machine_id": machine.machine_id,
                "kind": machine.model.kind,
                "sensor_id": sensor.sensor_id,
                "quantity": model.quantity,
                "unit": model.unit,
                "interval_ms": model.every * tick_ms,
                "heartbeat_ms": HEARTBEAT_TICKS * tick_ms,
                "low": model.low if model.low > float("-inf") else None,
                "high": model.high if model.high < float("inf") else None,
                "parts_per_h": machine.model.parts_per_h,
                "shift_pattern": machine.plant.shifts.pattern,
                "utc_offset_ms": machine.plant.shifts.offset_ms,
            }
