"""`write_to`: one query writes several outputs, and a batch that runs again changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from millrace import Context, KeyedProcess, arrival, keyed, side_output, value_state
from millrace.host.spark import ProcessedStream
from millrace.host.spark_sink import SinkError, Target, write_to
from millrace.runtime.contract import ContractMismatch

START = 1_700_000_000_000
SCHEMA = "user string, at bigint, amount bigint"
NOW = {"availableNow": True}


class Payment(msgspec.Struct):
    user: str
    at: int
    amount: int


class Balance(msgspec.Struct):
    user: str
    total: int


class Balances(KeyedProcess[Payment, Balance]):
    order = arrival(commutes=True)
    total = value_state(int, default=0)
    large = side_output(Balance)
    texts = side_output(str)

    def process(self, event: Payment, ctx: Context) -> None:
        if event.amount < 0:
            raise ValueError("negative")
        self.total.value += event.amount
        ctx.emit(Balance(ctx.key, self.total.value))
        if event.amount > 100:
            ctx.output(self.large, Balance(ctx.key, event.amount))


class Renamed(Balances):
    name = "Other"


class Last(KeyedProcess[Balance, Balance]):
    order = arrival(commutes=True)

    def process(self, event: Balance, ctx: Context) -> None:
        ctx.emit(event)


class Input:
    """A folder that is read as a stream, a file per batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder, self._files = spark, folder, 0
        folder.mkdir()

    def add(self, *payments: tuple[str, int, int]) -> None:
        lines = [msgspec.json.encode(Payment(user, START + at, amount)) for user, at, amount in payments]
        (self._folder / f"{self._files:05}.json").write_bytes(b"\n".join(lines))
        self._files += 1

    def stream(self, process: KeyedProcess[Any, Any] | None = None) -> ProcessedStream:
        df = self._spark.readStream.schema(SCHEMA).json(str(self._folder))
        return keyed(df, by="user", event_time="at", key_groups=2).process(process or Balances())


@pytest.fixture
def payments(spark: SparkSession, tmp_path: Path) -> Input:
    return Input(spark, tmp_path / "input")


def run(payments: Input, outputs: dict[str, Target], checkpoint: Path, table_format: Any = "parquet") -> None:
    query = write_to(payments.stream(), outputs, checkpoint, trigger=NOW, table_format=table_format)
    try:
        assert query.awaitTermination(120), "the query does not end"
    finally:
        query.stop()


def totals(table: DataFrame) -> list[tuple[str, int]]:
    return sorted((row.user, row.total) for row in table.select("user", "total").collect())


