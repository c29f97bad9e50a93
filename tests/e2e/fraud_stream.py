"""Streams for the fraud app whose complete outcome is known before the app has seen them.

Kafka's times are the events' own and not the clock's, so that nothing here depends on the day.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import msgspec

from millrace.testing.kafka import Record, TopicFactory, produce
from millrace_apps.fraud.contracts.events import Decision, Transaction
from millrace_apps.fraud.contracts.feature_types import CardFeatures
from millrace_apps.fraud.processes.features import Features
from millrace_apps.fraud.processes.reasons import entity_reasons, score_of
from millrace_apps.fraud.processes.scoring import Thresholds, action_for, assess
from millrace_apps.generators.engine import Generated
from millrace_apps.generators.engine.message import Fault
from millrace_apps.generators.fraud import FraudProfile
from tests.oracles.fraud import FEATURES, depends_on_cuts, expected_decisions
from tests.payments import plain_transactions_of

PARTITIONS = 2
#: A topic whose events are older than a broker's usual retention keeps them all the same.
_KEEP = {"retention.ms": "-1"}


class FraudTopics(NamedTuple):
    """Topics of one app."""

    transactions: str
    control: str
    alerts: str
    dead_letters: str
    labels: str = "fraud.labels"
    authorisations: str = "fraud.authorisations"
    erasures: str = "fraud.erasures"

    @classmethod
    def make(cls, topic_factory: TopicFactory) -> FraudTopics:
        def topic(partitions: int, name: str) -> str:
            return topic_factory(partitions, prefix=f"fraud-{name}", config=_KEEP)

        return cls(
            topic(PARTITIONS, "in"),
            topic(1, "control"),
            topic(PARTITIONS, "alerts"),
            topic(1, "dlq"),
            topic(1, "labels"),
            topic(1, "authorisations"),
            topic(1, "erasures"),
        )

    def with_new_outputs(self, topic_factory: TopicFactory) -> FraudTopics:
        """The same inputs, other outputs: for the same stream once more."""
        new = FraudTopics.make(topic_factory)
        return self._replace(alerts=new.alerts, dead_letters=new.dead_letters)

    @property
    def settings(self) -> list[str]:
        return [f"topics.{name}={topic}" for name, topic in self._asdict().items()]


#: What must be kept of a dead letter: reason, stage, bytes, headers, Kafka key.
Letter: TypeAlias = tuple[str, str, bytes, Any, bytes | None]


class Sent(NamedTuple):
    """A message and where it lies."""

    message: Generated
    partition: int
    offset: int


@dataclass(frozen=True)
class FraudStream:
    """Transactions and control events, and what must come of them.

    Attributes:
        messages: Transactions in order of sending; of a card in order of event time.
        control: Values on the control topic.
        rejected: Index in ``control`` → reason of its dead letter.
        thresholds: Those in force: a batch applies its control events first, and the first batch has the
            first control event.
        labels: Values on the topic of labels.
        refused_labels: Index in ``labels`` → reason and stage of its dead letter.
    """

    messages: Sequence[Generated]
    control: Sequence[bytes] = ()
    rejected: Mapping[int, str] = field(default_factory=dict)
    thresholds: Thresholds = Thresholds()  # noqa: RUF009  (frozen)
    labels: Sequence[bytes] = ()
    refused_labels: Mapping[int, tuple[str, str]] = field(default_factory=dict)

    def send(self, bootstrap: str, topics: FraudTopics, *, first: int = 0, last: int | None = None) -> None:
        """Send the control events, and the transactions from ``first`` up to ``last``, in order."""
        at = self.messages[0].due_ms
        if not first:
            produce(bootstrap, topics.control, [Record(value, timestamp_ms=at) for value in self.control])
            last_ms = self.messages[-1].due_ms
            produce(bootstrap, topics.labels, [Record(v, b"card", timestamp_ms=last_ms) for v in self.labels])
        produce(bootstrap, topics.transactions, [_record(sent) for sent in self.sent[first:last]])

    @cached_property
    def sent(self) -> list[Sent]:
        """The transactions with the positions that they have in a topic that was empty before."""
        ends = [0] * PARTITIONS
        found = []
        for message in self.messages:
            partition = zlib.crc32(message.key) % PARTITIONS
            found.append(Sent(message, partition, ends[partition]))
            ends[partition] += 1
        return found

    @cached_property
    def decisions(self) -> dict[str, dict[str, Any]]:
        """Transaction → its row in the table ``transactions``, by the oracle."""
        valid = [json.loads(m.value) for m in self.messages if fault_of(m) != "malformed"]
        assert not depends_on_cuts(valid), "this stream's outcome depends on the cuts into batches"
        said = [json.loads(value) for n, value in enumerate(self.labels) if n not in self.refused_labels]
        rows = expected_decisions([*said, *valid])
        for row in rows.values():
            features = Features(**{name: row[name] for name in FEATURES})
            purchase = row["kind"] == "purchase"
            _, reasons = assess(features, row["amount"], self.thresholds, purchase=purchase)
            if purchase:
                tx = msgspec.convert(row, Transaction)
                card = _card(_smallest_before(tx, rows.values()))
                reasons += entity_reasons(tx, features, card, None, None, self.thresholds)
                reasons.sort(key=lambda reason: -reason.weight)
            score = score_of(reasons) if reasons else 0.0
            row |= {"score": score, "action": action_for(score, self.thresholds)}
            row["reasons"] = msgspec.to_builtins(reasons)
        assert all(row.keys() <= set(Decision.__struct_fields__) for row in rows.values())
        return rows

    @property
    def alerts(self) -> dict[str, dict[str, Any]]:
        """Transaction → its row in the table ``alerts``."""
        same = ("card_id", "transaction_id", "event_time_ms", "amount", "currency", "score", "action")
        return {
            identity: {name: row[name] for name in (*same, "reasons")}
            | {"thresholds": {name: float(v) for name, v in self.thresholds.as_dict().items()}}
            for identity, row in self.decisions.items()
            if row["action"] != "approve"
        }

    def dead_letters(self, topics: FraudTopics) -> dict[tuple[str, int, int], Letter]:
        """Topic, partition and offset → reason, stage, bytes, headers and Kafka key of the dead letter."""
        found: dict[tuple[str, int, int], Letter] = {}
        for message, partition, offset in self.sent:
            if message.fault is not None:
                broken = message.fault.kind == "malformed"
                reason, stage = (message.fault.reason, "decode") if broken else ("duplicate", "process")
                headers = {name: text.decode() for name, text in message.headers} or None
                found[topics.transactions, partition, offset] = (
                    reason,
                    stage,
                    message.value,
                    headers,
                    message.key,
                )
        for index, reason in self.rejected.items():
            found[topics.control, 0, index] = (reason, "broadcast", self.control[index], None, None)
        for index, (reason, stage) in self.refused_labels.items():
            found[topics.labels, 0, index] = (reason, stage, self.labels[index], None, b"card")
        return found


def fault_of(message: Generated) -> str | None:
    return message.fault.kind if message.fault else None


def ordered_stream(events: int = 8_000, *, seed: int = 1, cards: int = 120, hours: float = 60) -> FraudStream:
    """Two and a half days in which every card's events are in order, with everything in them that is odd.

    Broken messages; repeats at once and, behind the watermark by then, half a day later; control events
    that are applied, broken, against the schema and unknown.
    """
    profile = FraudProfile(
        seed=seed,
        events=events,
        event_rate=events / (hours * 3600),
        disorder_ms=0,
        cards=cards,
        terminals=50,
        fraud_rate=3,
        duplicates=0.01,
        malformed=0.01,
    )
    control = [
        b'{"kind":"set_threshold","name":"spree_count","value":2}',
        b'{"kind":"set_threshold","name":"no_such","value":1}',
        b'{"kind":"set_thr',
        b'{"kind":"set_threshold","name":"block_score"}',
        b'{"kind":"reset_threshold","name":"testing_count"}',
    ]
    rejected = {1: "process_error", 2: "malformed", 3: "schema"}
    messages = _repeated_later(list(plain_transactions_of(profile)), every=400, later=events // 6)
    return FraudStream(messages, control, rejected, Thresholds(spree_count=2))


def with_labels(stream: FraudStream) -> FraudStream:
    """Add labels on purchases of the first tenth, known when 96 of 100 events have come.

    So every cut that has the last of these in one batch has the labels with it, or before. There are
    a correction, a repeat, and what cannot be read.
    """
    valid = [json.loads(m.value) for m in stream.messages if m.fault is None]
    known = valid[int(len(valid) * 0.96)]["event_time_ms"]
    bought = [tx for tx in valid[: len(valid) // 10] if tx["kind"] == "purchase"]
    chosen = list({tx["card_id"]: tx for tx in bought}.values())[:12]

    def said(tx: Any, number: int, fraud: bool, at: int, source: str) -> bytes:
        of = {name: tx[name] for name in ("transaction_id", "card_id", "terminal_id")}
        times = {"event_time_ms": at, "transaction_time_ms": tx["event_time_ms"]}
        made = {"label_id": f"label-{number}", "is_fraud": fraud, "source": source, **of, **times}
        return json.dumps(made).encode()

    values = [said(tx, n, True, known - 1_000, "feedback") for n, tx in enumerate(chosen)]
    values.append(said(chosen[0], 100, False, known, "correction"))
    values += [values[1], b'{"label_id":', values[2].replace(b'"feedback"', b'"gossip"')]
    refused = {
        len(values) - 3: ("duplicate", "process"),
        len(values) - 2: ("malformed", "decode"),
        len(values) - 1: ("schema", "decode"),
    }
    return replace(stream, labels=values, refused_labels=refused)


def _repeated_later(messages: list[Generated], *, every: int, later: int) -> list[Generated]:
    """Send one in ``every`` messages again, ``later`` messages after the first time."""
    found: list[Generated] = []
    for index, message in enumerate(messages):
        found.append(message)
        before = messages[index - later] if index >= later and index % every == 0 else None
        if before is not None and before.fault is None:
            found.append(_as_fault(before, message.due_ms))
    return found


def _as_fault(message: Generated, due_ms: int) -> Generated:
    again = Generated(
        message.transaction_id,
        message.key,
        message.value,
        message.headers,
        message.event_time_ms,
        message.kind,
        message.amount,
        fault=Fault("duplicate", "duplicate"),
    )
    again.due_ms = due_ms
    return again


def _record(sent: Sent) -> Record:
    message = sent.message
    return Record(
        message.value,
        message.key,
        list(message.headers),
        partition=sent.partition,
        timestamp_ms=message.due_ms,
    )


def _smallest_before(tx: Transaction, rows: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the smallest purchase of the card in the minute before a purchase, of a stream in order."""
    if tx.amount < Thresholds().large_amount:
        return None  # nothing asks for it
    return min(
        (
            row["amount"]
            for row in rows
            if row["card_id"] == tx.card_id
            and row["kind"] == "purchase"
            and tx.event_time_ms - 60_000 < row["event_time_ms"] < tx.event_time_ms
        ),
        default=None,
    )


