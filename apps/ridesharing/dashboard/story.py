"""A request's story: what happened to it, in order and in words, and where its car was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from millrace.dashboard.data import AppData
from millrace.dashboard.views import AreaMap, Cell, Column, Mark, MarkKind, Table, Titled, Tone
from millrace.places import distance_m
from millrace_apps.ridesharing.dashboard.city import CAR_KINDS, car_number, car_said, rounded
from millrace_apps.ridesharing.dashboard.places import Box, Car

#: Rows that are read of each table: a request has fewer.
_MOST: Final = 1_000
_SAID: Final = {
    "booked": "is booked ahead",
    "processing": "a car is searched",
    "offered": "is offered to a driver",
    "accepted": "the driver is on the way",
    "arrived": "the car is at the pick-up",
    "in_progress": "the rider is aboard",
    "completed": "the trip is over",
    "rider_cancelled": "the rider cancels",
    "operator_cancelled": "an operator cancels",
    "no_drivers_available": "given up: no car was found",
    "no_show": "the rider did not come",
    "lost": "lost: nothing was heard of the trip",
    "refused": "refused: the rider has another request",
}
_BAD: Final = ("lost", "no_drivers_available")
#: What has the time of a step stands behind it.
_AFTER_STEPS: Final = 1_000_000
#: Time, the order among those of one time, what happened, the driver, how, and how that is meant.
Line = tuple[int, int, str, str, str, Tone]


def story(data: AppData, request_id: str) -> list[Titled]:
    """Return what happened to a request, the first first, and the way of its car; empty: there is none.

    Args:
        data: The app's data.
        request_id: The request.
    """
    journey = next(iter(_rows(data, "journeys", request_id)), None)
    lines = sorted(tell(row) for name, tell in _TELLS.items() for row in _rows(data, name, request_id))
    found: list[Titled] = []
    if lines:
        began = lines[0][0]
        rows: list[list[Cell]] = [
            [at, at - began, what, driver or None, detail]
            for at, _, what, driver, detail, _ in lines
        ]  # fmt: skip
        columns = (Column("time", "time"), Column("after", "duration"), Column("what"),
                   Column("driver", "key"), Column("how"))  # fmt: skip
        tones = [line[-1] for line in lines]
        found.append(Titled("Story", Table(columns=columns, rows=rows, tones=tones)))
    way = way_map(_rows(data, "places", request_id), journey)
    return found if way is None else [*found, Titled("Where the car was", way)]


def way_map(places: list[dict[str, Any]], journey: dict[str, Any] | None) -> AreaMap | None:
    """Return where a request's car was, its pick-up and its drop-off on a map; ``None``: nothing is known.

    Args:
        places: Rows of the table ``places`` of the request.
        journey: Its row of ``journeys``, if there is one.
    """
    kinds = (*CAR_KINDS, MarkKind("pick-up", "cross", "bad"), MarkKind("drop-off", "cross", "ink"))
    cars = [Car(*(row[name] for name in Car._fields)) for row in sorted(places, key=lambda r: r["at_ms"])]
    marks = [Mark(f"{c.driver_id} {c.at_ms}", c.lon, c.lat, car_number(c.state), car_said(c)) for c in cars]
    if journey is not None:
        for n, end in ((-2, "pickup"), (-1, "dropoff")):
            place = journey[f"{end}_lon"], journey[f"{end}_lat"]
            marks.append(Mark(end, *place, len(kinds) + n, kinds[n].name))
    if not marks:
        return None
    lons, lats = [m.lon for m in marks], [m.lat for m in marks]
    box = rounded(Box(min(lons), min(lats), max(lons), max(lats)))
    used = sorted({m.kind for m in marks})
    marks = [Mark(m.id, m.lon, m.lat, used.index(m.kind), m.label, m.key) for m in marks]
    at = cars[-1].at_ms if cars else journey["at_ms"] if journey else 0
    return AreaMap(layers=(), areas=(), kinds=tuple(kinds[k] for k in used), marks=marks, box=box, at_ms=at)


def _journey(row: dict[str, Any]) -> Line:
    ends = row["pickup_lat"], row["pickup_lon"], row["dropoff_lat"], row["dropoff_lon"]
    ahead = (row["pickup_at_ms"] - row["at_ms"]) // 60_000
    when = f", in {ahead} min" if ahead > 0 else ""
    what = f"a rider wants to go {distance_m(*ends) / 1_000:.1f} km{when}"
    return row["at_ms"], 0, what, "", f"{row['vehicle_class']}, zone {row['zone']}", "plain"


def _pickup(row: dict[str, Any]) -> Line:
    what = f"the rider is sent to {row['point']} of {row['venue']}, {row['walk_m']:,.0f} m on foot"
    asked = row.get("asked")
    why = f"asked for {asked}: {row.get('why') or 'so it is'}" if asked else "the nearest open point"
    return row["at_ms"], 1, what, "", why, "plain"


def _step(row: dict[str, Any]) -> Line:
    state = row["state"]
    wait = f", {row['wait_ms'] // 1_000} s after they wanted to leave" if state == "in_progress" else ""
    tone: Tone = "bad" if state in _BAD else "good" if state == "completed" else "plain"
    what = f"{_SAID.get(state, state)}{wait}"
    return row["at_ms"], 10 + row["revision"], what, row["driver_id"], row["cause"], tone


def _attempt(row: dict[str, Any]) -> Line:
    what = f"attempt {row['attempt']} by {row['policy']}: {row['distance_m']:,.0f} m to the pick-up"
    about = (
        f"{row['state'].replace('_', ' ')}; had been free for {row['idle_ms'] / 60_000:.1f} min{_cost(row)}"
    )
    return row["offered_ms"], _AFTER_STEPS, what, row["driver_id"], about, "plain"


def _cost(row: dict[str, Any]) -> str:
    """Return what the pair cost in its window, and of what that was made, in seconds."""
    if row.get("cost_ms") is None:
        return ""
    parts = [f"{said} {row[name] / 1_000:.0f}" for name, said in _PARTS.items() if row.get(name)]
    return f"; cost {row['cost_ms'] / 1_000:.0f} s: {', '.join(parts)}"


def _mismatch(row: dict[str, Any]) -> Line:
    what = f"says {row['said']} while {row['state']}: {row['reason'].replace('_', ' ')}"
    return row["at_ms"], 2, what, row["driver_id"], row["action"].replace("_", " "), "warn"


def _operation(row: dict[str, Any]) -> Line:
    what = f"{row['operator']}: {row['action'].replace('_', ' ')}, {row['outcome']}"
    why = "; ".join(filter(None, (row["reason"], row["detail"])))
    return row["at_ms"], 3, what, row["driver_id"], why, "warn"


def _ignored(row: dict[str, Any]) -> Line:
    return row["at_ms"], 4, f"one of {row['stream']} changes nothing", row["driver_id"], row["why"], "plain"


#: Of what the cost of an attempt is made.
_PARTS: Final = {
    "drive_ms": "drive",
    "place_ms": "car's place",
    "drop_ms": "drop-off",
    "class_ms": "class",
    "doubt_ms": "may say no",
    "turn_ms": "turn",
}
_TELLS: Final[dict[str, Callable[[dict[str, Any]], Line]]] = {
    "journeys": _journey,
    "pickups": _pickup,
    "trips": _step,
    "assignments": _attempt,
    "mismatches": _mismatch,
    "operations": _operation,
    "ignored": _ignored,
}


def _rows(data: AppData, table: str, request_id: str) -> list[dict[str, Any]]:
    reader = data.table(table)
    if reader is None:
        return []
    found: list[dict[str, Any]] = reader.recent("request_id", request_id, limit=_MOST).to_pylist()
    return found
