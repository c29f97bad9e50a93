"""`millrace fraud cases list|show|dispose|labels|economics|run`: the queue, decisions, thresholds."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.options import By, Format, Shape

if TYPE_CHECKING:
    from apps.fraud.cases_app import FraudCasesSettings
    from apps.fraud.cases_live import Ranked
    from apps.fraud.cases_store import CaseView
    from apps.fraud.economics import Outcome, Scored
    from millrace.dashboard.data import AppData

app = typer.Typer(no_args_is_help=True, help="Cases: the day's queue, one case, decisions, thresholds.")


class VerdictName(StrEnum):
    """What is decided on a case."""

    fraud = "fraud"
    genuine = "genuine"
    unclear = "unclear"


Root = Annotated[
    Path | None,
    typer.Option(help="The fraud app's folder; default its storage.root, else its last demo."),
]
Bootstrap = Annotated[str | None, typer.Option(help="Kafka broker (host:port) for dispositions.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="A setting of the case work, e.g. cases.capacity=50."
    ),
]
Out = Annotated[Path | None, typer.Option(help="Write the result here as JSON.")]


@app.command("list")
def list_(
    everything: Annotated[bool, typer.Option("--all", help="Waiting and closed cases too.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 30,
    shape: Shape = Format.table,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """The day's queue: open cases by what is expected to be saved by looking, as many as can be looked at."""
    view, _, settings = _view(root, overrides)
    chosen = view.ranked if everything else view.queue()
    if shape is Format.json:
        _print_json([_case_data(r) for r in chosen[:limit]])
        return
    _print_cases(chosen[:limit])
    opened = sum(r.case.status == "open" for r in view.ranked)
    typer.echo(
        f"{len(view.queue())} queued of {opened} open (capacity {settings.cases.capacity} a day), "
        f"{sum(r.place == 'done' for r in view.ranked)} decided"
    )


