"""Anomaly scores, forecasts of limits, and alarms of what is foreseen against what is true of the machines.

For each score the ledger says whether something was wrong there and then: a component that degrades and
shows in the quantity, a sensor that lies, a true value beyond its limit, a failure that stops the machine.
That a machine has begun to do something else is in the statuses. What is left has no cause.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from math import sqrt
from statistics import median
from typing import Any, Final, NamedTuple

from millrace.console.report import Check, same
from millrace.testing.world_ledger import WorldTruth
from millrace.time import NEVER
from millrace_apps.iot_maintenance.alarms.language import Facts
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, CompiledRule
from millrace_apps.iot_maintenance.evaluation.demo_causes import (
    AFTER_MS,
    Degradation,
    degradations,
    enough,
    exceedances,
    precision,
)

#: How many times as often as by chance unusual values must have a cause, and be on the way to a failure, and
#: of how many failures some must come before. In 16 worlds of a minute at 1,000 events a second (eight seeds,
#: at ten and at two o'clock) it was at least 2.7 times, 1.9 times and 57 %. Shares hang on the hour: by night
#: few machines work, and a cause have 49 % of what is unusual and 17 % of all values.
TIMES: Final = 2.0
#: Where nearly everything has a cause.
_NEARLY_ALL: Final = 0.8
BEFORE: Final = 0.5
#: Least share of forecasts of a limit that must come true, and of limits passed that must be foreseen. In the
#: same worlds it was at least 5 % (4 of 77, 1.3 times as often as by chance) and 43 %.
TRUE: Final = 0.08
FORESEEN: Final = 0.25
#: Of how many failures an alarm of what is foreseen must come before, of fewer such alarms nothing is said,
#: and in how many times without wear a failure may be foreseen, but for what is chance. In 15 of the same
#: worlds these alarms were right at least 2.5 times as often as by chance, and came before 36 % of failures.
WARNED: Final = 0.4
LEAST_WARNED: Final = 5
DOUBTED: Final = 0.25
#: A time without wear has at least so many steps at which it was looked ahead.
LEAST_STEPS: Final = 5
#: What is counted is by chance less than is to be expected, by so many of its standard deviations (Poisson).
_DEVIATIONS: Final = 2.0
#: Of fewer unusual values, values on the way to a failure, and limits foreseen nothing is said: a run of some
#: seconds has hardly learned, and that none of 20 limits is passed is no wonder where one in 20 is.
_LEAST_TOLD: Final = 20
_LEAST_WORN: Final = 200
LEAST_SAID: Final = 40
#: Of fewer failures, and limits passed, all may have been missed.
FEW: Final = 3
#: A machine whose status has changed shows other values for so long, ms.
_SETTLES_MS: Final = 2_000
#: Values without a cause of one point, so close to each other, are one false alarm, ms.
APART_MS: Final = 3_000
#: A forecast has come true where its limit is passed so much after what is looked at, ms.
_LATE_MS: Final = 2_000
_HOUR_MS: Final = 3_600_000
_MONTH_H: Final = 30 * 24
_SIDES: Final = {"above": "high", "below": "low"}

Row = dict[str, Any]


class Causes:
    """What explains a value of a measuring point at a time.

    Args:
        truths: What is true, by the ledger.
        readings: Rows with ``machine_id`` and ``status_since_ms``: when machines began what they do.
        last_ms: The last event's time.
    """

    def __init__(self, truths: Sequence[WorldTruth], readings: Iterable[Row], last_ms: int) -> None:
        self.worn = degradations(truths)
        self._worn: dict[str, list[Degradation]] = defaultdict(list)
        for one in self.worn:
            self._worn[one.machine].append(one)
        self.passed = exceedances(truths, last_ms)
        self._faults: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for truth in truths:
            if truth.kind.startswith("sensor_"):
                span = int(truth.detail["begin_ms"]), int(truth.detail["end_ms"])
                self._faults[truth.entity].append(span)
        begun: dict[str, set[int]] = defaultdict(set)
        for row in readings:
            if row["status_since_ms"] is not None:
                begun[row["machine_id"]].add(row["status_since_ms"])
        self._begun = {machine: sorted(times) for machine, times in begun.items()}
        self._sensors: dict[str, set[str]] = defaultdict(set)
        for sensor in (*self._faults, *self.passed):
            self._sensors[sensor.partition(".")[0]].add(sensor)

    def of(self, row: Row) -> str:
        """Return what explains a score: one of :data:`_NAMES`, or nothing."""
        machine, quantity, at = row["machine_id"], row["quantity"], row["event_time_ms"]
        worn, point = self._worn.get(machine, ()), sensor_of(row)
        if any(quantity in one.quantities and one.begin <= at <= one.end + AFTER_MS for one in worn):
            return "wear"
        if any(begin <= at <= end + AFTER_MS for begin, end in self._faults.get(point, ())):
            return "sensor"
        if any(one.begin <= at <= one.end + AFTER_MS for one in self.passed.get(point, ())):
            return "limit"
        if any(one.fails and one.end <= at <= one.end + AFTER_MS for one in worn):
            return "failure"
        return self._status(machine, at)

    def of_machine(self, row: Row) -> str:
        """Return what explains that a machine's sensors together are not as they were; the same words."""
        machine, at = row["machine_id"], row["event_time_ms"]
        if any(one.begin <= at <= one.end + AFTER_MS for one in self._worn.get(machine, ())):
            return "wear"
        sensors = self._sensors.get(machine, ())
        if any(b <= at <= e + AFTER_MS for sensor in sensors for b, e in self._faults.get(sensor, ())):
            return "sensor"
        passed = (one for sensor in sensors for one in self.passed.get(sensor, ()))
        if any(one.begin <= at <= one.end + AFTER_MS for one in passed):
            return "limit"
        return self._status(machine, at)

    def _status(self, machine: str, at: int) -> str:
        begun = self._begun.get(machine, [])
        place = bisect_right(begun, at)
        return "status" if place and at - begun[place - 1] <= _SETTLES_MS else ""


