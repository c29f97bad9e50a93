"""Figures of the ridesharing page, read from the app's tables: trips, waits, windows, cars, drivers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.dashboard.data import AppData
from millrace.dashboard.steps import Steps, joined_steps
from millrace.dashboard.values import mean, quantile, ratio
from millrace_apps.ridesharing.processes.matching import POLICIES
from millrace_apps.ridesharing.state.lifecycle import TERMINAL

if TYPE_CHECKING:
    import pyarrow as pa

Row = Mapping[str, Any]
#: Width of a step of the charts over time, ms.
STEP_MS: Final = 60_000
#: Pick-ups whose wait is kept.
MOST_WAITS: Final = 20_000
#: Newest dispatch windows that are compared with the shadows.
MOST_WINDOWS: Final = 5_000
#: Newest rows among which the last minute's cars are looked for.
_MOST_SUPPLY: Final = 5_000


class Wait(NamedTuple):
    """A pick-up and how long the rider had waited for it."""

    at_ms: int
    region: str
    wait_ms: int


class Trips:
    """All steps of all trips, added up.

    Attributes:
        states: Region and state → requests that are in it: each step adds one to its state and takes one from
            the state before, so that nobody has to remember requests.
        requests: Region → requests.
        waits: The newest pick-ups.
        steps: Requests, pick-ups and requests given up, over event time.
    """

    def __init__(self) -> None:
        self.states: Counter[tuple[str, str]] = Counter()
        self.requests: Counter[str] = Counter()
        self.waits: deque[Wait] = deque(maxlen=MOST_WAITS)
        self.steps = Steps(STEP_MS)

    def add(self, rows: pa.Table) -> Trips:
        """Add the rows of a file of the table ``trips``."""
        for row in rows.to_pylist():
            region, before, state = row["region"], row["before"], row["state"]
            self.states[region, state] += 1
            if before:
                self.states[region, before] -= 1
            else:
                self.requests[region] += 1
                self.steps.add(row["at_ms"], "requests")
            if state == "in_progress":
                self.waits.append(Wait(row["at_ms"], region, row["wait_ms"]))
                self.steps.add(row["at_ms"], "pick-ups")
            elif state in TERMINAL and state != "completed":
                self.steps.add(row["at_ms"], "given up")
        return self

    def in_state(self, *states: str, region: str | None = None) -> int:
        """Return how many requests are in one of some states, in a region or in all."""
        return sum(
            n for (where, state), n in self.states.items() if state in states and region in (None, where)
        )

    def served(self, region: str | None = None) -> float | None:
        """Return the share of completed trips among the requests that are over."""
        return ratio(self.in_state("completed", region=region), self.in_state(*TERMINAL, region=region))


def trips(data: AppData) -> Trips | None:
    """Return all trips added up, ``None`` before there is one."""
    table = data.table("trips")
    if table is None or not table.rows:
        return None
    return table.fold("trips", ["region", "before", "state", "at_ms", "wait_ms"], Trips, Trips.add)


def wait_figures(waits: Iterable[Wait]) -> tuple[float | None, float | None]:
    """Return mean and 95 % quantile of waits, ms.

    >>> wait_figures([Wait(0, "a", 10), Wait(0, "a", 30)])
    (20.0, 30)
    """
    ordered = sorted(wait.wait_ms for wait in waits)
    return mean(ordered), quantile(ordered, 0.95)


def wait_line(waits: Sequence[Wait], points: int) -> list[tuple[int, float | None, float | None]]:
    """Return begin, mean and 95 % quantile (ms) of the waits in at most so many steps; ``None``: no wait."""
    by_step: dict[int, list[Wait]] = {}
    for wait in waits:
        by_step.setdefault(wait.at_ms // STEP_MS, []).append(wait)
    return [
        (begin, *wait_figures(wait for step in members for wait in by_step[step]))
        for begin, members in joined_steps(list(by_step), points, STEP_MS)
    ]


class Windows(NamedTuple):
    """The newest dispatch windows.

    Attributes:
        newest: Region → its newest window.
        policies: Policy → what it did, or would have done.
        riders: Riders who waited in them.
        deferred: Riders who were too many for one window.
        matched: Pairs made.
        pickup_m: Straight lines to the pick-ups of those pairs, metres.
        number: How many windows.
    """

    newest: dict[str, Row]
    policies: dict[str, Compared]
    riders: int
    deferred: int
    matched: int
    pickup_m: float
    number: int


class Compared(NamedTuple):
    """What a policy did in the windows in which it was in force, or would have, computed beside it.

    Attributes:
        in_force: Windows in which it was in force.
        shadowed: Windows in which it was computed beside another.
        riders: Riders in all of these.
        matched: Riders that it gave a car in all of these.
        wait_ms: How long those will have waited when the car is there, ms, summed.
        shadow_matched: Riders that it would have given a car where it was a shadow.
        shadow_wait_ms: How long those would have waited, ms, summed.
        done_matched: Riders that were given a car there.
        done_wait_ms: How long those will have waited, ms, summed.
    """

    in_force: int
    shadowed: int
    riders: int
    matched: int
    wait_ms: int
    shadow_matched: int
    shadow_wait_ms: int
    done_matched: int
    done_wait_ms: int


def windows(data: AppData) -> Windows | None:
    """Return the newest dispatch windows, ``None`` before there is one."""
    table = data.table("windows")
    if table is None or not table.rows:
        return None
    return table.once("windows", lambda t: _windows(t.latest(MOST_WINDOWS).to_pylist()))


def _windows(rows: Sequence[Row]) -> Windows:
    newest: dict[str, Row] = {}
    for row in rows:
        before = newest.get(row["region"])
        if before is None or before["window_end_ms"] <= row["window_end_ms"]:
            newest[row["region"]] = row

    def total(name: str) -> Any:
        return sum(row[name] for row in rows)

    return Windows(
        newest,
        {policy: found for policy in POLICIES if (found := _compared(rows, policy)) is not None},
        total("riders"),
        total("deferred"),
        total("matched"),
        total("pickup_m"),
        len(rows),
    )


def _compared(rows: Sequence[Row], policy: str) -> Compared | None:
    known = [row for row in rows if row.get("wait_ms") is not None]  # windows of before said no waits
    own = [row for row in known if row["policy"] == policy]
    matched, waits = f"shadow_{policy}_matched", f"shadow_{policy}_wait_ms"
    beside = [row for row in known if row["policy"] != policy and row[matched] >= 0]
    if not own and not beside:
        return None
    shadow = sum(row[matched] for row in beside), sum(row[waits] for row in beside)
    return Compared(
        len(own),
        len(beside),
        sum(row["riders"] for row in (*own, *beside)),
        sum(row["matched"] for row in own) + shadow[0],
        sum(row["wait_ms"] for row in own) + shadow[1],
        *shadow,
        sum(row["matched"] for row in beside),
        sum(row["wait_ms"] for row in beside),
    )


class Cars(NamedTuple):
    """The cars of a region at the end of its last minute."""

    minute_ms: int
    cars: int
    free: int


def cars(data: AppData) -> dict[str, Cars]:
    """Return how many cars each region has, and how many of them are free."""
    table = data.table("supply")
    return {} if table is None else table.once("cars", lambda t: _cars(t.latest(_MOST_SUPPLY).to_pylist()))


def _cars(rows: Sequence[Row]) -> dict[str, Cars]:
    zones: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        zones.setdefault((row["region"], row["minute_ms"]), {})[row["zone"]] = row
    found: dict[str, Cars] = {}
    for (region, minute), by_zone in sorted(zones.items(), key=lambda pair: pair[0][1]):
        found[region] = Cars(
            minute, sum(r["cars"] for r in by_zone.values()), sum(r["free"] for r in by_zone.values())
        )
    return found


def counted(data: AppData, table: str, column: str) -> Counter[str]:
    """Return how often each value stands in a column of a table that is appended to."""
    reader = data.table(table)

    def add(counts: Counter[str], rows: pa.Table) -> Counter[str]:
        counts.update(rows[column].to_pylist())
        return counts

    return Counter() if reader is None else reader.fold(column, [column], Counter, add)


def attempts(data: AppData) -> Counter[str]:
    """Return how many attempts to bring a rider and a driver together stand, or ended, how."""
    table = data.table("assignments")
    if table is None:
        return Counter()
    return table.once("states", lambda t: Counter(t.all(["state"])["state"].to_pylist()))
