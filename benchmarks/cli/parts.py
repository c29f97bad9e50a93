"""`millrace bench …` of parts of apps: their state, and single steps of them without Spark."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from millrace.errors import UserError
from millrace_apps.benchmarks.cli.options import (
    Keys,
    Markdown,
    Out,
    Quick,
    Repeats,
    carry_out,
)

app = typer.Typer()


class StateApp(StrEnum):
    """Whose state is weighed: of fraud the replay of recorded payments, or the live stages."""

    fraud = "fraud"
    fraud_live = "fraud-live"
    iot = "iot"
    clickstream = "clickstream"
    ridesharing = "ridesharing"


@app.command(epilog="Example: millrace bench state --app fraud --days 111")
def state(
    name: Annotated[StateApp, typer.Option("--app", help="The app.")],
    entities: Annotated[
        int | None,
        typer.Option(
            "--entities",
            "--devices",
            "--visitors",
            min=1,
            help="Devices (default 100,000), visitors (1,000,000), drivers (16,000), "
            "or customers (5,000; live 20,000).",
            show_default=False,
        ),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="fraud, iot: days over which the state of a few is followed "
            "(default 111, 30; 0: not at all).",
            show_default=False,
        ),
    ] = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Bytes of state per device, visitor, driver, or customer and terminal, packed as in a checkpoint."""
    from millrace_apps.benchmarks import report
    from millrace_apps.benchmarks import state_size as bench
    from millrace_apps.benchmarks.state_apps import BENCHES

    if days and BENCHES[name.value].growing is None:
        raise UserError(f"--days is for --app fraud and iot, not {name.value}")
    if days in (1, 2):
        raise UserError("--days is 3 or more: the last third of them is compared with the one before")
    sizes = bench.sizes_of(name.value, entities, days, quick=quick)
    report.write("state", bench.state_size(sizes), bench.configuration(sizes), out, markdown)


@app.command(epilog="Example: millrace bench matching --windows 100 --out matching.json")
def matching(
    windows: Annotated[int, typer.Option(min=1, max=10_000, help="Windows of each size.")] = 100,
    seed: Annotated[int, typer.Option(help="Where everybody is.")] = 1,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """How long a dispatch window takes to decide: 300 riders and 1,000 cars, and 1,000 and 5,000.

    How likely each driver is to say yes is in the cost, from 40 answers of each and 5,000 of the fleet.
    """
    from millrace_apps.benchmarks import report
    from millrace_apps.ridesharing.evaluation import matcher_report

    found = {
        f"{riders}_x_{cars}": matcher_report.carry_out(riders, cars, windows, seed, acceptance=True)
        for riders, cars in ((300, 1_000), (1_000, 5_000))
    }
    report.write("matching", found, {"windows": windows, "seed": seed}, out, markdown)


@app.command(epilog="Example: millrace bench region --drivers 50000 --positions 10000")
def region(
    drivers: Annotated[
        int | None, typer.Option(min=100, help="Drivers of the region.", show_default=False)
    ] = None,
    positions: Annotated[
        int | None, typer.Option(min=10, help="Positions of a batch.", show_default=False)
    ] = None,
    riders: Annotated[
        int | None, typer.Option(min=0, help="Requests of a batch.", show_default=False)
    ] = None,
    batches: Annotated[
        int | None, typer.Option(min=1, help="Batches of each size.", show_default=False)
    ] = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Positions of a ridesharing region, its book in parts and in one entry by turns, without Spark."""
    carry_out(
        "region",
        out,
        markdown,
        quick=quick,
        drivers=drivers,
        positions=positions,
        riders=riders,
        batches=batches,
    )


@app.command("next-items", epilog="Example: millrace bench next-items --sessions 1000000 --items 100000")
def next_items(
    sessions: Annotated[
        int | None, typer.Option(min=1_000, help="Sessions in the index.", show_default=False)
    ] = None,
    items: Annotated[
        int | None, typer.Option(min=100, help="Items that there are.", show_default=False)
    ] = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """The index of clickstream's next items: bytes, time to restore it, time of a list; without Spark."""
    carry_out("next-items", out, markdown, quick=quick, sessions=sessions, items=items)


@app.command(epilog="Example: millrace bench busy --out busy.json")
def busy(quick: Quick = False, out: Out = None, markdown: Markdown = None) -> None:
    """What a payment at a busy terminal costs beside one at an ordinary terminal, without Spark."""
    carry_out("busy", out, markdown, quick=quick)


@app.command("state-encryption", epilog="Example: millrace bench state-encryption --quick")
def state_encryption(
    events: Annotated[int | None, typer.Option(min=1_000, help="Events.", show_default=False)] = None,
    keys: Keys = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Events per batch.", show_default=False)] = None,
    repeats: Repeats = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """What checksums and encryption of state cost the fraud process, without Spark."""
    carry_out(
        "state-encryption",
        out,
        markdown,
        quick=quick,
        events=events,
        cards=keys,
        batch=batch,
        repeats=repeats,
    )


@app.command(epilog="Example: millrace bench parts --out parts.json")
def parts(quick: Quick = False, out: Out = None, markdown: Markdown = None) -> None:
    """State logic that apps keep of their own beside the parts that could take its place, without Spark."""
    carry_out("parts", out, markdown, quick=quick)
