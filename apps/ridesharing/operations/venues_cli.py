"""`millrace ridesharing venues …`: publish, list, show and remove venues while the app runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.options import Bootstrap, By, Format, Overrides, Shape, print_as
from millrace.errors import UserError
from millrace.operations.sending import who
from millrace.operations.shape import AsJson
from millrace.time.moments import show_time, to_time_ms
from millrace_apps.ridesharing.operations.options import From, Why, settings_of

if TYPE_CHECKING:
    from millrace_apps.ridesharing.contracts.events import SetVenue

app = typer.Typer(help="Places with a line of drivers and pick-up points, an airport.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The venue.")]


@app.command(epilog='Example: millrace ridesharing venues publish airport.json --reason "opens" --by ann')
def publish(
    file: Annotated[Path, typer.Argument(help="A venue, or a list of some, as JSON; see the README.")],
    reason: Why,
    start: From = None,
    by: By = None,
    bootstrap: Bootstrap = None,
    overrides: Overrides = None,
) -> None:
    """Make venues, or change them, from a time on; who did it stands in the table operations."""
    from millrace_apps.ridesharing.operations.commanding import send_control
    from millrace_apps.ridesharing.operations.venues import read_venues

    settings = settings_of(overrides, bootstrap)
    operator, from_ms = who(by, settings), to_time_ms(start) if start else 0
    regions = settings.dispatch_config().regions
    for event in read_venues(file, operator, reason, from_ms, regions):
        send_control(settings, event)
        typer.echo(f"{event.name}: command {event.command_id} sent; it will stand in the table operations")


@app.command(epilog='Example: millrace ridesharing venues remove airport --reason "closed" --by ann')
def remove(
    name: Name,
    reason: Why,
    start: From = None,
    by: By = None,
    bootstrap: Bootstrap = None,
    overrides: Overrides = None,
) -> None:
    """Remove a venue from a time on: nobody waits in its line any more."""
    from millrace_apps.ridesharing.contracts.events import DropVenue
    from millrace_apps.ridesharing.operations.commanding import identity, send_control

    settings = settings_of(overrides, bootstrap)
    event = DropVenue(name, identity(), who(by, settings), reason, to_time_ms(start) if start else 0)
    send_control(settings, event)
    typer.echo(f"{name}: command {event.command_id} sent; it will stand in the table operations")


@app.command("list", epilog="Example: millrace ridesharing venues list")
def list_(bootstrap: Bootstrap = None, overrides: Overrides = None, shape: Shape = Format.table) -> None:
    """Show the venues that stand on the control topic."""
    from rich.console import Console
    from rich.table import Table

    from millrace_apps.ridesharing.contracts.events import SetVenue
    from millrace_apps.ridesharing.operations.venues import published

    if shape is Format.json:
        print_as(shape, published(settings_of(overrides, bootstrap)), str)
        return
    table = Table("venue", "from", "zone", "pen", "points", "short trips", "by", "why")
    for name, words in published(settings_of(overrides, bootstrap)).items():
        for said in words:
            what = ["removed", "", "", ""]
            if isinstance(said, SetVenue):
                is_open = sum(point.is_open for point in said.points)
                points = f"{is_open} of {len(said.points)} open"
                what = [f"{len(said.zone)} cells", f"{len(said.pen)} cells", points, _short(said)]
            table.add_row(name, show_time(said.from_ms), *what, said.operator, said.reason)
    Console().print(table)


@app.command(epilog="Example: millrace ridesharing venues show airport")
def show(
    name: Name, bootstrap: Bootstrap = None, overrides: Overrides = None, as_json: AsJson = True
) -> None:
    """Show a venue as JSON: what has been said of it, by time."""
    import msgspec

    from millrace_apps.ridesharing.operations.venues import published

    words = published(settings_of(overrides, bootstrap)).get(name)
    if words is None:
        raise UserError(f"there is no venue {name}: see `millrace ridesharing venues list`")
    typer.echo(msgspec.json.format(msgspec.json.encode(words)).decode())


def _short(said: SetVenue) -> str:
    rule = said.short_trip
    if rule is None:
        return ""
    most = [f"{n:g} {unit}" for n, unit in ((rule.minutes, "min"), (rule.km, "km")) if n]
    return f"{' and '.join(most)}, back in {rule.back_minutes:g} min"
