"""`millrace recipe list|show|run`: one short, runnable file per concept."""

from __future__ import annotations

import contextlib
import enum
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.options import Format, Shape

if TYPE_CHECKING:
    from types import ModuleType

app = typer.Typer(help="Short files to run, read and change: one per concept.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a recipe; see `millrace recipe list`.")]


class Engine(enum.StrEnum):
    """Where a recipe runs."""

    MEMORY = "memory"
    SPARK = "spark"


@app.command("list", epilog="Example: millrace recipe list")
def list_recipes(
    shape: Shape = Format.table,
) -> None:
    """List the recipes: what each shows, what it teaches, where it runs (the first is the default)."""
    found = _catalogue().catalogue().values()
    rows = [
        {"name": r.name, "about": r.about, "teaches": r.teaches, "engines": list(r.engines)} for r in found
    ]
    if shape is Format.json:
        import json

        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo(f"{row['name']} ({', '.join(row['engines'])})")
        typer.echo(f"    {row['about']}")
        typer.echo(f"    teaches: {row['teaches']}")


@app.command(epilog="Example: millrace recipe show running-balance")
def show(name: Name) -> None:
    """Print the source of a recipe: it is to be read."""
    typer.echo(_catalogue().find(name).source, nl=False)


@app.command(epilog="Example: millrace recipe run running-balance --engine spark")
def run(
    name: Name,
    engine: Annotated[
        Engine | None,
        typer.Option(
            help="memory: in milliseconds, needs no Java. spark: a streaming query on this machine."
        ),
    ] = None,
) -> None:
    """Run a recipe: what goes in and what comes out, batch by batch; it ends by itself.

    In memory unless it is about Spark's own part (`millrace recipe list` tells). The lines are the
    same on both engines.
    """
    recipe = _catalogue().find(name)
    chosen = recipe.engine(engine.value if engine is not None else None)
    if chosen == Engine.SPARK:
        typer.echo("starting Spark …", err=True)
    with _ended_by_sigterm():
        recipe.run(chosen)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """End on SIGTERM as after Ctrl-C: what was started ends too, and what was written is removed."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _catalogue() -> ModuleType:
    """Return the catalogue of the recipes: they stand on the core, and it does not know them."""
    import importlib

    from millrace.errors import UserError

    try:
        return importlib.import_module("millrace_apps.recipes.catalogue")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("millrace_apps"):
            raise
        raise UserError(
            "the recipes are not installed: they come with the project, not with the core alone"
        ) from error
