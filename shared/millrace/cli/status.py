"""`millrace status`: all jobs, whether they run, and how they do."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli.options import ConfigFile, Format, Overrides, Root, Shape

app = typer.Typer(help="All jobs: which run, how fast, how far behind.")


@app.command(epilog="Example: millrace status fraud --format json")
def status(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[APP]...", help="Only of these apps, with all that is known."),
    ] = None,
    root: Root = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
    shape: Shape = Format.table,
) -> None:
    """Show all jobs of this machine: running or not, since when, rate, lag, state, late, dead letters.

    Lag is the broker's own ends less what the checkpoint has committed. With APP all that is known of it.
    Exit codes: 0 shown, 1 a job that was named does not run, 2 something you can put right.
    """
    from millrace.cli.jobs_shown import Places, found_jobs, jobs_of, now_ms

    sets = list(overrides or [])
    wanted = list(names or [])
    found = found_jobs(jobs_of(config, sets), wanted, root, Places(config, sets))
    if shape is Format.json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        from millrace.console.jobs_view import job_details, jobs_console, jobs_table

        console = jobs_console()
        ascii_only = not console.encoding.lower().startswith("utf")
        if wanted or root is not None:
            for one in found:
                console.print(job_details(one, now_ms(), ascii_only=ascii_only))
        else:
            console.print(jobs_table(found, now_ms(), ascii_only=ascii_only, width=console.width))
    running = {s.app for s in found if s.state in ("running", "starting", "elsewhere")}
    if any(name not in running for name in wanted):
        raise typer.Exit(1)
