"""The profile of a fleet's streams."""

from __future__ import annotations

from dataclasses import dataclass

from millrace_apps.generators.engine.profile import Profile, check
from millrace_apps.generators.iot.models import MODELS

#: A device says that it lives once in this many ticks.
HEARTBEAT_TICKS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class IotProfile(Profile):
    """What the streams of a fleet are made from.

    ``event_rate`` is the rate of readings and heartbeats with all devices alive; the sensors' intervals
    follow from it and from the number of machines.

    Attributes:
        machines: Number of machines, a third of each kind.
        machines_per_line: A line has one gateway and up to this many machines.
        lines_per_plant: A plant has up to this many lines.
        acceleration: How many times faster than in reality regimes, wear, faults and outages unfold;
            day and shifts keep to the clock of event time.
        failure_scale: Divides every component's life; 0: nothing wears.
        warning_scale: Divides the time from the onset of a degradation to the failure.
        worn: Share of the machines of which one component is at its end at the begin: it degrades within as
            many operating hours as its kind warns ahead.
        worn_from: Operating hours that pass before these begin to be counted: machines are first seen well.
        sensor_fault_rate: Sensor faults begun per sensor and 1,000 hours.
        outage_rate: Gateway outages per gateway, and silences of single machines per machine, in 1,000 hours.
        false_error_rate: Errors without a cause per machine and 1,000 hours.
        registry: 1: the fleet begins with its asset registry; 0: nobody says what there is.
        variety: 1: plants are as plants are: words of their own for statuses, a second vibration sensor on
            pumps, temperatures in whole degrees, and exactly nought from a current sensor that is off.
    """

    machines: int = 40
    machines_per_line: int = 5
    lines_per_plant: int = 4
    acceleration: float = 60.0
    failure_scale: float = 1.0
    sensor_fault_rate: float = 4.0
    outage_rate: float = 5.0
    false_error_rate: float = 5.0
    registry: int = 1
    variety: int = 0
    warning_scale: float = 1.0
    worn: float = 0.0
    worn_from: float = 0.0

    def __post_init__(self) -> None:
        # The two-argument form: a slotted dataclass is a second class, which super() alone does not find.
        super(IotProfile, self).__post_init__()
        check(1 <= self.machines <= 1_000_000, "machines is a count between 1 and 1,000,000", self.machines)
        per_line, per_plant = self.machines_per_line, self.lines_per_plant
        check(1 <= per_line <= 1_000, "machines per line is a count between 1 and 1,000", per_line)
        check(1 <= per_plant <= 1_000, "lines per plant is a count between 1 and 1,000", per_plant)
        check(0 < self.acceleration <= 100_000, "acceleration is above 0, up to 100,000", self.acceleration)
        check(0 <= self.failure_scale <= 1_000, "failure scale is 0 to 1,000", self.failure_scale)
        check(0.01 <= self.warning_scale <= 10_000, "warning scale is 0.01 to 10,000", self.warning_scale)
        check(0 <= self.worn <= 1, "worn is a share from 0 to 1", self.worn)
        check(0 <= self.worn_from <= 100_000, "worn from is 0 to 100,000 operating hours", self.worn_from)
        for name in ("sensor_fault_rate", "outage_rate", "false_error_rate"):
            value = getattr(self, name)
            check(0 <= value <= 10_000, f"{name} is 0 to 10,000 per 1,000 hours", value)
        check(self.registry in (0, 1), "registry is 0 or 1", self.registry)
        check(self.variety in (0, 1), "variety is 0 or 1", self.variety)

    @property
    def gateways(self) -> int:
        """How many lines there are, each with its gateway."""
        return -(-self.machines // self.machines_per_line)

    @property
    def tick_ms(self) -> float:
        """Interval of the fastest sensors, ms of event time."""
        whole, rest = divmod(self.machines, len(MODELS))
        samples = whole * sum(model.samples_per_tick for model in MODELS)
        samples += sum(model.samples_per_tick for model in MODELS[:rest])
        beats = (self.machines + self.gateways) / HEARTBEAT_TICKS
        return (samples + beats) * 1000.0 / self.event_rate

    @property
    def last_ms(self) -> int | None:
        """A time, ms, that the last event does not come before; None for a stream without end.

        Status, errors, maintenance and the registry come on top of the event rate: at the begin one status
        per machine, later less than six in an hour of a machine's life.
        """
        if self.events is None:
            return None
        extra_rate = 6 * self.machines * self.acceleration / 3600
        registered = self.registry * (self.machines + self.gateways)
        sure = max(self.events - 1 - 2 * self.machines - registered, 0)
        rate = (1.02 + 0.5 * self.variety) * self.event_rate  # with the second sensors
        return self.start_ms + int(sure * 1000.0 / (rate + extra_rate))

    def event_ms(self, hours: float) -> int:
        """Return how much event time these hours of plant life take, ms (at least 1)."""
        return max(1, int(hours * 3_600_000.0 / self.acceleration))
