"""The ridesharing page of the dashboard: invariants, the city, waits, trips, drivers, regions, policies."""

from __future__ import annotations

from typing import Any, Final

from millrace.dashboard.data import AppData
from millrace.dashboard.details import rows_of
from millrace.dashboard.page import DashboardPage, Detail, Panel
from millrace.dashboard.steps import POINTS
from millrace.dashboard.values import bounded, ratio
from millrace.dashboard.views import (
    Bar,
    Bars,
    Cell,
    Column,
    Kind,
    Note,
    Number,
    Numbers,
    Series,
    Table,
    TimeSeries,
    Titled,
    Tone,
    View,
)
from millrace_apps.ridesharing.dashboard.city import ACTIONS, PANELS
from millrace_apps.ridesharing.dashboard.data import (
    MOST_WAITS,
    MOST_WINDOWS,
    STEP_MS,
    Trips,
    attempts,
    cars,
    counted,
    trips,
    wait_figures,
    wait_line,
    windows,
)
from millrace_apps.ridesharing.dashboard.prices import PRICE_ACTIONS, PRICE_PANELS
from millrace_apps.ridesharing.dashboard.story import story
from millrace_apps.ridesharing.dashboard.venues import EMPTY_MS
from millrace_apps.ridesharing.state.lifecycle import TERMINAL, TRANSITIONS

_WAITING: Final = ("processing", "offered")
_DRIVING: Final = ("accepted", "arrived", "in_progress")
_SHOWN: Final = 25
#: Places in lines, and riders sent to a point, that are looked at.
_TOLD: Final = 2_000
_SENT: Final = 1_000


def violations(data: AppData) -> View | None:
    """Return what the auditor has found wrong."""
    table = data.table("violations")
    if table is None:
        return None
    if not table.rows:
        steps = data.table("trips")
        return Note(f"every invariant holds, over {steps.rows if steps else 0:,} steps of trips", tone="good")
    return violation_table(table.latest(_SHOWN).to_pylist(), table.rows)


def violation_table(rows: list[dict[str, Any]], number: int) -> Table:
    """Return violations as a table, the newest first."""
    from millrace_apps.ridesharing.operations.audit import INVARIANTS  # it brings pandas

    columns = (Column("time", "time"), Column("invariant", "count"), Column("which says"),
               Column("request or driver", "key"), Column("found"))  # fmt: skip
    cells: list[list[Cell]] = [
        [
            r["at_ms"],
            r["invariant"],
            INVARIANTS.get(r["invariant"], ""),
            r["subject"].partition(":")[2],
            r["detail"],
        ]
        for r in reversed(rows)
    ]
    return Table(columns=columns, rows=cells, tones=["bad"] * len(cells), more=max(0, number - len(cells)))


def headline(data: AppData) -> View | None:
    """Return the figures that one wants to see first."""
    found = trips(data)
    if found is None:
        return None
    mean_ms, p95_ms = wait_figures(found.waits)
    table = data.table("violations")
    broken = table.rows if table else None
    free = sum(c.free for c in cars(data).values())
    over = found.in_state(*TERMINAL)
    return Numbers(
        (
            Number(label="violations", value=broken, kind="count", tone="bad" if broken else "good",
                   note="of invariants"),
            Number(label="requests", value=sum(found.requests.values()), kind="count"),
            Number(label="served", value=found.served(), kind="share", note=f"of {over:,} that are over"),
            Number(label="mean wait", value=mean_ms, kind="duration",
                   note=f"of the last {len(found.waits):,} pick-ups"),
            Number(label="95 % wait", value=p95_ms, kind="duration", note="no longer than this"),
            Number(label="waiting now", value=found.in_state(*_WAITING), kind="count"),
            Number(label="open offers", value=found.in_state("offered"), kind="count"),
            Number(label="free cars", value=free, kind="count"),
        )
    )  # fmt: skip


def waits(data: AppData) -> View | None:
    """Return the waits over time."""
    found = trips(data)
    if found is None or not found.waits:
        return None
    line = wait_line(list(found.waits), POINTS)
    means = Series("mean", [(at, mean_ms) for at, mean_ms, _ in line])
    tails = Series("95 %", [(at, p95_ms) for at, _, p95_ms in line])
    return TimeSeries(series=(means, tails), kind="duration", clock="event time")


