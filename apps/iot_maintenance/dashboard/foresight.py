"""Forecasts on the page: limits that will be crossed, maintenance, and how right models were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.dashboard.data import AppData
from millrace.dashboard.values import bounded
from millrace.dashboard.views import Cell, Column, Offer, Series, Table, TimeSeries, Tone, View
from millrace_apps.iot_maintenance.dashboard.fleet import crossings, fleet, life_text, merged, order_text
from millrace_apps.iot_maintenance.dashboard.work import order_offers
from millrace_apps.iot_maintenance.foresight.failures import REPAIR_COLUMNS, failures_of, is_broken
from millrace_apps.iot_maintenance.processes.orders import open_orders_of, orders_over

if TYPE_CHECKING:
    import pandas as pd

_HOUR_MS: Final = 3_600_000
_MOST: Final = 200
_PAGE: Final = 15
_UNUSUAL: Final = 100
#: Orders that are over, of which so many of the newest are shown.
_OVER: Final = 20
_POINTS: Final = 60
_ORDER_TONES: Final[dict[str, Tone]] = {
    "overdue": "bad",
    "in work": "warn",
    "rejected": "warn",
    "done": "good",
}


def crossing_table(data: AppData) -> View | None:
    """Return the limits that points will cross, the soonest first."""
    columns = (
        Column("machine", "key"), Column("point"), Column("side"), Column("limit", "number"),
        Column("in, h", "number"), Column("soonest, h", "number"), Column("latest, h", "number"),
        Column("level now", "number"), Column("an hour", "number"), Column("as of", "time"),
    )  # fmt: skip
    rows = crossings(data)
    cells: list[list[Cell]] = [
        [r["machine_id"], r["subject"], r["side"], r["limit"], _short(r["in_h"]), _short(r["earliest_h"]),
         _short(r["latest_h"]), _short(r["level"]), _short(r["trend_per_h"]), r["event_time_ms"]]
        for r in rows
    ]  # fmt: skip
    tones: list[Tone] = ["warn" if r["in_h"] <= 1 else "plain" for r in rows]
    return bounded(columns, cells, tones, most=_MOST, page=_PAGE)


def unusual(data: AppData) -> View | None:
    """Return the newest values that were unusual."""
    table = data.table("anomalies")
    if table is None:
        return None
    columns = (
        Column("at", "time"), Column("machine", "key"), Column("point"), Column("value", "number"),
        Column("expected", "number"), Column("not new from", "number"), Column("to", "number"),
        Column("score", "number"), Column("why"),
    )  # fmt: skip
    names = ("event_time_ms", "machine_id", "subject", "value", "expected", "low", "high", "score", "why")
    rows = sorted(table.latest(_UNUSUAL, names).to_pylist(), key=lambda r: -r["event_time_ms"])
    cells: list[list[Cell]] = [
        [r[name] if isinstance(r[name], int | str) else _short(r[name]) for name in names] for r in rows
    ]
    return bounded(columns, cells, most=_UNUSUAL, page=_PAGE)


def plan_table(data: AppData) -> View | None:
    """Return by when which machine should be maintained, the soonest first."""
    rows = sorted(((m.plan, m) for m in fleet(data) if m.plan), key=lambda pair: pair[0]["latest_ms"])
    columns = (
        Column("maintain by", "time"), Column("machine", "key"), Column("component"), Column("because of"),
        Column("fails before", "share"), Column("costs, on average", "number"), Column("runs yet"),
        Column("work order"),
    )  # fmt: skip
    cells: list[list[Cell]] = []
    tones: list[Tone] = []
    offers = []
    for plan, m in rows:
        order = m.order
        ordered = "" if order is None else order_text(order)
        life = "" if m.life is None else life_text(m.life)
        cells.append(
            [plan["latest_ms"], m.machine_id, plan["component"] or "any", plan["reason"], plan["probability"],
             _short(plan["expected_cost"]), life, ordered]
        )  # fmt: skip
        late = order is None or order["start_ms"] > plan["latest_ms"]
        tones.append("warn" if late else "good")
        offers.append((Offer("plan", {"machine": m.machine_id, "component": plan["component"]}),))
    return bounded(columns, cells, tones, most=_MOST, actions=offers, page=_PAGE)


def order_table(data: AppData) -> View | None:
    """Return the open work orders, the soonest first, and the newest of those that are over."""
    rows = merged(data, "work_orders")
    opened, over = open_orders_of(rows), orders_over(rows)
    shown = [*opened[:_MOST], *over[:_OVER]]
    if not shown:
        return None
    columns = (
        Column("machine", "key"), Column("component"), Column("state"), Column("begin", "time"),
        Column("end", "time"), Column("alarms"), Column("by"), Column("why"),
    )  # fmt: skip
    return Table(
        columns=columns,
        rows=[
            [r["machine_id"], r["component"], r["state"], r["start_ms"], r["end_ms"],
             "suppressed meanwhile" if r["suppress"] else "", r["operator"], r["comment"] or r["reason"]]
            for r in shown
        ],
        tones=[_ORDER_TONES.get(r["state"], "plain") for r in shown],
        actions=[order_offers(r) for r in shown],
        more=max(0, len(opened) - _MOST) + max(0, len(over) - _OVER),
        page=_PAGE,
        choose="state",
    )  # fmt: skip


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


# -- how right models were ---------------------------------------------------------------------------


class Right(NamedTuple):
    """How right the forecasts of remaining life, or the risks, of one model were.

    Attributes:
        model: Its version.
        what: ``remaining life``, or the component.
        judged: Forecasts of which the truth is known.
        failures: Failures among that truth.
        mean_error_h: Mean error of remaining life up to the ceiling, h.
        inside: Share of lives that ended in their interval.
        wanted: Share that was to.
        expected: Failures that the risks add up to.
        brier: Mean squared error of the risks.
    """

    model: str
    what: str
    judged: int
    failures: int
    mean_error_h: float | None = None
    inside: float | None = None
    wanted: float | None = None
    expected: float | None = None
    brier: float | None = None


def judged_lives(lives: pd.DataFrame, repairs: pd.DataFrame) -> pd.DataFrame:
    """Return forecasts of lives that have ended, with ``truth_h``, ``error_h``, ``inside``, ``failed_ms``.

    Those of machines that were broken are left out.

    Args:
        lives: Rows of ``remaining_life``.
        repairs: Rows of ``maintenance``; those that were corrective end a life.
    """
    import pandas as pd

    failures = failures_of(repairs)
    ends = failures[["machine_id", "failed_ms"]].drop_duplicates().sort_values("failed_ms")
    ran = lives[~is_broken(lives["machine_id"], lives["event_time_ms"], failures)]
    found = pd.merge_asof(
        ran.sort_values("event_time_ms"), ends, left_on="event_time_ms", right_on="failed_ms",
        by="machine_id", direction="forward", allow_exact_matches=False,
    )  # fmt: skip
    found = found[found["failed_ms"].notna()].copy()
    truth = ((found["failed_ms"] - found["event_time_ms"]) / _HOUR_MS).clip(upper=found["ceiling_h"])
    found["truth_h"] = truth
    found["error_h"] = (found["remaining_h"] - truth).abs()
    found["inside"] = (truth >= found["low_h"]) & (truth <= found["high_h"])
    return found


def judged_risks(risks: pd.DataFrame, repairs: pd.DataFrame, newest_ms: int) -> pd.DataFrame:
    """Return the risks whose horizon is over, with ``failed``: whether the component did within it.

    Those of machines that were broken are left out.

    Args:
        risks: Rows of ``risks``.
        repairs: Rows of ``maintenance``.
        newest_ms: How far events have come, ms.
    """
    import pandas as pd

    over = risks["event_time_ms"] + risks["horizon_h"] * _HOUR_MS <= newest_ms
    failures = failures_of(repairs)
    over &= ~is_broken(risks["machine_id"], risks["event_time_ms"], failures)
    ends = failures[["machine_id", "component", "failed_ms"]].drop_duplicates().sort_values("failed_ms")
    found = pd.merge_asof(
        risks[over].sort_values("event_time_ms"), ends, left_on="event_time_ms", right_on="failed_ms",
        by=["machine_id", "component"], direction="forward", allow_exact_matches=False,
    )  # fmt: skip
    after = (found["failed_ms"] - found["event_time_ms"]) / _HOUR_MS
    found["failed"] = after.notna() & (after <= found["horizon_h"])
    return found


def quality(data: AppData) -> tuple[list[Right], pd.DataFrame | None]:
    """Return how right each model was, and the judged forecasts of remaining life."""
    versions = tuple(
        -1 if (table := data.table(name)) is None else table.version
        for name in ("remaining_life", "risks", "maintenance")
    )
    return data.once("model quality", versions, lambda: _quality(data))


def _quality(data: AppData) -> tuple[list[Right], pd.DataFrame | None]:
    lives, risks = data.table("remaining_life"), data.table("risks")
    repairs = data.table("maintenance")
    if repairs is None or not repairs.rows:
        return [], None
    ended = repairs.all(REPAIR_COLUMNS).to_pandas()
    found: list[Right] = []
    judged = None
    if lives is not None and lives.rows:
        told = lives.all().to_pandas()
        judged = judged_lives(told, ended)
        for model, rows in judged.groupby("model"):
            failures = len(rows[["machine_id", "failed_ms"]].drop_duplicates())
            found.append(
                Right(str(model), "remaining life", len(rows), failures, float(rows["error_h"].mean()),
                      float(rows["inside"].mean()), float(rows["coverage"].mean()))
            )  # fmt: skip
    if risks is not None and risks.rows:
        told = risks.all().to_pandas()
        newest = max(int(told["event_time_ms"].max()), int(ended["event_time_ms"].max()))
        of = judged_risks(told, ended, newest)
        for named, rows in of.groupby(["model", "component"]):
            model, component = (str(name) for name in named)
            hits = rows[rows["failed"]]
            failures = len(hits[["machine_id", "failed_ms"]].drop_duplicates())
            brier = float(((rows["probability"] - rows["failed"]) ** 2).mean())
            found.append(
                Right(model, component, len(rows), failures, None, float(rows["failed"].mean()), None,
                      float(rows["probability"].mean()), brier)
            )  # fmt: skip
    return found, judged


def models(data: AppData) -> View | None:
    """Return how right each model was, as far as the truth is known."""
    found, _ = quality(data)
    columns = (
        Column("what"), Column("model"), Column("judged", "count"), Column("failures", "count"),
        Column("mean error, h", "number"), Column("in the interval", "share"), Column("promised", "share"),
        Column("failed in time", "share"), Column("mean risk", "share"), Column("Brier score", "number"),
    )  # fmt: skip
    cells: list[list[Cell]] = []
    tones: list[Tone] = []
    for r in found:
        is_life = r.wanted is not None
        cells.append(
            [r.what, r.model, r.judged, r.failures, _short(r.mean_error_h), r.inside if is_life else None,
             r.wanted, None if is_life else r.inside, r.expected, _short(r.brier)]
        )  # fmt: skip
        short = is_life and r.inside is not None and r.wanted is not None and r.inside < r.wanted - 0.1
        tones.append("warn" if short else "plain")
    return bounded(columns, cells, tones)


def life_errors(data: AppData) -> View | None:
    """Return how the intervals of remaining life held over time, by when the lives ended."""
    _, judged = quality(data)
    if judged is None or judged.empty:
        return None
    ends = judged.groupby("failed_ms", sort=True).agg(n=("inside", "size"), hit=("inside", "sum"),
                                                      wanted=("coverage", "mean"))  # fmt: skip
    so_far = ends["hit"].cumsum() / ends["n"].cumsum()
    step = max(1, len(ends) // _POINTS)
    at: list[Any] = list(ends.index)[::step]
    lines = (
        Series("in the interval so far", list(zip(at, [float(v) for v in so_far][::step], strict=True))),
        Series("promised", list(zip(at, [float(v) for v in ends["wanted"]][::step], strict=True))),
    )
    return TimeSeries(series=lines, kind="share", clock="event time")
