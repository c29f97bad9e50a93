"""Options of commands that serve questions over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Host = Annotated[str, typer.Option(help="Where to listen.")]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 takes a free one.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(help="File with the token, 16 characters or more, that its owner alone can read; without it "
                 "one is made and printed."),
]  # fmt: skip
Limit = Annotated[
    float, typer.Option("--rate-limit", min=0, help="Questions a second of an address; 0: any.")
]
KeyFile = Annotated[Path | None, typer.Option(help="File of the keys, if state is encrypted.")]
