"""The alarms of one machine or gateway: from readings, faults, time and operators to their history."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, cast

import msgspec

from millrace.time import NEVER
from millrace_apps.iot_maintenance.alarms.book import RuleSet
from millrace_apps.iot_maintenance.alarms.condition import ONE_SHOT, Condition, new_condition
from millrace_apps.iot_maintenance.alarms.language import FORESIGHT, Facts
from millrace_apps.iot_maintenance.alarms.record import AlarmEvent, Change
from millrace_apps.iot_maintenance.alarms.rule import SEVERITIES, CompiledRule
from millrace_apps.iot_maintenance.contracts.events import Action, AlarmVerb
from millrace_apps.iot_maintenance.processes.statuses import Regime
from millrace_apps.iot_maintenance.state.assets import UNREGISTERED, point_of, quantity_of

_SHELVED: Final = {0: "", ONE_SHOT: "one_shot"}


class Alarms(msgspec.Struct, array_like=True):
    """All alarms of one entity that something has happened to.

    Attributes:
        conditions: Their states by name.
        due: When the first of them changes by itself, ms; ``NEVER``: none does.
        rules: Version of the rules that they were last judged by.
        told_at: Time of the last history row, ms.
        told: How many rows of that time there are.
        acted: Actions taken at ``acted_at``.
        acted_at: Time of the last action, ms.
        suppressed_until: All alarms are suppressed by an operator until then, ms; 0: not.
        ahead: Alarm → time (ms) and number of its last row, if the stream's clock brought it and the entity's
            own is not there yet.
        suppressed_as: As what the operator acted who has suppressed all alarms.
    """

    conditions: dict[str, Condition] = {}
    due: int = NEVER
    rules: str = ""
    told_at: int = -1
    told: int = 0
    acted: list[str] = []
    acted_at: int = -1
    suppressed_until: int = 0
    ahead: dict[str, tuple[int, int]] = {}
    suppressed_as: str = ""

    def place(self, name: str, at: int, *, is_ahead: bool) -> tuple[int, int]:
        """Return time (ms) and number of an alarm's next row, which is never before its last one.

        A machine that is behind may bring what ends an alarm, such as its silence, from a time before that
        alarm was told by the stream's clock.

        Args:
            name: The alarm.
            at: When it changes, ms.
            is_ahead: Whether the stream's clock says so, which the entity's own may be behind.
        """
        last = self.ahead.get(name) if self.ahead else None
        if last is not None and last[0] >= at:
            found = last[0], last[1] + 1
        elif is_ahead:
            found = at, 0
        else:
            if self.told_at != at:
                self.told_at, self.told = at, 0
            found = at, self.told
            self.told += 1
            self.ahead.pop(name, None)
            return found
        self.ahead[name] = found
        return found


class Engine:
    """Judges the alarms of one entity at one instant.

    Args:
        alarms: Their state; changed.
        rules: The rules in force.
        entity: The machine or gateway.
        at: Now, ms.
        status: The machine's status now.
        emit: Takes each row of the history.
        is_ahead: Whether it is now by the stream's clock, which the entity's own may be behind.
        place: The entity's site and line.
        regime: What its status means.
        reasons: Whether holding alarms back needs a reason.
        source: ``foresight``: the alarms are those of what is foreseen, and only those.

    Example:
        >>> from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, Level
        >>> hot = AlarmRule("hot", (Level(above=80.0, dead_band=5.0),), quantities=("oil",))
        >>> rules = RuleSet([(hot, False)])
        >>> alarms, rows = Alarms(), []
        >>> for at, value in enumerate([79.0, 81.0, 76.0, 75.0]):
        ...     facts = Facts(at)
        ...     facts.quantity, facts.value = "oil", value
        ...     Engine(alarms, rules, "m1", at, None, rows.append).reading(facts)
        >>> [(row.event_time_ms, row.change, row.value) for row in rows]
        [(1, 'active', 81.0), (3, 'inactive', 75.0)]
    """

    __slots__ = (
        "alarms",
        "at",
        "emit",
        "entity",
        "is_ahead",
        "place",
        "reasons",
        "regime",
        "rules",
        "source",
        "status",
    )

    def __init__(
        self,
        alarms: Alarms,
        rules: RuleSet,
        entity: str,
        at: int,
        status: str | None,
        emit: Callable[[AlarmEvent], None],
        *,
        is_ahead: bool = False,
        place: tuple[str, str] = (UNREGISTERED, UNREGISTERED),
        regime: Regime | None = None,
        reasons: bool = False,
        source: str = "",
    ) -> None:
        self.alarms, self.rules, self.entity, self.is_ahead = alarms, rules, entity, is_ahead
        self.place, self.regime, self.reasons = place, regime, reasons
        self.at, self.status, self.emit, self.source = at, status, emit, source
        if alarms.conditions and alarms.rules != rules.version:
            self._reconcile()

    # -- what is judged ------------------------------------------------------------------------

    def reading(self, facts: Facts) -> None:
        """Judge a reading that is to be believed."""
        found = self.rules.of.get(facts.quantity)
        if found is not None:
            self._judge(found, facts, facts.subject or facts.quantity)

    def machine(self, facts: Facts) -> None:
        """Judge the machine's latest readings together."""
        self._judge(self.rules.machine, facts, "")

    def foreseen(self, facts: Facts, reason: str) -> None:
        """Judge what is foreseen of the machine; ``reason`` says it in words."""
        self._judge(self.rules.foresight, facts, "", reason=reason)

    def error(self, facts: Facts) -> None:
        """Judge an error; it is over at once."""
        self._judge(self.rules.errors, facts, "", momentary=True)

    def fault(self, subject: str, reason: str, *, bad: bool) -> None:
        """Take what has been found of a sensor: the alarm of its quality."""
        self._told(self.rules.quality, subject, bad, reason)

    def clock(self, device: str, *, wrong: bool, reason: str = "") -> None:
        """Take that a device's clock is wrong, or right again."""
        self._told(self.rules.clock, device, wrong, reason)

    def silent(self, name: str, *, silent: bool, reason: str = "") -> None:
        """Take that a sensor or device is silent, or heard again."""
        self._told(self.rules.silence, name, silent, reason)

    def no_data(self, subject: str, since: int) -> None:
        """Take that there has been no reading of a measuring point since a time, ms."""
        for rule in self.rules.of.get(quantity_of(subject), ()):
            waits = [level.no_data_ms for level in rule.levels if level.no_data_ms]
            if waits and self.at - since >= min(waits):
                name = rule.name_for(subject)
                condition = self.alarms.conditions.get(name) or self._new(name, rule)
                for level, state in zip(rule.levels, condition.levels, strict=True):
                    if level.no_data_ms and self.at - since >= level.no_data_ms and not state.holds:
                        state.holds, state.since = True, self.at
                self._advance(name, condition, rule)

    def time(self) -> None:
        """Let time pass: delays, shelving, repeated alarms."""
        if self.alarms.due > self.at:
            return
        self.alarms.due = NEVER
        self._all()

    def moved(self, before: tuple[str, str]) -> None:
        """Take that the entity was at another site or line: what stands is told there no more, but here."""
        for name in sorted(self.alarms.conditions):
            condition, rule = self.alarms.conditions[name], self.rules.rule_of(name)
            if condition.level and condition.told and rule is not None:
                self._record_change(name, condition, rule, "moved", gone_from=before)
                self._record_change(name, condition, rule, "moved")

    def gone(self, subject: str) -> None:
        """Take that a measuring point is another now: its alarms are removed."""
        for name in sorted(self.alarms.conditions):
            rule = self.rules.rule_of(name)
            if name.partition("/")[2] == subject:
                self._remove(name, self.alarms.conditions[name], rule, "its measuring point is another")

    def status_changed(self) -> None:
        """Look at all alarms again: the machine does something else now."""
        self._all()

    def _all(self) -> None:
        for name in sorted(self.alarms.conditions):
            rule = self.rules.rule_of(name)
            if rule is not None:
                self._advance(name, self.alarms.conditions[name], rule)

    def _judge(
        self,
        rules: Iterable[CompiledRule],
        facts: Facts,
        subject: str,
        *,
        momentary: bool = False,
        reason: str = "",
    ) -> None:
        conditions = self.alarms.conditions
        for rule in rules:
            if rule.kinds and facts.kind not in rule.kinds:
                continue
            name = rule.name_for(subject) if subject else rule.rule.id
            condition = conditions.get(name)
            if condition is None:
                if not rule.trips(facts):
                    continue
                condition = self._new(name, rule)
            condition.judge(rule, facts, self.at)
            if facts.value is not None:
                condition.value = facts.value
                if rule.bounded:
                    condition.limit = _limit_of(condition, rule, facts)
            if reason:
                condition.reason = reason
            self._advance(name, condition, rule)
            if momentary:
                for state in condition.levels:
                    state.raw = False

    def _told(self, rules: Iterable[CompiledRule], subject: str, holds: bool, reason: str) -> None:
        for rule in rules:
            if rule.rule.quantities and quantity_of(subject) not in rule.rule.quantities:
                continue
            name = rule.name_for(subject)
            condition = self.alarms.conditions.get(name)
            if condition is None:
                if not holds:
                    continue
                condition = self._new(name, rule)
            condition.told_holds(rule, holds, self.at)
            if holds:
                condition.reason = reason
            self._advance(name, condition, rule)

    def _new(self, name: str, rule: CompiledRule) -> Condition:
        self.alarms.rules = self.rules.version
        condition = self.alarms.conditions[name] = new_condition(rule)
        is_held = self.alarms.suppressed_until > self.at  # else it was over before there was this alarm
        if is_held and _may_hold_back(rule, self.alarms.suppressed_as):
            condition.suppressed_until = self.alarms.suppressed_until
        return condition

    # -- the life of an alarm ------------------------------------------------------------------

    def _advance(self, name: str, condition: Condition, rule: CompiledRule) -> None:
        """Do everything that is due for one alarm."""
        at = self.at
        if condition.shelved and condition.shelve_ends <= at:
            condition.shelved = condition.shelve_ends = 0
            self._record_change(name, condition, rule, "unshelve", reason="its time is over")
        if 0 < condition.suppressed_until <= at:
            condition.suppressed_until = 0
            self._record_change(name, condition, rule, "unsuppress", reason="its time is over")
        by_status = self.status in rule.suppress_in or self.regime in rule.suppress_in
        if by_status != condition.by_status:
            condition.by_status = by_status
            if condition.retain:
                self._record_change(name, condition, rule, "suppress" if by_status else "unsuppress")
        level = condition.settle(rule, at)
        if level != condition.level:
            self._move(name, condition, rule, level)
        if condition.level:
            self._go_on(name, condition, rule)
        if condition.idle:
            del self.alarms.conditions[name]
            return
        due = condition.due(rule, at)
        if due < self.alarms.due:
            self.alarms.due = due

    def _move(self, name: str, condition: Condition, rule: CompiledRule, level: int) -> None:
        """Bring an alarm to another level."""
        was, condition.level = condition.level, level
        if not level:
            condition.next_alarm = condition.escalates = 0
            self._record_change(name, condition, rule, "inactive")
            condition.first = False
            if condition.shelved == ONE_SHOT:
                condition.shelved = condition.shelve_ends = 0
                self._record_change(
                    name, condition, rule, "unshelve", reason="shelved once, and now inactive"
                )
            return
        severity = rule.levels[level - 1].severity
        if was:
            condition.severity = severity
            if level > was and rule.rule.ack:
                condition.acked, condition.silenced = False, False
            self._record_change(name, condition, rule, "raised" if level > was else "lowered")
            return
        condition.severity, condition.since, condition.alarms = severity, self.at, 0
        condition.acked, condition.confirmed, condition.silenced = not rule.rule.ack, True, False
        condition.latched = rule.rule.latched
        condition.next_alarm = self.at + rule.re_alarm_ms if rule.re_alarm_ms else 0
        condition.escalates = self.at + rule.escalate_ms if rule.escalate_ms else 0
        condition.first = bool(rule.rule.group) and self._is_first(name, rule.rule.group)
        self._record_change(name, condition, rule, "active")

    def _is_first(self, name: str, group: str) -> bool:
        for other, condition in self.alarms.conditions.items():
            rule = self.rules.rule_of(other)
            if other != name and condition.level and rule is not None and rule.rule.group == group:
                return False
        return True

    def _go_on(self, name: str, condition: Condition, rule: CompiledRule) -> None:
        """Escalate an alarm that nobody has seen, and raise one again that stays."""
        if condition.escalates and condition.escalates <= self.at:
            condition.escalates = 0
            if not condition.acked and condition.severity < rule.escalated:
                condition.severity = rule.escalated
                self._record_change(name, condition, rule, "escalated")
        if condition.next_alarm and condition.next_alarm <= self.at:
            condition.alarms += 1
            more = rule.rule.re_alarm is not None and condition.alarms < rule.rule.re_alarm.times
            condition.next_alarm = condition.next_alarm + rule.re_alarm_ms if more else 0
            if condition.told:
                condition.acked, condition.silenced = not rule.rule.ack, False
                self._record_change(name, condition, rule, "re_alarm")

    def _reconcile(self) -> None:
        """Fit alarms to rules that have changed; those whose rule is gone are removed."""
        self.alarms.rules = self.rules.version
        for name in sorted(self.alarms.conditions):
            condition, rule = self.alarms.conditions[name], self.rules.rule_of(name)
            quantity = quantity_of(name.partition("/")[2])
            of = rule.rule.quantities if rule is not None else ()
            if rule is not None and (not quantity or not of or quantity in of):
                condition.fit(len(rule.levels))
                condition.level = min(condition.level, len(rule.levels))
                self.alarms.due = min(self.alarms.due, self.at)
                continue
            self._remove(name, condition, rule, "its rule is gone")

    def _remove(self, name: str, condition: Condition, rule: CompiledRule | None, why: str) -> None:
        del self.alarms.conditions[name]
        if condition.retain:
            condition.level, condition.acked, condition.confirmed = 0, True, True
            condition.latched = False
            self._record_change(name, condition, rule, "removed", reason=why)

    # -- operators -----------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        """Do what an operator asks for; what makes no sense is recorded as rejected."""
        alarms = self.alarms
        if action.event_time_ms != alarms.acted_at:
            alarms.acted_at, alarms.acted = action.event_time_ms, []
        if action.action_id in alarms.acted:
            return
        alarms.acted.append(action.action_id)
        if action.alarm == "*":
            if action.verb in HOLDS_BACK and self.reasons and not action.comment.strip():
                self._reject(action, None, "it needs a reason")
                return
            if action.verb in ("suppress", "unsuppress"):
                until = self.at + action.duration_ms if action.duration_ms > 0 else NEVER
                alarms.suppressed_until = until if action.verb == "suppress" else 0
                alarms.suppressed_as = action.role
            for name in sorted(alarms.conditions):
                rule = self.rules.rule_of(name)
                if rule is None:
                    continue
                condition = alarms.conditions[name]
                if action.verb in HOLDS_BACK and not _may_hold_back(rule, action.role):
                    if condition.retain:
                        why = f"{action.verb}: {_refused(condition, action, rule)}"
                        self._record_change(name, condition, rule, "rejected", reason=why, action=action)
                elif not _refused(condition, action, rule):
                    self._apply(name, rule, action)
            return
        rule = self.rules.rule_of(action.alarm)
        quantity = quantity_of(action.alarm.partition("/")[2])
        source = "" if rule is None else rule.rule.source
        if (
            rule is None
            or (source == "reading" and quantity not in rule.rule.quantities)
            or (source == FORESIGHT) != (self.source == FORESIGHT)
        ):
            self._reject(action, rule, "there is no such alarm")
            return
        condition = alarms.conditions.get(action.alarm) or new_condition(rule)
        if why := _refused(condition, action, rule, reasons=self.reasons):
            self._reject(action, rule, why)
            return
        if action.alarm not in alarms.conditions:
            self._new(action.alarm, rule)
        self._apply(action.alarm, rule, action)

    def _apply(self, name: str, rule: CompiledRule, action: Action) -> None:
        condition = self.alarms.conditions[name]
        verb = cast(AlarmVerb, action.verb)
        if verb == "ack":
            condition.acked, condition.silenced = True, True
            condition.confirmed = not rule.rule.confirm
        elif verb == "confirm":
            condition.confirmed = True
        elif verb == "shelve":
            longest = self.at + rule.max_shelve_ms
            condition.shelved = self.at + action.duration_ms if action.duration_ms > 0 else ONE_SHOT
            condition.shelve_ends = min(condition.shelved, longest) if action.duration_ms > 0 else longest
        elif verb == "unshelve":
            condition.shelved = condition.shelve_ends = 0
        elif verb == "suppress":
            condition.suppressed_until = self.at + action.duration_ms if action.duration_ms > 0 else NEVER
        elif verb == "unsuppress":
            condition.suppressed_until = 0
        elif verb in ("out_of_service", "in_service"):
            condition.out_of_service = verb == "out_of_service"
        elif verb == "reset":
            condition.latched = False
        elif verb == "silence":
            condition.silenced = True
        self._record_change(name, condition, rule, verb, action=action)
        self._advance(name, condition, rule)

    def _reject(self, action: Action, rule: CompiledRule | None, why: str) -> None:
        condition = self.alarms.conditions.get(action.alarm) or Condition([])
        self._record_change(
            action.alarm, condition, rule, "rejected", reason=f"{action.verb}: {why}", action=action
        )

    # -- history -------------------------------------------------------------------------------

    @staticmethod
    def _limit(condition: Condition, rule: CompiledRule | None) -> float | None:
        """Return the limit of the level that an alarm has, as it is written or as its expression has it."""
        if rule is None or not condition.level:
            return None
        level = rule.levels[condition.level - 1]
        return condition.limit if level.bounds else level.limit

    @staticmethod
    def _respond_by(condition: Condition, rule: CompiledRule | None) -> int | None:
        if rule is None or not condition.level or not rule.response_ms:
            return None
        return condition.since + rule.response_ms

    def _record_change(
        self,
        name: str,
        condition: Condition,
        rule: CompiledRule | None,
        change: Change,
        *,
        reason: str = "",
        action: Action | None = None,
        gone_from: tuple[str, str] | None = None,
    ) -> None:
        at, number = self.alarms.place(name, self.at, is_ahead=self.is_ahead)
        level = condition.level
        rule_id, _, subject = name.partition("/")
        category = "process" if rule is None else rule.category
        # What is silent may be a device, whose name is no quantity's.
        quantity, point = (
            (subject, "") if category in ("liveness", "clock") else (quantity_of(subject), point_of(subject))
        )
        shadow = rule is not None and rule.shadow
        # By position: a row is made for every change of every alarm.
        self.emit(
            AlarmEvent(
                f"{self.entity}:{name}",
                self.entity,
                name,
                rule_id,
                quantity,
                category,
                change,
                at,
                number,
                level > 0,
                condition.acked,
                condition.confirmed,
                condition.retain,
                condition.latched,
                _SHELVED.get(condition.shelved, "timed"),
                condition.suppressed,
                condition.out_of_service,
                condition.silenced,
                level > 0 and condition.told and not shadow and gone_from is None,
                condition.first,
                shadow,
                level,
                SEVERITIES[condition.severity],
                condition.value,
                self._limit(condition, rule),
                condition.since if level else None,
                reason or condition.reason,
                action.operator if action is not None else "",
                action.comment if action is not None else "",
                "" if rule is None else rule.rule.title,
                self.status or "",
                *(gone_from or self.place),
                point,
                action.role if action is not None else "",
                "" if rule is None else rule.rule.cause,
                "" if rule is None else rule.rule.consequence,
                "" if rule is None else rule.rule.response,
                self._respond_by(condition, rule),
            )
        )


