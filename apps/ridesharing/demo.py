"""The ridesharing app's demo: agents over Kafka, offers shown live, and what must come out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from millrace.console.live_panels import AlertLine
from millrace.console.report import Check, equal, same
from millrace.demo import DemoRun, DemoSpec
from millrace.testing.world_ledger import ReadLedger, read_world_ledger
from millrace.time import ms, ms_of
from millrace_apps.ridesharing.contracts.records import Trip
from millrace_apps.ridesharing.evaluation.demo_arrivals import ARRIVALS, check_arrivals
from millrace_apps.ridesharing.evaluation.demo_prices import PRICES, Prices, check_prices
from millrace_apps.ridesharing.evaluation.demo_venues import airport, check_venues
from millrace_apps.ridesharing.operations.audit import audit
from millrace_apps.ridesharing.operations.cli import read_table
from millrace_apps.ridesharing.operations.commanding import send_control
from millrace_apps.ridesharing.settings import RidesharingSettings
from millrace_apps.ridesharing.topic_audit.evidence import OUTPUTS
from millrace_apps.ridesharing.topic_audit.reading import read_evidence
from millrace_apps.ridesharing.topic_audit.report import Audited, audit_topics

if TYPE_CHECKING:
    import pandas as pd

#: Topics whose names a run on a shared broker ends in its own way.
_TOPICS = (
    "locations", "status", "requests", "answers", "cancellations", "progress", "commands", "handovers",
    "control", "offers", "assignments", "releases", "trips", "violations", "dead_letters",
    "quote_requests", "quotes", "fares", "surge", "arrivals",
    "pickups", "lines", "tickets", "hints",
)  # fmt: skip
#: Share of the riders who are at the airport.
_AT_AIRPORT: Final = 0.2
#: When the evening begins, and how long before it the app is told of the airport, ms.
_BEGINS: Final = datetime(2026, 1, 2, 16, 30, tzinfo=UTC)
_BEFORE_MS: Final = 600_000
#: Seconds of event time in a second.
_SPEED = 8
#: Event time at the end of a run that is not counted on, ms.
_UNSETTLED_MS = 60_000
#: What is sent within so long may be read in another order, ms.
_SKEW_MS: Final = 200
#: How the ledger says that a rider has given up, and the states of a request that has ended without a ride.
_GAVE_UP: Final = ("cancelled", "no_driver")
_NOT_DRIVEN: Final = ("rider_cancelled", "no_drivers_available")
#: Share of the offers that are over which drivers must have accepted.
_TAKEN: Final = 0.4
_decode_trip = msgspec.json.Decoder(Trip).decode


def settings(run_id: str) -> list[str]:
    """Return settings for the run: topics of its own on a broker that others use."""
    names = RidesharingSettings().topics
    own = [f"topics.{t}={getattr(names, t)}.demo-{run_id}" for t in _TOPICS] if run_id else []
    # Batches take a second, in which half a minute of event time passes: offers must live longer.
    slower = ["stream.out_of_orderness=10s", "dispatch.window=10s", "dispatch.offer_timeout=4m"]
    # In a short evening few ask in each cell: prices follow sooner.
    return [*own, *slower, "surge.on=true", "surge.cap=1.8", "surge.balance=0.8", "arrivals.on=true"]


def prepare(run: DemoRun) -> None:
    """Tell the app of the airport, as an operator does before the evening begins."""
    send_control(run.settings, airport())


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
        "--start": f"{_BEGINS:%Y-%m-%dT%H:%MZ}",
        "--location-interval-ms": 10_000,
        "--quoted": 0.8,
        "--airport": _AT_AIRPORT,
        "--named-points": 0.4,
        "--hotel-rides": 0.5,
        "--duplicates": 0.02,
        "--malformed": 0.001,
        "--late": 0.002,
        "--lateness": "30s",
        "--bootstrap": run.bootstrap,
        "--partitions": names.partitions,
        "--ledger": run.ledger,
    }
    pairs = [str(part) for pair in arguments.items() for part in pair]
    streams = (
        "locations", "status", "requests", "answers", "cancellations", "progress", "quote_requests",
    )  # fmt: skip
    topics = [part for s in streams for part in ("--topic", f"{s}={getattr(names, s)}")]
    loop = ["--loop", *(["--loop-suffix", suffix] if suffix else [])]
    return ["ridesharing", "--quiet", *loop, *pairs, *topics]


def trip_line(value: bytes) -> AlertLine:
    """Return what is shown of a trip's step."""
    trip = _decode_trip(value)
    at = datetime.fromtimestamp(trip.at_ms / 1_000, UTC)
    wait = trip.wait_ms / 60_000
    return AlertLine(f"{at:%H:%M:%S}", trip.request_id, f"{trip.state}: {trip.cause}", wait, trip.driver_id)


