"""`millrace bench deduplication`: drop repeats, then rank items; Spark's deduplication beside."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np

from millrace import KeyedProcess, keyed, minutes, seconds
from millrace.operators import deduplicate, top_n
from millrace.windows import sum_of, tumbling
from millrace_apps.benchmarks import case, oracles
from millrace_apps.benchmarks.case import Case, Input, Sizes, over
from millrace_apps.benchmarks.digest import Digest, digest
from millrace_apps.benchmarks.inputs import Events, Ints, card_name, closing_events, make_events, write_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

System = Literal["dedup", "dedup_top10", "spark_dedup"]

SIZE_MS = minutes(1)
N = 10
#: What is sent again comes less than this later, so that nothing is late, and is known for as long.
BOUND_MS = seconds(10)
SHOPS = 50
_SHARE_AGAIN = 0.1
_IDS = ("id",)
_RANKS = (
    "cast(substring(shop, 2) as bigint)",
    "window_start_ms",
    "cast(rank as bigint)",
    "cast(substring(item, 2) as bigint)",
    "cast(value as bigint)",
)


class Sale(msgspec.Struct, gc=False):
    """An event; one that is sent again is the same in every field.

    Attributes:
        id: Its number.
        shop: Where.
        item: What.
        cents: For how much.
        at: Event time, ms.
    """

    id: int
    shop: str
    item: str
    cents: int
    at: int


@dataclass(frozen=True)
class Sales:
    """Sales as they come, column by column.

    Attributes:
        id: Their numbers; one that comes twice is there twice.
        shop: Number of the shop.
        item: Number of the item.
        cents: Amount.
        at: Event time, ms.
    """

    id: Ints
    shop: Ints
    item: Ints
    cents: Ints
    at: Ints

    def __len__(self) -> int:
        return len(self.id)

    def take(self, places: Any) -> Sales:
        """Return the sales at these places."""
        return Sales(*(column[places] for column in (self.id, self.shop, self.item, self.cents, self.at)))

    def once(self) -> Sales:
        """Return every sale once."""
        return self.take(np.unique(self.id, return_index=True)[1])

    def rows(self) -> list[Sale]:
        """Return the sales as events."""
        columns = zip(
            *(c.tolist() for c in (self.id, self.shop, self.item, self.cents, self.at)), strict=True
        )
        return [Sale(i, f"s{shop}", card_name(item), cents, at) for i, shop, item, cents, at in columns]


def make_sales(rows: int, keys: int, *, seed: int = 8) -> Sales:
    """Return sales of which some are sent again a little later.

    Args:
        rows: Number of different sales.
        keys: Number of items.
        seed: Of shops and of what is sent again.
    """
    random = np.random.default_rng(seed)
    events = make_events(rows, keys)
    shop = random.integers(0, SHOPS, rows)
    once = Sales(np.arange(rows), shop, events.card, events.cents, events.at)
    again = np.flatnonzero(random.random(rows) < _SHARE_AGAIN)
    comes = np.append(once.at, once.at[again] + random.integers(1, BOUND_MS // 2, len(again)))
    places = np.append(np.arange(rows), again)
    return once.take(places[np.argsort(comes, kind="stable")])


def systems(sizes: Sizes, folder: Path) -> Mapping[str, case.System]:
    """Write the sales; return ours without and with the ranking, and Spark's own deduplication."""
    sales = make_sales(sizes.rows, sizes.keys)
    cuts = write(folder, sales, sizes.batches, with_json=sizes.with_json)
    once, ranked = expected("dedup", sales), expected("dedup_top10", sales)
    first = f"id < {sizes.rows}"
    best = partial(ours, "dedup_top10", sizes.input)
    return {
        "dedup": case.System([folder], cuts, partial(ours, "dedup", sizes.input), once, _IDS, first),
        "dedup_top10": case.System([folder], cuts, best, ranked, _RANKS, f"shop != 's{SHOPS}'"),
        "spark_dedup": case.System([folder], cuts, native, once, _IDS, first),
    }


