"""Job selection and start options that `upgrade` and `bluegreen` share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from millrace.errors import UserError

if TYPE_CHECKING:
    from millrace.observing.jobs import JobRecord
    from millrace.runtime.settings import AppSettings
    from millrace.upgrading.started import Started
    from millrace.upgrading.upgrade import Upgrade, Upgraded


def job_of(
    name: str, root: Path | None, config: Path | None, sets: list[str]
) -> tuple[JobRecord | None, Path]:
    """Return the running job of an app, and its folder; ``None``: none runs there.

    Raises:
        UserError: There are several, it is of another machine, or nothing has run.
    """
    from millrace.cli.jobs_shown import Places, found_jobs, jobs_of, record_of
    from millrace.observing.reading import chosen

    found = [
        s
        for s in found_jobs(jobs_of(config, sets), [name], root, Places(config, sets))
        if not _is_trial(s.root)
    ]
    status = chosen(found, name, root)
    if status.state == "elsewhere":
        raise UserError(f"{name} in {status.root} runs {status.note}: upgrade it there")
    if status.state not in ("running", "starting"):
        return None, Path(status.root)
    record = record_of(name, status)
    if record is not None:
        return record, Path(status.root)
    raise UserError(f"{name} in {status.root} runs, and left no record: stop it by hand, and upgrade then")


def _is_trial(root: str) -> bool:
    from millrace.upgrading.trial import TRIAL_FILE

    return bool(root) and (Path(root) / TRIAL_FILE).exists()


def settings_for(name: str, started: Started) -> AppSettings:
    """Return the settings that a job has, by how it is started.

    Raises:
        UserError: Its words are none of `millrace run`, or a setting does not fit.
    """
    from millrace.cli.conventions import command_of
    from millrace.cli.run import app as run
    from millrace.runtime.apps import load_app
    from millrace.runtime.settings import load_settings
    from millrace.runtime.settings_sources import CONFIG_VARIABLE, DEFAULT_CONFIG, FromOption

    given: dict[str, Any] = command_of(run, "run").make_context("run", list(started.arguments)).params
    sets: list[str] = list(given["overrides"] or ())
    for option, key in (("bootstrap", "kafka.bootstrap"), ("master", "spark.master")):
        if given[option] is not None:
            sets.append(FromOption(f"--{option}", key, given[option]))
    config = given["config"]
    if config is None and not started.env.get(CONFIG_VARIABLE):
        config = next((p for p in [started.folder / DEFAULT_CONFIG] if p.is_file()), None)
    elif config is not None:
        config = started.folder / config
    here = Path.cwd()
    os.chdir(started.folder)  # paths in settings are relative to where the job was started
    try:
        settings = load_settings(
            load_app(name).settings, app=name, config=config, overrides=sets, env=started.env
        )
        root = settings.storage.local_root
    finally:
        os.chdir(here)
    if root is None:
        raise UserError(
            f"storage.root is {settings.storage.root}: only local and mounted folders are supported"
        )
    storage = settings.storage.model_copy(update={"root": str(root)})
    return settings.model_copy(update={"storage": storage})


def planned(
    name: str,
    root: Path | None,
    config: Path | None,
    sets: Sequence[str],
    *,
    timeout: str,
    start_timeout: str,
    roll_back: bool = True,
    foreground: bool = False,
) -> Upgrade:
    """Return what an upgrade of an app goes by, with the job that runs.

    Raises:
        UserError: There is nothing to upgrade, or how the job was started cannot be told.
    """
    from millrace.runtime.apps import load_app
    from millrace.time.durations import to_ms
    from millrace.upgrading.started import fresh, started_of
    from millrace.upgrading.upgrade import Upgrade

    application = load_app(name)
    stop_s, start_s = to_ms(timeout) / 1000, to_ms(start_timeout) / 1000
    record, place = job_of(name, root, config, list(sets))
    if record is None:
        before, new = None, fresh(name, [f"storage.root={place}", *sets], config)
    else:
        if config is not None:
            raise UserError("--config is that of the running job: change single settings with --set")
        before = started_of(record)
        new = before.by_this_version().with_settings(sets)
    settings = settings_for(name, new)
    if settings.storage.local_root != place:
        raise UserError(f"{name} would run in {settings.storage.root}, its checkpoint is in {place}")
    if not (place / "checkpoint" / "offsets").is_dir():
        raise UserError(f"{name} has no checkpoint in {place}: start it with `millrace run {name}`")
    return Upgrade(
        application,
        settings,
        place,
        record,
        before,
        new,
        stop_s=stop_s,
        start_s=start_s,
        roll_back=roll_back,
        foreground=foreground,
    )


def carried_out(plan: Upgrade, say: Callable[[str], None]) -> Upgraded:
    """Upgrade; whoever leaves it by Ctrl-C is told what that means.

    Args:
        plan: What it goes by.
        say: Told in a line what is done.
    """
    try:
        return plan.run(say)
    except KeyboardInterrupt:
        say(
            "left by Ctrl-C, and what was begun stays so: a job that was asked to end is not started again "
            f"by itself; `millrace status {plan.app.name}` says what runs"
        )
        raise


def ended_with(done: Upgraded, *, as_json: bool) -> None:
    """Print what became of an upgrade, and end the command with what that means.

    Raises:
        typer.Exit: With 1 where the new version does not run, 2 where nothing was stopped.
    """
    import msgspec

    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(done)).decode())
    else:
        for line in lines_of(done):
            typer.echo(line)
    if done.did == "refused":
        raise typer.Exit(2)
    if done.did in ("stopping", "failed", "rolled back"):
        raise typer.Exit(1)


def lines_of(done: Upgraded) -> list[str]:
    """Return what is to be said of an upgrade."""
    name, stopped = done.app, ""
    if done.stopped_pid is not None:
        stopped = f"the old version (pid {done.stopped_pid}) is stopped after batch {done.batch}; "
    changes = [f"  {one}" for one in done.fit.changes]
    takes = (
        "from the checkpoint as it is" if done.fit.how == "as it is" else "from a savepoint of the checkpoint"
    )
    if done.did == "refused":
        return [*changes, f"{name}: refused, nothing was stopped: {done.why}"]
    if done.did == "checked":
        return [*changes, f"{name}: the new version fits, and would go on {takes} in {done.root}"]
    kept = [] if done.savepoint is None else [f"{name}: the way back: {done.savepoint}"]
    if done.did == "stopping":
        return [*changes, f"{name}: not upgraded yet: {done.why}"]
    if done.did == "prepared":
        return [*changes, *kept, f"{name}: {stopped}the new version starts here, {takes}"]
    if done.did == "upgraded":
        line = [
            f"{name}: from here on the new version: {topic} "
            + ", ".join(f"{partition}:{offset}" for partition, offset in sorted(of.items()))
            for topic, of in sorted(done.offsets.items())
        ]
        runs = f"pid {done.pid}, first batch {done.first_batch}, {done.down_s} s without a job"
        return [*changes, *line, *kept, f"{name}: {stopped}the new version runs: {runs}; log: {done.log}"]
    if done.did == "rolled back":
        again = f"the old version runs again (pid {done.pid}, batch {done.first_batch})"
        return [*changes, *kept, f"{name}: not upgraded: {done.why}", f"{name}: {again}; log: {done.log}"]
    return [*changes, *kept, f"{name}: {stopped}NO job runs now: {done.why}"]
