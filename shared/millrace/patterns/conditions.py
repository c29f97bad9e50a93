"""Conditions on events: functions of the event, and of what was matched before it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from millrace.errors import UserError

#: Part's name → the events that this partial match has taken for it so far, in order; empty for none.
Matched = Mapping[str, list[Any]]
#: ``condition(event)``, or ``condition(event, matched)``.
Test = Callable[..., Any]


class PatternDefinitionError(UserError):
    """A pattern is not complete or contradicts itself."""


@dataclass(frozen=True)
class Condition:
    """A condition as plain data.

    Attributes:
        kind: ``test`` (a function), ``type`` (of a class), ``and``, ``or``.
        of: The function, the class, or the two conditions.
    """

    kind: Literal["test", "type", "and", "or"]
    of: Any

    def compile(self) -> tuple[Test, bool]:
        """Return the condition as one function, and whether it also takes the matched events."""
        if self.kind == "test":
            return self.of, needs_matched(self.of)
        if self.kind == "type":
            cls = self.of
            return (lambda event: isinstance(event, cls)), False
        (left, left_needs), (right, right_needs) = (part.compile() for part in self.of)
        if not left_needs and not right_needs:
            if self.kind == "and":
                return (lambda event: left(event) and right(event)), False
            return (lambda event: left(event) or right(event)), False
        one, other = _with_matched(left, left_needs), _with_matched(right, right_needs)
        if self.kind == "and":
            return (lambda event, matched: one(event, matched) and other(event, matched)), True
        return (lambda event, matched: one(event, matched) or other(event, matched)), True


def test(function: Test, where: str) -> Condition:
    """Return the condition that a function is.

    Args:
        function: ``condition(event)`` or ``condition(event, matched)``.
        where: Who asks for it, for messages.

    Raises:
        PatternDefinitionError: It is no function, or takes neither one argument nor two.
    """
    if not callable(function):
        raise PatternDefinitionError(f"{where}: a condition is a function of the event, not {function!r}")
    if not 1 <= _arguments(function) <= 2:
        raise PatternDefinitionError(
            f"{where}: a condition takes (event) or (event, matched), not {_arguments(function)} arguments"
        )
    return Condition("test", function)


def both(left: Condition | None, right: Condition) -> Condition:
    """Return the condition that both hold."""
    return right if left is None else Condition("and", (left, right))


def either(left: Condition, right: Condition) -> Condition:
    """Return the condition that one of them holds."""
    return Condition("or", (left, right))


def needs_matched(function: Test) -> bool:
    """Return whether a condition takes the matched events too.

    Arguments with defaults do not count: ``lambda e, limit=5: e.amount > limit`` is of the event alone.

    >>> needs_matched(lambda e: True), needs_matched(lambda e, m: True), needs_matched(lambda e, n=5: True)
    (False, True, False)
    """
    return _arguments(function) == 2


def _arguments(function: Test) -> int:
    """Return how many arguments a function must be given."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C, without a signature: a function of one thing
        return 1
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(1 for p in places if p.default is p.empty)
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return 1 if needed == 0 and (places or takes_any) else needed


def _with_matched(function: Test, needs: bool) -> Test:
    return function if needs else lambda event, matched: function(event)
