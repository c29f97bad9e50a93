"""`millrace top`: all jobs, live in the terminal."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.options import ConfigFile, Format, Overrides, Root, Shape

app = typer.Typer(help="All jobs, live in the terminal.")


@app.command(epilog="Example: millrace top --every 2s")
def top(
    names: Annotated[list[str] | None, typer.Argument(metavar="[APP]...", help="Only of these apps.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    every: Annotated[str, typer.Option("--every", help="How often to look, e.g. 2s.")] = "1s",
    root: Root = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
    shape: Shape = Format.table,
) -> None:
    """Show all jobs and keep looking, until Ctrl-C; of those that run all that is known.

    As JSON an array of all jobs for each look, a line each. Exit codes: 0 ended, 2 something you can put
    right.
    """
    from millrace.errors import UserError
    from millrace.time.durations import to_ms

    period_s = to_ms(every) / 1000
    if period_s < 0.1:
        raise UserError(f"--every {every}: a tenth of a second or more, e.g. 1s")
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        _show(list(names or []), once, period_s, root, config, list(overrides or []), shape)


def _show(
    names: list[str],
    once: bool,
    period_s: float,
    root: Path | None,
    config: Path | None,
    sets: list[str],
    shape: Format,
) -> None:
    from rich.console import Group, RenderableType
    from rich.live import Live

    from millrace.cli.jobs_shown import Places, found_jobs, jobs_of, now_ms
    from millrace.console.jobs_view import job_details, jobs_console, jobs_table

    jobs, places = jobs_of(config, sets), Places(config, sets)
    if shape is Format.json:
        import msgspec

        while True:
            typer.echo(msgspec.json.encode(found_jobs(jobs, names, root, places)).decode())
            if once:
                return
            time.sleep(period_s)
    console = jobs_console()
    ascii_only = not console.encoding.lower().startswith("utf")

    def look() -> RenderableType:
        found = found_jobs(jobs, names, root, places)
        live = [s for s in found if s.state in ("running", "starting", "elsewhere")]
        parts = [jobs_table(found, now_ms(), ascii_only=ascii_only, width=console.width)]
        parts += [job_details(one, now_ms(), ascii_only=ascii_only) for one in live]
        return Group(*parts)

    if once or not console.is_terminal or console.is_dumb_terminal:
        while True:
            console.print(look())
            if once:
                return
            time.sleep(period_s)
    with Live(look(), console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as picture:
        while True:
            time.sleep(period_s)
            picture.update(look(), refresh=True)
