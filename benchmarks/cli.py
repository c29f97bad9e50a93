"""`millrace bench …`: every figure of docs/performance.md comes from one of these commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Measure throughput, latency, start-up and memory.", no_args_is_help=True, add_completion=False
)

Out = Annotated[Path | None, typer.Option(help="Write the report to this file, as JSON.")]
Bootstrap = Annotated[str | None, typer.Option(help="Use this broker instead of an embedded one.")]
Sets = Annotated[list[str] | None, typer.Option("--set", "-s", help="A setting of the app.")]


@app.command()
def drain(
    events: Annotated[int, typer.Option(help="Events in the topic before the app starts.")] = 1_000_000,
    cards: Annotated[int, typer.Option(help="Number of cards.")] = 50_000,
    bootstrap: Bootstrap = None,
    overrides: Sets = None,
    out: Out = None,
) -> None:
    """Events per second of the fraud app from a preloaded topic to its Delta tables."""
    from benchmarks import fraud, report

    results = fraud.drain(events, cards, bootstrap, overrides or ())
    report.write("drain", results, {"cards": cards, "settings": overrides or []}, out)


@app.command()
def latency(
    rate: Annotated[int, typer.Option(help="Events per second.")] = 1_000,
    duration: Annotated[int, typer.Option(help="Seconds measured.")] = 60,
    warm_up: Annotated[int, typer.Option(help="Seconds before that, not counted.")] = 60,
    bootstrap: Bootstrap = None,
    overrides: Sets = None,
    out: Out = None,
) -> None:
    """Time from when an event is due until its decision and its alert can be read."""
    from benchmarks import fraud, report

    results = fraud.latency(rate, duration, warm_up, bootstrap, overrides or ())
    report.write("latency", results, {"rate": rate, "warm_up_s": warm_up, "settings": overrides or []}, out)


@app.command()
def start(bootstrap: Bootstrap = None, overrides: Sets = None, out: Out = None) -> None:
    """Seconds from the start of the fraud app to session, query and first result."""
    from benchmarks import fraud, report

    report.write("start", fraud.start(bootstrap, overrides or ()), {"settings": overrides or []}, out)


@app.command()
def memory(
    duration: Annotated[int, typer.Option(help="Seconds of streaming.")] = 60, out: Out = None
) -> None:
    """Peak memory of all processes of the fraud demo."""
    from benchmarks import fraud, report

    report.write("memory", fraud.memory(duration), {"duration_s": duration}, out)
