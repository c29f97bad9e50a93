"""A day of a job's figures: a line every ten seconds beside its checkpoint, a day or two of them.

A line is an array, so that a day takes about a megabyte. The file that is older than a day is put aside, and
the one put aside before it goes; so there is always a whole day, and never more than two.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from millrace.observing.figures import Figures

#: Beside the checkpoint; what was put aside ends with ``.old``.
HISTORY_FILE: Final = "history.jsonl"
#: How often a line is written, ms.
EVERY_MS: Final = 10_000
DAY_MS: Final = 86_400_000


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """What a job did at a moment.

    Attributes:
        at_ms: When, UTC ms.
        rows: Rows read since the job began; less than before: it was started again.
        input_rate: Rows per second that arrived.
        lag: Records that were not read; ``None``: not known.
        gap_ms: How far the watermark was behind the newest event, ms; ``None``: not known.
        batch_ms: How long the last batch took, ms; ``None`` before the first.
        dead_letters: Dead letters since the job began.
        late: Late events since then.
        state_bytes: Memory of the state stores.
    """

    at_ms: int
    rows: int
    input_rate: float
    lag: int | None = None
    gap_ms: int | None = None
    batch_ms: int | None = None
    dead_letters: int = 0
    late: int = 0
    state_bytes: int | None = None


def moment_of(figures: Figures) -> Moment:
    """Return what of a job's figures is kept for a day."""
    return Moment(
        figures.at_ms,
        figures.rows,
        round(figures.input_rate, 1),
        figures.lag,
        figures.watermark_gap_ms,
        figures.batch_ms,
        sum(figures.dead_letters.values()),
        figures.late,
        figures.state_memory_bytes,
    )


class HistoryWriter:
    """Adds a line now and then.

    Args:
        root: The folder with the checkpoint.
        every_ms: How often, ms.
    """

    def __init__(self, root: Path, *, every_ms: int = EVERY_MS) -> None:
        self._path, self._every_ms = root / HISTORY_FILE, every_ms
        self._next_ms = 0
        self._began_ms: int | None = None

    def see(self, figures: Figures, *, last: bool = False) -> None:
        """Write a line, unless one was written a moment ago.

        Args:
            figures: The figures of now.
            last: Whether the job ends: then it is written all the same.

        Raises:
            OSError: It cannot be written.
        """
        now = figures.at_ms
        # A clock that was set back must not silence it.
        if not last and self._next_ms - self._every_ms <= now < self._next_ms:
            return
        self._next_ms = now + self._every_ms
        self._put_aside(now)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(moment_of(figures)) + b"\n")

    def _put_aside(self, now: int) -> None:
        if self._began_ms is None:
            self._began_ms = _first_ms(self._path, now)
        # Also what a clock that was far ahead began: else nothing would be put aside until then.
        if abs(now - self._began_ms) > DAY_MS:
            self._path.replace(_old(self._path))
            self._began_ms = now


class HistoryReader:
    """Reads a job's history again and again, each time only what is new.

    Args:
        root: The folder with the checkpoint.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / HISTORY_FILE
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self._moments: list[Moment] = []

    def last_day(self, now_ms: int) -> Sequence[Moment]:
        """Return the moments of the last day, in order of time; of what cannot be read: none.

        Moments that are still to come are of a clock that was ahead, and are left out.

        Args:
            now_ms: Now, UTC ms.
        """
        try:
            self._read()
        except OSError:
            self._identity, self._offset, self._moments = None, 0, []
        since = now_ms - DAY_MS
        self._moments = [m for m in self._moments if m.at_ms >= since]
        return tuple(m for m in self._moments if m.at_ms < now_ms + EVERY_MS)

    def _read(self) -> None:
        with self._path.open("rb") as file:
            about = self._path.stat()
            identity = about.st_dev, about.st_ino
            if identity != self._identity or about.st_size < self._offset:
                old = _old(self._path)
                self._moments = _moments(old.read_bytes()) if old.exists() else []
                self._identity, self._offset = identity, 0
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]  # the last line may be half written
        self._offset += len(whole)
        self._moments += _moments(whole)


def _old(path: Path) -> Path:
    return path.with_name(f"{path.name}.old")


def _first_ms(path: Path, now: int) -> int:
    """Return when a file was begun; one that cannot be read begins now."""
    try:
        with path.open("rb") as file:
            found = _moments(file.readline())
    except OSError:
        return now
    return found[0].at_ms if found else now


def _moments(data: bytes) -> list[Moment]:
    """Return the moments of lines; a line that is none is left out."""
    found = []
    for line in data.splitlines():
        try:
            found.append(msgspec.json.decode(line, type=Moment))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return found
