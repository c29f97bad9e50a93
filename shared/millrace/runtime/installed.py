"""Which apps are installed, without loading any."""

from __future__ import annotations

from importlib.metadata import entry_points

#: Entry-point group of apps.
APPS_GROUP = "millrace.apps"


def list_apps() -> dict[str, str]:
    """Return the installed apps: name → ``module:attribute``."""
    return {e.name: e.value for e in sorted(entry_points(group=APPS_GROUP), key=lambda e: e.name)}
