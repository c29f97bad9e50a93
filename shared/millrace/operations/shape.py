"""How a command gives what it found: as text for people, or as JSON."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer


class Format(StrEnum):
    """How what was found is given."""

    table = "table"
    json = "json"


Shape = Annotated[Format, typer.Option("--format", "-f", help="table, or json (also `--json`).")]

#: Of a command that gives JSON in any case: it is asked for as everywhere else.
AsJson = Annotated[bool, typer.Option("--json", hidden=True, help="As it is given in any case.")]


def print_as(shape: Format, data: Any, text: Callable[[], str]) -> None:
    """Print what a command found: as JSON, or as the text that is made of it.

    Args:
        shape: Which of the two.
        data: What :func:`millrace.operations.report.as_json` takes.
        text: Makes the text; nothing is printed of an empty one.
    """
    if shape is Format.json:
        from millrace.operations.report import as_json

        typer.echo(as_json(data))
    elif said := text():
        typer.echo(said)
