"""Threshold economics: from scored payments to the thresholds of review and block that cost least.

A transaction below both thresholds passes; from the review threshold on its card is looked at, from the block
threshold on it is blocked. Looking costs an analyst's time and there is a fixed number of looks a day;
blocking a genuine payment costs the customer's good will and the sale. What is chosen here is the pair of
thresholds with the smallest cost, among those whose reviews fit the day.

Looks and blocks are counted over all payments, whether or not it is known what they are; what they save and
cost beyond a look over those of which it is known. Payments left out of both would make every threshold look
as good as on those that somebody has looked at, which were suspicious to begin with.

Choose on earlier days than those that are judged: on the same days the figures flatter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.errors import UserError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_DAY_MS: Final = 86_400_000
#: Candidates for a threshold: so many quantiles of the scores, the largest ones closer together.
_CANDIDATES: Final = 100
#: Above every score: nothing is blocked, or nothing looked at.
NEVER: Final = 2.0


class EconomicsError(UserError):
    """Costs or figures that make no sense."""


class Costs(msgspec.Struct, frozen=True):
    """What things cost, currency units.

    Attributes:
        review: To look at one case.
        false_block: To block one genuine payment, beyond the margin lost.
        margin: Share of a genuine amount that is earned, and lost when it is blocked.
        review_saves: Share of a fraud's amount that is saved when it is looked at, not blocked: some of it
            is gone by then.
    """

    review: float = 5.0
    false_block: float = 10.0
    margin: float = 0.02
    review_saves: float = 0.7

    def __post_init__(self) -> None:
        costs = (self.review, self.false_block, self.margin, self.review_saves)
        if not all(map(math.isfinite, costs)) or min(costs) < 0:
            raise EconomicsError("costs are numbers that are not negative")
        if not 0 <= self.review_saves <= 1 or self.margin > 1:
            raise EconomicsError("margin and review_saves are shares, from 0 to 1")


class Scored(msgspec.Struct, frozen=True):
    """Payments with their scores, a value per payment in each array.

    Attributes:
        time_ms: When, UTC milliseconds.
        card: The card, as a number.
        amount: Amount, currency units.
        score: Probability of fraud, 0 to 1.
        fraud: Whether it was one; of no meaning where that is not known.
        weight: For how many payments it stands where it counts what it was; 0: it is not known what it was.
            ``None``: 1 of all.
    """

    time_ms: Ints
    card: Ints
    amount: Floats
    score: Floats
    fraud: npt.NDArray[np.bool_]
    weight: Floats | None = None

    @staticmethod
    def of(rows: Sequence[tuple[int, str, float, float, bool | None]]) -> Scored:
        """Return scored payments of tuples (time in ms, card, amount, score, fraud; ``None``: not known)."""
        numbers: dict[str, int] = {}
        cards = [numbers.setdefault(card, len(numbers)) for _, card, _, _, _ in rows]
        return Scored(
            np.array([r[0] for r in rows], np.int64),
            np.array(cards, np.int64),
            np.array([r[2] for r in rows], np.float64),
            np.array([r[3] for r in rows], np.float64),
            np.array([bool(r[4]) for r in rows], np.bool_),
            np.array([r[4] is not None for r in rows], np.float64),
        )

    @property
    def weights(self) -> Floats:
        """For how many payments each stands, 0 where it is not known what it was."""
        return np.ones(len(self.score)) if self.weight is None else self.weight

    @property
    def days(self) -> int:
        """Number of days between the first and the last payment, both counted."""
        if not len(self.time_ms):
            return 0
        return int(self.time_ms.max() // _DAY_MS - self.time_ms.min() // _DAY_MS) + 1


class Outcome(msgspec.Struct, frozen=True):
    """What a pair of thresholds does.

    Attributes:
        review_from: Score from which a card is looked at.
        block_from: Score from which a payment is blocked.
        cost: All costs and losses, currency units.
        loss: Of them, fraud that was not saved.
        saved: Fraud that was saved, currency units.
        caught_share: Share of the fraud's amount that was saved.
        recall: Share of frauds that were looked at or blocked.
        precision: Share of frauds among what was looked at or blocked and is known.
        false_block_rate: Share of genuine payments that were blocked.
        reviews_per_day: Cards looked at, mean per day.
        reviews_most: The same, on the busiest day.
        blocks_per_day: Payments blocked, mean per day.
        unknown_share: Share of what was looked at or blocked of which it is not known what it was.
    """

    review_from: float
    block_from: float
    cost: float
    loss: float
    saved: float
    caught_share: float
    recall: float
    precision: float
    false_block_rate: float
    reviews_per_day: float
    reviews_most: int
    blocks_per_day: float
    unknown_share: float = 0.0


def outcome(scored: Scored, review_from: float, block_from: float, costs: Costs) -> Outcome:
    """Return what a pair of thresholds does to payments.

    Args:
        scored: The payments.
        review_from: Score from which a card is looked at: once a day, whatever it does on it.
        block_from: Score from which a payment is blocked; not below ``review_from``.
        costs: What things cost.

    Raises:
        EconomicsError: The thresholds stand the wrong way round, or there is nothing to judge.

    Example:
        >>> day = [(0, "a", 100.0, 0.95, True), (1, "b", 50.0, 0.6, False), (2, "c", 80.0, 0.1, True)]
        >>> found = outcome(Scored.of(day), 0.5, 0.9, Costs(review=5.0))
        >>> found.saved, found.loss, found.reviews_per_day, found.cost
        (100.0, 80.0, 1.0, 85.0)
    """
    if block_from < review_from:
        raise EconomicsError(f"blocking from {block_from} on is below reviewing from {review_from} on")
    if not len(scored.score):
        raise EconomicsError("there is no labelled transaction to judge by")
    weight = scored.weights
    blocked = scored.score >= block_from
    reviewed = (scored.score >= review_from) & ~blocked
    fraud, genuine, amount = scored.fraud, ~scored.fraud, weight * scored.amount
    saved = float(amount[blocked & fraud].sum() + costs.review_saves * amount[reviewed & fraud].sum())
    total = float(amount[fraud].sum())
    false_blocks = blocked & genuine
    blocked_wrongly = float(weight[false_blocks].sum())
    per_day = _cards_per_day(scored, reviewed)
    reviews = int(per_day.sum())
    cost = (
        (total - saved)
        + costs.review * reviews
        + costs.false_block * blocked_wrongly
        + costs.margin * float(amount[false_blocks].sum())
    )
    flagged = blocked | reviewed
    hits = float(weight[flagged & fraud].sum())
    days = scored.days
    return Outcome(
        review_from=review_from,
        block_from=block_from,
        cost=round(cost, 2),
        loss=round(total - saved, 2),
        saved=round(saved, 2),
        caught_share=_share(saved, total),
        recall=_share(hits, float(weight[fraud].sum())),
        precision=_share(hits, float(weight[flagged].sum())),
        false_block_rate=_share(blocked_wrongly, float(weight[genuine].sum())),
        reviews_per_day=reviews / days,
        reviews_most=int(per_day.max(initial=0)),
        blocks_per_day=int(blocked.sum()) / days,
        unknown_share=_share(int((weight[flagged] == 0).sum()), int(flagged.sum())),
    )


def choose(
    scored: Scored, costs: Costs, capacity: int, *, most_false_blocks: float | None = None
) -> tuple[Outcome, list[Outcome]]:
    """Return the pair of thresholds with the smallest cost whose reviews fit the day.

    For each threshold of blocking the best one of reviewing is taken, among those with at most ``capacity``
    cards on a mean day; a fuller day leaves the rest of its queue for the next.

    Args:
        scored: Payments of days before those that will be judged.
        costs: What things cost.
        capacity: Cards that can be looked at on a day.
        most_false_blocks: Largest share of genuine payments that may be blocked; ``None``: any.

    Returns:
        The best pair, and the best pair for every threshold of blocking, in order of it.

    Raises:
        EconomicsError: There is nothing to judge by, or no fraud among it.
    """
    if capacity < 0:
        raise EconomicsError("the capacity is not negative")
    if not (scored.fraud & (scored.weights > 0)).any():
        raise EconomicsError("no labelled fraud: thresholds cannot be chosen from genuine payments alone")
    ranked = _Ranked(scored, costs)
    per_block: list[Outcome] = []
    for block_from in [*_candidates(scored.score), NEVER]:
        fit = outcome(scored, ranked.best_review(block_from, capacity * scored.days), block_from, costs)
        if most_false_blocks is None or fit.false_block_rate <= most_false_blocks:
            per_block.append(fit)
    if not per_block:
        raise EconomicsError(f"no share of genuine payments is {most_false_blocks}: it is from 0 to 1")
    return min(per_block, key=lambda o: (o.cost, -o.block_from)), per_block


class _Ranked:
    """Payments in order of score, highest first, with sums over those above each place."""

    def __init__(self, scored: Scored, costs: Costs) -> None:
        order = np.argsort(-scored.score, kind="stable")
        self._costs = costs
        self._score = scored.score[order]
        days = scored.time_ms[order] // _DAY_MS
        self._card_day = (days - days.min()) * (int(scored.card.max()) + 1) + scored.card[order]
        frauds = np.where(scored.fraud, scored.weights * scored.amount, 0.0)[order]
        self._fraud_above = np.concatenate([[0.0], np.cumsum(frauds)])

    def best_review(self, block_from: float, most: int) -> float:
        """Return the threshold of review that saves most, for a threshold of blocking.

        Args:
            block_from: Score from which payments are blocked.
            most: Cards and days that can be looked at, all days together.
        """
        n = len(self._score)
        start = int(np.searchsorted(-self._score, -block_from, side="right"))
        size = 2 * most + 1_000
        while True:
            end = min(n, start + size)
            seen = np.zeros(end - start, np.int64)
            seen[np.unique(self._card_day[start:end], return_index=True)[1]] = 1
            looks = np.cumsum(seen)
            if end == n or looks[-1] > most:
                break
            size *= 2
        # Equal scores are looked at together: only the last of each is a place to stop at.
        part = self._score[start:end]
        ends = (
            np.flatnonzero(np.append(part[1:] != part[:-1], end == n)) if end > start else np.array([], int)
        )
        ends = ends[looks[ends] <= most]
        if not len(ends):
            return block_from
        saved = self._costs.review_saves * (self._fraud_above[start + 1 + ends] - self._fraud_above[start])
        gain = saved - self._costs.review * looks[ends]
        best = int(np.argmax(gain))
        return float(part[ends[best]]) if gain[best] > 0 else block_from


def _candidates(score: Floats) -> list[float]:
    """Return thresholds to try: scores that occur, the highest of them closer together."""
    distinct = np.unique(score)
    if len(distinct) <= _CANDIDATES:
        return [float(s) for s in distinct]
    shares = 1 - np.geomspace(1 / len(score), 1, _CANDIDATES)
    return sorted({float(s) for s in np.quantile(score, shares[shares >= 0], method="higher")})


def _cards_per_day(scored: Scored, chosen: npt.NDArray[np.bool_]) -> Ints:
    """Return the number of cards among the chosen transactions of each day."""
    day = scored.time_ms[chosen] // _DAY_MS
    pairs = np.unique(np.stack([day, scored.card[chosen]]), axis=1)
    return np.unique(pairs[0], return_counts=True)[1].astype(np.int64)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan if part else 0.0


def block_pays(probability: float, amount: float, costs: Costs) -> bool:
    """Say whether blocking one payment costs less than letting it pass, by a calibrated probability.

    Args:
        probability: That it is a fraud.
        amount: Its amount, currency units.
        costs: What things cost.

    >>> block_pays(0.2, 100.0, Costs(false_block=10.0, margin=0.02))
    True
    >>> block_pays(0.2, 10.0, Costs(false_block=10.0, margin=0.02))
    False
    """
    return probability * amount > (1 - probability) * (costs.false_block + costs.margin * amount)


def as_report(
    best: Outcome,
    curve: Sequence[Outcome],
    costs: Costs,
    capacity: int,
    basis: msgspec.Struct | None = None,
) -> dict[str, Any]:
    """Return a choice as plain data, as the command writes it, with what it rests on."""
    return {
        "capacity": capacity,
        "costs": msgspec.to_builtins(costs),
        "best": msgspec.to_builtins(best),
        "curve": [msgspec.to_builtins(o) for o in curve],
        **({} if basis is None else {"basis": msgspec.to_builtins(basis)}),
    }
