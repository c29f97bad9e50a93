"""Takes a job's figures while it runs, at little cost, and keeps them beside its checkpoint.

What a batch tells is only put aside when it comes, on the batch's own thread; a thread of the observer makes
figures of it once a second. What is slow to find (what state comes to) is looked for so seldom that it takes
a thousandth of a core.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import msgspec

from millrace.local.belonging import belonging
from millrace.observing.figures import Figures, SourceFigures, write_figures
from millrace.observing.history import HistoryWriter
from millrace.observing.jobs import JobRecord
from millrace.observing.rates import Rates
from millrace.observing.sampling import load, models_in, sampled_state, state_files_bytes
from millrace.observing.waiting import waits_of
from millrace.runtime.clock_files import shown_watermark
from millrace.runtime.monitor import DURATIONS_S, QueryMonitor, QuerySnapshot
from millrace.runtime.redaction import redact_text
from millrace.time import END_OF_TIME, NO_WATERMARK

if TYPE_CHECKING:
    from millrace.time.clock import ClockStatus

log = logging.getLogger(__name__)

#: How often figures are made and written, seconds.
EVERY_S: Final = 1.0
#: What is slow to find is looked for no sooner than this after the last time, s, and than so many times the
#: CPU time that it took.
_SLOW_S: Final = 10.0
_SLOW_SHARE: Final = 1_000
#: How often the log says how the job does, seconds.
_SAY_S: Final = 60.0


class Observer:
    """Makes figures of what a job tells; safe to use from any thread. Use it as a context manager.

    Args:
        record: What the job says of itself.
        monitor: Is fed with the query's progress by others.
        key_file: File of the keys that its state is encrypted with.
        exports: Folders of exported models.
        wall_ms: Now, UTC milliseconds.
    """

    def __init__(
        self,
        record: JobRecord,
        monitor: QueryMonitor,
        *,
        key_file: str | None = None,
        exports: tuple[Path, ...] = (),
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.record = record
        self._root = Path(record.root)
        self._monitor, self._key_file, self._exports = monitor, key_file, exports
        self._wall_ms = wall_ms
        self._lock = threading.Lock()
        self._figures = Figures(record, wall_ms())
        self._outputs: dict[str, int] = {}
        self._reasons: dict[str, int] = {}
        self._newest: dict[str, int] = {}
        self._late: frozenset[str] = frozenset()
        self._counted = self._reasoned = -1
        self._clock: ClockStatus | None = None
        self._cpu_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=belonging(self._run), name="millrace-observer", daemon=True)
        self._slow_at = self._say_at = 0.0
        self._warned = False
        self._history = HistoryWriter(self._root)
        # Where a topic stands when the job begins was read by the one before it.
        self._read, self._written = Rates(from_zero=False), Rates(from_zero=True)

    # -- told by the job -----------------------------------------------------------------------

    def on_batch(self, batch_id: int, counts: Mapping[str, int]) -> None:
        """Take what a batch wrote to each output; a batch told twice counts once."""
        with self._counting(), self._lock:
            if batch_id > self._counted:
                self._counted = batch_id
                for output, count in counts.items():
                    self._outputs[output] = self._outputs.get(output, 0) + count

    def on_reasons(self, batch_id: int, reasons: Mapping[str, int]) -> None:
        """Take why a batch's dead letters are some; a batch told twice counts once."""
        with self._counting(), self._lock:
            if batch_id > self._reasoned:
                self._reasoned = batch_id
                for reason, count in reasons.items():
                    self._reasons[reason] = self._reasons.get(reason, 0) + count

    def on_clock(self, status: ClockStatus) -> None:
        """Take how far the clock is at the end of a batch."""
        with self._counting(), self._lock:
            self._clock = status
            for source, newest in status.sources.items():
                self._newest[source] = max(newest, self._newest.get(source, newest))

    def spent(self, cpu_s: float) -> None:
        """Take CPU seconds that went into telling others of the job."""
        with self._lock:
            self._cpu_s += cpu_s

    def late_in(self, outputs: Iterable[str]) -> None:
        """Take which outputs have late events beside those that are called ``late``."""
        with self._lock:
            self._late = frozenset(outputs)

    def update(self, *, phase: str | None = None, plan: str | None = None, error: str | None = None) -> None:
        """Take what the job does now, how its topology runs, or what ended it."""
        with self._lock:
            if phase is not None:
                self._figures.phase = phase
            if plan is not None:
                self._figures.plan = plan
            if error is not None:
                self._figures.error = redact_text(error)

    # -- asked by others -----------------------------------------------------------------------

    def figures(self) -> Figures:
        """Return the figures as they are now; nobody may change them. Who asks says what it :meth:`spent`."""
        return self._made()

    @contextmanager
    def _counting(self) -> Iterator[None]:
        began = time.thread_time()
        try:
            yield
        finally:
            self._cpu_s += time.thread_time() - began

    def _made(self) -> Figures:
        query, waiting = self._monitor.snapshot(), waits_of(self._root)
        with self._lock:
            now = self._figures
            clock = self._clock
            phase = now.phase
            if phase in ("running", "waiting"):
                phase = "waiting" if query.idle and query.batches else "running"
            return msgspec.structs.replace(
                now,
                at_ms=self._wall_ms(),
                phase=phase,
                error=now.error or query.error,
                outputs=dict(self._outputs),
                late=sum(n for o, n in self._outputs.items() if o in self._late or _is_late(o)),
                read_rates=self._read.per_second(),
                written_rates=self._written.per_second(),
                dead_letters=dict(self._reasons),
                watermark_ms=shown_watermark(clock),
                newest_ms=_time(None if clock is None else clock.furthest),
                held_by="" if clock is None else clock.held_by,
                waiting=waiting,
                observing_cpu_s=self._cpu_s + self._monitor.cpu_s,
                **_of_query(query, self._newest),
            )

    # -- on its own ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            with self._counting():
                self._sample()

    def _sample(self) -> None:
        made = self._made()
        with self._lock:
            took = made.batch_ms or 0
            self._read.see(made.at_ms, made.read, batch_ms=took)
            self._written.see(made.at_ms, made.outputs, batch_ms=took)
        self._write(made)
        if made.batches and time.monotonic() >= self._say_at:
            self._say_at = time.monotonic() + _SAY_S
            log.info(
                "batch %d: %.0f rows/s, %s to read, watermark %s, %d late, %d dead letters",
                *(made.batch, made.input_rate, "?" if made.lag is None else made.lag),
                "unknown" if made.watermark_gap_ms is None else f"{made.watermark_gap_ms} ms behind",
                *(made.late, sum(made.dead_letters.values())),
            )
        if time.monotonic() < self._slow_at:
            return
        load()  # once; else it would put the second look off for minutes
        began, cpu_s = time.monotonic(), time.thread_time()
        # What cannot be found is not known: observing never ends a job.
        with contextlib.suppress(Exception):
            self._slow(made)
        self._slow_at = began + max(_SLOW_S, (time.thread_time() - cpu_s) * _SLOW_SHARE)

    def _slow(self, made: Figures) -> None:
        cpu_s = process_tree_cpu_s()
        models = models_in(self._exports)
        state = files = None
        if made.batch >= 0 and all(made.batch != s.batch for s in made.state.values()):
            files = state_files_bytes(self._root)
            state = sampled_state(self._root, self._key_file, self._wall_ms(), files_bytes=files)
        with self._lock:
            self._figures.process_cpu_s = cpu_s
            self._figures.models = models
            if state is not None:
                self._figures.state, self._figures.state_files_bytes = state, files

    def _write(self, made: Figures) -> None:
        try:
            write_figures(self._root, made)
            if made.batches:
                self._history.see(made, last=made.ended_ms is not None)
        except OSError as error:
            if not self._warned:
                log.warning("figures cannot be written to %s: %s", self._root, error.strerror or error)
            self._warned = True

    def __enter__(self) -> Self:
        with self._counting():
            self._write(self._made())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)
        if error is not None and not isinstance(error, KeyboardInterrupt):
            self.update(error=str(error) or type(error).__name__)
        with self._lock:
            self._figures.phase = "ended"
            self._figures.ended_ms = self._wall_ms()
        self._write(self._made())


