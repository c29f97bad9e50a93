"""What `top`, `status` and the metrics say, held to Kafka's own ends and Delta's own rows; how a job ends."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from millrace.connectors.merging import wait_for_merges
from millrace.dashboard.data import AppData
from millrace.dashboard.live import LivePage
from millrace.dashboard.overview import Overview
from millrace.dashboard.page import load_page
from millrace.dashboard.serve import wall_clock_ms
from millrace.kafka.admin import end_offsets
from millrace.observing.joblog import LOG_FILE
from millrace.observing.reading import Jobs, JobStatus
from millrace.runtime.settings import load_settings
from millrace.testing.kafka import TopicFactory
from millrace_apps.fraud.app import app as fraud
from tests.e2e.fraud_runs import MILLRACE, Command, run_arguments, table, until
from tests.e2e.fraud_stream import FraudTopics, ordered_stream

#: Most of the CPU time of a job that may go into watching it.
MOST_OBSERVING = 0.02
#: Of a table that does not have all rows yet.
_BEHIND = re.compile(r"batch(es)? wait")


def asked(folder: Path, home: Path, *words: str, code: int = 0) -> str:
    """Return what a command prints."""
    with Command([*MILLRACE, *words], folder, env={"MILLRACE_HOME": str(home)}) as command:
        assert command.wait() == code, f"{command.out}\n{command.err}"
        return command.out


def samples(address: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:  # noqa: S310 - our own
        text = answer.read().decode()
    return {
        (s.name, frozenset(s.labels.items())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def labelled(found: Any, name: str, label: str) -> dict[str, float]:
    return {dict(labels)[label]: v for (own, labels), v in found.items() if own == f"millrace_{name}"}


def test_what_is_said_of_a_job_is_what_kafka_and_delta_have(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    """One job: all that is there is read; it is halted while more comes; it goes on; it is stopped.

    ::

        sent      |-- 1,700 --|            |-- 300 and 20 late ones --|
        job       |- batches -| figures    |  halted                  |- batches -| stop
        lag                    0               more                    0
    """
    topics, stream = FraudTopics.make(topic_factory), ordered_stream(2_000, cards=40)
    stream.send(kafka_bootstrap, topics, last=len(stream.messages) - 300)
    home, root = tmp_path / "home", tmp_path / "app"
    jobs = Jobs(home / "jobs")

    def job() -> JobStatus:
        (found,) = jobs.all()
        return found

    def ends() -> dict[str, int]:
        reads = (topics.transactions, topics.labels, topics.control, topics.authorisations, topics.erasures)
        return {topic: sum(end_offsets(kafka_bootstrap, topic).values()) for topic in reads}

    def all_told() -> bool:
        found = job()
        return found.lag_total == 0 and found.figures is not None and found.figures.batch == found.batch

    arguments = run_arguments(
        kafka_bootstrap,
        topics,
        root,
        [
            "metrics.port=0",
            "log_format=json",
            "stream.max_offsets_per_trigger=1000",
            "stream.driver_write_max_records=500",
        ],
    )
    with Command([*MILLRACE, "run", *arguments], tmp_path, env={"MILLRACE_HOME": str(home)}) as command:
        command.until(lambda: len(jobs.records()) == 1, "it has a record")
        command.until(lambda: job().batch is not None and job().lag_total == 0, "all is read")
        command.until(all_told, "its figures are of the last batch")
        said = job()
        assert (said.state, said.pid, said.root) == ("running", command.pid, str(root))
        assert (said.ends, said.read) == (ends(), ends())
        agrees_with_kafka_and_delta(said, kafka_bootstrap, topics, root)
        for path in ("healthz", "readyz"):
            with urllib.request.urlopen(f"{said.metrics}/{path}", timeout=30) as answer:  # noqa: S310 - our own
                assert answer.status == 200

        overview = Overview({"fraud": fraud_page(root, topics)}, jobs=jobs, interval_ms=0)
        shown = overview_agrees_with_kafka_and_delta(overview, ends(), root)
        assert shown["state"] == "running"

        (top,) = json.loads(asked(tmp_path, home, "top", "fraud", "--once", "--json"))
        assert (top["ends"], top["lag"]) == (ends(), dict.fromkeys(ends(), 0))
        assert said.figures is not None
        assert top["figures"]["outputs"] == said.figures.outputs

        command.signal(signal.SIGSTOP)
        stream.send(kafka_bootstrap, topics, first=len(stream.messages) - 300)
        stream.send(kafka_bootstrap, topics, last=20)  # long behind the watermark by now
        more = sum(ends().values()) - sum(said.read.values())
        assert more >= 320  # and the control events once more
        until(lambda: job().lag_total == more, "what has come is what is not read", 30)
        assert job().ends == ends()
        # The dashboard asks the broker no more than once in a while.
        until(lambda: numbers(looked_at(overview))["lag"] == more, "the overview tells the same lag", 30)
        command.signal(signal.SIGCONT)
        command.until(lambda: job().lag_total == 0, "it goes on")
        command.until(all_told, "its figures are of the last batch")
        agrees_with_kafka_and_delta(job(), kafka_bootstrap, topics, root)
        until(lambda: numbers(looked_at(overview))["lag"] == 0, "the overview, too", 30)
        until(lambda: not _BEHIND.search(json.dumps(looked_at(overview))), "it has all rows, too", 30)
        overview_agrees_with_kafka_and_delta(overview, ends(), root)
        assert samples(str(said.metrics))["millrace_late_events_total", frozenset()] >= 20
        observing_is_cheap(samples(str(said.metrics)))

        done = json.loads(asked(tmp_path, home, "stop", "fraud", "--json"))
        assert (done["did"], done["pid"], done["error"]) == ("stopped", command.pid, None)
        assert command.wait() == 0, command.err
        command.check_nothing_left()
        assert command.err == ""
    assert jobs.all() == []
    ended = jobs.of_root("fraud", root)
    assert ended.figures is not None
    assert (ended.state, ended.note, ended.figures.phase) == ("stopped", "", "ended")
    assert (ended.waiting, ended.figures.waiting) == ({}, {}), "a job that ends brings all of it in"
    lines = [json.loads(line) for line in (root / "logs" / LOG_FILE).read_text().splitlines()]
    assert lines[0]["query"] == "fraud"
    assert lines[-1]["message"] == "fraud has ended"
    assert lines[-1]["batch"] == ended.batch


def agrees_with_kafka_and_delta(said: JobStatus, bootstrap: str, topics: FraudTopics, root: Path) -> None:
    """Hold the metrics to the broker's ends by partition, and to the rows of the tables."""
    all_in_tables(root)
    found = samples(str(said.metrics))
    read = {
        (dict(labels)["topic"], int(dict(labels)["partition"])): v
        for (name, labels), v in found.items()
        if name == "millrace_kafka_read_offset"
    }
    for topic in (topics.transactions, topics.labels, topics.control):
        expected = end_offsets(bootstrap, topic)
        assert {p: read[topic, p] for p in expected} == expected
    written = labelled(found, "records_written_total", "output")
    rows = {name: table(root, name) for name in ("transactions", "alerts", "dead_letters", "late")}
    assert written["main"] == len(rows["transactions"]) > 1_000
    assert written.get("alerts", 0) == len(rows["alerts"])
    assert labelled(found, "dead_letters_total", "reason") == Counter(
        r["reason"] for r in rows["dead_letters"]
    )
    assert len(rows["dead_letters"]) > 0
    assert found["millrace_late_events_total", frozenset()] == len(rows["late"])
    assert said.figures is not None
    assert said.figures.outputs == written
    assert found["millrace_batch_id", frozenset()] == said.batch


