"""The fraud app on a real broker and real tables, compared with a batch computation of the same stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from generators.engine import Generated
from generators.fraud import FraudProfile, fraud_events
from millrace.testing.kafka import TopicFactory
from tests.e2e.conftest import Reference
from tests.e2e.fraud_runs import (
    TABLES,
    check_same_tables,
    check_tables,
    check_topics,
    committed_batches,
    run_to_end,
    table,
)
from tests.e2e.fraud_stream import FraudStream, FraudTopics, fault_of, ordered_stream

HOUR = 3_600_000


def test_tables_are_those_of_a_batch_computation_and_topics_those_of_the_tables(
    reference: Reference, kafka_bootstrap: str
) -> None:
    stream, topics, root, said = reference
    assert len(committed_batches(root)) >= 5
    check_tables(stream, topics, root)
    check_topics(kafka_bootstrap, topics, root)
    assert f"{sum(len(table(root, name)) for name in TABLES):,} records written" in said


def test_the_stream_has_in_it_what_these_tests_are_about() -> None:
    stream = ordered_stream()
    unset = FraudStream(stream.messages)
    assert 20 < len(stream.alerts) < len(unset.alerts), "the control event must change what is an alert"
    letters = stream.dead_letters(FraudTopics("in", "control", "alerts", "dlq"))
    reasons = Counter(reason for reason, *_ in letters.values())
    assert reasons.keys() == {"malformed", "schema", "duplicate", "process_error"}
    assert min(reasons["malformed"], reasons["schema"], reasons["duplicate"]) > 10
    codes = {reason["code"] for row in stream.decisions.values() for reason in row["reasons"]}
    assert {"CARD_TESTING", "AMOUNT_DEVIATION", "SPREE"} <= codes


def test_other_batches_other_partitions_and_the_other_writer_give_the_same_rows_and_identities(
    reference: Reference, kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topics = reference.topics.with_new_outputs(topic_factory)
    root = tmp_path / "app"
    settings = [
        "stream.max_offsets_per_trigger=4500",
        "spark.shuffle_partitions=3",
        "stream.driver_records=0",
        "stream.profile=throughput",
    ]
    run_to_end(kafka_bootstrap, topics, root, settings)
    assert len(committed_batches(root)) < len(committed_batches(reference.root))
    check_same_tables(root, reference.root)
    check_topics(kafka_bootstrap, topics, root)


def test_late_events_are_put_aside_whole_and_events_of_the_future_do_not_move_the_watermark(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    """Event time against arrival; one batch is ten seconds, the watermark five behind.

    ::

        on time   |-----|-----|-----|-----|
        late           ^ 20 s and more behind
        future         10 h ahead: were it believed, all that follows would be late
    """
    profile = FraudProfile(
        seed=3,
        events=4_000,
        event_rate=100,
        disorder_ms=500,
        cards=100,
        terminals=50,
        late=0.02,
        lateness_ms=20_000,
        duplicates=0.01,
    )
    messages = list(_with_future_ones(fraud_events(profile), at={1_500, 1_501, 2_600}))
    topics, root = FraudTopics.make(topic_factory), tmp_path / "app"
    FraudStream(messages).send(kafka_bootstrap, topics)
    settings = ["stream.max_offsets_per_trigger=1000", "stream.out_of_orderness=5s"]
    run_to_end(kafka_bootstrap, topics, root, settings)

    decided = {row["transaction_id"] for row in table(root, "transactions")}
    late = {row["event"]["transaction_id"]: row for row in table(root, "late")}
    letters = table(root, "dead_letters")
    valid = {m.transaction_id for m in messages if fault_of(m) in (None, "late")} - set(FUTURE)
    assert len(decided) + len(late) == len(table(root, "transactions")) + len(table(root, "late"))
    assert (decided | late.keys(), decided & late.keys()) == (valid, set())

    sent_late = {m.transaction_id: m for m in messages if fault_of(m) == "late"}
    assert late.keys() <= sent_late.keys()
    assert len(late) > len(sent_late) / 2
    for identity, row in late.items():
        assert row["event"] == msgspec.json.decode(sent_late[identity].value)
        assert row["lateness_ms"] == row["watermark_ms"] - row["event"]["event_time_ms"] >= 0
        assert not row["_on_time"]

    repeats = sum(fault_of(m) == "duplicate" for m in messages)
    assert Counter(row["reason"] for row in letters) == {"future": len(FUTURE), "duplicate": repeats}
    future = [msgspec.json.decode(row["value"]) for row in letters if row["reason"] == "future"]
    assert {event["transaction_id"] for event in future} == set(FUTURE)
    check_topics(kafka_bootstrap, topics, root)


FUTURE = ("future-1500", "future-1501", "future-2600")


def _with_future_ones(messages: Iterable[Generated], at: set[int]) -> Iterable[Generated]:
    for index, message in enumerate(messages):
        yield message
        if index in at:
            identity = f"future-{index}"
            fields = msgspec.json.decode(message.value)
            fields |= {"transaction_id": identity, "event_time_ms": message.event_time_ms + 10 * HOUR}
            made = Generated(identity, message.key, msgspec.json.encode(fields), [], 0, "purchase", 0)
            made.due_ms = message.due_ms
            yield made
