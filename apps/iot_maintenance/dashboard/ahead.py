"""Forecasts of one machine on the page: points against limits, health, remaining life, risks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from millrace.dashboard.data import AppData
from millrace.dashboard.values import as_dict
from millrace.dashboard.views import (
    Band,
    Bar,
    Bars,
    Cell,
    Column,
    Offer,
    Series,
    Table,
    TimeSeries,
    Titled,
    Tone,
)
from millrace_apps.iot_maintenance.dashboard.data import Row, alarms
from millrace_apps.iot_maintenance.dashboard.fleet import UNUSUAL, crossings, merged
from millrace_apps.iot_maintenance.dashboard.limits import limits_of
from millrace_apps.iot_maintenance.dashboard.work import order_offers
from millrace_apps.iot_maintenance.processes.orders import open_orders_of, orders_over
from millrace_apps.iot_maintenance.state.assets import point_of, quantity_of, subject_of

_HOUR_MS: Final = 3_600_000
_ROWS: Final = 2_000
_MOST_QUANTITIES: Final = 8
_MOST_LIMITS: Final = 4
_SENSORS: Final = 10
_ORDERS: Final = 20


def charts(data: AppData, machine: str, rows: Sequence[Row]) -> list[Titled]:
    """Return a chart per measuring point: readings, what would be nothing new, limits, what is to come.

    Args:
        data: The app's data.
        machine: The machine.
        rows: Its readings in order of time; what is not to be believed is a gap.
    """
    by_point: dict[str, list[Row]] = {}
    for row in rows:
        by_point.setdefault(subject_of(row["quantity"], row.get("point") or ""), []).append(row)
    bands = _bands(data, machine)
    ahead = {row["subject"]: row for row in crossings(data) if row["machine_id"] == machine}
    told = [a for a in alarms(data) if a["entity_id"] == machine]
    found = []
    for subject, of in sorted(by_point.items())[:_MOST_QUANTITIES]:
        lines = [
            Series(
                "reading", [(r["event_time_ms"], r["value"] if r["quality"] == "good" else None) for r in of]
            ),
            Series("mean of the last", [(r["event_time_ms"], r["average"]) for r in of]),
        ]
        filled = [Band("nothing new", bands[subject])] if subject in bands else []
        begin, end = of[0]["event_time_ms"], of[-1]["event_time_ms"]
        crossing = ahead.get(subject)
        if crossing is not None:
            line, cone = _ahead(crossing)
            lines.append(line)
            filled.append(cone)
            end = max(end, int(cone.points[-1][0]))
        lines += [
            Series("limit", [(begin, limit), (end, limit)], "limit")
            for limit in limits_of(data, subject, of[-1], told)[:_MOST_LIMITS]
        ]
        title = quantity_of(subject).replace("_", " ").capitalize()
        if point := point_of(subject):
            title += f", {point}"
        view = TimeSeries(
            series=tuple(lines), unit=of[-1]["unit"], from_zero=False, clock="event time", bands=tuple(filled)
        )
        found.append(Titled(title, view))
    return found


def _bands(data: AppData, machine: str) -> dict[str, list[tuple[float, float | None, float | None]]]:
    """Return point → between what a value would have been nothing new."""
    found: dict[str, list[tuple[float, float | None, float | None]]] = {}
    for row in _recent(data, "scores", machine):
        found.setdefault(row["subject"], []).append((row["event_time_ms"], row["low"], row["high"]))
    return found


def _ahead(row: Row) -> tuple[Series, Band]:
    """Return what is expected of a point from now until it crosses its limit, and how sure that is."""
    at, level, limit = row["event_time_ms"], row["level"], row["limit"]

    def after(in_h: float) -> float:
        return float(at + round(in_h * _HOUR_MS))

    soonest, latest = row["earliest_h"], row["latest_h"]
    line = Series("expected", [(at, level), (after(row["in_h"]), limit)], "dashed")
    # At the soonest it is at the limit, or as far as it would be if it crossed at the latest.
    last = 1.5 * row["in_h"] if latest is None else latest
    slow = level if latest is None else level + (limit - level) * (soonest / latest if latest else 1.0)
    end = level if latest is None else limit
    cone = [(at, level, level), _between(after(soonest), slow, limit), _between(after(last), end, limit)]
    return line, Band("crosses between", cone)


def _between(at: float, one: float, other: float) -> tuple[float, float, float]:
    return at, min(one, other), max(one, other)


def health(data: AppData, machine: str) -> list[Titled]:
    """Return what a machine's sensors say together, and which of them has to do with it."""
    rows = _recent(data, "machine_health", machine)
    if not rows:
        return []
    last = rows[-1]
    shares = tuple(
        Series(name, [(r["event_time_ms"], r[key] / r[f"{key}_limit"]) for r in rows])
        for key, name in (("t2", "T²"), ("q", "Q"))
    )
    ends = (rows[0]["event_time_ms"], last["event_time_ms"])
    limit = Series("limit", [(at, 1.0) for at in ends], "limit")
    view = TimeSeries(series=(*shares, limit), unit="of its limit", clock="event time")
    most = sorted(as_dict(last["contributions"]).items(), key=lambda pair: (-pair[1], pair[0]))
    tone: Tone = "warn" if last["score"] >= UNUSUAL else "plain"
    bars = tuple(Bar(sensor, share, tone=tone) for sensor, share in most[:_SENSORS])
    return [
        Titled("Sensors together", view),
        Titled("What has to do with it", Bars(bars=bars, kind="share")),
    ]


