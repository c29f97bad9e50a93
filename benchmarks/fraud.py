"""Benchmarks of the fraud app: start-up, draining a topic, latency at a steady rate, memory."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from apps.fraud.settings import FraudSettings
from benchmarks.report import percentiles
from millrace.errors import MillraceError
from millrace.kafka.broker import broker_or_embedded
from millrace.runtime.apps import load_app
from millrace.runtime.job import Job
from millrace.runtime.settings import load_settings

Mark = tuple[float, dict[str, float], int]
#: What an operator sets to catch up: packed events, large batches. Given settings win.
CATCH_UP = (
    "stream.profile=throughput",
    "stream.max_offsets_per_trigger=100000",
    # A batch of decisions passes the driver as a whole, in several copies of half a kilobyte each.
    "spark.driver_memory=2g",
)
_TOPICS = ("transactions", "control", "alerts", "dead_letters")


@contextmanager
def bench_job(
    bootstrap: str | None, overrides: Sequence[str], **more: Any
) -> Iterator[tuple[Job, str, str, Path]]:
    """Give a fraud job on topics and in a folder of its own; both are removed at the end.

    Yields:
        The job, the broker, the topic of transactions and the folder.
    """
    from millrace.kafka.admin import delete_topics

    app = load_app("fraud")
    with (
        tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder,
        broker_or_embedded(bootstrap, log_dir=Path(folder)) as broker,
    ):
        run = Path(folder).name[-8:]
        topics = [f"topics.{t}=bench-{t}-{run}" for t in _TOPICS]
        sets = [f"kafka.bootstrap={broker}", f"storage.root={folder}/fraud", *topics, *overrides]
        settings = load_settings(FraudSettings, app="fraud", overrides=sets)
        try:
            yield Job(app, settings, **more), broker, settings.topics.transactions, Path(folder)
        finally:
            delete_topics(broker, [f"bench-{t}-{run}" for t in _TOPICS])


def generate(broker: str, topic: str, *arguments: object) -> None:
    """Run `millrace generate fraud` to its end."""
    command = [sys.executable, "-m", "millrace", "generate", "fraud", "--quiet", "--bootstrap", broker]
    command += ["--topic", topic, "--partitions", "2", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MillraceError(f"the generator failed: {done.stderr.strip()}")


def cpu_seconds() -> dict[str, float]:
    """Return the CPU time of this process and its living descendants by part, seconds."""
    parts = {"driver": 0.0, "spark": 0.0, "workers": 0.0, "broker": 0.0}
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            used, name, words = process.cpu_times(), process.name(), process.cmdline()
        except psutil.NoSuchProcess:
            continue
        if process.pid == me.pid:
            part = "driver"
        elif "java" in name:
            part = "broker" if "kafka.Kafka" in words else "spark"
        else:
            part = "workers"
        parts[part] += used.user + used.system
    return parts


def drain(events: int, cards: int, bootstrap: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Measure events per second from a preloaded topic to the Delta tables.

    Args:
        events: Events in the topic before the app starts.
        cards: Number of cards.
        bootstrap: A broker, or ``None`` for an embedded one.
        overrides: Settings of the app.
    """
    marks: list[Mark] = []

    def mark(_batch: int, counts: dict[str, int]) -> None:
        marks.append((time.monotonic(), cpu_seconds(), counts.get("main", 0)))

    with bench_job(bootstrap, overrides, until_end=True, on_batch=mark) as (job, broker, topic, folder):
        generate(broker, topic, "--rate", "max", "--events", events, "--cards", cards, "--disorder-ms", 0)
        threading.Thread(target=_note_start, args=(job, marks), daemon=True).start()
        job.run()
        rows = _rows(folder / "fraud" / "tables" / "transactions")
    (start, cpu_start, _), first, last = marks[0], marks[1], _last_with_rows(marks)
    after_first = sum(m[2] for m in marks[2:])
    return {
        "events": events,
        "rows_in_table": rows,
        "correct": rows == events,
        "batches": sum(1 for m in marks if m[2]),
        "seconds": last[0] - start,
        "rows_per_s": rows / (last[0] - start),
        "rows_per_s_after_first_batch": after_first / (last[0] - first[0]) if after_first else None,
        "cpu_s_per_million": sum(_used(cpu_start, last[1]).values()) / rows * 1e6,
        "cpu_s_after_first_batch": _used(first[1], last[1]),
        "batch_seconds": [round(b[0] - a[0], 2) for a, b in itertools.pairwise(marks)],
    }


