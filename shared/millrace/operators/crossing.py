"""Limit forecasts: when a series crosses a limit, by level and trend, with an interval that is calibrated.

A forecast at each of a few horizons is remembered until its time comes, and how far it was off moves the
width of that horizon's interval: a miss makes it wider, a hit a little narrower, so that in the long run as
many values lie within it as were asked for, however the series changes (Gibbs and Candès 2021, "Adaptive
Conformal Inference Under Distribution Shift"; Angelopoulos, Candès and Tibshirani 2023, "Conformal PID
Control for Time Series Prediction").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple

import msgspec

from millrace.operators.base import OperatorDefinitionError, fraction, whole
from millrace.windows.assigners import Duration, duration_ms

_HOUR_MS: Final = 3_600_000
#: Weight of the newest error in the mean of errors.
_ERROR: Final = 0.1
#: Until a horizon's first forecasts have come due: so many mean errors of one step, times the root of steps.
_WIDE: Final = 2.5


class Crossing(NamedTuple):
    """A limit that will be crossed.

    Attributes:
        side: From which side: ``above``: the series rises to it.
        limit: The limit.
        in_ms: In what time, ms from the value's step.
        earliest_ms: The soonest, with the coverage that was asked for.
        latest_ms: The latest; ``None``: beyond the horizon, or never.
        level: Where the series is now, without noise.
        trend_per_h: How much it moves in an hour.
    """

    side: Literal["above", "below"]
    limit: float
    in_ms: int
    earliest_ms: int
    latest_ms: int | None
    level: float
    trend_per_h: float


class CrossingState(msgspec.Struct, array_like=True, gc=False):
    """What is kept of a series.

    Attributes:
        step: Number of the last step since the epoch.
        n: How many steps there were.
        level: The series without noise.
        trend: How much it moves in a step.
        due: For each horizon the step that its forecast is of, 0 for none.
        said: That forecast.
        widths: How far a value may be off it, 0 before anything is known.
        errors: Weighted mean of how far they were.
        checked: How many forecasts of it came due.
        missed: How many of these were further off than its width.
    """

    step: int = -1
    n: int = 0
    level: float = 0.0
    trend: float = 0.0
    due: list[int] = []
    said: list[float] = []
    widths: list[float] = []
    errors: list[float] = []
    checked: list[int] = []
    missed: list[int] = []


@dataclass(frozen=True)
class LimitForecast:
    """See :func:`limit_forecast`."""

    every_ms: int
    horizons: tuple[int, ...]
    alpha: float
    beta: float
    coverage: float
    learn: int

    label: ClassVar[str] = "limit_forecast"
    state: ClassVar[Any] = CrossingState

    def new(self) -> CrossingState:
        """Return the state of nothing."""
        count = len(self.horizons)
        zeros, none = [0.0] * count, [0] * count
        return CrossingState(
            due=list(none), said=list(zeros), widths=list(zeros), errors=list(zeros), checked=list(none),
            missed=list(none),
        )  # fmt: skip

    def add(
        self,
        state: CrossingState,
        value: float,
        at_ms: int,
        above: float | None = None,
        below: float | None = None,
    ) -> Crossing | None:
        """Add the value of a step to a state in place; a second one of a step does nothing.

        Args:
            state: What is kept of the series.
            value: The value.
            at_ms: Its time, ms.
            above: A limit that is to be told when the series rises to it.
            below: A limit that is to be told when it falls to it.

        Returns:
            The limit that is crossed first within the furthest horizon; ``None``: none is, or the series is
            beyond it already.
        """
        step = at_ms // self.every_ms
        if state.n and step <= state.step:
            return None
        self._follow(state, value, step)
        if state.n <= self.learn:
            return None
        if above is not None and state.trend > 0:
            return self._cross(state, "above", above)
        if below is not None and state.trend < 0:
            return self._cross(state, "below", below)
        return None

    def width(self, state: CrossingState, horizon: int) -> float:
        """Return how far a value may be off its forecast at a horizon, by its place among the horizons."""
        widest = 0.0
        for i in range(horizon + 1):
            known = (
                state.widths[i] if state.checked[i] else _WIDE * state.errors[0] * math.sqrt(self.horizons[i])
            )
            widest = max(widest, known)  # what is further ahead is never surer
        return widest

    def _follow(self, state: CrossingState, value: float, step: int) -> None:
        """Let level and trend follow a value, check the forecasts that were of it, and make new ones."""
        if not state.n:
            state.level = value
        else:
            passed = step - state.step
            expected = state.level + state.trend * passed
            # The first values count as means, so that the first of all does not stay the level.
            alpha = max(self.alpha, 1 / (state.n + 1))
            level = expected + alpha * (value - expected)
            beta = max(self.beta, 1 / (state.n + 1))
            state.trend += beta * ((level - state.level) / passed - state.trend)
            state.level = level
        state.step, state.n = step, state.n + 1
        for i, ahead in enumerate(self.horizons):
            if state.due[i] and step >= state.due[i]:
                if step == state.due[i]:
                    self._check(state, i, abs(state.level - state.said[i]))
                state.due[i] = 0
            if not state.due[i] and state.n > self.learn // 2:
                state.due[i], state.said[i] = step + ahead, state.level + state.trend * ahead

    def _check(self, state: CrossingState, horizon: int, off: float) -> None:
        first = not state.checked[horizon]
        missed = off > self.width(state, horizon)
        state.checked[horizon] += 1
        state.missed[horizon] += missed
        state.errors[horizon] += (1.0 if first else _ERROR) * (off - state.errors[horizon])
        width = _WIDE * off if first else state.widths[horizon]
        wanted = self.coverage if missed else self.coverage - 1
        state.widths[horizon] = max(width + state.errors[horizon] * wanted, 0.0)

    def _cross(self, state: CrossingState, side: Literal["above", "below"], limit: float) -> Crossing | None:
        sign = 1.0 if side == "above" else -1.0
        left, slope = sign * (limit - state.level), sign * state.trend
        if left <= 0 or slope <= 0 or left > slope * self.horizons[-1]:
            return None
        widths = [0.0, *(self.width(state, i) for i in range(len(self.horizons)))]
        steps = (0, *self.horizons)
        soonest = _reached(steps, [slope * h + w for h, w in zip(steps, widths, strict=True)], left)
        latest = _reached(steps, [slope * h - w for h, w in zip(steps, widths, strict=True)], left)
        every = self.every_ms
        likely = round(left / slope * every)
        return Crossing(
            side,
            limit,
            likely,
            min(round((soonest or 0.0) * every), likely),
            None if latest is None else max(round(latest * every), likely),
            state.level,
            state.trend * _HOUR_MS / every,
        )


def limit_forecast(
    *,
    every: Duration,
    ahead: Duration,
    alpha: float = 0.1,
    beta: float = 0.02,
    coverage: float = 0.9,
    learn: int = 60,
) -> LimitForecast:
    """Say when a series will cross a limit, from its level and trend (Holt), with an interval.

    Args:
        every: Length of a step.
        ahead: How far ahead is looked.
        alpha: How much a value changes the level, in (0, 1].
        beta: How much the level changes the trend, in (0, 1].
        coverage: Which share of values is to lie within the interval of their forecast, in (0, 1).
        learn: After how many steps anything is said.

    Raises:
        OperatorDefinitionError: A number is out of range, or nothing is ahead.
        WindowDefinitionError: A time is no positive duration.

    Example:
        >>> forecast = limit_forecast(every=60_000, ahead=12 * 3_600_000)
        >>> state = forecast.new()
        >>> for minute in range(300):
        ...     found = forecast.add(state, 60 + minute / 60 + minute % 3 / 10, minute * 60_000, above=75.0)
        >>> round(found.in_ms / 3_600_000, 1), found.earliest_ms < found.in_ms, round(found.trend_per_h, 2)
        (9.8, True, 1.01)
    """
    every_ms, ahead_ms = duration_ms(every, "every"), duration_ms(ahead, "ahead")
    if ahead_ms < every_ms:
        raise OperatorDefinitionError("limit_forecast: ahead= is a step at least")
    furthest = ahead_ms // every_ms
    horizons = [1]
    while 2 * horizons[-1] < furthest:
        horizons.append(2 * horizons[-1])
    if furthest > horizons[-1]:
        horizons.append(furthest)
    return LimitForecast(
        every_ms,
        tuple(horizons),
        fraction(alpha, "alpha"),
        fraction(beta, "beta"),
        fraction(coverage, "coverage", closed=False),
        whole(learn, "learn", 2),
    )


def _reached(steps: tuple[int, ...], values: list[float], limit: float) -> float | None:
    """Return the step at which values on a line from step to step first reach a limit."""
    for i in range(1, len(steps)):
        if values[i] >= limit:
            before = values[i - 1]
            if before >= limit:
                return float(steps[i - 1])
            share = (limit - before) / (values[i] - before)
            return steps[i - 1] + share * (steps[i] - steps[i - 1])
    return None
