"""`millrace evaluate APP …`: hold an app to data whose right answers are known."""

from __future__ import annotations

import contextlib

import typer

from millrace.cli import lazy_group
from millrace.runtime.apps import UnknownApp, load_app
from millrace.runtime.installed import list_apps


def _evaluations() -> dict[str, tuple[str, str]]:
    found = {}
    for name in list_apps():
        with contextlib.suppress(UnknownApp):  # one that cannot be loaded must not hide the others
            app = load_app(name)
            if app.evaluate is not None:
                found[name] = (app.evaluate, app.summary)
    return found


app = typer.Typer(
    cls=lazy_group(_evaluations),
    help="Hold an app to data whose right answers are known.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def evaluate() -> None:
    """Hold an app to data whose right answers are known."""
