"""Two models for two kinds of labels, after Dal Pozzolo et al.

Investigators say within hours what the payments were that they looked at: few labels, of payments
that looked suspicious. All other labels come weeks later. One model for both drowns the few in the many;
a model of each, their probabilities averaged, follows frauds of a new kind before the others are known
(Dal Pozzolo, Boracchi, Caelen, Alippi, Bontempi, "Credit Card Fraud Detection: A Realistic Modeling and a
Novel Learning Strategy", IEEE TNNLS 2018).

A forest's probability is the mean over its trees, so the mean of two forests of as many trees is the forest
of all their trees: the pair is stored, loaded and asked as any other model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from millrace.errors import UserError

if TYPE_CHECKING:
    from millrace_apps.fraud.model.examples import Examples

#: How far back investigators' answers count, days; the paper's experiments take two weeks, too.
FEEDBACK_DAYS: Final = 14
#: Fewer frauds in the feedback, or fewer genuine payments, do not make a model.
LEAST_FEEDBACK: Final = 5
#: Payments that investigators can look at in a day.
PAYMENTS_A_DAY: Final = 100

#: Time (event time, ms) → the payments that investigators had spoken of by then, with what they had said.
FeedbackAt = Callable[[int], "Examples"]


class Learning(StrEnum):
    """What a model has learned from: delayed labels alone, or feedback as well."""

    DELAYED = "delayed"
    TWO = "two"


class NotAPair(UserError):
    """Two models cannot be made one."""


def tells(feedback: Examples) -> bool:
    """Return whether feedback is enough for a model: :data:`LEAST_FEEDBACK` frauds, and as many others."""
    frauds = int(feedback.fraud.sum())
    return min(frauds, len(feedback) - frauds) >= LEAST_FEEDBACK


def pair_of(delayed: Any, feedback: Any) -> Any:
    """Return one model whose probabilities are the means of those of two.

    Args:
        delayed: The model of delayed labels: a pipeline of one forest, or a forest.
        feedback: The model of feedback, of the same kind, with as many trees. Neither is changed.

    Raises:
        NotAPair: They have not as many trees, or do not tell the same classes apart.

    Example:
        >>> from sklearn.ensemble import ExtraTreesClassifier
        >>> x = [[0.0], [1.0], [2.0], [3.0]]
        >>> a, b = (ExtraTreesClassifier(3, random_state=0).fit(x, y) for y in ([0, 0, 1, 1], [0, 1, 1, 1]))
        >>> [float(m.predict_proba([[1.0]])[0, 1]) for m in (a, b, pair_of(a, b))]
        [0.0, 1.0, 0.5]
    """
    pair = copy.deepcopy(delayed)
    ours, theirs = _forest(pair), _forest(feedback)
    if len(ours.estimators_) != len(theirs.estimators_) or list(ours.classes_) != list(theirs.classes_):
        raise NotAPair("two forests make a pair only with as many trees and the same classes")
    ours.estimators_ = [*ours.estimators_, *copy.deepcopy(theirs.estimators_)]
    ours.n_estimators = len(ours.estimators_)
    return pair


def _forest(model: Any) -> Any:
    steps = getattr(model, "steps", None)
    return model if steps is None else steps[-1][1]
