"""`millrace fraud lists put|remove|show`: values that are blocked, allowed or looked for, until a time."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli.options import Bootstrap, By, Format, Overrides, Root, Shape, print_as
from millrace_apps.fraud.operations.tokens_cli import show as show_token

app = typer.Typer(no_args_is_help=True, help="Lists: who is blocked or allowed, and until when.")

Name = Annotated[str, typer.Argument(metavar="LIST", help="blocked, allowed, or one that rules look into.")]
Value = Annotated[
    str, typer.Argument(help="On blocked and allowed kind:value, e.g. card:card-1, device:d-7, ip:10.0.0.1.")
]
For = Annotated[str, typer.Option("--for", help="How long, e.g. 12h or 30d, from --from on.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="TIME", help="Event time from which --for counts; default the clock's now."
    ),
]


@app.command(
    epilog='Example: millrace fraud lists put blocked_cards card-17 --for 7d --reason "lost" --by ann'
)
def put(
    name: Name,
    value: Value,
    for_: For = "30d",
    from_: From = None,
    note: Annotated[str, typer.Option("--reason", help="Why.")] = "",
    by: By = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Put a value on a list; it is off again by itself. Where a second person must agree it is a proposal."""
    from millrace.operations.sending import now_ms, who
    from millrace.rules import PutListEntry
    from millrace.time.durations import to_ms
    from millrace.time.moments import show_time, to_time_ms
    from millrace_apps.fraud.operations.changes_cli import change_or_propose, open_topic
    from millrace_apps.fraud.operations.governed_book import check_value
    from millrace_apps.fraud.operations.tokens import without_numbers

    check_value(name, value)
    settings, topic = open_topic(bootstrap, root, overrides)
    by_whom, now = who(by, settings), now_ms()
    until = (now if from_ is None else to_time_ms(from_)) + to_ms(for_)
    value, note = without_numbers(settings, value), without_numbers(settings, note)
    event = PutListEntry(name, value, until, by_whom, now, note)
    if change_or_propose(topic, event, by_whom, now, note):
        typer.echo(f"{value} is on {name} until {show_time(until)}")
    if until <= now:
        typer.echo("that is past by the clock: a stream that is further refuses it", err=True)


@app.command(epilog="Example: millrace fraud lists remove blocked_cards card-17 --by ann")
def remove(
    name: Name,
    value: Value,
    by: By = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Take a value off a list. Where a second person must agree it is a proposal."""
    from millrace.operations.sending import now_ms, who
    from millrace.rules import RemoveListEntry
    from millrace_apps.fraud.operations.changes_cli import change_or_propose, open_topic
    from millrace_apps.fraud.operations.tokens import without_numbers

    settings, topic = open_topic(bootstrap, root, overrides)
    by_whom, now = who(by, settings), now_ms()
    value = without_numbers(settings, value)
    event = RemoveListEntry(name, value, by_whom, now)
    if change_or_propose(topic, event, by_whom, now, ""):
        typer.echo(f"{value} is off {name}")


@app.command(epilog="Example: millrace fraud lists show")
def show(
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
    shape: Shape = Format.table,
) -> None:
    """What is on the lists, by the control topic; what has ended since is shown with its end."""
    from millrace.time.moments import show_time
    from millrace_apps.fraud.operations.changes import read
    from millrace_apps.fraud.operations.changes_cli import open_topic

    _, topic = open_topic(bootstrap, root, overrides)
    there = [
        (name, value, until)
        for name, values in sorted(read(topic).lists.items())
        for value, until in sorted(values.items())
    ]
    found = [{"list": name, "value": value, "until_ms": until} for name, value, until in there]
    lines = (f"{name:<16} {value:<40} until {show_time(until)}" for name, value, until in there)
    print_as(shape, found, lambda: "\n".join(lines))


# As it was called before.
app.command("token", hidden=True)(show_token)
