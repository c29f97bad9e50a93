"""Text report of an audit from the topics: tables of findings, of what is open, and of cells."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from millrace_apps.ridesharing.topic_audit.findings import REASONS

if TYPE_CHECKING:
    from rich.console import Console

    from millrace_apps.ridesharing.topic_audit.report import Audited

#: So many violations, and so many cells, are shown.
_EXAMPLES: Final = 10
_CELLS: Final = 5


def show(audited: Audited, console: Console | None = None) -> None:
    """Print a report.

    Args:
        audited: What was found.
        console: Where; by default the terminal.
    """
    from rich.console import Console

    console = console or Console(markup=False)
    _show_violations(audited, console)
    _show_open(audited, console)
    _show_cells(audited, console)
    offers, counts = audited.offers, audited.counts
    console.print(
        f"{offers.offers:,} offers: drivers heard of at most {offers.oldest_ms / 1_000:.1f} s before, "
        f"at most {offers.farthest_m:,.0f} m away; of {offers.sure:,} it is sure where they were",
        highlight=False,
    )
    console.print(_listed("drivers at the end", audited.drivers), highlight=False)
    console.print(_listed("requests", audited.ledger.ends), highlight=False)
    console.print(_listed("read", counts), highlight=False)
    if audited.unreadable:
        console.print(_listed("no events", audited.unreadable), highlight=False)


def _listed(what: str, counts: dict[str, int]) -> str:
    return f"{what}: " + (", ".join(f"{n:,} {name}" for name, n in sorted(counts.items())) or "none")


def _show_violations(audited: Audited, console: Console) -> None:
    from rich.table import Table

    if not audited.count:
        console.print("no violations", highlight=False)
        return
    table = Table("invariant", "reason", "what it says", "violations", title="violations")
    for reason, count in audited.by_reason().items():
        invariant, text = REASONS[reason]
        table.add_row(str(invariant), reason, text, f"{count:,}")
    console.print(table)
    for row in audited.rows[:_EXAMPLES]:
        about = " ".join(
            filter(None, (row.request_id, row.driver_id, f"attempt {row.attempt}" * bool(row.attempt)))
        )
        console.print(f"  {_clock(row.at_ms)} {row.reason}: {about}: {row.detail}", highlight=False)
    if audited.count > _EXAMPLES:
        console.print(f"  and {audited.count - _EXAMPLES:,} more", highlight=False)


def _show_open(audited: Audited, console: Console) -> None:
    from rich.table import Table

    if not audited.ledger.open:
        return
    table = Table("state", "open", "oldest", "request", title=f"open at {_clock(audited.end_ms)}")
    for state, kept in sorted(audited.ledger.open.items()):
        table.add_row(state, f"{kept.count:,}", f"{kept.oldest_ms / 1_000:,.0f} s", kept.oldest)
    console.print(table)


def _show_cells(audited: Audited, console: Console) -> None:
    from rich.table import Table

    even = audited.fairness
    table = Table("cell", "requests", "served", "mean wait", "95 %", title="where fewest are served")
    for cell in [cell for cell in audited.cells if cell.requests][:_CELLS]:
        table.add_row(
            cell.cell, f"{cell.requests:,}", f"{cell.served_share:.1%}", f"{cell.mean_wait_s:,.0f} s",
            f"{cell.p95_wait_s:,.0f} s",
        )  # fmt: skip
    if table.row_count:
        console.print(table)
    console.print(
        f"{even.served:.1%} of {even.requests:,} served, mean wait {even.mean_wait_s:,.0f} s; "
        f"of {even.cells:,} cells with enough requests the least {even.least_served:.1%}, the longest "
        f"{even.longest_wait_s:,.0f} s, Gini of their waits {even.wait_gini:.2f}",
        highlight=False,
    )


def _clock(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S}"
