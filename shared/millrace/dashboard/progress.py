"""Progress of a query, read from its checkpoint's files and the broker; the engine is not asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from millrace.checkpoints.checkpoint import Checkpoint
from millrace.errors import UserError
from millrace.runtime.clock_files import read_status, shown_watermark

#: Topic → partition → offset.
Offsets = dict[str, dict[int, int]]


@dataclass(frozen=True)
class Progress:
    """Where a query stands.

    Attributes:
        batch: The last committed batch.
        committed_ms: When it was committed, UTC milliseconds.
        batches: When the batches that are still kept were planned and committed, UTC milliseconds.
        watermark_ms: The watermark at which the next batch runs, ``None`` before the first event.
        done: What it has read.
        held_by: The source that holds the watermark back; empty: none does.
    """

    batch: int
    committed_ms: int
    batches: tuple[tuple[int, int], ...]
    watermark_ms: int | None
    done: Mapping[str, Mapping[int, int]]
    held_by: str = ""

    @property
    def batch_ms(self) -> int:
        """Median time from plan to commit of the batches that are kept, ms."""
        took = sorted(end - start for start, end in self.batches)
        return took[len(took) // 2] if took else 0


def read_progress(root: Path) -> Progress | None:
    """Return where the query with its checkpoint under ``root`` stands, ``None`` before its first batch.

    Args:
        root: The folder that holds ``checkpoint``.
    """
    checkpoint = Checkpoint(root, root / "checkpoint")
    try:
        batches = checkpoint.batches()
        if not batches:
            return None
        last = batches[-1]
        position = checkpoint.position(last)
        status = read_status(root, last)
        times = tuple(_times(checkpoint, b) for b in batches)
    except (UserError, OSError, ValueError):
        return None  # files of a running query come and go: the next look finds others
    held_by = "" if status is None else status.held_by
    return Progress(last, times[-1][1], times, shown_watermark(status), offsets_of(position.sources), held_by)


def _times(checkpoint: Checkpoint, batch: int) -> tuple[int, int]:
    planned, committed = (
        (checkpoint.folder / log / str(batch)).stat().st_mtime for log in ("offsets", "commits")
    )
    return int(planned * 1000), int(committed * 1000)


def offsets_of(sources: tuple[str | None, ...]) -> Offsets:
    """Return the offsets of Kafka sources as Spark writes them; other sources have none.

    >>> offsets_of(('{"payments": {"0": 5, "1": 7}}', None))
    {'payments': {0: 5, 1: 7}}
    """
    found: Offsets = {}
    for source in sources:
        try:
            topics = json.loads(source or "null")
        except ValueError:
            continue
        if not isinstance(topics, dict):
            continue
        for topic, partitions in topics.items():
            if isinstance(partitions, dict):
                found[topic] = {int(p): int(o) for p, o in partitions.items()}
    return found


def lag(done: Mapping[str, Mapping[int, int]], ends: Mapping[str, Mapping[int, int]]) -> dict[str, int]:
    """Return how many records of each topic are not read yet.

    Args:
        done: What was read: topic → partition → next offset.
        ends: Where topics end.

    >>> lag({"a": {0: 5}}, {"a": {0: 9, 1: 3}})
    {'a': 7}
    """
    return {
        topic: sum(max(0, end - done.get(topic, {}).get(p, 0)) for p, end in partitions.items())
        for topic, partitions in ends.items()
    }
