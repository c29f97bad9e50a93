"""The app against the generator's drivers and riders, in memory: agents that refuse, race, vanish and lie."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pandas as pd
import pytest

from millrace_apps.generators.engine.loop import Mailbag
from millrace_apps.generators.ridesharing import RidesProfile, World
from millrace_apps.generators.ridesharing.loop import APP_TOPICS
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import Event, key_of, stream_of
from millrace_apps.ridesharing.operations.audit import audit
from millrace_apps.ridesharing.processes.matching import Rules
from tests.unit.apps.ridesharing.cases import Whole, as_read

#: A Friday evening.
START = 1_767_369_600_000
STEP_MS = 2_000
CONFIG = DispatchConfig(window_ms=2_000, rules=Rules(radius_m=5_000))


class Loop:
    """The world and the app, talking in steps."""

    def __init__(self, config: DispatchConfig, **profile: Any) -> None:
        given: dict[str, Any] = {"seed": 5, "drivers": 160, "rings": 2, "location_interval_ms": 10_000}
        self.world = World(RidesProfile(start_ms=START, **(given | profile)))
        self.app = Whole(config)
        self.truths: Counter[str] = Counter()
        self._again: list[Event] = []
        self._mail = Mailbag(APP_TOPICS)

    def run(self, steps: int, restart_every: int = 0) -> None:
        for number in range(steps):
            now = self.world.now_ms + STEP_MS
            happened = self.world.advance(now)
            self.truths.update(t.kind for e in happened for t in e.truths)
            events = [*self._again, *(as_read(e.stream, e.event) for e in happened)]
            self._again = []
            found = self.app.chain.run(
                [(key_of(e), e.event_time_ms, e, stream_of(e)) for e in events], now - 1
            )
            self.app.emissions += found
            for e in found:
                if f"ridesharing.{e.output}" in APP_TOPICS:
                    message = self._mail.open(f"ridesharing.{e.output}", e.payload)
                    assert message is not None, e.payload
                    self.world.receive(message)
                elif e.output == "handovers":
                    self._again.append(as_read("handovers", msgspec.Raw(e.payload)))
            if restart_every and number % restart_every == 0:
                self.app.chain.restart()


def check(loop: Loop) -> None:
    """Nothing is dispatched twice, by the world's own count, the auditor's, and the audit of the tables."""
    app = loop.app
    assert loop.world.conflicts == 0
    assert app.of("main") == []
    assert [d["reason"] for d in app.of("Gate.dead_letters")] == []
    assert app.of("dead_letters") == []
    names = {"assignments": "attempts", "trips": "trips", "offers": "offers", "windows": "windows"}
    found = audit({t: pd.DataFrame(app.of(o)) for t, o in names.items()}, patience_ms=CONFIG.patience_ms)
    assert found.count == 0, found.examples


TROUBLE = {
    "late_accepts": 0.15, "cancel_races": 0.15, "no_approach": 0.05, "breakdowns": 0.1, "no_shows": 0.1,
    "offline_in_trip": 0.1, "lost_heartbeats": 0.1, "vanishing": 0.2, "prebooked": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("regions", [False, True])
def test_agents_who_make_trouble_are_never_dispatched_twice(regions: bool) -> None:
    from millrace_apps.generators.ridesharing.city import CENTRE
    from millrace_apps.ridesharing.evaluation.fleet import Request
    from millrace_apps.ridesharing.evaluation.recorded import cut

    config = CONFIG
    if regions:
        lat, lon = CENTRE
        middle = [Request("", 0, lat + n * 1e-3, lon + n * 1e-3, 0, 0, 0) for n in range(-9, 10)]
        config = msgspec.structs.replace(config, regions=cut(middle, 4))
    loop = Loop(config, **TROUBLE)
    loop.run(650, restart_every=160)
    check(loop)
    states = Counter(t["state"] for t in loop.app.of("trips"))
    attempts = Counter(a["state"] for a in loop.app.of("attempts"))
    assert loop.world.fates["served"] == states["completed"] > 5
    assert min(attempts["rejected"], attempts["expired"], states["rider_cancelled"], states["booked"]) > 0
    told = [i for i in loop.app.of("ignored") if i["stream"] == "answers"]
    assert len(told) >= loop.truths["late_accept"] > 0
    assert all(i["compensated"] for i in told if i["why"] == "the offer is over")
    if regions:
        assert {d["change"] for d in loop.app.of("drivers")} >= {"entered", "left"}
