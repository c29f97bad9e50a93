"""Kinds of machines: their sensors, their components, and how each failure mode shows itself.

A sensor's value is ``base + on·[machine on] + load·L + warm·W + heat·H + ambient·(T - 20 °C) + noise``
with the load ``L`` (1 is nominal), and two first-order lags: ``W`` of the machine being on, ``H`` of
``L²``, as resistive losses grow with the square of the current. A degrading component adds
``effect · severity`` while the machine is on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

#: Other unit → how a value in the right unit reads in it: factor and offset.
CONVERSIONS: Final[Mapping[str, tuple[str, float, float]]] = {
    "degC": ("degF", 1.8, 32.0),
    "bar": ("psi", 14.5038, 0.0),
    "mm/s": ("in/s", 1 / 25.4, 0.0),
    "A": ("mA", 1000.0, 0.0),
    "kW": ("W", 1000.0, 0.0),
    "rpm": ("Hz", 1 / 60, 0.0),
    "m3/h": ("l/min", 1000 / 60, 0.0),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SensorModel:
    """A sensor of a kind of machine.

    Attributes:
        quantity: What it measures.
        unit: In which unit.
        every: Samples once in this many ticks: 1, 2, 5 or 10.
        base: Value with the machine off at 20 °C.
        on: Added while the machine is on.
        load: Added per unit of load.
        warm: Added once the machine is warm.
        heat: Added per unit of squared load, lagged.
        ambient: Added per °C of ambient temperature above 20 °C.
        noise: Standard deviation of the noise.
        low: Limit below which the value of a machine that is on is an exceedance.
        high: Limit above which a value is an exceedance.
    """

    quantity: str
    unit: str
    every: int
    base: float = 0.0
    on: float = 0.0
    load: float = 0.0
    warm: float = 0.0
    heat: float = 0.0
    ambient: float = 0.0
    noise: float
    low: float = -inf
    high: float = inf

    @property
    def span(self) -> float:
        """What the value ranges over in normal use, in its unit."""
        return max(abs(self.on) + abs(self.load) + abs(self.warm) + abs(self.heat), 10 * self.noise)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentModel:
    """A component, and how it fails.

    Attributes:
        name: Its name.
        mode: Its failure mode.
        life_h: Scale of the Weibull law of its life, operating hours.
        shape: Shape of that law; above 1: the hazard grows with age.
        warning_h: Median time from the onset of degradation to failure, hours.
        service_h: It is replaced by plan this often, hours of the calendar.
        code: Error that the controller reports while it degrades.
        effects: Quantity → what full degradation adds to it.
    """

    name: str
    mode: str
    life_h: float
    shape: float
    warning_h: float
    service_h: float
    code: str
    effects: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineModel:
    """A kind of machine.

    Attributes:
        kind: Its name.
        parts_per_h: Parts (or batches) per hour at nominal load.
        sensors: Its sensors.
        components: Its components.
        samples_per_tick: Mean number of readings of one machine per tick.
    """

    kind: str
    parts_per_h: float
    sensors: tuple[SensorModel, ...]
    components: tuple[ComponentModel, ...]
    samples_per_tick: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples_per_tick", sum(1 / sensor.every for sensor in self.sensors))


PUMP: Final = MachineModel(
    kind="pump",
    parts_per_h=60,
    sensors=(
        SensorModel(quantity="vibration", unit="mm/s", every=1, on=0.6, load=1.6, noise=0.12, high=5.0),
        SensorModel(quantity="current", unit="A", every=1, on=9.0, load=30.0, noise=0.4, high=44.0),
        SensorModel(quantity="pressure", unit="bar", every=2, on=3.0, load=3.0, noise=0.05, low=2.2),
        SensorModel(quantity="flow", unit="m3/h", every=2, load=120.0, noise=1.2, high=145.0),
        SensorModel(
            quantity="bearing_temperature",
            unit="degC",
            every=5,
            base=20,
            warm=14,
            heat=20,
            ambient=0.9,
            noise=0.15,
            high=68.0,
        ),
        SensorModel(
            quantity="motor_temperature",
            unit="degC",
            every=10,
            base=20,
            warm=18,
            heat=42,
            ambient=0.8,
            noise=0.2,
            high=90.0,
        ),
    ),
    components=(
        ComponentModel(
            name="bearing",
            mode="bearing_wear",
            life_h=1400,
            shape=2.2,
            warning_h=48,
            service_h=1440,
            code="E101",
            effects={"vibration": 7.5, "bearing_temperature": 32.0, "current": 3.0},
        ),
        ComponentModel(
            name="seal",
            mode="seal_leak",
            life_h=1200,
            shape=1.6,
            warning_h=30,
            service_h=1080,
            code="E102",
            effects={"pressure": -4.2, "flow": -45.0},
        ),
        ComponentModel(
            name="impeller",
            mode="impeller_damage",
            life_h=2600,
            shape=2.8,
            warning_h=60,
            service_h=2160,
            code="E103",
            effects={"vibration": 4.5, "flow": -30.0, "pressure": -1.4},
        ),
        ComponentModel(
            name="motor",
            mode="winding_overheat",
            life_h=3000,
            shape=1.3,
            warning_h=20,
            service_h=4320,
            code="E104",
            effects={"motor_temperature": 48.0, "current": 7.0},
        ),
    ),
)

TURBINE: Final = MachineModel(
    kind="turbine",
    parts_per_h=12,
    sensors=(
        SensorModel(quantity="vibration", unit="mm/s", every=1, on=0.9, load=1.2, noise=0.1, high=4.8),
        SensorModel(quantity="speed", unit="rpm", every=1, on=3060, load=-60, noise=3.0, high=3120.0),
        SensorModel(quantity="power", unit="kW", every=2, load=1500, noise=9.0, high=1780.0),
        SensorModel(
            quantity="exhaust_temperature",
            unit="degC",
            every=5,
            base=20,
            warm=280,
            heat=170,
            ambient=0.6,
            noise=1.5,
            high=500.0,
        ),
        SensorModel(quantity="oil_pressure", unit="bar", every=5, on=2.6, load=0.3, noise=0.02, low=1.6),
        SensorModel(
            quantity="oil_temperature",
            unit="degC",
            every=10,
            base=20,
            warm=24,
            heat=18,
            ambient=0.7,
            noise=0.15,
            high=76.0,
        ),
    ),
    components=(
        ComponentModel(
            name="bearing",
            mode="journal_wear",
            life_h=2000,
            shape=2.4,
            warning_h=60,
            service_h=2160,
            code="E201",
            effects={"vibration": 6.0, "oil_temperature": 26.0},
        ),
        ComponentModel(
            name="blades",
            mode="blade_fouling",
            life_h=1600,
            shape=1.9,
            warning_h=90,
            service_h=1440,
            code="E202",
            effects={"exhaust_temperature": 150.0, "power": -330.0},
        ),
        ComponentModel(
            name="oil_pump",
            mode="oil_starvation",
            life_h=2400,
            shape=1.5,
            warning_h=18,
            service_h=2880,
            code="E203",
            effects={"oil_pressure": -1.9, "oil_temperature": 22.0},
        ),
        ComponentModel(
            name="governor",
            mode="overspeed",
            life_h=3200,
            shape=1.2,
            warning_h=12,
            service_h=4320,
            code="E204",
            effects={"speed": 170.0, "vibration": 1.2},
        ),
    ),
)

PRINTER: Final = MachineModel(
    kind="printer",
    parts_per_h=6,
    sensors=(
        SensorModel(quantity="vibration", unit="mm/s", every=1, on=0.2, load=1.1, noise=0.08, high=3.2),
        SensorModel(
            quantity="nozzle_temperature",
            unit="degC",
            every=1,
            base=20,
            warm=190,
            load=-2.0,
            ambient=0.2,
            noise=0.5,
            high=226.0,
        ),
        SensorModel(quantity="current", unit="A", every=2, on=0.5, load=3.5, noise=0.06, high=5.6),
        SensorModel(quantity="extruder_pressure", unit="bar", every=2, load=24.0, noise=0.4, high=36.0),
        SensorModel(
            quantity="bed_temperature",
            unit="degC",
            every=5,
            base=20,
            warm=40,
            heat=1.0,
            ambient=0.4,
            noise=0.2,
            high=72.0,
        ),
        SensorModel(
            quantity="chamber_temperature",
            unit="degC",
            every=10,
            base=20,
            warm=12,
            heat=4,
            ambient=0.8,
            noise=0.15,
            high=55.0,
        ),
    ),
    components=(
        ComponentModel(
            name="nozzle",
            mode="nozzle_clog",
            life_h=500,
            shape=1.8,
            warning_h=10,
            service_h=480,
            code="E301",
            effects={"extruder_pressure": 24.0, "current": 1.6, "nozzle_temperature": -6.0},
        ),
        ComponentModel(
            name="belt",
            mode="belt_slack",
            life_h=1100,
            shape=2.5,
            warning_h=36,
            service_h=960,
            code="E302",
            effects={"vibration": 3.6},
        ),
        ComponentModel(
            name="heater",
            mode="heater_runaway",
            life_h=1800,
            shape=1.2,
            warning_h=8,
            service_h=2880,
            code="E303",
            effects={"nozzle_temperature": 36.0, "bed_temperature": 20.0, "chamber_temperature": 9.0},
        ),
    ),
)

MODELS: Final = (PUMP, TURBINE, PRINTER)
