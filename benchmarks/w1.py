"""`millrace bench w1`: the running z-score by our process and by what Spark has in stock, side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from millrace_apps.benchmarks import oracles
from millrace_apps.benchmarks.digest import Digest, digest
from millrace_apps.benchmarks.inputs import Events, card_name, make_events, write_batches
from millrace_apps.benchmarks.streams import combined, figures, read_batches, run_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millrace import KeyedProcess

Input = Literal["columns", "json"]

#: Card's number from its name.
CARD = "cast(substring(card, 2) as bigint)"
#: Events after which the state is weighed.
_STATE_ROWS = 200_000
_SCORE = ("id", "n", "z")
_TOTALS = (CARD, "n", "total", "squares")


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        rows: Events.
        keys: Cards.
        big_keys: Cards of the second run of ours.
        batches: Batches, the first to warm up included.
        tws_share: Share of a batch's rows, and of the cards, that the stock operators of Spark get. They
            are so slow that a full run takes a quarter of an hour; rows per card and batch, which their
            speed hangs on, stay as they are.
        tws_batches: Batches that they get.
        repeats: Runs of each system, in alternating order; figures are medians.
        input: What ours reads: typed ``columns`` as the others do, or the same events as ``json`` bytes.
        warm_up: First run each system on a little, so that none pays for the JVM's compiling.
    """

    rows: int = 4_000_000
    keys: int = 50_000
    big_keys: int = 1_000_000
    batches: int = 8
    tws_share: float = 0.15
    tws_batches: int = 3
    repeats: int = 1
    input: Input = "json"
    warm_up: bool = True


QUICK = Sizes(
    rows=80_000, keys=2_000, big_keys=40_000, batches=4, tws_share=0.25, tws_batches=2, warm_up=False
)


@dataclass(frozen=True)
class Source:
    """A benchmark's input: the events, their files, where its batches begin."""

    events: Events
    folder: Path
    cuts: list[int]


@dataclass(frozen=True)
class System:
    """Something that is measured.

    Attributes:
        source: What it reads.
        frame: Makes its result from the stream of events.
        columns: What of the result is compared, in SQL.
        expected: The digest of what must come out.
        mode: Spark's output mode.
    """

    source: Source
    frame: Callable[[DataFrame], DataFrame]
    columns: tuple[str, ...]
    expected: Digest
    mode: str = "append"


@contextmanager
def bench_session(folder: Path) -> Iterator[SparkSession]:
    """Give a session with the settings of every streaming job, on two cores and two state partitions."""
    from millrace.runtime.session import spark_session

    with spark_session(
        "millrace-bench",
        master="local[2]",
        shuffle_partitions=2,
        driver_memory="2g",
        log_file=folder / "spark.log",
    ) as spark:
        yield spark


def ours(process: KeyedProcess[Any, Any], kind: Input, events: DataFrame) -> DataFrame:
    """Return the main output of a process over the events as typed columns."""
    from millrace import keyed

    if kind == "json":
        stream = keyed(events, by="card", event_time="at", value="value")
    else:
        stream = keyed(events, by="card", event_time="at")
    return stream.process(process)["main"]


