"""One event per slot of the event rate: what is planned comes first, in its own time, then ordinary life."""

from __future__ import annotations

from bisect import bisect_right
from heapq import heappop, heappush
from itertools import accumulate
from typing import Generic, TypeVar

from millrace_apps.generators.engine.profile import Profile
from millrace_apps.generators.engine.randomness import substream

T = TypeVar("T")


class Plans(Generic[T]):
    """What is to come, by time; equal times in the order of planning.

    >>> plans = Plans[str]()
    >>> plans.add(7, "later"); plans.add(5, "sooner")
    >>> plans.due(4), plans.due(6), plans.due(6)
    (None, (5, 'sooner'), None)
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ms(self) -> int | None:
        """Time of the next plan, ms; None when there is none."""
        return self._heap[0][0] if self._heap else None

    def add(self, at_ms: int, plan: T) -> None:
        """Plan something for a time, ms."""
        self._count += 1
        heappush(self._heap, (at_ms, self._count, plan))

    def due(self, now_ms: int) -> tuple[int, T] | None:
        """Return the first plan with its time (ms) if that has come, and forget it."""
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        at_ms, _, plan = heappop(self._heap)
        return at_ms, plan


class Zipf:
    """Draws numbers 0 to size - 1, the k-th in proportion to ``1 / (k + 1) ** exponent``.

    Args:
        size: How many.
        exponent: 0: all alike.

    >>> Zipf(100, 1.0).draw(0.0), Zipf(100, 0.0).draw(0.5)
    (0, 50)
    """

    def __init__(self, size: int, exponent: float) -> None:
        self._sums = list(accumulate((k + 1) ** -exponent for k in range(size)))
        self._total = self._sums[-1]
        self._last = size - 1

    def draw(self, uniform: float) -> int:
        """Return the number at a uniform number in [0, 1)."""
        return min(bisect_right(self._sums, uniform * self._total), self._last)


class Chance:
    """Decides slot by slot whether something begins.

    Args:
        profile: The run's parameters.
        rate: How often, per 1,000 events.
        names: What the random numbers are for.
    """

    def __init__(self, profile: Profile, rate: float, *names: str) -> None:
        self._share = rate / 1000
        self._draw = substream(profile.seed, *names, "when").random

    def strikes(self) -> bool:
        """Return whether it begins in this slot."""
        return self._draw() < self._share


def times(now_ms: int, span_ms: int, uniforms: list[float]) -> list[int]:
    """Return one time per uniform number, in order, the first now and all within a span, ms.

    >>> times(100, 50, [0.9, 0.5, 0.1])
    [100, 105, 125]
    """
    return [now_ms, *sorted(now_ms + 1 + int(uniform * (span_ms - 1)) for uniform in uniforms[1:])]