def demand(data: AppData) -> View | None:
    """Return requests, pick-ups and requests given up over time."""
    found = trips(data)
    if found is None:
        return None
    lines = found.steps.lines(["requests", "pick-ups", "given up"], per_ms=STEP_MS)
    return TimeSeries(series=lines, unit="per minute", clock="event time")


def trip_states(data: AppData) -> View | None:
    """Return how many requests are in which state."""
    found = trips(data)
    if found is None:
        return None
    tones: dict[str, Tone] = {"completed": "good", "lost": "bad"}
    bars = []
    for state in TRANSITIONS:
        if state and (n := found.in_state(state)):
            tone = tones.get(state, "warn" if state in TERMINAL else "plain")
            bars.append(Bar(state.replace("_", " "), n, "over" if state in TERMINAL else "", tone=tone))
    return Bars(bars=tuple(bars))


def offers(data: AppData) -> View | None:
    """Return what became of the offers."""
    found = attempts(data)
    total = sum(found.values())
    bars = (Bar(state.replace("_", " "), n, f"{n / total:.1%}") for state, n in found.most_common())
    return Bars(bars=tuple(bars)) if found else None


def drivers(data: AppData) -> View | None:
    """Return what the drivers do."""
    supply, found = cars(data), trips(data) or Trips()
    if not supply:
        return None
    bars = (
        Bar("free", sum(c.free for c in supply.values()), tone="good"),
        Bar("have an offer", found.in_state("offered")),
        Bar("on the way", found.in_state("accepted")),
        Bar("at the pick-up", found.in_state("arrived")),
        Bar("with a rider", found.in_state("in_progress")),
    )
    return Bars(bars=bars)


def driver_changes(data: AppData) -> View | None:
    """Return how often drivers came, went, fell silent and were blocked."""
    found = counted(data, "drivers", "change")
    return Bars(bars=tuple(Bar(change, n) for change, n in found.most_common())) if found else None


