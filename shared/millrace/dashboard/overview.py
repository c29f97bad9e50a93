"""The first page: all apps, which run, how fast and how far behind, their flow, and their last day."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from millrace.dashboard.common_panels import dead_letters, models
from millrace.dashboard.declared import DEAD_LETTERS, tables_of, topology_of
from millrace.dashboard.flow import flow_of
from millrace.dashboard.making import Versions, view_or_note
from millrace.dashboard.views import (
    Cell,
    Column,
    Note,
    Number,
    Numbers,
    Series,
    Table,
    TimeSeries,
    Tone,
    View,
)
from millrace.errors import UserError
from millrace.observing.history import EVERY_MS, HistoryReader, Moment
from millrace.runtime.redaction import redact_text

if TYPE_CHECKING:
    from millrace.dashboard.data import AppData
    from millrace.dashboard.live import LivePage
    from millrace.observing.reading import Jobs, JobStatus

#: Points of a line over a day; what lies between two is put together.
_POINTS: Final = 288
#: What is slow to make is made so many times as seldom.
_SLOWER: Final = 15
#: Topics that are named beside the lag of all.
_NAMED: Final = 3
_LIVE: Final = ("running", "starting", "elsewhere")
_TONES: Final[Mapping[str, Tone]] = {
    "running": "good", "starting": "warn", "failed": "bad", "died": "bad", "unreadable": "bad",
}  # fmt: skip


class Overview:
    """The overview at work: made once for all who look, at most so often.

    Args:
        pages: App → its page.
        broken: App that cannot be shown → why.
        jobs: Finds the jobs of this machine; default its own.
        interval_ms: How often it is made anew, ms. To look at tables takes most of that by far: their rows,
            dead letters, models and a day are made anew after fifteen times as long, or when a job begins or
            ends.
    """

    def __init__(
        self,
        pages: Mapping[str, LivePage],
        broken: Mapping[str, str] | None = None,
        *,
        jobs: Jobs | None = None,
        interval_ms: int = 2_000,
    ) -> None:
        self.pages, self.broken, self.interval_ms = dict(pages), dict(broken or {}), interval_ms
        self._jobs = jobs or _jobs_of(self.pages)
        self._lock = threading.Lock()
        self._kept = Versions()
        self._made_ms: int | None = None
        self._histories: dict[Path, HistoryReader] = {}
        self._slow: dict[str, _Slow] = {}

    def now_ms(self) -> int:
        """Return now, UTC ms."""
        return next(iter(self.pages.values())).now_ms() if self.pages else 0

    def describe(self) -> dict[str, Any]:
        """Return what the page needs to know before the first panel comes: the apps, in order."""
        return {
            "apps": [
                {"id": f"app-{name}", "app": name, "summary": page.data.app.summary,
                 "root": str(page.data.root)}
                for name, page in self.pages.items()
            ],
            "broken": self.broken,
        }  # fmt: skip

    def refresh(self) -> None:
        """Make all anew, unless that was done a moment ago."""
        with self._lock:
            now = self.now_ms()
            if self._made_ms is not None and 0 <= now - self._made_ms < self.interval_ms:
                return
            found = {name: self.status(name) for name in self.pages}
            self._put("apps", {"id": "apps", "view": jobs_table(found, now)})
            for name, status in found.items():
                self._put(f"app-{name}", {"id": f"app-{name}", **self._app(name, status, now)})
            self._made_ms = self.now_ms()

    def changed(self, seen: dict[str, int]) -> list[bytes]:
        """Return the JSON of what has changed since ``seen``, and take note of it in it."""
        with self._lock:
            return self._kept.changed(seen)

    def status(self, name: str) -> JobStatus:
        """Return how the job of an app does: by its record, else by what it left in the page's folder."""
        data = self.pages[name].data
        data.listen()
        for job in self._jobs.records():
            if job.record is not None and job.record.app == name and _same(job.record.root, data.root):
                return self._jobs.of_record(job)
        return self._jobs.of_root(name, data.root)

    def _put(self, name: str, body: Mapping[str, Any]) -> None:
        self._kept.put(name, msgspec.json.encode(body))

    def _app(self, name: str, status: JobStatus, now: int) -> dict[str, Any]:
        data, slow = self.pages[name].data, self._slow.get(name)
        is_fresh = slow is not None and 0 <= now - slow.at_ms < _SLOWER * self.interval_ms
        if slow is None or not is_fresh or slow.state != status.state:
            slow = self._slow[name] = self._made_slowly(data, status, now)
        dead, rows = slow.dead, slow.rows
        return {
            "state": status.state,
            "tone": _TONES.get(status.state, "plain"),
            "note": redact_text(status.note),
            "views": [
                {"id": "numbers", "title": "", "view": _safe(lambda: numbers_of(status, dead))},
                {"id": "flow", "title": "Flow", "view": _safe(lambda: _flow(data, status, rows))},
            ],
            "more": slow.more,
        }

    def _made_slowly(self, data: AppData, status: JobStatus, now: int) -> _Slow:
        reader = self._histories.setdefault(data.root, HistoryReader(data.root))
        folded: list[tuple[str, str, Callable[[], View | None]]] = [
            ("day", "A day: read per second", lambda: day_of(reader.last_day(now), "rate")),
            ("lag", "A day: not read yet", lambda: day_of(reader.last_day(now), "lag")),
            ("letters", "Dead letters", lambda: dead_letters(data) or Note("none")),
            ("models", "Models", lambda: models(data)),
        ]
        more = [
            {"id": i, "title": t, "view": view} for i, t, make in folded if (view := _safe(make)) is not None
        ]
        rows = {name: table.rows for name in data.table_names() if (table := data.table(name)) is not None}
        return _Slow(now, status.state, _dead_rows(data), rows, more)


