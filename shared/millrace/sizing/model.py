"""The cost model of a job's batches: rows, keys, pages that are rewritten, CPU time.

State lies in pages, which are read and written whole (:mod:`millrace.state.pages`). So what a batch costs is
a part of its own, a part per row, a part per page that it touches, and what runs on by the clock::

    cpu(batch) = per_batch + rows * per_row + pages touched * per_page + seconds to the next * per_second

How many pages are touched follows from how many keys are, and that from how keys are spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from millrace.errors import UserError
from millrace.state.pages import PAGE_BYTES

#: How full a page is on average: one that is split when it is full is between half and all of it, evenly in
#: the logarithm of its size (Yao, On random 2-3 trees, 1978: ln 2).
FILL: Final = math.log(2)
#: What a key takes beside its value: hash, name, times; bytes.
KEY_BYTES: Final = 40
#: Keys of a Zipf law that are counted one by one; those behind are alike.
_COUNTED: Final = 100_000


@dataclass(frozen=True)
class Workload:
    """What comes, and what is kept of it.

    Attributes:
        events_per_s: Events per second.
        event_bytes: Bytes of an event as JSON.
        keys: Keys that have state.
        entry_bytes: Bytes of a key's state.
        batch_s: Seconds between two batches.
        processes: Links of the topology: each has a shuffle and a state of its own.
        zipf: How uneven keys are: 0 all alike, 1.1 as card payments.
        key_groups: Key groups, each of a page at least.
    """

    events_per_s: float
    keys: float
    entry_bytes: float = 200.0
    event_bytes: float = 300.0
    batch_s: float = 1.0
    processes: int = 1
    zipf: float = 0.0
    key_groups: int = 64

    def __post_init__(self) -> None:
        for name in ("events_per_s", "keys", "entry_bytes", "event_bytes", "batch_s", "processes"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise UserError(f"{name} is {value:g}: it must be more than nothing")
        if not 0 <= self.zipf <= 3:
            raise UserError(f"zipf is {self.zipf:g}: from 0 (all keys alike) to 3")

    @property
    def rows(self) -> float:
        """Events of a batch."""
        return self.events_per_s * self.batch_s

    @property
    def state_bytes(self) -> float:
        """Bytes of all keys of a process."""
        return self.keys * (self.entry_bytes + KEY_BYTES)

    @property
    def pages(self) -> float:
        """Pages of a process; an entry that is larger than one has several."""
        return max(float(self.key_groups), self.state_bytes / (PAGE_BYTES * FILL))

    @property
    def keys_touched(self) -> float:
        """Keys that a batch touches."""
        return distinct(self.rows, self.keys, self.zipf)

    @property
    def pages_touched(self) -> float:
        """Pages of a process that a batch reads and writes: keys fall on them by their hash."""
        of_a_key = max(1.0, (self.entry_bytes + KEY_BYTES) / PAGE_BYTES)
        return of_a_key * distinct(self.keys_touched, self.pages / of_a_key, 0.0)


def distinct(draws: float, things: float, zipf: float) -> float:
    """Return how many different things so many draws hit, on average.

    Args:
        draws: How often is drawn.
        things: How many there are.
        zipf: Exponent of Zipf's law over them; 0: all alike.

    >>> round(distinct(100, 100, 0.0), 1), round(distinct(5, 1e9, 0.0), 3)
    (63.2, 5.0)
    """
    if zipf == 0.0:
        return things * -math.expm1(-draws / things)
    counted = int(min(things, _COUNTED))
    weights = np.arange(1, counted + 1, dtype=np.float64) ** -zipf
    rest = _tail(counted, things, zipf)
    total = float(weights.sum()) + rest
    found = float(-np.expm1(-draws * weights / total).sum())
    if things > counted:
        behind = things - counted
        found += behind * -math.expm1(-draws * rest / total / behind)
    return min(found, draws)


def _tail(counted: int, things: float, zipf: float) -> float:
    """Return the weights of the things behind those that were counted, by the integral."""
    if things <= counted:
        return 0.0
    if zipf == 1.0:
        return math.log(things / counted)
    return float((things ** (1 - zipf) - counted ** (1 - zipf)) / (1 - zipf))


@dataclass(frozen=True)
class Costs:
    """What was measured: CPU time.

    Attributes:
        per_batch_ms: Of a batch, whatever is in it.
        per_row_us: Of an event.
        per_page_us: Of a page that is read and written.
        per_second_ms: Of a second, whatever is done in it: threads that poll, collect and compile.
    """

    per_batch_ms: float
    per_row_us: float
    per_page_us: float
    per_second_ms: float = 0.0

    def batch_ms(self, rows: float, pages: float, seconds: float = 0.0) -> float:
        """Return the CPU time of a batch, ms.

        Args:
            rows: Its events.
            pages: Pages that it touches.
            seconds: How long after the one before it ends.

        >>> Costs(100.0, 20.0, 50.0, 10.0).batch_ms(1_000, 400, 2.0)
        160.0
        """
        of_it = rows * self.per_row_us / 1_000 + pages * self.per_page_us / 1_000
        return self.per_batch_ms + of_it + seconds * self.per_second_ms


@dataclass(frozen=True)
class Point:
    """A measured batch.

    Attributes:
        rows: Its events.
        pages: Pages that it touched, by the model.
        cpu_ms: CPU time of all processes of the job, ms.
        seconds: How long after the one before it ended.
    """

    rows: float
    pages: float
    cpu_ms: float
    seconds: float = 0.0


def fit(points: Sequence[Point]) -> Costs:
    """Return the costs that fit measured batches best, none of them negative.

    Relative errors count, so that small batches say as much as large ones. What a second costs is told from
    what a batch costs where some batches follow each other and others are paced.

    Args:
        points: The batches; at least four, or three of which nobody has noted how long they took.

    Raises:
        UserError: There are too few.
    """
    from scipy.optimize import nnls

    table = np.array([[1.0, p.rows / 1_000, p.pages / 1_000, p.seconds] for p in points])
    costs = 4 if any(p.seconds for p in points) else 3
    if len(points) < costs:
        raise UserError(f"{len(points)} points are too few to fit {costs} costs")
    measured = np.array([p.cpu_ms for p in points])
    found, _ = nnls(table / measured[:, None], np.ones(len(points)))
    return Costs(*(float(value) for value in found))


def errors(costs: Costs, points: Sequence[Point]) -> list[float]:
    """Return how far the model is off, as a share of what was measured; above zero: it says more."""
    return [costs.batch_ms(p.rows, p.pages, p.seconds) / p.cpu_ms - 1 for p in points]


def left_out(points: Sequence[Point]) -> list[float]:
    """Return how far the model is off at each point when it was fitted on all others, as a share.

    Raises:
        UserError: There are too few.
    """
    return [
        errors(fit([*points[:number], *points[number + 1 :]]), [point])[0]
        for number, point in enumerate(points)
    ]
