"""Oracles of the core's benchmarks: whole columns at once, unlike any process."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from millrace_apps.benchmarks.inputs import Events, Ints

Floats = npt.NDArray[np.float64]


class Scores(NamedTuple):
    """Per event its id, the card's number of events with it, its z-score among those before."""

    id: Ints
    n: Ints
    z: Floats


class Totals(NamedTuple):
    """Count, sum and sum of squares per card."""

    card: Ints
    n: Ints
    total: Ints
    squares: Ints


class Windows(NamedTuple):
    """Count and sum per card and window ``[start, end)``, ms."""

    card: Ints
    start: Ints
    end: Ints
    n: Ints
    total: Ints


class Sums(NamedTuple):
    """Per event the count and the sum of the card's last minutes, itself included."""

    id: Ints
    n: Ints
    total: Ints


class Limits(NamedTuple):
    """Limits of cards in the order of their time; row ``i`` has the number ``i``."""

    card: Ints
    since: Ints


def scores(events: Events) -> Scores:
    """Return W1: the running z-score per card.

    The amounts are whole cents, so all sums are exact in floats too, and a score has the same bits
    whoever computes it.
    """
    order, first = _by_card(events)
    cents = events.cents[order]
    n = np.arange(len(order)) - first
    before, squares = _sum_before(cents, first), _sum_before(cents * cents, first)
    z = vector_zscores(n, before.astype(np.float64), squares.astype(np.float64), cents.astype(np.float64))
    found = np.empty(len(order))
    counts = np.empty(len(order), dtype=np.int64)
    found[order], counts[order] = z, n + 1
    return Scores(np.arange(len(order)), counts, found)


def vector_zscores(n: Ints, total: Floats, squares: Floats, amount: Floats) -> Floats:
    """Return the z-scores of amounts among ``n`` earlier ones of a sum and a sum of squares.

    The operations and their order are those of :func:`millrace_apps.benchmarks.w1_job.zscore`.
    """
    count = np.maximum(n, 1).astype(np.float64)
    mean = total / count
    variance = squares / count - mean * mean
    known = (n >= 2) & (variance > 1e-9)
    return np.where(known, (amount - mean) / np.sqrt(np.where(known, variance, 1.0)), 0.0)


def totals_per_batch(events: Events, cuts: list[int]) -> Totals:
    """Return running totals after each batch, of the cards that are in it.

    Args:
        events: The events.
        cuts: Where each batch begins, and the end of the last.
    """
    cards = int(events.card.max()) + 1
    n, total, squares = (np.zeros(cards, dtype=np.int64) for _ in range(3))
    found = []
    for start, end in itertools.pairwise(cuts):
        batch = events.part(start, end)
        np.add.at(n, batch.card, 1)
        np.add.at(total, batch.card, batch.cents)
        np.add.at(squares, batch.card, batch.cents * batch.cents)
        seen = np.unique(batch.card)
        found.append(Totals(seen, n[seen], total[seen], squares[seen]))
    return Totals(*(np.concatenate(column) for column in zip(*found, strict=True)))


def tumbling(events: Events, size_ms: int) -> Windows:
    """Return W2: count and sum per card and window of ``size_ms``."""
    start = events.at // size_ms * size_ms
    pairs = np.stack([events.card, start])
    found, place = np.unique(pairs, axis=1, return_inverse=True)
    place = place.reshape(-1)
    n = np.bincount(place)
    total = np.zeros(len(n), dtype=np.int64)
    np.add.at(total, place, events.cents)
    return Windows(found[0], found[1], found[1] + size_ms, n, total)


