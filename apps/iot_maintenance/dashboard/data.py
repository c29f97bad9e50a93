"""Figures of the iot page, read from the app's tables: alarms that matter, silence, KPIs, shifts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.dashboard.data import AppData
from millrace.dashboard.values import as_dict, ratio
from millrace_apps.iot_maintenance.alarms.rule import SEVERITIES
from millrace_apps.iot_maintenance.processes.windows import DAY_MS, WINDOW_MS

if TYPE_CHECKING:
    import pyarrow as pa

Row = Mapping[str, Any]
#: States of an alarm that matters, in the order in which operators look at them.
STATES: Final = (
    "active, unacknowledged", "active, acknowledged", "over, unacknowledged", "to be confirmed",
    "to be reset", "shelved", "suppressed", "out of service",
)  # fmt: skip
_ALARM: Final = (
    "alarm_id", "entity_id", "severity", "event_time_ms", "active", "acked", "confirmed", "retain", "latched",
    "shelved", "suppressed", "out_of_service", "announced", "shadow", "value", "limit", "active_since_ms",
    "reason", "title", "plant_id", "line_id",
)  # fmt: skip
_AGES: Final = ("alarm_id", "active", "announced", "shelved", "shadow", "active_since_ms")
_SHIFT: Final = (
    "machine_id", "shift", "shift_start_ms", "shift_end_ms", "planned_ms", "operating_ms", "down_ms",
    "failures", "produced", "rejected", "availability", "performance", "quality", "oee", "mtbf_h", "mttr_h",
)  # fmt: skip
#: Rows of KPIs and shifts that are looked at: weeks of a few plants, days of a thousand machines.
_MOST_KPIS: Final = 5_000
_MOST_SHIFTS: Final = 20_000


def state_of(alarm: Row) -> str:
    """Return which of :data:`STATES` an alarm that matters is in.

    >>> quiet = {"out_of_service": False, "shelved": "", "suppressed": False}
    >>> state_of({**quiet, "active": True, "acked": False})
    'active, unacknowledged'
    """
    if alarm["out_of_service"]:
        return "out of service"
    if alarm["shelved"]:
        return "shelved"
    if alarm["suppressed"]:
        return "suppressed"
    if alarm["active"]:
        return "active, acknowledged" if alarm["acked"] else "active, unacknowledged"
    if not alarm["acked"]:
        return "over, unacknowledged"
    return "to be reset" if alarm["confirmed"] else "to be confirmed"


def alarms(data: AppData) -> list[Row]:
    """Return the alarms that matter: the most urgent state first, then the severest, then the newest."""
    table = data.table("alarms")
    return [] if table is None else table.once("matter", lambda t: _in_order(t.all(_ALARM)))


def _in_order(rows: pa.Table) -> list[Row]:
    import pyarrow.compute as pc

    found: list[Row] = rows.filter(pc.field("retain") & ~pc.field("shadow")).to_pylist()
    return sorted(
        found,
        key=lambda r: (
            STATES.index(state_of(r)),
            -SEVERITIES.index(r["severity"]),
            -(r["active_since_ms"] or r["event_time_ms"]),
            r["alarm_id"],
        ),
    )


class Device(NamedTuple):
    """What was last told of a sensor, machine or gateway."""

    kind: str
    state: str
    cause: str
    at_ms: int
    last_heard_ms: int
    gateway_id: str


def devices(data: AppData) -> dict[str, Device]:
    """Return what was last told of each device that has ever been silent."""
    table = data.table("liveness")
    columns = ["device_id", "device_kind", "state", "cause", "event_time_ms", "last_heard_ms", "gateway_id"]
    return {} if table is None else table.fold("devices", columns, dict, _add_devices)


def _add_devices(kept: dict[str, Device], rows: pa.Table) -> dict[str, Device]:
    for row in rows.to_pylist():
        before = kept.get(row["device_id"])
        if before is None or before.at_ms <= row["event_time_ms"]:
            kept[row["device_id"]] = Device(
                row["device_kind"], row["state"], row["cause"], row["event_time_ms"], row["last_heard_ms"],
                row["gateway_id"],
            )  # fmt: skip
    return kept


def silent(data: AppData) -> list[tuple[str, Device]]:
    """Return the devices that are silent: by themselves before those behind another, the longest first."""
    found = [(name, device) for name, device in devices(data).items() if device.state == "silent"]
    return sorted(found, key=lambda pair: (pair[1].cause != "own", pair[1].last_heard_ms, pair[0]))


class AlarmWindows(NamedTuple):
    """The last day of ten-minute windows of all plants.

    Attributes:
        starts: Begins of the windows, ms, without a gap.
        counts: Plant → alarms in each of them.
        floods: How many of them were floods, over all plants.
        top: How often each alarm came, as far as it was among the ten of its window.
        chattering: Alarms that chattered in them.
        stale: Alarms that were active for more than 24 hours, as last told by each plant.
        standing: Alarms that were active, as last told by each plant.
        severities: Severity → alarms of it.
    """

    starts: Sequence[int]
    counts: dict[str, list[int]]
    floods: int
    top: Counter[str]
    chattering: set[str]
    stale: set[str]
    standing: int
    severities: Counter[str]


def alarm_windows(data: AppData) -> AlarmWindows | None:
    """Return the last day of the alarm system, ``None`` before there is a window."""
    table = data.table("alarm_kpis")
    return None if table is None else table.once("day", lambda t: _day_of(t.latest(_MOST_KPIS).to_pylist()))


def _day_of(rows: Sequence[Row]) -> AlarmWindows | None:
    windows = [r for r in rows if r["span"] == "10min"]
    if not windows:
        return None
    last = max(r["start_ms"] for r in windows)
    first = max(min(r["start_ms"] for r in windows), last - DAY_MS + WINDOW_MS)
    starts = range(first, last + 1, WINDOW_MS)
    found = AlarmWindows(starts, {}, 0, Counter(), set(), set(), 0, Counter())
    newest: dict[str, Row] = {}
    floods = 0
    for row in sorted(windows, key=lambda r: r["start_ms"]):
        if row["start_ms"] < first:
            continue
        plant = row["plant_id"]
        # A window with nothing in it has no row.
        counts = found.counts.setdefault(plant, [0] * len(starts))
        counts[(row["start_ms"] - first) // WINDOW_MS] = row["alarms"]
        floods += row["flood"]
        found.top.update(as_dict(row["top"]))
        found.chattering.update(row["chattering"])
        for severity, share in as_dict(row["by_severity"]).items():
            found.severities[severity] += round(share * row["alarms"])
        newest[plant] = row
    for row in newest.values():
        found.stale.update(row["stale"])
    return found._replace(floods=floods, standing=sum(row["standing"] for row in newest.values()))


def stale(data: AppData, told: Iterable[str], now_ms: int) -> set[str]:
    """Return the alarms that are active for more than 24 hours, shelved or not.

    A plant tells of those in the windows in which something happens; of one in which nothing else does it is
    known by when its alarms became active.

    Args:
        data: The app's data.
        told: Those that plants have told of last; what is over since is left out.
        now_ms: How far the events are, ms.
    """
    table = data.table("alarms")
    rows: list[Row] = [] if table is None else table.once("ages", lambda t: t.all(_AGES).to_pylist())
    active = {row["alarm_id"]: row["active"] for row in rows}
    found = {name for name in told if active.get(name, True)}
    for row in rows:
        since = row["active_since_ms"]
        counts = row["active"] and not row["shadow"] and (row["announced"] or row["shelved"])
        if counts and since is not None and now_ms - since > DAY_MS:
            found.add(row["alarm_id"])
    return found


class Shift(NamedTuple):
    """All machines in one shift together.

    Attributes:
        name: Its local begin.
        start_ms: Its begin, UTC ms.
        end_ms: Its end.
        machines: Its rows.
        availability: Operating time of planned time.
        performance: Mean over the machines, weighted by operating time.
        quality: Good parts of parts.
        oee: Product of the three.
    """

    name: str
    start_ms: int
    end_ms: int
    machines: list[Row]
    availability: float | None
    performance: float | None
    quality: float | None
    oee: float | None


def shifts(data: AppData) -> list[Shift]:
    """Return the latest shifts that are over, in order of time."""
    table = data.table("shifts")
    if table is None:
        return []
    return table.once("shifts", lambda t: _by_shift(t.latest(_MOST_SHIFTS, _SHIFT).to_pylist()))


def _by_shift(rows: Sequence[Row]) -> list[Shift]:
    groups: dict[int, dict[str, Row]] = {}
    for row in rows:
        groups.setdefault(row["shift_start_ms"], {})[row["machine_id"]] = row
    return [_together(list(groups[start].values())) for start in sorted(groups)]


def _together(rows: list[Row]) -> Shift:
    def total(name: str) -> int:
        return sum(row[name] for row in rows)

    judged = [row for row in rows if row["performance"] is not None]
    availability = ratio(total("operating_ms"), total("planned_ms"))
    performance = ratio(
        sum(row["performance"] * row["operating_ms"] for row in judged),
        sum(row["operating_ms"] for row in judged),
    )
    quality = ratio(total("produced") - total("rejected"), total("produced"))
    oee = None
    if availability is not None and performance is not None and quality is not None:
        oee = availability * performance * quality
    one = rows[0]
    return Shift(
        one["shift"],
        one["shift_start_ms"],
        one["shift_end_ms"],
        rows,
        availability,
        performance,
        quality,
        oee,
    )
