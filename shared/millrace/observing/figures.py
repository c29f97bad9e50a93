"""Metrics of a job: figures that its driver takes once per batch.

They stand in a file beside the checkpoint, so that ``millrace status`` and ``millrace top`` say what the
job's metrics say, and go on saying it once the job has ended.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from millrace.observing.jobs import JobRecord, write_atomically

#: Beside the checkpoint.
FIGURES_FILE: Final = "figures.json"


class SourceFigures(msgspec.Struct):
    """Where a partition of a topic stands at the end of the last batch.

    Attributes:
        read: Offset after the last record that was read.
        end: Offset after the last record that there was.
        newest_ms: Largest plausible event time of it, UTC ms; ``None``: not known.
    """

    read: int
    end: int
    newest_ms: int | None = None

    @property
    def lag(self) -> int:
        """Records that were not read yet."""
        return max(0, self.end - self.read)


class StateFigures(msgspec.Struct):
    """What the state of a process comes to, as of a batch that was looked at.

    Attributes:
        batch: The batch.
        at_ms: When it was looked at, UTC ms.
        entries: Keys that have state.
        bytes: What all values take as they are stored.
        pages: Pages of all key groups.
        timers: Pending timers, of all clocks.
        waiting: Events that wait for the watermark.
        largest_entry_bytes: Size of the largest entry.
        largest_key: Its key.
        groups: Key groups that hold something.
        skew: Bytes of the largest key group over the mean of all that there are; 1: spread evenly.
        share: Share of the pages that was looked at: below 1 the numbers are estimates, and the largest entry
            is the largest of those.
    """

    batch: int
    at_ms: int
    entries: int = 0
    bytes: int = 0
    pages: int = 0
    timers: int = 0
    waiting: int = 0
    largest_entry_bytes: int = 0
    largest_key: str = ""
    groups: int = 0
    skew: float = 0.0
    share: float = 1.0


class WaitingFigures(msgspec.Struct):
    """What waits for a table: rows of committed batches that are not in it yet.

    Attributes:
        batches: Batches that left them.
        since_ms: When the oldest of these did, UTC ms.
    """

    batches: int
    since_ms: int


class ModelFigures(msgspec.Struct):
    """A model that decides, or would like to.

    Attributes:
        version: Its version.
        trained_until_ms: Event time of the newest row that it was trained on, UTC ms.
        since_ms: Since when it has the alias, UTC ms.
    """

    version: str
    trained_until_ms: int
    since_ms: int


class Figures(msgspec.Struct):
    """What is known of a job.

    Attributes:
        job: What it says of itself.
        at_ms: When these were written, UTC ms.
        ended_ms: When it ended; ``None`` while it runs.
        error: First line of what ended it, secrets removed.
        phase: ``starting``, ``running``, ``waiting`` (for events), ``ended``.
        plan: ``station`` or ``chain``.
        batch: Id of the last committed batch, -1 before the first.
        batches: Batches since the job began.
        rows: Rows read since then.
        input_rate: Rows per second that arrived, over the last few batches.
        processed_rate: Rows per second of batch time: what it could do.
        last_batch_ms: When the last batch ended, UTC ms; ``None`` before the first.
        alive_ms: When the query last showed that its loop runs, UTC ms.
        batch_ms: Duration of the last batch that read rows, ms.
        batch_ms_p50: Median over the last 100 of them.
        batch_ms_p95: 95th percentile of the same.
        phases_ms: Spark's phase → ms of the last batch.
        phases_total_ms: The same of all batches since the job began.
        durations: Upper bound in seconds → batches that took no longer; the last is of all.
        durations_sum_ms: What they took together.
        watermark_ms: Event time up to which all is assumed to be there; ``None`` before the first event.
        newest_ms: Largest event time that was believed.
        held_by: The source that holds the watermark back while a backlog is read; empty: none does.
        sources: ``topic:partition`` → where it stands.
        outputs: Output → records written since the job began.
        read_rates: Topic → records read per second, over the last half minute or three batches.
        written_rates: Output → records written per second, over the same.
        late: Events behind the watermark, of these.
        dead_letters: Reason → dead letters since the job began.
        state_memory_bytes: Memory of the state stores; ``None`` where there is none.
        state_files_bytes: What the files of state take on the disk, of all batches that are kept.
        state: Process → what its state comes to; of large state by a sample.
        models: Alias → model.
        waiting: Table → what waits for it; nothing: all that was committed is in the tables.
        observing_cpu_s: CPU seconds of this process that went into all this.
        process_cpu_s: CPU seconds of this process and, where known, of the JVM and Python workers.
    """

    job: JobRecord
    at_ms: int
    ended_ms: int | None = None
    error: str | None = None
    phase: str = "starting"
    plan: str = ""
    batch: int = -1
    batches: int = 0
    rows: int = 0
    input_rate: float = 0.0
    processed_rate: float = 0.0
    last_batch_ms: int | None = None
    alive_ms: int | None = None
    batch_ms: int | None = None
    batch_ms_p50: int | None = None
    batch_ms_p95: int | None = None
    phases_ms: dict[str, int] = {}
    phases_total_ms: dict[str, int] = {}
    durations: dict[str, int] = {}
    durations_sum_ms: int = 0
    watermark_ms: int | None = None
    newest_ms: int | None = None
    held_by: str = ""
    sources: dict[str, SourceFigures] = {}
    outputs: dict[str, int] = {}
    read_rates: dict[str, float] = {}
    written_rates: dict[str, float] = {}
    late: int = 0
    dead_letters: dict[str, int] = {}
    state_memory_bytes: int | None = None
    state_files_bytes: int | None = None
    state: dict[str, StateFigures] = {}
    models: dict[str, ModelFigures] = {}
    waiting: dict[str, WaitingFigures] = {}
    observing_cpu_s: float = 0.0
    process_cpu_s: float = 0.0

    @property
    def lag(self) -> int | None:
        """Records in the topics that were not read at the end of the last batch."""
        return sum(s.lag for s in self.sources.values()) if self.sources else None

    @property
    def read(self) -> dict[str, int]:
        """Topic → the sum of its partitions' offsets after what was read."""
        found: dict[str, int] = {}
        for place, source in self.sources.items():
            topic = place.rpartition(":")[0]
            found[topic] = found.get(topic, 0) + source.read
        return found

    @property
    def watermark_gap_ms(self) -> int | None:
        """How far the watermark is behind the newest event, ms; ``None`` before there are both."""
        if self.watermark_ms is None or self.newest_ms is None:
            return None
        return max(0, self.newest_ms - self.watermark_ms)


def write_figures(root: Path, figures: Figures) -> None:
    """Write figures beside a checkpoint.

    Raises:
        OSError: They cannot be written.
    """
    write_atomically(root / FIGURES_FILE, msgspec.json.encode(figures))


def read_figures(root: Path) -> Figures | None:
    """Return the figures beside a checkpoint; ``None`` where there are none that can be read."""
    try:
        return msgspec.json.decode((root / FIGURES_FILE).read_bytes(), type=Figures)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
