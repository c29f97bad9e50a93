"""The fraud app on a real broker and real tables, compared with a batch computation of the same stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from millrace.cli import build
from millrace.privacy.fields import treatments
from millrace.privacy.keys import read_ring
from millrace.privacy.masking import Masker
from millrace.testing.kafka import Record, TopicFactory, consume_all, produce
from millrace_apps.fraud.contracts.events import Control, Transaction
from millrace_apps.generators.engine import Generated
from millrace_apps.generators.fraud import FraudProfile, simulate
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
from tests.e2e.fraud_stream import FraudStream, FraudTopics, by, differences, fault_of, ordered_stream
from tests.payments import plain_transactions_of
from tests.unit.apps.fraud.cases import DAY
from tests.unit.apps.fraud.chain import Chain

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
    assert 20 < len(unset.alerts) < len(stream.alerts), "the control event must change what is an alert"
    letters = stream.dead_letters(FraudTopics("in", "control", "alerts", "dlq"))
    reasons = Counter(reason for reason, *_ in letters.values())
    assert reasons.keys() == {"malformed", "schema", "range", "duplicate", "process_error"}
    assert min(reasons[name] for name in ("malformed", "schema", "range", "duplicate")) > 10
    codes = {reason["code"] for row in stream.decisions.values() for reason in row["reasons"]}
    assert {"CARD_TESTING", "AMOUNT_DEVIATION", "SPREE"} <= codes


@pytest.mark.matrix
def test_other_batches_other_partitions_and_the_other_writer_give_the_same_rows_and_identities(
    reference: Reference, kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topics = reference.topics.with_new_outputs(topic_factory)
    root = tmp_path / "app"
    settings = [
        "stream.max_offsets_per_trigger=4500",
        "spark.shuffle_partitions=3",
        "stream.driver_write_max_records=0",
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
        events=8_000,
        event_rate=100,
        disorder_ms=500,
        cards=100,
        terminals=50,
        late=0.02,
        lateness_ms=20_000,
        duplicates=0.01,
    )
    messages = list(_with_future_ones(plain_transactions_of(profile), at={1_500, 1_501, 2_600}))
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
        whole = {name: value for name, value in row["event"].items() if value is not None}
        assert whole == msgspec.json.decode(sent_late[identity].value)  # fields that may be left out are null
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


@pytest.mark.matrix
def test_rules_published_by_command_hold_and_entities_have_their_features(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    """What the stages do on Spark is what they do in memory; no card number is left in clear anywhere."""
    keep = {"retention.ms": "-1"}
    topics = FraudTopics(
        topic_factory(1, prefix="fraud-in", config=keep), *FraudTopics.make(topic_factory)[1:]
    )
    profile = FraudProfile(seed=11, transactions=1_500, event_rate=0.01, cards=60, terminals=20, fraud_rate=8)
    life = [_clear(e.event) for e in simulate(profile) if e.stream == "transactions"]
    values = [msgspec.json.encode(tx) for tx in life] + [b'{"card_id": "%s' % CARD_NUMBER]
    times = [tx.event_time_ms for tx in (*life, life[-1])]
    records = [Record(value, timestamp_ms=at) for value, at in zip(values, times, strict=True)]
    produce(kafka_bootstrap, topics.transactions, records)
    key, rules, root = tmp_path / "key", tmp_path / "rules.yaml", tmp_path / "app"
    key.write_bytes(b"k" * 32)
    rules.write_text(PUBLISHED)
    own = [f"topics.control={topics.control}", f"storage.root={root}", f"kafka.bootstrap={kafka_bootstrap}"]
    _run(["rules", "fraud", "publish", str(rules), "--state", "active", "--by", "ann"], own)
    _run(["fraud", "rules", "approve", "tested", "--by", "bob"], own)
    entities = ["terminal", "device"]
    settings = [f"features.entities={','.join(entities)}", f"privacy.token_key_file={key}"]
    # One batch: a limit would be shared out among the topics, and the rules would come in several.
    run_to_end(kafka_bootstrap, topics, root, [*settings, "spark.key_groups=16"])

    chain = Chain(entities, out_of_orderness_ms=DAY)
    for message in consume_all(kafka_bootstrap, topics.control):
        value = message.value() or b""
        if b'"kind"' in value:
            chain.control(msgspec.json.decode(value, type=Control))
    tokens = Masker(read_ring(key).token, treatments([Transaction]))
    for value in values[:-1]:
        chain.send(msgspec.json.decode(tokens.message(value), type=Transaction))
    expected = by("transaction_id", [msgspec.to_builtins(d) for d in chain.decisions])
    found = by("transaction_id", [_plain(row) for row in table(root, "transactions")])
    assert differences(expected, found) == []
    hits = Counter(name for row in found.values() for name in row["rules"])
    assert hits["busy@1"] > 20
    assert hits["tested@1"] > 0
    assert {r["action"] for r in found.values() if "tested@1" in r["rules"]} == {"block"}
    assert all(len(row["reasons"]) >= 3 for row in table(root, "alerts"))
    audited = Counter(row["what"] for row in table(root, "rule_audit"))
    assert audited == {"publish_rule": 2, "approve_rule": 1}
    (letter,) = table(root, "dead_letters")
    assert letter["value"] == tokens.message(values[-1]) != values[-1]
    sent = [
        m.value() or b""
        for t in (topics.alerts, topics.dead_letters)
        for m in consume_all(kafka_bootstrap, t)
    ]
    files = [path.read_bytes() for path in root.rglob("*") if path.is_file()]
    rows = [repr(table(root, name)).encode() for name in TABLES]  # the tables' files are compressed
    assert not any(CARD_NUMBER in content for content in (*sent, *files, *rows))
    assert tokens.message(CARD_NUMBER) in rows[0]


CARD_NUMBER = b"4111111111111111"
PUBLISHED = """\
- id: busy
  when: count(terminal, 2 h) >= 6 and distinct(card, terminal, 7 d) >= 2
  action: review
  owner: ann
- id: tested
  when: small_then_large(20, 90, 5 d) and sum(amount, card, 30 d) > 100
  action: block
  owner: ann
"""


def _clear(tx: Transaction) -> Transaction:
    """Give one card its number instead of a token."""
    return msgspec.structs.replace(tx, card_id=CARD_NUMBER.decode()) if tx.card_id.endswith("7") else tx


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "windows": dict(row["windows"] or [])}


def _run(arguments: Sequence[str], settings: Sequence[str]) -> None:
    done = CliRunner().invoke(build(), [*arguments, *(f"--set={s}" for s in settings)])
    assert done.exit_code == 0, (done.output, done.exception)
