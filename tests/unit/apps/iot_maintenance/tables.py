"""A folder as the iot app leaves it, small and seeded: readings, alarms, silence, KPIs, shifts, health."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec

from millrace_apps.iot_maintenance.alarms.record import AlarmEvent
from millrace_apps.iot_maintenance.alarms.rule import SEVERITIES
from millrace_apps.iot_maintenance.contracts.events import Maintenance
from millrace_apps.iot_maintenance.contracts.records import EnrichedReading, Liveness, ShiftKpi
from millrace_apps.iot_maintenance.foresight.records import MaintenancePlan, RemainingLife, Risk
from millrace_apps.iot_maintenance.processes.anomalies import PointScore
from millrace_apps.iot_maintenance.processes.forecasts import PointForecast
from millrace_apps.iot_maintenance.processes.machine_health import MachineHealth
from millrace_apps.iot_maintenance.processes.orders import WorkOrder
from millrace_apps.iot_maintenance.processes.plant import AssetHealth
from millrace_apps.iot_maintenance.processes.windows import WINDOW_MS, AlarmKpi
from tests.unit.millrace.dashboard.cases import put, put_checkpoint, put_records

START_MS = 1_767_225_600_000
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
MACHINES = tuple(f"p{p:02}-l{n:02}-m{m:03}" for p in (1, 2) for n in (1, 2) for m in (1, 2, 3))
QUANTITIES = {"vibration": ("mm/s", 3.0), "bearing_temperature": ("degC", 55.0), "current": ("A", 30.0)}
#: A title as an attacker would wish it to be.
EVIL = "<img src=x onerror=window.harmed=1>"


class IotRecords(NamedTuple):
    """What was written."""

    readings: list[EnrichedReading]
    alarms: list[AlarmEvent]
    liveness: list[Liveness]
    kpis: list[AlarmKpi]
    health: list[AssetHealth]
    shifts: list[ShiftKpi]
    lives: list[RemainingLife]
    risks: list[Risk]
    repairs: list[Maintenance]
    plans: list[MaintenancePlan]
    orders: list[WorkOrder]
    machine_health: list[MachineHealth]
    crossings: list[PointForecast]
    scores: list[PointScore]

    @property
    def until_ms(self) -> int:
        """Time of the last reading."""
        return max(r.event_time_ms for r in self.readings)


def place(machine: str) -> tuple[str, str]:
    """The plant and the line of a machine."""
    return machine[:3], machine[:7]


def readings(random: Random) -> list[EnrichedReading]:
    found = []
    for n in range(90):
        for machine in MACHINES:
            for quantity, (unit, usual) in QUANTITIES.items():
                bad = random.random() < 0.02
                value = usual * (1 + random.gauss(0, 0.05)) + (n / 20 if quantity == "vibration" else 0)
                at = START_MS + n * 10 * SECOND
                row = EnrichedReading(
                    f"{machine}-{quantity}-{n}", f"{machine}.{quantity}", machine, quantity,
                    None if bad else round(value, 3), unit, at, 0, False, False,
                    "bad" if bad else "good", "missing" if bad else "", "running", START_MS, "pump",
                    {"model": "x"}, {"seal": START_MS - 90 * HOUR}, {"seal": 3.75 + n / 8640}, {"E101": 1},
                    average=round(usual, 3),
                )  # fmt: skip
                found.append(row)
                if random.random() < 0.01:
                    found.append(msgspec.structs.replace(row, revision=1, corrected=True, status="overload"))
    return found


def alarm(machine: str, name: str, severity: str, at: int, **more: Any) -> AlarmEvent:
    plant, line = place(machine)
    given: dict[str, Any] = {
        "alarm_id": f"{machine}:{name}", "entity_id": machine, "alarm": name,
        "rule_id": name.partition("/")[0],
        "quantity": name.partition("/")[2], "category": "process", "change": "active", "event_time_ms": at,
        "number": 0, "active": True, "acked": False, "confirmed": False, "retain": True, "latched": False,
        "shelved": "", "suppressed": False, "out_of_service": False, "silenced": False, "announced": True,
        "first_in_group": True, "shadow": False, "level": 1, "severity": severity, "value": 5.5, "limit": 5.0,
        "active_since_ms": at, "title": f"{name} of a pump", "plant_id": plant, "line_id": line,
    }  # fmt: skip
    return AlarmEvent(**{**given, **more})


def alarms(random: Random) -> list[AlarmEvent]:
    """One of each state, and many of all kinds."""
    at = START_MS + 5 * MINUTE
    quiet = {"announced": False}
    over = {"active": False, "announced": False, "level": 0}
    first = MACHINES[0]
    found = [
        alarm(first, "vibration-high/vibration", "critical", at, title=EVIL),
        alarm(first, "current-high/current", "medium", at, acked=True),
        alarm(first, "bearing-hot/bearing_temperature", "high", at, **over),
        alarm(first, "overload", "low", at, acked=True, **over),
        alarm(first, "guard-open", "low", at, acked=True, confirmed=True, latched=True, **over),
        alarm(first, "flow-low/flow", "high", at, shelved="timed", **quiet),
        alarm(first, "pressure-low/pressure", "high", at, suppressed=True, **quiet),
        alarm(first, "speed-high/speed", "critical", at, out_of_service=True, **quiet),
        alarm(first, "tried/vibration", "critical", at, shadow=True, **quiet),
        alarm(first, "settled/vibration", "critical", at, retain=False, acked=True, confirmed=True, **over),
    ]
    for n in range(80):
        machine, severity = random.choice(MACHINES[1:]), random.choice(SEVERITIES)
        acked = random.random() < 0.5
        found.append(alarm(machine, f"rule-{n}/vibration", severity, at + n * SECOND, acked=acked))
    return found


def kpis(random: Random) -> list[AlarmKpi]:
    """Thirty hours of two plants, with windows in which nothing came; and a day."""
    found = []
    for n in range(180):
        for plant in ("p01", "p02"):
            count = random.choice((0, 0, 1, 2, 3)) if n != 150 else 14
            if count:
                top = {f"{plant}-l01-m001:vibration-high/vibration": count}
                found.append(AlarmKpi(
                    plant, "10min", START_MS + n * WINDOW_MS, START_MS + (n + 1) * WINDOW_MS, count,
                    count > 10, float(count > 10),
                    ["chatterer"] if count > 10 else [], ["old"] if n > 170 else [], 4,
                    {"low": 1.0}, top, 1.0,
                ))  # fmt: skip
    found.append(
        AlarmKpi("p01", "day", START_MS, START_MS + 24 * HOUR, 999, True, 0.1, [], [], 1, {}, {"x": 999}, 1.0)
    )
    return found


def health(found: list[AlarmEvent]) -> list[AssetHealth]:
    """Rolled up anew: the worst announced alarm on each asset or below it."""
    below: dict[tuple[str, str, str], list[str]] = {}
    for a in found:
        worst = [a.severity] if a.announced else []
        for asset in (
            (f"{a.entity_id}.{a.quantity}", "sensor", a.entity_id), (a.entity_id, "machine", a.line_id),
            (a.line_id, "line", a.plant_id), (a.plant_id, "plant", ""),
        ):  # fmt: skip
            below.setdefault(asset, []).extend(worst)
    return [
        AssetHealth(
            name, kind, parent, max(of, key=SEVERITIES.index) if of else "good", len(of), START_MS  # type: ignore[arg-type]
        )
        for (name, kind, parent), of in below.items()
    ]  # fmt: skip


def shifts(random: Random) -> list[ShiftKpi]:
    found = []
    for n in range(5):
        start = START_MS - (5 - n) * 8 * HOUR
        for machine in MACHINES:
            operating = random.randrange(4 * HOUR, 8 * HOUR)
            produced, ideal = random.randrange(100, 300), 60 * operating / HOUR
            rejected, failures = random.randrange(10), random.randrange(2)
            parts = (operating / (8 * HOUR), produced / ideal, (produced - rejected) / produced)
            found.append(ShiftKpi(
                machine, f"2025-12-{30 + n // 3}T{6 + 8 * (n % 3):02}:00", start, start + 8 * HOUR, 8 * HOUR,
                operating, 8 * HOUR - operating, failures, failures, produced, rejected, *parts,
                parts[0] * parts[1] * parts[2], 40.0 + n, 1.5, {"running": operating},
            ))  # fmt: skip
    return found


def liveness() -> list[Liveness]:
    """A machine that is silent by itself, a gateway with two behind it, and one that is heard again."""

    def row(name: str, kind: str, state: str, cause: str, at: int) -> Liveness:
        return Liveness(
            name, kind, "p02-l01-gw", state, cause, START_MS + at, START_MS + at - 10_000, "p02", "p02-l01"
        )  # type: ignore[arg-type]

    return [
        row(MACHINES[0], "machine", "silent", "own", 30_000),
        row("p02-l01-gw", "gateway", "silent", "own", 40_000),
        row(MACHINES[6], "machine", "silent", "gateway", 41_000),
        row(MACHINES[7], "machine", "silent", "gateway", 41_000),
        row(MACHINES[8], "machine", "silent", "own", 20_000),
        row(MACHINES[8], "machine", "online", "own", 50_000),
    ]  # fmt: skip


def foreseen(random: Random) -> tuple[list[RemainingLife], list[Risk], list[Maintenance]]:
    """Ninety hours of two models' forecasts; the first machines fail meanwhile, some of them twice."""
    repairs = [
        Maintenance(f"r{n}-{hour}", machine, part, START_MS + hour * HOUR + 17, kind, HOUR)  # type: ignore[arg-type]
        for n, machine in enumerate(MACHINES[:6])
        for hour, part, kind in ((30 + n, "seal", "corrective"), (60, "bearing", "scheduled"),
                                 (70 + 2 * n, "bearing", "corrective"))
        if n % 2 or hour < 70
    ]  # fmt: skip
    lives, risks = [], []
    for hour in range(90):
        model = "1" if hour < 45 else "2"
        for machine in MACHINES:
            at, left = START_MS + hour * HOUR, random.uniform(5, 60)
            low, high = left * random.uniform(0.3, 0.9), min(72.0, left * random.uniform(1.1, 2.5))
            lives.append(RemainingLife(machine, at, left, low, high, 72.0, 0.9, 10, model))
            for part in ("seal", "bearing"):
                risks.append(Risk(machine, part, at, 24.0, round(random.random(), 3), model))
    return lives, risks, repairs


