"""The audit from the topics on a real broker: what it reads is what an evening in memory has said."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.kafka.admin import delete_topics
from millrace.testing.kafka import Record, TopicFactory, produce
from millrace_apps.ridesharing.contracts.events import INPUTS, SetPair, key_of
from millrace_apps.ridesharing.evaluation.replay import Faults
from millrace_apps.ridesharing.settings import RidesharingSettings
from millrace_apps.ridesharing.topic_audit.evidence import OUTPUTS
from tests.broken import Row
from tests.e2e.fraud_runs import MILLRACE, Command
from tests.unit.apps.ridesharing.evenings import CAME, Topics, evening


@dataclass
class Spoken:
    """An evening that stands on topics."""

    topics: Topics
    names: dict[str, str]
    bootstrap: str

    def send(self, stream: str, *rows: Row, twice: int = 0) -> None:
        """Send messages; the first so many come twice, as after a crash."""
        records = []
        for number, row in enumerate(rows):
            said = {name: value for name, value in row.items() if name != CAME}
            key, headers = "all", [("event_id", f"{stream}-{row[CAME]}-{number}".encode())]
            if stream in INPUTS:
                key, headers = key_of(msgspec.convert(said, INPUTS[stream])), []
            record = Record(msgspec.json.encode(said), key, headers, timestamp_ms=row[CAME])
            records += [record] * (1 + (number < twice))
        produce(self.bootstrap, self.names[stream], records)

    def audit(self, folder: Path, *more: str) -> tuple[int, Any, str]:
        """Return exit code, report and what was printed of ``millrace ridesharing audit-topics``."""
        report = folder / "report.json"
        report.unlink(missing_ok=True)
        # Of one step of the evening, five seconds, all was read at once; its newest event may be some seconds
        # older than the end of the step, to which the evening's clock is moved.
        sets = [
            "stream.out_of_orderness=3s",
            *(f"topics.{name}={topic}" for name, topic in self.names.items()),
        ]
        options = ["--bootstrap", self.bootstrap, "--out", str(report), *(f"--set={item}" for item in sets)]
        with Command([*MILLRACE, "ridesharing", "audit-topics", *options, *more], folder) as command:
            code = command.wait()
            found = msgspec.json.decode(report.read_bytes()) if report.exists() else None
            return code, found, " ".join((command.out + command.err).split())


@pytest.fixture
def spoken(kafka_bootstrap: str, topic_factory: TopicFactory) -> Spoken:
    """An evening with repeats, delays and restarts; some of what the app says stands there twice."""
    faults = Faults(duplicates=0.1, late=0.05, restarts=5, seed=6)
    topics = evening(
        6, steps=120, operators=0.3, faults=faults, config=RidesharingSettings().dispatch_config()
    )
    names = {name: topic_factory(2 if name == "locations" else 1) for name in ("control", *INPUTS, *OUTPUTS)}
    made = Spoken(topics, names, kafka_bootstrap)
    for stream in names:
        made.send(stream, *topics.rows[stream], twice=3 if stream in OUTPUTS else 0)
    return made


def test_an_evening_on_a_broker_holds_until_something_is_said_that_does_not(
    spoken: Spoken, tmp_path: Path
) -> None:
    code, report, said = spoken.audit(tmp_path)
    assert (code, report["violations"]) == (0, 0), said
    assert "no violations" in said
    rows = spoken.topics.rows
    assert {name: report["events"][name] for name in OUTPUTS} == {name: len(rows[name]) for name in OUTPUTS}
    assert report["events"]["locations"] == len(rows["locations"])
    assert report["offers"]["sure"] > 0.5 * report["offers"]["offers"] > 10
    # An offer from where its driver never was, and one of nobody's request; and two who were never to meet.
    offer = rows["offers"][-1]
    rider = next(r["rider_id"] for r in rows["requests"] if r["request_id"] == offer["request_id"])
    apart = SetPair(rider, offer["driver_id"], "block", "c1", "ann", "complaint")
    spoken.send("control", {**msgspec.to_builtins(apart), CAME: rows["locations"][0][CAME]})
    spoken.send("offers", {**offer, "attempt": 40, "distance_m": 12.0}, {**offer, "request_id": "nobody's"})
    code, report, said = spoken.audit(tmp_path, "--settle", "0s")
    assert code == 1, said
    assert {"offer_alone", "distance", "no_request", "apart"} <= report["by_reason"].keys()
    assert "violations" in said
    assert "offer_alone" in said
    later = datetime.fromtimestamp(offer["event_time_ms"] / 1_000 + 1, UTC)
    code, report, said = spoken.audit(tmp_path, "--since", later.isoformat())
    assert (code, report["violations"]) == (0, 0), said


def test_what_cannot_be_audited_is_one_line_and_exit_code_2(
    spoken: Spoken, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    spoken.names["requests"] = topic_factory(1)
    code, report, said = spoken.audit(tmp_path)
    assert (code, report) == (2, None)
    assert f"nobody has asked for a ride on {spoken.names['requests']}" in said
    code, report, said = spoken.audit(tmp_path, "--since", "yesterday")
    assert (code, report) == (2, None)
    assert "'yesterday' is no time" in said
    delete_topics(spoken.bootstrap, [gone := topic_factory(1)])
    spoken.names["progress"] = gone
    code, report, said = spoken.audit(tmp_path)
    assert (code, report) == (2, None)
    assert f"there is no topic {gone}" in said
    nowhere = Spoken(spoken.topics, spoken.names, "127.0.0.1:1")
    code, report, said = nowhere.audit(tmp_path)
    assert (code, report) == (2, None)
    assert "no broker at 127.0.0.1:1" in said
