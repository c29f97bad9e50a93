"""``millrace evaluate fraud``: the features and models on recorded payments whose frauds are known."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.errors import UserError
from millrace.operations.report import write, write_parquet

if TYPE_CHECKING:
    import pandas as pd

    from millrace_apps.fraud.evaluation.study import WeekResult
    from millrace_apps.fraud.operations.economics import Costs

app = typer.Typer(help="Features and models on recorded payments.", add_completion=False)


@app.command(
    epilog="Example: millrace evaluate fraud --transactions payments.parquet --test-week 2018-07-25 "
    "--out report.json"
)
def fraud(
    transactions: Annotated[
        list[Path],
        typer.Option("--transactions", help="Parquet file in the Handbook's columns; repeat for more."),
    ],
    test_week: Annotated[
        list[str],
        typer.Option("--test-week", help="First day of a test week, e.g. 2018-08-08; repeatable."),
    ],
    label_delay: Annotated[
        str, typer.Option("--label-delay", help="How long after a payment its label becomes known.")
    ] = "7d",
    out: Annotated[Path | None, typer.Option("--out", help="Where the report goes, as JSON.")] = None,
    scores: Annotated[
        Path | None,
        typer.Option("--scores", help="Where the scored payments go, as Parquet."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Models per week and kind, whose mean is reported.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Threads to train with.")] = 2,
    batch: Annotated[int, typer.Option(min=1, help="Payments per micro-batch.")] = 150_000,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Keep records, checkpoint and tables here."),
    ] = None,
    capacity: Annotated[
        int, typer.Option(min=0, help="Cards that can be looked at on a day: decisions fit it.")
    ] = 100,
    review: Annotated[float, typer.Option(help="Cost of looking at one card.")] = 5.0,
    false_block: Annotated[float, typer.Option(help="Cost of blocking one genuine payment.")] = 10.0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the run, e.g. spark.master=local[2].")
    ] = None,
) -> None:
    """Stream payments through the features' pipeline, train and judge models by week, and report.

    A model for a test week is trained on the 7 days that begin 14 days before it. The Handbook's features
    with its random forest stand beside ours. For figures that mean something the files begin about two
    months before the first test week.
    """
    from rich.console import Console

    from millrace.time import ms
    from millrace.time.durations import parse_duration
    from millrace_apps.fraud.evaluation.recorded import read_transactions
    from millrace_apps.fraud.operations.economics import Costs

    console = Console(stderr=True)
    starts = [_day(text) for text in dict.fromkeys(test_week)]
    delay = ms(parse_duration(label_delay))
    with _working_folder(folder) as place, console.status("reading") as status:
        table = read_transactions(transactions)
        report, features = _stream(table, delay, place, batch, settings or [], status)
        status.update("comparing with pandas")
        report |= _compare(table, features, delay)
        costs = Costs(review=review, false_block=false_block)
        weeks = _judge(table, features, starts, delay, seeds, jobs, status, capacity, costs)
    report = _whole(report, weeks, label_delay, seeds)
    write(out, report)
    if scores is not None:
        _write_scores(scores, weeks)
    _show(report)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UserError(f"--test-week {text}: write a day as 2018-08-08") from None


@contextmanager
def _working_folder(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"--folder {folder} is not empty")
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    made = Path(tempfile.mkdtemp(prefix="millrace-evaluate-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _stream(
    table: pd.DataFrame, delay_ms: int, place: Path, batch: int, overrides: list[str], status: Any
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Run the pipeline over all payments; return what it did, and the features by transaction."""
    from millrace.runtime.replay import run_records
    from millrace.runtime.settings import load_settings
    from millrace_apps.fraud.evaluation.history_app import HistorySettings, app
    from millrace_apps.fraud.evaluation.recorded import numbers, write_records

    own = [
        f"storage.root={place}",
        f"label_delay={delay_ms}",
        "stream.out_of_orderness=1s",
    ]
    chosen = load_settings(HistorySettings, app=app.name, overrides=[*own, *overrides])
    status.update("writing the records")
    batches = write_records(table, place / "records", chosen.topics.payments, batch)
    status.update("starting Spark")

    def told(batch_id: int, counts: dict[str, int]) -> None:
        status.update(f"streaming: batch {batch_id + 1} of {batches + 1}")

    ran = run_records(app, chosen, place, place / "records", on_batch=told)
    features = ran.table("features").to_pandas()
    features["TRANSACTION_ID"] = numbers(features["transaction_id"])
    features = features.sort_values("TRANSACTION_ID", ignore_index=True)
    report = {
        "rows": len(table),
        "seconds": ran.seconds,
        "events_per_s": ran.events_per_s,
        "warm_events_per_s": ran.warm_events_per_s,
        "batches": ran.batches,
        "late": sum(n for name, n in ran.outputs.items() if name.endswith("late")),
        "dead_letters": sum(n for name, n in ran.outputs.items() if name.endswith("dead_letters")),
    }
    return report, features


