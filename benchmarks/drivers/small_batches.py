"""A job in small batches, all of them full: how long one takes and what it costs, on any commit's packages.

``python benchmarks/drivers/small_batches.py --job w1 --batches 100 --rows 600 --out R.json``

The file is run by its path, by the Python of whichever environment is to be measured; so that it runs on
older commits too it imports only what was there at a6f5cc6 and means the same today. `millrace bench compare`
runs it on two commits by turns. There is always more in the topics than a batch may take, so that every batch
takes what its limit lets it take; the trigger is the usual one.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import json
import queue
import signal
import sys
import tempfile
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from millrace.runtime.job import Job

#: Job → bound of out-of-orderness, ms for each event of a batch: the clock of a stream that waits to be read
#: runs as fast as it is read, and a batch takes at least a row of every topic, so that small topics are read
#: ahead of large ones. Nothing must be late, and no more must wait for the clock than has to.
BOUNDS: Final = {"w1": 8.0, "fraud": 8.0, "iot": 8.0, "clickstream": 25.0, "ridesharing": 15.0}
_LEAST_BOUND_MS: Final = 5_000
_CARDS: Final = 50_000
_PARTITIONS: Final = 2
#: Records keep the time that their sender gives them: events arrive when they happen.
_SENT_TIME: Final = {"message.timestamp.type": "CreateTime"}
#: Batches that an app's topics hold ahead of it: more, and small topics are read far ahead; fewer, and what
#: is sent when a batch is done could be too late for the next.
_AHEAD: Final = 2
#: Batches' worth of events that are not measured: the last batch would not be full.
_SPARE_BATCHES: Final = 6
#: A batch that takes longer will not come any more, s; the first one loads everything.
_LIMIT_S: Final = 180.0
_TELL_S: Final = 10.0
#: Between two batches without events, s: what the one before left to be done is done.
_QUIET_S: Final = 0.3
#: Batches without events that do not count.
_EMPTY_WARM: Final = 5

#: What a job calls after each batch: its id and the records per output.
OnBatch = Callable[[int, dict[str, int]], None]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        job: ``w1``, or an app.
        batches: Batches that are measured.
        warm_batches: Batches before them.
        rows: Most events of a batch.
        entities: Cards, machines, people or drivers; ``None``: the usual number of ``millrace bench drain``.
        settings: Settings of the app, ``name=value``; they win.
        empty: Batches of one control row each, after the others; not of ``w1`` and ``native``.
    """

    job: str
    batches: int = 100
    warm_batches: int = 250
    rows: int = 600
    entities: int | None = None
    settings: tuple[str, ...] = ()
    empty: int = 0

    @property
    def events(self) -> int:
        """Events that there are."""
        return (self.warm_batches + self.batches + _SPARE_BATCHES) * self.rows

    @property
    def overrides(self) -> list[str]:
        """All settings, ``name=value``."""
        bound_ms = max(_LEAST_BOUND_MS, round(BOUNDS.get(self.job, 0.0) * self.rows))
        own = [f"stream.max_offsets_per_trigger={self.rows}", f"stream.out_of_orderness={bound_ms}ms"]
        return [*own, *self.settings]


class Failed(Exception):
    """The job did not do what was asked of it; the message says what."""


