"""Settings and tables as the commands of apps need them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from millrace.runtime.demo_settings import published_settings
from millrace.runtime.settings import AppSettings, load_settings
from millrace.runtime.settings_sources import FromOption

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
        root: The app's folder; ``None``: as the settings say. Of one with a demo that runs, its broker and
            topics are taken.
        overrides: ``key=value``; these win.

    Raises:
        UserError: A setting does not exist, or does not fit.

    Example:
        >>> command_settings(AppSettings, "fraud", bootstrap="broker:9092").kafka.bootstrap
        'broker:9092'
    """
    given = (("--bootstrap", "kafka.bootstrap", bootstrap), ("--root", "storage.root", root))
    sets = [FromOption(option, key, str(value)) for option, key, value in given if value is not None]
    told = () if root is None else published_settings(root)
    return load_settings(kind, app=app, overrides=[*told, *sets, *(overrides or ())])


def settings_of(app: str, config: Path | None = None, overrides: Sequence[str] | None = None) -> AppSettings:
    """Return the settings of the app of a name.

    Args:
        app: Name of the app.
        config: The settings file; ``None``: ``./millrace.yaml`` if there is one.
        overrides: ``key=value``; these win.

    Raises:
        UserError: There is no such app; a setting does not exist, or does not fit.

    Example:
        >>> settings_of("fraud", overrides=["kafka.bootstrap=broker:9092"]).kafka.bootstrap
        'broker:9092'
    """
    from millrace.runtime.apps import load_app

    return load_settings(load_app(app).settings, app=app, config=config, overrides=overrides or ())


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


def app_rows(folder: Path | str, name: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table of an app; none where none has been written yet.

    Args:
        folder: The app's folder, as ``storage.root`` names it.
        name: Name of the table.
        columns: These columns only.
    """
    found = app_table(folder, name, columns)
    rows: list[dict[str, Any]] = [] if found is None else found.to_pylist()
    return rows
