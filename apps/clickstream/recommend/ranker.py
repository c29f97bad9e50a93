"""A learned order of the best candidates: boosted trees, trained on clicks, kept only where they win.

Candidates come from the sessions alike, as everywhere else; what is learned is their order. Training goes
through sessions as they came: each click asks an index of the sessions that had ended by then, so that no
example knows more than the shop did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from millrace_apps.clickstream.recommend.followers import Followers
from millrace_apps.clickstream.recommend.index import SessionIndex
from millrace_apps.clickstream.recommend.measures import MOST, paired_bootstrap, rank_of
from millrace_apps.clickstream.recommend.scoring import (
    CHOSEN,
    POLICIES,
    Alike,
    Policy,
    Suggestion,
    alike,
    ranked,
    score,
)

#: So many candidates of a list are ordered.
CANDIDATES: Final = 40
#: So many clicks are learned from at most, the newest.
MOST_EXAMPLES: Final = 20_000
#: With fewer nothing is learned: nobody could tell whether it is better.
LEAST_EXAMPLES: Final = 500
#: The first share of the examples is learned from, and judged on the rest, before all are learned from.
_LEARNED_FROM: Final = 0.75
#: What is known of a candidate.
FEATURES: Final = (
    "score", "rank", "neighbours", "sessions", "rule", "rule_before", "rule_back", "age", "seen",
    "popularity", "repeats", "since", "visit", "alike",
)  # fmt: skip

#: A visit up to a click, and what was looked at next.
Example = tuple[Sequence[Hashable], Hashable]


def candidates(
    index: SessionIndex, visit: Sequence[Hashable], policy: Policy, most: int = CANDIDATES
) -> tuple[list[int], NDArray[np.float64]]:
    """Return the best candidates for a visit by number, the best first, and what is known of them.

    Args:
        index: Sessions that have ended.
        visit: Items of the visit up to now, oldest first.
        policy: Which items the surface may show.
        most: So many candidates.

    Returns:
        At most so many items, and an array of shape (items, 14), a column per name of :data:`FEATURES`.

    Example:
        >>> from millrace_apps.clickstream.recommend.index import build
        >>> index = build([["shoe", "sock"], ["shoe", "sock"], ["shoe", "lace"]])
        >>> items, rows = candidates(index, ["shoe"], "discover")
        >>> [index.names[i] for i in items], rows.shape
        (['sock', 'lace'], (2, 14))
    """
    with_ = CHOSEN[policy]
    told = alike(index, visit, with_)
    best = ranked(index, visit, score(index, visit, with_, told, most), policy, most)
    return [item for item, _ in best], features_of(index, visit, told, best)


def features_of(
    index: SessionIndex, visit: Sequence[Hashable], told: Alike, best: Sequence[tuple[int, float]]
) -> NDArray[np.float64]:
    """Return what is known of candidates, shape (candidates, 14), a column per name of :data:`FEATURES`.

    Args:
        index: Sessions that have ended.
        visit: Items of the visit up to now, oldest first.
        told: What the sessions alike say.
        best: The candidates by number with their scores, the best first.
    """
    items = [item for item, _ in best]
    rows = np.zeros((len(items), len(FEATURES)))
    if not items:
        return rows
    current = index.numbers.get(visit[-1]) if visit else None
    before = index.numbers.get(visit[-2]) if len(visit) > 1 else None
    rules = index.rules(current) if current is not None else Followers()
    earlier = index.rules(before) if before is not None else Followers()
    strongest = rules.strongest or 1.0
    seen = Counter(visit)
    numbers = np.array(items)
    if len(told.items):
        place = np.minimum(np.searchsorted(told.items, numbers), len(told.items) - 1)
        near = told.items[place] == numbers
        rows[:, 2] = np.where(near, told.sums[place] / (float(told.alike.sum()) or 1.0), 0.0)
        rows[:, 3] = np.where(near, told.counts[place], 0)
    rows[:, 0] = [value for _, value in best]
    rows[:, 1] = np.arange(len(items))
    rows[:, 4] = [rules.get(item) / strongest for item in items]
    rows[:, 5] = [earlier.get(item) for item in items]
    if current is not None:
        rows[:, 6] = [index.rules(item).get(current) for item in items]
    rows[:, 7] = [told.own.get(item, -1) for item in items]
    rows[:, 8] = [seen[index.names[item]] for item in items]
    clicks, inside, newest = index.counts(items)
    rows[:, 9] = np.log1p(clicks)
    rows[:, 10] = inside / np.maximum(clicks, 1)
    rows[:, 11] = index.sessions - newest
    rows[:, 12] = len(visit)
    rows[:, 13] = len(told.alike)
    return rows


@dataclass(frozen=True, slots=True)
class Judged:
    """Whether the learned order of a policy is kept, and why.

    Attributes:
        kept: Whether it is: better by HR@20 or MRR@20 (lower end of the interval above 0), and no worse by
            the other.
        learned_from: Clicks that were learned from.
        judged_by: Later clicks that it was judged by, before these were learned from, too.
        less_unlearned: Its measures there less those of the unlearned order, with their 95 % interval.
    """

    kept: bool
    learned_from: int
    judged_by: int
    less_unlearned: dict[str, list[float]] = field(default_factory=dict)


class Ranker:
    """Orders candidates by what was learned; of a policy that nothing is kept of, as they come.

    Args:
        models: Policy → its trees.
    """

    def __init__(self, models: dict[Policy, Any]) -> None:
        self._models = models

    def recommend(
        self, index: SessionIndex, visit: Sequence[Hashable], *, policy: Policy = "resume", most: int = MOST
    ) -> list[Suggestion]:
        """Return the items that a visitor is likely to look at next, the likeliest first.

        Args:
            index: Sessions that have ended.
            visit: Items of the visit up to now, oldest first.
            policy: Which items the surface may show.
            most: Length of the list, 40 at most.

        Returns:
            Suggestions with the learned log-odds of a click as their score; ``why`` is ``learned``, or
            ``unlearned`` for a policy of which no order is kept (its scores are those of the candidates).
        """
        items, rows = candidates(index, visit, policy)
        model = self._models.get(policy)
        if model is None or not items:
            found = [(i, float(row[0]), "unlearned") for i, row in zip(items, rows, strict=True)]
        else:
            odds = model.score_many(rows).round(12)
            order = np.argsort(-odds, kind="stable").tolist()
            found = [(items[n], float(odds[n]), "learned") for n in order]
        return [Suggestion(index.names[i], value, why) for i, value, why in found[:most]]


def wins(less: Mapping[str, Sequence[float]]) -> bool:
    """Tell whether an order is better by one measure beyond doubt, and no worse by the others.

    Args:
        less: Measure → its figure less that of the other order, and the two ends of its interval.

    Example:
        >>> wins({"hr20": [0.0, -0.01, 0.01], "mrr20": [0.02, 0.01, 0.03]}), wins({"hr20": [0.1, 0.0, 0.2]})
        (True, False)
    """
    return max(low for _, low, _ in less.values()) > 0 and min(mean for mean, _, _ in less.values()) >= 0


def learn_order(
    examples: Iterable[tuple[SessionIndex, Example]],
    *,
    policies: Sequence[Policy] = POLICIES,
    seed: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Ranker, dict[Policy, Judged]]:
    """Learn the order of candidates from clicks as they came; keep it where it wins on later ones.

    Args:
        examples: Clicks in order of time, each with the index of what had ended by then. The index may be
            the same object that grows: an example is looked at before the next one is asked for.
        policies: Policies to learn for.
        seed: Of the trees.
        say: Told what goes on.

    Returns:
        The ranker, and for each policy whether its order is kept.
    """
    seen: dict[Policy, list[tuple[NDArray[np.float64], int]]] = {policy: [] for policy in policies}
    for number, (index, (visit, target)) in enumerate(examples, 1):
        wanted = index.numbers.get(target)
        for policy in policies:
            items, rows = candidates(index, visit, policy)
            seen[policy].append((rows, items.index(wanted) if wanted in items else -1))
        if number % 5_000 == 0:
            say(f"learning: {number:,} clicks")
    models: dict[Policy, Any] = {}
    judged: dict[Policy, Judged] = {}
    for policy, all_ in seen.items():
        cut = int(len(all_) * _LEARNED_FROM)
        first = _fitted(all_[:cut], seed) if len(all_) >= LEAST_EXAMPLES else None
        if first is None:
            judged[policy] = Judged(False, len(all_), 0)
            continue
        rest = all_[cut:]
        less = paired_bootstrap([_rank(first, e) for e in rest], [_unlearned(e) for e in rest])
        kept = wins(less)
        judged[policy] = Judged(kept, len(all_), len(rest), less)
        if kept:
            models[policy] = _fitted(all_, seed)
        say(f"{policy}: the learned order is {'kept' if kept else 'not kept'}")
    return Ranker(models), judged


def _fitted(examples: Sequence[tuple[NDArray[np.float64], int]], seed: int) -> Any:
    """Return trees that tell the clicked candidate from the others; ``None`` where none was clicked."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    from millrace.models.boosted import Boosted

    told = [(rows, at) for rows, at in examples if at >= 0]
    if not told or all(len(rows) == 1 for rows, _ in told):
        return None
    x = np.concatenate([rows for rows, _ in told])
    y = np.concatenate([np.arange(len(rows)) == at for rows, at in told])
    model = HistGradientBoostingClassifier(
        learning_rate=0.1, max_iter=100, min_samples_leaf=200, max_leaf_nodes=15, l2_regularization=1.0,
        early_stopping=False, random_state=seed,
    )  # fmt: skip
    return Boosted.of(model.fit(x, y), len(FEATURES))


