"""Options of `millrace generate DOMAIN` that all domains share, and the presets of `--profile`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from millrace.errors import UserError


class Target(StrEnum):
    """Where messages go."""

    kafka = "kafka"
    jsonl = "jsonl"
    parquet = "parquet"
    stdout = "stdout"


class Timestamps(StrEnum):
    """Which time a Kafka record carries."""

    arrival = "arrival"
    append = "append"


class Preset(StrEnum):
    """A set of values for flags that are not given."""

    demo = "demo"
    soak = "soak"
    chaos = "chaos"


#: Preset → option → value. A flag that is given counts more.
PRESETS: Final[Mapping[Preset, Mapping[str, Any]]] = {
    Preset.demo: {
        "duration": "60s",
        "late": 0.01,
        "lateness": "10s",
        "duplicates": 0.005,
        "malformed": 0.002,
    },
    Preset.soak: {
        "late": 0.001,
        "duplicates": 0.001,
        "malformed": 0.0005,
        "loss": 0.0005,
        "delay": "lognormal(median=100ms, sigma=1, max=5s)",
        "shape": "sine(period=1h, depth=0.5)",
    },
    Preset.chaos: {
        "late": 0.05,
        "duplicates": 0.05,
        "malformed": 0.02,
        "loss": 0.01,
        "drift": 0.01,
        "unknown_version": 0.005,
        "clock_skew": 0.02,
        "delay": "exponential(mean=300ms, max=10s)",
        "idle": "30s/5m",
        "silence": "10s/10m",
        "shape": "burst(every=1m, length=5s, times=10)",
    },
}

Rate = Annotated[
    str,
    typer.Option(
        help="Events per second; 0 or max: as fast as possible.", metavar="N|max", show_default=True
    ),
]
OwnRate = Annotated[
    str | None,
    typer.Option(
        help="Events per second, evenly; max, as fast as possible, is the default.", metavar="N|max"
    ),
]
Duration = Annotated[
    str | None,
    typer.Option(
        help="How long, e.g. 60s; at --rate max, of what would be sent in this time.", metavar="DURATION"
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
        help="First event time: a date (UTC), ISO 8601 with zone or epoch ms. Default: now; "
        "for a bounded run faster than real time such that it ends now.",
        metavar="TIME",
    ),
]
Live = Annotated[
    bool,
    typer.Option(
        "--live", help="With --start in the past: send the past at once, then go on with the clock."
    ),
]
ShapeText = Annotated[
    str,
    typer.Option(
        help="How the rate changes: constant, ramp(start, end, over), burst(every, length, times), "
        "sine(period, depth), day(low, peak) or week(low, peak, weekend), e.g. "
        '"sine(period=1h, depth=0.5)". Changes no byte.',
        metavar="SHAPE",
    ),
]
Disorder = Annotated[
    int, typer.Option(help="Events arrive 0 to this many ms of event time late.", metavar="MS")
]
Late = Annotated[float, typer.Option(help="Share of events that come too late, 0 to 1.", metavar="SHARE")]
Lateness = Annotated[
    str, typer.Option(help="How far behind the newest event a late one is, at least.", metavar="DURATION")
]
Duplicates = Annotated[float, typer.Option(help="Share of events sent twice, 0 to 1.", metavar="SHARE")]
Malformed = Annotated[
    float, typer.Option(help="Broken extra messages per valid event, 0 to 1.", metavar="SHARE")
]
DelayText = Annotated[
    str,
    typer.Option(
        help="Law of every event's delay, in place of --disorder-ms: none, uniform(max), "
        "exponential(mean, max) or lognormal(median, sigma, max).",
        metavar="LAW",
    ),
]
Loss = Annotated[float, typer.Option(help="Share of events that are never sent, 0 to 1.", metavar="SHARE")]
Drift = Annotated[
    float,
    typer.Option(help="Messages with an added, renamed or retyped field per event, 0 to 1.", metavar="SHARE"),
]
UnknownVersion = Annotated[
    float,
    typer.Option(help="Extra messages of an unknown schema version per event, 0 to 1.", metavar="SHARE"),
]
ClockSkew = Annotated[
    float, typer.Option(help="Share of keys whose clock is wrong, 0 to 1.", metavar="SHARE")
]
ClockSkewBy = Annotated[str, typer.Option(help="How far a wrong clock is off at most.", metavar="DURATION")]
Idle = Annotated[
    str,
    typer.Option(
        help="One partition is silent so long once in a period, e.g. 30s/10m; 0: never.",
        metavar="DURATION/DURATION",
    ),
]
Silence = Annotated[
    str,
    typer.Option(help="Nothing is sent so long once in a period, e.g. 10s/1h.", metavar="DURATION/DURATION"),
]
To = Annotated[Target, typer.Option(help="Where to.")]
Bootstrap = Annotated[
    str, typer.Option(help="Kafka broker.", envvar="KAFKA_BOOTSTRAP_SERVERS", metavar="HOST:PORT")
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        help="Kafka topic of a stream, instead of its own; may be given for each.",
        metavar="[STREAM=]NAME",
    ),
]
Partitions = Annotated[int, typer.Option(help="Partitions of a topic that does not exist yet.", min=1)]
RecordTimes = Annotated[
    Timestamps | None,
    typer.Option(
        help="Time of the Kafka records: arrival, the simulated one (event time and delay), or append, when "
        "the broker takes them. Default: append where event time is the clock's, else arrival."
    ),
]
KafkaOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--kafka-option",
        help="Option of the Kafka client, e.g. compression.type=zstd or security.protocol=SASL_SSL; "
        "may be given for each.",
        metavar="NAME=VALUE",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="File for --to jsonl or parquet; of several streams, their folder.", metavar="PATH"),
]
LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        help="Write the ledger of truth to this file: JSON lines, or Parquet if it ends in .parquet.",
        metavar="FILE",
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Go on with a killed run of this --ledger exactly; begin if there is none."
    ),
]
ProfileName = Annotated[
    Preset | None,
    typer.Option(
        "--profile", help="Values for flags that are not given: a demo, a long run, or much trouble."
    ),
]
Sample = Annotated[
    int | None,
    typer.Option(
        help="Show this many messages with key, headers and truth; send nothing.", metavar="N", min=1
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Say what would be sent, from the first 10,000 messages; send nothing."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no summary.")]


def kafka_options(given: list[str] | None) -> dict[str, str]:
    """Return the client options that ``NAME=VALUE`` texts write.

    Raises:
        UserError: If one is no such text; its value is not shown, it may be a secret.

    >>> kafka_options(["compression.type=zstd"])
    {'compression.type': 'zstd'}
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UserError(f"--kafka-option is NAME=VALUE, got {name}")
        found[name] = value
    return found


def with_preset(ctx: typer.Context, preset: Preset | None, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with those of a preset where no flag was given; what a domain lacks is left out."""
    if preset is None:
        return values
    chosen = {
        name: value
        for name, value in PRESETS[preset].items()
        if name in values and getattr(ctx.get_parameter_source(name), "name", "DEFAULT") == "DEFAULT"
    }
    if "events" in values and values["events"] is not None:
        chosen.pop("duration", None)
    return {**values, **chosen}
