"""A pattern as plain data, and how one is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal

from millrace.patterns.conditions import Condition, PatternDefinitionError, Test, both, either, test
from millrace.time import ms

#: How a part follows what was matched before it.
Contiguity = Literal["next", "followed_by", "followed_by_any", "not_next", "not_followed_by"]
#: How the events of a repeated part follow each other.
Inner = Literal["next", "followed_by", "followed_by_any"]
#: Between which events a time is measured: those of the whole match, or one and the one before it.
WithinType = Literal["first_and_last", "previous_and_current"]

_LOOPS: Final = "one_or_more(), times(a, b) or times_or_more(n)"


@dataclass(frozen=True)
class Part:
    """One part of a pattern: an event, a group of parts, or what must not come.

    Attributes:
        name: Its name; empty for a group.
        contiguity: How it follows the part before it.
        group: The parts of a group.
        condition: What an event must be; ``None``: any event.
        least: How often it comes at least, optional or not.
        most: How often at most, ``None``: no limit.
        repeated: Whether a quantifier was given.
        is_optional: Whether it may be missing.
        is_greedy: Whether it takes what it can before the pattern goes on.
        inner: How its repetitions follow each other; ``None`` unless said: relaxed.
        stop: What ends its repetitions.
        gap_ms: In what time after the event before it each of its events comes, ms; of what must not
            come at the end: for how long it must not.
    """

    name: str
    contiguity: Contiguity
    group: tuple[Part, ...] = ()
    condition: Condition | None = None
    least: int = 1
    most: int | None = 1
    repeated: bool = False
    is_optional: bool = False
    is_greedy: bool = False
    inner: Inner | None = None
    stop: Condition | None = None
    gap_ms: int | None = None

    @property
    def negated(self) -> bool:
        """Whether it says what must not come."""
        return self.contiguity in ("not_next", "not_followed_by")

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"'{self.name}'" if self.name else f"the group of {', '.join(self.names())}"

    def names(self) -> Iterator[str]:
        """Yield its name, or those of its parts."""
        if self.name:
            yield self.name
        for part in self.group:
            yield from part.names()

    def check(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            PatternDefinitionError: It says what, and what to do.
        """
        if self.negated:
            self._check_negated()
            return
        loops = self.most is None or self.most > 1
        if self.inner is not None and not loops:
            asked = "consecutive()" if self.inner == "next" else "allow_combinations()"
            raise PatternDefinitionError(f"{asked} on {self.label}, which comes once: add {_LOOPS}")
        if self.stop is not None and not loops:
            raise PatternDefinitionError(f"until() on {self.label}, which does not repeat: add {_LOOPS}")
        if self.is_greedy:
            if self.group:
                raise PatternDefinitionError("greedy() is for single parts, not for groups")
            if self.least == self.most and not self.is_optional:
                raise PatternDefinitionError(
                    f"greedy() on {self.label}, which has no choice how often it comes: add {_LOOPS}"
                )
            if self.inner == "followed_by_any":
                raise PatternDefinitionError(
                    f"greedy() and allow_combinations() on {self.label} contradict each other: choose one"
                )
        for part in self.group:
            part.check()
            if part.negated and part.gap_ms is not None:
                raise part.no_gap()

    def no_gap(self) -> PatternDefinitionError:
        """Return what is said of a time for what must not come before another part."""
        return PatternDefinitionError(
            f"{self.label} must not come before the next part does: the time is the next part's, say"
            " within(..., 'previous_and_current') of that one"
        )

    def _check_negated(self) -> None:
        if self.repeated or self.is_optional or self.is_greedy or self.inner or self.stop:
            raise PatternDefinitionError(
                f"{self.label} must not come, so it has no quantifier, optional(), greedy() or until()"
            )
        if self.condition is None:
            raise PatternDefinitionError(f"{self.label} forbids every event: add where(...)")

    def describe(self) -> dict[str, Any]:
        """Return it as plain data; conditions are code, of them only whether there is one."""
        said: dict[str, Any] = {"contiguity": self.contiguity, "times": [self.least, self.most]}
        said |= {"group": [p.describe() for p in self.group]} if self.group else {"name": self.name}
        said["inner"] = self.inner or "followed_by"
        for name in ("condition", "stop", "is_optional", "is_greedy"):
            if getattr(self, name):
                said[name] = True
        if self.gap_ms is not None:
            said["gap_ms"] = self.gap_ms
        return said