def _used(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {part: round(after[part] - before[part], 1) for part in after}


def _note_start(job: Job, marks: list[Mark]) -> None:
    job.started.wait()
    marks.insert(0, (time.monotonic(), cpu_seconds(), 0))


def _last_with_rows(marks: list[Mark]) -> Mark:
    return [m for m in marks if m[2]][-1]


def _rows(table: Path) -> int:
    from deltalake import DeltaTable

    return int(DeltaTable(str(table)).to_pyarrow_dataset().count_rows())


def latency(
    rate: int, duration_s: int, warm_up_s: int, bootstrap: str | None, overrides: Sequence[str]
) -> dict[str, Any]:
    """Measure the time from when an event was due to be sent until its decision can be read.

    Events carry the time at which they are due as event time (open loop: a producer that falls behind
    counts against us). A decision can be read when the table's commit is there; an alert when it is in
    its topic.

    Args:
        rate: Events per second.
        duration_s: Seconds measured.
        warm_up_s: Seconds before that, not counted.
        bootstrap: A broker, or ``None`` for an embedded one.
        overrides: Settings of the app.
    """
    total = warm_up_s + duration_s
    with bench_job(bootstrap, overrides) as (job, broker, topic, folder):
        failures: list[BaseException] = []

        def produce() -> None:
            try:
                job.started.wait()
                generate(broker, topic, "--rate", rate, "--duration", f"{total}s", "--disorder-ms", 0)
                time.sleep(5)  # let the last batch be committed
            except BaseException as error:
                failures.append(error)
            finally:
                job.stop()

        thread = threading.Thread(target=produce)
        thread.start()
        job.run()
        thread.join()
        if failures:
            raise failures[0]
        decisions = _decision_latencies(folder / "fraud" / "tables" / "transactions")
        alerts = _alert_latencies(broker, job.settings.topics.alerts)  # type: ignore[attr-defined]
    begin = min(t for t, _ in decisions) + warm_up_s * 1000
    kept = [ms for t, ms in decisions if t >= begin]
    warm_alerts = [ms for t, ms in alerts if t >= begin]
    return {
        "events": len(kept),
        "decision_ms": percentiles(kept),
        "alert_ms": percentiles(warm_alerts) if warm_alerts else None,
        "alerts": len(warm_alerts),
    }


def _decision_latencies(table: Path) -> list[tuple[int, float]]:
    """Return event time and latency (ms) of every row: the commit's time minus the event's."""
    import pyarrow.parquet as pq

    found = []
    for commit in sorted((table / "_delta_log").glob("*.json")):
        visible = commit.stat().st_mtime * 1000
        for line in commit.read_text().splitlines():
            added = json.loads(line).get("add")
            if added is not None:
                times = pq.read_table(table / added["path"], columns=["event_time_ms"])["event_time_ms"]
                found += [(t, visible - t) for t in times.to_pylist()]
    return found


def _alert_latencies(broker: str, topic: str) -> list[tuple[int, float]]:
    from confluent_kafka import Consumer, TopicPartition

    from millrace.kafka.admin import client_config, end_offsets

    ends = end_offsets(broker, topic)
    consumer = Consumer({**client_config(broker), "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, p, 0) for p, end in ends.items() if end])
    found: list[tuple[int, float]] = []
    deadline = time.monotonic() + 30
    while len(found) < sum(ends.values()) and time.monotonic() < deadline:
        for message in consumer.consume(1_000, 1.0):
            at = json.loads(message.value() or b"{}")["event_time_ms"]
            found.append((at, message.timestamp()[1] - at))
    consumer.close()
    return found


def start(bootstrap: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Measure how long it takes until Spark runs, the query runs and the first decisions are there."""
    marks: dict[str, float] = {}

    def first(_batch: int, _counts: dict[str, int]) -> None:
        marks.setdefault("first_result_s", time.monotonic())

    with bench_job(bootstrap, overrides, until_end=True, on_batch=first) as (job, broker, topic, _):
        generate(broker, topic, "--rate", "max", "--events", 1_000)
        begin = time.monotonic()

        def note() -> None:
            for name, event in (("session_s", job.session_ready), ("query_s", job.started)):
                event.wait()
                marks[name] = time.monotonic()

        thread = threading.Thread(target=note)
        thread.start()
        job.run()
        thread.join()
    return {name: round(at - begin, 2) for name, at in sorted(marks.items(), key=lambda m: m[1])}


def memory(duration_s: int) -> dict[str, Any]:
    """Measure the peak memory of all processes of `millrace demo fraud` together.

    Shared pages are counted once (proportional set size) where the system tells, else resident size.
    """
    command = [sys.executable, "-m", "millrace", "demo", "fraud", "--duration", f"{duration_s}s"]
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        peak, parts = 0, {}
        while child.poll() is None:
            now = _memory_of(psutil.Process(child.pid))
            if sum(now.values()) > peak:
                peak, parts = sum(now.values()), now
            time.sleep(0.5)
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    first = next((line.split()[2] for line in lines if line.startswith("first alert")), None)
    return {
        "exit_code": child.returncode,
        "peak_mb": peak / 2**20,
        "first_alert_s": None if first is None else float(first),
        **{f"at_peak_{name}_mb": size / 2**20 for name, size in sorted(parts.items())},
    }


def _memory_of(root: psutil.Process) -> dict[str, int]:
    sizes: dict[str, int] = {}
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return sizes
    for process in processes:
        try:
            name = "jvm" if process.name().startswith("java") else "python"
            full = process.memory_full_info()
            sizes[name] = sizes.get(name, 0) + int(getattr(full, "pss", full.rss))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return sizes