def _of_query(query: QuerySnapshot, newest: Mapping[str, int]) -> dict[str, object]:
    """Return the figures that a query's progress tells."""
    bounds = [f"{bound:g}" for bound in DURATIONS_S] + ["+Inf"]
    return {
        "batch": query.batch_id,
        "batches": query.batches,
        "rows": query.input_rows,
        "input_rate": query.input_rate,
        "processed_rate": query.processed_rate,
        "last_batch_ms": query.ended_ms,
        "alive_ms": query.alive_ms,
        "batch_ms": query.batch_ms,
        "batch_ms_p50": query.batch_ms_p50,
        "batch_ms_p95": query.batch_ms_p95,
        "phases_ms": dict(query.phases_ms),
        "phases_total_ms": dict(query.phases_total_ms),
        "durations": dict(zip(bounds, query.durations, strict=True)),
        "durations_sum_ms": query.durations_sum_ms,
        "sources": {
            place: SourceFigures(read, end, newest.get(place))
            for place, (read, end) in sorted(query.positions.items())
        },
        "state_memory_bytes": query.state_bytes,
    }


def _is_late(output: str) -> bool:
    return output.rpartition(".")[2] == "late"


def _time(ms: int | None) -> int | None:
    return None if ms is None or ms in (NO_WATERMARK, END_OF_TIME) else ms


def process_tree_cpu_s() -> float:
    """Return the CPU seconds of this process and of all that it started: the JVM, Python workers."""
    import psutil

    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            # What has ended was counted by its parent.
            total += times.user + times.system + times.children_user + times.children_system
    return total
