"""`millrace new app NAME`: a complete small app in a repository of its own, to be changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Begin something of your own.", no_args_is_help=True, add_completion=False)


@app.callback()
def new() -> None:
    """Begin something of your own."""


@app.command("app", epilog="Example: millrace new app parcels --folder parcels")
def new_app(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Lower-case letters, digits, dashes.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", file_okay=False, help="Where; default ./NAME.")
    ] = None,
) -> None:
    """Write a complete small app: contract, process, topology, generator, demo with checks, tests, README.

    Nothing is installed; what to type next is printed.
    """
    from millrace.scaffold.writing import new_app as write

    where = folder or Path(name)
    for path in write(name, where):
        typer.echo(f"wrote  {path}")
    typer.echo(f"next   cd {where} && pip install -e '.[dev]' && pytest && millrace demo {name}")
