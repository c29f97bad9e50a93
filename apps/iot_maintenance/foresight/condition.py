"""Features of a machine's condition: fading means of its measuring points, and what is made of them.

Values are taken together in steps (an hour, a cycle): a step's value is the mean of the good readings in it.
Nothing is looked back at, so that what is kept of a point is some 80 bytes, however long its past is.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, sqrt
from typing import Final

import msgspec

from millrace.time import NEVER
from millrace_apps.iot_maintenance.foresight.baseline import Baseline

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000
#: Steps that a fading mean is about: the newest has 2 / (span + 1) of the weight.
SHORT, MIDDLE, LONG = 10, 30, 80
#: A machine is compared with what it was in so many first steps of its life.
FIRST: Final = 15
#: Most measuring points, error codes and components, and attributes that are looked at; others are left out.
MOST_POINTS: Final = 24
MOST_FACTS: Final = 12
MOST_ATTRIBUTES: Final = 6
_LONGEST: Final = 24


def _weight(span: int, steps: int) -> float:
    """Return the sum of all weights after so many steps, where the newest has one."""
    alpha = 2.0 / (span + 1)
    return (1.0 - (1.0 - alpha) ** steps) / alpha


class Point(msgspec.Struct, array_like=True, gc=False):
    """What is kept of one measuring point.

    Attributes:
        total: Sum of the good readings of the step that is open.
        count: How many these are.
        steps: Steps with a reading so far.
        first: Mean of the first ones.
        short: Fading mean, of some ten steps.
        middle: The same of some thirty.
        long: The same of some eighty.
        square: Fading sum of squared distances from ``long``.

    Example:
        >>> point = Point()
        >>> for value in (1.0, 3.0):
        ...     point.step(value)
        >>> point.first, round(point.short, 3), point.steps
        (2.0, 2.1, 2)
    """

    total: float = 0.0
    count: int = 0
    steps: int = 0
    first: float = 0.0
    short: float = 0.0
    middle: float = 0.0
    long: float = 0.0
    square: float = 0.0

    def step(self, value: float) -> None:
        """Take the value of a step."""
        self.steps = steps = self.steps + 1
        if steps <= FIRST:
            self.first += (value - self.first) / steps
        self.short += (value - self.short) / _weight(SHORT, steps)
        self.middle += (value - self.middle) / _weight(MIDDLE, steps)
        away = value - self.long
        self.long += away / _weight(LONG, steps)
        self.square = self.square * (1.0 - 2.0 / (LONG + 1)) + away * (value - self.long)

    def features(self, name: str, found: dict[str, float]) -> None:
        """Add the point's features to others, in its unit (or as z-scores)."""
        short, middle, long = self.short, self.middle, self.long
        found[f"{name}.mean_{SHORT}"] = short
        found[f"{name}.mean_{MIDDLE}"] = middle
        found[f"{name}.mean_{LONG}"] = long
        found[f"{name}.spread_{LONG}"] = sqrt(max(self.square, 0.0) / _weight(LONG, self.steps))
        found[f"{name}.change"] = short - self.first
        found[f"{name}.slope"] = short - long
        found[f"{name}.drift"] = middle - long


class Awaited(msgspec.Struct, array_like=True, gc=False):
    """A forecast whose truth is not known yet.

    Attributes:
        at: When it was made, ms.
        hours: The remaining life that it said, h.
    """

    at: int
    hours: float


class Life(msgspec.Struct, array_like=True):
    """What is kept of a machine since it began, or was repaired after its last failure.

    Attributes:
        begun: Since when, ms.
        due: End of the step that is open, ms; ``NEVER``: none is.
        kind: The machine's kind.
        points: Its measuring points, by quantity.
        errors: Error code → how often in the last 24 hours.
        replaced: Component → when it was last replaced, ms.
        attributes: What else is known of it.
        awaited: Forecasts of remaining life that a failure will judge, oldest first.
    """

    begun: int
    due: int = NEVER
    kind: str = ""
    points: dict[str, Point] = {}
    errors: dict[str, int] = {}
    replaced: dict[str, int] = {}
    attributes: dict[str, str] = {}
    awaited: list[Awaited] = []

    def take(self, quantity: str, value: float) -> None:
        """Take a good value into the step that is open."""
        point = self.points.get(quantity)
        if point is None:
            if len(self.points) >= MOST_POINTS:
                return
            point = self.points[quantity] = Point()
        point.total += value
        point.count += 1

    def know(
        self, kind: str, errors: Mapping[str, int], replaced: Mapping[str, int], attributes: Mapping[str, str]
    ) -> None:
        """Take what held at the newest reading."""
        self.kind = kind
        self.errors = _some(errors)
        self.replaced = _some(replaced)
        short = {n: v for n, v in attributes.items() if len(n) <= _LONGEST and len(v) <= _LONGEST}
        self.attributes = {name: short[name] for name in sorted(short)[:MOST_ATTRIBUTES]}

    def close(self, baseline: Baseline) -> dict[str, float]:
        """End the step that is open, and return the machine's features then.

        Args:
            baseline: What is usual; its quantities are scored by it, and others left out.

        Returns:
            ``age_h``; of each point its means, spread, change since the first steps, slope and drift, and
            how far the points that moved most did; ``errors.CODE`` and their sum; ``days_since.COMPONENT``,
            and the least and most of them; of each attribute its number, or that it has its text.
        """
        at, values = self.due, {}
        for name, point in self.points.items():
            if point.count:
                values[name] = point.total / point.count
                point.total, point.count = 0.0, 0
        self.due = NEVER
        for name, value in baseline.scores(values).items():
            self.points[name].step(value)
        found = {"age_h": (at - self.begun) / _HOUR_MS}
        for name, point in self.points.items():
            if point.steps:
                point.features(name, found)
        self._together(found)
        for code, count in self.errors.items():
            found[f"errors.{code}"] = float(count)
        found["errors"] = float(sum(self.errors.values()))
        ages = {component: (at - since) / _DAY_MS for component, since in self.replaced.items()}
        for component, age in ages.items():
            found[f"days_since.{component}"] = age
        if ages:
            found["parts.newest"], found["parts.oldest"] = min(ages.values()), max(ages.values())
        for name, text in self.attributes.items():
            number = _number(text)
            if number is None:
                found[f"is.{name}={text}"] = 1.0
            else:
                found[f"is.{name}"] = number
        return found

    def _together(self, found: dict[str, float]) -> None:
        """Add how far the points that have moved most have, by their own spread: whichever they are."""
        slopes, changes = [0.0, 0.0], [0.0]
        for name, point in self.points.items():
            if point.steps > 1 and (spread := found[f"{name}.spread_{LONG}"]) > 0.0:
                slopes.append(abs(found[f"{name}.slope"]) / spread)
                changes.append(abs(found[f"{name}.change"]) / spread)
        slopes.sort()
        found["most.slope"], found["most.second"] = slopes[-1], slopes[-2]
        found["most.change"] = max(changes)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _some(of: Mapping[str, int]) -> dict[str, int]:
    names = sorted(name for name in of if len(name) <= _LONGEST)
    return {name: of[name] for name in names[:MOST_FACTS]}
