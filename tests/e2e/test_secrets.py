"""Secrets in the settings of a real session, and who else on the machine could read them."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace.runtime.cluster import StandaloneCluster

SECRET = "hUnter2canary9a"  # noqa: S105
SETTINGS = {
    "spark.hadoop.fs.s3a.secret.key": SECRET,
    "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net": SECRET,
    "spark.hadoop.parquet.encryption.key.list": f"k1:{SECRET}",
    "spark.hadoop.fs.s3a.proxy": f"https://{SECRET}@proxy.example",
    "spark.test.odd": " =\\x:é\U0001f600#!",
}

JOB = """
import json, sys, tempfile
from pathlib import Path
from millrace.local.private import keep_private
from millrace.runtime.session import spark_session

keep_private()
master, folder, settings = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3] or sys.stdin.read())
events = folder / "events"
events.mkdir()
conf = {**settings, "spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()}
conf |= {"spark.executor.memory": "512m", "spark.eventLog.compress": "false"}
log = folder / "spark.log"
with spark_session("secrets", master=master, quick_start=True, log_file=log, conf=conf) as spark:
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    jvm = spark.sparkContext._jvm
    stored = folder / "stored"
    spark.range(10).write.format("delta").save(str(stored / "table"))
    spark.range(10).write.parquet(str(stored / "export"))
    spark.readStream.format("delta").load(str(stored / "table")).groupBy("id").count().writeStream.format(
        "delta").outputMode("complete").option("checkpointLocation", str(stored / "checkpoint")).trigger(
        availableNow=True).start(str(stored / "counts")).awaitTermination()
    counted = spark.range(1000).repartition(2).rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).sum()
    jvm.org.apache.logging.log4j.LogManager.getLogger("x").warn("no answer: " + json.dumps(settings))
    print(json.dumps({
        "counted": counted,
        "key": hadoop.get("fs.s3a.secret.key"),
        "odd": jvm.System.getProperty("spark.test.odd"),
        "left": [str(f) for f in Path(tempfile.gettempdir()).rglob("spark.properties")],
    }), flush=True)
"""


class Processes:
    """What stands in the list of processes, looked at as fast as it goes."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.java: set[str] = set()
        self._end = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()

    def _look(self) -> None:
        while not self._end.wait(0.03):
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    words = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if SECRET in words:
                    self.seen.add(words)
                if "java" in words:
                    self.java.add(words)


@pytest.fixture
def env() -> Iterator[dict[str, str]]:
    """An environment with a temporary folder of its own, whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="m-") as folder:
        yield {**os.environ, "TMPDIR": folder}


def run(master: str, folder: Path, env: dict[str, str]) -> tuple[dict[str, object], Processes]:
    processes = Processes()
    with processes.watched():
        done = subprocess.run(
            [sys.executable, "-c", JOB, master, str(folder), ""], env=env, input=json.dumps(SETTINGS),
            capture_output=True, text=True, timeout=180, check=False, umask=0o022,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), processes


def check_modes(folder: Path) -> None:
    """What the engine has stored is this user's alone: tables, state, an export, its log."""
    found = [folder / "spark.log", *(folder / "stored").rglob("*")]
    assert {".parquet", ".json", ".changelog"} <= {path.suffix for path in found}
    readable = [f"{path} {path.stat().st_mode:o}" for path in found if path.stat().st_mode & 0o077]
    assert readable == []


def check(folder: Path, told: dict[str, object], processes: Processes, mark: str) -> None:
    # The job had them: what is not to be found elsewhere was there to be found.
    assert (told["counted"], told["key"], told["left"]) == (1000, SECRET, [])
    assert str(told["odd"]).strip() == SETTINGS["spark.test.odd"].strip()
    assert any(mark in words for words in processes.java), "no JVM of this session was seen"
    assert processes.seen == set()
    logs = [folder / "spark.log", *(f for f in (folder / "events").rglob("*") if f.is_file())]
    for log in logs:
        assert SECRET not in log.read_text(errors="replace"), log
    assert "spark.hadoop.fs.s3a.secret.key" in "".join(f.read_text() for f in logs[1:])
    assert "no answer: " in logs[0].read_text()


def test_no_setting_of_a_session_stands_in_the_list_of_processes_or_a_log(
    tmp_path: Path, env: dict[str, str]
) -> None:
    told, processes = run("local[1]", tmp_path, env)
    check(tmp_path, told, processes, env["TMPDIR"])
    check_modes(tmp_path)


@pytest.mark.matrix
def test_nor_does_one_of_a_cluster_where_executors_are_launched(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "job").mkdir()
    with StandaloneCluster(1, python=sys.executable, log_dir=tmp_path / "logs") as cluster:
        told, processes = run(cluster.url, tmp_path / "job", env | cluster.driver_env)
        check(tmp_path / "job", told, processes, "CoarseGrainedExecutorBackend")
        for log in (tmp_path / "logs").rglob("*.log"):
            assert SECRET not in log.read_text(errors="replace"), log


def test_a_session_that_is_killed_as_it_starts_leaves_its_settings_to_nobody(
    tmp_path: Path, env: dict[str, str]
) -> None:
    """Only the user can read the file while it is there, and whoever starts next removes it."""
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, "local[1]", str(tmp_path), json.dumps({"spark.x": "y"})],
        env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not (found := list(Path(env["TMPDIR"]).glob("millrace-s-*/spark.properties"))):
            assert time.monotonic() < deadline
            assert job.poll() is None
            time.sleep(0.002)
        modes = {stat.S_IMODE(path.stat().st_mode) for path in (found[0], found[0].parent)}
        assert modes == {0o600, 0o700}
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert found[0].exists()
    code = "from millrace.runtime.scratch import remove_orphans; remove_orphans('millrace-s-')"
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert not found[0].parent.exists()
