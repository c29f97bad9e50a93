"""`millrace logs APP`: what a job has logged, and what it goes on to log."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.options import AppName, ConfigFile, Overrides, Root

app = typer.Typer(help="What a job has logged.")


@app.command(epilog="Example: millrace logs fraud -n 100 --follow")
def logs(
    name: AppName,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until the job ends or Ctrl-C.")
    ] = False,
    spark: Annotated[bool, typer.Option("--spark", help="The engine's log (logs/spark.log).")] = False,
    root: Root = None,
    as_json: Annotated[bool, typer.Option("--json", help="Each line as a JSON object.")] = False,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Show the log of the job of APP: logs/job.log under its root.

    With the setting log_format=json its lines are JSON with query and batch. Exit codes: 0 shown, 1 nothing
    has been logged, 2 something you can put right.
    """
    from millrace.cli.jobs_shown import Places, found_jobs, jobs_of, record_of
    from millrace.observing.joblog import LOG_FILE
    from millrace.observing.jobs import state_of
    from millrace.observing.reading import chosen
    from millrace.observing.tail import following, last_lines

    sets = list(overrides or [])
    status = chosen(found_jobs(jobs_of(config, sets), [name], root, Places(config, sets)), name, root)
    path = Path(status.root) / "logs" / ("spark.log" if spark else LOG_FILE)
    goes_on = follow and status.state in ("running", "starting")
    if not path.exists() and not goes_on:
        typer.echo(f"{name} has logged nothing: there is no {path}", err=True)
        raise typer.Exit(1)
    shown, at = last_lines(path, lines) if path.exists() else ([], 0)
    for line in shown:
        typer.echo(_shown(line, as_json))
    record = record_of(name, status)
    if not goes_on or record is None:
        return
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        for line in following(path, at, lambda: state_of(record) == "running"):
            typer.echo(_shown(line, as_json))


def _shown(line: str, as_json: bool) -> str:
    if not as_json:
        return line
    try:
        if isinstance(json.loads(line), dict):
            return line
    except ValueError:
        pass
    return json.dumps({"message": line}, ensure_ascii=False)