def all_in_tables(root: Path) -> None:
    """Wait until the rows of what is committed are in their tables: they come there behind the batches."""
    assert wait_for_merges((root / "tables").iterdir(), patience_s=60.0) == []


def fraud_page(root: Path, topics: FraudTopics) -> LivePage:
    """Return the page of the app as the dashboard opens it beside a job."""
    settings = load_settings(fraud.settings, app="fraud", overrides=topics.settings)
    return LivePage(AppData(fraud, settings, root, wall_clock_ms), load_page(fraud))


def looked_at(overview: Overview) -> Any:
    """Return what the overview shows of the app now."""
    overview.refresh()
    found = {body["id"]: body for body in map(json.loads, overview.changed({}))}
    return found["app-fraud"]


def numbers(shown: Any) -> dict[str, Any]:
    return {item["label"]: item["value"] for item in shown["views"][0]["view"]["items"]}


def overview_agrees_with_kafka_and_delta(overview: Overview, ends: dict[str, int], root: Path) -> Any:
    """Hold the first page of the dashboard to the broker's ends by topic, and to the rows of the tables."""
    shown = looked_at(overview)
    flow = shown["views"][1]["view"]
    assert flow["type"] == "graph", flow
    notes = {node["id"]: node["note"] for node in flow["nodes"]}
    assert {t: notes[f"in:{t}"] for t in ends} == {t: f"read up to {end:,}" for t, end in ends.items()}
    for name in ("transactions", "alerts", "dead_letters", "late"):
        rows = len(table(root, name)) if (root / "tables" / name).is_dir() else 0
        assert notes.get(f"table:{name}", "0 rows") == f"{rows:,} rows", name
    written = {e["target"]: e["note"] for e in flow["edges"]}
    assert written["table:transactions"] == f"main, {len(table(root, 'transactions')):,} in all"
    assert numbers(shown)["dead letters"] == len(table(root, "dead_letters"))
    return shown


def observing_is_cheap(found: Any) -> None:
    """Hold what watching has taken to what the whole job has: driver, JVM, Python workers."""
    whole = found["millrace_process_tree_cpu_seconds_total", frozenset()]
    own = found["millrace_observing_cpu_seconds_total", frozenset()]
    assert 0 < own <= MOST_OBSERVING * whole, f"{own:.2f} of {whole:.1f} s"
