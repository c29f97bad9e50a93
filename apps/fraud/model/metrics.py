"""Metrics of scores: the Handbook's three, recall at few false positives, alert precision.

All take arrays of equal length. AUC and average precision are scikit-learn's; card precision is defined in
the *Fraud Detection Handbook*, chapter 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace_apps.fraud.model.feedback import PAYMENTS_A_DAY

Numbers = npt.NDArray[Any]

#: Cards that investigators can look at in a day.
CARDS_A_DAY: Final = 100
#: Share of genuine payments that may be stopped.
FALSE_POSITIVES: Final = 0.001


@dataclass(frozen=True)
class Quality:
    """Measures of one week, or their means.

    Attributes:
        auc: Area under the ROC curve.
        ap: Average precision.
        cp100: Precision among the 100 most suspicious cards of a day, mean over the days.
        recall_at_01pct_fpr: Share of the frauds above the score that 0.1 % of genuine payments exceed.
    """

    auc: float
    ap: float
    cp100: float
    recall_at_01pct_fpr: float


def quality(
    fraud: Numbers, scores: Numbers, cards: Numbers, days: Numbers, weight: Numbers | None = None
) -> Quality:
    """Return all measures; not a number where there is no fraud, or nothing else.

    Args:
        fraud: True for frauds.
        scores: Higher is more suspicious.
        cards: Card of each payment.
        days: Day of each payment.
        weight: For how many payments each stands, in all measures but card precision, which ranks those that
            there were; ``None``: each for itself.
    """
    from sklearn.metrics import (
        average_precision_score,
        roc_auc_score,
    )

    fraud = np.asarray(fraud, dtype=bool)
    told = fraud if weight is None else fraud[np.asarray(weight) > 0]
    both = bool(told.any() and not told.all())
    return Quality(
        auc=float(roc_auc_score(fraud, scores, sample_weight=weight)) if both else float("nan"),
        ap=float(average_precision_score(fraud, scores, sample_weight=weight)) if both else float("nan"),
        cp100=card_precision(fraud, scores, cards, days),
        recall_at_01pct_fpr=recall_at(fraud, scores, FALSE_POSITIVES, weight) if both else float("nan"),
    )


def card_precision(
    fraud: Numbers, scores: Numbers, cards: Numbers, days: Numbers, top: int = CARDS_A_DAY
) -> float:
    """Return the share of compromised cards among the ``top`` most suspicious of a day, mean over days.

    A card counts with its most suspicious payment; one that was found compromised is off the list on
    later days.

    Args:
        fraud: True for frauds.
        scores: Higher is more suspicious.
        cards: Card of each payment.
        days: Day of each payment.
        top: Cards looked at in a day.

    >>> fraud, cards, days = np.array([1, 0, 1]), np.array([1, 2, 1]), np.array([0, 0, 1])
    >>> card_precision(fraud, np.array([0.9, 0.8, 0.7]), cards, days, top=2)
    0.25
    """
    order = np.lexsort((cards, -np.asarray(scores, dtype=float), days))
    found: set[Any] = set()
    precisions: list[float] = []
    fraud_cards = _compromised(fraud, cards, days)
    for rows in np.split(order, np.flatnonzero(np.diff(np.asarray(days)[order])) + 1):
        seen: set[Any] = set()
        today: set[Any] = set()
        for row in rows.tolist():
            card = cards[row]
            if card in seen or card in found:
                continue
            seen.add(card)
            if (card, days[row]) in fraud_cards:
                today.add(card)
            if len(seen) == top:
                break
        found |= today
        precisions.append(len(today) / top)
    return float(np.mean(precisions)) if precisions else float("nan")


def _compromised(fraud: Numbers, cards: Numbers, days: Numbers) -> set[tuple[Any, Any]]:
    rows = np.flatnonzero(fraud)
    return {(cards[row], days[row]) for row in rows.tolist()}


def threshold_at(
    fraud: Numbers, scores: Numbers, false_positives: float, weight: Numbers | None = None
) -> float:
    """Return the score that at most this share of the genuine payments exceed.

    Args:
        fraud: True for frauds.
        scores: Higher is more suspicious.
        false_positives: The share.
        weight: For how many payments each stands; ``None``: each for itself.

    >>> threshold_at(np.zeros(10), np.arange(10.0), 0.1)
    8.0
    >>> threshold_at(np.zeros(3), np.arange(3.0), 0.5, np.array([1.0, 2.0, 3.0]))
    1.0
    """
    genuine = ~np.asarray(fraud, dtype=bool)
    found = np.asarray(scores, dtype=float)[genuine]
    if not len(found):
        return 0.0
    if weight is None:
        return float(np.sort(found)[len(found) - 1 - int(len(found) * false_positives)])
    order = np.argsort(-found, kind="stable")
    above = np.cumsum(np.asarray(weight, dtype=float)[genuine][order])
    place = int(np.searchsorted(above, above[-1] * false_positives, side="right"))
    return float(found[order][min(place, len(found) - 1)])


def recall_at(
    fraud: Numbers, scores: Numbers, false_positives: float, weight: Numbers | None = None
) -> float:
    """Return the share of the frauds whose score exceeds :func:`threshold_at`."""
    limit = threshold_at(fraud, scores, false_positives, weight)
    chosen = np.asarray(fraud, dtype=bool)
    there = None if weight is None else np.asarray(weight, dtype=float)[chosen]
    return float(np.average(np.asarray(scores, dtype=float)[chosen] > limit, weights=there))


def alert_precision_of_days(
    scores: Numbers, fraud: Numbers, days: Numbers, capacity: int = PAYMENTS_A_DAY
) -> list[float]:
    """Return for each day the share of frauds among the highest scores: what investigators would see.

    Args:
        scores: Higher is more suspicious; of equal ones the first.
        fraud: True for frauds.
        days: Day of each payment.
        capacity: Payments that they look at in a day.

    >>> scores, fraud, days = np.array([0.9, 0.1, 0.8, 0.7]), np.array([1, 0, 0, 1]), np.array([0, 0, 1, 1])
    >>> alert_precision_of_days(scores, fraud, days, 1)
    [1.0, 0.0]
    """
    scores, fraud, days = np.asarray(scores), np.asarray(fraud, dtype=float), np.asarray(days)
    found = []
    for day in np.unique(days):
        rows = np.flatnonzero(days == day)
        top = rows[np.argsort(-scores[rows], kind="stable")][:capacity]
        found.append(float(fraud[top].mean()))
    return found
