"""`millrace run APP`: a streaming job, until it is stopped or its input ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Run a streaming app.", no_args_is_help=True)


@app.command(epilog="Example: millrace run fraud --bootstrap localhost:9092 --set stream.plan=station")
def run(
    name: Annotated[str, typer.Argument(metavar="APP", help="Name of the app, e.g. fraud.")],
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop when everything that is in the topics now is done.")
    ] = False,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain/--no-drain",
            help="With --until-end: let every timer and window fire at the end. "
            "The checkpoint cannot be gone on from then.",
        ),
    ] = True,
    until_batch: Annotated[
        int | None, typer.Option("--until-batch", metavar="N", help="Stop when batch N is committed.")
    ] = None,
    bootstrap: Annotated[
        str | None, typer.Option(help="Kafka broker (host:port); also KAFKA_BOOTSTRAP_SERVERS.")
    ] = None,
    master: Annotated[str | None, typer.Option(help="Spark master: local[*], spark://host:port.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file (default ./millrace.yaml).")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="A setting, e.g. -s stream.trigger_interval=1s.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Run APP on its Kafka topics, writing its tables and topics.

    Ctrl-C or SIGTERM finish the running batch and stop; the next start goes on where this one ended.
    Exit codes: 0 stopped or ended, 1 the query failed, 2 something you can put right.
    """
    from rich.console import Console

    from millrace.runtime.apps import load_app
    from millrace.runtime.redaction import redact_text
    from millrace.runtime.settings import load_settings
    from millrace.runtime.settings_sources import FromOption

    application = load_app(name)
    sets: list[str] = list(overrides or [])
    if bootstrap is not None:
        sets.append(FromOption("--bootstrap", "kafka.bootstrap", bootstrap))
    if master is not None:
        sets.append(FromOption("--master", "spark.master", master))
    settings = load_settings(application.settings, app=name, config=config, overrides=sets)

    from millrace.runtime.job import Job

    console = Console(quiet=quiet, highlight=False, markup=False, soft_wrap=True)
    began = time.monotonic()
    total = 0

    def report(batch_id: int, counts: dict[str, int]) -> None:
        nonlocal total
        total += sum(counts.values())
        parts = ", ".join(f"{output} {count:,}" for output, count in sorted(counts.items())) or "nothing"
        console.print(f"batch {batch_id}: {parts} ({total:,} records, {time.monotonic() - began:.1f} s)")

    def warn(text: str) -> None:
        console.print(f"warning: {redact_text(text)}")

    def tell(text: str) -> None:
        console.print(redact_text(text))

    job = Job(
        application,
        settings,
        until_end=until_end,
        drain=drain,
        until_batch=until_batch,
        on_batch=report,
        on_warning=warn,
        on_plan=tell,
    )
    console.print(f"{name}: {settings.kafka.bootstrap} → {job.root} (Ctrl-C stops after the running batch)")
    job.run()
    console.print(f"{name}: stopped after {time.monotonic() - began:.1f} s; {total:,} records written")
