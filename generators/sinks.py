"""Sinks of messages: a Kafka topic, a file of JSON lines, or standard output."""

from __future__ import annotations

import logging
import os
import stat
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Protocol

from millrace.errors import MillraceError, UserError
from millrace_apps.generators.engine.message import Generated
from millrace_apps.generators.kafka_position import Identity, TopicEnds

#: A message that no broker has acknowledged after this time ends the run, ms.
DELIVERY_TIMEOUT_MS: Final = 60_000
#: Serves delivery reports and errors after so many messages; in between librdkafka works on its own threads.
_POLL_EVERY: Final = 5_000
_FULL_WAIT_S: Final = 0.05
#: For librdkafka the time at which a message is handed over.
_NOW: Final = 0
#: How long a stopped run still tries to deliver what it has taken.
_STOP_TIMEOUT_S: Final = 8.0
#: How long a bookmark waits for the broker; without an answer it is written later.
_POSITION_TIMEOUT_S: Final = 2.0


class SinkError(MillraceError):
    """Messages could not be delivered: what was sent is not complete."""


class SinkClosed(SinkError):
    """The reader of the other end went away, e.g. ``| head``."""


class Sink(Protocol):
    """Takes messages in order; used as a context manager."""

    def write(self, message: Generated) -> None:
        """Take one message, and wait where the sink cannot keep up."""

    def idle(self) -> None:
        """Push out what is buffered: nothing comes for a while."""

    def flush(self) -> None:
        """Return when everything has been delivered; raise :class:`SinkError` if it cannot be."""

    def position(self) -> dict[str, int] | None:
        """Make sure of what was taken and return where it ends; None if that cannot be known now."""

    def __enter__(self) -> Sink: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LineSink:
    """Writes the payloads, one a line, exactly as they are; malformed ones too.

    Args:
        out: Binary file.
        name: What errors call it.
        close: Whether to close the file at the end.
    """

    def __init__(self, out: IO[bytes], name: str, *, close: bool) -> None:
        self._out = out
        self._name = name
        self._close = close

    @classmethod
    def to_file(cls, path: Path, end: int | None = None) -> LineSink:
        """Return a sink that writes a new file (or replaces it), or goes on behind byte ``end`` of one."""
        try:
            if end is None:
                return cls(path.open("wb", buffering=1 << 20), str(path), close=True)
            if path.stat().st_size < end:
                raise UserError(f"--resume: {path} is shorter than the {end} bytes that were written to it")
            os.truncate(path, end)
            return cls(path.open("ab", buffering=1 << 20), str(path), close=True)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; give another --out FILE") from error

    @classmethod
    def to_stdout(cls) -> LineSink:
        """Return a sink that writes to standard output."""
        return cls(sys.stdout.buffer, "standard output", close=False)

    def write(self, message: Generated) -> None:
        """Write one payload."""
        try:
            self._out.write(message.value + b"\n")
        except OSError as error:
            raise self._failure(error) from error

    def idle(self) -> None:
        """Let readers see what was written so far."""
        self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system."""
        try:
            self._out.flush()
        except OSError as error:
            raise self._failure(error) from error

    def position(self) -> dict[str, int] | None:
        """Return how many bytes are on disk, all of them; None where the target is no file."""
        self.flush()
        try:
            if not self._close or not stat.S_ISREG(os.fstat(self._out.fileno()).st_mode):
                return None
            os.fsync(self._out.fileno())
            return {"bytes": self._out.tell()}
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> SinkError:
        if isinstance(error, BrokenPipeError):
            return SinkClosed(f"the reader of {self._name} closed it")
        return SinkError(f"cannot write {self._name}: {error.strerror}")

    def __enter__(self) -> LineSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._close:
            return
        try:
            self._out.close()
        except OSError as failure:
            if error is None:
                raise self._failure(failure) from failure


class KafkaSink:
    """Sends to Kafka topics: idempotent, compressed, partitioned by key as Java clients do.

    A topic that does not exist is created. A full queue makes :meth:`write` wait; a message that cannot be
    delivered ends the run with its error.

    Args:
        bootstrap: ``host:port``, several with commas.
        topic: Topic of messages that name none.
        topics: All topics that messages name; only ``topic`` if left out.
        partitions: Partitions of a topic that is created; an existing one keeps its own.
        options: Further client options, e.g. ``{"security.protocol": "SASL_SSL"}``.
        stop: Set when the run is being stopped; a wait for a broker that is away ends then.
        connect_timeout_s: How long to wait for a broker at the start, seconds.
        after: Position of a killed run, from :meth:`position`: what that run sent after it is not sent again.
        arrivals: Whether records carry the simulated arrival of their message, which topics that are created
            then keep; else the broker writes when it takes them.
        insist: Whether an existing topic that does not keep such times is an error; else it is warned about.

    Raises:
        UserError: If no broker answers in time, or a topic does not keep the arrivals that are insisted on.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        topics: Sequence[str] = (),
        partitions: int = 4,
        options: Mapping[str, str] | None = None,
        stop: threading.Event | None = None,
        connect_timeout_s: float = 5.0,
        after: Mapping[str, int] | None = None,
        arrivals: bool = False,
        insist: bool = False,
    ) -> None:
        from confluent_kafka import KafkaException, Producer

        self._topic, self._bootstrap = topic, bootstrap
        self._stop = stop or threading.Event()
        self._failed: str | None = None
        self._pending = 0
        self._exception = KafkaException
        self._topics = list(topics) or [topic]
        existing = _ensure_topics(bootstrap, self._topics, partitions, options, connect_timeout_s, arrivals)
        if arrivals and (warning := _unkept_arrivals(bootstrap, existing, options)):
            if insist:
                raise UserError(warning)
            print(f"warning: {warning}", file=sys.stderr)
        self._arrivals = arrivals
        self._options = options
        self._ends: TopicEnds | None = None
        self._there: Counter[Identity] = self._topic_ends().sent_after(after) if after else Counter()
        self._producer = Producer(self._config(options), logger=_silent_logger())
        self._produce: Callable[..., None] = self._producer.produce

    def _config(self, options: Mapping[str, str] | None) -> dict[str, Any]:
        from millrace.kafka.admin import client_config

        return {
            # Never twice and never out of order by a retry; implies acks=all.
            "enable.idempotence": True,
            "compression.type": "lz4",
            # A paced run adds at most this to an event's latency, ms; a fast one fills its batches earlier.
            "linger.ms": 5,
            "batch.size": 512 * 1024,
            # Bounds memory: about a second of a fast run.
            "queue.buffering.max.messages": 100_000,
            "queue.buffering.max.kbytes": 64 * 1024,
            # The Java clients' partitioner, so that a key lands where theirs does.
            "partitioner": "murmur2_random",
            "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            "delivery.report.only.error": True,
            "on_delivery": self._on_failure,
            **client_config(self._bootstrap, options),
        }

    def _on_failure(self, error: Any, _message: Any) -> None:
        if error is not None and self._failed is None:
            self._failed = error.str()

    def write(self, message: Generated) -> None:
        """Queue one message; wait while the queue is full."""
        topic, stopping = message.topic or self._topic, 0
        if self._there and self._is_there(topic, message):
            return
        while True:
            try:
                self._produce(
                    topic,
                    message.value,
                    message.key or None,
                    timestamp=message.arrival_ms if self._arrivals else _NOW,
                    headers=message.headers,
                )
                break
            except BufferError:
                self._producer.poll(_FULL_WAIT_S)
                self._check()
                stopping += self._stop.is_set()
                if stopping * _FULL_WAIT_S > _STOP_TIMEOUT_S:
                    raise self._failure("stopped while the broker took no messages") from None
            except self._exception as error:
                raise self._failure(error.args[0].str()) from error
        self._pending += 1
        if self._pending >= _POLL_EVERY:
            self.idle()

    def _is_there(self, topic: str, message: Generated) -> bool:
        """Whether the topic has this message from the run that was killed; each counts once."""
        identity = (topic, dict(message.headers).get("ce_id"), message.value)
        if identity not in self._there:
            return False
        self._there[identity] -= 1
        if not self._there[identity]:
            del self._there[identity]
        return True

    def position(self) -> dict[str, int] | None:
        """Return where the topics end once every message is acknowledged; None if that takes too long.

        After a crash the topics end behind what is being made again, until all of it has been recognised:
        till then the position of before is the one that holds.
        """
        if self._stop.is_set() or self._there:
            return None
        left = self._producer.flush(_POSITION_TIMEOUT_S)
        self._check()
        return None if left else self._topic_ends().ends()

    def _topic_ends(self) -> TopicEnds:
        if self._ends is None:
            from millrace.kafka.admin import client_config

            self._ends = TopicEnds(client_config(self._bootstrap, self._options), self._topics)
        return self._ends

    def idle(self) -> None:
        """Serve delivery reports."""
        self._pending = 0
        self._producer.poll(0)
        self._check()

    def flush(self) -> None:
        """Return when every message has been acknowledged.

        Raises:
            SinkError: If one was not, within the delivery timeout or, when the run is stopped, 8 s.
        """
        timeout_s = _STOP_TIMEOUT_S if self._stop.is_set() else DELIVERY_TIMEOUT_MS / 1000 + 5
        left = self._producer.flush(timeout_s)
        self._check()
        if left:
            raise self._failure(f"{left} messages not acknowledged after {timeout_s:.0f} s")

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failure(self._failed)

    def _failure(self, reason: str) -> SinkError:
        return SinkError(
            f"not every message reached topic {', '.join(self._topics)} at {self._bootstrap}: {reason}; "
            "what was sent is incomplete, generate it again"
        )

    def __enter__(self) -> KafkaSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ends is not None:
            self._ends.close()
        if error is not None:
            # Otherwise the client's own end would wait for what cannot be delivered.
            self._producer.purge()


