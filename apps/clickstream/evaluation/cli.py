"""``millrace evaluate clickstream …``: sessions compared with those that others expect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.operations.report import write
from millrace_apps.clickstream.recommend.evaluate_cli import recommend

app = typer.Typer(
    no_args_is_help=True, help="Sessions compared, exactly, with those that others expect; next items."
)
app.command(
    epilog="Example: millrace evaluate clickstream recommend --train train.parquet --test test.parquet "
    "--out report.json"
)(recommend)

_File = {"exists": True, "dir_okay": False, "readable": True}
Out = Annotated[Path, typer.Option("--out", dir_okay=False, help="The report, JSON.")]
Rows = Annotated[Path | None, typer.Option("--sessions", dir_okay=False, help="The sessions found, Parquet.")]


@app.command(
    epilog="Example: millrace evaluate clickstream sessions --events events.csv --expected-sessions "
    "sessions.csv --expected-page-views views.csv --expected-users users.csv --out "
    "report.json"
)
def sessions(
    events: Annotated[Path, typer.Option("--events", **_File, help="Snowplow's events, CSV.")],
    expected_sessions: Annotated[Path, typer.Option("--expected-sessions", **_File, help="CSV.")],
    expected_page_views: Annotated[Path, typer.Option("--expected-page-views", **_File, help="CSV.")],
    expected_users: Annotated[Path, typer.Option("--expected-users", **_File, help="CSV.")],
    out: Out,
    rows: Rows = None,
) -> None:
    """Snowplow's web events through the pipeline, against the rows that Snowplow's own model makes."""
    from millrace_apps.clickstream.evaluation.files import evaluate_sessions

    report = evaluate_sessions(
        events, expected_sessions, expected_page_views, expected_users, rows_to=rows, say=_say
    )
    write(out, report)
    table = [(name, *(report[name][k] for k in ("expected", "matching", "mismatches")))
             for name in ("sessions", "page_views", "users")]  # fmt: skip
    live = report["live"]
    by_app = {"sessions, by the app": live, "users, by the app": live["users"]}
    table += [(name, *(found[k] for k in ("expected", "matching", "mismatches")))
              for name, found in by_app.items()]  # fmt: skip
    _show("Snowplow's web model", ("table", "expected", "matching", "mismatches"), table)
    for d in report["differences"][:10]:
        typer.echo(f"{d['table']} {d['key']}: {d['column']} is {d['found']}, expected {d['expected']}")


@app.command(
    epilog="Example: millrace evaluate clickstream sessionize --clicks clicks.parquet --gap 30m "
    "--out report.json"
)
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
    from millrace_apps.clickstream.evaluation.files import evaluate_sessionize
    from millrace_apps.clickstream.processes.offer_rules import duration_ms

    report = evaluate_sessionize(clicks, duration_ms(gap), rows_to=rows, say=_say)
    write(out, report)
    shown = ("clicks", "visitors", "sessions", "expected_sessions", "mismatches", "events_per_s")
    _show(f"Sessions, gap {gap}", shown, [tuple(report[name] for name in shown)])


@app.command(epilog="Example: millrace evaluate clickstream shop --events shop/ --out report.json")
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
    from millrace.console.report import print_checks
    from millrace.errors import ChecksFailed
    from millrace_apps.clickstream.evaluation.shop import evaluate_shop

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


@app.command(epilog="Example: millrace evaluate clickstream consent --cases 1000 --out report.json")
def consent(
    out: Out,
    cases: Annotated[int, typer.Option(min=1, help="How many random histories.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Number of the first one.")] = 0,
) -> None:
    """Random histories of answers in any order, repeated and late, through the whole app; exit 1 if wrong."""
    from millrace.errors import ChecksFailed
    from millrace_apps.clickstream.evaluation.consent import evaluate_consent

    report = evaluate_consent(cases, seed)
    write(out, report)
    shown = ("cases", "failed", "answers", "offers", "profiles", "told")
    _show("Consent", shown, [tuple(report[name] for name in shown)])
    for one in report["failures"]:
        typer.echo(f"case {one['case']}: {'; '.join(one['wrong'])}")
    if report["failed"]:
        raise ChecksFailed(f"{report['failed']} of {cases} histories are wrong")


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
