"""`millrace bench …` of running apps: throughput, latency, start-up, memory, what parts of them cost."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from millrace.errors import UserError
from millrace_apps.benchmarks.cli.options import (
    Bootstrap,
    Markdown,
    Out,
    Quick,
    Repeats,
    Sets,
    carry_out,
    sized,
)

app = typer.Typer()

Requests = Annotated[int | None, typer.Option(min=1, help="Requests a second.", show_default=False)]
WarmBatches = Annotated[
    int | None, typer.Option(min=1, help="Batches of the job before.", show_default=False)
]

#: Latency with ``--quick`` is about whether it runs.
_QUICK_WARM_BATCHES = 20


class BenchApp(StrEnum):
    """Which app is measured."""

    fraud = "fraud"
    iot = "iot"
    clickstream = "clickstream"
    ridesharing = "ridesharing"


class LatencyJob(StrEnum):
    """Whose latency is measured."""

    fraud = "fraud"
    iot = "iot"
    clickstream = "clickstream"
    ridesharing = "ridesharing"
    w1 = "w1"


@app.command(epilog="Example: millrace bench drain --app iot --events 1000000 --out drain.json")
def drain(
    name: Annotated[BenchApp, typer.Option("--app", help="The app.")] = BenchApp.fraud,
    events: Annotated[
        int, typer.Option(min=1, help="Events in the topics before the app starts.")
    ] = 1_000_000,
    entities: Annotated[
        int | None,
        typer.Option(
            "--entities",
            "--cards",
            min=1,
            help="Cards (default 50,000), machines (2,000), people (20,000) or drivers (16,000).",
            show_default=False,
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    overrides: Sets = None,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Events per second of an app from preloaded topics to its Delta tables.

    It runs with the settings for catching up: batches of 100,000. The first batch loads
    everything: give more events than one takes.
    """
    from millrace_apps.benchmarks import app_drain, report
    from millrace_apps.benchmarks.app_bench import bench_of

    bench = bench_of(name.value)
    results = app_drain.drain(bench, events, entities, bootstrap, overrides or ())
    report.write("drain", results, app_drain.configuration(bench, entities, overrides or ()), out, markdown)


@app.command(epilog="Example: millrace bench latency --job iot --rate 1000 --duration 60")
def latency(
    job: Annotated[
        LatencyJob, typer.Option(help="An app, or w1: the core's running z-score.")
    ] = LatencyJob.fraud,
    rate: Annotated[int, typer.Option(min=1, help="Events per second.")] = 1_000,
    duration: Annotated[int, typer.Option(min=1, help="Seconds measured.")] = 60,
    warm_up: Annotated[int, typer.Option(min=0, help="Seconds before that at the least, not counted.")] = 60,
    warm_batches: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Batches that are committed before anything counts; default 250, with --quick 20.",
            show_default=False,
        ),
    ] = None,
    quick: Quick = False,
    bootstrap: Bootstrap = None,
    overrides: Sets = None,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Time from when an event is due until its answer can be read.

    fraud: transaction to decision and alert; iot: reading to alarm; clickstream: click to offer;
    ridesharing: request to offer, with and without its dispatch window; w1: event to score.
    What comes before 250 batches have been committed does not count: by then the JVM has compiled.
    """
    from millrace_apps.benchmarks import report
    from millrace_apps.benchmarks.warmth import WARM_BATCHES, WarmUp

    sets = overrides or []
    if quick:
        rate, duration, warm_up = min(rate, 200), min(duration, 10), min(warm_up, 5)
    warm = WarmUp(warm_batches or (_QUICK_WARM_BATCHES if quick else WARM_BATCHES), warm_up)
    if job is not LatencyJob.w1:
        from millrace_apps.benchmarks import app_latency
        from millrace_apps.benchmarks.app_bench import bench_of

        bench = bench_of(job.value)
        results = app_latency.latency(bench, rate, duration, warm, bootstrap, sets)
        about = {
            "job": job.value,
            "rate": rate,
            "duration_s": duration,
            "warm_up_s": warm_up,
            "warm_batches": warm.batches,
            "settings": sets,
        }
        report.write("latency", results, about, out, markdown)
        return
    from millrace_apps.benchmarks import core_latency, running

    pace = running.Rate(rate, duration, warm_up)
    results = core_latency.latency(pace, warm, bootstrap, sets)
    report.write("latency", results, core_latency.configuration(pace, warm, sets), out, markdown)


@app.command(epilog="Example: millrace bench batch --out batch.json")
def batch(
    jobs: Annotated[
        list[str] | None,
        typer.Option("--job", help="w1, fraud, iot, clickstream or ridesharing; repeatable; default all."),
    ] = None,
    rows: Annotated[int, typer.Option(min=10, help="Events of a batch.")] = 1_000,
    batches: Annotated[int, typer.Option(min=5, help="Batches that count, after as many to warm up.")] = 250,
    empty: Annotated[int, typer.Option(min=1, help="Batches of one control row that count.")] = 40,
    overrides: Sets = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Small batches of every app beside a native aggregation of Spark's: medians, one after the other."""
    from millrace_apps.benchmarks import batches as bench
    from millrace_apps.benchmarks import report

    sizes = bench.Sizes(rows, 20, 10, 5) if quick else bench.Sizes(rows, batches, batches, empty)
    found = bench.batch(tuple(jobs or bench.JOBS), sizes, tuple(overrides or ()))
    report.write("batch", found, bench.configuration(sizes), out, markdown)


