"""The clickstream app for the benchmarks: clicks make sessions, some an offer."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from millrace_apps.benchmarks.app_bench import Answers, AppBench, Key, Record, Rows, Sent
from millrace_apps.clickstream.processes.offer_rules import DEFAULT_RULES, Condition, OfferRule, OfferStep

_GAP_MS: Final = 1_800_000
#: A person's first item in a cart is answered at once; the app's own rules wait for more.
_AT_ONCE: Final = OfferRule(
    name="bench-first-item",
    offer="bench",
    steps=(OfferStep("added", (Condition("kind", is_="add_to_cart"),)),),
    counts=("add_to_cart",),
)
#: What an offer says of the event that completed it: its identity stands in brackets.
_CAUSE: Final = re.compile(r"\(([^()]*)\)$")

#: Visitor, first and last event (ms), number of events.
Session = tuple[str, int, int, int]


def sessions_of(clicks: Iterable[tuple[str, int]]) -> Counter[Session]:
    """Return the sessions of clicks (visitor, ms): a pause of more than half an hour ends one.

    >>> sorted(sessions_of([("v", 0), ("v", 1_800_000), ("v", 3_600_001)]))
    [('v', 0, 1800000, 2), ('v', 3600001, 3600001, 1)]
    """
    times: dict[str, list[int]] = defaultdict(list)
    for visitor, at in clicks:
        times[visitor].append(at)
    found: Counter[Session] = Counter()
    for visitor, of_visitor in times.items():
        of_visitor.sort()
        begin = 0
        for number in range(1, len(of_visitor) + 1):
            over = number == len(of_visitor)
            if over or of_visitor[number] - of_visitor[number - 1] > _GAP_MS:
                found[visitor, of_visitor[begin], of_visitor[number - 1], number - begin] += 1
                begin = number
    return found


def check(rows: Rows, sent: Sent) -> Record:
    """Compare the sessions with those of the clicks, bots left out: what a bot does is cut elsewhere."""
    columns = ["visitor_id", "start_ms", "end_ms", "events", "bot", "deleted"]
    table = [row for row in rows("sessions", columns) if not row["deleted"]]
    late_rows = [r for r in rows("late", ["input", "event"]) if r["input"] == "clicks"]
    late = Counter(json.loads(r["event"])["event_id"] for r in late_rows)
    letters = rows("dead_letters", ["reason"])
    bots = {row["visitor_id"] for row in table if row["bot"]}
    wanted = sessions_of(
        (event["visitor_id"], event["event_time_ms"])
        for event in sent("clicks")
        if event["visitor_id"] not in bots and event["event_id"] not in late
    )
    found = Counter(
        (row["visitor_id"], row["start_ms"], row["end_ms"], row["events"])
        for row in table
        if row["visitor_id"] not in bots
    )
    return {
        "rows_in_table": len(table),
        "events_in_sessions": sum(row["events"] for row in table),
        "bots": len(bots),
        "late": late.total(),
        "dead_letters": len(letters),
        "correct": found == wanted and not letters and bool(wanted),
    }


def rules(folder: Path) -> Sequence[str]:
    """Return settings with the app's own offers and one that a single click brings about."""
    path = folder / "offers.json"
    path.write_bytes(msgspec.json.encode([*DEFAULT_RULES, _AT_ONCE]))
    return [f"offers.rules={path}"]


def _click(event: Record) -> Key:
    return event["event_id"], event["event_time_ms"]


def _offer(offer: Record) -> Key:
    # Of a cart that was left the event is the last before the timer: its time is not the offer's.
    last = list(offer["why"].values())[-1]
    cause = _CAUSE.search(last)
    return (cause[1], offer["at_ms"]) if cause else None


bench: Final = AppBench(
    name="clickstream",
    streams=("clicks", "customers", "consents", "refunds", "erasures", "items"),
    entities="people",
    usual=20_000,
    answers=Answers("offer", "offers", "clicks", asked=_click, answered=_offer),
    check=check,
    # Who is forgotten is in no table, which the comparison could not tell from a loss.
    preload={"erasures": 0},
    catch_up=("stream.out_of_orderness=10m",),
    live={},
    paced=rules,
)
