"""`millrace bench savepoint`: a million keys written from a table, kept, restored, looked up and re-keyed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millrace import Context, KeyedProcess, arrival, value_state
from millrace_apps.benchmarks.streams import BenchmarkFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.host.spark import ProcessedStream


@dataclass(frozen=True)
class Sizes:
    """How much state.

    Attributes:
        keys: Keys.
        text: Characters of text that each keeps, beside a number.
        key_groups: Key groups to begin with, and after re-keying four times as many.
    """

    keys: int = 1_000_000
    text: int = 60
    key_groups: int = 64


QUICK = Sizes(keys=10_000)


class Payment(msgspec.Struct):
    """An event; none comes."""

    card: str
    at: int


class Cards(KeyedProcess[Payment, int]):
    """Keeps a number and a text for each card."""

    order = arrival(commutes=True)
    total = value_state(int, default=0)
    note = value_state(str)

    def process(self, event: Payment, ctx: Context) -> None:
        """Count."""
        self.total.value += 1


def savepoint(sizes: Sizes) -> dict[str, Any]:
    """Measure savepoints and what goes with them.

    Args:
        sizes: How much state.

    Raises:
        BenchmarkFailed: What is restored is not what was kept.
    """
    from millrace.checkpoints import savepoints
    from millrace.checkpoints.checkpoint import Checkpoint

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        root, restored = Path(folder) / "query", Path(folder) / "restored"
        checkpoint = Checkpoint(root, root / "checkpoint")
        with _session(Path(folder) / "spark.log") as spark, _timed(found, "bootstrap_s"):
            _fill(spark, root, sizes)
        with _timed(found, "savepoint_s"):
            made = savepoints.create(checkpoint)
        found["savepoint_mb"] = made.bytes / 1e6
        with _timed(found, "restore_s"):
            savepoints.restore(made, restored)
        # As a command: with the start of Python and of the JVM.
        with _timed(found, "show_one_key_s"):
            shown = _command("state", "show", str(restored), "-k", f"card-{sizes.keys // 2}", "-f", "json")
        with _timed(found, "list_s"):
            listed = _command("state", "list", str(restored), "-f", "json")
        with _timed(found, "key_groups_s"):
            _command("rescale", str(restored), "--key-groups", str(4 * sizes.key_groups))
        again = _command("state", "list", str(restored), "-f", "json")
    entries = [data["processes"][0]["entries"] for data in (listed, again)]
    if entries != [sizes.keys] * 2 or shown["states"]["total"] != sizes.keys // 2:
        raise BenchmarkFailed(f"{sizes.keys} keys were kept, {entries} are there: {shown}")
    return {**found, "correct": True}


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what the benchmark is run with."""
    return asdict(sizes)


@contextmanager
def _timed(found: dict[str, Any], name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    found[name] = time.monotonic() - began


@contextmanager
def _session(log: Path) -> Iterator[SparkSession]:
    from millrace.runtime.session import spark_session

    with spark_session("bench-savepoint", master="local[*]", driver_memory="2g", log_file=log) as spark:
        yield spark


def _fill(spark: SparkSession, root: Path, sizes: Sizes) -> None:
    from pyspark.sql import functions as F

    from millrace.checkpoints.bootstrap import bootstrap

    number = F.col("id")
    text = F.substring(F.repeat(F.md5(number.cast("string")), sizes.text // 32 + 1), 1, sizes.text)
    rows = spark.range(sizes.keys).select(
        F.concat(F.lit("card-"), number).alias("card"), number.alias("total"), text.alias("note")
    )
    bootstrap(_stream(spark, root.parent / "input", sizes), rows, root)


def _stream(spark: SparkSession, folder: Path, sizes: Sizes) -> ProcessedStream:
    from millrace import keyed

    folder.mkdir()
    df = spark.readStream.schema("card string, at bigint").json(str(folder))
    return keyed(df, by="card", event_time="at", key_groups=sizes.key_groups).process(Cards())


def _command(*arguments: str) -> Any:
    """Run a command of ours; return what it printed, as data where it is JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "millrace", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchmarkFailed(f"millrace {' '.join(arguments)}: {done.stderr.strip()}")
    return json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout
