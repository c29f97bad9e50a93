"""A Spark standalone cluster on this machine: master and workers as real processes, from the pip package.

For tests of what a cluster does and ``local[*]`` does not: code that has to be shipped, executors that
have nothing of it installed, more than one JVM. It ends with the process that started it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from millrace.errors import UserError
from millrace.local.java_check import check_java
from millrace.local.processes import Child

_HOST: Final = "127.0.0.1"
_READY_TIMEOUT_S: Final = 90.0
_SHOWN_LOG_LINES: Final = 8
#: Master and workers only manage; the work is done in the executors' JVMs.
_DAEMON_JVM: Final = {
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}
#: What Spark itself logs, with ports that the operating system chose.
_MASTER_PORT: Final = re.compile(r"Successfully started service 'sparkMaster' on port (\d+)")
_MASTER_UI_PORT: Final = re.compile(r"Successfully started service 'MasterUI' on port (\d+)")


class ClusterStartFailed(UserError):
    """The cluster did not start; the message has the end of a log, and where that is."""


class StandaloneCluster:
    """A Spark master and its workers, as a context manager; several at once are possible.

    Args:
        workers: Number of workers.
        cores: Cores that each worker offers.
        memory: Memory that each worker offers to executors, as Spark writes it.
        python: The Python that executors run; by default what the driver says (``PYSPARK_PYTHON``).
        env: Environment variables for the workers, and so for the executors, beside this process's own.
        log_dir: Where the logs of master and workers go, which are kept; by default a temporary folder.
        ready_timeout_s: Seconds that it may take until all workers are registered.

    Raises:
        UserError: On entering: no PySpark, no usable Java, or a process that did not start in time.

    Example:
        >>> with StandaloneCluster(workers=2) as cluster:  # doctest: +SKIP
        ...     spark = SparkSession.builder.master(cluster.url).getOrCreate()
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        cores: int = 1,
        memory: str = "1500m",
        python: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        log_dir: Path | None = None,
        ready_timeout_s: float = _READY_TIMEOUT_S,
    ) -> None:
        self._workers = workers
        self._cores = cores
        self._memory = memory
        self._python = python
        self._env = dict(env or {})
        self._log_dir = log_dir
        self._ready_timeout_s = ready_timeout_s
        self._stack = ExitStack()
        self._children: list[Child] = []
        self._root = Path()
        self._deadline = 0.0
        self.url = ""
        self._page = ""

    @property
    def driver_env(self) -> dict[str, str]:
        """Environment variables for a driver on this cluster.

        The driver, and not the worker, tells executors which Python to run.
        """
        python = {"PYSPARK_PYTHON": str(self._python)} if self._python else {}
        return {"SPARK_LOCAL_IP": _HOST, **python}

    @property
    def pids(self) -> list[int]:
        """Process ids of the master and the workers, in this order."""
        return [child.pid for child in self._children]

    def state(self) -> dict[str, Any]:
        """Return what the master's status page says, e.g. ``["aliveworkers"]``, as Spark names it."""
        with urllib.request.urlopen(self._page, timeout=5) as page:  # noqa: S310  our own http address
            answer: dict[str, Any] = json.load(page)
        return answer

    def __enter__(self) -> Self:
        java = check_java(os.environ).path
        self._deadline = time.monotonic() + self._ready_timeout_s
        with ExitStack() as stack:
            # Short, and not below a test's folder: sockets with long paths are refused.
            self._root = Path(tempfile.mkdtemp(prefix="millrace-spark-"))
            stack.callback(shutil.rmtree, self._root, ignore_errors=True)
            stack.callback(self._stop)
            self._start(java)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _start(self, java: Path) -> None:
        home = _spark_home()
        spark_class = str(home / "bin" / "spark-class")
        env = self._environment(home, java)
        ui = ["--webui-port", "0"]
        master = self._child(
            [spark_class, "org.apache.spark.deploy.master.Master", "--host", _HOST, "--port", "0", *ui],
            "master",
            env,
        )
        self.url = f"spark://{_HOST}:{self._port(master, _MASTER_PORT)}"
        self._page = f"http://{_HOST}:{self._port(master, _MASTER_UI_PORT)}/json/"
        offer = ["--cores", str(self._cores), "--memory", self._memory]
        for number in range(1, self._workers + 1):
            place = ["--host", _HOST, *ui, "--work-dir", str(self._root / f"worker-{number}")]
            self._child(
                [spark_class, "org.apache.spark.deploy.worker.Worker", *place, *offer, self.url],
                f"worker-{number}",
                env,
            )
        self._await("registered workers", self._all_alive)

    def _environment(self, home: Path, java: Path) -> dict[str, str]:
        temporary = self._root / "tmp"
        temporary.mkdir()
        python = {"PYSPARK_PYTHON": str(self._python)} if self._python else {}
        return {
            **os.environ,
            "SPARK_HOME": str(home),
            # No spark-env.sh or spark-defaults.conf of this machine.
            "SPARK_CONF_DIR": str(self._root),
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_LOCAL_DIRS": str(temporary),
            "TMPDIR": str(temporary),
            "JAVA_HOME": str(java.resolve().parent.parent),
            **_DAEMON_JVM,
            **python,
            **self._env,
        }

    def _child(self, command: Sequence[str], name: str, env: Mapping[str, str]) -> Child:
        log_file = (self._log_dir or self._root / "logs") / f"{name}.log"
        child = Child(command, log_file=log_file, env=env, cwd=self._root, remove_if_orphaned=[self._root])
        self._children.append(child)
        return child

    def _stop(self) -> None:
        # The workers first: one that loses its master waits for another.
        for child in reversed(self._children):
            child.stop()
        self._children.clear()

    def _port(self, master: Child, line: re.Pattern[str]) -> int:
        found: list[int] = []

        def logged() -> bool:
            found.extend(int(port) for port in line.findall(master.log_file.read_text(errors="replace")))
            return bool(found)

        self._await("the master's port", logged)
        return found[0]

    def _all_alive(self) -> bool:
        try:
            return int(self.state()["aliveworkers"]) == self._workers
        except (urllib.error.URLError, TimeoutError, json.JSONDecodeError):
            return False  # the page is there before the master is, and empty then

    def _await(self, what: str, reached: Callable[[], bool]) -> None:
        while not reached():
            for child in self._children:
                if not child.is_alive():
                    raise ClusterStartFailed(f"Spark's cluster: a process ended: {_end(child.log_file)}")
            if time.monotonic() > self._deadline:
                timeout = f"within {self._ready_timeout_s:g} s"
                raise ClusterStartFailed(
                    f"Spark's cluster: no {what} {timeout}: {_end(self._children[-1].log_file)}"
                )
            time.sleep(0.05)


def _spark_home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise UserError("pyspark is not installed; run: pip install millrace")
    return Path(spec.origin).parent


def _end(log_file: Path) -> str:
    """Return the last lines of a log, and where it is."""
    lines = log_file.read_text(errors="replace").splitlines()
    return "\n".join([f"see {log_file}, which ends with:", *lines[-_SHOWN_LOG_LINES:]])
