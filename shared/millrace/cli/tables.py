"""`millrace tables …`: upkeep of an app's Delta tables, also while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.cli.options import AppName, ConfigFile, Format, Overrides, Shape

app = typer.Typer(
    no_args_is_help=True,
    help="Upkeep of an app's Delta tables, also while it runs: list, compact, vacuum, expire, maintain.",
)

#: How long a job that runs may take to bring in what waits for its tables, s.
_MERGED_S = 90.0

Names = Annotated[list[str] | None, typer.Option("--table", "-t", help="This table only; repeatable.")]


@app.command("list", epilog="Example: millrace tables list fraud")
def list_(
    name: AppName,
    table: Names = None,
    shape: Shape = Format.table,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Rows, files and bytes of each table, and rows that are committed and not in it yet."""
    from millrace.connectors.merging import rows_waiting
    from millrace.connectors.upkeep import state_of

    def listed(path: Path) -> None:
        found, waiting = state_of(path), rows_waiting(path)
        size = f"{found.size / 1e6:,.1f} MB"
        waits = f", {waiting:,} rows wait" if waiting else ""
        line = f"{found.name:<28} {found.rows:>12,} rows {found.files:>7,} files {size:>14}{waits}"
        typer.echo(json.dumps(asdict(found) | {"waiting": waiting}) if shape is Format.json else line)

    _each(_tables(name, table, config, overrides), listed)