def life(data: AppData, machine: str) -> list[Titled]:
    """Return how long a machine runs yet, and what may fail, over time."""
    found = []
    if rows := _recent(data, "remaining_life", machine):
        line = Series("expected", [(r["event_time_ms"], r["remaining_h"]) for r in rows])
        band = Band("interval", [(r["event_time_ms"], r["low_h"], r["high_h"]) for r in rows])
        view = TimeSeries(series=(line,), unit="h", clock="event time", bands=(band,))
        found.append(Titled("Remaining life", view))
    by_component: dict[str, list[tuple[float, float | None]]] = {}
    for row in _recent(data, "risks", machine):
        by_component.setdefault(row["component"], []).append((row["event_time_ms"], row["probability"]))
    if by_component:
        lines = tuple(Series(name, points) for name, points in sorted(by_component.items())[:_SENSORS])
        found.append(Titled("Risk", TimeSeries(series=lines, kind="share", clock="event time")))
    return found


def work(data: AppData, machine: str) -> list[Titled]:
    """Return a machine's work orders, and when it should be maintained, with what can be done."""
    rows = [row for row in merged(data, "work_orders") if row["machine_id"] == machine]
    plans = [row for row in merged(data, "maintenance_plan") if row["machine_id"] == machine]
    columns = (Column("what"), Column("component"), Column("begin", "time"), Column("end", "time"),
               Column("by"), Column("why"))  # fmt: skip
    cells: list[list[Cell]] = [
        ["maintain by", p["component"] or "any", p["latest_ms"], None, "", p["reason"]] for p in plans
    ]
    acts: list[tuple[Offer, ...]] = [
        (Offer("plan", {"machine": machine, "component": p["component"]}),) for p in plans
    ]
    for r in [*open_orders_of(rows), *orders_over(rows)[:_ORDERS]]:
        why = r["comment"] or r["reason"]
        cells.append([r["state"], r["component"], r["start_ms"], r["end_ms"], r["operator"], why])
        acts.append(order_offers(r))
    if not cells:
        return []
    return [Titled("Maintenance", Table(columns=columns, rows=cells, actions=acts))]


def _recent(data: AppData, name: str, machine: str) -> list[dict[str, Any]]:
    """Return a machine's newest rows of a table in order of time."""
    table = data.table(name)
    if table is None:
        return []
    rows: list[dict[str, Any]] = table.recent("machine_id", machine, limit=_ROWS).to_pylist()
    last: Mapping[tuple[int, str], dict[str, Any]] = {
        (r["event_time_ms"], r.get("component") or r.get("subject") or ""): r for r in rows
    }
    return [last[key] for key in sorted(last)]
