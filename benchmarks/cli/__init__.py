"""`millrace bench …`: every figure of docs/performance.md comes from one of these commands."""

from __future__ import annotations

import signal
import sys
from importlib.metadata import entry_points
from typing import Any, Final

import typer
from typer.core import TyperGroup

from millrace.cli.conventions import command_of
from millrace.runtime.installed import load_entry
from millrace_apps.benchmarks import machine
from millrace_apps.benchmarks.cli import apps, cases, compare, core, parts
from millrace_apps.benchmarks.names import FORMER

#: Entry-point group by which packages add benchmarks: name → ``module:attribute`` of a Typer app of one
#: command.
GROUP: Final = "millrace.benchmarks"


class Benchmarks(TyperGroup):
    """The commands of this package, and those of other packages, which do not take the place of ours."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all benchmarks."""
        ours = super().list_commands(ctx)
        return [*ours, *sorted({entry.name for entry in entry_points(group=GROUP)} - set(ours))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a benchmark by name; a former name is taken, and told to be one."""
        if (today := FORMER.get(cmd_name)) is not None:
            if not ctx.resilient_parsing:  # words are completed: nothing is called
                typer.echo(f"{cmd_name} is the former name of the benchmark {today}: use that", err=True)
            cmd_name = today
        found = super().get_command(ctx, cmd_name)
        entries = [] if found is not None else list(entry_points(group=GROUP, name=cmd_name))
        if not entries:
            return found
        return command_of(load_entry(entries[0], "benchmark", typer.Typer, "Typer app"), cmd_name)


app = typer.Typer(
    cls=Benchmarks,
    help="Measure throughput, latency, start-up and memory.",
    no_args_is_help=True,
    add_completion=False,
)
for _part in (apps, cases, core, parts, compare):
    app.add_typer(_part.app)


@app.callback()
def _ended_cleanly() -> None:
    """Measure throughput, latency, start-up and memory."""
    if not {"--help", "-h"} & set(sys.argv):
        machine.before()  # before anything is loaded
    # Ended by a time limit, say, a benchmark takes its jobs, brokers and folders with it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
