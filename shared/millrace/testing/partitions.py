"""A broker and a reader in memory: partitions that fill as time goes on, read as Spark reads Kafka.

Spark shares the limit of a batch over the partitions by how much waits in each, at least one offset for any
that has one; offsets may be no rows (markers of transactions, what a producer took back).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from millrace.time.clock import SourceReport, plausible

Kind = Literal["event", "dead", "hole", "control"]


class Record(NamedTuple):
    """An offset of a partition.

    Attributes:
        time: Event time, ms; of a dead letter it says nothing; of a control event that has none it is 0.
        arrival: When it came, ms.
        kind: What it is.
    """

    time: int
    arrival: int
    kind: Kind = "event"


@dataclass
class Partition:
    """A partition: its records by offset, the offsets that are no rows included."""

    name: str
    records: list[Record] = field(default_factory=list)
    is_control: bool = False


class Row(NamedTuple):
    """A row of a batch: its partition, its offset, and the record."""

    partition: str
    offset: int
    record: Record


def shared_limit(waiting: dict[str, int], limit: int | None) -> dict[str, int]:
    """Return how many offsets of each partition a batch takes (``KafkaMicroBatchStream.rateLimit``)."""
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return dict(waiting)
    taken = {}
    for name, size in waiting.items():
        share = limit * (size / total)
        taken[name] = min(size, math.ceil(share) if share < 1 else math.floor(share))
    return taken


@dataclass
class Reader:
    """Reads partitions batch by batch."""

    partitions: Sequence[Partition]
    limit: int | None
    done: dict[str, int] = field(default_factory=dict)

    def waiting(self, now: int | None = None) -> dict[str, int]:
        """Return how many offsets wait in each partition; ``now``: only what has come by then counts."""
        found = {}
        for p in self.partitions:
            at = self.done.get(p.name, 0)
            end = len(p.records)
            if now is not None:
                while end > at and p.records[end - 1].arrival > now:
                    end -= 1
            found[p.name] = end - at
        return found

    def batch(self, now: int | None = None) -> list[Row]:
        """Take the next batch; it may have no row."""
        rows = []
        for p in self.partitions:
            at = self.done.get(p.name, 0)
            take = shared_limit(self.waiting(now), self.limit)[p.name]
            rows += [
                Row(p.name, offset, p.records[offset])
                for offset in range(at, at + take)
                if p.records[offset].kind != "hole"
            ]
            self.done[p.name] = at + take
        return rows

    def batches(self) -> Iterator[list[Row]]:
        """Take all there is."""
        while any(self.waiting().values()):
            yield self.batch()


def reports(
    rows: Sequence[Row], *, skew_ms: int | None = 0, rng: random.Random | None = None
) -> list[SourceReport]:
    """Return what tasks would report of a batch; with ``rng`` several tasks share a partition."""
    parts: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        parts.setdefault((row.partition, 0 if rng is None else rng.randrange(2)), []).append(row)
    made = []
    for (name, _), of in parts.items():
        clocks = [row.record for row in of if row.record.kind != "control"]
        timed = [row.record for row in of if row.record.kind == "control" and row.record.time]
        events = [record for record in clocks if record.kind == "event"]
        offsets = [row.offset for row in of]
        made.append(
            SourceReport(
                0,
                name,
                min(offsets),
                max(offsets),
                len(of),
                bool(clocks),
                max((plausible(r.time, r.arrival, skew_ms) for r in events), default=None),
                max((r.arrival for r in clocks if r.arrival > 0), default=None),
                max((plausible(r.time, r.arrival, skew_ms) for r in timed), default=None),
            )
        )
    if rng is not None:
        rng.shuffle(made)
    return made
