"""The state of one alarm: which of its levels hold, and where it is in its life.

The life is that of OPC UA Part 9 (after ISA-18.2): an alarm becomes active, is acknowledged and confirmed
(before or after it is inactive again), may be shelved for a time or once, suppressed by what its machine
does or by an operator, out of service, latched until it is reset. It is kept as long as something of it
matters, and forgotten then.
"""

from __future__ import annotations

from typing import Final

import msgspec

from millrace.time import NEVER
from millrace_apps.iot_maintenance.alarms.language import Facts
from millrace_apps.iot_maintenance.alarms.rule import CompiledLevel, CompiledRule

#: Shelved once: until it is inactive.
ONE_SHOT: Final = -1


class LevelState(msgspec.Struct, array_like=True):
    """How far one level has come.

    Attributes:
        holds: Whether its condition holds, with dead-band and repetition.
        on: Whether it counts: the condition has held for the on-delay, and not been away for the off-delay.
        since: Since when the condition has been as it is, ms.
        raw: Whether the condition alone holds, without repetition.
        hits: When it occurred, ms; for repetition.
    """

    holds: bool = False
    on: bool = False
    since: int = 0
    raw: bool = False
    hits: list[int] = []


class Condition(msgspec.Struct, array_like=True):
    """The state of one alarm.

    Attributes:
        levels: State of each level of its rule.
        level: The highest level that counts, from 1; 0: the alarm is inactive.
        acked: An operator has seen it.
        confirmed: An operator has confirmed it.
        latched: It waits for a reset.
        shelved: 0: no; ``ONE_SHOT``; else until when, ms.
        shelve_ends: When shelving ends at the latest, ms.
        by_status: It is suppressed by the machine's status.
        suppressed_until: Suppressed by an operator until then, ms; 0: not.
        out_of_service: It is taken out of use.
        silenced: Its horn is off.
        severity: Place of its severity, of its last level or escalated.
        since: When it last became active, ms.
        alarms: How often it was raised again since.
        next_alarm: When it is raised again, ms; 0: not.
        escalates: When it becomes more severe, ms; 0: not.
        first: It was the first of its group.
        value: The last value that was judged.
        reason: What is wrong, for sensors.
        limit: What the expression of the level that holds last held the value against.
    """

    levels: list[LevelState]
    level: int = 0
    acked: bool = True
    confirmed: bool = True
    latched: bool = False
    shelved: int = 0
    shelve_ends: int = 0
    by_status: bool = False
    suppressed_until: int = 0
    out_of_service: bool = False
    silenced: bool = False
    severity: int = 0
    since: int = 0
    alarms: int = 0
    next_alarm: int = 0
    escalates: int = 0
    first: bool = False
    value: float | None = None
    reason: str = ""
    limit: float | None = None

    @property
    def retain(self) -> bool:
        """Whether it still matters."""
        return self.level > 0 or not self.acked or not self.confirmed or self.latched

    @property
    def suppressed(self) -> bool:
        """Whether it is suppressed, by whomever."""
        return self.by_status or self.suppressed_until > 0

    @property
    def told(self) -> bool:
        """Whether operators are to be told when it is active."""
        return not (self.shelved or self.by_status or self.suppressed_until or self.out_of_service)

    @property
    def idle(self) -> bool:
        """Whether it can be forgotten: as if it had never been."""
        if self.retain or self.shelved or self.suppressed_until or self.out_of_service:
            return False
        return not any(state.holds or state.on or state.raw or state.hits for state in self.levels)

    def judge(self, rule: CompiledRule, facts: Facts, at: int) -> None:
        """Ask all levels about a reading or an error."""
        for level, state in zip(rule.levels, self.levels, strict=True):
            if level.no_data_ms:
                # Here is data; but it may be from the time of the silence, of a machine that is behind.
                holds = state.holds and facts.at + level.no_data_ms <= facts.stream_ms
            else:
                holds = state.raw = level.holds(facts, state.raw)
                if level.repeat:
                    if holds:
                        state.hits.append(at)
                        del state.hits[: -level.repeat]
                    holds = _repeats(level, state, at)
            if holds != state.holds:
                state.holds, state.since = holds, at

    def told_holds(self, rule: CompiledRule, holds: bool, at: int, *, no_data: bool = False) -> None:
        """Set the condition of levels that is judged elsewhere.

        Args:
            rule: The rule.
            holds: Whether it holds.
            at: Since when, ms.
            no_data: Only levels that wait for data are meant.
        """
        for level, state in zip(rule.levels, self.levels, strict=True):
            if (not no_data or level.no_data_ms) and holds != state.holds:
                state.holds, state.since = holds, at

    def settle(self, rule: CompiledRule, at: int) -> int:
        """Let delays pass up to ``at`` (ms) and return the level that results."""
        highest = 0
        for place, (level, state) in enumerate(zip(rule.levels, self.levels, strict=True), start=1):
            if level.repeat and state.hits and not _repeats(level, state, at):
                state.hits = [hit for hit in state.hits if hit > at - level.within_ms]
                if state.holds:
                    state.holds, state.since = False, at
            if state.holds != state.on:
                delay = level.on_delay_ms if state.holds else level.off_delay_ms
                if at - state.since >= delay:
                    state.on = state.holds
            if state.on:
                highest = place
        schedule = rule.rule.schedule
        return 0 if highest and schedule is not None and not schedule.holds(at) else highest

    def due(self, rule: CompiledRule, at: int) -> int:
        """Return when (ms) after ``at`` something happens to it by itself; ``NEVER`` if nothing does."""
        due = NEVER
        schedule = rule.rule.schedule
        for level, state in zip(rule.levels, self.levels, strict=True):
            if state.holds != state.on:
                due = min(due, state.since + (level.on_delay_ms if state.holds else level.off_delay_ms))
            if level.repeat and state.hits:
                # The oldest of those that make it hold leaves first.
                due = min(due, state.hits[-min(level.repeat, len(state.hits))] + level.within_ms)
            if schedule is not None and (state.on or state.holds):
                due = min(due, schedule.next_change(at))
        if self.shelved:
            due = min(due, self.shelve_ends)
        if self.suppressed_until:
            due = min(due, self.suppressed_until)
        if self.level:
            due = min(due, self.next_alarm or NEVER, self.escalates or NEVER)
        return due

    def fit(self, count: int) -> None:
        """Have so many levels: the rule may have been changed."""
        del self.levels[count:]
        self.levels += [LevelState() for _ in range(count - len(self.levels))]


def new_condition(rule: CompiledRule) -> Condition:
    """Return the state of an alarm that nothing has happened to."""
    return Condition([LevelState() for _ in rule.levels])


def _repeats(level: CompiledLevel, state: LevelState, at: int) -> bool:
    """Return whether the level has occurred often enough in the time up to ``at`` (ms)."""
    return len(state.hits) >= level.repeat and state.hits[-level.repeat] > at - level.within_ms
