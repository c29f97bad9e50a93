"""The output router: one batch, several outputs, the state computed once.

The router is the function that ``foreachBatch`` calls. It has two writers, which leave the same tables
and topics: a small batch is collected and written by the driver (one Spark job, milliseconds per
table), a large one by Spark's tasks. Which one a batch takes follows the size of the batch before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from millrace.connectors.records import is_dead_letters
from millrace.errors import MillraceError
from millrace.host.json_columns import RecordMisfits
from millrace.topology.sinks import Table, Tables, table_name, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.host.spark import ProcessedStream
    from millrace.time.clock import ClockStatus

log = logging.getLogger(__name__)

#: Batches up to this many records are written by the driver.
DRIVER_WRITE_MAX_RECORDS = 500_000


class TooManyDeadLetters(MillraceError):
    """A batch was mostly dead letters: a bad deploy must not eat the stream."""


class StopRequested(Exception):
    """Raised between two batches to end the query; not an error."""


@dataclass(frozen=True)
class Outputs:
    """A topology at work, and where its outputs go.

    Attributes:
        stream: The processed stream.
        tables: Output → name of a Delta table that is appended to, an :class:`~millrace.topology.Upsert`, or
            several of both.
        topics: Output → Kafka topic.
    """

    stream: ProcessedStream
    tables: Mapping[str, Tables] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)

    @property
    def written(self) -> list[tuple[str, Table]]:
        """Each output that goes to a table, with that table."""
        return written(self.tables)

    def table_names(self) -> dict[str, str]:
        """Return the name of each table → its output."""
        return {table_name(table): output for output, table in self.written}


@dataclass(frozen=True)
class DeadLetterLimit:
    """When a batch has too many dead letters to be believed.

    Attributes:
        ratio: Share of dead letters above which a batch is refused.
        from_records: Batches smaller than this are never refused.
    """

    ratio: float = 0.5
    from_records: int = 1_000

    def check(self, batch_id: int, counts: Mapping[str, int]) -> None:
        """Refuse a bad batch before anything of it is written.

        Args:
            batch_id: The batch.
            counts: Records per output.

        Raises:
            TooManyDeadLetters: The batch is above the limit.
        """
        total = sum(counts.values())
        dead = sum(count for output, count in counts.items() if is_dead_letters(output))
        if total >= self.from_records and dead > total * self.ratio:
            raise TooManyDeadLetters(
                f"batch {batch_id}: {dead:,} of {total:,} records are dead letters, "
                f"more than {self.ratio:.0%}: nothing was written; "
                "look at the producer or at the last deploy (the limit is stream.max_dead_letter_ratio)"
            )


#: What is called with how far the clock is at the end of a batch.
OnClock = Callable[[int, "ClockStatus"], None]
#: What is called with how many dead letters of a batch there are of each reason.
OnReasons = Callable[[int, Mapping[str, int]], None]


class Writer(Protocol):
    """Writes all outputs of a batch; the same batch again changes no table."""

    def write(self, batch: DataFrame, batch_id: int) -> dict[str, int]:
        """Write one batch and return the number of records per output."""


class SmallWriter(Writer, Protocol):
    """A writer that may leave some of its work for a little later."""

    def flush(self) -> None:
        """Do what is left to be done."""

    def close(self) -> None:
        """Do what is left to be done, and end."""


@dataclass
class Router:
    """Writes the batches of a query; pass it to ``foreachBatch``.

    Args:
        small: Writer of small batches.
        large: Writer of large batches.
        driver_write_max_records: Largest batch, in records, that counts as small.
        on_batch: Called after each batch with its id and the number of records per output.
        stop: When set, the next batch is refused before it has any effect.
    """

    small: SmallWriter
    large: Writer
    driver_write_max_records: int = DRIVER_WRITE_MAX_RECORDS
    on_batch: Callable[[int, dict[str, int]], None] | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    _is_small: bool = True

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one batch."""
        if self.stop.is_set():
            raise StopRequested
        if self._is_small:
            counts = self.small.write(batch, batch_id)
        else:
            self.small.flush()  # the tables come to the batch before, whoever writes it
            counts = self._write_large(batch, batch_id)
        self._is_small = sum(counts.values()) <= self.driver_write_max_records
        if self.on_batch is not None:
            self.on_batch(batch_id, counts)

    def _write_large(self, batch: DataFrame, batch_id: int) -> dict[str, int]:
        """Write a large batch; as a small one where a table cannot take some of its records."""
        try:
            return self.large.write(batch, batch_id)
        except Exception as error:  # which of Spark's it is hangs on where it was found
            if RecordMisfits.__name__ not in str(error):
                raise
            log.warning(
                "batch %d has records that a table cannot take: it is written by the driver", batch_id
            )
            return self.small.write(batch, batch_id)

    def close(self) -> None:
        """Do what batches left to be done."""
        self.small.close()
