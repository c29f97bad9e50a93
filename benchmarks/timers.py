"""`millrace bench timers`: a million pending timers, and batches in which ten thousand of them are due."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from millrace import Context, KeyedProcess, Timer, arrival, days, hours, keyed, value_state
from millrace.errors import UserError
from millrace_apps.benchmarks.case import bench_session, streaming_settings
from millrace_apps.benchmarks.digest import Digest, digest
from millrace_apps.benchmarks.inputs import START_MS, Ints, write_files
from millrace_apps.benchmarks.streams import BenchmarkFailed, Run, read_batches, run_query

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

#: Between two batches with due timers, by event time.
_STEP_MS = hours(1)
_FAR_MS = days(30)


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        pending: Timers, each of a key of its own.
        due: How many of them are due in one batch.
        rounds: Batches in which so many are due, one after the other; figures are of the last ones.
        fill_batches: Batches that set the timers.
    """

    pending: int = 1_000_000
    due: int = 10_000
    rounds: int = 6
    fill_batches: int = 5

    def __post_init__(self) -> None:
        if self.due * self.rounds > self.pending:
            raise UserError(
                f"{self.rounds} rounds of {self.due:,} timers need --pending {self.due * self.rounds}"
            )


QUICK = Sizes(pending=20_000, due=1_000, rounds=3, fill_batches=2)


class Reminder(msgspec.Struct, gc=False):
    """An event: remind ``key`` at ``due`` (ms)."""

    id: int
    key: str
    at: int
    due: int


class Reminded(msgspec.Struct, gc=False):
    """A timer that fired: whose event it was, and when it was due, ms."""

    id: int
    due: int


class Reminders(KeyedProcess[Reminder, Reminded]):
    """One timer per key."""

    order = arrival(commutes=True)
    about = value_state(int, default=-1)

    def process(self, event: Reminder, ctx: Context) -> None:
        """Set the timer."""
        self.about.value = event.id
        ctx.timers.at(event.due, "due")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Remind, and forget."""
        ctx.emit(Reminded(self.about.value, timer.at))
        self.about.clear()


def due_times(sizes: Sizes) -> Ints:
    """Return when each timer is due, ms: some in each round, spread over all keys, the others far later."""
    due = np.full(sizes.pending, START_MS + _FAR_MS, dtype=np.int64)
    chosen = np.random.default_rng(4).permutation(sizes.pending)
    for number in range(sizes.rounds):
        of_round = chosen[number * sizes.due : (number + 1) * sizes.due]
        due[of_round] = START_MS + (number + 1) * _STEP_MS
    return due


def expected(due: Ints) -> Digest:
    """Return the digest of all that must fire."""
    ids = np.flatnonzero(due < START_MS + _FAR_MS)
    return digest(ids, due[ids])


def timers(sizes: Sizes) -> dict[str, Any]:
    """Measure how long a batch takes in which timers are due.

    Args:
        sizes: How much.
    """
    due = due_times(sizes)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as name:
        folder = Path(name)
        _write(folder / "in", sizes, due)
        with bench_session(folder) as spark:
            run = run_query(
                _fired(read_batches(spark, folder / "in")), folder / "state", columns=("id", "due")
            )
    return {**figures(run, sizes), "correct": run.digest == expected(due)}


def _fired(events: DataFrame) -> DataFrame:
    return keyed(events, by="key", event_time="at").process(Reminders())["main"]


def _write(folder: Path, sizes: Sizes, due: Ints) -> None:
    """Write the events that set the timers, then those whose time makes some due, a batch each."""
    cuts = np.linspace(0, sizes.pending, sizes.fill_batches + 1).astype(int)
    parts = [range(start, end) for start, end in itertools.pairwise(cuts)]
    tables = [
        _table(np.array(half), START_MS, due[half])
        for part in parts
        for half in (part[: len(part) // 2], part[len(part) // 2 :])
    ]
    for number in range(sizes.rounds):
        at = START_MS + (number + 1) * _STEP_MS + 1
        for i in (0, 1):  # two files are a batch
            event = sizes.pending + 2 * number + i
            tables.append(_table(np.array([event]), at, np.array([START_MS + _FAR_MS])))
    write_files(folder, tables)


def _table(ids: Ints, at: int, due: Ints) -> pa.Table:
    import pyarrow as pa

    keys = pa.array([f"k{number:07d}" for number in ids.tolist()], pa.string())
    return pa.table({"id": ids, "key": keys, "at": np.full(len(ids), at, dtype=np.int64), "due": due})


def figures(run: Run, sizes: Sizes) -> dict[str, Any]:
    """Return what the run says: the batches in which timers fired, the first of them left out.

    Args:
        run: The run.
        sizes: How much was run.
    """
    marks = [run.start, *run.marks]
    took = [
        after.at - before.at for before, after in zip(marks, run.marks, strict=False) if after.digest.rows
    ]
    if len(took) < 2:
        raise BenchmarkFailed("timers fired in fewer than two batches: run more rounds")
    fill = marks[sizes.fill_batches].at - marks[1].at
    return {
        "batch_with_due_timers_s": median(took[1:]),
        "batch_with_due_timers_max_s": max(took[1:]),
        "first_s": took[0],
        "fired": run.digest.rows,
        # Those that set the timers, and the first that fires some.
        "warm_batches": sizes.fill_batches + 1,
        "timers_set_per_s": sizes.pending * (1 - 1 / sizes.fill_batches) / fill,
        "batch_seconds": [round(seconds, 3) for seconds in took],
    }


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {**asdict(sizes), "settings": streaming_settings()}
