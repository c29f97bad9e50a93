"""A query whose batches are quicker than uploads of its state goes on, with the real state store."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

#: Versions that may have come since the last upload; Spark's own limit is 820, which takes two minutes.
MOST = 25
WAITS = "versions of the state stand on the snapshot that was uploaded last"
SCRIPT = dedent("""
    import functools, json, sys
    from pathlib import Path
    from millrace.checkpoints.changelogs import read_lineage
    from millrace.host.spark_uploads import AwaitingUploads
    from millrace.kafka.admin import TopicSpec, create_topics
    from millrace.runtime import job as job_module
    from millrace_apps.benchmarks import core_app
    from millrace_apps.benchmarks.inputs import make_events
    from millrace_apps.benchmarks.kafka_io import preload

    broker, root, most, batches, every = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
    job_module.AwaitingUploads = functools.partial(AwaitingUploads, most=most)
    if every < 60:
        job_module.uploads_of = lambda spark: None
    sets = core_app.core_overrides(
        broker, root, "uploads", "job=w1", "stream.plan=station", "stream.max_offsets_per_trigger=20",
        f"spark.conf.spark.sql.streaming.stateStore.maintenanceInterval={every}s",
        "spark.conf.spark.sql.streaming.stateStore.minDeltasForSnapshot=2",
    )
    settings = core_app.core_settings(sets)
    topics = settings.topics
    create_topics(broker, {topics.events: TopicSpec(1), topics.results: TopicSpec(1, core_app.APPEND_TIME)})
    preload(broker, topics.events, make_events(20 * batches, 500))
    stands_on = []

    def look(batch, counts):
        newest = [*root.glob(f"**/{batch + 1}_*.changelog")]
        stands_on.append(len(read_lineage(newest[0].read_bytes())))
        if len(stands_on) == batches:
            job.stop()

    job = job_module.Job(core_app.app, settings, on_batch=look)
    job.run()
    print(json.dumps(stands_on))
""")


def stands_on(bootstrap: str, root: Path, most: int, *, every_s: int) -> tuple[list[int], str]:
    """Return on how many versions each of 120 batches stood, and what was told."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, bootstrap, str(root), str(most), "120", str(every_s)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2_000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert len(found) == 120
    return found, ran.stderr


@pytest.mark.long
def test_a_query_waits_for_the_upload_of_its_state_and_goes_on(kafka_bootstrap: str, tmp_path: Path) -> None:
    found, told = stands_on(kafka_bootstrap, tmp_path / "app", MOST, every_s=8)
    # It was waited for, and never was there more.
    assert max(found) == MOST
    assert WAITS in told


def test_a_query_asks_for_the_upload_of_its_state_where_the_clock_is_slow(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    most = 2 * MOST  # of the last quarter an upload takes some batches
    found, told = stands_on(kafka_bootstrap, tmp_path / "app", most, every_s=3_600)
    assert most * 3 // 4 <= max(found) <= most
    assert sum(after < before for before, after in itertools.pairwise(found)) >= 2
    assert WAITS not in told
