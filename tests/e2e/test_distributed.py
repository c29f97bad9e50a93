"""The fraud app on a cluster: other processes, other JVMs, another Python that has nothing of the project."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from millrace.runtime.cluster import StandaloneCluster
from millrace.testing.kafka import TopicFactory
from tests.e2e.conftest import Reference
from tests.e2e.fraud_runs import (
    MILLRACE,
    Command,
    check_same_tables,
    check_topics,
    committed_batches,
    run_arguments,
)


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python with the packages of this one except those that are installed by reference, as we are.

    A path file adds a folder of packages, but path files in that folder are not followed.
    """
    folder = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    show = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", show], capture_output=True, text=True, check=True).stdout.strip()
    Path(packages, "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def imports(python: Path, module: str, folder: Path) -> bool:
    done = subprocess.run([python, "-c", f"import {module}"], cwd=folder, capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.long
def test_a_cluster_that_has_nothing_of_the_project_gives_the_tables_of_local_mode(
    reference: Reference,
    kafka_bootstrap: str,
    topic_factory: TopicFactory,
    bare_python: Path,
    tmp_path: Path,
) -> None:
    assert imports(bare_python, "pyspark, msgspec, pandas", tmp_path)
    for module in ("millrace", "millrace_apps.fraud"):
        assert not imports(bare_python, module, tmp_path)

    topics, root = reference.topics.with_new_outputs(topic_factory), tmp_path / "app"
    settings = [
        "stream.max_offsets_per_trigger=4500",
        "stream.driver_write_max_records=0",
        "spark.shuffle_partitions=2",
        "spark.conf.spark.executor.memory=1g",
        # As spark.quick_start does for the driver.
        "spark.conf.spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1",
    ]
    with StandaloneCluster(2, python=bare_python, log_dir=tmp_path / "logs") as cluster:
        arguments = run_arguments(kafka_bootstrap, topics, root, settings, master=cluster.url)
        command = [*MILLRACE, "run", "--until-end", "--no-drain", *arguments]
        with Command(command, tmp_path, env=cluster.driver_env) as run:

            def both_workers_work() -> bool:
                return [worker["coresused"] for worker in cluster.state()["workers"]] == [1, 1]

            run.until(both_workers_work, "both workers have an executor")
            assert run.wait() == 0, f"{run.out}\n{run.err}"
            run.check_nothing_left()
            assert run.err == ""
    check_same_tables(root, reference.root)
    check_topics(kafka_bootstrap, topics, root)


def executors(cluster: StandaloneCluster, worker: int) -> list[psutil.Process]:
    """Return the executors that a worker has started, by its number from 1 on."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(cluster.pids[worker]).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # one that has ended just now
                if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                    found.append(child)
    return found


@pytest.mark.matrix
def test_an_executor_and_then_a_worker_are_killed_and_no_table_is_another(
    reference: Reference, kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    """Twenty batches on two workers, of which one is left at the end.

    ::

        worker 1   |-- executor --X  |-- another executor ------------------|
        worker 2   |-- executor -----------------X  killed with its executor
        batches    1 2 3             6 7 8          9 ...                   20
    """
    topics, root = reference.topics.with_new_outputs(topic_factory), tmp_path / "app"
    settings = [
        "stream.max_offsets_per_trigger=450",
        "spark.shuffle_partitions=2",
        "spark.conf.spark.executor.memory=1g",
        "spark.conf.spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1",
        # An executor that is gone is missed sooner than after two minutes.
        "spark.conf.spark.network.timeout=20s",
        "spark.conf.spark.network.timeoutInterval=10s",
        "spark.conf.spark.executor.heartbeatInterval=2s",
    ]
    with StandaloneCluster(2, log_dir=tmp_path / "logs") as cluster:
        arguments = run_arguments(kafka_bootstrap, topics, root, settings, master=cluster.url)
        command = [*MILLRACE, "run", "--until-end", "--no-drain", *arguments]
        with Command(command, tmp_path, env=cluster.driver_env) as run:
            run.until(lambda: len(committed_batches(root)) >= 3, "three batches are committed")
            (first,) = executors(cluster, 1)
            first.kill()
            run.until(lambda: len(committed_batches(root)) >= 8, "it goes on without it")
            psutil.Process(cluster.pids[2]).kill()
            run.until(lambda: cluster.state()["aliveworkers"] == 1 or not executors(cluster, 2), "it is gone")
            assert len(committed_batches(root)) < 20, "it was killed in the middle"
            assert run.wait() == 0, f"{run.out}\n{run.err}"
            run.check_nothing_left()
    check_same_tables(root, reference.root)
    check_topics(kafka_bootstrap, topics, root, repeats=True)
