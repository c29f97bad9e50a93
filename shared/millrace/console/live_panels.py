"""Panels of the live view, as plain functions from a view model to text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from millrace.runtime.monitor import QuerySnapshot

#: Terminals narrower than this get the panels below each other.
_TWO_COLUMNS: Final = 90
#: More alerts than this are a log, not a picture.
_MOST_ALERTS: Final = 20
_BARS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BARS: Final = ".:-=+*#@"


@dataclass(frozen=True, slots=True)
class AlertLine:
    """One alert as it is shown."""

    at: str
    key: str
    reasons: str
    score: float | None = None
    amount: str = ""


@dataclass(slots=True)
class ViewModel:
    """Everything that the live view shows; None means not known yet.

    Attributes:
        elapsed_s: Seconds since the stream started.
        remaining_s: Seconds until it ends by itself.
        phase: What is going on, in a few words.
        sent: Events sent by the generator.
        sent_rate: The same per second.
        processed: Events processed.
        processed_rate: The same per second.
        lag: Events waiting in the broker.
        lag_max: Of the partition furthest behind.
        watermark: The watermark as clock text.
        watermark_gap_s: Seconds from the watermark to the newest event.
        held_by: The source that holds the watermark back while a backlog is read.
        batches: Batches done.
        batch_ms: Duration of the last, milliseconds.
        batch_ms_p50: Median of the last ones.
        batch_ms_p95: 95th percentile of the same.
        state_rows: Rows of state.
        state_bytes: Memory of the state stores, bytes.
        outputs: Records per table or topic.
        alerts: The newest alerts, oldest first.
        alerts_total: Alerts there were altogether.
        logs: Where the logs are.
        error: What went wrong, if anything.
    """

    elapsed_s: float = 0.0
    remaining_s: float | None = None
    phase: str = ""
    sent: int | None = None
    sent_rate: float | None = None
    processed: int = 0
    processed_rate: float = 0.0
    lag: int | None = None
    lag_max: int | None = None
    watermark: str = ""
    watermark_gap_s: float | None = None
    held_by: str = ""
    batches: int = 0
    batch_ms: int | None = None
    batch_ms_p50: int | None = None
    batch_ms_p95: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    outputs: Mapping[str, int] = field(default_factory=dict)
    alerts: Sequence[AlertLine] = ()
    alerts_total: int = 0
    logs: str = ""
    error: str | None = None

    @classmethod
    def of(cls, query: QuerySnapshot, **more: Any) -> ViewModel:
        """Return a view of a query's snapshot, with further fields by name.

        >>> from millrace.runtime.monitor import QuerySnapshot
        >>> ViewModel.of(QuerySnapshot(input_rows=7), elapsed_s=2.0).processed
        7
        """
        gap = query.watermark_gap
        known: dict[str, Any] = {
            "phase": "" if query.active and not query.idle else "waiting" if query.active else "ended",
            "processed": query.input_rows,
            "processed_rate": query.input_rate,
            "lag": query.lag,
            "lag_max": query.lag_max,
            "watermark": f"{query.watermark:%H:%M:%S}" if query.watermark else "",
            "watermark_gap_s": gap.total_seconds() if gap else None,
            "held_by": query.held_by,
            "batches": query.batches,
            "batch_ms": query.batch_ms,
            "batch_ms_p50": query.batch_ms_p50,
            "batch_ms_p95": query.batch_ms_p95,
            "state_rows": query.state_rows,
            "state_bytes": query.state_bytes,
            "outputs": query.outputs,
            "error": query.error,
        }
        return cls(**known | more)


def clean(text: str, *, ascii_only: bool = False) -> str:
    """Return text from events without control characters: data must not steer the terminal."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text.encode("ascii", "replace").decode() if ascii_only else text


def sparkline(values: Iterable[float], *, ascii_only: bool = False) -> str:
    """Return values as a line of small bars, scaled to the largest.

    >>> sparkline([0, 5, 10])
    '▁▅█'
    """
    bars, values = _ASCII_BARS if ascii_only else _BARS, list(values)
    top = max(values, default=0) or 1
    return "".join(bars[min(len(bars) - 1, int(max(v, 0) / top * (len(bars) - 1) + 0.5))] for v in values)


def status_line(model: ViewModel) -> str:
    """Return the view as one line, for logs and pipes."""
    parts = [f"[{model.elapsed_s:4.0f} s]"]
    if model.sent is not None:
        parts.append(f"sent {model.sent:,} ({_rate(model.sent_rate)})")
    parts.append(f"processed {model.processed:,} ({_rate(model.processed_rate)})")
    parts += [f"{name} {value}" for name, value in _query_facts(model) if value != "-"]
    parts += [f"{clean(name)} {count:,}" for name, count in model.outputs.items()]
    if model.error:
        parts.append(f"ERROR {clean(model.error)}")
    return "  ".join(parts)


def alert_line(alert: AlertLine) -> str:
    """Return an alert as one line."""
    score = f"  score {alert.score:.2f}" if alert.score is not None else ""
    amount = f"  {alert.amount}" if alert.amount else ""
    return clean(f"  ALERT  {alert.at}  {alert.key}{score}{amount}  {alert.reasons}")


