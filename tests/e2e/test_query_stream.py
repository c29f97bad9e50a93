"""`millrace query --stream` as it is typed: two topics joined, Ctrl-C, and what goes on from a checkpoint."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from millrace.kafka.admin import SENT_TIME, TopicSpec, create_topics, delete_topics
from millrace.testing.kafka import produce
from tests.e2e.fraud_runs import MILLRACE, Command

pytestmark = pytest.mark.matrix  # two starts of Spark

START = 1_767_600_000_000
QUERY = (
    "SELECT r.machine_id AS machine, r.value AS value, s.status AS status FROM topic.q_readings r "
    "JOIN topic.q_status s ON r.machine_id = s.machine_id "
    "AND r._event_time BETWEEN s._event_time AND s._event_time + INTERVAL 10 SECONDS"
)


def test_a_query_ends_by_ctrl_c_and_goes_on_from_its_checkpoint(kafka_bootstrap: str, tmp_path: Path) -> None:
    """What was told before is not told again, and a topic that is not there is a line.

    readings   1 s, 3 s   Ctrl-C   5 s
    status     0 s
    """
    env = {"MILLRACE_HOME": str(tmp_path)}
    own = ["--app", "iot", "--bootstrap", kafka_bootstrap, "-s", "spark.master=local[2]"]
    own += ["-s", "topics.readings=q.readings", "-s", "topics.status=q.status"]
    query = [*MILLRACE, "query", "--stream", *own, "--json", "--checkpoint", str(tmp_path / "far"), QUERY]
    with Command(query, tmp_path, env=env) as command:
        assert command.wait() == 2
        assert command.err.count("\n") == 1
        assert "is not on" in command.err
    create_topics(kafka_bootstrap, {t: TopicSpec(1, dict(SENT_TIME)) for t in ("q.readings", "q.status")})

    def send(topic: str, second: int, **more: object) -> None:
        event = {"machine_id": "m1", "event_time_ms": START + second * 1_000, **more}
        produce(kafka_bootstrap, topic, [("m1", json.dumps(event).encode())])

    send("q.status", 0, status_id="s0", status="running", produced=0, rejected=0)
    for second in (1, 3):
        send("q.readings", second, reading_id=f"r{second}", value=float(second))
    with Command(query, tmp_path, env=env) as command:
        command.until_said('"value":3.0')
        command.signal(signal.SIGINT)
        code = command.wait()
        command.check_nothing_left()
        first, said = command.out, command.err
    assert code == 0, said
    assert said.strip().splitlines()[-1].startswith("ended after ")
    send("q.readings", 5, reading_id="r5", value=5.0)
    with Command([*query, "--until-end"], tmp_path, env=env) as command:
        code = command.wait()
        second_part, said = command.out, command.err
    assert code == 0, said
    delete_topics(kafka_bootstrap, ["q.readings", "q.status"])
    rows = [json.loads(line) for part in (first, second_part) for line in part.splitlines()]
    assert sorted((row["machine"], row["value"], row["status"]) for row in rows) == [
        ("m1", 1.0, "running"), ("m1", 3.0, "running"), ("m1", 5.0, "running"),
    ]  # fmt: skip
    assert [json.loads(line)["value"] for line in second_part.splitlines()] == [5.0]
