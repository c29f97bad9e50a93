"""`millrace package`: what `spark-submit` takes to a cluster that has nothing of this."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.options import Format, Shape

app = typer.Typer(help="Code and libraries for spark-submit.")


@app.command(epilog="Example: millrace package --out dist --extra model")
def package(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder that they go to.")] = Path("dist"),
    extra: Annotated[
        list[str] | None,
        typer.Option("--extra", metavar="NAME", help="Libraries of this extra, too, beside those of apps."),
    ] = None,
    shape: Shape = Format.table,
) -> None:
    """Make the archives that spark-submit takes along: this project's code, and the libraries it needs.

    What is installed here goes along as it is. The nodes of the cluster must have a Python of the same
    version, and the same kind of system and processor.
    """
    from millrace.runtime.packaging import package as make

    def say(text: str) -> None:
        typer.echo(text, err=shape is Format.json)

    packed = make(out, ("apps", *(extra or ())), say)
    if shape is Format.json:
        typer.echo(json.dumps({**packed._asdict(), "command": packed.command}, default=str))
        return
    size = packed.environment.stat().st_size / 1e6
    typer.echo(f"environment: {packed.environment}, {size:,.0f} MB, {len(packed.distributions)} libraries")
    typer.echo(f"nodes need {packed.python}, or another of its version in MILLRACE_PYTHON")
    typer.echo(packed.command)
