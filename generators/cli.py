"""`millrace generate DOMAIN`: a seeded stream, with its ledger, to Kafka, a file or standard output."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    help="Generate a seeded stream of events, with a ledger of what was put into it.",
    rich_markup_mode=None,
    add_completion=False,
)


class Target(StrEnum):
    """Where messages go."""

    kafka = "kafka"
    jsonl = "jsonl"
    stdout = "stdout"


# Options that every domain takes; a domain adds its own.
Rate = Annotated[
    str,
    typer.Option(
        help="Events per second; 0 or max: as fast as possible.", metavar="N|max", show_default=True
    ),
]
Duration = Annotated[
    str | None,
    typer.Option(
        help="How long, e.g. 60s; at --rate max, of what would be sent in this time.", metavar="TIME"
    ),
]
Events = Annotated[
    int | None,
    typer.Option(help="How many valid events; repeats and broken messages come on top.", metavar="N"),
]
Seed = Annotated[int, typer.Option(help="Same seed, parameters and start: same bytes.")]
Speed = Annotated[
    float | None,
    typer.Option(
        help="Event time per clock time: 60 is a minute of event time per second. Default 1.", metavar="X"
    ),
]
EventRate = Annotated[
    float | None,
    typer.Option(
        help="Events per second of event time. Default: rate / speed, at --rate max 1000.", metavar="N"
    ),
]
Start = Annotated[
    str | None,
    typer.Option(
        help="First event time, ISO 8601 with zone or epoch ms. Default: now; "
        "for a bounded run faster than real time such that it ends now.",
        metavar="TIME",
    ),
]
Disorder = Annotated[
    int, typer.Option(help="Events arrive 0 to this many ms of event time late.", metavar="MS")
]
Late = Annotated[float, typer.Option(help="Share of events that come too late, 0 to 1.", metavar="SHARE")]
Lateness = Annotated[
    str, typer.Option(help="How far behind the newest event a late one is, at least.", metavar="TIME")
]
Duplicates = Annotated[float, typer.Option(help="Share of events sent twice, 0 to 1.", metavar="SHARE")]
Malformed = Annotated[
    float, typer.Option(help="Broken extra messages per valid event, 0 to 1.", metavar="SHARE")
]
To = Annotated[Target, typer.Option(help="Where to.")]
Bootstrap = Annotated[
    str, typer.Option(help="Kafka broker.", envvar="KAFKA_BOOTSTRAP_SERVERS", metavar="HOST:PORT")
]
Topic = Annotated[str | None, typer.Option(help="Kafka topic; default: the domain's own.", metavar="NAME")]
Partitions = Annotated[int, typer.Option(help="Partitions of a topic that does not exist yet.", min=1)]
Out = Annotated[Path | None, typer.Option(help="File for --to jsonl.", metavar="FILE")]
LedgerFile = Annotated[
    Path | None, typer.Option("--ledger", help="Write the ledger of truth to this file.", metavar="FILE")
]
Sample = Annotated[
    int | None,
    typer.Option(
        help="Show this many messages with key, headers and truth; send nothing.", metavar="N", min=1
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no summary.")]


@app.command("list")
def list_domains() -> None:
    """List what can be generated."""
    from generators import fraud

    typer.echo(f"{fraud.DOMAIN:<12}{fraud.DESCRIPTION}")


@app.command()
def fraud(
    rate: Rate = "1000",
    duration: Duration = None,
    events: Events = None,
    seed: Seed = 1,
    cards: Annotated[int, typer.Option(help="Number of cards.")] = 2_000,
    terminals: Annotated[int, typer.Option(help="Number of terminals.")] = 500,
    card_skew: Annotated[float, typer.Option(help="Zipf exponent of the cards' activity; 0: even.")] = 0.0,
    fraud_rate: Annotated[float, typer.Option(help="Frauds begun per 1,000 events.")] = 0.5,
    speed: Speed = None,
    event_rate: EventRate = None,
    start: Start = None,
    disorder_ms: Disorder = 500,
    late: Late = 0.0,
    lateness: Lateness = "60s",
    duplicates: Duplicates = 0.0,
    malformed: Malformed = 0.0,
    to: To = Target.kafka,
    bootstrap: Bootstrap = "localhost:9092",
    topic: Topic = None,
    partitions: Partitions = 4,
    out: Out = None,
    ledger: LedgerFile = None,
    sample: Sample = None,
    quiet: Quiet = False,
) -> None:
    """Generate card transactions with frauds among them."""
    import time

    from generators.command import Destination, execute, show_sample
    from generators.fraud import DOMAIN, SCHEMA_VERSION, TOPIC, FraudProfile, fraud_events
    from generators.timing import resolve_timing
    from millrace.time.durations import to_ms

    timing = resolve_timing(
        rate=rate,
        speed=speed,
        event_rate=event_rate,
        duration=duration,
        events=events,
        start=start,
        now_ms=time.time_ns() // 1_000_000,
    )
    profile = FraudProfile(
        seed=seed,
        events=timing.events,
        event_rate=timing.event_rate,
        start_ms=timing.start_ms,
        disorder_ms=disorder_ms,
        late=late,
        lateness_ms=to_ms(lateness),
        duplicates=duplicates,
        malformed=malformed,
        cards=cards,
        terminals=terminals,
        card_skew=card_skew,
        fraud_rate=fraud_rate,
    )
    if sample is not None:
        show_sample(fraud_events(profile), sample)
        return
    destination = Destination(to.value, bootstrap, topic or TOPIC, partitions, out)
    execute(
        fraud_events(profile),
        profile,
        timing,
        destination,
        domain=DOMAIN,
        schema_version=SCHEMA_VERSION,
        ledger_path=ledger,
        quiet=quiet,
    )
