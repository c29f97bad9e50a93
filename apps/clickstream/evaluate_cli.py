"""``millrace evaluate clickstream …``: what the app finds, beside what others expect or what is true."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.operations.report import write

app = typer.Typer(no_args_is_help=True, help="What the app finds, beside what others expect or what is true.")

_File = {"exists": True, "dir_okay": False, "readable": True}
Out = Annotated[Path, typer.Option("--out", dir_okay=False, help="The report, JSON.")]
Rows = Annotated[Path | None, typer.Option("--sessions", dir_okay=False, help="The sessions found, Parquet.")]


@app.command()
def sessions(
    events: Annotated[Path, typer.Option("--events", **_File, help="Snowplow's events, CSV.")],
    expected_sessions: Annotated[Path, typer.Option("--expected-sessions", **_File, help="CSV.")],
    expected_page_views: Annotated[Path, typer.Option("--expected-page-views", **_File, help="CSV.")],
    expected_users: Annotated[Path, typer.Option("--expected-users", **_File, help="CSV.")],
    out: Out,
    rows: Rows = None,
) -> None:
    """Snowplow's web events through the pipeline, against the rows that Snowplow's own model makes."""
    from apps.clickstream.evaluation import evaluate_sessions

    report = evaluate_sessions(
        events, expected_sessions, expected_page_views, expected_users, rows_to=rows, say=_say
    )
    write(out, report)
    table = [(name, *(report[name][k] for k in ("expected", "matching", "mismatches")))
             for name in ("sessions", "page_views", "users")]  # fmt: skip
    _show("Snowplow's web model", ("table", "expected", "matching", "mismatches"), table)
    for d in report["differences"][:10]:
        typer.echo(f"{d['table']} {d['key']}: {d['column']} is {d['found']}, expected {d['expected']}")


@app.command()
def sessionize(
    clicks: Annotated[
        Path,
        typer.Option("--clicks", **_File, help="Parquet: session_id (the visitor), item_id, event_time."),
    ],
    out: Out,
    gap: Annotated[str, typer.Option("--gap", help="A longer pause begins a new session.")] = "30m",
    rows: Rows = None,
) -> None:
    """Cut clicks into sessions, against pandas."""
    from apps.clickstream.evaluation import evaluate_sessionize
    from apps.clickstream.offer_rules import duration_ms

    report = evaluate_sessionize(clicks, duration_ms(gap), rows_to=rows, say=_say)
    write(out, report)
    shown = ("clicks", "visitors", "sessions", "expected_sessions", "mismatches", "events_per_s")
    _show(f"Sessions, gap {gap}", shown, [tuple(report[name] for name in shown)])


@app.command()
def shop(
    events: Annotated[
        Path,
        typer.Option(
            "--events", exists=True, file_okay=False, help="Folder of a generated shop, JSON lines."
        ),
    ],
    out: Out,
    ledger: Annotated[Path | None, typer.Option("--ledger", **_File, help="Its ledger of truth.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Messages per batch.")] = 50_000,
    bound: Annotated[str, typer.Option(help="How far events may come out of order.")] = "2m",
    sets: Annotated[list[str] | None, typer.Option("--set", help="Settings, key=value.")] = None,
) -> None:
    """A generated shop through the whole app: events per second, and every table against the ledger."""
    from apps.clickstream.evaluation_shop import evaluate_shop
    from millrace.console.report import print_checks
    from millrace.errors import ChecksFailed

    report, checks = evaluate_shop(
        events, ledger=ledger, batch=batch, bound=bound, sets=tuple(sets or ()), say=_say
    )
    write(out, report)
    shown = ("messages", "batches", "seconds", "events_per_s", "warm_events_per_s")
    _show("The shop", shown, [tuple(report[name] for name in shown)])
    if checks:
        print_checks("Against the ledger", checks)
    if failed := sum(not check.ok for check in checks):
        raise ChecksFailed(f"{failed} of {len(checks)} comparisons with {ledger} do not hold")


@app.command()
def offers(
    out: Out,
    seeds: Annotated[int, typer.Option(min=1, help="Shops to play, seeds 1 to this.")] = 100,
    days: Annotated[int, typer.Option(min=8, help="Days that pass in each.")] = 20,
    event_rate: Annotated[float, typer.Option(min=0.001, help="Events a second.")] = 0.08,
    uplift: Annotated[float, typer.Option("--uplift", help="What an offer adds to the carts bought.")] = 0.3,
    least: Annotated[int, typer.Option(min=0, help="Of 100 intervals so many must hold the truth.")] = 90,
    jobs: Annotated[int, typer.Option(min=1, help="Processes to play in.")] = 2,
) -> None:
    """Shoppers who answer offers, in memory: how often the interval of ``uplift`` holds the truth."""
    from apps.clickstream.evaluation_offers import Shop, evaluate_offers
    from millrace.errors import ChecksFailed

    shop = Shop(days=days, event_rate=event_rate, offer_uplift=uplift)
    report = evaluate_offers(range(1, seeds + 1), shop, jobs=jobs, say=_say)
    write(out, report)
    shown = ("seeds", "told", "held", "above_nothing", "mean_truth", "mean_uplift", "mean_width")
    told = [report[n] if isinstance(report[n], int) else f"{report[n] or 0:.3f}" for n in shown]
    _show("What offers add, told and true", shown, [tuple(told)])
    if report["held"] * 100 < least * seeds:
        raise ChecksFailed(f"{report['held']} of {seeds} intervals hold what offers truly add, not {least} %")


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _show(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="left" if column == "table" else "right")
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    Console().print(table)
