"""`millrace query --stream`: the text of a query over topics and tables as they grow."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from millrace.query.catalog import AppTable
    from millrace.query.topics import AppTopic
    from millrace.runtime.settings import AppSettings, KafkaSettings


#: So many rows of a batch are shown as a table.
_MOST: Final = 10_000


class Beginning(StrEnum):
    """Where a stream begins."""

    earliest = "earliest"
    latest = "latest"


@dataclass(frozen=True)
class Asked:
    """What is asked of a stream.

    Attributes:
        text: The query.
        shape: How rows are shown: table, json, csv.
        out: A Parquet folder or a Delta table for the rows.
        to: A topic for them.
        limit: So many rows are shown.
        beginning: Where to begin.
        for_s: For how long, s.
        until_end: End with what is there.
        checkpoint: Spark's notes, to go on later.
    """

    text: str
    shape: str
    out: Path | None
    to: str | None
    limit: int | None
    beginning: Beginning
    for_s: float | None
    until_end: bool
    checkpoint: Path | None


def topics_known(apps: Sequence[tuple[str, AppSettings]]) -> list[AppTopic]:
    """Return the topics of some apps, each once."""
    from millrace.query.topics import topics_of
    from millrace.runtime.apps import load_app

    found: dict[str, AppTopic] = {}
    for name, settings in apps:
        for topic in topics_of(load_app(name), settings):
            found.setdefault(topic.topic, topic)
    return list(found.values())


def run_stream(asked: Asked, apps: Sequence[tuple[str, AppSettings]], tables: Sequence[AppTable]) -> None:
    """Run it until it is to end.

    Args:
        asked: What is asked.
        apps: The apps whose topics may be asked, with their settings.
        tables: The tables that may be.

    Raises:
        UserError: It cannot be run as it is written.
    """
    from millrace.errors import UserError
    from millrace.local.stopping import stop_signals
    from millrace.query.catalog import unknown_table
    from millrace.query.places import Noted, check_folder, check_topic, goes_on, kept
    from millrace.query.topics import named, unknown_topics
    from millrace.runtime.apps import load_app
    from millrace.runtime.session import spark_session
    from millrace.runtime.stream_sql import Into, Streamed, stream
    from millrace.time import ms
    from millrace.topology import Upsert

    settings = dict(apps)
    topics = topics_known(apps)
    if missing := unknown_topics(asked.text, [topic.full_name for topic in topics]):
        raise unknown_table(missing[0], Streamed(topics, tables).names())
    used = set(named(asked.text, Streamed(topics, tables).names())[1])
    asked_topics = [topic for topic in topics if topic.full_name in used]
    for one in asked_topics:
        if alike := [t.topic for t in asked_topics if t.full_name == one.full_name and t is not one]:
            raise UserError(f"{one.full_name} may be {one.topic} or {alike[0]}: say which app's with --app")
    of_topics = sorted({t.app for t in asked_topics})
    of_tables = sorted({t.app for t in tables if t.full_name in used})
    kafka: dict[str, str] = {}
    masking = {}
    chosen = next(iter((*of_topics, *of_tables, *settings)))
    delay = f"{ms(settings[chosen].stream.out_of_orderness)} milliseconds"
    if asked.out is not None:
        check_folder(asked.out, tables, goes_on=goes_on(asked.checkpoint))
    if asked.to is not None:
        check_topic(asked.to, topics)
    if asked_topics or asked.to:
        at, broker = _broker([settings[name].kafka for name in (chosen, *settings)])
        kafka = at.spark_options() | {"kafka.bootstrap.servers": broker}
        _topics_are_there(asked_topics, asked.to, at, broker)
    for name in of_topics:
        make = load_app(name).masking
        made = None if make is None else make(settings[name])
        if made is not None:
            masking[name] = made
    merged = frozenset(
        f"{name}.{to.table}"
        for name in of_tables
        for _, to in load_app(name).topology(settings[name]).written
        if isinstance(to, Upsert)
    )
    skews = {name: ms(settings[name].stream.max_future_skew) for name in of_topics}
    of = Streamed(topics, tables, merged, kafka, masking, delay, skews)
    into = Into(None if asked.out or asked.to else _teller(asked), asked.out, asked.to, _most(asked))
    noted = Noted(asked.text, "" if asked.out is None else str(asked.out.absolute()), asked.to or "")
    spark = settings[chosen].spark
    with contextlib.ExitStack() as stack:
        if asked.checkpoint is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-q-")))
        else:
            folder = asked.checkpoint
            stack.enter_context(kept(folder, noted))
        session = spark_session(
            "millrace-query",
            master=spark.master,
            shuffle_partitions=spark.shuffle_partitions,
            driver_memory=spark.driver_memory,
            quick_start=True,
        )
        ended = stack.enter_context(stop_signals())
        running = stack.enter_context(session)
        count = stream(
            running,
            asked.text,
            of,
            into,
            checkpoint=folder,
            earliest=asked.beginning is Beginning.earliest,
            for_s=asked.for_s,
            until_end=asked.until_end,
            stop=ended.is_set,
        )
    typer.echo(f"ended after {count:,} batches", err=True)


def _broker(of_apps: Sequence[KafkaSettings]) -> tuple[KafkaSettings, str]:
    """Return which app's broker is asked, and its address: the first's, else that of one who names one.

    So topics of a demo are found, of which only the app that runs knows the broker.
    """
    from millrace.errors import UserError
    from millrace.operations.sending import reachable

    try:
        return of_apps[0], reachable(of_apps[0])
    except UserError:
        named = next((kafka for kafka in of_apps if kafka.bootstrap is not None), None)
        if named is None or of_apps[0].bootstrap is not None:
            raise
        return named, reachable(named)


def _topics_are_there(
    asked: Sequence[AppTopic], to: str | None, kafka: KafkaSettings, bootstrap: str
) -> None:
    """Refuse topics that the broker does not have; the one that rows go to is made.

    Raises:
        UserError: One is not there.
    """
    from millrace.errors import UserError
    from millrace.kafka.admin import TopicSpec, create_topics, topic_partitions

    there = topic_partitions(bootstrap, options=kafka.options)
    for one in asked:
        if one.topic not in there:
            raise UserError(
                f"topic {one.topic} is not on {bootstrap} yet: "
                f"`millrace run {one.app}` or its generator makes it"
            )
    if to is not None and to not in there:
        create_topics(bootstrap, {to: TopicSpec(1, {})}, options=kafka.options)
        typer.echo(f"topic {to} is made, with one partition", err=True)


def _most(asked: Asked) -> int | None:
    """Return how many rows of a batch are wanted; ``None``: all. A table on the terminal has an end."""
    most = _MOST if asked.shape == "table" else None
    return asked.limit if most is None or (asked.limit is not None and asked.limit <= most) else most + 1


def _teller(asked: Asked) -> Any:
    from millrace.query.shown import as_table, write_csv, write_json

    said = [0]

    def tell(names: Sequence[str], rows: list[dict[str, Any]]) -> bool:
        try:
            return told(names, rows)
        except BrokenPipeError:  # who reads has seen enough; what Python writes at its end goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return True

    def told(names: Sequence[str], rows: list[dict[str, Any]]) -> bool:
        left = len(rows) if asked.limit is None else asked.limit - said[0]
        part = rows[:left]
        first = said[0] == 0
        said[0] += len(part)
        if asked.shape == "json":
            write_json(typer.echo, part)
        elif asked.shape == "csv":
            write_csv(sys.stdout, names, part, header=first)
        else:
            for line in as_table(names, part[:_MOST]):
                typer.echo(line)
            if len(part) > _MOST:
                typer.echo(f"… a batch has more than {_MOST:,} rows: --json, --out or --to has all", err=True)
        sys.stdout.flush()
        return asked.limit is not None and said[0] >= asked.limit

    return tell
