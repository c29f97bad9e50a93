"""Alarms against what is true of the machines: which had a cause, and how long before a failure they came."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from millrace.console.report import Check
from millrace.testing.world_ledger import WorldTruth

#: Least share of failures that an alarm must come before, and of alarms that must have a cause.
#: In 24 worlds (six seeds, four hours of the day) it was at least 60 % and 71 %.
ANNOUNCED: Final = 0.5
WITH_CAUSE: Final = 0.5
#: Of fewer alarms nothing is said: in a run of some seconds machines are still well.
_LEAST: Final = 4
#: How long after its cause is over an alarm may still come, ms.
AFTER_MS: Final = 3_000
_HOUR_MS: Final = 3_600_000
_MONTH_H: Final = 30 * 24
_EXCEEDED: Final = "limit_exceeded"


class Degradation(NamedTuple):
    """A component that degrades.

    Attributes:
        machine: Its machine.
        quantities: What it shows in.
        begin: Its onset, ms.
        end: When it fails or is replaced, ms.
        fails: Whether it fails.
    """

    machine: str
    quantities: frozenset[str]
    begin: int
    end: int
    fails: bool

    def explains(self, alarm: dict[str, Any]) -> bool:
        """Return whether an alarm may be of it: on what it shows in, or on its controller's errors."""
        at, quantity = alarm["event_time_ms"], alarm["quantity"]
        return (
            alarm["entity_id"] == self.machine
            and self.begin <= at <= self.end + AFTER_MS
            and (not quantity or quantity in self.quantities)
        )


class Exceedance(NamedTuple):
    """A true value beyond its limit.

    Attributes:
        begin: When it got there, ms.
        end: When it was back inside, ms.
        side: Of which limit: ``high`` or ``low``.
    """

    begin: int
    end: int
    side: str


class Judged(NamedTuple):
    """What alarms of machines were worth.

    Attributes:
        alarms: How many there were.
        false: Of these, how many had no cause.
        failures: How many failures there were.
        leads_ms: How long before its failure the first alarm came, of each failure that had one, ms.
    """

    alarms: int
    false: int
    failures: int
    leads_ms: Sequence[int]


def degradations(truths: Iterable[WorldTruth]) -> list[Degradation]:
    """Return the degradations of a ledger."""
    found = []
    for truth in truths:
        detail = truth.detail
        if "onset_ms" in detail and "quantities" in detail:
            fails = detail["failure_ms"] is not None
            end = detail["failure_ms"] if fails else detail["service_ms"]
            quantities = frozenset(detail["quantities"])
            found.append(Degradation(truth.entity, quantities, int(detail["onset_ms"]), int(end), fails))
    return found


def exceedances(truths: Iterable[WorldTruth], last_ms: int) -> dict[str, list[Exceedance]]:
    """Return the sensors whose true value was beyond a limit, and when.

    Args:
        truths: What is true.
        last_ms: The last event's time: the end of what was not over.
    """
    found: dict[str, list[Exceedance]] = {}
    for truth in truths:
        if truth.kind == _EXCEEDED:
            begin, back = int(truth.detail["begin_ms"]), truth.last_event_time_ms
            # The first reading back inside is of it, too; without that it lasts.
            span = Exceedance(begin, back if back > begin else last_ms, truth.detail.get("side", ""))
            found.setdefault(truth.entity, []).append(span)
    return found


def judge(truths: Sequence[WorldTruth], history: Iterable[dict[str, Any]], last_ms: int) -> Judged:
    """Hold the alarms of machines against the ledger.

    An alarm has a cause where a component of its machine degrades that shows in its quantity, or where the
    true value, without the sensor's noise and faults, is beyond the limit.

    Args:
        truths: What is true.
        history: Changes of alarms.
        last_ms: The last event's time.
    """
    worn = degradations(truths)
    beyond = exceedances(truths, last_ms)
    told = [row for row in history if row["change"] == "active" and row["announced"]
            and row["category"] == "process"]  # fmt: skip
    false = 0
    for alarm in told:
        at = alarm["event_time_ms"]
        spans = beyond.get(f"{alarm['entity_id']}.{alarm['quantity']}", ())
        is_beyond = any(one.begin - AFTER_MS <= at <= one.end + AFTER_MS for one in spans)
        false += not (is_beyond or any(one.explains(alarm) for one in worn))
    leads = []
    failed = [one for one in worn if one.fails and one.end < last_ms]
    for one in failed:
        before = [a["event_time_ms"] for a in told if a["event_time_ms"] < one.end and one.explains(a)]
        if before:
            leads.append(one.end - min(before))
    return Judged(len(told), false, len(failed), leads)


def checks(judged: Judged, machine_hours: float, acceleration: float) -> list[Check]:
    """Return what the demo says of alarms and failures.

    Args:
        judged: What alarms were worth.
        machine_hours: How long machines were watched, all together, h of their lives.
        acceleration: How much faster than event time machines live.
    """
    hits, failures = len(judged.leads_ms), judged.failures
    hours = [lead * acceleration / _HOUR_MS for lead in judged.leads_ms]
    ahead = f"median {median(hours) * 60:.0f} min of a machine's life ahead" if hours else ""
    right = judged.alarms - judged.false
    rate = judged.false * _MONTH_H / machine_hours if machine_hours else 0.0
    return [
        Check(
            "failures that an alarm came before",
            f"at least {ANNOUNCED:.0%} of {failures}",
            hits,
            enough(hits, failures, ANNOUNCED),
            ahead,
            compared=failures,
        ),
        Check(
            "alarms of machines with a cause",
            f"at least {WITH_CAUSE:.0%} of {judged.alarms}",
            right,
            judged.alarms < _LEAST or enough(right, judged.alarms, WITH_CAUSE),
            f"{precision(right, judged.alarms)}{judged.false} without one: {rate:,.0f} in a machine's month",
            compared=judged.alarms if judged.alarms >= _LEAST else 0,
        ),
    ]


def precision(right: int, told: int) -> str:
    """Return how many of what was told were right, as the begin of a note; nothing of none.

    >>> precision(3, 4), precision(0, 0)
    ('precision 75%; ', '')
    """
    return f"precision {right / told:.0%}; " if told else ""


def enough(hits: int, of: int, share: float) -> bool:
    """Return whether there are enough; of few, one may be missed."""
    return hits >= min(share * of, of - 1) and (hits > 0 or not of)
