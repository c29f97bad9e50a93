"""`millrace chaos input`: what nobody should send, through an app's topology, counted to the last event."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.options import ConfigFile, Format, Overrides, Shape

if TYPE_CHECKING:
    from millrace.chaos.account import Report

app = typer.Typer(no_args_is_help=True, help="Trouble on purpose, and what an app makes of it.")


class Host(StrEnum):
    """Where the topology runs."""

    memory = "memory"
    spark = "spark"


@app.callback()
def chaos() -> None:
    """Trouble on purpose, and what an app makes of it."""


@app.command("input")
def hostile_input(
    name: Annotated[str, typer.Option("--app", metavar="APP", help="The app.")],
    events: Annotated[int, typer.Option(min=1, metavar="N", help="How many records are sent.")] = 100_000,
    seed: Annotated[int, typer.Option(help="The same one sends the same records.")] = 1,
    host: Annotated[
        Host,
        typer.Option("--engine", help="memory: without an engine; spark: by an embedded broker, on Spark."),
    ] = Host.memory,
    world: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="Records of the app's world, as `millrace generate --to parquet` writes them; "
            "default: what its demo sends.",
        ),
    ] = None,
    shape: Shape = Format.table,
    out: Annotated[
        Path | None, typer.Option("--out", dir_okay=False, help="File for the report as JSON.")
    ] = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Send an app values at and beyond every bound, broken records and wrong keys, among events of its world.

    Every record must become a result, a late event or a dead letter, once, and the job must go on to the end.
    Example: millrace chaos input --app fraud --events 100000 --seed 7

    Exit codes: 0 every record is accounted for, 1 one is not, the job ended, or an event that its contract
    allows failed in a process, 2 something you can put right.
    """
    import tempfile

    from millrace.chaos.inputs import input_in_memory
    from millrace.chaos.world import generated, read_records
    from millrace.errors import ChecksFailed
    from millrace.operations import report as report_file
    from millrace.runtime.apps import load_app
    from millrace.runtime.plans import settled
    from millrace.runtime.settings import load_settings

    found = load_app(name)
    settings = load_settings(found.settings, app=name, config=config, overrides=overrides or [])
    settings = settled(found, settings, "station", anew=True)
    with tempfile.TemporaryDirectory(prefix="millrace-chaos-") as folder:
        records = (
            generated(found, settings, events=events, seed=seed, folder=Path(folder))
            if world is None
            else read_records(world)
        )
        if host is Host.memory:
            report = input_in_memory(found, settings, records, events=events, seed=seed, on_progress=_say)
        else:
            from millrace.chaos.broker import input_on_spark

            report = input_on_spark(
                found, settings, records, events=events, seed=seed, folder=Path(folder), on_progress=_say
            )
    report_file.write(out, report)
    if shape is Format.json:
        typer.echo(report_file.as_json(report))
    else:
        _print(report)
    if not report.holds:
        raise ChecksFailed(_verdict(report))


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _verdict(report: Report) -> str:
    if report.ended:
        return f"the job ended {report.ended}"
    lost = sum(not row.holds for row in report.rows)
    return f"{lost} rows do not add up, {sum(fault.count for fault in report.faults)} things should not be"


def _print(report: Report) -> None:
    from millrace.console.report import print_table

    columns = ("input", "event", "sent", "allowed", "processed", "late", "dead letters", "unaccounted", "ok")
    rows = [
        (
            row.input or "-", row.event, row.sent, row.valid, row.processed, row.late, sum(row.dead.values()),
            row.unaccounted, row.holds,
        )
        for row in report.rows
    ]  # fmt: skip
    styles = ["" if row.holds else "bold red" for row in report.rows]
    where = f"{report.app}, {report.host}, seed {report.seed}"
    title = f"{where}: {report.sent:,} records in {report.seconds:,.0f} s"
    print_table(title, columns, rows, right=columns[2:], styles=styles)
    reasons: dict[str, int] = {}
    for row in report.rows:
        for reason, count in row.dead.items():
            reasons[reason] = reasons.get(reason, 0) + count
    said = ", ".join(f"{reason} {count:,}" for reason, count in sorted(reasons.items(), key=lambda x: -x[1]))
    typer.echo(f"dead letters: {said or 'none'}")
    if report.cases:
        typer.echo(f"{report.cases:,} single changes were not tried: they take more events")
    for fault in report.faults:
        typer.echo(f"NOT AS IT SHOULD BE: {fault.what}, {fault.where or '-'}, {fault.count:,} times")
        for example in fault.examples:
            typer.echo(f"  {example}")
    if report.holds:
        typer.echo("every record is accounted for, once")
