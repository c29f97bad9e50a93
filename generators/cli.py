"""`millrace generate DOMAIN`: a seeded stream, with its ledger, to Kafka, files or standard output."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from millrace.cli.conventions import command_of
from millrace.cli.options import Format, Shape, print_as


class DomainGroup(TyperGroup):
    """The commands of this module, and one per domain that is made when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        from millrace_apps.generators.domains import names

        return [*super().list_commands(ctx), *names()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by name."""
        from millrace_apps.generators.domains import names, today_of

        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        if (today := today_of(cmd_name)) not in names():
            return None
        from millrace_apps.generators.domain_command import make_command
        from millrace_apps.generators.domains import load

        if today != cmd_name:
            typer.echo(f"{cmd_name} is the former name of the domain {today}: use that", err=True)
        domain = load(today)
        single = typer.Typer(rich_markup_mode=None, add_completion=False)
        length = "" if domain.paced else " --duration 60s"
        epilog = f"Example: millrace generate {today} --rate 100{length} --sample 3"
        single.command(epilog=epilog)(make_command(domain))
        return command_of(single, today)


app = typer.Typer(
    cls=DomainGroup,
    no_args_is_help=True,
    help="Generate a seeded stream of events, with a ledger of what was put into it.",
    rich_markup_mode=None,
    add_completion=False,
)


@app.command("list", epilog="Example: millrace generate list")
def list_domains(shape: Shape = Format.table) -> None:
    """List what can be generated."""
    from millrace.errors import UserError
    from millrace_apps.generators.domains import load, names

    found = {}
    for name in names():
        try:
            found[name] = load(name).description
        except UserError as error:
            found[name] = f"({error})"
    print_as(shape, found, lambda: "\n".join(f"{name:<12}{text}" for name, text in found.items()))


@app.command("describe", epilog="Example: millrace generate describe iot")
def describe_domain(
    domain: Annotated[str, typer.Argument(metavar="DOMAIN")], shape: Shape = Format.table
) -> None:
    """Describe a domain: streams, fields, parameters, and what really happens in it."""
    from millrace_apps.generators.describe import as_data, description

    print_as(shape, as_data(domain) if shape is Format.json else None, lambda: description(domain))
