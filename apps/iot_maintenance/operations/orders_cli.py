"""`millrace iot orders …`: work that is planned on components, and whether it was done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.options import Bootstrap, By, Format, Overrides, Root, Shape
from millrace_apps.iot_maintenance.operations.cli_rows import print_rows, utc

if TYPE_CHECKING:
    from collections.abc import Callable

orders = typer.Typer(no_args_is_help=True, help="Work orders: plan maintenance, and see what became of it.")

Machine = Annotated[str, typer.Argument(help="The machine, e.g. p01-l01-m001.")]
Component = Annotated[str, typer.Argument(help="The component that is to be replaced, e.g. bearing.")]
Comment = Annotated[str, typer.Option("--reason", help="Why; stands in the history.")]
At = Annotated[str | None, typer.Option(help="When it is said, by the clock of the events (ms or ISO 8601).")]


@orders.command("list")
def list_orders(
    every: Annotated[bool, typer.Option("--all", help="Those too that are done or cancelled.")] = False,
    machine: Annotated[str | None, typer.Option(help="Only of this machine.")] = None,
    shape: Shape = Format.table,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """The work that is planned, begun or overdue, the soonest first.

    Example: millrace iot orders list --machine p01-l01-m001
    """
    from millrace_apps.iot_maintenance.operations.operating import read_table, settings_of
    from millrace_apps.iot_maintenance.processes.orders import open_orders_of

    rows = read_table(settings_of(None, root, overrides), "work_orders")
    if not every:
        rows = [dict(row) for row in open_orders_of(rows)]
    rows = [r for r in rows if machine is None or r["machine_id"] == machine]
    names: dict[str, Callable[[dict[str, Any]], Any]] = {
        "machine": lambda r: r["machine_id"],
        "component": lambda r: r["component"],
        "state": lambda r: r["state"],
        "begin": lambda r: utc(r["start_ms"]),
        "end": lambda r: utc(r["end_ms"]),
        "by": lambda r: r["operator"],
        "why": lambda r: r["comment"] + (f" ({r['reason']})" if r["reason"] else ""),
    }
    print_rows("orders", rows, names, shape is Format.json)


@orders.command()
def plan(
    machine: Machine,
    component: Component,
    start: Annotated[
        str | None, typer.Option(help="When the work begins (ms or ISO 8601). Default: at once.")
    ] = None,
    for_: Annotated[str, typer.Option("--for", help="How long it takes, e.g. 2h.")] = "1h",
    suppress: Annotated[
        bool, typer.Option("--suppress", help="Suppress the machine's alarms meanwhile.")
    ] = False,
    by: By = None,
    comment: Comment = "",
    role: Annotated[str, typer.Option(help="As what, where a rule says who may suppress its alarms.")] = "",
    at: At = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Plan work on a component, or move what is planned; a replacement of it (iot.maintenance) ends it.

    Example: millrace iot orders plan p01-l01-m001 bearing --for 2h --suppress --reason "new bearing"
    """
    from millrace.operations.sending import who
    from millrace.time.durations import to_ms
    from millrace.time.moments import to_time_ms
    from millrace_apps.iot_maintenance.operations.operating import plan_of, send_action, settings_of

    settings = settings_of(bootstrap, root, overrides)
    action = plan_of(
        settings,
        machine,
        component,
        operator=who(by, settings),
        start_ms=None if start is None else to_time_ms(start),
        at_ms=None if at is None else to_time_ms(at),
        duration_ms=to_ms(for_),
        comment=comment,
        suppress=suppress,
        role=role,
    )
    send_action(settings, action)
    begin = action.event_time_ms if action.start_ms is None else action.start_ms
    typer.echo(f"work on {component} of {machine} sent, for {utc(begin)}")


@orders.command()
def cancel(
    machine: Machine,
    component: Component,
    by: By = None,
    comment: Comment = "",
    at: At = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Cancel the work that is planned on a component.

    Example: millrace iot orders cancel p01-l01-m001 bearing --reason "moved to the next stop"
    """
    from millrace.operations.sending import who
    from millrace.time.moments import to_time_ms
    from millrace_apps.iot_maintenance.operations.operating import cancel_of, send_action, settings_of

    settings = settings_of(bootstrap, root, overrides)
    when = None if at is None else to_time_ms(at)
    operator = who(by, settings)
    send_action(
        settings, cancel_of(settings, machine, component, operator=operator, at_ms=when, comment=comment)
    )
    typer.echo(f"cancelling work on {component} of {machine} sent")
