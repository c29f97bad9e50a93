"""`millrace iot notify`: operators are told of alarms, and what they answer goes back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.options import Bootstrap, Overrides, Root


def notify(
    plan: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file of channels and routes.")],
    every: Annotated[str, typer.Option(help="Look again and again, e.g. 10s; 0: once.")] = "0",
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Tell operators of alarms by webhook and mail, when they are on call, until one acknowledges.

    Reads the table of alarms and remembers in its folder whom it has told; run it as often as you like.

    Example: millrace iot notify on-call.yaml --every 10s --root var/iot --bootstrap 127.0.0.1:9092
    """
    from millrace.operations.sending import send
    from millrace.time.durations import to_ms
    from millrace_apps.iot_maintenance.contracts.events import Action
    from millrace_apps.iot_maintenance.operations.notifying import keep_told, read_plan, read_told
    from millrace_apps.iot_maintenance.operations.notifying import notify as tell
    from millrace_apps.iot_maintenance.operations.operating import events_now_ms, read_table, settings_of

    found, wait_ms = read_plan(plan), to_ms(every)
    settings = settings_of(bootstrap, root, overrides)
    file = Path(settings.storage.path("notified.json"))
    while True:
        alarms = read_table(settings, "alarms")
        round_ = tell(found, alarms, read_told(file), events_now_ms(settings))
        send(settings.kafka, settings.topics.actions, Action, [(a.entity_id, a) for a in round_.actions])
        keep_told(file, round_.told)
        for channel, why in round_.failed:
            typer.echo(f"{channel}: not delivered, tried again the next time: {why}", err=True)
        typer.echo(f"{round_.sent} told, {len(round_.actions)} answered")
        if not wait_ms:
            raise typer.Exit(1 if round_.failed else 0)
        time.sleep(wait_ms / 1000)
