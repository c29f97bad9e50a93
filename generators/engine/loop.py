"""A world in a loop with an app over Kafka: the app's messages in, what people do of it out.

The way out is that of every domain: :func:`looped` gives one that the engine encodes, disturbs and sends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import msgspec

from millrace.errors import MillraceError, UserError
from millrace_apps.generators.engine.pace import Clock
from millrace_apps.generators.engine.simulated import Domain, Simulated

#: So much event time passes between two looks at the inbox, ms, …
STEP_MS: Final = 200
#: … but no less than this of the clock's time, ms: a fast run would do nothing but look.
_LEAST_STEP_MS: Final = 5
_POLL_MESSAGES: Final = 1_000
_CONNECT_TIMEOUT_S: Final = 5.0


class LoopError(MillraceError):
    """The app's messages cannot be read any more."""


class World(Protocol):
    """People who react to what an app says.

    Attributes:
        now_ms: Event time that it has come to, ms.
    """

    now_ms: int

    def receive(self, message: Any) -> None:
        """Take a message of the app."""

    def advance(self, until_ms: int) -> Iterable[Simulated]:
        """Return what happens before an event time, ms, and go on to it."""


@dataclass(frozen=True)
class Loop:
    """How a domain is closed with an app.

    Attributes:
        topics: Topics of the app's messages, and what is on them.
        world: Makes the people of a profile.
    """

    topics: Mapping[str, type[Any]]
    world: Callable[[Any], World]


class Inbox(Protocol):
    """Where an app's messages come from."""

    def poll(self, timeout_s: float) -> list[tuple[str, bytes]]:
        """Return topic and payload of what has come; wait for something at most so long, seconds."""


class Consumer(Protocol):
    """The part of a Kafka consumer that the inbox needs; tests bring their own."""

    def consume(self, num_messages: int, timeout: float) -> list[Any]:
        """Return up to so many messages; wait at most so long, seconds."""

    def close(self) -> None:
        """Leave the broker."""


class Mailbag:
    """Decodes an app's messages; what cannot be read is counted and left out.

    Args:
        topics: Type of the messages by topic.

    Attributes:
        unreadable: How many payloads were not what their topic promises.

    >>> class Said(msgspec.Struct):
    ...     text: str
    >>> bag = Mailbag({"words": Said})
    >>> bag.open("words", b'{"text": "yes"}').text
    'yes'
    >>> bag.open("words", b"{"), bag.unreadable
    (None, 1)
    """

    def __init__(self, topics: Mapping[str, type[Any]]) -> None:
        self._decoders = {topic: msgspec.json.Decoder(kind) for topic, kind in topics.items()}
        self.unreadable = 0

    def open(self, topic: str, payload: bytes) -> Any:
        """Return the message in a payload, or None if there is none."""
        decoder = self._decoders.get(topic)
        try:
            if decoder is not None:
                return decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        self.unreadable += 1
        return None


def closed_loop(
    world: World,
    inbox: Inbox,
    *,
    mailbag: Mailbag,
    clock: Clock,
    speed: float = 1.0,
    until_ms: int | None = None,
    stop: threading.Event | None = None,
) -> Iterator[Simulated]:
    """Yield what people do while an app speaks to them, as event time passes.

    Event time begins at the world's now and runs at ``speed``. An app's message takes effect at its event
    time, or as soon as it is read. What comes out goes through the engine's stages and into a sink like
    any simulation; a sink that is held up holds event time up too, and nothing is skipped.

    Args:
        world: The people.
        inbox: Where the app's messages come from.
        mailbag: Decodes the messages, and counts unreadable ones.
        clock: Time.
        speed: Seconds of event time per second of the clock.
        until_ms: Event time at which it ends, ms; None: never.
        stop: Ends it when set.

    Raises:
        UserError: If the speed is not above 0.
    """
    if not speed > 0:
        raise UserError(f"the speed is above 0, got {speed}")
    began, start_ms = clock.now(), world.now_ms
    stopped, step_ms = stop or threading.Event(), max(STEP_MS, int(_LEAST_STEP_MS * speed))
    while not stopped.is_set() and (until_ms is None or world.now_ms < until_ms):
        target_ms = world.now_ms + step_ms if until_ms is None else min(world.now_ms + step_ms, until_ms)
        left_s = (target_ms - start_ms) / 1000 / speed - (clock.now() - began)
        _read(world, inbox, mailbag, max(left_s, 0.0), clock)
        # A process that was held up catches up in steps, so that offers of the meantime are answered in time.
        yield from world.advance(target_ms)


