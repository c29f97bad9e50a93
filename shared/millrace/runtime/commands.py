"""What the commands of apps begin with: settings as they were asked for, and the tables that a run left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from millrace.runtime.settings import AppSettings, load_settings

if TYPE_CHECKING:
    import pyarrow as pa

S = TypeVar("S", bound=AppSettings)


def command_settings(
    kind: type[S],
    app: str,
    *,
    bootstrap: str | None = None,
    root: Path | None = None,
    overrides: Sequence[str] | None = None,
) -> S:
    """Return an app's settings with what a command was given.

    Args:
        kind: Their class.
        app: Name of the app.
        bootstrap: The broker; ``None``: as the settings say.
        root: The app's folder; ``None``: as the settings say.
        overrides: ``key=value``; these win.

    Raises:
        UserError: A setting does not exist, or does not fit.

    Example:
        >>> command_settings(AppSettings, "fraud", bootstrap="broker:9092").kafka.bootstrap
        'broker:9092'
    """
    given = {"kafka.bootstrap": bootstrap, "storage.root": root}
    sets = [f"{name}={value}" for name, value in given.items() if value is not None]
    return load_settings(kind, app=app, overrides=[*sets, *(overrides or ())])


def app_table(folder: Path | str, name: str, columns: Sequence[str] | None = None) -> pa.Table | None:
    """Return a table of an app; ``None`` where none has been written yet.

    Args:
        folder: The app's folder, as ``storage.root`` names it.
        name: Name of the table.
        columns: These columns only.
    """
    from deltalake import DeltaTable

    place = f"{folder}/tables/{name}"
    if not DeltaTable.is_deltatable(place):
        return None
    return DeltaTable(place).to_pyarrow_table(columns=None if columns is None else list(columns))
