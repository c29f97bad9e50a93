"""Settings of the iot app beside those that every app has."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta
from pydantic import Field, field_validator

from millrace.errors import UserError
from millrace.local.documents import read_yaml
from millrace.models.places import default_exports, default_uri
from millrace.operators import limit_forecast, novelty
from millrace.runtime.settings import AppSettings, Duration, Section, StreamSettings
from millrace.time import ms
from millrace.time.durations import to_ms
from millrace_apps.iot_maintenance.alarms.book import RuleFileError, read_rules
from millrace_apps.iot_maintenance.alarms.schedule import zone
from millrace_apps.iot_maintenance.foresight.settings import ForesightSettings
from millrace_apps.iot_maintenance.processes.anomalies import Scoring
from millrace_apps.iot_maintenance.processes.forecasts import Forecasting
from millrace_apps.iot_maintenance.processes.machine_health import Charts, read_charts
from millrace_apps.iot_maintenance.processes.monitor import Monitoring
from millrace_apps.iot_maintenance.processes.normal import NORMAL_NAME, Registered
from millrace_apps.iot_maintenance.processes.quality import Limits
from millrace_apps.iot_maintenance.processes.shifts import Calendar
from millrace_apps.iot_maintenance.processes.statuses import Regime, Statuses

#: Alarm rules, limits and kinds of the app itself.
DEFAULTS = Path(__file__).with_name("defaults.yaml")


class IotTopics(Section):
    """Names of the app's Kafka topics, and their partitions where the app creates them."""

    readings: str = "iot.readings"
    counts: str = "iot.counts"
    status: str = "iot.status"
    maintenance: str = "iot.maintenance"
    errors: str = "iot.errors"
    heartbeats: str = "iot.heartbeats"
    equipment: str = "iot.equipment"
    actions: str = "iot.actions"
    control: str = "iot.control"
    alarms: str = "iot.alarms"
    liveness: str = "iot.liveness"
    shifts: str = "iot.shifts"
    health: str = "iot.health"
    alarm_kpis: str = "iot.alarm-kpis"
    notices: str = "iot.notices"
    anomalies: str = "iot.anomalies"
    forecasts: str = "iot.forecasts"
    machine_health: str = "iot.machine-health"
    clocks: str = "iot.clocks"
    work_orders: str = "iot.work-orders"
    enriched: str = Field(
        default="", description="topic of the enriched readings; unset: they go to their table alone"
    )
    risks: str = "iot.risks"
    remaining_life: str = "iot.remaining-life"
    maintenance_plan: str = "iot.maintenance-plan"
    dead_letters: str = "iot.dead-letters"
    partitions: int = Field(default=2, ge=1, le=10_000, description="of topics that do not exist yet")


class MonitorSettings(Section):
    """What is watched, and for how long things are kept."""

    FORMER: ClassVar[Mapping[str, str]] = {"fleet": "fleet_file"}

    fleet_file: str = Field(
        default=str(DEFAULTS), description="YAML file with alarm rules, limits of quantities and kinds"
    )
    grace: Duration = Field(
        default=timedelta(minutes=1),
        description="how far behind the watermark facts still correct, and readings are still joined",
    )
    keep: Duration = Field(default=timedelta(days=400), description="how long a silent machine is remembered")
    device_timeout: Duration = Field(
        default=timedelta(seconds=10), description="a device without a heartbeat for so long is silent"
    )
    sensor_intervals: float = Field(
        default=6.0, ge=2, description="a sensor missing for so many of its intervals is silent"
    )
    sensor_least: Duration = Field(
        default=timedelta(seconds=5), description="but no sensor is silent before this"
    )
    clock_limit: Duration = Field(
        default=timedelta(seconds=5), description="how far a device's clock may be from its gateway's"
    )
    window: Duration = Field(
        default=timedelta(minutes=6),
        description="length of moving means by time and of trends, where a quantity says nothing else",
    )
    values: int = Field(default=5, ge=1, le=100, description="length of moving means by number")
    clock: Literal["stream", "key"] = Field(
        default="stream",
        description="key: machines and gateways go by clocks of their own, where they deliver hours late",
    )
    patience: Duration = Field(
        default=timedelta(minutes=10),
        description="with clock: key, how far a machine may be behind the others; longer ago is late",
    )
    two_person: bool = Field(
        default=False, description="a second person must approve a published rule before it is active"
    )
    judge: bool = Field(
        default=True,
        description="judge readings by those before them (stuck, noise, jumps); range and unit always are",
    )
    reasons: bool = Field(
        default=True, description="shelving, suppressing and taking out of service need a reason (--comment)"
    )
    correct_clocks: Literal["off", "ahead", "both"] = Field(
        default="off",
        description="what a device dates further than clock_limit ahead of when its gateway received it "
        "(both: or behind, which may as well be late) counts as of then",
    )
    tree: Literal["registry", "names"] = Field(
        default="registry",
        description="names: what is in no registry has site and line in its name, p01-l02-m003 (older data)",
    )
    first_heard: Duration = Field(
        default=timedelta(minutes=10),
        description="what the registry has and nobody has heard for so long after that is told",
    )
    notice_after: Duration = Field(
        default=timedelta(minutes=1),
        description="what is in no registry so long after it was met first is told (notices): master data "
        "that are read a little later than readings make none",
    )
    shift_starts: str = Field(
        default="06:00,14:00,22:00", description="when shifts change, by the clock of shift_tz"
    )
    shift_tz: str = "UTC"

    @field_validator("shift_starts")
    @classmethod
    def _times(cls, value: str) -> str:
        _minutes(value)
        return value

    @field_validator("shift_tz")
    @classmethod
    def _zone(cls, value: str) -> str:
        zone(value)
        return value


