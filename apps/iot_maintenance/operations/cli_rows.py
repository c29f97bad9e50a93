"""Output of rows by commands: as a table, or as JSON lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer


def utc(at: int | None) -> str:
    """Return a time (ms) as text, in UTC; empty of none."""
    from datetime import UTC, datetime

    return "" if at is None else f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def print_rows(
    title: str, rows: list[dict[str, Any]], names: dict[str, Callable[[dict[str, Any]], Any]], as_json: bool
) -> None:
    """Print rows as a table with these columns, or as JSON lines."""
    if as_json:
        import msgspec

        for row in rows:
            typer.echo(msgspec.json.encode(row).decode())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from millrace.console.live_panels import clean

    table = Table(title=title)
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        cells = (str(show(row)).split("\n") for show in names.values())
        table.add_row(*(Text("\n".join(map(clean, lines))) for lines in cells))
    Console().print(table if rows else f"{title}: none")
