"""The ridesharing app for the benchmarks: positions of drivers, and requests that are offered to them."""

from __future__ import annotations

from typing import Final

from millrace.time import ms
from millrace_apps.benchmarks.app_bench import Answers, AppBench, Key, Record, Rows, Sent
from millrace_apps.ridesharing.settings import RidesharingSettings

#: A Friday evening.
_START: Final = "2026-01-02T16:30Z"


def check(rows: Rows, sent: Sent) -> Record:
    """Compare who entered with who was heard of, and the trips with the requests: each of them once.

    Answers, cancellations and progress are those of the generator's own dispatcher: what they say of offers
    that the app never made is ignored.
    """
    drivers = {event["driver_id"] for event in sent("locations")}
    drivers |= {event["driver_id"] for event in sent("status") if event["status"] == "online"}
    requests = sorted(event["request_id"] for event in sent("requests"))
    changes = rows("drivers", ["driver_id", "change"])
    entered = {row["driver_id"] for row in changes if row["change"] == "entered"}
    new = sorted(r["request_id"] for r in rows("trips", ["request_id", "before"]) if not r["before"])
    late = rows("late", ["input"])
    letters = rows("dead_letters", ["reason"])
    return {
        "rows_in_table": len(new),
        "drivers": len(drivers),
        "requests": len(requests),
        "late": len(late),
        "dead_letters": len(letters),
        "correct": entered == drivers and new == requests and bool(drivers) and bool(requests),
    }


def _request(event: Record) -> Key:
    # Who books ahead is not to be answered yet.
    return event["request_id"] if event["pickup_at_ms"] <= event["event_time_ms"] else None


def _offer(offer: Record) -> Key:
    return offer["request_id"] if offer["attempt"] == 1 else None


def _window_ms(settings: RidesharingSettings) -> int:
    return ms(settings.dispatch.window)


bench: Final = AppBench(
    name="ridesharing",
    streams=("locations", "status", "requests", "answers", "cancellations", "progress", "quote_requests"),
    entities="drivers",
    usual=16_000,
    answers=Answers(
        name="offer",
        topic="offers",
        stream="requests",
        asked=_request,
        answered=_offer,
        decided=lambda offer: int(offer["event_time_ms"]),
        window_ms=_window_ms,
    ),
    check=check,
    preload={"start": _START},
    catch_up=("stream.out_of_orderness=60s",),
    # The drivers answer the app: the loop is closed over Kafka.
    live={"start": _START, "speed": 1, "loop": True},
    own_clock=True,
)
