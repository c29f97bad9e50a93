"""`millrace dlq list|show|stats|replay`: what an app could not handle, why, and sending it again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.options import AppName, ConfigFile, Format, Overrides, Shape, print_as

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millrace.dead_letters.letters import DeadLetterTable, Letter, Selection
    from millrace.dead_letters.replay import Summary
    from millrace.runtime.settings import AppSettings

app = typer.Typer(no_args_is_help=True, help="Dead letters of an app: list, look into, count, send again.")


Reasons = Annotated[list[str] | None, typer.Option("--reason", "-r", help="Of this reason; repeatable.")]
Stages = Annotated[list[str] | None, typer.Option("--stage", help="Of this stage; repeatable.")]
Processes = Annotated[list[str] | None, typer.Option("--process", help="Of this process; repeatable.")]
Digests = Annotated[list[str] | None, typer.Option("--digest", help="Of this error; `stats` has them.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", help="That came by this topic; repeatable.")]
Since = Annotated[
    str | None,
    typer.Option(help="Written since: a time, e.g. 2026-01-31T12:00 (UTC), or how long ago, e.g. 2h."),
]
Until = Annotated[str | None, typer.Option(help="Written before; as --since.")]
TableName = Annotated[
    str,
    typer.Option("--table", metavar="NAME", help="Table of dead letters, where an app has one per process."),
]


@app.command("list", epilog="Example: millrace dlq list fraud --reason malformed --since 2h")
def list_(
    name: AppName,
    reason: Reasons = None,
    stage: Stages = None,
    process: Processes = None,
    digest: Digests = None,
    topic: Topics = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the first ones.")] = 50,
    shape: Shape = Format.table,
    table_name: TableName = "dead_letters",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """One line per dead letter: id, time, reason, stage, position, error."""
    from itertools import islice

    from millrace.dead_letters.stats import at

    table = _table(_settings(name, config, overrides), table_name)
    chosen = _selection(reason, stage, process, digest, topic, since, until)
    columns = _without("value", "headers")
    shown = 0
    for letter in islice(table.read(chosen, columns=columns), limit):
        shown += 1
        if shape is Format.json:
            typer.echo(json.dumps(_as_data(letter, with_value=False), ensure_ascii=False))
        else:
            where = str(letter.position) if letter.position else "-"
            typer.echo(
                f"{letter.letter_id[:12]}  {at(letter.written_ms)}  {letter.reason:<15} {letter.stage:<8} "
                f"{where}  {_plain(letter.error)}"
            )
    if shape is Format.table:
        more = f", the first {limit}: --limit shows more" if shown == limit else ""
        typer.echo(f"{shown:,} dead letters{more}")


@app.command(epilog="Example: millrace dlq show fraud 4f1c")
def show(
    name: AppName,
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="Its id, or the first characters of it.")],
    shape: Shape = Format.table,
    raw: Annotated[bool, typer.Option("--raw", help="Only the original bytes, as they came.")] = False,
    table_name: TableName = "dead_letters",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Everything that is kept of one dead letter: error, position, key, headers, original bytes."""
    import sys

    from millrace.dead_letters.stats import at

    letter = _table(_settings(name, config, overrides), table_name).find(letter_id)
    if raw:
        sys.stdout.buffer.write(letter.value or b"")
        sys.stdout.buffer.flush()
        return
    data = _as_data(letter, with_value=True)
    if shape is Format.json:
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    data["written"] = at(letter.written_ms)
    for field in ("letter_id", "written", "reason", "stage", "process", "error", "error_digest", "key",
                  "kafka_key", "event_time_ms", "timestamp_ms", "position", "headers", "value"):  # fmt: skip
        if data.get(field) not in (None, ""):
            typer.echo(f"{field.replace('_', ' ')}: {_plain(data[field])}")


