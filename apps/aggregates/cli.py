"""`millrace aggregate …`: aggregations over topics, in force without a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.options import Bootstrap, By, Format, Overrides, Root, Shape, print_as

if TYPE_CHECKING:
    from millrace.operations.control_topic import ControlTopic
    from millrace_apps.aggregates.book import AggregateControlState
    from millrace_apps.aggregates.life import AggregateEvent
    from millrace_apps.aggregates.settings import AggregateSettings

app = typer.Typer(
    no_args_is_help=True,
    help="Aggregations over topics, in force without a restart: check, publish, list, remove.",
)

File = Annotated[Path, typer.Argument(help="Aggregations, YAML or JSON.")]
Why = Annotated[str, typer.Option("--reason", "-r", help="Why; stands in the event and in the audit.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="TIME", help="For windows that begin then or later (event time); default now."
    ),
]


@app.command("check", epilog="Example: millrace aggregate check spend.yaml")
def check_(file: File, overrides: Overrides = None, shape: Shape = Format.table) -> None:
    """Check a file of aggregations against the topics that the job reads."""
    from millrace_apps.aggregates.definition import check
    from millrace_apps.aggregates.files import read, shown

    types = _types(_settings(None, None, overrides))
    made = read(file)
    for one in made:
        check(one, types)
    print_as(shape, made, lambda: "\n".join(f"{one.name}: {shown(one)}" for one in made))


@app.command(
    "publish", epilog="Example: millrace aggregate publish spend.yaml --by ann --reason 'daily report'"
)
def publish(
    file: File,
    by: By = None,
    reason: Why = "",
    from_: From = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
    shape: Shape = Format.table,
) -> None:
    """Publish aggregations; those that say what is in force already are left out, unless --from is earlier.

    Windows that are open when another version comes go on as they began; those that begin at --from or later
    are the new version's.
    """
    from millrace.operations.sending import now_ms, who
    from millrace_apps.aggregates.files import read, shown
    from millrace_apps.aggregates.life import PublishAggregation

    settings = _settings(bootstrap, root, overrides)
    name, at = who(by, settings), now_ms()
    begins = _time_ms(from_, at)
    made = read(file)
    unchanged: dict[str, int] = {}

    def events(book: AggregateControlState) -> list[AggregateEvent]:
        found: list[AggregateEvent] = []
        for one in made:
            kept = book.aggregations.get(one.name)
            is_same = kept and not kept[-1].is_removed and kept[-1].aggregation == one
            if kept and is_same and (from_ is None or begins >= kept[-1].from_ms):
                unchanged[one.name] = kept[-1].number
                continue
            number = book.next_version(one.name)
            found.append(PublishAggregation(one, number, name, at, begins, reason))
        return found

    _, sent = _topic(settings).change(events)  # type: ignore[arg-type] # a book of its own
    lines = [f"{one}: unchanged, version {number}" for one, number in unchanged.items()]
    lines += [f"{e.aggregation.name}: version {e.version}, {shown(e.aggregation)}" for e in sent]
    published = {event.aggregation.name: event.version for event in sent}
    print_as(shape, {"published": published, "unchanged": unchanged}, lambda: "\n".join(lines))


@app.command("remove", epilog="Example: millrace aggregate remove spend --by ann")
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The aggregation's name.")],
    by: By = None,
    reason: Why = "",
    from_: From = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
    shape: Shape = Format.table,
) -> None:
    """Remove an aggregation: its open windows end as they would, and no new one begins."""
    from millrace.operations.sending import now_ms, who
    from millrace_apps.aggregates.life import RemoveAggregation

    settings = _settings(bootstrap, root, overrides)
    person, at = who(by, settings), now_ms()
    event = RemoveAggregation(name, person, at, _time_ms(from_, at), reason)
    _topic(settings).change(lambda book: [event])
    print_as(shape, {"removed": name, "by": person}, lambda: f"{name}: removed")


@app.command("list", epilog="Example: millrace aggregate list --format json")
def list_(
    shape: Shape = Format.table,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """List the aggregations, as the control topic says."""
    import msgspec

    from millrace.time.moments import show_time
    from millrace_apps.aggregates.files import shown

    book: Any = _topic(_settings(bootstrap, root, overrides)).read()
    for name, versions in sorted(book.aggregations.items()):
        newest = versions[-1]
        if shape is Format.json:
            typer.echo(
                json.dumps({"name": name, **msgspec.to_builtins(newest), "removed": newest.is_removed})
            )
            continue
        until = f" until {show_time(newest.until_ms)}" if newest.is_removed else ""
        since = f"from {show_time(newest.from_ms)}{until}"
        typer.echo(f"{name:<24} version {newest.number} by {newest.by}, {since}: {shown(newest.aggregation)}")


def _settings(bootstrap: str | None, root: Path | None, overrides: list[str] | None) -> AggregateSettings:
    from millrace.runtime.commands import command_settings
    from millrace_apps.aggregates.settings import AggregateSettings

    return command_settings(
        AggregateSettings, "aggregates", bootstrap=bootstrap, root=root, overrides=overrides
    )  # fmt: skip


def _types(settings: AggregateSettings) -> dict[str, Any]:
    from millrace_apps.aggregates.sources import inputs_of

    return {known.input.topic: known.type for known in inputs_of(settings).values()}


def _topic(settings: AggregateSettings) -> ControlTopic:
    from millrace_apps.aggregates.book import control_topic

    return control_topic(settings, _types(settings))


def _time_ms(text: str | None, default: int) -> int:
    from millrace.time.moments import to_time_ms

    return default if text is None else to_time_ms(text)
