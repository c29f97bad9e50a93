"""`millrace convert`: a checkpoint of an earlier version, brought over to this one."""

from __future__ import annotations

import time
from typing import Annotated

import typer

app = typer.Typer(help="Bring a checkpoint of an earlier version over to this one.", no_args_is_help=True)


@app.command()
def convert(
    target: Annotated[str, typer.Argument(metavar="APP|FOLDER", help="An app, or a checkpoint's folder.")],
    key_file: Annotated[
        str | None, typer.Option("--key-file", help="The file of keys that opens the state.")
    ] = None,
    memory: Annotated[str, typer.Option(help="Heap of the JVM that does it.")] = "2g",
) -> None:
    """Write a stopped query's checkpoint anew; it stays as it was unless all goes well.

    Earlier versions left the watermark to Spark. It becomes where the query's own clock begins, so that no
    window comes twice. A savepoint is restored first, and what it was restored to is converted.

    Example: millrace convert .millrace/fraud
    """
    from millrace.inspect.checkpoint import locate

    checkpoint = locate(target)

    from millrace.inspect import rescale
    from millrace.inspect.session import tool_session

    began = time.monotonic()
    with tool_session(memory=memory) as spark:
        done = rescale.convert(spark, checkpoint, key_file=key_file)
    names = ", ".join(done.key_groups)
    typer.echo(f"{checkpoint.folder}: {names} converted; {time.monotonic() - began:.1f} s")
