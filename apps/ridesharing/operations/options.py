"""Options that several of the app's commands take, and the settings that they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from millrace_apps.ridesharing.settings import RidesharingSettings

Why = Annotated[str, typer.Option("--reason", help="Why: stands in the trail.")]
From = Annotated[str | None, typer.Option("--from", metavar="TIME", help="From this event time on.")]


def settings_of(overrides: list[str] | None, bootstrap: str | None = None) -> RidesharingSettings:
    """Return the app's settings, with what a command's options say.

    Args:
        overrides: Settings as ``key=value``.
        bootstrap: The broker; ``None``: as the settings say.

    Raises:
        UserError: A setting does not hold.
    """
    from millrace.runtime.commands import command_settings
    from millrace_apps.ridesharing.settings import RidesharingSettings

    return command_settings(RidesharingSettings, "ridesharing", bootstrap=bootstrap, overrides=overrides)
