"""`millrace kafka …`: start, stop and inspect an embedded broker for this project."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.options import Format, Shape, print_as
from millrace.errors import MillraceError, UserError

app = typer.Typer(no_args_is_help=True, help="Start, stop and inspect an embedded Apache Kafka broker.")

BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        envvar="KAFKA_BOOTSTRAP_SERVERS",
        help="Broker to ask, host:port; by default the one that `millrace kafka start` started.",
    ),
]


@app.command(epilog="Example: millrace kafka start --port 9092")
def start(
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port for clients; by default 9092, or a free one if taken."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Its directory, kept; by default .millrace/kafka."),
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run until Ctrl-C instead of in the background.")
    ] = False,
    shape: Shape = Format.table,
) -> None:
    """Start a broker, wait until it answers, and print its address."""
    from millrace.kafka import detached

    if foreground:
        if shape is Format.json:
            raise UserError("--foreground tells of what goes on as text: leave --json out")
        _run_in_foreground(port, data_dir)
        return
    broker, started = detached.start(port=port, data_dir=data_dir)
    found = {
        "started": started,
        "bootstrap": broker.bootstrap,
        "pid": broker.process.pid,
        "data": broker.data_dir,
        "log": broker.log_file,
    }
    lines = (
        f"broker {'ready' if started else 'already runs'}: {broker.bootstrap}",
        f"data: {broker.data_dir}, log: {broker.log_file}",
        "stop it with: millrace kafka stop",
    )
    print_as(shape, found, lambda: "\n".join(lines))


@app.command(epilog="Example: millrace kafka stop")
def stop(shape: Shape = Format.table) -> None:
    """Stop the broker that `millrace kafka start` started; its data stays."""
    from millrace.kafka import detached

    stopped = detached.stop()
    found = {"stopped": stopped is not None, "bootstrap": stopped and stopped.bootstrap}
    print_as(shape, found, lambda: f"broker stopped: {stopped.bootstrap}" if stopped else "no broker runs")


@app.command(epilog="Example: millrace kafka status")
def status(shape: Shape = Format.table) -> None:
    """Say whether the broker runs: exit code 0 if it does, else 1."""
    from millrace.kafka import detached
    from millrace.kafka.admin import topic_partitions

    broker = detached.find()
    if broker is None:
        print_as(shape, {"runs": False}, lambda: "no broker runs; start one with: millrace kafka start")
        raise typer.Exit(1)
    topics = topic_partitions(broker.bootstrap, timeout_s=5.0)
    found = {
        "runs": True,
        "bootstrap": broker.bootstrap,
        "pid": broker.process.pid,
        "topics": list(topics),
        "data": broker.data_dir,
        "log": broker.log_file,
    }
    lines = (
        f"broker runs: {broker.bootstrap}",
        f"pid: {broker.process.pid}",
        f"topics: {', '.join(topics) or 'none'}",
        f"data: {broker.data_dir}",
        f"log: {broker.log_file}",
    )
    print_as(shape, found, lambda: "\n".join(lines))


@app.command(epilog="Example: millrace kafka topics --bootstrap localhost:9092")
def topics(bootstrap: BootstrapOption = None, shape: Shape = Format.table) -> None:
    """List the topics with their partitions and numbers of messages."""
    from millrace.kafka import detached
    from millrace.kafka.admin import end_offsets, topic_partitions

    if bootstrap is None:
        broker = detached.find()
        if broker is None:
            raise UserError("no broker runs; start one with `millrace kafka start`, or give --bootstrap")
        bootstrap = broker.bootstrap
    found = [
        {"topic": name, "partitions": partitions, "end_offset": sum(end_offsets(bootstrap, name).values())}
        for name, partitions in topic_partitions(bootstrap, timeout_s=5.0).items()
    ]
    lines = ("{topic}: {partitions} partitions, end offset {end_offset}".format(**one) for one in found)
    print_as(shape, found, lambda: "\n".join(lines))


def _run_in_foreground(port: int | None, data_dir: Path | None) -> None:
    from millrace.kafka.broker import EmbeddedBroker
    from millrace.local.home import home

    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.set())
    with EmbeddedBroker(data_dir or home() / "kafka", port=port) as broker:
        typer.echo(f"broker ready: {broker.bootstrap}")
        typer.echo(f"data: {broker.data_dir}, log: {broker.log_file}")
        while not asked.wait(0.2):
            if not broker.is_alive():
                raise MillraceError(f"the broker ended by itself; see {broker.log_file}")
