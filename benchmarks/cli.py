"""`millrace bench …`: every figure of docs/performance.md comes from one of these commands."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from millrace.errors import UserError
from millrace_apps.benchmarks import machine

if TYPE_CHECKING:
    from millrace_apps.benchmarks.windowed import Job as WindowJob

S = TypeVar("S")

app = typer.Typer(
    help="Measure throughput, latency, start-up and memory.", no_args_is_help=True, add_completion=False
)

Out = Annotated[Path | None, typer.Option(help="Write the report to this file, as JSON.")]
Bootstrap = Annotated[str | None, typer.Option(help="Use this broker instead of an embedded one.")]
Sets = Annotated[list[str] | None, typer.Option("--set", "-s", help="A setting of the app.")]
Markdown = Annotated[Path | None, typer.Option(help="Write the tables to this file, as Markdown.")]
Quick = Annotated[bool, typer.Option("--quick", help="Small sizes: is it correct? Its speed says nothing.")]
Rows = Annotated[int | None, typer.Option(min=1_000, help="Events.", show_default=False)]
Keys = Annotated[int | None, typer.Option(min=1, help="Number of cards.", show_default=False)]
Batches = Annotated[
    int | None, typer.Option(min=2, help="Batches, the first not counted.", show_default=False)
]
Repeats = Annotated[int | None, typer.Option(min=1, help="Runs of each system.", show_default=False)]


#: Latency with ``--quick`` is about whether it runs.
_QUICK_WARM_BATCHES = 20


class BenchApp(StrEnum):
    """Which app is measured."""

    fraud = "fraud"
    iot = "iot"
    clickstream = "clickstream"
    ridesharing = "ridesharing"


class StateApp(StrEnum):
    """Whose state is weighed: of fraud the replay of recorded payments, or the live stages."""

    fraud = "fraud"
    fraud_live = "fraud-live"
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


class BetterFigure(StrEnum):
    """Which of two figures is the better one."""

    LOWER = "lower"
    HIGHER = "higher"


class InputKind(StrEnum):
    """What our process reads."""

    columns = "columns"
    json = "json"


def _sized(sizes: S, **given: Any) -> S:
    """Return the sizes with what was given on the command line."""
    return replace(sizes, **{name: value for name, value in given.items() if value is not None})  # type: ignore[type-var]


@app.callback()
def _ended_cleanly() -> None:
    """Measure throughput, latency, start-up and memory."""
    if not {"--help", "-h"} & set(sys.argv):
        machine.before()  # before anything is loaded
    # Ended by a time limit, say, a benchmark takes its jobs, brokers and folders with it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


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
    from millrace_apps.benchmarks import clock as bench
    from millrace_apps.benchmarks import report

    sizes = _sized(bench.QUICK if quick else bench.Sizes(), machines=machines, minutes=minutes)
    report.write("clock", bench.clock(sizes), bench.configuration(sizes), out, markdown)


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
    from millrace_apps.benchmarks import report
    from millrace_apps.benchmarks import rules_cost as bench

    sizes = _sized(bench.Sizes(), rules=count, events=events, repeats=repeats)
    results = bench.rules_cost(sizes, bootstrap, overrides or ())
    report.write("rules", results, bench.configuration(sizes, overrides or ()), out, markdown)


@app.command(epilog="Example: millrace bench latency --job iot --rate 1000 --duration 60")
def latency(
    job: Annotated[LatencyJob, typer.Option(help="An app, or the core's W1.")] = LatencyJob.fraud,
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
    from millrace_apps.benchmarks import report
    from millrace_apps.benchmarks import silence as bench

    sizes = _sized(bench.QUICK if quick else bench.Sizes(), devices=devices)
    results = bench.silence(sizes, bootstrap, overrides or ())
    report.write("silence", results, bench.configuration(sizes, overrides or ()), out, markdown)


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
    from millrace_apps.benchmarks import report
    from millrace_apps.benchmarks import stations as bench

    sizes = _sized(bench.QUICK if quick else bench.Sizes(), stations=count, pairs=pairs, rows=rows)
    report.write("stations", bench.stations(sizes), bench.configuration(sizes), out, markdown)


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


@app.command(epilog="Example: millrace bench w1 --repeats 3 --out w1.json --markdown w1.md")
def w1(
    rows: Rows = None,
    keys: Keys = None,
    big_keys: Annotated[
        int | None, typer.Option(min=1, help="Cards of the run with many.", show_default=False)
    ] = None,
    batches: Batches = None,
    repeats: Repeats = None,
    tws_share: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=1.0, help="Share of rows and cards for Spark's slow operators.", show_default=False
        ),
    ] = None,
    kind: Annotated[InputKind, typer.Option("--input", help="What our process reads.")] = InputKind.json,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Running z-score per card from Parquet files: ours beside Spark's operators."""
    from millrace_apps.benchmarks import report
    from millrace_apps.benchmarks import w1 as bench

    sizes = _sized(
        bench.QUICK if quick else bench.Sizes(),
        rows=rows,
        keys=keys,
        big_keys=big_keys,
        batches=batches,
        repeats=repeats,
        tws_share=tws_share,
        input=kind.value,
    )
    report.write("w1", bench.w1(sizes), bench.configuration(sizes), out, markdown)