def _read(world: World, inbox: Inbox, mail: Mailbag, wait_s: float, clock: Clock) -> None:
    """Hand over all messages that come within a time."""
    until = clock.now() + wait_s
    while True:
        for topic, payload in inbox.poll(max(until - clock.now(), 0.0)):
            message = mail.open(topic, payload)
            if message is not None:
                world.receive(message)
        if clock.now() >= until:
            return


def looped(
    domain: Domain,
    world: Callable[[Any], World],
    inbox: Inbox,
    *,
    mailbag: Mailbag,
    clock: Clock,
    speed: float = 1.0,
    until_ms: int | None = None,
    stop: threading.Event | None = None,
) -> Domain:
    """Return a domain whose people react to an app.

    Its simulation keeps time by itself: send what it yields without another pace.

    Args:
        domain: The domain as it is without an app.
        world: Makes the people of its profile.
        inbox: Where the app's messages come from.
        mailbag: Decodes the messages, and counts unreadable ones.
        clock: Time.
        speed: Seconds of event time per second of the clock.
        until_ms: Event time at which it ends, ms; None: never.
        stop: Ends it when set.
    """

    def simulate(profile: Any) -> Iterator[Simulated]:
        return closed_loop(
            world(profile), inbox, mailbag=mailbag, clock=clock, speed=speed, until_ms=until_ms, stop=stop
        )

    return replace(domain, simulate=simulate)


class KafkaInbox:
    """Reads an app's topics from their ends on: what was said before these people's time concerns nobody.

    Args:
        bootstrap: ``host:port``, several with commas.
        topics: Their names; a topic that does not exist yet is created.
        options: Further client options.
        partitions: Partitions of a topic that is created.
        consumer: A consumer that has its partitions already, in place of one of its own.

    Raises:
        UserError: If no broker answers in time.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: Iterable[str],
        *,
        options: Mapping[str, str] | None = None,
        partitions: int = 4,
        consumer: Consumer | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._consumer = consumer or _consumer(bootstrap, tuple(topics), options, partitions)

    def poll(self, timeout_s: float) -> list[tuple[str, bytes]]:
        """Return topic and payload of what has come; wait for something at most so long, seconds.

        Raises:
            LoopError: If the broker refuses; a broker that is away for a while only brings nothing.
        """
        read: list[tuple[str, bytes]] = []
        for message in self._consumer.consume(_POLL_MESSAGES, timeout_s):
            error = message.error()
            if error is None:
                read.append((message.topic(), message.value() or b""))
            elif not error.retriable() and error.name() not in ("_TRANSPORT", "_ALL_BROKERS_DOWN"):
                raise LoopError(f"cannot read the app's messages at {self._bootstrap}: {error.str()}")
        return read

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()


def _consumer(
    bootstrap: str, topics: tuple[str, ...], options: Mapping[str, str] | None, partitions: int
) -> Consumer:
    from confluent_kafka import OFFSET_END, TopicPartition
    from confluent_kafka import Consumer as KafkaConsumer

    from millrace.kafka.admin import TopicSpec, client_config, create_topics, topic_partitions

    there = topic_partitions(bootstrap, options=options, timeout_s=_CONNECT_TIMEOUT_S)
    if missing := {name: TopicSpec(partitions=partitions) for name in topics if name not in there}:
        create_topics(bootstrap, missing, options=options)
        there = topic_partitions(bootstrap, options=options, timeout_s=_CONNECT_TIMEOUT_S)
    consumer: Consumer = KafkaConsumer(
        {
            # Partitions are assigned by hand: the group only has to have a name.
            "group.id": "millrace-generated-people",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
            **client_config(bootstrap, options),
        }
    )
    assign: Callable[[list[Any]], None] = consumer.assign  # type: ignore[attr-defined]
    assign([TopicPartition(name, number, OFFSET_END) for name in topics for number in range(there[name])])
    return consumer
