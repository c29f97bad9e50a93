"""Aggregates of numbers and order: count, sum, mean, variance, min, max.

An :class:`Aggregate` is a definition: plain, and picklable if its functions are. Bound to a type of
events it becomes functions over an *accumulator*, which is all that is kept of the events. What is
``None`` is skipped, as in SQL, and so is a float that is no number: events travel as JSON, which has no
NaN (RFC 8259, section 6), so that one and the same value comes as null from one source and as NaN from
another; and no order of values has a place for it. (pandas skips it too; Spark's own ``max`` takes it for
the largest value.)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, ClassVar, Final, Literal

import msgspec

from millrace.parts.accumulators import Add, BoundAggregate
from millrace.windows.exact import add_all, add_exact, add_square, rounded, spread, subtract_all
from millrace.windows.fields import Of, Selected, WindowDefinitionError, or_none, select

_MOST: Final = 1 << 63
#: Types of which no value is NaN, and of which equal values are the same to the last bit.
_NEVER_NAN: Final = (int, str, bool, bytes)


class Aggregate:
    """Definition of an aggregate; subclasses say how it is bound to a type of events."""

    #: Whether the order of events makes no difference.
    commutes: ClassVar[bool] = True

    def bind(self, event_type: Any) -> BoundAggregate:
        """Return the aggregate over events of ``event_type``.

        Raises:
            WindowDefinitionError: The event has no such field, or its type does not fit.
        """
        raise NotImplementedError

    def bind_sliding(self, event_type: Any) -> BoundAggregate:
        """Return the aggregate for windows that lose their oldest events one by one.

        Such a window keeps its events anyway: what would be an approximation elsewhere is exact here.
        """
        return self.bind(event_type)


def skipping(selected: Selected, step: Callable[[Any, Any, int], Any]) -> Add:
    """Return ``step`` (accumulator, value, time) as a function of the event that leaves out what is missing.

    That is ``None``, and what is no number (NaN).
    """
    get = selected.get
    if selected.type in _NEVER_NAN:
        if not selected.nullable:
            return lambda acc, event, at: step(acc, get(event), at)

        def add_unless_none(acc: Any, event: Any, at: int) -> Any:
            value = get(event)
            return acc if value is None else step(acc, value, at)

        return add_unless_none
    if selected.type is float and not selected.nullable:

        def add_number(acc: Any, event: Any, at: int) -> Any:
            value = get(event)
            return step(acc, value, at) if value == value else acc

        return add_number

    def add(acc: Any, event: Any, at: int) -> Any:
        value = get(event)
        return acc if is_missing(value) else step(acc, value, at)

    return add


def is_missing(value: Any) -> bool:
    """Return whether a value is ``None`` or no number.

    >>> is_missing(None), is_missing(math.nan), is_missing(math.inf), is_missing("nan")
    (True, True, False, False)
    """
    return value is None or (isinstance(value, float | Decimal) and value != value)


def needs_type(selected: Selected, what: str) -> Any:
    """Return the type of the selected value.

    Raises:
        WindowDefinitionError: It is not known.
    """
    if selected.type is None:
        raise WindowDefinitionError(
            f"{what} of a function must say what it gives: add type=..., e.g. type=str"
        )
    return selected.type


def _number(selected: Selected, what: str) -> type:
    tp = selected.type or float  # a function that says nothing gives floats
    if tp not in (int, float, bool):
        raise WindowDefinitionError(f"{what} needs numbers (int or float), not {getattr(tp, '__name__', tp)}")
    return float if tp is float else int


@dataclass(frozen=True)
class Count(Aggregate):
    """See :func:`count`."""

    of: Of = None

    def bind(self, event_type: Any) -> BoundAggregate:
        """Bind; see :class:`Aggregate`."""
        add: Add = _plus_one
        if self.of is not None:
            add = skipping(select(self.of, event_type), _plus_one)
        return BoundAggregate(int, int, int, add, operator.add, _same, operator.sub)


def count(of: Of = None) -> Count:
    """Count events, or those whose ``of`` is not ``None``."""
    return Count(of)


@dataclass(frozen=True)
class Sum(Aggregate):
    """See :func:`sum_of`."""

    of: Of = None
    type: Any = None

    def bind(self, event_type: Any) -> BoundAggregate:
        """Bind; see :class:`Aggregate`."""
        selected = select(self.of, event_type, self.type)
        if _number(selected, "sum_of") is int:
            return BoundAggregate(
                int, int, int, skipping(selected, _add_int), operator.add, _same, operator.sub
            )
        return BoundAggregate(
            list[float], float, list, _adding_floats(selected), add_all, rounded, _subtract_floats
        )


def sum_of(of: Of = None, *, type: type[int] | type[float] | None = None) -> Sum:
    """Add up a field; 0 where there is nothing to add.

    Whole numbers stay whole numbers (64 bits; a sum beyond them is an error of the event that would
    make it). A sum of floats is exact and rounded once, so that it does not depend on order.

    Args:
        of: A field's name or a function of the event.
        type: ``int`` or ``float``, for a function of the event (``float`` unless given).
    """
    return Sum(of, type)


class Moments(msgspec.Struct, array_like=True):
    """Number, sum and sum of squares of the values.

    Attributes:
        n: How many.
        total: Their exact sum.
        squares: The exact sum of their squares, where it is needed.
    """

    n: int = 0
    total: list[float] = []
    squares: list[float] = []


@dataclass(frozen=True)
class Mean(Aggregate):
    """See :func:`mean`."""

    of: Of = None

    def bind(self, event_type: Any) -> BoundAggregate:
        """Bind; see :class:`Aggregate`."""
        selected = select(self.of, event_type)
        _number(selected, "mean")
        return _of_moments(skipping(selected, _add_moment), _mean)


def mean(of: Of = None) -> Mean:
    """Average a field; ``None`` where there is nothing."""
    return Mean(of)


@dataclass(frozen=True)
class Variance(Aggregate):
    """See :func:`variance` and :func:`stddev`."""

    of: Of = None
    ddof: int = 1
    root: bool = False

    def bind(self, event_type: Any) -> BoundAggregate:
        """Bind; see :class:`Aggregate`."""
        selected = select(self.of, event_type)
        _number(selected, "variance")
        ddof, root = self.ddof, self.root

        def result(acc: Moments) -> float | None:
            value = spread(acc.n, acc.total, acc.squares, ddof)
            return value if value is None or not root else math.sqrt(value)

        return _of_moments(skipping(selected, _add_moments), result)


def variance(of: Of = None, *, ddof: int = 1) -> Variance:
    """Variance of a field, exact but for one rounding at the end.

    Values closer to 0 than 1e-140 have squares that floats cannot hold exactly; their variance is
    approximate, and never negative.

    Args:
        of: A field's name or a function of the event.
        ddof: 1 for the variance of a sample, 0 for that of all there is.

    Returns:
        The aggregate; its result is ``None`` for fewer than ``ddof + 1`` values.
    """
    if ddof not in (0, 1):
        raise WindowDefinitionError(f"ddof is 0 or 1, not {ddof!r}")
    return Variance(of, ddof)


def stddev(of: Of = None, *, ddof: int = 1) -> Variance:
    """Standard deviation of a field: the root of its :func:`variance`."""
    return replace(variance(of, ddof=ddof), root=True)


@dataclass(frozen=True)
class Extreme(Aggregate):
    """See :func:`min_of` and :func:`max_of`."""

    of: Of
    which: Literal["min", "max"]
    type: Any = None

    def bind(self, event_type: Any) -> BoundAggregate:
        """Bind; see :class:`Aggregate`."""
        selected = select(self.of, event_type, self.type)
        tp = or_none(needs_type(selected, f"{self.which}_of"))
        kind = selected.type if selected.type in (*_NEVER_NAN, float) else None
        step = _EXTREMES[self.which, float if kind is float else None if kind is None else int]

        def merge(left: Any, right: Any) -> Any:
            if left is None or right is None:
                return right if left is None else left
            return step(left, right, 0)

        return BoundAggregate(tp, tp, _nothing, skipping(selected, step), merge, _same)


def min_of(of: Of = None, *, type: Any = None) -> Extreme:
    """Smallest value of a field; ``type`` is what a function of the event gives."""
    return Extreme(of, "min", type)


def max_of(of: Of = None, *, type: Any = None) -> Extreme:
    """Largest value of a field; ``type`` is what a function of the event gives."""
    return Extreme(of, "max", type)


# -- over accumulators -----------------------------------------------------------------------------


def _same(acc: Any) -> Any:
    return acc


def _nothing() -> None:
    return None


def _plus_one(acc: int, _value: Any, _at: int) -> int:
    return acc + 1


def _add_int(acc: int, value: int, _at: int) -> int:
    total = acc + value
    if -_MOST <= total < _MOST:
        return total
    raise OverflowError(f"sum_of: {acc} + {value} is beyond 64 bits")


def _adding_floats(selected: Selected) -> Add:
    """Return the addition of floats, likewise."""
    if selected.nullable or selected.type is not float:
        return skipping(selected, _add_float)
    get = selected.get

    def add(acc: list[float], event: Any, at: int) -> list[float]:
        x = get(event)
        if x == x:
            add_exact(acc, x)
        return acc

    return add


def _add_float(acc: list[float], value: float, _at: int) -> list[float]:
    add_exact(acc, value)
    return acc


def _subtract_floats(acc: list[float], part: list[float]) -> list[float]:
    subtract_all(acc, part)
    return acc


def _add_moment(acc: Moments, value: float, _at: int) -> Moments:
    acc.n += 1
    add_exact(acc.total, float(value))
    return acc


def _add_moments(acc: Moments, value: float, _at: int) -> Moments:
    x = float(value)
    acc.n += 1
    add_exact(acc.total, x)
    add_square(acc.squares, x)
    return acc


def _merge_moments(left: Moments, right: Moments) -> Moments:
    return Moments(left.n + right.n, add_all(left.total, right.total), add_all(left.squares, right.squares))


def _subtract_moments(acc: Moments, part: Moments) -> Moments:
    acc.n -= part.n
    subtract_all(acc.total, part.total)
    subtract_all(acc.squares, part.squares)
    return acc


def _of_moments(add: Add, result: Callable[[Moments], float | None]) -> BoundAggregate:
    return BoundAggregate(Moments, or_none(float), Moments, add, _merge_moments, result, _subtract_moments)


def _mean(acc: Moments) -> float | None:
    return rounded(acc.total) / acc.n if acc.n else None


def _smaller(acc: Any, value: Any, _at: int) -> Any:
    return value if acc is None or value < acc else acc


def _larger(acc: Any, value: Any, _at: int) -> Any:
    return value if acc is None or value > acc else acc


# Of floats 0.0 and -0.0 are equal: one of them stands for both, whichever came first.
def _smaller_float(acc: float | None, value: float, _at: int) -> float:
    return value + 0.0 if acc is None or value < acc else acc


def _larger_float(acc: float | None, value: float, _at: int) -> float:
    return value + 0.0 if acc is None or value > acc else acc


# Of other equal values (one moment in two time zones, 1.0 and 1.00 as decimals) their text decides.
def _smaller_of_any(acc: Any, value: Any, _at: int) -> Any:
    if acc is None or value < acc or (value == acc and repr(value) < repr(acc)):
        return value
    return acc


def _larger_of_any(acc: Any, value: Any, _at: int) -> Any:
    if acc is None or value > acc or (value == acc and repr(value) < repr(acc)):
        return value
    return acc


_EXTREMES: Final[dict[tuple[str, Any], Callable[[Any, Any, int], Any]]] = {
    ("min", int): _smaller,
    ("max", int): _larger,
    ("min", float): _smaller_float,
    ("max", float): _larger_float,
    ("min", None): _smaller_of_any,
    ("max", None): _larger_of_any,
}