@app.command()
def show(
    case_id: Annotated[str, typer.Argument(metavar="CASE", help="Its id, or the first characters of it.")],
    shape: Shape = Format.table,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Everything about one case: why, which transactions, who decided."""
    view, _, _ = _view(root, overrides)
    found = view.find(case_id)
    if shape is Format.json:
        _print_json(_case_data(found))
        return
    case = found.case
    rank = f", rank {found.rank}" if found.rank else ""
    typer.echo(f"{case.case_id}  card {case.card_id}  {case.status} ({found.place}{rank})")
    typer.echo(
        f"opened {_time(case.opened_ms)}, {case.alerts} alerts over {case.amount:,.2f}, "
        f"score {case.score:.2f}, priority {case.priority:,.2f}"
    )
    if case.verdict_by:
        typer.echo(f"decided by {case.verdict_by} at {_time(case.verdict_ms or 0)}: {case.note or 'no note'}")
    for reason in case.reasons:
        value, usual = _number(reason.value), _number(reason.baseline)
        typer.echo(f"  {reason.code:<18} in {reason.alerts:>3}   last {value:>10}   usually {usual:>10}")
    for t in case.transactions:
        typer.echo(
            f"  {_time(t.event_time_ms)}  {t.transaction_id:<26} {t.amount:>12,.2f}  {t.score:.2f} {t.action}"
            f"{'  labelled' if t.label_id else ''}"
        )


@app.command()
def dispose(
    case_id: Annotated[str, typer.Argument(metavar="CASE", help="Its id, or the first characters of it.")],
    verdict: Annotated[VerdictName, typer.Option(help="The decision.")],
    by: By = None,
    note: Annotated[str, typer.Option(help="What else is to be known.")] = "",
    at: Annotated[int | None, typer.Option(help="When, UTC milliseconds; default now.")] = None,
    root: Root = None,
    bootstrap: Bootstrap = None,
    overrides: Overrides = None,
) -> None:
    """Decide on a case: its transactions get labels. A later decision corrects an earlier one."""
    from apps.fraud.cases_store import dispose as decide
    from millrace.operations.sending import who

    data, settings = _open(root, bootstrap, overrides)
    said = decide(data, settings, case_id, verdict.value, by=who(by), note=note, at_ms=at)
    where = "the topic and the journal" if data.broker else "the journal"
    typer.echo(f"{said.case_id}: {said.verdict}, by {said.by}, at {_time(said.at_ms)}; written to {where}")


@app.command()
def labels(
    out: Annotated[Path | None, typer.Option(help="Write JSON lines here instead of printing them.")] = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """The labels that dispositions gave, as the labels topic has them: a JSON line per label."""
    import msgspec

    from millrace.operations.report import write_text

    view, _, _ = _view(root, overrides)
    lines = [msgspec.json.encode(label).decode() for label in view.labels]
    if out is None:
        for line in lines:
            typer.echo(line)
        return
    write_text(out, "".join(f"{line}\n" for line in lines))
    typer.echo(f"{len(lines):,} labels in {out}")


@app.command()
def economics(
    capacity: Annotated[int, typer.Option(min=0, help="Cards that can be looked at on a day.")] = 100,
    review: Annotated[float, typer.Option(help="Cost of looking at one card.")] = 5.0,
    false_block: Annotated[float, typer.Option(help="Cost of blocking one genuine payment.")] = 10.0,
    margin: Annotated[float, typer.Option(help="Share of a genuine amount lost when it is blocked.")] = 0.02,
    review_saves: Annotated[float, typer.Option(help="Share of a fraud saved by looking.")] = 0.7,
    most_false_blocks: Annotated[
        float | None, typer.Option(help="Largest share of genuine payments blocked, e.g. 0.001.")
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(help="Parquet with time_ms, card, amount, score, fraud; default the app's own tables."),
    ] = None,
    out: Out = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Thresholds of review and block with the smallest cost whose reviews fit the day."""
    from apps.fraud.economics import Costs, as_report, choose
    from millrace.operations.report import write

    costs = Costs(review, false_block, margin, review_saves)
    scored = _scored_file(scores) if scores else _scored_tables(root, overrides)
    best, curve = choose(scored, costs, capacity, most_false_blocks=most_false_blocks)
    write(out, as_report(best, curve, costs, capacity))
    _print_outcomes(best, curve)
    typer.echo(
        f"{len(scored.score):,} labelled transactions, {int(scored.fraud.sum()):,} frauds, {scored.days} days"
    )


@app.command()
def run(
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop when everything that is in the topics now is done.")
    ] = False,
    drain: Annotated[
        bool, typer.Option("--drain/--no-drain", help="With --until-end: let every timer fire at the end.")
    ] = True,
    root: Root = None,
    bootstrap: Bootstrap = None,
    overrides: Overrides = None,
) -> None:
    """Run the case work as a stream: alerts and dispositions in; cases, queue and labels out."""
    from apps.fraud.cases_app import app as cases_app
    from millrace.runtime.job import Job

    settings = _settings(root, bootstrap, overrides)

    def report(batch_id: int, counts: dict[str, int]) -> None:
        parts = ", ".join(f"{output} {count:,}" for output, count in sorted(counts.items())) or "nothing"
        typer.echo(f"batch {batch_id}: {parts}")

    job = Job(cases_app, settings, until_end=until_end, drain=drain, on_batch=report)
    typer.echo(f"fraud cases: {settings.kafka.bootstrap} → {job.root} (Ctrl-C stops after the running batch)")
    job.run()


# -- what the commands share -----------------------------------------------------------------------


def _settings(root: Path | None, bootstrap: str | None, overrides: list[str] | None) -> FraudCasesSettings:
    from apps.fraud.cases_app import NAME, FraudCasesSettings
    from apps.fraud.cases_store import FOLDER
    from millrace.runtime.settings import load_settings

    sets = [f"storage.root={_fraud_root(root) / FOLDER}", *(overrides or ())]
    return load_settings(
        FraudCasesSettings,
        app=NAME,
        overrides=[*sets, *([f"kafka.bootstrap={bootstrap}"] if bootstrap else [])],
    )


def _fraud_root(root: Path | None) -> Path:
    from apps.fraud.app import app as fraud
    from millrace.dashboard.data import find_root
    from millrace.runtime.settings import load_settings

    return find_root(fraud.name, load_settings(fraud.settings, app=fraud.name), root)


