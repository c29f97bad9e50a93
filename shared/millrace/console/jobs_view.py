"""Jobs as they are shown in a terminal: a table of all, and what is behind each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from millrace.console.live_panels import clean

if TYPE_CHECKING:
    from millrace.observing.figures import Figures
    from millrace.observing.reading import JobStatus

_STYLES: Final = {
    "running": "green", "starting": "yellow", "failed": "bold red", "died": "bold red", "unreadable": "red",
}  # fmt: skip
#: Columns of the table of jobs, those that say who a row is of and those that may be left out, from the end.
_NAMES: Final = ("app", "state", "since")
_FIGURES: Final = ("rows/s", "lag", "batch", "took", "gap", "late", "dead", "keys", "state")
#: Where lines end that no terminal ends.
_WIDEST: Final = 240
#: Spark's phases of a batch that say something to a person, in their order.
PHASES: Final = {
    "latestOffset": "offsets",
    "queryPlanning": "planning",
    "walCommit": "log",
    "addBatch": "work",
    "commitOffsets": "commit",
}


def jobs_console() -> Console:
    """Return where jobs are shown: a file or a pipe has no edge at which lines must end."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDEST
    return console


def ago(ms: int | None, now_ms: int) -> str:
    """Return how long ago something was.

    >>> ago(0, 95_000), ago(None, 5)
    ('1 min 35 s', '-')
    """
    return "-" if ms is None else took(max(0, now_ms - ms))


