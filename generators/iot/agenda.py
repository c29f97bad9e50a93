"""The event queue of a simulation: what is planned, in order of time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Final, TypeAlias

from millrace_apps.generators.engine.simulated import Simulated

#: Makes something happen at its time (ms) and returns the events of it.
Action: TypeAlias = Callable[[int], Iterable[Simulated]]

_NEVER: Final = 1 << 62


class Agenda:
    """Actions by time; those of one instant happen in the order of planning.

    >>> agenda = Agenda()
    >>> agenda.plan(5, lambda at_ms: ())
    >>> agenda.next_ms, list(agenda.happen(5)), agenda.next_ms > 5
    (5, [], True)
    """

    def __init__(self) -> None:
        self._planned: list[tuple[int, int, Action]] = []
        self._count = 0
        self.next_ms = _NEVER

    def __len__(self) -> int:
        return len(self._planned)

    def plan(self, at_ms: int, action: Action) -> None:
        """Plan an action for a time, ms."""
        self._count += 1
        heappush(self._planned, (at_ms, self._count, action))
        self.next_ms = self._planned[0][0]

    def happen(self, until_ms: int) -> Iterator[Simulated]:
        """Yield the events of all that is planned up to a time, ms, it included."""
        planned = self._planned
        while planned and planned[0][0] <= until_ms:
            at_ms, _, action = heappop(planned)
            yield from action(at_ms)
        self.next_ms = planned[0][0] if planned else _NEVER