@dataclass(frozen=True)
class Pattern:
    """What to look for: made by :func:`begin`, longer with every method, never changed.

    ``where`` and the quantifiers are of the last part. ``millrace.patterns.detect`` makes a process of it.

    Attributes:
        parts: The parts in order.
        within_ms: In what time all of a match must come, ms.
        gap_ms: In what time after the one before it each event of a match must come, ms, where its part
            does not say.
    """

    parts: tuple[Part, ...]
    within_ms: int | None = None
    gap_ms: int | None = None

    # -- parts -----------------------------------------------------------------------------------

    def next(self, part: str | Pattern) -> Pattern:
        """Add a part whose event comes directly after the one before: *strict* contiguity.

        Args:
            part: Its name, or a pattern: a group.
        """
        return self.add(part, "next")

    def followed_by(self, part: str | Pattern) -> Pattern:
        """Add a part whose event is the first fitting one that comes later: *relaxed* contiguity."""
        return self.add(part, "followed_by")

    def followed_by_any(self, part: str | Pattern) -> Pattern:
        """Add a part whose event is any fitting one that comes later: *non-deterministic* relaxed."""
        return self.add(part, "followed_by_any")

    def not_next(self, name: str) -> Pattern:
        """Say what must not come directly after the part before."""
        return self.add(name, "not_next")

    def not_followed_by(self, name: str) -> Pattern:
        """Say what must not come between the part before and the part after.

        At the end of a pattern: until ``within`` is over, and then there is a match.
        """
        return self.add(name, "not_followed_by")

    def add(self, part: str | Pattern, contiguity: Contiguity) -> Pattern:
        """Return the pattern with a further part."""
        if isinstance(part, str) and part:
            return replace(self, parts=(*self.parts, Part(part, contiguity)))
        if not isinstance(part, Pattern):
            raise PatternDefinitionError(f"a part is a name or a pattern begun with begin(), not {part!r}")
        if contiguity in ("not_next", "not_followed_by"):
            raise PatternDefinitionError("what must not come is one event: a name, and where(...)")
        for name, said in (("within()", part.within_ms), ("gaps_within()", part.gap_ms)):
            if said is not None:
                raise PatternDefinitionError(f"{name} is of the whole pattern: leave it out of the group")
        return replace(self, parts=(*self.parts, Part("", contiguity, group=part.parts)))

    # -- conditions ------------------------------------------------------------------------------

    def where(self, condition: Test) -> Pattern:
        """Take only events for which ``condition`` holds; a second one must hold too.

        Args:
            condition: ``condition(event)``, or ``condition(event, matched)``: ``matched["name"]`` is the
                list of events that this partial match has taken for the part ``name`` so far.
        """
        last = self._single("where()")
        return self._last(condition=both(last.condition, test(condition, f"where() of {last.label}")))

    def or_where(self, condition: Test) -> Pattern:
        """Take events for which what was said so far or ``condition`` holds."""
        last = self._single("or_where()")
        if last.condition is None:
            raise PatternDefinitionError(f"or_where() of {last.label}: there is no where() before it")
        return self._last(condition=either(last.condition, test(condition, f"or_where() of {last.label}")))

    def subtype(self, cls: type) -> Pattern:
        """Take only events of a class."""
        last = self._single("subtype()")
        if not isinstance(cls, type):
            raise PatternDefinitionError(f"subtype() of {last.label} takes a class, not {cls!r}")
        return self._last(condition=both(last.condition, Condition("type", cls)))

    def until(self, condition: Test) -> Pattern:
        """End the repetitions of the part with the first event for which ``condition`` holds.

        That event is not taken; what comes next in the pattern may be it.
        """
        last = self.parts[-1]
        if last.stop is not None:
            raise PatternDefinitionError(f"{last.label} has until() twice")
        return self._last(stop=test(condition, f"until() of {last.label}"))

    # -- quantifiers -----------------------------------------------------------------------------

    def times(self, least: int, most: int | None = None) -> Pattern:
        """Let the part come so often: ``times(3)`` three times, ``times(2, 4)`` two to four times.

        The events follow each other relaxed, unless ``consecutive`` or ``allow_combinations`` is said.
        """
        return self._repeat("times()", least, least if most is None else most)

    def times_or_more(self, least: int) -> Pattern:
        """Let the part come so often or more."""
        return self._repeat("times_or_more()", least, None)

    def one_or_more(self) -> Pattern:
        """Let the part come once or more; ``.one_or_more().optional()`` is *zero or more*."""
        return self._repeat("one_or_more()", 1, None)

    def _repeat(self, what: str, least: int, most: int | None) -> Pattern:
        last = self.parts[-1]
        if last.repeated:
            raise PatternDefinitionError(f"{last.label} has two quantifiers: leave out one")
        if least < 1 or (most is not None and most < least):
            raise PatternDefinitionError(
                f"{what} of {last.label}: at least 1 and at most {most or 'any'}, not {least};"
                " optional() lets a part be missing"
            )
        return self._last(least=least, most=most, repeated=True)

    def optional(self) -> Pattern:
        """Let the part be missing."""
        return self._last(is_optional=True)

    def greedy(self) -> Pattern:
        """Let the part repeat as often as it can: what it can take, the rest of the pattern cannot."""
        return self._last(is_greedy=True)

    def consecutive(self) -> Pattern:
        """Let no event come between those of the part."""
        return self._inner("next")

    def allow_combinations(self) -> Pattern:
        """Let the part leave out events that it could take, in all combinations."""
        return self._inner("followed_by_any")

    def _inner(self, inner: Inner) -> Pattern:
        last = self.parts[-1]
        if last.inner is not None and last.inner != inner:
            raise PatternDefinitionError(
                f"{last.label}: consecutive() and allow_combinations() contradict each other: choose one"
            )
        return self._last(inner=inner)

    # -- the whole -------------------------------------------------------------------------------

    def within(self, duration: timedelta | int, of: WithinType = "first_and_last") -> Pattern:
        """Say in what time events come.

        Args:
            duration: Less than this (``timedelta`` or ms).
            of: ``"first_and_last"``: all of a match comes in it, from its first event.
                ``"previous_and_current"``: each event of the last part comes in it, from the event of the
                match before it; of what must not come at the end of a pattern: it does not come in it.
        """
        length = _positive(duration, "within()")
        if of == "first_and_last":
            return replace(self, within_ms=length)
        if of != "previous_and_current":
            raise PatternDefinitionError(
                f"within() is of 'first_and_last' or 'previous_and_current', not {of!r}"
            )
        self._single("within(..., 'previous_and_current')")
        return self._last(gap_ms=length)

    def gaps_within(self, duration: timedelta | int) -> Pattern:
        """Let every event of a match come in less than ``duration`` (``timedelta`` or ms) after the last one.

        A part that has a ``within(..., "previous_and_current")`` of its own goes by that.
        """
        return replace(self, gap_ms=_positive(duration, "gaps_within()"))

    def names(self) -> list[str]:
        """Return the names of the parts that take events, in order."""
        return [name for part in _flat(self.parts) if not part.negated for name in (part.name,)]

    def check(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            PatternDefinitionError: It says what, and what to do.
        """
        if not self.parts or self.parts[0].negated:
            raise PatternDefinitionError("a pattern begins with begin(name), which takes an event")
        names = [name for part in self.parts for name in part.names()]
        for name in names:
            if names.count(name) > 1:
                raise PatternDefinitionError(f"two parts are named '{name}': give one another name")
        for part in self.parts:
            part.check()
        first = self.parts[0]
        if first.gap_ms is not None and first.most == 1:
            raise PatternDefinitionError(
                f"{first.label} begins the pattern, so no event is before it: say within(...,"
                " 'previous_and_current') of a later part"
            )
        for part in self.parts[:-1]:
            if part.negated and part.gap_ms is not None:
                raise part.no_gap()

    def describe(self) -> dict[str, Any]:
        """Return the pattern as plain data, as it stands in a checkpoint's contract."""
        said = {"parts": [part.describe() for part in self.parts], "within_ms": self.within_ms}
        return said if self.gap_ms is None else {**said, "gap_ms": self.gap_ms}

    def _single(self, what: str) -> Part:
        last = self.parts[-1]
        if last.group:
            raise PatternDefinitionError(f"{what} is of a single part, not of a group")
        return last

    def _last(self, **changes: Any) -> Pattern:
        return replace(self, parts=(*self.parts[:-1], replace(self.parts[-1], **changes)))


def _positive(duration: timedelta | int, what: str) -> int:
    if isinstance(duration, bool) or not isinstance(duration, timedelta | int) or ms(duration) <= 0:
        raise PatternDefinitionError(f"{what} takes a positive timedelta or milliseconds, not {duration!r}")
    return ms(duration)


def _flat(parts: tuple[Part, ...]) -> Iterator[Part]:
    for part in parts:
        if part.group:
            yield from _flat(part.group)
        else:
            yield part


def begin(part: str | Pattern) -> Pattern:
    """Begin a pattern.

    Args:
        part: Name of its first part, or a pattern: a group that it begins with.

    Example:
        >>> pattern = begin("small").where(lambda e: e < 10).next("large").where(lambda e: e > 500)
        >>> pattern.within(60_000).names()
        ['small', 'large']
    """
    return Pattern(()).add(part, "followed_by")
