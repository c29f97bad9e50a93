"""When a challenger may become the champion: when it is better, and that is no accident."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from millrace.errors import UserError

#: Resamplings of the days.
ROUNDS: Final = 200
#: How sure the interval is.
CONFIDENCE: Final = 0.95
#: Fewer days say nothing about days to come.
LEAST_DAYS: Final = 5


class CannotCompare(UserError):
    """Champion and challenger cannot be compared."""


@dataclass(frozen=True)
class Gain:
    """How much better the challenger ranks the same payments.

    Attributes:
        champion: Average precision of the champion.
        challenger: Average precision of the challenger.
        low: Lower end of the confidence interval of the difference.
        high: Upper end.
        days: Days compared.
        rows: Payments compared.
        frauds: Frauds among them.
    """

    champion: float
    challenger: float
    low: float
    high: float
    days: int
    rows: int
    frauds: int

    @property
    def proven(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low > 0


def compare(
    fraud: Any, champion: Any, challenger: Any, days: Any, *, rounds: int = ROUNDS, seed: int = 0
) -> Gain:
    """Compare two models on payments that both scored before their labels were known.

    Days are resampled, not payments: those of one day have terminals, cards and fraudsters in common.

    Args:
        fraud: True for frauds.
        champion: The champion's scores.
        challenger: The challenger's.
        days: Day of each payment.
        rounds: Resamplings.
        seed: Their seed.

    Raises:
        CannotCompare: There are too few days, or no frauds.
    """
    from sklearn.metrics import average_precision_score

    fraud = np.asarray(fraud, dtype=bool)
    champion, challenger = np.asarray(champion, dtype=float), np.asarray(challenger, dtype=float)
    of_day, place = np.unique(np.asarray(days), return_inverse=True)
    if len(of_day) < LEAST_DAYS or not fraud.any():
        raise CannotCompare(
            f"{len(fraud):,} payments of {len(of_day)} days with {int(fraud.sum())} frauds have been scored "
            f"by both models; {LEAST_DAYS} days with frauds are needed"
        )
    rng = np.random.default_rng(seed)
    differences = []
    for _ in range(rounds):
        weights = np.bincount(rng.integers(0, len(of_day), len(of_day)), minlength=len(of_day))[place]
        if not weights[fraud].any():
            continue
        two = [average_precision_score(fraud, s, sample_weight=weights) for s in (champion, challenger)]
        differences.append(two[1] - two[0])
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(differences, [tail, 1 - tail])
    return Gain(
        float(average_precision_score(fraud, champion)),
        float(average_precision_score(fraud, challenger)),
        float(low),
        float(high),
        len(of_day),
        len(fraud),
        int(fraud.sum()),
    )
