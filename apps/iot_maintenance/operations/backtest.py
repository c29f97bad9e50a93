"""Back-test of alarm rules: the app's own monitor over the readings that it has written.

Readings stand in the table as they came, with what held for their machine, so facts are told anew as the
readings saw them. What is in no reading cannot be: errors of controllers, heartbeats, operators' actions.
Rules on what is foreseen are asked of what the models said then, as the tables have it.
"""

from __future__ import annotations

import dataclasses
import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.errors import UserError
from millrace.host.memory import MemoryHost
from millrace_apps.iot_maintenance.alarms.language import FORESIGHT
from millrace_apps.iot_maintenance.alarms.record import AlarmEvent
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule
from millrace_apps.iot_maintenance.contracts.events import Equipment, Maintenance, Reading, Status
from millrace_apps.iot_maintenance.contracts.signals import as_row
from millrace_apps.iot_maintenance.foresight.alarming import Ruling
from millrace_apps.iot_maintenance.foresight.past import Foreseen, PastForesight, seen
from millrace_apps.iot_maintenance.processes.monitor import MachineMonitor, Monitoring
from millrace_apps.iot_maintenance.processes.windows import DAY_MS, FLOOD, WINDOW_MS

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns of the table that are read.
_COLUMNS: Final = (
    *("reading_id", "sensor_id", "machine_id", "quantity", "value", "unit", "event_time_ms"),
    *("status", "status_since_ms", "kind", "attributes", "last_maintenance_ms", "errors_24h"),
)
_BATCH: Final = 5_000
#: Components may have been replaced long before the first reading, ms.
_KEEP_MS: Final = 36_500 * DAY_MS
_time = attrgetter("event_time_ms")
_ERRORS: Final = re.compile(r"\berrors\s*\(")


class BacktestError(UserError):
    """There is nothing to test on."""


class Outcome(msgspec.Struct):
    """What a rule would have done.

    Attributes:
        rule: Its id.
        alarms: How often operators would have been told of an alarm.
        alarms_per_day: The same per day.
        machines: Different machines among them.
        floods: Windows of ten minutes in which a plant would have had more than ten of them.
        worst: Most of them in such a window.
        examples: Up to five of them: the alarm and when, UTC ms.
        not_tried: Why nothing can be said of it; empty: it was tried.
    """

    rule: str
    alarms: int = 0
    alarms_per_day: float = 0.0
    machines: int = 0
    floods: int = 0
    worst: int = 0
    examples: list[tuple[str, int]] = []
    not_tried: str = ""


class Report(msgspec.Struct):
    """What a set of rules would have done.

    Attributes:
        readings: How many were looked at.
        from_ms: Time of the first, UTC ms.
        until_ms: Time of the last, UTC ms.
        days: From the first to the last.
        rules: What each rule would have done.
        together: The same for all rules as one.
        by_day: Begin of a day (UTC ms) → alarms of all rules.
        seconds: How long it took.
    """

    readings: int
    from_ms: int
    until_ms: int
    days: float
    rules: list[Outcome]
    together: Outcome
    by_day: dict[int, int]
    seconds: float = 0.0


def read_table(
    path: Path | str, *, last_ms: int | None = None, check: Callable[[int], None] = lambda rows: None
) -> pa.Table:
    """Return the readings of the table in order of time, as they came: not late ones, and no corrections.

    Args:
        path: The Delta table.
        last_ms: Only the last so many ms.
        check: Called with how many there are before they are read.

    Raises:
        BacktestError: There is no such table, or nothing in it.
    """
    import pyarrow.compute as pc
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        data = DeltaTable(str(path)).to_pyarrow_dataset()
    except TableNotFoundError:
        raise BacktestError(f"there is no table of readings in {path}") from None
    needed = (*_COLUMNS, "late", "revision")
    if missing := [name for name in needed if name not in data.schema.names]:
        raise BacktestError(f"{path} is no table of readings: it has no column '{missing[0]}'")
    as_they_came = (pc.field("revision") == 0) & ~pc.field("late")
    newest = pc.max(data.to_table(columns=["event_time_ms"], filter=as_they_came)["event_time_ms"]).as_py()
    if newest is None:
        raise BacktestError(f"{path} has no reading")
    if last_ms is not None:
        as_they_came &= pc.field("event_time_ms") > newest - last_ms
    check(data.count_rows(filter=as_they_came))
    found = data.to_table(columns=list(_COLUMNS), filter=as_they_came)
    order = ("event_time_ms", "machine_id", "quantity")
    return found.sort_by([(name, "ascending") for name in order])


