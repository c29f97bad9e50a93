"""`millrace generate DOMAIN`: a seeded stream, with its ledger, to Kafka, files or standard output."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from millrace.cli.conventions import command_of
from millrace_apps.generators import options as o


class DomainGroup(TyperGroup):
    """The commands of this module, and one per domain that is made when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        from millrace_apps.generators.domains import names

        return [*super().list_commands(ctx), *names()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by name."""
        from millrace_apps.generators.domains import names

        found = super().get_command(ctx, cmd_name)
        if found is not None or cmd_name not in names():
            return found
        from millrace_apps.generators.domain_command import make_command
        from millrace_apps.generators.domains import load

        single = typer.Typer(rich_markup_mode=None, add_completion=False)
        epilog = f"Example: millrace generate {cmd_name} --rate 100 --duration 60s --sample 3"
        single.command(epilog=epilog)(make_command(load(cmd_name)))
        return command_of(single, cmd_name)


app = typer.Typer(
    cls=DomainGroup,
    no_args_is_help=True,
    help="Generate a seeded stream of events, with a ledger of what was put into it.",
    rich_markup_mode=None,
    add_completion=False,
)


@app.command("list", epilog="Example: millrace generate list")
def list_domains() -> None:
    """List what can be generated."""
    from millrace.errors import UserError
    from millrace_apps.generators import fraud, handbook_stream
    from millrace_apps.generators.domains import load, names

    for made in (fraud, handbook_stream):
        typer.echo(f"{made.DOMAIN:<12}{made.DESCRIPTION}")
    for name in names():
        try:
            text = load(name).description
        except UserError as error:
            text = f"({error})"
        typer.echo(f"{name:<12}{text}")


@app.command("describe", epilog="Example: millrace generate describe iot")
def describe_domain(domain: Annotated[str, typer.Argument(metavar="DOMAIN")]) -> None:
    """Describe a domain: streams, fields, parameters, and what really happens in it."""
    from millrace_apps.generators.describe import description

    typer.echo(description(domain))


@app.command(epilog="Example: millrace generate fraud --rate 100 --duration 60s --sample 3")
def fraud(
    ctx: typer.Context,
    rate: o.Rate = "1000",
    duration: o.Duration = None,
    events: o.Events = None,
    seed: o.Seed = 1,
    cards: Annotated[int, typer.Option(help="Number of cards.")] = 2_000,
    terminals: Annotated[int, typer.Option(help="Number of terminals.")] = 500,
    card_skew: Annotated[float, typer.Option(help="Zipf exponent of the cards' activity; 0: even.")] = 0.0,
    fraud_rate: Annotated[float, typer.Option(help="Frauds begun per 1,000 events.")] = 0.5,
    label_scale: Annotated[
        float, typer.Option(help="Factor on the delays of labels, hours to weeks; 0: no labels.")
    ] = 0.0,
    labels_topic: Annotated[str, typer.Option(help="Topic of the labels.")] = "fraud.labels",
    speed: o.Speed = None,
    event_rate: o.EventRate = None,
    start: o.Start = None,
    live: o.Live = False,
    shape: o.ShapeText = "constant",
    profile: o.ProfileName = None,
    disorder_ms: o.Disorder = 500,
    late: o.Late = 0.0,
    lateness: o.Lateness = "60s",
    duplicates: o.Duplicates = 0.0,
    malformed: o.Malformed = 0.0,
    to: o.To = o.Target.kafka,
    bootstrap: o.Bootstrap = "localhost:9092",
    topic: o.Topic = None,
    partitions: o.Partitions = 4,
    timestamps: o.RecordTimes = None,
    kafka_option: o.KafkaOptions = None,
    out: o.Out = None,
    ledger: o.LedgerFile = None,
    resume: o.Resume = False,
    sample: o.Sample = None,
    dry_run: o.DryRun = False,
    quiet: o.Quiet = False,
) -> None:
    """Generate card transactions with frauds among them."""
    from millrace_apps.generators.fraud_command import generate

    values = {name: value for name, value in locals().items() if name not in ("ctx", "generate")}
    generate(o.with_preset(ctx, profile, values))


@app.command(epilog="Example: millrace generate handbook --customers 1000 --days 30 --sample 3")
def handbook(
    seed: o.Seed = 0,
    customers: Annotated[int, typer.Option(help="Number of customers.")] = 5_000,
    terminals: Annotated[int, typer.Option(help="Number of terminals.")] = 10_000,
    days: Annotated[int, typer.Option(help="Length, days.")] = 183,
    radius: Annotated[
        float, typer.Option(help="Customers pay at terminals nearer than this; the square's side is 100.")
    ] = 5.0,
    start: Annotated[str, typer.Option(help="First day.", metavar="DATE")] = "2018-04-01",
    rate: Annotated[
        str | None,
        typer.Option(help="Payments per second; max (as fast as possible) is the default.", metavar="N|max"),
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(help="In place of a rate: so many times faster than the payments happen.", metavar="X"),
    ] = None,
    events: Annotated[int | None, typer.Option(help="So many payments at most.", metavar="N", min=0)] = None,
    to: o.To = o.Target.kafka,
    bootstrap: o.Bootstrap = "localhost:9092",
    topic: o.Topic = None,
    partitions: o.Partitions = 4,
    timestamps: o.RecordTimes = None,
    kafka_option: o.KafkaOptions = None,
    out: o.Out = None,
    ledger: o.LedgerFile = None,
    resume: o.Resume = False,
    sample: o.Sample = None,
    dry_run: o.DryRun = False,
    quiet: o.Quiet = False,
) -> None:
    """Generate the table of the Fraud Detection Handbook: to parquet with its labels, else as a stream.

    The labels of a stream are in its ledger.
    """
    from millrace_apps.generators.handbook_command import generate

    generate({name: value for name, value in locals().items() if name != "generate"})
