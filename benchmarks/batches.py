"""Small batches: how long one of an app takes beside one of Spark's own aggregation, in one run.

Each job runs in a process of its own (``benchmarks/drivers/small_batches.py``), all of its batches full; the
native one first and again at the end, so that a machine that changes its speed shows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from millrace.errors import MillraceError
from millrace.runtime.apps import load_app
from millrace.runtime.settings import load_settings

JOBS: Final = ("w1", "fraud", "clickstream", "iot", "ridesharing")
_DRIVER: Final = Path(__file__).resolve().parent / "drivers" / "small_batches.py"


class BatchesFailed(MillraceError):
    """A job did not run its batches."""


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        rows: Events of a batch.
        warm: Batches before those that count.
        batches: Batches that count.
        empty: Batches of one control row that count.
    """

    rows: int = 1_000
    warm: int = 250
    batches: int = 250
    empty: int = 40


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what is run, for the report."""
    return {**asdict(sizes), "native": "Spark's groupBy over W1's events, JSON in and out, update mode"}


def batch(jobs: Sequence[str], sizes: Sizes, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Measure the batches of some jobs and of Spark's own aggregation.

    Args:
        jobs: Of :data:`JOBS`.
        sizes: How much is run.
        settings: Settings of the apps, ``name=value``.

    Returns:
        ``native_ms``, ``jobs`` (what the driver says of each), and ``ratios`` to the native batch: by job,
        ``empty_`` and the job for a batch of one control row.

    Raises:
        BatchesFailed: A job did not run.
        UserError: An app has no such settings.
    """
    if unknown := [job for job in jobs if job not in JOBS]:
        raise BatchesFailed(f"{', '.join(unknown)} is no job: choose of {', '.join(JOBS)}")
    for app in [job for job in jobs if job in JOBS[1:]]:  # a mistake is told before anything is measured
        load_settings(load_app(app).settings, app=app, overrides=settings)
    native = [_run("native", sizes, ())]
    found = {job: _run(job, sizes, settings) for job in jobs}
    native.append(_run("native", sizes, ()))
    native_ms = sum(float(one["batch_ms"]["median"]) for one in native) / len(native)
    return {
        "native_ms": round(native_ms, 1),
        "native_ms_before": native[0]["batch_ms"]["median"],
        "native_ms_after": native[1]["batch_ms"]["median"],
        "ratios": ratios(found, native_ms),
        "jobs": found,
    }


def ratios(found: dict[str, dict[str, Any]], native_ms: float) -> dict[str, float]:
    """Return how many native batches one of each job takes.

    >>> ratios({"iot": {"batch_ms": {"median": 300.0}, "empty_ms": 90.0}}, 100.0)
    {'iot': 3.0, 'empty_iot': 0.9}
    """
    made = {job: round(one["batch_ms"]["median"] / native_ms, 2) for job, one in found.items()}
    empty = {f"empty_{job}": one["empty_ms"] for job, one in found.items() if "empty_ms" in one}
    return {**made, **{name: round(ms / native_ms, 2) for name, ms in empty.items()}}


def _run(job: str, sizes: Sizes, settings: Sequence[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="millrace-batches-") as folder:
        out = Path(folder) / "report.json"
        command = [sys.executable, str(_DRIVER), "--job", job, "--rows", str(sizes.rows)]
        command += ["--warm-batches", str(sizes.warm), "--batches", str(sizes.batches), "--out", str(out)]
        if job in JOBS[1:]:
            command += ["--empty", str(sizes.empty)]
        if job != "native":
            command += [part for setting in settings for part in ("--set", setting)]
        done = subprocess.run(command, check=False)
        if done.returncode != 0:
            raise BatchesFailed(f"{job} did not run its batches (exit code {done.returncode})")
        found: dict[str, Any] = json.loads(out.read_text())
    kept = ("batch_ms", "cpu_ms_per_batch", "cpu_ms_per_batch_by", "rows_per_batch", "empty_ms", "machine",
            "late", "dead_letters", "batches", "warm_batches")  # fmt: skip
    return {name: found[name] for name in kept if name in found}
