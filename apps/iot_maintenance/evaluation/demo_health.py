"""Checks of T² and Q in the demo, against the truth about the machines."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from millrace.console.report import Check
from millrace_apps.iot_maintenance.evaluation.demo_foreseen import APART_MS, Causes, Row, Scored, of_scores

#: From this score on a machine is beyond the limit of T² or of Q.
NORMAL: Final = 0.5
#: Of fewer intervals on the way to a failure nothing is said.
LEAST_WORN: Final = 60


def judge_health(causes: Causes, rows: Sequence[Row], last_ms: int) -> Scored:
    """Hold what machines' sensors say together against the ledger.

    Args:
        causes: What explains it.
        rows: All intervals: ``machine_id``, ``event_time_ms``, ``score``.
        last_ms: The last event's time.
    """
    told = sorted((row for row in rows if row["score"] > NORMAL), key=lambda row: row["event_time_ms"])
    first: dict[str, int] = {}
    for row in rows:
        machine, at = row["machine_id"], row["event_time_ms"]
        first[machine] = min(first.get(machine, at), at)
    beyond: dict[str, list[int]] = defaultdict(list)
    false: dict[str, int] = {}
    alone = 0
    for row in told:
        machine, at = row["machine_id"], row["event_time_ms"]
        beyond[machine].append(at)
        if not causes.of_machine(row):
            alone += at - false.get(machine, -APART_MS - 1) > APART_MS
            false[machine] = at
    failures, leads = 0, []
    for one in causes.worn:
        if not one.fails or one.end >= last_ms or first.get(one.machine, last_ms) > one.begin:
            continue
        failures += 1
        times = [at for at in beyond.get(one.machine, ()) if one.begin <= at < one.end]
        if times:
            leads.append(one.end - times[0])
    of_all, of_told = (Counter(map(causes.of_machine, some)) for some in (rows, told))
    return Scored(of_all, of_told, alone, failures, leads)


def health_checks(scored: Scored, machine_hours: float, acceleration: float) -> list[Check]:
    """Return what the demo says of machines whose sensors together are not normal.

    Args:
        scored: What such intervals were worth.
        machine_hours: How long machines were watched, all together, h of their lives.
        acceleration: How much faster than event time machines live.
    """
    return of_scores("machines out of normal", scored, LEAST_WORN, machine_hours, acceleration)
