"""`millrace generate DOMAIN` for a domain of several streams: its options come from its profile."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import typer

from millrace.errors import UserError
from millrace_apps.generators import options as o
from millrace_apps.generators.engine.disturb import Disturbances
from millrace_apps.generators.engine.profile import Profile
from millrace_apps.generators.engine.simulated import Domain
from millrace_apps.generators.kafka_loop import OPTIONS, close_the_loop
from millrace_apps.generators.timing import Timing, parse_pace, parse_start, resolve_timing

#: Options of every domain, in the order of the help: name → (type, default).
_SHARED: Final[dict[str, tuple[Any, Any]]] = {
    "rate": (o.Rate, "1000"),
    "duration": (o.Duration, None),
    "events": (o.Events, None),
    "seed": (o.Seed, 1),
    "speed": (o.Speed, None),
    "event_rate": (o.EventRate, None),
    "start": (o.Start, None),
    "live": (o.Live, False),
    "shape": (o.ShapeText, "constant"),
    "profile": (o.ProfileName, None),
    "disorder_ms": (o.Disorder, 500),
    "delay": (o.DelayText, ""),
    "late": (o.Late, 0.0),
    "lateness": (o.Lateness, "60s"),
    "duplicates": (o.Duplicates, 0.0),
    "loss": (o.Loss, 0.0),
    "malformed": (o.Malformed, 0.0),
    "drift": (o.Drift, 0.0),
    "unknown_version": (o.UnknownVersion, 0.0),
    "clock_skew": (o.ClockSkew, 0.0),
    "clock_skew_by": (o.ClockSkewBy, "60s"),
    "idle": (o.Idle, "0"),
    "silence": (o.Silence, "0"),
    "to": (o.To, o.Target.kafka),
    "bootstrap": (o.Bootstrap, "localhost:9092"),
    "topic": (o.Topics, None),
    "partitions": (o.Partitions, 4),
    "timestamps": (o.RecordTimes, None),
    "kafka_option": (o.KafkaOptions, None),
    "out": (o.Out, None),
    "ledger": (o.LedgerFile, None),
    "resume": (o.Resume, False),
    "sample": (o.Sample, None),
    "dry_run": (o.DryRun, False),
    "quiet": (o.Quiet, False),
}
#: Options that a domain with a pace of its own has not.
_OF_RATES: Final = ("duration", "event_rate", "live", "shape")
#: Domains whose people react to an app: domain → module with its ``LOOP``.
_LOOPS: Final = {
    "ridesharing": "millrace_apps.generators.ridesharing.loop",
    "clickstream": "millrace_apps.generators.clickstream.loop",
}


def make_command(domain: Domain) -> Callable[..., None]:
    """Return the function of a domain's command, with a signature that has the domain's own parameters."""

    def command(ctx: typer.Context, **values: Any) -> None:
        generate(domain, o.with_preset(ctx, values["profile"], values))

    parameters = [
        inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *(_parameter(name, kind, default) for name, (kind, default) in _shared(domain).items()),
        *(_parameter(name, kind, default) for name, (kind, default) in own_options(domain).items()),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = f"Generate {domain.description}."
    return command


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def _shared(domain: Domain) -> dict[str, tuple[Any, Any]]:
    """Return the shared options; the domain and its profile say what is usual."""
    usual = _usual(domain)
    found = {
        **_SHARED,
        **(OPTIONS if domain.name in _LOOPS else {}),
        "rate": (o.Rate, f"{usual['event_rate']:g}"),
        "disorder_ms": (o.Disorder, usual["disorder_ms"]),
    }
    if domain.paced:
        found = {name: option for name, option in found.items() if name not in _OF_RATES}
        found["rate"] = (o.OwnRate, None)
    return found | {name: (found[name][0], default) for name, default in domain.usual.items()}


def _usual(domain: Domain) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(domain.profile)}


def own_options(domain: Domain) -> dict[str, tuple[Any, Any]]:
    """Return the options that only this domain has: the plain fields of its profile."""
    shared = {field.name for field in dataclasses.fields(Profile)} | _SHARED.keys()
    hints, texts = get_type_hints(domain.profile), help_of(domain.profile)
    found: dict[str, tuple[Any, Any]] = {}
    for field in dataclasses.fields(domain.profile):
        kind = hints[field.name]
        if field.name not in shared and _is_plain(kind) and field.default is not dataclasses.MISSING:
            option = typer.Option(help=texts.get(field.name, ""))
            found[field.name] = (Annotated[kind, option], field.default)
    return found


def _is_plain(kind: Any) -> bool:
    kinds = [k for k in get_args(kind) if k is not type(None)] if _is_union(kind) else [kind]
    return len(kinds) == 1 and kinds[0] in (int, float, str, bool)


def _is_union(kind: Any) -> bool:
    return isinstance(kind, types.UnionType) or get_origin(kind) is Union


def help_of(profile: type) -> dict[str, str]:
    """Return the attributes' descriptions from a class's docstring.

    >>> help_of(Profile)["seed"]
    'Seed of all random numbers.'
    """
    _, _, attributes = (inspect.getdoc(profile) or "").partition("Attributes:\n")
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", attributes, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def generate(domain: Domain, values: dict[str, Any]) -> None:
    """Run a domain's command.

    Args:
        domain: The domain.
        values: Option → value, presets applied.
    """
    from millrace.testing.world_ledger import WorldRun
    from millrace_apps.generators.command import Job, carry_out, found_bookmark
    from millrace_apps.generators.engine.stages import spaced
    from millrace_apps.generators.engine.world import deliver_domain
    from millrace_apps.generators.world_ledger import WorldLedger

    domain = with_topics(domain, values["topic"] or [])
    topics = {name: spec.topic for name, spec in domain.streams.items()}
    versions = {name: spec.schema_version for name, spec in domain.streams.items()}
    bookmark = found_bookmark(values["ledger"], values["to"].value, resume=values["resume"])
    rate: float | None = None
    if domain.paced:
        timing, rate = _own_pace(domain, values)
    else:
        timing = resolve_timing(
            **{name: values[name] for name in ("rate", "speed", "event_rate", "duration", "events", "start")},
            live=values["live"],
            resumed_start_ms=bookmark.parameters["start_ms"] if bookmark else None,
            usual_event_rate=_usual(domain)["event_rate"],
            by_time=True,
            now_ms=time.time_ns() // 1_000_000,
        )
    if values.get("loop"):
        loop = importlib.import_module(_LOOPS[domain.name]).LOOP
        domain, timing = close_the_loop(domain, loop, values, timing)
    profile, wrong = make_profile(domain, values, timing.event_rate, timing.events, timing.start_ms)
    if domain.table is not None and values["to"] is o.Target.parquet and not _only_shows(values):
        _write_table(domain.table, profile, values)
        return
    until_ms = timing.until_ms
    parameters = {**profile.parameters(), "until_ms": until_ms, "disturbances": wrong.parameters()}
    stream = deliver_domain(domain, profile, wrong, until_ms)
    run = WorldRun(domain.name, profile.seed, topics, versions, parameters)
    job = Job(
        domain=domain.name,
        stream=stream if rate is None else spaced(stream, profile.start_ms, rate),
        parameters=parameters,
        events=profile.events,
        open_ledger=lambda path, resume: WorldLedger(path, run, resume=resume),
    )
    carry_out(job, {"shape": "constant", **values}, timing, topics, bookmark)


def _own_pace(domain: Domain, values: dict[str, Any]) -> tuple[Timing, float | None]:
    """Return when the events of a domain with a pace of its own are sent, and at which rate instead of it."""
    speed, rate = values["speed"], values["rate"]
    pace = parse_pace("max" if rate is None and speed is None else rate, 1.0 if speed is None else speed)
    start_ms = parse_start(values["start"])
    return Timing(_usual(domain)["event_rate"], pace[0], values["events"], start_ms, live=False), pace[1]


def _only_shows(values: dict[str, Any]) -> bool:
    return values["sample"] is not None or values["dry_run"]


def _write_table(write: Callable[[Any, Path], str], profile: Profile, values: Mapping[str, Any]) -> None:
    """Write a domain's table as it was published, its labels among the columns."""
    out: Path | None = values["out"]
    if out is None:
        raise UserError("--to parquet needs a file: add --out FILE, or use --to stdout")
    for name in ("ledger", "events", "rate", "speed"):
        if values[name] is not None:
            raise UserError(
                f"--{name} is for a stream; --to parquet writes the whole table with its labels: leave it out"
            )
    began = time.monotonic()
    said = write(profile, out)
    if not values["quiet"]:
        title, *more = said.splitlines()
        lines = [f"wrote {title} → {out} in {time.monotonic() - began:.1f} s", *more]
        print("\n".join(lines), file=sys.stderr)


