"""Forwarding of answered events to the stream, which stays the record of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, Protocol

from millrace.errors import MillraceError

#: A place in a topic: partition, offset.
Place = tuple[int, int]
#: How long what is left may take at the end, seconds.
_FLUSH_S: Final = 5.0
_POLL_S: Final = 0.1


class NotHandedOn(MillraceError):
    """The broker has not taken an event."""


class Sent(NamedTuple):
    """An event on its way.

    Attributes:
        safe: Done once it will arrive whatever happens here; an answer waits for it.
        place: Where it has arrived.
    """

    safe: Future[Any]
    place: Future[Place]


class Way(Protocol):
    """How events go on to the stream."""

    @property
    def waiting(self) -> int:
        """How many are safe and have not arrived yet."""
        ...

    def send(self, key: bytes, value: bytes, note: bytes = b"") -> Sent:
        """Send an event; :class:`NotHandedOn` stands in ``safe`` where it is not taken."""
        ...


class HandingOn:
    """Sends events to a topic, each by itself, and says where each has arrived.

    Args:
        topic: The topic.
        config: Options of the client, ``bootstrap.servers`` included.
        keep_trying_s: How long an event is sent again where no broker takes it, seconds.
        producer: Makes the client; that of confluent-kafka unless given.
    """

    def __init__(
        self,
        topic: str,
        config: Mapping[str, Any],
        *,
        keep_trying_s: float,
        producer: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        make = producer
        if make is None:
            from confluent_kafka import Producer

            make = Producer
        self._topic = topic
        self._producer: Any = make(
            {
                "enable.idempotence": True,
                # An answer waits for it.
                "linger.ms": 0,
                # The Java clients' partitioner, so that a key lands where that of other producers does.
                "partitioner": "murmur2_random",
                "message.timeout.ms": max(1, int(keep_trying_s * 1_000)),
                **config,
            }
        )
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="millrace-handing-on", daemon=True)
        self._thread.start()

    def send(self, key: bytes, value: bytes) -> Future[Place]:
        """Send an event; the future has its place, or :class:`NotHandedOn`."""
        done: Future[Place] = Future()

        def told(error: Any, message: Any) -> None:
            if error is None:
                done.set_result((message.partition(), message.offset()))
            else:
                done.set_exception(NotHandedOn(f"the broker has not taken it: {error}"))

        try:
            self._producer.produce(self._topic, value, key, on_delivery=told)
        except BufferError:
            done.set_exception(NotHandedOn("too much waits for the broker"))
        return done

    def _poll(self) -> None:
        while not self._end.is_set():
            self._producer.poll(_POLL_S)

    def close(self) -> int:
        """Send what is left, and return how much was not taken."""
        left = int(self._producer.flush(_FLUSH_S))
        self._end.set()
        self._thread.join(2)
        return left


class AtOnce:
    """An event is safe when the broker has it.

    Args:
        hand_on: Sends it.
    """

    def __init__(self, hand_on: HandingOn) -> None:
        self._hand_on = hand_on
        #: What is safe has arrived.
        self.waiting = 0

    def send(self, key: bytes, value: bytes, note: bytes = b"") -> Sent:
        """Send an event."""
        place = self._hand_on.send(key, value)
        return Sent(place, place)
