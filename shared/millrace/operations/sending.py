"""Sending of control events to a running app: typed, in order, done when the broker has them."""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from millrace.errors import UserError
from millrace.operations.acting import NotAllowed, acting
from millrace.operations.roster import Role

if TYPE_CHECKING:
    from millrace.runtime.settings import AppSettings, KafkaSettings

__all__ = ["NoBroker", "NotSent", "Place", "bootstrap_of", "checked", "now_ms", "reachable", "send", "who"]

#: How long a broker may take to answer at all, and to take what is sent, seconds.
_ANSWER_S: Final = 10.0
_TAKE_S: Final = 20.0


class NotSent(UserError):
    """The app would refuse it, or the broker did not take it."""


class NoBroker(NotSent):
    """Nothing answers where the broker should be, or nobody has said where that is."""


class Place(NamedTuple):
    """Where a message stands.

    Attributes:
        partition: Its partition.
        offset: Its offset there.
    """

    partition: int
    offset: int


def who(by: str | None, settings: AppSettings | None = None, role: Role = Role.decide) -> str:
    """Return who acts, if they may.

    Where there are operators, it is the one whose token the environment has. Where there are none, it is as
    given, else the name by which the user of this session has logged in.

    Args:
        by: The name as given.
        settings: Settings that say where the operators are; ``None``: as they are for all apps.
        role: What is needed.

    Raises:
        UserError: Nobody is named, and the session has no name; or there are operators, and the token is
            missing, nobody's or of somebody else, or its operator may not do this.

    >>> who(" ann ")
    'ann'
    """
    operator = acting(settings, role)
    if operator is not None:
        if by is not None and by.strip() != operator.name:
            raise NotAllowed(f"the token is that of {operator.name}: leave out --by {by.strip()[:64]}")
        return operator.name
    if by is not None:
        if not by.strip():
            raise UserError("nobody is named: give --by NAME")
        return by.strip()
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise UserError("this session's user has no name: give --by NAME") from None


def now_ms() -> int:
    """Return what the time is by this machine's clock, UTC ms."""
    return time.time_ns() // 1_000_000


def bootstrap_of(kafka: KafkaSettings) -> str:
    """Return the address of the broker that is meant: the settings' own, else of the one that runs detached.

    Args:
        kafka: The broker and how to reach it.

    Raises:
        NoBroker: None is named, and none runs.
    """
    from millrace.kafka import detached

    if kafka.bootstrap:
        return kafka.bootstrap
    running = detached.find()
    if running is None:
        raise NoBroker(
            "no broker is named, and none runs: give --bootstrap HOST:PORT, or `millrace kafka start`"
        )
    return running.bootstrap


def reachable(kafka: KafkaSettings, timeout_s: float = _ANSWER_S) -> str:
    """Return the address of the broker that is meant, if it answers.

    Args:
        kafka: The broker and how to reach it.
        timeout_s: How long it may take, seconds.

    Raises:
        NoBroker: It does not, or none is named and none runs.
    """
    from millrace.kafka.admin import BrokerUnreachable, cluster_id

    bootstrap = bootstrap_of(kafka)
    try:
        cluster_id(bootstrap, timeout_s, dict(kafka.options))
    except BrokerUnreachable:
        raise NoBroker(
            f"no broker at {bootstrap} (waited {timeout_s:g} s): "
            "start it, or give another with --bootstrap HOST:PORT"
        ) from None
    return bootstrap


def checked(event: Any, contract: Any) -> bytes:
    """Return an event as its topic has it, if it keeps the contract of the topic.

    Args:
        event: The event.
        contract: Type of the topic's events, as the app reads them.

    Raises:
        NotSent: The app would put it aside; says why.

    >>> from millrace.rules import ApproveRule
    >>> checked(ApproveRule("big", 1, "bob", 5), ApproveRule)
    b'{"kind":"approve_rule","id":"big","version":1,"by":"bob","at_ms":5,"reason":""}'
    """
    try:
        value = msgspec.json.encode(event)
        msgspec.json.decode(value, type=contract)
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError) as error:
        raise NotSent(f"nothing was sent, since the app would not take it: {error}") from None
    return value


def send(
    kafka: KafkaSettings,
    topic: str,
    contract: Any,
    events: Sequence[tuple[str, Any]],
    *,
    partition: int | None = None,
    timeout_s: float = _TAKE_S,
) -> list[Place]:
    """Send events in order, and return where they stand when the broker has all of them.

    All are held to the contract before the first is sent.

    Args:
        kafka: The broker and how to reach it.
        topic: The topic.
        contract: Type of its events, as the app reads them.
        events: Key and event of each; the event goes as JSON.
        partition: The partition; ``None``: by the key.
        timeout_s: How long the broker may take, seconds.

    Raises:
        NoBroker: None answers.
        NotSent: An event does not keep the contract, and none was sent; or the broker did not take all of
            them: says how many it did.

    Example:
        >>> send(settings.kafka, "fraud.control", Control, [("rules", event)])  # doctest: +SKIP
        [Place(partition=0, offset=7)]
    """
    from confluent_kafka import KafkaException, Producer

    from millrace.kafka.admin import client_config

    values = [(key, checked(event, contract)) for key, event in events]
    if not values:
        return []
    bootstrap = reachable(kafka, min(_ANSWER_S, timeout_s))
    places: dict[int, Place] = {}
    failures: list[str] = []

    def told(number: int) -> Callable[[Any, Any], None]:
        def delivered(error: Any, message: Any) -> None:
            if error is None:
                places[number] = Place(message.partition(), message.offset())
            else:
                failures.append(str(error.str()))

        return delivered

    config = {
        **client_config(bootstrap, dict(kafka.options)),
        "enable.idempotence": True,
        "message.timeout.ms": int(timeout_s * 1000),
    }
    try:
        producer = Producer(config)
    except KafkaException as error:
        raise NotSent(f"nothing was sent: {error.args[0].str()}") from None
    to = -1 if partition is None else partition
    try:
        for number, (key, value) in enumerate(values):
            producer.produce(topic, value, key.encode(), to, on_delivery=told(number))
    except KafkaException as error:  # what is before it has been sent
        failures.append(str(error.args[0].str()))
    left = producer.flush(timeout_s + 2)
    if left or len(places) < len(values):
        why = failures[0] if failures else f"no answer within {timeout_s:g} s"
        raise NotSent(f"{topic} at {bootstrap} has taken {len(places)} of {len(values)} messages: {why}")
    return [places[number] for number in range(len(values))]
