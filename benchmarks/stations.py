"""`millrace bench stations`: one station on one core beside several that share the work by its locality."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace import Context, KeyedProcess, Timer, arrival, minutes, value_state
from millrace_apps.benchmarks.streams import BenchmarkFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA: Final = "plant string, machine string, at bigint, value bigint, source string"
_START_MS: Final = 1_700_000_000_000
#: So many readings a machine's median is of.
_WINDOW: Final = 200
#: Files of a batch, so that several tasks read and pack it.
_FILES: Final = 4


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        stations: How many stations are beside the one.
        pairs: Runs of either kind, in turn.
        batches: Batches of a run that are measured.
        warm_batches: Batches before those.
        rows: Events of a batch.
        plants: Plants, the locality.
        machines: Machines of a plant.
    """

    stations: int = 2
    pairs: int = 3
    batches: int = 15
    warm_batches: int = 8
    rows: int = 10_000
    plants: int = 64
    machines: int = 50


QUICK: Final = Sizes(pairs=1, batches=3, warm_batches=1, rows=500)


class Reading(msgspec.Struct):
    """What comes in."""

    plant: str
    machine: str
    at: int
    value: int


class Level(msgspec.Struct):
    """What a machine's median has become."""

    plant: str
    machine: str
    median: float


class Machines(KeyedProcess[Reading, Level]):
    """The moving median of each machine, and a timer for when it falls silent."""

    order = arrival(in_order_per_key=True)
    recent = value_state(list[int], default_factory=list)

    def process(self, event: Reading, ctx: Context) -> None:
        """Take a reading."""
        recent = [*self.recent.value[-_WINDOW + 1 :], event.value]
        self.recent.value = recent
        ctx.timers.after(minutes(10), "silent")
        ctx.emit(Level(event.plant, event.machine, statistics.median(recent)))

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Forget a machine that has fallen silent."""
        self.recent.clear()


class Plants(KeyedProcess[Level, Level]):
    """How much has been said of a plant, and the mean of its machines' medians."""

    order = arrival(commutes=True)
    said = value_state(int, default=0)
    total = value_state(float, default=0.0)

    def process(self, event: Level, ctx: Context) -> None:
        """Count a level."""
        self.said.value += 1
        self.total.value += event.median
        if self.said.value % 100 == 0:
            ctx.emit(Level(event.plant, "", self.total.value / self.said.value))


def stations(sizes: Sizes) -> dict[str, Any]:
    """Measure events per second of one station and of several, in alternating runs of one session.

    Args:
        sizes: How much.

    Returns:
        Events per second of either (the median of the runs) and how they compare, pair by pair.
    """
    from millrace.runtime.session import local_cores, spark_session

    cores = local_cores("local[*]") or 1
    rates: dict[int, list[float]] = {1: [], sizes.stations: []}
    outcome: dict[int, Counter[str]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="millrace-stations-") as work,
        spark_session("bench-stations", master=f"local[{cores}]", log_file=Path(work) / "spark.log") as spark,
    ):
        folder = Path(work) / "events"
        write_events(sizes, folder)
        for pair in range(sizes.pairs):
            for count in sorted(rates, reverse=bool(pair % 2)):
                root = Path(work) / f"run-{pair}-{count}"
                rate, outcome[count] = _run(spark, sizes, folder, root, count)
                rates[count].append(rate)
    one, several = rates[1], rates[sizes.stations]
    ratios = [b / a for a, b in zip(one, several, strict=True)]
    return {
        "cores": cores,
        "one_events_per_s": statistics.median(one),
        "several_events_per_s": statistics.median(several),
        "ratio": statistics.median(ratios),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "correct": outcome[1] == outcome[sizes.stations],
    }


def write_events(sizes: Sizes, folder: Path) -> None:
    """Write the files of each batch."""
    folder.mkdir()
    for number in range(sizes.warm_batches + sizes.batches):
        rows = []
        for n in range(sizes.rows):
            place = (n * 7_919 + number * 104_729) % (sizes.plants * sizes.machines)
            plant, machine = divmod(place, sizes.machines)
            rows.append(
                {
                    "plant": f"plant-{plant:03}",
                    "machine": f"machine-{machine:03}",
                    "at": _START_MS + number * 1_000 + n % 1_000,
                    "value": (n * 31 + number) % 997,
                    "source": f"{number}:{n}",
                }
            )
        for part in range(_FILES):
            path = folder / f"{number:05}-{part}.json"
            path.write_bytes(b"\n".join(map(msgspec.json.encode, rows[part::_FILES])))
            os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))


def _run(
    spark: SparkSession, sizes: Sizes, folder: Path, root: Path, count: int
) -> tuple[float, Counter[str]]:
    """Run all batches; return events per second of those that are measured, and how much came out."""
    from millrace import keyed
    from millrace.host.spark_sink import write_to

    found: Counter[str] = Counter()

    def keep(frame: DataFrame, _batch: int) -> None:
        found.update(f"{row.plant} {row.median:.6f}" for row in frame.collect())

    with _partitions(spark, count):
        rows = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", _FILES).json(str(folder))
        stream = keyed(
            rows, by=("plant", "machine"), event_time="at", source_id="source", plan="station",
            stations=count, locality="plant",
        ).process(Machines()).key_by("plant").process(Plants())  # fmt: skip
        query = write_to(stream, {"main": keep}, root, trigger={"availableNow": True}, table_format="parquet")
        try:
            if not query.awaitTermination(900):
                raise BenchmarkFailed(f"{count} stations did not end in time")
        finally:
            query.stop()
    took = [p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]]
    measured = took[sizes.warm_batches :]
    if len(measured) != sizes.batches:
        raise BenchmarkFailed(f"{len(took)} batches ran, not {sizes.warm_batches + sizes.batches}")
    return sizes.rows * len(measured) / (sum(measured) / 1_000), found


@contextmanager
def _partitions(spark: SparkSession, count: int) -> Iterator[None]:
    from millrace.host.spark_partitions import PARTITIONS_CONF

    before = spark.conf.get(PARTITIONS_CONF)
    spark.conf.set(PARTITIONS_CONF, str(count))
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(PARTITIONS_CONF, before)


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what the run hangs on, for the report."""
    return asdict(sizes)
