"""The limits of a measuring point as rules have them now: of the fleet's file, and published since.

Of an expression those are limits that it holds the value, or the mean, least or largest value of a time
against: numbers, master data (``attribute('limit')``), and what is reckoned of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from millrace.dashboard.data import AppData
from millrace.dashboard.values import as_dict
from millrace.errors import UserError
from millrace_apps.iot_maintenance.alarms.book import RuleBook, read_rules
from millrace_apps.iot_maintenance.alarms.bounds import limits_in
from millrace_apps.iot_maintenance.contracts.events import Equipment
from millrace_apps.iot_maintenance.dashboard.data import Row
from millrace_apps.iot_maintenance.state.assets import quantity_of, subject_of

if TYPE_CHECKING:
    from millrace_apps.iot_maintenance.alarms.rule import AlarmRule

#: So many records of master data are looked through for those of a machine, from the newest back.
_MASTER_DATA: Final = 2_000


def limits_of(data: AppData, subject: str, row: Row, told: Sequence[Row]) -> list[float]:
    """Return the limits of a point: of the rules in force at its newest reading, and of alarms that stand.

    Args:
        data: The app's data.
        subject: The measuring point.
        row: Its newest reading: ``kind``, ``attributes``, ``machine_id``, ``event_time_ms``.
        told: Alarms of its machine.
    """
    quantity, kind = quantity_of(subject), row["kind"] or ""
    found: set[float] = set()
    attributes: Mapping[str, str] | None = None
    for rule in rules_in_force(data, row["event_time_ms"]):
        if quantity not in rule.quantities or (rule.kinds and kind not in rule.kinds):
            continue
        for level in rule.levels:
            found |= {limit for limit in (level.above, level.below) if limit is not None}
            if level.when and rule.source == "reading":
                if attributes is None:
                    own = of_point(data, row["machine_id"], subject) if "attribute" in level.when else {}
                    attributes = {**as_dict(row.get("attributes")), **own}
                found |= limits_in(level.when, attributes)
    for alarm in told:
        if alarm["limit"] is not None and alarm["alarm_id"].partition("/")[2] == subject:
            found.add(alarm["limit"])
    return sorted(found)


def rules_in_force(data: AppData, at: int) -> list[AlarmRule]:
    """Return the rules that are active at an event time, ms: the file's, unless others were published."""
    fleet = str(data.settings.monitor.fleet_file)
    defaults: tuple[AlarmRule, ...] = data.once("fleet's rules", fleet, lambda: _rules(Path(fleet)))
    control = str(data.settings.topics.control)
    try:
        ends = data.broker.ends([control]).get(control, {}) if data.broker is not None else {}
        if not any(ends.values()):
            return list(defaults)
        version = fleet, control, tuple(sorted(ends.items()))
        book: RuleBook = data.once("published rules", version, lambda: _published(data, defaults))
    except UserError:
        return list(defaults)  # no broker answers: what was published is not known
    return book.active(at)


def _rules(path: Path) -> tuple[AlarmRule, ...]:
    try:
        return tuple(read_rules(path))
    except UserError:
        return ()  # the file is elsewhere: limits are those of published rules and alarms


def _published(data: AppData, defaults: tuple[AlarmRule, ...]) -> RuleBook:
    from millrace.operations.control_topic import ControlTopic
    from millrace_apps.iot_maintenance.operations.app_rules import RULES

    return RuleBook(defaults, ControlTopic(RULES, data.settings).read().rules.items())


def of_point(data: AppData, machine: str, subject: str) -> Mapping[str, str]:
    """Return the attributes of a measuring point, as the newest master data of its machine have them."""
    topic = str(data.settings.topics.equipment)
    try:
        ends = data.broker.ends([topic]).get(topic, {}) if data.broker is not None else {}
        if data.broker is None or not any(ends.values()):
            return {}
        tail = data.broker.tail
        newest = data.once("master data", (topic, tuple(sorted(ends.items()))),
                           lambda: _newest(record.value for record in tail(topic, _MASTER_DATA)))  # fmt: skip
    except UserError:
        return {}
    found: Equipment | None = newest.get(machine)
    points = () if found is None else found.points
    return next((p.attributes for p in points if subject_of(p.quantity, p.point) == subject), {})


def _newest(values: Iterator[bytes | None]) -> dict[str, Equipment]:
    found: dict[str, Equipment] = {}
    for value in values:
        try:
            said = msgspec.json.decode(value or b"", type=Equipment)
        except msgspec.DecodeError:
            continue  # a dead letter
        before = found.get(said.machine_id)
        if before is None or before.event_time_ms <= said.event_time_ms:
            found[said.machine_id] = said
    return found
