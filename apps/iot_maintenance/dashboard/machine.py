"""One machine, or a line or plant: its status, alarms, what is to come, readings and shifts."""

from __future__ import annotations

from typing import Any, Final

from millrace.dashboard.data import AppData
from millrace.dashboard.details import rows_of
from millrace.dashboard.values import as_dict, bounded
from millrace.dashboard.views import Cell, Column, Kind, Number, Numbers, Titled
from millrace_apps.iot_maintenance.dashboard import ahead as dashboard_ahead
from millrace_apps.iot_maintenance.dashboard import work as dashboard_work
from millrace_apps.iot_maintenance.dashboard.data import Row, alarms, state_of

_READINGS: Final = 2_000
_MOST_ALARMS: Final = 50
_SHIFT: Final[dict[str, Kind]] = {
    **dict.fromkeys(("oee", "availability", "performance", "quality"), "share"),
    **dict.fromkeys(("failures", "produced", "rejected"), "count"),
    "down_ms": "duration",
}
_READING: Final = (
    "reading_id", "machine_id", "quantity", "value", "unit", "event_time_ms", "revision", "quality", "status",
    "status_since_ms", "kind", "attributes", "component_age_days", "errors_24h", "average",
)  # fmt: skip


def asset(data: AppData, key: str) -> list[Titled]:
    """Return what is shown of a machine, line or plant; of a sensor, its machine. Empty where there is none.

    Args:
        data: The app's data.
        key: Its name.
    """
    name = key.partition(".")[0]
    rows = _readings(data, name)
    found: list[Titled] = []
    if rows:
        found.append(Titled("Now", _now(rows[-1])))
    of_it = [a for a in alarms(data) if name in (a["entity_id"], a["line_id"], a["plant_id"])]
    columns = (Column("state"), Column("severity"), Column("alarm"), Column("what"), Column("since", "time"),
               Column("value", "number"), Column("limit", "number"))  # fmt: skip
    cells: list[list[Cell]] = [
        [state_of(a), a["severity"], a["alarm_id"].removeprefix(f"{name}:"), a["title"],
         a["active_since_ms"] or a["event_time_ms"], a["value"], a["limit"]]
        for a in of_it
    ]  # fmt: skip
    acts = [dashboard_work.alarm_offers(a) for a in of_it[:_MOST_ALARMS]]
    if (shown := bounded(columns, cells, most=_MOST_ALARMS, actions=acts)) is not None:
        found.append(Titled("Alarms", shown))
    found += dashboard_ahead.work(data, name)
    found += dashboard_ahead.life(data, name)
    found += dashboard_ahead.health(data, name)
    found += dashboard_ahead.charts(data, name, rows)
    found += rows_of(
        data, "alarm_history", [("entity_id", name)], "What happened to its alarms",
        ("event_time_ms", "change", "alarm", "severity", "operator", "comment", "reason"),
        order=("event_time_ms", "number"),
    )  # fmt: skip
    found += rows_of(
        data, "shifts", [("machine_id", name)], "Shifts",
        ("shift", "oee", "availability", "performance", "quality", "failures", "down_ms", "produced",
         "rejected"),
        order=("shift_start_ms",), kinds=_SHIFT,
    )  # fmt: skip
    return found


def _readings(data: AppData, machine: str) -> list[dict[str, Any]]:
    """Return a machine's latest readings in order of time, each as last corrected."""
    table = data.table("readings")
    if table is None:
        return []
    newest: dict[str, dict[str, Any]] = {}
    columns = (*_READING, "point") if "point" in table.columns else _READING  # older tables have none
    for row in table.recent("machine_id", machine, limit=_READINGS, columns=columns).to_pylist():
        before = newest.get(row["reading_id"])
        if before is None or before["revision"] <= row["revision"]:
            newest[row["reading_id"]] = row
    return sorted(newest.values(), key=lambda r: r["event_time_ms"])


def _now(row: Row) -> Numbers:
    errors = as_dict(row["errors_24h"])
    ages = as_dict(row["component_age_days"])
    return Numbers(
        (
            Number(label="status", value=row["status"], kind="text"),
            Number(label="since", value=row["status_since_ms"], kind="time"),
            Number(label="kind", value=row["kind"] or None, kind="text"),
            Number(label="last reading", value=row["event_time_ms"], kind="time"),
            Number(label="errors in 24 h", value=sum(errors.values()), kind="count",
                   note=", ".join(f"{code} ×{n}" for code, n in sorted(errors.items())),
                   tone="warn" if errors else "plain"),
            *(Number(label=f"{part}, age", value=round(age, 1), unit="days")
              for part, age in sorted(ages.items())),
        )
    )  # fmt: skip
