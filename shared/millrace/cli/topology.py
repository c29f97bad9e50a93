"""`millrace topology APP`: an app's inputs, links and outputs, as text or as a diagram."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.options import AppName, ConfigFile, Format, Overrides, Shape

app = typer.Typer(no_args_is_help=True)


class Form(StrEnum):
    """What a topology is shown as."""

    text = "text"
    mermaid = "mermaid"
    contract = "contract"


@app.command("topology", epilog="Example: millrace topology iot --as mermaid")
def topology(
    name: AppName,
    form: Annotated[
        Form,
        typer.Option(
            "--as", help="text; mermaid: a diagram; contract: what a checkpoint depends on, as JSON."
        ),
    ] = Form.text,
    config: ConfigFile = None,
    overrides: Overrides = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", dir_okay=False, help="Put diagram and text between the marks of this page."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="With --write: change nothing, and fail where it would.")
    ] = False,
    shape: Shape = Format.table,
) -> None:
    """Show how an app is wired: what comes in, its processes and what each waits for, what goes where.

    Nothing runs, and Spark is not needed. Exit codes: 0 done, 1 the page is not as it should be, 2 something
    you can put right.
    """
    from millrace.errors import UserError
    from millrace.runtime.apps import load_app
    from millrace.runtime.plans import settled
    from millrace.runtime.settings import load_settings
    from millrace.time.durations import to_ms
    from millrace.topology.contract import contract_of
    from millrace.topology.drawing import as_mermaid, as_text, page_with

    found = load_app(name)
    settings = settled(
        found, load_settings(found.settings, app=name, config=config, overrides=overrides or [])
    )
    wired, bound_ms = found.topology(settings), to_ms(settings.stream.out_of_orderness)
    if write is None:
        if form is Form.contract or shape is Format.json:
            groups = [link.key_groups or settings.spark.key_groups for link in wired.links]
            typer.echo(json.dumps(contract_of(wired, groups), indent=2))
            return
        typer.echo(as_text(wired, bound_ms) if form is Form.text else as_mermaid(wired, bound_ms))
        return
    try:
        page = write.read_text(encoding="utf-8")
        made = page_with(page, name, wired, bound_ms)
    except (OSError, ValueError) as error:
        raise UserError(f"{write}: {error}") from error
    if check:
        if made != page:
            typer.echo(f"{write} does not show the topology of {name} as it is; --write it anew")
            raise typer.Exit(1)
        return
    write.write_text(made, encoding="utf-8")
    typer.echo(f"wrote  {write}")