def checks(run: DemoRun, ledger: ReadLedger, trip_ids: set[str]) -> list[Check]:
    """Compare the tables with what the agents did.

    Args:
        run: The run.
        ledger: What the generator did.
        trip_ids: Identities of the steps of trips seen on the topic.
    """
    names = ("assignments", "trips", "offers", "windows")
    tables = {name: read_table(run.folder, name) for name in names}
    audited = audit(tables, patience_ms=ms(run.settings.dispatch.patience))
    alarms = len(read_table(run.folder, "violations"))
    wrong = audited.count + alarms
    rows = sum(len(frame) for frame in tables.values())
    steps = tables["trips"]
    told = set(steps["_event_id"]) if len(steps) else set()
    # What happened in the last minute may still wait for the watermark when the app is stopped.
    last_ms = (ledger.summary.last_event_time_ms or 0) - _UNSETTLED_MS
    trips, audited_topics = _last(steps), _audited(run)
    pickups, journeys, tickets = (read_table(run.folder, name) for name in ("pickups", "journeys", "tickets"))
    return [
        equal("violations of the invariants", 0, wrong, "; ".join(audited.examples[:2]), of=rows),
        equal("requests sent = requests in trips", ledger.summary.streams.get("requests", 0), len(trips)),
        *_ends(trips, ledger, last_ms),
        _searches(trips, last_ms - ms(run.settings.dispatch.patience)),
        *_offers(tables["offers"], tables["assignments"]),
        same("steps on the topic = rows in trips", told, trip_ids),
        equal("no step twice", 0, len(steps) - len(told), of=len(steps)),
        *_letters(read_table(run.folder, "dead_letters"), ledger),
        *price_checks(run, ledger, last_ms),
        *check_arrivals(*_arrivals(run), steps),
        *check_venues(
            pickups, journeys, tickets, tables["assignments"], trips, ledger, audited_topics, last_ms
        ),
        _by_topics(audited_topics),
    ]


def _arrivals(run: DemoRun) -> tuple[pd.DataFrame, pd.DataFrame]:
    arrivals, drives = (read_table(run.folder, name) for name in ARRIVALS)
    return arrivals, drives


def price_checks(run: DemoRun, ledger: ReadLedger, last_ms: int) -> list[Check]:
    """Compare quotes and prices with what riders asked, and with those counted anew."""
    tables = Prices(*(read_table(run.folder, name) for name in PRICES))
    return check_prices(tables, ledger, run.settings.surge_config(), last_ms)


def _audited(run: DemoRun) -> Audited:
    before_ms = ms_of(_BEGINS) - _BEFORE_MS
    evidence = read_evidence(run.settings, margin_ms=_SPEED * _SKEW_MS, control_ms=before_ms)
    return audit_topics(evidence, settle_ms=_UNSETTLED_MS)


def _by_topics(audited: Audited) -> Check:
    """Return whether what the app said holds by what came in, with nothing that it has kept."""
    example = "; ".join(f"{row.reason}: {row.request_id} {row.detail}" for row in audited.rows[:2])
    said = sum(audited.counts.get(name, 0) for name in OUTPUTS)
    return equal("violations by the topics alone", 0, audited.count, example, of=said)


