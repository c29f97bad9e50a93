"""`millrace iot …`: alarms and what operators do to them, rules, devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.cli.options import Bootstrap, By, Format, Overrides, Root, Shape
from millrace.cli.rules import commands_of
from millrace_apps.iot_maintenance.contracts.events import Verb
from millrace_apps.iot_maintenance.operations.cli_rows import print_rows, utc
from millrace_apps.iot_maintenance.operations.health_cli import app as health
from millrace_apps.iot_maintenance.operations.notify_cli import notify
from millrace_apps.iot_maintenance.operations.orders_cli import orders
from millrace_apps.iot_maintenance.operations.register_cli import register

app = typer.Typer(no_args_is_help=True, help="Machines: alarms, rules, devices.")
alarms = typer.Typer(no_args_is_help=True, help="Alarms: list them, and act on them.")
app.add_typer(alarms, name="alarms")
app.add_typer(health, name="health")
app.add_typer(commands_of("iot"), name="rules")

Alarm = Annotated[
    str,
    typer.Argument(metavar="ALARM", help="Entity and alarm, as `list` has it, e.g. m7:overspeed/speed."),
]
For = Annotated[
    str, typer.Option("--for", help="How long, e.g. 30m; 0: shelved once, suppressed until unsuppress.")
]
Comment = Annotated[str, typer.Option("--reason", help="Why; stands in the history.")]
Role = Annotated[str, typer.Option(help="As what, where a rule says who may.")]
At = Annotated[str | None, typer.Option(help="When, by the clock of the events (ms or ISO 8601).")]


@alarms.command("list", epilog="Example: millrace iot alarms list --entity p01-l01-m001")
def list_alarms(
    every: Annotated[bool, typer.Option("--all", help="Those too that operators are not told of.")] = False,
    entity: Annotated[str | None, typer.Option(help="Only of this machine, line or plant.")] = None,
    shape: Shape = Format.table,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """The alarms that matter now: active, or to be acknowledged, confirmed or reset."""
    from millrace_apps.iot_maintenance.alarms.rule import SEVERITIES
    from millrace_apps.iot_maintenance.operations.operating import read_table, settings_of

    rows = [
        row
        for row in read_table(settings_of(None, root, overrides), "alarms")
        if (every or (row["retain"] and not row["shadow"]))
        and (entity is None or entity in (row["entity_id"], row["line_id"], row["plant_id"]))
    ]
    rows.sort(key=lambda r: (-SEVERITIES.index(r["severity"]), r["acked"], r["event_time_ms"]))
    names = {
        "alarm": lambda r: r["alarm_id"],
        "severity": lambda r: r["severity"],
        "state": _state,
        "since": lambda r: utc(r["active_since_ms"] or r["event_time_ms"]),
        "value": lambda r: "" if r["value"] is None else f"{r['value']:,.3g}",
        "what": lambda r: r["title"] + (f" ({r['reason']})" if r["reason"] else ""),
    }
    print_rows("alarms", rows, names, shape is Format.json)


@alarms.command(epilog="Example: millrace iot alarms history p01-l01-m001:overspeed/speed --last 20")
def history(
    alarm: Alarm,
    last: Annotated[int, typer.Option(min=1, help="So many of the newest changes.")] = 50,
    shape: Shape = Format.table,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """What happened to an alarm."""
    from millrace_apps.iot_maintenance.operations.operating import read_table, settings_of

    rows = [
        r for r in read_table(settings_of(None, root, overrides), "alarm_history") if r["alarm_id"] == alarm
    ]
    rows.sort(key=lambda r: (r["event_time_ms"], r["number"]))
    names = {
        "at": lambda r: utc(r["event_time_ms"]),
        "change": lambda r: r["change"],
        "severity": lambda r: r["severity"],
        "state": _state,
        "by": lambda r: r["operator"],
        "why": lambda r: r["comment"] or r["reason"],
    }
    print_rows(alarm, rows[-last:], names, shape is Format.json)


def _act(
    verb: Verb,
    alarm: str,
    *,
    by: str | None,
    comment: str,
    at: str | None,
    duration: str = "0",
    role: str = "",
    bootstrap: str | None,
    root: Path | None,
    overrides: list[str] | None,
) -> None:
    """Send an action on an alarm."""
    from millrace.operations.sending import who
    from millrace.time.durations import to_ms
    from millrace.time.moments import to_time_ms
    from millrace_apps.iot_maintenance.operations.operating import action_on, send_action, settings_of

    settings = settings_of(bootstrap, root, overrides)
    action = action_on(
        settings,
        verb,
        alarm,
        operator=who(by, settings),
        at_ms=None if at is None else to_time_ms(at),
        duration_ms=to_ms(duration),
        comment=comment,
        role=role,
    )
    send_action(settings, action)
    typer.echo(f"{verb} of {alarm} sent, for {utc(action.event_time_ms)}")


def _add(verb: Verb, help_text: str, *, timed: bool = False) -> None:
    """Add the command of a verb."""

    def plain(
        alarm: Alarm,
        by: By = None,
        comment: Comment = "",
        role: Role = "",
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
            role=role,
            at=at,
            bootstrap=bootstrap,
            root=root,
            overrides=overrides,
        )

    def with_time(
        alarm: Alarm,
        for_: For = "0",
        by: By = None,
        comment: Comment = "",
        role: Role = "",
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
            role=role,
            at=at,
            duration=for_,
            bootstrap=bootstrap,
            root=root,
            overrides=overrides,
        )

    command: Callable[..., None] = with_time if timed else plain
    name = verb.replace("_", "-")
    example = f"Example: millrace iot alarms {name} p01-l01-m001:worn --reason 'seen on the round'"
    alarms.command(name, help=help_text, epilog=example + (" --for 2h" if timed else ""))(command)


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
_add("comment", "Add a comment, told by --reason, to its history.")


app.command()(notify)
app.command()(register)
app.add_typer(orders, name="orders")


@app.command(epilog="Example: millrace iot devices --silent")
def devices(
    silent: Annotated[bool, typer.Option("--silent", help="Only those that are silent now.")] = False,
    shape: Shape = Format.table,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Sensors, machines and gateways that have fallen silent or come back, as last told."""
    from millrace_apps.iot_maintenance.operations.operating import read_table, settings_of

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
        "at": lambda r: utc(r["event_time_ms"]),
        "last heard": lambda r: utc(r["last_heard_ms"]),
    }
    print_rows("devices", rows, names, shape is Format.json)


def _state(row: dict[str, Any]) -> str:
    """Return the state of an alarm in a few words."""
    words = ["active" if row["active"] else "inactive"]
    words += ["unacknowledged"] * (not row["acked"]) + ["unconfirmed"] * (not row["confirmed"])
    words += [name for name in ("latched", "suppressed", "shadow") if row[name]]
    words += [f"shelved ({row['shelved']})"] * bool(row["shelved"])
    words += ["out of service"] * row["out_of_service"] + ["first"] * row["first_in_group"]
    return ", ".join(words)