class ScoreSettings(Section):
    """How unusual values are: what is scored, and from where on it is an anomaly."""

    enabled: bool = Field(default=True, description="score the values of measuring points")
    interval: Duration = Field(
        default=timedelta(minutes=1),
        description="score the mean of so long, or each value of a point that reports less often; 0: each",
    )
    learn: int = Field(default=100, ge=10, description="a point's first values, which are not scored")
    threshold: float = Field(
        default=0.5, gt=0, le=1, description="from which score on a value goes to the topic of anomalies"
    )


class ForecastSettings(Section):
    """When measuring points will cross the limits of their alarm rules."""

    enabled: bool = Field(default=True, description="look ahead; needs scores.enabled")
    every: Duration = Field(default=timedelta(minutes=1), description="length of a step")
    ahead: Duration = Field(default=timedelta(hours=8), description="how far ahead is looked")
    learn: int = Field(default=60, ge=10, description="a point's first steps, of which nothing is foreseen")
    coverage: float = Field(
        default=0.9, gt=0, lt=1, description="which share of what comes is to lie in its interval"
    )


class HealthSettings(Section):
    """What a machine's sensors say together, held against what is normal."""

    charts: str = Field(
        default="",
        description="file of `millrace iot health train`; unset: nothing is known to be normal",
    )
    interval: Duration = Field(default=timedelta(minutes=1), description="the means of so long are judged")
    registered: bool = Field(
        default=False,
        description="what is normal is the registry's champion (millrace models iot train --model normal), "
        "exchanged while the job runs",
    )
    model: str = Field(default=NORMAL_NAME, min_length=1, description="name under which it is registered")
    exports: str = Field(
        default="",
        description="folder of the exported models; unset: that of the registry under storage.root",
    )

    @field_validator("interval")
    @classmethod
    def _takes_time(cls, value: timedelta) -> timedelta:
        if value <= timedelta(0):
            raise ValueError("an interval takes time, e.g. 1m")
        return value


def _minutes(text: str) -> tuple[int, ...]:
    found = []
    for part in text.split(","):
        hour, _, minute = part.strip().partition(":")
        if not (hour.isdigit() and minute.isdigit() and int(hour) < 24 and int(minute) < 60):
            raise ValueError(f"{part.strip()!r} is no time of day; write for example 06:00,14:00,22:00")
        found.append(60 * int(hour) + int(minute))
    return tuple(sorted(found))


class IotSettings(AppSettings):
    """What the iot app can be told."""

    topics: IotTopics = IotTopics()
    monitor: MonitorSettings = MonitorSettings()
    scores: ScoreSettings = ScoreSettings()
    forecast: ForecastSettings = ForecastSettings()
    health: HealthSettings = HealthSettings()
    foresight: ForesightSettings = ForesightSettings()
    # An alarm waits for the watermark: the bound is most of its latency. And when everything is silent time
    # must go on, or nobody would notice.
    stream: StreamSettings = StreamSettings(
        out_of_orderness=timedelta(milliseconds=500), idle_after=timedelta(seconds=10)
    )


