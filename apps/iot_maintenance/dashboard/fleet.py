"""The fleet on the page: each machine with all that is known of how it does and what is to come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.dashboard.data import AppData
from millrace.dashboard.values import bounded
from millrace.dashboard.views import Bar, Bars, Cell, Column, Offer, Tone, View
from millrace.time.durations import format_duration
from millrace_apps.iot_maintenance.alarms.rule import SEVERITIES
from millrace_apps.iot_maintenance.dashboard.data import Row, alarms
from millrace_apps.iot_maintenance.processes.orders import open_orders_of

if TYPE_CHECKING:
    import pyarrow as pa


#: From this probability on, and from this score on, a machine is told at risk, or unusual.
AT_RISK: Final = 0.5
UNUSUAL: Final = 0.5
_HOUR_MS: Final = 3_600_000
_MOST: Final = 2_000
_PAGE: Final = 25
#: How machines do, the worst first, and how that is meant.
STANDINGS: Final[Mapping[str, Tone]] = {
    "critical or high alarm": "bad",
    "other alarm": "warn",
    "likely to fail": "bad",
    "work is overdue": "warn",
    "unusual": "warn",
    "nothing unusual": "good",
}


class Machine(NamedTuple):
    """A machine as last told.

    Attributes:
        machine_id: Its name.
        kind: Its kind.
        status: What it does.
        severity: Of its worst alarm that operators are told of; empty: none.
        alarms: How many of these there are.
        health: Newest row of ``machine_health``.
        risk: Of the newest rows of ``risks`` that with the highest probability.
        life: Newest row of ``remaining_life``.
        crossing: Of the limits that it will cross the soonest, a row of ``forecasts``.
        plan: Its row of ``maintenance_plan``.
        order: The open work order that begins first.
    """

    machine_id: str
    kind: str = ""
    status: str | None = None
    severity: str = ""
    alarms: int = 0
    health: Row | None = None
    risk: Row | None = None
    life: Row | None = None
    crossing: Row | None = None
    plan: Row | None = None
    order: Row | None = None

    @property
    def standing(self) -> str:
        """Which of :data:`STANDINGS` it is in."""
        names = list(STANDINGS)
        if self.severity in ("critical", "high"):
            return names[0]
        if self.severity:
            return names[1]
        if self.risk is not None and self.risk["probability"] >= AT_RISK:
            return names[2]
        if self.order is not None and self.order["state"] == "overdue":
            return names[3]
        if self.health is not None and self.health["score"] >= UNUSUAL:
            return names[4]
        return names[5]

    @property
    def urgency(self) -> tuple[Any, ...]:
        """By what machines are in order: the worst first."""
        return (
            list(STANDINGS).index(self.standing),
            -SEVERITIES.index(self.severity) if self.severity else 0,
            -(self.risk["probability"] if self.risk is not None else 0.0),
            -(self.health["score"] if self.health is not None else 0.0),
            self.machine_id,
        )


# -- what is read ------------------------------------------------------------------------------------


def newest_of(
    data: AppData, table: str, columns: tuple[str, ...], keys: tuple[str, ...] = ("machine_id",)
) -> dict[tuple[str, ...], Row]:
    """Return the newest row of each key of a table that grows; only what is new is read.

    Args:
        data: The app's data.
        table: The table.
        columns: What of the rows, besides the keys and ``event_time_ms``.
        keys: The columns that tell rows apart.
    """

    def add(kept: dict[tuple[str, ...], Row], rows: pa.Table) -> dict[tuple[str, ...], Row]:
        import pyarrow as pa

        if not rows.num_rows:
            return kept
        # The last of each key, by the place that it has in the order of time.
        rows = rows.sort_by("event_time_ms")
        places = rows.append_column("_place", pa.array(range(rows.num_rows)))
        last = places.group_by(list(keys)).aggregate([("_place", "max")])["_place_max"]
        for row in rows.take(last).to_pylist():
            key = tuple(row[name] for name in keys)
            before = kept.get(key)
            if before is None or before["event_time_ms"] <= row["event_time_ms"]:
                kept[key] = row
        return kept

    reader = data.table(table)
    wanted = (*keys, "event_time_ms", *columns)
    return {} if reader is None else reader.fold("newest", wanted, dict, add)


def newest_of_machines(data: AppData, table: str, columns: tuple[str, ...]) -> dict[str, Row]:
    """Return the newest row of each machine (see :func:`newest_of`)."""
    return {machine: row for (machine,), row in newest_of(data, table, columns).items()}


def worst_risks(data: AppData) -> dict[str, Row]:
    """Return of the risks that each machine was last told of that with the highest probability."""
    found: dict[str, Row] = {}
    rows = newest_of(data, "risks", ("horizon_h", "probability"), ("machine_id", "component"))
    for (machine, _), row in rows.items():
        before = found.get(machine)
        if before is None or _told_and_likely(before) < _told_and_likely(row):
            found[machine] = row
    return found


def _told_and_likely(risk: Row) -> tuple[int, float]:
    return risk["event_time_ms"], risk["probability"]


def merged(data: AppData, table: str) -> list[Row]:
    """Return all rows of a table with one row per key."""
    reader = data.table(table)
    if reader is None:
        return []
    found: list[Row] = reader.once("rows", lambda t: t.all().to_pylist())
    return found


def crossings(data: AppData) -> list[Row]:
    """Return the limits that points are expected to cross, the soonest first."""
    rows = [row for row in merged(data, "forecasts") if row["side"] != "none" and row["in_h"] is not None]
    return sorted(
        rows, key=lambda r: (r["event_time_ms"] + r["in_h"] * _HOUR_MS, r["machine_id"], r["subject"])
    )


#: What a fleet is made of.
_TABLES: Final = (
    "readings", "machine_health", "remaining_life", "risks", "maintenance_plan", "forecasts", "work_orders",
    "alarms",
)  # fmt: skip


def fleet(data: AppData) -> list[Machine]:
    """Return all machines, the worst first; made anew when a table of it has changed."""
    versions = tuple(None if (table := data.table(name)) is None else table.version for name in _TABLES)
    return data.once("fleet", versions, lambda: _fleet(data))


def _fleet(data: AppData) -> list[Machine]:
    readings = newest_of_machines(data, "readings", ("status", "kind"))
    healths = newest_of_machines(data, "machine_health", ("kind", "score", "sensor"))
    lives = newest_of_machines(data, "remaining_life", ("remaining_h", "low_h", "high_h", "ceiling_h"))
    risks = worst_risks(data)
    plans = {row["machine_id"]: row for row in merged(data, "maintenance_plan")}
    ahead = _first(crossings(data))
    work = _first(open_orders_of(merged(data, "work_orders")))
    told: dict[str, list[Row]] = {}
    for alarm in alarms(data):
        if alarm["active"] and alarm["announced"]:
            told.setdefault(alarm["entity_id"], []).append(alarm)
    found = []
    for name in {*readings, *healths, *lives, *risks, *plans, *ahead, *work}:
        reading, health, of = readings.get(name, {}), healths.get(name), told.get(name, ())
        worst = max((SEVERITIES.index(a["severity"]) for a in of), default=-1)
        kind = reading.get("kind") or (health["kind"] if health is not None else "")
        found.append(
            Machine(
                machine_id=name,
                kind=kind or "",
                status=reading.get("status"),
                severity=SEVERITIES[worst] if worst >= 0 else "",
                alarms=len(of),
                health=health,
                risk=risks.get(name),
                life=lives.get(name),
                crossing=ahead.get(name),
                plan=plans.get(name),
                order=work.get(name),
            )
        )
    return sorted(found, key=lambda machine: machine.urgency)


def _first(rows: list[Row]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for row in rows:
        found.setdefault(row["machine_id"], row)
    return found


# -- what is shown -----------------------------------------------------------------------------------


def standings(data: AppData) -> View | None:
    """Return how many machines do how well."""
    machines = fleet(data)
    if not machines:
        return None
    of = [machine.standing for machine in machines]
    return Bars(
        bars=tuple(
            Bar(name, of.count(name), f"{of.count(name) / len(of):.0%} of {len(of):,} machines", tone=tone)
            for name, tone in STANDINGS.items()
        )
    )


def fleet_table(data: AppData) -> View | None:
    """Return a line per machine, the worst first."""
    machines = fleet(data)
    columns = (
        Column("machine", "key"), Column("stands"), Column("kind"), Column("does"), Column("alarms", "count"),
        Column("unusual"), Column("may fail"), Column("runs yet"),
        Column("will cross"), Column("maintain by", "time"), Column("work order"),
    )  # fmt: skip
    acts = [(Offer("plan", {"machine": m.machine_id, "component": component_of(m)}),) for m in machines]
    return bounded(
        columns,
        [_line(m) for m in machines],
        [STANDINGS[m.standing] for m in machines],
        most=_MOST,
        actions=acts,
        page=_PAGE,
        choose="stands",
    )


def component_of(machine: Machine) -> str:
    """Return what is to be maintained first, as far as anybody says."""
    for row in (machine.order, machine.plan, machine.risk):
        if row is not None and row["component"]:
            return str(row["component"])
    return ""


def _line(m: Machine) -> list[Cell]:
    risk, order, crossing = m.risk, m.order, m.crossing
    return [
        m.machine_id,
        m.standing,
        m.kind,
        m.status,
        m.alarms,
        "" if m.health is None else f"{m.health['score']:.2f}, by {m.health['sensor']}",
        "" if risk is None else risk_text(risk),
        "" if m.life is None else life_text(m.life),
        "" if crossing is None else crossing_text(crossing),
        None if m.plan is None else m.plan["latest_ms"],
        "" if order is None else order_text(order),
    ]


def risk_text(risk: Row) -> str:
    """Return what may fail, how likely it is and within which time.

    >>> risk_text({"component": "seal", "probability": 0.02, "horizon_h": 24.0})
    'seal: 2% in 24 h'
    >>> risk_text({"component": "seal", "probability": 0.02, "horizon_h": 0.00416667})
    'seal: 2% in 15s'
    """
    hours = risk["horizon_h"]
    within = f"{hours:g} h" if hours >= 1 else format_duration(round(hours * 3_600) * 1_000)
    return f"{risk['component']}: {risk['probability']:.0%} in {within}"


def order_text(order: Row) -> str:
    """Return what is in work or planned, and how it stands."""
    return f"{order['component']}: {order['state']}"


def life_text(life: Row) -> str:
    """Return a remaining life and its interval in a few words.

    >>> life_text({"remaining_h": 120.4, "low_h": 80.0, "high_h": 200.0, "ceiling_h": 200.0})
    '120 h (80 to 200 or more)'
    """
    more = " or more" if life["high_h"] >= life["ceiling_h"] else ""
    return f"{life['remaining_h']:.0f} h ({life['low_h']:.0f} to {life['high_h']:.0f}{more})"


def crossing_text(row: Row) -> str:
    """Return when a point crosses a limit in a few words.

    >>> crossing_text({"subject": "oil", "side": "above", "limit": 75.0, "in_h": 3.2, "earliest_h": 2.8,
    ...                "latest_h": None})
    'oil above 75 in 3.2 h (2.8 or later)'
    """
    late = "or later" if row["latest_h"] is None else f"to {row['latest_h']:.1f}"
    when = f"in {row['in_h']:.1f} h ({row['earliest_h']:.1f} {late})"
    return f"{row['subject']} {row['side']} {row['limit']:g} {when}"
