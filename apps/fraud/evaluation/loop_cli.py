"""``millrace evaluate fraud-loop``: decisions that have effects, on a world that answers to them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Final

import typer

from millrace.errors import ChecksFailed
from millrace.operations.report import write

_EXAMPLE: Final = "e.g. millrace evaluate fraud-loop --seed 1 --genuine-blocked --out loop.json"
app = typer.Typer(help="The loop of deciding and learning, on a generated world.", add_completion=False)


@app.command(name="fraud-loop", epilog=_EXAMPLE)
def fraud_loop(
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="The report, JSON.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the world: equal ones give equal figures.")] = 1,
    days: Annotated[int, typer.Option(min=3, max=365, help="Days that count; 30 go before them.")] = 60,
    control_share: Annotated[
        float, typer.Option(min=0.001, max=0.2, help="Share of would-be blocks that the control group is.")
    ] = 0.05,
    genuine_blocked: Annotated[
        bool,
        typer.Option("--genuine-blocked", help="Run the arm, too, that counts blocked payments as genuine."),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small world: figures mean little, and nothing must hold.")
    ] = False,
) -> None:
    """Decide, learn and decide again where frauds stop when they are blocked, and thieves then change.

    Thieves who are blocked leave the card and try other ways. What passes is charged back weeks later, what
    is alerted on is looked at as far as investigators come, what is blocked is never spoken of. A model is
    trained every five days on what the loop itself has made, and decides through the app's own topology.
    Arms: blocked payments left out of training (excluded), the same with a control group (control), and
    blocked payments counted as genuine (genuine). Recall and precision are of what was blocked or looked at;
    cost is frauds that passed, looks, and genuine payments blocked. Exit code 1: something that must hold
    does not.
    """
    from millrace.console.report import print_checks, print_table
    from millrace_apps.fraud.loop.report import checks_of, report_of
    from millrace_apps.fraud.loop.run import arms_of, run_arms
    from millrace_apps.fraud.loop.world import QUICK, Size

    arms = arms_of(control_share, genuine=genuine_blocked)
    with tempfile.TemporaryDirectory(prefix="millrace-") as place:
        made = run_arms(arms, seed, days, Path(place), QUICK if quick else Size(), _say)
    figures = report_of(made, days)
    checks = [] if quick else checks_of(made, days)
    about = {"seed": seed, "days": days, "control_share": control_share, "quick": quick,
             "arms": [arm.name for arm in arms]}  # fmt: skip
    held = {check.name: check.holds for check in checks}
    write(out, about | figures | {"held": held})
    names = (
        "recall",
        "recall_middle",
        "recall_last",
        "precision",
        "cost",
        "lost",
        "blocked",
        "control_group",
    )
    rows = [(arm.name, *(_text(figures[f"{arm.name}_{name}"]) for name in names)) for arm in arms]
    print_table(f"fraud, {days} days of a loop, seed {seed}", ("arm", *names), rows, right=names)
    if checks and not print_checks("What must hold", checks):
        wrong = sum(not check.holds for check in checks)
        raise ChecksFailed(f"{wrong} of {len(checks)} do not hold")


def _text(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value > 1 else f"{value:.3f}"


def _say(text: str) -> None:
    typer.echo(text, err=True)
