"""Running a streaming query to its end and noting when each batch was done, what it cost, what came out."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from millrace.errors import MillraceError
from millrace_apps.benchmarks.cpu import cpu_seconds
from millrace_apps.benchmarks.digest import Digest, spark_digest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LIMIT_S = 1_800.0


class BenchmarkFailed(MillraceError):
    """A query of a benchmark did not come to its end."""


@dataclass(frozen=True)
class Mark:
    """The end of a batch: when (s, monotonic), CPU time until then (s), and the digest of its rows."""

    at: float
    cpu: float
    digest: Digest = field(default_factory=Digest)


@dataclass(frozen=True)
class Run:
    """What a query did.

    Attributes:
        start: Before its first batch.
        marks: The end of each batch, batches without input at the end included.
    """

    start: Mark
    marks: list[Mark]

    @property
    def digest(self) -> Digest:
        """The digest of all that came out."""
        total = Digest()
        for mark in self.marks:
            total = total.plus(mark.digest)
        return total


def figures(run: Run, cuts: Sequence[int], *, correct: bool) -> dict[str, Any]:
    """Return what a run says of a system; its first batch warms it up and does not count.

    Args:
        run: The run, of two batches or more.
        cuts: Where each batch of its input begins, and the end of the last.
        correct: Whether what came out is what must come out.

    Raises:
        BenchmarkFailed: Nothing is left when the first batch does not count.
    """
    # At the end Spark runs a batch without rows, for whatever the watermark makes due.
    with_rows = [m for m in run.marks[1:] if m.digest.rows]
    first, last = run.marks[0], (with_rows or run.marks)[-1]
    if first is last:
        raise BenchmarkFailed("all results came with the first batch, which does not count: run more rows")
    rows = cuts[-1] - cuts[1]
    seconds = last.at - first.at
    times = [run.start.at, *(m.at for m in run.marks)]
    return {
        "rows_per_s": rows / seconds,
        "cpu_s_per_million": (last.cpu - first.cpu) / rows * 1e6,
        "correct": correct,
        "rows": rows,
        "rows_out": run.digest.rows,
        "warm_batches": 1,
        "rows_per_s_with_first_batch": cuts[-1] / (last.at - run.start.at),
        "batch_seconds": [round(b - a, 3) for a, b in itertools.pairwise(times)],
    }


def combined(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of several runs of a system, with their range."""
    if len(runs) == 1:
        return runs[0]
    rates = [r["rows_per_s"] for r in runs]
    return {
        **runs[0],
        "rows_per_s": median(rates),
        "cpu_s_per_million": median(r["cpu_s_per_million"] for r in runs),
        "correct": all(r["correct"] for r in runs),
        "rows_per_s_min": min(rates),
        "rows_per_s_max": max(rates),
    }


def read_batches(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the stream of files of :func:`millrace_apps.benchmarks.inputs.write_batches`, one by one."""
    files = str(folder)
    schema = spark.read.parquet(files).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(files)


def run_query(
    frame: DataFrame, checkpoint: Path, *, columns: Sequence[str], where: str = "true", mode: str = "append"
) -> Run:
    """Run a query over all that its source has, into a sink that hashes and counts.

    Args:
        frame: What is computed.
        checkpoint: Folder of its checkpoint.
        columns: What of its rows is compared, in SQL.
        where: Which rows are, in SQL. In the query itself, Spark would move a filter in front of the
            watermark, and what it leaves out would no longer complete windows.
        mode: Spark's output mode.

    Raises:
        BenchmarkFailed: It ended with an error, or did not end.
    """
    marks: list[Mark] = []

    def sink(batch: DataFrame, _number: int) -> None:
        found = spark_digest(batch.filter(where), columns)
        marks.append(Mark(time.monotonic(), cpu_seconds(), found))

    start = Mark(time.monotonic(), cpu_seconds())
    await_end(frame, checkpoint, sink, mode)
    if not marks:
        raise BenchmarkFailed("the query had no batch")
    return Run(start, marks)


def await_end(
    frame: DataFrame, checkpoint: Path, sink: Callable[[DataFrame, int], None], mode: str = "append"
) -> None:
    """Run a query over all that its source has; each batch goes to ``sink``.

    Raises:
        BenchmarkFailed: It ended with an error, or did not end.
    """
    from pyspark.errors import StreamingQueryException

    query = (
        frame.writeStream.outputMode(mode)
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(sink)
        .trigger(availableNow=True)
        .start()
    )
    try:
        if not query.awaitTermination(int(_LIMIT_S)):
            raise BenchmarkFailed(f"the query does not end within {_LIMIT_S:.0f} s")
    except StreamingQueryException as error:
        raise BenchmarkFailed(f"the query failed: {str(error).splitlines()[0]}") from error
    finally:
        query.stop()
