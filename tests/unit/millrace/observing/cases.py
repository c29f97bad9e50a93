"""Figures of a job as tests need them."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil

from millrace.observing.figures import Figures, ModelFigures, SourceFigures, StateFigures, WaitingFigures
from millrace.observing.jobs import JobRecord, this_process

NOW = 1_800_000_000_000


def record(root: Path | str = "/data/fraud", **more: Any) -> JobRecord:
    pid, started = this_process()
    own: dict[str, Any] = {
        "app": "fraud", "root": str(root), "pid": pid, "process_started": started, "began_ms": NOW - 60_000,
        "host": socket.gethostname(),
    }  # fmt: skip
    return JobRecord(**own | more)


def figures(root: Path | str = "/data/fraud", **more: Any) -> Figures:
    """Return figures in which everything is known."""
    made = Figures(
        record(root),
        NOW,
        phase="running",
        plan="station",
        batch=6,
        batches=7,
        rows=1_000,
        input_rate=100.0,
        processed_rate=250.0,
        last_batch_ms=NOW - 1_500,
        alive_ms=NOW - 500,
        batch_ms=400,
        batch_ms_p50=350,
        batch_ms_p95=900,
        phases_ms={"addBatch": 300, "queryPlanning": 50},
        phases_total_ms={"addBatch": 2_100, "queryPlanning": 400},
        durations={"0.5": 5, "1": 7, "+Inf": 7},
        durations_sum_ms=2_800,
        watermark_ms=NOW - 9_000,
        newest_ms=NOW - 2_000,
        held_by="in:1",
        sources={"in:0": SourceFigures(600, 600, NOW - 2_000), "in:1": SourceFigures(400, 450, NOW - 5_000)},
        outputs={"alerts": 3, "main": 990, "late": 4, "Cards.late": 1, "dead_letters": 6},
        late=5,
        dead_letters={"malformed": 4, "future": 2},
        state_memory_bytes=5_000,
        state_files_bytes=9_000,
        state={"Cards": StateFigures(6, NOW - 3_000, 20, 4_000, 8, 12, 2, 700, "card-7", 8, 1.5)},
        models={"risk/champion": ModelFigures("3", NOW - 86_400_000, NOW - 3_600_000)},
        waiting={"alarms": WaitingFigures(3, NOW - 2_500)},
        observing_cpu_s=0.2,
        process_cpu_s=40.0,
    )
    return msgspec.structs.replace(made, **more)


@contextmanager
def another_process() -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """Give a process that waits, and when it started."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        yield process, psutil.Process(process.pid).create_time()
    finally:
        process.kill()
        process.wait()
