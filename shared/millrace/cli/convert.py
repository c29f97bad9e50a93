"""`millrace convert`: a checkpoint of an earlier version, brought over to this one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.options import Format, Shape, print_as

app = typer.Typer(help="Bring a checkpoint of an earlier version over to this one.", no_args_is_help=True)


@app.command()
def convert(
    target: Annotated[str, typer.Argument(metavar="APP|FOLDER", help="An app, or a checkpoint's folder.")],
    key_file: Annotated[
        str | None, typer.Option("--key-file", help="The file of keys that opens the state.")
    ] = None,
    process_class: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:CLASS", help="A process as it is now, of a query that is no app's."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file (default ./millrace.yaml).")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="A setting, as `millrace run` has it.")
    ] = None,
    memory: Annotated[str, typer.Option(help="Heap of the JVM that does it.")] = "2g",
    shape: Shape = Format.table,
) -> None:
    """Write a stopped query's checkpoint anew; it stays as it was unless all goes well.

    In earlier versions Spark kept the watermark, which becomes where the query's own clock begins, so that no
    window comes twice. State that has become something else is brought into the form that it has now. An app
    is told by the names of its processes. A savepoint is restored first, and what it was restored to is
    converted.

    Example: millrace convert .millrace/fraud
    """
    from millrace.checkpoints.checkpoint import locate
    from millrace.errors import UserError
    from millrace.runtime.apps import load_app
    from millrace.runtime.contract import links_of
    from millrace.runtime.plans import settled
    from millrace.runtime.settings import load_settings

    sets = list(overrides or [])
    named, topology = (None if Path(target).is_dir() else target), None
    if named is None:
        checkpoint = locate(target)
        if not process_class:
            named = _app_of({link["process"] for link in links_of(checkpoint.contract())}, config)
    if named is not None:
        found = load_app(named)
        settings = load_settings(found.settings, app=named, config=config, overrides=sets)
        if named == target:
            checkpoint = locate(str(settings.storage.path()))
        topology = found.topology(settled(found, settings, root=checkpoint.root))
    elif sets:
        raise UserError("--set is for an app's settings, and this is the checkpoint of none")

    from millrace.checkpoints.conversion import convert as bring_over
    from millrace.checkpoints.session import tool_session
    from millrace.checkpoints.stages import load_process

    began = time.monotonic()
    processes = [load_process(name) for name in process_class or ()]
    with tool_session(memory=memory) as spark:
        done = bring_over(spark, checkpoint, topology=topology, processes=processes, key_file=key_file)
    names, seconds = [*done.key_groups], time.monotonic() - began
    told = {"checkpoint": checkpoint.folder, "processes": names, "s": seconds}
    line = f"{checkpoint.folder}: {', '.join(names)} converted; {seconds:.1f} s"
    print_as(shape, told, lambda: line)


def _app_of(processes: set[str], config: Path | None) -> str | None:
    """Return the app that has these processes, or some of them; ``None``: none has."""
    from millrace.runtime.apps import load_app
    from millrace.runtime.installed import list_apps
    from millrace.runtime.plans import settled
    from millrace.runtime.settings import load_settings

    for name in list_apps():
        found = load_app(name)
        settings = load_settings(found.settings, app=name, config=config, overrides=[])
        topology = found.topology(settled(found, settings, "station", anew=True))
        if processes & {link.process.stored_as for link in topology.links}:
            return name
    return None