class BatchRecorder:
    """Notes the end of every batch, and stops the job after the last that counts.

    Args:
        plan: What is run.
        used: Returns the CPU seconds so far by kind of process.
        read: Batch → events read with it and before.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        plan: Plan,
        used: Callable[[], dict[str, float]],
        read: Callable[[int], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan, self._used, self._read, self._clock = plan, used, read, clock
        #: The end of every batch, s.
        self.ends: list[float] = []
        #: Records per output, of the measured batches.
        self.outputs: Counter[str] = Counter()
        self._cpu: list[dict[str, float]] = []
        self._events: list[int] = []
        #: Set when the last batch is done.
        self.done = threading.Event()

    def note(self, batch: int, counts: dict[str, int]) -> None:
        """Note that a batch is done."""
        if self.done.is_set():
            return
        self.ends.append(self._clock())
        taken = len(self.ends) - self._plan.warm_batches
        if taken > 0:
            self.outputs.update(counts)
        if taken in (0, self._plan.batches):
            # Before the first that counts, and after the last: looking takes time itself.
            self._cpu.append(self._used())
            self._events.append(self._read(batch))
            if taken == 0:
                self.ends[-1] = self._clock()
            else:
                self.done.set()

    def figures(self) -> dict[str, Any]:
        """Return what the batches took.

        Raises:
            Failed: The job ended before the last one.
        """
        if not self.done.is_set():
            wanted = self._plan.warm_batches + self._plan.batches
            raise Failed(f"the job ended after {len(self.ends)} of {wanted} batches")
        ends = self.ends[self._plan.warm_batches - 1 :]
        took = [after - before for before, after in itertools.pairwise(ends)]
        (cpu_before, cpu_after), (read_before, read_after) = self._cpu, self._events
        many = len(took)
        by_part = {part: (cpu_after[part] - cpu_before[part]) * 1e3 / many for part in cpu_after}
        return {
            "batch_ms": {
                "median": round(_quantile(took, 0.5) * 1e3, 1),
                "p95": round(_quantile(took, 0.95) * 1e3, 1),
                "low": round(min(took) * 1e3, 1),
                "high": round(max(took) * 1e3, 1),
            },
            "rows_per_batch": round((read_after - read_before) / many, 1),
            "rows_per_s": round((read_after - read_before) / sum(took), 1),
            # The broker is not ours.
            "cpu_ms_per_batch": round(sum(ms for part, ms in by_part.items() if part != "broker"), 1),
            "cpu_ms_per_batch_by": {part: round(ms, 1) for part, ms in by_part.items()},
            "batches": many,
            "warm_batches": self._plan.warm_batches,
            "outputs": dict(sorted(self.outputs.items())),
            "late": self._records("late"),
            "dead_letters": self._records("dead_letters"),
            "batch_seconds": [round(seconds, 4) for seconds in took],
        }

    def _records(self, name: str) -> int:
        """Return the records of an output of this name, whichever process has it."""
        return sum(many for output, many in self.outputs.items() if output.rpartition(".")[2] == name)


def _quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile, between two values in proportion.

    >>> _quantile([1.0, 3.0, 2.0], 0.5), _quantile([1.0, 2.0], 0.95)
    (2.0, 1.95)
    """
    kept = sorted(values)
    place = share * (len(kept) - 1)
    low = int(place)
    return kept[low] + (place - low) * (kept[min(low + 1, len(kept) - 1)] - kept[low])


# -- the jobs ----------------------------------------------------------------------------------------


class Message(NamedTuple):
    """A message as it stands in a topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, Any]]
    #: Its Kafka timestamp, ms; 0: now.
    at_ms: int = 0


@dataclass(frozen=True)
class Fed:
    """A job that is not started yet, and its topics.

    Attributes:
        job: The job.
        topics: What it reads events from.
        feed: Called with how many events it has read, sees to it that more are there.
    """

    job: Job
    topics: tuple[str, ...]
    feed: Callable[[int], None]

    def read(self, batch: int) -> int:
        """Return how many events a batch and those before it have read."""
        from millrace_apps.benchmarks.app_run import read_ends

        ends = read_ends(self.job.root / "checkpoint", batch)
        return sum(ends.get(topic, 0) for topic in self.topics)


@contextmanager
def w1(plan: Plan, on_batch: OnBatch, say: Say) -> Iterator[Fed]:
    """Give the running z-score, event by event; all its events are there before it starts."""
    from millrace.kafka.admin import TopicSpec, create_topics
    from millrace.kafka.broker import broker_or_embedded
    from millrace.runtime.job import Job
    from millrace_apps.benchmarks import core_app
    from millrace_apps.benchmarks.inputs import make_events
    from millrace_apps.benchmarks.kafka_io import preload

    with (
        tempfile.TemporaryDirectory(prefix="millrace-bench-") as name,
        broker_or_embedded(None, log_dir=Path(name)) as broker,
    ):
        sets = core_app.core_overrides(broker, Path(name) / "app", "small", "job=w1", *plan.overrides)
        settings = core_app.core_settings(sets)
        topics = settings.topics
        create_topics(broker, {topics.events: TopicSpec(_PARTITIONS, _SENT_TIME)})
        create_topics(broker, {topics.results: TopicSpec(_PARTITIONS, core_app.APPEND_TIME)})
        say(f"{plan.events:,} events to {topics.events}")
        preload(broker, topics.events, make_events(plan.events, plan.entities or _CARDS))
        yield Fed(Job(core_app.app, settings, on_batch=on_batch), (topics.events,), lambda _: None)


class NativeJob:
    """Spark's own aggregation over the events of W1, whose messages the driver sends as ours does.

    Args:
        broker: The broker.
        topic: The topic of the events.
        results: The topic of the results.
        root: An empty folder.
        rows: Most events of a batch.
        on_batch: Is called after each batch.
    """

    def __init__(
        self, broker: str, topic: str, results: str, root: Path, rows: int, on_batch: OnBatch
    ) -> None:
        self._broker, self._topic, self._results = broker, topic, results
        self.root, self._rows, self._on_batch = root, rows, on_batch
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End it after the running batch."""
        self._stopped.set()

    def run(self) -> None:
        """Run it until it is stopped."""
        from pyspark.sql import functions as F

        from millrace.connectors.kafka import kafka_stream
        from millrace.connectors.producing import Delivery
        from millrace_apps.benchmarks.w1 import bench_session
        from millrace_apps.benchmarks.w1_job import native as aggregate

        delivery = Delivery({"bootstrap.servers": self._broker})

        def sink(batch: Any, number: int) -> None:
            found = batch.toArrow()
            keys, values = found["key"].to_pylist(), found["value"].to_pylist()
            delivery.send(self._results, zip(keys, values, itertools.repeat([])))
            delivery.flush()
            self._on_batch(number, {"main": len(keys)})

        with bench_session(self.root) as spark:
            options = {"kafka.bootstrap.servers": self._broker}
            stream = kafka_stream(spark, options, [self._topic], max_offsets_per_trigger=self._rows)
            event = F.from_json(F.col("value").cast("string"), "card string, cents long")
            kept = aggregate(stream.select(event.alias("event")).select("event.*"))
            records = kept.select(
                F.col("card").alias("key"), F.to_json(F.struct(*kept.columns)).cast("binary").alias("value")
            )
            query = (
                records.writeStream.option("checkpointLocation", str(self.root / "checkpoint"))
                .outputMode("update")
                .foreachBatch(sink)
                .start()
            )
            try:
                while query.isActive and not self._stopped.wait(0.05):
                    pass
            finally:
                query.stop()


