"""`millrace bench kafka-running-zscore`: ours, Spark's aggregation and a plain loop, Kafka to Kafka."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.kafka.admin import APPEND_TIME, SENT_TIME
from millrace_apps.benchmarks import core_app, oracles
from millrace_apps.benchmarks.case import bench_session, streaming_settings
from millrace_apps.benchmarks.cpu import cpu_seconds
from millrace_apps.benchmarks.inputs import Events, card_name, make_events
from millrace_apps.benchmarks.kafka_io import preload, read_results, read_values
from millrace_apps.benchmarks.report import tell
from millrace_apps.benchmarks.streams import BenchmarkFailed, Mark, await_end, combined

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOOP_LIMIT_S = 600
OWN: Final = ("process", "process_batch")
RIVALS: Final = ("spark_native", "spark_native_per_event", "loop")


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        messages: Messages in the topic before anything starts.
        keys: Cards.
        batch: Most messages of one batch.
        partitions: Partitions of the topics.
        repeats: Runs of each system, in alternating order; figures are medians.
    """

    messages: int = 4_000_000
    keys: int = 50_000
    batch: int = 400_000
    partitions: int = 2
    repeats: int = 1

    def taken(self, number: int) -> int:
        """Return how many messages a batch of a rival takes; there is one without any at the end."""
        return max(0, min(self.batch, self.messages - number * self.batch))


QUICK = Sizes(messages=60_000, keys=2_000, batch=20_000)


@dataclass(frozen=True)
class Setting:
    """Where a run takes place.

    Attributes:
        bootstrap: The broker.
        folder: Of checkpoints and logs.
        topic: The topic of events.
        events: What is in it.
        sizes: How much is run.
    """

    bootstrap: str
    folder: Path
    topic: str
    events: Events
    sizes: Sizes

    def make_topic(self, name: str, config: Mapping[str, str] = APPEND_TIME) -> str:
        """Create a topic."""
        from millrace.kafka.admin import TopicSpec, create_topics

        spec = TopicSpec(self.sizes.partitions, config)
        create_topics(self.bootstrap, {name: spec})
        return name


def kafka_running_zscore(sizes: Sizes, bootstrap: str | None) -> dict[str, Any]:
    """Run all systems over the same topic and return their figures.

    Args:
        sizes: How much.
        bootstrap: A broker, or ``None`` for an embedded one.
    """
    from millrace.kafka.admin import delete_topics, topic_partitions
    from millrace.kafka.broker import broker_or_embedded

    measured: dict[str, Callable[[Setting, str], dict[str, Any]]] = {
        "process": lambda setting, run: ours(setting, run, "w1"),
        "spark_native": native,
        "spark_native_per_event": native_per_event,
        "process_batch": lambda setting, run: ours(setting, run, "w1_batch"),
        "loop": loop,
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in measured}
    with (
        tempfile.TemporaryDirectory(prefix="millrace-bench-") as name,
        broker_or_embedded(bootstrap, log_dir=Path(name)) as broker,
    ):
        folder = Path(name)
        own = f"bench-{folder.name[-8:]}"
        events = make_events(sizes.messages, sizes.keys)
        setting = Setting(broker, folder, f"{own}-events", events, sizes)
        try:
            tell(f"{sizes.messages:,} messages to {setting.topic}")
            preload(broker, setting.make_topic(setting.topic, SENT_TIME), events)
            for repeat in range(sizes.repeats):
                order = list(measured) if repeat % 2 == 0 else list(reversed(measured))
                for system in order:
                    run = f"{own}-{system.replace('_', '-')}-{repeat}"
                    tell(f"{system}, run {repeat + 1} of {sizes.repeats}")
                    runs[system].append(measured[system](setting, run))
                    tell(f"{system}: {runs[system][-1]['rows_per_s']:,.0f} messages/s")
        finally:
            delete_topics(broker, [t for t in topic_partitions(broker) if t.startswith(own)])
    found = {system: combined(of) for system, of in runs.items()}
    return {"systems": found, "ratios": ratios(found), "cpu_ratios": cpu_ratios(found)}


