"""Anomaly scores: how far a value goes beyond all that its series has shown, seen from three sides.

The sides are the distance of a value from its recent level, its distance from what is usual at this hour of
the week, and how restless the series is. Of each the range that was seen so far is kept, which narrows
slowly; what goes beyond it is novel, in units of the range. Nothing is assumed of how values are
distributed, and nothing of values to come is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from struct import Struct
from typing import Any, ClassVar, Final, Literal, NamedTuple

import msgspec

from millrace.operators.base import OperatorDefinitionError, finite, fraction, whole
from millrace.time import days
from millrace.windows.assigners import Duration, duration_ms

Why = Literal[
    "",
    "above the recent level",
    "below the recent level",
    "above what is usual at this hour",
    "below what is usual at this hour",
    "more restless than usual",
    "calmer than usual",
]

_HOUR_MS: Final = 3_600_000
_MEMORY_MS: Final = days(35)
_LONG_MEMORY_MS: Final = days(200)
_DAY_MS: Final = 86_400_000
_WEEK_MS: Final = 604_800_000
#: The epoch began on a Thursday; a week here begins on a Monday.
_MONDAY_MS: Final = 3 * _DAY_MS
#: A day of the week has four quarters.
_QUARTERS: Final = 28
_FLOAT: Final = Struct("<f")
_UNKNOWN: Final = _FLOAT.pack(math.nan)
#: What is usual at an hour is kept in four bytes.
_LARGEST: Final = 1e30
#: How calm a series can be at most, as a share of its usual changes.
_CALMEST: Final = 0.05


class Score(NamedTuple):
    """What a value was found to be.

    Attributes:
        score: How unusual it is, in [0, 1); 0.5 where it goes as far beyond what was seen as is tolerated.
        expected: What was expected, in units of the value.
        residual: The value less that.
        low: The least value that would have been nothing new.
        high: The largest.
        why: What is new about it; empty where nothing is.
    """

    score: float
    expected: float
    residual: float
    low: float
    high: float
    why: Why


class NoveltyState(msgspec.Struct, array_like=True, gc=False):
    """What is kept of a series: less than half a KiB.

    Attributes:
        n: How many values there were.
        begun_ms: Time of the first.
        at_ms: Time of the last.
        value: The last.
        levels: Weighted means of the values, one for each gain.
        changes: Weighted means of the steps from value to value, one for each gain.
        change: The same over a long time.
        ranges: Least and largest of what is watched: distances from each level, from the season, and each of
            the changes as a logarithm in units of the usual one.
        hours: What is usual at each hour of the day, 4 bytes each.
        quarters: What comes to that in each quarter of each day of the week.
    """

    n: int = 0
    begun_ms: int = 0
    at_ms: int = 0
    value: float = 0.0
    levels: list[float] = []
    changes: list[float] = []
    change: float = 0.0
    ranges: list[float] = []
    hours: bytes = _UNKNOWN * 24
    quarters: bytes = bytes(4 * _QUARTERS)


class _Side(NamedTuple):
    """A value from one side: how far beyond the range (below: negative), what was expected, and the range."""

    beyond: float
    expected: float
    low: float
    high: float


@dataclass(frozen=True)
class Novelty:
    """See :func:`novelty`."""

    tolerance: float
    learn: int
    resolution: float
    levels: tuple[float, ...]
    changes: tuple[float, ...]
    season_weight: float
    change_weight: float
    memory_ms: int
    long_memory_ms: int

    label: ClassVar[str] = "novelty"
    state: ClassVar[Any] = NoveltyState

    def new(self) -> NoveltyState:
        """Return the state of nothing."""
        watched = len(self.levels) + 1 + len(self.changes)
        return NoveltyState(changes=[0.0] * len(self.changes), ranges=[0.0] * (2 * watched))

    def add(self, state: NoveltyState, value: float, at_ms: int) -> Score | None:
        """Add a value to a state in place.

        Args:
            state: What is kept of the series.
            value: The next value.
            at_ms: Its time, ms.

        Returns:
            What it was found to be, ``None`` while the series is being learned.

        Raises:
            OverflowError: The value is too large; the state is as it was.
        """
        if not -_LARGEST < value < _LARGEST:
            raise OverflowError(f"novelty: {value} is too large")
        if not state.n:
            state.begun_ms = state.at_ms = at_ms
            state.levels = [value] * len(self.levels)
            state.value = value
        state.n += 1
        watched = min(max(at_ms - state.at_ms, 0), _HOUR_MS)
        forget = 1 - math.exp(-watched / self.memory_ms)
        slowly = 1 - math.exp(-watched / self.long_memory_ms)
        level = self._level(state, value, forget)
        season = self._season(state, value, at_ms, slowly)
        change = self._change(state, abs(value - state.value), forget, slowly)
        state.at_ms, state.value = at_ms, value
        if state.n <= self.learn:
            return None
        return self._score(value, level, season, change)

    def _level(self, state: NoveltyState, value: float, forget: float) -> _Side:
        """Compare a value with the recent levels, and let them follow."""
        beyond, levels, ranges = 0.0, state.levels, state.ranges
        expected, low, high = levels[0], ranges[0], ranges[1]
        if state.n > 1:
            for i, gain in enumerate(self.levels):
                away = value - levels[i]
                beyond += _beyond(ranges, 2 * i, away, forget, self.resolution)
                levels[i] += max(gain, 1 / state.n) * away
        return _Side(beyond / len(self.levels), expected, expected + low, expected + high)

    def _season(self, state: NoveltyState, value: float, at_ms: int, forget: float) -> _Side | None:
        """Compare a value with what is usual at this hour of the week; ``None`` where that is unknown."""
        hour = at_ms % _DAY_MS // _HOUR_MS * 4
        quarter = (at_ms + _MONDAY_MS) % _WEEK_MS * _QUARTERS // _WEEK_MS * 4
        (usual,) = _FLOAT.unpack_from(state.hours, hour)
        if usual != usual:
            state.hours = _put(state.hours, hour, value)
            return None
        (more,) = _FLOAT.unpack_from(state.quarters, quarter)
        expected = usual + more
        where = 2 * len(self.levels)
        low, high = state.ranges[where : where + 2]
        beyond = _beyond(state.ranges, where, value - expected, forget, self.resolution)
        # As means of the days and of the weeks at first, three steps to a day; then as weighted ones.
        days = max(at_ms - state.begun_ms, 0) // _DAY_MS
        usual += max(0.05, 1 / (3 * (days + 1))) * (value - usual)
        more += max(0.1, 1 / (3 * (days // 7 + 2))) * (value - expected)
        state.hours = _put(state.hours, hour, usual)
        state.quarters = _put(state.quarters, quarter, more)
        return _Side(beyond, expected, expected + low, expected + high)

    def _change(self, state: NoveltyState, step: float, forget: float, slowly: float) -> float:
        """Compare how restless the series is with how it was; below 0: calmer."""
        if state.n == 1:
            return 0.0
        beyond, share = 0.0, 1 / (state.n - 1)
        state.change += max(forget, share) * (step - state.change)
        usual = state.change + self.resolution + 1e-12
        for i, gain in enumerate(self.changes):
            state.changes[i] += max(gain, share) * (step - state.changes[i])
            restless = math.log(state.changes[i] / usual + _CALMEST)
            where = 2 * (len(self.levels) + 1 + i)
            beyond += _beyond(state.ranges, where, restless, slowly, 0.0)
        return beyond / len(self.changes)

    def _score(self, value: float, level: _Side, season: _Side | None, change: float) -> Score:
        seasonal = 0.0 if season is None else self.season_weight * season.beyond
        restless = self.change_weight * change
        said, most, why = level, abs(level.beyond), _said("the recent level", level.beyond)
        if season is not None and abs(seasonal) > most:
            said, most, why = season, abs(seasonal), _said("what is usual at this hour", seasonal)
        if abs(restless) > most:
            most = abs(restless)
            why = "more restless than usual" if restless > 0 else "calmer than usual"
        score = most / (most + self.tolerance)
        return Score(score, said.expected, value - said.expected, said.low, said.high, why)


def novelty(
    *,
    tolerance: float = 0.036,
    learn: int = 100,
    resolution: float = 0.0,
    levels: tuple[float, ...] = (0.05, 0.02),
    changes: tuple[float, ...] = (0.05, 0.02, 0.01),
    season_weight: float = 0.6,
    change_weight: float = 0.6,
    memory: Duration = _MEMORY_MS,
    long_memory: Duration = _LONG_MEMORY_MS,
) -> Novelty:
    """Score how far values go beyond all that their series has shown.

    Three distances are watched: from the recent level (mean over several weighted means), from what is usual
    at this hour of the day and quarter of the day of the week (UTC), and between how restless the series is
    and how it usually is. What goes beyond the range that a distance has had so far is divided by the width
    of that range; the largest of the three, weighted, is the score. A range takes in what it has seen, so
    what goes on is not told again, and narrows with time, so what was long ago may be told again.

    Args:
        tolerance: How far beyond a range, as a share of it, scores 0.5.
        learn: How many values are learned from before any is scored.
        resolution: Smallest difference between values that means something, in units of the value: that of
            the sensor.
        levels: Gains of the means that are the recent level, in (0, 1].
        changes: Gains of the means that are the recent restlessness, in (0, 1].
        season_weight: What the distance from the season counts beside that from the level; 0: nothing.
        change_weight: What restlessness counts beside it; 0: nothing.
        memory: In what time the range of distances from the level narrows to a third (1 / e), of which time
            without a value counts for an hour at most; also how long the usual restlessness looks back.
        long_memory: The same of the other ranges.

    Raises:
        OperatorDefinitionError: A number is out of range.
        WindowDefinitionError: A time is no positive duration.

    Example:
        >>> watched = novelty(learn=50)
        >>> state = watched.new()
        >>> found = [watched.add(state, 20.0 + minute % 7, minute * 60_000) for minute in range(200)]
        >>> found[49], found[199].score
        (None, 0.0)
        >>> hot = watched.add(state, 40.0, 200 * 60_000)
        >>> round(hot.score, 2), hot.why, round(hot.expected, 1)
        (0.98, 'above the recent level', 22.9)
    """
    if not levels or not changes:
        raise OperatorDefinitionError("novelty: levels= and changes= have one gain each at least")
    weights = {"resolution": resolution, "season_weight": season_weight, "change_weight": change_weight}
    for name, number in weights.items():
        if finite(number, name) < 0:
            raise OperatorDefinitionError(f"{name} must not be negative, not {number!r}")
    return Novelty(
        finite(tolerance, "tolerance", positive=True),
        whole(learn, "learn"),
        float(resolution),
        tuple(fraction(gain, "a gain of levels") for gain in levels),
        tuple(fraction(gain, "a gain of changes") for gain in changes),
        float(season_weight),
        float(change_weight),
        duration_ms(memory, "memory"),
        duration_ms(long_memory, "long_memory"),
    )


def _beyond(ranges: list[float], where: int, value: float, forget: float, resolution: float) -> float:
    """Return how far a value is beyond a range (below: negative), in units of it, and let that follow."""
    low, high = ranges[where], ranges[where + 1]
    beyond = value - high if value > high else value - low if value < low else 0.0
    if beyond:
        beyond /= high - low + resolution + 1e-9 * max(abs(high), abs(low)) + 1e-12
        low, high = min(low, value), max(high, value)
    middle = (low + high) / 2
    ranges[where] = low + (middle - low) * forget
    ranges[where + 1] = high - (high - middle) * forget
    return beyond


def _put(numbers: bytes, at: int, value: float) -> bytes:
    return numbers[:at] + _FLOAT.pack(value) + numbers[at + 4 :]


def _said(of: Literal["the recent level", "what is usual at this hour"], beyond: float) -> Why:
    if not beyond:
        return ""
    if of == "the recent level":
        return "above the recent level" if beyond > 0 else "below the recent level"
    return "above what is usual at this hour" if beyond > 0 else "below what is usual at this hour"
