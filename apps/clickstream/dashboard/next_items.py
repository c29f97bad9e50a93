"""The part of the clickstream page about next items: how good they are, and what was shown last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from millrace.dashboard.data import AppData
from millrace.dashboard.page import Panel
from millrace.dashboard.values import bounded
from millrace.dashboard.views import Cell, Column, Series, Table, TimeSeries, Tone, View
from millrace.experiments.shares import share_interval

_SHOWN: Final = 20
#: Rows of quality that are looked at: weeks of hours of two surfaces and arms.
_MOST: Final = 2_000
Row = Mapping[str, Any]


def _quality(data: AppData) -> list[Row]:
    """Return what was told of the lists, the oldest first."""
    table = data.table("recommendation_quality")
    if table is None or not table.rows:
        return []
    rows: list[Row] = table.latest(_MOST).to_pylist()
    return sorted(rows, key=lambda row: (row["end_ms"], row["surface"], row["arm"]))


def hit_rate(data: AppData) -> View | None:
    """Return over time which share of the lists had the item that was looked at next."""
    lines: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    beside: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for row in _quality(data):
        lines[f"{row['surface']}, {row['arm']}"].append((row["end_ms"], row["hit_rate"]))
        if row["arm"] == "learned":
            beside[f"{row['surface']}, popular items"].append((row["end_ms"], row["popular_hit_rate"]))
    if not lines:
        return None
    series = [Series(name, points) for name, points in sorted(lines.items())]
    series += [Series(name, points, "dashed") for name, points in sorted(beside.items())]
    return TimeSeries(series=tuple(series), kind="share", clock="event time")


def _clicked(data: AppData) -> list[Row]:
    """Return what was told of clicks on lists, the oldest first."""
    table = data.table("recommendation_click_through")
    if table is None or not table.rows:
        return []
    rows: list[Row] = table.latest(_MOST).to_pylist()
    return sorted(rows, key=lambda row: (row["end_ms"], row["surface"], row["arm"]))


def click_through(data: AppData) -> View | None:
    """Return over time which share of the lists was clicked, by surface and arm."""
    lines: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for row in _clicked(data):
        lines[f"{row['surface']}, {row['arm']}"].append((row["end_ms"], row["rate"]))
    if not lines:
        return None
    series = tuple(Series(name, points) for name, points in sorted(lines.items()))
    return TimeSeries(series=series, kind="share", clock="event time")


def clicks(data: AppData) -> View | None:
    """Return lists and clicks of all times told, by surface and arm, with the interval of their share."""
    totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0, 0.0])
    for row in _clicked(data):
        total = totals[row["surface"], row["arm"]]
        total[0] += row["lists"]
        total[1] += row["clicked"]
        total[2] += row["clicked"] * (row["rank"] or 0.0)
    columns = (
        Column("surface"), Column("arm"), Column("lists", "count"), Column("clicked", "count"),
        Column("share", "share"), Column("from", "share"), Column("to", "share"), Column("place, mean"),
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for (surface, arm), (shown, clicked, ranks) in sorted(totals.items()):
        low, high = share_interval(int(clicked), int(shown)) or (None, None)
        place = round(ranks / clicked, 1) if clicked else None
        rows.append([surface, arm, shown, clicked, clicked / shown, low, high, place])
    return bounded(columns, rows) if rows else None


def quality(data: AppData) -> View | None:
    """Return what was told last of each surface and arm."""
    newest = {(row["surface"], row["arm"]): row for row in _quality(data)}
    columns = (
        Column("surface"), Column("arm"), Column("up to", "time"), Column("lists", "count"),
        Column("with the next item", "share"), Column("1 / rank, mean"), Column("popular items", "share"),
        Column("items shown", "share"), Column("change"),
    )  # fmt: skip
    rows: list[list[Cell]] = [
        [
            surface, arm, row["end_ms"], row["queries"], row["hit_rate"], round(row["mrr"], 3),
            row["popular_hit_rate"], row["coverage"], row["change"] or "none",
        ]
        for (surface, arm), row in sorted(newest.items())
    ]  # fmt: skip
    tones: list[Tone] = ["bad" if row["change"] == "down" else "plain" for _, row in sorted(newest.items())]
    return bounded(columns, rows, tones) if rows else None


def lists(data: AppData) -> View | None:
    """Return the newest lists, and what spoke for their items."""
    table = data.table("recommendations")
    if table is None or not table.rows:
        return None
    names = ["event_time_ms", "person", "surface", "arm", "item", "items", "why"]
    columns = (
        Column("time", "time"), Column("person", "key"), Column("surface"), Column("arm"),
        Column("looked at"), Column("next"), Column("because of"),
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for row in reversed(table.latest(_SHOWN, names).to_pylist()):
        first = [row[name] for name in names[:5]]
        rows.append([*first, ", ".join(row["items"]), ", ".join(dict.fromkeys(row["why"]))])
    return Table(columns=columns, rows=rows, more=max(0, table.rows - len(rows)))


PANELS: Final = (
    Panel("next-items", "Next items that were foreseen", hit_rate, empty="no list was judged yet",
          about="Share of the lists with what was looked at next in the same visit; dashed: of the items "
          "that were popular then."),
    Panel("next-quality", "How good next items are", quality, empty="no list was judged yet",
          about="Of the last full time; a change of the share is found by a CUSUM over the times."),
    Panel("next-click-through", "Next items that were clicked", click_through,
          empty="no time is over in which lists were shown",
          about="Share of the lists of which an item was looked at soon after (recommend.clicked_within), "
          "by the time in which they were shown."),
    Panel("next-clicks", "Clicks on next items", clicks, empty="no time is over in which lists were shown",
          about="Of all times told; the interval of the share is Wilson's, made for one look. What an arm is "
          "worth says millrace clickstream click-through: per person."),
    Panel("next-lists", "Latest next items", lists, width="full",
          empty="recommend.on is off, or nobody was there",
          about="Surfaces: to resume may name items of the visit, to discover names none."),
)  # fmt: skip
