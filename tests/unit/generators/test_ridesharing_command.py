from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace_apps.generators import kafka_loop
from millrace_apps.generators.cli import app
from millrace_apps.generators.kafka_loop import close_the_loop
from millrace_apps.generators.options import Target
from millrace_apps.generators.ridesharing import DOMAIN
from millrace_apps.generators.ridesharing.loop import LOOP
from millrace_apps.generators.timing import Timing

TIMING = Timing(
    event_rate=100.0,
    speed=20.0,
    events=None,
    start_ms=1_767_369_600_000,
    live=False,
    until_ms=1_767_369_660_000,
)
VALUES: dict[str, Any] = {
    "to": Target.kafka,
    "resume": False,
    "sample": None,
    "dry_run": False,
    "loop_suffix": ".demo-1",
    "loop_ahead_min": None,
    "bootstrap": "nowhere:1",
    "kafka_option": None,
    "partitions": 2,
}


class Inbox:
    """Takes the place of the broker."""

    made: list[Any] = []  # noqa: RUF012

    def __init__(self, *arguments: Any, **more: Any) -> None:
        Inbox.made.append((arguments, more))

    def poll(self, timeout_s: float) -> list[tuple[str, bytes]]:
        return []


def test_the_loop_reads_the_apps_topics_and_keeps_the_pace_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_loop, "KafkaInbox", Inbox)
    domain, timing = close_the_loop(DOMAIN, LOOP, VALUES, TIMING)
    assert (timing.speed, timing.until_ms) == (None, TIMING.until_ms)
    assert domain.simulate is not DOMAIN.simulate
    (_, topics), more = Inbox.made[-1]
    assert list(topics) == [
        "ridesharing.offers.demo-1",
        "ridesharing.assignments.demo-1",
        "ridesharing.releases.demo-1",
        "ridesharing.quotes.demo-1",
        "ridesharing.hints.demo-1",
    ]
    assert more["partitions"] == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"to": Target.jsonl}, "over Kafka"),
        ({"resume": True}, "without --resume"),
        ({"sample": 3}, "without --resume"),
        ({"dry_run": True}, "without --resume"),
    ],
)
def test_what_contradicts_a_loop_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        close_the_loop(DOMAIN, LOOP, VALUES | change, TIMING)


def test_a_loop_needs_a_pace() -> None:
    from dataclasses import replace

    with pytest.raises(UserError, match="pace"):
        close_the_loop(DOMAIN, LOOP, VALUES, replace(TIMING, speed=None))


def test_only_domains_that_react_have_a_loop(tmp_path: Path) -> None:
    runner = CliRunner()
    assert "--loop" in runner.invoke(app, ["ridesharing", "--help"], env={"COLUMNS": "200"}).output
    assert "--loop" not in runner.invoke(app, ["iot", "--help"], env={"COLUMNS": "200"}).output
    refused = runner.invoke(app, ["ridesharing", "--loop", "--to", "jsonl", "--out", str(tmp_path / "x")])
    assert isinstance(refused.exception, UserError)
