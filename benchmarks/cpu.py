"""CPU time of a benchmark and of all that it has started, also of what has ended meanwhile."""

from __future__ import annotations

import threading
import time
from typing import Final

import psutil

PARTS: Final = ("driver", "spark", "workers", "broker")
#: Between two looks at the processes, s: so much of one that ends may be missed.
_LOOK_S: Final = 0.25


class CpuMeter:
    """Looks at this process and its descendants, and remembers what each has used.

    Spark's workers come and go, and where their parent is ended first nobody counts them: a sum over the
    living would go back.

    Example:
        >>> meter = CpuMeter()
        >>> before = meter.sample()
        >>> _ = sum(range(1_000_000))
        >>> meter.sample()["driver"] >= before["driver"]
        True
    """

    def __init__(self) -> None:
        self._used: dict[tuple[int, float], tuple[str, float]] = {}
        self._lock = threading.Lock()

    def sample(self) -> dict[str, float]:
        """Return the CPU time so far by part, s."""
        with self._lock:
            me = psutil.Process()
            for process in [me, *me.children(recursive=True)]:
                try:
                    times, same = process.cpu_times(), (process.pid, process.create_time())
                    # Anew at every look: a JVM begins as a copy of what starts it.
                    self._used[same] = part_of(process, me.pid), times.user + times.system
                except psutil.NoSuchProcess:
                    continue
            parts = dict.fromkeys(PARTS, 0.0)
            for part, used in self._used.values():
                parts[part] += used
            return parts

    def watch(self) -> None:
        """Look again and again, for as long as the process lives."""
        while True:
            self.sample()
            time.sleep(_LOOK_S)


def part_of(process: psutil.Process, driver: int) -> str:
    """Return which part of a benchmark a process is.

    Args:
        process: The process.
        driver: The benchmark's own process id.

    Raises:
        psutil.NoSuchProcess: It has ended.
    """
    if process.pid == driver:
        return "driver"
    if "java" in process.name():
        return "broker" if "kafka.Kafka" in process.cmdline() else "spark"
    return "workers"


_meter: Final = CpuMeter()
_watching: Final = threading.Event()


def cpu_by_part() -> dict[str, float]:
    """Return the CPU time so far of this process and all it has started, by part, s; it never goes back."""
    if not _watching.is_set():
        _watching.set()
        threading.Thread(target=_meter.watch, name="millrace-cpu", daemon=True).start()
    return _meter.sample()


def cpu_seconds() -> float:
    """Return the same as one number, a broker left out."""
    return sum(used for part, used in cpu_by_part().items() if part != "broker")