def sensor_of(row: Row) -> str:
    """Return the sensor of a row, as the ledger names it: of a quantity that a machine has once its only one.

    >>> sensor_of({"machine_id": "m", "quantity": "flow"})
    'm.flow'
    """
    return row.get("sensor_id") or f"{row['machine_id']}.{row['quantity']}"


class Scored(NamedTuple):
    """What unusual values were worth.

    Attributes:
        values: Cause → values that were scored.
        told: Cause → those of them that are unusual.
        false: Times at which something was told that had no cause.
        failures: Failures of what was known to the scores when it began to degrade.
        leads_ms: How long before its failure the first unusual value came, of each that had one, ms.
    """

    values: Counter[str]
    told: Counter[str]
    false: int
    failures: int
    leads_ms: list[int]

    @property
    def times(self) -> float:
        """How many times as often as others values on the way to a failure are unusual."""
        told, chance = self.told.total(), self.chance
        return self.told["wear"] / told / chance if told and chance else 0.0

    @property
    def chance(self) -> float:
        """Share of all values that are on the way to a failure."""
        values = self.values.total()
        return self.values["wear"] / values if values else 0.0

    @property
    def least(self) -> float:
        """Share of unusual values that must have a cause, by that of all values that have one."""
        values = self.values.total()
        return min(TIMES * (1.0 - self.values[""] / values), _NEARLY_ALL) if values else _NEARLY_ALL


def judge_scores(causes: Causes, scores: Sequence[Row], told: Sequence[Row], last_ms: int) -> Scored:
    """Hold scores against the ledger.

    Args:
        causes: What explains values.
        scores: All scores: ``machine_id``, ``quantity``, ``event_time_ms``, and ``sensor_id`` where a machine
            has several sensors of a quantity.
        told: Those that are unusual.
        last_ms: The last event's time.
    """
    found = Counter(causes.of(row) for row in told)
    first = _first(scores)
    sensors: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in scores:
        sensors[row["machine_id"], row["quantity"]].add(sensor_of(row))
    by_point: dict[str, list[int]] = defaultdict(list)
    false: dict[str, int] = {}
    alone = 0
    for row in sorted(told, key=lambda r: r["event_time_ms"]):
        point, at = sensor_of(row), row["event_time_ms"]
        by_point[point].append(at)
        if not causes.of(row):
            alone += at - false.get(point, -_HOUR_MS) > APART_MS
            false[point] = at
    failures, leads = 0, []
    for one in causes.worn:
        points = sorted({point for q in one.quantities for point in sensors.get((one.machine, q), ())})
        if not one.fails or one.end >= last_ms or not any(first.get(p, last_ms) <= one.begin for p in points):
            continue
        failures += 1
        times = [at for point in points for at in by_point.get(point, ()) if one.begin <= at < one.end]
        if times:
            leads.append(one.end - min(times))
    return Scored(Counter(causes.of(row) for row in scores), found, alone, failures, leads)


