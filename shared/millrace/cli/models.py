"""`millrace models APP …`: what an app has learned, from training to the champion that decides."""

from __future__ import annotations

import typer

from millrace.cli import lazy_group
from millrace.cli.app_parts import parts_of_apps

app = typer.Typer(
    cls=lazy_group(lambda: parts_of_apps(lambda app: app.models)),
    help="What an app has learned: train, compare, promote, roll back, look.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def models() -> None:
    """What an app has learned, e.g. millrace models fraud list."""
