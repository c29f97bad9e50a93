"""Checks of the arrival times in the demo: ways, and what riders were told of them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.console.report import Check, equal, same
from millrace_apps.ridesharing.processes.arrivals import MOST_TOLD

if TYPE_CHECKING:
    import pandas as pd

#: The tables of arrival times.
ARRIVALS: Final = ("arrivals", "drives")
#: Share of ways that must be within an interval made for nine of ten, in an evening in which all is new.
_HELD: Final = 0.75
#: Figures of tables are in thousandths.
_NEAR: Final = 0.002


class Told(NamedTuple):
    """A way as the steps of its request tell it: request, way, driver, when it began and ended (UTC ms)."""

    request_id: str
    way: str
    driver_id: str
    began_ms: int
    ended_ms: int


def check_arrivals(arrivals: pd.DataFrame, drives: pd.DataFrame, trips: pd.DataFrame) -> list[Check]:
    """Compare ways and what riders were told with the steps of trips.

    Args:
        arrivals: The table of what riders were told.
        drives: The table of ways that ended.
        trips: The table of steps.
    """
    said, ways = _rows(arrivals), _rows(drives)
    began, ended = ways_of(_rows(trips))
    found = {(r["request_id"], r["way"], r["driver_id"], r["began_ms"], r["ended_ms"]) for r in ways}
    told = {(r["request_id"], r["way"], r["driver_id"], r["at_ms"]) for r in said}
    held = sum(r["low_s"] - _NEAR <= r["took_s"] <= r["high_s"] + _NEAR for r in ways)
    return [
        same("ways that ended = those that the trips tell", set(map(tuple, ended)), found),
        equal("no way twice", 0, len(ways) - len(found), of=len(ways)),
        equal("ways that began and no rider was told of", 0, len(began - told), of=len(began)),
        equal("ways whose riders were told otherwise", 0, _otherwise(said, ways), of=len(ways)),
        Check(
            "ways within their interval",
            f"at least {_HELD:.0%} of {len(ways):,}",
            f"{held:,}",
            held >= _HELD * len(ways),
            compared=len(ways),
        ),
    ]


def ways_of(steps: list[dict[str, Any]]) -> tuple[set[tuple[str, str, str, int]], list[Told]]:
    """Return which ways began (request, way, driver, UTC ms), and which of them ended as their drivers said.

    Args:
        steps: Rows of the table of trips.
    """
    began: set[tuple[str, str, str, int]] = set()
    ended: list[Told] = []
    now: dict[str, tuple[str, str, int]] = {}
    for step in sorted(steps, key=lambda row: (row["request_id"], row["revision"])):
        name, state, at = step["request_id"], step["state"], int(step["at_ms"])
        way, driver, since = now.pop(name, ("", "", 0))
        is_there = {"arrived": "pickup", "in_progress": "pickup", "completed": "trip"}.get(state)
        by_driver = step["cause"] in ("driver arrived", "rider aboard", "trip finished")
        if way and way == is_there and driver == step["driver_id"] and by_driver and at > since:
            ended.append(Told(name, way, driver, since, at))
        if state in ("accepted", "in_progress"):
            now[name] = ("pickup" if state == "accepted" else "trip", step["driver_id"], at)
            began.add((name, now[name][0], step["driver_id"], at))
    return began, ended


def _otherwise(said: list[dict[str, Any]], ways: list[dict[str, Any]]) -> int:
    """Return how many ways say of what their riders were told other than what those were told."""
    of: dict[tuple[str, str, str], list[tuple[int, int]]] = defaultdict(list)
    for row in said:
        of[row["request_id"], row["way"], row["driver_id"]].append((row["at_ms"], row["arrives_ms"]))
    wrong = 0
    for way in ways:
        about = of[way["request_id"], way["way"], way["driver_id"]]
        off = [
            abs(arrives - way["ended_ms"]) / 1_000
            for at, arrives in sorted(about)
            if way["began_ms"] <= at <= way["ended_ms"]
        ]
        off[MOST_TOLD - 1 : -1] = []
        first = [arrives for at, arrives in sorted(about) if at == way["began_ms"]][:1]
        begins = first and abs(first[0] - way["began_ms"] - way["expected_s"] * 1_000) <= 1
        right = off and abs(sum(off) / len(off) - way["told_wrong_s"]) <= _NEAR and len(off) == way["told"]
        wrong += not (right and begins)
    return wrong


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return frame.to_dict("records") if len(frame) else []  # type: ignore[return-value]
