"""The part of the clickstream page about persons: how far they come over all sessions, and their cohorts."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.dashboard.data import AppData
from millrace.dashboard.page import Panel
from millrace.dashboard.values import bounded, ratio
from millrace.dashboard.views import Bar, Bars, Cell, Column, View

if TYPE_CHECKING:
    from millrace.dashboard.tables import DeltaReader

_WAY: Final = (
    "funnel", "person", "arm", "cohort_ms", "begin_ms", "end_ms", "reached", "steps", "reached_step",
    "dropped_at",
)  # fmt: skip
#: Ways that are looked at, the newest.
_MOST: Final = 200_000
#: So many weeks are shown.
_WEEKS: Final = 12


class Person(NamedTuple):
    """What has become of a person in a funnel.

    Attributes:
        arm: Arm of the experiment.
        cohort_ms: When the first way began, UTC ms.
        furthest: How many steps were done on the way that came furthest.
        done: How many ways came to their end.
        took_ms: How long after the first way's begin the first one had come to its end; ``None``: none has.
    """

    arm: str
    cohort_ms: int
    furthest: int
    done: int
    took_ms: int | None


class Persons(NamedTuple):
    """Persons by funnel, and names of its steps.

    Attributes:
        by: Funnel → its persons.
        steps: Funnel → number of the step → its name.
    """

    by: dict[str, list[Person]]
    steps: dict[str, dict[int, str]]


def persons(data: AppData) -> Persons | None:
    """Return what has become of persons; ``None`` where no way has begun."""
    table = data.table("person_funnels")
    return None if table is None or not table.rows else table.once("persons", _persons)


def _persons(table: DeltaReader) -> Persons:
    ways: dict[tuple[str, str], list[dict[str, int | str | None]]] = defaultdict(list)
    steps: dict[str, dict[int, str]] = defaultdict(dict)
    for row in table.all(_WAY, most=_MOST).to_pylist():
        ways[row["funnel"], row["person"]].append(row)
        steps[row["funnel"]][row["reached"]] = row["reached_step"]
        if row["dropped_at"] is not None:
            steps[row["funnel"]][row["reached"] + 1] = row["dropped_at"]
    found: dict[str, list[Person]] = defaultdict(list)
    for (funnel, _), own in ways.items():
        first = min(_int(row["cohort_ms"]) for row in own)
        ends = [_int(row["end_ms"]) for row in own if row["reached"] == row["steps"]]
        furthest = max(_int(row["reached"]) for row in own)
        took = min(ends) - first if ends else None
        found[funnel].append(Person(str(own[0]["arm"]), first, furthest, len(ends), took))
    return Persons(dict(found), dict(steps))


def _int(value: int | str | None) -> int:
    return int(value or 0)


def funnel(data: AppData) -> View | None:
    """Return which share of the persons comes how far on their best way, arms side by side."""
    found = persons(data)
    if found is None:
        return None
    bars = []
    for name, people in sorted(found.by.items()):
        of_arm = Counter(one.arm for one in people)
        for place, step in sorted(found.steps[name].items()):
            for arm, entered in sorted(of_arm.items()):
                reached = sum(one.arm == arm and one.furthest >= place for one in people)
                label = f"{name}: {step}, {arm}" if len(found.by) > 1 else f"{step}, {arm}"
                bars.append(Bar(label, reached / entered, f"{reached:,} of {entered:,}"))
    return Bars(bars=tuple(bars), kind="share")


def week_of(at_ms: int) -> str:
    """Return the Monday of the week of a moment, UTC.

    >>> week_of(1_767_225_600_000)
    '2025-12-29'
    """
    day = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{day - timedelta(days=day.weekday()):%Y-%m-%d}"


def cohorts(data: AppData) -> View | None:
    """Return what has become of the persons who began in a week, newest week first."""
    found = persons(data)
    if found is None:
        return None
    rows: list[list[Cell]] = []
    for name, people in sorted(found.by.items()):
        weeks: dict[str, list[Person]] = defaultdict(list)
        for one in people:
            weeks[week_of(one.cohort_ms)].append(one)
        for week in sorted(weeks, reverse=True)[:_WEEKS]:
            own = weeks[week]
            took = [one.took_ms for one in own if one.took_ms is not None]
            again = sum(one.done > 1 for one in own)
            rows.append([
                name, week, len(own), len(took), ratio(len(took), len(own)), median(took) if took else None,
                again, ratio(again, len(took)),
            ])  # fmt: skip
    columns = (
        Column("funnel"), Column("week"), Column("persons", "count"), Column("came to the end", "count"),
        Column("of persons", "share"), Column("time to it", "duration"), Column("again", "count"),
        Column("of these", "share"),
    )  # fmt: skip
    return bounded(columns, rows, most=60, choose="funnel" if len(found.by) > 1 else "")


PANELS: Final = (
    Panel("person-funnel", "Funnel of persons", funnel, empty="no funnel is of persons: see setting funnels",
          about="Over all sessions and browsers of a person, by the way that came furthest; a browser that "
          "nobody is known by is a person, too."),
    Panel("cohorts", "Cohorts", cohorts, width="full", empty="no funnel is of persons: see setting funnels",
          about="Persons by the week (Monday, UTC) in which their first way began: how many came to the end, "
          "how long after that begin (median), and how many did so again."),
)  # fmt: skip
