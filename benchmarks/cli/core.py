"""`millrace bench …` of the core: state, timers, savepoints, stations, time, the memory host."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millrace_apps.benchmarks.cli.options import (
    Bootstrap,
    Keys,
    Markdown,
    Out,
    Quick,
    Repeats,
    Sets,
    carry_out,
    sized,
)

app = typer.Typer()


@app.command(epilog="Example: millrace bench clock --out clock.json")
def clock(
    machines: Annotated[int | None, typer.Option(min=2, help="Machines.", show_default=False)] = None,
    minutes: Annotated[
        int | None, typer.Option(min=1, help="Minutes of event time.", show_default=False)
    ] = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """What one wrong clock does to the other machines' events, and an uneven backlog to its own.

    It counts and times nothing: beside the rule of time run others that were not taken.
    """
    carry_out("clock", out, markdown, quick=quick, machines=machines, minutes=minutes)


@app.command(epilog="Example: millrace bench stations --pairs 5")
def stations(
    count: Annotated[
        int | None, typer.Option("--stations", min=2, help="Stations.", show_default=False)
    ] = None,
    pairs: Annotated[int | None, typer.Option(min=1, help="Runs of either kind.", show_default=False)] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Events a batch.", show_default=False)] = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """One station beside several that share the work: events per second, in alternating runs."""
    carry_out("stations", out, markdown, quick=quick, stations=count, pairs=pairs, rows=rows)


@app.command(epilog="Example: millrace bench sizing --out sizing.json")
def sizing(
    warm: Annotated[int, typer.Option(min=1, help="Batches before those that count.")] = 40,
    batches: Annotated[int, typer.Option(min=2, help="Batches that count.")] = 40,
    points: Annotated[
        Path | None, typer.Option(help="Keep each run's point here; those that are there are not run again.")
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Run each so often; what counts is the one in the middle.")
    ] = 1,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """What a batch, a row, a page and a second cost; each run is held to a fit on all others."""
    from dataclasses import asdict

    from millrace_apps.benchmarks import report
    from millrace_apps.benchmarks import sizing as bench

    sizes = bench.QUICK if quick else sized(bench.Sizes(), warm=warm, batches=batches, repeats=repeats)
    report.write("sizing", bench.sizing(sizes, points), asdict(sizes), out, markdown)


@app.command(
    "kafka-running-zscore",
    epilog="Example: millrace bench kafka-running-zscore --messages 4000000 --out kafka.json",
)
def kafka_running_zscore(
    messages: Annotated[
        int | None, typer.Option(min=1_000, help="Messages in the topic.", show_default=False)
    ] = None,
    keys: Keys = None,
    batch: Annotated[
        int | None, typer.Option(min=100, help="Most messages of a batch.", show_default=False)
    ] = None,
    repeats: Repeats = None,
    quick: Quick = False,
    bootstrap: Bootstrap = None,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Kafka to Kafka through durable state: ours beside Spark's aggregation and a plain Python loop."""
    carry_out(
        "kafka-running-zscore",
        out,
        markdown,
        bootstrap,
        quick=quick,
        messages=messages,
        keys=keys,
        batch=batch,
        repeats=repeats,
    )


@app.command(epilog="Example: millrace bench savepoint --keys 100000")
def savepoint(
    keys: Keys = None,
    text: Annotated[
        int | None, typer.Option(min=1, help="Characters of text for each card.", show_default=False)
    ] = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """A million keys: savepoint, restore, a look at one key, another number of key groups."""
    carry_out("savepoint", out, markdown, quick=quick, keys=keys, text=text)


@app.command("big-state", epilog="Example: millrace bench big-state --keys 100000 --rate 500")
def big_state(
    keys: Keys = None,
    rate: Annotated[int | None, typer.Option(min=1, help="Events per second.", show_default=False)] = None,
    duration: Annotated[int | None, typer.Option(min=1, help="Seconds measured.", show_default=False)] = None,
    quick: Quick = False,
    bootstrap: Bootstrap = None,
    overrides: Sets = None,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Small batches over a million keys of a kilobyte: latency, bytes written, recovery after kill -9."""
    carry_out(
        "big-state",
        out,
        markdown,
        bootstrap,
        overrides or [],
        quick=quick,
        keys=keys,
        rate=rate,
        duration_s=duration,
    )


@app.command(epilog="Example: millrace bench timers --pending 1000000 --due 10000")
def timers(
    pending: Annotated[
        int | None, typer.Option(min=1_000, help="Timers, each of a key of its own.", show_default=False)
    ] = None,
    due: Annotated[
        int | None, typer.Option(min=1, help="How many are due in a batch.", show_default=False)
    ] = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """A million pending timers: how long a batch takes in which ten thousand are due."""
    carry_out("timers", out, markdown, quick=quick, pending=pending, due=due)


@app.command("memory-host", epilog="Example: millrace bench memory-host --events 1000000 --repeats 3")
def memory_host(
    events: Annotated[int | None, typer.Option(min=1_000, help="Events.", show_default=False)] = None,
    keys: Keys = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Events per batch.", show_default=False)] = None,
    repeats: Repeats = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Events per second and core of a running aggregate on the in-memory host, without Spark."""
    carry_out(
        "memory-host", out, markdown, quick=quick, events=events, keys=keys, batch=batch, repeats=repeats
    )


@app.command("paged-state", epilog="Example: millrace bench paged-state --entries 1000000")
def paged_state(
    entries: Annotated[
        int | None, typer.Option(min=1_000, help="Entries of the map in parts.", show_default=False)
    ] = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Read and write one entry of a map that has a million, in parts and as a whole; without Spark."""
    carry_out("paged-state", out, markdown, module="paged_map", quick=quick, entries=entries)
