"""`millrace rescale`: other partitions or key groups for a stopped query, or another plan."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.options import Format, Shape, print_as

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
    rekey: Annotated[
        bool, typer.Option("--rekey", help="Give an app's state the keys of its settings: new regions, say.")
    ] = False,
    extend: Annotated[
        bool,
        typer.Option("--extend", help="Give an app the processes that its settings add: they begin empty."),
    ] = False,
    config: Annotated[Path | None, typer.Option(help="With --rekey, --extend: settings file.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="With --rekey, --extend: a setting, as `millrace run` has it."),
    ] = None,
    memory: Annotated[str, typer.Option(help="Heap of the JVM that does it.")] = "2g",
    shape: Shape = Format.table,
) -> None:
    """Change the shape of a checkpoint; nothing is lost, and it stays as it was unless all goes well.

    Stop the query first. Afterwards start it with the same settings and, where key groups have changed,
    with `spark.key_groups` (or `keyed(..., key_groups=)`) set to the new number, or `stream.plan` (or
    `keyed(..., plan=)`) to the new plan; `stream.stations=auto` takes as many stations as it has.
    """
    from millrace.checkpoints.checkpoint import locate
    from millrace.errors import UserError

    anew = reseal or any(given is not None for given in (key_groups, plan, stations))
    if partitions is None and not anew and not rekey and not extend:
        raise UserError(
            "say what is to change: --plan, --stations, --partitions, --key-groups, --rekey, --extend or "
            "--reseal"
        )
    if rekey or extend:
        if anew or partitions is not None or (rekey and extend):
            one, alone = ("--rekey", "the keys") if rekey else ("--extend", "which processes there are")
            raise UserError(f"{one} changes {alone} alone: other shapes are another step")
        by_settings = _rekey if rekey else _extend
        by_settings(target, config, overrides or [], key_file, memory, shape)
        return
    if config is not None or overrides:
        raise UserError("--config and --set are for --rekey and --extend")
    checkpoint = locate(target)

    from millrace.checkpoints import rescale as reshaping
    from millrace.checkpoints.session import tool_session
    from millrace.checkpoints.stages import load_process
    from millrace.state.keyring import configured_keys

    began = time.monotonic()
    with tool_session(memory=memory) as spark:
        if not anew:
            done = reshaping.repartition(spark, checkpoint, partitions or 1)
        else:
            done = reshaping.rekey(
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
    found = {
        "checkpoint": checkpoint.folder,
        "partitions": done.partitions,
        "key_groups": dict(done.key_groups),
        "s": seconds,
    }
    line = f"{checkpoint.folder}: {done.partitions} partitions, {groups}; {seconds:.1f} s"
    print_as(shape, found, lambda: line)


def _rekey(
    target: str, config: Path | None, sets: list[str], key_file: str | None, memory: str, shape: Format
) -> None:
    """Give the state of an app the keys of its settings."""
    import importlib

    from millrace.checkpoints.checkpoint import locate
    from millrace.checkpoints.conversion import regroup
    from millrace.checkpoints.session import tool_session
    from millrace.errors import UserError
    from millrace.runtime.apps import load_app
    from millrace.runtime.plans import settled
    from millrace.runtime.settings import load_settings

    found = load_app(target)
    if found.rekeying is None:
        raise UserError(f"the keys of {target} do not hang on its settings: there is nothing to change")
    settings = load_settings(found.settings, app=target, config=config, overrides=sets)
    checkpoint = locate(str(settings.storage.path()))
    module, _, attribute = found.rekeying.partition(":")
    by = getattr(importlib.import_module(module), attribute)(settings)
    topology = found.topology(settled(found, settings, root=checkpoint.root))
    began = time.monotonic()
    with tool_session(memory=memory) as spark:
        done = regroup(spark, checkpoint, topology, by, key_file=key_file)
    names, seconds = [name for name in done.key_groups if name in by.processes], time.monotonic() - began
    line = f"{checkpoint.folder}: {', '.join(names)} have other keys; {seconds:.1f} s"
    told = {"checkpoint": checkpoint.folder, "rekeyed": names, "s": seconds}
    print_as(shape, told, lambda: line)


def _extend(
    target: str, config: Path | None, sets: list[str], key_file: str | None, memory: str, shape: Format
) -> None:
    """Give an app the processes that its settings add."""
    from millrace.checkpoints.checkpoint import locate
    from millrace.checkpoints.conversion import extend
    from millrace.checkpoints.session import tool_session
    from millrace.runtime.apps import load_app
    from millrace.runtime.contract import links_of
    from millrace.runtime.plans import settled
    from millrace.runtime.settings import load_settings

    found = load_app(target)
    settings = load_settings(found.settings, app=target, config=config, overrides=sets)
    checkpoint = locate(str(settings.storage.path()))
    before = {link["process"] for link in links_of(checkpoint.contract())}
    topology = found.topology(settled(found, settings, root=checkpoint.root))
    began = time.monotonic()
    with tool_session(memory=memory) as spark:
        done = extend(spark, checkpoint, topology, key_file=key_file)
    names, seconds = [name for name in done.key_groups if name not in before], time.monotonic() - began
    line = f"{checkpoint.folder}: {', '.join(names)} begins with nothing; {seconds:.1f} s"
    print_as(shape, {"checkpoint": checkpoint.folder, "added": names, "s": seconds}, lambda: line)
