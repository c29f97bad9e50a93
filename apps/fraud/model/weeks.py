"""Training and test weeks of a model, with the delay between them: the Handbook's protocol.

*Fraud Detection Handbook*, chapters 3 and 5: a week of training, a week in which its labels become known, a
week of testing; from each day of the test week the cards are left out that were known to be compromised.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace_apps.fraud.state.labels import DAY_MS

_EPOCH: Final = date(1970, 1, 1)
#: Training begins so many days before the test week, and lasts a week.
DISTANCE_DAYS: Final = 14
WEEK_DAYS: Final = 7
#: A card is known to be compromised when its fraud is of so many days before, whatever the label delay.
REMOVAL_DAYS: Final = 8

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Week:
    """A test week.

    Attributes:
        start: Its first day.
        train: Rows to train on.
        test: Rows to test on, the cards known to be compromised left out.
    """

    start: date
    train: Rows
    test: Rows


def day_of(event_time_ms: Any) -> npt.NDArray[np.int64]:
    """Return days since the epoch."""
    return np.asarray(event_time_ms, dtype=np.int64) // DAY_MS


def week(start: date, days: npt.NDArray[np.int64], cards: Any, fraud: Any) -> Week:
    """Return the rows of a test week and of the training for it.

    Args:
        start: First day of the test week.
        days: Day of each payment, since the epoch.
        cards: Card of each payment.
        fraud: True for frauds.

    Example:
        >>> days = np.arange(21)
        >>> cards = np.zeros(21, dtype=int)
        >>> fraud = days == 13                  # known from the last day of the week on
        >>> found = week(date(1970, 1, 15), days, cards, fraud)
        >>> found.train.tolist(), found.test.tolist()
        ([0, 1, 2, 3, 4, 5, 6], [14, 15, 16, 17, 18, 19, 20])
        >>> week(date(1970, 1, 15), days, cards, days == 8).test.tolist()
        [14, 15]
    """
    first = (start - _EPOCH).days
    cards, fraud = np.asarray(cards), np.asarray(fraud, dtype=bool)
    trained_from = first - DISTANCE_DAYS
    in_train = (days >= trained_from) & (days < trained_from + WEEK_DAYS)
    known = set(cards[in_train & fraud].tolist())
    test: list[Rows] = []
    for day in range(first, first + WEEK_DAYS):
        known |= set(cards[(days == day - REMOVAL_DAYS) & fraud].tolist())
        rows = np.flatnonzero(days == day)
        test.append(rows[[card not in known for card in cards[rows].tolist()]] if len(rows) else rows)
    return Week(start, np.flatnonzero(in_train), np.concatenate(test))
