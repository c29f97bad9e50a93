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
#: While it waits for the app, the inbox is looked into this often, s.
_LOOK_S: Final = 0.2
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
        time_of: Event time of a message, ms; None: messages do not say how far the app has come.
    """

    topics: Mapping[str, type[Any]]
    world: Callable[[Any], World]
    time_of: Callable[[Any], int] | None = None


class AppPace:
    """Holds event time up where the app is far behind, on a machine on which it is slow.

    Args:
        time_of: Event time of a message, ms.
        ahead_ms: People go on no further than this beyond the newest message, ms of event time.
        silent_s: An app that says nothing new for so long, s, is not waited for until it does: it may have
            nothing to say.
        first_s: The same of an app that has said nothing at all yet: what it first tells of may be far ahead.

    Attributes:
        heard_ms: Event time of the newest message, ms.
    """

    def __init__(
        self, time_of: Callable[[Any], int], ahead_ms: int, silent_s: float = 20.0, first_s: float = 2.0
    ) -> None:
        self._time_of, self._ahead_ms, self._silent_s = time_of, ahead_ms, silent_s
        self._patience_s = min(first_s, silent_s)
        self._given_up = False
        self.heard_ms = 0

    def hear(self, message: Any) -> None:
        """Take down how far the app has come."""
        at_ms = self._time_of(message)
        self._patience_s = self._silent_s
        if at_ms > self.heard_ms:
            self.heard_ms, self._given_up = at_ms, False

    def holds(self, target_ms: int, silent_s: float) -> bool:
        """Tell whether people are not to go on to an event time (ms) yet.

        Args:
            target_ms: The event time.
            silent_s: For how long nothing new has been heard while it was waited for, s.

        Example:
            >>> pace = AppPace(lambda message: message, ahead_ms=10, silent_s=60)
            >>> pace.holds(11, 1), pace.holds(11, 2)  # nothing has been said yet
            (True, False)
            >>> pace.hear(100)
            >>> pace.holds(110, 0), pace.holds(111, 0), pace.holds(111, 60), pace.holds(111, 0)
            (False, True, False, False)
            >>> pace.hear(101)
            >>> pace.holds(112, 0)
            True
        """
        self._given_up |= silent_s >= self._patience_s
        return not self._given_up and target_ms > self.heard_ms + self._ahead_ms


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
    pace: AppPace | None = None,
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
        pace: Holds event time up where the app is far behind; None: nothing does.

    Raises:
        UserError: If the speed is not above 0.
    """
    if not speed > 0:
        raise UserError(f"the speed is above 0, got {speed}")
    began, start_ms = clock.now(), world.now_ms
    stopped, step_ms = stop or threading.Event(), max(STEP_MS, int(_LEAST_STEP_MS * speed))
    if pace is not None:
        pace.heard_ms = max(pace.heard_ms, start_ms)
    while not stopped.is_set() and (until_ms is None or world.now_ms < until_ms):
        target_ms = world.now_ms + step_ms if until_ms is None else min(world.now_ms + step_ms, until_ms)
        if pace is not None:
            began += _wait(world, inbox, mailbag, target_ms, pace, clock, stopped)
        left_s = (target_ms - start_ms) / 1000 / speed - (clock.now() - began)
        _read(world, inbox, mailbag, max(left_s, 0.0), clock, pace)
        # A process that was held up catches up in steps, so that offers of the meantime are answered in time.
        yield from world.advance(target_ms)


def _wait(
    world: World,
    inbox: Inbox,
    mail: Mailbag,
    target_ms: int,
    pace: AppPace,
    clock: Clock,
    stopped: threading.Event,
) -> float:
    """Hand over messages until the app has come far enough; return how long that took, s."""
    began = since = clock.now()
    while not stopped.is_set() and pace.holds(target_ms, clock.now() - since):
        heard_ms = pace.heard_ms
        _read(world, inbox, mail, _LOOK_S, clock, pace)
        if pace.heard_ms > heard_ms:
            since = clock.now()
    return clock.now() - began


def _read(
    world: World, inbox: Inbox, mail: Mailbag, wait_s: float, clock: Clock, pace: AppPace | None
) -> None:
    """Hand over all messages that come within a time."""
    until = clock.now() + wait_s
    while True:
        for topic, payload in inbox.poll(max(until - clock.now(), 0.0)):
            message = mail.open(topic, payload)
            if message is not None:
                world.receive(message)
                if pace is not None:
                    pace.hear(message)
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
    pace: AppPace | None = None,
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
        pace: Holds event time up where the app is far behind; None: nothing does.
    """

    def simulate(profile: Any) -> Iterator[Simulated]:
        return closed_loop(
            world(profile), inbox, mailbag=mailbag, clock=clock, speed=speed, until_ms=until_ms, stop=stop,
            pace=pace,
        )  # fmt: skip

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
