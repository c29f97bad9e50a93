"""`millrace demo APP`: see an app at work, and checked, with one command."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.options import Format, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from millrace.console.live import LiveView
    from millrace.console.report import Check
    from millrace.demo import DemoOptions, DemoSpec
    from millrace.runtime.apps import App

app = typer.Typer(help="Broker, generator and app in one command, checked against the truth.")


@app.command(epilog="Example: millrace demo fraud --duration 60s")
def demo(
    name: Annotated[
        str, typer.Argument(metavar="APP", help="Name of the app; all, or several with commas: at once.")
    ] = "fraud",
    duration: Annotated[
        str | None, typer.Option(help="How long events are sent; default 60s, of several apps 240s.")
    ] = None,
    rate: Annotated[
        int | None, typer.Option(min=1, help="Events per second of each app; default 1000, of several 250.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the generator: same seed, same frauds.")] = 7,
    bootstrap: Annotated[
        str | None,
        typer.Option(help="Use this broker instead of an embedded one; also KAFKA_BOOTSTRAP_SERVERS."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="A setting, e.g. -s spark.driver_memory=2g.")
    ] = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard/--no-dashboard", help="Of several apps: their pages meanwhile.")
    ] = True,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="The dashboard's; default 8600 if it is free.")
    ] = None,
    shape: Shape = Format.table,
) -> None:
    """Run APP on a real stream for a while, and check what it wrote against what was sent.

    Several apps have one broker, one Spark engine and one dashboard, and each is checked as by itself; what
    ends unasked is started again.

    A check that finds nothing to compare does not hold: what is shorter than a minute may have too little. Of
    what is seldom a run that sends less than by default only says so. As JSON the checks are on standard
    output, and what goes on meanwhile on standard error.

    Exit codes: 0 all checks hold, 1 one does not or the run failed, 2 something you can put right.
    """
    from millrace.demo import DemoOptions
    from millrace.demo_together import ALL, DURATION_S, RATE

    several = name == ALL or "," in name
    chosen = DemoOptions(DURATION_S, RATE) if several else DemoOptions()
    options = DemoOptions(
        chosen.duration_s if duration is None else _seconds(duration),
        rate or chosen.rate,
        seed,
        bootstrap,
        overrides or (),
    )
    if several:
        _together(name, options, _port(port) if dashboard else None, shape)
    else:
        _alone(name, options, shape)


def _seconds(duration: str) -> float:
    from millrace.errors import UserError
    from millrace.time.durations import to_ms

    seconds = to_ms(duration) / 1000
    if seconds < 1:
        unit = "; a number alone is milliseconds" if duration.strip().isdecimal() else ""
        raise UserError(f"--duration {duration}: events are sent for a second or more, e.g. 60s{unit}")
    return seconds


def _port(given: int | None) -> int:
    """Return where the dashboard is to answer: where it does by itself, unless somebody is there."""
    from millrace.dashboard.serve import DEFAULT_PORT
    from millrace.kafka.launch import is_free

    if given is not None:
        return given
    return DEFAULT_PORT if is_free(DEFAULT_PORT) else 0


def _view(title: str, shape: Format) -> LiveView:
    """Return where a run is shown."""
    from rich.console import Console

    from millrace.console.live import LiveView

    return LiveView(title, Console(stderr=True, highlight=False) if shape is Format.json else None)


def _spec(name: str) -> tuple[App, DemoSpec]:
    from millrace.errors import UserError
    from millrace.runtime.apps import load_app

    application = load_app(name)
    if application.demo is None:
        raise UserError(f"{name} has no demo")
    module, _, attribute = application.demo.partition(":")
    return application, getattr(importlib.import_module(module), attribute)


def _together(name: str, options: DemoOptions, port: int | None, shape: Format) -> None:
    """Run the demos of several apps at once."""
    from millrace.demo_together import ALL, Member, run_together
    from millrace.local.home import demo_path
    from millrace.runtime.apps import load_app
    from millrace.runtime.doctor import quick_check
    from millrace.runtime.installed import list_apps

    if name == ALL:
        names = [one for one in list_apps() if load_app(one).demo is not None]
    else:
        names = list(dict.fromkeys(part.strip() for part in name.split(",") if part.strip()))
    members = [Member(*_spec(one)) for one in names]
    quick_check()
    began = time.monotonic()
    with _view(f"millrace demo {name}", shape) as view:
        became = run_together(members, options, view, dashboard_port=port)
    checked = {member.app.name: (member.spec, became.checks[member.app.name]) for member in members}
    if shape is Format.json:
        more = {"first_results_s": became.first_results_s, "restarts": became.restarts}
        _give(checked, options, began, demo_path(ALL).parent, more)
        return
    lines = [f"{one}: first result after {seconds:.0f} s" for one, seconds in became.first_results_s.items()]
    lines += [f"{one}: started again {times} times" for one, times in became.restarts.items() if times]
    _tell(checked, options, began, demo_path(ALL).parent, lines)


def _alone(name: str, options: DemoOptions, shape: Format) -> None:
    """Run the demo of one app."""
    from millrace.demo import demo_settings, run_demo
    from millrace.local.home import demo_path
    from millrace.runtime.doctor import quick_check

    application, spec = _spec(name)
    # What is wrong with them is told before the folder of the last demo is emptied.
    demo_settings(application, spec, options, demo_path(name), "127.0.0.1:1", "")
    quick_check()
    began = time.monotonic()
    with _view(f"millrace demo {name}", shape) as view:
        checks = run_demo(application, spec, options, view)
    tell = _give if shape is Format.json else _tell
    tell({name: (spec, checks)}, options, began, demo_path(name))


def _tell(
    checked: Mapping[str, tuple[DemoSpec, Sequence[Check]]],
    options: DemoOptions,
    began: float,
    folder: Path,
    more: Sequence[str] = (),
) -> None:
    """Tell what the checks of demos have found.

    Args:
        checked: App → what it says of its demo, and its checks.
        options: What the user chose.
        began: When, s.
        folder: Where all is.
        more: Further lines.

    Raises:
        ChecksFailed: One does not hold, or had nothing to compare that a run of this size should have.
    """
    from millrace.console.report import NOTHING, print_checks
    from millrace.demo import verdict_of

    wrong: list[str] = []
    empty: list[str] = []
    for name, (spec, checks) in checked.items():
        print_checks(f"{name}: what was written against what was sent", checks)
        verdict, of = verdict_of(checks, options, spec.seldom), f"{name}: " if len(checked) > 1 else ""
        wrong += [f"{of}{check}" for check in verdict.wrong]
        empty += [f"{of}{check}" for check in verdict.empty]
        if verdict.seldom:
            typer.echo(f"{of}so small a run has {NOTHING} for: {', '.join(verdict.seldom)}")
    for line in more:
        typer.echo(line)
    typer.echo(f"tables, ledger and logs: {folder}")
    said = "CHECKS FAILED" if wrong or empty else "all checks hold"
    typer.echo(f"{said} after {time.monotonic() - began:.0f} s")
    _judge(wrong, empty)


def _give(
    checked: Mapping[str, tuple[DemoSpec, Sequence[Check]]],
    options: DemoOptions,
    began: float,
    folder: Path,
    more: Mapping[str, object] | None = None,
) -> None:
    """Give as JSON what the checks of demos have found; the arguments are those of :func:`_tell`."""
    from millrace.demo import verdict_of
    from millrace.operations.report import as_json

    found = {name: verdict_of(checks, options, spec.seldom) for name, (spec, checks) in checked.items()}
    report = {
        "holds": all(verdict.holds for verdict in found.values()),
        "seconds": round(time.monotonic() - began, 1),
        "folder": folder,
        **(more or {}),
        "apps": {
            name: {"holds": found[name].holds, **found[name]._asdict(), "checks": checks}
            for name, (_, checks) in checked.items()
        },
    }
    typer.echo(as_json(report))
    _judge(
        [f"{name}: {check}" for name, verdict in found.items() for check in verdict.wrong],
        [f"{name}: {check}" for name, verdict in found.items() for check in verdict.empty],
    )


def _judge(wrong: Sequence[str], empty: Sequence[str]) -> None:
    from millrace.console.report import NOTHING
    from millrace.errors import ChecksFailed

    if wrong:
        raise ChecksFailed(f"what was written is not what was sent: {'; '.join(wrong)}")
    if empty:
        raise ChecksFailed(f"a longer run is wanted, {NOTHING}: {'; '.join(empty)}")
