"""The control topic of an app from a command's side: what is in force by it, and new events for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from millrace.errors import UserError
from millrace.operations.app_rules import AppRules
from millrace.operations.sending import NoBroker, reachable, send
from millrace.rules import (
    Entry,
    Language,
    ListEvent,
    MemoryEntries,
    RuleError,
    RuleEvent,
    apply_list,
    apply_rule,
)
from millrace.runtime.settings import AppSettings

__all__ = [
    "AUDIT",
    "KEY",
    "ControlReader",
    "ControlState",
    "ControlTopic",
    "Said",
    "append_audit",
    "audit_row",
]

#: Delta table with a row per control event that a command has sent.
AUDIT: Final = "rule_audit"
#: Key of the events: the topic has one partition, so it is for readers only.
KEY: Final = "rules"
_WAIT_S: Final = 20.0


class Said(NamedTuple):
    """A control event of the topic.

    Attributes:
        event: The event.
        refused: Why it changed nothing; empty if it did.
        offset: Where it stands in the topic; -1: it was not read from there.
    """

    event: Any
    refused: str = ""
    offset: int = -1


class _Lists(dict[str, dict[str, int]]):
    def put(self, key: str, value: dict[str, int]) -> None:
        self[key] = value


class ControlReader:
    """Takes the messages of a control topic and notes what became of each; how one is applied is its own.

    Attributes:
        said: The events, in order.
    """

    said: list[Said]
    _decode: Callable[[bytes], Any]

    def take(self, value: bytes, offset: int = -1) -> None:
        """Take a message of the topic; the engine's own ones mean nothing here."""
        try:
            event = self._decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        try:
            self.apply(event)
        except UserError as error:
            self.said.append(Said(event, str(error), offset))
        else:
            self.said.append(Said(event, offset=offset))

    def apply(self, event: Any) -> None:
        """Do what an event says.

        Raises:
            UserError: It is refused.
        """
        raise NotImplementedError


@dataclass
class ControlState(ControlReader):
    """What a control topic says, read with the code that the stream reads it with.

    Attributes:
        language: The language of the app's rules.
        control: Type of its control events.
        rules: Rule id → its versions and history.
        lists: List → value → event time until which it is on it, ms.
        said: The events, in order.

    Example:
        >>> from millrace.rules import Field, PublishRule, Rule
        >>> book = ControlState(Language({"amount": Field("number")}), RuleEvent)
        >>> book.apply(PublishRule(Rule("big", "amount > 500"), 1, "ann", 0, "active"))
        >>> book.next_version("big"), book.entry("big").versions[0].state_at(0)
        (2, 'active')
    """

    language: Language
    control: Any
    rules: MemoryEntries = field(default_factory=MemoryEntries)
    lists: _Lists = field(default_factory=_Lists)
    said: list[Said] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._decode = msgspec.json.Decoder(self.control).decode

    @property
    def refused(self) -> list[str]:
        """Return why events changed nothing, in order."""
        return [one.refused for one in self.said if one.refused]

    def apply(self, event: Any) -> None:
        """Do what an event says; one that is of neither rules nor lists changes nothing here.

        Raises:
            UserError: It is refused.
        """
        if isinstance(event, RuleEvent):
            apply_rule(self.language, event, self.rules)
        elif isinstance(event, ListEvent):
            apply_list(event, self.lists, now_ms=0)

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
        rules: What the app says of its rules.
        settings: Its settings; the broker is theirs, or the one that runs detached.
    """

    def __init__(self, rules: AppRules, settings: AppSettings) -> None:
        from millrace.runtime.apps import load_app

        control = load_app(rules.app).topics(settings).control
        assert control is not None  # noqa: S101 - rules come by it
        self.name = control
        self._rules = rules
        self._settings = settings

    def empty(self) -> ControlState:
        """Return what a topic says that has no messages."""
        if self._rules.book is not None:
            made: ControlState = self._rules.book(self._settings)
            return made
        return ControlState(self._rules.language(self._settings), self._rules.control)

    def read(self) -> ControlState:
        """Return what the topic says; nothing where it does not exist yet.

        Raises:
            NoBroker: No answer in time.
        """
        book = self.empty()
        for offset, value in self._values():
            book.take(value, offset)
        return book

    def change(self, make: Callable[[ControlState], Sequence[Any]]) -> tuple[ControlState, Sequence[Any]]:
        """Send events, if all of them would be taken after what the topic says; return what it says then.

        Args:
            make: What the topic says → the events.

        Raises:
            RuleError: An event would be refused, so none was sent; or one was, since somebody else's event
                came before it.
            NoBroker: No answer in time.
            NotSent: The broker did not take them.
        """
        book = self.read()
        events = make(book)
        for event in events:
            book.apply(event)
        if not events:
            return book, events
        sent = self.send(events)
        book = self.read()
        for said in book.said:
            if said.refused and said.offset in sent:
                raise RuleError(f"it was sent and changed nothing, since somebody was faster: {said.refused}")
        return book, events

    def send(self, events: Sequence[Any]) -> set[int]:
        """Send events in order, wait until the broker has them, and write them into the audit table.

        Returns:
            Where they stand in the topic: their offsets.

        Raises:
            NoBroker: No answer in time.
            NotSent: The broker did not take them, or an event does not keep the app's contract.
            UserError: They are sent, and the audit table cannot be written.
        """
        places = send(
            self._settings.kafka,
            self.name,
            self._rules.control,
            [(KEY, event) for event in events],
            partition=0,
        )
        self._record(events)
        return {place.offset for place in places}

    def _values(self) -> list[tuple[int, bytes]]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

        from millrace.kafka.admin import client_config, topic_partitions

        kafka = self._settings.kafka
        bootstrap, options = reachable(kafka), dict(kafka.options)
        if self.name not in topic_partitions(bootstrap, options=options):
            return []
        consumer = Consumer(
            {
                **client_config(bootstrap, options),
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
            raise NoBroker(f"{self.name} cannot be read from {bootstrap}: {said.str()}") from None
        finally:
            consumer.close()

    def _record(self, events: Sequence[Any]) -> None:
        """Append to the audit table."""
        try:
            append_audit(Path(self._settings.storage.path("tables", AUDIT)), events)
        except UserError as error:
            raise UserError(f"{self.name} has taken it, and it {error}") from None


def _until(consumer: Any, low: int, high: int) -> list[tuple[int, bytes]]:
    """Return offsets and values up to an offset."""
    found: list[tuple[int, bytes]] = []
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
            found.append((message.offset(), message.value()))
    return found


def append_audit(folder: Path, events: Sequence[Any]) -> None:
    """Append control events to an audit table.

    Args:
        folder: The table.
        events: The events; at least one.

    Raises:
        UserError: It cannot be written.
    """
    import pyarrow as pa
    from deltalake import write_deltalake
    from deltalake.exceptions import DeltaError

    rows = [audit_row(event) for event in events]
    schema = pa.schema([(n, pa.int64() if n in ("version", "at_ms") else pa.string()) for n in rows[0]])
    try:
        write_deltalake(str(folder), pa.Table.from_pylist(rows, schema=schema), mode="append")
    except (OSError, DeltaError) as error:
        why = " ".join(str(error).split())
        raise UserError(f"could not be written into {folder}: {why}") from None


def audit_row(event: Any) -> dict[str, Any]:
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