def _compare(table: pd.DataFrame, features: pd.DataFrame, delay_ms: int) -> dict[str, Any]:
    from millrace_apps.fraud.evaluation.oracle import handbook_features, mismatches

    ordered = table.sort_values("TRANSACTION_ID", ignore_index=True)
    if not features["TRANSACTION_ID"].equals(ordered["TRANSACTION_ID"].astype("int64")):
        raise UserError(
            "the pipeline gave features for other payments than it was given: see its dead letters"
        )
    return {"handbook_feature_mismatches": mismatches(features, handbook_features(ordered, delay_ms))}


def _judge(
    table: pd.DataFrame,
    features: pd.DataFrame,
    starts: list[date],
    delay_ms: int,
    seeds: int,
    jobs: int,
    status: Any,
    capacity: int,
    costs: Costs,
) -> list[WeekResult]:
    from millrace_apps.fraud.evaluation.study import study

    ordered = table.sort_values("TRANSACTION_ID", ignore_index=True)
    weeks = []
    trained = 0
    for start in starts:

        def told(start: date = start) -> None:
            nonlocal trained
            trained += 1
            status.update(f"week {start}: model {trained} of {2 * seeds * len(starts)}")

        found = study(
            ordered,
            features,
            start,
            delay_ms,
            seeds=range(seeds),
            jobs=jobs,
            on_model=told,
            capacity=capacity,
            costs=costs,
        )
        weeks.append(found)
    return weeks


def _whole(report: dict[str, Any], weeks: list[WeekResult], delay: str, seeds: int) -> dict[str, Any]:
    from millrace_apps.fraud.evaluation.study import mean_of

    own = mean_of([(w.own, w.hidden) for w in weeks])
    handbook = mean_of([(w.handbook, w.handbook_hidden) for w in weeks])
    return {
        "label_delay": delay,
        "seeds": seeds,
        "weeks": [w.report() for w in weeks],
        "mean": asdict(own[0]) | asdict(own[1]),
        "handbook": {"mean": asdict(handbook[0]) | asdict(handbook[1])},
        **report,
    }


def _write_scores(path: Path, weeks: list[WeekResult]) -> None:
    import pandas as pd

    table = pd.concat([w.scored for w in weeks], ignore_index=True).drop(columns="TX_FRAUD")
    write_parquet(path, table)


def _show(report: dict[str, Any]) -> None:
    from millrace.console.report import print_table

    names = ("auc", "ap", "cp100", "recall_at_01pct_fpr", "ap_hidden_terminal", "hidden_prevalence")
    rows = []
    for title, found in (
        *((w["start"], w) for w in report["weeks"]),
        ("mean", report["mean"]),
        ("mean, Handbook", report["handbook"]["mean"]),
    ):
        rows.append((title, *(f"{found[name]:.4f}" for name in names)))
    print_table(f"fraud, labels after {report['label_delay']}", ("test week", *names), rows, right=names)
    typer.echo(
        f"{report['rows']:,} payments in {report['seconds']:.1f} s: {report['events_per_s']:,.0f}/s "
        f"({report['warm_events_per_s']:,.0f}/s after the first batch); "
        f"{report['handbook_feature_mismatches']} rows differ from pandas"
    )
