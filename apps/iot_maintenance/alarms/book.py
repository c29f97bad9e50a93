"""Alarm rules in force at a time, by what they look at."""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from millrace.errors import UserError
from millrace.local.documents import read_yaml
from millrace.rules import Entry
from millrace_apps.iot_maintenance.alarms.bounds import Bound
from millrace_apps.iot_maintenance.alarms.language import FORESIGHT, Facts
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, CompiledRule
from millrace_apps.iot_maintenance.state.assets import quantity_of


class RuleFileError(UserError):
    """A file of alarm rules cannot be read, or one of its rules is none."""


class RuleLimits(NamedTuple):
    """Limits of a quantity's values, of one kind of machine.

    Attributes:
        below: The largest one that a value may fall below; ``None``: there is none.
        above: The least one that it may rise above.
        bounds: Those that hang on master data.
    """

    below: float | None
    above: float | None
    bounds: tuple[Bound, ...]

    def of(self, attributes: Mapping[str, str]) -> tuple[float | None, float | None]:
        """Return both limits where master data say so.

        Args:
            attributes: Master data of the measuring point and its machine.

        >>> from millrace_apps.iot_maintenance.alarms.bounds import bounds_in
        >>> RuleLimits(None, 90.0, bounds_in("value > attribute('limit')")).of({"limit": "80"})
        (None, 80.0)
        """
        below, above = self.below, self.above
        for bound in self.bounds:
            limit = bound.limit(attributes)
            if limit is None:
                continue
            if bound.side == "above":
                above = limit if above is None else min(above, limit)
            else:
                below = limit if below is None else max(below, limit)
        return below, above


class RuleSet:
    """The rules of one time, ready to be asked.

    Args:
        rules: The rules, and whether each is only tried.
    """

    def __init__(self, rules: Iterable[tuple[AlarmRule, bool]]) -> None:
        compiled = [CompiledRule(rule, shadow=shadow) for rule, shadow in rules]
        self.by_id: dict[str, CompiledRule] = {c.rule.id: c for c in compiled}
        #: Rules that look at each reading, by quantity.
        self.of: dict[str, tuple[CompiledRule, ...]] = {}
        for c in self.by_id.values():
            if c.rule.source == "reading":
                for quantity in c.rule.quantities:
                    self.of[quantity] = (*self.of.get(quantity, ()), c)
        self.machine = self._from("machine")
        self.errors = self._from("error")
        self.quality = self._from("quality")
        self.silence = self._from("silence")
        self.clock = self._from("clock")
        self.foresight = self._from(FORESIGHT)
        #: Quantities that rules over a whole machine look at.
        self.together = frozenset(q for c in self.machine for q in c.rule.quantities)
        #: Lengths (ms) of the windows that rules ask for, by quantity.
        self.windows: dict[str, tuple[int, ...]] = {
            q: lengths for q, found in self.of.items() if (lengths := _lengths(found))
        }
        #: Shortest wait for data by quantity, ms.
        self.no_data: dict[str, int] = {
            q: min(level.no_data_ms for c in found for level in c.levels if level.no_data_ms)
            for q, found in self.of.items()
            if any(c.no_data for c in found)
        }
        #: Quantity → values between which no rule of its readings begins to hold; of limits alone.
        self.safe: dict[str, tuple[float, float]] = {q: _safe(found) for q, found in self.of.items()
                                                     if all(c.by_limits for c in found)}  # fmt: skip
        #: The same of one kind of machine.
        self._safe_for: dict[tuple[str, str], tuple[float, float]] = {}
        self._limits: dict[tuple[str, str], RuleLimits] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        told = msgspec.json.encode([(c.rule, c.shadow) for c in compiled])
        #: The same for the same rules.
        self.version: str = blake2b(told, digest_size=6).hexdigest()

    def _from(self, source: str) -> tuple[CompiledRule, ...]:
        return tuple(c for c in self.by_id.values() if c.rule.source == source)

    def is_safe_for(self, kind: str, quantity: str, value: float) -> bool:
        """Return whether no rule for readings of a kind of machine begins to hold at a value."""
        safe = self._safe_for.get((kind, quantity))
        if safe is None:
            rules = [c for c in self.of.get(quantity, ()) if not c.kinds or kind in c.kinds]
            safe = _safe(rules) if all(c.by_limits for c in rules) else _NOWHERE
            self._safe_for[kind, quantity] = safe
        return safe[0] <= value <= safe[1]

    def limits_for(self, kind: str, quantity: str) -> RuleLimits:
        """Return the limits that rules have for a quantity of a kind; rules that are only tried have none."""
        found = self._limits.get((kind, quantity))
        if found is None:
            levels = [
                level
                for rule in self.of.get(quantity, ())
                if not rule.shadow and (not rule.kinds or kind in rule.kinds)
                for level in rule.levels
            ]
            below = max((level.below for level in levels if level.below is not None), default=None)
            above = min((level.above for level in levels if level.above is not None), default=None)
            bounds = tuple(bound for level in levels for bound in level.bounds)
            found = self._limits[kind, quantity] = RuleLimits(below, above, bounds)
        return found

    def machine_trips(self, facts: Facts) -> bool:
        """Return whether any rule over a whole machine begins to hold."""
        return any(c.trips(facts) for c in self.machine if not c.kinds or facts.kind in c.kinds)

    def foreseen_trips(self, facts: Facts) -> bool:
        """Return whether any rule on what is foreseen begins to hold."""
        return any(c.trips(facts) for c in self.foresight if not c.kinds or facts.kind in c.kinds)

    def concern(self, subject: str, conditions: Container[str], version: str) -> bool:
        """Return whether a reading of a measuring point can change an alarm that something has happened to.

        Args:
            subject: The measuring point.
            conditions: Names of the machine's alarms that something has happened to.
            version: The version of the rules that they were last asked by.
        """
        if not conditions:
            return False
        if version != self.version:
            return True
        names = self._names.get(subject)
        if names is None:
            rules = (*self.of.get(quantity_of(subject), ()), *self.quality)
            names = self._names[subject] = tuple(rule.name_for(subject) for rule in rules)
        return any(name in conditions for name in names)

    def rule_of(self, alarm: str) -> CompiledRule | None:
        """Return the rule of an alarm by its name on its machine."""
        return self.by_id.get(alarm.partition("/")[0])


