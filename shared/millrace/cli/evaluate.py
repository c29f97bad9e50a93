"""`millrace evaluate APP …`: hold an app to data whose right answers are known."""

from __future__ import annotations

import typer

from millrace.cli import lazy_group
from millrace.cli.app_parts import parts_of_apps

app = typer.Typer(
    cls=lazy_group(lambda: parts_of_apps(lambda app: app.evaluate, lambda app: app.evaluations)),
    help="Hold an app to data whose right answers are known.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def evaluate() -> None:
    """Hold an app to data whose right answers are known."""
