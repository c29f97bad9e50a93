"""`millrace fraud cases list|show|dispose|labels|economics|run`: the queue, decisions, thresholds."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apps.fraud.cases_act_cli import add_to
from apps.fraud.cases_events import ONE_QUEUE
from apps.fraud.cases_options import (
    At,
    Bootstrap,
    CaseId,
    Note,
    Overrides,
    Queue,
    Root,
    cases_of,
    open_data,
    settings_of,
)
from millrace.cli.options import By, Format, Shape

if TYPE_CHECKING:
    from apps.fraud.cases_live import Ranked
    from apps.fraud.economics import Outcome, Scored

app = typer.Typer(no_args_is_help=True, help="Cases: the day's queue, one case, decisions, thresholds.")


class VerdictName(StrEnum):
    """What is decided on a case."""

    fraud = "fraud"
    genuine = "genuine"
    unclear = "unclear"


Out = Annotated[Path | None, typer.Option(help="Write the result here as JSON.")]


@app.command("list")
def list_(
    everything: Annotated[bool, typer.Option("--all", help="Waiting and closed cases too.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many on a page.")] = 30,
    page: Annotated[int, typer.Option(min=1, help="Which page.")] = 1,
    queue: Queue = None,
    shape: Shape = Format.table,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """The day's queue: open cases by what is expected to be saved by looking, as many as can be looked at.

    Example: millrace fraud cases list --queue abroad --page 2
    """
    from apps.fraud.cases_store import present

    view, data, settings = cases_of(root, overrides)
    chosen = [r for r in view.ranked if queue in (None, r.case.queue)] if everything else view.queue(queue)
    first = (page - 1) * limit
    shown = chosen[first : first + limit]
    if shape is Format.json:
        _print_json([_case_data(r) for r in shown])
        return
    print_cases(shown, present(data, view))
    of = [r for r in view.ranked if queue in (None, r.case.queue)]
    opened, rules = sum(r.case.status == "open" for r in of), settings.cases.rules()
    most = {ONE_QUEUE: settings.cases.capacity, **rules.capacities()}
    capacity = sum(most.values()) if queue is None else most.get(queue, settings.cases.capacity)
    typer.echo(
        f"{len(view.queue(queue))} queued of {opened} open (capacity {capacity} a day), "
        f"{sum(r.place == 'done' for r in of)} decided"
    )
    if first or len(chosen) > first + limit:
        pages = max(1, math.ceil(len(chosen) / limit))
        typer.echo(f"page {page} of {pages}: {len(chosen)} cases")


@app.command()
def show(
    case_id: CaseId,
    shape: Shape = Format.table,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Everything about one case: why, which transactions, who decided."""
    view, _, _ = cases_of(root, overrides)
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
    if case.follows:
        typer.echo(f"follows {case.follows}, which was found to be fraud")
    if case.claimed_by:
        typer.echo(f"claimed by {case.claimed_by} until {_time(case.claimed_until_ms or 0)}")
    if case.blocked_until_ms:
        typer.echo(f"card blocked until {_time(case.blocked_until_ms)}")
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
    for line in case.history:
        typer.echo(f"  {_time(line.at_ms)}  {line.what} by {line.by}{': ' if line.note else ''}{line.note}")


@app.command()
def dispose(
    case_id: CaseId,
    verdict: Annotated[VerdictName, typer.Option(help="The decision.")],
    by: By = None,
    note: Note = "",
    at: At = None,
    root: Root = None,
    bootstrap: Bootstrap = None,
    overrides: Overrides = None,
) -> None:
    """Decide on a case: its transactions get labels. A later decision corrects an earlier one."""
    from apps.fraud.cases_store import dispose as decide
    from millrace.operations.sending import who

    data, settings = open_data(root, bootstrap, overrides)
    said = decide(data, settings, case_id, verdict.value, by=who(by), note=note, at_ms=at)
    where = "the topic and the journal" if data.broker else "the journal"
    typer.echo(f"{said.case_id}: {said.verdict}, by {said.by}, at {_time(said.at_ms)}; written to {where}")
    if said.verdict == "fraud" and settings.cases.block and not data.broker:
        typer.echo("no broker is named, so the card is not blocked: give one with --bootstrap", err=True)


@app.command()
def labels(
    out: Annotated[Path | None, typer.Option(help="Write JSON lines here instead of printing them.")] = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """The labels that dispositions gave, as the labels topic has them: a JSON line per label."""
    import msgspec

    from millrace.operations.report import write_text

    view, _, _ = cases_of(root, overrides)
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

    settings = settings_of(root, bootstrap, overrides)

    def report(batch_id: int, counts: dict[str, int]) -> None:
        parts = ", ".join(f"{output} {count:,}" for output, count in sorted(counts.items())) or "nothing"
        typer.echo(f"batch {batch_id}: {parts}")

    job = Job(cases_app, settings, until_end=until_end, drain=drain, on_batch=report)
    typer.echo(f"fraud cases: {settings.kafka.bootstrap} → {job.root} (Ctrl-C stops after the running batch)")
    job.run()


# -- what the commands share -----------------------------------------------------------------------


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

    data, settings = open_data(root, None, overrides)
    rows = labelled_scores(data, settings)
    if not rows:
        raise EconomicsError(
            f"{data.root} has no labelled transactions: dispositions or the table labels make them, "
            "or give --scores FILE"
        )
    return Scored.of(rows)


def print_cases(chosen: list[Ranked], now_ms: int) -> None:
    """Print cases, a line each, so that no id is cut off: one that is could not be decided on.

    Args:
        chosen: The cases.
        now_ms: Now, UTC milliseconds.
    """
    if not chosen:
        return
    card = max(len(r.case.card_id) for r in chosen)
    queue = max(len(r.case.queue) for r in chosen)
    typer.echo(
        f"{'rank':>4}  {'case':<21}  {'card':<{card}}  {'queue':<{queue}}  {'state':<7}  {'alerts':>6}  "
        f"{'amount':>10}  score    priority  why"
    )
    for r in chosen:
        case = r.case
        state = r.place if case.status == "open" else case.status
        why = ", ".join(reason.code for reason in case.reasons[:3] if not reason.beside)
        claimed = case.claimed_by_other("", now_ms)
        typer.echo(
            f"{r.rank or '':>4}  {case.case_id:<21}  {case.card_id:<{card}}  {case.queue:<{queue}}  "
            f"{state:<7}  {case.alerts:>6}  {case.amount:>10,.2f}  {case.score:>5.2f}  "
            f"{case.priority:>10,.2f}  {why}{f'  [{case.claimed_by}]' if claimed else ''}"
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


add_to(app)
