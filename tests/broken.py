"""Features broken on purpose, as the rows of their tables would show it, and the page that lists them.

A check is worth what it notices: for each one a list says what was done to the tables of a run that is right,
after which it fails. :func:`check_listed` holds the list, the checks and ``docs/checks.md`` together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from millrace.console.report import Check

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "checks.md"
Row = dict[str, Any]
Rows = list[Row]
Tables = Mapping[str, Rows]
Change = Callable[[Rows], Rows]
_CELL: Final = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Break:
    """A feature that is broken.

    Attributes:
        check: The check that must fail.
        how: What is broken, as the page has it.
        tables: Table → what becomes of its rows.
    """

    check: str
    how: str
    tables: Mapping[str, Change] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.check}: {self.how}"

    def applied(self, tables: Tables) -> dict[str, Rows]:
        """Return the tables with the change; it changes something.

        Args:
            tables: Those of a run that is right.
        """
        changed = {name: change(list(tables[name])) for name, change in self.tables.items()}
        assert any(changed[name] != tables[name] for name in changed), f"{self} changes nothing"
        return {**tables, **changed}


def breaks(check: str, **hows: Mapping[str, Change]) -> tuple[Break, ...]:
    """Return what breaks a check; underscores of the names are blanks.

    >>> [str(one) for one in breaks("no row twice", rows_doubled={"rows": doubled})]
    ['no row twice: rows doubled']
    """
    return tuple(Break(check, how.replace("_", " "), tables) for how, tables in hows.items())


def dropped(rows: Rows) -> Rows:
    """No rows."""
    return []


def less(rows: Rows) -> Rows:
    """All rows but the first."""
    return rows[1:]


def halved(rows: Rows) -> Rows:
    """Every second row."""
    return rows[::2]


def doubled(rows: Rows) -> Rows:
    """Every row twice."""
    return [*rows, *rows]


def where(holds: Callable[[Row], bool], change: Change) -> Change:
    """Change only some of the rows; there are such."""

    def changed(rows: Rows) -> Rows:
        some = [row for row in rows if holds(row)]
        assert some, "there is nothing to break"
        return [*(row for row in rows if not holds(row)), *change(some)]

    return changed


def shifted(name: str, by: float) -> Change:
    """Add to a number or time of every row."""
    return lambda rows: [{**row, name: row[name] + by} for row in rows]


def swapped(name: str) -> Change:
    """Give every row the value of the row after it."""
    return lambda rows: [{**row, name: rows[(n + 1) % len(rows)][name]} for n, row in enumerate(rows)]


def stuck(name: str, value: Any = None) -> Change:
    """Give every row one value: that of the first one, if none is named."""
    return lambda rows: [{**row, name: rows[0][name] if value is None else value} for row in rows]


def renamed(name: str) -> Change:
    """Give every row another identity."""
    return lambda rows: [{**row, name: f"another-{n}"} for n, row in enumerate(rows)]


def added(*more: Row) -> Change:
    """Add rows; of what they do not name they are like the last one."""
    return lambda rows: [*rows, *({**(rows[-1] if rows else {}), **one} for one in more)]


def listed(section: str) -> dict[str, set[str]]:
    """Return the checks of a section of the page, each with what breaks it.

    Args:
        section: Its heading.
    """
    text = PAGE.read_text("utf-8")
    _, _, rest = text.partition(f"\n## {section}\n")
    assert rest, f"docs/checks.md has no section {section}"
    found: dict[str, set[str]] = {}
    for line in rest.partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in _CELL.split(line)[1:-1]]
        if len(cells) == 3 and cells[0] != "check" and not cells[0].startswith("---"):
            found[cells[0]] = set(cells[2].split("; "))
    return found


def check_listed(section: str, names: Iterable[str], broken: Sequence[Break]) -> None:
    """Every check is on the page and is broken by something, and the page names nothing else.

    Args:
        section: The page's section.
        names: The checks that there are.
        broken: What breaks them.
    """
    hows: dict[str, set[str]] = {name: set() for name in names}
    for one in broken:
        hows.setdefault(one.check, set()).add(one.how)
    assert [name for name, how in hows.items() if not how] == []
    assert listed(section) == hows


def all_hold(checks: Sequence[Check]) -> None:
    """Every check has something to compare, and finds nothing wrong."""
    assert [check for check in checks if not check.holds] == []
    assert len({check.name for check in checks}) == len(checks) > 0


def fails(checks: Sequence[Check], name: str) -> bool:
    """Tell whether a check finds something wrong; that it has nothing to compare will not do."""
    (one,) = (check for check in checks if check.name == name)
    return not one.ok
