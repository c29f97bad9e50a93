"""A benchmark as a case: jobs of ours, an oracle that says what must come out, rivals that do the same."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from millrace_apps.benchmarks.digest import Digest
from millrace_apps.benchmarks.inputs import Events, make_events, write_batches
from millrace_apps.benchmarks.streams import combined, figures, read_batches, run_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millrace import KeyedProcess

Input = Literal["columns", "json"]

#: Card's number from its name.
CARD = "cast(substring(card, 2) as bigint)"


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        rows: Events.
        keys: Different keys.
        batches: Batches, the first to warm up included.
        repeats: Runs of each system, in alternating order; figures are medians.
        input: What ours reads: typed ``columns`` as the others do, or the same events as ``json`` bytes.
    """

    rows: int
    keys: int = 50_000
    batches: int = 8
    repeats: int = 1
    input: Input = "json"

    @property
    def with_json(self) -> bool:
        """Whether the files have each event as JSON, too."""
        return self.input == "json"


S = TypeVar("S", bound=Sizes)


@dataclass(frozen=True)
class System:
    """Something that is measured.

    Attributes:
        folders: Files of the streams that it reads.
        cuts: Where the batches of all of them together begin, and the end of the last.
        frame: Makes its result from the streams.
        expected: The digest of what must come out.
        columns: What of the result is compared, in SQL.
        where: Which of its rows are, in SQL: what the events make that complete the others is left out.
        mode: Spark's output mode.
        more: Further figures of it that are known beforehand.
    """

    folders: Sequence[Path]
    cuts: Sequence[int]
    frame: Callable[..., DataFrame]
    expected: Digest
    columns: Sequence[str]
    where: str = "true"
    mode: str = "append"
    more: Mapping[str, Any] = field(default_factory=dict)

    def measure(self, spark: SparkSession, checkpoint: Path) -> dict[str, Any]:
        """Run it once and return its figures."""
        frame = self.frame(*(read_batches(spark, folder) for folder in self.folders))
        run = run_query(frame, checkpoint, columns=self.columns, where=self.where, mode=self.mode)
        return {**figures(run, self.cuts, correct=run.digest == self.expected), **self.more}


@dataclass(frozen=True)
class Case(Generic[S]):
    """Systems that are measured side by side, on the same events.

    Attributes:
        sizes: How much is run.
        quick: How much, where only the results matter.
        systems: Writes the input into a folder and returns the systems, ours first.
        ratios: Ratio of the report → the system whose speed is divided, and by which system's.
        about: What the report says of the job.
        warm_up: What is done before the first system runs.
        finish: Sizes and report → the whole report.
    """

    sizes: S
    quick: S
    systems: Callable[[S, Path], Mapping[str, System]]
    ratios: Mapping[str, tuple[str, str]]
    about: Callable[[S], Mapping[str, Any]]
    warm_up: Callable[[SparkSession, S, Path], None] = lambda *_: None
    finish: Callable[[S, dict[str, Any]], dict[str, Any]] = lambda _, report: report

    def run(self, sizes: S) -> dict[str, Any]:
        """Run all systems by turns and return their figures, and their ratios if there are rivals."""
        with tempfile.TemporaryDirectory(prefix="millrace-bench-") as name:
            folder = Path(name)
            systems = self.systems(sizes, folder / "in")
            runs: dict[str, list[dict[str, Any]]] = {system: [] for system in systems}
            with bench_session(folder) as spark:
                self.warm_up(spark, sizes, folder / "warm-up")
                for repeat in range(sizes.repeats):
                    for system in list(systems)[:: 1 if repeat % 2 == 0 else -1]:
                        checkpoint = folder / f"{system}-{repeat}"
                        runs[system].append(systems[system].measure(spark, checkpoint))
        found = {system: combined(of) for system, of in runs.items()}
        ratios = {"ratios": self.ratios_of(found)} if self.ratios else {}
        return self.finish(sizes, {"systems": found, **ratios})

    def ratios_of(self, systems: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
        """Return how many times faster one system is than another.

        Args:
            systems: Figures by system.
        """
        speed = {name: float(found["rows_per_s"]) for name, found in systems.items()}
        return {ratio: speed[one] / speed[other] for ratio, (one, other) in self.ratios.items()}

    def configuration(self, sizes: S) -> dict[str, Any]:
        """Return what the run hangs on, for the report."""
        return {**asdict(sizes), **self.about(sizes), "exponent": 1.1, "settings": streaming_settings()}


def over(*pairs: tuple[str, str]) -> dict[str, tuple[str, str]]:
    """Return ratios by their names.

    >>> over(("process", "spark_native"))
    {'process_over_spark_native': ('process', 'spark_native')}
    """
    return {f"{one}_over_{other}": (one, other) for one, other in pairs}


def on_purchases(
    jobs: Mapping[str, Callable[[], KeyedProcess[Any, Any]]],
    oracle: Callable[[Events], Digest],
    columns: Sequence[str],
    rivals: Mapping[str, Callable[[DataFrame], DataFrame]],
    where: Callable[[Events], str],
) -> Callable[[Sizes, Path], Mapping[str, System]]:
    """Return the systems of a case that reads card purchases, and two more that complete every window.

    Args:
        jobs: System → its process, ours.
        oracle: The purchases → the digest of what must come out.
        columns: What of the results is compared, in SQL.
        rivals: System → what Spark's own operators make of the purchases.
        where: The purchases → which rows count, in SQL.
    """

    def systems(sizes: Sizes, folder: Path) -> Mapping[str, System]:
        events = make_events(sizes.rows, sizes.keys)
        cuts = write_batches(folder, events, sizes.batches, with_json=sizes.with_json, closing=True)
        frames = {name: partial(ours, job(), sizes.input) for name, job in jobs.items()} | dict(rivals)
        wanted = oracle(events)
        return {
            name: System([folder], cuts, frame, wanted, columns, where(events))
            for name, frame in frames.items()
        }

    return systems


def ours(process: KeyedProcess[Any, Any], kind: Input, events: DataFrame) -> DataFrame:
    """Return the main output of a process over the events as typed columns."""
    from millrace import keyed

    if kind == "json":
        stream = keyed(events, by="card", event_time="at", value="value")
    else:
        stream = keyed(events, by="card", event_time="at")
    return stream.process(process)["main"]


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


def streaming_settings() -> dict[str, str]:
    """Return the settings of state and checkpoint, the same for all systems."""
    from millrace.runtime.defaults import LOCAL_DEFAULTS, STREAMING_DEFAULTS

    of_state = {n: d.value for n, d in STREAMING_DEFAULTS.items() if n.startswith("spark.sql.streaming.")}
    return of_state | {n: d.value for n, d in LOCAL_DEFAULTS.items()}
