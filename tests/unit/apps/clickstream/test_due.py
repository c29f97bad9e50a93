"""The timer of a browser is never later than what its book of sessions has due: after every callback."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from millrace.host.memory import MemoryHost
from millrace.process import KeyedProcess
from millrace_apps.clickstream.processes.rules import GA4, SNOWPLOW, universal
from millrace_apps.clickstream.processes.sessionize import BareClick, Sessionize
from millrace_apps.clickstream.processes.visitor import (
    Visitors,
    VisitorsInOrder,
    VisitorsTracked,
    VisitorsTrackedInOrder,
)
from millrace_apps.clickstream.state.browser_state import VisitorRules
from tests.unit.apps.clickstream.app_cases import HOUR, MINUTE, as_read, click, keyed, world

#: Callbacks that were looked at, and how many of them had something due.
Looked = list[tuple[int, int | None]]


def _watched(base: type[KeyedProcess[Any, Any]], timer: str, due: Any, looked: Looked) -> Any:
    """The process, which looks at its timer after every callback."""

    def look(self: Any, ctx: Any) -> None:
        at, pending = due(self), ctx.timers.pending(timer)
        looked.append((ctx.event_time, at))
        assert at is None or (pending is not None and pending <= at), (ctx.key, ctx.event_time, pending, at)

    class Watched(base):  # type: ignore[misc, valid-type]
        name = base.name

        def process(self, event: Any, ctx: Any) -> None:
            super().process(event, ctx)
            look(self, ctx)

        def on_late(self, event: Any, ctx: Any) -> None:
            super().on_late(event, ctx)
            look(self, ctx)

        def on_timer(self, timer: Any, ctx: Any) -> None:
            super().on_timer(timer, ctx)
            look(self, ctx)

    return Watched


def _visitors(base: type[Visitors], rules: VisitorRules, looked: Looked) -> Any:
    def due(process: Any) -> int | None:
        known = process.known.value
        return None if known is None else known.book.due(rules.sessions, rules.session_lateness_ms)

    return _watched(base, "tick", due, looked)(rules)


def _run(process: Any, events: list[Any], rng: random.Random, bound: int) -> Any:
    """Run events in random cuts, without a drain; what fails in a callback is a dead letter."""
    host, emissions, at = MemoryHost(process, out_of_orderness_ms=bound), [], 0
    while at < len(events):
        size = rng.choice((1, 2, 7, 60, 400))
        emissions += host.run_batch(events[at : at + size])
        at += size
    failed = [e.payload for e in emissions if e.output == "dead_letters" and b"process_error" in e.payload]
    assert failed == []
    return emissions


@pytest.mark.parametrize(
    ("base", "rules"),
    [
        (Visitors, VisitorRules()),
        (Visitors, VisitorRules(session_lateness_ms=0, repeats_ms=6 * HOUR)),
        (VisitorsInOrder, VisitorRules(in_order=True)),
        (VisitorsInOrder, VisitorRules(sessions=universal("Europe/Berlin"))),
        (VisitorsTracked, VisitorRules(sessions=SNOWPLOW)),
        (VisitorsTrackedInOrder, VisitorRules(sessions=SNOWPLOW, in_order=True)),
    ],
    ids=["ga4", "no-lateness", "in-order", "universal", "snowplow", "snowplow-in-order"],
)
def test_a_browsers_timer_is_never_later_than_what_its_book_has_due(
    base: type[Visitors], rules: VisitorRules
) -> None:
    """A world with people who come back, disorder beyond the bound, and every way of cutting."""
    looked: Looked = []
    rng = random.Random(5)
    events = as_read(world(2_500))
    late = sorted(events, key=lambda e: e[1] + rng.choice((0, 0, 0, 20 * MINUTE, 3 * HOUR)) * rng.random())
    _run(_visitors(base, rules, looked), late, rng, 5 * MINUTE)
    assert sum(at is not None for _, at in looked) > 2_000


@pytest.mark.parametrize("lateness", [0, 30 * MINUTE])
def test_a_timer_of_bare_clicks_is_never_later_than_what_is_due(lateness: int) -> None:
    looked: Looked = []
    rng = random.Random(11)
    events = []
    for visitor in range(40):
        at = rng.randrange(HOUR)
        for _ in range(40):
            at += round(rng.expovariate(1 / (20 * MINUTE)))
            events.append((f"v{visitor}", at, BareClick(f"v{visitor}", "tea", at)))
    events.sort(key=lambda e: e[1] + rng.random() * 2 * HOUR)
    sessionize = _watched(
        Sessionize, "close", lambda p: p.book.value and p.book.value.due(GA4, lateness), looked
    )
    _run(sessionize(GA4, lateness_ms=lateness), events, rng, 20 * MINUTE)
    assert sum(at is not None for _, at in looked) > 1_000


def test_a_returning_visitors_session_ends_when_its_pause_is_over_and_its_visit_is_of_that_hour() -> None:
    """The horizon of repeats is long: the timer that forgets them is far away when the visitor is back.

    ====== ==============================================================
    v1     click 0:00   .  .  over 0:30    click 0:40    over 1:10
    others                                                    click 1:11
    ====== ==============================================================
    """
    rules = replace(VisitorRules(), session_lateness_ms=0, repeats_ms=24 * HOUR)
    host = MemoryHost(Visitors(rules))
    first, again = click(0), click(40 * MINUTE)
    other = click(71 * MINUTE, visitor="v2")
    host.run_batch(keyed(first))
    host.run_batch(keyed(click(35 * MINUTE, visitor="v2")))
    emitted = host.run_batch(keyed(again)) + host.run_batch(keyed(other))
    emitted = [e for e in emitted if e.key == "2:v1"]
    final = [e for e in emitted if e.output == "sessions" and b'"is_final":true' in e.payload]
    assert [e.event_time for e in final] == [again.event_time_ms + 30 * MINUTE]
    visits = [e.event_time for e in emitted if e.output == "counts" and b'"visit"' in e.payload]
    assert visits == [again.event_time_ms + 30 * MINUTE]
