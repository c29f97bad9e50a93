"""`millrace ledger check`: a run's Delta tables against the ledger of what was sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.cli.options import Format, Shape, print_as

app = typer.Typer(
    no_args_is_help=True,
    help="Look into a generator's ledger, and compare an app's tables with it.",
    rich_markup_mode=None,
    add_completion=False,
)


@app.callback()
def main() -> None:
    """Look into a generator's ledger, and compare an app's tables with it."""


@app.command(epilog="Example: millrace ledger show ledger.jsonl")
def show(ledger: Annotated[Path, typer.Argument(help="A ledger.")], shape: Shape = Format.table) -> None:
    """Count what a ledger says: events, faults and truths by kind."""
    from collections import Counter

    from millrace_apps.generators.ledger_check import read_truths

    truths = read_truths(ledger)
    faults = sorted(Counter((f.kind, f.expected) for f in truths.faults).items())
    kinds = sorted(Counter(h.kind for h in truths.happenings).items())
    data = {
        "domain": truths.domain,
        "valid": dict(truths.valid),
        "faults": [{"kind": kind, "expected": expected, "count": n} for (kind, expected), n in faults],
        "truths": dict(kinds),
    }
    lines = [f"{truths.domain}: {sum(truths.valid.values()):,} valid events"]
    lines += (f"  stream {stream}: {count:,}" for stream, count in truths.valid.items())
    lines += (f"  fault {kind}, expected {expected}: {count:,}" for (kind, expected), count in faults)
    lines += (f"  truth {kind}: {count:,}" for kind, count in kinds)
    print_as(shape, data, lambda: "\n".join(lines))


@app.command(
    epilog="Example: millrace ledger check ledger.jsonl --events readings=tables/readings:reading_id"
)
def check(
    ledger: Annotated[Path, typer.Argument(help="A complete ledger.")],
    events: Annotated[
        list[str] | None,
        typer.Option(
            help="Table of a stream's valid events and its id column.", metavar="STREAM=TABLE:COLUMN"
        ),
    ] = None,
    late: Annotated[
        str | None, typer.Option(help="Table of late events and their id column.", metavar="TABLE:COLUMN")
    ] = None,
    dead_letters: Annotated[
        Path | None,
        typer.Option(help="Table of dead letters; found again by the header ce_id.", metavar="TABLE"),
    ] = None,
    found: Annotated[
        list[str] | None,
        typer.Option(help="Table that reports a kind of truth, by its events.", metavar="KIND=TABLE:COLUMN"),
    ] = None,
    shape: Shape = Format.table,
) -> None:
    """Compare Delta tables with a ledger; exit code 1 if something does not fit.

    A column may lie inside another, also inside JSON text: ``event.transaction_id``.
    """
    from millrace.console.report import NOTHING
    from millrace.errors import ChecksFailed, UserError
    from millrace_apps.generators.ledger_check import Outputs, compare, read_truths

    outputs = Outputs(
        events={name: ids(where) for name, where in _named(events or [], "--events")},
        late=None if late is None else ids(late),
        dead_letters=None if dead_letters is None else list(letters(dead_letters)),
        found={name: ids(where) for name, where in _named(found or [], "--found")},
    )
    if outputs == Outputs():
        raise UserError("nothing to compare: give --events, --late, --dead-letters or --found")
    checks = compare(read_truths(ledger), outputs)
    width, lines = max(len(one.name) for one in checks), []
    for one in checks:
        mark = "FAIL" if not one.ok else "-   " if one.is_empty else "ok  "
        note = NOTHING if one.is_empty else one.note
        said = f"  ({note})" if note else ""
        lines.append(f"{mark}  {one.name:<{width}}  expected {one.expected}, found {one.found}{said}")
    data = [
        {"name": c.name, "expected": c.expected, "found": c.found, "ok": c.ok, "note": c.note} for c in checks
    ]
    print_as(shape, data, lambda: "\n".join(lines))
    failed = sum(not one.ok for one in checks)
    if failed:
        raise ChecksFailed(f"{failed} of {len(checks)} comparisons with {ledger} do not hold")
    if not any(one.holds for one in checks):
        raise ChecksFailed(f"{NOTHING} with {ledger}")


def _named(texts: list[str], flag: str) -> Iterator[tuple[str, str]]:
    from millrace.errors import UserError

    for text in texts:
        name, equals, where = text.partition("=")
        if not (name and equals and where):
            raise UserError(f"{flag} is NAME=TABLE:COLUMN, got {text}")
        yield name, where


def ids(where: str) -> list[str]:
    """Return the ids in ``TABLE:COLUMN``, one per row.

    Raises:
        UserError: If there is no such table or column.
    """
    from millrace.errors import UserError

    table, colon, column = where.rpartition(":")
    if not (table and colon and column):
        raise UserError(f"a table is given with its id column, TABLE:COLUMN; got {where}")
    top, *path = column.split(".")
    return [str(_inside(row[top], path, where)) for row in rows(table, [top])]


def letters(table: Path) -> Iterator[tuple[str | None, str]]:
    """Yield the id (from the header ``ce_id``) and the reason of every dead letter."""
    for row in rows(str(table), ["headers", "reason"]):
        headers = json.loads(row["headers"]) if row["headers"] else {}
        yield headers.get("ce_id"), row["reason"]


def rows(table: str, columns: list[str]) -> list[dict[str, Any]]:
    """Return some columns of a Delta table.

    Raises:
        UserError: If there is no such table, or it lacks a column.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    from millrace.errors import UserError

    try:
        opened = DeltaTable(table)
    except DeltaError as error:
        raise UserError(f"there is no Delta table at {table}") from error
    names = {field.name for field in opened.schema().fields}
    for column in columns:
        if column not in names:
            raise UserError(f"{table} has no column {column}; it has {', '.join(sorted(names))}")
    listed: list[dict[str, Any]] = opened.to_pyarrow_table(columns=columns).to_pylist()
    return listed


def _inside(value: Any, path: list[str], where: str) -> Any:
    from millrace.errors import UserError

    for name in path:
        found = json.loads(value) if isinstance(value, str | bytes) else value
        if not isinstance(found, dict) or name not in found:
            raise UserError(f"{where}: no {name} in {value!r:.80}")
        value = found[name]
    return value
