"""Alarms of what is foreseen: rules on the risk of components and on remaining life, judged at each step.

They live as the alarms of readings do (delays, shelving, acknowledging, suppression by status), with the
same engine; what operators do about them comes through the monitor of machines, which also says where a
machine is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import msgspec

from millrace import BroadcastContext, Context, KeyedProcess, broadcast_state, days, side_output, value_state
from millrace.rules import ApproveRule, Entry, PublishRule, RollbackRule, SetRuleState, apply_rule
from millrace.time import NEVER
from millrace_apps.iot_maintenance.alarms.book import RuleSet, book_of
from millrace_apps.iot_maintenance.alarms.engine import Alarms, Engine
from millrace_apps.iot_maintenance.alarms.language import FORESIGHT, Facts
from millrace_apps.iot_maintenance.alarms.record import AlarmEvent
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, alarm_language
from millrace_apps.iot_maintenance.contracts.events import Action
from millrace_apps.iot_maintenance.contracts.records import EnrichedReading
from millrace_apps.iot_maintenance.foresight.condition import Life
from millrace_apps.iot_maintenance.processes.statuses import VOCABULARY, Regime, Statuses
from millrace_apps.iot_maintenance.state.assets import UNREGISTERED, Standing, place_by_name

if TYPE_CHECKING:
    from millrace_apps.iot_maintenance.processes.liveness_monitor import Monitoring

#: Name of the timer of what alarms wait for.
ALARMS: Final = "alarms"


@dataclass(frozen=True)
class Ruling:
    """By what alarms of what is foreseen are judged.

    Attributes:
        rules: Rules that are there from the start.
        statuses: What the words of controllers mean.
        two_person: Whether a second person must approve a published rule before it is active.
        reasons: Whether holding alarms back needs a reason.
        by_names: Whether machines that are in no registry have their place in their names.
    """

    rules: tuple[AlarmRule, ...] = ()
    statuses: Statuses = field(default_factory=Statuses)
    two_person: bool = False
    reasons: bool = False
    by_names: bool = False

    @classmethod
    def of(cls, monitoring: Monitoring) -> Ruling:
        """Return that by which the monitor of machines judges, too."""
        m = monitoring
        return cls(m.rules, m.statuses, m.two_person, m.reasons, m.tree == "names")


class Around(msgspec.Struct, array_like=True):
    """What is known of a machine beside its past.

    Attributes:
        status: Its status at the newest reading.
        since: Since when, ms.
        vocabulary: Whose words that is; empty: everybody's.
        plant: Its plant; empty: the registry has not said.
        line: Its line.
    """

    status: str | None = None
    since: int | None = None
    vocabulary: str = ""
    plant: str = ""
    line: str = ""


class _FactsOfMachine:
    """What expressions ask of a machine's master data and past, as far as looking ahead keeps it."""

    __slots__ = ("attributes", "errors_24h", "last_maintenance_ms", "status_since_ms")

    def __init__(self, life: Life, around: Around) -> None:
        self.last_maintenance_ms: Mapping[str, int] = life.replaced
        self.errors_24h: Mapping[str, int] = life.errors
        self.attributes: Mapping[str, str] = life.attributes
        self.status_since_ms = around.since


Seen = TypeVar("Seen")
Said = TypeVar("Said")


