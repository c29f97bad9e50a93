"""W1 by Spark's native operators alone, with a result per event: no Python, no operator of one's own.

Spark's aggregation says one thing per card and batch. What each event must say follows from it: the totals
after the batch, less those of the event and of the card's later ones in the batch. These are sums of a window
over the batch's records, which are read from Kafka a second time, by the offsets that the checkpoint has of
them; the state stays that of the aggregation. Reading once, and keeping the totals in files of one's own
instead, was tried as well, and was the slower of the two.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

_EVENT: Final = "id long, card string, cents long"
#: Of the lines of a batch's file: version, settings, then the offsets of the only source.
_SOURCE_LINE: Final = 2


def totals(records: DataFrame) -> DataFrame:
    """Return count, sum and sum of squares per card, of a stream of Kafka records with events as JSON."""
    event = F.from_json(F.col("value").cast("string"), "card string, cents long")
    cents = F.col("cents")
    return (
        records.select(event.alias("event"))
        .select("event.*")
        .groupBy("card")
        .agg(F.count("*").alias("n"), F.sum(cents).alias("total"), F.sum(cents * cents).alias("squares"))
    )


def batch_records(batch: DataFrame, options: Mapping[str, str], checkpoint: Path, number: int) -> DataFrame:
    """Return the Kafka records of a batch.

    Args:
        batch: Anything of the batch; gives the session.
        options: Kafka options with Spark's prefix.
        checkpoint: The query's checkpoint.
        number: Of the batch.
    """
    from millrace.connectors.kafka import CONSUMER_DEFAULTS

    end = offsets(checkpoint, number)
    begin = offsets(checkpoint, number - 1) if number else {t: dict.fromkeys(of, 0) for t, of in end.items()}
    return (
        batch.sparkSession.read.format("kafka")
        .options(**CONSUMER_DEFAULTS)
        .options(**options)
        .option("subscribe", ",".join(end))
        .option("startingOffsets", json.dumps(begin))
        .option("endingOffsets", json.dumps(end))
        .load()
    )


def offsets(checkpoint: Path, number: int) -> dict[str, dict[str, int]]:
    """Return where a batch ends: topic → partition → offset."""
    lines = (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
    found: dict[str, dict[str, int]] = json.loads(lines[_SOURCE_LINE])
    return found


def scores(records: DataFrame, after: DataFrame) -> DataFrame:
    """Return id, n and z of every event of a batch, and its card.

    Args:
        records: The batch's Kafka records. Those of a card are in one partition, in the order of the events.
        after: Each of their cards with ``n``, ``total`` and ``squares`` after the batch.
    """
    event = F.from_json(F.col("value").cast("string"), _EVENT)
    cents = F.col("cents")
    # From an event on to the card's last: running sums backwards, as Spark sums a frame without an end anew
    # for every row.
    onwards = Window.partitionBy("card").orderBy(F.desc("offset")).rowsBetween(Window.unboundedPreceding, 0)
    events = (
        records.select(event.alias("event"), "offset")
        .select("event.*", "offset")
        .select(
            *("id", "card", "cents"),
            F.count("*").over(onwards).alias("n_on"),
            F.sum(cents).over(onwards).alias("total_on"),
            F.sum(cents * cents).over(onwards).alias("squares_on"),
        )
    )
    # Every event has its card there; an inner join would parse events once more, for cards without a name.
    joined = events.join(after.select("card", "n", "total", "squares").hint("shuffle_hash"), "card", "left")
    before = F.col("n") - F.col("n_on")
    some = F.nullif(before, F.lit(0))
    mean = (F.col("total") - F.col("total_on")) / some
    variance = (F.col("squares") - F.col("squares_on")) / some - mean * mean
    z = F.when((before >= 2) & (variance > 1e-9), (cents - mean) / F.sqrt(variance)).otherwise(F.lit(0.0))
    return joined.select("card", "id", (before + 1).alias("n"), z.alias("z"))
