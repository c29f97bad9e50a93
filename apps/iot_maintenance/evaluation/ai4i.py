"""The rules engine, held against rules that are exactly known: AI4I 2020 predictive maintenance.

The data set documents three of its failure modes as formulas. They are written as alarm rules over several
sensors; each product is a minute in the life of the machine that makes products of its type, and a product
is found where the alarm is active in its minute.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from millrace.errors import UserError
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, Level
from millrace_apps.iot_maintenance.contracts.events import Equipment, Reading
from millrace_apps.iot_maintenance.evaluation.stream import Engine, Sent, run, settings_for, written

MINUTE_MS: Final = 60_000
START_MS: Final = 1_577_836_800_000
#: Column of the file → quantity and unit.
COLUMNS: Final = {
    "Air temperature [K]": ("air", "K"),
    "Process temperature [K]": ("process", "K"),
    "Rotational speed [rpm]": ("speed", "rpm"),
    "Torque [Nm]": ("torque", "Nm"),
    "Tool wear [min]": ("wear", "min"),
}
#: Type of a product → wear times torque that overstrains its machine, min Nm.
_TYPES: Final = {"L": 11_000, "M": 12_000, "H": 13_000}
_POWER: Final = "torque * speed * 2 * 3.141592653589793 / 60"
#: Failure mode → expression, after the documentation of the data set (Matzka 2020).
MODES: Final = {
    "HDF": "process - air < 8.6 and speed < 1380",
    "PWF": f"{_POWER} < 3500 or {_POWER} > 9000",
    "OSF": "(attribute('type') == 'L' and wear * torque > 11000) or "
    "(attribute('type') == 'M' and wear * torque > 12000) or "
    "(attribute('type') == 'H' and wear * torque > 13000)",
}


class NotAi4i(UserError):
    """A file does not have the columns of the data set."""


class ModeReport(msgspec.Struct, frozen=True):
    """How one failure mode was found.

    Attributes:
        expected: Products that failed in this mode.
        matched: Of them, those whose minute the alarm is active in.
        false: Products that did not, in whose minute it is active.
        implied: Of these, those that the formula itself, computed over the table, says so of.
        alarms: How often the alarm became active.
    """

    expected: int
    matched: int
    false: int
    implied: int
    alarms: int


def rules() -> list[AlarmRule]:
    """Return the three modes as alarm rules."""
    quantities = tuple(quantity for quantity, _ in COLUMNS.values())
    return [
        AlarmRule(
            mode.lower(),
            (Level(severity="high", when=when),),
            source="machine",
            quantities=quantities,
            title=mode,
        )
        for mode, when in MODES.items()
    ]


def read_products(path: Path) -> list[dict[str, str]]:
    """Return the rows of the file.

    Raises:
        NotAi4i: It cannot be read, lacks columns, or has a product without its numbers.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise NotAi4i(f"{path} cannot be read: {error}") from None
    missing = {"UDI", "Type", *COLUMNS, *MODES} - set(rows[0] if rows else ())
    if missing:
        raise NotAi4i(f"{path} has no column {sorted(missing)[0]!r}: it is not AI4I 2020")
    for number, row in enumerate(rows, start=2):
        try:
            values = [float(int(row["UDI"])), *(float(row[column]) for column in COLUMNS)]
        except (TypeError, ValueError):
            values = [math.nan]
        if not all(map(math.isfinite, values)) or row["Type"] not in _TYPES:
            raise NotAi4i(f"{path}, line {number}: a product has a number, a type (L, M, H) and five values")
    return rows


def _machine(row: dict[str, str]) -> str:
    return f"ai4i-{row['Type']}"


def _at(row: dict[str, str]) -> int:
    return START_MS + int(row["UDI"]) * MINUTE_MS


def _events(rows: list[dict[str, str]]) -> list[Sent]:
    sent = []
    for kind in sorted({row["Type"] for row in rows}):
        sent.append(Sent("equipment", Equipment(f"ai4i-{kind}", START_MS, "", {"type": kind})))
    for row in sorted(rows, key=_at):
        machine, at = _machine(row), _at(row)
        for column, (quantity, unit) in COLUMNS.items():
            reading = Reading(
                f"{row['UDI']}.{quantity}", f"{machine}.{quantity}", machine, "gateway", quantity,
                float(row[column]), unit, at,
            )  # fmt: skip
            sent.append(Sent("readings", reading))
    return sent


def _implied(row: dict[str, str], mode: str) -> bool:
    """Compute a formula over the table itself: the oracle of the false alarms."""
    air, process, speed, torque, wear = (float(row[column]) for column in COLUMNS)
    if mode == "HDF":
        return process - air < 8.6 and speed < 1380
    if mode == "PWF":
        power = torque * speed * 2 * 3.141592653589793 / 60
        return power < 3500 or power > 9000
    return wear * torque > _TYPES[row["Type"]]


def evaluate(path: Path, *, engine: Engine, told: Callable[[int, int], None]) -> dict[str, ModeReport]:
    """Stream the products of a file and return how each mode was found.

    Args:
        path: The file.
        engine: Where it runs.
        told: Called with how many batches are done, of how many.

    Raises:
        NotAi4i: The file is not of this data set.
    """
    rows = read_products(path)
    with written(rules()) as fleet:
        overrides = [
            f"monitor.fleet_file={fleet}",
            "monitor.sensor_least=30d",
            "monitor.judge=false",
            "spark.quick_start=true",
        ]
        result = run(_events(rows), settings_for(overrides), ["alarm_history"], engine=engine, told=told)
    return compare(rows, result.rows["alarm_history"])


def compare(rows: list[dict[str, str]], alarms: list[dict[str, Any]]) -> dict[str, ModeReport]:
    """Return how the products that failed were found by alarms.

    Args:
        rows: The products.
        alarms: Changes of alarms, in any order.
    """
    changes: dict[tuple[str, str], list[tuple[int, bool]]] = {}
    history = sorted(alarms, key=lambda r: (r["event_time_ms"], r["number"]))
    for change in history:
        key = change["entity_id"], change["rule_id"]
        changes.setdefault(key, []).append((change["event_time_ms"], change["active"]))
    reports = {}
    for mode in MODES:
        found = [row for row in rows if _active(changes.get((_machine(row), mode.lower()), []), _at(row))]
        wanted = [row for row in rows if row[mode] == "1"]
        false = [row for row in found if row[mode] != "1"]
        reports[mode] = ModeReport(
            expected=len(wanted),
            matched=sum(1 for row in found if row[mode] == "1"),
            false=len(false),
            implied=sum(1 for row in false if _implied(row, mode)),
            alarms=sum(1 for r in history if r["rule_id"] == mode.lower() and r["change"] == "active"),
        )
    return reports


def _active(changes: list[tuple[int, bool]], at: int) -> bool:
    place = bisect_right(changes, (at, True))
    return place > 0 and changes[place - 1][1]
