"""``millrace evaluate iot …``: the app on published data, through its real pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millrace.errors import UserError
from millrace.operations.report import write, write_parquet
from millrace.time.durations import to_ms
from millrace_apps.iot_maintenance.evaluation.stream import Engine

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer(no_args_is_help=True, help="The iot app on published data, through its real pipeline.")

OutOption = Annotated[Path, typer.Option("--out", help="Where the report goes, as JSON.")]
EngineOption = Annotated[
    str, typer.Option("--engine", help="spark: the app's topology as a query; memory: here, without a JVM.")
]

ScoresOption = Annotated[
    Path | None, typer.Option("--scores-dir", help="Folder for a CSV file with the scores of every row.")
]


@app.command(
    "azure-join", epilog="Example: millrace evaluate iot azure-join --data azure_pdm/ --out report.json"
)
def azure_join(
    data: Annotated[Path, typer.Option(help="Folder with telemetry_*.parquet, errors_*.csv, maint_*.csv, …")],
    out: OutOption,
    grace: Annotated[str, typer.Option(help="How far behind facts still correct, e.g. 24h.")] = "24h",
    shuffle_seed: Annotated[int, typer.Option(help="Where the order of arrival comes from.")] = 1,
    late_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of facts that come after their readings.")
    ] = 0.01,
    features: Annotated[Path | None, typer.Option(help="Where the joined rows go, as Parquet.")] = None,
    engine: EngineOption = "spark",
) -> None:
    """The latest status as of event time, compared with merge_asof: Azure predictive maintenance."""
    from millrace_apps.iot_maintenance.evaluation.azure import evaluate

    chosen = _engine(engine)
    grace_ms = to_ms(grace)
    if grace_ms < 60_000:
        raise UserError("a grace below a minute leaves no room for disorder")
    with _progress("azure-join") as told:
        report, found = evaluate(
            data, grace_ms=grace_ms, seed=shuffle_seed, late_share=late_share, engine=chosen, told=told
        )
    if features is not None:
        write_parquet(features, found)
    write(out, report)
    _show("azure-join", msgspec.structs.asdict(report))


@app.command("cmapss", epilog="e.g. millrace evaluate iot cmapss --data cmapss --subset FD001 --out R.json")
def cmapss(
    data: Annotated[Path, typer.Option(help="Folder with train_*, test_* (.parquet or .txt) and RUL_*.txt.")],
    out: OutOption,
    subset: Annotated[str, typer.Option(help="FD001, FD002, FD003 or FD004.")] = "FD001",
    scores_dir: ScoresOption = None,
    engine: EngineOption = "spark",
) -> None:
    """Remaining life of engines, streamed cycle by cycle: NASA's C-MAPSS."""
    from millrace_apps.iot_maintenance.evaluation.cmapss import evaluate

    chosen = _engine(engine)
    with _progress("cmapss") as told:
        report, scores = evaluate(data, subset, engine=chosen, said=_said, told=told)
    _keep_scores(scores_dir, f"cmapss_{subset}.csv", scores)
    write(out, report)
    _show(f"cmapss {subset}", msgspec.structs.asdict(report))


@app.command(
    "azure-pdm", epilog="e.g. millrace evaluate iot azure-pdm --data azure_pdm --folds 6 --out R.json"
)
def azure_pdm(
    data: Annotated[
        Path, typer.Option(help="Folder with telemetry_*.parquet, errors_*.csv, failures_*.csv, …")
    ],
    out: OutOption,
    folds: Annotated[
        int | None, typer.Option(min=2, help="Hold machines out in so many parts; the default: 6.")
    ] = None,
    train_until: Annotated[str | None, typer.Option(help="Learn from steps up to then: 2015-02-28.")] = None,
    test_from: Annotated[str | None, typer.Option(help="Test steps from then on: 2015-03-01.")] = None,
    gap: Annotated[str, typer.Option(help="Least time between steps of training and of test.")] = "24h",
    scores_dir: ScoresOption = None,
    engine: EngineOption = "spark",
) -> None:
    """Failures within 24 hours by the app's own join of all streams: Azure predictive maintenance."""
    from millrace_apps.iot_maintenance.evaluation.azure_pdm import Split, evaluate

    split = Split.of(folds, train_until, test_from, to_ms(gap))
    chosen = _engine(engine)
    with _progress("azure-pdm") as told:
        report, scores = evaluate(data, split, engine=chosen, told=told)
    _keep_scores(scores_dir, "azure_pdm.csv", scores)
    write(out, report)
    shown = msgspec.structs.asdict(report)
    shown["components"] = "; ".join(
        f"{name}: {of.failures} failures, {of.steps} steps, F1 {of.f1:.3f}"
        for name, of in report.components.items()
    )
    _show("azure-pdm", shown)


@app.command("ai4i", epilog="Example: millrace evaluate iot ai4i --data ai4i.csv --out report.json")
def ai4i(
    data: Annotated[Path, typer.Option(help="The file ai4i2020.csv.")],
    out: OutOption = Path("ai4i.json"),
    engine: EngineOption = "spark",
) -> None:
    """The documented failure rules as alarm expressions: AI4I 2020."""
    from millrace_apps.iot_maintenance.evaluation.ai4i import evaluate

    chosen = _engine(engine)
    with _progress("ai4i") as told:
        reports = evaluate(data, engine=chosen, told=told)
    write(out, reports)
    shown = {
        mode: f"{r.matched} of {r.expected} matched, {r.false} false, of which the rule implies {r.implied}"
        for mode, r in reports.items()
    }
    _show("ai4i", shown)


