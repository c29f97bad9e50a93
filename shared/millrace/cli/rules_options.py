"""Options of the commands over rules."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Start(StrEnum):
    """The state in which a version begins."""

    draft = "draft"
    shadow = "shadow"
    active = "active"


class StateName(StrEnum):
    """The states of a version."""

    draft = "draft"
    shadow = "shadow"
    active = "active"
    paused = "paused"
    deleted = "deleted"


File = Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON: a list of rules.")]
Id = Annotated[str, typer.Argument(metavar="RULE", help="Its id.")]
VersionNumber = Annotated[int | None, typer.Option("--version", help="Which version; default the newest.")]
From = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Event time (2026-01-31T12:00); default at once.")
]
Why = Annotated[str, typer.Option("--reason", help="Why; stands in the audit.")]
Tried = Annotated[
    str | None,
    typer.Option("--what-if", metavar="LAST", help="First show what it would have done, e.g. 7d; 0: do not."),
]
