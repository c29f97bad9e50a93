"""`millrace stop APP`: end a job after its running batch, and say what became of it."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli.options import AppName, ConfigFile, Format, Overrides, Root, Shape

app = typer.Typer(help="End a job after its running batch.")


@app.command(epilog="Example: millrace stop fraud --timeout 5min")
def stop(
    name: AppName,
    root: Root = None,
    timeout: Annotated[
        str,
        typer.Option("--timeout", help="How long to wait; the job ends later all the same."),
    ] = "2min",
    config: ConfigFile = None,
    overrides: Overrides = None,
    shape: Shape = Format.table,
) -> None:
    """End the job of APP gracefully: the running batch is finished, the next start goes on after it.

    Of a job that was killed the record is removed. Exit codes: 0 it does not run any more (or did not), 1 it
    still runs after --timeout, 2 something you can put right: it runs in several folders, on another machine.
    """
    from pathlib import Path

    from millrace.cli.jobs_shown import Places, found_jobs, jobs_of, record_of
    from millrace.errors import UserError
    from millrace.observing.jobs import jobs_folder
    from millrace.observing.reading import chosen
    from millrace.observing.stopping import Stopped, stop_job
    from millrace.time.durations import to_ms

    sets = list(overrides or [])
    timeout_s = to_ms(timeout) / 1000
    found = found_jobs(jobs_of(config, sets), [name], root, Places(config, sets))
    status = chosen(found, name, root)

    def say(text: str) -> None:
        typer.echo(text, err=shape is Format.json)

    record = record_of(name, status)
    if record is None or status.state in ("stopped", "failed", "never run"):
        # A job may run that cannot be told from its record.
        if unreadable := [s.note for s in found if (s.app, s.state) == (name, "unreadable")]:
            raise UserError(unreadable[0])
        done = Stopped(name, status.root, "not running", batch=status.batch)
    else:
        done = stop_job(record, jobs_folder(), timeout_s=timeout_s, say=say)
    if shape is Format.json:
        import msgspec

        typer.echo(msgspec.json.encode(done).decode())
    else:
        _tell(done, Path(done.root))
    if done.did == "still running":
        raise typer.Exit(1)


def _tell(done: object, root: object) -> None:
    from millrace.observing.stopping import Stopped

    assert isinstance(done, Stopped)  # noqa: S101
    last = "" if done.batch is None else f"; batch {done.batch} is the last committed one"
    said = {
        "stopped": f"{done.app}: stopped after {done.waited_s:.1f} s{last}",
        "died": f"{done.app}: pid {done.pid} had ended without being asked; its record is removed{last}",
        "not running": f"{done.app}: does not run{f' in {root}' if done.root else ''}{last}",
        "still running": f"{done.app}: still runs after {done.waited_s:.0f} s (pid {done.pid}) and ends "
        f"after its batch{last}",
    }
    typer.echo(said[done.did])
    if done.error:
        typer.echo(f"{done.app}: it ended by itself: {done.error}")
