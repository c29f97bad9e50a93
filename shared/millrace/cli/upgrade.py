"""`millrace upgrade APP`: the installed version in place of the one that runs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from millrace.cli.options import AppName, ConfigFile, Format, Overrides, Root, Shape

app = typer.Typer(help="Put the installed version of an app in place of the one that runs.")


@app.command(epilog="Example: millrace upgrade fraud --check")
def upgrade(
    name: AppName,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether the new version fits; nothing is touched.")
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run the new version here, not in the background.")
    ] = False,
    roll_back: Annotated[
        bool,
        typer.Option(
            "--roll-back/--no-roll-back", help="Start the old version again where the new one fails."
        ),
    ] = True,
    timeout: Annotated[
        str, typer.Option("--timeout", help="How long the old version may take to end.")
    ] = "2min",
    start_timeout: Annotated[
        str,
        typer.Option("--start-timeout", help="How long the new one may take to its first batch."),
    ] = "3min",
    root: Root = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
    shape: Shape = Format.table,
) -> None:
    """Check, stop, keep a savepoint, and start the version of APP that this command is of.

    The new version gets the settings, folder and environment of the job that runs; --set adds to them. What
    a start would refuse is refused before anything is stopped. Without a running job the savepoint is made of
    what it left, and the new version starts with what is given here.
    Exit codes: 0 it runs (--check: it fits), 1 the old version was stopped and the new one does not run (a
    line says whether the old one runs again), 2 refused, nothing was stopped.
    """
    from millrace.cli.upgrade_plan import carried_out, ended_with, planned

    def say(text: str) -> None:
        typer.echo(f"{name}: {text}", err=shape is Format.json)

    plan = planned(
        name,
        root,
        config,
        overrides or [],
        timeout=timeout,
        start_timeout=start_timeout,
        roll_back=roll_back,
        foreground=foreground,
    )
    done = plan.check() if check else carried_out(plan, say)
    ended_with(done, as_json=shape is Format.json)
    if done.did == "prepared":
        sys.stdout.flush()
        os.chdir(plan.new.folder)
        os.execve(plan.new.command[0], plan.new.command, dict(plan.new.env))  # noqa: S606 - our own command