def ahead(random: Random) -> tuple[list[MaintenancePlan], list[WorkOrder]]:
    """When to maintain what, and work orders in every state."""
    at = START_MS + 90 * HOUR
    plans = [
        MaintenancePlan(machine, random.choice(("seal", "bearing", "")), at, at + n * 7 * HOUR, 12.5 + n,
                        "remaining life", 0.1)
        for n, machine in enumerate(MACHINES[:9])
    ]  # fmt: skip
    states = ("planned", "in work", "overdue", "done", "cancelled", "rejected")
    orders = [
        WorkOrder(f"o{n}", n % 3, MACHINES[n % 10], "seal", at + n, states[n % 6], at + (n - 9) * HOUR,  # type: ignore[arg-type]
                  at + (n - 8) * HOUR, n % 4 == 0, "ann", EVIL if n == 0 else "", "")
        for n in range(36)
    ]  # fmt: skip
    return plans, orders


def sensed(random: Random) -> tuple[list[MachineHealth], list[PointForecast], list[PointScore]]:
    """What sensors say together and one by one."""
    health, crossings, scores = [], [], []
    for n, machine in enumerate(MACHINES):
        for minute in range(14):
            at, t2, q = START_MS + minute * MINUTE, random.uniform(1, 20), random.uniform(0.1, 2)
            share = max(t2 / 10, q / 1.5)
            health.append(MachineHealth(
                machine, "pump", "running", at, share / (1 + share), t2, 10.0, q, 1.5,
                "t2" if t2 / 10 >= q / 1.5 else "q", "current", {"current": 0.7, "vibration": 0.3}, "",
            ))  # fmt: skip
            value = 3 + random.gauss(0, 1)
            scores.append(PointScore(
                machine, "vibration", "vibration", f"{machine}.vibration", at, value, random.random(), 3.0,
                value - 3.0, 1.0, 5.0, random.choice(("", "level")),  # type: ignore[arg-type]
            ))  # fmt: skip
        side = ("above", "below", "none")[n % 3]
        told = (None,) * 4 if side == "none" else (5.0, 1.5 + n / 3, 1.0, None if n % 2 else 4.0 + n)
        crossings.append(PointForecast(
            machine, "vibration", "vibration", START_MS + 13 * MINUTE, side, *told, 3.0, 0.4,  # type: ignore[arg-type]
        ))  # fmt: skip
    return health, crossings, scores


