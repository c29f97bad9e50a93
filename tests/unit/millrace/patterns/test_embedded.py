"""A process that keeps the partial matches itself finds what the pattern's own process finds."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from millrace import Context, KeyedProcess, Timer, value_state
from millrace.patterns import PatternDefinitionError, begin, detect, matcher_of, skip_past_last
from millrace.testing import TestDriver


class Step(msgspec.Struct):
    kind: str


class Way(msgspec.Struct, frozen=True):
    kinds: tuple[str, ...]
    start_ms: int
    end_ms: int
    seen: int


PATTERN = (
    begin("a")
    .where(lambda e: e.kind == "a")
    .followed_by("b")
    .where(lambda e: e.kind == "b")
    .one_or_more()
    .next("c")
    .where(lambda e: e.kind == "c")
    .within(20)
)
MATCHER = matcher_of(Step, PATTERN, after_match=skip_past_last())


class Ways(KeyedProcess[Step, Way]):
    """Counts all steps, and tells each way with how many there had been."""

    order = "event_time"
    partial = value_state(MATCHER.type)
    seen = value_state(int, default=0)

    def process(self, event: Step, ctx: Context) -> None:
        self.seen.value += 1
        kept, found = MATCHER.take(self.partial.value, event, ctx.event_time)
        self.tell(found, ctx)
        self.keep(kept, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        kept = self.partial.value
        if kept is not None:
            found, _ = MATCHER.expire(kept, timer.at)
            self.tell(found, ctx)
            self.keep(kept, ctx)

    def tell(self, found: list[Any], ctx: Context) -> None:
        for match in found:
            kinds = tuple(name for name, events in match.matched.items() for _ in events)
            ctx.emit(Way(kinds, match.start_ms, match.end_ms, self.seen.value))

    def keep(self, kept: Any, ctx: Context) -> None:
        if kept is None or not kept.live:
            self.partial.clear()
            return
        self.partial.value = kept
        deadline = MATCHER.deadline(kept)
        if deadline is not None:
            ctx.timers.bring_forward(deadline, "over")

    def last_due(self, latest: int) -> int:
        return latest + 20


def ways_found(seed: int) -> int:
    """Compare the two on random steps; return how many ways there were."""
    random = Random(seed)
    mine = TestDriver(Ways())
    theirs = TestDriver(detect(Step, PATTERN, after_match=skip_past_last()))
    at = 0
    for _ in range(40):
        at += random.choice([0, 1, 3, 9])
        event = "k", Step(random.choice("aabbc")), at
        for driver in (mine, theirs):
            driver.send(*event[:2], at=event[2])
        if random.random() < 0.1:
            mine.restart()
    mine.drain()
    theirs.drain()
    wanted = [
        (tuple(name for name, events in m.matched.items() for _ in events), m.start_ms, m.end_ms)
        for m in theirs.values()
    ]
    assert [(w.kinds, w.start_ms, w.end_ms) for w in mine.values()] == wanted
    assert [w.seen for w in mine.values()] == sorted(w.seen for w in mine.values())
    return len(wanted)


def test_an_embedded_matcher_finds_what_detect_finds() -> None:
    assert sum(map(ways_found, range(40))) > 40


def test_an_embedded_pattern_is_checked_as_any_other() -> None:
    with pytest.raises(PatternDefinitionError, match="add within"):
        matcher_of(Step, begin("a").where(lambda e: e.kind == "a").followed_by("b"))
