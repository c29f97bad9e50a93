"""The life of machines: regimes, wear, degradation, failures, repairs and services."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from millrace_apps.generators.engine.simulated import Simulated, Truth
from millrace_apps.generators.iot.agenda import Agenda
from millrace_apps.generators.iot.fleet import Component, Fleet, Machine, Work
from millrace_apps.generators.iot.laws import HOUR_MS, exponential, lognormal, weibull_life
from millrace_apps.generators.iot.profile import IotProfile
from millrace_apps.generators.iot.regimes import (
    FAILED,
    IDLE,
    MAINTENANCE,
    OFF,
    OVERLOAD,
    RUNNING,
    SETUP,
    Regime,
)
from millrace_apps.iot_maintenance.contracts.events import MachineError, Maintenance, Status

AVERTED: Final = "averted_failure"
#: Load by regime; running has the machine's own, overload is drawn.
_LOADS: Final = {IDLE: 0.1, SETUP: 0.25}
#: Operating hours per hour: how fast a component wears.
WEAR: Final = {OFF: 0.0, IDLE: 0.15, SETUP: 0.4, RUNNING: 1.0, OVERLOAD: 2.5, MAINTENANCE: 0.0, FAILED: 0.0}
#: Share of the time to failure after which the controller may report errors.
_ERRORS_FROM: Final = 0.5


class Life:
    """Everything that happens to machines by itself, as actions on an agenda.

    Args:
        profile: How fast things unfold.
        fleet: The machines.
        agenda: Where the future is planned.
    """

    def __init__(self, profile: IotProfile, fleet: Fleet, agenda: Agenda) -> None:
        self._profile = profile
        self._run = fleet.run
        self._uniform = fleet.draws.uniform
        self._agenda = agenda
        self._hours_per_ms = profile.acceleration / HOUR_MS

    def begin(self, machine: Machine, at_ms: int) -> Simulated:
        """Put a machine into its first regime and return the status that says so."""
        for component in machine.components:
            self._plan_service(machine, component)
        uniform = self._uniform("first", machine.number, 0)
        regime: Regime = RUNNING if uniform < 0.7 else IDLE if uniform < 0.85 else SETUP
        if not machine.plant.shifts.works(at_ms):
            regime = OFF
        event = self._enter(machine, regime, at_ms)
        # It has been at it for a while: temperatures are settled.
        machine.warm = machine.on
        machine.heat = machine.target * machine.target
        return event

    # Regimes

    def _enter(self, machine: Machine, regime: Regime, at_ms: int) -> Simulated:
        """Put a machine into a regime, plan the regime's end, and return the status."""
        number = machine.statuses
        event = self._status(machine, regime, at_ms)
        uniform = self._uniform("regime", machine.number, number)
        if regime == OFF:
            hours, end_ms = 0.0, machine.plant.shifts.next_ms(at_ms + 1)
        else:
            hours = _duration_h(regime, uniform)
            end_ms = at_ms + self._profile.event_ms(hours)
            shift_end_ms = machine.plant.shifts.end_ms(at_ms)
            if shift_end_ms is not None and machine.plant.shifts.works(at_ms):
                end_ms = max(at_ms + 1, min(end_ms, shift_end_ms))
        if regime == OVERLOAD:
            machine.target = 1.12 + 0.16 * self._uniform("overload", machine.number, number)
        elif regime == RUNNING:
            machine.target = machine.nominal
        else:
            machine.target = _LOADS.get(regime, 0.0)
        machine.on = 0.0 if regime == OFF else 1.0
        self._agenda.plan(end_ms, partial(self._leave, machine, machine.version))
        self._plan_onset(machine, at_ms, end_ms)
        return event

    def _leave(self, machine: Machine, version: int, at_ms: int) -> Iterable[Simulated]:
        if machine.version != version:
            return ()
        return (self._enter(machine, self._next_regime(machine, at_ms), at_ms),)

    def _next_regime(self, machine: Machine, at_ms: int) -> Regime:
        if not machine.plant.shifts.works(at_ms):
            return OFF
        if machine.regime in (SETUP, IDLE, OVERLOAD):
            return RUNNING
        if machine.regime != RUNNING:
            return SETUP
        uniform = self._uniform("next", machine.number, machine.statuses)
        return IDLE if uniform < 0.5 else SETUP if uniform < 0.75 else OVERLOAD

    def _stop(self, machine: Machine, regime: Regime, at_ms: int) -> Simulated:
        machine.target = machine.on = 0.0
        return self._status(machine, regime, at_ms)

    def _status(self, machine: Machine, regime: Regime, at_ms: int) -> Simulated:
        """Close the regime so far (wear, parts made) and begin another."""
        hours = (at_ms - machine.regime_ms) * self._hours_per_ms if machine.regime else 0.0
        made, rejected = self._parts(machine, hours)
        wear = hours * WEAR[machine.regime] if machine.regime else 0.0
        for component in machine.components:
            component.age_h += wear
        status_id = f"{self._run}-s{machine.number:06d}-{machine.statuses}"
        machine.regime, machine.regime_ms = regime, at_ms
        machine.version += 1
        machine.statuses += 1
        truths = (machine.failure,) if regime == FAILED and machine.failure is not None else ()
        word = machine.plant.words.get(regime, regime)
        event = Status(status_id, machine.machine_id, word, at_ms, made, rejected)
        return Simulated("status", machine.machine_id, event, at_ms, truths)

    def _parts(self, machine: Machine, hours: float) -> tuple[int, int]:
        """Return how many parts were made in these hours, and how many of them are scrap."""
        if machine.regime not in (RUNNING, OVERLOAD):
            return 0, 0
        uniform = self._uniform("parts", machine.number, machine.statuses)
        made = int(hours * machine.model.parts_per_h * machine.target + uniform)
        # More scrap in overload and from a machine that wears out.
        share = (0.05 if machine.regime == OVERLOAD else 0.015) + 0.15 * machine.severity
        return made, min(made, int(made * share + uniform * 1000 % 1.0))

    # Wear and failure

    def _plan_onset(self, machine: Machine, at_ms: int, end_ms: int) -> None:
        """Plan the onset of degradation where it comes within the regime that now begins."""
        wear = WEAR[machine.regime]
        if not wear or not self._profile.failure_scale or machine.degrading is not None:
            return
        hours = (end_ms - at_ms) * self._hours_per_ms
        for component in machine.components:
            left_h = (component.life_h - component.age_h) / wear
            if left_h < hours:
                onset_ms = at_ms + self._profile.event_ms(max(left_h, 0.0))
                action = partial(self._onset, machine, component, machine.version)
                self._agenda.plan(min(onset_ms, end_ms), action)

    def _onset(self, machine: Machine, component: Component, version: int, at_ms: int) -> Iterable[Simulated]:
        """Begin a component's degradation; what it leads to is settled here and now.

        One component of a machine degrades at a time, so that each failure has signs of its own; another
        one whose turn has come waits.
        """
        if machine.version != version or machine.degrading is not None:
            return ()
        number = machine.number
        key = f"{component.model.name}:{component.generation}"
        median_h = component.model.warning_h / self._profile.warning_scale
        hours = lognormal(self._uniform(f"warning:{key}", number, 0), median_h, 0.4)
        shifts = machine.plant.shifts
        fails_ms = at_ms + self._profile.event_ms(hours)
        if not shifts.works(fails_ms):
            # A machine that stands still does not break: it does so soon after the next start.
            later = self._profile.event_ms(0.05 + 0.5 * self._uniform(f"late:{key}", number, 0))
            fails_ms = shifts.next_ms(fails_ms) + later
        averted = component.service_ms <= fails_ms
        machine.degrading = component
        machine.onset_ms, machine.fails_ms = at_ms, fails_ms
        effects = component.model.effects
        machine.effects = tuple(effects.get(sensor.quantity, 0.0) for sensor in machine.model.sensors)
        machine.failure = self._truth(machine, component, at_ms, fails_ms, averted=averted)
        self._plan_errors(machine, component, key)
        if not averted:
            self._agenda.plan(fails_ms, partial(self._fail, machine, component))
        return ()

    def _truth(
        self, machine: Machine, component: Component, at_ms: int, fails_ms: int, *, averted: bool
    ) -> Truth:
        model = component.model
        detail = {
            "component": model.name,
            "mode": model.mode,
            "quantities": sorted(model.effects),
            "onset_ms": at_ms,
            "failure_ms": None if averted else fails_ms,
            "service_ms": component.service_ms if averted else None,
            "rul_at_onset_ms": fails_ms - at_ms,
            "age_h": round(component.age_h + self._running_h(machine, at_ms), 3),
        }
        return Truth(
            truth_id=f"{self._run}-f{machine.number:06d}-{model.name}-{component.generation}",
            kind=AVERTED if averted else model.mode,
            entity=machine.machine_id,
            expected="warning" if averted else "alarm",
            detail=detail,
        )

    def _running_h(self, machine: Machine, at_ms: int) -> float:
        return (at_ms - machine.regime_ms) * self._hours_per_ms * WEAR[machine.regime]

    def _plan_errors(self, machine: Machine, component: Component, key: str) -> None:
        """Plan one to four errors in the second half of the way to failure, none after it."""
        span = machine.fails_ms - machine.onset_ms
        size = 1 + int(4 * self._uniform(f"errors:{key}", machine.number, 0))
        for i in range(size):
            # The square root: more of them the nearer it comes.
            part = self._uniform(f"error:{key}", machine.number, i) ** 0.5
            wanted_ms = machine.onset_ms + int(span * (_ERRORS_FROM + (1 - _ERRORS_FROM) * part))
            at_ms = min(machine.plant.shifts.next_ms(wanted_ms), machine.fails_ms - 1)
            self._agenda.plan(
                max(at_ms, machine.onset_ms),
                partial(self._error, machine, component, component.generation, i),
            )

    def _error(
        self, machine: Machine, component: Component, generation: int, number: int, at_ms: int
    ) -> Iterable[Simulated]:
        if component.generation != generation or machine.failure is None:
            return ()
        error_id = f"{machine.failure.truth_id}-e{number}"
        event = MachineError(error_id, machine.machine_id, component.model.code, at_ms)
        return (Simulated("errors", machine.machine_id, event, at_ms, (machine.failure,)),)

    def _fail(self, machine: Machine, component: Component, at_ms: int) -> Iterable[Simulated]:
        component.generation += 1
        failure = machine.failure
        machine.work.append(Work(component, "corrective", (failure,) if failure is not None else ()))
        event = self._stop(machine, FAILED, at_ms)
        uniform = self._uniform("wait", machine.number, machine.statuses)
        wait_ms = self._profile.event_ms(lognormal(uniform, 1.5, 0.6))
        self._agenda.plan(at_ms + wait_ms, partial(self._repair, machine, machine.version))
        return (event,)

    def _repair(self, machine: Machine, version: int, at_ms: int) -> Iterable[Simulated]:
        if machine.version != version:
            return ()
        event = self._stop(machine, MAINTENANCE, at_ms)
        hours = lognormal(self._uniform("repair", machine.number, machine.statuses), 3.0, 0.5)
        done_ms = at_ms + self._profile.event_ms(hours)
        self._agenda.plan(done_ms, partial(self._done, machine, machine.version))
        return (event,)

    # Service

    def _plan_service(self, machine: Machine, component: Component) -> None:
        action = partial(self._service, machine, component, component.generation)
        self._agenda.plan(component.service_ms, action)

    def _service(
        self, machine: Machine, component: Component, generation: int, at_ms: int
    ) -> Iterable[Simulated]:
        """Begin a scheduled service, or add it to the stop that the machine is in anyway."""
        if component.generation != generation:
            return ()
        component.generation += 1
        saved = machine.degrading is component and machine.failure is not None
        truths = (machine.failure,) if saved and machine.failure is not None else ()
        machine.work.append(Work(component, "scheduled", truths))
        if machine.regime in (FAILED, MAINTENANCE):
            return ()
        event = self._stop(machine, MAINTENANCE, at_ms)
        hours = lognormal(self._uniform("service", machine.number, machine.statuses), 1.0, 0.3)
        done_ms = at_ms + self._profile.event_ms(hours)
        self._agenda.plan(done_ms, partial(self._done, machine, machine.version))
        return (event,)

    def _done(self, machine: Machine, version: int, at_ms: int) -> Iterable[Simulated]:
        """End a stop: everything that was to be replaced is, and the machine goes on."""
        if machine.version != version:
            return
        took_ms = at_ms - machine.regime_ms
        work, machine.work = machine.work, []
        for component, kind, truths in work:
            if machine.degrading is component:
                machine.degrading = machine.failure = None
                machine.effects, machine.severity = (), 0.0
            self._replace(machine, component, at_ms)
            event = Maintenance(
                maintenance_id=f"{self._run}-w{machine.number:06d}-{component.model.name}-{component.generation}",
                machine_id=machine.machine_id,
                component=component.model.name,
                event_time_ms=at_ms,
                kind=kind,
                duration_ms=took_ms,
            )
            yield Simulated("maintenance", machine.machine_id, event, at_ms, truths)
        yield self._enter(machine, self._next_regime(machine, at_ms), at_ms)

    def _replace(self, machine: Machine, component: Component, at_ms: int) -> None:
        model = component.model
        component.generation += 1
        component.age_h = 0.0
        if self._profile.failure_scale:
            uniform = self._uniform(f"life:{model.name}", machine.number, component.generation)
            scale = model.life_h / self._profile.failure_scale
            component.life_h = weibull_life(uniform, scale, model.shape)
        component.service_ms = at_ms + self._profile.event_ms(model.service_h)
        self._plan_service(machine, component)


def _duration_h(regime: Regime, uniform: float) -> float:
    """Return how long a regime lasts, hours."""
    if regime == RUNNING:
        return 0.25 + exponential(uniform, 1.5)
    if regime == IDLE:
        return 0.05 + exponential(uniform, 0.3)
    return lognormal(uniform, 0.4 if regime == OVERLOAD else 0.3, 0.4)
