"""The ridesharing app's demo: agents over Kafka, offers shown live, and what must come out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from apps.ridesharing.audit import audit
from apps.ridesharing.cli import read_table
from apps.ridesharing.records import Trip
from apps.ridesharing.settings import RidesharingSettings
from millrace.console.live_panels import AlertLine
from millrace.console.report import Check
from millrace.demo import DemoRun, DemoSpec
from millrace.time import ms

if TYPE_CHECKING:
    import pandas as pd

#: Topics whose names a run on a shared broker ends in its own way.
_TOPICS = (
    "locations", "status", "requests", "answers", "cancellations", "progress", "commands", "handovers",
    "control", "offers", "assignments", "releases", "trips", "violations", "dead_letters",
)  # fmt: skip
#: Seconds of event time in a second.
_SPEED = 8
#: Event time at the end of a run that is not counted on, ms.
_UNSETTLED_MS = 60_000
_decode_trip = msgspec.json.Decoder(Trip).decode


def settings(run_id: str) -> list[str]:
    """Return settings for the run: topics of its own on a broker that others use."""
    names = RidesharingSettings().topics
    own = [f"topics.{t}={getattr(names, t)}.demo-{run_id}" for t in _TOPICS] if run_id else []
    # Batches take a second, in which half a minute of event time passes: offers must live longer.
    slower = ["stream.out_of_orderness=10s", "dispatch.window=10s", "dispatch.offer_timeout=4m"]
    return [*own, *slower]


def generate(run: DemoRun) -> Sequence[str]:
    """Return the generator's arguments: a Friday evening at eight times its pace, dispatched by the app."""
    names = run.settings.topics
    suffix = names.offers.removeprefix(RidesharingSettings().topics.offers)
    arguments: dict[str, object] = {
        # A world of half the usual size: each of its drivers is a key, and answers.
        "--rate": max(1, run.rate // 2),
        "--speed": _SPEED,
        "--duration": f"{run.duration_s:g}s",
        "--seed": run.seed,
        "--start": "2026-01-02T16:30Z",
        "--location-interval-ms": 10_000,
        "--duplicates": 0.02,
        "--malformed": 0.001,
        "--late": 0.002,
        "--lateness": "30s",
        "--bootstrap": run.bootstrap,
        "--partitions": names.partitions,
        "--ledger": run.ledger,
    }
    pairs = [str(part) for pair in arguments.items() for part in pair]
    streams = ("locations", "status", "requests", "answers", "cancellations", "progress")
    topics = [part for s in streams for part in ("--topic", f"{s}={getattr(names, s)}")]
    loop = ["--loop", *(["--loop-suffix", suffix] if suffix else [])]
    return ["ridesharing", "--quiet", *loop, *pairs, *topics]


def trip_line(value: bytes) -> AlertLine:
    """Return what is shown of a trip's step."""
    from datetime import UTC, datetime

    trip = _decode_trip(value)
    at = datetime.fromtimestamp(trip.at_ms / 1_000, UTC)
    wait = trip.wait_ms / 60_000
    return AlertLine(f"{at:%H:%M:%S}", trip.request_id, f"{trip.state}: {trip.cause}", wait, trip.driver_id)


def checks(run: DemoRun, ledger: Any, _: set[str]) -> list[Check]:
    """Compare the tables with what the agents did.

    Args:
        run: The run.
        ledger: What the generator did.
    """
    names = ("assignments", "trips", "offers", "windows")
    tables = {name: read_table(run.folder, name) for name in names}
    found = audit(tables, patience_ms=ms(run.settings.dispatch.patience))
    alarms = len(read_table(run.folder, "violations"))
    letters = read_table(run.folder, "dead_letters")
    reasons = Counter(letters["reason"].tolist() if len(letters) else [])
    ended = {t.entity: t.last_event_time_ms for t in ledger.truths if t.kind == "served"}
    # What happened in the last minute may still wait for the watermark when the app is stopped.
    last_ms = (ledger.summary.last_event_time_ms or 0) - _UNSETTLED_MS
    served = {name for name, at in ended.items() if at <= last_ms}
    trips = _last(tables["trips"])
    completed = set(trips[trips["state"] == "completed"]["request_id"]) if len(trips) else set()
    offers = tables["assignments"]
    accepted = int((offers["accepted_ms"] > 0).sum()) if len(offers) else 0
    wrong = found.count + alarms
    return [
        Check("violations of the invariants", "0", f"{wrong:,}", wrong == 0, "; ".join(found.examples[:2])),
        Check(
            "trips that the drivers finished are completed, and no others",
            f"{len(served):,} to {len(ended):,}",
            f"{len(completed):,}",
            served <= completed <= ended.keys(),
        ),
        Check("offers that drivers accepted", "more than 0", f"{accepted:,}", accepted > 0),
        Check("offers made", "more than 0", f"{len(tables['offers']):,}", len(tables["offers"]) > 0),
        Check(
            "repeats in dead letters", "more than 0", f"{reasons['duplicate']:,}", reasons["duplicate"] > 0
        ),
    ]


def _last(trips: pd.DataFrame) -> pd.DataFrame:
    return trips.sort_values("revision").groupby("request_id").tail(1) if len(trips) else trips


def _read_ledger(path: Path) -> Any:
    from millrace.testing.world_ledger import read_world_ledger

    return read_world_ledger(path)


spec = DemoSpec(
    answers=True,
    simulated=True,
    settings=settings,
    generate=generate,
    alert_topic=lambda s: str(s.topics.trips),
    alert_line=trip_line,
    checks=checks,
    read_ledger=_read_ledger,
    sent=lambda ledger: int(ledger.summary.sent),
)
