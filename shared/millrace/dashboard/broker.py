"""The topics of an app as the broker has them: where they end, and their last records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from millrace.errors import UserError

#: How long an answer of the broker is waited for, seconds.
_TIMEOUT_S = 2.0
#: A broker that did not answer is not asked again for so long, ms: the page must not wait at every look.
_AWAY_MS = 10_000
_FRESH_MS = 1_000


class BrokerAway(UserError):
    """The broker does not answer; the message says which one."""


@dataclass(frozen=True)
class KafkaRecord:
    """A record of a topic.

    Attributes:
        key: Its key.
        value: Its value.
        at_ms: Its time in Kafka, UTC milliseconds.
        headers: Its headers.
    """

    key: bytes | None
    value: bytes | None
    at_ms: int
    headers: Mapping[str, bytes]


class Broker:
    """Reads where topics end, with one client that is kept; safe to use from several threads.

    Args:
        options: Options of the Kafka client, ``bootstrap.servers`` included.
        clock: Now, UTC milliseconds.
    """

    def __init__(self, options: Mapping[str, str], clock: Callable[[], int]) -> None:
        self._options = dict(options)
        self._clock = clock
        self._lock = threading.Lock()
        self._admin: Any = None
        self._away_until = 0
        self._seen: tuple[int, tuple[str, ...], dict[str, dict[int, int]]] | None = None

    @property
    def address(self) -> str:
        """Where it is: ``host:port``, several with commas."""
        return self._options["bootstrap.servers"]

    def ends(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """Return where topics end: topic → partition → offset after the last record.

        Topics that do not exist are left out, and partitions that have no leader now. An answer of a second
        ago is taken again.

        Args:
            topics: Names of topics.

        Raises:
            BrokerAway: It does not answer, or did not a moment ago.
        """
        names = tuple(sorted(set(topics)))
        with self._lock:
            now = self._clock()
            if self._seen and self._seen[1] == names and 0 <= now - self._seen[0] < _FRESH_MS:
                return self._seen[2]
            if now < self._away_until:
                raise BrokerAway(f"no broker answers at {self.address}")
            found = self._ask(names)
            self._seen = (now, names, found)
            return found

    def _ask(self, names: tuple[str, ...]) -> dict[str, dict[int, int]]:
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

        from millrace.kafka.admin import quiet_config

        try:
            if self._admin is None:
                self._admin = AdminClient({**quiet_config(), **self._options})
            topics = self._admin.list_topics(timeout=_TIMEOUT_S).topics
            latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
            asked = {TopicPartition(n, p): latest for n in names if n in topics for p in topics[n].partitions}
            found: dict[str, dict[int, int]] = {n: {} for n in names if n in topics}
            if asked:
                answers = self._admin.list_offsets(asked, request_timeout=_TIMEOUT_S)
                for place, answer in answers.items():
                    try:
                        found[place.topic][place.partition] = int(answer.result().offset)
                    except KafkaException as error:
                        if error.args[0].code() < 0:  # the client's own: nobody has answered
                            raise
                        # The broker has: a partition that was just made has no leader yet.
            return found
        except KafkaException as error:
            self._away_until = self._clock() + _AWAY_MS
            raise BrokerAway(f"no broker answers at {self.address}") from error

    def tail(self, topic: str, records: int) -> list[KafkaRecord]:
        """Return the last records of a topic in order of time; joins no group, commits nothing.

        Args:
            topic: The topic.
            records: How many, at most.

        Raises:
            BrokerAway: It does not answer.
        """
        from confluent_kafka import Consumer, TopicPartition

        from millrace.kafka.admin import quiet_config

        ends = {p: end for p, end in self.ends([topic]).get(topic, {}).items() if end}
        if not ends:
            return []
        own = {"group.id": "millrace-dashboard", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        consumer: Any = Consumer({**quiet_config(), **self._options, **own})
        found: list[KafkaRecord] = []
        try:
            consumer.assign([TopicPartition(topic, p, max(0, end - records)) for p, end in ends.items()])
            left = dict(ends)
            while left and (messages := consumer.consume(records, _TIMEOUT_S)):
                for message in (m for m in messages if m.error() is None):
                    found.append(_record(message))
                    if message.offset() + 1 >= left.get(message.partition(), 0):
                        left.pop(message.partition(), None)
        finally:
            consumer.close()
        return sorted(found, key=lambda r: r.at_ms)[-records:]


def _record(message: Any) -> KafkaRecord:
    headers = {name: value or b"" for name, value in message.headers() or ()}
    return KafkaRecord(message.key(), message.value(), message.timestamp()[1], headers)
