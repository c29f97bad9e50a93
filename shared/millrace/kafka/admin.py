"""Thin helpers over confluent-kafka's admin client: topics, offsets, and whether a broker answers.

Every function takes ``options``, a map of Kafka client options such as ``security.protocol`` or
``sasl.username`` (see :mod:`millrace.kafka.options`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, though its stubs do not say so
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from millrace.errors import UserError
from millrace.kafka.options import client_options

#: What confluent-kafka's clients take.
ClientConfig: TypeAlias = dict[str, str | int | float | bool]

_TIMEOUT_S = 30.0
#: Whose time a topic's records carry: the broker's (``LogAppendTime``) or the sender's (``CreateTime``).
TIMESTAMP_TYPE: Final = "message.timestamp.type"
#: Records carry the moment at which the broker took them: their arrival. What topics are created with.
APPEND_TIME: Final[Mapping[str, str]] = {TIMESTAMP_TYPE: "LogAppendTime"}
#: What a broker says of a partition that has just been made, or that is moving to another leader: ask again.
WITHOUT_LEADER: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)
_AGAIN_S: Final = 0.05
_EVER: Final = str(2**63 - 1)
#: Records carry the time that their sender gives, however far from now: for arrivals that are simulated.
#: Kafka 4 refuses times an hour ahead otherwise, and by their age such records would be deleted at once.
SENT_TIME: Final[Mapping[str, str]] = {
    TIMESTAMP_TYPE: "CreateTime",
    "message.timestamp.before.max.ms": _EVER,
    "message.timestamp.after.max.ms": _EVER,
    "retention.ms": "-1",
}


class BrokerUnreachable(UserError):
    """No broker answers at the given address."""


@dataclass(frozen=True)
class TopicSpec:
    """What a topic should be.

    Args:
        partitions: Number of partitions.
        config: Topic settings, e.g. ``{"cleanup.policy": "compact"}``. Otherwise the broker's defaults, but
            for the records' times: those of their arrival (:data:`APPEND_TIME`).
        replication: Number of copies; -1 takes the broker's default.
    """

    partitions: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    replication: int = -1


def quiet_config() -> ClientConfig:
    """Return client options that keep librdkafka off the terminal and make it notice a new broker quickly.

    Without them it prints a line per refused connection while a broker starts or is away.
    """
    return {"log_level": 0, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 500}


def client_config(bootstrap: str, options: Mapping[str, str] | None = None) -> ClientConfig:
    """Return the configuration of a confluent-kafka client.

    Args:
        bootstrap: ``host:port``, several with commas.
        options: Further options, security among them; these win.
    """
    return quiet_config() | client_options(bootstrap, options or {})


def cluster_id(bootstrap: str, timeout_s: float = 5.0, options: Mapping[str, str] | None = None) -> str:
    """Return the id of the cluster that answers at an address.

    Args:
        bootstrap: ``host:port``, several with commas.
        timeout_s: Seconds to wait at most.
        options: Further client options.

    Raises:
        BrokerUnreachable: None answers in time.
    """
    return str(_metadata(_admin(bootstrap, options), bootstrap, timeout_s).cluster_id)


def ping(bootstrap: str, timeout_s: float = 5.0, options: Mapping[str, str] | None = None) -> bool:
    """Say whether a broker answers a request for metadata.

    Args:
        bootstrap: ``host:port``, several with commas.
        timeout_s: Seconds to wait at most.
        options: Further client options.
    """
    try:
        cluster_id(bootstrap, timeout_s, options)
    except BrokerUnreachable:
        return False
    return True


def topic_partitions(
    bootstrap: str, *, options: Mapping[str, str] | None = None, timeout_s: float = _TIMEOUT_S
) -> dict[str, int]:
    """Return the topics of a cluster, Kafka's own left out, with their number of partitions.

    Raises:
        BrokerUnreachable: None answers in time.
    """
    found = _metadata(_admin(bootstrap, options), bootstrap, timeout_s).topics
    return {name: len(topic.partitions) for name, topic in sorted(found.items()) if name[:2] != "__"}


def create_topics(
    bootstrap: str,
    topics: Mapping[str, TopicSpec],
    *,
    options: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> set[str]:
    """Create the topics that do not exist yet, and return when clients can see all of them.

    One that exists is left as it is, whatever its partitions and settings: it may be somebody else's.

    Args:
        bootstrap: ``host:port``, several with commas.
        topics: Name → what it should be.
        options: Further client options.
        timeout_s: Seconds to wait at most.

    Returns:
        The names of those that were created now.

    Raises:
        BrokerUnreachable: None answers in time.
        UserError: The broker refused one, e.g. because of its name or a setting.

    Example:
        >>> create_topics("localhost:9092", {"events": TopicSpec(partitions=4)})  # doctest: +SKIP
        {'events'}
    """
    admin = _admin(bootstrap, options)
    deadline = time.monotonic() + timeout_s
    existing = _metadata(admin, bootstrap, timeout_s).topics
    wanted = [
        NewTopic(name, spec.partitions, spec.replication, config={**APPEND_TIME, **spec.config})
        for name, spec in topics.items()
        if name not in existing
    ]
    created = set()
    if wanted:
        answers = admin.create_topics(wanted, operation_timeout=timeout_s, request_timeout=timeout_s)
        created = _settle(answers, "create", bootstrap, KafkaError.TOPIC_ALREADY_EXISTS)
    _await(admin, bootstrap, deadline, lambda seen: all(_complete(seen, name) for name in topics))
    return created


def topic_configs(
    bootstrap: str,
    topics: Iterable[str],
    *,
    options: Mapping[str, str] | None = None,
    timeout_s: float = 5.0,
) -> dict[str, dict[str, str]]:
    """Return the settings of topics, defaults included, as far as the broker tells them.

    Args:
        bootstrap: ``host:port``, several with commas.
        topics: Their names.
        options: Further client options.
        timeout_s: Seconds to wait at most.

    Returns:
        Topic → setting → value; a topic that does not exist, or whose settings this client may not see, is
        left out.
    """
    asked = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    if not asked:
        return {}
    admin = _admin(bootstrap, options)  # its end would be that of the answers
    answers = admin.describe_configs(asked, request_timeout=timeout_s)
    found: dict[str, dict[str, str]] = {}
    for topic, answer in answers.items():
        try:
            entries = answer.result()
        except KafkaException:
            continue
        found[topic.name] = {name: entry.value for name, entry in entries.items() if entry.value is not None}
    return found


def delete_topics(
    bootstrap: str,
    names: Iterable[str],
    *,
    options: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> set[str]:
    """Delete topics, and return when they are gone; those that do not exist are left out.

    Args:
        bootstrap: ``host:port``, several with commas.
        names: The topics.
        options: Further client options.
        timeout_s: Seconds to wait at most.

    Returns:
        The names of those that were deleted now.

    Raises:
        BrokerUnreachable: None answers in time.
        UserError: The broker refused.
    """
    admin = _admin(bootstrap, options)
    deadline = time.monotonic() + timeout_s
    wanted = list(names)
    if not wanted:
        return set()
    answers = admin.delete_topics(wanted, operation_timeout=timeout_s, request_timeout=timeout_s)
    deleted = _settle(answers, "delete", bootstrap, KafkaError.UNKNOWN_TOPIC_OR_PART)
    _await(admin, bootstrap, deadline, lambda seen: not deleted & seen.topics.keys())
    return deleted


def end_offsets(
    bootstrap: str,
    topic: str,
    *,
    options: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> dict[int, int]:
    """Return the offset after the last message of every partition (uncommitted ones included).

    A partition without a leader is asked again: a topic that has just been made has none at first.

    Args:
        bootstrap: ``host:port``, several with commas.
        topic: The topic.
        options: Further client options.
        timeout_s: Seconds to wait at most.

    Raises:
        BrokerUnreachable: None answers in time.
        UserError: There is no such topic, or the broker does not say where it ends.
    """
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    return _offsets(bootstrap, topic, latest, options, timeout_s)


def offset_ranges(
    bootstrap: str,
    topic: str,
    *,
    options: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> list[tuple[int, int]]:
    """Return for each partition its first offset, and the one after its last; see :func:`end_offsets`."""
    earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    first = _offsets(bootstrap, topic, earliest, options, timeout_s)
    ends = end_offsets(bootstrap, topic, options=options, timeout_s=timeout_s)
    return [(first.get(partition, 0), end) for partition, end in ends.items()]


def _offsets(
    bootstrap: str, topic: str, spec: OffsetSpec, options: Mapping[str, str] | None, timeout_s: float
) -> dict[int, int]:
    admin = _admin(bootstrap, options)
    deadline = time.monotonic() + timeout_s
    found = _metadata(admin, bootstrap, timeout_s).topics.get(topic)
    if found is None:
        raise UserError(f"there is no topic {topic} at {bootstrap}; create it, or check its name")
    asked = {TopicPartition(topic, number): spec for number in found.partitions}
    while True:
        answers = admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=timeout_s
        )
        try:
            return {asking.partition: answer.result().offset for asking, answer in answers.items()}
        except KafkaException as error:
            refused = error.args[0]
            if refused.code() not in WITHOUT_LEADER or time.monotonic() > deadline:
                raise UserError(f"topic {topic} at {bootstrap}: {refused.str()}") from error
        time.sleep(_AGAIN_S)


def _admin(bootstrap: str, options: Mapping[str, str] | None) -> AdminClient:
    try:
        return AdminClient(client_config(bootstrap, options))
    except KafkaException as error:  # an option that librdkafka does not know, a file that is missing
        raise UserError(f"Kafka client for {bootstrap}: {error.args[0].str()}") from error


def _metadata(admin: AdminClient, bootstrap: str, timeout_s: float) -> ClusterMetadata:
    try:
        return admin.list_topics(timeout=timeout_s)
    except KafkaException as error:
        raise BrokerUnreachable(
            f"no Kafka broker answers at {bootstrap} (waited {timeout_s:g} s): start it, or give another "
            "address with --bootstrap or KAFKA_BOOTSTRAP_SERVERS"
        ) from error


def _settle(answers: Mapping[str, Future[None]], verb: str, bootstrap: str, harmless: int) -> set[str]:
    """Wait for the broker's answer for every topic; return those for which it did something."""
    done = set()
    for name, answer in answers.items():
        try:
            answer.result()
            done.add(name)
        except KafkaException as error:
            if error.args[0].code() != harmless:
                reason = error.args[0].str()
                raise UserError(f"cannot {verb} topic {name} at {bootstrap}: {reason}") from error
    return done


def _complete(seen: ClusterMetadata, name: str) -> bool:
    topic = seen.topics.get(name)
    parts = list(topic.partitions.values()) if topic else []
    return bool(parts) and all(part.leader >= 0 for part in parts)


def _await(
    admin: AdminClient, bootstrap: str, deadline: float, reached: Callable[[ClusterMetadata], bool]
) -> None:
    while not reached(_metadata(admin, bootstrap, max(1.0, deadline - time.monotonic()))):
        if time.monotonic() > deadline:
            raise BrokerUnreachable(f"the broker at {bootstrap} does not show its changed topics")
        time.sleep(0.02)
