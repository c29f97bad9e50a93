"""A small world for the tests of the generators' engine: meters that report, and doors that open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import msgspec

from millrace_apps.generators.engine import Profile, substream
from millrace_apps.generators.engine.randomness import digest
from millrace_apps.generators.engine.simulated import Domain, Simulated, StreamSpec, Truth


class Report(msgspec.Struct):
    report_id: str
    meter_id: str
    value: float
    unit: str
    at_ms: Annotated[int, msgspec.Meta(ge=0)]


class Opening(msgspec.Struct):
    opening_id: str
    door_id: str
    at_ms: int
    note: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MeterProfile(Profile):
    """What the world is made from.

    Attributes:
        meters: Number of meters,
            with a door each.
        leaks: Whether some leak.
    """

    event_rate: float = 100.0
    meters: int = 20
    leaks: bool = True


def simulate(profile: MeterProfile) -> Iterator[Simulated]:
    run = digest("meters", profile.seed, profile.start_ms)[:10]
    meter, value = substream(profile.seed, "meters", "meter").random, substream(profile.seed, "m", "v").random
    number = 0
    while True:
        at_ms, which = profile.slot_ms(number), int(meter() * profile.meters)
        name = f"{run}-{number:08d}"
        if number % 10 == 9:
            opening = Opening(name, f"door-{which:03d}", at_ms)
            yield Simulated(stream="openings", key=f"door-{which:03d}", event=opening, event_time_ms=at_ms)
        else:
            amount = round(value() * 100, 3)
            truths: tuple[Truth, ...] = ()
            if profile.leaks and which == 3:
                leak = number // 50
                truths = (
                    Truth(truth_id=f"{run}-leak-{leak}", kind="leak", entity="meter-003", expected="alert"),
                )
            report = Report(name, f"meter-{which:03d}", amount, "l", at_ms)
            key = f"meter-{which:03d}"
            yield Simulated(stream="reports", key=key, event=report, event_time_ms=at_ms, truths=truths)
        number += 1


METERS = Domain(
    name="meters",
    description="meters that report, and doors that open",
    streams={
        "reports": StreamSpec(
            topic="meters.reports", event_type=Report, id_field="report_id", time_field="at_ms"
        ),
        "openings": StreamSpec(
            topic="meters.openings", event_type=Opening, id_field="opening_id", time_field="at_ms"
        ),
    },
    profile=MeterProfile,
    simulate=simulate,
    scenarios={"leak": "a meter that loses water"},
)
