"""Short tables for the end of a command: what was expected and found, and whether it holds."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

#: What is said of a check that could not fail.
NOTHING = "nothing to compare"

__all__ = ["NOTHING", "Check", "equal", "print_checks", "print_table", "same"]

#: Lines of a table in a file or a pipe are at most so long.
_WIDEST = 240


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison of a run with the truth.

    Attributes:
        name: What is compared.
        expected: What it should be.
        found: What it is.
        ok: Whether nothing is wrong with it.
        note: Why, or what it means; may be empty.
        compared: How many things were compared: rows, events, happenings.
    """

    name: str
    expected: object
    found: object
    ok: bool
    note: str = ""
    compared: int = field(kw_only=True)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is wrong because there was nothing to compare."""
        return self.ok and not self.compared

    @property
    def holds(self) -> bool:
        """Whether something was compared, and nothing is wrong with it."""
        return self.ok and self.compared > 0


def equal(name: str, expected: int, found: int, note: str = "", *, of: int | None = None) -> Check:
    """Return the check that two numbers are the same.

    Args:
        name: What is compared.
        expected: What there should be.
        found: What there is.
        note: What it means.
        of: How many things were looked at, where it is not those expected: of what must not be.

    >>> equal("repeats", 1200, 1200).holds, equal("repeats", 0, 0).is_empty
    (True, True)
    >>> equal("no row twice", 0, 0, of=1200).holds
    True
    """
    compared = expected if of is None else of
    return Check(name, f"{expected:,}", f"{found:,}", expected == found, note, compared=compared)


def same(name: str, expected: AbstractSet[object], found: AbstractSet[object], note: str = "") -> Check:
    """Return the check that two sets are the same; it says how many there are, and how many differ.

    >>> same("sessions", {1, 2}, {2, 3}).found
    '2, 2 differ'
    """
    wrong = len(expected ^ found)
    said = f"{len(found):,}" if not wrong else f"{len(found):,}, {wrong:,} differ"
    return Check(name, f"{len(expected):,}", said, not wrong, note, compared=len(expected))


def print_checks(title: str, checks: Sequence[Check], console: Console | None = None) -> bool:
    """Print a table of checks and return whether all of them hold.

    Args:
        title: Heading of the table.
        checks: The checks; an empty list holds for nothing and counts as failed, and so does a check that
            has nothing to compare.
        console: Where to print; default standard output.

    >>> made = [Check("rows", 1200, 1200, True, compared=1200), Check("refunds", 0, 0, True, compared=0)]
    >>> print_checks("demo", made, Console(width=60, no_color=True))  # doctest: +NORMALIZE_WHITESPACE
    demo
    check    expected  found   ok  note
    rows        1,200  1,200  yes
    refunds         0      0    -  nothing to compare
    False
    """
    notes = any(map(_note, checks))
    rows = [
        (c.name, _text(c.expected), _text(c.found), _said(c), *([_note(c)] if notes else [])) for c in checks
    ]
    columns = ("check", "expected", "found", "ok", *(["note"] if notes else []))
    styles = ["" if check.holds else "bold red" for check in checks]
    print_table(title, columns, rows, console, right=("expected", "found", "ok"), styles=styles)
    return bool(checks) and all(check.holds for check in checks)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    console: Console | None = None,
    *,
    right: Sequence[str] = (),
    styles: Sequence[str] = (),
) -> None:
    """Print a plain table, readable on a terminal and in a log alike.

    Args:
        title: Heading.
        columns: Names of the columns.
        rows: One sequence of cells each; numbers get thousands separators.
        console: Where to print; default standard output.
        right: Columns that are aligned to the right, as numbers are.
        styles: A rich style per row, if any.
    """
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for index, row in enumerate(rows):
        table.add_row(*(Text(_text(cell)) for cell in row), style=styles[index] if styles else None)
    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:  # a file or a pipe has no edge at which lines must end
            needed = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
            console.width = max(console.width, needed)
    console.print(Text(title, style="bold"))
    console.print(table)


def _said(check: Check) -> str:
    if check.is_empty:
        return "-"
    return "yes" if check.ok else "NO"


def _note(check: Check) -> str:
    if not check.is_empty:
        return check.note
    return f"{NOTHING}; {check.note}" if check.note else NOTHING


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.3g}"
    return "-" if value is None else str(value)
