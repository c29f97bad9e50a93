"""Groups of commands whose parts come from the apps: `millrace evaluate APP …`, `millrace models APP …`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from millrace.runtime.apps import App, UnknownApp, load_app
from millrace.runtime.installed import list_apps


def parts_of_apps(
    part: Callable[[App], str | None], more: Callable[[App], Mapping[str, str]] = lambda _app: {}
) -> dict[str, tuple[str, str]]:
    """Return the apps that have a part: name → where it is and what the app does, as a lazy group takes them.

    Args:
        part: App → ``module:attribute`` of a ``typer.Typer``; ``None``: it has none.
        more: App → further parts, by names of their own.
    """
    found = {}
    for name in list_apps():
        with contextlib.suppress(UnknownApp):  # one that cannot be loaded must not hide the others
            app = load_app(name)
            if (where := part(app)) is not None:
                found[name] = (where, app.summary)
            found |= {other: (where, app.summary) for other, where in more(app).items()}
    return found
