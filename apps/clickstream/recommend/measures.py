"""Ranking metrics of recommendation lists: hits, ranks, and the confidence of a difference."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from millrace_apps.clickstream.recommend.index import log_base_2

#: Lists are judged by their first so many items.
MOST: Final = 20


def rank_of(target: Hashable, found: Sequence[Hashable]) -> int:
    """Return the rank of an item in a list, from 1; 0 if it is not among the first 20.

    Example:
        >>> rank_of("b", ["a", "b"]), rank_of("c", ["a", "b"])
        (2, 0)
    """
    for rank, item in enumerate(found[:MOST], 1):
        if item == target:
            return rank
    return 0


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over all queries, each from 0 to 1.

    Args:
        hr20: Share of queries whose target is among the first 20 (hit rate; recall with one relevant item).
        mrr20: Mean of 1 / rank, 0 without a hit.
        ndcg20: Mean of 1 / log2(rank + 1), 0 without a hit.
        queries: How many there were.
    """

    hr20: float
    mrr20: float
    ndcg20: float
    queries: int


def quality(ranks: Iterable[int]) -> Quality:
    """Return the measures of ranks as :func:`rank_of` gives them.

    Example:
        >>> quality([1, 0, 3, 0])
        Quality(hr20=0.5, mrr20=0.333333, ndcg20=0.375, queries=4)
    """
    all_ = list(ranks)
    n, hits = max(len(all_), 1), [rank for rank in all_ if rank]
    return Quality(
        round(len(hits) / n, 6),
        round(sum(1.0 / rank for rank in hits) / n, 6),
        round(sum(log_base_2(rank) for rank in hits) / n, 6),
        len(all_),
    )


def paired_bootstrap(
    mine: Sequence[int], theirs: Sequence[int], *, draws: int = 1000, seed: int = 1
) -> dict[str, list[float]]:
    """Return the difference of two lists of ranks of the same queries, with its 95 % interval.

    Queries are drawn with replacement, both ranks of a query together (Efron, Tibshirani: An Introduction to
    the Bootstrap, 1993, chapter 13: the percentile interval).

    Returns:
        ``hr20`` and ``mrr20``: mine less theirs, its lower and its upper end.

    Example:
        >>> paired_bootstrap([1, 1, 1], [0, 0, 0])["hr20"]
        [1.0, 1.0, 1.0]
    """
    if len(mine) != len(theirs) or not mine:
        raise ValueError(f"{len(mine)} ranks cannot be paired with {len(theirs)}")
    a, b = np.array(mine, np.float64), np.array(theirs, np.float64)
    random = np.random.default_rng(seed)
    values = {"hr20": (a > 0).astype(float) - (b > 0), "mrr20": _inverse(a) - _inverse(b)}
    n = len(a)
    means: dict[str, list[float]] = {name: [] for name in values}
    for _ in range(draws):
        drawn = random.integers(0, n, n)
        for name, value in values.items():
            means[name].append(float(value[drawn].mean()))
    return {
        name: [round(float(x), 6) for x in (value.mean(), *np.percentile(means[name], (2.5, 97.5)))]
        for name, value in values.items()
    }


def _inverse(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(1.0, ranks, out=np.zeros_like(ranks), where=ranks > 0)
