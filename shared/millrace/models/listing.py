"""What a registry has, read from its database as it lies there: in milliseconds, and without its library.

For whoever only looks, the dashboard say; the registry itself (:mod:`millrace.models.registry`) takes seconds
to load. A database of another form is one that cannot be listed, not an error.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from millrace.models.places import default_uri, sqlite_path

#: A database that somebody writes to is waited for so long, seconds.
_PATIENCE_S: Final = 0.2


class Registered(NamedTuple):
    """A registered version.

    Attributes:
        model: The model, as it is registered.
        version: Its number.
        aliases: Its aliases.
        created_ms: When it was registered, UTC ms.
        trained_until_ms: Event time of the newest row that it was trained on, UTC ms; ``None``: not said.
        rows: Rows that it was trained on; ``None``: not said.
    """

    model: str
    version: int
    aliases: tuple[str, ...]
    created_ms: int
    trained_until_ms: int | None
    rows: int | None


def listed(root: Path) -> list[Registered]:
    """Return the versions in the registry under an app's folder: by model, the newest first.

    Args:
        root: The app's folder.

    Returns:
        Nothing where there is no registry, or one that cannot be read.
    """
    file = sqlite_path(default_uri(root / "models"))
    if file is None or not file.is_file():
        return []
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=_PATIENCE_S)
        ) as found:
            versions = found.execute(
                "SELECT name, version, creation_time FROM model_versions "
                "WHERE current_stage != 'Deleted_Internal' ORDER BY name, version DESC"
            ).fetchall()
            aliases = found.execute("SELECT name, version, alias FROM registered_model_aliases").fetchall()
            tags = found.execute(
                "SELECT name, version, key, value FROM model_version_tags "
                "WHERE key IN ('trained_until_ms', 'rows')"
            ).fetchall()
    except sqlite3.Error:
        return []
    known = {(name, int(version), key): value for name, version, key, value in tags}
    return [
        Registered(
            str(name),
            int(version),
            tuple(sorted(alias for of, at, alias in aliases if (of, int(at)) == (name, int(version)))),
            int(created_ms or 0),
            _number(known.get((name, int(version), "trained_until_ms"))),
            _number(known.get((name, int(version), "rows"))),
        )
        for name, version, created_ms in versions
    ]


def _number(text: str | None) -> int | None:
    """Return a whole number of a tag.

    >>> _number("12"), _number("1e3"), _number(None)
    (12, 1000, None)
    """
    try:
        return None if text is None else int(float(text))
    except (ValueError, OverflowError):
        return None
