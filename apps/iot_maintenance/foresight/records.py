"""Output records of foresight: features, risks, remaining life, maintenance dates."""

from __future__ import annotations

import msgspec

#: Machines of no kind have this one's intervals.
ANY_KIND = "machine"


class MachineFeatures(msgspec.Struct, frozen=True, gc=False):
    """What was known of a machine at the end of a step: what models read.

    Attributes:
        machine_id: The machine.
        kind: Its kind, empty if nobody has said.
        event_time_ms: End of the step.
        begun_ms: Since when it runs without a failure.
        features: Name → value (see :meth:`millrace_apps.iot_maintenance.foresight.condition.Life.close`).
    """

    machine_id: str
    kind: str
    event_time_ms: int
    begun_ms: int
    features: dict[str, float]


class Risk(msgspec.Struct, frozen=True, gc=False):
    """How likely a component fails soon.

    Attributes:
        machine_id: The machine.
        component: The component.
        event_time_ms: As of when.
        horizon_h: How soon, h.
        probability: How likely.
        model: Version of the model.
    """

    machine_id: str
    component: str
    event_time_ms: int
    horizon_h: float
    probability: float
    model: str


class LifeForecast(msgspec.Struct, frozen=True, gc=False):
    """What models say of a machine's remaining life, before what came true has had its say.

    Attributes:
        machine_id: The machine.
        fleet: Machines that share what came true: their kind.
        event_time_ms: As of when.
        forecast_h: The forecast, h; ``None``: there is no model.
        spread_h: Its distribution (see
            :class:`millrace_apps.iot_maintenance.foresight.distribution.Calibration`).
        ceiling_h: Longest life that is forecast, h.
        model: Version of the model.
        component: The component that is most likely to fail soon; empty: no model says.
        probability: How likely that is.
        horizon_h: How soon, h.
    """

    machine_id: str
    fleet: str
    event_time_ms: int
    forecast_h: float | None = None
    spread_h: list[float] = []
    ceiling_h: float = 0.0
    model: str = ""
    component: str = ""
    probability: float | None = None
    horizon_h: float = 0.0


class LifeTruth(msgspec.Struct, frozen=True, gc=False):
    """A machine has failed: what that says of the forecasts before.

    Attributes:
        machine_id: The machine.
        fleet: Machines that share what came true: their kind.
        event_time_ms: When it failed.
        component: What failed.
        levels: For forecasts before it the share of their distribution that was below the truth.
    """

    machine_id: str
    fleet: str
    event_time_ms: int
    component: str
    levels: list[float]


class Turned(msgspec.Struct, frozen=True, gc=False):
    """A machine's status has changed: told to those who judge by the interval of remaining life.

    Attributes:
        machine_id: The machine.
        event_time_ms: Of the reading that said so.
        status: The status.
        since_ms: Since when, ms.
        vocabulary: Whose words that is; empty: everybody's.
    """

    machine_id: str
    event_time_ms: int
    status: str | None
    since_ms: int | None
    vocabulary: str


class Step(msgspec.Struct, frozen=True, gc=False):
    """What was known of a machine at the end of a step, for rules that are judged behind the intervals.

    Attributes:
        machine_id: The machine.
        event_time_ms: End of the step.
        kind: Its kind.
        risks: Component → how likely it fails soon.
        errors: Error code → how often in the last 24 hours.
        replaced: Component → when it was last replaced, ms.
        attributes: What else is known of it.
    """

    machine_id: str
    event_time_ms: int
    kind: str
    risks: dict[str, float]
    errors: dict[str, int]
    replaced: dict[str, int]
    attributes: dict[str, str]


class RemainingLife(msgspec.Struct, frozen=True, gc=False):
    """How long a machine runs yet.

    Attributes:
        machine_id: The machine.
        event_time_ms: As of when.
        remaining_h: The forecast, h.
        low_h: Begin of the interval, h.
        high_h: Its end; at the ceiling: that long or longer.
        ceiling_h: Longest life that is forecast, h.
        coverage: How often the truth is to be in the interval.
        judged: Lives that have come true, by which the interval was kept right.
        model: Version of the model.
    """

    machine_id: str
    event_time_ms: int
    remaining_h: float
    low_h: float
    high_h: float
    ceiling_h: float
    coverage: float
    judged: int
    model: str


class MaintenancePlan(msgspec.Struct, frozen=True, gc=False):
    """By when a machine should be maintained.

    Attributes:
        machine_id: The machine.
        component: The component that is most likely to fail; empty where no model says.
        event_time_ms: As of when.
        latest_ms: The date at which too early and too late cost the least together.
        expected_cost: What they cost then, on average, in the unit of the settings.
        reason: Whether remaining life or the risk of the component says so.
        probability: How likely the machine fails before that date.
    """

    machine_id: str
    component: str
    event_time_ms: int
    latest_ms: int
    expected_cost: float
    reason: str
    probability: float
