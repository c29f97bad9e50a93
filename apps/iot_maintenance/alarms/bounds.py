"""Limits in expressions of alarm rules: what they hold a value against, and from which side it is crossed.

A limit is what the value, or the mean, least or largest value of a time, is compared with: a number, master
data (``attribute('limit')``), or what is reckoned of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Final, Literal, NamedTuple

from millrace.rules import syntax
from millrace.rules.errors import RuleError
from millrace.rules.parser import parse

#: What a limit is of, in expressions, beside the value itself.
_OF_VALUES: Final = frozenset({"mean", "lowest", "highest"})
Side = Literal["above", "below"]
_SIGNS: Final[Mapping[str, Side]] = {">": "above", ">=": "above", "<": "below", "<=": "below"}
_OTHER: Final[Mapping[Side, Side]] = {"above": "below", "below": "above"}


class Bound(NamedTuple):
    """A limit in an expression.

    Attributes:
        side: The condition begins to hold where a value rises ``above`` it, or falls ``below`` it.
        of: What it comes to, as a part of the expression.
    """

    side: Side
    of: Any

    def limit(self, attributes: Mapping[str, str]) -> float | None:
        """Return what it comes to with master data; ``None`` where these do not say."""
        found = _number(self.of, attributes)
        return found if found is not None and isfinite(found) else None


def bounds_in(when: str) -> tuple[Bound, ...]:
    """Return what an expression holds values against; of what is no expression, nothing.

    Args:
        when: The expression.

    >>> [(b.side, b.limit({"limit": "80"})) for b in bounds_in("value > attribute('limit') or 5 > value")]
    [('above', 80.0), ('below', 5.0)]
    >>> [(b.side, b.limit({})) for b in bounds_in("not value between 10 and 20")]
    [('below', 10.0), ('above', 20.0)]
    """
    try:
        return tuple(_found(parse(when), False))
    except RuleError:
        return ()


def limits_in(when: str, attributes: Mapping[str, str]) -> set[float]:
    """Return the limits of an expression, whichever side they are of.

    Args:
        when: The expression.
        attributes: Master data of the point and its machine.

    >>> sorted(limits_in("value > 0.9 * attribute('limit') or mean(value, 30 min) > 60", {"limit": "80"}))
    [60.0, 72.0]
    >>> limits_in("attribute('limit') < value and rate > 5", {})
    set()
    """
    found = (bound.limit(attributes) for bound in bounds_in(when))
    return {limit for limit in found if limit is not None}


def _found(node: Any, negated: bool) -> Iterator[Bound]:
    if isinstance(node, syntax.Logic):
        for part in node.parts:
            yield from _found(part, negated)
    elif isinstance(node, syntax.Unary):
        yield from _found(node.of, negated != (node.sign == "not"))
    elif isinstance(node, syntax.Binary) and node.sign in _SIGNS:
        side = _SIGNS[node.sign]
        if _is_value(node.left) and _is_number(node.right):
            yield Bound(_OTHER[side] if negated else side, node.right)
        elif _is_value(node.right) and _is_number(node.left):
            yield Bound(side if negated else _OTHER[side], node.left)
    elif isinstance(node, syntax.Between) and _is_value(node.of):
        # Inside it holds: who comes from below rises to its low end.
        sides: tuple[Side, Side] = ("above", "below") if negated == node.negated else ("below", "above")
        for side, end in zip(sides, (node.low, node.high), strict=True):
            if _is_number(end):
                yield Bound(side, end)


def _is_value(node: Any) -> bool:
    if isinstance(node, syntax.Call):
        return node.name in _OF_VALUES and bool(node.arguments) and _is_value(node.arguments[0])
    return isinstance(node, syntax.Name) and node.name == "value"


def _is_number(node: Any) -> bool:
    """Return whether a part of an expression hangs on master data alone."""
    if isinstance(node, syntax.Literal):
        return not isinstance(node.value, bool | str)
    if isinstance(node, syntax.Call):
        asked = node.arguments[0] if node.name == "attribute" and node.arguments else None
        return isinstance(asked, syntax.Literal)
    if isinstance(node, syntax.Unary):
        return node.sign == "-" and _is_number(node.of)
    return isinstance(node, syntax.Binary) and _is_number(node.left) and _is_number(node.right)


def _number(node: Any, attributes: Mapping[str, str]) -> float | None:
    """Return what a part of an expression comes to, ``None`` where master data do not say."""
    if isinstance(node, syntax.Literal):
        return float(node.value)
    if isinstance(node, syntax.Call):
        asked: Any = node.arguments[0]
        try:
            return float(attributes[str(asked.value)])
        except (KeyError, ValueError):
            return None
    if isinstance(node, syntax.Unary):
        found = _number(node.of, attributes)
        return None if found is None else -found
    one, other = _number(node.left, attributes), _number(node.right, attributes)
    if one is None or other is None:
        return None
    if node.sign == "/":
        return one / other if other else None
    return {"+": one + other, "-": one - other, "*": one * other}.get(node.sign)