class Failing:
    """Takes the records of a batch, and fails at the second one, once."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, list[tuple[str, int]]]] = []

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        self.seen.append((batch_id, totals(rows)))
        if len(self.seen) == 2:
            raise OSError("the disk is full")


@pytest.mark.parametrize(
    ("table_format", "read"),
    [
        pytest.param("parquet", lambda spark, path: spark.read.parquet(path), marks=pytest.mark.matrix),
        ("delta", lambda spark, path: spark.read.format("delta").load(path)),
    ],
)
def test_a_batch_that_runs_again_leaves_every_record_once(
    spark: SparkSession,
    payments: Input,
    tmp_path: Path,
    table_format: str,
    read: Callable[[SparkSession, str], DataFrame],
) -> None:
    table, letters = str(tmp_path / "balances"), tmp_path / "letters"
    function = Failing()
    outputs: dict[str, Target] = {"main": table, "dead_letters": letters, "large": function}
    payments.add(("ann", 1, 500), ("bob", 2, 20))
    run(payments, outputs, tmp_path / "state", table_format)
    assert read(spark, str(letters)).count() == 0  # a table is there before its first record is
    payments.add(("ann", 3, 7), ("bob", 4, -1), ("bob", 5, 900))
    with pytest.raises(StreamingQueryException, match="the disk is full"):
        run(payments, outputs, tmp_path / "state", table_format)
    # The table has the batch, and the checkpoint has not: the next start runs it again.
    assert totals(read(spark, table)) == [("ann", 500), ("ann", 507), ("bob", 20), ("bob", 920)]
    run(payments, outputs, tmp_path / "state", None)
    assert totals(read(spark, table)) == [("ann", 500), ("ann", 507), ("bob", 20), ("bob", 920)]
    assert [r.error for r in read(spark, str(letters)).collect()] == ["ValueError: negative"]
    first, failed, repeated = function.seen
    assert first == (0, [("ann", 500)])
    assert failed == repeated == (failed[0], [("bob", 900)])


def test_another_checkpoint_does_not_write_over_the_batches_of_the_first(
    spark: SparkSession, payments: Input, tmp_path: Path
) -> None:
    table = tmp_path / "balances"
    payments.add(("ann", 1, 5))
    for state in ("one", "two"):
        run(payments, {"main": table}, tmp_path / state)
    assert totals(spark.read.parquet(str(table))) == [("ann", 5), ("ann", 5)]


def test_outputs_of_one_path_are_one_table_and_what_is_left_out_is_told(
    spark: SparkSession, payments: Input, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "both"
    payments.add(("ann", 1, 500), ("ann", 2, -3), ("ann", 3, -4))
    with caplog.at_level(logging.WARNING, "millrace.write_to"):
        run(payments, {"main": table, "large": table}, tmp_path / "state")
    assert totals(spark.read.parquet(str(table))) == [("ann", 500), ("ann", 500)]
    assert [r.getMessage() for r in caplog.records] == [
        "batch 0: records without a target are not written: 2 of dead_letters"
    ]


def test_a_checkpoint_of_another_process_is_refused(payments: Input, tmp_path: Path) -> None:
    payments.add(("ann", 1, 5))
    run(payments, {"main": tmp_path / "balances"}, tmp_path / "state")
    with pytest.raises(ContractMismatch, match='process was "Balances", is now "Other"'):
        write_to(payments.stream(Renamed()), {"main": tmp_path / "balances"}, tmp_path / "state")


def test_partitions_that_only_cost_time_are_told_once_for_a_query(
    spark: SparkSession, payments: Input, caplog: pytest.LogCaptureFixture
) -> None:
    stream = payments.stream()
    chain = stream.key_by("user", key_groups=256).process(Last())
    right = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", 200)
    try:
        with caplog.at_level(logging.WARNING, "millrace.keyed"):
            _ = stream["main"], stream["large"], chain["main"]
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", right)
    told = [r.getMessage().split(", ")[0] for r in caplog.records if r.name == "millrace.keyed"]
    assert told == [
        "spark.sql.shuffle.partitions is 200: only 2 key groups share them",
        "spark.sql.shuffle.partitions is 200: there are 2 cores",
    ]


@pytest.mark.parametrize(
    ("outputs", "checkpoint", "message"),
    [
        ({}, "state", "no output is to be written; the stream has main"),
        ({"balances": "x"}, "state", "no output balances; the stream has main"),
        ({"main": "x", "texts": "x"}, "state", "main and texts both go to x and have different columns"),
        ({"main": "x"}, "s3://bucket/state", "not on a mounted file system"),
    ],
)
def test_targets_that_do_not_fit_are_refused_before_anything_starts(
    payments: Input, outputs: dict[str, Target], checkpoint: str, message: str
) -> None:
    with pytest.raises(SinkError, match=message):
        write_to(payments.stream(), outputs, checkpoint)


def test_a_table_keeps_its_format(payments: Input, tmp_path: Path) -> None:
    (tmp_path / "balances" / "batch=1-00000000").mkdir(parents=True)
    with pytest.raises(SinkError, match="is a parquet table, not delta"):
        write_to(payments.stream(), {"main": tmp_path / "balances"}, tmp_path / "state", table_format="delta")


def test_a_bounded_input_has_no_query(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame([("ann", START, 1)], SCHEMA)
    stream = keyed(df, by="user", event_time="at").process(Balances())
    with pytest.raises(SinkError, match="the input is bounded"):
        write_to(stream, {"main": tmp_path / "x"}, tmp_path / "state")
