"""`millrace query --stream`: the text of a query over topics and tables as they grow."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from millrace.query.catalog import AppTable
    from millrace.query.topics import AppTopic
    from millrace.runtime.settings import AppSettings


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
    from millrace.local.stopping import stop_signals
    from millrace.operations.sending import reachable
    from millrace.query.catalog import unknown_table
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
    of_topics = sorted({t.app for t in topics if t.full_name in used})
    of_tables = sorted({t.app for t in tables if t.full_name in used})
    kafka: dict[str, str] = {}
    masking = {}
    chosen = next(iter((*of_topics, *of_tables, *settings)))
    delay = f"{ms(settings[chosen].stream.out_of_orderness)} milliseconds"
    if of_topics or asked.to:
        kafka = settings[chosen].kafka.spark_options()
        kafka["kafka.bootstrap.servers"] = reachable(settings[chosen].kafka)
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
    of = Streamed(topics, tables, merged, kafka, masking, delay)
    into = Into(None if asked.out or asked.to else _teller(asked), asked.out, asked.to)
    spark = settings[chosen].spark
    with contextlib.ExitStack() as stack:
        folder = asked.checkpoint or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-q-"))
        )
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


def _teller(asked: Asked) -> Any:
    from millrace.query.shown import as_table, write_csv, write_json

    said = [0]

    def tell(names: Sequence[str], rows: list[dict[str, Any]]) -> bool:
        left = len(rows) if asked.limit is None else asked.limit - said[0]
        part = rows[:left]
        first = said[0] == 0
        said[0] += len(part)
        if asked.shape == "json":
            write_json(typer.echo, part)
        elif asked.shape == "csv":
            write_csv(sys.stdout, names, part, header=first)
        else:
            for line in as_table(names, part):
                typer.echo(line)
        sys.stdout.flush()
        return asked.limit is not None and said[0] >= asked.limit

    return tell
