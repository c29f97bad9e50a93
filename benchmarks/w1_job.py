"""Job W1, the running z-score of a card's purchases: as processes of ours, and with what Spark has in stock.

Amounts are whole cents, so that sums are exact and a score has the same bits whoever computes it: all that
is measured here is compared row by row.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from millrace import Context, KeyedProcess, Timer, arrival, hours, value_state
from millrace_apps.benchmarks.oracles import vector_zscores

if TYPE_CHECKING:
    from millrace.batch import Batch

#: A card is forgotten after this long without a purchase, where timers are measured.
IDLE_MS = hours(1)

STATE_SCHEMA = "n long, total double, squares double"
SCORE_SCHEMA = "id long, n long, z double"


def filler(key: str) -> str:
    """Return a kilobyte for a card's state that does not compress to nothing.

    >>> len(filler("c0000017"))
    1000
    """
    return hashlib.shake_128(key.encode()).hexdigest(500)


class Purchase(msgspec.Struct, gc=False):
    """An event.

    Attributes:
        id: Its number.
        card: Who pays.
        cents: How much.
        at: Event time, ms.
    """

    id: int
    card: str
    cents: int
    at: int


class Score(msgspec.Struct, gc=False):
    """What is said of an event.

    Attributes:
        id: The event.
        n: The card's number of events with this one.
        z: How many standard deviations its amount is above the mean of those before.
    """

    id: int
    n: int
    z: float


class Running(msgspec.Struct, array_like=True, gc=False):
    """A card's events so far: their number, the sum of their amounts and of the squares."""

    n: int = 0
    total: float = 0.0
    squares: float = 0.0


def zscore(n: int, total: float, squares: float, cents: int) -> float:
    """Return how far an amount is from ``n`` earlier ones, in standard deviations.

    >>> zscore(4, 40.0, 408.0, 12)
    1.414213562373095
    """
    if n < 2:
        return 0.0
    mean = total / n
    variance = squares / n - mean * mean
    return (cents - mean) / math.sqrt(variance) if variance > 1e-9 else 0.0


class ZScore(KeyedProcess[Purchase, Score]):
    """W1 as a process, an event at a time."""

    order = arrival(in_order_per_key=True)
    running = value_state(Running, default_factory=Running)

    def process(self, event: Purchase, ctx: Context) -> None:
        """Score one purchase."""
        running = self.running.value
        cents = event.cents
        z = zscore(running.n, running.total, running.squares, cents)
        running.n += 1
        running.total += cents
        running.squares += cents * cents
        self.running.value = running
        ctx.emit(Score(event.id, running.n, z))


class TimedZScore(ZScore):
    """The same, and a card is forgotten when it has been silent for an hour."""

    def process(self, event: Purchase, ctx: Context) -> None:
        """Score one purchase, and begin its hour anew."""
        super().process(event, ctx)
        ctx.timers.after(IDLE_MS, "idle")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Forget the card."""
        self.running.clear()


class BigZScore(TimedZScore):
    """The same over a kilobyte of state per card."""

    history = value_state(str, default="")

    def process(self, event: Purchase, ctx: Context) -> None:
        """Score one purchase; a card's first leaves the kilobyte."""
        if not self.history.value:
            self.history.value = filler(event.card)
        super().process(event, ctx)


class BatchZScore(ZScore):
    """The same with all cards of a batch together, by columns."""

    name = "ZScore"

    def process_batch(self, batch: Batch[Purchase]) -> None:
        """Score the purchases of many cards."""
        starts, key = batch.starts, batch.key_of_row
        kept = batch.read(self.running)
        cents = batch.column("cents")
        before = np.arange(len(batch)) - starts[key]
        n = np.array([k.n for k in kept])
        total, squares = np.array([k.total for k in kept]), np.array([k.squares for k in kept])
        n_before = n[key] + before
        total_before = total[key] + _before(cents, starts, key)
        squares_before = squares[key] + _before(cents * cents, starts, key)
        z = vector_zscores(n_before, total_before, squares_before, cents)
        last = starts[1:] - 1
        after = zip(
            (n_before[last] + 1).tolist(),
            (total_before[last] + cents[last]).tolist(),
            (squares_before[last] + cents[last] ** 2).tolist(),
            strict=True,
        )
        batch.write(self.running, itertools.starmap(Running, after))
        numbers = [event.id for event in batch.events]
        batch.emit(map(Score, numbers, (n_before + 1).tolist(), z.tolist()))


def _before(
    values: npt.NDArray[np.float64], starts: npt.NDArray[np.int64], key: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return for each row the sum of its key's values before it in the batch."""
    sums = np.concatenate(([0.0], np.cumsum(values)))[:-1]
    earlier: npt.NDArray[np.float64] = sums - sums[starts[:-1]][key]
    return earlier


class RowZScore(StatefulProcessor):
    """W1 by Spark's ``transformWithState``, a call per key and rows as ``Row``."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._running = handle.getValueState("running", STATE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Score a card's purchases of a batch."""
        made, after = _scored(self._running.get(), sorted((r.at, r.id, r.cents) for r in rows))
        self._running.update(after)
        for score in made:
            yield Row(id=score[0], n=score[1], z=score[2])

    def close(self) -> None:
        """Nothing is held."""


class PandasZScore(StatefulProcessor):
    """W1 by Spark's ``transformWithStateInPandas``, a call per key and rows as frames."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._running = handle.getValueState("running", STATE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        """Score a card's purchases of a batch."""
        events: list[tuple[int, int, int]] = []
        for frame in rows:
            events += zip(frame["at"].tolist(), frame["id"].tolist(), frame["cents"].tolist(), strict=True)
        events.sort(key=itemgetter(0))
        made, after = _scored(self._running.get(), events)
        self._running.update(after)
        yield pd.DataFrame(made, columns=["id", "n", "z"])

    def close(self) -> None:
        """Nothing is held."""


def _scored(
    kept: Any, events: list[tuple[int, int, int]]
) -> tuple[list[tuple[int, int, float]], tuple[int, float, float]]:
    """Return the scores of a card's events (time, id, cents) and what is to be kept then."""
    n, total, squares = (0, 0.0, 0.0) if kept is None else (kept[0], kept[1], kept[2])
    made = []
    for _, number, cents in events:
        z = zscore(n, total, squares, cents)
        n, total, squares = n + 1, total + cents, squares + cents * cents
        made.append((number, n, z))
    return made, (n, total, squares)


def tws_row(events: DataFrame) -> DataFrame:
    """Return W1 by ``transformWithState``."""
    return (
        events.select("card", "id", "cents", "at")
        .groupBy("card")
        .transformWithState(RowZScore(), SCORE_SCHEMA, "Append", "None")
    )


def tws_pandas(events: DataFrame) -> DataFrame:
    """Return W1 by ``transformWithStateInPandas``."""
    return (
        events.select("card", "id", "cents", "at")
        .groupBy("card")
        .transformWithStateInPandas(PandasZScore(), SCORE_SCHEMA, "Append", "None")
    )


def native(events: DataFrame) -> DataFrame:
    """Return what Spark's own aggregation can say of W1: mean and deviation per card and batch.

    It has no result per event; the columns ``n``, ``total`` and ``squares`` are what the check compares.
    """
    cents = F.col("cents")
    kept = events.groupBy("card").agg(
        F.count("*").alias("n"), F.sum(cents).alias("total"), F.sum(cents * cents).alias("squares")
    )
    mean = F.col("total") / F.col("n")
    std = F.sqrt(F.greatest(F.col("squares") / F.col("n") - mean * mean, F.lit(0.0)))
    return kept.withColumn("mean", mean).withColumn("std", std)