class Foretold(NamedTuple):
    """What forecasts of limits were worth.

    Attributes:
        told: How often it was said that a limit will be passed, of points that were inside it.
        true: How often it then was, in the time that is looked at.
        chance: Share of scored values after which a limit was passed in that time.
        passed: Limits passed because of a component's wear, at points that were known.
        leads_ms: How long before it was said, of each that was foreseen, ms.
    """

    told: int
    true: int
    chance: float
    passed: int
    leads_ms: list[int]

    @property
    def times(self) -> float:
        """How many times as often as by chance a forecast comes true."""
        return self.true / self.told / self.chance if self.told and self.chance else 0.0


def judge_forecasts(
    causes: Causes, forecasts: Iterable[Row], scores: Sequence[Row], ahead_ms: int, last_ms: int
) -> Foretold:
    """Hold forecasts against the limits that were passed.

    Args:
        causes: What is true.
        forecasts: What was said, in any order: ``machine_id``, ``quantity``, ``subject``, ``event_time_ms``,
            ``side``.
        scores: All scores, by which points are known.
        ahead_ms: How far ahead is looked, ms.
        last_ms: The last event's time.
    """
    said: dict[str, list[tuple[int, str]]] = defaultdict(list)
    quantities = {sensor_of(row): (row["machine_id"], row["quantity"]) for row in scores}
    sensors = {(row["machine_id"], row["subject"]): sensor_of(row) for row in scores}
    for row in forecasts:
        point = sensors.get((row["machine_id"], row["subject"]), sensor_of(row))
        said[point].append((row["event_time_ms"], row["side"]))
    begun = {point: [begin for begin, _ in _begins(rows)] for point, rows in said.items()}
    reach = ahead_ms + _LATE_MS
    told = true = 0
    for point, rows in said.items():
        for at, side in _begins(rows):
            of = [one for one in causes.passed.get(point, ()) if one.side == _SIDES[side]]
            if any(one.begin <= at <= one.end for one in of) or at + reach > last_ms:
                continue
            told += 1
            true += any(at < one.begin <= at + reach for one in of)
    begins = {point: sorted(one.begin for one in passed) for point, passed in causes.passed.items()}
    ahead = of_points = 0
    for row in scores:
        point, at = sensor_of(row), row["event_time_ms"]
        if point in said and at + reach <= last_ms:
            of_points += 1
            times = begins.get(point, [])
            ahead += bisect_right(times, at) < bisect_right(times, at + reach)
    first, passed, leads = _first(scores), 0, []
    for point, of in causes.passed.items():
        machine, quantity = quantities.get(point, ("", ""))
        for one in of:
            row = {"machine_id": machine, "quantity": quantity, "sensor_id": point}
            is_worn = causes.of({**row, "event_time_ms": one.begin}) == "wear"
            if not is_worn or first.get(point, last_ms) > one.begin:
                continue
            passed += 1
            times = begun.get(point, [])
            place = bisect_left(times, one.begin - reach)
            if place < len(times) and times[place] < one.begin:
                leads.append(one.begin - times[place])
    return Foretold(told, true, ahead / of_points if of_points else 0.0, passed, leads)


