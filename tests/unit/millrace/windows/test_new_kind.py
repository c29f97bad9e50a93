"""A new kind of windows is one file: what it is, the process that has it, and its registration. As this one.

Windows that an event of the stream ends: the first event after one that says "that is all" begins the next.

::

    events   a   b   c!      d       e!
             [a ---- c]      [d ---- e]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from random import Random
from typing import Any, ClassVar

import msgspec
import pytest

from millrace.parts.accumulators import BoundAggregate, together
from millrace.process import Context
from millrace.state import ValueState, value_state
from millrace.testing import TestDriver
from millrace.testing.properties import invariant
from millrace.windows import WindowDefinitionError, collect, count, sum_of, window
from millrace.windows.assigners import Assigner
from millrace.windows.definition import WindowDefinition
from millrace.windows.process import WindowProcess, accumulators, array_struct, register


@dataclass(frozen=True)
class Punctuated(Assigner):
    """Windows that end with an event that says so.

    Attributes:
        ends_with: Which events do.
    """

    ends_with: Callable[[Any], bool]
    has_one_result: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return "punctuated"

    @property
    def in_order(self) -> bool:
        return True


class PunctuatedWindows(WindowProcess):
    """Keeps the accumulators of the window that is open."""

    open: ValueState[Any]
    open_type: ClassVar[Any]

    def __init__(self, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> None:
        super().__init__(definition, bound)
        self._ends: Any = definition.assigner.ends_with  # type: ignore[attr-defined]
        self._update = together([b.add for b in bound])

    @classmethod
    def declare(cls, definition: WindowDefinition, bound: tuple[BoundAggregate, ...]) -> dict[str, Any]:
        kept = array_struct("Open", [("start", int), ("accs", accumulators(bound))])
        return {"open_type": kept, "open": value_state(kept)}

    def process(self, event: Any, ctx: Context) -> None:
        kept = self.open.value or self.open_type(ctx.event_time, [b.create() for b in self._bound])
        kept.accs = self._update(kept.accs, event, ctx.event_time)
        if not self._ends(event):
            self.open.value = kept
            return
        values = [b.result(acc) for b, acc in zip(self._bound, kept.accs, strict=True)]
        ctx.emit(self._record(*self.key_parts(ctx), kept.start, ctx.event_time + 1, *values))
        self.open.clear()


register(Punctuated, lambda _: PunctuatedWindows)


class Line(msgspec.Struct, frozen=True):
    item: str
    cents: int
    last: bool = False


def is_last(line: Line) -> bool:
    return line.last


def receipts() -> WindowProcess:
    return window(Line, Punctuated(is_last)).aggregate(n=count(), total=sum_of("cents"), all=collect("item"))


def some_lines(random: Random) -> list[tuple[str, int, Line]]:
    return [
        (random.choice("xy"), at, Line(f"i{at}", random.randrange(500), random.random() < 0.3))
        for at in random.sample(range(500), 40)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_registered_kind_is_built_and_run_as_any_other(seed: int) -> None:
    events = some_lines(Random(seed))
    driver = TestDriver(receipts())
    driver.send_batch(events)
    driver.drain()
    wanted = []
    for key in "xy":
        number = 0
        ordered = []
        for _, at, line in sorted((e for e in events if e[0] == key), key=lambda e: e[1]):
            ordered.append((number, at, line))
            number += line.last
        for _, group in groupby(ordered, key=lambda e: e[0]):
            of = list(group)
            if of[-1][2].last:
                lines = [line for *_, line in of]
                wanted.append((key, of[0][1], of[-1][1] + 1, len(of), sum(e.cents for e in lines),
                               [e.item for e in lines]))  # fmt: skip
    assert sorted(map(msgspec.structs.astuple, driver.values())) == sorted(wanted)


def test_a_registered_kind_does_not_hang_on_how_events_are_brought() -> None:
    invariant(receipts(), some_lines(Random(3)), bound_ms=500, runs=6)


def test_what_a_kind_says_of_itself_is_held() -> None:
    with pytest.raises(WindowDefinitionError, match="punctuated windows take events in order"):
        window(Line, Punctuated(is_last), order="arrival").aggregate(n=count())
    with pytest.raises(WindowDefinitionError, match="punctuated windows have one final result"):
        window(Line, Punctuated(is_last), allowed_lateness=5).aggregate(n=count())


def test_a_kind_without_a_process_says_what_is_missing() -> None:
    @dataclass(frozen=True)
    class Unknown(Punctuated):
        pass

    with pytest.raises(WindowDefinitionError, match="no process is registered for Unknown"):
        window(Line, Unknown(is_last)).aggregate(n=count())
