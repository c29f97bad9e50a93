"""Quantiles that are the same in whatever order values come, in bounded space, within a share of the value.

Values are counted in bins whose bounds grow by a factor, so that a bin's middle is within a share of all in
it (Masson, Rim and Lee, DDSketch, 2019). Where there are too many bins each two neighbours become one
(Epicoco et al., UDDSketch, 2020): how often that is done follows from the values, not from their order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from millrace.parts.accumulators import BoundAggregate
from millrace.windows.aggregates import Aggregate, skipping
from millrace.windows.fields import Of, Selected, WindowDefinitionError, or_none, select
from millrace.windows.sketches import between, sorted_values

#: So many values are kept as they are; with one more they are counted in bins.
WAITING: Final = 255
#: No more bins than this, of values above and below zero together.
BINS: Final = 1_024
#: Values nearer to zero than this are zero.
_LEAST: Final = 1e-300
_MOST: Final = 1.7976931348623157e308


class Binned(msgspec.Struct, array_like=True):
    """What is kept of values.

    Attributes:
        waiting: The values, as long as they are few.
        halved: How often each two neighbours have become one bin.
        above: Bin → how many values above zero; bin ``i`` has those in (g**(i-1), g**i].
        below: The same of values below zero, by their size.
        zeros: How many are zero.
        least: The smallest value.
        most: The largest.
    """

    waiting: list[float] = []
    halved: int = 0
    above: dict[int, int] = {}
    below: dict[int, int] = {}
    zeros: int = 0
    least: float = math.inf
    most: float = -math.inf


@dataclass(frozen=True)
class BinnedQuantile(Aggregate):
    """See :func:`binned_quantile`."""

    of: Of
    q: float
    within: float = 0.01

    def bind(self, event_type: Any) -> BoundAggregate:
        """Bind; see :class:`Aggregate`."""
        selected, step = self._numbers(event_type), _log_factor(self.within)

        def add(acc: Binned, value: float, _at: int) -> Binned:
            if not _is_binned(acc):
                acc.waiting.append(value + 0.0)  # -0.0 is 0.0
                return acc if len(acc.waiting) <= WAITING else _in_bins(acc, step)
            _count(acc, value + 0.0, step)
            return _bounded(acc)

        def merge(left: Binned, right: Binned) -> Binned:
            few = not _is_binned(left) and not _is_binned(right)
            if few and len(left.waiting) + len(right.waiting) <= WAITING:
                return Binned(left.waiting + right.waiting)
            return _added(_in_bins(left, step), _in_bins(right, step))

        def result(acc: Binned) -> float | None:
            if not _is_binned(acc):
                return between(sorted(acc.waiting), self.q) if acc.waiting else None
            return _quantile(acc, self.q, step)

        return BoundAggregate(Binned, or_none(float), Binned, skipping(selected, add), merge, result)

    def bind_sliding(self, event_type: Any) -> BoundAggregate:
        """Bind: exact, as the window keeps its events anyway and values must be able to leave."""

        def result(values: list[float]) -> float | None:
            return between(values, self.q) if values else None

        return sorted_values(self._numbers(event_type), or_none(float), result)

    def _numbers(self, event_type: Any) -> Selected:
        selected = select(self.of, event_type)
        if selected.type not in (None, int, float):
            raise WindowDefinitionError(f"binned_quantile needs numbers (int or float), not {selected.type}")
        return selected


def binned_quantile(of: Of, q: float, *, within: float = 0.01) -> BinnedQuantile:
    """Quantile of a field in bounded space, the same in any order of events, within a share of its value.

    Exact, by linear interpolation, up to 255 values. Beyond that each of the two values that it lies between
    is off by no more than ``within`` of itself, as long as 1,024 bins are enough: with 1 % the largest value
    may be 8e8 times the smallest one, of values above and below zero both together. Else the share
    is 2 %, up to 6e17 times 4 %, and so on (:func:`share_of`). Values nearer to zero than 1e-300 are zero.

    Args:
        of: A field's name or a function of the event.
        q: Between 0 and 1.
        within: The share, between 0.001 and 0.5.

    Raises:
        WindowDefinitionError: ``q`` or ``within`` is out of range.
    """
    if not 0 <= q <= 1:
        raise WindowDefinitionError(f"a quantile is between 0 and 1, not {q!r}")
    if not 0.001 <= within <= 0.5:
        raise WindowDefinitionError(f"within is 0.001 to 0.5, not {within!r}")
    return BinnedQuantile(of, float(q), within)


def share_of(within: float, halved: int) -> float:
    """Return by which share of itself a value may be off when neighbours have become one bin so often.

    >>> [round(share_of(0.01, n), 3) for n in range(4)]
    [0.01, 0.02, 0.04, 0.08]
    """
    return math.tanh(_log_factor(within) * 2**halved / 2)


def _log_factor(within: float) -> float:
    """Return the logarithm of what a bin's bounds grow by: (1 + within) / (1 - within)."""
    return 2 * math.atanh(within)


