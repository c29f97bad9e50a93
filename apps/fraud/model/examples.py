"""What models learn from: payments whose labels are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Examples:
    """Payments whose labels were known at some time, in order of time.

    Attributes:
        x: Features, shape (n, features).
        fraud: True for frauds.
        cards: Card of each.
        at: Event time of each, ms.
        alerted: Which somebody was alerted to.
    """

    x: npt.NDArray[np.float32]
    fraud: npt.NDArray[np.bool_]
    cards: npt.NDArray[Any]
    at: npt.NDArray[np.int64]
    alerted: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.fraud)

    def part(self, since: int, until: int) -> Examples:
        """Return those from ``since`` up to before ``until``, ms."""
        rows = (self.at >= since) & (self.at < until)
        return self.chosen(rows)

    def chosen(self, rows: Any) -> Examples:
        """Return some of them, by a mask or by their places."""
        return Examples(self.x[rows], self.fraud[rows], self.cards[rows], self.at[rows], self.alerted[rows])
