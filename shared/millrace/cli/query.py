"""`millrace query "SELECT …"`: SQL over what the apps have written, and over what is coming in."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millrace.cli.options import Bootstrap, ConfigFile, Overrides, Root
from millrace.cli.query_stream import Beginning

if TYPE_CHECKING:
    from millrace.query.catalog import AppTable
    from millrace.runtime.settings import AppSettings
    from millrace.topology import Upsert

app = typer.Typer(help="SQL over the apps' tables, and over their topics as they come in.")

#: So many rows are shown on a terminal, unless more are asked for.
_SHOWN: Final = 100


class Shown(StrEnum):
    """How rows are given."""

    table = "table"
    json = "json"
    csv = "csv"


@app.command(epilog='Example: millrace query "SELECT key, count(*) n FROM fraud.alerts GROUP BY key"')
def query(
    text: Annotated[
        str | None, typer.Argument(metavar="[SQL]", help="One SELECT over tables named app.table.")
    ] = None,
    tables: Annotated[
        bool, typer.Option("--tables", help="List the tables and their columns instead.")
    ] = False,
    app_name: Annotated[
        str | None,
        typer.Option("--app", metavar="APP", help="This app only, its tables also by their bare names."),
    ] = None,
    shape: Annotated[
        Shown, typer.Option("--format", "-f", help="table, csv, or json, a row a line (also `--json`).")
    ] = Shown.table,
    out: Annotated[Path | None, typer.Option(help="Write the rows into this Parquet file.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help=f"Give no more rows than this; on a terminal {_SHOWN}.")
    ] = None,
    streams: Annotated[
        bool,
        typer.Option("--stream", help="Go on with what comes; topics are topic.NAME, with _ for . and -."),
    ] = False,
    from_: Annotated[
        Beginning | None,
        typer.Option("--from", help="With --stream: begin with what is there, or what comes."),
    ] = None,
    for_: Annotated[
        str | None,
        typer.Option("--for", help="With --stream: end after so long, e.g. 60s."),
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="With --stream: end with what is there now.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TOPIC", help="With --stream: write the rows there, as JSON."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="With --stream: keep there how far it is, and go on from it."),
    ] = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="The apps' last demos, whatever else there is of them.")
    ] = False,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Ask the apps' tables: as they are now, those with one row per key with what waits to be merged.

    Of an app that has written none the tables of its last demo are asked.

    With --stream Spark runs the same text over tables and topics as they grow, until Ctrl-C or --for; --out
    is a Parquet folder (x.parquet) or a Delta table then.

    Times are UTC. Exit codes: 0 answered, 2 the text is no query or names what is not there.
    """
    from millrace.cli.query_stream import Asked, run_stream
    from millrace.errors import UserError
    from millrace.time.durations import to_ms

    given = {"--from": from_, "--for": for_, "--until-end": until_end, "--to": to, "--checkpoint": checkpoint,
             "--bootstrap": bootstrap}  # fmt: skip
    if not streams and (without := [name for name, value in given.items() if value]):
        raise UserError(f"{without[0]} goes with --stream")
    apps, demos = _apps(app_name, bootstrap, root, demo, config, overrides)
    found = _tables(apps)
    if tables:
        if text is not None:
            raise UserError("--tables lists what there is: leave out the query")
        _list(found, shape, apps if streams else [])
        _tell_demos(demos)
        return
    if not (text or "").strip():
        raise UserError('what is asked? For example: millrace query "SELECT count(*) FROM fraud.alerts"')
    if streams:
        if out is not None and to is not None:
            raise UserError("rows go into a folder or a topic: give --out or --to")
        if limit is not None and (out is not None or to is not None):
            raise UserError("--limit is of rows on the terminal: leave it out, or write LIMIT into the query")
        seconds = None if for_ is None else to_ms(for_) / 1000
        if seconds is not None and seconds <= 0:
            raise UserError(f"--for {for_}: a query runs for some time, e.g. 60s")
        asked = Asked(
            str(text), shape, out, to, limit, from_ or Beginning.earliest, seconds, until_end, checkpoint
        )
        run_stream(asked, apps, [table for table, _ in found])
        _tell_demos([name for name in demos if f"{name}." in asked.text or f"topic.{name}_" in asked.text])
        return
    if out is not None and out.suffix != ".parquet":
        raise UserError(f"--out writes Parquet: name it {out.with_suffix('.parquet')}, or use --format")
    of = _answer(str(text), found, app_name, shape, out, limit)
    _tell_demos([name for name in demos if name in of])


def _tell_demos(names: Sequence[str]) -> None:
    """Say of which apps what was asked is of their last demos."""
    from millrace.local.home import demo_path

    if names:
        typer.echo(
            f"of {', '.join(names)} the last demo was asked, in {demo_path(names[0]).parent}", err=True
        )


Apps = list[tuple[str, "AppSettings"]]
Found = list[tuple["AppTable", "AppSettings"]]