def events_of(table: pa.Table) -> Iterator[Any]:
    """Yield the readings as they came, and what was new to their machines, in order of time.

    Args:
        table: Readings, as :func:`read_table` gives them.
    """
    facts = sorted(_facts(_rows(table)), key=_time)
    return heapq.merge(facts, map(_reading, _rows(table)), key=_time)


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    for part in table.to_batches(max_chunksize=_BATCH):
        yield from part.to_pylist()


def _reading(row: dict[str, Any]) -> Reading:
    return Reading(
        row["reading_id"],
        row["sensor_id"],
        row["machine_id"],
        "-",
        row["quantity"],
        row["value"],
        row["unit"],
        row["event_time_ms"],
    )


def _facts(rows: Iterable[dict[str, Any]]) -> Iterator[Equipment | Status | Maintenance]:
    """Yield what readings saw of their machines that the readings before had not seen."""
    kinds: dict[str, Any] = {}
    statuses: dict[str, Any] = {}
    replaced: dict[tuple[str, str], int] = {}
    last: dict[str, int] = {}
    for number, row in enumerate(rows):
        machine, at = row["machine_id"], row["event_time_ms"]
        # Never at the reading's own instant, where it might come after it.
        attributes = dict(row["attributes"] or ())
        if kinds.get(machine) != (row["kind"], attributes):
            kinds[machine] = row["kind"], attributes
            yield Equipment(machine, at - 1, row["kind"], attributes)
        since = row["status_since_ms"]
        if row["status"] is not None and statuses.get(machine) != (row["status"], since):
            statuses[machine] = row["status"], since
            seen = min(max(since, last.get(machine, since) + 1), at - 1)  # not by the readings before
            yield Status(f"{machine}.{number}", machine, row["status"], seen, 0, 0)
        for component, when in dict(row["last_maintenance_ms"] or ()).items():
            if replaced.get((machine, component)) != when:
                replaced[machine, component] = when
                yield Maintenance(f"{machine}.{component}.{number}", machine, component, when, "scheduled", 0)
        last[machine] = at


