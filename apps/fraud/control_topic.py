"""The control topic from a command's side: what is in force by it, and new control events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from apps.fraud.events import Control, ResetThreshold, SetThreshold
from apps.fraud.rulebook import LANGUAGE
from apps.fraud.settings import FraudSettings
from millrace.errors import UserError
from millrace.rules import (
    Entry,
    ListEvent,
    MemoryEntries,
    PutListEntry,
    RemoveListEntry,
    RuleError,
    apply_list,
    apply_rule,
)

#: Delta table with a row per control event that a command has sent.
AUDIT: Final = "rule_audit"
_decode = msgspec.json.Decoder(Control).decode
_WAIT_S: Final = 20.0


class NoBroker(UserError):
    """Nothing answers where the control topic should be."""


class _Lists(dict[str, dict[str, int]]):
    def put(self, key: str, value: dict[str, int]) -> None:
        self[key] = value


@dataclass
class Book:
    """What the control topic says, read with the code that the stream reads it with.

    Attributes:
        rules: Rule id → its versions and history.
        lists: List → value → event time until which it is on it, ms.
        thresholds: Thresholds that are not the default's.
        refused: Events that changed nothing, and why, in order.
    """

    rules: MemoryEntries = field(default_factory=MemoryEntries)
    lists: _Lists = field(default_factory=_Lists)
    thresholds: dict[str, float] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def take(self, value: bytes) -> None:
        """Take a message of the topic; the engine's own ones mean nothing here."""
        try:
            event = _decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        try:
            self.apply(event)
        except RuleError as error:
            self.refused.append(str(error))

    def apply(self, event: Control) -> None:
        """Do what an event says.

        Raises:
            RuleError: It is refused.
        """
        if isinstance(event, SetThreshold):
            self.thresholds[event.name] = event.value
        elif isinstance(event, ResetThreshold):
            self.thresholds.pop(event.name, None)
        elif isinstance(event, PutListEntry | RemoveListEntry):
            apply_list(event, self.lists, now_ms=0)
        else:
            apply_rule(LANGUAGE, event, self.rules)

    def next_version(self, rule: str) -> int:
        """Return the number of a rule's next version."""
        kept = self.rules.get(rule)
        return 1 + max((v.number for v in kept.versions), default=0) if kept else 1

    def entry(self, rule: str) -> Entry:
        """Return a rule.

        Raises:
            RuleError: There is none of this id.
        """
        found = self.rules.get(rule)
        if found is None:
            known = ", ".join(sorted(self.rules)) or "none"
            raise RuleError(f"there is no such rule; there are: {known}", rule=rule)
        return found


class ControlTopic:
    """The control topic of an app.

    Args:
        settings: The app's settings; the broker is theirs, or the one that runs detached.
    """

    def __init__(self, settings: FraudSettings) -> None:
        from millrace.kafka import detached

        self._settings = settings
        self.name = settings.topics.control
        bootstrap = settings.kafka.bootstrap
        if not bootstrap:
            broker = detached.find()
            if broker is None:
                raise NoBroker("no broker runs: give one with --bootstrap host:port")
            bootstrap = broker.bootstrap
        self._bootstrap = bootstrap

    def read(self) -> Book:
        """Return what the topic says.

        Raises:
            NoBroker: No answer in time.
        """
        book = Book()
        for value in self._values():
            book.take(value)
        return book

    def send(self, events: Sequence[Control]) -> None:
        """Send control events, in order, wait until the broker has them, and write them into the audit table.

        Raises:
            NoBroker: The broker did not take them.
        """
        from confluent_kafka import Producer

        from millrace.kafka.admin import client_config

        failures: list[str] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failures.append(str(error))

        options = dict(self._settings.kafka.options)
        producer = Producer(
            {
                **client_config(self._bootstrap, options),
                "enable.idempotence": True,
                "message.timeout.ms": int(_WAIT_S * 1000),
            }
        )
        for event in events:
            producer.produce(
                self.name, msgspec.json.encode(event), b"rules", partition=0, on_delivery=delivered
            )
        left = producer.flush(_WAIT_S)
        if left or failures:
            raise NoBroker(f"{self.name} did not take it: {failures[0] if failures else 'no answer'}")
        self._record(events)

    def _values(self) -> list[bytes]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

        from millrace.kafka.admin import client_config

        consumer = Consumer(
            {
                **client_config(self._bootstrap, dict(self._settings.kafka.options)),
                "group.id": "millrace-rules",  # demanded, and never joined
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(self.name, 0), timeout=_WAIT_S)
            consumer.assign([TopicPartition(self.name, 0, OFFSET_BEGINNING)])
            return _until(consumer, low, high)
        except KafkaException as error:
            said = error.args[0]
            raise NoBroker(f"{self.name} cannot be read from {self._bootstrap}: {said.str()}") from None
        finally:
            consumer.close()

    def _record(self, events: Sequence[Control]) -> None:
        """Append to the audit table."""
        import pyarrow as pa
        from deltalake import write_deltalake

        rows = [audit_row(event) for event in events]
        folder = self._settings.storage.path("tables", AUDIT)
        schema = pa.schema([(n, pa.int64() if n in ("version", "at_ms") else pa.string()) for n in rows[0]])
        write_deltalake(str(folder), pa.Table.from_pylist(rows, schema=schema), mode="append")


def _until(consumer: Any, low: int, high: int) -> list[bytes]:
    """Return the values up to an offset."""
    import time

    found: list[bytes] = []
    at, deadline = low, time.monotonic() + _WAIT_S
    while at < high:
        message = consumer.poll(0.5)
        if message is None:
            # Offsets at the end may be those of transactions, which hold no message.
            if time.monotonic() > deadline:
                raise NoBroker("the control topic ends before its end: no answer in time")
            if consumer.position(consumer.assignment())[0].offset >= high:
                break
            continue
        if message.error() is not None:
            raise NoBroker(str(message.error()))
        at = message.offset() + 1
        if message.value() is not None:
            found.append(message.value())
    return found


def audit_row(event: Control) -> dict[str, Any]:
    """Return an event as a row of the audit table: what, of what, by whom, when, and the whole event."""
    data = msgspec.to_builtins(event)
    rule = data.get("rule", {})
    subject = rule.get("id") or data.get("id") or data.get("list") or data.get("name")
    is_list = isinstance(event, ListEvent)
    return {
        "what": data["kind"],
        "subject": str(subject),
        "version": data.get("version", data.get("to_version")),
        "state": None if is_list else data.get("state"),
        "by": data.get("by"),
        "at_ms": data.get("at_ms"),
        "event": msgspec.json.encode(event).decode(),
    }
