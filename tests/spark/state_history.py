"""A query with state of every kind, stopped and reshaped beside a host that never stops."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace import KeyedProcess, keyed
from millrace.checkpoints.checkpoint import Checkpoint
from millrace.checkpoints.entries import EntryReader, key_name
from millrace.host.spark import ProcessedStream
from millrace.host.spark_input import Plan
from millrace.runtime.contract import check_contract
from tests.spark.conftest import Stream, one_partition
from tests.spark.golden_checkpoint import BOUND, SCHEMA, Everything, batches
from tests.spark.mirror import Mirror, comparable, to_row


class History:
    """A query with state of every kind that is stopped and reshaped, beside the host that never stops."""

    def __init__(self, spark: SparkSession, folder: Path, key_groups: int = 4) -> None:
        self.spark, self.key_groups = spark, key_groups
        self.plan: Plan = "chain"
        self.stations = 1
        self.process: KeyedProcess[Any, Any] = Everything()
        self.stream = Stream(spark, folder, SCHEMA, self._build)
        self.mirror = Mirror(Everything(), BOUND)
        self.emitted: list[Any] = []

    def _build(self, df: DataFrame) -> ProcessedStream:
        return keyed(
            df, by="who", event_time="at", value="value", out_of_orderness=BOUND, source_id="source",
            control=F.col("control"), key_groups=self.key_groups, plan=self.plan, stations=self.stations,
            locality="who",
        ).process(self.process)  # fmt: skip

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.stream.checkpoint.parent, self.stream.checkpoint)

    def run(self, *some: list[Any]) -> None:
        """Run batches in a query that is started for them."""
        for batch in some:
            self.stream.add([to_row(item) for item in batch])
            self.mirror.batch(batch, key="who", at="at")
        self.mirror.end_run()
        with one_partition(self.spark, self.stations) if self.plan == "station" else nullcontext():
            self.stream.run()
        assert self.stream.output is not None
        check_contract_of(self.checkpoint.root, self.stream.output)
        self.emitted += self.stream.emitted
        self.stream.batches.clear()

    def agrees(self) -> None:
        assert comparable(self.emitted) == comparable(self.mirror.runner.emissions)

    def kept(self) -> dict[str, Any]:
        """Return what the host keeps, as it should be shown."""
        reader = EntryReader(self.mirror.runner.layout.schema)
        return {key_name(k): reader.read(c.body).as_data() for k, c in self.mirror.store.cells.items()}


def check_contract_of(root: Path, output: ProcessedStream) -> None:
    # The contract is written beside the checkpoint by what starts a query; here the test starts it.
    if (root / "contract.json").exists():
        check_contract(root, output.contract())
        return
    check_contract(root / "made", output.contract())
    (root / "made" / "contract.json").rename(root / "contract.json")


ALL = [*batches("before"), *batches("after")]


def snapshot_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
