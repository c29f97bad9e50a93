"""`millrace iot …`: alarms and what operators do to them, rules, devices."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from apps.iot_maintenance.events import Verb
from millrace.cli.options import Overrides
from millrace.errors import UserError

if TYPE_CHECKING:
    from apps.iot_maintenance.alarms.rule import AlarmRule

app = typer.Typer(no_args_is_help=True, help="Machines: alarms, rules, devices.")
alarms = typer.Typer(no_args_is_help=True, help="Alarms: list them, and act on them.")
rules = typer.Typer(no_args_is_help=True, help="Alarm rules: check, publish, change, look.")
app.add_typer(alarms, name="alarms")
app.add_typer(rules, name="rules")

Bootstrap = Annotated[str | None, typer.Option(help="Kafka broker (host:port).")]
Root = Annotated[Path | None, typer.Option(help="The app's folder; default its storage.root.")]
By = Annotated[str | None, typer.Option(help="Who does it; default the user of this session.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON lines.")]
Alarm = Annotated[
    str,
    typer.Argument(metavar="ALARM", help="Entity and alarm, as `list` has it, e.g. m7:overspeed/speed."),
]
For = Annotated[
    str, typer.Option("--for", help="How long, e.g. 30m; 0: shelved once, suppressed until unsuppress.")
]
Comment = Annotated[str, typer.Option("--comment", "-m", help="Why.")]
At = Annotated[str | None, typer.Option(help="When, by the clock of the events (ms or ISO 8601).")]


@alarms.command("list")
def list_alarms(
    every: Annotated[bool, typer.Option("--all", help="Those too that operators are not told of.")] = False,
    entity: Annotated[str | None, typer.Option(help="Only of this machine, line or plant.")] = None,
    as_json: Json = False,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """The alarms that matter now: active, or to be acknowledged, confirmed or reset."""
    from apps.iot_maintenance.alarms.rule import SEVERITIES
    from apps.iot_maintenance.sending import read_table, settings_of

    rows = [
        row
        for row in read_table(settings_of(None, root, overrides), "alarms")
        if (every or (row["retain"] and not row["shadow"]))
        and (entity is None or row["entity_id"] == entity or row["entity_id"].startswith(f"{entity}-"))
    ]
    rows.sort(key=lambda r: (-SEVERITIES.index(r["severity"]), r["acked"], r["event_time_ms"]))
    names = {
        "alarm": lambda r: r["alarm_id"],
        "severity": lambda r: r["severity"],
        "state": _state,
        "since": lambda r: _clock(r["active_since_ms"] or r["event_time_ms"]),
        "value": lambda r: "" if r["value"] is None else f"{r['value']:,.3g}",
        "what": lambda r: r["title"] + (f" ({r['reason']})" if r["reason"] else ""),
    }
    _print("alarms", rows, names, as_json)


@alarms.command()
def history(
    alarm: Alarm,
    last: Annotated[int, typer.Option(min=1, help="So many of the newest changes.")] = 50,
    as_json: Json = False,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """What happened to an alarm."""
    from apps.iot_maintenance.sending import read_table, settings_of

    rows = [
        r for r in read_table(settings_of(None, root, overrides), "alarm_history") if r["alarm_id"] == alarm
    ]
    rows.sort(key=lambda r: (r["event_time_ms"], r["number"]))
    names = {
        "at": lambda r: _clock(r["event_time_ms"]),
        "change": lambda r: r["change"],
        "severity": lambda r: r["severity"],
        "state": _state,
        "by": lambda r: r["operator"],
        "why": lambda r: r["comment"] or r["reason"],
    }
    _print(alarm, rows[-last:], names, as_json)


def _act(
    verb: Verb,
    alarm: str,
    *,
    by: str | None,
    comment: str,
    at: str | None,
    duration: str = "0",
    bootstrap: str | None,
    root: Path | None,
    overrides: list[str] | None,
) -> None:
    """Send an action on an alarm."""
    from apps.iot_maintenance.events import Action
    from apps.iot_maintenance.sending import events_now_ms, produce, settings_of, who
    from millrace.time.durations import to_ms

    entity, colon, name = alarm.partition(":")
    if not (entity and colon and name):
        raise UserError(f"'{alarm}' names no alarm: write ENTITY:ALARM, or ENTITY:* for all of a machine")
    settings = settings_of(bootstrap, root, overrides)
    when = events_now_ms(settings) if at is None else _time_ms(at)
    action = Action(uuid.uuid4().hex, entity, name, verb, when, who(by), to_ms(duration), comment)
    produce(settings, settings.topics.actions, [(entity, action)])
    typer.echo(f"{verb} of {alarm} sent, for {_clock(when)}")


def _add(verb: Verb, help_text: str, *, timed: bool = False) -> None:
    """Add the command of a verb."""

    def plain(
        alarm: Alarm,
        by: By = None,
        comment: Comment = "",
        at: At = None,
        bootstrap: Bootstrap = None,
        root: Root = None,
        overrides: Overrides = None,
    ) -> None:
        _act(verb, alarm, by=by, comment=comment, at=at, bootstrap=bootstrap, root=root, overrides=overrides)

    def with_time(
        alarm: Alarm,
        for_: For = "0",
        by: By = None,
        comment: Comment = "",
        at: At = None,
        bootstrap: Bootstrap = None,
        root: Root = None,
        overrides: Overrides = None,
    ) -> None:
        _act(
            verb,
            alarm,
            by=by,
            comment=comment,
            at=at,
            duration=for_,
            bootstrap=bootstrap,
            root=root,
            overrides=overrides,
        )

    command: Callable[..., None] = with_time if timed else plain
    alarms.command(verb.replace("_", "-"), help=help_text)(command)


_add("ack", "Acknowledge: somebody has seen it.")
_add("confirm", "Confirm that what was acknowledged has been dealt with.")
_add("shelve", "Do not tell operators for a time, or until it is over.", timed=True)
_add("unshelve", "End shelving.")
_add("suppress", "Suppress it, e.g. for maintenance; ENTITY:* for all.", timed=True)
_add("unsuppress", "End suppression.")
_add("out_of_service", "Take it out of use.")
_add("in_service", "Put it back into use.")
_add("reset", "Reset a latched alarm that is inactive.")
_add("silence", "Turn its horn off.")
_add("comment", "Add a comment to its history.")


@app.command()
def devices(
    silent: Annotated[bool, typer.Option("--silent", help="Only those that are silent now.")] = False,
    as_json: Json = False,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Sensors, machines and gateways that have fallen silent or come back, as last told."""
    from apps.iot_maintenance.sending import read_table, settings_of

    last: dict[str, dict[str, Any]] = {}
    for row in read_table(settings_of(None, root, overrides), "liveness"):
        before = last.get(row["device_id"])
        if before is None or before["event_time_ms"] <= row["event_time_ms"]:
            last[row["device_id"]] = row
    rows = [r for _, r in sorted(last.items()) if not silent or r["state"] == "silent"]
    names = {
        "device": lambda r: r["device_id"],
        "kind": lambda r: r["device_kind"],
        "state": lambda r: r["state"],
        "cause": lambda r: r["cause"],
        "at": lambda r: _clock(r["event_time_ms"]),
        "last heard": lambda r: _clock(r["last_heard_ms"]),
    }
    _print("devices", rows, names, as_json)