def iot_folder(root: Path) -> IotRecords:
    """Write everything that the page can show; return it."""
    random = Random(11)
    found_alarms = alarms(random)
    found = IotRecords(
        readings(random), found_alarms, liveness(), kpis(random), health(found_alarms), shifts(random),
        *foreseen(random), *ahead(random), *sensed(random),
    )  # fmt: skip
    for at in range(0, len(found.readings), 1_000):
        put_records(root, "readings", found.readings[at : at + 1_000])
    for table, records in (
        ("alarm_history", found.alarms), ("liveness", found.liveness), ("alarm_kpis", found.kpis),
        ("shifts", found.shifts), ("remaining_life", found.lives), ("risks", found.risks),
        ("maintenance", found.repairs), ("machine_health", found.machine_health), ("scores", found.scores),
        ("anomalies", [row for row in found.scores if row.score > 0.5]),
    ):  # fmt: skip
        put_records(root, table, records)
    put_records(root, "alarms", found.alarms, key=["alarm_id"])
    put_records(root, "health", found.health, key=["asset_id"])
    put_records(root, "maintenance_plan", found.plans, key=["machine_id"])
    put_records(root, "work_orders", found.orders, key=["order_id"])
    put_records(root, "forecasts", found.crossings, key=["machine_id", "subject"])
    put(root, "dead_letters", [{"reason": "schema", "value": b"x"}])
    put_checkpoint(root, {"iot.readings": {"0": len(found.readings)}}, batch=3, watermark=found.until_ms)
    return found
