"""Job W1 as an app: Kafka → state → Kafka by the same runtime and writers that every app has.

``python -m millrace_apps.benchmarks.core_app key=value …`` runs it in a process of its own, which can be
killed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from millrace.kafka.admin import APPEND_TIME as APPEND_TIME
from millrace.kafka.admin import SENT_TIME
from millrace.runtime.apps import App, Topic, Topics
from millrace.runtime.settings import AppSettings, Section, load_settings
from millrace.topology import Input, Topology, read

if TYPE_CHECKING:
    from millrace import KeyedProcess

Job = Literal["w1", "w1_batch", "w1_timed", "w1_big"]


class CoreTopics(Section):
    """Names of the topics."""

    events: str = "bench.events"
    results: str = "bench.results"
    dead_letters: str = "bench.dead-letters"
    partitions: int = 2


class CoreSettings(AppSettings):
    """What the benchmark's app can be told."""

    topics: CoreTopics = CoreTopics()
    job: Job = "w1"


def topics(settings: CoreSettings) -> Topics:
    """Return the topics of the app."""
    names = settings.topics
    return Topics(
        reads=(Topic(names.events, names.partitions, SENT_TIME, event_time="at"),),
        # The broker's time of a result is when a reader can have it.
        writes=(Topic(names.results, names.partitions, APPEND_TIME), Topic(names.dead_letters, 1)),
    )


def topology(settings: CoreSettings) -> Topology:
    """Return its topology; of late events the check misses the results."""
    names = settings.topics
    return (
        read(Input(names.events, "card", "at"))
        .process(process_of(settings.job))
        .write(topics={"main": names.results, "dead_letters": names.dead_letters})
    )


def process_of(job: Job) -> KeyedProcess[Any, Any]:
    """Return the process of a job."""
    from millrace_apps.benchmarks import w1_job

    made: dict[Job, type[KeyedProcess[Any, Any]]] = {
        "w1": w1_job.ZScore,
        "w1_batch": w1_job.BatchZScore,
        "w1_timed": w1_job.TimedZScore,
        "w1_big": w1_job.BigZScore,
    }
    return made[job]()


def core_overrides(bootstrap: str, root: Path, run: str, *overrides: str) -> list[str]:
    """Return the settings, ``key=value``, of a run with topics of its own.

    Args:
        bootstrap: The broker.
        root: Folder of checkpoint and logs.
        run: What the names of its topics end with.
        overrides: Further settings; they win.
    """
    names = [f"topics.{t}=bench-{t.replace('_', '-')}-{run}" for t in ("events", "results", "dead_letters")]
    return [
        f"kafka.bootstrap={bootstrap}",
        f"storage.root={root}",
        "spark.master=local[2]",
        *names,
        *overrides,
    ]


def core_settings(overrides: Sequence[str]) -> CoreSettings:
    """Return the app's settings."""
    return load_settings(CoreSettings, app="core-bench", overrides=overrides)


app = App(
    name="core-bench",
    summary="The running z-score of the benchmarks.",
    settings=CoreSettings,
    topology=topology,
    topics=topics,
)


def main(overrides: Sequence[str]) -> None:
    """Run the app until it is stopped."""
    from millrace.runtime.job import Job as RunningJob

    RunningJob(app, core_settings(overrides)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
