"""`millrace state list|health|show|export|diff`: what a checkpoint holds, as tables, JSON or Parquet."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from millrace.checkpoints.checkpoint import Checkpoint
    from millrace.checkpoints.figures import Figures
    from millrace.checkpoints.health import Health

app = typer.Typer(
    help="Look into the state of a checkpoint, also while its query runs.", no_args_is_help=True
)


class Format(StrEnum):
    """How what was found is given."""

    table = "table"
    json = "json"
    parquet = "parquet"


Target = Annotated[
    str,
    typer.Argument(metavar="APP|FOLDER", help="An app, or the folder of a checkpoint (a savepoint's, too)."),
]
Batch = Annotated[int | None, typer.Option(help="A committed batch that is still kept; default the last.")]
Process = Annotated[str | None, typer.Option("--process", help="Which process of a chain.")]
KeyFile = Annotated[str | None, typer.Option("--key-file", help="The file of keys, if state is encrypted.")]
Shape = Annotated[Format, typer.Option("--format", "-f", help="table, json (also `--json`) or parquet.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file (Parquet: folder).")]


@app.command("list", epilog="Example: millrace state list fraud --top 5")
def list_(
    target: Target,
    batch: Batch = None,
    process: Process = None,
    key_file: KeyFile = None,
    shape: Shape = Format.table,
    top: Annotated[int, typer.Option(min=0, help="How many of the largest keys and pages.")] = 10,
) -> None:
    """Entries, timers, sizes, what the last batches wrote, the largest keys and pages."""
    from dataclasses import asdict

    from millrace.checkpoints.checkpoint import held, locate
    from millrace.errors import UserError

    if shape is Format.parquet:
        raise UserError("state list gives a table or JSON; `millrace state export` writes Parquet")
    checkpoint = locate(target)

    from millrace.checkpoints.figures import batch_sizes, figures_of
    from millrace.checkpoints.reading import view_of
    from millrace.checkpoints.session import tool_session
    from millrace.checkpoints.stages import stages_of

    found = []
    with held(checkpoint, [batch]) as (copy, chosen), tool_session() as spark:
        for stage in [s for s in stages_of(copy, chosen) if process in (None, s.process)]:
            with view_of(spark, copy, batch=chosen, process=stage.process, key_file=key_file) as view:
                found.append((view.stage, view.batch, figures_of(view, top=top)))
    sizes = batch_sizes(checkpoint)
    if shape is Format.json:
        data = {
            "checkpoint": str(checkpoint.folder),
            "batches": [asdict(s) for s in sizes],
            "processes": [
                {"process": s.process, "batch": b, "key_groups": s.key_groups, **asdict(f)}
                for s, b, f in found
            ],
        }
        typer.echo(json.dumps(data, indent=2))
        return
    _print_batches(checkpoint, sizes)
    for stage, at, figures in found:
        typer.echo(f"\n{stage.process}: {stage.key_groups} key groups by {', '.join(stage.key)}, batch {at}")
        _print_figures(figures)


@app.command(epilog="Example: millrace state health fraud --strict")
def health(
    target: Target,
    from_batch: Annotated[
        int | None, typer.Option(help="Batch to compare with; default the first that is kept.")
    ] = None,
    process: Process = None,
    key_file: KeyFile = None,
    shape: Shape = Format.table,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if something wants a look.")] = False,
) -> None:
    """How state grows, the largest keys, states without a bound, and what wants a look.

    It compares the last batch with the first one that the checkpoint still keeps. Of an app, states without
    a time to live are known from its code, of a folder they are not.

    Exit codes: 0 done, 1 a finding and --strict, 2 something you can put right.
    """
    from contextlib import ExitStack
    from dataclasses import asdict

    from millrace.checkpoints.checkpoint import held, locate
    from millrace.cli.lint_state import unbounded_states
    from millrace.errors import UserError

    if shape is Format.parquet:
        raise UserError("state health gives a table or JSON")
    checkpoint = locate(target)

    from millrace.checkpoints.figures import figures_of
    from millrace.checkpoints.health import health_of
    from millrace.checkpoints.reading import view_of
    from millrace.checkpoints.session import tool_session
    from millrace.checkpoints.stages import stages_of

    unbounded = unbounded_states(target)
    found = []
    with ExitStack() as stack:
        # A query that runs has removed the first batch by the time that Spark has started.
        wanted = checkpoint.batches() if from_batch is None else [from_batch]
        kept = [stack.enter_context(held(checkpoint, batches)) for batches in (wanted, [None])]
        watermarks = {batch: checkpoint.watermark(batch) for _, batch in kept}
        last, newest = kept[1]
        spark = stack.enter_context(tool_session())
        for stage in [s for s in stages_of(last, newest) if process in (None, s.process)]:
            at = []
            for copy, batch in kept:
                with view_of(spark, copy, batch=batch, process=stage.process, key_file=key_file) as view:
                    at.append((view.batch, figures_of(view, top=3)))
            names = unbounded.get(stage.process, ())
            found.append(health_of(stage.process, at[0], at[1], watermarks, names))
    if shape is Format.json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=2))
    else:
        for one in found:
            _print_health(one)
    if strict and any(one.findings for one in found):
        raise typer.Exit(1)


@app.command(epilog="Example: millrace state show fraud --process Cards --key card-17")
def show(
    target: Target,
    key: Annotated[
        list[str], typer.Option("--key", "-k", help="The key; once for each field of one of several.")
    ],
    batch: Batch = None,
    process: Process = None,
    key_file: KeyFile = None,
    shape: Shape = Format.table,
) -> None:
    """Everything that is kept for one key: states, timers, waiting events.

    Exit codes: 0 found, 1 nothing is kept for the key, 2 something you can put right.
    """
    from millrace.checkpoints.checkpoint import locate
    from millrace.errors import UserError

    if shape is Format.parquet:
        raise UserError("state show gives a table or JSON; `millrace state export` writes Parquet")
    checkpoint = locate(target)

    from millrace.checkpoints.committed import CommittedState
    from millrace.checkpoints.entries import as_json
    from millrace.checkpoints.sorted_table import StateFormatUnknown

    try:
        only = process, tuple(key)
        read = CommittedState(checkpoint, batch=batch, key_file=key_file, only=only)
        found, at, stage = read.entry(*only), read.batch, read.stage(process)
    except StateFormatUnknown:  # files that another version of Spark's has written: Spark reads them
        from millrace.checkpoints.reading import view_of
        from millrace.checkpoints.session import tool_session

        with (
            tool_session() as spark,
            view_of(spark, checkpoint, batch=batch, process=process, key_file=key_file) as view,
        ):
            found, at, stage = view.entry(tuple(key)), view.batch, view.stage
    if found is None:
        typer.echo(f"{stage.process} keeps nothing for {'|'.join(key)} (batch {at})", err=True)
        raise typer.Exit(1)
    entry, size = found
    data = {"process": stage.process, "batch": at, "key": list(key), "bytes": size, **entry.as_data()}
    if shape is Format.json:
        typer.echo(as_json(data))
        return
    typer.echo(f"{stage.process} {'|'.join(key)}: {size:,} bytes (batch {at})")
    for state in entry.states.values():
        expires = "" if state.expires_at is None else f"  (expires {as_json(state.expires_at)})"
        typer.echo(f"  {state.name} ({state.kind}): {as_json(state.value)}{expires}")
    for name in ("timers", "processing_timers", "waiting"):
        for item in data[name]:
            typer.echo(f"  {name.removesuffix('s').replace('_', ' ')}: {as_json(item)}")


@app.command(epilog="Example: millrace state export fraud --format parquet --out state.parquet")
def export(
    target: Target,
    out: Out = None,
    batch: Batch = None,
    process: Process = None,
    key_file: KeyFile = None,
    shape: Shape = Format.json,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many keys.")] = None,
) -> None:
    """A row per key: JSON lines or a table to the terminal or a file, or Parquet to a folder."""
    from millrace.checkpoints.checkpoint import held, locate
    from millrace.errors import UserError

    if shape is Format.parquet and out is None:
        raise UserError("Parquet goes to a folder: name it with --out")
    if out is not None and out.exists():
        raise UserError(f"{out} is there already: choose another --out")
    checkpoint = locate(target)

    from millrace.checkpoints.reading import view_of
    from millrace.checkpoints.session import tool_session
    from millrace.checkpoints.tables import entries_of
    from millrace.local.private import open_private

    with (
        held(checkpoint, [batch]) as (copy, chosen),
        tool_session() as spark,
        view_of(spark, copy, batch=chosen, process=process, key_file=key_file) as view,
    ):
        rows = entries_of(view)
        if limit is not None:
            rows = rows.limit(limit)
        if shape is Format.parquet:
            rows.write.parquet(str(out))
            typer.echo(f"{out}: {spark.read.parquet(str(out)).count():,} keys of {view.stage.process}")
            return
        lines = (_line(row.asDict(recursive=True), shape) for row in rows.toLocalIterator())
        if out is None:
            for line in lines:
                typer.echo(line)
        else:
            with open_private(out) as file:
                file.writelines(f"{line}\n" for line in lines)


@app.command(epilog="Example: millrace state diff fraud --from-batch 10 --to-batch 20")
def diff(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="An app, a folder or a savepoint.")],
    after: Annotated[
        str | None, typer.Argument(metavar="[AFTER]", help="The later one; default the same checkpoint.")
    ] = None,
    from_batch: Annotated[int | None, typer.Option(help="Batch of the earlier one.")] = None,
    to_batch: Annotated[int | None, typer.Option(help="Batch of the later one; default the last.")] = None,
    process: Process = None,
    key_file: KeyFile = None,
    shape: Shape = Format.table,
    out: Out = None,
    limit: Annotated[int, typer.Option(min=1, help="So many of the keys that differ are named.")] = 20,
) -> None:
    """Keys that came, went and changed between two batches or two checkpoints, and how sizes grew."""
    from millrace.checkpoints.checkpoint import held, locate
    from millrace.errors import UserError

    if shape is Format.parquet and out is None:
        raise UserError("Parquet goes to a folder: name it with --out")
    if out is not None and out.exists():
        raise UserError(f"{out} is there already: choose another --out")
    first, second = locate(before), locate(after or before)
    if first == second and from_batch is None:
        kept = first.batches()
        from_batch = kept[0] if kept else None

    from millrace.checkpoints.reading import view_of
    from millrace.checkpoints.session import tool_session
    from millrace.checkpoints.tables import compared, digests_of

    with (
        held(first, [from_batch]) as (one, earlier),
        held(second, [to_batch]) as (other, later),
        tool_session() as spark,
        view_of(spark, one, batch=earlier, process=process, key_file=key_file) as old,
        view_of(spark, other, batch=later, process=process, key_file=key_file) as new,
    ):
        rows = compared(digests_of(old), digests_of(new)).cache()
        if shape is Format.parquet:
            rows.write.parquet(str(out))
        sums = rows.groupBy("change").agg(
            {"key": "count", "bytes_before": "sum", "bytes_after": "sum"}
        ).collect()  # fmt: skip
        by_growth = rows.orderBy(rows.bytes_before - rows.bytes_after, rows.key).limit(limit).collect()
        batches = old.batch, new.batch
    counts = {r["change"]: r["count(key)"] for r in sums}
    grown = sum(r["sum(bytes_after)"] - r["sum(bytes_before)"] for r in sums)
    if shape is Format.json:
        data = {"from_batch": batches[0], "to_batch": batches[1], **counts, "growth_bytes": grown,
                "keys": [r.asDict() for r in by_growth]}  # fmt: skip
        typer.echo(json.dumps(data, indent=2))
        return
    told = ", ".join(f"{n:,} {change}" for change, n in sorted(counts.items())) or "nothing changed"
    typer.echo(f"batch {batches[0]} → {batches[1]}: {told}; {grown:+,} bytes")
    for row in by_growth:
        typer.echo(f"  {row.change:<8} {row.bytes_before:>10,} → {row.bytes_after:>10,}  {row.key}")


def _line(row: dict[str, Any], shape: Format) -> str:
    from millrace.checkpoints.entries import as_json

    for name in ("timers", "processing_timers", "expires_at"):
        row[name] = json.loads(row[name])
    if shape is Format.json:
        return as_json(row)
    states = ", ".join(
        f"{name}={as_json(value) if not isinstance(value, str) else value}"
        for name, value in (row.get("states") or {}).items()
        if value is not None
    )
    timers = ", ".join(f"{t['name']}@{t['at']}" for t in row["timers"])
    return f"{row['key']}  {row['bytes']:,} B  {states}{'  timers: ' + timers if timers else ''}"


def _print_batches(checkpoint: Checkpoint, sizes: list[Any]) -> None:
    typer.echo(f"{checkpoint.folder}")
    for size in sizes:
        mark = "-" if size.watermark_ms is None else f"{size.watermark_ms}"
        held = f", held back by {size.held_by}" if size.held_by else ""
        typer.echo(f"  batch {size.batch}: {size.changelog_bytes:,} bytes changed, watermark {mark}{held}")


def _print_health(found: Health) -> None:
    span = "" if not found.hours else f", {found.hours:,.1f} h of event time"
    typer.echo(f"{found.process}: batch {found.from_batch} → {found.to_batch}{span}")
    hourly = "" if not found.hours else f" ({found.more_bytes / found.hours:+,.0f} bytes an hour)"
    lines = [
        ("keys", f"{found.entries:,} ({found.more_entries:+,})"),
        ("bytes", f"{found.stored_bytes:,} ({found.more_bytes:+,}){hourly}"),
        ("timers", f"{found.timers:,}; {found.waiting:,} events wait"),
        *(("largest", f"{size:,} bytes: {key}") for size, key in found.largest_keys),
        *(("no ttl", f"{name}, held by {keys:,} keys") for name, keys in found.unbounded.items()),
        *(("look", finding) for finding in found.findings),
    ]
    for name, text in lines:
        typer.echo(f"  {name:<8} {text}")


def _print_figures(found: Figures) -> None:
    from millrace.checkpoints.entries import as_json

    lines = {
        "entries": f"{found.entries:,} keys, {found.entry_bytes:,} bytes packed, "
        f"{found.stored_bytes:,} stored",
        "pages": f"{found.pages:,} in {found.groups:,} key groups",
        "timers": f"{found.timers:,} on event time, {found.processing_timers:,} on processing time",
        "waiting": f"{found.waiting:,} events",
        "next": f"timer {_or_none(found.next_timer_ms)}, expiry {_or_none(found.next_expiry_ms)}",
        "states": ", ".join(f"{name} {n:,}" for name, n in sorted(found.states.items())) or "none",
    }
    if found.schemas > 1:
        lines["schemas"] = f"up to {found.schemas} in a key group: pages of earlier versions are left"
    for name, text in lines.items():
        typer.echo(f"  {name:<8} {text}")
    for number, (size, key) in enumerate(found.largest_keys):
        typer.echo(f"  {'' if number else 'largest'!s:<8} {size:,} bytes: {key}")
    for number, (size, group, page, entries) in enumerate(found.largest_pages):
        place = as_json({"group": group, "page": page, "keys": entries})
        typer.echo(f"  {'' if number else 'pages'!s:<8} {size:,} bytes: {place}")


def _or_none(time: int | None) -> str:
    return "none" if time is None else str(time)
