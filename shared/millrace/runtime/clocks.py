"""The engine's messages in an app's control topic: ticks of the clocks, and the end of the input.

Ticks come from a topic so that a replay has them again. A processing-time tick comes at a steady
interval. An idle tick comes only when the inputs are silent and nothing waits: it says that event time
has gone on by as much as the silence lasts, so that the last windows and timers of a quiet stream are
not kept waiting for the next event. It names the topics that were silent and the newest arrival that was
read: a reader of other topics, or one that is not so far yet, is not meant.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.errors import MillraceError
from millrace.host.system import Idle, SystemMessage, Tick, Wake, encode_system
from millrace.local.belonging import belonging
from millrace.time import NO_WATERMARK
from millrace.time.clock import ClockStatus

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

#: Position in topics: topic → partition → next offset.
Offsets = dict[str, dict[int, int]]


class NotDelivered(MillraceError):
    """The control topic did not take a message of the engine."""


class ControlTopic:
    """Writes messages of the engine to a control topic.

    Args:
        options: Options of the Kafka client, ``bootstrap.servers`` included.
        topic: The topic.
    """

    def __init__(self, options: Mapping[str, Any], topic: str) -> None:
        from confluent_kafka import Producer

        from millrace.kafka.admin import quiet_config

        self.topic = topic
        self._producer = Producer({"enable.idempotence": True, **quiet_config(), **options})

    def send(self, message: SystemMessage) -> int:
        """Send one message and return its offset; all of them go to partition 0.

        Raises:
            NotDelivered: The broker did not take it within 30 s.
        """
        answers: list[tuple[Any, Any]] = []
        self._producer.produce(
            self.topic, encode_system(message), partition=0, on_delivery=lambda *a: answers.append(a)
        )
        self._producer.flush(30)
        if not answers or answers[0][0] is not None:
            why = answers[0][0] if answers else "no answer within 30 s"
            raise NotDelivered(f"{self.topic} did not take {message}: {why}")
        return int(answers[0][1].offset())


@dataclass(frozen=True)
class Progress:
    """How far a query is.

    Attributes:
        done: What it has read.
        behind: Records that wait to be read.
    """

    done: Offsets
    behind: int


def progress_of(query: StreamingQuery) -> Progress | None:
    """Return how far a query is; ``None`` before its first report."""
    last: Any = query.lastProgress
    if not last:
        return None
    done: Offsets = {}
    behind = 0
    for source in last["sources"]:
        end, latest = _offsets(source["endOffset"]), _offsets(source.get("latestOffset"))
        for topic, partitions in end.items():
            done.setdefault(topic, {}).update(partitions)
            for partition, offset in partitions.items():
                behind += max(0, latest.get(topic, {}).get(partition, offset) - offset)
    return Progress(done, behind)


def _offsets(found: Any) -> Offsets:
    found = json.loads(found) if isinstance(found, str) else found
    return {t: {int(p): int(o) for p, o in of.items()} for t, of in dict(found or {}).items()}


class Silence:
    """Judges when an input has been silent long enough for event time to go on without it.

    Args:
        idle_after_ms: How long nothing must have come.
        control: The control topic, whose own messages are no input.
        topics: The topics whose events move the watermark.
    """

    def __init__(self, idle_after_ms: int, control: str, topics: Sequence[str]) -> None:
        self._idle_after_ms = idle_after_ms
        self._control = control
        self._topics = tuple(topics)
        self._seen: tuple[Offsets, ClockStatus] | None = None
        self._since_ms = 0

    def poll(self, progress: Progress | None, status: ClockStatus | None, now_ms: int) -> Idle | None:
        """Return the tick that is due, ``None`` while the input is not silent.

        Args:
            progress: How far the query is.
            status: How far its clock is.
            now_ms: The present, ms.
        """
        if progress is None or status is None or status.furthest == NO_WATERMARK:
            return None
        done = {topic: of for topic, of in progress.done.items() if topic != self._control}
        # The watermark itself goes on with the ticks.
        seen = (done, ClockStatus(0, 0, status.furthest, status.arrival))
        if seen != self._seen:
            self._seen, self._since_ms = seen, now_ms
        silent_ms = now_ms - self._since_ms
        if progress.behind or silent_ms < self._idle_after_ms:
            return None
        return Idle(status.furthest + silent_ms, self._topics, status.arrival)


class Ticker:
    """A thread that sends ticks while a query runs.

    Args:
        control: Where the ticks go.
        query: The query.
        tick_ms: Interval of processing-time ticks, ``None`` for none.
        silence: When idle ticks are due, ``None`` for none.
        status: How far the query's clock is, ``None`` before its first batch.
        now_ms: The clock.
    """

    def __init__(
        self,
        control: ControlTopic,
        query: StreamingQuery,
        *,
        tick_ms: int | None,
        silence: Silence | None,
        status: Callable[[], ClockStatus | None] = lambda: None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._control = control
        self._query = query
        self._tick_ms = tick_ms
        self._silence = silence
        self._status = status
        self._now_ms = now_ms
        self._stop = threading.Event()
        self._thread = threading.Thread(target=belonging(self._run), name="millrace-ticker", daemon=True)

    def __enter__(self) -> Ticker:
        """Start to tick."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._stop.set()
        self._thread.join(timeout=35)

    def _run(self) -> None:
        if self._silence is not None:
            self._send(Wake())  # its batch says how far the clock is, also where nothing comes any more
        every_s = (self._tick_ms or 1_000) / 1_000
        while not self._stop.wait(every_s):
            self.step()

    def step(self) -> None:
        """Send what is due now."""
        now = self._now_ms()
        if self._tick_ms is not None:
            self._send(Tick(now))
        if self._silence is not None:
            idle = self._silence.poll(progress_of(self._query), self._status(), now)
            if idle is not None:
                self._send(idle)

    def _send(self, message: SystemMessage) -> None:
        try:
            self._control.send(message)
        except NotDelivered as error:
            log.warning("%s", error)  # the next tick says what this one would have
