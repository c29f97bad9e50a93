"""Clock settings of a stream, for Spark's workers, who pick by the number of their batch."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
from pyspark import TaskContext
from pyspark.sql import SparkSession

from millrace.runtime.clock_files import Epoch, settings_of
from millrace.time.clock import ClockSettings

#: The setting of a session by which a query takes its history to the workers.
_CONF: Final = "spark.millrace.clock"
#: What Spark calls the number of the batch that a task is of.
_BATCH: Final = "streaming.sql.batchId"
_starting = threading.Lock()


@dataclass(frozen=True)
class BatchClock:
    """The settings of a stream's clock, in a worker.

    Attributes:
        given: What the stream was made with: it holds where the query was started without a history.
    """

    given: ClockSettings

    def now(self) -> ClockSettings:
        """Return the settings of the batch that is running."""
        context = TaskContext.get()
        told = None if context is None else context.getLocalProperty(_CONF)
        if context is None or not told:
            return self.given
        return settings_of(_epochs(told), int(context.getLocalProperty(_BATCH) or 0))


@functools.lru_cache(maxsize=4)
def _epochs(text: str) -> list[Epoch]:
    return msgspec.json.decode(text, type=list[Epoch])


@contextlib.contextmanager
def clock_settings_for(session: SparkSession, epochs: list[Epoch]) -> Iterator[None]:
    """Let the query that is started in the block know its history: it takes the session's settings along."""
    with _starting:
        session.conf.set(_CONF, msgspec.json.encode(epochs).decode())
        try:
            yield
        finally:
            session.conf.unset(_CONF)
