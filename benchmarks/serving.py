"""`millrace bench serve`: decisions over HTTP beside the running job, and beside those of the stream."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from millrace_apps.benchmarks.app_bench import Record, bench_of
from millrace_apps.benchmarks.app_run import BenchRun, bench_run, run_beside
from millrace_apps.benchmarks.serving_load import Load, Told
from millrace_apps.benchmarks.streams import BenchmarkFailed

TOKEN: Final = "for-this-run-alone"  # noqa: S105 - of a server that lives as long as the run
_LIMIT_S: Final = 600.0
#: Until the stream has decided on what was asked last.
_SETTLE_S: Final = 15.0
_POLL_S: Final = 0.5
_SAMPLE: Final = 20_000


@dataclass(frozen=True)
class Sizes:
    """What is asked, and beside what.

    Attributes:
        rate: Requests a second.
        duration_s: Seconds measured.
        warm_up_s: Seconds asked before that, not counted.
        beside: Payments a second that the generator sends to the job.
        warm_batches: Batches of the job before anything is asked.
        safe_in: What an answer waits for: ``outbox`` or ``broker``.
    """

    rate: int = 100
    duration_s: int = 60
    warm_up_s: int = 10
    beside: int = 200
    warm_batches: int = 40
    safe_in: str = "outbox"


QUICK = Sizes(rate=50, duration_s=8, warm_up_s=3, beside=50, warm_batches=5)


def serve(sizes: Sizes, bootstrap: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Measure answers from when they are due, and compare them with what the stream decided.

    Args:
        sizes: What is asked, and beside what.
        bootstrap: A broker, or ``None`` for an embedded one.
        overrides: Settings of the app.
    """
    batches = 0
    found: dict[str, Any] = {}

    def note(batch: int, _counts: dict[str, int]) -> None:
        nonlocal batches
        batches = batch

    with bench_run(bench_of("fraud"), bootstrap, overrides, on_batch=note) as run:

        def act(ended: threading.Event) -> None:
            await_that(run.job.started.is_set, ended, "the job has begun")
            with run.generating({"rate": sizes.beside, "timestamps": "append"}, run.bench.live):
                await_that(lambda: batches >= sizes.warm_batches, ended, "the job is warm")
                sample = list(islice(run.sent("transactions"), _SAMPLE))
                sets = (f"kafka.bootstrap={run.broker}", f"topics.transactions={run.topic('transactions')}")
                told_to = ("--safe-in", sizes.safe_in, *(part for one in sets for part in ("-s", one)))
                with server_beside(run, ("fraud", "serve", *told_to)) as (address, _):
                    begin = time.monotonic()
                    told = _asked(address, sample, sizes)
                    found.update(figures(told), batches_beside=batches)
                    found["seconds"] = round(time.monotonic() - begin, 1)
                    found["load_average"] = round(os.getloadavg()[0], 1)
                    time.sleep(_SETTLE_S)
            time.sleep(_SETTLE_S)

        run_beside(run, act)
        found["differences"] = _compared(run)
    decided = found["differences"]["decided"]
    found["correct"] = set(found["statuses"]) == {"200"} and decided == found["differences"]["answered"] > 0
    return found


def await_that(condition: Any, ended: threading.Event, what: str) -> None:
    """Wait until something holds, but not for ever and not beyond the end of the run."""
    deadline = time.monotonic() + _LIMIT_S
    while not condition():
        if ended.wait(_POLL_S) or time.monotonic() > deadline:
            raise BenchmarkFailed(f"not until {what}")


@contextmanager
def server_beside(run: BenchRun, command: Sequence[str]) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a server beside the job, and give its address and its process.

    Args:
        run: The job.
        command: That of the server, without what every server is told.
    """
    token, log = run.folder / "token", run.folder / "serve.log"
    token.write_text(TOKEN)
    token.chmod(0o600)
    every = ["--root", str(run.root), "--port", "0", "--token-file", str(token), "--rate-limit", "0"]
    with log.open("w+") as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "millrace", *command, *every], stdout=said, stderr=subprocess.STDOUT
        )
        try:
            deadline = time.monotonic() + 60
            while "serving at " not in (text := log.read_text()):
                if child.poll() is not None or time.monotonic() > deadline:
                    raise BenchmarkFailed(f"the server does not begin: {text.strip()}")
                time.sleep(0.1)
            yield text.partition("serving at ")[2].split()[0], child
            child.terminate()
            child.wait(20)
        finally:
            child.kill()
            child.wait()


def _asked(address: str, sample: Sequence[Record], sizes: Sizes) -> Told:
    """Ask for payments like those that were sent, each as if it happened when it is due."""
    chance = random.Random(7)
    begin_ms = time.time_ns() // 1_000_000 + 1_500
    count = sizes.rate * (sizes.warm_up_s + sizes.duration_s)
    bodies = []
    for number in range(count):
        payment = dict(chance.choice(sample))
        payment["transaction_id"] = f"asked-{number}"
        payment["event_time_ms"] = begin_ms + number * 1_000 // sizes.rate
        bodies.append(msgspec.json.encode(payment).decode())
    return asked(Load(address, TOKEN, "/v1/decide", sizes.rate, bodies, sizes.rate * sizes.warm_up_s))


def asked(load: Load) -> Told:
    """Put a load on a server, from a process of its own."""
    command = [sys.executable, "-m", "millrace_apps.benchmarks.serving_load"]
    done = subprocess.run(command, input=msgspec.json.encode(load), capture_output=True, check=False)
    if done.returncode != 0:
        raise BenchmarkFailed(f"nothing could be asked: {done.stderr.decode()[-500:]}")
    return msgspec.json.decode(done.stdout, type=Told)


def figures(told: Told) -> dict[str, Any]:
    """Return what is told of answers: how many, with which statuses, after how long (ms)."""
    import numpy as np

    p50, p99, p999, top = np.percentile(told.latencies_ms, [50, 99, 99.9, 100]).round(1).tolist()
    return {
        "requests": len(told.latencies_ms),
        "statuses": {str(status): count for status, count in sorted(told.statuses.items())},
        "answer_ms": {"p50": p50, "p99": p99, "p99.9": p999, "max": top},
    }


def _compared(run: BenchRun) -> dict[str, Any]:
    out = run.folder / "compared.json"
    command = [sys.executable, "-m", "millrace", "fraud", "served", "compare", "--root", str(run.root)]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkFailed(f"answers cannot be compared: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(Path(out).read_text())
    return found


def configuration(sizes: Sizes, overrides: Sequence[str]) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {**asdict(sizes), "settings": list(overrides)}