def _ensure_topics(
    bootstrap: str,
    topics: Sequence[str],
    partitions: int,
    options: Mapping[str, str] | None,
    timeout_s: float,
    arrivals: bool,
) -> list[str]:
    """Create the topics that are missing, and return those that are not ours."""
    from millrace.kafka.admin import SENT_TIME, TopicSpec, create_topics, topic_partitions

    there = topic_partitions(bootstrap, options=options, timeout_s=timeout_s)
    spec = TopicSpec(partitions, SENT_TIME if arrivals else {})
    missing = {topic: spec for topic in topics if topic not in there}
    made = create_topics(bootstrap, missing, options=options) if missing else set()
    return [topic for topic in topics if topic not in made]


def _unkept_arrivals(bootstrap: str, topics: Sequence[str], options: Mapping[str, str] | None) -> str | None:
    """Return what is to be said of topics whose records get the broker's time in place of their arrival."""
    from millrace.kafka.admin import APPEND_TIME, SENT_TIME, TIMESTAMP_TYPE, topic_configs

    configs = topic_configs(bootstrap, topics, options=options)
    append, sent = APPEND_TIME[TIMESTAMP_TYPE], SENT_TIME[TIMESTAMP_TYPE]
    deaf = [topic for topic in topics if configs.get(topic, {}).get(TIMESTAMP_TYPE) == append]
    if not deaf:
        return None
    return (
        f"{', '.join(deaf)} at {bootstrap} has {TIMESTAMP_TYPE}={append}: records get the broker's time, not "
        "their simulated arrival; give --timestamps append if that is meant, another --topic, or run: "
        f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics "
        f"--entity-name {deaf[0]} --add-config {TIMESTAMP_TYPE}={sent}"
    )


def _silent_logger() -> logging.Logger:
    """Return a logger for librdkafka, which would print to the terminal otherwise; failures are raised."""
    logger = logging.getLogger("millrace.generators.kafka")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
    return logger
