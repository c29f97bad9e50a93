"""kill -9 at any point of a batch: nothing is lost, nothing comes twice, nothing stays running."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from millrace.runtime.plans import kept_plan
from millrace.testing.kafka import TopicFactory
from tests.crash.killed_run import BEHIND, POINTS
from tests.e2e.fraud_runs import (
    MILLRACE,
    Command,
    check_tables,
    check_topics,
    committed_batches,
    run_arguments,
    run_to_end,
    table,
)
from tests.e2e.fraud_stream import FraudStream, FraudTopics, ordered_stream

BATCH = 500
KILLED = -signal.SIGKILL


class Crashing:
    """The app on a stream that is there already, killed and started again on one checkpoint.

    Args:
        bootstrap: The broker.
        topics: Topics of its own.
        folder: An empty folder.
        writer: ``driver`` or ``spark``.
        plan: How the topology runs: with all entities as a station, with the card's stage alone as a chain.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: FraudTopics,
        folder: Path,
        writer: str = "driver",
        plan: str = "station",
    ) -> None:
        self.stream: FraudStream = ordered_stream(4_000, seed=2, cards=60, hours=40)
        self.stream.send(bootstrap, topics)
        self.root = folder / "app"
        self._bootstrap, self._topics = bootstrap, topics
        records = {"driver": 50_000, "spark": 0}[writer]
        self._common = [
            f"stream.max_offsets_per_trigger={BATCH}",
            f"stream.driver_write_max_records={records}",
        ]
        self.plan = plan

    @property
    def settings(self) -> list[str]:
        return [*self._common, f"stream.plan={self.plan}", "features.entities=auto"]

    @property
    def arguments(self) -> list[str]:
        return run_arguments(self._bootstrap, self._topics, self.root, self.settings)

    def die_at(self, point: str, batch: int) -> None:
        """Let it run up to this point of this batch."""
        script = [sys.executable, "-m", "tests.crash.killed_run", point, str(batch)]
        with Command([*script, *self.arguments], self.root.parent) as command:
            assert command.wait() == KILLED, f"{command.out}\n{command.err}"
            command.until_gone()
        done = committed_batches(self.root)[-1:] or [-1]
        assert done in ([[batch - 1], [batch], [batch + 1]] if point == BEHIND else [[batch - 1]])

    def die_after(self, batch: int, seconds: float) -> None:
        """Let it run until this batch is done, and a moment longer."""
        with Command([*MILLRACE, "run", *self.arguments], self.root.parent) as command:
            command.until_said(f"batch {batch}:")
            time.sleep(seconds)  # not to wait for something: the moment is the point
            command.signal(signal.SIGKILL)
            assert command.wait() == KILLED, f"{command.out}\n{command.err}"
            command.until_gone()

    def check(self) -> None:
        """Run to the end, and compare everything with what must come of the stream."""
        before = len(table(self.root, "transactions"))
        assert before < len(self.stream.decisions), "the last crash came too late to cut anything off"
        run_to_end(self._bootstrap, self._topics, self.root, self.settings)
        assert kept_plan(self.root) == self.plan
        check_tables(self.stream, self._topics, self.root)
        check_topics(self._bootstrap, self._topics, self.root, repeats=True)


def seed() -> int:
    """The seed of random moments, printed so that ``MILLRACE_CRASH_SEED`` can repeat them."""
    chosen = int(os.environ.get("MILLRACE_CRASH_SEED") or random.SystemRandom().randrange(10**6))
    print(f"MILLRACE_CRASH_SEED={chosen}")
    return chosen


@pytest.mark.parametrize(
    "points",
    [("tables", BEHIND), pytest.param(("state", "table", "tables"), marks=pytest.mark.matrix)],
    ids=["two", "three"],
)
def test_one_stream_survives_crashes_in_its_batches(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path, points: tuple[str, ...]
) -> None:
    """Each start finishes the batch in which the one before it died, and dies in the next.

    ::

        batch        0      1        2      3 or later
        start 1   |------|---x
        start 2          |--------|---x
        start 3                   |------ to the end
    """
    app = Crashing(kafka_bootstrap, FraudTopics.make(topic_factory), tmp_path)
    for batch, point in enumerate(points, start=1):
        app.die_at(point, batch)
    app.check()


@pytest.mark.matrix
@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize(
    ("writer", "plan", "point"),
    [
        (writer, plan, point)
        for writer, plan in [("driver", "station"), ("driver", "chain"), ("spark", "chain")]
        for point in POINTS
        if (writer, point) != ("spark", BEHIND)  # Spark's tasks leave nothing for later
    ],
)
def test_a_crash_at_any_point_of_a_batch_loses_and_repeats_nothing(
    kafka_bootstrap: str,
    topic_factory: TopicFactory,
    tmp_path: Path,
    point: str,
    batch: int,
    writer: str,
    plan: str,
) -> None:
    app = Crashing(kafka_bootstrap, FraudTopics.make(topic_factory), tmp_path, writer, plan)
    app.die_at(point, batch)
    app.check()


@pytest.mark.matrix
def test_crashes_between_plans_lose_and_repeat_nothing(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    """Each start brings what the last one left to the other plan, and dies in its next batch.

    Before anything of it stands in a table: such a batch is to be finished under the plan that began it,
    which the start says.
    """
    app = Crashing(kafka_bootstrap, FraudTopics.make(topic_factory), tmp_path)
    plans = ("station", "chain", "station", "chain")
    for batch, (plan, point) in enumerate(zip(plans, ("state", "offsets", "state"), strict=False), start=1):
        app.plan = plan
        app.die_at(point, batch)
    app.plan = plans[-1]
    app.check()


@pytest.mark.matrix
@pytest.mark.parametrize(("writer", "plan"), [("driver", "station"), ("spark", "chain")])
@pytest.mark.parametrize("attempt", range(5))
def test_crashes_at_random_moments_lose_and_repeat_nothing(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path, attempt: int, writer: str, plan: str
) -> None:
    moments = random.Random(f"{seed()}-{attempt}")
    app = Crashing(kafka_bootstrap, FraudTopics.make(topic_factory), tmp_path, writer, plan)
    for batch in (0, 2):
        app.die_after(batch, moments.uniform(0, 3))
    app.check()
