"""`millrace replay FILE`: a Parquet, CSV or JSON-lines file as a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from millrace_apps.generators import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog="Example: millrace replay trips.parquet --time-column pickup_at --speed 60 --topic trips")
def replay(
    file: Annotated[Path, typer.Argument(help="Parquet, CSV with a header line, or JSON lines.")],
    time_column: Annotated[str, typer.Option(help="Column of the event time.", metavar="NAME")],
    key: Annotated[str | None, typer.Option(help="Column of the Kafka key.", metavar="NAME")] = None,
    arrival_column: Annotated[
        str | None,
        typer.Option(
            help="Column of the time at which a row arrived; default: as its event happened.", metavar="NAME"
        ),
    ] = None,
    time_unit: Annotated[
        str, typer.Option(help="Unit of times that are numbers: s, ms, us or ns.", metavar="UNIT")
    ] = "ms",
    speed: Annotated[float, typer.Option(help="So many times faster than in the file.")] = 1.0,
    rate: Annotated[
        str | None,
        typer.Option(
            help="Rows per second in place of the file's own pace; max: as fast as possible.", metavar="N|max"
        ),
    ] = None,
    shape: o.ShapeText = "constant",
    events: Annotated[int | None, typer.Option(help="So many rows at most.", metavar="N", min=0)] = None,
    to: o.To = o.Target.kafka,
    bootstrap: o.Bootstrap = "localhost:9092",
    topic: Annotated[
        str | None, typer.Option(help="Kafka topic; default: the file's name.", metavar="NAME")
    ] = None,
    partitions: o.Partitions = 4,
    timestamps: o.RecordTimes = None,
    kafka_option: o.KafkaOptions = None,
    out: o.Out = None,
    ledger: o.LedgerFile = None,
    resume: o.Resume = False,
    sample: o.Sample = None,
    dry_run: o.DryRun = False,
    quiet: o.Quiet = False,
) -> None:
    """Send a file as a stream, in its own order and at its own pace."""
    values = {name: value for name, value in locals().items() if name != "file"}
    _send(file, values)


def _send(file: Path, values: dict[str, Any]) -> None:
    from itertools import chain

    from millrace.testing.world_ledger import WorldRun
    from millrace_apps.generators.command import Job, carry_out, found_bookmark
    from millrace_apps.generators.replay import STREAM, Replay, replayed
    from millrace_apps.generators.timing import Timing, parse_pace
    from millrace_apps.generators.world_ledger import WorldLedger

    speed, rate = parse_pace(values["rate"], values["speed"])
    plan = Replay(
        path=file,
        time_column=values["time_column"],
        key_column=values["key"],
        arrival_column=values["arrival_column"],
        time_unit=values["time_unit"],
        events=values["events"],
        rate=rate,
    )
    topic = values["topic"] or file.stem
    bookmark = found_bookmark(values["ledger"], values["to"].value, resume=values["resume"])
    stream = replayed(plan, topic)
    first = next(stream, None)
    start_ms = 0 if first is None else first.due_ms
    parameters = {**plan.parameters(), "start_ms": start_ms}
    run = WorldRun("replay", 0, {STREAM: topic}, {STREAM: ""}, parameters)
    job = Job(
        domain="replay",
        stream=stream if first is None else chain((first,), stream),
        parameters=parameters,
        events=plan.events,
        open_ledger=lambda path, again: WorldLedger(path, run, resume=again),
    )
    timing = Timing(event_rate=1.0, speed=speed, events=plan.events, start_ms=start_ms, live=False)
    carry_out(job, values, timing, {STREAM: topic}, bookmark)
