"""Panels about models and rules over time: prequential figures, drift, the audit of rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from millrace.dashboard.data import AppData
from millrace.dashboard.steps import joined_steps
from millrace.dashboard.values import table_of
from millrace.dashboard.views import Bar, Bars, Series, TimeSeries, View
from millrace_apps.fraud.dashboard.data import STEP_MS, Counts, decided, stability_index, summed

#: Columns that may say when a row of figures holds, and for which model; the first that is there is taken.
TIME_COLUMNS: Final = ("at_ms", "event_time_ms", "until_ms", "day_ms", "week_ms", "_event_time")
MODEL_COLUMNS: Final = ("role", "alias", "model", "model_version")
#: The figure that is drawn: average precision, or the next one that there is.
METRICS: Final = ("ap", "average_precision", "cp100", "card_precision_100", "auc", "alert_precision")
_MOST_ROWS: Final = 5_000
_POINTS: Final = 40
#: Fewer decisions say nothing about a distribution: of as many, the index of two samples of one distribution
#: is about twice the number of bins by this.
_ENOUGH: Final = 400


def models(data: AppData) -> View | None:
    """Return champion beside challenger over time; without figures, how many decisions each model made."""
    table = data.table("model_metrics")
    if table is not None and table.rows:
        return lines_of(table.latest(_MOST_ROWS).to_pylist())
    found = decided(data)
    if found is None or not found.models:
        return None
    bars = tuple(Bar(f"version {version}", n, "decisions") for version, n in found.models.most_common(5))
    return Bars(bars=bars)


def lines_of(rows: Sequence[Mapping[str, Any]]) -> View | None:
    """Return a line per model of rows of figures, long (``metric``, ``value``) or wide (a column each).

    >>> view = lines_of([{"at_ms": 5, "role": "champion", "ap": 0.7},
    ...                  {"at_ms": 9, "role": "champion", "ap": 0.8}])
    >>> view.series[0].points
    [(5, 0.7), (9, 0.8)]
    """
    if not rows:
        return None
    time = next((c for c in TIME_COLUMNS if c in rows[0]), None)
    model = next((c for c in MODEL_COLUMNS if c in rows[0]), None)
    wide = next((m for m in METRICS if any(r.get(m) is not None for r in rows)), None)
    if time is None or (wide is None and "metric" not in rows[0]):
        return None
    names = {str(r["metric"]) for r in rows} if wide is None else set()
    metric = wide or next((m for m in METRICS if m in names), min(names))
    lines: dict[str, list[tuple[int, float | None]]] = {}
    for row in rows:
        value = row.get(metric) if wide else row["value"] if row["metric"] == metric else None
        if value is None or row[time] is None:
            continue
        name = f"{row[model]}, {metric}" if model else metric
        lines.setdefault(name, []).append((_ms(row[time]), float(value)))
    if not lines:
        return None
    series = tuple(Series(name, sorted(points)) for name, points in sorted(lines.items())[:5])
    return TimeSeries(series=series, from_zero=False, clock="event time")


def _ms(value: Any) -> int:
    return value if isinstance(value, int) else int(value.timestamp() * 1000)


def drift(data: AppData) -> View | None:
    """Return how far score and amount are from what they were in the first quarter of what is shown."""
    found = decided(data)
    if found is None:
        return None
    lines = []
    for name, kept in (("score", found.scores), ("amount", found.amounts)):
        points = drift_of(kept)
        if len(points) > 1:
            lines.append(Series(name, points))
    return TimeSeries(series=tuple(lines), unit="PSI", clock="event time") if lines else None


def drift_of(kept: Mapping[int, Counts]) -> list[tuple[int, float | None]]:
    """Return the stability index of each longer step after the first quarter, against that quarter."""
    steps = dict(kept)
    total = sum(int(counts.sum()) for counts in steps.values())
    groups = joined_steps(list(steps), max(1, min(_POINTS, total // _ENOUGH)), STEP_MS)
    first = groups[: max(1, len(groups) // 4)]
    reference = summed(steps, [s for _, members in first for s in members])
    if reference is None or reference.sum() < _ENOUGH / 2:
        return []
    points: list[tuple[int, float | None]] = []
    for begin, members in groups[len(first) :]:
        counts = summed(steps, members)
        enough = counts is not None and counts.sum() >= _ENOUGH / 2
        points.append((begin, stability_index(reference, counts) if enough and counts is not None else None))
    return [] if all(value is None for _, value in points) else points


def rule_audit(data: AppData) -> View | None:
    """Return the last changes of rules."""
    table = data.table("rule_audit")
    if table is None or not table.rows:
        return None
    wanted = [c for c in table.columns if not c.startswith("_") and c != "reasons"]
    return table_of(table.latest(20, wanted), more=max(0, table.rows - 20))
