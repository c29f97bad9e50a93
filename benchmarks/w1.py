"""`millrace bench running-zscore`: by our process and by what Spark has in stock, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace_apps.benchmarks import case, oracles, w1_job
from millrace_apps.benchmarks.case import CARD, Case, System, ours
from millrace_apps.benchmarks.case import bench_session as bench_session  # drivers take it from here
from millrace_apps.benchmarks.digest import digest
from millrace_apps.benchmarks.inputs import Events, card_name, make_events, write_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Events after which the state is weighed.
_STATE_ROWS = 200_000
_SCORE = ("id", "n", "z")
_TOTALS = (CARD, "n", "total", "squares")


@dataclass(frozen=True)
class Sizes(case.Sizes):
    """How much is run.

    Attributes:
        big_keys: Cards of the second run of ours.
        tws_share: Share of a batch's rows, and of the cards, that the stock operators of Spark get. They
            are so slow that a full run takes a quarter of an hour; rows per card and batch, which their
            speed hangs on, stay as they are.
        tws_batches: Batches that they get.
        warm_up: First run each system on a little, so that none pays for the JVM's compiling.
    """

    big_keys: int = 1_000_000
    tws_share: float = 0.15
    tws_batches: int = 3
    warm_up: bool = True


def systems(sizes: Sizes, folder: Path) -> Mapping[str, System]:
    """Write the inputs and return what is measured, in order."""

    def reading(name: str, rows: int, keys: int, batches: int) -> Callable[..., System]:
        events = make_events(rows, keys)
        cuts = write_batches(folder / name, events, batches, with_json=sizes.with_json, closing=False)
        scores, more = digest(*oracles.scores(events)), {"keys": int(events.card.max()) + 1}

        def system(frame: Callable[[DataFrame], DataFrame], totals: bool = False) -> System:
            if not totals:
                return System([folder / name], cuts, frame, scores, _SCORE, more=more)
            wanted = digest(*oracles.totals_per_batch(events, cuts))
            return System([folder / name], cuts, frame, wanted, _TOTALS, mode="update", more=more)

        return system

    main = reading("main", sizes.rows, sizes.keys, sizes.batches)
    big = reading("big", sizes.rows, sizes.big_keys, sizes.batches)
    share = sizes.tws_share * sizes.tws_batches / sizes.batches
    small_keys = round(sizes.keys * sizes.tws_share)
    small = reading("tws", round(sizes.rows * share), small_keys, sizes.tws_batches)
    process = partial(ours, w1_job.ZScore(), sizes.input)
    return {
        "process": main(process),
        "tws_pandas": small(w1_job.tws_pandas),
        "spark_native": main(w1_job.native, totals=True),
        "process_batch": main(partial(ours, w1_job.BatchZScore(), sizes.input)),
        "tws_row": small(w1_job.tws_row),
        "process_big": big(process),
    }


def _warm_up(spark: SparkSession, sizes: Sizes, folder: Path) -> None:
    little = replace(
        sizes, rows=sizes.rows // 50, keys=sizes.keys // 50, big_keys=100, batches=2, tws_batches=2
    )
    for name, system in systems(little, folder).items() if sizes.warm_up else ():
        if name != "process_big":
            system.measure(spark, folder / f"{name}-checkpoint")


def _with_state(sizes: Sizes, report: dict[str, Any]) -> dict[str, Any]:
    big = report["systems"].pop("process_big")
    state = state_size(make_events(min(sizes.rows, _STATE_ROWS), sizes.keys))
    return {**report, "state": state, "process_big_keys": big}


def state_size(events: Events) -> dict[str, float]:
    """Return the bytes of W1's state per card, and how they compare with plain msgpack of its entries.

    The in-memory host keeps and packs entries as Spark's does.
    """
    import msgspec

    from millrace.host.memory import MemoryHost

    host = MemoryHost(w1_job.ZScore())
    columns = (events.card.tolist(), events.cents.tolist(), events.at.tolist())
    host.run_batch(
        (card_name(card), at, w1_job.Purchase(number, card_name(card), cents, at))
        for number, (card, cents, at) in enumerate(zip(*columns, strict=True))
    )
    memory: Any = host.store.pack()
    packed = len(memory.header or b"") + sum(map(len, memory.pages.values()))
    totals = oracles.totals_per_batch(events, [0, len(events)])
    entries = {
        card_name(card): (n, float(total), float(squares))
        for card, n, total, squares in zip(*(column.tolist() for column in totals), strict=True)
    }
    return {
        "bytes_per_key": packed / len(entries),
        "over_msgpack": packed / len(msgspec.msgpack.encode(entries)),
    }


CASE: Final = Case(
    Sizes(4_000_000),
    Sizes(80_000, 2_000, 4, big_keys=40_000, tws_share=0.25, tws_batches=2, warm_up=False),
    systems,
    {
        "process_over_tws_pandas": ("process", "tws_pandas"),
        "process_over_tws_row": ("process", "tws_row"),
        "batch_over_tws_pandas": ("process_batch", "tws_pandas"),
        "batch_over_tws_row": ("process_batch", "tws_row"),
        "batch_over_spark_native": ("process_batch", "spark_native"),
        "keys_1m_over_50k": ("process_big", "process"),
    },
    lambda sizes: {
        "key_groups": 64,
        "spark_native": "groupBy(card), update mode: a row per card and batch, not per event",
        "tws": f"{sizes.tws_share:g} of a batch's rows and of the cards, {sizes.tws_batches} batches",
    },
    warm_up=_warm_up,
    finish=_with_state,
)
