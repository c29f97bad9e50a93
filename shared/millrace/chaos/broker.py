"""``chaos input --host spark``: the same records by a real broker, through the app's query on Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace.chaos.account import Account, Report
from millrace.chaos.hostile import Message, Sender, Sent
from millrace.chaos.witness import HANDLED_OUTPUT, with_witness
from millrace.errors import MillraceError
from millrace.runtime.apps import App, with_sent_times
from millrace.topology.sinks import table_name

if TYPE_CHECKING:
    from millrace.runtime.settings import AppSettings
    from millrace.topology import Topology

#: A batch has so many records, so that there are several.
_BATCH: Final = 4_000
#: What a broker takes in one record, unless told otherwise.
_MOST_BYTES: Final = 1_048_588
_FLUSH_S: Final = 60.0


def input_on_spark(
    app: App,
    settings: AppSettings,
    world: Iterable[Message],
    *,
    events: int,
    seed: int,
    folder: Path,
    on_progress: Callable[[str], None] = lambda _line: None,
) -> Report:
    """Send hostile records by an embedded broker through an app's query on Spark, to its end.

    Control events are not sent: who has taken them is known where it happens alone, and in memory.

    Args:
        app: The app.
        settings: Its settings.
        world: Records of its generated world, in order of sending.
        events: How many records are sent, the world's among them.
        seed: The same one sends the same.
        folder: Where tables, checkpoint and logs go.
        on_progress: Told in a line now and then how far it is.
    """
    from millrace.kafka.broker import EmbeddedBroker
    from millrace.runtime.job import Job

    began = time.monotonic()
    watched = with_sent_times(replace(app, topology=_Watched(app)))
    account = Account()
    with EmbeddedBroker(log_dir=folder / "logs") as broker:
        settings = _settings(settings, broker.bootstrap, folder)
        topology = watched.topology(settings)
        sender = Sender(app.topology(settings), world, seed=seed, controls=False)
        refused = _send(watched, settings, sender.send(events), account, on_progress)
        done = events - refused
        on_progress(f"{done:,} records are in their topics, {refused:,} more were too large for the broker")
        ended = ""
        try:
            Job(watched, settings, until_end=True, drain=True, on_batch=_telling(on_progress)).run()
        except Exception as error:  # whatever it is: that the job ends is what is looked for
            ended = f"{type(error).__name__}: {error}"
        _read(topology, folder, account)
    rows = account.rows()
    seconds = time.monotonic() - began
    return Report(app.name, "spark", seed, done, seconds, rows, account.faults, ended, sender.cases)


class _Watched:
    """Makes an app's topology with a witness in it; it is written to a table."""

    def __init__(self, app: App) -> None:
        self._app = app

    def __call__(self, settings: Any) -> Topology:
        return with_witness(self._app.topology(settings), writes=True)


def _settings(settings: AppSettings, bootstrap: str, folder: Path) -> AppSettings:
    def changed(section: str, **values: Any) -> dict[str, Any]:
        return {section: getattr(settings, section).model_copy(update=values)}

    most = settings.stream.max_offsets_per_trigger
    stream = {"max_dead_letter_ratio": 1.0, "max_offsets_per_trigger": min(_BATCH, most or _BATCH)}
    return settings.model_copy(
        update={
            **changed("kafka", bootstrap=bootstrap),
            **changed("storage", root=str(folder / "app")),
            **changed("stream", **stream),
        }
    )


def _telling(on_progress: Callable[[str], None]) -> Callable[[int, dict[str, int]], None]:
    def on_batch(batch: int, counts: dict[str, int]) -> None:
        on_progress(f"batch {batch}: {sum(counts.values()):,} records written")

    return on_batch


def _send(
    app: App,
    settings: AppSettings,
    sent: Iterator[Sent],
    account: Account,
    on_progress: Callable[[str], None],
) -> int:
    """Send records, take note of where each stands, and return how many the broker did not take."""
    from confluent_kafka import KafkaException, Producer

    from millrace.kafka.admin import TopicSpec, client_config, create_topics

    kafka, topics = settings.kafka, app.topics(settings)
    assert kafka.bootstrap is not None  # noqa: S101  (it has just been set)
    made = {t.name: TopicSpec(t.partitions, dict(t.config)) for t in (*topics.reads, *topics.writes)}
    create_topics(kafka.bootstrap, made, options=kafka.options)
    refused = 0
    config = client_config(kafka.bootstrap, kafka.options)
    producer = Producer({**config, "message.max.bytes": _MOST_BYTES, "partitioner": "murmur2_random"})

    def deliver(one: Sent) -> Callable[[Any, Any], None]:
        def on_delivery(error: Any, message: Any) -> None:
            nonlocal refused
            if error is not None:
                refused += 1
            else:
                account.sent(one, message.partition(), message.offset())

        return on_delivery

    for number, one in enumerate(sent, 1):
        topic, key, value, at, headers = one.message
        while True:
            try:
                producer.produce(
                    topic, value, key, timestamp=at, headers=list(headers), on_delivery=deliver(one)
                )
                break
            except BufferError:
                producer.poll(0.05)
            except KafkaException:  # larger than a record may be
                refused += 1
                break
        if number % 1_000 == 0:
            producer.poll(0)
    left = producer.flush(_FLUSH_S)
    if left:
        raise MillraceError(f"the broker did not take {left} records within {_FLUSH_S:.0f} s")
    return refused


def _read(topology: Topology, folder: Path, account: Account) -> None:
    """Read what the query has written of the records."""
    first = topology.links[0].name
    for row in _rows(folder, HANDLED_OUTPUT, ("cause", "late")):
        account.handled(row["cause"], late=row["late"])
    columns = ("topic", "partition", "offset", "reason", "stage", "process", "error")
    for link in topology.links:
        for table in topology.tables[topology.full_name(link.name, "dead_letters")][:1]:
            for row in _rows(folder, table_name(table), columns):
                cause = None if row["topic"] is None else f"{row['topic']}:{row['partition']}:{row['offset']}"
                told = (row["reason"], row["stage"], row["process"], row["error"])
                account.letter(cause, *told, first=link.name == first)


def _rows(folder: Path, table: str, columns: Iterable[str]) -> Iterator[dict[str, Any]]:
    from deltalake import DeltaTable

    path = folder / "app" / "tables" / table
    if path.exists():
        for batch in DeltaTable(str(path)).to_pyarrow_table(columns=list(columns)).to_batches():
            yield from batch.to_pylist()
