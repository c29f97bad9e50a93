"""`millrace fraud rates set|list`: what currencies are worth in the app's, from which time on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.options import Bootstrap, By, Format, Overrides, Root, Shape, print_as

if TYPE_CHECKING:
    from millrace.operations.control_topic import ControlTopic
    from millrace_apps.fraud.settings import FraudSettings

app = typer.Typer(no_args_is_help=True, help="Rates of currencies, for payments whose issuer names none.")

From = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Event time from which it holds; default the clock's now."),
]


@app.command("set")
def set_(
    currency: Annotated[str, typer.Argument(help="ISO 4217 code, e.g. USD.")],
    rate: Annotated[float, typer.Argument(help="Units of the app's currency for one of it.")],
    from_: From = None,
    by: By = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Say what a currency is worth from a time on; earlier payments keep the rate of their time.

    For example: millrace fraud rates set USD 0.92 --from 2026-01-12
    """
    from millrace.operations.sending import now_ms, who
    from millrace.time.moments import show_time, to_time_ms
    from millrace_apps.fraud.contracts.events import SetRate

    settings, topic = _topic(bootstrap, root, overrides)
    name = who(by, settings)
    from_ms = now_ms() if from_ is None else to_time_ms(from_)
    event = SetRate(currency, rate, from_ms, name, now_ms())
    topic.change(lambda book: [event])
    typer.echo(f"1 {currency} is {rate:g} {settings.currency.billing} from {show_time(from_ms)} on")


@app.command("list", epilog="Example: millrace fraud rates list")
def list_(
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
    shape: Shape = Format.table,
) -> None:
    """The rates, by the control topic: from when on, and who said so."""
    from millrace.time.moments import show_time
    from millrace_apps.fraud.contracts.events import SetRate

    settings, topic = _topic(bootstrap, root, overrides)
    said = (one.event for one in topic.read().said if isinstance(one.event, SetRate))
    newest = {(event.currency, event.from_ms): event for event in said}
    billing = settings.currency.billing
    rates = [event for _, event in sorted(newest.items())]
    data = [
        {"currency": e.currency, "rate": e.rate, "in": billing, "from_ms": e.from_ms, "by": e.by}
        for e in rates
    ]
    lines = (f"1 {e.currency} = {e.rate:g} {billing} from {show_time(e.from_ms)} by {e.by}" for e in rates)
    print_as(shape, data, lambda: "\n".join(lines))


def _topic(
    bootstrap: str | None, root: Path | None, overrides: list[str] | None
) -> tuple[FraudSettings, ControlTopic]:
    from millrace.operations.control_topic import ControlTopic
    from millrace.runtime.commands import command_settings
    from millrace_apps.fraud.operations.app_rules import RULES
    from millrace_apps.fraud.settings import FraudSettings

    settings = command_settings(FraudSettings, "fraud", bootstrap=bootstrap, root=root, overrides=overrides)
    return settings, ControlTopic(RULES, settings)