def _answer(
    text: str, found: Found, app_name: str | None, shape: Shown, out: Path | None, limit: int | None
) -> set[str]:
    """Give the answer; return the apps whose tables were asked."""
    from millrace.query.catalog import asked_for
    from millrace.query.shown import as_table, rows_of, write_csv, write_json, write_parquet
    from millrace.query.tables import asking

    tables = [table for table, _ in found]
    asked = asked_for(text, tables)
    upserts = _upserts([(table, settings) for table, settings in found if table in asked])
    with asking(text, tables, upserts, app_name) as answer:
        names = answer.schema.names
        if out is not None:
            count = write_parquet(out, answer.schema, answer.batches(limit))
            typer.echo(f"{count:,} rows into {out}", err=True)
        elif shape is Shown.json:
            write_json(typer.echo, rows_of(answer.batches(limit)))
        elif shape is Shown.csv:
            write_csv(sys.stdout, names, rows_of(answer.batches(limit)))
        else:
            most = limit or _SHOWN
            rows = list(rows_of(answer.batches(most + 1)))
            for line in as_table(names, rows[:most]):
                typer.echo(line)
            if len(rows) > most:
                typer.echo(f"… there are more than {most:,} rows: --limit, --format or --out", err=True)
    return {table.app for table in asked}


def _list(found: Found, shape: Shown, streaming: Apps) -> None:
    from deltalake import DeltaTable

    from millrace.cli.query_stream import topics_known
    from millrace.query.shown import as_table, write_csv, write_json
    from millrace.query.tables import QueryError, readable

    rows: list[dict[str, object]] = []
    for table, _ in found:
        try:
            with readable(table):
                fields = DeltaTable(str(table.folder)).schema().fields
        except QueryError as error:  # the others are there all the same
            typer.echo(f"millrace: {error}", err=True)
            continue
        for field in fields:
            kind = field.type.type if hasattr(field.type, "type") else str(field.type)
            rows.append({"table": table.full_name, "column": field.name, "type": kind})
    for topic in topics_known(streaming):
        for name, kind in topic.named_columns():
            rows.append({"table": topic.full_name, "column": name, "type": kind})
    names = ["table", "column", "type"]
    if shape is Shown.json:
        write_json(typer.echo, rows)
    elif shape is Shown.csv:
        write_csv(sys.stdout, names, rows)
    else:
        for line in as_table(names, rows):
            typer.echo(line)


def _apps(
    app_name: str | None,
    bootstrap: str | None,
    root: Path | None,
    demo: bool,
    config: Path | None,
    overrides: Sequence[str] | None,
) -> tuple[Apps, list[str]]:
    """Return the apps that are asked, with their settings, and of which of them it is the last demo."""
    from millrace.errors import UserError
    from millrace.local.home import demo_path
    from millrace.runtime.apps import load_app
    from millrace.runtime.commands import settings_of
    from millrace.runtime.demo_settings import demo_instead, published_settings
    from millrace.runtime.installed import list_apps
    from millrace.runtime.settings_sources import FromOption

    if app_name is None and (root is not None or overrides):
        raise UserError("--root and --set are those of one app: say which with --app")
    if root is not None and demo:
        raise UserError("--root and --demo are two folders: give one of them")
    if app_name is not None:
        load_app(app_name)

    def settings_at(name: str, option: str, folder: Path | None) -> AppSettings:
        sets: list[str] = [] if folder is None else [*published_settings(folder)]
        given = ((option, "storage.root", folder), ("--bootstrap", "kafka.bootstrap", bootstrap))
        sets += [FromOption(said, key, str(value)) for said, key, value in given if value is not None]
        return settings_of(name, config, [*sets, *(overrides or ())])

    found, demos = [], []
    for name in [app_name] if app_name is not None else list_apps():
        settings = settings_at(name, "--root", root)
        own = settings.storage.local_root
        of_demo = demo_path(name) if demo else None
        if of_demo is None and root is None and own is not None:
            of_demo = demo_instead(name, own)
        if of_demo is not None and of_demo.is_dir():
            settings = settings_at(name, "--demo", of_demo)
            if settings.storage.local_root == of_demo:  # what --set says wins
                demos.append(name)
        elif demo:
            continue
        found.append((name, settings))
    return found, demos


def _tables(apps: Apps) -> Found:
    from millrace.query.catalog import tables_of

    return [(table, settings) for name, settings in apps for table in tables_of(name, settings)]


def _upserts(found: Found) -> dict[str, Upsert]:
    """Return what names a row of the tables that are merged into and for which something waits."""
    from millrace.connectors.merging import waiting_files
    from millrace.runtime.apps import load_app
    from millrace.topology import Upsert

    waits = [(table, settings) for table, settings in found if waiting_files(table.folder)]
    made: dict[str, Upsert] = {}
    for table, settings in waits:
        for _, to in load_app(table.app).topology(settings).written:
            if isinstance(to, Upsert) and to.table == table.name:
                made[table.full_name] = to
    return made
