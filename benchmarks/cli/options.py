"""Options that many benchmarks have, and a benchmark carried out by its module's name."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

S = TypeVar("S")

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


def sized(sizes: S, **given: Any) -> S:
    """Return the sizes with what was given on the command line."""
    return replace(sizes, **{name: value for name, value in given.items() if value is not None})  # type: ignore[type-var]


def carry_out(
    name: str,
    out: Path | None,
    markdown: Path | None,
    *more: Any,
    module: str = "",
    quick: bool = False,
    **given: Any,
) -> None:
    """Carry out a benchmark and write its report.

    Its module has ``Sizes``, ``configuration`` and a function of the benchmark's name; ``QUICK`` where there
    is ``--quick``.

    Args:
        name: The benchmark, as on the command line.
        out: File of the report.
        markdown: File of its tables.
        more: What the function takes beside the sizes: a broker, settings.
        module: The module, if its name is another.
        quick: Whether only the results matter.
        given: Sizes that were given on the command line.
    """
    from millrace_apps.benchmarks import report

    function = name.replace("-", "_")
    bench = import_module(f"millrace_apps.benchmarks.{module or function}")
    sizes = sized(bench.QUICK if quick else bench.Sizes(), **given)
    results = getattr(bench, function)(sizes, *more)
    report.write(name, results, bench.configuration(sizes, *more[1:]), out, markdown)
