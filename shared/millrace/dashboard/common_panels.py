"""The panels that every app has: throughput, where the query stands, lag, dead letters, tables."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from millrace.dashboard.broker import BrokerAway
from millrace.dashboard.data import AppData
from millrace.dashboard.declared import DEAD_LETTERS, LATE, tables_of
from millrace.dashboard.page import Panel
from millrace.dashboard.progress import Progress, lag
from millrace.dashboard.replaying import REPLAY
from millrace.dashboard.views import (
    Bar,
    Bars,
    Cell,
    Column,
    Number,
    Numbers,
    Series,
    Table,
    TimeSeries,
    View,
)
from millrace.models.listing import listed
from millrace.observing.figures import read_figures

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.models.listing import Registered

#: How long the throughput chart is, and its steps, ms.
_SPAN_MS = 300_000
_STEP_MS = 5_000
_MOST_LINES = 5
#: How long the present rate is taken over, ms.
_RATE_MS = 30_000
#: A query that has committed nothing for so long is said to stand still, ms.
_SILENT_MS = 60_000
#: Versions of the registry that are shown beside those that the job has.
_MOST_MODELS = 50


def throughput(data: AppData) -> View | None:
    """Return rows written per second, the tables with most rows first."""
    tables = [(name, table) for name in data.table_names() if (table := data.table(name)) is not None]
    most = [(n, t) for n, t in sorted(tables, key=lambda pair: -pair[1].rows)[:_MOST_LINES] if t.rows]
    if not most:
        return None
    newest = most[0][1].newest_ms or 0
    # A run that is over is shown as it was at its end, and the panel of the query says that it is over.
    until = data.now_ms() if data.now_ms() - newest < _SPAN_MS else newest + _STEP_MS
    until -= until % _STEP_MS
    began = min(t.files[0].at_ms for _, t in most)
    since = max(until - _SPAN_MS, began - _STEP_MS)
    lines = tuple(Series(name, t.rates(since, until, _STEP_MS)) for name, t in most)
    return TimeSeries(series=lines, kind="number", unit="rows/s")


def rate_now(data: AppData, table: str, label: str) -> Number:
    """Return how many rows per second were written to a table in the last half minute.

    Args:
        data: The app's data.
        table: The table.
        label: What the figure is called.
    """
    reader, now = data.table(table), data.now_ms()
    steps = [] if reader is None else reader.rates(now - _RATE_MS, now, _RATE_MS // 6)
    rate = sum(rows for _, rows in steps) / max(1, len(steps))
    return Number(label=label, value=round(rate, 1), note="last 30 s")


def standing(data: AppData) -> View | None:
    """Return where the query stands, its lag included."""
    progress = data.progress()
    return None if progress is None else standing_of(data, progress, _lag(data, progress))


def standing_of(data: AppData, progress: Progress, *more: Number) -> Numbers:
    """Return the figures of where a query stands.

    Args:
        data: The app's data; its clock says how long ago the last commit was.
        progress: Where the query stands.
        more: Further figures behind them.
    """
    ago = max(0, data.now_ms() - progress.committed_ms)
    silent = ago > _SILENT_MS
    return Numbers(
        (
            Number(label="last commit", value=ago, kind="duration", unit="ago",
                   tone="warn" if silent else "good", note="nothing since" if silent else ""),
            Number(label="batch", value=progress.batch, kind="count"),
            Number(label="batch takes", value=progress.batch_ms, kind="duration", note="median"),
            Number(label="watermark", value=progress.watermark_ms, kind="time",
                   note=f"waits for {progress.held_by}" if progress.held_by else ""),
            *more,
        )
    )  # fmt: skip


def _lag(data: AppData, progress: Progress) -> Number:
    if data.broker is None:
        read = sum(sum(p.values()) for p in progress.done.values())
        return Number(label="read", value=read, kind="count", note="no broker named: lag is not known")
    names = [topic.name for topic in data.app.topics(data.settings).reads]
    try:
        behind = lag(progress.done, data.broker.ends(names))
    except BrokerAway as error:
        return Number(label="lag", value=None, note=str(error), tone="warn")
    total = sum(behind.values())
    note = ", ".join(f"{topic} {n:,}" for topic, n in sorted(behind.items()) if n)
    return Number(label="lag", value=total, kind="count", unit="records", note=note)


def dead_letters(data: AppData) -> View | None:
    """Return dead letters by reason, over the tables of all processes, and what came late to each."""
    reasons: Counter[str] = Counter()
    for name in tables_of(data, DEAD_LETTERS):
        if (table := data.table(name)) is not None:
            counts: Counter[str] = table.fold("reasons", ["reason"], Counter, _add_reasons)
            reasons += counts
    bars = [Bar(str(reason), count, tone="warn") for reason, count in reasons.most_common(12)]
    for name in tables_of(data, LATE):
        if (late := data.table(name)) is not None and late.rows:
            bars.append(Bar(f"late (table {name})", late.rows))
    return Bars(bars=tuple(bars)) if bars else None


def models(data: AppData) -> View | None:
    """Return the models that decide, or would like to, as the job has them, then the registry's versions.

    What the job has under an alias stands in front, whatever the registry says: a version that the registry
    calls otherwise, or that is in none, is not hidden.
    """
    figures = read_figures(data.root)
    columns = (
        Column("model"),
        Column("alias"),
        Column("version"),
        Column("rows until", "time"),
        Column("since", "time"),
        Column("rows", "count"),
        Column("registry"),
    )
    registry = {(one.model, str(one.version)): one for one in listed(data.root)}
    rows: list[list[Cell]] = []
    for name, model in sorted(figures.models.items() if figures is not None else ()):
        of, _, alias = name.rpartition("/")
        known = registry.pop((of, model.version), None)
        said = "" if known is None else _said_of(known, alias)
        count = None if known is None else known.rows
        rows.append([of, alias, model.version, model.trained_until_ms, model.since_ms, count, said])
    for one in list(registry.values())[:_MOST_MODELS]:
        said = f"{', '.join(one.aliases)} there, and the job does not have it" if one.aliases else ""
        rows.append([one.model, "", str(one.version), one.trained_until_ms, one.created_ms, one.rows, said])
    return Table(columns=columns, rows=rows) if rows else None


def _said_of(known: Registered, alias: str) -> str:
    """Return what the registry says of a version that the job has under an alias, if it is not the same."""
    return "" if alias in known.aliases else f"there it is {', '.join(known.aliases) or 'without alias'}"


def _add_reasons(counts: Counter[str], rows: pa.Table) -> Counter[str]:
    counts.update(rows["reason"].to_pylist() if "reason" in rows.column_names else ())
    return counts


def tables(data: AppData) -> View | None:
    """Return the tables with their rows and when they were last written."""
    rows: list[list[Cell]] = []
    for name in data.table_names():
        if (table := data.table(name)) is not None:
            rows.append([name, table.rows, table.version, table.newest_ms])
    if not rows:
        return None
    columns = (
        Column("table"),
        Column("rows", "count"),
        Column("version", "count"),
        Column("last written", "time"),
    )
    return Table(columns=columns, rows=rows)


COMMON_PANELS = (
    Panel(
        "standing", "Query", standing, width="full", empty="no batch was committed yet",
        about="From the checkpoint's files. Lag: what the topics have after the last committed batch.",
    ),
    Panel("throughput", "Rows written per second", throughput,
          about="From the logs of the tables, by the clock of the writer."),
    Panel("dead-letters", "Dead letters", dead_letters, empty="none",
          about="Events that could not be handled, by reason; the command dlq shows them one by one.",
          actions=(REPLAY.name,)),
    Panel("registry", "Models", models, empty="none yet",
          about="Those that the job has under an alias, since when; then the registry's others, by when they "
          "were registered. The command models compares, promotes and rolls back."),
    Panel("tables", "Tables", tables, width="full", empty="no table yet"),
)  # fmt: skip
#: What can be done from every page, beside the app's own.
COMMON_ACTIONS = (REPLAY,)
#: Those of them that come last, and are folded.
COMMON_FOLDED = frozenset({"registry", "tables"})
