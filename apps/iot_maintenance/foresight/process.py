"""From readings to features, risks and forecasts: one step at a time, in the order of event time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from millrace import Context, Timer, days, hours, side_output, value_state
from millrace.time import NEVER
from millrace_apps.iot_maintenance.contracts.events import Action, Maintenance
from millrace_apps.iot_maintenance.contracts.records import EnrichedReading
from millrace_apps.iot_maintenance.foresight.alarming import ALARMS, END_MS, Alarming, Around, Ruling
from millrace_apps.iot_maintenance.foresight.baseline import Baseline
from millrace_apps.iot_maintenance.foresight.condition import Awaited, Life
from millrace_apps.iot_maintenance.foresight.distribution import level_of
from millrace_apps.iot_maintenance.foresight.models import Forecaster
from millrace_apps.iot_maintenance.foresight.records import (
    ANY_KIND,
    LifeForecast,
    LifeTruth,
    MachineFeatures,
    Risk,
    Step,
    Turned,
)
from millrace_apps.iot_maintenance.state.assets import Standing, subject_of

_HOUR_MS: Final = 3_600_000
#: Names of timers; a step ends before a machine is forgotten.
STEP: Final = "step"
TIDY: Final = "tidy"
#: Forecasts that wait for the truth: so many, so many steps apart.
_AWAITED: Final = 8
_APART: Final = 12


@dataclass(frozen=True)
class Looking:
    """How far and by what a machine's future is looked at.

    Attributes:
        every_ms: Length of a step, ms.
        keep_ms: A machine that nothing is heard of for so long is forgotten.
        baseline: What is usual in each regime.
        forecaster: What asks the models; ``None``: there are none, features are told all the same.
    """

    every_ms: int = hours(1)
    keep_ms: int = days(400)
    baseline: Baseline = field(default_factory=Baseline)
    forecaster: Forecaster | None = None


class Foresight(Alarming[Maintenance | EnrichedReading | Action | Standing, MachineFeatures]):
    """Keeps what each machine has been like, and says at the end of each step what is ahead of it.

    What is late is in no statistic. A corrective maintenance ends a life: it says when the machine failed,
    and so what was true of the forecasts before that; a new life begins when it is done.

    Args:
        looking: How far and by what.
        ruling: By what alarms of it are judged; no alarms unless given.
        passes_on: Whether alarms are judged behind the intervals instead, by
            :class:`millrace_apps.iot_maintenance.foresight.forewarning.Forewarning`: what that takes is told.
    """

    order = "event_time"
    inputs: ClassVar[Mapping[str, Any]] = {
        "replaced": Maintenance,
        "readings": EnrichedReading,
        **Alarming.asks,
    }
    risks = side_output(Risk)
    forecasts = side_output(LifeForecast)
    truths = side_output(LifeTruth)
    steps = side_output(Step)
    turns = side_output(Turned)
    life = value_state(Life)

    def __init__(self, looking: Looking, ruling: Ruling | None = None, *, passes_on: bool = False) -> None:
        super().__init__(ruling)
        self._l = looking
        self._passes_on = passes_on

    def describe(self) -> dict[str, Any]:
        """Return what the state hangs on."""
        return {"every_ms": self._l.every_ms, "baseline": self._l.baseline.digest}

    def process(self, event: Maintenance | EnrichedReading | Action | Standing, ctx: Context) -> None:
        """Take a reading into the step that is open, or end a life; or what concerns alarms."""
        if not isinstance(event, EnrichedReading):
            self._told(event, ctx.event_time, ctx)
            return
        self._take_reading(event, ctx)
        at, every = ctx.event_time, self._l.every_ms
        life = self.life.value
        if life is None:
            life = self.life.value = Life(begun=at)
        if life.due == NEVER:
            life.due = -(-at // every) * every
            ctx.timers.at(life.due, STEP)
            ctx.timers.at(life.due + self._l.keep_ms, TIDY)
        subject = subject_of(event.quantity, event.point)
        if event.value is not None and event.quality != "bad" and self._l.baseline.wants(subject):
            life.take(subject, event.value)
        life.know(event.kind, event.errors_24h, event.last_maintenance_ms, event.attributes)

    def on_late(self, event: Maintenance | EnrichedReading | Action | Standing, ctx: Context) -> None:
        """End a life that was told late; readings that come late, or are corrected, change nothing here."""
        if not isinstance(event, EnrichedReading):
            self._told(event, ctx.watermark, ctx)

    def _told(self, event: Maintenance | Action | Standing, now: int, ctx: Context) -> None:
        """Take something that is no reading; of actions and places ``now`` (ms) is when they take effect."""
        if isinstance(event, Action | Standing):
            if self._passes_on:
                return
            if isinstance(event, Action):
                self._take_action(event, now, ctx)
            else:
                self._take_place(event, now, ctx)
        elif event.kind == "corrective":
            self._failed(event, ctx)
        if self.life.value is None and not isinstance(event, Maintenance):
            ctx.timers.at(now + self._l.keep_ms, TIDY)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """End a step, or forget a machine."""
        life = self.life.value
        if timer.name == ALARMS:
            self._time(ctx)
        elif timer.name == TIDY:
            self.life.clear()
            self._forget_alarms(ctx)
        elif life is not None:
            self._end_step(life, ctx)

    def _end_step(self, life: Life, ctx: Context) -> None:
        features = life.close(self._l.baseline)
        at = ctx.event_time
        ctx.emit(MachineFeatures(ctx.key, life.kind, at, life.begun, features))
        if self._l.forecaster is not None:
            self._look_ahead(life, features, self._l.forecaster, ctx)

    def last_due(self, latest: int) -> int:
        """Return when the last step ends that can be open."""
        return latest + self._l.every_ms + 2 * self._l.keep_ms + END_MS

    def _look_ahead(
        self, life: Life, features: dict[str, float], forecaster: Forecaster, ctx: Context
    ) -> None:
        at, machine = ctx.event_time, ctx.key
        risks, told = forecaster.risks(features), forecaster.life(features)
        said = {} if risks is None else risks.of
        if self._passes_on:
            ctx.output(
                self.steps, Step(machine, at, life.kind, said, life.errors, life.replaced, life.attributes)
            )
        else:
            self._judge(life, said, None if told is None else told.hours, ctx)
        worst: tuple[str, float | None, float] = ("", None, 0.0)
        if risks is not None:
            for component, probability in risks.of.items():
                risk = Risk(machine, component, at, risks.horizon_h, probability, risks.version)
                ctx.output(self.risks, risk)
            component = max(risks.of, key=risks.of.__getitem__)
            worst = (component, risks.of[component], risks.horizon_h)
        if told is None:
            if risks is not None:
                ctx.output(self.forecasts, LifeForecast(machine, _fleet(life), at, None, [], 0.0, "", *worst))
            return
        ctx.output(
            self.forecasts,
            LifeForecast(
                machine, _fleet(life), at, told.hours, told.spread, told.ceiling, told.version, *worst
            ),
        )
        awaited, around = life.awaited, self.around.value
        if around is not None and self._regime(around) == "failed":
            return  # what has failed already says nothing of how right forecasts are
        if not awaited or at - awaited[-1].at >= _APART * self._l.every_ms:
            awaited.append(Awaited(at, told.hours))
            del awaited[:-_AWAITED]

    def _turned(self, around: Around, ctx: Context) -> None:
        if not self._passes_on:
            super()._turned(around, ctx)
            return
        row = Turned(ctx.key, ctx.event_time, around.status, around.since, around.vocabulary)
        ctx.output(self.turns, row)

    def _failed(self, event: Maintenance, ctx: Context) -> None:
        """Tell what a failure says of the forecasts before it, and begin a new life."""
        life, at = self.life.value, ctx.event_time
        if life is None or at <= life.begun:
            return
        failed = at if event.failed_ms is None else event.failed_ms
        levels = []
        calibration = None if self._l.forecaster is None else self._l.forecaster.calibration()
        if calibration is not None:
            for one in life.awaited:
                truth = (failed - one.at) / _HOUR_MS
                if 0.0 < truth < calibration.ceiling:
                    levels.append(level_of(calibration.spread(one.hours), truth, calibration.ceiling))
        ctx.output(self.truths, LifeTruth(ctx.key, _fleet(life), failed, event.component, levels))
        life.begun, life.points, life.awaited = at, {}, []


def _fleet(life: Life) -> str:
    return life.kind or ANY_KIND
