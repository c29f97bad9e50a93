"""`millrace bench serve-beside`: what a server of state takes from the job that it stands beside.

One job reads payments at a steady rate all the while. The server is asked in every second window and is
halted (``SIGSTOP``) in the others, so that a pair's two windows lie next to each other on one machine, in one
JVM. Pairs alternate, A/B, B/A: what goes up or down all the time favours neither side.
"""

from __future__ import annotations

import math
import os
import random
import signal
import statistics
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import psutil

from millrace.runtime.monitor import QueryMonitor
from millrace_apps.benchmarks.app_bench import bench_of
from millrace_apps.benchmarks.app_run import bench_run, run_beside
from millrace_apps.benchmarks.compare import order
from millrace_apps.benchmarks.cpu import cpu_by_part
from millrace_apps.benchmarks.serving import TOKEN, asked, await_that, server_beside
from millrace_apps.benchmarks.serving_load import Load
from millrace_apps.benchmarks.streams import BenchmarkFailed

_PROCESS: Final = "CardMonitor"
#: So many payments say which cards are asked for.
_SAMPLE: Final = 2_000
#: Share of the medians of whatever is measured that lies within the interval that is told.
_CONFIDENCE: Final = 0.95


@dataclass(frozen=True)
class Sizes:
    """What is compared.

    Attributes:
        pairs: Pairs of windows.
        window_s: Length of a window, seconds.
        settle_s: Seconds between two windows that count for neither.
        rate: Requests a second while the server is asked.
        beside: Payments a second that the job reads.
        warm_batches: Batches of the job before the first window.
    """

    pairs: int = 20
    window_s: float = 3.0
    settle_s: float = 1.2
    rate: int = 20
    beside: int = 200
    warm_batches: int = 80


QUICK: Final = Sizes(pairs=2, window_s=3.0, settle_s=1.0, beside=50, warm_batches=5)


class Window(NamedTuple):
    """What the job did in a window.

    Attributes:
        batch_ms: How long its batches took on average, ms.
        cpu_ms: CPU time of the job (driver, JVM, Python workers) for each batch, ms.
        batches: How many ended.
        rows: What they read.
    """

    batch_ms: float
    cpu_ms: float
    batches: int
    rows: int