def _open(
    root: Path | None, bootstrap: str | None, overrides: list[str] | None
) -> tuple[AppData, FraudCasesSettings]:
    from apps.fraud.app import app as fraud
    from apps.fraud.cases_store import TABLES
    from millrace.dashboard.data import AppData
    from millrace.dashboard.serve import wall_clock_ms

    settings = _settings(root, bootstrap, overrides)
    return AppData(fraud, settings, _fraud_root(root), wall_clock_ms, (TABLES,)), settings


def _view(root: Path | None, overrides: list[str] | None) -> tuple[CaseView, AppData, FraudCasesSettings]:
    from apps.fraud.cases_store import NoCase, case_view

    data, settings = _open(root, None, overrides)
    view = case_view(data, settings)
    if view is None:
        raise NoCase(
            f"there are no alerts in {data.root}: run the app or its demo, or name its folder with --root"
        )
    return view, data, settings


def _scored_file(path: Path) -> Scored:
    import pyarrow.parquet as pq

    from apps.fraud.economics import EconomicsError, Scored

    wanted = ["time_ms", "card", "amount", "score", "fraud"]
    try:
        rows = pq.read_table(path, columns=wanted).to_pydict()
    except (OSError, ValueError) as error:  # not a Parquet file, or columns are missing
        raise EconomicsError(f"{path} has not the columns {', '.join(wanted)}: {error}") from error
    return Scored.of(
        [(int(t), str(c), float(a), float(s), bool(f)) for t, c, a, s, f in zip(*rows.values(), strict=True)]
    )


def _scored_tables(root: Path | None, overrides: list[str] | None) -> Scored:
    from apps.fraud.dashboard_data import labelled_scores
    from apps.fraud.economics import EconomicsError, Scored

    data, settings = _open(root, None, overrides)
    rows = labelled_scores(data, settings)
    if not rows:
        raise EconomicsError(
            f"{data.root} has no labelled transactions: dispositions or the table labels make them, "
            "or give --scores FILE"
        )
    return Scored.of(rows)


def _print_cases(chosen: list[Ranked]) -> None:
    # Plain lines: an id that a table cut off could not be decided on.
    if not chosen:
        return
    card = max(len(r.case.card_id) for r in chosen)
    typer.echo(
        f"{'rank':>4}  {'case':<21}  {'card':<{card}}  {'state':<7}  {'alerts':>6}  {'amount':>10}  "
        f"score    priority  why"
    )
    for r in chosen:
        case = r.case
        state = r.place if case.status == "open" else case.status
        why = ", ".join(reason.code for reason in case.reasons[:3] if not reason.beside)
        typer.echo(
            f"{r.rank or '':>4}  {case.case_id:<21}  {case.card_id:<{card}}  {state:<7}  {case.alerts:>6}  "
            f"{case.amount:>10,.2f}  {case.score:>5.2f}  {case.priority:>10,.2f}  {why}"
        )


def _print_outcomes(best: Outcome, curve: list[Outcome]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("", "block", "review", "cost", "saved", "caught", "precision", "wrongly", "looks/day"):
        table.add_column(name, justify="right", no_wrap=True, min_width=max(4, len(name)))
    step = max(1, len(curve) // 10)
    for o in sorted(
        {best.block_from: best, **{c.block_from: c for c in curve[::step]}}.values(),
        key=lambda c: c.block_from,
    ):
        table.add_row(
            "best" if o == best else "", f"{o.block_from:.4f}", f"{o.review_from:.4f}", f"{o.cost:,.0f}",
            f"{o.saved:,.0f}", f"{o.caught_share:.1%}", f"{o.precision:.1%}", f"{o.false_block_rate:.3%}",
            f"{o.reviews_per_day:.1f}",
        )  # fmt: skip
    Console(highlight=False).print(table)


def _case_data(r: Ranked) -> dict[str, Any]:
    import msgspec

    return {"rank": r.rank, "place": r.place, **msgspec.to_builtins(r.case)}


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _time(at_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"
