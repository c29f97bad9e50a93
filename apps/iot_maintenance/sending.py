"""What operators send: actions on alarms and changes of rules, and the clock that they go by."""

from __future__ import annotations

import getpass
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from apps.iot_maintenance.settings import IotSettings
from millrace.errors import UserError
from millrace.rules import Entry, MemoryEntries, RuleEvent, apply_rule
from millrace.runtime.commands import app_table, command_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

#: An events' clock that is so far from this one is that of a replay or a simulation, ms.
_FAR_MS = 60_000
_WAIT_S = 10.0


class NotSent(UserError):
    """The broker cannot be reached, or did not take a message."""


class NoTable(UserError):
    """A table has not been written yet."""


def settings_of(bootstrap: str | None, root: Path | None, overrides: Sequence[str] | None) -> IotSettings:
    """Return the app's settings with what a command was given.

    Args:
        bootstrap: The broker.
        root: The app's folder.
        overrides: ``key=value``.
    """
    return command_settings(IotSettings, "iot", bootstrap=bootstrap, root=root, overrides=overrides)


def read_table(settings: IotSettings, name: str) -> list[dict[str, Any]]:
    """Return the rows of one of the app's tables.

    Raises:
        NoTable: It is not there.
    """
    found = app_table(settings.storage.path(), name)
    if found is None:
        place = settings.storage.path("tables", name)
        raise NoTable(f"{place} is no table yet: has `millrace run iot` written there? (--root)")
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def events_now_ms(settings: IotSettings) -> int:
    """Return what time it is on the clock of the events.

    That is now; where the newest alarm of the table is far from that, as in a replay, the time just after it:
    an action from the future would push the watermark, and everything after it would be late.
    """
    now = int(time.time() * 1000)
    try:
        rows = read_table(settings, "alarms")
    except NoTable:
        return now
    newest = max((row["event_time_ms"] for row in rows), default=now)
    return now if abs(now - newest) <= _FAR_MS else newest + 1


def who(by: str | None) -> str:
    """Return who acts: as given, else the user of this session."""
    return by or getpass.getuser()


def produce(settings: IotSettings, topic: str, messages: Sequence[tuple[str, Any]]) -> None:
    """Send messages and wait until the broker has them.

    Args:
        settings: The app's settings.
        topic: The topic.
        messages: Key and value of each; the value is sent as JSON.

    Raises:
        NotSent: No broker is named or reachable, or it refused a message.
    """
    from confluent_kafka import KafkaException, Producer

    producer = Producer({"enable.idempotence": True, **_client(settings)})
    failed: list[Any] = []
    try:
        for key, value in messages:
            producer.produce(
                topic,
                msgspec.json.encode(value),
                key.encode(),
                partition=0 if topic == settings.topics.control else -1,
                on_delivery=lambda error, _: failed.append(error) if error is not None else None,
            )
        left = producer.flush(_WAIT_S)
    except (KafkaException, BufferError) as error:
        raise NotSent(f"{topic} did not take the message: {error}") from None
    if left or failed:
        why = failed[0] if failed else f"no answer within {_WAIT_S:g} s"
        raise NotSent(f"{topic} at {settings.kafka.bootstrap} did not take the message: {why}")


def published(settings: IotSettings) -> MemoryEntries:
    """Return the rules as the control topic has them, from its first message on.

    Raises:
        NotSent: The broker cannot be reached.
    """
    from apps.iot_maintenance.alarms.rule import ALARM_LANGUAGE

    book = MemoryEntries()
    decoder = msgspec.json.Decoder(RuleEvent)
    for value in _control(settings):
        try:
            apply_rule(ALARM_LANGUAGE, decoder.decode(value), book)
        except (msgspec.MsgspecError, UserError):
            continue  # the engine's own messages, and what the stream refuses too
    return book


def next_version(book: MemoryEntries, rule_id: str) -> int:
    """Return the number of the next version of a rule."""
    kept: Entry | None = book.get(rule_id)
    return 1 + max((v.number for v in kept.versions), default=0) if kept else 1


def _control(settings: IotSettings) -> list[bytes]:
    """Return everything in the control topic, in order."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    topic = settings.topics.control
    consumer = Consumer({**_client(settings), "group.id": "millrace-iot-rules", "enable.auto.commit": False})
    values: list[bytes] = []
    try:
        if topic not in consumer.list_topics(timeout=_WAIT_S).topics:
            return []
        place = TopicPartition(topic, 0)
        low, high = consumer.get_watermark_offsets(place, timeout=_WAIT_S)
        consumer.assign([TopicPartition(topic, 0, low)])
        deadline = time.monotonic() + _WAIT_S
        while low < high and time.monotonic() < deadline:
            for message in consumer.consume(1_000, 0.5):
                if message.error() is None:
                    low = (message.offset() or 0) + 1
                    values.append(message.value() or b"")
    except KafkaException as error:
        raise NotSent(f"{topic} at {settings.kafka.bootstrap} cannot be read: {error}") from None
    finally:
        consumer.close()
    return values


def _client(settings: IotSettings) -> dict[str, Any]:
    from millrace.kafka.admin import quiet_config

    if settings.kafka.bootstrap is None:
        raise NotSent("no broker is named: give --bootstrap host:port, or kafka.bootstrap in the settings")
    return {**quiet_config(), **settings.kafka.client_options()}