class _Slow(NamedTuple):
    """What is made of an app's tables and its last day, and when."""

    at_ms: int
    state: str
    dead: int
    rows: dict[str, int]
    more: list[dict[str, Any]]


def _safe(make: Callable[[], View | None]) -> View | None:
    return view_or_note(make, "this", "overview")


def _same(root: str, path: Path) -> bool:
    return Path(root) == path or Path(root).resolve() == path.resolve()


def _jobs_of(pages: Mapping[str, LivePage]) -> Jobs:
    """Return what finds this machine's jobs, with the pages' own ways to their brokers."""
    from millrace.observing.reading import Jobs

    def options(record: Any) -> Mapping[str, str]:
        page = pages.get(record.app)
        if page is None:
            return {}
        kafka = page.data.settings.kafka
        return kafka.client_options() if kafka.bootstrap else dict(kafka.options)

    return Jobs(options=options)


def jobs_table(found: Mapping[str, JobStatus], now: int) -> Table:
    """Return all apps as a table, those first that want somebody.

    Args:
        found: App → how its job does.
        now: Now, UTC ms.
    """
    columns = (
        Column("app", "key"),
        Column("state"),
        Column("for", "duration"),
        Column("rows/s", "number"),
        Column("lag", "count"),
        Column("behind newest", "duration"),
        Column("last batch", "duration"),
        Column("late", "count"),
        Column("dead letters", "count"),
        Column("note"),
    )
    order = {"bad": 0, "warn": 1, "good": 2, "plain": 3}
    rows: list[tuple[int, str, Tone, list[Cell]]] = []
    for name, status in found.items():
        f, tone = status.figures, _TONES.get(status.state, "plain")
        live = status.state in _LIVE
        rows.append((order[tone], name, tone if tone in ("bad", "warn") else "plain", [
            name,
            status.state,
            None if status.since_ms is None else max(0, now - status.since_ms),
            round(f.input_rate, 1) if f is not None and live else None,
            status.lag_total,
            None if f is None else f.watermark_gap_ms,
            None if f is None else f.batch_ms,
            None if f is None else f.late,
            None if f is None else sum(f.dead_letters.values()),
            redact_text(status.note),
        ]))  # fmt: skip
    rows.sort(key=lambda row: row[:2])
    return Table(columns=columns, rows=[row[3] for row in rows], tones=[row[2] for row in rows])


def numbers_of(status: JobStatus, dead: int) -> Numbers:
    """Return how a job does, what matters most in front.

    Args:
        status: How it does.
        dead: Rows of its tables of dead letters.
    """
    f, live = status.figures, status.state in _LIVE
    lag_note = _most({topic: n for topic, n in (status.lag or {}).items() if n})
    found = [
        Number(label="state", value=status.state, kind="text", tone=_TONES.get(status.state, "plain"),
               note="" if f is None or not f.phase or not live else f.phase),
        Number(label="rate", value=round(f.input_rate, 1) if f is not None and live else None,
               unit="rows/s", note="" if f is None or not live else f"possible {f.processed_rate:,.0f}"),
        Number(label="lag", value=status.lag_total, kind="count", unit="records", note=lag_note,
               tone="warn" if f is not None and (status.lag_total or 0) > max(1_000, 60 * f.input_rate)
               else "plain"),
        Number(label="watermark", value=None if f is None else f.watermark_ms, kind="time",
               note=_watermark_note(status)),
        Number(label="batch", value=None if f is None else f.batch_ms_p50, kind="duration",
               note="median" if f is None or status.batch is None else f"median; {status.batch:,} the last"),
        Number(label="dead letters", value=dead, kind="count", tone="warn" if dead else "plain"),
        Number(label="late", value=None if f is None else f.late, kind="count"),
        Number(label="state stores", value=None if f is None else _megabytes(f.state_memory_bytes),
               unit="MB"),
    ]  # fmt: skip
    return Numbers(tuple(found))