def backtest(
    rules: Sequence[AlarmRule],
    monitoring: Monitoring,
    table: pa.Table,
    *,
    foreseen: Foreseen | None = None,
    every_ms: int = 3_600_000,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Return what rules would have done.

    Args:
        rules: The rules; each is asked as if it were active all the time, and no other.
        monitoring: What the monitor does beside.
        table: Readings, as :func:`read_table` gives them.
        foreseen: What models said meanwhile; ``None``: nothing.
        every_ms: How often they said it, ms.
        progress: Called with the number of readings done, now and then.

    Raises:
        BacktestError: There is no reading.
    """
    if not len(table):
        raise BacktestError("there is no reading in that time")
    cannot = {rule.id: why for rule in rules if (why := _why_not(rule, is_foreseen=foreseen is not None))}
    tried = tuple(rule for rule in rules if rule.id not in cannot and rule.source != FORESIGHT)
    told = dataclasses.replace(monitoring, rules=tried, clock="stream", grace_ms=0, keep_ms=_KEEP_MS)
    times = table.column("event_time_ms")
    first, last = times[0].as_py(), times[-1].as_py()
    tally = _Tally()
    for done, alarms in _alarms(told, table, last):
        for alarm in alarms:
            tally.add(alarm)
        if progress is not None:
            progress(done)
    ahead = tuple(rule for rule in rules if rule.id not in cannot and rule.source == FORESIGHT)
    if ahead and foreseen is not None:
        for alarm in _alarms_ahead(dataclasses.replace(told, rules=ahead), table, last, foreseen, every_ms):
            tally.add(alarm)
        if not foreseen.found:
            cannot |= dict.fromkeys((rule.id for rule in ahead), "models said nothing at the ends of steps")
    days = (last - first) / DAY_MS
    outcomes = [
        Outcome(rule.id, not_tried=cannot[rule.id]) if rule.id in cannot else tally.outcome(rule.id, days)
        for rule in rules
    ]
    together = tally.outcome(None, days)
    together.rule = "together"
    return Report(len(table), first, last, days, outcomes, together, tally.by_day())


def _why_not(rule: AlarmRule, *, is_foreseen: bool) -> str:
    if rule.source == "error":
        return "it is of errors, which stand in no reading"
    if rule.source == FORESIGHT:
        return "" if is_foreseen else "it is of what is foreseen, and no table has what models said then"
    if rule.source == "clock":
        return "it is of clocks, whose times of receipt stand in no reading"
    if any(_ERRORS.search(text) for level in rule.levels for text in (level.when, level.until)):
        return "it asks for errors, which stand in no reading"
    return ""


def _alarms(monitoring: Monitoring, table: pa.Table, last: int) -> Iterator[tuple[int, list[AlarmEvent]]]:
    """Yield how many readings are done, and the changes of alarms since the last time."""
    host = MemoryHost(MachineMonitor(monitoring), records=True)
    done = 0
    batch: list[Any] = []
    for event in events_of(table):
        batch.append(_as_row(event))
        done += isinstance(event, Reading)
        if len(batch) >= _BATCH:
            yield done, [e.payload for e in host.run_batch(batch) if e.output == "alarms"]
            batch = []
    found = [*host.run_batch(batch), *host.advance_watermark(last)]
    yield done, [e.payload for e in found if e.output == "alarms"]


def _alarms_ahead(
    monitoring: Monitoring, table: pa.Table, last: int, foreseen: Foreseen, every_ms: int
) -> Iterator[AlarmEvent]:
    """Yield the changes of alarms of what was foreseen."""
    host = MemoryHost(PastForesight(every_ms, Ruling.of(monitoring), foreseen), records=True)
    rows, before = _rows(table), -(1 << 62)
    while batch := list(islice(rows, _BATCH)):
        until = batch[-1]["event_time_ms"]
        foreseen.pass_to(until, before)  # steps that end before the last batch's end have been judged
        before = until - every_ms
        events = [(row["machine_id"], row["event_time_ms"], seen(row), "readings") for row in batch]
        yield from (e.payload for e in host.run_batch(events) if e.output == "alarms")
    foreseen.pass_to(last)
    yield from (e.payload for e in host.advance_watermark(last) if e.output == "alarms")


_NAMES: Final[dict[Any, str]] = {
    Equipment: "equipment",
    Status: "status",
    Maintenance: "maintenance",
    Reading: "readings",
}


def _as_row(event: Any) -> tuple[str, int, Any]:
    return as_row(_NAMES[type(event)], event)


class _Tally:
    """Counts the alarms that operators would have been told of, as the plant's figures count them."""

    def __init__(self) -> None:
        self._counted: set[str] = set()
        self._told: list[AlarmEvent] = []

    def add(self, event: AlarmEvent) -> None:
        """Take a change of an alarm."""
        if not event.active:
            self._counted.discard(event.alarm_id)
        elif event.announced and (event.alarm_id not in self._counted or event.change == "re_alarm"):
            self._counted.add(event.alarm_id)
            self._told.append(event)

    def outcome(self, rule: str | None, days: float) -> Outcome:
        """Return what a rule has done; of all of them, what they have done together."""
        told = [event for event in self._told if rule is None or event.rule_id == rule]
        windows = Counter((e.plant_id, e.event_time_ms // WINDOW_MS) for e in told)
        return Outcome(
            rule or "",
            len(told),
            round(len(told) / max(days, 1.0), 3),
            len({event.entity_id for event in told}),
            sum(count > FLOOD for count in windows.values()),
            max(windows.values(), default=0),
            [(event.alarm_id, event.event_time_ms) for event in sorted(told, key=_time)[:5]],
        )

    def by_day(self) -> dict[int, int]:
        """Return begin of a day (ms) → alarms."""
        days: dict[int, int] = defaultdict(int)
        for event in self._told:
            days[event.event_time_ms - event.event_time_ms % DAY_MS] += 1
        return dict(sorted(days.items()))
