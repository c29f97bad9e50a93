"""The simple ways that a better one must beat, each a list of items for a visit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final

from millrace_apps.clickstream.recommend.index import SessionIndex
from millrace_apps.clickstream.recommend.scoring import VSKNN, Policy, ranked, score

Baseline = Callable[[SessionIndex, Sequence[Hashable], Policy, int], list[Hashable]]


def _allowed(
    found: Sequence[Hashable], visit: Sequence[Hashable], policy: Policy, most: int
) -> list[Hashable]:
    barred = {"resume": (), "not_current": visit[-1:], "discover": visit}[policy]
    return [item for item in dict.fromkeys(found) if item not in barred][:most]


def popularity(index: SessionIndex, visit: Sequence[Hashable], policy: Policy, most: int) -> list[Hashable]:
    """Return the items clicked most."""
    names = [index.names[i] for i in index.popular(most + len(visit)).tolist()]
    return _allowed(names, visit, policy, most)


def sequential_rules(
    index: SessionIndex, visit: Sequence[Hashable], policy: Policy, most: int
) -> list[Hashable]:
    """Return what followed the current item, the most and the nearest first."""
    number = index.numbers.get(visit[-1])
    best = index.rules(number).best(most + len(visit)) if number is not None else []
    return _allowed([index.names[i] for i in best], visit, policy, most)


def current_first(
    index: SessionIndex, visit: Sequence[Hashable], policy: Policy, most: int
) -> list[Hashable]:
    """Return the current item, then its sequential rules."""
    return _allowed([visit[-1], *sequential_rules(index, visit, "resume", most)], visit, policy, most)


def vs_knn(index: SessionIndex, visit: Sequence[Hashable], policy: Policy, most: int) -> list[Hashable]:
    """Return what VS-kNN says: neighbours alone."""
    best = ranked(index, visit, score(index, visit, VSKNN, most=most), policy, most)
    return [index.names[i] for i, _ in best]


BASELINES: Final[dict[str, Baseline]] = {
    "popularity": popularity,
    "sequential_rules": sequential_rules,
    "current_item_first": current_first,
    "vs_knn": vs_knn,
}
