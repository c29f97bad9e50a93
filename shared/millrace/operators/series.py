"""Exponential smoothing of a series: its level, its trend and its season, value by value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

Seasonal = Literal["additive", "multiplicative"]


@dataclass(frozen=True)
class Smoothness:
    """How a series is smoothed; the equations are those of Hyndman and Athanasopoulos, chapter 8.

    Attributes:
        alpha: How much a value changes the level.
        beta: How much the level changes the trend; ``None``: there is none.
        gamma: How much a value changes its place in the season.
        damping: By what the trend is multiplied at every step.
        season: Steps in a season; 0: there is none.
        seasonal: Whether the season is added, or multiplied with.
    """

    alpha: float
    beta: float | None
    gamma: float
    damping: float
    season: int
    seasonal: Seasonal

    @property
    def first(self) -> int:
        """How many steps are needed to begin with: two seasons."""
        return 2 * self.season if self.season else 2

    def begin(self, values: Sequence[float | None], place: int) -> Series:
        """Return the series as it was before the first of its values.

        The trend is that from the first season's mean to the second's, the level where it begins; a
        place in the season is what is left over, on average.

        Args:
            values: The first two seasons; ``None`` where a value is missing.
            place: Place of the first value in the season.
        """
        length = max(self.season, 1)
        halves = values[:length], values[length : 2 * length]
        means = [_mean(half) for half in halves]
        known = [m for m in means if m is not None]
        low, high = (known[0], known[-1]) if known else (0.0, 0.0)
        trend = (high - low) / length if self.beta is not None else 0.0
        level = low - trend * (length + 1) / 2 if self.beta is not None else (low + high) / 2
        season = [0.0 if self.seasonal == "additive" else 1.0] * self.season
        for i in range(self.season):
            rests = [
                self._rest(value, level + trend * (step + 1))
                for step, value in ((i, halves[0][i]), (i + length, halves[1][i]))
                if value is not None
            ]
            if rests:
                season[(place + i) % self.season] = sum(rests) / len(rests)
        return Series(level, trend, season)

    def _rest(self, value: float, line: float) -> float:
        if self.seasonal == "additive":
            return value - line
        return value / line if line > 0 else 1.0

    def add(self, series: Series, value: float, place: int) -> float:
        """Add a value to a series; return what was expected.

        Args:
            series: The series; it is changed.
            value: The value.
            place: Its place in the season.
        """
        kept = self.damping * series.trend
        line = series.level + kept
        at_place = series.season[place] if self.season else None
        if at_place is None:
            expected, level = line, value
        elif self.seasonal == "additive":
            expected, level = line + at_place, value - at_place
            series.season[place] = self.gamma * (value - line) + (1 - self.gamma) * at_place
        else:
            expected, level = line * at_place, value / at_place
            if line > 0:  # else the place in the season cannot be told from the level
                series.season[place] = self.gamma * value / line + (1 - self.gamma) * at_place
        new = self.alpha * level + (1 - self.alpha) * line
        if self.beta is not None:
            series.trend = self.beta * (new - series.level) + (1 - self.beta) * kept
        series.level = new
        return expected

    def skip(self, series: Series, steps: int) -> None:
        """Let steps pass without a value: the level follows the trend."""
        series.level += series.trend * self._damped(steps)
        series.trend *= self.damping**steps

    def ahead(self, series: Series, steps: int, place: int) -> list[float]:
        """Return what is expected of the next steps.

        Args:
            series: The series.
            steps: How many.
            place: Place in the season of the first of them.
        """
        found = []
        for step in range(steps):
            line = series.level + series.trend * self._damped(step + 1)
            if self.season:
                at_place = series.season[(place + step) % self.season]
                line = line + at_place if self.seasonal == "additive" else line * at_place
            found.append(line)
        return found

    def _damped(self, steps: int) -> float:
        """Return the damping of so many steps, added up."""
        phi = self.damping
        return float(steps) if phi == 1 else phi * (1 - phi**steps) / (1 - phi)


class Series(msgspec.Struct, array_like=True, gc=False):
    """What is known of a series: its level, its trend per step, and its season by place."""

    level: float
    trend: float
    season: list[float]


def _mean(values: Iterable[float | None]) -> float | None:
    there = [v for v in values if v is not None]
    return sum(there) / len(there) if there else None