def _lengths(rules: Iterable[CompiledRule]) -> tuple[int, ...]:
    return tuple(sorted({length for rule in rules for level in rule.levels for length in level.windows}))


#: Bounds between which there is nothing.
_NOWHERE: Final = (inf, -inf)


def _safe(rules: Iterable[CompiledRule]) -> tuple[float, float]:
    """Return the least and the largest value for which no level of any of these rules begins to hold."""
    levels = [level for rule in rules for level in rule.levels]
    low = max((level.below for level in levels if level.below is not None), default=-inf)
    high = min((level.above for level in levels if level.above is not None), default=inf)
    return low, high


class RuleBook:
    """Rules over time: what was there at the start, and what has been published since.

    Args:
        defaults: Rules that are there from the start, until a rule of their id is published.
        entries: Rules that have been published, by id.

    Example:
        >>> from millrace_apps.iot_maintenance.alarms.rule import Level
        >>> book = RuleBook([AlarmRule("hot", (Level(above=80.0),), quantities=("oil_temperature",))], ())
        >>> [rule.rule.id for rule in book.at(0).of["oil_temperature"]]
        ['hot']
    """

    def __init__(self, defaults: Sequence[AlarmRule], entries: Iterable[tuple[str, Entry]]) -> None:
        self._defaults = tuple(defaults)
        self._entries = dict(entries)
        steps = {s.from_ms for e in self._entries.values() for v in e.versions for s in v.plan}
        #: Times (ms) at which the rules change.
        self._times = sorted(steps | {0})
        self._changes = len(self._times) > 1
        self._sets: dict[int, RuleSet] = {}

    def at(self, time: int) -> RuleSet:
        """Return the rules in force at an event time (ms)."""
        place = bisect_right(self._times, time) - 1 if self._changes else 0
        found = self._sets.get(place)
        if found is None:
            found = self._sets[place] = RuleSet(self._in_force(self._times[max(place, 0)]))
        return found

    def active(self, time: int) -> list[AlarmRule]:
        """Return the rules that are active at an event time (ms), as they are written."""
        return [rule for rule, is_shadow in self._in_force(time) if not is_shadow]

    def _in_force(self, time: int) -> list[tuple[AlarmRule, bool]]:
        rules = [(rule, False) for rule in self._defaults if not self._replaced(rule.id, time)]
        for entry in self._entries.values():
            for version in entry.versions:
                state = version.state_at(time)
                if state in ("active", "shadow"):
                    rules.append((_decode(version.rule.when), state == "shadow"))
        return rules

    def _replaced(self, rule_id: str, time: int) -> bool:
        """Whether a published version has taken a default's place: from its first active state on."""
        entry = self._entries.get(rule_id)
        if entry is None:
            return False
        return any(
            step.from_ms <= time and step.state not in ("draft", "shadow")
            for version in entry.versions
            for step in version.plan
        )


_decode: Final = msgspec.json.Decoder(AlarmRule).decode
_entries_encoder: Final = msgspec.msgpack.Encoder()


def book_of(defaults: tuple[AlarmRule, ...], entries: list[tuple[str, Any]]) -> RuleBook:
    """Return the book of these rules; equal rules give the same one, compiled once per worker."""
    return _book(defaults, _entries_encoder.encode(entries))


@functools.lru_cache(maxsize=16)
def _book(defaults: tuple[AlarmRule, ...], entries: bytes) -> RuleBook:
    return RuleBook(defaults, msgspec.msgpack.decode(entries, type=list[tuple[str, Entry]]))


def read_rules(path: Path) -> list[AlarmRule]:
    """Return the alarm rules of a YAML or JSON file: a list, or one under the key ``rules``.

    Args:
        path: The file.

    Raises:
        RuleFileError: It cannot be read, or a rule of it is none; says which and why.
    """
    found = read_yaml(path, RuleFileError)
    listed = found.get("rules") if isinstance(found, dict) else found
    if not isinstance(listed, list):
        raise RuleFileError(f"{path} is no list of rules")
    rules: list[AlarmRule] = []
    for number, item in enumerate(listed, start=1):
        name = item.get("id", "?") if isinstance(item, dict) else "?"
        try:
            rule = msgspec.convert(item, AlarmRule)
            CompiledRule(rule)
        except (msgspec.ValidationError, UserError) as error:
            hint = "; quote words such as off, on, yes and no" if "`bool`" in str(error) else ""
            raise RuleFileError(f"{path}: rule {number} ({name}): {error}{hint}") from None
        if any(other.id == rule.id for other in rules):
            raise RuleFileError(f"{path}: rule {number}: there are two rules '{rule.id}'")
        rules.append(rule)
    return rules