@app.command(epilog="Example: millrace bench start --out start.json")
def start(bootstrap: Bootstrap = None, overrides: Sets = None, out: Out = None) -> None:
    """Seconds from the start of the fraud app to session, query and first result."""
    from millrace_apps.benchmarks import fraud, report

    report.write("start", fraud.start(bootstrap, overrides or ()), {"settings": overrides or []}, out)


@app.command(epilog="Example: millrace bench memory --duration 60")
def memory(
    duration: Annotated[int, typer.Option(help="Seconds of streaming.")] = 60, out: Out = None
) -> None:
    """Peak memory of all processes of the fraud demo."""
    from millrace_apps.benchmarks import fraud, report

    report.write("memory", fraud.memory(duration), {"duration_s": duration}, out)


@app.command(epilog="Example: millrace bench rules --rules 100 --repeats 3")
def rules(
    count: Annotated[
        int | None, typer.Option("--rules", min=1, help="Active rules.", show_default=False)
    ] = None,
    events: Annotated[int | None, typer.Option(min=1, help="Events of each run.", show_default=False)] = None,
    repeats: Repeats = None,
    bootstrap: Bootstrap = None,
    overrides: Sets = None,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """What a hundred active rules cost the fraud app, which drains its topics with them and without."""
    carry_out(
        "rules",
        out,
        markdown,
        bootstrap,
        overrides or (),
        module="rules_cost",
        rules=count,
        events=events,
        repeats=repeats,
    )


@app.command(epilog="Example: millrace bench silence --devices 10000")
def silence(
    devices: Annotated[int | None, typer.Option(min=1, help="Devices.", show_default=False)] = None,
    quick: Quick = False,
    bootstrap: Bootstrap = None,
    overrides: Sets = None,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """100,000 devices of the iot app beat once and fall silent: how long until all have been declared."""
    carry_out("silence", out, markdown, bootstrap, overrides or (), quick=quick, devices=devices)


@app.command(epilog="Example: millrace bench serve --rate 100 --duration 60 --out serve.json")
def serve(
    rate: Requests = None,
    duration: Annotated[int | None, typer.Option(min=1, help="Seconds measured.", show_default=False)] = None,
    beside: Annotated[
        int | None, typer.Option(min=1, help="Payments a second beside them.", show_default=False)
    ] = None,
    safe_in: Annotated[str, typer.Option(help="What answers wait for: outbox or broker.")] = "outbox",
    quick: Quick = False,
    bootstrap: Bootstrap = None,
    overrides: Sets = None,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Decisions over HTTP beside the running fraud job: from when they are due, and beside the stream's."""
    carry_out(
        "serve",
        out,
        markdown,
        bootstrap,
        overrides or [],
        module="serving",
        quick=quick,
        rate=rate,
        duration_s=duration,
        beside=beside,
        safe_in=safe_in,
    )


@app.command(name="serve-items", epilog="Example: millrace bench serve-items --rate 50 --beside 200")
def serve_items(
    rate: Requests = None,
    duration: Annotated[int | None, typer.Option(min=1, help="Seconds measured.", show_default=False)] = None,
    beside: Annotated[
        int | None, typer.Option(min=1, help="Clicks a second beside them.", show_default=False)
    ] = None,
    warm_batches: WarmBatches = None,
    quick: Quick = False,
    bootstrap: Bootstrap = None,
    overrides: Sets = None,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Next items over HTTP beside the running clickstream job, from when they are due."""
    carry_out(
        "serve-items",
        out,
        markdown,
        bootstrap,
        overrides or [],
        module="serving_items",
        quick=quick,
        rate=rate,
        duration_s=duration,
        beside=beside,
        warm_batches=warm_batches,
    )


@app.command(name="serve-beside", epilog="Example: millrace bench serve-beside --pairs 20 --out beside.json")
def serve_beside(
    pairs: Annotated[int | None, typer.Option(min=1, help="Pairs of windows.", show_default=False)] = None,
    rate: Requests = None,
    beside: Annotated[
        int | None, typer.Option(min=1, help="Payments a second of the job.", show_default=False)
    ] = None,
    warm_batches: WarmBatches = None,
    quick: Quick = False,
    bootstrap: Bootstrap = None,
    overrides: Sets = None,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """What `millrace serve` takes from the fraud job beside it: batches with it and without, by turns."""
    carry_out(
        "serve-beside",
        out,
        markdown,
        bootstrap,
        overrides or [],
        module="serving_beside",
        quick=quick,
        pairs=pairs,
        rate=rate,
        beside=beside,
        warm_batches=warm_batches,
    )


@app.command(epilog="Example: millrace bench uplift --seeds 100 --out uplift.json")
def uplift(
    seeds: Annotated[int, typer.Option(min=1, help="Shops to play, seeds 1 to this.")] = 100,
    days: Annotated[int, typer.Option(min=8, help="Days that pass in each.")] = 20,
    event_rate: Annotated[float, typer.Option(min=0.001, help="Events a second.")] = 0.08,
    adds: Annotated[float, typer.Option(help="What an offer adds to the share of carts bought.")] = 0.3,
    least: Annotated[int, typer.Option(min=0, max=100, help="Of 100 so many must hold the truth.")] = 90,
    jobs: Annotated[int, typer.Option(min=1, help="Processes to play in.")] = 2,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Shoppers who answer clickstream's offers, in memory: how often its interval holds what these add."""
    from dataclasses import asdict

    from millrace.errors import ChecksFailed
    from millrace_apps.benchmarks import report
    from millrace_apps.benchmarks import uplift as bench

    shop = bench.Shop(days=days, event_rate=event_rate, offer_uplift=adds)
    results = bench.evaluate(
        range(1, seeds + 1), shop, jobs=jobs, say=lambda line: typer.echo(line, err=True)
    )
    results["correct"] = results["held"] * 100 >= least * seeds
    report.write("uplift", results, asdict(shop) | {"seeds": seeds, "least": least}, out, markdown)
    if not results["correct"]:
        raise ChecksFailed(f"{results['held']} of {seeds} intervals hold what offers add, {least} % must")


@app.command(epilog="Example: millrace bench generate --domain iot --to kafka --events 500000")
def generate(
    domain: Annotated[
        list[str] | None, typer.Option(help="Which generators; default fraud and clickstream.")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option("--to", help="jsonl, kafka or null; default jsonl and kafka.")
    ] = None,
    events: Annotated[int | None, typer.Option(min=100, help="Events per run.", show_default=False)] = None,
    repeats: Repeats = None,
    quick: Quick = False,
    bootstrap: Bootstrap = None,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Events per second, CPU time and memory of the generators, to a file and to Kafka."""
    from millrace_apps.benchmarks import generate as bench
    from millrace_apps.benchmarks import report

    for name in target or ():
        if name not in bench.TARGETS:
            raise UserError(f"--to is one of {', '.join(bench.TARGETS)}, got {name}")
    sizes = sized(
        bench.QUICK if quick else bench.Sizes(),
        domains=tuple(domain) if domain else None,
        targets=tuple(target) if target else None,
        events=events,
        repeats=repeats,
    )
    report.write("generate", bench.generate(sizes, bootstrap), bench.configuration(sizes), out, markdown)