def _most(counts: Mapping[str, int]) -> str:
    """Return the largest of some counts, and how many others there are.

    >>> _most({"a": 1, "b": 20, "c": 3_000, "d": 4, "e": 5})
    'c 3,000, b 20, e 5, 2 more'
    """
    first = sorted(counts, key=lambda name: -counts[name])[:_NAMED]
    more = [f"{len(counts) - len(first):,} more"] if len(counts) > len(first) else []
    return ", ".join([*(f"{name} {counts[name]:,}" for name in first), *more])


def _watermark_note(status: JobStatus) -> str:
    f = status.figures
    if f is None or f.watermark_gap_ms is None:
        return ""
    held = f", waits for {f.held_by}" if f.held_by else ""
    return f"{f.watermark_gap_ms / 1_000:,.1f} s behind the newest event{held}"


def _megabytes(count: int | None) -> float | None:
    return None if count is None else round(count / 1e6, 1)


def _dead_rows(data: AppData) -> int:
    tables = (data.table(name) for name in tables_of(data, DEAD_LETTERS))
    return sum(table.rows for table in tables if table is not None)


def _flow(data: AppData, status: JobStatus, rows: Mapping[str, int]) -> View | None:
    try:
        topology = topology_of(data)
    except UserError as error:
        return Note(redact_text(str(error)), tone="warn")
    live = status.state in _LIVE
    waits = {name: w.batches for name, w in status.waiting.items()}
    return flow_of(
        topology, status.figures, rows, live=live, suffix=data.settings.kafka.output_suffix, waits=waits
    )


def day_of(moments: Sequence[Moment], what: str) -> TimeSeries | None:
    """Return a line over a day; nothing before there are two moments.

    Args:
        moments: The day, in order of time.
        what: ``rate``: rows read per second; ``lag``: the most records that were not read.
    """
    if len(moments) < 2:
        return None
    step = max(EVERY_MS, -(-(moments[-1].at_ms - moments[0].at_ms) // _POINTS))
    points = rates_of(moments, step) if what == "rate" else lags_of(moments, step)
    return TimeSeries(series=(Series("read" if what == "rate" else "lag", points),), kind="number",
                      unit="rows/s" if what == "rate" else "records")  # fmt: skip


def rates_of(moments: Sequence[Moment], step_ms: int) -> list[tuple[float, float | None]]:
    """Return rows read per second by steps of time; ``None`` where the job did not run.

    What was read between two moments counts evenly over the time between them, so that all steps together
    come to all rows. A count that is less than before begins anew: the job was started again.

    Args:
        moments: In order of time.
        step_ms: The steps, ms.
    """
    rows: dict[int, float] = {}
    known: dict[int, int] = {}
    for before, after in itertools.pairwise(moments):
        took = after.at_ms - before.at_ms
        if took <= 0 or took > 3 * EVERY_MS or after.rows < before.rows:
            continue
        for step in range(before.at_ms // step_ms, (after.at_ms - 1) // step_ms + 1):
            here = min(after.at_ms, (step + 1) * step_ms) - max(before.at_ms, step * step_ms)
            rows[step] = rows.get(step, 0.0) + (after.rows - before.rows) * here / took
            known[step] = known.get(step, 0) + here
    first, last = moments[0].at_ms // step_ms, moments[-1].at_ms // step_ms
    return [
        (step * step_ms, rows[step] * 1_000 / known[step] if known.get(step) else None)
        for step in range(first, last + 1)
        if step in known or step not in (first, last)
    ]


def lags_of(moments: Sequence[Moment], step_ms: int) -> list[tuple[float, float | None]]:
    """Return the most records that were not read, by steps of time; ``None`` where nothing is known.

    Args:
        moments: In order of time.
        step_ms: The steps, ms.
    """
    most: dict[int, int] = {}
    for moment in moments:
        if moment.lag is not None:
            step = moment.at_ms // step_ms
            most[step] = max(most.get(step, 0), moment.lag)
    first, last = moments[0].at_ms // step_ms, moments[-1].at_ms // step_ms
    return [(step * step_ms, most.get(step)) for step in range(first, last + 1)]