class _Quantity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a fleet's file says of a quantity, or of a measuring point: see :class:`Limits`."""

    unit: str = ""
    low: float | None = None
    high: float | None = None
    resolution: Annotated[float, Meta(ge=0)] = 0.0
    stuck: Annotated[int, Meta(ge=0)] = 0
    stuck_for: str | int = 0
    rest: float | None = None
    by_exception: bool = False
    silent_after: str | int = 0
    window: str | int = 0
    values: Annotated[int, Meta(ge=0, le=100)] = 0

    def limits(self) -> Limits:
        """Return it with its durations in ms."""
        return Limits(
            unit=self.unit,
            low=self.low,
            high=self.high,
            resolution=self.resolution,
            stuck=self.stuck,
            stuck_ms=to_ms(self.stuck_for),
            rest=self.rest,
            by_exception=self.by_exception,
            silent_ms=to_ms(self.silent_after),
            window_ms=to_ms(self.window),
            values=self.values,
        )


class _Fleet(msgspec.Struct, frozen=True):
    """The parts of a fleet's file besides its rules."""

    statuses: dict[str, Regime] = {}
    vocabularies: dict[str, dict[str, Regime]] = {}
    device_timeouts: dict[Literal["machine", "gateway"], str | int] = {}

    quantities: dict[str, _Quantity] = {}
    kinds_by_quantity: dict[str, str] = {}
    ideal_per_h: dict[str, float] = {}


def monitoring(settings: IotSettings) -> Monitoring:
    """Return what the monitor is to do.

    Raises:
        RuleFileError: The fleet's file cannot be read, or says something that is not understood.
    """
    told = settings.monitor
    path = Path(told.fleet_file)
    rules = tuple(read_rules(path))
    found = read_yaml(path, RuleFileError)
    try:
        fleet = msgspec.convert(found if isinstance(found, dict) else {}, _Fleet)
    except msgspec.ValidationError as error:
        raise RuleFileError(f"{path}: {error}") from None
    return Monitoring(
        rules=rules,
        limits={name: quantity.limits() for name, quantity in fleet.quantities.items()},
        kinds_by_quantity=fleet.kinds_by_quantity,
        ideal_per_h=fleet.ideal_per_h,
        statuses=Statuses(fleet.statuses, fleet.vocabularies),
        grace_ms=ms(told.grace),
        clock=told.clock,
        patience_ms=ms(told.patience),
        two_person=told.two_person,
        tree=told.tree,
        reasons=told.reasons,
        first_heard_ms=ms(told.first_heard),
        notice_ms=ms(told.notice_after),
        keep_ms=ms(told.keep),
        device_timeout_ms=ms(told.device_timeout),
        device_timeouts={kind: to_ms(after) for kind, after in fleet.device_timeouts.items()},
        clock_limit_ms=ms(told.clock_limit),
        window_ms=ms(told.window),
        values=told.values,
        judge=told.judge,
        sensor_intervals=told.sensor_intervals,
        sensor_least_ms=ms(told.sensor_least),
        calendar=Calendar(_minutes(told.shift_starts), told.shift_tz),
        foresees=settings.foresight.on,
    )


def scoring(settings: IotSettings) -> Scoring:
    """Return how values are scored."""
    told = settings.scores
    return Scoring(told.enabled, ms(told.interval), told.threshold, novelty(learn=told.learn))


def forecasting(settings: IotSettings) -> Forecasting:
    """Return how far ahead is looked.

    Raises:
        OperatorDefinitionError: The settings do not fit together.
    """
    told = settings.forecast
    made = limit_forecast(
        every=ms(told.every), ahead=ms(told.ahead), coverage=told.coverage, learn=told.learn
    )
    return Forecasting(enabled=told.enabled, forecast=made)


def charts(settings: IotSettings) -> Charts:
    """Return what is normal for machines.

    Raises:
        UserError: The file cannot be read, or contradicts itself.
    """
    told = settings.health
    found = read_charts(Path(told.charts)) if told.charts else {}
    every = max(ms(told.interval), 1)
    if not told.registered:
        return Charts(found, every)
    if told.charts:
        raise UserError("health.charts and health.registered: what is normal is said by one of them")
    models = Path(settings.storage.path("models"))
    folder = told.exports or str(default_exports(default_uri(models), models))
    return Charts(interval_ms=every, registered=Registered(folder, told.model, every))
