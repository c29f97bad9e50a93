"""`millrace bench sizing`: what a batch, a row and a page cost, fitted on some runs and held to others.

Each run is W1, a running score per card, in a process of its own (``benchmarks/drivers/small_batches.py``).
CPU time counts, of driver, JVM and Python workers: it hardly hangs on what else the machine does.
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

from millrace.sizing.model import Point, Workload, errors, fit
from millrace_apps.benchmarks.batches import BatchesFailed

_DRIVER: Final = Path(__file__).resolve().parent / "drivers" / "small_batches.py"
#: Events of a batch and cards, fitted on; those at the ends, so that the others lie between or beside.
FITTED: Final = ((500, 2_000), (1_000, 100_000), (4_000, 20_000), (8_000, 2_000), (8_000, 100_000))
#: Left out of the fit.
LEFT_OUT: Final = ((2_000, 20_000), (4_000, 100_000), (6_000, 5_000))
#: State of a card of W1 as it is stored, bytes; and the law of how often cards come.
ENTRY_BYTES: Final = 60.0
ZIPF: Final = 1.1


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        warm: Batches before those that count.
        batches: Batches that count.
        fitted: Events of a batch and cards of the runs that are fitted on.
        left_out: The same of those that are not.
    """

    warm: int = 40
    batches: int = 40
    fitted: Sequence[tuple[int, int]] = FITTED
    left_out: Sequence[tuple[int, int]] = LEFT_OUT


QUICK: Final = Sizes(2, 3, ((200, 100), (400, 100), (400, 1_000)), ((300, 500),))


def sizing(sizes: Sizes) -> dict[str, Any]:
    """Measure, fit, and say how far the model is off.

    Args:
        sizes: How much is run.

    Returns:
        ``costs``, and of the points that were fitted on and left out what was measured and the error.

    Raises:
        BatchesFailed: A run did not end.
    """
    fitted = [measured(rows, cards, sizes) for rows, cards in sizes.fitted]
    left_out = [measured(rows, cards, sizes) for rows, cards in sizes.left_out]
    costs = fit(fitted)
    return {
        "costs": asdict(costs),
        "fitted": told(sizes.fitted, fitted, errors(costs, fitted)),
        "left_out": told(sizes.left_out, left_out, errors(costs, left_out)),
        "worst_left_out": max(abs(e) for e in errors(costs, left_out)),
    }


def told(runs: Sequence[tuple[int, int]], points: Sequence[Point], off: Sequence[float]) -> list[Any]:
    """Return points as they are reported."""
    return [
        {"rows": rows, "cards": cards, "pages": round(p.pages, 1), "cpu_ms": p.cpu_ms, "error": round(e, 3)}
        for (rows, cards), p, e in zip(runs, points, off, strict=True)
    ]


def measured(rows: int, cards: int, sizes: Sizes) -> Point:
    """Run batches of so many events over so many cards; return what one takes.

    Raises:
        BatchesFailed: The run did not end.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-sizing-") as folder:
        out = Path(folder) / "report.json"
        command = [sys.executable, str(_DRIVER), "--job", "w1", "--rows", str(rows)]
        command += ["--entities", str(cards), "--warm-batches", str(sizes.warm)]
        command += ["--batches", str(sizes.batches), "--out", str(out)]
        if subprocess.run(command, check=False).returncode != 0:
            raise BatchesFailed(f"{rows} events over {cards} cards did not run")
        found = json.loads(out.read_text())
    by = found["cpu_ms_per_batch_by"]
    # The broker is another's machine.
    cpu_ms = sum(ms for name, ms in by.items() if name != "broker")
    read = float(found["rows_per_batch"])
    return Point(read, touched(read, cards, rows * (sizes.warm + sizes.batches)), round(cpu_ms, 1))


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
