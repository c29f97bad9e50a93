"""`millrace bluegreen start|diff|switch|stop`: a new version beside the one that runs, and in its place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.options import AppName, Format, Overrides, Root, Shape, print_as

if TYPE_CHECKING:
    from collections.abc import Callable

    from millrace.checkpoints.savepoints import Savepoint
    from millrace.runtime.settings import AppSettings
    from millrace.upgrading.trial import Compared, Trial
    from millrace.upgrading.upgrade import Upgrade

app = typer.Typer(
    help="Two versions of an app beside each other, compared, then switched.", no_args_is_help=True
)

Green = Annotated[
    Path | None,
    typer.Option("--green", metavar="FOLDER", help="The second version's folder; default ROOT-green."),
]
Timeout = Annotated[
    str, typer.Option("--timeout", help="How long a version may take to end, or to catch up.")
]
StartTimeout = Annotated[
    str,
    typer.Option("--start-timeout", help="How long the new one may take to its first batch."),
]


@app.command(epilog="Example: millrace bluegreen start fraud --set features.entities=none")
def start(
    name: AppName,
    green: Green = None,
    suffix: Annotated[
        str, typer.Option(metavar="TEXT", help="What the names of its output topics end with.")
    ] = ".green",
    start_timeout: StartTimeout = "3min",
    root: Root = None,
    overrides: Overrides = None,
    shape: Shape = Format.table,
) -> None:
    """Start the version of APP that this command is of beside the one that runs.

    It begins with a savepoint of the running one, reads the same topics, and writes to a folder and to topics
    of its own: nothing of it reaches the real ones. The running version goes on in any case.
    Exit codes: 0 it runs, 1 it was started and does not run, 2 refused.
    """
    import msgspec

    from millrace.cli.upgrade_plan import planned
    from millrace.errors import UserError
    from millrace.upgrading.trial import start_trial, trial_root

    if not suffix:
        raise UserError("--suffix may not be empty: both versions would write to the same topics")
    plan = planned(name, root, None, overrides or [], timeout="2min", start_timeout=start_timeout)
    if plan.job is None:
        raise UserError(
            f"{name} does not run in {plan.root}: there is nothing to run beside; `millrace upgrade`"
        )
    place = green.absolute() if green is not None else trial_root(plan.root)
    done = start_trial(plan, place, suffix, list(overrides or []), _teller(name, shape))
    if shape is Format.json:
        typer.echo(msgspec.json.format(msgspec.json.encode(done)).decode())
    elif done.did == "runs":
        for change in done.fit.changes:
            typer.echo(f"  {change}")
        typer.echo(
            f"{name}: the second version runs in {place} (pid {done.pid}), from batch {done.first_batch} on"
        )
        typer.echo(f"{name}: its output topics: {', '.join(done.topics) or 'none'}; log: {done.log}")
    else:
        typer.echo(
            f"{name}: the second version {'is refused' if done.did == 'refused' else 'failed'}: {done.why}"
        )
    if done.did != "runs":
        raise typer.Exit(2 if done.did == "refused" else 1)


@app.command(epilog="Example: millrace bluegreen diff fraud --format json")
def diff(
    name: AppName,
    green: Green = None,
    timeout: Timeout = "2min",
    root: Root = None,
    shape: Shape = Format.table,
) -> None:
    """Compare the tables of both versions: rows of one only, and rows that differ, by column.

    Rows are compared by identity (event_id, or the key of a table with one row per key), from the second
    version's savepoint on, up to offsets that both have read; so are topics that no table has. Exit codes: 0
    they are the same, 1 they are not, 2 they cannot be compared.
    """
    import msgspec

    place, trial = _trial(name, green, root)
    found = _compared(name, place, trial, timeout, shape)
    if shape is Format.json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        _show(found)
    if not found.same:
        raise typer.Exit(1)


@app.command(epilog="Example: millrace bluegreen switch fraud --if-same")
def switch(
    name: AppName,
    if_same: Annotated[
        bool, typer.Option("--if-same", help="Compare first; where they are not the same, switch nothing.")
    ] = False,
    own_state: Annotated[
        bool,
        typer.Option("--own-state", help="Go on with the state that the second version has kept."),
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the second version's folder and topics afterwards.")
    ] = False,
    green: Green = None,
    timeout: Timeout = "2min",
    start_timeout: StartTimeout = "3min",
    root: Root = None,
    shape: Shape = Format.table,
) -> None:
    """Put the second version in the place of the first: it writes the real tables and topics from then on.

    The first ends after its running batch, at offsets X; the new version begins at X, with the state as of X.
    One writes at a time, so nothing is lost and nothing is there twice. With --own-state that is the second
    version's own state, read up to X, where both say the same. Exit codes are those of `millrace upgrade`; 2
    also where --if-same finds differences.
    """
    from dataclasses import replace

    from millrace.cli.upgrade_plan import carried_out, ended_with, planned
    from millrace.errors import UserError
    from millrace.upgrading.trial import end_trial

    place, trial = _trial(name, green, root)
    say = _teller(name, shape)
    if if_same:
        found = _compared(name, place, trial, timeout, shape)
        if not found.same:
            raise UserError(f"the versions differ, so nothing was switched: `millrace bluegreen diff {name}`")
        say("both versions say the same")
    plan = planned(name, Path(trial.of), None, trial.settings, timeout=timeout, start_timeout=start_timeout)
    if (checked := plan.check()).did == "refused":
        ended_with(checked, as_json=shape is Format.json)
    kafka = plan.settings.kafka
    if own_state:
        plan = replace(plan, state=_own_state(name, place, trial, plan, timeout, shape))
    else:
        _stop(name, place, timeout, shape)
    done = carried_out(plan, say)
    if remove and done.did == "upgraded":
        end_trial(place, trial, kafka)
    ended_with(done, as_json=shape is Format.json)


@app.command(epilog="Example: millrace bluegreen stop fraud --remove")
def stop(
    name: AppName,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove its folder and its output topics.")
    ] = False,
    green: Green = None,
    timeout: Timeout = "2min",
    root: Root = None,
    shape: Shape = Format.table,
) -> None:
    """End the second version; the first goes on.

    Exit codes: 0 ended, 1 it still runs its batch, 2 there is none.
    """
    from millrace.upgrading.trial import end_trial

    place, trial = _trial(name, green, root)
    kafka = _settings(name, place, trial).kafka
    _stop(name, place, timeout, shape)
    line = ""
    if remove:
        end_trial(place, trial, kafka)
        line = f"{name}: {place} and {', '.join(trial.topics) or 'no topics'} removed"
    found = {"app": name, "root": place, "removed": remove, "topics": [*trial.topics] if remove else []}
    print_as(shape, found, lambda: line)


def _teller(name: str, shape: Format) -> Callable[[str], None]:
    def say(text: str) -> None:
        typer.echo(text if text.startswith(name) else f"{name}: {text}", err=shape is Format.json)

    return say


def _trial(name: str, green: Path | None, root: Path | None) -> tuple[Path, Trial]:
    """Return the folder of the second version, and what is said of it."""
    from millrace.cli.upgrade_plan import job_of
    from millrace.errors import UserError
    from millrace.upgrading.trial import read_trial, trial_root

    if green is None:
        green = trial_root(job_of(name, root, None, [])[1])
    trial = read_trial(green.absolute())
    if trial.app != name:
        raise UserError(f"{green} has a second version of {trial.app}, not of {name}")
    return green.absolute(), trial


def _compared(name: str, place: Path, trial: Trial, timeout: str, shape: Format) -> Compared:
    from millrace.runtime.apps import load_app
    from millrace.time.durations import to_ms
    from millrace.upgrading.trial import compare

    settings = _settings(name, place, trial)
    limit = to_ms(timeout) / 1000
    return compare(load_app(name), settings, place, timeout_s=limit, say=_teller(name, shape))


def _own_state(
    name: str, place: Path, trial: Trial, plan: Upgrade, timeout: str, shape: Format
) -> Callable[[Callable[[str], None]], Savepoint]:
    """End the second version, wait for the first to be as far, and return what brings both to one place."""
    from millrace.cli.upgrade_plan import settings_for
    from millrace.errors import UserError
    from millrace.time.durations import to_ms
    from millrace.upgrading.own_state import OwnState
    from millrace.upgrading.started import started_of
    from millrace.upgrading.trial import job_in

    job = job_in(place)
    if job is None or plan.job is None:
        raise UserError("both versions must run, so that the state of the second can be taken")
    started = started_of(job)
    found = OwnState(
        plan.app,
        settings_for(name, started),
        Path(trial.of),
        place,
        started,
        plan.start_s,
        to_ms(timeout) / 1000,
    )
    _stop(name, place, timeout, shape)
    found.wait_for_blue(_teller(name, shape))
    return found


def _settings(name: str, place: Path, trial: Trial) -> AppSettings:
    """Return the settings of the second version: those of a job that runs, else what is known here."""
    from millrace.cli.upgrade_plan import settings_for
    from millrace.upgrading.started import fresh, started_of
    from millrace.upgrading.trial import job_in

    if (own := job_in(place)) is not None:
        return settings_for(name, started_of(own))
    if (other := job_in(Path(trial.of))) is not None:
        return settings_for(name, started_of(other).with_settings(trial.settings))
    return settings_for(name, fresh(name, [f"storage.root={place}", *trial.settings], None))


def _stop(name: str, place: Path, timeout: str, shape: Format) -> None:
    from millrace.observing.jobs import jobs_folder
    from millrace.observing.stopping import stop_job
    from millrace.time.durations import to_ms
    from millrace.upgrading.trial import job_in

    job = job_in(place)
    say = _teller(name, shape)
    if job is None:
        say(f"the second version does not run in {place}")
        return
    done = stop_job(job, jobs_folder(), timeout_s=to_ms(timeout) / 1000, say=say)
    if done.did == "still running":
        say(f"the second version (pid {job.pid}) still runs, and ends after its batch")
        raise typer.Exit(1)
    say(f"the second version is stopped after batch {done.batch}")


def _show(found: Compared) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    table = Table(
        "table", *(f"{n}" for n in ("blue", "green", "same", "only blue", "only green", "differ")), "columns"
    )
    for name, one in sorted(found.tables.items()):
        columns = ", ".join(f"{column} ({count:,})" for column, count in sorted(one.columns.items()))
        new = [f"-{c}" for c in one.columns_only_blue] + [f"+{c}" for c in one.columns_only_green]
        numbers = (one.blue, one.green, one.same, one.only_blue, one.only_green, one.differ)
        table.add_row(name, *(f"{n:,}" for n in numbers), " ".join([columns, *new]).strip())
    console.print(table)
    for name, one in sorted(found.tables.items()):
        if one.moving:
            console.print(f"{name}: {one.moving:,} rows changed meanwhile and were not compared")
        for side, count in (("blue", one.twice_blue), ("green", one.twice_green)):
            if count:
                console.print(f"{name}: {count:,} rows are there more than once in {side}")
        for kind, examples in one.examples.items():
            console.print(f"{name}: {kind.replace('_', ' ')}, for example: {'; '.join(examples)}")
    for name, sent in sorted(found.sent.items()):
        kinds = {"only blue": sent.only_blue, "only green": sent.only_green, "differ": sent.differ}
        counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)
        part = "" if sent.share == 1.0 else f" of a {sent.share:.1%} sample"
        console.print(f"topic {name}: {sent.same:,} records the same{part}{counts and f', {counts}'}")
        for kind, examples in sent.examples.items():
            console.print(f"topic {name}: {kind.replace('_', ' ')}, for example: {'; '.join(examples)}")
    if found.not_compared:
        console.print(
            f"not compared, as an earlier version began the second one: {', '.join(found.not_compared)}"
        )
    said = "the same" if found.same else "NOT the same"
    console.print(f"{found.app}: both versions say {said}, up to what both had read")
