"""Errors of rules, with the place in the text."""

from __future__ import annotations

from millrace.errors import UserError


class RuleError(UserError):
    """A rule is refused; the message begins with the place.

    Attributes:
        problem: What is wrong, without the place.
        line: Line in the rule's text, from 1; 0 where it is not about a place in the text.
        column: Column, from 1.
        rule: The rule's id, if known.
    """

    def __init__(self, problem: str, line: int = 0, column: int = 0, *, rule: str = "") -> None:
        self.problem, self.line, self.column, self.rule = problem, line, column, rule
        place = f"line {line}, column {column}: " if line else ""
        super().__init__(f"{f'rule {rule!r}: ' if rule else ''}{place}{problem}")

    def of(self, rule: str) -> RuleError:
        """Return the error with the rule's id before it."""
        return RuleError(self.problem, self.line, self.column, rule=rule)

    def shown(self, text: str) -> str:
        """Return the message with the line of ``text`` below it, and a mark under the place.

        >>> print(RuleError("there is no field 'amont'", 1, 5).shown("not amont > 5"))
        line 1, column 5: there is no field 'amont'
          not amont > 5
              ^
        """
        lines = text.split("\n")
        if not 1 <= self.line <= len(lines):
            return str(self)
        return f"{self}\n  {lines[self.line - 1]}\n  {' ' * (self.column - 1)}^"
