"""Alarms by the lower bound of remaining life.

The interval is known behind the link that sees all machines of a kind. So where alarms go by it they are
judged behind that link, machine by machine again, at the end of each step as they would be before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from millrace import Context, Timer, days, value_state
from millrace_apps.iot_maintenance.contracts.events import Action
from millrace_apps.iot_maintenance.foresight.alarming import ALARMS, END_MS, Alarming, Around, Ruling
from millrace_apps.iot_maintenance.foresight.condition import Life
from millrace_apps.iot_maintenance.foresight.records import RemainingLife, Step, Turned
from millrace_apps.iot_maintenance.state.assets import Standing

#: Names of timers; those of one instant fire in this order, after that of alarms.
STEP: Final = "step"
TIDY: Final = "tidy"

Told = Turned | RemainingLife | Step | Action | Standing


class Begun(msgspec.Struct, array_like=True, gc=False):
    """The newest interval of a machine.

    Attributes:
        at: As of when, ms.
        low_h: Its begin, h.
    """

    at: int
    low_h: float


class Forewarning(Alarming[Told, RemainingLife]):
    """Judges the rules of what is foreseen once the interval of the step is known.

    Args:
        ruling: By what they are judged.
        keep_ms: A machine that nothing is heard of for so long is forgotten, ms.
    """

    order = "event_time"
    # Of one instant the status comes first, and the interval before the step that is judged by it.
    inputs: ClassVar[Mapping[str, Any]] = {
        "turns": Turned,
        "lives": RemainingLife,
        "steps": Step,
        **Alarming.asks,
    }
    begun = value_state(Begun)
    step = value_state(Step)

    def __init__(self, ruling: Ruling | None, keep_ms: int = days(400)) -> None:
        super().__init__(ruling)
        self._keep_ms = keep_ms

    def process(self, event: Told, ctx: Context) -> None:
        """Take what is known of a machine, and judge it at the end of a step."""
        at = ctx.event_time
        if isinstance(event, RemainingLife):
            self.begun.value = Begun(event.event_time_ms, event.low_h)
        elif isinstance(event, Step):
            # By a timer of that instant: what alarms have waited for comes before, as in the link before.
            self.step.value = event
            ctx.timers.at(at, STEP)
        elif isinstance(event, Turned):
            around = self.around.value
            if around is None:
                around = self.around.value = Around()
            around.status, around.since = event.status, event.since_ms
            around.vocabulary = event.vocabulary
            self._turned(around, ctx)
        else:
            self._asked(event, at, ctx)
        ctx.timers.at(at + self._keep_ms, TIDY)

    def on_late(self, event: Told, ctx: Context) -> None:
        """Do now what an operator asks for, or take a place; what is late of a step judges nothing."""
        if isinstance(event, Action | Standing):
            self._asked(event, ctx.watermark, ctx)
            ctx.timers.at(ctx.watermark + self._keep_ms, TIDY)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Let time pass, or forget a machine."""
        if timer.name == ALARMS:
            self._time(ctx)
        elif timer.name == STEP:
            self._end_step(ctx)
        else:
            self.begun.clear()
            self._forget_alarms(ctx)

    def _end_step(self, ctx: Context) -> None:
        step, begun = self.step.value, self.begun.value
        if step is None:
            return
        self.step.clear()
        low = begun.low_h if begun is not None and begun.at == step.event_time_ms else None
        life = Life(
            ctx.event_time,
            kind=step.kind,
            errors=step.errors,
            replaced=step.replaced,
            attributes=step.attributes,
        )
        self._judge(life, step.risks, low, ctx, at_least=True)

    def last_due(self, latest: int) -> int:
        """Return when the last alarm has come to its end."""
        return latest + 2 * self._keep_ms + END_MS

    def _asked(self, event: Action | Standing, now: int, ctx: Context) -> None:
        if isinstance(event, Action):
            self._take_action(event, now, ctx)
        else:
            self._take_place(event, now, ctx)