class Alarming(KeyedProcess[Seen, Said]):
    """The part of looking ahead that has alarms.

    Args:
        ruling: By what they are judged; ``None``: there are none.
    """

    control_type = PublishRule | SetRuleState | ApproveRule | RollbackRule
    alarms = side_output(AlarmEvent)
    conditions = value_state(Alarms)
    around = value_state(Around)
    rules = broadcast_state(str, Entry)
    #: What comes of the monitor for them.
    asks: ClassVar[Mapping[str, Any]] = {"asked": Action, "places": Standing}

    def __init__(self, ruling: Ruling | None) -> None:
        self._ruling = ruling or Ruling()
        self._make = partial(book_of, self._ruling.rules)

    def process_broadcast(self, control: Any, ctx: BroadcastContext) -> None:
        """Change the rules; they hold from the event time that the change names."""
        apply_rule(alarm_language(two_person=self._ruling.two_person), control, self.rules)

    def _take_reading(self, event: EnrichedReading, ctx: Context) -> None:
        """Take what a reading says of its machine's status."""
        around = self.around.value
        if around is None:
            around = self.around.value = Around()
        if event.status != around.status or event.status_since_ms != around.since:
            around.status, around.since = event.status, event.status_since_ms
            around.vocabulary = event.attributes.get(VOCABULARY, "")
            self._turned(around, ctx)

    def _turned(self, around: Around, ctx: Context) -> None:
        """Take that a machine's status has changed."""
        if self.conditions.value is not None:
            self._engine(ctx.event_time, ctx).status_changed()
            self._wake(ctx)

    def _take_place(self, event: Standing, at: int, ctx: Context) -> None:
        """Take at ``at`` (ms) where the registry says a machine is."""
        around = self.around.value
        if around is None:
            around = self.around.value = Around()
        before = self._place(around, ctx)
        around.plant, around.line = event.plant_id, event.line_id
        alarms = self.conditions.value
        if alarms is not None and alarms.conditions and self._place(around, ctx) != before:
            self._engine(at, ctx).moved(before)
            self._wake(ctx)

    def _take_action(self, event: Action, at: int, ctx: Context) -> None:
        """Do at ``at`` (ms) what an operator asks for."""
        self._engine(at, ctx).act(event)
        self._wake(ctx)

    def _judge(
        self,
        life: Life,
        risks: Mapping[str, float],
        remaining_h: float | None,
        ctx: Context,
        *,
        at_least: bool = False,
    ) -> None:
        """Judge what is foreseen at the end of a step.

        Args:
            life: What is known of the machine.
            risks: Component → how likely it fails soon.
            remaining_h: Remaining life, h; ``None`` where no model says.
            ctx: The step's context.
            at_least: Whether that is the begin of the interval.
        """
        rules = self.rules.view(self._make).at(ctx.event_time)
        if not rules.foresight:
            return
        around = self.around.value or Around()
        regime = self._regime(around)
        facts = Facts(ctx.event_time, status=around.status, kind=life.kind, regime=regime)
        facts.known = _FactsOfMachine(life, around)
        facts.risks, facts.remaining_life = risks, remaining_h
        if self.conditions.value is None and not rules.foreseen_trips(facts):
            return  # as nearly always
        said = _said(risks, remaining_h, at_least=at_least)
        self._engine(ctx.event_time, ctx, rules).foreseen(facts, said)
        self._wake(ctx)

    def _time(self, ctx: Context) -> None:
        """Let time pass: delays, shelving, repeated alarms."""
        if self.conditions.value is not None:
            self._engine(ctx.event_time, ctx).time()
            self._wake(ctx)

    def _forget_alarms(self, ctx: Context) -> None:
        self.conditions.clear()
        self.around.clear()
        ctx.timers.delete(ALARMS)

    def _engine(self, at: int, ctx: Context, rules: RuleSet | None = None) -> Engine:
        alarms = self.conditions.value
        if alarms is None:
            alarms = self.conditions.value = Alarms()
        around = self.around.value or Around()
        return Engine(
            alarms,
            self.rules.view(self._make).at(at) if rules is None else rules,
            ctx.key,
            at,
            around.status,
            partial(ctx.output, self.alarms),
            place=self._place(around, ctx),
            regime=self._regime(around),
            reasons=self._ruling.reasons,
            source=FORESIGHT,
        )

    def _wake(self, ctx: Context) -> None:
        alarms = self.conditions.value
        if alarms is None:
            return
        if alarms.due != NEVER:
            ctx.timers.bring_forward(alarms.due, ALARMS)
        elif not alarms.conditions and max(alarms.suppressed_until, alarms.told_at) < ctx.event_time:
            self.conditions.clear()

    def _regime(self, around: Around) -> Regime | None:
        return self._ruling.statuses.regime(around.status, around.vocabulary)

    def _place(self, around: Around, ctx: Context) -> tuple[str, str]:
        if around.plant:
            return around.plant, around.line or around.plant
        return place_by_name(ctx.key) if self._ruling.by_names else (UNREGISTERED, UNREGISTERED)


def _said(risks: Mapping[str, float], remaining_h: float | None, *, at_least: bool = False) -> str:
    """Return what is foreseen in words.

    >>> _said({"pump": 0.82, "seal": 0.1}, 31.4)
    'pump fails soon with 82 %, 31.4 h remain'
    """
    said = []
    if risks:
        component = max(sorted(risks), key=risks.__getitem__)
        said.append(f"{component} fails soon with {risks[component]:.0%}".replace("%", " %"))
    if remaining_h is not None:
        said.append(f"{remaining_h:.1f} h remain" + " at least" * at_least)
    return ", ".join(said)


#: After all that alarms wait for by themselves, ms.
END_MS: Final = days(366)