def _windowed(job: WindowJob, quick: bool, out: Path | None, markdown: Path | None, **given: Any) -> None:
    from millrace_apps.benchmarks import report, windowed

    sizes = _sized(windowed.QUICK if quick else windowed.SIZES[job], **given)
    report.write(job, windowed.windowed(job, sizes), windowed.configuration(job, sizes), out, markdown)


@app.command(epilog="Example: millrace bench w2 --quick")
def w2(
    rows: Rows = None,
    keys: Keys = None,
    batches: Batches = None,
    repeats: Repeats = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Tumbling windows of a minute: ours beside Spark's."""
    _windowed("w2", quick, out, markdown, rows=rows, keys=keys, batches=batches, repeats=repeats)


@app.command(epilog="Example: millrace bench w3 --quick")
def w3(
    rows: Rows = None,
    keys: Keys = None,
    batches: Batches = None,
    repeats: Repeats = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Sessions with a gap of ten seconds: ours beside Spark's."""
    _windowed("w3", quick, out, markdown, rows=rows, keys=keys, batches=batches, repeats=repeats)


@app.command(epilog="Example: millrace bench w4 --rows 1000000")
def w4(
    rows: Rows = None,
    keys: Keys = None,
    batches: Batches = None,
    repeats: Repeats = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Per event the sum of its card's last five minutes; Spark has no such operator on streams."""
    _windowed("w4", quick, out, markdown, rows=rows, keys=keys, batches=batches, repeats=repeats)


@app.command(epilog="Example: millrace bench w5 --quick")
def w5(
    rows: Rows = None,
    keys: Keys = None,
    batches: Batches = None,
    repeats: Repeats = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """As-of and interval join of purchases and limits: ours beside Spark's stream-stream join."""
    from millrace_apps.benchmarks import joined as bench
    from millrace_apps.benchmarks import report

    sizes = _sized(
        bench.QUICK if quick else bench.Sizes(), rows=rows, keys=keys, batches=batches, repeats=repeats
    )
    report.write("w5", bench.joined(sizes), bench.configuration(sizes), out, markdown)


@app.command(epilog="Example: millrace bench w6 --quick")
def w6(
    rows: Rows = None,
    keys: Annotated[int | None, typer.Option(min=1, help="Number of items.", show_default=False)] = None,
    batches: Batches = None,
    repeats: Repeats = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """Drop repeats, then the ten best items per shop and minute: ours beside Spark's deduplication."""
    from millrace_apps.benchmarks import deduped as bench
    from millrace_apps.benchmarks import report

    sizes = _sized(
        bench.QUICK if quick else bench.Sizes(), rows=rows, keys=keys, batches=batches, repeats=repeats
    )
    report.write("w6", bench.deduped(sizes), bench.configuration(sizes), out, markdown)


@app.command(epilog="Example: millrace bench w8 --quick")
def w8(
    rows: Rows = None,
    keys: Keys = None,
    batches: Batches = None,
    repeats: Repeats = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """An alert for every silence of a card, one timer each: ours beside Spark's sessions."""
    from millrace_apps.benchmarks import absent as bench
    from millrace_apps.benchmarks import report

    sizes = _sized(
        bench.QUICK if quick else bench.Sizes(), rows=rows, keys=keys, batches=batches, repeats=repeats
    )
    report.write("w8", bench.absent(sizes), bench.configuration(sizes), out, markdown)


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
    from millrace_apps.ridesharing.evaluation.matcher_report import carry_out

    found = {
        f"{riders}_x_{cars}": carry_out(riders, cars, windows, seed, acceptance=True)
        for riders, cars in ((300, 1_000), (1_000, 5_000))
    }
    report.write("matching", found, {"windows": windows, "seed": seed}, out, markdown)


@app.command(epilog="Example: millrace bench w7 --quick")
def w7(
    rows: Rows = None,
    keys: Keys = None,
    batches: Batches = None,
    repeats: Repeats = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """The pattern A B* C within five seconds; Spark has no pattern matching."""
    from millrace_apps.benchmarks import matching as bench
    from millrace_apps.benchmarks import report

    sizes = _sized(
        bench.QUICK if quick else bench.Sizes(), rows=rows, keys=keys, batches=batches, repeats=repeats
    )
    report.write("w7", bench.matching(sizes), bench.configuration(sizes), out, markdown)


@app.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Example: millrace bench compare --ref v0.4 --figure systems.process.rows_per_s --better higher "
    "--out R.json -- millrace bench w2 --rows 1000000",
)
def compare(
    ref: Annotated[str, typer.Option(help="The commit, branch or tag that today's tree is compared with.")],
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND",
            help="What runs on both sides: millrace and python are the side's own; {today} is the path of "
            "today's tree.",
        ),
    ],
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of runs, A/B/B/A; fewer than 5 say little.")] = 5,
    warm_up: Annotated[int, typer.Option(min=0, help="Runs of each side before them, not counted.")] = 1,
    figure: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Compare this number of the command's own report in place of its time, "
            "e.g. systems.process.rows_per_s; the command is given --out FILE.",
            show_default=False,
        ),
    ] = None,
    better: Annotated[
        BetterFigure, typer.Option(help="Whether a lower or a higher figure is the better one.")
    ] = BetterFigure.LOWER,
    cpu_figure: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="The same in place of the CPU time of all processes, lower is better: cpu_ms_per_batch.",
            show_default=False,
        ),
    ] = None,
    today_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar='"ARG..."',
            help='Further arguments on today\'s side alone, e.g. "--set spark.key_groups=32"; repeatable.',
        ),
    ] = None,
    ref_arg: Annotated[
        list[str] | None,
        typer.Option(metavar='"ARG..."', help="Further arguments on the reference's side alone; repeatable."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Make the reference's tree and environment anew.")
    ] = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """A command on today's tree and on another commit, by turns: how many times better today's is.

    The commit gets a git worktree and an environment of its own, kept in the user's cache for the next time.
    All ratios are of runs next to each other, and above 1 today's tree is the better one.
    """
    from millrace_apps.benchmarks import compare as bench
    from millrace_apps.benchmarks import report

    plan = bench.Plan(
        tuple(command),
        pairs,
        warm_up,
        figure,
        better.value,
        cpu_figure,
        bench.words(today_arg or ()),
        bench.words(ref_arg or ()),
    )
    results = bench.compare(plan, ref, fresh=fresh)
    report.write("compare", results, bench.configuration(plan), out, markdown)


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


@app.command(epilog="Example: millrace bench sizing --out sizing.json")
def sizing(
    warm: Annotated[int, typer.Option(min=1, help="Batches before those that count.")] = 40,
    batches: Annotated[int, typer.Option(min=2, help="Batches that count.")] = 40,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """What a batch, a row and a page cost: fitted on some runs, held to others that were left out."""
    from dataclasses import asdict

    from millrace_apps.benchmarks import report
    from millrace_apps.benchmarks import sizing as bench

    sizes = bench.QUICK if quick else replace(bench.Sizes(), warm=warm, batches=batches)
    report.write("sizing", bench.sizing(sizes), asdict(sizes), out, markdown)


@app.command("kafka-w1", epilog="Example: millrace bench kafka-w1 --messages 4000000 --out kafka.json")
def kafka_w1(
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
    from millrace_apps.benchmarks import kafka_w1 as bench
    from millrace_apps.benchmarks import report

    sizes = _sized(
        bench.QUICK if quick else bench.Sizes(), messages=messages, keys=keys, batch=batch, repeats=repeats
    )
    results = bench.kafka_w1(sizes, bootstrap)
    report.write("kafka-w1", results, bench.configuration(sizes), out, markdown)


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
    from millrace_apps.benchmarks import report
    from millrace_apps.benchmarks import savepoint as bench

    sizes = _sized(bench.QUICK if quick else bench.Sizes(), keys=keys, text=text)
    report.write("savepoint", bench.savepoint(sizes), bench.configuration(sizes), out, markdown)


@app.command(epilog="Example: millrace bench serve --rate 100 --duration 60 --out serve.json")
def serve(
    rate: Annotated[int | None, typer.Option(min=1, help="Requests a second.", show_default=False)] = None,
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
    from millrace_apps.benchmarks import report
    from millrace_apps.benchmarks import serving as bench

    base = bench.QUICK if quick else bench.Sizes()
    sizes = _sized(base, rate=rate, duration_s=duration, beside=beside, safe_in=safe_in)
    results = bench.serve(sizes, bootstrap, overrides or [])
    report.write("serve", results, bench.configuration(sizes, overrides or []), out, markdown)


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
    from millrace_apps.benchmarks import big_state as bench
    from millrace_apps.benchmarks import report

    sizes = _sized(bench.QUICK if quick else bench.Sizes(), keys=keys, rate=rate, duration_s=duration)
    results = bench.big_state(sizes, bootstrap, overrides or [])
    report.write("big-state", results, bench.configuration(sizes, overrides or []), out, markdown)


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
    from millrace_apps.benchmarks import report
    from millrace_apps.benchmarks import timers as bench

    sizes = _sized(bench.QUICK if quick else bench.Sizes(), pending=pending, due=due)
    if sizes.due * sizes.rounds > sizes.pending:
        raise UserError(
            f"{sizes.rounds} rounds of {sizes.due:,} timers need --pending {sizes.due * sizes.rounds}"
        )
    report.write("timers", bench.timers(sizes), bench.configuration(sizes), out, markdown)


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
    from millrace_apps.benchmarks import memory_host as bench
    from millrace_apps.benchmarks import report

    sizes = _sized(
        bench.QUICK if quick else bench.Sizes(), events=events, keys=keys, batch=batch, repeats=repeats
    )
    report.write("memory-host", bench.memory_host(sizes), bench.configuration(sizes), out, markdown)


@app.command(epilog="Example: millrace bench sealing --quick")
def sealing(
    events: Annotated[int | None, typer.Option(min=1_000, help="Events.", show_default=False)] = None,
    keys: Keys = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Events per batch.", show_default=False)] = None,
    repeats: Repeats = None,
    quick: Quick = False,
    out: Out = None,
    markdown: Markdown = None,
) -> None:
    """What checksums and encryption of state cost the fraud process, without Spark."""
    from millrace_apps.benchmarks import report
    from millrace_apps.benchmarks import sealing as bench

    sizes = _sized(
        bench.QUICK if quick else bench.Sizes(), events=events, cards=keys, batch=batch, repeats=repeats
    )
    report.write("sealing", bench.sealing(sizes), bench.configuration(sizes), out, markdown)


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
    from millrace_apps.benchmarks import paged_map as bench
    from millrace_apps.benchmarks import report

    sizes = _sized(bench.QUICK if quick else bench.Sizes(), entries=entries)
    report.write("paged-state", bench.paged_state(sizes), bench.configuration(sizes), out, markdown)


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
    from millrace_apps.benchmarks import region as bench
    from millrace_apps.benchmarks import report

    sizes = _sized(
        bench.QUICK if quick else bench.Sizes(),
        drivers=drivers,
        positions=positions,
        riders=riders,
        batches=batches,
    )
    report.write("region", bench.region(sizes), bench.configuration(sizes), out, markdown)


@app.command(epilog="Example: millrace bench parts --out parts.json")
def parts(quick: Quick = False, out: Out = None, markdown: Markdown = None) -> None:
    """State logic that apps keep of their own beside the parts that could take its place, without Spark."""
    from millrace_apps.benchmarks import parts as bench
    from millrace_apps.benchmarks import report

    sizes = bench.QUICK if quick else bench.Sizes()
    report.write("parts", bench.parts(sizes), bench.configuration(sizes), out, markdown)


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
    from millrace_apps.benchmarks import next_items as bench
    from millrace_apps.benchmarks import report

    sizes = _sized(bench.QUICK if quick else bench.Sizes(), sessions=sessions, items=items)
    report.write("next-items", bench.next_items(sizes), bench.configuration(sizes), out, markdown)


@app.command(epilog="Example: millrace bench busy --out busy.json")
def busy(quick: Quick = False, out: Out = None, markdown: Markdown = None) -> None:
    """What a payment at a busy terminal costs beside one at an ordinary terminal, without Spark."""
    from millrace_apps.benchmarks import busy as bench
    from millrace_apps.benchmarks import report

    sizes = bench.QUICK if quick else bench.Sizes()
    report.write("busy", bench.busy(sizes), bench.configuration(sizes), out, markdown)


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
    sizes = _sized(
        bench.QUICK if quick else bench.Sizes(),
        domains=tuple(domain) if domain else None,
        targets=tuple(target) if target else None,
        events=events,
        repeats=repeats,
    )
    report.write("generate", bench.generate(sizes, bootstrap), bench.configuration(sizes), out, markdown)
