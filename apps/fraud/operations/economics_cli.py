"""`millrace fraud cases economics`: from which score on to look and to block."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.models.commands import AsOf
from millrace_apps.fraud.cases.options import Overrides, Root, open_data
from millrace_apps.fraud.operations.economics_data import ScoreName

if TYPE_CHECKING:
    from millrace_apps.fraud.operations.economics import Outcome, Scored
    from millrace_apps.fraud.operations.economics_data import Basis

_DAY_MS = 86_400_000
#: The last millisecond of the year 9999.
_LAST_MS = 253_402_300_799_999


def economics(
    capacity: Annotated[int, typer.Option(min=0, help="Cards that can be looked at on a day.")] = 100,
    review: Annotated[float, typer.Option(help="Cost of looking at one card.")] = 5.0,
    false_block: Annotated[float, typer.Option(help="Cost of blocking one genuine payment.")] = 10.0,
    margin: Annotated[float, typer.Option(help="Share of a genuine amount lost when it is blocked.")] = 0.02,
    review_saves: Annotated[float, typer.Option(help="Share of a fraud saved by looking.")] = 0.7,
    most_false_blocks: Annotated[
        float | None, typer.Option(help="Largest share of genuine payments blocked, e.g. 0.001.")
    ] = None,
    score: Annotated[ScoreName, typer.Option(help="Whose score.")] = ScoreName.rules,
    label_delay: Annotated[
        str | None,
        typer.Option(
            help="How long the truth takes to become known: younger payments are left out. Default the app's "
            "labels.maturity_chargeback; where no payment is so old, none."
        ),
    ] = None,
    as_of: AsOf = None,
    days: Annotated[int | None, typer.Option(min=1, help="Of so many days only; default all.")] = None,
    scores: Annotated[
        Path | None,
        typer.Option(
            help="Parquet with time_ms, card, amount, score, fraud (null: not known); default the app's own "
            "tables."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the result here as JSON.")] = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Thresholds of review and block with the smallest cost whose reviews fit the day.

    They are chosen over all decisions: those that nobody has spoken of count as well.

    Example: millrace fraud cases economics --score champion --capacity 50 --out thresholds.json
    """
    from millrace.operations.report import write
    from millrace_apps.fraud.operations.economics import Costs, as_report, choose

    costs = Costs(review, false_block, margin, review_saves)
    basis = None
    if scores is None:
        scored, basis = _of_tables(score, label_delay, as_of, days, root, overrides)
    else:
        scored = _of_file(scores)
    best, curve = choose(scored, costs, capacity, most_false_blocks=most_false_blocks)
    write(out, as_report(best, curve, costs, capacity, basis))
    _print_outcomes(best, curve)
    for line in _about(scored, best, basis):
        typer.echo(line)


def _of_file(path: Path) -> Scored:
    import pyarrow.parquet as pq

    from millrace_apps.fraud.operations.economics import EconomicsError, Scored

    wanted = ["time_ms", "card", "amount", "score", "fraud"]
    try:
        rows = pq.read_table(path, columns=wanted).to_pydict()
    except (OSError, ValueError) as error:  # not a Parquet file, or columns are missing
        raise EconomicsError(f"{path} has not the columns {', '.join(wanted)}: {error}") from error
    try:
        told = [
            (int(t), str(c), float(a), float(s), None if f is None else bool(f))
            for t, c, a, s, f in zip(*rows.values(), strict=True)
        ]
    except (TypeError, ValueError, OverflowError) as error:
        raise EconomicsError(
            f"{path}: time_ms, amount and score are numbers in every row: {error}"
        ) from error
    for row, (time, _, amount, score, _) in enumerate(told):
        if not (0 <= score <= 1 and 0 <= amount < math.inf and 0 <= time <= _LAST_MS):
            raise EconomicsError(
                f"{path}: row {row + 1} has the time {time}, amount {amount:g}, score {score:g}: scores are "
                "from 0 to 1, amounts and times not negative"
            )
    return Scored.of(told)


def _of_tables(
    score: ScoreName,
    label_delay: str | None,
    as_of: str | None,
    days: int | None,
    root: Path | None,
    overrides: list[str] | None,
) -> tuple[Scored, Basis]:
    from millrace.models.commands import time_of
    from millrace.runtime.settings import load_settings
    from millrace.time.durations import parse_duration, to_ms
    from millrace_apps.fraud.operations.economics_data import scored_decisions
    from millrace_apps.fraud.settings import FraudSettings

    data, settings = open_data(root, None, overrides)
    labels = load_settings(FraudSettings, app="fraud").labels
    delay = parse_duration(label_delay) if label_delay else labels.maturity_chargeback or labels.delay
    return scored_decisions(
        data,
        settings,
        score,
        to_ms(delay),
        insist=label_delay is not None,
        as_of_ms=None if as_of is None else time_of(as_of, 0),
        days=days,
    )


def _about(scored: Scored, best: Outcome, basis: Basis | None) -> list[str]:
    """Return what the choice rests on, a line each."""
    weight = scored.weights
    frauds = int((scored.fraud & (weight > 0)).sum()) if basis is None else basis.frauds
    unknown = int((weight == 0).sum()) if basis is None else basis.unknown
    genuine = len(weight) - frauds - unknown if basis is None else basis.genuine
    lines = [
        f"{len(weight):,} payments of {scored.days} days: {frauds:,} known frauds, {genuine:,} genuine, "
        f"{unknown:,} of which it is not known"
    ]
    if best.unknown_share:
        lines.append(
            f"of what is looked at or blocked {best.unknown_share:.1%} is not known: "
            "decisions.control_share would tell"
        )
    if basis is None:
        return lines
    if basis.young:
        lines.append(f"left out: {basis.young:,} younger than {basis.label_delay_ms / _DAY_MS:g} days")
    if basis.unscored:
        lines.append(f"left out: {basis.unscored:,} without a score of the {basis.score}")
    if basis.early:
        lines.append(
            "no payment is older than the label delay: frauds that are not reported yet count as genuine"
        )
    return lines


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
