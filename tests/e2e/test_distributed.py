"""The fraud app on a cluster: other processes, other JVMs, another Python that has nothing of the project."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from millrace.runtime.cluster import StandaloneCluster
from millrace.testing.kafka import TopicFactory
from tests.e2e.conftest import Reference
from tests.e2e.fraud_runs import MILLRACE, Command, check_same_tables, check_topics, run_arguments


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


def test_a_cluster_that_has_nothing_of_the_project_gives_the_tables_of_local_mode(
    reference: Reference,
    kafka_bootstrap: str,
    topic_factory: TopicFactory,
    bare_python: Path,
    tmp_path: Path,
) -> None:
    assert imports(bare_python, "pyspark, msgspec, pandas", tmp_path)
    for module in ("millrace", "apps.fraud"):
        assert not imports(bare_python, module, tmp_path)

    topics, root = reference.topics.with_new_outputs(topic_factory), tmp_path / "app"
    settings = [
        "stream.max_offsets_per_trigger=4500",
        "stream.driver_records=0",
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
