"""The catalogue of tables that can be queried: all of all apps, by ``app.table``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.errors import UserError

if TYPE_CHECKING:
    from millrace.runtime.settings import AppSettings

#: What is left out when the text of a query is searched for names: literals and comments.
_NOT_NAMES: Final = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True)
class AppTable:
    """A table of an app.

    Attributes:
        app: The app.
        name: Name of the table.
        folder: Where it is.
    """

    app: str
    name: str
    folder: Path

    @property
    def full_name(self) -> str:
        """The name by which it is asked: ``app.table``."""
        return f"{self.app}.{self.name}"


def tables_of(app: str, settings: AppSettings) -> list[AppTable]:
    """Return the tables that an app has written, by name.

    Args:
        app: Name of the app.
        settings: Its settings, which say where they are.
    """
    from millrace.connectors.upkeep import find_tables

    folder = Path(settings.storage.path("tables"))
    return [AppTable(app, path.name, path) for path in find_tables(folder)] if folder.is_dir() else []


def asked_for(text: str, tables: Iterable[AppTable]) -> list[AppTable]:
    """Return the tables whose name is in a query's text, so that no other needs to be opened.

    Args:
        text: The query.
        tables: All tables.

    Example:
        >>> alerts, late = (AppTable("fraud", name, Path(name)) for name in ("alerts", "late"))
        >>> [found.name for found in asked_for("SELECT 'late' FROM Fraud.alerts", [alerts, late])]
        ['alerts']
    """
    words = {word.lower() for word in _WORD.findall(_NOT_NAMES.sub(" ", text))}
    return [table for table in tables if table.name.lower() in words or table.name in text.split('"')]


def unknown_table(name: str, known: Sequence[str]) -> UserError:
    """Return what is said of a table that there is not, with the names that are nearest.

    Args:
        name: The name as it was asked for.
        known: The names that there are.

    Example:
        >>> print(unknown_table("fraud.alert", ["fraud.alerts", "iot.alarms"]))
        there is no table fraud.alert; did you mean fraud.alerts?
    """
    by_end = {full.rpartition(".")[2]: full for full in known}
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.8)
    near += [
        by_end[end]
        for end in difflib.get_close_matches(name.rpartition(".")[2], by_end, n=2, cutoff=0.7)
        if by_end[end] not in near
    ]
    if near:
        return UserError(f"there is no table {name}; did you mean {' or '.join(near[:3])}?")
    if not known:
        return UserError(f"there is no table {name}: no app has written any yet (see --root, --demo)")
    return UserError(f"there is no table {name}; `millrace query --tables` lists the {len(known)} that are")
