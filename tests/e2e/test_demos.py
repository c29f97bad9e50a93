"""Each app's demo on a broker that others use too: real streams, all its checks hold if it is long enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.kafka.admin import topic_partitions
from tests.e2e.fraud_runs import MILLRACE, Command


def run(bootstrap: str, home: Path, app: str, duration: str) -> tuple[int, str, str]:
    """Run a demo; return how it ended and what it said."""
    arguments = ["demo", app, "--duration", duration, "--bootstrap", bootstrap]
    sets = ["-s", "spark.master=local[2]"]
    with Command([*MILLRACE, *arguments, *sets], home, env={"MILLRACE_HOME": str(home)}) as command:
        code = command.wait()
        command.check_nothing_left()
        return code, command.out, command.err


@pytest.mark.parametrize(
    ("app", "duration"),
    # Riders and drivers need some minutes of their time until somebody has accepted an offer.
    [("iot", "6s"), ("clickstream", "6s"), ("ridesharing", "15s")],
)
def test_a_short_demo_ends_by_itself_and_says_what_it_was_too_short_for(
    kafka_bootstrap: str, tmp_path: Path, app: str, duration: str
) -> None:
    before = topic_partitions(kafka_bootstrap).keys()
    code, out, err = run(kafka_bootstrap, tmp_path, app, duration)
    assert "NO" not in out.split(), out
    assert (code, err.count("\n")) == (1, 1), f"{out}\n{err}"
    assert "a longer run is wanted, nothing to compare: " in err
    assert topic_partitions(kafka_bootstrap).keys() == before


@pytest.mark.matrix
@pytest.mark.parametrize("app", ["iot", "clickstream"])
def test_all_checks_of_a_demo_of_a_minute_hold(kafka_bootstrap: str, tmp_path: Path, app: str) -> None:
    code, out, err = run(kafka_bootstrap, tmp_path, app, "60s")
    assert (code, err) == (0, ""), f"{out}\n{err}"
    assert "all checks hold" in out