@app.command("compact", epilog="Example: millrace tables compact fraud --table payments")
def compact_(
    name: AppName,
    table: Names = None,
    target_mb: Annotated[int, typer.Option(min=1, help="Size of the files that are made, MB.")] = 128,
    shape: Shape = Format.table,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Make few large files of many small ones; `vacuum` removes the small ones later."""
    from millrace.connectors.upkeep import compact

    def compacted(path: Path) -> None:
        done = compact(path, target_bytes=target_mb << 20)
        what = f"{done.before:,} files became {done.after:,}" if done.before else "nothing to do"
        _say(done, f"{done.name:<28} {what}", shape)

    _each(_tables(name, table, config, overrides), compacted)


@app.command("vacuum", epilog="Example: millrace tables vacuum fraud --keep 7d --dry-run")
def vacuum_(
    name: AppName,
    table: Names = None,
    keep: Annotated[
        str, typer.Option(help="How long files that were replaced are kept, in whole hours, e.g. 7d or 12h.")
    ] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    shape: Shape = Format.table,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Remove files that no version of the last days has; savepoints that are older cannot roll back then."""
    from millrace.connectors.upkeep import vacuum
    from millrace.time.durations import to_ms

    keep_ms = to_ms(keep)

    def vacuumed(path: Path) -> None:
        done = vacuum(path, keep_ms=keep_ms, dry_run=dry_run)
        what = "would be removed" if dry_run else "removed"
        _say(done, f"{done.name:<28} {done.files:,} files, {done.size / 1e6:,.1f} MB {what}", shape)

    _each(_tables(name, table, config, overrides), vacuumed)


@app.command("expire")
def expire_(
    name: AppName,
    now: Annotated[
        str | None,
        typer.Option("--now", help="Event time that age is counted from; default the clock's now."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    shape: Shape = Format.table,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Remove rows that are older than `storage.retention` says of their table; then `vacuum` their files.

    What batches have left for a table comes into it first: a job that runs is waited for.
    For example: millrace tables expire fraud -s storage.retention.transactions=400d
    """
    from dataclasses import replace
    from datetime import UTC, datetime

    from millrace.connectors.merging import rows_before, settle
    from millrace.connectors.upkeep import TIME, expire, find_tables
    from millrace.errors import UserError
    from millrace.operations.sending import now_ms
    from millrace.runtime.commands import settings_of
    from millrace.time.durations import to_ms
    from millrace.time.moments import show_time, to_time_ms

    storage = settings_of(name, config, overrides).storage
    if not storage.retention:
        raise UserError(f"storage.retention of {name} names no table: everything is kept")
    at = now_ms() if now is None else to_time_ms(now)
    found = find_tables(Path(storage.path("tables")), storage.retention)
    if not dry_run:
        settle(found, patience_s=_MERGED_S)

    def expired(path: Path) -> None:
        before_ms = at - to_ms(storage.retention[path.name])
        waiting = rows_before(path, TIME, datetime.fromtimestamp(before_ms / 1000, UTC))
        done = replace(expire(path, before_ms=before_ms, dry_run=dry_run), waiting=waiting)
        what = "would be removed" if dry_run else "removed"
        more = f", {waiting:,} more wait for the table" if waiting else ""
        line = f"{done.name:<28} {done.rows:,} rows of before {show_time(done.before_ms)} {what}{more}"
        _say(done, line, shape)

    _each(found, expired)


@app.command("maintain", epilog="Example: millrace tables maintain fraud --every 6h --keep 7d")
def maintain_(
    name: AppName,
    table: Names = None,
    every: Annotated[
        str | None,
        typer.Option(help="Do it again and again, with so long between, e.g. 6h; default once."),
    ] = None,
    keep: Annotated[
        str, typer.Option(help="How long files that were replaced are kept, in whole hours, e.g. 7d or 12h.")
    ] = "7d",
    quiet_for: Annotated[str, typer.Option(help="Compact when nobody has written for so long.")] = "2s",
    patience: Annotated[
        float, typer.Option(min=0.0, help="Wait so many seconds for that, then leave it to the next time.")
    ] = 60.0,
    target_mb: Annotated[int, typer.Option(min=1, help="Size of the files that are made, MB.")] = 128,
    shape: Shape = Format.table,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Compact and vacuum by schedule, in quiet moments and never in the way of a merge.

    Tables with one row per key are compacted only while no job runs: a job does that itself. Ctrl-C and
    SIGTERM end it behind the table that it is at.
    """
    from millrace.connectors.maintenance import Care, maintain
    from millrace.errors import UserError
    from millrace.local.stopping import stop_signals
    from millrace.runtime.apps import load_app
    from millrace.runtime.commands import settings_of
    from millrace.time.durations import to_ms
    from millrace.topology import Upsert

    settings = settings_of(name, config, overrides)
    written = load_app(name).topology(settings).written
    merged = frozenset(to.table for _, to in written if isinstance(to, Upsert))
    pause_s = None if every is None else to_ms(every) / 1000
    if pause_s is not None and pause_s < 1:
        raise UserError(f"--every {every}: a second or more, e.g. 6h")
    with stop_signals() as stop:
        care = Care(to_ms(keep), to_ms(quiet_for) / 1000, patience, target_mb << 20, stop.wait)
        while True:
            unreadable = False
            for done in maintain(
                Path(settings.storage.root), _tables(name, table, config, overrides), merged, care
            ):
                what = f"{done.before:,} files became {done.after:,}" if done.before else done.what
                _say(done, f"{done.name:<28} {what}, {done.removed:,} old files removed", shape)
                unreadable = unreadable or done.what == "cannot be read"
                if stop.is_set():
                    return
            if pause_s is None and unreadable:
                raise typer.Exit(2)
            if pause_s is None or stop.wait(pause_s):
                return


def _say(found: Any, line: str, shape: Format) -> None:
    typer.echo(json.dumps(asdict(found)) if shape is Format.json else line)


def _each(paths: Iterable[Path], do: Callable[[Path], None]) -> None:
    """Do something to each table; one that cannot be read is told, and the others are done all the same.

    Raises:
        Exit: One cannot be read.
    """
    from millrace.connectors.upkeep import TableUnreadable

    unreadable = False
    for path in paths:
        try:
            do(path)
        except TableUnreadable as error:
            typer.echo(f"millrace: {error}", err=True)
            unreadable = True
    if unreadable:
        raise typer.Exit(2)


def _tables(
    name: str, tables: list[str] | None, config: Path | None, overrides: list[str] | None
) -> list[Path]:
    from millrace.connectors.upkeep import find_tables
    from millrace.errors import UserError
    from millrace.runtime.commands import settings_of

    settings = settings_of(name, config, overrides)
    folder = Path(settings.storage.path("tables"))
    found = find_tables(folder, tables or ())
    if not found:
        raise UserError(f"{name} has no tables in {folder} yet: they come with its first run")
    return found
