"""The exact scoring of the Numenta Anomaly Benchmark (numenta/NAB: nab/sweeper.py, nab/scorer.py).

Detections are rows whose score reaches one threshold. In a labelled window the earliest counts, the more the
earlier it is; outside of windows each costs, the less the closer it is behind one. The first 15 % of a
series, 750 rows at most, are not judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec


class Profile(NamedTuple):
    """What a detection in a window earns, what one outside costs, and what a missed window costs."""

    found: float
    false: float
    missed: float


PROFILES: Final = {
    "standard": Profile(1.0, 0.11, 1.0),
    "low_fp": Profile(1.0, 0.22, 1.0),
    "low_fn": Profile(1.0, 0.11, 2.0),
}
STANDARD: Final = PROFILES["standard"]
#: After so many widths of the window before it, a detection costs all.
_FAR: Final = 3.0


def sigmoid(place: float) -> float:
    """Return what a detection is worth at a place: -1 where a window begins, 0 where it ends."""
    return 2.0 / (1.0 + math.exp(5.0 * place)) - 1.0


class Judged(NamedTuple):
    """A row that is judged.

    Attributes:
        row: Its place in the series.
        window: Number of the window that it is in, -1 outside.
        worth: What a detection is worth there: in (0, 1] in a window, in [-1, 0] outside.
    """

    row: int
    window: int
    worth: float


@dataclass(frozen=True)
class Judge:
    """The rows of a series that are judged.

    Attributes:
        rows: Those rows, in order.
        windows: How many windows the series has.
    """

    rows: tuple[Judged, ...]
    windows: int

    @classmethod
    def of(cls, rows: int, windows: Iterable[tuple[int, int]]) -> Judge:
        """Return the judge of a series.

        Args:
            rows: How many rows it has.
            windows: First and last row of each window.
        """
        ordered = sorted(windows)
        found, passed = [], -1
        for row in range(probation(rows), rows):
            while passed + 1 < len(ordered) and row > ordered[passed + 1][1]:
                passed += 1
            if passed + 1 < len(ordered) and row >= ordered[passed + 1][0]:
                first, last = ordered[passed + 1]
                place = -(last - row + 1) / (last - first + 1)
                found.append(Judged(row, passed + 1, sigmoid(place) / sigmoid(-1.0)))
            elif passed < 0:
                found.append(Judged(row, -1, -1.0))
            else:
                first, last = ordered[passed]
                place = (row - last) / (last - first) if last > first else _FAR + 1
                found.append(Judged(row, -1, -1.0 if place > _FAR else sigmoid(place)))
        return cls(tuple(found), len(ordered))


class Tally(msgspec.Struct, frozen=True):
    """What detections over some series came to.

    Attributes:
        series: Series.
        windows: Labelled windows.
        windows_found: Those with a detection.
        false_detections: Detections outside of windows.
        standard: Score of the standard profile: 0 for no detection at all, 100 for the first row of each
            window and nothing else; ``None`` where there is no window.
        low_fp: Score of the profile that rewards few false detections.
        low_fn: Score of the profile that rewards few missed windows.
    """

    series: int
    windows: int
    windows_found: int
    false_detections: int
    standard: float | None
    low_fp: float | None
    low_fn: float | None


def probation(rows: int) -> int:
    """Return how many rows of a series are not judged."""
    return min(int(0.15 * rows), 750)


def tally(judges: Sequence[Judge], scores: Sequence[Sequence[float]], threshold: float) -> Tally:
    """Return what the detections at a threshold come to.

    Args:
        judges: The series.
        scores: A score for each of their rows.
        threshold: Rows that reach it are detections.
    """
    earned, outside = _detected(judges, scores, threshold)
    windows = sum(judge.windows for judge in judges)
    raw = {name: _worth(earned, outside, windows, profile) for name, profile in PROFILES.items()}
    final = {name: normalised(raw[name], windows, PROFILES[name]) for name in PROFILES}
    return Tally(len(judges), windows, len(earned), len(outside), **final)


def points(judges: Sequence[Judge], scores: Sequence[Sequence[float]], threshold: float) -> float:
    """Return what the detections at a threshold come to, in raw points of the standard profile."""
    earned, outside = _detected(judges, scores, threshold)
    return _worth(earned, outside, sum(judge.windows for judge in judges), STANDARD)


def _detected(
    judges: Sequence[Judge], scores: Sequence[Sequence[float]], threshold: float
) -> tuple[list[float], list[float]]:
    """Return what the earliest detection of each window that has one is worth, and all those outside."""
    earned: list[float] = []
    outside: list[float] = []
    for judge, given in zip(judges, scores, strict=True):
        first: dict[int, float] = {}
        for row, window, worth in judge.rows:
            if given[row] >= threshold:
                if window < 0:
                    outside.append(worth)
                else:
                    first.setdefault(window, worth)
        earned += first.values()
    return earned, outside


def _worth(earned: Sequence[float], outside: Sequence[float], windows: int, profile: Profile) -> float:
    missed = profile.missed * (windows - len(earned))
    return profile.found * math.fsum(earned) + profile.false * math.fsum(outside) - missed


def normalised(raw: float, windows: int, profile: Profile = STANDARD) -> float | None:
    """Return a sum on the scale from no detection at all (0) to perfect ones (100)."""
    if not windows:
        return None
    return 100.0 * (raw / windows + profile.missed) / (profile.found + profile.missed)


def curve(judges: Sequence[Judge], scores: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Return what detections come to, in raw points of the standard profile, at each threshold.

    Returns:
        Thresholds from the largest score down, and the sum at each; before them infinity, the sum of no
        detection.
    """
    marks: list[tuple[float, int, int, float]] = []
    for number, (judge, given) in enumerate(zip(judges, scores, strict=True)):
        marks += [(given[row], number, window, worth) for row, window, worth in judge.rows if given[row] > 0]
    marks.sort(key=lambda mark: -mark[0])
    total = -STANDARD.missed * sum(judge.windows for judge in judges)
    found, best = [(math.inf, total)], dict[tuple[int, int], float]()
    for i, (score, number, window, worth) in enumerate(marks):
        if window < 0:
            total += STANDARD.false * worth
        else:
            before = best.get((number, window))
            if before is None or worth > before:
                best[number, window] = worth
                total += worth + STANDARD.missed if before is None else worth - before
        if i + 1 == len(marks) or marks[i + 1][0] != score:
            found.append((score, total))
    return found


