"""A card is forgotten by the running app: its number comes in, its token goes, from state and tables."""

from __future__ import annotations

from pathlib import Path

import msgspec
from typer.testing import CliRunner

from millrace.cli import build
from millrace.privacy.keys import read_ring
from millrace.testing.kafka import Record, TopicFactory, produce
from millrace_apps.fraud.contracts.events import CardErasure
from tests.e2e.fraud_runs import run_to_end, table
from tests.e2e.fraud_stream import FraudTopics
from tests.unit.apps.fraud.cases import MINUTE, START_MS, transaction

NUMBER, OTHER = "4111111111111111", "5500005555555559"


def test_a_card_is_forgotten_and_comes_back_as_a_new_one(
    kafka_bootstrap: str, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    """Numbers become tokens by a key that the first start makes; a second run forgets one card."""
    topics, root = FraudTopics.make(topic_factory), tmp_path / "app"
    settings = ["spark.key_groups=16", "stream.max_future_skew=10000d"]

    def pay(*numbers: str, at: int) -> None:
        paid = [transaction(at + place, 10, card=number) for place, number in enumerate(numbers)]
        records = [Record(msgspec.json.encode(tx), key=tx.card_id.encode(), timestamp_ms=tx.event_time_ms)
                   for tx in paid]  # fmt: skip
        broken = Record(b'{"card_id": "%s' % numbers[0].encode(), key=numbers[0].encode(),
                        timestamp_ms=START_MS + at)  # fmt: skip
        produce(kafka_bootstrap, topics.transactions, [*records, broken])

    pay(NUMBER, OTHER, NUMBER, at=0)
    told = run_to_end(kafka_bootstrap, topics, root, settings)
    assert "keep a copy of" in told
    token = read_ring(root / "privacy" / "token.keys").token(NUMBER)
    command = ["fraud", "forget", "--card", NUMBER, "--root", str(root)]
    assert CliRunner().invoke(build(), [*command, "--check"]).exit_code == 1
    assert {row["card_id"] for row in table(root, "transactions")} > {token}
    assert not any(NUMBER in repr(table(root, name)) for name in ("transactions", "dead_letters"))

    asked = CardErasure("e-1", START_MS + MINUTE, token)
    produce(kafka_bootstrap, topics.erasures, [Record(msgspec.json.encode(asked), key=token.encode())])
    run_to_end(kafka_bootstrap, topics, root, settings)
    assert [row["erasure_id"] for row in table(root, "erasures")] == ["e-1"]
    done = CliRunner().invoke(build(), [*command, "--tables-only", "--vacuum"])
    assert done.exit_code == 0, done.output
    assert CliRunner().invoke(build(), [*command, "--check"]).exit_code == 0

    pay(NUMBER, OTHER, at=2 * MINUTE)
    run_to_end(kafka_bootstrap, topics, root, settings)
    before = {row["card_id"]: row["purchases_before"] for row in table(root, "transactions")
              if row["event_time_ms"] >= START_MS + 2 * MINUTE}  # fmt: skip
    assert before == {token: 0, read_ring(root / "privacy" / "token.keys").token(OTHER): 1}