@contextmanager
def native(plan: Plan, on_batch: OnBatch, say: Say) -> Iterator[Fed]:
    """Give Spark's own aggregation of what W1 reads."""
    from millrace.kafka.admin import TopicSpec, create_topics
    from millrace.kafka.broker import broker_or_embedded
    from millrace_apps.benchmarks import core_app
    from millrace_apps.benchmarks.inputs import make_events
    from millrace_apps.benchmarks.kafka_io import preload

    with (
        tempfile.TemporaryDirectory(prefix="millrace-bench-") as name,
        broker_or_embedded(None, log_dir=Path(name)) as broker,
    ):
        create_topics(broker, {"events": TopicSpec(_PARTITIONS, _SENT_TIME)})
        create_topics(broker, {"results": TopicSpec(_PARTITIONS, core_app.APPEND_TIME)})
        say(f"{plan.events:,} events to events")
        preload(broker, "events", make_events(plan.events, plan.entities or _CARDS))
        root = Path(name) / "app"
        root.mkdir()
        job: Any = NativeJob(broker, "events", "results", root, plan.rows, on_batch)
        yield Fed(job, ("events",), lambda _: None)


@contextmanager
def app(plan: Plan, on_batch: OnBatch, say: Say) -> Iterator[Fed]:
    """Give an app; the events of its generator come to its topics a few batches before it takes them.

    All at once, its small topics would be read to their end long before the large ones, and with them the
    clock would come to the end.
    """
    from millrace.kafka.admin import TopicSpec, create_topics
    from millrace_apps.benchmarks.app_bench import bench_of
    from millrace_apps.benchmarks.app_run import BenchRun, bench_run

    class Staged(BenchRun):
        """The same run, whose generator sends to topics that the app does not read."""

        def topic(self, name: str) -> str:
            return f"staged-{super().topic(name)}"

    bench = bench_of(plan.job)
    many = {bench.entities: plan.entities or bench.usual}
    with bench_run(bench, None, plan.overrides, on_batch=on_batch) as run:
        say(f"{plan.events:,} events of {plan.job}")
        staged = Staged(run.bench, run.job, run.broker, run.folder, run.suffix)
        staged.generate({"rate": "max", "events": plan.events, "partitions": 1}, many, bench.preload)
        topics = {staged.topic(stream): run.topic(stream) for stream in bench.streams}
        create_topics(run.broker, {topic: TopicSpec(_PARTITIONS) for topic in topics.values()})
        feed = Feed(by_time(staged_messages(run.broker, topics)), sender(run.broker), _AHEAD * plan.rows)
        feed(0)
        yield Fed(run.job, tuple(topics.values()), feed)


