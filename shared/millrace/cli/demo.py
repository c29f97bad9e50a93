"""`millrace demo APP`: see an app at work, and checked, with one command."""

from __future__ import annotations

import importlib
import time
from typing import Annotated

import typer

app = typer.Typer(help="Broker, generator and app in one command, checked against the truth.")


@app.command(epilog="Example: millrace demo fraud --duration 60s")
def demo(
    name: Annotated[str, typer.Argument(metavar="APP", help="Name of the app.")] = "fraud",
    duration: Annotated[str, typer.Option(help="How long events are sent, e.g. 60s.")] = "60s",
    rate: Annotated[int, typer.Option(min=1, help="Events per second.")] = 1_000,
    seed: Annotated[int, typer.Option(help="Seed of the generator: same seed, same frauds.")] = 7,
    bootstrap: Annotated[
        str | None,
        typer.Option(help="Use this broker instead of an embedded one; also KAFKA_BOOTSTRAP_SERVERS."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="A setting, e.g. -s spark.driver_memory=2g.")
    ] = None,
) -> None:
    """Run APP on a real stream for a while, and check what it wrote against what was sent.

    A check that finds nothing to compare does not hold: what is shorter than a minute may have too little. Of
    what is seldom a run that sends less than by default only says so.

    Exit codes: 0 all checks hold, 1 one does not or the run failed, 2 something you can put right.
    """
    from millrace.console.live import LiveView
    from millrace.console.report import NOTHING, print_checks
    from millrace.demo import DemoOptions, demo_path, run_demo, verdict_of
    from millrace.errors import ChecksFailed, UserError
    from millrace.runtime.apps import load_app
    from millrace.runtime.doctor import quick_check
    from millrace.time.durations import to_ms

    application = load_app(name)
    if application.demo is None:
        raise UserError(f"{name} has no demo")
    quick_check()
    module, _, attribute = application.demo.partition(":")
    spec = getattr(importlib.import_module(module), attribute)
    seconds = to_ms(duration) / 1000
    if seconds < 1:
        unit = "; a number alone is milliseconds" if duration.strip().isdecimal() else ""
        raise UserError(f"--duration {duration}: events are sent for a second or more, e.g. 60s{unit}")
    options = DemoOptions(seconds, rate, seed, bootstrap, overrides or ())
    began = time.monotonic()
    with LiveView(f"millrace demo {name}") as view:
        checks = run_demo(application, spec, options, view)
    print_checks(f"{name}: what was written against what was sent", checks)
    verdict = verdict_of(checks, options, spec.seldom)
    typer.echo(f"tables, ledger and logs: {demo_path(name)}")
    typer.echo(
        f"{'all checks hold' if verdict.holds else 'CHECKS FAILED'} after {time.monotonic() - began:.0f} s"
    )
    if verdict.seldom:
        typer.echo(f"so small a run has {NOTHING} for: {', '.join(verdict.seldom)}")
    if not verdict.holds:
        raise ChecksFailed(
            "what was written is not what was sent"
            if verdict.wrong
            else f"a longer run is wanted, {NOTHING}: {', '.join(verdict.empty)}"
        )
