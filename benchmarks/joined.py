"""`millrace bench stream-joins`: as-of and interval join, Spark's own beside the latter."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np

from millrace import connect, hours, keyed, minutes, seconds
from millrace.joins import JoinProcess, asof_join, interval, interval_join
from millrace_apps.benchmarks import oracles
from millrace_apps.benchmarks.case import Case, Input, Sizes, System, over
from millrace_apps.benchmarks.digest import Digest, digest
from millrace_apps.benchmarks.inputs import (
    START_MS,
    Events,
    Ints,
    card_name,
    make_events,
    write_batches,
    write_files,
)
from millrace_apps.benchmarks.oracles import Limits

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Job = Literal["asof", "interval"]

KEEP_MS = hours(1)
GRACE_MS = seconds(10)
BACKWARD_MS = minutes(10)
#: A limit for so many purchases, one every so many ms.
_EVERY = 10


class Limit(msgspec.Struct, gc=False):
    """A new limit of a card.

    Attributes:
        limit: Its number.
        card: The card.
        since: Event time, ms.
    """

    limit: int
    card: str
    since: int


@dataclass(frozen=True)
class Sides:
    """Both inputs.

    Attributes:
        purchases: The left events.
        limits: The right events.
    """

    purchases: Events
    limits: Limits

    def write(self, folder: Path, batches: int, *, with_json: bool) -> list[int]:
        """Write both sides, batches of the same time, and return where batches of both together begin."""
        cuts = write_batches(folder / "left", self.purchases, batches, with_json=with_json, closing=True)
        times = [int(self.purchases.at[cut]) for cut in cuts[:-1]]
        places = [*np.searchsorted(self.limits.since, times).tolist(), len(self.limits.since)]
        tables = []
        for start, end in itertools.pairwise(places):
            middle = (start + end) // 2
            tables += [self._table(a, b, with_json=with_json) for a, b in ((start, middle), (middle, end))]
        # The batch that closes has no limits; there are two files for each batch all the same.
        tables += [self._table(0, 0, with_json=with_json)] * 2
        write_files(folder / "right", tables)
        return [cut + place for cut, place in zip(cuts, places, strict=True)]

    def _table(self, start: int, end: int, *, with_json: bool) -> pa.Table:
        import pyarrow as pa

        cards = [card_name(card) for card in self.limits.card[start:end].tolist()]
        since = self.limits.since[start:end]
        columns: dict[str, Any] = {
            "limit": np.arange(start, end, dtype=np.int64),
            "card": pa.array(cards, pa.string()),
            "since": since,
        }
        if with_json:
            rows = zip(range(start, end), cards, since.tolist(), strict=True)
            values = [b'{"limit":%d,"card":"%b","since":%d}' % (n, c.encode(), s) for n, c, s in rows]
            columns["value"] = pa.array(values, pa.binary())
        return pa.table(columns)


def make_sides(rows: int, keys: int, *, seed: int = 6) -> Sides:
    """Return purchases, and limits of the same cards over the same time.

    Args:
        rows: Number of purchases.
        keys: Number of cards.
        seed: Of the limits.
    """
    n = rows // _EVERY
    cards = np.random.default_rng(seed).integers(0, keys, n)
    return Sides(make_events(rows, keys), Limits(cards, START_MS + np.arange(n, dtype=np.int64) * _EVERY))


def systems(sizes: Sizes, folder: Path) -> Mapping[str, System]:
    """Write both sides; return both joins by ours, and the interval join by Spark's own operator."""
    sides = make_sides(sizes.rows, sizes.keys)
    cuts = sides.write(folder, sizes.batches, with_json=sizes.with_json)
    asof, within = expected("asof", sides), expected("interval", sides)
    frames: dict[str, tuple[Callable[..., DataFrame], Digest]] = {
        "asof": (partial(ours, process_of("asof"), sizes.input), asof),
        "interval": (partial(ours, process_of("interval"), sizes.input), within),
        "spark_native": (native, within),
    }
    # The closing purchases have no limits; the as-of join has rows of them, which are left out.
    columns, where = ("id", "coalesce(limit, -1L)"), f"id < {sizes.rows}"
    files = [folder / "left", folder / "right"]
    return {
        name: System(files, cuts, frame, wanted, columns, where) for name, (frame, wanted) in frames.items()
    }


def process_of(job: Job) -> JoinProcess:
    """Return the process of a job."""
    from millrace_apps.benchmarks.w1_job import Purchase

    if job == "asof":
        return asof_join(left=Purchase, right=Limit, keep=KEEP_MS, grace=GRACE_MS)
    return interval_join(left=Purchase, right=Limit, within=interval(backward=BACKWARD_MS))


def ours(process: JoinProcess, kind: Input, left: DataFrame, right: DataFrame) -> DataFrame:
    """Return the main output of a join as typed columns."""
    how: dict[str, Any] = {"by": "card"}
    if kind == "json":
        how["value"] = "value"
    streams = connect(left=keyed(left, event_time="at", **how), right=keyed(right, event_time="since", **how))
    return streams.process(process)["main"]


def native(left: DataFrame, right: DataFrame) -> DataFrame:
    """Return what Spark's own join makes of an interval, with the columns of ours that are compared."""
    from pyspark.sql import functions as F

    def timed(side: DataFrame, at: str, name: str) -> DataFrame:
        return side.withColumn(name, F.timestamp_millis(at)).withWatermark(name, "1 milliseconds")

    purchases = timed(left, "at", "ts").select("id", "card", "ts")
    limits = timed(right, "since", "since_ts").select("limit", F.col("card").alias("of"), "since_ts")
    within = F.expr(
        f"card = of and since_ts <= ts and since_ts >= ts - interval {BACKWARD_MS // 1_000} seconds"
    )
    return purchases.join(limits, within).select("id", "limit")


def expected(job: Job, sides: Sides) -> Digest:
    """Return the digest of what must come out."""
    found: tuple[Ints, Ints]
    if job == "asof":
        found = oracles.as_of(sides.purchases, sides.limits, KEEP_MS)
    else:
        found = oracles.within(sides.purchases, sides.limits, BACKWARD_MS)
    return digest(*found)


#: Of the sizes' rows, purchases of a thousand per second, every tenth has a limit; cards of the purchases by
#: Zipf's law, of the limits all alike.
CASE: Final = Case(
    Sizes(2_000_000),
    Sizes(60_000, keys=2_000, batches=3),
    systems,
    over(("interval", "spark_native")),
    lambda _: {
        "asof": f"left, corrections, keep {KEEP_MS} ms, grace {GRACE_MS} ms",
        "interval": f"inner, {BACKWARD_MS} ms backward",
    },
)
