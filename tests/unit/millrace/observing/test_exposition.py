"""Metrics as Prometheus reads them, held to the parser of the official client; and whether a job is well."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parsed

from millrace.errors import UserError
from millrace.local.waiting import wait_until
from millrace.observing.endpoint import Endpoint
from millrace.observing.exposition import Bounds, health_of, readiness_of, registry_of
from millrace.observing.figures import Figures
from tests.unit.millrace.observing.cases import NOW, figures, record

BOUNDS = Bounds(ready_lag=100, ready_age_ms=10_000, dead_after_ms=60_000)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(text: str, parse: Any = parsed) -> Samples:
    return {(s.name, frozenset(s.labels.items())): s.value for family in parse(text) for s in family.samples}


def scraped(now: Figures) -> Samples:
    return samples_of(generate_latest(registry_of(lambda: now)).decode())


def value(found: Samples, name: str, **labels: str) -> float:
    return found[f"millrace_{name}", frozenset(labels.items())]


def test_every_figure_is_found_by_the_official_parser() -> None:
    found = scraped(figures())
    assert value(found, "rows_read_total") == 1_000
    assert value(found, "batch_duration_seconds_bucket", le="0.5") == 5
    assert value(found, "batch_duration_seconds_count") == 7
    assert value(found, "batch_duration_seconds_sum") == 2.8
    assert value(found, "batch_phase_seconds_total", phase="addBatch") == 2.1
    assert value(found, "watermark_gap_seconds") == 7
    assert value(found, "source_behind_seconds", source="in:1") == 3
    assert value(found, "watermark_held", source="in:1") == 1
    assert value(found, "kafka_lag_records", topic="in", partition="1") == 50
    assert value(found, "records_written_total", output="alerts") == 3
    assert value(found, "late_events_total") == 5
    assert value(found, "dead_letters_total", reason="malformed") == 4
    assert value(found, "state_largest_entry_bytes", process="Cards") == 700
    assert value(found, "state_key_group_skew", process="Cards") == 1.5
    assert value(found, "state_timers", process="Cards") == 12
    assert value(found, "state_files_bytes") == 9_000
    assert value(found, "table_waiting_batches", table="alarms") == 3
    assert value(found, "table_waiting_seconds", table="alarms") == 2.5
    assert value(found, "model_info", model="risk", alias="champion", version="3") == 1
    assert (
        value(found, "model_trained_until_timestamp_seconds", model="risk", alias="champion")
        == NOW / 1e3 - 86_400
    )
    assert value(found, "query_up") == 1
    assert any(name == "process_cpu_seconds_total" for name, _ in found)


def test_the_newer_form_says_the_same() -> None:
    registry = registry_of(figures)
    newer = samples_of(generate_openmetrics(registry).decode(), parsed_openmetrics)
    ours = {key: v for key, v in scraped(figures()).items() if key[0].startswith("millrace_")}
    assert ours.items() <= newer.items()


def test_what_is_not_known_is_left_out_and_not_zero() -> None:
    names = {name for name, _ in scraped(Figures(record(), NOW))}
    assert not names & {
        "millrace_watermark_gap_seconds", "millrace_kafka_lag_records", "millrace_state_entries",
        "millrace_last_batch_timestamp_seconds", "millrace_batch_duration_seconds_count",
        "millrace_table_waiting_batches", "millrace_table_waiting_seconds",
    }  # fmt: skip
    assert value(scraped(Figures(record(), NOW)), "query_up") == 0


def test_labels_with_quotes_and_line_ends_come_back_as_they_were() -> None:
    nasty = 'C:\\data\n"x"'
    found = scraped(figures(nasty, dead_letters={nasty: 1}))
    assert value(found, "dead_letters_total", reason=nasty) == 1


@pytest.mark.parametrize(
    ("more", "now_ms", "healthy", "ready"),
    [
        ({}, NOW, True, True),
        ({}, NOW + 10_000, True, False),  # ten and a half seconds without a sign
        ({}, NOW + 59_000, True, False),
        ({}, NOW + 60_000, False, False),
        ({"batches": 0, "alive_ms": None}, NOW - 1, True, False),  # Spark starts
        ({"batches": 0, "alive_ms": None}, NOW + 1, False, False),  # and does not come to an end
        # The query has begun: its first batch has not ended, or there is nothing to be read.
        ({"batches": 0, "phase": "running"}, NOW, True, False),
        ({"batches": 0, "phase": "waiting"}, NOW, True, True),
        ({"sources": {}}, NOW, True, True),
        ({"error": "boom"}, NOW, False, False),
        ({"ended_ms": NOW}, NOW, False, False),
    ],
)
def test_health_and_readiness(more: dict[str, Any], now_ms: int, healthy: bool, ready: bool) -> None:
    now = figures(**more)
    assert (health_of(now, now_ms, BOUNDS) == []) is healthy
    assert (readiness_of(now, now_ms, BOUNDS) == []) is ready


def test_a_job_that_is_too_far_behind_is_healthy_and_not_ready() -> None:
    now = figures()
    now.sources["in:0"].end += 51
    assert health_of(now, NOW, BOUNDS) == []
    assert readiness_of(now, NOW, BOUNDS) == ["101 records wait, more than 100"]
    now.sources["in:0"].end -= 1
    assert readiness_of(now, NOW, BOUNDS) == []


def get(address: str, **headers: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as answer:  # noqa: S310
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_what_an_answer_costs_counts_as_watching() -> None:
    spent: list[float] = []
    many = figures(outputs={f"output-{number}": number for number in range(2_000)})
    with Endpoint("127.0.0.1", 0) as endpoint, endpoint.serving(lambda: many, BOUNDS, spent.append):
        for number, path in enumerate(("metrics", "healthz", "nothing"), 1):
            get(f"{endpoint.address}/{path}")
            # Who asked has the answer a moment before what it cost is counted.
            assert wait_until(lambda: len(spent) >= number, 5.0, every_s=0.01)  # noqa: B023
    assert len(spent) == 3
    assert spent[0] > max(spent[1:]) > 0


def test_the_endpoint_answers_and_only_what_it_should() -> None:
    now = figures(error="boom")
    with Endpoint("127.0.0.1", 0) as endpoint, endpoint.serving(lambda: now, BOUNDS):
        code, kind, text = get(f"{endpoint.address}/metrics")
        assert (code, kind.startswith("text/plain")) == (200, True)
        assert value(samples_of(text), "batch_id") == 6
        code, kind, text = get(
            f"{endpoint.address}/metrics", Accept="application/openmetrics-text; version=1.0.0"
        )
        assert kind.startswith("application/openmetrics-text")
        assert value(samples_of(text, parsed_openmetrics), "batch_id") == 6
        code, _, text = get(f"{endpoint.address}/healthz")
        assert (code, json.loads(text)) == (503, {"ok": False, "wrong": ["the query has ended: boom"]})
        now.error = None
        now.alive_ms = 2 * NOW  # the endpoint goes by the clock
        now.sources.clear()
        assert get(f"{endpoint.address}/healthz")[0] == 200
        assert get(f"{endpoint.address}/readyz?x=1")[0] == 200
        assert get(f"{endpoint.address}/")[0] == get(f"{endpoint.address}/../etc")[0] == 404
        with pytest.raises(UserError, match=r"metrics\.port"):
            Endpoint("127.0.0.1", endpoint.server_address[1])
