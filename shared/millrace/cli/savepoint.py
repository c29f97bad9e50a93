"""`millrace savepoint create|restore|list|check`: a moment of a query, kept to begin another one with."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.options import Format, Shape, print_as

app = typer.Typer(help="Keep a committed batch of a query, and begin another with it.", no_args_is_help=True)


@app.command(epilog="Example: millrace savepoint create fraud --name before-upgrade")
def create(
    target: Annotated[str, typer.Argument(metavar="APP|FOLDER", help="An app, or a checkpoint's folder.")],
    name: Annotated[str | None, typer.Option(help="Name of the savepoint; default batch-N.")] = None,
    batch: Annotated[
        int | None, typer.Option(help="A committed batch that is still kept; default the last.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="Folder of savepoints; default beside the checkpoint.")
    ] = None,
    shape: Shape = Format.table,
) -> None:
    """Copy the last committed batch, its contract and offsets; the query may run."""
    from millrace.checkpoints import savepoints
    from millrace.checkpoints.checkpoint import locate

    began = time.monotonic()
    made = savepoints.create(locate(target), name=name, batch=batch, to=to)
    seconds = time.monotonic() - began
    data = {"name": made.name, "path": made.path, "batch": made.batch, "bytes": made.bytes, "s": seconds}
    print_as(shape, data, lambda: f"{made.path}: batch {made.batch}, {made.bytes:,} bytes, {seconds:.1f} s")


@app.command(epilog="Example: millrace savepoint restore before-upgrade --to fraud")
def restore(
    name: Annotated[
        str, typer.Argument(metavar="NAME|PATH", help="A savepoint: its path, APP/NAME, or its name.")
    ],
    to: Annotated[
        str, typer.Option(metavar="APP|FOLDER", help="Where the checkpoint is to be: an app, or a folder.")
    ],
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Bring tables that were written to since back to it.")
    ] = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="Write only what tables do not have yet, by event_id.")
    ] = False,
    keep_tables: Annotated[
        bool, typer.Option("--keep-tables", help="Leave tables alone: the query writes to others.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of a checkpoint that is there.")
    ] = False,
    shape: Shape = Format.table,
) -> None:
    """Make a checkpoint of a savepoint; the next start goes on from it, also one of a later version."""
    from millrace.checkpoints import savepoints
    from millrace.checkpoints.checkpoint import app_root
    from millrace.errors import UserError

    if sum((rollback, merge, keep_tables)) > 1:
        raise UserError("give one of --rollback, --merge and --keep-tables")
    began = time.monotonic()
    found = savepoints.find(name, to)
    root = (app_root(to) if not Path(to).is_dir() else None) or Path(to).expanduser()
    how: savepoints.Tables = (
        "rollback" if rollback else "merge" if merge else "keep" if keep_tables else "refuse"
    )
    done = savepoints.restore(found, root, tables=how, replace=replace)
    seconds = time.monotonic() - began
    place = done.checkpoint.folder
    last = f"{place}: goes on after batch {found.batch} of {found.name}, {seconds:.1f} s"
    data = {
        "name": found.name, "checkpoint": place, "batch": found.batch, "tables": list(done.done), "s": seconds
    }  # fmt: skip
    print_as(shape, data, lambda: "\n".join([*done.done, last]))


@app.command("list", epilog="Example: millrace savepoint list fraud")
def list_(
    target: Annotated[
        str, typer.Argument(metavar="APP|FOLDER", help="An app, a checkpoint's folder, or one of savepoints.")
    ],
    shape: Shape = Format.table,
) -> None:
    """List savepoints with their batch, size, watermark and process."""
    from millrace.checkpoints import savepoints
    from millrace.errors import UserError
    from millrace.runtime.installed import list_apps

    path = Path(target).expanduser()
    folder = savepoints.savepoints_folder(target)
    if not path.is_dir() and not folder.parent.is_dir() and target not in list_apps():
        raise UserError(f"{target} is no app, and no folder")
    found = savepoints.list_savepoints(folder if folder.is_dir() else path)
    if shape is Format.json:
        typer.echo(json.dumps([{"name": s.name, "path": str(s.path), "bytes": s.bytes,
                                **{k: v for k, v in s.manifest.items() if k not in ("files", "contract")},
                                "process": s.contract["process"]} for s in found], indent=2))  # fmt: skip
        return
    for s in found:
        mark = s.manifest["watermark_ms"]
        typer.echo(
            f"{s.name}  batch {s.batch}  {s.bytes:,} bytes  watermark {'-' if mark is None else mark}  "
            f"{s.contract['process']} version {s.contract.get('version', '-')}  {s.manifest['created_at']}"
        )
    if not found:
        typer.echo("no savepoints")


@app.command(epilog="Example: millrace savepoint check .millrace/savepoints/before-upgrade")
def check(
    name: Annotated[str, typer.Argument(metavar="PATH", help="A savepoint.")],
    shape: Shape = Format.table,
) -> None:
    """Check every file of a savepoint against its manifest; exit code 2 if one is not what was written."""
    from millrace.checkpoints import savepoints

    found = savepoints.find(name)
    savepoints.verify(found)
    files = len(found.manifest["files"])
    data = {"path": found.path, "files": files, "bytes": found.bytes, "as_written": True}
    print_as(shape, data, lambda: f"{found.path}: {files} files, {found.bytes:,} bytes, all as written")
