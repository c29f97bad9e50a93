"""The standalone cluster consists of real processes, and leaves none of them behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from millrace.errors import UserError
from millrace.runtime.cluster import StandaloneCluster


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # ended, or about to
        return ""


JOB = """
import json, os, sys, time
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "512m").config("spark.driver.memory", "512m")
    .config("spark.scheduler.minRegisteredResourcesRatio", "1")
    .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "60s").getOrCreate()
)
def where(_):
    time.sleep(1)  # long enough for every core to get a task
    return os.getppid(), sys.executable, os.environ.get("WORD")
print(json.dumps(sorted(set(spark.sparkContext.parallelize(range(4), 4).map(where).collect()))))
if sys.argv[2] == "stay":
    print("ready", flush=True)
    time.sleep(600)
spark.stop()
"""


@pytest.mark.matrix
def test_two_workers_run_a_job_with_the_given_python_and_environment(tmp_path: Path) -> None:
    with StandaloneCluster(2, python=sys.executable, env={"WORD": "hi"}, log_dir=tmp_path) as cluster:
        state = cluster.state()
        assert (state["aliveworkers"], state["cores"], state["url"]) == (2, 2, cluster.url)
        pids, url = cluster.pids, cluster.url
        assert len(pids) == 3
        done = subprocess.run(
            [sys.executable, "-c", JOB, url, "end"],
            env=os.environ | cluster.driver_env,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr
        answers = json.loads(done.stdout.splitlines()[-1])
    assert {(python, word) for _, python, word in answers} == {(sys.executable, "hi")}
    assert len({parent for parent, _, _ in answers}) == 2
    assert all(map(gone, pids))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["master.log", "worker-1.log", "worker-2.log"]


@pytest.mark.matrix
def test_it_dies_with_a_parent_that_is_killed_executors_included(tmp_path: Path) -> None:
    script = (
        "import os, subprocess, sys, time; from pathlib import Path\n"
        "from millrace.runtime.cluster import StandaloneCluster\n"
        "with StandaloneCluster(1, python=sys.executable, log_dir=Path(sys.argv[1])) as cluster:\n"
        "    print(cluster.url, cluster._root, *cluster.pids, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        url, root, *pids = parent.stdout.readline().split()
        driver = subprocess.Popen(
            [sys.executable, "-c", JOB, url, "stay"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert driver.stdout is not None
            assert any(line == "ready\n" for line in driver.stdout)
            workers = [child for pid in pids for child in psutil.Process(int(pid)).children(recursive=True)]
            names = {command(child) for child in workers}
            assert any("CoarseGrainedExecutorBackend" in name for name in names)
            assert any("pyspark.daemon" in name for name in names)
            parent.kill()
            until(lambda: all(map(gone, map(int, pids))), "master and worker ended")
            until(lambda: all(gone(child.pid) for child in workers), "executors and their Python ended")
            until(lambda: not Path(root).exists(), "its folder is deleted")
        finally:
            parent.kill()
            driver.kill()
            driver.communicate()


def test_a_cluster_that_is_too_slow_is_ended_and_says_where_to_look(tmp_path: Path) -> None:
    before = psutil.Process().children()  # the broker of other tests, for one
    cluster = StandaloneCluster(1, log_dir=tmp_path, ready_timeout_s=0.01)
    with pytest.raises(UserError, match=r"no the master's port within 0\.01 s: see .*master\.log"), cluster:
        pass
    assert cluster.pids == []
    assert psutil.Process().children() == before


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match=r"(?s)a process ended: see .*worker-1\.log.*--memory"),
        StandaloneCluster(1, memory="much", log_dir=tmp_path),
    ):
        pass
