"""`millrace bench compare`: a command on today's tree and on another commit."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from millrace_apps.benchmarks.cli.options import (
    Markdown,
    Out,
)

app = typer.Typer()


class BetterFigure(StrEnum):
    """Which of two figures is the better one."""

    LOWER = "lower"
    HIGHER = "higher"


@app.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Example: millrace bench compare --ref HEAD~1 --figure systems.process.rows_per_s --better higher "
    "--out R.json -- millrace bench tumbling-windows --rows 1000000",
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
