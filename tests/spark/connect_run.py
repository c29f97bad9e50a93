"""A library's use over Spark Connect, in a process of its own: one session of either kind per process."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from millrace import keyed
from millrace.host.spark import ProcessedStream
from tests.spark.test_write_to import SCHEMA, START, Balances


def main() -> None:
    """Run the process over a table, a stream, and into tables; print what each gave."""
    spark = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps({"session": type(spark).__module__, **found(spark, Path(folder))}))
    finally:
        spark.stop()


def found(spark: SparkSession, folder: Path) -> dict[str, list[list[object]]]:
    """Return user and total of each record, by how they came to be."""
    payments = [("a", START, 5), ("b", START + 1, 7), ("a", START + 2, 7)]
    spark.createDataFrame(payments, SCHEMA).write.json(str(folder / "in"))

    def balances(bounded: bool) -> ProcessedStream:
        reader = spark.read if bounded else spark.readStream
        df = reader.schema(SCHEMA).json(str(folder / "in"))
        return keyed(df, by="user", event_time="at", key_groups=2).process(Balances())

    now = {"availableNow": True}
    query = balances(False).write_to({"main": folder / "out"}, folder / "checkpoint", trigger=now)
    assert query.awaitTermination(120)
    streamed = (
        balances(False)["main"].writeStream.format("memory").queryName("balances")
        .option("checkpointLocation", str(folder / "other")).trigger(**now).start()
    )  # fmt: skip
    assert streamed.awaitTermination(120)
    frames = {
        "bounded": balances(True)["main"],
        "written": spark.read.parquet(str(folder / "out")),
        "streamed": spark.table("balances"),
    }
    return {how: sorted([r.user, r.total] for r in df.collect()) for how, df in frames.items()}


if __name__ == "__main__":
    main()