def w1(sizes: Sizes) -> dict[str, Any]:
    """Run all systems and return their figures and ratios.

    Args:
        sizes: How much.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as name:
        folder = Path(name)
        systems = _systems(sizes, folder)
        runs: dict[str, list[dict[str, Any]]] = {system: [] for system in systems}
        with bench_session(folder) as spark:
            if sizes.warm_up:
                _warm_up(spark, sizes, folder)
            for repeat in range(sizes.repeats):
                order = list(systems) if repeat % 2 == 0 else list(reversed(systems))
                for system in order:
                    runs[system].append(_measured(spark, systems[system], folder / f"{system}-{repeat}"))
    found = {system: combined(of) for system, of in runs.items()}
    big = found.pop("process_big")
    return {
        "systems": found,
        "ratios": ratios(found, big),
        "state": state_size(make_events(min(sizes.rows, _STATE_ROWS), sizes.keys)),
        "process_big_keys": big,
    }


def _systems(sizes: Sizes, folder: Path) -> dict[str, System]:
    """Return what is measured, in order; the input is written."""
    from millrace_apps.benchmarks import w1_job

    main = _source(sizes.rows, sizes.keys, sizes.batches, sizes, folder / "main")
    big = _source(sizes.rows, sizes.big_keys, sizes.batches, sizes, folder / "big")
    share = sizes.tws_share * sizes.tws_batches / sizes.batches
    small = _source(
        round(sizes.rows * share),
        round(sizes.keys * sizes.tws_share),
        sizes.tws_batches,
        sizes,
        folder / "tws",
    )
    expected = {id(source): digest(*oracles.scores(source.events)) for source in (main, big, small)}

    def scoring(source: Source, frame: Callable[[DataFrame], DataFrame]) -> System:
        return System(source, frame, _SCORE, expected[id(source)])

    process = partial(ours, w1_job.ZScore(), sizes.input)
    return {
        "process": scoring(main, process),
        "tws_pandas": scoring(small, w1_job.tws_pandas),
        "spark_native": System(
            main, w1_job.native, _TOTALS, digest(*oracles.totals_per_batch(main.events, main.cuts)), "update"
        ),
        "process_batch": scoring(main, partial(ours, w1_job.BatchZScore(), sizes.input)),
        "tws_row": scoring(small, w1_job.tws_row),
        "process_big": scoring(big, process),
    }


def _warm_up(spark: SparkSession, sizes: Sizes, folder: Path) -> None:
    little = replace(
        sizes, rows=sizes.rows // 50, keys=sizes.keys // 50, big_keys=100, batches=2, tws_batches=2
    )
    for name, system in _systems(little, folder / "warm-up").items():
        if name != "process_big":
            _measured(spark, system, folder / "warm-up" / f"{name}-checkpoint")


def _source(rows: int, keys: int, batches: int, sizes: Sizes, folder: Path) -> Source:
    events = make_events(rows, keys)
    cuts = write_batches(folder, events, batches, with_json=sizes.input == "json", closing=False)
    return Source(events, folder, cuts)


def _measured(spark: SparkSession, system: System, checkpoint: Path) -> dict[str, Any]:
    frame = system.frame(read_batches(spark, system.source.folder))
    run = run_query(frame, checkpoint, columns=system.columns, mode=system.mode)
    correct = run.digest == system.expected
    return {**figures(run, system.source.cuts, correct=correct), "keys": _keys(system.source.events)}


def _keys(events: Events) -> int:
    return int(events.card.max()) + 1


def ratios(systems: dict[str, dict[str, Any]], big: dict[str, Any]) -> dict[str, float]:
    """Return how many times faster ours is than each of the others.

    Args:
        systems: Figures by system.
        big: Figures of ``process`` with many keys.
    """

    def over(one: dict[str, Any], other: dict[str, Any]) -> float:
        return float(one["rows_per_s"] / other["rows_per_s"])

    process, batch = systems["process"], systems["process_batch"]
    return {
        "process_over_tws_pandas": over(process, systems["tws_pandas"]),
        "process_over_tws_row": over(process, systems["tws_row"]),
        "batch_over_tws_pandas": over(batch, systems["tws_pandas"]),
        "batch_over_tws_row": over(batch, systems["tws_row"]),
        "batch_over_spark_native": over(batch, systems["spark_native"]),
        "keys_1m_over_50k": over(big, process),
    }


def state_size(events: Events) -> dict[str, float]:
    """Return the bytes of W1's state per card, and how they compare with plain msgpack of its entries.

    The in-memory host keeps and packs entries as Spark's does.
    """
    import msgspec

    from millrace.host.memory import MemoryHost
    from millrace_apps.benchmarks.w1_job import Purchase, ZScore

    host = MemoryHost(ZScore())
    columns = (events.card.tolist(), events.cents.tolist(), events.at.tolist())
    host.run_batch(
        (card_name(card), at, Purchase(number, card_name(card), cents, at))
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


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return {
        **asdict(sizes),
        "exponent": 1.1,
        "key_groups": 64,
        "spark_native": "groupBy(card), update mode: a row per card and batch, not per event",
        "tws": f"{sizes.tws_share:g} of a batch's rows and of the cards, {sizes.tws_batches} batches",
        "settings": streaming_settings(),
    }


def streaming_settings() -> dict[str, str]:
    """Return the settings of state and checkpoint, the same for all systems."""
    from millrace.runtime.defaults import LOCAL_DEFAULTS, STREAMING_DEFAULTS

    of_state = {n: d.value for n, d in STREAMING_DEFAULTS.items() if n.startswith("spark.sql.streaming.")}
    return of_state | {n: d.value for n, d in LOCAL_DEFAULTS.items()}