def make_profile(
    domain: Domain, values: dict[str, Any], event_rate: float, events: int | None, start_ms: int
) -> tuple[Profile, Disturbances]:
    """Return what the values of the options make of the domain's profile and of the faults."""
    from millrace.time.durations import to_ms

    same = ("seed", "disorder_ms", "late", "duplicates", "malformed", *own_options(domain))
    profile = domain.profile(
        event_rate=event_rate,
        events=events,
        start_ms=start_ms,
        lateness_ms=to_ms(values["lateness"]),
        **{name: values[name] for name in same},
    )
    idle_ms, idle_every_ms = _length_and_period("--idle", values["idle"], 600_000)
    silence_ms, silence_every_ms = _length_and_period("--silence", values["silence"], 3_600_000)
    wrong = Disturbances(
        clock_skew_ms=to_ms(values["clock_skew_by"]),
        idle_ms=idle_ms,
        idle_every_ms=idle_every_ms,
        idle_partitions=values["partitions"],
        silence_ms=silence_ms,
        silence_every_ms=silence_every_ms,
        **{name: values[name] for name in ("delay", "loss", "drift", "unknown_version", "clock_skew")},
    )
    return profile, wrong


def _length_and_period(flag: str, text: str, usual_ms: int) -> tuple[int, int]:
    from millrace.time.durations import to_ms

    length, slash, period = text.partition("/")
    length_ms, every_ms = to_ms(length.strip()), to_ms(period.strip()) if slash else usual_ms
    if length_ms >= every_ms:
        raise UserError(f"{flag} is a length and a longer period, e.g. 30s/10m, got {text}")
    return length_ms, every_ms


def with_topics(domain: Domain, given: list[str]) -> Domain:
    """Return the domain with topics that the user named: ``stream=topic``, or a name if there is one stream.

    Raises:
        UserError: If a stream is not known, or is missing where there are several.
    """
    streams = dict(domain.streams)
    for text in given:
        stream, equals, topic = text.partition("=")
        if not equals and len(streams) == 1:
            stream, topic = next(iter(streams)), text
        if stream not in streams or not topic:
            raise UserError(f"--topic is STREAM=NAME with a stream of {', '.join(streams)}; got {text}")
        streams[stream] = dataclasses.replace(streams[stream], topic=topic)
    return dataclasses.replace(domain, streams=streams)
