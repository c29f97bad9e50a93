"""Change detectors: small definitions with a typed state, each one test of "is this still the same?".

A detector makes the state of a series of values, and adds one value after the other to it; when a change
is found it says so, and begins anew from there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from millrace.operators.base import OperatorDefinitionError, finite, fraction, whole

Direction = Literal["up", "down"]
Directions = Literal["up", "down", "both"]


class Change(NamedTuple):
    """A change that was found.

    Attributes:
        direction: Where the values went.
        statistic: The test's statistic.
        threshold: What it went over.
        mean: Mean of the values before the change, as the detector knows it.
        n: How many values the detector had seen since it began.
    """

    direction: Direction
    statistic: float
    threshold: float
    mean: float
    n: int


class Detector:
    """Definition of a change detector; plain data, which workers get."""

    #: Its name in results.
    label: ClassVar[str]
    #: Type of its state.
    state: ClassVar[Any]

    def new(self) -> Any:
        """Return the state of nothing."""
        return self.state()

    def add(self, state: Any, value: float) -> Change | None:
        """Add a value to a state in place; return the change if it shows one.

        The state has begun anew then.
        """
        raise NotImplementedError


class PageHinkleyState(msgspec.Struct, array_like=True, gc=False):
    """Number and mean of the values, their summed distances from it, and how far these went."""

    n: int = 0
    mean: float = 0.0
    up: float = 0.0
    down: float = 0.0
    lowest: float = 0.0
    highest: float = 0.0


@dataclass(frozen=True)
class PageHinkley(Detector):
    """See :func:`page_hinkley`."""

    threshold: float
    delta: float
    min_n: int
    forget: float
    direction: Directions

    label: ClassVar[str] = "page_hinkley"
    state: ClassVar[Any] = PageHinkleyState

    def add(self, state: PageHinkleyState, value: float) -> Change | None:
        """Add a value; see :class:`Detector`."""
        before = state.mean
        state.n += 1
        state.mean += (value - state.mean) / state.n
        away = value - state.mean
        state.up = self.forget * state.up + away - self.delta
        state.down = self.forget * state.down + away + self.delta
        first = state.n == 1
        state.lowest = state.up if first else min(state.lowest, state.up)
        state.highest = state.down if first else max(state.highest, state.down)
        if state.n < self.min_n:
            return None
        rise, fall = state.up - state.lowest, state.highest - state.down
        if self.direction != "down" and rise > self.threshold:
            return _begin_anew(state, self, Change("up", rise, self.threshold, before, state.n))
        if self.direction != "up" and fall > self.threshold:
            return _begin_anew(state, self, Change("down", fall, self.threshold, before, state.n))
        return None


def page_hinkley(
    *,
    threshold: float,
    delta: float = 0.005,
    min_n: int = 30,
    forget: float = 0.9999,
    direction: Directions = "both",
) -> PageHinkley:
    """Find a change of the mean by the test of Page and Hinkley (Page 1954, "Continuous Inspection Schemes").

    The distances of the values from their running mean are added up; when the sum has moved by more than
    ``threshold`` from where it was lowest (highest), the mean has changed.

    Args:
        threshold: How far the sum may move, in units of the value.
        delta: How much a value may be off without counting, in units of the value.
        min_n: How many values are looked at before anything is said.
        forget: By what the sum is multiplied at every value, in (0, 1].
        direction: Which changes are told: ``"up"``, ``"down"`` or ``"both"``.

    Raises:
        OperatorDefinitionError: A number is out of range.
    """
    return PageHinkley(
        finite(threshold, "threshold", positive=True),
        finite(delta, "delta"),
        whole(min_n, "min_n"),
        fraction(forget, "forget"),
        _direction(direction),
    )


class CusumState(msgspec.Struct, array_like=True, gc=False):
    """Number, mean and spread of the values that say what is usual, and the two sums since then."""

    n: int = 0
    mean: float = 0.0
    spread: float = 0.0
    up: float = 0.0
    down: float = 0.0


@dataclass(frozen=True)
class Cusum(Detector):
    """See :func:`cusum`."""

    threshold: float
    slack: float
    learn: int
    mean: float | None
    stddev: float | None
    direction: Directions

    label: ClassVar[str] = "cusum"
    state: ClassVar[Any] = CusumState

    def add(self, state: CusumState, value: float) -> Change | None:
        """Add a value; see :class:`Detector`."""
        state.n += 1
        if self.mean is None and state.n <= self.learn:
            away = value - state.mean
            state.mean += away / state.n
            state.spread += away * (value - state.mean)
            return None
        if self.mean is not None and self.stddev is not None:
            mean, deviation = self.mean, self.stddev
        else:
            mean, deviation = state.mean, math.sqrt(state.spread / (self.learn - 1))
        if not deviation:  # all were the same: whatever differs is a change
            away = 0.0 if value == mean else math.copysign(2 * (self.threshold + self.slack), value - mean)
        else:
            away = (value - mean) / deviation
        state.up = max(0.0, state.up + away - self.slack)
        state.down = max(0.0, state.down - away - self.slack)
        for direction, reached in (("up", state.up), ("down", state.down)):
            if reached > self.threshold and self.direction in (direction, "both"):
                change = Change(direction, reached, self.threshold, mean, state.n)  # type: ignore[arg-type]
                return _begin_anew(state, self, change)
        return None


def cusum(
    *,
    threshold: float = 5.0,
    slack: float = 0.5,
    learn: int = 50,
    mean: float | None = None,
    stddev: float | None = None,
    direction: Directions = "both",
) -> Cusum:
    """Find a change of the mean by a tabular CUSUM (Montgomery, "Statistical Quality Control", chapter 9).

    What values are above (below) the usual mean by more than ``slack`` standard deviations is added up,
    never below 0; a sum above ``threshold`` is a change. With the defaults, and where what is usual is
    known, a shift by one deviation is found after about 10 values, and a false alarm comes every 465.

    Args:
        threshold: How large a sum may be, in standard deviations.
        slack: How far a value may be off without counting, in standard deviations: half of the shift that
            is to be found.
        learn: How many values first say what is usual, at the beginning and after each change.
        mean: What is usual, where it is known; then nothing is learned.
        stddev: Its standard deviation.
        direction: Which changes are told: ``"up"``, ``"down"`` or ``"both"``.

    Raises:
        OperatorDefinitionError: A number is out of range, or one of ``mean`` and ``stddev`` is missing.
    """
    if (mean is None) != (stddev is None):
        raise OperatorDefinitionError("cusum: give both mean= and stddev=, or neither")
    if finite(slack, "slack") < 0:
        raise OperatorDefinitionError(f"slack must not be negative, not {slack!r}")
    return Cusum(
        finite(threshold, "threshold", positive=True),
        float(slack),
        whole(learn, "learn", 2),
        None if mean is None else finite(mean, "mean"),
        None if stddev is None else finite(stddev, "stddev", positive=True),
        _direction(direction),
    )


class AdwinState(msgspec.Struct, array_like=True):
    """The window as buckets, by size.

    Attributes:
        levels: At place i the buckets of 2^i values each, oldest first: their sums and spreads.
        n: How many values the window has.
        total: Their sum.
        spread: The sum of the squares of their distances from their mean.
        seen: How many values there were since the detector began.
    """

    levels: list[list[tuple[float, float]]] = []
    n: int = 0
    total: float = 0.0
    spread: float = 0.0
    seen: int = 0


@dataclass(frozen=True)
class Adwin(Detector):
    """See :func:`adwin`."""

    delta: float
    every: int
    buckets: int
    min_side: int
    min_n: int

    label: ClassVar[str] = "adwin"
    state: ClassVar[Any] = AdwinState

    def add(self, state: AdwinState, value: float) -> Change | None:
        """Add a value; see :class:`Detector`. What is left of the window is its newer part."""
        _insert(state, value, self.buckets)
        state.seen += 1
        if state.seen % self.every or state.n <= self.min_n:
            return None
        found: Change | None = None
        while (change := self._cut(state)) is not None:
            found = found or change
            _drop_oldest(state)
            if state.n <= self.min_side:
                break
        return found

    def _cut(self, state: AdwinState) -> Change | None:
        """Return the change at the first place where the older and the newer part differ."""
        older_n, older_total = 0, 0.0
        sure = math.log(2 * math.log(state.n) / self.delta)
        variance = state.spread / state.n
        for level in range(len(state.levels) - 1, -1, -1):
            for total, _ in state.levels[level]:
                older_n += 1 << level
                older_total += total
                newer_n = state.n - older_n
                if newer_n < self.min_side:
                    return None
                if older_n < self.min_side:
                    continue
                mean = older_total / older_n
                differ = (state.total - older_total) / newer_n - mean
                share = 1 / (older_n - self.min_side + 1) + 1 / (newer_n - self.min_side + 1)
                limit = math.sqrt(2 * share * variance * sure) + 2 / 3 * sure * share
                if abs(differ) > limit:
                    return Change("up" if differ > 0 else "down", abs(differ), limit, mean, state.n)
        return None


def _insert(state: AdwinState, value: float, most: int) -> None:
    """Add a value as a bucket of its own; where there are too many of a size, the two oldest become one."""
    if state.n:
        state.spread += state.n * (value - state.total / state.n) ** 2 / (state.n + 1)
    state.n += 1
    state.total += value
    carried: tuple[float, float] | None = (value, 0.0)
    level = 0
    while carried is not None:
        if level == len(state.levels):
            state.levels.append([])
        row = state.levels[level]
        row.append(carried)
        carried = None
        if len(row) > most:
            (total, spread), (other, more) = row[0], row[1]
            del row[:2]
            size = 1 << level
            carried = (total + other, spread + more + (total - other) ** 2 / size / 2)
        level += 1


def _drop_oldest(state: AdwinState) -> None:
    """Take the oldest bucket out of the window."""
    size = 1 << (len(state.levels) - 1)
    total, spread = state.levels[-1].pop(0)
    state.n -= size
    state.total -= total
    if state.n:
        apart = total / size - state.total / state.n
        state.spread -= spread + size * state.n * apart * apart / (size + state.n)
        state.spread = max(state.spread, 0.0)
    while state.levels and not state.levels[-1]:
        state.levels.pop()


def adwin(
    *, delta: float = 0.002, every: int = 32, buckets: int = 5, min_side: int = 5, min_n: int = 10
) -> Adwin:
    """Find a change of the mean by an adaptive window (Bifet and Gavaldà 2007, ADWIN2).

    The window is as long as its older and newer parts do not differ, wherever it is cut; when they do, the
    older part is dropped. It needs no idea of what is usual, and is kept as few buckets: about ``buckets``
    times the logarithm of its length.

    Args:
        delta: How likely a false alarm may be at a test, in (0, 1).
        every: Test at every so many values.
        buckets: How many buckets there are of each size: more are finer, and cost more.
        min_side: How many values a part has at least.
        min_n: How many values there are before anything is said.

    Raises:
        OperatorDefinitionError: A number is out of range.
    """
    return Adwin(
        fraction(delta, "delta", closed=False),
        whole(every, "every"),
        whole(buckets, "buckets", 2),
        whole(min_side, "min_side"),
        whole(min_n, "min_n", 2),
    )


def _begin_anew(state: Any, detector: Detector, change: Change) -> Change:
    fresh = detector.new()
    for name in fresh.__struct_fields__:
        setattr(state, name, getattr(fresh, name))
    return change


def _direction(direction: Directions) -> Directions:
    if direction not in ("up", "down", "both"):
        raise OperatorDefinitionError(f"direction is 'up', 'down' or 'both', not {direction!r}")
    return direction
