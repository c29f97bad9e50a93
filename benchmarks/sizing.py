"""`millrace bench sizing`: what a batch, a row, a page and a second cost, each run held to all others.

Each run is W1, a running score per card, in a process of its own (``benchmarks/drivers/small_batches.py``).
CPU time counts, of driver, JVM and Python workers: it hardly hangs on what else the machine does.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from millrace.errors import UserError
from millrace.operations.report import write
from millrace.sizing.model import Point, Workload, errors, fit, left_out
from millrace_apps.benchmarks.batches import BatchesFailed

_DRIVER: Final = Path(__file__).resolve().parent / "drivers" / "small_batches.py"
#: State of a card of W1 as it is stored, bytes; and the law of how often cards come.
ENTRY_BYTES: Final = 60.0
ZIPF: Final = 1.1


class Run(NamedTuple):
    """What is run.

    Attributes:
        rows: Events of a batch.
        cards: Cards.
        every_s: A batch begins so often, seconds; 0: as soon as the one before is done.
    """

    rows: int
    cards: int
    every_s: float = 0.0


#: Some at the ends, others between and beside; those that are paced tell what a second costs. The last four
#: were added when the costs of the others had been told, to hold these against points without a part in them.
RUNS: Final = (
    Run(500, 2_000),
    Run(1_000, 100_000),
    Run(4_000, 20_000),
    Run(8_000, 2_000),
    Run(8_000, 100_000),
    Run(2_000, 20_000),
    Run(4_000, 100_000),
    Run(6_000, 5_000),
    Run(500, 2_000, 4.0),
    Run(2_000, 20_000, 3.0),
    Run(6_000, 5_000, 5.0),
    Run(3_000, 50_000),
    Run(8_000, 20_000),
    Run(1_000, 5_000, 2.0),
    Run(6_000, 100_000),
)


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        warm: Batches before those that count.
        batches: Batches that count.
        runs: The runs.
        repeats: How often each is run: what counts is the one in the middle.
    """

    warm: int = 40
    batches: int = 40
    runs: Sequence[Run] = RUNS
    repeats: int = 1


QUICK: Final = Sizes(
    2, 3, (Run(200, 100), Run(400, 100), Run(400, 1_000), Run(300, 500, 1.0), Run(300, 500, 2.0))
)


def sizing(sizes: Sizes, points: Path | None = None) -> dict[str, Any]:
    """Measure, fit, and say how far the model is off.

    Args:
        sizes: How much is run.
        points: File of what was measured: a run is added when it has ended, and those that are there with
            the same sizes are not run again; so an hour of runs can be done in pieces.

    Returns:
        What :func:`fitted` does.

    Raises:
        BatchesFailed: A run did not end.
    """
    kept = _kept(points, sizes)
    for run in sizes.runs:
        if run not in kept:
            kept[run] = in_the_middle([measured(run, sizes) for _ in range(sizes.repeats)])
            if points is not None:
                _keep(points, sizes, kept)
    return fitted(sizes.runs, [kept[run] for run in sizes.runs])


def in_the_middle(points: Sequence[Point]) -> Point:
    """Return the point whose CPU time is in the middle; of an even number the lower one.

    How far a fit is off at points that were left out of it is decided by how exact the points are, not by
    how it is made (docs/sizing.md), so a run that something got in the way of must not count.
    """
    return sorted(points, key=lambda point: point.cpu_ms)[(len(points) - 1) // 2]


def _kept(file: Path | None, sizes: Sizes) -> dict[Run, Point]:
    """Return what a file has of runs of these sizes."""
    if file is None or not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        warm, batches, repeats = found["warm"], found["batches"], found.get("repeats", 1)
        points = {Run(**one["run"]): Point(**one["point"]) for one in found["points"]}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{file} has no points of this benchmark: {type(error).__name__} {error}") from None
    if (warm, batches, repeats) != (sizes.warm, sizes.batches, sizes.repeats):
        raise UserError(
            f"{file} has points of other sizes: --warm {warm} --batches {batches} --repeats {repeats}"
        )
    return points


def _keep(file: Path, sizes: Sizes, kept: Mapping[Run, Point]) -> None:
    points = [{"run": run._asdict(), "point": asdict(point)} for run, point in kept.items()]
    about = {"warm": sizes.warm, "batches": sizes.batches, "repeats": sizes.repeats}
    write(file, {**about, "points": points})


def fitted(runs: Sequence[Run], points: Sequence[Point]) -> dict[str, Any]:
    """Fit the costs on points, and say how far the model is off.

    Returns:
        ``costs``; of each of the ``points`` what was measured, the ``error`` of these costs, and that of
        costs which were fitted on all others (``left_out``); ``worst_left_out``.
    """
    costs, alone = fit(points), left_out(points)
    return {
        "costs": asdict(costs),
        "points": [
            {
                **run._asdict(),
                "pages": round(p.pages, 1),
                "seconds": p.seconds,
                "cpu_ms": p.cpu_ms,
                "error": round(e, 3),
                "left_out": round(a, 3),
            }
            for run, p, e, a in zip(runs, points, errors(costs, points), alone, strict=True)
        ],
        "worst_left_out": round(max(map(abs, alone)), 3),
    }


def measured(run: Run, sizes: Sizes) -> Point:
    """Run batches; return what one takes.

    Raises:
        BatchesFailed: The run did not end.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-sizing-") as folder:
        out = Path(folder) / "report.json"
        command = [sys.executable, str(_DRIVER), "--job", "w1", "--rows", str(run.rows)]
        command += ["--entities", str(run.cards), "--warm-batches", str(sizes.warm)]
        command += ["--batches", str(sizes.batches), "--out", str(out)]
        if run.every_s:
            command += ["--set", f"stream.trigger_interval={run.every_s:g}s"]
        if subprocess.run(command, check=False).returncode != 0:
            raise BatchesFailed(f"{run.rows} events over {run.cards} cards did not run")
        found = json.loads(out.read_text())
    by = found["cpu_ms_per_batch_by"]
    # The broker is another's machine.
    cpu_ms = sum(ms for name, ms in by.items() if name != "broker")
    read, seconds = float(found["rows_per_batch"]), statistics.mean(found["batch_seconds"])
    pages = touched(read, run.cards, run.rows * (sizes.warm + sizes.batches))
    return Point(read, pages, round(cpu_ms, 1), round(seconds, 3))


def touched(rows: float, cards: int, seen: int) -> float:
    """Return how many pages a batch touches, by the model; state is of the cards that have been seen.

    Args:
        rows: Events of a batch.
        cards: Cards that there are.
        seen: Events so far.
    """
    from millrace.sizing.model import distinct

    known = distinct(seen, cards, ZIPF)
    load = Workload(rows, max(known, 1.0), ENTRY_BYTES, zipf=0.0)
    keys = distinct(rows, cards, ZIPF)
    return distinct(keys, load.pages, 0.0)
