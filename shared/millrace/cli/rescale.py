"""`millrace rescale`: other partitions or key groups for a stopped query, or another plan."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated

import typer

app = typer.Typer(
    help="Give a stopped query other partitions or key groups, or another plan.", no_args_is_help=True
)


class PlanName(StrEnum):
    """How the processes of a query run."""

    station = "station"
    chain = "chain"


@app.command(epilog="Example: millrace rescale fraud --partitions 8")
def rescale(
    target: Annotated[str, typer.Argument(metavar="APP|FOLDER", help="An app, or a checkpoint's folder.")],
    partitions: Annotated[int | None, typer.Option(min=1, help="Into how many the state is divided.")] = None,
    key_groups: Annotated[
        int | None, typer.Option(min=1, max=32_768, help="Number of key groups: state is written anew.")
    ] = None,
    reseal: Annotated[
        bool, typer.Option("--reseal", help="Write state anew, encrypted with the first of --new-key-file.")
    ] = False,
    key_file: Annotated[
        str | None, typer.Option("--key-file", help="The file of keys that opens the state.")
    ] = None,
    new_key_file: Annotated[
        str | None, typer.Option("--new-key-file", help="With --reseal; without it state is in clear then.")
    ] = None,
    process_class: Annotated[
        str | None,
        typer.Option(metavar="MODULE:CLASS", help="The process as it is now, where older ones have written."),
    ] = None,
    plan: Annotated[
        PlanName | None, typer.Option(help="How its processes run from now on: state is written anew.")
    ] = None,
    stations: Annotated[
        int | None, typer.Option(min=1, max=64, help="How many stations share the state, by its locality.")
    ] = None,
    memory: Annotated[str, typer.Option(help="Heap of the JVM that does it.")] = "2g",
) -> None:
    """Change the shape of a checkpoint; nothing is lost, and it stays as it was unless all goes well.

    Stop the query first. Afterwards start it with the same settings and, where key groups have changed,
    with `spark.key_groups` (or `keyed(..., key_groups=)`) set to the new number, or `stream.plan` (or
    `keyed(..., plan=)`) to the new plan; `stream.stations=auto` takes as many stations as it has.
    """
    from millrace.errors import UserError
    from millrace.inspect.checkpoint import locate

    anew = reseal or any(given is not None for given in (key_groups, plan, stations))
    if partitions is None and not anew:
        raise UserError("say what is to change: --plan, --stations, --partitions, --key-groups or --reseal")
    checkpoint = locate(target)

    from millrace.inspect import rescale as shape
    from millrace.inspect.session import tool_session
    from millrace.inspect.stages import load_process
    from millrace.state.keyring import configured_keys

    began = time.monotonic()
    with tool_session(memory=memory) as spark:
        if not anew:
            done = shape.repartition(spark, checkpoint, partitions or 1)
        else:
            done = shape.rekey(
                spark,
                checkpoint,
                key_groups=key_groups,
                partitions=partitions,
                processes=[] if process_class is None else [load_process(process_class)],
                key_file=key_file,
                keys=configured_keys(new_key_file, {}) if reseal else None,
                reseal=reseal,
                plan=None if plan is None else plan.value,
                stations=stations,
            )
    groups = ", ".join(f"{name} {n} key groups" for name, n in done.key_groups.items())
    seconds = time.monotonic() - began
    typer.echo(f"{checkpoint.folder}: {done.partitions} partitions, {groups}; {seconds:.1f} s")
