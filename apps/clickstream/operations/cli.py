"""``millrace clickstream …``: what operators do with the app."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.options import By

app = typer.Typer(no_args_is_help=True, help="Operate the clickstream app.")


@app.callback()
def clickstream() -> None:
    """Operate the clickstream app."""


@app.command(epilog="Example: millrace clickstream forget user-42 --vacuum --out certificate.json")
def forget(
    user: Annotated[str, typer.Argument(help="The account that is to be forgotten.")],
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", help="The broker that the app reads from.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", help="Time of the request, ISO 8601; by default that of the newest click."),
    ] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Settings, key=value.")] = None,
    tables_only: Annotated[
        bool, typer.Option("--tables-only", help="Send no request: the app has forgotten the person already.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", dir_okay=False, help="The certificate, JSON.")] = None,
    visitors: Annotated[
        list[str] | None,
        typer.Option("--visitor", help="A browser of the account that the tables do not know; repeatable."),
    ] = None,
    carts: Annotated[
        list[str] | None, typer.Option("--cart", help="A cart of the account, likewise; repeatable.")
    ] = None,
    vacuumed: Annotated[
        bool, typer.Option("--vacuum", help="Remove the files of earlier versions of the tables, too.")
    ] = False,
    by: By = None,
) -> None:
    """Remove a person from state, by a request on the app's topic, and from the tables; show what is left.

    Topics, files of earlier versions, checkpoint and savepoints are named with the time at which they have
    nothing of the person any more. Exit code 1 if something is left.
    """
    from millrace_apps.clickstream.operations.forget import run

    sure = run(user, bootstrap=bootstrap, at=at, sets=sets or [], tables_only=tables_only, out=out, by=by,
               visitors=visitors or (), carts=carts or (), vacuumed=vacuumed)  # fmt: skip
    raise typer.Exit(sure)


@app.command(epilog="Example: millrace clickstream uplift --out uplift.json")
def uplift(
    sets: Annotated[list[str] | None, typer.Option("--set", help="Settings, key=value.")] = None,
    out: Annotated[Path | None, typer.Option("--out", dir_okay=False, help="The report, JSON.")] = None,
) -> None:
    """Say what each offer has added to purchases, against its control arm, with a 95 % interval."""
    from millrace_apps.clickstream.operations.uplift import run

    run(sets=sets or [], out=out)


@app.command(name="click-through", epilog="Example: millrace clickstream click-through --within 1h")
def click_through(
    sets: Annotated[list[str] | None, typer.Option("--set", help="Settings, key=value.")] = None,
    within: Annotated[
        str, typer.Option("--within", help="So long after a person's first list clicks count.")
    ] = "1h",
    out: Annotated[Path | None, typer.Option("--out", dir_okay=False, help="The report, JSON.")] = None,
) -> None:
    """Compare the arms of next items by surface: clicks on lists per person, with a 95 % interval.

    Each arm stands beside each control arm that there is: unlearned (recommend.unlearned), popular
    (recommend.control).
    """
    from millrace_apps.clickstream.recommend.clicked_cli import run

    run(sets=sets or [], within=within, out=out)