def staged_messages(broker: str, topics: Mapping[str, str]) -> Iterator[Message]:
    """Yield all messages of some topics, as they go to others.

    Args:
        broker: The broker.
        topics: Topic, of one partition → topic that they go to.

    Raises:
        Failed: The broker stops giving them.
    """
    from confluent_kafka import Consumer, TopicPartition

    from millrace.kafka.admin import client_config, end_offsets

    left = {topic: sum(end_offsets(broker, topic).values()) for topic in topics}
    consumer = Consumer({**client_config(broker), "group.id": "staged", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0) for topic, many in left.items() if many])
    try:
        while any(left.values()):
            found = consumer.consume(10_000, 10.0)
            if not found:
                raise Failed("the generator's events cannot be read back")
            for message in found:
                if message.error() is None:
                    topic, headers = message.topic() or "", message.headers() or []
                    left[topic] -= 1
                    at_ms = message.timestamp()[1]
                    yield Message(topics[topic], message.key(), message.value(), [*headers], at_ms)
    finally:
        consumer.close()


def by_time(messages: Iterable[Message]) -> list[Message]:
    """Return messages in the order of their event time; those of one time as they came."""

    def at(message: Message) -> int:
        return int(json.loads(message.value or b"{}").get("event_time_ms", 0))

    return sorted(messages, key=at)


def sender(broker: str) -> Callable[[Message], None]:
    """Return what sends a message."""
    from confluent_kafka import Producer

    from millrace.kafka.admin import client_config

    producer = Producer({**client_config(broker), "linger.ms": 2, "partitioner": "murmur2_random"})

    def send(message: Message) -> None:
        producer.produce(
            message.topic, message.value, message.key, headers=message.headers, timestamp=message.at_ms
        )
        producer.poll(0)

    return send


class Feed:
    """Sends messages in good time: a number of them is always ahead of what has been read.

    Args:
        messages: The messages, in order.
        send: Sends one.
        ahead: How many are ahead.

    Example:
        >>> sent = []
        >>> feed = Feed([Message("t", None, b"%d" % n, []) for n in range(9)], sent.append, 4)
        >>> feed(0); feed(1)
        >>> len(sent)
        5
    """

    def __init__(self, messages: Sequence[Message], send: Callable[[Message], None], ahead: int) -> None:
        self._messages, self._send, self._ahead = messages, send, ahead
        self._sent = 0

    def __call__(self, read: int) -> None:
        """Send what is missing."""
        wanted = min(read + self._ahead, len(self._messages))
        for message in self._messages[self._sent : wanted]:
            self._send(message)
        self._sent = max(self._sent, wanted)


def measure(plan: Plan, say: Say) -> dict[str, Any]:
    """Run the job and return what its batches took.

    Args:
        plan: What is run.
        say: Is told what goes on.

    Raises:
        Failed: It ended too early, or took nothing any more.
    """
    from millrace_apps.benchmarks.cpu import CpuMeter

    meter = CpuMeter()
    fed: list[Fed] = []
    recorder = BatchRecorder(plan, meter.sample, lambda batch: fed[0].read(batch))
    taken: queue.SimpleQueue[int] = queue.SimpleQueue()

    def note(batch: int, counts: dict[str, int]) -> None:
        recorder.note(batch, counts)
        taken.put(batch)
        if recorder.done.is_set() and not plan.empty:
            fed[0].job.stop()

    def feed() -> None:
        # Beside the job, which must not wait for it.
        while (batch := taken.get()) >= 0:
            if not recorder.done.is_set():
                fed[0].feed(fed[0].read(batch))

    jobs = {"native": native, "w1": w1}
    with jobs.get(plan.job, app)(plan, note, say) as found:
        fed.append(found)
        ended = threading.Event()
        args = (plan, recorder, found.job, meter, ended, say)
        beside = [threading.Thread(target=_look_on, args=args), threading.Thread(target=feed)]
        empties: list[float] = []
        if plan.empty:
            beside.append(threading.Thread(target=_wake, args=(plan, recorder, found.job, ended, empties)))
        for thread in beside:
            thread.daemon = True
            thread.start()
        try:
            found.job.run()
        finally:
            ended.set()
            taken.put(-1)
            for thread in beside:
                thread.join()
    if not plan.empty:
        return recorder.figures()
    if len(empties) < plan.empty:
        raise Failed(f"the job ended after {len(empties)} of {plan.empty} batches without events")
    return {
        **recorder.figures(),
        "empty_ms": round(_quantile(empties, 0.5), 1),
        "empty_batches": len(empties),
    }


