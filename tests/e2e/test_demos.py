"""Each app's demo, shortened, on a broker that others use too: real streams, all its checks hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.kafka.admin import topic_partitions
from tests.e2e.fraud_runs import MILLRACE, Command


@pytest.mark.parametrize(
    ("app", "duration"),
    # Riders and drivers need some minutes of their time until somebody has accepted an offer.
    [("iot", "6s"), ("clickstream", "6s"), ("ridesharing", "15s")],
)
def test_a_short_demo_ends_by_itself_with_all_checks_held(
    kafka_bootstrap: str, tmp_path: Path, app: str, duration: str
) -> None:
    before = topic_partitions(kafka_bootstrap).keys()
    arguments = ["demo", app, "--duration", duration, "--bootstrap", kafka_bootstrap]
    sets = ["-s", "spark.master=local[2]"]
    with Command([*MILLRACE, *arguments, *sets], tmp_path, env={"MILLRACE_HOME": str(tmp_path)}) as command:
        assert command.wait() == 0, f"{command.out}\n{command.err}"
        command.check_nothing_left()
        assert command.err == ""
        assert "all checks hold" in command.out
        assert "NO" not in command.out.split()
    assert topic_partitions(kafka_bootstrap).keys() == before
