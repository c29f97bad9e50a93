"""Options that many commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millrace.operations.shape import Format, Shape, print_as

__all__ = [
    "AppName", "Bootstrap", "By", "ConfigFile", "Format", "Overrides", "Root", "Shape", "print_as",
]  # fmt: skip


AppName = Annotated[str, typer.Argument(metavar="APP", help="An app's name.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file; default ./millrace.yaml if it exists."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="Override one setting, e.g. kafka.bootstrap=host:9092."
    ),
]
By = Annotated[str | None, typer.Option("--by", help="Who does it; default the user of this session.")]
Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", help="Kafka broker (host:port); default the detached one.")
]
Root = Annotated[Path | None, typer.Option("--root", help="The app's folder; default its storage.root.")]
