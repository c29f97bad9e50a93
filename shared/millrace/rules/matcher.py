"""Many rules asked at once: an index leaves out those that cannot hold.

A rule that asks for ``mcc in (…)`` is found by a look into a table, one that asks for ``sum(…) > 500`` by
the place of the sum among all rules' limits, computed once for all of them. What is left is asked in full,
so the index changes the time that it takes and nothing else.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from millrace.rules.book import in_state
from millrace.rules.compiler import Condition, Test, Use, cost_of
from millrace.rules.errors import RuleError
from millrace.rules.language import Language
from millrace.rules.model import Entry, Rule, Version
from millrace.rules.words import Getter
from millrace.time import NEVER

#: After so many events the index is built anew, by what they have shown.
_LEARN: Final = 256


class Match(NamedTuple):
    """A rule that is asked.

    Attributes:
        rule: The rule.
        version: Its version.
        shadow: Whether it has no effect.
        condition: Its condition.
    """

    rule: Rule
    version: int
    shadow: bool
    condition: Condition


class RuleSet:
    """Rules in force at one time.

    Args:
        rules: The rules, in order of their results.

    Example:
        >>> from types import SimpleNamespace as Event
        >>> from millrace.rules import Field, Language, Rule
        >>> language = Language({"amount": Field("number"), "mcc": Field("text")})
        >>> def ready(id, when):
        ...     return Match(Rule(id, when), 1, False, language.condition(when))
        >>> rules = RuleSet([ready("big", "amount > 500"), ready("food", "mcc == '5411' and amount > 100")])
        >>> [match.rule.id for match in rules.matches(Event(amount=600.0, mcc="5411"))]
        ['big', 'food']
    """

    def __init__(self, rules: Sequence[Match]) -> None:
        self.rules = tuple(rules)
        self._runs = [match.condition.run for match in rules]
        self._build([_cheapest(match.condition) for match in rules])
        # Where a rule can be found by several of its conditions, events show which of them few fulfil.
        self._left = _LEARN if any(len(match.condition.covers) > 1 for match in rules) else 0
        self._learned: dict[tuple[str, str, Any], list[Any]] = {}

    def _build(self, covers: Sequence[tuple[Test, ...]]) -> None:
        """Make the index: for each rule, the conditions that it is found by."""
        self._always: list[int] = []
        tests: dict[tuple[str, int], Test] = {}
        lookups: dict[str, tuple[Getter, dict[Any, list[int]]]] = {}
        limits: dict[tuple[str, bool], tuple[Getter, list[tuple[float, int]]]] = {}
        for place, cover in enumerate(covers):
            if not cover:
                self._always.append(place)
            for test in cover:
                tests.setdefault((test.of.key, _KIND[test.sign]), test)
                if test.sign == "in":
                    _, table = lookups.setdefault(test.of.key, (test.of.run, {}))
                    for value in test.constant:
                        table.setdefault(value, []).append(place)
                else:
                    above = test.sign in (">", ">=")
                    _, found = limits.setdefault((test.of.key, above), (test.of.run, []))
                    found.append((test.constant, place))
        self._lookups = list(lookups.values())
        self._above = [_sorted(get, found) for (_, above), (get, found) in limits.items() if above]
        self._below = [_sorted(get, found) for (_, above), (get, found) in limits.items() if not above]
        self._first = _asked_first(
            [test for kind in range(3) for (_, of), test in tests.items() if of == kind]
        )

    def _learn(self, event: Any) -> None:
        """Count which simple conditions an event fulfils; after enough events, build the index anew."""
        self._left -= 1
        learned = self._learned
        if not learned:
            for match in self.rules:
                for test in (t for cover in match.condition.covers for t in cover):
                    learned[_name(test)] = [test, 0]
        for found in learned.values():
            found[1] += _fulfils(found[0], event)
        if self._left:
            return

        def often(cover: tuple[Test, ...]) -> Any:
            return sum(learned[_name(t)][1] / _LEARN + 0.02 * cost_of(t) for t in cover)

        self._build([min(m.condition.covers, key=often, default=()) for m in self.rules])
        self._learned = {}

    @property
    def first(self) -> tuple[Use, ...]:
        """What every event is asked for first, in this order, and before anything else of its kind.

        It is computed for each event in any case: who can do it for all of them at once need not wait until
        it is asked for. It changes when the index does.
        """
        return () if self._left else self._first

    def __len__(self) -> int:
        return len(self.rules)

    def matches(self, event: Any) -> list[Match]:
        """Return the rules that hold of an event, in their order.

        A rule that cannot be asked (a number outgrew what can be computed with) does not hold.
        """
        try:
            if self._left:
                self._learn(event)
            places = self._candidates(event)
            runs = self._runs
            found = [place for place in places if runs[place](event) is True]
        except (ArithmeticError, ValueError):
            found = [place for place, run in enumerate(self._runs) if _is_true(run, event)]
        if not found:
            return []
        # A rule that was found by two of its conditions is there twice.
        return [self.rules[place] for place in sorted(set(found))]

    def _candidates(self, event: Any) -> list[int]:
        places = self._always[:]
        for get, table in self._lookups:
            here = table.get(get(event))
            if here is not None:
                places += here
        for get, least, limits, of in self._above:
            value = get(event)
            if value is not None and value >= least:
                places += of[: bisect_right(limits, value)]
        for get, _, limits, of in self._below:
            value = get(event)
            if value is not None and value <= limits[-1]:
                places += of[bisect_left(limits, value) :]
        return places


def _sorted(get: Getter, found: list[tuple[float, int]]) -> tuple[Getter, float, list[float], list[int]]:
    found.sort()
    return get, found[0][0], [limit for limit, _ in found], [place for _, place in found]


#: In this order the kinds of simple conditions are looked at: constants, lower limits, upper limits.
_KIND: Final = {"in": 0, ">": 1, ">=": 1, "<": 2, "<=": 2}


def _asked_first(tests: Iterable[Test]) -> tuple[Use, ...]:
    """Return the functions that the index asks for, up to the first that is only a part of a value."""
    found: dict[Use, None] = {}
    for test in tests:
        if test.computes:
            if test.of.use is None:
                break
            found[test.of.use] = None
    return tuple(found)


def _cheapest(condition: Condition) -> tuple[Test, ...]:
    """Return the simple conditions that a rule is found by as long as nothing is known of the events.

    A field costs nothing to read, and a function (a window, a score) is then computed only where the field
    is as the rule wants it.
    """
    return min(condition.covers, key=lambda cover: (max(map(cost_of, cover)), len(cover)), default=())


def _name(test: Test) -> tuple[str, str, Any]:
    return test.sign, test.of.key, test.constant


def _fulfils(test: Test, event: Any) -> bool:
    value = test.of.run(event)
    if test.sign == "in":
        return value in test.constant
    if value is None:
        return False
    return bool(value >= test.constant if test.sign in (">", ">=") else value <= test.constant)


def _is_true(run: Getter, event: Any) -> bool:
    try:
        return run(event) is True
    except (ArithmeticError, ValueError):
        return False


class InForce:
    """The rules that are kept, ready to be asked at any event time.

    Args:
        language: The app's language.
        entries: Rule id → what is kept of it.

    Attributes:
        rules: All rules that are active or in shadow at some time.
        broken: Rule and version → why it cannot be asked: it was published in another version of the app,
            whose language had what it needs.
    """

    def __init__(self, language: Language, entries: Mapping[str, Entry]) -> None:
        self.broken: dict[tuple[str, int], str] = {}
        self._conditions: dict[tuple[str, int], Condition | None] = {}
        self._language = language
        self._entries = dict(sorted(entries.items()))
        steps = {step.from_ms for entry in self._entries.values() for v in entry.versions for step in v.plan}
        self._starts = sorted(steps | {0})
        self._sets: dict[int, RuleSet] = {}
        self._now = RuleSet(())
        self._from, self._until = NEVER, NEVER
        self.rules = tuple(
            {(m.rule.id, m.version): m for s in self._starts for m in self._matches(s)}.values()
        )

    def at(self, time_ms: int) -> RuleSet:
        """Return the rules in force at an event time, ms."""
        if not self._from <= time_ms < self._until:
            place = max(0, bisect_right(self._starts, time_ms) - 1)
            self._from = self._starts[place] if place else -NEVER
            self._until = self._starts[place + 1] if place + 1 < len(self._starts) else NEVER
            found = self._sets.get(place)
            if found is None:
                found = self._sets[place] = RuleSet(self._matches(self._starts[place]))
            self._now = found
        return self._now

    def _matches(self, time_ms: int) -> list[Match]:
        found = []
        for entry in self._entries.values():
            for version, state in in_state(entry, time_ms):
                condition = self._condition(version)
                if condition is not None:
                    found.append(Match(version.rule, version.number, state == "shadow", condition))
        return found

    def _condition(self, version: Version) -> Condition | None:
        key = (version.rule.id, version.number)
        if key not in self._conditions:
            try:
                self._conditions[key] = self._language.condition(version.rule.when)
            except RuleError as error:
                self._conditions[key] = None
                self.broken[key] = str(error)
        return self._conditions[key]


#: So many sets of rules are kept compiled; a worker sees one, and for a moment the next.
_KEPT: Final = 8


def view_of(language: Language) -> Callable[[Iterable[tuple[str, Entry]]], InForce]:
    """Return a function that makes rules ready, for :meth:`millrace.state.BroadcastState.view`.

    Every key group has a copy of the rules, and a batch reads it anew: what was compiled is kept by its
    content, once per worker.

    Args:
        language: The app's language.
    """
    made: dict[tuple[Any, ...], InForce] = {}

    def view(entries: Iterable[tuple[str, Entry]]) -> InForce:
        kept = dict(entries)
        key = tuple(
            (id, v.number, v.rule.when, v.rule.action, v.plan) for id, e in kept.items() for v in e.versions
        )
        found = made.get(key)
        if found is None:
            if len(made) >= _KEPT:
                made.clear()
            found = made[key] = InForce(language, kept)
        return found

    return view