@app.command(
    "alarms",
    epilog="Example: millrace evaluate iot alarms --series machine_temperature.csv "
    "--windows combined_windows.json --out report.json",
)
def alarms(
    series: Annotated[list[Path], typer.Option(help="A NAB series; give it several times, or a folder.")],
    windows: Annotated[Path, typer.Option(help="combined_windows.json.")],
    out: OutOption = Path("alarms.json"),
    more: Annotated[list[Path] | None, typer.Argument(help="Further series.")] = None,
    engine: EngineOption = "spark",
) -> None:
    """Dead-band and delays against the bare threshold: Numenta Anomaly Benchmark."""
    from millrace_apps.iot_maintenance.evaluation.nab import evaluate

    chosen = _engine(engine)
    files = [
        file
        for path in (*series, *(more or ()))
        for file in (sorted(path.glob("*.csv")) if path.is_dir() else [path])
    ]
    if not files:
        raise UserError("no series: name files, or folders with .csv files")
    with _progress("alarms") as told:
        report = evaluate(files, windows, engine=chosen, told=told)
    write(out, report)
    shown: dict[str, Any] = {
        name: f"{part.transitions} transitions, {part.windows_hit} of {report.windows} windows hit, "
        f"{part.windows_raised} raised, active {part.active_share:.1%} of the time"
        for name, part in (("bare", report.bare), ("filtered", report.filtered))
    }
    _show("alarms", {**shown, "fewer": f"{report.fewer:.1%}", "series": report.series})


@app.command("nab")
def nab(
    data: Annotated[Path, typer.Option(help="Folder with FOLDER/FILE.csv (or data/…) and their windows.")],
    out: OutOption = Path("nab.json"),
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="The one threshold; unless given, the app's.")
    ] = None,
    nested: Annotated[
        bool, typer.Option("--nested", help="Also choose detector and threshold on the other folders.")
    ] = False,
    scores_dir: Annotated[
        Path | None, typer.Option(help="Where the rows with their scores go, as FOLDER/FILE.csv.")
    ] = None,
    engine: EngineOption = "spark",
) -> None:
    """Anomaly scores by the benchmark's exact rules: Numenta Anomaly Benchmark.

    Example: millrace evaluate iot nab --data nab --out nab-scores.json --scores-dir nab-scores
    """
    from millrace_apps.iot_maintenance.evaluation.anomalies import evaluate, write_scores

    chosen = _engine(engine)
    with _progress("nab") as told:
        report, scores, series = evaluate(data, threshold=threshold, nested=nested, engine=chosen, told=told)
    if scores_dir is not None:
        write_scores(scores_dir, series, scores)
    write(out, report)
    shown: dict[str, Any] = {
        "standard": _points(report.standard),
        "low_fp, low_fn": f"{_points(report.low_fp)}, {_points(report.low_fn)}",
        "windows": f"{report.windows_found} of {report.windows} found at {report.threshold}",
        "false detections": report.false_detections,
        **{folder: _points(part.standard) for folder, part in report.by_folder.items()},
        **{name: _points(part.standard) for name, part in report.baselines.items()},
    }
    if report.nested is not None:
        shown["nested"] = _points(report.nested.standard)
    _show("nab", shown)


@app.command("skab")
def skab(
    data: Annotated[Path, typer.Option(help="Folder with valve1, valve2, other and anomaly-free.")],
    out: OutOption = Path("skab.json"),
    scores_dir: Annotated[
        Path | None, typer.Option(help="Where the rows with their scores go, as FOLDER/FILE.csv.")
    ] = None,
    engine: EngineOption = "spark",
) -> None:
    """Control charts (T² and Q) as the benchmark judges them: Skoltech Anomaly Benchmark.

    Example: millrace evaluate iot skab --data SKAB/data --out skab.json
    """
    from millrace_apps.iot_maintenance.evaluation.skab import evaluate

    chosen = _engine(engine)
    with _progress("skab") as told:
        report = evaluate(data, engine=chosen, told=told, scores_dir=scores_dir)
    write(out, report)
    shown = {
        "outliers": f"F1 {report.outlier_f1}, FAR {report.far} %, MAR {report.mar} %",
        "after training": f"F1 {report.after_training.f1}, FAR {report.after_training.far} %",
        "change points": _points(report.changepoint_nab),
        "anomaly-free": "no file" if report.anomaly_free is None else f"FAR {report.anomaly_free} %",
        "files": report.files,
    }
    if report.left_out:
        shown["left out"] = ", ".join(report.left_out)
    _show("skab", shown)


def _points(score: float | None) -> str:
    return "no windows" if score is None else f"{score:.2f}"


def _said(line: str) -> None:
    """Tell a line before the report is there."""
    typer.echo(line, err=True)


def _keep_scores(folder: Path | None, name: str, scores: pd.DataFrame) -> None:
    """Write scores as CSV where a folder is asked for."""
    if folder is None:
        return
    from millrace.operations.report import write_text

    write_text(folder / name, scores.to_csv(index=False))


def _engine(name: str) -> Engine:
    if name == "spark":
        return "spark"
    if name == "memory":
        return "memory"
    raise UserError(f"there is no engine '{name}'; there are spark and memory")


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show how many batches are done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    progress = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
    task = progress.add_task(what, total=None)

    def told(done: int, of: int) -> None:
        progress.start()  # not before: what is wrong with a file is one line, with no empty one above it
        progress.update(task, completed=done, total=of)

    try:
        yield told
    finally:
        if progress.live.is_started:
            progress.stop()


def _show(title: str, values: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, show_header=False)
    for name, value in values.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int | float) else str(value))
    Console().print(table)