def best(judges: Sequence[Judge], scores: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the threshold at which detections come to most, and to how much, in raw points."""
    return max(curve(judges, scores), key=lambda found: found[1])


def steady(
    judges: Sequence[Judge], scores: Sequence[Sequence[float]], steps: Mapping[str, float] | None = None
) -> tuple[float, float]:
    """Return a threshold in the middle of where detections come to much, and what that middle comes to.

    The sums are averaged over thresholds of about the same odds (score / (1 - score)), so that a threshold
    that is best by chance is not taken.

    Args:
        judges: The series.
        scores: A score in [0, 1] for each of their rows.
        steps: ``least`` and ``most`` odds looked at, ``width`` of the average as a logarithm.
    """
    how = {"least": 0.05, "most": 20.0, "width": 0.15, **(steps or {})}
    sums = curve(judges, scores)
    odds = [math.inf if score >= 1 else score / (1 - score) for score, _ in sums]
    count = 120
    low, high = math.log(how["least"]), math.log(how["most"])
    grid = [low + (high - low) * i / (count - 1) for i in range(count)]
    at, values = 0, [0.0] * count
    for i in reversed(range(count)):
        while at + 1 < len(sums) and odds[at + 1] >= math.exp(grid[i]):
            at += 1
        values[i] = sums[at][1]
    smooth = []
    for middle in grid:
        weights = [math.exp(-0.5 * ((other - middle) / how["width"]) ** 2) for other in grid]
        smooth.append(sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights))
    chosen = max(range(count), key=smooth.__getitem__)
    return math.exp(grid[chosen]) / (1 + math.exp(grid[chosen])), smooth[chosen]
