"""`millrace bench …`: every figure of docs/performance.md comes from one of these commands."""

from __future__ import annotations

import signal
import sys

import typer

from millrace_apps.benchmarks import machine
from millrace_apps.benchmarks.cli import apps, cases, compare, core, parts

app = typer.Typer(
    help="Measure throughput, latency, start-up and memory.", no_args_is_help=True, add_completion=False
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