def _begins(rows: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return when it was said anew that a limit will be passed, and on which side."""
    found, before = [], "none"
    for at, side in sorted(rows):
        if side not in ("none", before):
            found.append((at, side))
        before = side
    return found


def _first(scores: Iterable[Row]) -> dict[str, int]:
    """Return when a point was scored first, ms."""
    found: dict[str, int] = {}
    for row in scores:
        point, at = sensor_of(row), row["event_time_ms"]
        found[point] = min(found.get(point, at), at)
    return found


class Warned(NamedTuple):
    """What alarms of what is foreseen were worth.

    Attributes:
        told: How many there were.
        right: Of these, how many while a component of the machine degraded.
        chance: Share of the steps of machines that run at which one does.
        failures: Failures of machines that were looked at when they began to degrade.
        by_chance: How many of these had an alarm before, were as many alarms raised at any steps.
        leads_ms: How long before its failure the first alarm came, of each that had one, ms.
        well: Times in which no component of a machine degrades: before the first one does, between two, and
            after the last; in the end every machine wears, and each is well for a while.
        doubted: Of these, how many had an alarm.
    """

    told: int
    right: int
    chance: float
    failures: int
    by_chance: float
    leads_ms: list[int]
    well: int
    doubted: int


def judge_warnings(
    worn: Sequence[Degradation],
    alarms: Iterable[Row],
    steps: Iterable[tuple[str, int]],
    readings: Iterable[Row],
    stopped: Container[str],
    last_ms: int,
) -> Warned:
    """Hold alarms of what is foreseen against the ledger.

    Args:
        worn: The degradations.
        alarms: Changes of these alarms: ``entity_id``, ``event_time_ms``, ``change``, ``announced``.
        steps: Machine and time of each step at which it was looked ahead.
        readings: Rows with ``machine_id``, ``event_time_ms`` and ``status``.
        stopped: Statuses of machines that do not run: of these nothing is told.
        last_ms: The last event's time.
    """
    statuses: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for row in sorted(readings, key=lambda r: r["event_time_ms"]):
        of = statuses[row["machine_id"]]
        if row["status"] is not None and (not of or of[-1][1] != row["status"]):
            of.append((row["event_time_ms"], row["status"]))
    by_machine: dict[str, list[Degradation]] = defaultdict(list)
    for one in worn:
        by_machine[one.machine].append(one)
    running: dict[str, list[int]] = defaultdict(list)
    for machine, at in sorted(set(steps)):
        of = statuses.get(machine, [])
        place = bisect_right(of, at, key=lambda pair: pair[0])
        if place and of[place - 1][1] not in stopped:
            running[machine].append(at)

    def degrades(machine: str, at: int) -> bool:
        return any(one.begin <= at <= one.end for one in by_machine.get(machine, ()))

    told = [(row["entity_id"], row["event_time_ms"]) for row in alarms
            if row["change"] == "active" and row["announced"]]  # fmt: skip
    count = sum(map(len, running.values()))
    there = sum(degrades(machine, at) for machine, times in running.items() for at in times)
    failures, by_chance, leads = 0, 0.0, []
    for one in worn:
        times = running.get(one.machine, ())
        if not one.fails or one.end >= last_ms or not times or times[0] > one.begin:
            continue
        failures += 1
        share = sum(one.begin <= at < one.end for at in times) / count
        by_chance += 1.0 - (1.0 - share) ** len(told)
        before = [at for machine, at in told if machine == one.machine and one.begin <= at < one.end]
        if before:
            leads.append(one.end - min(before))
    well = [
        (machine, after, before)
        for machine, times in running.items()
        for after, before in _without_wear(by_machine.get(machine, ()))
        if sum(after < at < before for at in times) >= LEAST_STEPS
    ]
    return Warned(
        len(told),
        sum(degrades(machine, at) for machine, at in told),
        there / count if count else 0.0,
        failures,
        by_chance,
        leads,
        len(well),
        sum(any(of == machine and after < at < before for of, at in told) for machine, after, before in well),
    )


def _without_wear(worn: Iterable[Degradation]) -> Iterator[tuple[int, int]]:
    """Yield the times in which nothing of a machine degrades: after when and before when, ms."""
    after = -NEVER
    for one in sorted(worn, key=lambda one: one.begin):
        if after < one.begin:
            yield after, one.begin
        after = max(after, one.end + AFTER_MS)
    yield after, NEVER


def warning_checks(warned: Warned, machine_hours: float, acceleration: float) -> list[Check]:
    """Return what the demo says of alarms of what is foreseen.

    Args:
        warned: What they were worth.
        machine_hours: How long machines were watched, all together, h of their lives.
        acceleration: How much faster than event time machines live.
    """
    wrong = warned.told - warned.right
    least = min(TIMES * warned.chance, _NEARLY_ALL)
    hits, wanted = len(warned.leads_ms), WARNED * warned.failures
    more = min(TIMES * warned.by_chance, _NEARLY_ALL * warned.failures)
    said = warned.told >= LEAST_WARNED
    return [
        Check(
            "failures foreseen of machines that wear",
            f"at least {least:.0%} of {warned.told}, {TIMES:g} times as often as by chance",
            warned.right,
            not said or warned.right >= least * warned.told,
            f"{precision(warned.right, warned.told)}{_false_alarms(wrong, machine_hours)}",
            compared=warned.told if said else 0,
        ),
        Check(
            "failures that were foreseen",
            f"at least {WARNED:.0%} of {warned.failures}, {TIMES:g} times as many as by chance: {more:.1f}",
            hits,
            warned.failures < FEW or (expected(hits) >= wanted and hits >= more),
            _ahead(warned.leads_ms, acceleration),
            compared=warned.failures if warned.failures >= FEW else 0,
        ),
        Check(
            "times without wear of a machine of which a failure is foreseen",
            f"at most {DOUBTED:.0%} of {warned.well}",
            warned.doubted,
            warned.doubted <= expected(DOUBTED * warned.well),
            compared=warned.well if warned.well > 1 else 0,
        ),
    ]


def raised_as_told(rules: Sequence[AlarmRule], risks: Iterable[Row], alarms: Iterable[Row]) -> Check:
    """Return whether alarms begin and end where the table of risks says, by a loop over its rows.

    Args:
        rules: The rules on risks, each of one level without delays.
        risks: Rows with ``machine_id``, ``component``, ``event_time_ms`` and ``probability``.
        alarms: Changes of alarms.
    """
    steps: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for row in risks:
        steps[row["machine_id"], row["event_time_ms"]][row["component"]] = row["probability"]
    wanted = set()
    for rule in map(CompiledRule, rules):
        on: set[str] = set()
        for (machine, at), of in sorted(steps.items()):
            facts = Facts(at)
            facts.risks = of
            if rule.levels[0].holds(facts, machine in on) != (machine in on):
                on ^= {machine}
                wanted.add((rule.rule.id, machine, at, "active" if machine in on else "inactive"))
    names = {rule.id for rule in rules}
    found = {
        (row["rule_id"], row["entity_id"], row["event_time_ms"], row["change"])
        for row in alarms
        if row["rule_id"] in names and row["change"] in ("active", "inactive")
    }
    return same("alarms of what is foreseen = risks beyond their limit", wanted, found)


def checks(scored: Scored, foretold: Foretold, machine_hours: float, acceleration: float) -> list[Check]:
    """Return what the demo says of scores and forecasts.

    Args:
        scored: What unusual values were worth.
        foretold: What forecasts were worth.
        machine_hours: How long machines were watched, all together, h of their lives.
        acceleration: How much faster than event time machines live.
    """
    least = max(TRUE, TIMES * foretold.chance)
    wrong, foreseen = foretold.told - foretold.true, len(foretold.leads_ms)
    return [
        *of_scores("unusual values", scored, _LEAST_WORN, machine_hours, acceleration),
        Check(
            "limits foreseen that were passed",
            f"at least {TRUE:.0%} of {foretold.told}, {TIMES:g} times as often as by chance",
            f"{foretold.true}, {foretold.times:.1f} times",
            foretold.told < LEAST_SAID
            or (foretold.true > 0 and expected(foretold.true) >= foretold.told * least),
            f"{precision(foretold.true, foretold.told)}{_false_alarms(wrong, machine_hours)}",
            compared=foretold.told if foretold.told >= LEAST_SAID else 0,
        ),
        Check(
            "limits passed that were foreseen",
            f"at least {FORESEEN:.0%} of {foretold.passed}",
            foreseen,
            foretold.passed < FEW or (foreseen > 0 and expected(foreseen) >= FORESEEN * foretold.passed),
            _ahead(foretold.leads_ms, acceleration),
            compared=foretold.passed,
        ),
    ]


def of_scores(
    what: str, scored: Scored, least_worn: int, machine_hours: float, acceleration: float
) -> list[Check]:
    """Return the checks of scores: that they have causes, tell of wear, and come before failures.

    Args:
        what: What the scores are of.
        scored: What they were worth.
        least_worn: Of fewer of them on the way to a failure nothing is said.
        machine_hours: How long machines were watched, all together, h of their lives.
        acceleration: How much faster than event time machines live.
    """
    told, right = scored.told.total(), scored.told.total() - scored.told[""]
    worn, before = scored.values["wear"], len(scored.leads_ms)
    causes = ", ".join(f"{name} {scored.told[name]}" for name in _NAMES if scored.told[name])
    note = f"{precision(right, told)}{causes}; {_false_alarms(scored.false, machine_hours)}" if told else ""
    return [
        Check(
            f"{what} with a cause",
            f"at least {scored.least:.0%} of {told}, {TIMES:g} times as often as by chance",
            right,
            told < _LEAST_TOLD or enough(right, told, scored.least),
            note,
            compared=told if told >= _LEAST_TOLD else 0,
        ),
        Check(
            f"{what} on the way to a failure",
            f"at least {TIMES:g} times as often as by chance",
            f"{scored.times:.1f} times",
            worn < least_worn or expected(scored.told["wear"]) >= TIMES * scored.chance * told > 0,
            f"{scored.told['wear'] / told if told else 0:.0%} of them",
            compared=worn if worn >= least_worn else 0,
        ),
        Check(
            f"failures that {what} came before",
            f"at least {BEFORE:.0%} of {scored.failures}",
            before,
            scored.failures < FEW or enough(before, scored.failures, BEFORE),
            _ahead(scored.leads_ms, acceleration),
            compared=scored.failures,
        ),
    ]


def _false_alarms(count: int, machine_hours: float) -> str:
    rate = count * _MONTH_H / machine_hours if machine_hours else 0.0
    return f"false alarms {count}: {rate:,.0f} in a machine's month"


def _ahead(leads_ms: Sequence[int], acceleration: float) -> str:
    minutes = median(leads_ms) * acceleration / 60_000 if leads_ms else 0.0
    return f"median {minutes:.0f} min of a machine's life ahead" if leads_ms else ""


def expected(count: float) -> float:
    """Return the most that may be expected where so many were counted.

    >>> expected(4), expected(100)
    (8.0, 120.0)
    """
    return count + _DEVIATIONS * sqrt(count)


_NAMES: Final = ("wear", "sensor", "limit", "failure", "status")


def consistent(
    scores: Sequence[Row], told: Sequence[Row], threshold: float, said: Iterable[Row], newest: Iterable[Row]
) -> list[Check]:
    """Return whether what is unusual and foreseen stands everywhere as it was found.

    Args:
        scores: All scores.
        told: Unusual values.
        threshold: From which score on a value is one.
        said: Forecasts on the topic.
        newest: Forecasts in the table, one of a point.
    """
    last: Mapping[tuple[str, str], Row] = {
        (row["machine_id"], row["subject"]): row for row in sorted(said, key=lambda r: r["event_time_ms"])
    }
    return [
        same(
            "unusual values = scores from the threshold on",
            {_value(row) for row in scores if row["score"] >= threshold},
            {_value(row) for row in told},
        ),
        same(
            "newest forecasts on the topic = table",
            {_forecast(row) for row in last.values()},
            {_forecast(row) for row in newest},
        ),
    ]


def _value(row: Row) -> tuple[object, ...]:
    return row["machine_id"], row["subject"], row["event_time_ms"], row["score"]


def _forecast(row: Row) -> tuple[object, ...]:
    return row["machine_id"], row["subject"], row["event_time_ms"], row["side"], row["in_h"]
