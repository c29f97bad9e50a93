"""What a plan takes from a Kafka record beside its value: versions, key, timestamp, headers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec
import pytest
from pyspark.sql import SparkSession

from millrace import Context, KeyedProcess, arrival, keyed
from millrace.topology import KeyingError

START = 1_767_225_600_000
SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>, source_id string"
)


class Order(msgspec.Struct, frozen=True):
    user: str
    at: int
    n: int = 0


class Orders(KeyedProcess[Order, int]):
    """Emits the number of an order."""

    order = arrival(commutes=True)

    def process(self, event: Order, ctx: Context) -> None:
        if event.n == 13:
            raise ValueError("thirteen")
        ctx.emit(event.n)


def record(offset: int, value: bytes, headers: dict[str, bytes] | None) -> tuple[Any, ...]:
    kept = None if headers is None else list(headers.items())
    when = datetime.fromtimestamp(START / 1000, UTC) + timedelta(milliseconds=offset)
    return b"k%d" % offset, value, "orders", 0, offset, when, kept, f"orders:0:{offset}"


def order(n: int, at: int = START) -> bytes:
    return msgspec.json.encode(Order("u", at, n))


#: Value, headers, and what comes of it.
CASES: list[tuple[bytes, dict[str, bytes] | None, int | str]] = [
    (order(1), {"ce_id": b"a", "schema_version": b"1"}, 1),
    (order(2), {"schema_version": b"2"}, 2),
    (order(3), {"schema_version": b"999", "ce_id": b"b"}, "unknown_version"),
    (order(4), {"ce_id": b"c"}, 4),
    (order(5), {}, 5),
    (order(6), None, 6),
    (b"no JSON", {"schema_version": b"9"}, "unknown_version"),
    (order(7), {"schema_version": b"\xff"}, "unknown_version"),
    (b"no JSON", {"schema_version": b"1"}, "malformed"),
    (order(8, START + 3_600_000), {"schema_version": b"1"}, "future"),
    (order(13), {"schema_version": b"1"}, "process_error"),
]


@pytest.mark.parametrize("keep", ["all", "unreadable"])
def test_versions_are_judged_and_dead_letters_keep_key_time_and_headers(
    spark: SparkSession, keep: Literal["all", "unreadable"]
) -> None:
    rows = [record(offset, value, headers) for offset, (value, headers, _) in enumerate(CASES)]
    outputs = keyed(
        spark.createDataFrame(rows, SCHEMA),
        value="value",
        by="user",
        event_time="at",
        source_id="source_id",
        headers="headers",
        keep_headers=keep,
        record_key="key",
        arrived_at="timestamp",
        max_future_skew="1 minute",
        versions=("1", "2"),
        key_groups=4,
    ).process(Orders())
    assert sorted(row.value for row in outputs["main"].collect()) == [
        found for *_, found in CASES if isinstance(found, int)
    ]
    letters = {row.offset: row for row in outputs["dead_letters"].collect()}
    expected = {n: found for n, (*_, found) in enumerate(CASES) if isinstance(found, str)}
    assert {offset: row.reason for offset, row in letters.items()} == expected
    for offset, row in letters.items():
        if keep == "unreadable" and row.reason == "process_error":
            assert (row.kafka_key, row.timestamp_ms, row.headers) == (None, None, None)
            continue
        assert (bytes(row.kafka_key), row.timestamp_ms) == (b"k%d" % offset, START + offset)
        texts = {n: v.decode(errors="backslashreplace") for n, v in (CASES[offset][1] or {}).items()}
        assert msgspec.json.decode(row.headers) == texts
    assert letters[2].error == "schema_version 999 is none that is read here"


def test_versions_without_headers_are_refused(spark: SparkSession) -> None:
    df = spark.createDataFrame([record(0, b"{}", None)], SCHEMA)
    with pytest.raises(KeyingError, match="versions need `headers`"):
        keyed(df, value="value", by="user", event_time="at", versions=("1",))