def _ends(trips: pd.DataFrame, ledger: ReadLedger, last_ms: int) -> list[Check]:
    """Return whether requests ended as their riders and drivers know."""
    states = dict(zip(trips["request_id"], trips["state"], strict=True)) if len(trips) else {}
    ended = {t.entity: t.last_event_time_ms for t in ledger.truths if t.kind == "served"}
    served = {name for name, at in ended.items() if at <= last_ms}
    completed = {name for name, state in states.items() if state == "completed"}
    left = {t.entity for t in ledger.truths if t.kind in _GAVE_UP and t.last_event_time_ms <= last_ms}
    driven = sum(states.get(name) not in _NOT_DRIVEN for name in left)
    return [
        Check(
            "trips that the drivers finished are completed, and no others",
            f"{len(served):,} to {len(ended):,}",
            f"{len(completed):,}",
            served <= completed <= ended.keys(),
            compared=len(served | completed),
        ),
        equal("requests of riders who gave up that are not over", 0, driven, of=len(left)),
    ]


def _searches(trips: pd.DataFrame, since_ms: int) -> Check:
    """Return whether a driver is searched for no longer than riders have patience."""
    old = trips[trips["requested_ms"] <= since_ms] if len(trips) else trips
    lasts = int(((old["state"] == "processing") & (old["at_ms"] <= since_ms)).sum()) if len(old) else 0
    return equal("searches that have not ended in time", 0, lasts, of=len(old))


def _offers(offers: pd.DataFrame, attempts: pd.DataFrame) -> list[Check]:
    """Return whether each attempt was offered, once, and drivers took what they were offered."""
    tried = attempts[attempts["policy"] != "manual"] if len(attempts) else attempts
    over = int((tried["state"] != "offered").sum()) if len(tried) else 0
    taken = int((tried["accepted_ms"] > 0).sum()) if len(tried) else 0
    made, wanted = _pairs(offers), f"at least {_TAKEN:.0%} of {over:,}"
    return [
        same("offers made = attempts", set(_pairs(tried)), set(made)),
        equal("no offer twice", 0, len(made) - len(set(made)), of=len(made)),
        Check("offers accepted", wanted, f"{taken:,}", taken >= _TAKEN * over, compared=over),
    ]


def _pairs(frame: pd.DataFrame) -> list[tuple[str, int]]:
    return list(zip(frame["request_id"], frame["attempt"], strict=True)) if len(frame) else []


def _letters(letters: pd.DataFrame, ledger: ReadLedger) -> list[Check]:
    """Return whether repeats and what is broken are dead letters, and nothing else."""
    faults = Counter((f.kind, "locations" if f.stream == "locations" else "") for f in ledger.faults)
    rows = list(zip(letters["reason"], letters["error"], strict=True)) if len(letters) else []
    repeats = [error for reason, error in rows if reason == "duplicate"]
    places = sum(error.startswith("a position") for error in repeats)
    broken = sum(reason in ("malformed", "schema", "range") for reason, _ in rows)
    again = faults["duplicate", "locations"]
    malformed = faults["malformed", ""] + faults["malformed", "locations"]
    return [
        equal("repeats in dead letters", faults["duplicate", ""], len(repeats) - places),
        # Of a position behind a newer one nothing is wanted, so nobody asks whether it has come before.
        Check(
            "repeated positions in dead letters",
            f"1 to {again:,}",
            f"{places:,}",
            min(1, again) <= places <= again,
            compared=again,
        ),
        equal("malformed in dead letters", malformed, broken),
        equal("other dead letters", 0, len(rows) - len(repeats) - broken, of=len(rows)),
    ]


def _last(trips: pd.DataFrame) -> pd.DataFrame:
    return trips.sort_values("revision").groupby("request_id").tail(1) if len(trips) else trips


spec = DemoSpec(
    answers=True,
    simulated=True,
    settings=settings,
    generate=generate,
    prepare=prepare,
    alert_topic=lambda s: str(s.topics.trips),
    alert_line=trip_line,
    checks=checks,
    read_ledger=read_world_ledger,
    sent=lambda ledger: int(ledger.summary.sent),
)