def dedup_process() -> KeyedProcess[Any, Any]:
    """Return what lets every sale pass once, by its id, as it comes."""
    return deduplicate(Sale, within=BOUND_MS, order="arrival", name="dedup")


def ranking_process() -> KeyedProcess[Any, Any]:
    """Return what ranks the items of each shop and minute by what was paid for them."""
    return top_n(Sale, N, item="item", by=sum_of("cents"), window=tumbling(SIZE_MS), key="shop", name="best")


def ours(system: System, kind: Input, sales: DataFrame) -> DataFrame:
    """Return the main output of ours as typed columns."""
    how: dict[str, Any] = {"value": "value"} if kind == "json" else {}
    stream = keyed(sales, by="id", event_time="at", out_of_orderness=BOUND_MS, **how)
    processed = stream.process(dedup_process())
    if system == "dedup_top10":
        processed = processed.key_by("shop").process(ranking_process())
    return processed["main"]


def native(sales: DataFrame) -> DataFrame:
    """Return what Spark's own deduplication makes of the sales."""
    from pyspark.sql import functions as F

    timed = sales.withColumn("ts", F.timestamp_millis("at")).withWatermark("ts", f"{BOUND_MS} milliseconds")
    return timed.select("id", "ts").dropDuplicatesWithinWatermark(["id"]).select("id")


def expected(system: System, sales: Sales) -> Digest:
    """Return the digest of what must come out."""
    once = sales.once()
    if system != "dedup_top10":
        return digest(once.id)
    ranks = oracles.best_items(once.shop, once.at // SIZE_MS * SIZE_MS, once.item, once.cents, N)
    return digest(*ranks)


def write(folder: Path, sales: Sales, batches: int, *, with_json: bool) -> list[int]:
    """Write the sales as files, of which two make a batch, and two sales that complete every window.

    Args:
        folder: Where to; it is made.
        sales: The sales.
        batches: Number of batches.
        with_json: Whether there is a column ``value`` with each sale as JSON.

    Returns:
        Where each batch begins, and the end of the last.
    """
    cuts = [round(len(sales) * b / batches) for b in range(batches + 1)]
    parts = []
    for start, end in itertools.pairwise(cuts):
        middle = (start + end) // 2
        parts += [sales.take(slice(start, middle)), sales.take(slice(middle, end))]
    last = closing(sales)
    parts += [last.take(slice(0, 1)), last.take(slice(1, 2))]
    write_files(folder, [_table(part, with_json=with_json) for part in parts])
    return cuts


def closing(sales: Sales) -> Sales:
    """Return two sales of a shop of their own, a day after the last."""
    last = closing_events(Events(sales.item, sales.cents, np.sort(sales.at)))
    ids = np.arange(2) + int(sales.id.max()) + 1
    return Sales(ids, np.full(2, SHOPS), last.card, last.cents, last.at)


def _table(sales: Sales, *, with_json: bool) -> pa.Table:
    import pyarrow as pa

    events = sales.rows()
    columns: dict[str, Any] = {
        "id": sales.id,
        "shop": pa.array([e.shop for e in events], pa.string()),
        "item": pa.array([e.item for e in events], pa.string()),
        "cents": sales.cents,
        "at": sales.at,
    }
    if with_json:
        columns["value"] = pa.array(map(msgspec.json.encode, events), pa.binary())
    return pa.table(columns)


#: Of the sizes' rows, all different, a tenth comes twice; keys are items, by Zipf's law.
CASE: Final = Case(
    Sizes(1_000_000),
    Sizes(100_000, keys=2_000, batches=3),
    systems,
    over(("dedup", "spark_dedup")),
    lambda _: {
        "dedup": f"by id, within {BOUND_MS} ms, a tenth of the events comes again within {BOUND_MS // 2} ms",
        "top10": f"items per shop ({SHOPS}) and {SIZE_MS} ms by the sum of cents, after the dedup",
        "spark_dedup": "dropDuplicatesWithinWatermark; Spark has no top-n on streams",
    },
)
