"""Benchmarks of the fraud app beside those of every app: start-up, and the memory of its demo."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil

from millrace_apps.benchmarks.app_bench import bench_of
from millrace_apps.benchmarks.app_run import bench_run


def start(bootstrap: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Measure how long it takes until Spark runs, the query runs and the first decisions are there."""
    marks: dict[str, float] = {}

    def first(_batch: int, _counts: dict[str, int]) -> None:
        marks.setdefault("first_result_s", time.monotonic())

    with bench_run(bench_of("fraud"), bootstrap, overrides, until_end=True, on_batch=first) as run:
        run.generate({"rate": "max", "events": 1_000})
        begin = time.monotonic()

        def note() -> None:
            for name, event in (("session_s", run.job.session_ready), ("query_s", run.job.started)):
                event.wait()
                marks[name] = time.monotonic()

        thread = threading.Thread(target=note)
        thread.start()
        run.job.run()
        thread.join()
    return {name: round(at - begin, 2) for name, at in sorted(marks.items(), key=lambda m: m[1])}


def memory(duration_s: int) -> dict[str, Any]:
    """Measure the peak memory of all processes of `millrace demo fraud` together.

    Shared pages are counted once (proportional set size) where the system tells, else resident size.
    """
    command = [sys.executable, "-m", "millrace", "demo", "fraud", "--duration", f"{duration_s}s"]
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        peak, parts = 0, {}
        while child.poll() is None:
            now = _memory_of(psutil.Process(child.pid))
            if sum(now.values()) > peak:
                peak, parts = sum(now.values()), now
            time.sleep(0.5)
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    first = next((line.split()[2] for line in lines if line.startswith("first alert")), None)
    return {
        "exit_code": child.returncode,
        "peak_mb": peak / 2**20,
        "first_alert_s": None if first is None else float(first),
        **{f"at_peak_{name}_mb": size / 2**20 for name, size in sorted(parts.items())},
    }


def _memory_of(root: psutil.Process) -> dict[str, int]:
    sizes: dict[str, int] = {}
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return sizes
    for process in processes:
        try:
            name = "jvm" if process.name().startswith("java") else "python"
            full = process.memory_full_info()
            sizes[name] = sizes.get(name, 0) + int(getattr(full, "pss", full.rss))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return sizes