def sessions(events: Events, gap_ms: int) -> Windows:
    """Return W3: count and sum per session; an event exactly ``gap_ms`` after the last one still joins."""
    order, _ = _by_card(events)
    card, at, cents = events.card[order], events.at[order], events.cents[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (card[1:] != card[:-1]) | (at[1:] - at[:-1] > gap_ms)
    begin = np.flatnonzero(new)
    end = np.append(begin[1:], len(order))
    sums = np.append(0, np.cumsum(cents))
    return Windows(card[begin], at[begin], at[end - 1] + gap_ms, end - begin, sums[end] - sums[begin])


def lookback(events: Events, width_ms: int) -> Sums:
    """Return W4: per event the count and sum of its card in ``(at - width, at]``."""
    order, _ = _by_card(events)
    at = events.at[order] - events.at.min()
    span = int(at.max()) + width_ms + 1
    place = events.card[order] * span + at  # in order, and no two cards meet within a width
    begin = np.searchsorted(place, place - width_ms, side="right")
    end = np.arange(len(order)) + 1
    sums = np.append(0, np.cumsum(events.cents[order]))
    n, total = (np.empty(len(order), dtype=np.int64) for _ in range(2))
    n[order], total[order] = end - begin, sums[end] - sums[begin]
    return Sums(np.arange(len(order)), n, total)


def as_of(events: Events, limits: Limits, keep_ms: int) -> tuple[Ints, Ints]:
    """Return W5: each event's id, and its card's latest limit if that is younger than ``keep_ms``, or -1."""
    left = pd.DataFrame({"at": events.at, "card": events.card})
    right = pd.DataFrame({"since": limits.since, "card": limits.card, "limit": np.arange(len(limits.card))})
    made = pd.merge_asof(left, right, left_on="at", right_on="since", by="card", tolerance=keep_ms - 1)
    return np.arange(len(left)), made["limit"].fillna(-1).to_numpy(np.int64)


def within(events: Events, limits: Limits, backward_ms: int) -> tuple[Ints, Ints]:
    """Return W5: all pairs of an event and a limit of its card that is at most ``backward_ms`` older."""
    first = min(int(events.at.min()), int(limits.since.min()))
    span = int(max(events.at.max(), limits.since.max())) - first + backward_ms + 1
    order = np.argsort(limits.card, kind="stable")
    # In order by card and time, and no two cards meet within the interval.
    place = limits.card[order] * span + limits.since[order] - first
    at = events.card * span + events.at - first
    begin, end = np.searchsorted(place, at - backward_ms), np.searchsorted(place, at, side="right")
    many = end - begin
    ids = np.repeat(np.arange(len(at)), many)
    inside = np.arange(len(ids)) - np.repeat(np.cumsum(many) - many, many)
    return ids, order[np.repeat(begin, many) + inside]


def best_items(shop: Ints, start: Ints, item: Ints, cents: Ints, n: int) -> tuple[Ints, ...]:
    """Return W6: the ``n`` items with the largest sums per shop and window start.

    Returns:
        Shop, window start, rank (from 1), item, sum; of equal sums the item with the smaller number is first.
    """
    sales = pd.DataFrame({"shop": shop, "start": start, "item": item, "cents": cents})
    sums = sales.groupby(["shop", "start", "item"])["cents"].sum().reset_index()
    sums = sums.sort_values(["shop", "start", "cents", "item"], ascending=[True, True, False, True])
    sums["rank"] = sums.groupby(["shop", "start"]).cumcount() + 1
    best = sums[sums["rank"] <= n]
    return tuple(best[name].to_numpy(np.int64) for name in ("shop", "start", "rank", "item", "cents"))


def silences(events: Events, timeout_ms: int) -> tuple[Ints, Ints]:
    """Return W8: card and time of each event after which its card has none for ``timeout_ms``."""
    order, _ = _by_card(events)
    card, at = events.card[order], events.at[order]
    last = np.ones(len(order), dtype=bool)
    last[:-1] = (card[1:] != card[:-1]) | (at[1:] - at[:-1] > timeout_ms)
    return card[last], at[last]


def _by_card(events: Events) -> tuple[Ints, Ints]:
    """Return the events' order by card and time, and in it the place of each one's card's first."""
    order = np.argsort(events.card, kind="stable")
    card = events.card[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = card[1:] != card[:-1]
    return order, np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))


def _sum_before(values: Ints, first: Ints) -> Ints:
    """Return the sum of a card's values before each of them."""
    before = np.append(0, np.cumsum(values))
    earlier: Ints = before[:-1] - before[first]
    return earlier
