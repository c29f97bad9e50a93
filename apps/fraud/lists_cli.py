"""`millrace fraud lists put|remove|show`: values that are blocked, allowed or looked for, until a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apps.fraud.tokens_cli import show as show_token
from millrace.cli.options import Bootstrap, By, Overrides, Root

if TYPE_CHECKING:
    from millrace.operations.control_topic import ControlTopic

app = typer.Typer(no_args_is_help=True, help="Lists: who is blocked or allowed, and until when.")

Name = Annotated[str, typer.Argument(metavar="LIST", help="blocked, allowed, or one that rules look into.")]
Value = Annotated[
    str, typer.Argument(help="On blocked and allowed kind:value, e.g. card:card-1, device:d-7, ip:10.0.0.1.")
]
For = Annotated[str, typer.Option("--for", help="How long, e.g. 12h or 30d, from --from on.")]
From = Annotated[
    str | None, typer.Option("--from", help="Event time from which --for counts; default the clock's now.")
]


@app.command()
def put(
    name: Name,
    value: Value,
    for_: For = "30d",
    from_: From = None,
    note: Annotated[str, typer.Option(help="Why.")] = "",
    by: By = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Put a value on a list; it is off again by itself."""
    from apps.fraud.desk import ALLOWED, BLOCKED
    from millrace.errors import UserError
    from millrace.operations.sending import now_ms, who
    from millrace.rules import PutListEntry
    from millrace.time.durations import to_ms
    from millrace.time.moments import show_time, to_time_ms

    if name in (BLOCKED, ALLOWED) and value.partition(":")[0] not in _KINDS:
        raise UserError(f"{value}: on {name} write kind:value, with one of {', '.join(_KINDS)} before it")
    until = (now_ms() if from_ is None else to_time_ms(from_)) + to_ms(for_)
    topic = _topic(bootstrap, root, overrides)
    value = _tokenised(value, root, overrides)
    event = PutListEntry(name, value, until, who(by), now_ms(), note)
    topic.change(lambda book: [event])
    typer.echo(f"{value} is on {name} until {show_time(until)}")


@app.command()
def remove(
    name: Name,
    value: Value,
    by: By = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Take a value off a list."""
    from millrace.operations.sending import now_ms, who
    from millrace.rules import RemoveListEntry

    value = _tokenised(value, root, overrides)
    event = RemoveListEntry(name, value, who(by), now_ms())
    _topic(bootstrap, root, overrides).change(lambda book: [event])
    typer.echo(f"{value} is off {name}")


@app.command()
def show(bootstrap: Bootstrap = None, root: Root = None, overrides: Overrides = None) -> None:
    """What is on the lists, by the control topic; what has ended since is shown with its end."""
    from millrace.time.moments import show_time

    for name, values in sorted(_topic(bootstrap, root, overrides).read().lists.items()):
        for value, until in sorted(values.items()):
            typer.echo(f"{name:<16} {value:<40} until {show_time(until)}")


# As it was called before.
app.command("token", hidden=True)(show_token)


def _tokenised(value: str, root: Path | None, overrides: list[str] | None) -> str:
    """Return a value as the stream will have it: a card by its token, so that the topic has no number."""
    from apps.fraud.settings import FraudSettings
    from apps.fraud.tokens import without_numbers
    from millrace.runtime.commands import command_settings

    return without_numbers(command_settings(FraudSettings, "fraud", root=root, overrides=overrides), value)


def _topic(bootstrap: str | None, root: Path | None, overrides: list[str] | None) -> ControlTopic:
    from apps.fraud.app_rules import RULES
    from millrace.operations.control_topic import ControlTopic
    from millrace.runtime.commands import command_settings

    return ControlTopic(
        RULES, command_settings(RULES.settings, "fraud", bootstrap=bootstrap, root=root, overrides=overrides)
    )


_KINDS = ("card", "terminal", "device", "ip", "account")
