"""A query's text over topics and tables as they grow: what comes out, and what Spark cannot stream."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from millrace.errors import UserError
from millrace.kafka.admin import SENT_TIME, TopicSpec, create_topics, delete_topics
from millrace.query.catalog import AppTable
from millrace.query.topics import AppTopic
from millrace.runtime.stream_sql import Into, NotStreamable, Streamed, stream
from millrace.testing.kafka import consume_all, produce

COLUMNS = "`card` STRING, `amount` DOUBLE, `event_time_ms` BIGINT"
MINUTE = 60_000


class Masked:
    """Hides cards, as an app's masking does."""

    def open(self) -> Masked:
        return self

    def messages(self, values: list[bytes], column: Any = None) -> list[bytes]:
        return [value.replace(b"secret", b"token") for value in values]

    def value(self, value: Any) -> Any:
        return value.replace(b"secret", b"token") if isinstance(value, bytes) else value


@pytest.fixture(scope="module")
def of(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streamed]:
    folder = tmp_path_factory.mktemp("tables")
    create_topics(kafka_bootstrap, {"sql.sales": TopicSpec(1, dict(SENT_TIME)), "sql.out": TopicSpec(1, {})})
    sales = [{"card": f"c{n % 3}", "amount": n / 2, "event_time_ms": n * MINUTE // 4} for n in range(40)]
    sales.append({"card": "secret-1", "amount": 1.0, "event_time_ms": 41 * MINUTE // 4})
    produce(kafka_bootstrap, "sql.sales", [(s["card"], json.dumps(s).encode()) for s in sales])
    write_deltalake(str(folder / "alerts"), pa.table({"card": ["c1", "c2"], "score": [0.9, 0.4]}))
    write_deltalake(str(folder / "cards"), pa.table({"card": ["c1", "c2"], "country": ["DE", "FR"]}))
    tables = [AppTable("shop", name, folder / name) for name in ("alerts", "cards")]
    topic = AppTopic("shop", "sql.sales", COLUMNS, "event_time_ms")
    kafka = {"kafka.bootstrap.servers": kafka_bootstrap}
    yield Streamed([topic], tables, frozenset({"shop.cards"}), kafka, {"shop": Masked()}, "1 second")
    delete_topics(kafka_bootstrap, ["sql.sales", "sql.out"])


Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def ask(spark: SparkSession, of: Streamed, tmp_path: Path) -> Ask:
    def asked(text: str, **into: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []

        def tell(_: Sequence[str], found: list[dict[str, Any]]) -> bool:
            rows.extend(found)
            return False

        where = Into(**into) if into else Into(tell)
        stream(spark, text, of, where, checkpoint=tmp_path / "checkpoint", until_end=True)
        return rows

    return asked


def test_a_topic_is_streamed_by_its_contract_and_its_apps_masking(ask: Ask) -> None:
    rows = ask(
        "SELECT card, amount, _event_time, _offset FROM topic.sql_sales WHERE amount >= 19 OR card LIKE '%-1'"
    )
    assert [(r["card"], r["amount"], r["_offset"]) for r in rows] == [
        ("c2", 19.0, 38), ("c0", 19.5, 39), ("token-1", 1.0, 40),
    ]  # fmt: skip
    assert rows[0]["_event_time"].isoformat() == "1970-01-01T00:09:30+00:00"


def test_windows_over_a_topic_are_written_once_they_are_complete(ask: Ask, tmp_path: Path) -> None:
    ask(
        "SELECT window.start AS start, count(*) AS n, sum(amount) AS total FROM topic.sql_sales "
        "GROUP BY window(_event_time, '2 minutes');",
        folder=tmp_path / "windows",
    )
    found = DeltaTable(str(tmp_path / "windows")).to_pyarrow_table().sort_by("start").to_pylist()
    wanted = [sum(n / 2 for n in range(first, first + 8)) for first in (0, 8, 16, 24, 32)]
    assert [(row["n"], row["total"]) for row in found] == [(8, total) for total in wanted]


def test_a_topic_beside_a_table_goes_into_a_topic(ask: Ask, kafka_bootstrap: str) -> None:
    ask(
        "SELECT s.card, country FROM topic.sql_sales s JOIN shop.cards c ON s.card = c.card WHERE amount < 2",
        topic="sql.out",
    )
    sent = sorted((m.value() or b"").decode() for m in consume_all(kafka_bootstrap, "sql.out"))
    assert sent == ['{"card":"c1","country":"DE"}', '{"card":"c2","country":"FR"}']


def test_a_table_that_is_appended_to_is_streamed(ask: Ask) -> None:
    rows = ask("SELECT card FROM shop.alerts WHERE score > 0.5")
    assert rows == [{"card": "c1"}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT * FROM shop.cards", "nothing in it is a stream"),
        ("SELECT 1", "nothing in it is a stream"),
        ("SELECT * FROM topic.sql_sales ORDER BY amount", "cannot stream this"),
        (
            "SELECT card, row_number() OVER (PARTITION BY card ORDER BY amount) FROM topic.sql_sales",
            "cannot stream this",
        ),
        ("SELECT * FROM topic.sql_sale", "did you mean topic.sql_sales?"),
        ("SELECT nothing FROM topic.sql_sales", "nothing"),
        (
            "SELECT * FROM topic.sql_sales s JOIN shop.cards c ON s.card = c.card",
            "more than one column is called card",
        ),
        ("SELEC 1", "Syntax error at or near 'SELEC'"),
        ("DROP VIEW x", "Syntax error at or near 'DROP'"),
        ("CREATE TABLE x AS SELECT 1", "Syntax error at or near 'CREATE'"),
    ],
)
def test_what_cannot_be_streamed_is_refused_in_a_line(ask: Ask, text: str, said: str) -> None:
    with pytest.raises(UserError) as raised:
        ask(text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_what_is_no_complete_row_is_not_appended(ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(NotStreamable, match="cannot stream this"):
        ask("SELECT card, count(*) FROM topic.sql_sales GROUP BY card", folder=tmp_path / "x.parquet")
    assert len(ask("SELECT card, count(*) n FROM topic.sql_sales GROUP BY card")) == 4


def test_new_keys_are_told_as_they_come(ask: Ask) -> None:
    told = [row["card"] for row in ask("SELECT DISTINCT card FROM topic.sql_sales WHERE amount > 1")]
    assert sorted(told) == ["c0", "c1", "c2"]


def test_sessions_are_told_once_they_are_complete(ask: Ask) -> None:
    rows = ask(
        "SELECT count(*) AS n FROM topic.sql_sales WHERE card <> 'c0' OR amount < 4 "
        "GROUP BY card, session_window(_event_time, '50 seconds')"
    )
    # Of c0 and c1; that of c2 is open yet, and so is that of the newest event.
    assert sorted(row["n"] for row in rows) == [3, 13]


def test_first_rows_beside_an_aggregation_of_a_table(ask: Ask) -> None:
    rows = ask("SELECT card, (SELECT count(*) FROM shop.cards) AS many FROM topic.sql_sales LIMIT 2")
    assert [row["many"] for row in rows] == [2, 2]


def test_a_join_of_two_topics_goes_on_from_a_checkpoint(
    spark: SparkSession, of: Streamed, kafka_bootstrap: str, tmp_path: Path
) -> None:
    """The oracle joins all that was sent; what has been told is not told again.

    sales   c1@60                    c1@195               c1@285
    refunds        c1@65 | restart |        c1@196, c1@300 (too late for it)
    """
    create_topics(kafka_bootstrap, {"sql.refunds": TopicSpec(1, dict(SENT_TIME))})
    topics = [*of.topics, AppTopic("shop", "sql.refunds", COLUMNS, "event_time_ms")]
    text = (
        "SELECT s.amount AS sale, r.amount AS refund FROM topic.sql_sales s JOIN topic.sql_refunds r "
        "ON s.card = r.card AND r._event_time BETWEEN s._event_time AND s._event_time + INTERVAL 10 SECONDS"
    )
    told: list[list[tuple[float, float]]] = []
    for refunds in ([(65, 1.5)], [(196, 2.5), (300, 3.5)], []):
        sent = [{"card": "c1", "amount": amount, "event_time_ms": at * 1_000} for at, amount in refunds]
        produce(kafka_bootstrap, "sql.refunds", [("c1", json.dumps(one).encode()) for one in sent])
        rows: list[tuple[float, float]] = []

        def tell(_: Sequence[str], found: list[dict[str, Any]], rows: list[Any] = rows) -> bool:
            rows.extend((row["sale"], row["refund"]) for row in found)
            return False

        asked = dataclasses.replace(of, topics=topics)
        stream(spark, text, asked, Into(tell), checkpoint=tmp_path / "checkpoint", until_end=True)
        told.append(rows)
    delete_topics(kafka_bootstrap, ["sql.refunds"])
    assert told == [[(2.0, 1.5)], [(6.5, 2.5)], []]


def test_rows_that_are_erased_from_a_table_end_no_query(
    spark: SparkSession, of: Streamed, tmp_path: Path
) -> None:
    """What is left of the file that a row was erased from is not told again."""
    place = tmp_path / "visits"
    write_deltalake(str(place), pa.table({"card": ["c1", "c2"]}))
    asked = dataclasses.replace(of, tables=[*of.tables, AppTable("shop", "visits", place)])
    told: list[list[str]] = []
    for more in ((), ("c3",)):
        if more:
            DeltaTable(str(place)).delete("card = 'c1'")
            write_deltalake(str(place), pa.table({"card": list(more)}), mode="append")
        rows: list[str] = []

        def tell(_: Sequence[str], found: list[dict[str, Any]], rows: list[str] = rows) -> bool:
            rows.extend(row["card"] for row in found)
            return False

        text = "SELECT card FROM shop.visits"
        stream(spark, text, asked, Into(tell), checkpoint=tmp_path / "checkpoint", until_end=True)
        told.append(sorted(rows))
    assert told == [["c1", "c2"], ["c3"]]
