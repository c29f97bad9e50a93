"""The job of the README, word by word: its blocks in an empty folder, as whoever reads it would run them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow.dataset as pads
import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"^\+-.*\n(?:[+|].*\n)+", re.MULTILINE)
_RUN = "python job.py\n"
#: Runs the job, the shell that adds to its input, and the job again: most of the time Spark starts.
_TWICE = """
import runpy, subprocess, sys
sys.path.insert(0, "")
runpy.run_path("job.py", run_name="__main__")
subprocess.run(["bash", "-ec", sys.argv[1]], check=True)
runpy.run_path("job.py", run_name="__main__")
"""
_DEADLINE_S = 150.0


class Shown(NamedTuple):
    """What the README shows.

    Attributes:
        given: The shell that makes the input.
        module: The types and the process.
        job: The job.
        printed: What it prints.
        more: The shell that adds to the input.
        printed_then: What the job prints when it runs again.
    """

    given: str
    module: str
    job: str
    printed: str
    more: str
    printed_then: str


def shown(text: str) -> Shown:
    """Return the blocks of the section about the library, which are these and in this order."""
    section = text.partition("\n## The core as a library\n")[2].partition("\n## ")[0]
    blocks = _BLOCK.findall(section)
    assert [kind for kind, _ in blocks] == ["bash", "python", "python", "", "bash", ""]
    found = Shown(*(code for _, code in blocks))
    assert found.module.startswith("# balances.py\n")
    assert found.job.startswith("# job.py\n")
    assert found.more.endswith(_RUN)
    return found._replace(more=found.more.removesuffix(_RUN))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """This environment, active, and nothing else: no cache of jars, no variable of ours or of Spark's."""
    home, conf = tmp_path / "home", tmp_path / "conf"
    home.mkdir()
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(
        "spark.ui.enabled false\n"
        "spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1\n"
        f"spark.local.dir {tmp_path / 'local'}\n"
    )
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG", "TMPDIR") if name in os.environ}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "HOME": str(home), "SPARK_CONF_DIR": str(conf)}


def run(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[str, str]:
    """Run a command to its end, or end it and all that it has started; return what it prints and logs."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        printed, logged = process.communicate(timeout=_DEADLINE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, logged[-4_000:]
    return printed, logged


def rows(table: Path) -> list[tuple[str, float]]:
    """Return what a table of Parquet files has, in order."""
    found = pads.dataset(table, format="parquet", partitioning="hive").to_table().to_pylist()
    return sorted((row["user"], row["total"]) for row in found)


def test_the_job_of_the_readme_prints_what_stands_there_and_goes_on_where_it_was(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    job, folder = shown(README.read_text("utf-8")), tmp_path / "job"
    folder.mkdir()
    (folder / "balances.py").write_text(job.module)
    (folder / "job.py").write_text(job.job)
    run(["bash", "-ec", job.given], folder, environment)
    printed, logged = run(["python", "-c", _TWICE, job.more], folder, environment)
    assert _TABLE.findall(printed) == [job.printed, job.printed_then]
    assert rows(folder / "out" / "balances") == [("ann", 120.0), ("ann", 150.0), ("bob", 20.0), ("bob", 25.0)]
    for empty in ("late", "dead_letters"):
        assert pads.dataset(folder / "out" / empty, format="parquet").count_rows() == 0
    assert "shuffle.partitions" not in logged
    assert not (tmp_path / "home" / ".cache").exists(), "the core needs no jars"