def serve_beside(sizes: Sizes, bootstrap: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Measure a job's batches with a server beside it and without, by turns.

    Args:
        sizes: What is compared.
        bootstrap: A broker, or ``None`` for an embedded one.
        overrides: Settings of the app.

    Returns:
        ``slowdown`` and ``cpu`` (see :func:`slowdown`), the pairs, statuses of the answers, and what the
        server itself took.

    Raises:
        BenchmarkFailed: A window is too short for a batch.
    """
    monitor, found = QueryMonitor(), dict[str, Any]()
    with bench_run(bench_of("fraud"), bootstrap, overrides, monitor=monitor) as run:

        def act(ended: threading.Event) -> None:
            await_that(run.job.started.is_set, ended, "the job has begun")
            with run.generating({"rate": sizes.beside, "timestamps": "append"}, run.bench.live):
                await_that(lambda: monitor.snapshot().batches >= sizes.warm_batches, ended, "the job is warm")
                sample = islice(run.sent("transactions"), _SAMPLE)
                cards = list(dict.fromkeys(payment["card_id"] for payment in sample))
                told_to = [part for one in overrides for part in ("-s", one)]
                with server_beside(run, ("serve", "fraud", *told_to)) as (address, server):
                    found.update(_pairs(sizes, monitor, address, server, cards))

        run_beside(run, act)
    found["load_average"] = round(os.getloadavg()[0], 1)
    found["correct"] = set(found["statuses"]) == {"200"}
    return found


def _pairs(
    sizes: Sizes, monitor: QueryMonitor, address: str, server: subprocess.Popen[bytes], cards: Sequence[str]
) -> dict[str, Any]:
    statuses: Counter[int] = Counter()
    pairs: list[tuple[Window, Window]] = []
    own_cpu_s = asked_s = 0.0
    chance = random.Random(7)
    for sides in order(sizes.pairs):
        windows: dict[int, Window] = {}
        for side in sides:
            if side == 0:
                server.send_signal(signal.SIGSTOP)
                time.sleep(sizes.settle_s)
                windows[side] = _window(sizes.window_s, monitor)
                server.send_signal(signal.SIGCONT)
                continue
            took_s = sizes.settle_s + sizes.window_s
            keys = [quote(chance.choice(cards), safe="") for _ in range(int(sizes.rate * took_s))]
            load = Load(address, TOKEN, f"/v1/state/{_PROCESS}/", sizes.rate, keys, method="GET")
            own, began = _cpu_s(server.pid), time.monotonic()
            told: list[Any] = []
            asks = threading.Thread(target=lambda load=load, told=told: told.append(asked(load)))
            asks.start()
            time.sleep(sizes.settle_s)
            windows[side] = _window(sizes.window_s, monitor)
            asks.join()
            if not told:
                raise BenchmarkFailed("the server could not be asked")
            own_cpu_s += _cpu_s(server.pid) - own
            asked_s += time.monotonic() - began
            statuses.update(told[0].statuses)
        pairs.append((windows[0], windows[1]))
    return {
        "slowdown": slowdown([(without.batch_ms, beside.batch_ms) for without, beside in pairs]),
        "cpu": slowdown([(without.cpu_ms, beside.cpu_ms) for without, beside in pairs]),
        "server_cores": round(own_cpu_s / asked_s, 3),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "pairs": [{"without": w._asdict(), "beside": b._asdict()} for w, b in pairs],
    }


def _window(length_s: float, monitor: QueryMonitor) -> Window:
    """Let a window pass, and return what the job did in it."""
    before, cpu = monitor.snapshot(), _job_cpu_s()
    time.sleep(length_s)
    after, used = monitor.snapshot(), _job_cpu_s() - cpu
    batches = after.batches - before.batches
    if not batches:
        raise BenchmarkFailed(f"no batch ended within {length_s:g} s: take longer windows")
    took_ms = after.durations_sum_ms - before.durations_sum_ms
    return Window(
        round(took_ms / batches, 1),
        round(1e3 * used / batches, 1),
        batches,
        after.input_rows - before.input_rows,
    )


def _job_cpu_s() -> float:
    """Return the CPU time of driver and JVM so far, s; Python workers are left out, as the server is one."""
    used = cpu_by_part()
    return used["driver"] + used["spark"]


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def slowdown(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return how much longer the second of each pair takes: median, and an interval that needs no law.

    The interval is of order statistics: so many of the smallest and largest are left out that by the sign
    test the true median lies outside with 5 % at most.

    Args:
        pairs: Without, and with.

    Returns:
        ``median``, ``low``, ``high`` as shares, ``confidence`` of the interval, and ``pairs``; ``low`` and
        ``high`` are ``None`` where there are too few.

    >>> slowdown([(100.0, 100.0 + n) for n in range(12)])
    {'median': 0.055, 'low': 0.02, 'high': 0.09, 'confidence': 0.961, 'pairs': 12}
    >>> slowdown([(100.0, 103.0)])
    {'median': 0.03, 'low': None, 'high': None, 'confidence': 0.0, 'pairs': 1}
    """
    shares = sorted(beside / without - 1 for without, beside in pairs)
    count, left_out = len(shares), -1
    while 1 - 2 * _below(left_out + 1, count) >= _CONFIDENCE and 2 * (left_out + 1) < count - 1:
        left_out += 1
    told = left_out >= 0
    return {
        "median": round(statistics.median(shares), 4),
        "low": round(shares[left_out], 4) if told else None,
        "high": round(shares[-1 - left_out], 4) if told else None,
        "confidence": round(1 - 2 * _below(left_out, count), 3) if told else 0.0,
        "pairs": count,
    }


def _below(most: int, count: int) -> float:
    """Return the chance that of so many fair throws at most so many are heads."""
    return sum(math.comb(count, heads) for heads in range(most + 1)) / 2.0**count


def configuration(sizes: Sizes, overrides: Sequence[str]) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {**asdict(sizes), "settings": list(overrides)}
