"""Aggregations as data on a real broker: in force without a restart, the same as a batch over all events."""

from __future__ import annotations

import json
import random
import signal
import statistics
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from millrace.cli import build
from millrace.kafka.admin import delete_topics
from millrace.testing.kafka import consume_all, produce
from tests.e2e.fraud_runs import MILLRACE, Command, until

MINUTE = 60_000
BEGIN = 29_600_000 * MINUTE
TOPIC = "iot.readings"
SPEND = """
name: heat
source: iot.readings
key: [machine_id]
where: quantity == 'temperature'
window: {tumbling: 1m}
aggregates:
  n: count
  mean: mean(value)
  highest: max(value)
  values: count_distinct(value)
  median: quantile(value, 0.5)
  unit: last(unit)
  sensors: distinct(sensor_id, 3)
"""


def readings(chance: random.Random, minutes: range) -> Iterator[dict[str, Any]]:
    for minute in minutes:
        for number in range(20):
            at = BEGIN + minute * MINUTE + number * 3_000
            yield {
                "reading_id": f"r-{at}", "sensor_id": "s", "machine_id": f"m{chance.randrange(3)}",
                "gateway_id": "g", "quantity": chance.choice(("temperature", "load")),
                "value": chance.randrange(1000) / 8, "unit": "C", "event_time_ms": at,
            }  # fmt: skip


def batch(events: list[dict[str, Any]], size_minutes: dict[int, int]) -> dict[Any, Any]:
    """The same windows from the whole list: minute from which they begin → how long they are, minutes."""
    groups: dict[Any, list[float]] = defaultdict(list)
    for event in events:
        minute = (event["event_time_ms"] - BEGIN) // MINUTE
        for since, size in sorted(size_minutes.items(), reverse=True):
            start = minute - (minute + BEGIN // MINUTE) % size
            if start >= since:
                if event["quantity"] == "temperature":
                    groups[event["machine_id"], BEGIN + start * MINUTE, size].append(event["value"])
                break
    return {
        key: (len(found), sum(found) / len(found), max(found), len(set(found)), statistics.median(found))
        for key, found in groups.items()
    }


def results(root: Path) -> dict[Any, Any]:
    folder = root / "tables" / "results"
    if not DeltaTable.is_deltatable(str(folder)):
        return {}
    rows = DeltaTable(str(folder)).to_pyarrow_table().to_pylist(maps_as_pydicts="strict")
    found = {}
    for row in rows:
        length = (row["window_end_ms"] - row["window_start_ms"]) // MINUTE
        key = (row["key"]["machine_id"], row["window_start_ms"], length)
        assert key not in found
        values = row["values"]
        assert (row["texts"], row["lists"]) == ({"unit": "C"}, {"sensors": ["s"]})
        found[key] = tuple(values[name] for name in ("n", "mean", "highest", "values", "median"))
    return found


def millrace(*arguments: str) -> None:
    build()(list(arguments), standalone_mode=False)


def send(bootstrap: str, events: list[dict[str, Any]]) -> None:
    produce(bootstrap, TOPIC, [(e["machine_id"], json.dumps(e).encode()) for e in events])


def test_what_is_published_is_in_force_without_a_restart_and_equals_a_batch(
    kafka_bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance, root, file = random.Random(7), tmp_path / "app", tmp_path / "heat.yaml"
    sets = [f"storage.root={root}", "sources=iot.readings", f"kafka.bootstrap={kafka_bootstrap}"]
    options = [part for one in sets for part in ("-s", one)]
    own = [
        "spark.master=local[2]",
        "stream.trigger_interval=200ms",
        "stream.out_of_orderness=5s",
        "spark.quick_start=on",
    ]
    arguments = [*MILLRACE, "run", "aggregates", *options, *(part for one in own for part in ("-s", one))]
    first, second, rest = (list(readings(chance, r)) for r in (range(6), range(6, 12), range(12, 14)))
    try:
        with Command(arguments, tmp_path) as running:
            until(lambda: (root / "checkpoint").exists(), "the job has begun")
            file.write_text(SPEND)
            millrace("aggregate", "publish", str(file), "--by", "ann", "--from", "2020-01-01", *options)
            send(kafka_bootstrap, first)
            until(lambda: len(results(root)) >= 12, "windows of the first version")
            file.write_text(SPEND.replace("1m", "2m"))
            change = BEGIN + 8 * MINUTE
            begins = datetime.fromtimestamp(change / 1000, UTC).isoformat()
            millrace("aggregate", "publish", str(file), "--by", "ann", "--from", begins, *options)
            send(kafka_bootstrap, second)
            send(kafka_bootstrap, second[-30:])  # again
            send(kafka_bootstrap, rest)
            wanted = batch([*first, *second], {0: 1, 8: 2})
            until(lambda: len(results(root)) >= len(wanted), "windows of both versions")
            running.signal(signal.SIGTERM)
            assert running.wait() == 0
        assert results(root) == wanted
        sent = [json.loads(m.value() or b"") for m in consume_all(kafka_bootstrap, "aggregates.results")]
        assert len(sent) == len(wanted)
        capsys.readouterr()
        millrace("aggregate", "list", *options)
        assert "version 2 by ann" in capsys.readouterr().out
        text = "SELECT name, count(*) n, sum(values['n']) FROM aggregates.results GROUP BY name"
        millrace("query", text, "--app", "aggregates", "--root", str(root), "--json")
        assert json.loads(capsys.readouterr().out)["n"] == len(wanted)
    finally:
        delete_topics(
            kafka_bootstrap, [TOPIC, *(f"aggregates.{n}" for n in ("control", "results", "dead-letters"))]
        )
