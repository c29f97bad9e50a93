"""Tables whose files became few are to Spark what they were: rows, types, what is left out, what is new."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.connectors.gathering import files_of, gather_files, is_gathered
from millrace.dashboard.tables import DeltaReader
from millrace.privacy.erasure import delete_where
from tests.unit.millrace.connectors.test_gathering import append, row


def gathered(folder: Path) -> None:
    opened = DeltaTable(str(folder))
    assert gather_files(opened, folder, files_of(opened))


def test_spark_reads_the_same_rows_and_leaves_out_none(spark: SparkSession, tmp_path: Path) -> None:
    for n in range(4):
        append(tmp_path / "t", n * 3, n * 3 + 1, n * 3 + 2)

    def read() -> DataFrame:
        return spark.read.format("delta").load(str(tmp_path / "t"))

    before = (read().dtypes, [str(one) for one in read().orderBy("n").collect()])
    gathered(tmp_path / "t")
    assert all(is_gathered(file.name) for file in files_of(DeltaTable(str(tmp_path / "t"))))
    assert (read().dtypes, [str(one) for one in read().orderBy("n").collect()]) == before
    for n in (0, 5, 11):
        at = row(n)["at"].astimezone(UTC)
        assert [one.n for one in read().where(F.col("n") == n).collect()] == [n]
        assert [one.n for one in read().where(F.col("at") == F.lit(at)).collect()] == [n]
    none = datetime(2020, 1, 1, tzinfo=UTC)
    assert read().where((F.col("n") > 11) | (F.col("at") < F.lit(none))).count() == 0


def test_a_stream_of_a_table_is_given_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    found: list[int] = []

    def take(batch: DataFrame, _: int) -> None:
        found.extend(one.n for one in batch.select("n").collect())

    def catch_up() -> None:
        stream = spark.readStream.format("delta").option("ignoreChanges", "false").load(str(tmp_path / "t"))
        options: dict[str, Any] = {"checkpointLocation": str(tmp_path / "checkpoint")}
        stream.writeStream.foreachBatch(take).options(**options).trigger(
            availableNow=True
        ).start().awaitTermination()

    append(tmp_path / "t", 0, 1)
    append(tmp_path / "t", 2)
    catch_up()
    gathered(tmp_path / "t")
    append(tmp_path / "t", 3)
    catch_up()
    append(tmp_path / "t", 4)
    gathered(tmp_path / "t")
    catch_up()
    assert sorted(found) == [0, 1, 2, 3, 4]


def test_what_both_writers_have_written_is_read_gathered_and_deleted_from(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "t"
    append(folder, 0, 1)
    far = datetime(9999, 12, 31, 1, 2, 3, 123456, UTC)
    rows = spark.read.format("delta").load(str(folder)).where(F.col("n") < 100)
    for n in (100, 200):
        later = rows.withColumn("n", F.col("n") + n).withColumn("at", F.lit(far))
        later.coalesce(1).write.format("delta").mode("append").save(str(folder))
    wanted = [row(0), row(1), *({**row(n % 100), "n": n, "at": far} for n in (100, 101, 200, 201))]

    def told() -> list[dict[str, Any]]:
        return DeltaReader(folder, lambda: 0).latest(9, list(row(0))).to_pylist()

    assert told() == wanted
    gathered(folder)
    assert told() == wanted
    assert delete_where(folder, {"kind": ["k1"]}) == 3
    assert told() == [one for one in wanted if one["kind"] != "k1"]
    left = spark.read.format("delta").load(str(folder)).where(F.col("at") == F.lit(far)).select("n").collect()
    assert sorted(one.n for one in left) == [100, 200]


@pytest.mark.parametrize("command", ["OPTIMIZE delta.`{}`", "DELETE FROM delta.`{}` WHERE n = 3"])
def test_spark_changes_what_was_gathered(spark: SparkSession, tmp_path: Path, command: str) -> None:
    for n in range(3):
        append(tmp_path / "t", n * 2, n * 2 + 1)
    gathered(tmp_path / "t")
    append(tmp_path / "t", 6)
    spark.sql(command.format(tmp_path / "t"))
    append(tmp_path / "t", 7)
    gathered(tmp_path / "t")
    found = spark.read.format("delta").load(str(tmp_path / "t")).select("n").collect()
    assert sorted(one.n for one in found) == [n for n in range(8) if n != 3 or "DELETE" not in command]
