"""`millrace bench running-zscore`, …: jobs of the core beside Spark's own operators, each a case."""

# Without `from __future__ import annotations`: what an option's help says differs from case to case.

from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from millrace_apps.benchmarks.cli.options import (
    Batches,
    Keys,
    Markdown,
    Out,
    Quick,
    Repeats,
    Rows,
    sized,
)

app = typer.Typer()


class Listed(NamedTuple):
    """A case on the command line.

    Attributes:
        place: Its module, and its name there.
        help: What it measures.
        example: Options of the example.
        keys: What its keys are.
    """

    place: str
    help: str
    example: str = "--quick"
    keys: str = "Number of cards."


#: Those that are run with the options that all have.
CASES: Final = {
    "tumbling-windows": Listed(
        "windowed:TUMBLING_WINDOWS", "Tumbling windows of a minute: ours beside Spark's."
    ),
    "session-windows": Listed(
        "windowed:SESSION_WINDOWS", "Sessions with a gap of ten seconds: ours beside Spark's."
    ),
    "sliding-sums": Listed(
        "windowed:SLIDING_SUMS",
        "Per event the sum of its card's last five minutes; Spark has no such operator on streams.",
        "--rows 1000000",
    ),
    "stream-joins": Listed(
        "joined:CASE",
        "As-of and interval join of purchases and limits: ours beside Spark's stream-stream join.",
    ),
    "deduplication": Listed(
        "deduped:CASE",
        "Drop repeats, then the ten best items per shop and minute: ours beside Spark's deduplication.",
        keys="Number of items.",
    ),
    "pattern-matching": Listed(
        "pattern_matching:CASE", "The pattern A B* C within five seconds; Spark has no pattern matching."
    ),
    "absence-alerts": Listed(
        "absent:CASE", "An alert for every silence of a card, one timer each: ours beside Spark's sessions."
    ),
}


class InputKind(StrEnum):
    """What our process reads."""

    columns = "columns"
    json = "json"


def _run(name: str, place: str, quick: bool, out: Path | None, markdown: Path | None, **given: Any) -> None:
    from millrace_apps.benchmarks import report

    module, _, attribute = place.partition(":")
    case = getattr(import_module(f"millrace_apps.benchmarks.{module}"), attribute)
    sizes = sized(case.quick if quick else case.sizes, **given)
    report.write(name, case.run(sizes), case.configuration(sizes), out, markdown)


@app.command(
    "running-zscore",
    epilog="Example: millrace bench running-zscore --repeats 3 --out zscore.json --markdown zscore.md",
)
def running_zscore(
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
    _run(
        "running-zscore",
        "w1:CASE",
        quick,
        out,
        markdown,
        tws_share=tws_share,
        input=kind.value,
        rows=rows,
        keys=keys,
        big_keys=big_keys,
        batches=batches,
        repeats=repeats,
    )


def _add(name: str, listed: Listed) -> None:
    @app.command(name, help=listed.help, epilog=f"Example: millrace bench {name} {listed.example}")
    def run(
        rows: Rows = None,
        keys: Annotated[int | None, typer.Option(min=1, help=listed.keys, show_default=False)] = None,
        batches: Batches = None,
        repeats: Repeats = None,
        quick: Quick = False,
        out: Out = None,
        markdown: Markdown = None,
    ) -> None:
        _run(name, listed.place, quick, out, markdown, rows=rows, keys=keys, batches=batches, repeats=repeats)


for _name, _listed in CASES.items():
    _add(_name, _listed)
