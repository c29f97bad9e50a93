"""Scores of items for a visit that goes on, and the list that a surface may show of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace_apps.clickstream.recommend.index import SessionIndex

Policy = Literal["resume", "discover", "not_current"]
#: ``resume`` may name items of this visit, ``discover`` none, ``not_current`` all but the one looked at.
POLICIES: Final[tuple[Policy, ...]] = ("resume", "discover", "not_current")
Decay = Literal["linear", "inverse"]


@dataclass(frozen=True, slots=True)
class Parameters:
    """How a visit is compared and what its scores are made of.

    Args:
        last: Items of the visit that are looked at, the newest.
        k: Sessions that are taken as neighbours.
        decay: Weight of a click by its age: ``linear`` is (length - age) / length, ``inverse`` 1 / (age + 1).
        match_decay: What a neighbour loses per click between now and the newest item that it shares.
        idf: Weight of an item's rarity: its score is multiplied by ``1 + idf * log(N / n)``.
        rules: Weight of the sequential rules of the current item, beside 1 for the neighbours.
        own: Weight of the visit's own items, beside 1 for the neighbours.
        own_decay: Factor of ``own`` per click of age.
    """

    last: int = 9
    k: int = 500
    decay: Decay = "inverse"
    match_decay: float = 0.1
    idf: float = 0.2
    rules: float = 0.3
    own: float = 0.5
    own_decay: float = 0.5


#: VS-kNN of Ludewig and Jannach in its form over an index: neighbours alone.
VSKNN: Final = Parameters(last=100, k=500, match_decay=0.0, idf=0.0, rules=0.0, own=0.0)


class Suggestion(NamedTuple):
    """An item that is suggested, its score, and what spoke for it.

    Args:
        item: The item, as the sessions named it.
        score: Its score; 1 is the best that neighbours alone can give. Fall-backs have 0.
        why: ``visit`` (of this visit), ``sessions`` (of sessions alike), ``rule`` (follows the current item)
            or ``popular``.
    """

    item: Hashable
    score: float
    why: str


def own_items(index: SessionIndex, visit: Sequence[Hashable], last: int) -> dict[int, int]:
    """Return the visit's last items that the index knows, newest first, with their age in distinct items."""
    ages: dict[Hashable, int] = {}
    for item in reversed(visit):
        if item not in ages:
            ages[item] = len(ages)
            if len(ages) == last:
                break
    return {index.numbers[i]: age for i, age in ages.items() if i in index.numbers}


