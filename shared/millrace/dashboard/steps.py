"""Sums over steps of event time, for charts, folded forward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from millrace.dashboard.views import Series

#: Steps that are kept: two weeks of five minutes.
MOST_STEPS: Final = 4_032
#: Points of a line.
POINTS: Final = 60


def joined_steps(steps: Sequence[int], most: int, step_ms: int) -> list[tuple[int, list[int]]]:
    """Return steps joined to at most so many longer ones: begin (ms) and the steps in it, none left out.

    Args:
        steps: Numbers of steps: their begin divided by their width.
        most: How many longer ones, at most.
        step_ms: Width of a step, ms.

    >>> joined_steps([10, 11, 13], 2, 300_000)
    [(3000000, [10, 11]), (3600000, [13])]
    """
    if not steps:
        return []
    first, last = min(steps), max(steps)
    width = max(1, math.ceil((last - first + 1) / most))
    groups: dict[int, list[int]] = {n: [] for n in range((last - first) // width + 1)}
    for step in sorted(steps):
        groups[(step - first) // width].append(step)
    return [((first + n * width) * step_ms, members) for n, members in groups.items()]


class Steps:
    """Sums by name and step of event time.

    Args:
        step_ms: Width of a step, ms; lines join steps together.
        most: How many steps are kept.

    Example:
        >>> steps = Steps(60_000)
        >>> steps.add(5_000, "requests"); steps.add(125_000, "requests")
        >>> steps.lines(["requests"], per_ms=60_000)[0].points
        [(0, 1.0), (60000, 0.0), (120000, 1.0)]
    """

    def __init__(self, step_ms: int, most: int = MOST_STEPS) -> None:
        self.step_ms = step_ms
        self._most = most
        self._sums: dict[int, dict[str, float]] = {}

    def add(self, at_ms: int, name: str, value: float = 1.0) -> None:
        """Add a value to a name's sum at a time (UTC ms)."""
        sums = self._sums.setdefault(at_ms // self.step_ms, {})
        sums[name] = sums.get(name, 0.0) + value
        if len(self._sums) > 2 * self._most:
            for step in sorted(self._sums)[: -self._most]:
                del self._sums[step]

    def groups(self, most: int = POINTS) -> list[tuple[int, Mapping[str, float]]]:
        """Return the sums of at most so many longer steps: begin (ms) and name → sum."""
        found: list[tuple[int, Mapping[str, float]]] = []
        for begin, members in joined_steps(sorted(self._sums)[-self._most :], most, self.step_ms):
            sums: dict[str, float] = {}
            for step in members:
                for name, value in self._sums[step].items():
                    sums[name] = sums.get(name, 0.0) + value
            found.append((begin, sums))
        return found

    def lines(self, names: Sequence[str], *, per_ms: int, most: int = POINTS) -> tuple[Series, ...]:
        """Return a line per name: its sum by so much time; steps with nothing in them are 0.

        Args:
            names: The names.
            per_ms: The time, ms: of a minute the lines say how much per minute.
            most: How many points a line has, at most.
        """
        groups = self.groups(most)
        if len(groups) > 1:
            width = groups[1][0] - groups[0][0]
        else:
            width = (max(self._sums, default=0) - min(self._sums, default=0) + 1) * self.step_ms
        return tuple(
            Series(name, [(begin, sums.get(name, 0.0) * per_ms / width) for begin, sums in groups])
            for name in names
        )
