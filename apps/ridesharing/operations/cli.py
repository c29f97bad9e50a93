"""`millrace ridesharing …`: the audit of the tables, and what operators do by hand."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.options import Bootstrap, By, Overrides, Root
from millrace.errors import ChecksFailed, UserError
from millrace.operations.sending import who
from millrace.time.moments import to_time_ms
from millrace_apps.ridesharing.operations.options import From, Why, settings_of
from millrace_apps.ridesharing.operations.venues_cli import app as venues_app

if TYPE_CHECKING:
    import pandas as pd

    from millrace_apps.ridesharing.contracts.events import Action
    from millrace_apps.ridesharing.processes.matching import Policy
    from millrace_apps.ridesharing.settings import RidesharingSettings

app = typer.Typer(help="Audit the tables; assign, cancel, block by hand.", no_args_is_help=True)
surge_app = typer.Typer(help="How far prices follow scarcity.", no_args_is_help=True)
app.add_typer(surge_app, name="surge")
app.add_typer(venues_app, name="venues")

#: Tables of the audit, and the columns that it reads.
_TABLES = ("assignments", "trips", "offers", "windows")


class PolicyName(StrEnum):
    """How a window is decided."""

    fifo = "fifo"
    nearest = "nearest"
    optimal = "optimal"


Zone = Annotated[str, typer.Option(help="Zone of the request; left out, it is looked up in the tables.")]
At = Annotated[str | None, typer.Option(help="Event time, e.g. 2026-01-02T16:00Z; left out, now.")]
For = Annotated[str, typer.Option("--for", help="How long, e.g. 30m.")]


@app.command(epilog="Example: millrace ridesharing audit --out audit.json")
def audit(
    root: Root = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The findings, as JSON.")] = None,
) -> None:
    """Check everything that was written against the invariants; exit code 1 if one does not hold."""
    from rich.console import Console
    from rich.table import Table

    from millrace.operations.report import write
    from millrace_apps.ridesharing.operations.audit import INVARIANTS
    from millrace_apps.ridesharing.operations.audit import audit as check

    settings = settings_of(overrides)
    folder = _folder(root, settings)
    tables = {name: read_table(folder, name) for name in _TABLES}
    told = settings.dispatch_config()
    found = check(tables, patience_ms=told.patience_ms, rules=told.rules)
    streaming = len(read_table(folder, "violations"))
    console = Console(markup=False)
    table = Table("invariant", "what it says", "violations", title=f"audit of {folder}")
    for number, text in INVARIANTS.items():
        table.add_row(str(number), text, f"{found.by_invariant[number]:,}")
    table.add_row("", "alarms of the streaming auditor", f"{streaming:,}")
    console.print(table)
    console.print(", ".join(f"{n:,} rows of {name}" for name, n in found.checked.items()))
    for example in found.examples:
        console.print(f"  {example}", highlight=False)
    report = {
        "violations": found.count + streaming,
        "by_invariant": {str(n): c for n, c in found.by_invariant.items()},
        "alarms": streaming,
        "examples": found.examples,
        "checked": found.checked,
    }
    write(out, report)
    if found.count or streaming:
        raise ChecksFailed(f"{found.count + streaming:,} violations")


@app.command()
def audit_topics(
    since: Annotated[
        str | None, typer.Option(help="Judge requests and offers from this event time on; default all.")
    ] = None,
    settle: Annotated[
        str, typer.Option(help="What happened so long before the end may be on its way still.")
    ] = "2m",
    skew: Annotated[
        str, typer.Option(help="Records that came within so long may have been read in another order.")
    ] = "200ms",
    out: Annotated[Path | None, typer.Option(help="The findings, as JSON.")] = None,
    bootstrap: Bootstrap = None,
    overrides: Overrides = None,
) -> None:
    """Hold what the app said on its topics against all that came in; exit code 1 if something does not hold.

    Where drivers were, how old that was, what they were free for, and what should have come of each event is
    found anew from the topics alone. Settings must be those that the app runs with.

    Example: millrace ridesharing audit-topics --since 2026-01-02T16:00Z --out audit.json
    """
    from millrace.operations.report import write
    from millrace.time.durations import to_ms
    from millrace_apps.ridesharing.topic_audit.reading import read_evidence
    from millrace_apps.ridesharing.topic_audit.report import audit_topics as check
    from millrace_apps.ridesharing.topic_audit.text import show

    settings = settings_of(overrides, bootstrap)
    since_ms = None if since is None else to_time_ms(since)
    evidence = read_evidence(settings, since_ms=since_ms, margin_ms=to_ms(skew))
    if not evidence.counts["requests"]:
        raise UserError(
            f"nobody has asked for a ride on {settings.topics.requests}: there is nothing to audit"
        )
    audited = check(evidence, since_ms=since_ms, settle_ms=to_ms(settle))
    write(out, audited.to_json())
    show(audited)
    if audited.count:
        raise ChecksFailed(f"{audited.count:,} violations")


@app.command(epilog="Example: millrace ridesharing policy optimal --by ann")
def policy(
    name: Annotated[PolicyName, typer.Argument(help="How windows are decided from now on.")],
    start: From = None,
    reason: Annotated[str, typer.Option("--reason", help="Why: stands in the trail.")] = "",
    by: By = None,
    bootstrap: Bootstrap = None,
    overrides: Overrides = None,
) -> None:
    """Switch the policy of all regions while the app runs; who did it stands in the table operations."""
    from millrace_apps.ridesharing.operations.commanding import policy_of, send_control

    settings = settings_of(overrides, bootstrap)
    event = policy_of(name.value, who(by, settings), reason, to_time_ms(start) if start else 0)
    send_control(settings, event)
    typer.echo(f"policy {name.value}" + (f" from {start}" if start else ""))


@app.command(epilog="Example: millrace ridesharing shadows fifo --by ann")
def shadows(
    names: Annotated[list[PolicyName] | None, typer.Argument(help="None: turn them off.")] = None,
    by: By = None,
    bootstrap: Bootstrap = None,
    overrides: Overrides = None,
) -> None:
    """Choose the policies that are computed beside the one in force."""
    from millrace_apps.ridesharing.contracts.events import SetShadows
    from millrace_apps.ridesharing.operations.commanding import send_control

    chosen: list[Policy] = [name.value for name in names or ()]
    settings = settings_of(overrides, bootstrap)
    who(by, settings)
    send_control(settings, SetShadows(chosen))
    typer.echo(f"shadows: {', '.join(chosen) or 'none'}")


@app.command(epilog="Example: millrace ridesharing switchback -s experiment.name=matching --out report.json")
def switchback(
    root: Root = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The comparison, as JSON.")] = None,
) -> None:
    """Compare the two policies that take turns in each region (settings experiment.*), block by block.

    Intervals are those of differences between blocks, with 95 %, made for one look. Settings must be those
    that the app runs with.
    """
    from rich.console import Console
    from rich.table import Table

    from millrace.operations.report import write
    from millrace_apps.ridesharing.operations.switchbacks import compare_trips

    settings = settings_of(overrides)
    plan = settings.experiment.plan()
    if plan is None:
        raise UserError("no policies take turns: set experiment.name, as for the app")
    folder = _folder(root, settings)
    trips, windows = (read_table(folder, name).to_dict("records") for name in ("trips", "windows"))
    found = compare_trips(plan, trips, windows)  # type: ignore[arg-type]
    title = f"{plan.name}: {plan.arms[1]} beside {plan.arms[0]}"
    table = Table("", *plan.arms, "difference", "95 %", "pairs", title=title)
    for name in ("wait_s", "served_share"):
        of = found[name]
        ends = "too few blocks" if of["low"] is None else f"{of['low']:.4g} to {of['high']:.4g}"
        means = [_figure(of["arms"][arm]["mean"]) for arm in plan.arms]
        table.add_row(name, *means, _figure(of["difference"]), ends, str(of["pairs"]))
    Console().print(table)
    write(out, found)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


class Stands(StrEnum):
    """What a rider and a driver are to each other."""

    favourite = "favourite"
    block = "block"
    none = "none"


@app.command(epilog='Example: millrace ridesharing pair block rider-7 d-0042 --reason "complaint" --by ann')
def pair(
    stands: Annotated[Stands, typer.Argument(help="block: never to meet; none: takes it back.")],
    rider_id: str,
    driver_id: str,
    reason: Why,
    start: From = None,
    by: By = None,
    bootstrap: Bootstrap = None,
    overrides: Overrides = None,
) -> None:
    """Make a rider and a driver favourites, or see that they never meet again, in all regions.

    What they are on the way to together goes on. Who did it stands in the table operations.
    """
    from millrace_apps.ridesharing.operations.commanding import pair_of, send_control

    settings = settings_of(overrides, bootstrap)
    operator, from_ms = who(by, settings), to_time_ms(start) if start else 0
    event = pair_of(stands.value, rider_id, driver_id, operator, reason, from_ms)
    send_control(settings, event)
    typer.echo(f"command {event.command_id} sent; it will stand in the table operations")


@surge_app.command("cap", epilog='Example: millrace ridesharing surge cap 1.5 --reason "storm" --by ann')
def surge_cap(
    cap: Annotated[float, typer.Argument(min=1, max=10, help="The largest multiplier; 1: the usual price.")],
    reason: Why,
    start: From = None,
    by: By = None,
    bootstrap: Bootstrap = None,
    overrides: Overrides = None,
) -> None:
    """Set the largest multiplier of all regions while the app runs; who did it stands in operations.

    Quotes that have been told are kept.
    """
    from millrace_apps.ridesharing.operations.commanding import cap_of, send_control

    settings = settings_of(overrides, bootstrap)
    event = cap_of(cap, who(by, settings), reason, to_time_ms(start) if start else 0)
    send_control(settings, event)
    typer.echo(f"command {event.command_id} sent; it will stand in the table operations")


@app.command(epilog='Example: millrace ridesharing assign r-000017 d-0042 --reason "rider called" --by ann')
def assign(
    request_id: str,
    driver_id: str,
    reason: Why,
    by: By = None,
    zone: Zone = "",
    root: Root = None,
    bootstrap: Bootstrap = None,
    at: At = None,
    overrides: Overrides = None,
) -> None:
    """Give a request to a driver by hand."""
    about = {"request_id": request_id, "driver_id": driver_id, "zone": zone}
    _command("assign", about, reason, by, at, bootstrap, overrides, root=root)


@app.command(epilog='Example: millrace ridesharing cancel r-000017 --reason "rider called" --by ann')
def cancel(
    request_id: str,
    reason: Why,
    by: By = None,
    zone: Zone = "",
    root: Root = None,
    bootstrap: Bootstrap = None,
    at: At = None,
    overrides: Overrides = None,
) -> None:
    """Cancel a request by hand; not one whose rider is aboard."""
    about = {"request_id": request_id, "zone": zone}
    _command("cancel", about, reason, by, at, bootstrap, overrides, root=root)


@app.command(epilog='Example: millrace ridesharing end-trip r-000017 --reason "phone is dead" --by ann')
def end_trip(
    request_id: str,
    reason: Why,
    by: By = None,
    zone: Zone = "",
    root: Root = None,
    bootstrap: Bootstrap = None,
    at: At = None,
    overrides: Overrides = None,
) -> None:
    """End a trip whose rider is aboard by hand: it is completed, and its driver is free."""
    about = {"request_id": request_id, "zone": zone}
    _command("end_trip", about, reason, by, at, bootstrap, overrides, root=root)


@app.command(epilog='Example: millrace ridesharing block d-0042 --for 2h --reason "complaint" --by ann')
def block(
    driver_id: str,
    reason: Why,
    by: By = None,
    length: For = "1h",
    bootstrap: Bootstrap = None,
    at: At = None,
    overrides: Overrides = None,
) -> None:
    """Give a driver no further offers for a time."""
    _command("block", {"driver_id": driver_id}, reason, by, at, bootstrap, overrides, length=length)


@app.command(epilog='Example: millrace ridesharing unblock d-0042 --reason "cleared" --by ann')
def unblock(
    driver_id: str,
    reason: Why,
    by: By = None,
    bootstrap: Bootstrap = None,
    at: At = None,
    overrides: Overrides = None,
) -> None:
    """End a block."""
    _command("unblock", {"driver_id": driver_id}, reason, by, at, bootstrap, overrides)


@app.command(epilog='Example: millrace ridesharing blackout z-4 --for 1h --reason "street closed" --by ann')
def blackout(
    zone: str,
    reason: Why,
    by: By = None,
    length: For = "1h",
    bootstrap: Bootstrap = None,
    at: At = None,
    overrides: Overrides = None,
) -> None:
    """Pick nobody up in a zone (an H3 cell of resolution 7) for a time."""
    _command("blackout", {"zone": zone}, reason, by, at, bootstrap, overrides, length=length)


@app.command(epilog='Example: millrace ridesharing lift z-4 --reason "open again" --by ann')
def lift(
    zone: str,
    reason: Why,
    by: By = None,
    bootstrap: Bootstrap = None,
    at: At = None,
    overrides: Overrides = None,
) -> None:
    """End a blackout."""
    _command("lift", {"zone": zone}, reason, by, at, bootstrap, overrides)


def read_table(folder: Path, name: str) -> pd.DataFrame:
    """Read a table of the app; one that is not there yet is empty.

    Raises:
        UserError: There is no table at all in the folder.
    """
    import pandas as pd

    from millrace.runtime.commands import app_table

    if not (folder / "tables").is_dir():
        raise UserError(f"there are no tables in {folder}: give --root, the storage.root of the app")
    found = app_table(folder, name)
    return pd.DataFrame() if found is None else found.to_pandas()


def _folder(root: Path | None, settings: RidesharingSettings) -> Path:
    from millrace.local.home import demo_path

    if root is not None:
        return root
    own = settings.storage.local_root
    return own if own is not None and (own / "tables").is_dir() else demo_path("ridesharing")


def _zone_of(folder: Path, request_id: str) -> str:
    trips = read_table(folder, "trips")
    found = trips[trips["request_id"] == request_id] if len(trips) else trips
    if not len(found):
        raise UserError(f"request {request_id} is not in the tables of {folder}: give its --zone")
    return str(found.iloc[0]["zone"])


def _command(
    action: Action,
    about: dict[str, str],
    reason: str,
    by: str | None,
    at: str | None,
    bootstrap: str | None,
    overrides: list[str] | None,
    *,
    root: Path | None = None,
    length: str | None = None,
) -> None:
    """Send a command; a request without a zone is looked up in the tables."""
    from millrace.operations.sending import now_ms
    from millrace.time.durations import to_ms
    from millrace_apps.ridesharing.operations.commanding import command_of, send_command

    settings = settings_of(overrides, bootstrap)
    operator = who(by, settings)
    if "request_id" in about and not about["zone"]:
        about["zone"] = _zone_of(_folder(root, settings), about["request_id"])
    at_ms = to_time_ms(at) if at else now_ms()
    until_ms = 0 if length is None else at_ms + to_ms(length)
    event = command_of(action, operator, reason, at_ms, until_ms=until_ms, **about)
    send_command(settings, event)
    typer.echo(f"command {event.command_id} sent; its outcome will stand in the table operations")