def neighbours(
    index: SessionIndex, own: dict[int, int], with_: Parameters
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the ``k`` sessions most alike, by number, and how much each counts.

    Of sessions equally alike the newer one is taken.
    """
    length = max(own.values(), default=0) + 1
    lists, weights, kept = [], [], []
    for item, age in own.items():
        newest = index.newest(item)
        lists.append(newest)
        weights.append((length - age) / length if with_.decay == "linear" else 1.0 / (age + 1))
        kept.append(max(1.0 - with_.match_decay * age, 0.0))
    if not lists:
        return np.empty(0, np.int64), np.empty(0)
    counts = [len(newest) for newest in lists]
    found, first, where = np.unique(np.concatenate(lists), return_index=True, return_inverse=True)
    # Rounded, so that sums that are equal but for the order of adding are equal.
    alike = np.bincount(where, np.repeat(weights, counts)).round(12)
    # Lists come newest item first, so a session's first place is that of its newest shared item.
    factor = np.repeat(kept, counts)[first]
    if len(found) > with_.k:
        # ``found`` is sorted by number, which is age: a stable sort of its reverse puts newer ones first.
        top = len(found) - 1 - np.argsort(-alike[::-1], kind="stable")[: with_.k]
        found, alike, factor = found[top], alike[top], factor[top]
    return found, alike * factor


class Alike(NamedTuple):
    """What the sessions most like a visit say.

    Attributes:
        own: The visit's items that the index knows, with their age.
        alike: How much each of the sessions counts.
        items: The sessions' items by number, ascending, each once.
        sums: How much the sessions of each count together.
        counts: How many these are.
    """

    own: dict[int, int]
    alike: NDArray[np.float64]
    items: NDArray[np.int64]
    sums: NDArray[np.float64]
    counts: NDArray[np.int64]


def alike(index: SessionIndex, visit: Sequence[Hashable], with_: Parameters) -> Alike:
    """Return what the sessions most like a visit say."""
    own = own_items(index, visit, with_.last)
    sessions, counting = neighbours(index, own, with_)
    items, lengths = index.gather(sessions)
    found, where = np.unique(items, return_inverse=True)
    sums = np.bincount(where, np.repeat(counting, lengths)).astype(np.float64)
    return Alike(own, counting, found, sums, np.bincount(where))


def score(
    index: SessionIndex,
    visit: Sequence[Hashable],
    with_: Parameters,
    told: Alike | None = None,
    most: int | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return candidates by number, ascending, and their scores.

    Args:
        index: The sessions.
        visit: Items of the visit up to now, oldest first.
        with_: The parameters.
        told: What the sessions alike say, if that is known already.
        most: So many candidates are asked for, the best that are not of the visit: of what follows a popular
            item the rest is left out. ``None``: all.
    """
    own, _, found, scores, _ = told or alike(index, visit, with_)
    if len(found):
        scores = scores * (1.0 + with_.idf * index.idf(found))
        scores = scores / (scores.max() or 1.0)
    items, values = [found], [scores]
    current = index.numbers.get(visit[-1]) if visit else None
    if with_.rules and current is not None and (rules := index.rules(current)):
        # What is a candidate already has all that speaks for it. Of the rest is left out what cannot be in a
        # list: so many follow the item more often, each with at least as high a score, and of these not more
        # than the visit's may be barred.
        near = dict.fromkeys([*found.tolist(), *own])
        followed, sums = rules.top(None if most is None else most + len(set(visit)), list(near))
        items.append(followed)
        values.append(with_.rules * sums / rules.strongest)
    if with_.own and own:
        ages = np.fromiter(own.values(), np.float64, len(own))
        items.append(np.fromiter(own, np.int64, len(own)))
        values.append(with_.own * with_.own_decay**ages)
    if len(items) == 1:
        return found, scores
    both, where = np.unique(np.concatenate(items), return_inverse=True)
    return both, np.bincount(where, np.concatenate(values)).astype(np.float64)


def ranked(
    index: SessionIndex, visit: Sequence[Hashable], scored: tuple[NDArray[np.int64], NDArray[np.float64]],
    policy: Policy, most: int,
) -> list[tuple[int, float]]:  # fmt: skip
    """Return the best candidates that a policy allows, filled up with rules and the popular items.

    Of equal scores the item seen first by the index comes first.
    """
    items, scores = scored
    names = {"resume": (), "not_current": visit[-1:], "discover": visit}[policy]
    barred = {index.numbers[name] for name in names if name in index.numbers}
    wanted = most + len(barred)
    if len(items) > wanted:
        least = np.partition(scores, len(scores) - wanted)[len(scores) - wanted]
        kept = scores >= least
        items, scores = items[kept], scores[kept]
    order = np.argsort(-scores, kind="stable")
    best = [
        (i, s) for i, s in zip(items[order].tolist(), scores[order].tolist(), strict=True) if i not in barred
    ]
    if len(best) < most:
        barred.update(i for i, _ in best)
        best += [(i, 0.0) for i in _fill(index, visit, barred, most - len(best))]
    return best[:most]


def _fill(index: SessionIndex, visit: Sequence[Hashable], barred: set[int], most: int) -> list[int]:
    """Return items for the rest of a list: what followed the visit's items, then what is popular."""
    found: dict[int, None] = {}
    for item in own_items(index, visit, 5):
        rules = index.rules(item)
        best = rules.best(most + len(barred) + len(found))
        found.update((i, None) for i in best if i not in barred)
        if len(found) >= most:
            return list(found)[:most]
    for item in index.popular(most + len(barred) + len(found)).tolist():
        if item not in barred:
            found[item] = None
    return list(found)[:most]


def reason_of(
    index: SessionIndex,
    visit: Sequence[Hashable],
    scored: tuple[NDArray[np.int64], NDArray[np.float64]],
) -> Callable[[int], str]:
    """Return what tells of an item by number what spoke for it (see :class:`Suggestion`)."""
    visited, scores = set(visit), set(scored[0].tolist())
    current = index.numbers.get(visit[-1]) if visit else None
    rules = index.rules(current) if current is not None else ()

    def why(item: int) -> str:
        if index.names[item] in visited:
            return "visit"
        if item in scores:
            return "sessions"
        return "rule" if item in rules else "popular"

    return why


def recommend(
    index: SessionIndex, visit: Sequence[Hashable], *, policy: Policy = "resume", most: int = 20,
    with_: Parameters | None = None,
) -> list[Suggestion]:  # fmt: skip
    """Return the items that a visitor is likely to look at next, the likeliest first.

    Args:
        index: Sessions that have ended.
        visit: Items of the visit up to now, oldest first; an unknown one says nothing.
        policy: Which items the surface may show.
        most: Length of the list.
        with_: Parameters; by default those chosen for the policy.

    Returns:
        At most ``most`` suggestions, each item once; fewer only if the index has fewer.

    Example:
        >>> from millrace_apps.clickstream.recommend.index import build
        >>> index = build([["shoe", "sock"], ["shoe", "sock"], ["shoe", "lace"]])
        >>> [(s.item, s.why) for s in recommend(index, ["shoe"], policy="discover")]
        [('sock', 'sessions'), ('lace', 'sessions')]
        >>> [(s.item, s.why) for s in recommend(index, [])]
        [('shoe', 'popular'), ('sock', 'popular'), ('lace', 'popular')]
    """
    with_ = with_ or CHOSEN[policy]
    scored = score(index, visit, with_, most=most)
    best = ranked(index, visit, scored, policy, most)
    why = reason_of(index, visit, scored)
    return [Suggestion(index.names[item], value, why(item)) for item, value in best]


#: Chosen by HR@20 / 2 + MRR@20 on validation sessions (see the app's DISCUSSION), never on those tested:
#: ``resume`` on the last day of RSC15's train_tr, ``not_current`` on Serenade's valid. ``discover`` names no
#: item of the visit, so that ``own`` would do nothing.
CHOSEN: Final[dict[Policy, Parameters]] = {
    "resume": Parameters(last=4, k=100, match_decay=0.2, idf=0.2, rules=0.2, own=1.4, own_decay=0.35),
    "not_current": Parameters(15, 200, "linear", 0.1, idf=3.0, rules=0.8, own=2.0, own_decay=0.7),
    "discover": Parameters(15, 200, "linear", 0.1, idf=3.0, rules=0.8, own=0.0),
}