@app.command(epilog="Example: millrace dlq stats fraud")
def stats(
    name: AppName,
    reason: Reasons = None,
    stage: Stages = None,
    process: Processes = None,
    topic: Topics = None,
    since: Since = None,
    until: Until = None,
    top: Annotated[int, typer.Option(min=1, help="So many of the commonest errors.")] = 10,
    shape: Shape = Format.table,
    table_name: TableName = "dead_letters",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Counts by reason, by hour, and by the error behind them."""
    from dataclasses import asdict

    from millrace.dead_letters.stats import at, stats_of

    table = _table(_settings(name, config, overrides), table_name)
    chosen = _selection(reason, stage, process, None, topic, since, until)
    wanted = ("_event_id", "reason", "stage", "process", "error", "error_digest")
    found = stats_of(table.read(chosen, columns=wanted))
    hours = sorted(found.hours.items())
    if shape is Format.json:
        data = {
            "total": found.total,
            "reasons": dict(found.reasons),
            "stages": dict(found.stages),
            "hours": [{"hour": at(hour), "reason": why, "count": n} for (hour, why), n in hours],
            "errors": [asdict(group) for group in found.most(top)],
        }
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    typer.echo(f"{found.total:,} dead letters")
    for why, count in found.reasons.most_common():
        typer.echo(f"  {why:<16}{count:>10,}")
    for (hour, why), count in hours:
        typer.echo(f"{at(hour)[:13]}h  {why:<16}{count:>8,}")
    for group in found.most(top):
        typer.echo(
            f"{group.count:>8,}  {group.reason} in {group.process} {group.digest}  "
            f"{_plain(group.example)}  (e.g. {group.letter_id[:12]})"
        )


@app.command(epilog="Example: millrace dlq replay fraud --reason schema")
def replay(
    name: AppName,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="Only these.")] = None,
    reason: Reasons = None,
    stage: Stages = None,
    process: Processes = None,
    digest: Digests = None,
    topic: Topics = None,
    since: Since = None,
    until: Until = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    fix: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Gets a Letter, gives the bytes to send, or None."),
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="TOPIC", help="Send them there.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be sent; send nothing.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Also those that were sent before.")] = False,
    in_doubt: Annotated[
        bool, typer.Option("--in-doubt", help="Also those that a killed replay may have sent.")
    ] = False,
    most: Annotated[int, typer.Option(min=1, help="Leave what was replayed so often already.")] = 3,
    table_name: TableName = "dead_letters",
    config: ConfigFile = None,
    overrides: Overrides = None,
    shape: Shape = Format.table,
) -> None:
    """Send dead letters to the topic that they came by, each once; every replay is recorded.

    Exit codes: 0 all were sent, 1 some could not be sent, 2 something you can put right.
    """
    from millrace.dead_letters.replay import Plan, load_fix
    from millrace.errors import UserError
    from millrace.operations.acting import acting
    from millrace.operations.roster import Role

    settings = _settings(name, config, overrides)
    if not dry_run:
        acting(settings, Role.decide)
    chosen = _selection(reason, stage, process, digest, topic, since, until, ids)
    if chosen.is_everything and not everything:
        raise UserError("say which ones: ids, --reason, --since …, or --all")
    plan = Plan(fix=load_fix(fix) if fix else None, to=to, again=again, in_doubt=in_doubt, most=most)
    summary = (
        _preview(settings, chosen, plan, table_name, shape)
        if dry_run
        else _replay(settings, chosen, plan, table_name)
    )
    lines = [f"left out {count:,}: {why}" for why, count in sorted(summary.skipped.items())]
    for letter_id, why in list(summary.failed.items())[:20]:
        typer.echo(f"failed {letter_id[:12]}: {_plain(why)}", err=True)
    fixed = f", {summary.fixed:,} of them fixed" if summary.fixed else ""
    done = "would be sent" if dry_run else "sent"
    told = "" if dry_run else f"; {summary.from_kafka:,} with key and headers as Kafka has them"
    lines.append(
        f"{name}: {summary.sent:,} of {summary.seen:,} {done}{fixed}{told}; {len(summary.failed):,} failed"
    )
    found = {"app": name, "dry_run": dry_run, "seen": summary.seen, **asdict(summary)}
    print_as(shape, found, lambda: "\n".join(lines))
    if summary.failed:
        raise typer.Exit(1)


def _preview(settings: AppSettings, chosen: Selection, plan: Any, name: str, shape: Format) -> Summary:
    from millrace.dead_letters.journal import TABLE, Journal
    from millrace.dead_letters.replay import Replay, shown

    journal = Journal(settings.storage.path("tables", TABLE), "dry-run")
    records, summary = Replay(plan, journal, now=_now_ms).preview(_table(settings, name).read(chosen))
    if shape is Format.json:
        return summary
    for record in records:
        typer.echo(_plain(shown(record)))
    if summary.sent > len(records):
        typer.echo(f"… and {summary.sent - len(records):,} more")
    return summary


def _replay(settings: AppSettings, chosen: Selection, plan: Any, name: str) -> Summary:
    import uuid

    from millrace.dead_letters.journal import TABLE, Journal
    from millrace.dead_letters.kafka import KafkaOriginals, KafkaSender
    from millrace.dead_letters.replay import Replay
    from millrace.operations.sending import reachable

    table = _table(settings, name)
    bootstrap, options = reachable(settings.kafka), _options(settings)
    journal = Journal(settings.storage.path("tables", TABLE), uuid.uuid4().hex)
    originals = KafkaOriginals(bootstrap, options)
    try:
        return Replay(plan, journal, originals, now=_now_ms).run(
            table.read(chosen),
            KafkaSender(bootstrap, options),
            lambda so_far: typer.echo(f"{so_far.sent:,} sent, {len(so_far.failed):,} failed", err=True),
        )
    finally:
        originals.close()


def _selection(
    reason: list[str] | None,
    stage: list[str] | None,
    process: list[str] | None,
    digest: list[str] | None,
    topic: list[str] | None,
    since: str | None,
    until: str | None,
    ids: list[str] | None = None,
) -> Selection:
    from millrace.dead_letters.letters import SHORTEST_PREFIX, Selection
    from millrace.errors import UserError

    for one in ids or ():
        if len(one) < SHORTEST_PREFIX:
            raise UserError(f"'{one}' is too short: give at least {SHORTEST_PREFIX} characters of an id")
    return Selection(
        ids=tuple(ids or ()),
        reasons=tuple(reason or ()),
        stages=tuple(stage or ()),
        processes=tuple(process or ()),
        digests=tuple(digest or ()),
        topics=tuple(topic or ()),
        since_ms=_time(since),
        until_ms=_time(until),
    )


def _time(text: str | None) -> int | None:
    """Return a time that is given as such, or as how long ago; UTC milliseconds."""
    from datetime import UTC, datetime

    from millrace.errors import UserError
    from millrace.time import ms
    from millrace.time.durations import DurationError, parse_duration

    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        try:
            return _now_ms() - ms(parse_duration(text))
        except DurationError as error:
            raise UserError(f"'{text}' is neither a time (2026-01-31T12:00) nor a duration (2h)") from error
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _now_ms() -> int:
    import time

    return time.time_ns() // 1_000_000


def _settings(name: str, config: Path | None, overrides: list[str] | None) -> AppSettings:
    from millrace.runtime.commands import settings_of

    return settings_of(name, config, overrides)


def _table(settings: AppSettings, name: str) -> DeadLetterTable:
    from millrace.dead_letters.letters import DeadLetterTable

    return DeadLetterTable(settings.storage.path("tables", name))


def _options(settings: AppSettings) -> Mapping[str, str]:
    return dict(settings.kafka.options)


def _without(*columns: str) -> tuple[str, ...]:
    from millrace.dead_letters.letters import COLUMNS

    return tuple(name for name in COLUMNS if name not in columns)


def _plain(found: Any) -> str:
    r"""Return what came as text without control characters, line by line: it must not steer the terminal.

    >>> _plain("one\r\n\ttwo \x1b[2J")
    'one\n        two ?[2J'
    """
    from millrace.console.live_panels import clean

    return "\n".join(clean(line.expandtabs()) for line in str(found).replace("\r\n", "\n").split("\n"))


def _as_data(letter: Letter, *, with_value: bool) -> dict[str, Any]:
    """Return a dead letter as plain values; bytes that are no text are escaped."""
    import msgspec

    data = {
        f: getattr(letter, f) for f in letter.__struct_fields__ if with_value or f not in ("value", "headers")
    }
    data["position"] = str(letter.position) if letter.position else None
    if letter.kafka_key is not None:
        data["kafka_key"] = letter.kafka_key.decode(errors="backslashreplace")
    if with_value and letter.value is not None:
        data["value"] = letter.value.decode(errors="backslashreplace")
    if with_value and letter.headers:
        data["headers"] = (
            msgspec.json.decode(letter.headers) if letter.headers.startswith("{") else letter.headers
        )
    return data
