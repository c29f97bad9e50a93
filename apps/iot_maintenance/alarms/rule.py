"""Alarm rules: what is written, and what is made of it.

A rule has levels, from mild to severe. Each level is a condition with a dead-band and delays of its own: the
alarm's level is the most severe whose condition has lasted for its on-delay and has not been away for its
off-delay. So "raise at once, critical after a minute, step down after two, clear after five" is two levels
with one threshold.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from millrace.errors import UserError
from millrace.rules import Language, RuleError
from millrace.time.durations import to_ms
from millrace_apps.iot_maintenance.alarms.bounds import bounds_in
from millrace_apps.iot_maintenance.alarms.language import WINDOW_NAMES, Facts, Source, language
from millrace_apps.iot_maintenance.alarms.schedule import Schedule

Severity = Literal["low", "medium", "high", "critical"]
SEVERITIES: Final = ("low", "medium", "high", "critical")
Category = Literal["process", "sensor", "liveness", "clock"]
#: Source → what its alarms are of; process unless here.
_CATEGORIES: Final[Mapping[Source, Category]] = {"quality": "sensor", "silence": "liveness", "clock": "clock"}

_RuleId = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$")]
_Duration = str | int


class Repeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """So many occurrences within a time, the present one included."""

    count: Annotated[int, Meta(ge=1, le=100)]
    within: _Duration


class Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One level of a rule: a limit, an expression, or no data.

    Attributes:
        severity: How severe it is.
        above: It holds above this value, until the value is at or below it less the dead-band.
        below: It holds below this value, until the value is at or above it plus the dead-band.
        dead_band: See there; in the value's unit.
        when: Or an expression for which it holds.
        until: With ``when``: it goes on to hold until this does; unless given, while ``when`` holds.
        no_data: Or it holds when there has been no reading for so long.
        on_delay: It must have held for so long.
        off_delay: It must have been away for so long.
        repeat: It must have occurred so often within a time.
    """

    severity: Severity = "medium"
    above: float | None = None
    below: float | None = None
    dead_band: Annotated[float, Meta(ge=0)] = 0.0
    when: str = ""
    until: str = ""
    no_data: _Duration = 0
    on_delay: _Duration = 0
    off_delay: _Duration = 0
    repeat: Repeat | None = None


class ReAlarm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An alarm that stays active is raised again, as if it were new (OPC UA Part 9: ReAlarmTime)."""

    every: _Duration
    times: Annotated[int, Meta(ge=1, le=1000)] = 3


class Escalate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An alarm that nobody has acknowledged for so long becomes more severe."""

    after: _Duration
    severity: Severity


class AlarmRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An alarm rule as its author writes it.

    Attributes:
        id: Its name.
        levels: From mild to severe.
        source: What it looks at.
        quantities: Of ``reading``, ``quality``, ``silence``: one alarm each (empty for the last two: of all).
            Of ``machine``: the names that its expressions use.
        kinds: Kinds of machines that it is for; empty: all.
        title: What is shown.
        suppress_in: In these statuses, or regimes, of the machine its alarms are suppressed.
        schedule: When it is in force; always unless given.
        ack: Whether an operator must acknowledge it.
        confirm: Whether acknowledging must be confirmed.
        latched: Whether it stays until an operator resets it.
        re_alarm: Whether it is raised again while it stays.
        escalate: Whether it becomes more severe while nobody acknowledges it.
        group: Of the alarms of a group on a machine, the first to come is marked.
        max_shelve: Longest time that it may be shelved for.
        roles: Who may shelve, suppress or take it out of service; empty: anybody.
        cause: What it may come from, for whoever responds to it.
        consequence: What happens if nobody does.
        response: What to do.
        response_time: Within which time; 0: nobody has said.
    """

    id: _RuleId
    levels: Annotated[tuple[Level, ...], Meta(min_length=1, max_length=8)]
    source: Source = "reading"
    quantities: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    title: str = ""
    suppress_in: tuple[str, ...] = ()
    schedule: Schedule | None = None
    ack: bool = True
    confirm: bool = False
    latched: bool = False
    re_alarm: ReAlarm | None = None
    escalate: Escalate | None = None
    group: str = ""
    max_shelve: _Duration = "8h"
    roles: tuple[str, ...] = ()
    cause: str = ""
    consequence: str = ""
    response: str = ""
    response_time: _Duration = 0


class CompiledLevel:
    """A level, ready to be asked.

    Args:
        level: The level.
        rule: Its rule.
    """

    __slots__ = (
        "above",
        "below",
        "bounds",
        "level",
        "limit",
        "no_data_ms",
        "off_above",
        "off_below",
        "off_delay_ms",
        "on_delay_ms",
        "repeat",
        "severity",
        "until",
        "when",
        "windows",
        "within_ms",
    )

    def __init__(self, level: Level, rule: AlarmRule) -> None:
        self.level = level
        self.severity = SEVERITIES.index(level.severity)
        self.above, self.below = level.above, level.below
        self.off_above = None if level.above is None else level.above - level.dead_band
        self.off_below = None if level.below is None else level.below + level.dead_band
        self.limit = level.above if level.above is not None else level.below
        words = language(rule.source, rule.quantities)
        asked = [words.condition(text) if text else None for text in (level.when, level.until)]
        self.when, self.until = (None if c is None else c.holds for c in asked)
        uses = [use for condition in asked if condition is not None for use in condition.uses]
        self.windows = frozenset(use.arguments[1] for use in uses if use.name in WINDOW_NAMES)
        #: Limits that its expression holds values against.
        self.bounds = bounds_in(level.when) if level.when and rule.source == "reading" else ()
        self.no_data_ms = to_ms(level.no_data)
        self.on_delay_ms, self.off_delay_ms = to_ms(level.on_delay), to_ms(level.off_delay)
        self.repeat = level.repeat.count if level.repeat else 0
        self.within_ms = to_ms(level.repeat.within) if level.repeat else 0
        self._check(rule)

    def _check(self, rule: AlarmRule) -> None:
        level = self.level
        ways = sum(
            (level.above is not None or level.below is not None, bool(level.when), bool(level.no_data))
        )
        fed = rule.source in ("quality", "silence", "clock")  # told from outside, by the fault itself
        if ways != (0 if fed and not level.when else 1):
            raise RuleError(
                "a level has one condition: above/below, when, or no_data"
                + (" (or none, of quality, silence and clock)" if fed else ""),
                rule=rule.id,
            )
        if (self.limit is not None or self.no_data_ms) and rule.source != "reading":
            raise RuleError(f"limits and no_data are of readings, not of {rule.source}", rule=rule.id)
        if level.until and not level.when:
            raise RuleError("until goes with when", rule=rule.id)

    def holds(self, facts: Facts, before: bool) -> bool:
        """Return whether the condition holds; ``before``: whether it has so far (hysteresis)."""
        when = self.when
        if when is not None:
            if before and self.until is not None:
                return not self.until(facts)
            return when(facts)
        value = facts.value
        if value is None:
            return before
        if before:
            return (self.off_above is not None and value > self.off_above) or (
                self.off_below is not None and value < self.off_below
            )
        return (self.above is not None and value > self.above) or (
            self.below is not None and value < self.below
        )


class CompiledRule:
    """A rule, ready to be asked.

    Args:
        rule: The rule.
        shadow: Whether it is only tried: its alarms are recorded and never announced.

    Raises:
        RuleError: The rule contradicts itself, or an expression is none.
    """

    __slots__ = (
        "bounded",
        "by_limits",
        "category",
        "escalate_ms",
        "escalated",
        "kinds",
        "levels",
        "max_shelve_ms",
        "names",
        "no_data",
        "re_alarm_ms",
        "response_ms",
        "rule",
        "shadow",
        "suppress_in",
    )

    def __init__(self, rule: AlarmRule, *, shadow: bool = False) -> None:
        if rule.source in ("reading", "machine") and not rule.quantities:
            raise RuleError(f"a rule on {rule.source}s names its quantities", rule=rule.id)
        self.rule, self.shadow = rule, shadow
        try:
            self.levels = tuple(CompiledLevel(level, rule) for level in rule.levels)
            self.re_alarm_ms = to_ms(rule.re_alarm.every) if rule.re_alarm else 0
            self.escalate_ms = to_ms(rule.escalate.after) if rule.escalate else 0
            self.max_shelve_ms = to_ms(rule.max_shelve)
            self.response_ms = to_ms(rule.response_time)
        except RuleError as error:
            raise error.of(rule.id) from None
        except UserError as error:
            raise RuleError(str(error), rule=rule.id) from None
        severities = [level.severity for level in self.levels]
        if severities != sorted(severities):
            raise RuleError("levels stand from mild to severe", rule=rule.id)
        if rule.re_alarm and not self.re_alarm_ms:
            raise RuleError("re_alarm needs a time", rule=rule.id)
        self.escalated = SEVERITIES.index(rule.escalate.severity) if rule.escalate else 0
        self.kinds = frozenset(rule.kinds)
        self.suppress_in = frozenset(rule.suppress_in)
        self.category: Category = _CATEGORIES.get(rule.source, "process")
        #: Whether only limits say when it begins to hold.
        self.by_limits = all(not level.when or level.no_data_ms for level in self.levels)
        self.no_data = any(level.no_data_ms for level in self.levels)
        #: Whether an expression holds values against a limit.
        self.bounded = any(level.bounds for level in self.levels)
        self.names = {q: f"{rule.id}/{q}" for q in rule.quantities}

    def name_for(self, quantity: str) -> str:
        """Return the name, on its machine, of the alarm of a quantity."""
        return self.names.get(quantity) or (f"{self.rule.id}/{quantity}" if quantity else self.rule.id)

    def trips(self, facts: Facts) -> bool:
        """Return whether any level's condition begins to hold."""
        return any(level.holds(facts, False) for level in self.levels)


def read_rule(text: str) -> AlarmRule:
    """Return the rule that a JSON text writes.

    Raises:
        RuleError: It is none; says why.
    """
    try:
        return msgspec.json.decode(text, type=AlarmRule)
    except msgspec.MsgspecError as error:
        raise RuleError(f"this is no alarm rule: {error}") from None


class AlarmLanguage(Language):
    """Lets the life cycle that all rules share keep alarm rules: their condition is the rule as JSON."""

    def condition(self, text: str) -> Any:
        """Return the compiled rule.

        Raises:
            RuleError: The text is no alarm rule.
        """
        return CompiledRule(read_rule(text))


@functools.cache
def alarm_language(*, two_person: bool = False) -> AlarmLanguage:
    """Return the language in which rules are published.

    Args:
        two_person: Whether a second person must approve each rule before it is active.
    """
    # No rule has an action: all of them have the empty one.
    return AlarmLanguage({}, actions=("",), two_person=frozenset({""} if two_person else ()))