#: What holds alarms back, so that it may need a reason, and may be for some roles alone.
HOLDS_BACK: Final = frozenset({"shelve", "suppress", "out_of_service"})


def _limit_of(condition: Condition, rule: CompiledRule, facts: Facts) -> float | None:
    """Return what the most severe level that holds has held a value against, where that is one limit."""
    held = [level for level, state in zip(rule.levels, condition.levels, strict=True) if state.holds]
    if not held or len(held[-1].bounds) != 1:
        return condition.limit
    known = {} if facts.known is None else facts.known.attributes
    return held[-1].bounds[0].limit({**known, **facts.attributes})


def _may_hold_back(rule: CompiledRule, role: str) -> bool:
    """Return whether somebody who acts as ``role`` may hold alarms of a rule back."""
    return not rule.rule.roles or role in rule.rule.roles


def _refused(
    condition: Condition, action: Action, rule: CompiledRule | None = None, *, reasons: bool = False
) -> str:
    """Return why an action makes no sense now, or may not be done; empty if it may."""
    verb = action.verb
    if verb in HOLDS_BACK:
        if reasons and not action.comment.strip():
            return "it needs a reason"
        if rule is not None and not _may_hold_back(rule, action.role):
            return f"only {', '.join(rule.rule.roles)} may do that"
    if verb == "ack" and condition.acked:
        return "it is acknowledged, or there is nothing to acknowledge"
    if verb == "confirm" and condition.confirmed:
        return "there is nothing to confirm"
    if verb == "unshelve" and not condition.shelved:
        return "it is not shelved"
    if verb == "unsuppress" and not condition.suppressed_until:
        return "no operator has suppressed it"
    if verb == "in_service" and not condition.out_of_service:
        return "it is in service"
    if verb == "reset" and not condition.latched:
        return "it is not latched"
    if verb == "reset" and condition.level:
        return "it is active"
    return ""
