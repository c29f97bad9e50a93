"""Spark's own metrics, as Prometheus asks for them."""

from __future__ import annotations

import socket
import subprocess
import sys

_SCRIPT = """
import sys, urllib.request
from millrace.runtime.session import spark_metrics, spark_session
port = int(sys.argv[1])
with spark_session("m", master="local[1]", quick_start=True, conf=spark_metrics("127.0.0.1", port)) as spark:
    spark.range(10).count()
    for path in ("prometheus", "executors/prometheus"):
        print(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics/{path}", timeout=30).read().decode())
"""


def test_spark_tells_of_its_memory_and_tasks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", _SCRIPT, str(port)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    assert "metrics_millrace_driver_BlockManager" in said
    (tasks,) = (
        line for line in said.splitlines() if line.startswith("metrics_executor_completedTasks_total")
    )
    assert int(float(tasks.rsplit(" ", 1)[1])) >= 1