def render(
    title: str, model: ViewModel, rates: Sequence[float], *, width: int, height: int, ascii_only: bool = False
) -> RenderableType:
    """Return the whole view, no taller than ``height`` lines.

    Args:
        title: The app's name.
        model: What to show.
        rates: Processed events per second over time, oldest first.
        width: Columns of the terminal.
        height: Lines of the terminal.
        ascii_only: Whether the terminal lacks the characters for bars.
    """
    wide = width >= _TWO_COLUMNS
    stream, outputs = _stream_panel(model, rates, ascii_only), _outputs_panel(model, ascii_only)
    stream_lines, output_lines = 10, min(max(len(model.outputs), 1), 8) + 2
    if wide:
        top: RenderableType = Table.grid(expand=True)
        assert isinstance(top, Table)  # noqa: S101
        top.add_column(ratio=3)
        top.add_column(ratio=2)
        top.add_row(stream, outputs)
        used = max(stream_lines, output_lines)
    elif height >= stream_lines + output_lines + 8:
        top, used = Group(stream, outputs), stream_lines + output_lines
    else:
        top, used = stream, stream_lines
    # Header and footer take a line each, an error another, and the cursor needs one below.
    left = height - used - 3 - bool(model.error)
    parts: list[RenderableType] = [_header(title, model), top]
    if left >= 4:
        parts.append(_alerts_panel(model, min(left - 3, _MOST_ALERTS), ascii_only))
    if model.error:
        parts.append(
            Text(clean(model.error, ascii_only=ascii_only), "bold red", no_wrap=True, overflow="ellipsis")
        )
    parts.append(Text(f"logs: {model.logs}" if model.logs else "", "dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _header(title: str, model: ViewModel) -> Text:
    left = f"  {model.remaining_s:.0f} s left" if model.remaining_s is not None else ""
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f" {title} ", "bold reverse")
    line.append(f"  {model.elapsed_s:.0f} s{left}", "bold")
    return line.append(f"  {model.phase}" if model.phase else "", "cyan")


def _query_facts(model: ViewModel) -> list[tuple[str, str]]:
    lag = "-" if model.lag is None else f"{model.lag:,}"
    if model.lag and model.lag_max is not None:
        lag += f" (largest partition {model.lag_max:,})"
    gap = "" if model.watermark_gap_s is None else f" ({model.watermark_gap_s:.1f} s behind the newest event)"
    if model.held_by:
        gap += f", waiting for {model.held_by}"
    batch = "-"
    if model.batch_ms is not None:
        batch = f"{model.batch_ms:,} ms (p50 {model.batch_ms_p50:,}, p95 {model.batch_ms_p95:,})"
    rows = [] if model.state_rows is None else [f"{model.state_rows:,} rows"]
    size = [] if model.state_bytes is None else [f"{model.state_bytes / 1024**2:,.1f} MB"]
    return [
        ("lag", lag),
        ("watermark", f"{model.watermark}{gap}" if model.watermark else "-"),
        ("batch", batch),
        ("batches", f"{model.batches:,}"),
        ("state", ", ".join(rows + size) or "-"),
    ]


def _stream_panel(model: ViewModel, rates: Sequence[float], ascii_only: bool) -> Panel:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    sent = "-" if model.sent is None else f"{model.sent:,}  {_rate(model.sent_rate)}"
    grid.add_row("sent", Text(sent))
    grid.add_row("processed", Text(f"{model.processed:,}  {_rate(model.processed_rate)}", "bold"))
    grid.add_row("", Text(sparkline(rates, ascii_only=ascii_only), "green"))
    for name, value in _query_facts(model):
        grid.add_row(name, Text(value))
    return _panel(grid, "stream", ascii_only)


def _outputs_panel(model: ViewModel, ascii_only: bool) -> Panel:
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    items = sorted(model.outputs.items(), key=lambda item: (-item[1], item[0]))
    for name, count in items[:8] if len(items) <= 8 else items[:7]:
        grid.add_row(Text(clean(name, ascii_only=ascii_only)), f"{count:,}")
    if len(items) > 8:
        grid.add_row(Text(f"{len(items) - 7} more", "dim"), f"{sum(n for _, n in items[7:]):,}")
    if not items:
        grid.add_row(Text("nothing written yet", "dim"), "")
    return _panel(grid, "outputs", ascii_only)


def _alerts_panel(model: ViewModel, lines: int, ascii_only: bool) -> Panel:
    table = Table(box=None, pad_edge=False, expand=True, header_style="dim")
    for name, ratio in (("time", 0), ("key", 2), ("score", 0), ("amount", 0), ("reasons", 4)):
        side = "right" if name in ("score", "amount") else "left"
        table.add_column(
            name,
            ratio=ratio or None,
            no_wrap=True,
            overflow="ellipsis",
            justify=side,  # type: ignore[arg-type]
        )
    shown = list(model.alerts)[-lines:]
    for alert in shown:
        score = "" if alert.score is None else f"{alert.score:.2f}"
        cells = (alert.at, alert.key, score, alert.amount, alert.reasons)
        table.add_row(*(Text(clean(cell, ascii_only=ascii_only)) for cell in cells))
    # Empty lines keep the height, so that the view does not jump with the first alerts.
    for _ in range(lines - len(shown)):
        table.add_row("", "", "", "", "")
    return _panel(table, f"alerts: {model.alerts_total:,}", ascii_only)


def _panel(content: RenderableType, title: str, ascii_only: bool) -> Panel:
    return Panel(
        content,
        title=title,
        title_align="left",
        box=box.ASCII if ascii_only else box.ROUNDED,
        border_style="dim",
    )


def _rate(value: float | None) -> str:
    return "-/s" if value is None else f"{value:,.0f}/s"
