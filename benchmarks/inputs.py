"""The events of the core's benchmarks: seeded, skewed, the same for every system that is measured."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

Ints = npt.NDArray[np.int64]

#: Event time of the first event, ms: a whole day, so that windows begin with it.
START_MS = 1_767_225_600_000
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class Events:
    """Card purchases in the order of their time, column by column; row ``i`` has the id ``i``.

    Attributes:
        card: Number of the card.
        cents: Amount.
        at: Event time, ms; no two events have the same.
    """

    card: Ints
    cents: Ints
    at: Ints

    def __len__(self) -> int:
        return len(self.card)

    def part(self, start: int, end: int) -> Events:
        """Return the events ``start`` to ``end``."""
        return Events(self.card[start:end], self.cents[start:end], self.at[start:end])


def make_events(
    rows: int, keys: int, *, exponent: float = 1.1, per_second: int = 1_000, seed: int = 4
) -> Events:
    """Return purchases whose cards follow Zipf's law.

    Args:
        rows: Number of events.
        keys: Number of cards.
        exponent: Of Zipf's law.
        per_second: Events per second of event time, up to 1,000.
        seed: Of everything that is random.
    """
    random = np.random.default_rng(seed)
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    limits = np.cumsum(weights) / weights.sum()
    ranks = np.minimum(np.searchsorted(limits, random.random(rows)), keys - 1)
    cards = random.permutation(keys)[ranks]  # a card's number says nothing of how busy it is
    cents = np.minimum(random.lognormal(8.0, 1.0, rows).astype(np.int64) + 1, 10_000_000)
    at = START_MS + np.arange(rows, dtype=np.int64) * (1_000 // per_second)
    return Events(cards.astype(np.int64), cents, at)


def card_name(number: int) -> str:
    """Return the name of a card.

    >>> card_name(17)
    'c0000017'
    """
    return f"c{number:07d}"


def as_json(events: Events, first_id: int = 0) -> Iterator[bytes]:
    """Yield the events as JSON.

    Args:
        events: The events.
        first_id: Id of the first.
    """
    columns = zip(events.card.tolist(), events.cents.tolist(), events.at.tolist(), strict=True)
    for number, (card, cents, at) in enumerate(columns, first_id):
        yield b'{"id":%d,"card":"c%07d","cents":%d,"at":%d}' % (number, card, cents, at)


def as_table(events: Events, first_id: int, *, with_json: bool) -> pa.Table:
    """Return the events as typed columns, and as JSON beside them.

    Args:
        events: The events.
        first_id: Id of the first.
        with_json: Whether there is a column ``value`` with each event as JSON.
    """
    import pyarrow as pa

    columns: dict[str, Any] = {
        "id": np.arange(first_id, first_id + len(events), dtype=np.int64),
        "card": pa.array(map(card_name, events.card.tolist()), pa.string()),
        "cents": events.cents,
        "at": events.at,
    }
    if with_json:
        columns["value"] = pa.array(as_json(events, first_id), pa.binary())
    return pa.table(columns)


def write_batches(folder: Path, events: Events, batches: int, *, with_json: bool, closing: bool) -> list[int]:
    """Write the events as Parquet files, of which two make a micro-batch.

    Args:
        folder: Where to; it is made.
        events: The events.
        batches: Number of batches.
        with_json: See :func:`as_table`.
        closing: Add a batch with two events a day later, whose time completes every window before.

    Returns:
        Where each batch of ``events`` begins, and the end of the last.
    """
    cuts = [round(len(events) * b / batches) for b in range(batches + 1)]
    tables = []
    for start, end in itertools.pairwise(cuts):
        middle = (start + end) // 2
        for part in ((start, middle), (middle, end)):
            tables.append(as_table(events.part(*part), part[0], with_json=with_json))
    if closing:
        last = closing_events(events)
        tables += [as_table(last.part(i, i + 1), len(events) + i, with_json=with_json) for i in (0, 1)]
    write_files(folder, tables)
    return cuts


def closing_events(events: Events) -> Events:
    """Return two events of a card of their own, a day after the last."""
    at = int(events.at[-1]) + _DAY_MS
    card = int(events.card.max()) + 1
    return Events(np.full(2, card), np.ones(2, dtype=np.int64), np.array([at, at + 1]))


def write_files(folder: Path, tables: Iterable[pa.Table]) -> None:
    """Write tables as Parquet files that Spark takes in this order.

    Args:
        folder: Where to; it is made.
        tables: A file each.
    """
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    for number, table in enumerate(tables):
        path = folder / f"{number:05}.parquet"
        pq.write_table(table, path)
        # Spark takes files by the time they were changed; a second apart leaves no doubt.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