def took(ms: float) -> str:
    """Return a duration in its two largest units, where the second is nothing in the first alone.

    >>> took(250), took(4_200), took(240_000), took(7_260_000), took(200_000_000)
    ('250 ms', '4.2 s', '4 min', '2 h 1 min', '2 d 7 h')
    """
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(int(ms / 1000), 60)
    if minutes < 60:
        return _both(minutes, "min", seconds, "s")
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return _both(hours, "h", minutes, "min")
    return _both(hours // 24, "d", hours % 24, "h")


def _both(large: int, unit: str, small: int, smaller: str) -> str:
    return f"{large} {unit} {small} {smaller}" if small else f"{large} {unit}"


def size(count: int | None) -> str:
    """Return bytes in a unit that fits.

    >>> size(None), size(900), size(3_400_000)
    ('-', '900 B', '3.4 MB')
    """
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return ""


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def jobs_table(
    found: Sequence[JobStatus], now_ms: int, *, ascii_only: bool = False, width: int = 120
) -> RenderableType:
    """Return a table of jobs, a row each, and below it what is to be said in a line.

    Args:
        found: The jobs.
        now_ms: Now, UTC ms.
        ascii_only: Whether the terminal has no lines to draw with.
        width: Columns of the terminal: where they are few, less is shown, and that whole.
    """
    rows: list[list[str | Text]] = []
    notes: list[RenderableType] = []
    for status in found:
        f = status.figures
        live = status.state in ("running", "starting", "elsewhere")
        entries, stored = _state(f)
        cells: list[str | Text] = [
            Text(clean(status.app, ascii_only=ascii_only), "bold"),
            Text(status.state, _STYLES.get(status.state, "dim")),
            ago(status.since_ms, now_ms),
            f"{f.input_rate:,.0f}" if f is not None and live else "-",
            _count(status.lag_total),
            _count(status.batch),
            took(f.batch_ms) if f is not None and f.batch_ms is not None else "-",
            took(gap) if f is not None and (gap := f.watermark_gap_ms) is not None else "-",
            _count(f.late) if f is not None else "-",
            _count(sum(f.dead_letters.values())) if f is not None else "-",
            _count(entries),
            size(stored),
        ]
        rows.append(cells)
        if status.note:
            notes.append(Text(clean(f"{status.app}: {status.note}", ascii_only=ascii_only), "yellow"))
    if not found:
        notes.append(Text("no job is known on this machine"))
    tables = (_table(rows, count, ascii_only) for count in range(len(_FIGURES), 0, -1))
    # Of a dumb terminal the library believes neither a width nor a height alone.
    measure = Console(width=10_000, height=1).measure
    fitting = next((table for table in tables if measure(table).maximum <= width), None)
    return Group(_table(rows, 1, ascii_only) if fitting is None else fitting, *notes)


def _table(rows: Sequence[Sequence[str | Text]], figures: int, ascii_only: bool) -> Table:
    """Return a table of rows with so many of the figures."""
    table = Table(box=box.ASCII if ascii_only else box.SIMPLE_HEAD, pad_edge=False)
    for name in _NAMES:
        table.add_column(name, no_wrap=True)
    for name in _FIGURES[:figures]:
        table.add_column(name, justify="right", no_wrap=True)
    for cells in rows:
        table.add_row(*cells[: len(table.columns)])
    return table


def _state(f: Figures | None) -> tuple[int | None, int | None]:
    """Return keys and bytes of state; before the first look at it, the stores' memory."""
    if f is None:
        return None, None
    if not f.state:
        return None, f.state_memory_bytes
    return sum(s.entries for s in f.state.values()), sum(s.bytes for s in f.state.values())


def job_details(status: JobStatus, now_ms: int, *, ascii_only: bool = False) -> RenderableType:
    """Return what is known of a job."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _facts(status, now_ms):
        grid.add_row(*(Text(clean(text, ascii_only=ascii_only)) for text in (name, value)))
    head = Text(clean(status.app, ascii_only=ascii_only), "bold")
    head.append("  " + status.state, _STYLES.get(status.state, "dim"))
    if status.since_ms is not None:
        head.append(f" for {ago(status.since_ms, now_ms)}", "dim")
    return Group(head, grid)


def _waits(status: JobStatus, now_ms: int) -> str:
    """Return which tables are behind what is committed, and what brings the rest in."""
    of = ", ".join(
        f"{table} ({w.batches:,} {'batch' if w.batches == 1 else 'batches'}, {ago(w.since_ms, now_ms)})"
        for table, w in status.waiting.items()
    )
    live = status.state in ("running", "starting", "elsewhere")
    return f"rows wait for {of}" + ("" if live else f"; `millrace run {status.app}` brings them in")


def _at(time_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError):  # of events whose clock is beyond all years
        return f"{time_ms:,} ms"


def _facts(status: JobStatus, now_ms: int) -> list[tuple[str, str]]:
    found = [("folder", status.root or "-")]
    if status.pid is not None:
        found.append(
            ("process", f"pid {status.pid}" + (f", metrics {status.metrics}" if status.metrics else ""))
        )
    if status.note:
        found.append(("note", status.note))
    if status.batch is not None:
        found.append(("batch", f"{status.batch:,}, committed {ago(status.committed_ms, now_ms)} ago"))
    if status.lag is not None:
        of = ", ".join(f"{topic} {n:,}" for topic, n in status.lag.items() if n)
        found.append(("lag", f"{status.lag_total:,} records" + (f" ({of})" if of else "")))
    if status.waiting:
        found.append(("tables", _waits(status, now_ms)))
    f = status.figures
    if f is None:
        return found
    found.append(("rows", f"{f.rows:,} read, {f.input_rate:,.0f}/s in, {f.processed_rate:,.0f}/s possible"))
    if f.watermark_ms is not None:
        held = f", held back by {f.held_by}" if f.held_by else ""
        found.append(
            ("watermark", f"{_at(f.watermark_ms)}, {took(f.watermark_gap_ms or 0)} behind the newest{held}")
        )
    slowest = [(s.newest_ms, place) for place, s in f.sources.items() if s.newest_ms is not None]
    if len(slowest) > 1 and f.newest_ms is not None:
        newest, place = min(slowest)
        found.append(("slowest source", f"{place}, {took(max(0, f.newest_ms - newest))} behind the newest"))
    if f.batch_ms is not None:
        phases = ", ".join(
            f"{said} {f.phases_ms[name]} ms" for name, said in PHASES.items() if name in f.phases_ms
        )
        found.append(("batches", f"{took(f.batch_ms)} the last, median {took(f.batch_ms_p50 or 0)}, "
                      f"p95 {took(f.batch_ms_p95 or 0)} ({phases})"))  # fmt: skip
    for process, s in f.state.items():
        if not s.bytes:
            continue
        about, seen = ("", "") if s.share == 1.0 else ("about ", f" of {s.share:.1%} of the pages")
        found.append(
            (f"state {process}", f"{about}{s.entries:,} keys at batch {s.batch:,}, {size(s.bytes)}, "
             f"{s.pages:,} pages, {s.timers:,} timers, largest{seen} {size(s.largest_entry_bytes)} "
             f"({s.largest_key}), skew {s.skew:.1f}")
        )  # fmt: skip
    if f.state_memory_bytes is not None:
        files = "" if f.state_files_bytes is None else f", {size(f.state_files_bytes)} of files"
        found.append(("state stores", f"{size(f.state_memory_bytes)} of memory{files}"))
    if f.outputs:
        found.append(("written", ", ".join(f"{o} {n:,}" for o, n in sorted(f.outputs.items()))))
    letters = ", ".join(f"{reason} {n:,}" for reason, n in sorted(f.dead_letters.items()))
    found.append(("dead letters", letters or "0"))
    found.append(("late", f"{f.late:,}"))
    for name, m in f.models.items():
        found.append(
            (
                f"model {name}",
                f"version {m.version}, trained on rows until {ago(m.trained_until_ms, now_ms)} ago",
            )
        )
    return found