def regions(data: AppData) -> View | None:
    """Return the regions side by side."""
    found, supply, dispatched = trips(data), cars(data), windows(data)
    if found is None:
        return None
    newest = {} if dispatched is None else dispatched.newest
    columns = (
        Column("region"), Column("requests", "count"), Column("waiting", "count"), Column("offers", "count"),
        Column("driving", "count"), Column("free cars", "count"), Column("served", "share"),
        Column("mean wait", "duration"), Column("95 % wait", "duration"), Column("longest now", "duration"),
        Column("policy"), Column("last window", "time"),
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for region, number in sorted(found.requests.items(), key=lambda pair: (-pair[1], pair[0])):
        mean_ms, p95_ms = wait_figures(w for w in found.waits if w.region == region)
        window = newest.get(region)
        waiting = found.in_state("processing", region=region)
        rows.append(
            [
                region, number, waiting, found.in_state("offered", region=region),
                found.in_state(*_DRIVING, region=region), supply[region].free if region in supply else None,
                found.served(region), mean_ms, p95_ms,
                window["longest_wait_ms"] if window and waiting else None,
                window["policy"] if window else None, window["window_end_ms"] if window else None,
            ]
        )  # fmt: skip
    return bounded(columns, rows)


def policies(data: AppData) -> View | None:
    """Return the policy in force, and whom the others would have given a car, and how soon."""
    dispatched = windows(data)
    if dispatched is None:
        return None
    columns = (
        Column("policy"), Column("now"), Column("windows in force", "count"),
        Column("windows beside", "count"), Column("given a car", "share"),
        Column("wait until it is there", "duration"), Column("rides against what was done", "share"),
        Column("waits against what was done", "share"),
    )  # fmt: skip
    now = [row["policy"] for row in dispatched.newest.values()]
    rows: list[list[Cell]] = []
    for policy, c in dispatched.policies.items():
        here = now.count(policy)
        state = f"in force in {here} of {len(now)} regions" if here else "shadow"
        rides = ratio(c.shadow_matched - c.done_matched, c.done_matched)
        would, did = ratio(c.shadow_wait_ms, c.shadow_matched), ratio(c.done_wait_ms, c.done_matched)
        waits = None if would is None or not did else would / did - 1
        wait = ratio(c.wait_ms, c.matched)
        rows.append([policy, state, c.in_force, c.shadowed, ratio(c.matched, c.riders), wait, rides, waits])
    tones: list[Tone] = ["good" if row[0] in now else "plain" for row in rows]
    return bounded(columns, rows, tones)


def matching(data: AppData) -> View | None:
    """Return how dispatch windows do."""
    found = windows(data)
    if found is None:
        return None
    metres = ratio(found.pickup_m, found.matched)
    return Numbers(
        (
            Number(label="windows", value=found.number, kind="count", note="with riders, the newest"),
            Number(label="riders", value=_rounded(ratio(found.riders, found.number)), note="per window"),
            Number(label="offered a car", value=ratio(found.matched, found.riders), kind="share",
                   note="of riders in a window"),
            Number(label="to the pick-up", value=None if metres is None else round(metres), unit="m",
                   note="straight line, mean"),
            Number(label="put off", value=found.deferred, kind="count", note="riders, too many for a window",
                   tone="warn" if found.deferred else "plain"),
        )
    )  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def operations(data: AppData) -> View | None:
    """Return what operators did by hand."""
    table = data.table("operations")
    if table is None or not table.rows:
        return None
    columns = (Column("time", "time"), Column("action"), Column("about"), Column("by"), Column("reason"),
               Column("outcome"), Column("detail"))  # fmt: skip
    rows = table.latest(_SHOWN).to_pylist()[::-1]
    cells: list[list[Cell]] = [
        [r["at_ms"], r["action"], " ".join(filter(None, (r["request_id"], r["driver_id"], r["zone"]))),
         r["operator"], r["reason"], r["outcome"], r["detail"]]
        for r in rows
    ]  # fmt: skip
    tones: list[Tone] = ["warn" if r["outcome"] == "refused" else "plain" for r in rows]
    return Table(columns=columns, rows=cells, tones=tones, more=max(0, table.rows - len(cells)))


def lines(data: AppData) -> View | None:
    """Return who waits in the lines of venues, as it was told last."""
    table, heard = data.table("lines"), data.table("places")
    if table is None or not table.rows:
        return None
    told = table.latest(_TOLD).to_pylist()
    # Of an empty line nothing is told; of cars it is.
    until = max(r["at_ms"] for r in [*told, *(heard.latest(_SHOWN).to_pylist() if heard is not None else ())])
    columns = (
        Column("venue"), Column("in line", "count"), Column("first"), Column("first since", "time"),
        Column("first has waited", "duration"), Column("mean wait", "duration"), Column("as of", "time"),
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for venue in sorted({r["venue"] for r in told}):
        at = max(r["at_ms"] for r in told if r["venue"] == venue)
        line = [r for r in told if (r["venue"], r["at_ms"]) == (venue, at)]
        if until - at > EMPTY_MS:
            rows.append([venue, 0, None, None, None, None, at])
            continue
        first = min(line, key=lambda r: int(r["place"]))
        waits = [at - r["joined_ms"] for r in line]
        of_first = [first["driver_id"], first["joined_ms"], at - first["joined_ms"]]
        rows.append([venue, first["length"], *of_first, sum(waits) / len(waits), at])
    return bounded(columns, rows)


def points(data: AppData) -> View | None:
    """Return to which points of venues riders were sent last."""
    table = data.table("pickups")
    if table is None or not table.rows:
        return None
    told = table.latest(_SENT).to_pylist()
    by_point: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in told:
        by_point.setdefault((r["venue"], r["point"]), []).append(r)
    columns = (Column("venue"), Column("point"), Column("riders", "count"), Column("mean walk, m", "count"),
               Column("last", "time"), Column("latitude"), Column("longitude"),
               Column("asked for it", "count"), Column("asked for another", "count"))  # fmt: skip
    rows: list[list[Cell]] = [
        [venue, point, len(of), round(sum(r["walk_m"] for r in of) / len(of)), max(r["at_ms"] for r in of),
         f"{of[-1]['lat']:.5f}", f"{of[-1]['lon']:.5f}",
         sum(r.get("asked") == point for r in of), sum(bool(r.get("why")) for r in of)]
        for (venue, point), of in sorted(by_point.items())
    ]  # fmt: skip
    return bounded(columns, rows)


def ignored(data: AppData) -> View | None:
    """Return why events changed nothing."""
    found = counted(data, "ignored", "why")
    return Bars(bars=tuple(Bar(why, n) for why, n in found.most_common(10))) if found else None


def request_or_driver(data: AppData, key: str) -> list[Titled]:
    """Return what is shown of a request or a driver; empty where there is neither.

    Args:
        data: The app's data.
        key: Its name.
    """
    found: list[Titled] = []
    wrong = data.table("violations")
    if wrong is not None:
        of_it = [
            row for kind in "rd" for row in wrong.recent("subject", f"{kind}:{key}", limit=_SHOWN).to_pylist()
        ]
        found += [Titled("Violations", violation_table(of_it, len(of_it)))] if of_it else []
    found += story(data, key)
    lasting: dict[str, Kind] = {"wait_ms": "duration", "idle_ms": "duration", "distance_m": "number"}
    found += rows_of(
        data, "trips", [("request_id", key)], "Trip",
        ("at_ms", "before", "state", "cause", "driver_id", "attempt", "wait_ms", "region", "zone"),
        order=("revision",), kinds=lasting,
    )  # fmt: skip
    found += rows_of(
        data, "assignments", [("request_id", key), ("driver_id", key)], "Offers",
        ("offered_ms", "request_id", "attempt", "driver_id", "state", "policy", "accepted_ms", "closed_ms",
         "distance_m"),
        order=("offered_ms",), kinds=lasting,
    )  # fmt: skip
    found += rows_of(
        data, "drivers", [("driver_id", key)], "Driver", ("at_ms", "change", "region", "idle_ms"),
        order=("at_ms",), kinds=lasting,
    )  # fmt: skip
    return found


#: What is looked at now and then: it comes last, and shut.
_FOLDED: Final = (
    "lines", "points", "regions", "policies", "matching", "driver-changes", "operations", "ignored",
)  # fmt: skip

page = DashboardPage(
    folded=_FOLDED,
    panels=(
        Panel("violations", "Invariants", violations, width="full", empty="the auditor has not begun yet",
              about="What the auditor checks at every step: nothing dispatched twice, nobody forgotten. "
              "The command millrace ridesharing audit asks the tables."),
        Panel("headline", "Now", headline, width="full", empty="no request yet"),
        *PANELS,
        *PRICE_PANELS,
        Panel("waits", "Wait for the pick-up", waits, empty="nobody was picked up yet",
              about=f"From when the rider wanted to leave; of the last {MOST_WAITS:,} pick-ups."),
        Panel("demand", "Requests and pick-ups", demand, empty="no request yet"),
        Panel("trip-states", "Requests by state", trip_states, width="third", empty="no request yet"),
        Panel("drivers", "Drivers by state", drivers, width="third", empty="no minute is over yet",
              about="Free ones as of the last full minute."),
        Panel("offers", "What became of offers", offers, width="third", empty="no offer yet"),
        Panel("lines", "Lines of venues", lines, width="full", empty="nobody waits at a venue",
              about="Drivers in the pen of an airport and the like, in turn; "
              "the command millrace ridesharing venues list says what venues there are."),
        Panel("points", "Pick-up points", points, width="full", empty="no rider was sent to a point yet",
              about=f"Of the last {_SENT:,} riders at venues."),
        Panel("regions", "Regions", regions, width="full", empty="no request yet"),
        Panel("policies", "Policies", policies, width="full", empty="no rider has waited for a window yet",
              about=f"Over the newest {MOST_WINDOWS:,} windows: what was done, and what policies computed "
              "beside it would have cost with the same riders and cars."),
        Panel("matching", "Dispatch windows", matching, empty="no rider has waited for a window yet"),
        Panel("driver-changes", "Drivers come and go", driver_changes, empty="no driver yet"),
        Panel("operations", "By hand", operations, width="full", empty="no operator has done anything yet",
              about="Who assigned, cancelled or blocked what, and why."),
        Panel("ignored", "Events that changed nothing", ignored, empty="none",
              about="They came too late or out of order; who had to know it was told."),
    ),
    detail=Detail("Request or driver", request_or_driver),
    actions=(*ACTIONS, *PRICE_ACTIONS),
)  # fmt: skip