def _rank(model: Any, example: tuple[NDArray[np.float64], int]) -> int:
    rows, at = example
    if at < 0:
        return 0
    order = np.argsort(-model.score_many(rows).round(12), kind="stable").tolist()
    return rank_of(at, order)


def _unlearned(example: tuple[NDArray[np.float64], int]) -> int:
    return rank_of(example[1], range(len(example[0])))


def clicks_as_they_came(
    sessions: Sequence[Sequence[Hashable]], m: int
) -> Iterator[tuple[SessionIndex, Example]]:
    """Yield examples of the later half of sessions that are told by age alone, one session after the other.

    Args:
        sessions: Items of each, the oldest first.
        m: Newest sessions that an item keeps.
    """
    index, first = SessionIndex(m), first_learned([len(items) for items in sessions])
    for number, items in enumerate(sessions):
        if number >= first:
            for at in range(1, len(items)):
                yield index, (items[:at], items[at])
        index.add(items)


def first_learned(lengths: Sequence[int]) -> int:
    """Return from which session on is learned: the later half, and no more clicks than 20,000.

    Example:
        >>> first_learned([3] * 10), first_learned([5_001] * 10)
        (5, 6)
    """
    first, clicks = len(lengths), 0
    while first > (len(lengths) + 1) // 2:
        clicks += max(lengths[first - 1] - 1, 0)
        if clicks > MOST_EXAMPLES:
            break
        first -= 1
    return first