def _is_binned(acc: Binned) -> bool:
    return acc.least <= acc.most


def _count(acc: Binned, value: float, step: float) -> None:
    acc.least, acc.most = min(acc.least, value), max(acc.most, value)
    size = abs(value)
    if size < _LEAST:
        acc.zeros += 1
        return
    place = -(-math.ceil(math.log(min(size, _MOST)) / step) >> acc.halved)
    bins = acc.above if value > 0 else acc.below
    bins[place] = bins.get(place, 0) + 1


def _in_bins(acc: Binned, step: float) -> Binned:
    """Return the values in bins; what is in bins already as it is."""
    if _is_binned(acc):
        return acc
    made = Binned()
    for value in acc.waiting:
        _count(made, value, step)
    return _bounded(made)


def _bounded(acc: Binned) -> Binned:
    """Join neighbours until there are no more bins than there may be."""
    while len(acc.above) + len(acc.below) > BINS:
        acc.above, acc.below, acc.halved = _joined(acc.above, 1), _joined(acc.below, 1), acc.halved + 1
    return acc


def _joined(bins: dict[int, int], times: int) -> dict[int, int]:
    """Return bins when neighbours have become one so often; new ones, whatever the number of times."""
    found: dict[int, int] = {}
    for place, n in bins.items():
        joined = -(-place >> times)
        found[joined] = found.get(joined, 0) + n
    return found


def _added(left: Binned, right: Binned) -> Binned:
    halved = max(left.halved, right.halved)
    made = Binned([], halved, zeros=left.zeros + right.zeros)
    made.least, made.most = min(left.least, right.least), max(left.most, right.most)
    for one in (left, right):
        for into, bins in ((made.above, one.above), (made.below, one.below)):
            for place, n in _joined(bins, halved - one.halved).items():
                into[place] = into.get(place, 0) + n
    return _bounded(made)


def _quantile(acc: Binned, q: float, step: float) -> float:
    total = acc.zeros + sum(acc.above.values()) + sum(acc.below.values())
    at = q * (total - 1)
    low = int(at)
    share = at - low
    first = _value(acc, low, step)
    if not share:
        return first
    second = _value(acc, low + 1, step)
    # The sum of both parts of two equal infinities is one; their difference is no number.
    return first if first == second else first * (1.0 - share) + second * share


def _value(acc: Binned, rank: int, step: float) -> float:
    """Return about the value that so many are before, in order of size."""
    width = step * 2**acc.halved
    for place in sorted(acc.below, reverse=True):
        rank -= acc.below[place]
        if rank < 0:
            return min(max(-_middle(place, width), acc.least), acc.most)
    rank -= acc.zeros
    if rank < 0:
        return 0.0
    for place in sorted(acc.above):
        rank -= acc.above[place]
        if rank < 0:
            return min(max(_middle(place, width), acc.least), acc.most)
    return acc.most


def _middle(place: int, width: float) -> float:
    """Return what is off by the same share of itself at both bounds of a bin: 2 g**i / (g + 1)."""
    try:
        return math.exp(place * width - math.log1p(math.expm1(width) / 2))
    except OverflowError:
        return math.inf
