"""`millrace fraud rules …`: what `millrace rules fraud …` is, under the names of before."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli.options import Bootstrap, By, Overrides, Root
from millrace.cli.rules import commands_of, set_state
from millrace.cli.rules_options import From, Id, Start, StateName, VersionNumber

app = commands_of("fraud")


@app.command(epilog="Example: millrace fraud rules activate many-small --version 2 --by ann")
def activate(
    ctx: typer.Context,
    rule: Id,
    version: VersionNumber = None,
    state: Annotated[Start, typer.Option(help="active, or back to shadow or draft.")] = Start.active,
    by: By = None,
    from_: From = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """What `set RULE active` does."""
    set_state(ctx, rule, StateName(state.value), version, by, "", from_, None, bootstrap, root, overrides)


@app.command(epilog="Example: millrace fraud rules pause many-small --by ann")
def pause(
    ctx: typer.Context,
    rule: Id,
    version: VersionNumber = None,
    by: By = None,
    from_: From = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """What `set RULE paused` does."""
    set_state(ctx, rule, StateName.paused, version, by, "", from_, None, bootstrap, root, overrides)


@app.command(epilog="Example: millrace fraud rules delete many-small --by ann")
def delete(
    ctx: typer.Context,
    rule: Id,
    by: By = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """What `set RULE deleted` does."""
    set_state(ctx, rule, StateName.deleted, None, by, "", None, None, bootstrap, root, overrides)
