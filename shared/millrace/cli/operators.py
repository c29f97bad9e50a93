"""`millrace operators add|list|set-role|renew|remove`: who may look, decide and approve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.options import ConfigFile, Format, Overrides, Shape
from millrace.operations.roster import Role

if TYPE_CHECKING:
    from pathlib import Path

    from millrace.operations.roster import RosterFile

app = typer.Typer(
    no_args_is_help=True,
    help="Operators: from the first one on, changing something takes the token of one who may.",
)

Name = Annotated[str, typer.Argument(help="The name that will stand in events and audits, e.g. ann.")]
Until = Annotated[
    str | None,
    typer.Option("--until", help="When the token ends: so long from now, e.g. 90d, or a time (ISO 8601)."),
]


@app.callback()
def operators() -> None:
    """Who may look, decide and approve; who may write the file of the operators decides on that."""


@app.command()
def add(
    name: Name,
    role: Annotated[Role, typer.Option(help="approve may decide as well, decide may look.")],
    until: Until = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Add an operator and print the token: this once, for only its hash is kept.

    Example: millrace operators add ann --role decide --until 90d
    """
    from millrace.operations.sending import now_ms

    ends = _until_ms(until)
    file = _file(config, overrides)
    token = file.change(lambda roster: roster.add(name, role, now_ms(), ends))
    _give(name, role, token, file)


@app.command("list")
def list_(shape: Shape = Format.table, config: ConfigFile = None, overrides: Overrides = None) -> None:
    """The operators, what each may do, and when their tokens end.

    Example: millrace operators list --format json
    """
    from millrace.console.report import print_table
    from millrace.operations.report import as_json
    from millrace.operations.sending import now_ms
    from millrace.time.moments import show_time

    file = _file(config, overrides)
    roster = file.read()
    found = [] if roster is None else roster.operators
    if shape is Format.json:
        names = ("name", "role", "token_id", "created_ms", "until_ms")
        typer.echo(as_json([{name: getattr(one, name) for name in names} for one in found]))
        return
    if roster is None:
        typer.echo(f"there are no operators ({file.path}): whoever runs a command goes by the name they give")
        return
    now = now_ms()
    rows = [
        (one.name, one.role, show_time(one.created_ms),
         "–" if one.until_ms is None else show_time(one.until_ms) + " (ended)" * one.has_ended(now))
        for one in found
    ]  # fmt: skip
    print_table(str(file.path), ("name", "may", "since", "token ends"), rows)


@app.command("set-role")
def set_role(
    name: Name,
    role: Annotated[Role, typer.Argument(help="look, decide or approve.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Let an operator do more, or less; the token stays.

    Example: millrace operators set-role ann approve
    """
    file = _file(config, overrides)
    file.change(lambda roster: (roster.with_role(name, role), None))
    typer.echo(f"{name} may {role}")


@app.command()
def renew(name: Name, until: Until = None, config: ConfigFile = None, overrides: Overrides = None) -> None:
    """Print another token for an operator; the one before ends at once.

    Example: millrace operators renew ann --until 90d
    """
    from millrace.operations.sending import now_ms

    ends = _until_ms(until)
    file = _file(config, overrides)
    token = file.change(lambda roster: roster.renew(name, now_ms(), ends))
    _give(name, None, token, file)


@app.command()
def remove(name: Name, config: ConfigFile = None, overrides: Overrides = None) -> None:
    """Remove an operator, whose token ends at once. Without any, nobody may change anything.

    Example: millrace operators remove ann
    """
    file = _file(config, overrides)
    left = file.change(lambda roster: ((rest := roster.without(name)), len(rest.operators)))
    none = f": nobody may change anything now (removing {file.path} lets everybody)"
    typer.echo(f"{name} is no operator any more" + ("" if left else none))


def _file(config: Path | None, overrides: list[str] | None) -> RosterFile:
    from millrace.operations.roster import roster_file
    from millrace.runtime.settings import AppSettings, load_settings

    return roster_file(load_settings(AppSettings, app="operators", config=config, overrides=overrides or ()))


def _until_ms(text: str | None) -> int | None:
    """Return when a token ends, UTC ms.

    Raises:
        UserError: It is no time, or one that is over.
    """
    from millrace.errors import UserError
    from millrace.operations.sending import now_ms
    from millrace.time.durations import DurationError, to_ms
    from millrace.time.moments import to_time_ms

    if text is None:
        return None
    now = now_ms()
    try:
        found = now + to_ms(text)
    except DurationError:
        found = to_time_ms(text)
    if found <= now:
        raise UserError(f"--until {text} is over already")
    return found


def _give(name: str, role: Role | None, token: str, file: RosterFile) -> None:
    """Print a token, alone on standard output, so that it can go into a file."""
    typer.echo(token)
    what = f"the token of {name}" + (f", who may {role}" if role else "")
    typer.echo(f"{what}: it is shown this once. {file.path} has its hash.", err=True)