def _wake(plan: Plan, recorder: BatchRecorder, job: Job, ended: threading.Event, took: list[float]) -> None:
    """Have a job run batches of one control row when it has no events left, and stop it."""
    while not recorder.done.wait(0.1):
        if ended.is_set():
            return
    deadline = time.monotonic() + _LIMIT_S
    while job.working() and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(2 * _QUIET_S)
    query: Any = job.query
    for number in range(_EMPTY_WARM + plan.empty):
        before = query.lastProgress["batchId"]
        job.wake()
        while not ended.is_set() and time.monotonic() < deadline:
            last = query.lastProgress
            if last["batchId"] > before and last["durationMs"].get("addBatch"):
                break
            time.sleep(0.02)
        else:
            break
        if number >= _EMPTY_WARM:
            took.append(float(last["durationMs"]["triggerExecution"]))
        time.sleep(_QUIET_S)
    job.stop()


def _look_on(
    plan: Plan, recorder: BatchRecorder, job: Job, meter: Any, ended: threading.Event, say: Say
) -> None:
    """Tell how far it is, and stop a job that takes nothing any more."""
    wanted, seen, since = plan.warm_batches + plan.batches, -1, time.monotonic()
    while not ended.wait(_TELL_S):
        meter.sample()  # what ends meanwhile is remembered
        if len(recorder.ends) != seen:
            seen, since = len(recorder.ends), time.monotonic()
            say(f"batch {seen} of {wanted}, of which {plan.warm_batches} to warm up")
        elif time.monotonic() - since > _LIMIT_S:
            say(f"no batch for {_LIMIT_S:.0f} s: stopped")
            job.stop()
            return


# -- the command -------------------------------------------------------------------------------------


def _machine() -> Any:
    """Return the module that tells how fast the machine is: of today's tree, whichever the packages are."""
    path = Path(__file__).resolve().parents[1] / "machine.py"
    spec = importlib.util.spec_from_file_location("small_batches_machine", path)
    assert spec is not None  # noqa: S101  (the file is there)
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _today_s_name() -> None:
    """Let the benchmarks of a commit before they had one name with the apps be imported by today's."""
    if importlib.util.find_spec("millrace_apps") is None:
        benchmarks = importlib.import_module("benchmarks")
        package: Any = types.ModuleType("millrace_apps")
        package.__path__ = [str(Path(folder).parent) for folder in benchmarks.__path__]
        sys.modules["millrace_apps"] = package


def parse(arguments: Sequence[str]) -> tuple[Plan, Path | None]:
    """Return what is to be run, and where the report goes."""
    parser = argparse.ArgumentParser(
        prog="small_batches",
        description="How long a job's small batches take, and what they cost.",
        epilog="Example: python benchmarks/drivers/small_batches.py --job w1 --batches 100 --rows 600",
    )
    usual = Plan("w1")
    parser.add_argument("--job", choices=["native", *sorted(BOUNDS)], default=usual.job, help="What runs.")
    parser.add_argument("--batches", type=_whole, default=usual.batches, help="Batches that are measured.")
    parser.add_argument("--warm-batches", type=_whole, default=usual.warm_batches, help="Batches before.")
    parser.add_argument("--rows", type=_whole, default=usual.rows, help="Events of a batch.")
    parser.add_argument("--entities", type=_whole, help="Cards, machines, people or drivers.")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="A setting of the app; repeatable."
    )
    parser.add_argument(
        "--empty", type=int, default=0, help="Batches of one control row each, after the others."
    )
    parser.add_argument("--out", type=Path, help="Write the report to this file, as JSON.")
    given = parser.parse_args(arguments)
    plan = Plan(given.job, given.batches, given.warm_batches, given.rows, given.entities, tuple(given.set))
    plan = replace(plan, empty=given.empty)
    return plan, given.out


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    from millrace.errors import MillraceError

    # Ended from outside, it takes its broker and its folders with it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    plan, out = parse(arguments)
    _today_s_name()
    machine = _machine()
    before = machine.condition()
    try:
        found = measure(plan, _say)
    except (Failed, MillraceError) as error:
        _say(f"small_batches: {error}")
        return getattr(error, "exit_code", 1)
    after = machine.condition()
    report = {
        "benchmark": "small-batches",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "configuration": {**asdict(plan), "settings": plan.overrides, "events": plan.events},
        "machine": {
            "load_before": before.load,
            "load_after": after.load,
            "speed": before.speed,
            "speed_after": after.speed,
        },
        **found,
    }
    if out is not None:
        out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    times = found["batch_ms"]
    print(
        f"{plan.job}: {times['median']} ms a batch (p95 {times['p95']}), {found['cpu_ms_per_batch']} CPU ms, "
        f"{found['rows_per_batch']} rows, {found['batches']} batches after {found['warm_batches']}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
