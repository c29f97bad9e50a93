"""The effect of dead-band and delays on an alarm: series of the Numenta Anomaly Benchmark.

Each series is a sensor with a limit above and one below: mean and ``WIDTH`` standard deviations of its first
15 %. One rule has the bare limits, the other a dead-band, an on-delay and an off-delay. The numbers below are
the same for all series. They were chosen on other folders (realTweets, artificialWithAnomaly,
artificialNoAnomaly) from dead-bands of 0, 0.5, 1, 2 deviations, on-delays of 0, 5, 10, 15, 30 minutes and
off-delays of 0, 1, 2, 3, 6, 12 hours: of those with less than a tenth of the bare rule's transitions, and
active for at most 3 % of the time, the ones that hit the most windows, with the largest dead-band of these.
A rule that stays active says nothing: ``MOST_ACTIVE`` of the time is the most.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from math import fsum, sqrt
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from millrace.errors import UserError
from millrace_apps.iot_maintenance.alarms.rule import AlarmRule, Level
from millrace_apps.iot_maintenance.contracts.events import Reading
from millrace_apps.iot_maintenance.evaluation.stream import Engine, Sent, run, settings_for, written

WIDTH: Final = 3.5
DEAD_BAND: Final = 1.0
ON_DELAY_MS: Final = 900_000
OFF_DELAY_MS: Final = 2 * 3_600_000
MOST_ACTIVE: Final = 0.1
LEARN: Final = 0.15
BARE, FILTERED = "bare", "filtered"


class NotNab(UserError):
    """A file is no series of the benchmark, or has no windows."""


class Series(NamedTuple):
    """One series.

    Attributes:
        name: Folder and file, as the windows name it.
        times: Times, ms.
        values: Values.
    """

    name: str
    times: list[int]
    values: list[float]


class FilterReport(msgspec.Struct, frozen=True):
    """What one rule did over all series.

    Attributes:
        transitions: How often alarms became active or inactive.
        windows_hit: Labelled windows in which the alarm is active at some time.
        windows_raised: Labelled windows in which it becomes active.
        active_share: Mean share of its series' time in which it is active.
    """

    transitions: int
    windows_hit: int
    windows_raised: int
    active_share: float


class NabReport(msgspec.Struct, frozen=True):
    """What the evaluation found.

    Attributes:
        series: Series judged.
        windows: Labelled windows in them.
        points: Values in them.
        bare: The rule with bare limits.
        filtered: The one with dead-band and delays.
        fewer: By how much the second has fewer transitions.
        windows_raised: Labelled windows in which the second becomes active.
        active_share: Mean share of the time in which it is active.
        held: Whether that is at most a tenth.
        settings: The one configuration of all series.
        engine: Where it ran.
    """

    series: int
    windows: int
    points: int
    bare: FilterReport
    filtered: FilterReport
    fewer: float
    settings: dict[str, float]
    engine: str
    windows_raised: int = 0
    active_share: float = 0.0
    held: bool = True


def read_series(path: Path) -> Series:
    """Return the series of a file.

    Raises:
        NotNab: It cannot be read, or has no timestamps and values.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = [(as_ms(row["timestamp"]), float(row["value"])) for row in csv.DictReader(lines)]
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise NotNab(f"{path} is no series of timestamp and value: {error}") from None
    # Where clocks went back, and where a time comes twice, the last value of a time counts.
    at = dict(sorted(rows, key=lambda row: row[0]))
    if len(at) < 20:
        raise NotNab(f"{path} has {len(at)} values: too few")
    return Series(name_of(path), list(at), list(at.values()))


def name_of(path: Path) -> str:
    """Return the name that windows have for a file: that of its folder and its own, as they are given.

    >>> name_of(Path("nab/realX/../realY/one.csv"))
    'realY/one.csv'
    """
    # A link is not followed: what is gathered of other folders has the names that it is gathered by.
    return f"{Path(os.path.abspath(path)).parent.name}/{path.name}"


def read_windows(path: Path) -> Mapping[str, list[tuple[int, int]]]:
    """Return the labelled windows by series, ms, both ends in them.

    Raises:
        NotNab: The file is no list of windows.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise NotNab(f"{path} is no list of labelled windows: it names no files")
        return {name: [(as_ms(low), as_ms(high)) for low, high in of] for name, of in found.items()}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise NotNab(f"{path} is no list of labelled windows: {error}") from None


def as_ms(text: str) -> int:
    """Return a time of the benchmark, which names no zone, in ms."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def rules_for(number: int, series: Series) -> list[AlarmRule]:
    """Return the two rules of a series: limits from its first 15 %, everything else the same for all."""
    known = series.values[: max(int(LEARN * len(series.values)), 2)]
    mean = fsum(known) / len(known)
    deviation = sqrt(fsum((value - mean) ** 2 for value in known) / len(known))
    high, low = mean + WIDTH * deviation, mean - WIDTH * deviation
    quantity = f"q{number}"
    filtered = Level(
        above=high, below=low, dead_band=DEAD_BAND * deviation, on_delay=ON_DELAY_MS, off_delay=OFF_DELAY_MS
    )
    return [
        AlarmRule(f"{BARE}-{number}", (Level(above=high, below=low),), quantities=(quantity,)),
        AlarmRule(f"{FILTERED}-{number}", (filtered,), quantities=(quantity,)),
    ]


