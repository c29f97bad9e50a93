"""Discovery by entry points: apps without loading any, and what other packages add."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from millrace.errors import UserError

T = TypeVar("T")

#: Entry-point group of apps.
APPS_GROUP = "millrace.apps"


def list_apps() -> dict[str, str]:
    """Return the installed apps: name → ``module:attribute``."""
    return {e.name: e.value for e in sorted(entry_points(group=APPS_GROUP), key=lambda e: e.name)}


def load_entry(entry: EntryPoint, what: str, kind: type[T], called: str) -> T:
    """Return what an entry point names.

    Args:
        entry: The entry point.
        what: What it adds, for errors, e.g. ``domain``.
        kind: What it must be.
        called: What that is called, e.g. ``Domain``.

    Raises:
        UserError: A package that it needs is missing, or it is something else.
    """
    try:
        found = entry.load()
    except ModuleNotFoundError as error:
        raise UserError(f"the {what} {entry.name} needs the package {error.name}: install it") from error
    if not isinstance(found, kind):
        raise UserError(f"{entry.value}, which the entry point {entry.name} names, is no {called}")
    return found
