"""Closures that compiled rules consist of, each the shortest for its case: they run per event."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

from millrace.rules.words import Getter

COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def always(value: Any) -> Getter:
    """Return a constant."""
    return lambda event: value


def applied(apply: Callable[..., Any], runs: Sequence[Getter], *, nullable: bool) -> Getter:
    """Return ``apply`` of values; where they are ``nullable``, missing where one is missing."""
    if not nullable:
        if len(runs) == 1:
            (one,) = runs
            return lambda event: apply(one(event))
        if len(runs) == 2:
            a, b = runs
            return lambda event: apply(a(event), b(event))
        return lambda event: apply(*[run(event) for run in runs])

    def checked(event: Any) -> Any:
        values = [run(event) for run in runs]
        return None if None in values else apply(*values)

    return checked


def against(sign: str, get: Getter, constant: Any, *, nullable: bool) -> Getter:
    """Return a comparison with a constant."""
    compare = COMPARE[sign]
    if nullable:

        def checked(event: Any) -> Any:
            value = get(event)
            return None if value is None else compare(value, constant)

        return checked
    if sign == ">":
        return lambda event: get(event) > constant
    if sign == "==":
        return lambda event: get(event) == constant
    return lambda event: compare(get(event), constant)


def not_missing(run: Getter) -> Getter:
    """Return ``not``, which leaves unknown what is unknown."""

    def negated(event: Any) -> Any:
        value = run(event)
        return None if value is None else not value

    return negated


def in_missing(run: Getter, among: frozenset[Any], negated: bool) -> Getter:
    """Return a look among constants for what may be missing."""

    def found(event: Any) -> Any:
        value = run(event)
        return None if value is None else (value in among) is not negated

    return found


def all_of(runs: Sequence[Getter]) -> Getter:
    """Return ``and`` of conditions that are never unknown."""
    if len(runs) == 2:
        a, b = runs
        return lambda event: a(event) and b(event)

    def both(event: Any) -> Any:
        for run in runs:  # noqa: SIM110 - a generator takes three times as long
            if not run(event):
                return False
        return True

    return both


def any_of(runs: Sequence[Getter]) -> Getter:
    """Return ``or`` of conditions that are never unknown."""

    def either(event: Any) -> Any:
        for run in runs:  # noqa: SIM110 - as above
            if run(event):
                return True
        return False

    return either


def all_of_some_missing(runs: Sequence[Getter]) -> Getter:
    """Return SQL's ``and``."""

    def both(event: Any) -> Any:
        result: bool | None = True
        for run in runs:
            value = run(event)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return both


def any_of_some_missing(runs: Sequence[Getter]) -> Getter:
    """Return SQL's ``or``."""

    def either(event: Any) -> Any:
        result: bool | None = False
        for run in runs:
            value = run(event)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return either


def _divided(a: float, b: float) -> float | None:
    return a / b if b else None


def _rest(a: float, b: float) -> float | None:
    return a % b if b else None


#: Sign → function, and whether it may have no value.
ARITHMETIC: Final[dict[str, tuple[Callable[[Any, Any], Any], bool]]] = {
    "+": (operator.add, False),
    "-": (operator.sub, False),
    "*": (operator.mul, False),
    "/": (_divided, True),
    "%": (_rest, True),
}