def evaluate(
    files: Sequence[Path], windows: Path, *, engine: Engine, told: Callable[[int, int], None]
) -> NabReport:
    """Stream series and return what both rules did.

    Args:
        files: The series.
        windows: Their labelled windows.
        engine: Where it runs.
        told: Called with how many batches are done, of how many.

    Raises:
        NotNab: A file is not of the benchmark, or has no windows.
    """
    all_series, labelled = [read_series(path) for path in files], read_windows(windows)
    for series in all_series:
        if series.name not in labelled:
            raise NotNab(f"{windows} has no entry {series.name}")
    rules = [rule for number, series in enumerate(all_series) for rule in rules_for(number, series)]
    sent = sorted(_readings(all_series), key=lambda s: s.event.event_time_ms)
    # Of old series nothing is known: the sensors' own quality stays out of it.
    with written(rules) as fleet:
        overrides = [f"monitor.fleet_file={fleet}", "monitor.sensor_least=3650d", "monitor.grace=0"]
        overrides += ["monitor.judge=false", "spark.quick_start=true"]
        result = run(sent, settings_for(overrides), ["alarm_history"], engine=engine, told=told)
    return compare(all_series, labelled, result.rows["alarm_history"], engine)


def compare(
    all_series: Sequence[Series],
    labelled: Mapping[str, list[tuple[int, int]]],
    alarms: list[dict[str, Any]],
    engine: Engine,
) -> NabReport:
    """Return what both rules did.

    Args:
        all_series: The series.
        labelled: Series → its labelled windows, ms.
        alarms: Changes of alarms, in any order.
        engine: Where it ran.
    """
    history = sorted(alarms, key=lambda r: (r["event_time_ms"], r["number"]))
    found = {
        kind: _report([r for r in history if r["rule_id"].startswith(kind)], kind, all_series, labelled)
        for kind in (BARE, FILTERED)
    }
    bare, filtered = found[BARE], found[FILTERED]
    return NabReport(
        series=len(all_series),
        windows=sum(len(labelled[series.name]) for series in all_series),
        points=sum(len(series.times) for series in all_series),
        bare=bare,
        filtered=filtered,
        fewer=1.0 - filtered.transitions / bare.transitions if bare.transitions else 0.0,
        settings={
            "width": WIDTH,
            "dead_band": DEAD_BAND,
            "on_delay_ms": ON_DELAY_MS,
            "off_delay_ms": OFF_DELAY_MS,
            "learn": LEARN,
        },
        engine=engine,
        windows_raised=filtered.windows_raised,
        active_share=filtered.active_share,
        held=filtered.active_share <= MOST_ACTIVE,
    )


def _readings(all_series: Sequence[Series]) -> list[Sent]:
    sent = []
    for number, series in enumerate(all_series):
        quantity, machine = f"q{number}", f"series{number}"
        for at, value in zip(series.times, series.values, strict=True):
            identity = f"{machine}.{at}"
            event = Reading(identity, f"{machine}.{quantity}", machine, "gateway", quantity, value, "1", at)
            sent.append(Sent("readings", event))
    return sent


def _report(
    history: list[dict[str, Any]],
    kind: str,
    all_series: Sequence[Series],
    labelled: Mapping[str, list[tuple[int, int]]],
) -> FilterReport:
    transitions = hit = raised = 0
    share = 0.0
    for number, series in enumerate(all_series):
        last = series.times[-1]
        # What a delay would bring after the last value is not counted.
        changes = [
            row
            for row in history
            if row["rule_id"] == f"{kind}-{number}"
            and row["change"] in ("active", "inactive")
            and row["event_time_ms"] <= last
        ]
        transitions += len(changes)
        begins = [row["event_time_ms"] for row in changes if row["active"]]
        ends = [row["event_time_ms"] for row in changes if not row["active"]]
        spans = list(zip(begins, [*ends, last + 1], strict=False))
        for low, high in labelled[series.name]:
            hit += any(begin <= high and end > low for begin, end in spans)
            raised += any(low <= begin <= high for begin in begins)
        share += sum(end - begin for begin, end in spans) / max(last - series.times[0], 1) / len(all_series)
    return FilterReport(transitions, hit, raised, round(share, 4))
