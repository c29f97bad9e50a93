"""`millrace fraud cases list|show|dispose|labels|economics|run`: the queue, decisions, thresholds."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.options import By, Format, Shape
from millrace_apps.fraud.cases.act_cli import add_to
from millrace_apps.fraud.cases.events import ONE_QUEUE
from millrace_apps.fraud.cases.options import (
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
from millrace_apps.fraud.operations.economics_cli import economics

if TYPE_CHECKING:
    from millrace_apps.fraud.cases.live import Ranked

app = typer.Typer(no_args_is_help=True, help="Cases: the day's queue, one case, decisions, thresholds.")


class VerdictName(StrEnum):
    """What is decided on a case."""

    fraud = "fraud"
    genuine = "genuine"
    unclear = "unclear"


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
    from millrace_apps.fraud.cases.store import present

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
    """Everything about one case: why, which cards and transactions, who decided.

    Example: millrace fraud cases show case-231d
    """
    view, _, _ = cases_of(root, overrides)
    found = view.find(case_id)
    if shape is Format.json:
        _print_json(_case_data(found))
        return
    case = found.case
    rank = f", rank {found.rank}" if found.rank else ""
    what = case.about if case.ring else f"card {case.card_id}"
    typer.echo(f"{case.case_id}  {what}  {case.status} ({found.place}{rank})")
    typer.echo(
        f"opened {_time(case.opened_ms)}, {case.alerts} alerts over {case.amount:,.2f}, "
        f"score {case.score:.2f}, priority {case.priority:,.2f}"
    )
    if case.follows:
        typer.echo(f"follows {case.follows}, which was found to be fraud")
    for other in view.related(case):
        typer.echo(f"related: {other.case_id}  {other.about}  {other.status}")
    if case.claimed_by:
        typer.echo(f"claimed by {case.claimed_by} until {_time(case.claimed_until_ms or 0)}")
    if case.blocked_until_ms and not case.ring:
        typer.echo(f"card blocked until {_time(case.blocked_until_ms)}")
    if case.ring_blocked_until_ms:
        typer.echo(f"{case.ring} blocked until {_time(case.ring_blocked_until_ms)}")
    for card in case.cards if case.ring else ():
        alerts = f"{card.alerts:>3} alert{'s' if card.alerts != 1 else ' '}"
        typer.echo(
            f"  {card.card_id:<26} {alerts} over {card.amount:>12,.2f}"
            f"{f'  verified until {_time(card.verified_until_ms)}' if card.verified_until_ms else ''}"
            f"{f'  blocked until {_time(card.blocked_until_ms)}' if card.blocked_until_ms else ''}"
        )
    if case.verdict_by:
        typer.echo(f"decided by {case.verdict_by} at {_time(case.verdict_ms or 0)}: {case.note or 'no note'}")
    for reason in case.reasons:
        value, usual = _number(reason.value), _number(reason.baseline)
        typer.echo(f"  {reason.code:<18} in {reason.alerts:>3}   last {value:>10}   usually {usual:>10}")
    for t in case.transactions:
        whose = f"  {t.card_id}" if t.card_id else ""
        typer.echo(
            f"  {_time(t.event_time_ms)}  {t.transaction_id:<26} {t.amount:>12,.2f}  {t.score:.2f} {t.action}"
            f"{whose}{'  labelled' if t.label_id else ''}"
        )
    for line in case.history:
        of = f" of {line.about}" if line.about else ""
        note = f": {line.note}" if line.note else ""
        typer.echo(f"  {_time(line.at_ms)}  {line.what}{of} by {line.by}{note}")


@app.command()
def dispose(
    case_id: CaseId,
    verdict: Annotated[VerdictName, typer.Option(help="The decision.")],
    by: By = None,
    note: Note = "",
    block_ring: Annotated[
        bool, typer.Option("--block-ring", help="Block the ring's device or terminal, too.")
    ] = False,
    at: At = None,
    root: Root = None,
    bootstrap: Bootstrap = None,
    overrides: Overrides = None,
) -> None:
    """Decide on a case: its transactions get labels. A later decision corrects an earlier one.

    Example: millrace fraud cases dispose case-231d --verdict fraud --by ann --block-ring
    """
    from millrace.operations.sending import who
    from millrace_apps.fraud.cases.store import dispose as decide

    data, settings = open_data(root, bootstrap, overrides)
    said = decide(data, settings, case_id, verdict.value, by=who(by, settings), note=note, at_ms=at,
                  block_ring=block_ring)  # fmt: skip
    where = "the topic and the journal" if data.broker else "the journal"
    typer.echo(f"{said.case_id}: {said.verdict}, by {said.by}, at {_time(said.at_ms)}; written to {where}")
    if said.verdict == "fraud" and settings.cases.block and not data.broker:
        typer.echo("no broker is named, so no card is blocked: give one with --bootstrap", err=True)


@app.command(epilog="Example: millrace fraud cases labels --out labels.parquet")
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


app.command()(economics)


@app.command(epilog="Example: millrace fraud cases run --until-end")
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
    from millrace.runtime.job import Job
    from millrace_apps.fraud.cases.app import app as cases_app

    settings = settings_of(root, bootstrap, overrides)

    def report(batch_id: int, counts: dict[str, int]) -> None:
        parts = ", ".join(f"{output} {count:,}" for output, count in sorted(counts.items())) or "nothing"
        typer.echo(f"batch {batch_id}: {parts}")

    job = Job(cases_app, settings, until_end=until_end, drain=drain, on_batch=report)
    typer.echo(f"fraud cases: {settings.kafka.bootstrap} → {job.root} (Ctrl-C stops after the running batch)")
    job.run()


# -- what the commands share -----------------------------------------------------------------------


def print_cases(chosen: list[Ranked], now_ms: int) -> None:
    """Print cases, a line each, so that no id is cut off: one that is could not be decided on.

    Args:
        chosen: The cases.
        now_ms: Now, UTC milliseconds.
    """
    if not chosen:
        return
    card = max(len(r.case.about) for r in chosen)
    queue = max(len(r.case.queue) for r in chosen)
    typer.echo(
        f"{'rank':>4}  {'case':<21}  {'about':<{card}}  {'queue':<{queue}}  {'state':<7}  {'alerts':>6}  "
        f"{'amount':>10}  score    priority  why"
    )
    for r in chosen:
        case = r.case
        state = r.place if case.status == "open" else case.status
        why = ", ".join(reason.code for reason in case.reasons[:3] if not reason.beside)
        claimed = case.claimed_by_other("", now_ms)
        typer.echo(
            f"{r.rank or '':>4}  {case.case_id:<21}  {case.about:<{card}}  {case.queue:<{queue}}  "
            f"{state:<7}  {case.alerts:>6}  {case.amount:>10,.2f}  {case.score:>5.2f}  "
            f"{case.priority:>10,.2f}  {why}{f'  [{case.claimed_by}]' if claimed else ''}"
        )


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
