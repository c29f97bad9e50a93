"""End positions of topics, and what a killed run still got into them after its bookmark."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from millrace.errors import UserError

_TIMEOUT_S: Final = 5.0
#: How long a partition without a leader is waited for, and how long until it is asked again.
_NO_LEADER_S: Final = 3.0
_AGAIN_S: Final = 0.05
#: A message by topic, ``ce_id`` and payload: a repeat of it is the same.
Identity: TypeAlias = tuple[str, bytes | None, bytes | None]


class TopicEnds:
    """Asks a broker where topics end, over a connection of its own.

    Args:
        config: Configuration of a consumer.
        topics: Whose ends are asked for.
    """

    def __init__(self, config: Mapping[str, Any], topics: list[str]) -> None:
        from confluent_kafka import Consumer

        # A group is required, though nothing is subscribed to and no offset committed.
        self._consumer = Consumer(
            {
                **config,
                "group.id": "millrace-generator",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        self._topics = topics

    def ends(self) -> dict[str, int] | None:
        """Return ``topic/partition`` → offset after its last message; None if no broker says so in time.

        A partition without a leader is asked again for a while: a topic that has just been made has none at
        first, and a run must know where it begins before it sends anything.
        """
        from confluent_kafka import KafkaException

        from millrace.kafka.admin import WITHOUT_LEADER

        deadline = time.monotonic() + _NO_LEADER_S
        while True:
            try:
                if (found := self._ends_now()) is not None:
                    return found
            except KafkaException as error:
                if error.args[0].code() not in WITHOUT_LEADER:
                    return None
            if time.monotonic() > deadline:
                return None
            time.sleep(_AGAIN_S)

    def _ends_now(self) -> dict[str, int] | None:
        from confluent_kafka import TopicPartition

        found: dict[str, int] = {}
        for topic in self._topics:
            listed = self._consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
            if not listed.partitions:
                return None
            for partition in listed.partitions:
                where = TopicPartition(topic, partition)
                _, end = self._consumer.get_watermark_offsets(where, timeout=_TIMEOUT_S)
                found[f"{topic}/{partition}"] = end
        return found

    def sent_after(self, position: Mapping[str, int]) -> Counter[Identity]:
        """Return the messages behind a position, up to the topics' ends of now.

        Raises:
            UserError: If no broker answers, or a topic ends before the position.
        """
        ends = self.ends()
        if ends is None:
            raise UserError("--resume needs the broker to say where its topics end, and it does not answer")
        at: dict[tuple[str, int], int] = {}
        until: dict[tuple[str, int], int] = {}
        for name, end in ends.items():
            begin = position.get(name, 0)
            if end < begin:
                raise UserError(
                    f"--resume: {name} ends at {end}, but {begin} messages were sent: it was made anew"
                )
            if begin < end:
                topic, _, partition = name.rpartition("/")
                at[topic, int(partition)], until[topic, int(partition)] = begin, end
        return self._read(at, until)

    def _read(self, at: dict[tuple[str, int], int], until: dict[tuple[str, int], int]) -> Counter[Identity]:
        from confluent_kafka import TopicPartition

        found: Counter[Identity] = Counter()
        # All at once: partition by partition the broker would let each wait for a fetch of its own.
        self._consumer.assign([TopicPartition(*where, begin) for where, begin in at.items()])
        while left := sum(max(0, until[where] - reached) for where, reached in at.items()):
            # It waits for as many as it is asked for.
            messages = self._consumer.consume(min(1_000, left), timeout=_TIMEOUT_S)
            if not messages:
                raise UserError(f"--resume: {left} messages behind the bookmark cannot be read")
            for message in messages:
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                if message.error() or topic is None or partition is None or offset is None:
                    raise UserError(f"--resume: {topic} cannot be read: {message.error()}")
                at[topic, partition] = offset + 1
                if offset < until[topic, partition]:
                    identity = dict(message.headers() or ()).get("ce_id")
                    found[topic, identity, message.value()] += 1  # type: ignore[index]
        # Otherwise each later question for an end would wait behind a fetch that finds nothing.
        self._consumer.unassign()
        return found

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()