RuleFile = Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON: a list of alarm rules.")]


@rules.command()
def validate(file: RuleFile) -> None:
    """Check a file of rules: fields, levels, delays, expressions."""
    typer.echo(f"{len(_read(file))} rules are right")


@rules.command()
def publish(
    file: RuleFile,
    state: Annotated[str, typer.Option(help="draft, shadow or active.")] = "shadow",
    from_: Annotated[
        str | None, typer.Option("--from", help="Event time from which on (ms or ISO 8601); default at once.")
    ] = None,
    by: By = None,
    only: Annotated[list[str] | None, typer.Option(help="Only the rule of this id; may be repeated.")] = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Publish new versions of rules; those that say what the newest version says are left out.

    With --from they change at that event time, in a replay too; without, with the batch that brings them.
    """
    import time

    import msgspec

    from apps.iot_maintenance.sending import next_version, produce, published, settings_of, who
    from millrace.rules import PublishRule, Rule

    if state not in ("draft", "shadow", "active"):
        raise UserError(f"there is no state '{state}' to begin in; there are draft, shadow and active")
    found = [rule for rule in _read(file) if not only or rule.id in only]
    settings = settings_of(bootstrap, root, overrides)
    book = published(settings)
    begins, now = 0 if from_ is None else _time_ms(from_), int(time.time() * 1000)
    events = []
    for rule in found:
        written = Rule(rule.id, msgspec.json.encode(rule).decode(), owner=who(by), description=rule.title)
        kept = book.get(rule.id)
        if kept and kept.versions[-1].rule.when == written.when:
            typer.echo(f"{rule.id}: unchanged, version {kept.versions[-1].number}")
            continue
        start = cast(Literal["draft", "shadow", "active"], state)
        events.append(PublishRule(written, next_version(book, rule.id), who(by), now, start, begins))
    produce(settings, settings.topics.control, [("", event) for event in events])
    for event in events:
        typer.echo(f"{event.rule.id}: version {event.version}, {state}")


@rules.command("set")
def set_state(
    rule: Annotated[str, typer.Argument(metavar="RULE", help="Its id.")],
    state: Annotated[str, typer.Argument(help="shadow, active, paused or deleted.")],
    version: Annotated[int | None, typer.Option(help="Which version; default the newest.")] = None,
    from_: Annotated[str | None, typer.Option("--from", help="Event time from which on.")] = None,
    by: By = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Bring a published rule to another state."""
    import time

    from apps.iot_maintenance.sending import produce, published, settings_of, who
    from millrace.rules import SetRuleState, State

    if state not in ("shadow", "active", "paused", "deleted"):
        raise UserError(f"there is no state '{state}'; there are shadow, active, paused and deleted")
    settings = settings_of(bootstrap, root, overrides)
    kept = published(settings).get(rule)
    if kept is None:
        raise UserError(f"there is no published rule '{rule}'; see `millrace iot rules list`")
    number = version or kept.versions[-1].number
    begins, now = 0 if from_ is None else _time_ms(from_), int(time.time() * 1000)
    event = SetRuleState(rule, number, cast(State, state), who(by), now, begins)
    produce(settings, settings.topics.control, [("", event)])
    typer.echo(f"{rule}: version {number} is {state}")


@rules.command("list")
def list_rules(bootstrap: Bootstrap = None, overrides: Overrides = None) -> None:
    """The rules of the app's file, and those that have been published."""
    from apps.iot_maintenance.alarms.book import read_rules
    from apps.iot_maintenance.sending import published, settings_of

    settings = settings_of(bootstrap, None, overrides)
    rows: list[dict[str, Any]] = []
    book = published(settings) if settings.kafka.bootstrap else {}
    for rule in read_rules(Path(settings.monitor.fleet)):
        rows.append({"rule": rule.id, "version": "file", "state": "active", "by": "", "title": rule.title})
    for name, entry in sorted(book.items()):
        for version in entry.versions:
            state = version.plan[-1].state
            row = {"rule": name, "version": version.number, "state": state, "by": version.rule.owner}
            rows.append({**row, "title": version.rule.description})
    names = {key: _field(key) for key in ("rule", "version", "state", "by", "title")}
    _print("rules", rows, names, as_json=False)


@rules.command()
def language(
    source: Annotated[str, typer.Argument(help="reading, machine or error.")] = "reading",
    quantities: Annotated[list[str] | None, typer.Argument(help="Of machine: the rule's quantities.")] = None,
) -> None:
    """What expressions of a rule can say: fields and functions."""
    from apps.iot_maintenance.alarms.rule import language as words

    if source not in ("reading", "machine", "error"):
        raise UserError(f"there is no source '{source}'; there are reading, machine and error")
    for text, kind, about in words(cast(Any, source), tuple(quantities or ())).describe():
        typer.echo(f"{text:<40} {kind:<20} {about}")


def _read(file: Path) -> list[AlarmRule]:
    from apps.iot_maintenance.alarms.book import read_rules

    return read_rules(file)


def _field(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row[name]


def _state(row: dict[str, Any]) -> str:
    """Return the state of an alarm in a few words."""
    words = ["active" if row["active"] else "inactive"]
    words += ["unacknowledged"] * (not row["acked"]) + ["unconfirmed"] * (not row["confirmed"])
    words += [name for name in ("latched", "suppressed", "shadow") if row[name]]
    words += [f"shelved ({row['shelved']})"] * bool(row["shelved"])
    words += ["out of service"] * row["out_of_service"] + ["first"] * row["first_in_group"]
    return ", ".join(words)


def _clock(at: int | None) -> str:
    from datetime import UTC, datetime

    return "" if at is None else f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _time_ms(text: str) -> int:
    from datetime import UTC, datetime

    if text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"'{text}' is no time: write ms since the epoch, or 2026-01-31T12:00") from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _print(
    title: str, rows: list[dict[str, Any]], names: dict[str, Callable[[dict[str, Any]], Any]], as_json: bool
) -> None:
    if as_json:
        import msgspec

        for row in rows:
            typer.echo(msgspec.json.encode(row).decode())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for name in names:
        table.add_column(name)
    for row in rows:
        table.add_row(*(str(show(row)) for show in names.values()))
    Console().print(table if rows else f"{title}: none")
