"""`millrace fraud respond`: what was blocked is told to have been declined."""

from __future__ import annotations

import typer

from millrace.cli.options import Bootstrap, Overrides, Root


def respond(bootstrap: Bootstrap = None, root: Root = None, overrides: Overrides = None) -> None:
    """Tell the job that what it blocked was declined, where the issuer has no feed that says so.

    Reads the table of alerts, and sends what the table of authorisations does not have: run it as often as
    you like, e.g. every minute.

    Example: millrace fraud respond --bootstrap 127.0.0.1:9092 --root var/fraud
    """
    from millrace.runtime.commands import command_settings
    from millrace_apps.fraud.operations.responding import respond as tell
    from millrace_apps.fraud.settings import FraudSettings

    settings = command_settings(FraudSettings, "fraud", bootstrap=bootstrap, root=root, overrides=overrides)
    sent = tell(settings)
    typer.echo(f"{sent:,} blocked payments told to {settings.topics.authorisations} as declined")