def _card(smallest: float | None) -> CardFeatures:
    nothing = dict.fromkeys(CardFeatures.__struct_fields__)
    return CardFeatures(**{**nothing, "min_1m": smallest, "devices_30d": 0})  # type: ignore[arg-type]


def differences(
    expected: Mapping[Any, Mapping[str, Any]], found: Mapping[Any, Mapping[str, Any]]
) -> list[str]:
    """Return a line for everything that differs; fields that begin with ``_`` are the writer's own.

    Floats may differ by 1e-9: the oracle's deviations are square roots of exact fractions, the app's of
    integers.
    """
    lines = [f"{key}: missing" for key in expected.keys() - found.keys()]
    lines += [f"{key}: not expected" for key in found.keys() - expected.keys()]
    for key in expected.keys() & found.keys():
        own = {name: value for name, value in found[key].items() if not name.startswith("_")}
        if missing := expected[key].keys() - own.keys():
            lines.append(f"{key}: without {sorted(missing)}")
        lines += [
            f"{key}: {name} is {own[name]!r}, expected {value!r}"
            for name, value in expected[key].items()
            if name in own and not _same(value, own[name])
        ]
    return sorted(lines)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and bool(a == b)


def by(name: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the rows by a field that must be unique."""
    listed = list(rows)
    found = {row[name]: row for row in listed}
    assert len(found) == len(listed), f"{len(listed) - len(found)} rows with a {name} that another row has"
    return found