def ratios(systems: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return how our speed by the wall compares with the others'; above 1, ours is the faster one."""
    return {
        f"{own}_over_{other}": systems[own]["rows_per_s"] / systems[other]["rows_per_s"]
        for own in OWN
        for other in RIVALS
    }


def cpu_ratios(systems: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return how many times more CPU time per message the others take; above 1, ours takes less."""
    return {
        f"{own}_over_{other}": systems[other]["cpu_s_per_million"] / systems[own]["cpu_s_per_million"]
        for own in OWN
        for other in RIVALS
    }


def ours(setting: Setting, run: str, job: core_app.Job) -> dict[str, Any]:
    """Run our app to the end of the topic."""
    from millrace.runtime.job import Job

    results = setting.make_topic(f"{run}-results")
    sets = core_app.core_overrides(
        setting.bootstrap,
        setting.folder / run,
        run,
        f"topics.events={setting.topic}",
        f"topics.results={results}",
        f"topics.dead_letters={run}-dead-letters",
        f"job={job}",
        f"stream.max_offsets_per_trigger={setting.sizes.batch}",
        # The partitions of the topic are read in step, and not to the event.
        "stream.out_of_orderness=60s",
        "spark.driver_memory=2g",
        "stream.plan=chain",
    )
    marks: list[tuple[Mark, int]] = []

    def mark(_batch: int, counts: dict[str, int]) -> None:
        marks.append((Mark(time.monotonic(), cpu_seconds()), counts.get("main", 0)))

    Job(core_app.app, core_app.core_settings(sets), until_end=True, on_batch=mark).run()
    found = read_results(setting.bootstrap, results)
    return {
        **warm_figures(marks),
        "correct": found.is_correct(setting.events) and found.repeats == 0,
    }


def warm_figures(marks: list[tuple[Mark, int]]) -> dict[str, Any]:
    """Return speed and cost after the first batch.

    Args:
        marks: The end of each batch, and how many messages it took.

    Raises:
        BenchmarkFailed: Nothing is left when the first batch does not count.
    """
    taken = [(mark, rows) for mark, rows in marks if rows]
    if len(taken) < 2:
        raise BenchmarkFailed("all messages came in one batch, which does not count: send more")
    (first, _), (last, _) = taken[0], taken[-1]
    rows = sum(rows for _, rows in taken[1:])
    return {
        "rows_per_s": rows / (last.at - first.at),
        "cpu_s_per_million": (last.cpu - first.cpu) / rows * 1e6,
        "rows": rows,
        "batches": len(taken),
        "warm_batches": 1,
        "batch_seconds": [round(b.at - a.at, 3) for (a, _), (b, _) in itertools.pairwise(taken)],
    }


def native(setting: Setting, run: str) -> dict[str, Any]:
    """Run Spark's own aggregation: JSON in and out in the JVM, a message per card and batch."""
    from pyspark.sql import functions as F

    from millrace.connectors.kafka import kafka_stream, write_records
    from millrace.kafka.options import spark_options
    from millrace_apps.benchmarks.w1_job import native as aggregate

    options, sizes = spark_options(setting.bootstrap, {}), setting.sizes
    results = setting.make_topic(f"{run}-results")
    marks: list[tuple[Mark, int]] = []

    def sink(batch: DataFrame, number: int) -> None:
        write_records(batch, options)
        marks.append((Mark(time.monotonic(), cpu_seconds()), sizes.taken(number)))

    with bench_session(setting.folder) as spark:
        stream = kafka_stream(spark, options, [setting.topic], max_offsets_per_trigger=sizes.batch)
        event = F.from_json(F.col("value").cast("string"), "card string, cents long")
        kept = aggregate(stream.select(event.alias("event")).select("event.*"))
        records = kept.select(
            F.lit(results).alias("topic"),
            F.col("card").cast("binary").alias("key"),
            F.to_json(F.struct(*kept.columns)).alias("value"),
        )
        await_end(records, setting.folder / run, sink, "update")
    found = final_totals(value for value, _ in read_values(setting.bootstrap, results))
    return {**warm_figures(marks), "correct": found == expected_totals(setting.events)}


def native_per_event(setting: Setting, run: str) -> dict[str, Any]:
    """Run Spark's own operators with a message per event: JSON in and out in the JVM, no Python."""
    from pyspark.sql import functions as F

    from millrace.connectors.kafka import kafka_stream, write_records
    from millrace.kafka.options import spark_options
    from millrace_apps.benchmarks.native_per_event import batch_records, scores, totals

    options, sizes = spark_options(setting.bootstrap, {}), setting.sizes
    results = setting.make_topic(f"{run}-results")
    checkpoint = setting.folder / run
    marks: list[tuple[Mark, int]] = []

    def sink(batch: DataFrame, number: int) -> None:
        scored = scores(batch_records(batch, options, checkpoint, number), batch)
        messages = scored.select(
            F.lit(results).alias("topic"),
            F.col("card").cast("binary").alias("key"),
            F.to_json(F.struct("id", "n", "z")).alias("value"),
        )
        write_records(messages, options)
        marks.append((Mark(time.monotonic(), cpu_seconds()), sizes.taken(number)))

    with bench_session(setting.folder) as spark:
        stream = kafka_stream(spark, options, [setting.topic], max_offsets_per_trigger=sizes.batch)
        await_end(totals(stream), checkpoint, sink, "update")
    found = read_results(setting.bootstrap, results)
    return {
        **warm_figures(marks),
        "correct": found.is_correct(setting.events) and found.repeats == 0,
    }


class CardTotals(msgspec.Struct, gc=False):
    """What Spark's aggregation says of a card."""

    card: str
    n: int
    total: int
    squares: int


def final_totals(values: Iterable[bytes]) -> dict[str, CardTotals]:
    """Return the last word on every card: the one with the most events."""
    decode = msgspec.json.Decoder(CardTotals).decode
    last: dict[str, CardTotals] = {}
    for value in values:
        said = decode(value)
        if said.card not in last or said.n >= last[said.card].n:
            last[said.card] = said
    return last


def expected_totals(events: Events) -> dict[str, CardTotals]:
    """Return what must be said of every card."""
    totals = oracles.totals_per_batch(events, [0, len(events)])
    columns = (totals.n.tolist(), totals.total.tolist(), totals.squares.tolist())
    names = map(card_name, totals.card.tolist())
    return {card: CardTotals(card, *of) for card, of in zip(names, zip(*columns, strict=True), strict=True)}


def loop(setting: Setting, run: str) -> dict[str, Any]:
    """Run a plain Python process per partition."""
    from millrace.kafka.admin import end_offsets

    results = setting.make_topic(f"{run}-results")
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "millrace_apps.benchmarks.loop_worker", setting.bootstrap, setting.topic,
             results, str(partition), str(end)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for partition, end in end_offsets(setting.bootstrap, setting.topic).items()
    ]  # fmt: skip
    try:
        said = [json.loads(worker.communicate(timeout=_LOOP_LIMIT_S)[0] or "{}") for worker in workers]
    except subprocess.TimeoutExpired as error:
        raise BenchmarkFailed(f"the plain loop does not end within {_LOOP_LIMIT_S} s") from error
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    if not all(said):
        raise BenchmarkFailed("a process of the plain loop failed; what it said stands above")
    seconds = max(s["ended"] for s in said) - min(s["began"] for s in said)
    found = read_results(setting.bootstrap, results)
    return {
        "rows_per_s": setting.sizes.messages / seconds,
        "cpu_s_per_million": sum(s["cpu"] for s in said) / setting.sizes.messages * 1e6,
        "correct": found.is_correct(setting.events) and found.repeats == 0,
        "rows": setting.sizes.messages,
    }


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {
        **asdict(sizes),
        "exponent": 1.1,
        "spark_native": "groupBy(card), update mode: a message per card and batch, not per event",
        "spark_native_per_event": "the same, and a message per event by a window over the batch, read again",
        "loop": "no durability, no event time, no late check",
        "settings": streaming_settings(),
    }
